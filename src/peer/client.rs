//! A client maps each control object and each segment once. A view holds a reference to its
//! segment, which keeps the control object mapped, so it outlives the client. An attach when
//! everything is mapped takes six read-modify-writes.

#![forbid(unsafe_code)]

use crate::os::advice::invisible;
use crate::os::fork::ForkGuard;
use crate::os::futex::barrier;
use crate::os::locks;
use crate::os::mapping::Access;
use crate::os::name::{Name, Namespace};
use crate::os::segment::Foreign;
use crate::peer::control::{Cached, Lease, PeerControl, ProviderEntry, Remote, Table};
use crate::peer::error::AttachError;
use crate::peer::view::ShmView;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::ids::{segment_name, PeerId, ProviderId};
use crate::protocol::record::Place;
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;

/// Reads messages of other processes in place, by their [`Descriptor`]s. ([Channels](crate::channel)
/// need no client.)
///
/// Create one per process and share it by reference or `Arc`. It takes one of the 64 peer slots of each
/// provider that it attaches to, until the client and its last view of that provider are dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::{Client, Provider};
///
/// // The owner. It keeps the message until the client has attached.
/// let provider = Provider::builder().build()?;
/// let mut buffer = provider.alloc(100_000)?;
/// buffer.fill(7);
/// let message = buffer.freeze();
/// let descriptor = message.descriptor()?; // 32 bytes to send
///
/// // Another process.
/// let client = Client::new();
/// let view = client.attach(&descriptor)?; // read in place
/// assert_eq!(view[0], 7);
/// # Ok(())
/// # }
/// ```
pub struct Client {
    names: Namespace,
    fork: ForkGuard,
    table: Arc<RwLock<Table>>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Creates a client of the providers in the default namespace. Creates no system object yet.
    pub fn new() -> Self {
        Self::in_namespace(&Namespace::default())
    }

    /// Creates a client of the providers in a namespace, whose user is trusted.
    pub fn in_namespace(namespace: &Namespace) -> Self {
        prepare();
        Self {
            names: namespace.clone(),
            fork: ForkGuard::new(),
            table: Arc::default(),
        }
    }

    /// Returns the namespace of the providers.
    pub fn namespace(&self) -> &Namespace {
        &self.names
    }

    /// Connects to a provider before its first message arrives. Returns this client's id there, for
    /// [`ShmBytes::grant`](crate::ShmBytes::grant).
    ///
    /// # Errors
    ///
    /// [`AttachError::NoProvider`], [`AttachError::Closed`], [`AttachError::ProviderDied`],
    /// [`AttachError::NotAProvider`], [`AttachError::WrongUid`], [`AttachError::TooManyPeers`],
    /// [`AttachError::Forked`], [`AttachError::Os`].
    pub fn connect(&self, provider: ProviderId) -> Result<PeerId, AttachError> {
        self.check_fork()?;
        if let Some(entry) = self.table.read().find(provider) {
            return Ok(entry.remote.control.id());
        }
        let control = match PeerControl::connect(&self.names, provider, self.names.uid()) {
            Ok(control) => control,
            Err(error) => {
                // Another thread of this client may have taken the last slot.
                if let Some(entry) = self.table.read().find(provider) {
                    return Ok(entry.remote.control.id());
                }
                return Err(error);
            }
        };
        let id = control.id();
        let remote = Remote::new(control, &self.table);
        // A restarted publisher has a new id: drop the connection to the old one.
        self.forget(PeerControl::is_abandoned);
        let mut table = self.table.write();
        // Another thread may have connected first.
        if let Some(entry) = table.find(provider) {
            return Ok(entry.remote.control.id());
        }
        table.entries.push(ProviderEntry::new(remote));
        Ok(id)
    }

    /// Removes the providers for which `is_abandoned` returns `true`.
    fn forget(&self, is_abandoned: fn(&PeerControl) -> bool) -> Vec<ProviderEntry> {
        let mut remotes = Vec::new();
        for entry in &self.table.read().entries {
            remotes.push(entry.remote.clone());
        }
        // Makes a system call for each, hence without the lock.
        remotes.retain(|remote| is_abandoned(&remote.control));
        if remotes.is_empty() {
            return Vec::new();
        }
        self.table.write().take(&remotes)
    }

    /// Takes a lease on the message that `descriptor` names, and maps its segment if it is not
    /// mapped yet. The owner does not reuse the memory until the view is dropped.
    ///
    /// # Errors
    ///
    /// * [`AttachError::Stale`] if the memory has been reused since.
    /// * [`AttachError::Forged`], [`AttachError::OtherPeer`],
    ///   [`AttachError::NotGranted`] if the owner did not send this descriptor, or not to this
    ///   client.
    /// * [`AttachError::SlotLost`] if another peer has this client's slot.
    /// * [`AttachError::TooManyLeases`] with 31 views of the same message;
    ///   [`AttachError::OverQuota`] above the provider's limit per peer.
    /// * [`AttachError::Disconnected`] if the provider refuses this client.
    /// * [`AttachError::Damaged`] if another process wrote garbage into the control object.
    /// * The errors of [`connect`](Self::connect).
    pub fn attach(&self, descriptor: &Descriptor) -> Result<ShmView, AttachError> {
        self.check_fork()?;
        let mut is_prepared = descriptor.granted.is_none();
        loop {
            let table = self.table.read();
            let Some(entry) = table.find(descriptor.provider) else {
                drop(table);
                self.connect(descriptor.provider)?;
                continue;
            };
            if !is_prepared {
                is_prepared = true;
                // A pending grant keeps the segment of an owner that ends, a lease does not. So the
                // segment is mapped before the grant is taken up.
                if let Some(place) = entry.remote.control.granted_place(descriptor) {
                    if entry.segment(place.index, place.segment).is_none() {
                        let remote = entry.remote.clone();
                        drop(table);
                        // On an error, the grant stays pending.
                        self.map(&remote, place)?;
                        continue;
                    }
                }
            }
            let (lease, place) = Lease::take(&entry.remote.control, descriptor)?;
            if place.len != descriptor.len {
                let reason = format!(
                    "says {} bytes, but the message has {} bytes",
                    descriptor.len, place.len
                );
                return Err(AttachError::Forged(reason));
            }
            if let Some(cached) = entry.segment(place.index, place.segment) {
                return ShmView::new(cached.clone(), lease, descriptor, place);
            }
            // The lease keeps the segment alive. It moves to a counted reference, so that the
            // segment can be mapped without the table's lock.
            let remote = entry.remote.clone();
            let lease = lease.moved_to(&remote.control);
            drop(table);
            let cached = self.map(&remote, place)?;
            return ShmView::new(cached, lease, descriptor, place);
        }
    }

