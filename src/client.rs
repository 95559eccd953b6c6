//! The peer's front door: [`Client`] attaches to messages by descriptor, [`ShmView`] is one being read.
//!
//! A client maps each provider's control object and each segment once and keeps them in a table. A view holds a counted
//! reference to its segment's mapping, and that holds the control object, so a view outlives the client.
//!
//! A descriptor is untrusted. Before a pointer is formed (I2): the record exists, the lease is taken, the generation
//! matches, the length is the owner's, and the range lies within what is mapped, by numbers that no other process can
//! change.
//!
//! # What an attach costs when everything is mapped
//!
//! Six read-modify-writes, and no system call: two for the reader lock of the table (private, contended only by threads
//! of this client), the lease and its fence, one count on the mapping; the drop of the view takes those two back.
//! Reading is not blocked by other readers; it waits while another thread enters a new mapping into the table, which is
//! a store, for the system calls are made before.

use crate::control::{segment_name, PeerControl};
use crate::descriptor::{Descriptor, PeerId, ProviderId};
use crate::error::{AttachError, BuildError};
use crate::fork;
use crate::lease::{Place, Refused, MAX_LEASES};
use crate::posix::effective_uid;
use crate::provider::{check_prefix, DEFAULT_PREFIX};
use crate::segment::{Access, Foreign, Mapping};
use parking_lot::RwLock;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Options of a [`Client`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientBuilder {
    name_prefix: String,
    owner_uid: Option<u32>,
}

impl ClientBuilder {
    /// What the providers' names start with; default `shm_pool`. See
    /// [`ProviderBuilder::name_prefix`](crate::ProviderBuilder::name_prefix).
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// The user whose providers are trusted; default: the effective user of this process. Objects that belong to anybody
    /// else are refused.
    pub fn owner_uid(mut self, uid: u32) -> Self {
        self.owner_uid = Some(uid);
        self
    }

    /// Makes the client. No system object is touched yet.
    ///
    /// # Errors
    ///
    /// [`BuildError::Prefix`] if the prefix cannot be part of a file name.
    pub fn build(self) -> Result<Client, BuildError> {
        check_prefix(&self.name_prefix)?;
        fork::watch();
        Ok(Client {
            prefix: self.name_prefix,
            uid: self.owner_uid.unwrap_or_else(effective_uid),
            fork_epoch: fork::epoch(),
            table: Arc::default(),
        })
    }
}

/// Reads messages of other processes in place. One per process; share it by reference or `Arc`.
///
/// A client takes one of the 64 peer slots of each provider that it attaches to, and gives it back when the client and its
/// last view are gone.
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
    prefix: String,
    uid: u32,
    fork_epoch: u32,
    table: Arc<RwLock<Table>>,
}

/// The providers that a client is connected to. Few: found by looking at each.
#[derive(Default)]
struct Table {
    remotes: Vec<Entry>,
}

/// One provider, and the segments of it that are mapped, by their index in the control object.
struct Entry {
    remote: Arc<Remote>,
    segments: Vec<Option<Arc<Cached>>>,
}

/// A connection to a provider.
struct Remote {
    control: PeerControl,
    table: Weak<RwLock<Table>>,
}

/// A mapped segment.
struct Cached {
    mapping: Mapping,
    serial: u64,
    index: u64,
    remote: Arc<Remote>,
}

/// A lease that is given back on drop.
struct Lease<'a> {
    control: &'a PeerControl,
    record: u32,
}

