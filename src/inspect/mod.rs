//! Inspects providers, peers, channels and what dead processes left behind, from any process.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::inspect::Inspector;
//!
//! # let provider = shm_pool::Provider::builder().build()?;
//! let report = Inspector::new().report()?;
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
//! # Inspection has no side effects
//!
//! A look opens objects for reading, copies their contents into private memory, and asks the kernel
//! about locks without taking any. So it works while an owner is stopped or dead.
//!
//! # Sources
//!
//! | fact | source |
//! |---|---|
//! | which objects exist, their lengths and memory | the file system |
//! | whether an owner, peer, sender or receiver is alive | the kernel: whether its byte is locked |
//! | which process it is | the kernel: the process with the descriptor that took the lock |
//! | leased and borrowed messages, how full a channel is | the object, which any process of the same user can write |
//!
//! An object that is damaged or changes during the look yields wrong numbers at worst. Processes in
//! another PID namespace are not shown, nor holders of messages whose channel's object was removed.
//!
//! # What only the owner knows
//!
//! Which chunks the owner itself uses and which are idle: see [`Provider::stats`]. An [`Inspector`]
//! reports how long it has seen the same lease or borrowed buffer in every look: a lower bound,
//! unless a message was released and leased again between two looks.
//!
//! [`Provider::stats`]: crate::Provider::stats

#![forbid(unsafe_code)]

mod look;
mod report;
mod sources;

pub use crate::os::process::Process;
pub use report::{
    ChannelReport, ClassReport, DamagedReceiver, ObjectState, PeerReport, ProviderReport,
    ReceiverReport, RemovedName, Report, SegmentReport,
};

use crate::error::OsError;
use crate::os::advice::invisible;
use crate::os::name::{Namespace, DIRECTORY};
use crate::os::posix::free_bytes;
use crate::os::process::{Seen, Wanted};
use crate::owner::provider::Provider;
use crate::protocol::control::OWNER_BYTE;
use crate::protocol::ids::{control_name, parse};
use look::{Borrow, Lease, Look, Since};
use sources::Objects;
use std::ffi::OsStr;
use std::mem::take;
use std::path::PathBuf;

/// Inspects this crate's objects in a directory. See the [module](self).
#[derive(Clone, Debug)]
pub struct Inspector {
    directory: PathBuf,
    prefix: Option<String>,
    leases: Since<Lease>,
    borrows: Since<Borrow>,
}

impl Default for Inspector {
    fn default() -> Self {
        Self::new()
    }
}

impl Inspector {
    /// Creates an inspector of all namespaces in /dev/shm.
    pub fn new() -> Self {
        Self::in_directory(DIRECTORY)
    }

    /// Creates an inspector of all namespaces in another directory.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            prefix: None,
            leases: Since::new(),
            borrows: Since::new(),
        }
    }

    /// Restricts the inspector to one [`Namespace`], or what of it belongs to this process's user;
    /// by default it covers all in /dev/shm.
    pub fn namespace(mut self, namespace: &Namespace) -> Self {
        self.directory = namespace.directory().to_owned();
        self.prefix = Some(namespace.prefix().to_owned());
        self
    }

    /// Inspects everything that belongs to this process's user, once.
    ///
    /// # Errors
    ///
    /// [`OsError`] if the directory or /proc cannot be read. An object that cannot be read is
    /// listed with the reason.
    pub fn report(&mut self) -> Result<Report, OsError> {
        let mut objects = Objects::find(&self.directory, self.prefix.as_deref())?;
        let wanted = Wanted {
            inodes: std::mem::take(&mut objects.inodes),
            is_name: &|file| parse(file).is_some(),
            removed: Some(OWNER_BYTE as u64),
        };
        let seen = Seen::of(&wanted).map_err(|error| OsError::new("readdir", "/proc", error))?;
        let mut look = Look::new(
            seen,
            objects,
            take(&mut self.leases),
            take(&mut self.borrows),
        );
        let channels = look.channels();
        let providers = look.providers();
        self.leases = look.leases.into_since();
        self.borrows = look.borrows.into_since();
        let mut removed = Vec::new();
        for (path, process) in look.seen.removed() {
            let file = path.file_name().and_then(OsStr::to_str);
            let Some((prefix, _)) = file.and_then(parse) else {
                continue;
            };
            let is_covered = self.prefix.as_deref().map_or(true, |own| own == prefix);
            if is_covered && path.parent() == Some(&self.directory) {
                removed.push(RemovedName {
                    path: path.to_owned(),
                    process: process.clone(),
                });
            }
        }
        Ok(Report {
            removed,
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
    /// Returns what any process can see of this provider: its peers, their processes, and their
    /// leases. Scans /proc, which takes milliseconds. For the owner's own view, see
    /// [`stats`](Self::stats).
    ///
    /// # Errors
    ///
    /// As for [`Inspector::report`]; also if the control object was removed by hand. In a forked
    /// child, `owner` is the parent.
    pub fn report(&self) -> Result<ProviderReport, OsError> {
        let names = self.names();
        let report = Inspector::new().namespace(names).report()?;
        let own = report
            .providers
            .into_iter()
            .find(|provider| provider.id == self.id());
        own.ok_or_else(|| invisible(&control_name(names, self.id())))
    }
}
