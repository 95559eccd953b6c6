//! The peer's front door: [`Client`] attaches to messages by descriptor.
//!
//! A client maps each provider's control object and each segment once and keeps them in a table. A
//! view holds a counted reference to its segment's mapping, which holds the control object, so a
//! view outlives the client.
//!
//! A descriptor is untrusted. Before a pointer is formed (I2), the client checks that the record
//! exists, takes the lease, and checks that the generation matches, that the length is the owner's,
//! and that the range lies within the mapping. The bounds it checks against are private: no other
//! process can change them.
//!
//! # What an attach costs when everything is mapped
//!
//! Six read-modify-writes and no system call: two on the table's reader lock (private, contended
//! only by threads of this client), one to take the lease, one count on the mapping, and two when
//! the view is dropped. The fence of the lease comes on top where the lease's read-modify-write is
//! not one already. Readers do not block each other. They wait only while another thread enters a
//! mapping into the table, which is a store: the system calls are made before.

#![forbid(unsafe_code)]

use crate::error::BuildError;
use crate::os::foreign::Foreign;
use crate::os::fork;
use crate::os::locks;
use crate::os::mapping::Access;
use crate::os::name::{Namespace, DEFAULT_PREFIX, DIRECTORY};
use crate::os::posix::effective_uid;
use crate::peer::cache::{Cached, ProviderEntry, Remote, Table};
use crate::peer::control::PeerControl;
use crate::peer::error::AttachError;
use crate::peer::lease::Lease;
use crate::peer::view::ShmView;
use crate::protocol::control::segment_name;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::ids::{PeerId, ProviderId};
use crate::protocol::record::Place;
use parking_lot::RwLock;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of a [`Client`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientBuilder {
    directory: PathBuf,
    name_prefix: String,
    owner_uid: Option<u32>,
}

impl ClientBuilder {
    /// Sets the directory that the providers' objects are in, an absolute path; default /dev/shm.
    /// See [`ProviderBuilder::directory`](crate::ProviderBuilder::directory).
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets what the providers' names start with; default `shm_pool`. See
    /// [`ProviderBuilder::name_prefix`](crate::ProviderBuilder::name_prefix).
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// Sets the user whose providers are trusted; default: the effective user of this process.
    /// Objects of any other user are refused.
    pub fn owner_uid(mut self, uid: u32) -> Self {
        self.owner_uid = Some(uid);
        self
    }

    /// Builds the client. It makes no system object yet.
    ///
    /// # Errors
    ///
    /// [`BuildError::Directory`] if the directory is not an absolute path, [`BuildError::Prefix`]
    /// if the prefix cannot be part of a file name.
    pub fn build(self) -> Result<Client, BuildError> {
        let names = Namespace::new(&self.directory, &self.name_prefix)?;
        watch_forks();
        Ok(Client {
            names,
            uid: self.owner_uid.unwrap_or_else(effective_uid),
            fork_epoch: fork::epoch(),
            table: Arc::default(),
        })
    }
}

/// Reads messages of other processes in place. Create one per process and share it by reference or
/// `Arc`.
///
/// A client takes one of the 64 peer slots of each provider that it attaches to. It gives the slot
/// back when the client and its last view of that provider are gone.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::{Client, Descriptor, Provider};
///
/// # let provider = Provider::builder().build()?;
/// # let mut buffer = provider.alloc(5)?;
/// # buffer.copy_from_slice(b"hello");
/// # let message = buffer.freeze();
/// # let received = message.descriptor()?.to_bytes();
/// let client = Client::new();
/// let descriptor = Descriptor::from_bytes(received)?;
/// let view = client.attach(&descriptor)?;
/// assert_eq!(&view[..], b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Client {
    names: Namespace,
    uid: u32,
    fork_epoch: u64,
    table: Arc<RwLock<Table>>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Creates a client with the default options.
    pub fn new() -> Self {
        watch_forks();
        let (uid, fork_epoch) = (effective_uid(), fork::epoch());
        Self { names: Namespace::in_shm(DEFAULT_PREFIX), uid, fork_epoch, table: Arc::default() }
    }

    /// Where the providers' objects are, and the user that they must belong to.
    pub(crate) fn trusted(&self) -> (&Namespace, u32) {
        (&self.names, self.uid)
    }

    /// A builder with the default options.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { directory: PathBuf::from(DIRECTORY), name_prefix: DEFAULT_PREFIX.to_owned(), owner_uid: None }
    }

    /// Connects to a provider before its first message arrives. Returns this client's id there, for
    /// [`ShmBuf::grant`](crate::ShmBuf::grant). Connecting again returns the same id.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoProvider`], [`AttachError::Closed`] or [`AttachError::OwnerDied`] if the
    /// provider is gone; [`AttachError::NotAProvider`], [`AttachError::WrongUid`] or
    /// [`AttachError::TooManyPeers`] if it cannot be used; [`AttachError::Forked`] in a forked
    /// child; [`AttachError::Os`] if a system call fails.
    pub fn connect(&self, provider: ProviderId) -> Result<PeerId, AttachError> {
        self.check_fork()?;
        if let Some(entry) = self.table.read().find(provider) {
            return Ok(entry.remote.control.id());
        }
        let control = match PeerControl::connect(&self.names, provider, self.uid) {
            Ok(control) => control,
            // Another thread of this client may have taken the last slot.
            Err(error) => return self.table.read().find(provider).map(|entry| entry.remote.control.id()).ok_or(error),
        };
        let id = control.id();
        let remote = Arc::new(Remote::new(control, &self.table));
        // A publisher that was restarted has a new id: let go of the old one.
        self.forget_abandoned();
        let mut table = self.table.write();
        // Another thread may have been faster; then this connection is dropped again.
        if let Some(entry) = table.find(provider) {
            return Ok(entry.remote.control.id());
        }
        table.entries.push(ProviderEntry::new(remote));
        Ok(id)
    }

    /// Removes connections to closed and dead providers from the table. Views keep what they need.
    fn forget_abandoned(&self) -> Vec<ProviderEntry> {
        let remotes: Vec<Arc<Remote>> = self.table.read().entries.iter().map(|entry| entry.remote.clone()).collect();
        // This takes a system call for each, so do it without the lock.
        let abandoned: Vec<_> = remotes.into_iter().filter(|remote| remote.control.is_abandoned()).collect();
        if abandoned.is_empty() {
            return Vec::new();
        }
        self.table.write().take(&abandoned)
    }

    /// Leases the message that `descriptor` names, and maps its segment if it is not mapped yet.
    /// The owner does not reuse the memory before the view is dropped.
    ///
    /// # Errors
    ///
    /// * [`AttachError::Stale`] if the message came too late.
    /// * [`AttachError::NoSuchRecord`], [`AttachError::WrongLength`], [`AttachError::OtherPeer`]
    ///   and [`AttachError::NotGranted`] if the descriptor is not what the owner sent, or is not
    ///   for this client.
    /// * [`AttachError::SlotLost`] if another peer has this client's slot.
    /// * [`AttachError::TooManyLeases`] with 31 views of the same message;
    ///   [`AttachError::OverQuota`] above what the provider lets a peer read.
    /// * [`AttachError::Disconnected`] if the provider refuses this client.
    /// * [`AttachError::Damaged`] if another process wrote garbage into the control object.
    /// * The errors of [`connect`](Self::connect).
    pub fn attach(&self, descriptor: &Descriptor) -> Result<ShmView, AttachError> {
        self.check_fork()?;
        loop {
            let table = self.table.read();
            let Some(entry) = table.find(descriptor.provider) else {
                drop(table);
                self.connect(descriptor.provider)?;
                continue;
            };
            let (lease, place) = Lease::take(&entry.remote.control, descriptor)?;
            if place.len != descriptor.len {
                return Err(AttachError::WrongLength { len: descriptor.len, actual: place.len });
            }
            if let Some(cached) = entry.segment(place.index, place.segment) {
                return ShmView::new(cached.clone(), lease, descriptor, place);
            }
            // Off the warm path. The lease keeps the segment in existence; it moves from the
            // table's reference to a counted one, so that the segment can be mapped without the
            // table's lock.
            let remote = entry.remote.clone();
            let lease = lease.moved_to(&remote.control);
            drop(table);
            let cached = self.map(&remote, place)?;
            return ShmView::new(cached, lease, descriptor, place);
        }
    }

    /// Maps a segment and enters it into the table, which lets go of the segments that the owner
    /// has destroyed.
    fn map(&self, remote: &Arc<Remote>, place: Place) -> Result<Arc<Cached>, AttachError> {
        // While a chunk is leased, its segment is destroyed only if the provider closes.
        let closed = || AttachError::Closed { provider: remote.control.id().provider };
        if remote.control.is_retired(place.index, place.segment) {
            return Err(closed());
        }
        let foreign = self.open(remote, place.segment)?.ok_or_else(closed)?;
        let mapping = foreign.map(Access::Read)?;
        let cached = Arc::new(Cached::new(mapping, place.index, place.segment, remote.clone()));
        let (cached, retired) = self.table.write().enter(cached);
        drop(retired);
        Ok(cached)
    }

    /// Opens a segment of a provider; `None` if it is gone.
    fn open(&self, remote: &Remote, serial: u64) -> Result<Option<Foreign>, AttachError> {
        let name = segment_name(&self.names, remote.control.id().provider, serial);
        match Foreign::open(name, Access::Read, self.uid) {
            Ok(foreign) => Ok(Some(foreign)),
            Err(missing) if missing.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to a provider, and maps and faults in all that it has now, so that a message of it
    /// costs this client no system call and no fault from the first one on. Returns how many bytes
    /// of payload are present.
    ///
    /// What the provider takes from the system later is not included: have it
    /// [`reserve`](crate::Provider::reserve) first, or call this again. On Linux before 5.14 the
    /// segments are mapped, but their pages fault as before, and the result is 0.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect). The client may be connected then, but nothing is mapped
    /// that was not before.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shm_pool::{Client, Provider};
    ///
    /// let provider = Provider::builder().build()?;
    /// provider.reserve(1 << 20, 4)?.keep();
    ///
    /// let client = Client::new(); // in another process
    /// assert!(client.warm(provider.id())? >= 4 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm(&self, provider: ProviderId) -> Result<usize, AttachError> {
        self.connect(provider)?;
        let remote = self.table.read().find(provider).map(|entry| entry.remote.clone());
        // Another thread may have found it abandoned meanwhile.
        let remote = remote.ok_or(AttachError::Closed { provider })?;
        remote.control.check_owner()?;
        let (mut present, mut warm) = (0, Vec::new());
        for (index, serial) in remote.control.warm() {
            // Nothing of it is leased here, so it may vanish at any time.
            let Some(foreign) = self.open(&remote, serial)? else { continue };
            let known = self.table.read().find(provider).and_then(|entry| entry.segment(index, serial).cloned());
            let cached = match known {
                Some(cached) => cached,
                None => Arc::new(Cached::new(foreign.map(Access::Read)?, index, serial, remote.clone())),
            };
            present += foreign.fault_in(cached.mapping());
            warm.push(cached);
        }
        let mut table = self.table.write();
        let mut retired: Vec<_> = warm.iter().flat_map(|cached| table.enter(cached.clone()).1).collect();
        retired.extend(table.take_retired());
        drop(table);
        // Only now, without the lock, what is not needed is unmapped.
        drop((retired, warm));
        Ok(present)
    }

    /// Unmaps what no view needs: segments that their owner has destroyed, and providers that have
    /// closed or died. Views stay good; what they use is unmapped with them. Returns how many
    /// mappings were dropped from the table.
    ///
    /// Mapping a new segment lets go of the provider's destroyed segments anyway. Call this when no
    /// message may arrive for a long time.
    pub fn trim(&self) -> usize {
        if self.check_fork().is_err() {
            return 0;
        }
        let retired = self.table.write().take_retired();
        let abandoned = self.forget_abandoned();
        retired.len() + abandoned.iter().map(|entry| 1 + entry.segment_count()).sum::<usize>()
    }

    /// The number of segments in the table now, over all providers; 0 in a forked child.
    pub fn mapped_segments(&self) -> usize {
        // In a forked child, a thread that does not exist there may hold the lock.
        if self.check_fork().is_err() {
            return 0;
        }
        self.table.read().entries.iter().map(ProviderEntry::segment_count).sum()
    }

    #[inline]
    fn check_fork(&self) -> Result<(), AttachError> {
        if self.fork_epoch == fork::epoch() {
            Ok(())
        } else {
            Err(AttachError::Forked)
        }
    }
}

/// Starts noticing forks. If the system has no memory for that, connecting reports it.
fn watch_forks() {
    let _ = locks::watch_forks();
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let providers: Vec<ProviderId> = match self.check_fork() {
            Ok(()) => self.table.read().entries.iter().map(ProviderEntry::provider).collect(),
            Err(_) => Vec::new(),
        };
        f.debug_struct("Client").field("prefix", &self.names.prefix()).field("providers", &providers).finish()
    }
}