impl Lease<'_> {
    /// The same lease, borrowed from another reference to the same control object.
    fn moved_to(self, control: &PeerControl) -> Lease<'_> {
        let moved = Lease { control, record: self.record };
        std::mem::forget(self);
        moved
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.control.release(self.record);
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// A client with the default options.
    pub fn new() -> Self {
        let builder = Self::builder();
        fork::watch();
        let (uid, fork_epoch) = (effective_uid(), fork::epoch());
        Self { prefix: builder.name_prefix, uid, fork_epoch, table: Arc::default() }
    }

    /// Starts with the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { name_prefix: DEFAULT_PREFIX.to_owned(), owner_uid: None }
    }

    /// Connects to a provider before its first message comes, and tells who this client is to it, for
    /// [`ShmBuf::grant`](crate::ShmBuf::grant). Connecting again gives the same answer.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoProvider`], [`AttachError::NotAProvider`], [`AttachError::WrongUid`] or
    /// [`AttachError::TooManyPeers`]; [`AttachError::Forked`] in a forked child; [`AttachError::Os`].
    pub fn connect(&self, provider: ProviderId) -> Result<PeerId, AttachError> {
        self.check_fork()?;
        if let Some(entry) = self.table.read().find(provider) {
            return Ok(entry.remote.control.id());
        }
        let control = PeerControl::connect(&self.prefix, provider, self.uid)?;
        let remote = Arc::new(Remote { control, table: Arc::downgrade(&self.table) });
        let mut table = self.table.write();
        // Another thread may have been faster; then this connection is given up again.
        if let Some(entry) = table.find(provider) {
            return Ok(entry.remote.control.id());
        }
        let id = remote.control.id();
        table.remotes.push(Entry { remote, segments: Vec::new() });
        Ok(id)
    }

    /// Leases the message that `descriptor` names and maps it, if its segment is not mapped yet. The owner does not use the
    /// memory again before the view is dropped.
    ///
    /// # Errors
    ///
    /// [`AttachError::Stale`] if the message came too late. [`AttachError::NoSuchRecord`], [`AttachError::WrongLength`],
    /// [`AttachError::OtherPeer`] and [`AttachError::NotGranted`] for a descriptor that is not what the owner sent, or is not
    /// for this client. [`AttachError::TooManyLeases`] with 31 views of the same message. [`AttachError::Damaged`] if
    /// another process wrote garbage into the control object. And the errors of [`connect`](Self::connect).
    pub fn attach(&self, descriptor: &Descriptor) -> Result<ShmView, AttachError> {
        self.check_fork()?;
        loop {
            let table = self.table.read();
            let Some(entry) = table.find(descriptor.provider) else {
                drop(table);
                self.connect(descriptor.provider)?;
                continue;
            };
            let control = &entry.remote.control;
            let (lease, place) = take_lease(control, descriptor)?;
            if place.len != descriptor.len {
                return Err(AttachError::WrongLength { len: descriptor.len, actual: place.len });
            }
            let known = entry.segments.get(place.index as usize).and_then(Option::as_ref);
            if let Some(cached) = known.filter(|cached| cached.serial == place.segment) {
                return ShmView::new(cached.clone(), lease, descriptor, place);
            }
            // Off the warm path: the lease, which holds the segment in existence, moves from the table's reference to a
            // counted one, so that the segment can be mapped without the table's lock.
            let remote = entry.remote.clone();
            let lease = lease.moved_to(&remote.control);
            drop(table);
            let cached = self.map(&remote, place)?;
            return ShmView::new(cached, lease, descriptor, place);
        }
    }

    /// Maps a segment and enters it into the table, which lets go of those that the owner has destroyed.
    fn map(&self, remote: &Arc<Remote>, place: Place) -> Result<Arc<Cached>, AttachError> {
        let provider = remote.control.id().provider;
        if remote.control.is_retired(place.index, place.segment) {
            return Err(AttachError::Damaged { provider, what: "a message lies in a segment that is not listed" });
        }
        let name = segment_name(&self.prefix, provider, place.segment);
        let mapping = Foreign::open(name, Access::Read, self.uid)?.map(Access::Read)?;
        let (serial, index) = (place.segment, place.index);
        let cached = Arc::new(Cached { mapping, serial, index, remote: remote.clone() });
        let mut table = self.table.write();
        let retired = table.take_retired(provider);
        if let Some(entry) = table.remotes.iter_mut().find(|entry| Arc::ptr_eq(&entry.remote, remote)) {
            let at = index as usize;
            if entry.segments.len() <= at {
                entry.segments.resize_with(at + 1, || None);
            }
            match &mut entry.segments[at] {
                // Another thread was faster; use its mapping.
                Some(known) if known.serial == serial => return Ok(known.clone()),
                vacant => *vacant = Some(cached.clone()),
            }
        }
        drop(table);
        drop(retired); // unmapping is a system call: not under the lock
        Ok(cached)
    }

    /// Lets go of mappings that no view needs: segments that their owner has destroyed, and providers that have closed or
    /// died. Views are not touched; what they need is let go with them. Returns how many mappings were dropped from the
    /// table.
    ///
    /// Attaching to a new segment does the first by itself. Call this when messages may stay away for long.
    pub fn trim(&self) -> usize {
        if self.check_fork().is_err() {
            return 0;
        }
        let mut table = self.table.write();
        let providers: Vec<ProviderId> = table.remotes.iter().map(Entry::provider).collect();
        let retired: Vec<_> = providers.into_iter().flat_map(|provider| table.take_retired(provider)).collect();
        let (gone, stay) =
            std::mem::take(&mut table.remotes).into_iter().partition(|entry| entry.remote.control.is_abandoned());
        table.remotes = stay;
        drop(table);
        let gone: Vec<Entry> = gone;
        retired.len() + gone.iter().map(|entry| 1 + entry.segments.iter().flatten().count()).sum::<usize>()
    }

    /// How many segments are mapped by the table now, over all providers.
    pub fn mapped_segments(&self) -> usize {
        self.table.read().remotes.iter().map(|entry| entry.segments.iter().flatten().count()).sum()
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let providers: Vec<ProviderId> = self.table.read().remotes.iter().map(Entry::provider).collect();
        f.debug_struct("Client").field("prefix", &self.prefix).field("providers", &providers).finish()
    }
}