    fn map(&self, remote: &Arc<Remote>, place: Place) -> Result<Arc<Cached>, AttachError> {
        // While a chunk is leased, its segment is destroyed only if the provider closes.
        let closed = || AttachError::Closed(remote.control.id().provider);
        // No segment has the number 0: it marks an entry without one.
        if place.segment == 0 || remote.control.is_destroyed(place.index, place.segment) {
            return Err(closed());
        }
        let Some(foreign) = self.open(remote, place.segment)? else {
            if remote.control.check_owner().is_ok() {
                return Err(invisible(&self.name(remote, place.segment)).into());
            }
            return Err(closed());
        };
        let mapping = foreign.map(Access::Read)?;
        let cached = Cached::new(mapping, place.index, place.segment, remote.clone());
        let (cached, destroyed) = self.table.write().insert(Arc::new(cached));
        drop(destroyed);
        Ok(cached)
    }

    fn name(&self, remote: &Remote, serial: u64) -> Name {
        segment_name(&self.names, remote.control.id().provider, serial)
    }

    /// Returns `None` if the segment does not exist.
    fn open(&self, remote: &Remote, serial: u64) -> Result<Option<Foreign>, AttachError> {
        match Foreign::open(self.name(remote, serial), Access::Read, self.names.uid()) {
            Ok(foreign) => Ok(Some(foreign)),
            Err(missing) if missing.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to a provider, and maps and faults in all of its current memory, so that attaching
    /// causes no system call and no page fault. Returns the bytes of payload that are present.
    ///
    /// For memory that the provider takes later, call this again, or let it
    /// [`reserve`](crate::Provider::reserve) first. Before Linux 5.14, the result is 0.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect). After an error, the client may be connected.
    pub fn warm(&self, provider: ProviderId) -> Result<usize, AttachError> {
        self.connect(provider)?;
        let remote = match self.table.read().find(provider) {
            Some(entry) => entry.remote.clone(),
            // Another thread may have found it abandoned meanwhile.
            None => return Err(AttachError::Closed(provider)),
        };
        remote.control.check_owner()?;
        let mut present = 0;
        let mut warm = Vec::new();
        for (index, serial) in remote.control.warm() {
            // No lease holds this segment, so it may disappear at any time.
            let Some(foreign) = self.open(&remote, serial)? else {
                continue;
            };
            let mut known = None;
            if let Some(entry) = self.table.read().find(provider) {
                known = entry.segment(index, serial).cloned();
            }
            let cached = match known {
                Some(cached) => cached,
                None => {
                    let mapping = foreign.map(Access::Read)?;
                    Arc::new(Cached::new(mapping, index, serial, remote.clone()))
                }
            };
            present += foreign.fault_in(cached.mapping());
            warm.push(cached);
        }
        let mut destroyed = Vec::new();
        let mut table = self.table.write();
        for cached in &warm {
            let (_known, replaced) = table.insert(cached.clone());
            destroyed.extend(replaced);
        }
        destroyed.extend(table.take_destroyed());
        drop(table);
        // Unmaps destroyed segments only now, without the lock.
        drop(destroyed);
        drop(warm);
        Ok(present)
    }

    /// Unmaps segments that their owner has destroyed, and disconnects from providers that have
    /// closed or died. Views stay valid. Messages that such a provider has granted and this client
    /// has not attached to are released. Returns the number of mappings dropped.
    pub fn unmap_unused(&self) -> usize {
        if self.check_fork().is_err() {
            return 0;
        }
        let destroyed = self.table.write().take_destroyed();
        let abandoned = self.forget(|control| control.check_owner().is_err());
        let mut dropped = destroyed.len();
        for entry in &abandoned {
            // The control object, and the segments.
            dropped += 1 + entry.segment_count();
        }
        dropped
    }

    /// For this project's tests: the number of mapped segments, over all providers; 0 in a forked
    /// child.
    #[doc(hidden)]
    pub fn mapped_segments(&self) -> usize {
        // In a forked child, a thread that does not exist there may hold the lock.
        if self.check_fork().is_err() {
            return 0;
        }
        let table = self.table.read();
        table.entries.iter().map(ProviderEntry::segment_count).sum()
    }

    #[inline]
    fn check_fork(&self) -> Result<(), AttachError> {
        if self.fork.is_ours() {
            Ok(())
        } else {
            Err(AttachError::Forked)
        }
    }
}

fn prepare() {
    let _ = locks::watch_forks();
    // Before it connects, while the process may have one thread.
    barrier::enlist();
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut providers = Vec::new();
        if self.check_fork().is_ok() {
            for entry in &self.table.read().entries {
                providers.push(entry.provider());
            }
        }
        f.debug_struct("Client")
            .field("prefix", &self.names.prefix())
            .field("providers", &providers)
            .finish()
    }
}
