//! Who holds what: providers, peers, channels and what dead ones have left, seen from outside.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::inspect::Inspector;
//!
//! # let provider = shm_pool::Provider::builder().build()?;
//! let report = Inspector::new().look()?;
//! for provider in &report.providers {
//!     println!("{}.{}: {:?}, {} bytes held", provider.prefix, provider.id, provider.state, provider.bytes_held);
//!     for peer in &provider.peers {
//!         println!("  slot {}: {:?} leases {} bytes", peer.slot, peer.process, peer.bytes);
//!     }
//! }
//! # assert!(report.providers.iter().any(|found| found.id == provider.id()));
//! # Ok(())
//! # }
//! ```
//!
//! # Looking does not disturb
//!
//! A look opens objects for reading, reads what they say into private memory, and asks the kernel
//! for locks without taking any. It takes no peer slot, maps nothing of others, writes nothing, and
//! asks nobody for help, so it works while an owner is stopped or dead. Nobody can tell that it was
//! there.
//!
//! # What is believed
//!
//! | question | who answers |
//! |---|---|
//! | which objects are there, how long are they, how much memory do they have? | the file system |
//! | is an owner, a peer, a sender, a receiver alive? | the kernel: whether its byte is locked |
//! | which process is it? | the kernel: which process has the descriptor that the lock was taken by |
//! | what does a peer lease, what is a receiver lent, how full is a channel? | the object, where any process of the same user can write; checked, and never more than a number in the report |
//!
//! Objects that are damaged, or change during the look, make wrong numbers at worst. A process in
//! another PID namespace is not seen, though its locks are: what it holds is shown without it. What
//! was received from a channel can still be read when the object that says so is gone, because its
//! sender, or that receiver of a publisher, was dropped: then nobody is seen to have it.
//!
//! # What only the owner knows
//!
//! Which chunks are in use by the owner itself and which are idle: [`Provider::stats`]. And how
//! long a lease or a loan has lasted: that would cost a look at the clock with each message. An
//! [`Inspector`] remembers what it saw at its looks before, and says since when it has seen the same
//! one at every look. It may be older than that. If a peer let go of the message between two looks,
//! and then leased the same one again, it is younger. So is a loan of a channel that was made again
//! meanwhile, if its file system gives the new object the old one's inode; tmpfs does not.
//!
//! [`Provider::stats`]: crate::Provider::stats

#![forbid(unsafe_code)]

mod counted;
mod look;
mod object;
mod report;

pub use crate::os::processes::Process;
pub use report::{
    ChannelReport, ClassReport, PeerReport, ProviderReport, ReceiverReport, Report, SegmentReport, State,
};

use crate::error::OsError;
use crate::os::name::DIRECTORY;
use crate::os::posix::free_bytes;
use crate::os::processes::{Seen, Wanted};
use crate::protocol::control::control_name;
use crate::protocol::names::parse;
use crate::Provider;
use counted::{Lease, Loan, Since};
use look::Look;
use object::Objects;
use std::io;
use std::mem::take;
use std::path::{Path, PathBuf};

/// Looks at what this crate's processes have in a directory. See the [module](self).
#[derive(Clone, Debug)]
pub struct Inspector {
    directory: PathBuf,
    /// Only of objects whose names begin so.
    prefix: Option<String>,
    /// Of what the last look found.
    leases: Since<Lease>,
    loans: Since<Loan>,
}

impl Default for Inspector {
    fn default() -> Self {
        Self::new()
    }
}

impl Inspector {
    /// Looks at /dev/shm.
    pub fn new() -> Self {
        Self::of(DIRECTORY)
    }

    /// Looks at another directory; see [`ProviderBuilder::directory`].
    ///
    /// [`ProviderBuilder::directory`]: crate::ProviderBuilder::directory
    pub fn of(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), prefix: None, leases: Since::new(), loans: Since::new() }
    }

    /// Looks only at objects with this name prefix, as set by [`ProviderBuilder::name_prefix`]. The
    /// default is all.
    ///
    /// [`ProviderBuilder::name_prefix`]: crate::ProviderBuilder::name_prefix
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// The directory that it looks at.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Looks once at everything that belongs to this process's user.
    ///
    /// # Errors
    ///
    /// [`OsError`] if the directory or /proc cannot be read. An object that cannot is in the
    /// report, with the reason.
    pub fn look(&mut self) -> Result<Report, OsError> {
        let mut objects = Objects::find(&self.directory, self.prefix.as_deref())?;
        let wanted = Wanted { inodes: std::mem::take(&mut objects.inodes), is_name: &|file| parse(file).is_some() };
        let seen = Seen::of(&wanted).map_err(|error| OsError::new("readdir", "/proc", 0, error, String::new()))?;
        let mut look = Look::new(seen, objects, take(&mut self.leases), take(&mut self.loans));
        let channels = look.channels();
        let providers = look.providers();
        (self.leases, self.loans) = (look.leases.into_since(), look.loans.into_since());
        Ok(Report {
            directory: self.directory.clone(),
            free_bytes: free_bytes(&self.directory),
            providers,
            channels,
            others: look.objects.others,
            hidden_processes: look.seen.hidden,
        })
    }
}

impl Provider {
    /// What anybody can see of this provider from outside: who its peers are, which processes, and
    /// what each of them leases. [`stats`](Self::stats) tells what the owner itself has.
    ///
    /// Looks at all processes under /proc, which takes milliseconds.
    ///
    /// # Errors
    ///
    /// As [`Inspector::look`]; also if the control object has been removed by hand. In a forked
    /// child, `owner` is the parent.
    pub fn report(&self) -> Result<ProviderReport, OsError> {
        let names = self.names();
        let report = Inspector::of(names.directory()).prefix(names.prefix()).look()?;
        let own = report.providers.into_iter().find(|provider| provider.id == self.id());
        let missing = || control_name(names, self.id()).error("open", 0, io::Error::from_raw_os_error(libc::ENOENT));
        own.ok_or_else(missing)
    }
}