impl Entry {
    #[inline]
    fn provider(&self) -> ProviderId {
        self.remote.control.id().provider
    }
}

impl Table {
    #[inline]
    fn find(&self, provider: ProviderId) -> Option<&Entry> {
        self.remotes.iter().find(|entry| entry.provider() == provider)
    }

    /// Takes the segments of a provider out that its owner has destroyed.
    fn take_retired(&mut self, provider: ProviderId) -> Vec<Arc<Cached>> {
        let entry = self.remotes.iter_mut().find(|entry| entry.provider() == provider);
        let segments = entry.into_iter().flat_map(|entry| entry.segments.iter_mut());
        let retired = segments.filter_map(|segment| if segment.as_ref()?.is_retired() { segment.take() } else { None });
        retired.collect()
    }
}

impl Cached {
    #[inline]
    fn is_retired(&self) -> bool {
        self.remote.control.is_retired(self.index, self.serial)
    }

    /// Takes itself out of the table, if it is still there.
    #[cold]
    fn leave_table(&self) {
        let Some(table) = self.remote.table.upgrade() else { return };
        let mut table = table.write();
        let entry = table.remotes.iter_mut().find(|entry| Arc::ptr_eq(&entry.remote, &self.remote));
        let known = entry.and_then(|entry| entry.segments.get_mut(self.index as usize));
        if let Some(known) = known {
            if known.as_ref().map_or(false, |cached| cached.serial == self.serial) {
                // Not the last reference: the caller's view has one.
                *known = None;
            }
        }
    }
}

/// Takes the lease that a descriptor asks for: a new one, or the one that was granted.
#[inline]
fn take_lease<'a>(control: &'a PeerControl, descriptor: &Descriptor) -> Result<(Lease<'a>, Place), AttachError> {
    let Some(record) = control.record(descriptor.record) else {
        let (provider, records) = (descriptor.provider, control.records());
        return Err(AttachError::NoSuchRecord { provider, record: descriptor.record, records });
    };
    let slot = control.slot();
    let taken = match descriptor.granted {
        None => record.attach(slot, descriptor.generation),
        Some(granted) if usize::from(granted) == slot => record.accept(slot, descriptor.generation),
        Some(granted) => return Err(AttachError::OtherPeer { slot: granted, own: slot as u8 }),
    };
    match taken {
        Ok(place) => Ok((Lease { control, record: descriptor.record }, place)),
        Err(Refused::Stale) => Err(AttachError::Stale),
        Err(Refused::Full) => Err(AttachError::TooManyLeases { max: MAX_LEASES as usize }),
        Err(Refused::NotGranted) => Err(AttachError::NotGranted),
    }
}

/// A message of another process, mapped read-only. While the view exists, the owner does not use the memory again.
///
/// There is no way to write through it:
///
/// ```compile_fail,E0594
/// # let provider = shm_pool::Provider::builder().build().unwrap();
/// # let message = provider.alloc(4).unwrap().freeze();
/// # let client = shm_pool::Client::new();
/// let mut view = client.attach(&message.descriptor().unwrap()).unwrap();
/// view[0] = 1; // cannot assign
/// ```
///
/// ```
/// # let provider = shm_pool::Provider::builder().build().unwrap();
/// # let message = provider.alloc_zeroed(4).unwrap().freeze();
/// # let client = shm_pool::Client::new();
/// let mut view = client.attach(&message.descriptor().unwrap()).unwrap();
/// assert_eq!(view[0], 0); // the twin that compiles: reading
/// # view = client.attach(&message.descriptor().unwrap()).unwrap();
/// ```
pub struct ShmView {
    data: NonNull<u8>,
    len: usize,
    record: u32,
    cached: Arc<Cached>,
}

// SAFETY: the bytes are only read, and leases are counted atomically.
unsafe impl Send for ShmView {}
// SAFETY: as above.
unsafe impl Sync for ShmView {}

impl ShmView {
    /// Checks the range and turns the lease into a view's.
    #[inline]
    fn new(cached: Arc<Cached>, lease: Lease<'_>, descriptor: &Descriptor, place: Place) -> Result<Self, AttachError> {
        let Some(data) = cached.mapping.range(place.offset, descriptor.len) else {
            let what = "a message lies outside its segment";
            return Err(AttachError::Damaged { provider: descriptor.provider, what });
        };
        std::mem::forget(lease);
        Ok(Self { data, len: descriptor.len as usize, record: descriptor.record, cached })
    }

    /// Another view of the same message, with a lease of its own.
    ///
    /// # Errors
    ///
    /// [`AttachError::TooManyLeases`] with 31 views of the same message in this client (put one into an `Arc` instead),
    /// [`AttachError::Forked`] in a forked child.
    pub fn try_clone(&self) -> Result<Self, AttachError> {
        let control = &self.cached.remote.control;
        if !control.is_ours() {
            return Err(AttachError::Forked);
        }
        let renewed = control.record(self.record).map(|record| record.renew(control.slot()));
        match renewed {
            Some(Ok(())) => {
                let cached = self.cached.clone();
                Ok(Self { data: self.data, len: self.len, record: self.record, cached })
            }
            _ => Err(AttachError::TooManyLeases { max: MAX_LEASES as usize }),
        }
    }
}

impl Deref for ShmView {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked against the mapping (I2), which `cached` keeps, and the owner does not write
        // while the lease is held (I5).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for ShmView {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ShmView {
    #[inline]
    fn drop(&mut self) {
        let control = &self.cached.remote.control;
        // In a forked child the lease is the parent's.
        if !control.is_ours() {
            return;
        }
        control.release(self.record);
        if self.cached.is_retired() {
            self.cached.leave_table();
        }
    }
}

impl fmt::Debug for ShmView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmView").field("len", &self.len).finish()
    }
}
