#![forbid(unsafe_code)]

use crate::os::fork::ForkGuard;
use crate::os::futex::barrier;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::{Access, Mapping};
use crate::os::name::Namespace;
use crate::os::segment::{Foreign, ObjectError};
use crate::peer::error::AttachError;
use crate::protocol::control::{
    peer_byte, ControlHeader, View, CLOSED, MAGIC, OPEN, OWNER_BYTE, VERSION,
};
use crate::protocol::descriptor::Descriptor;
use crate::protocol::ids::{control_name, PeerId, ProviderId};
use crate::protocol::readers::{self, Reader};
use crate::protocol::record::{Place, Record, PEERS};
use crate::protocol::slot::{Held, MAX_HELD};
use crate::protocol::sweep::{end_reading, has_ended, sweep_after_reading, Teardown};
use parking_lot::RwLock;
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

/// How long to wait for a slot that the owner is clearing: 0.7 s for a million records.
const CLEARING_LIMIT: Duration = Duration::from_secs(1);

/// A connection to a provider. On drop, releases the slot, and removes a dead owner's objects if no
/// other reader is left.
pub(crate) struct PeerControl {
    view: View,
    names: Namespace,
    locks: LockFile,
    id: PeerId,
    fork: ForkGuard,
    /// The limit on the bytes that this peer reads or is granted.
    quota: Option<u64>,
}

impl PeerControl {
    pub(crate) fn connect(
        names: &Namespace,
        provider: ProviderId,
        uid: u32,
    ) -> Result<Self, AttachError> {
        barrier::enlist();
        let name = control_name(names, provider);
        let object = name.path();
        let gone = |error: ObjectError| match error {
            missing if missing.is_missing() => AttachError::NoProvider(object.clone()),
            other => other.into(),
        };
        let foreign = Foreign::open(name, Access::ReadWrite, uid).map_err(gone)?;
        let bad = |reason| AttachError::NotAProvider {
            object: object.clone(),
            reason,
        };
        if foreign.len < size_of::<ControlHeader>() {
            return Err(bad(
                "it is too small for a header: its provider is still creating it, \
                            or died meanwhile",
            ));
        }
        let mapping = foreign.map(Access::ReadWrite)?;
        let Some(view) = View::new(mapping, 1) else {
            return Err(bad("it is too small for one record"));
        };
        let header = view.header();
        match header.state.load(Ordering::Acquire) {
            OPEN => {}
            CLOSED => return Err(AttachError::Closed(provider)),
            _ => return Err(bad("its provider is still creating it, or died meanwhile")),
        }
        if header.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(bad("it has another magic number"));
        }
        if header.version.load(Ordering::Relaxed) != VERSION {
            return Err(bad(
                "another version of shm-pool created it; build both sides with one",
            ));
        }
        if header.provider.load(Ordering::Relaxed) != provider.0 {
            return Err(bad("it carries another provider's id"));
        }
        let records = header.records.load(Ordering::Relaxed) as usize;
        let Some(view) = view.with_records(records) else {
            return Err(bad("its size does not match its header"));
        };
        // The object may have been removed since it was first opened.
        let locks = foreign.open_for_locks().map_err(gone)?;
        if !locks.is_locked(OWNER_BYTE) {
            return Err(AttachError::ProviderDied(provider));
        }
        let slot = free_slot(&locks);
        let slot = slot.map_err(|error| control_name(names, provider).error(LOCK, 0, error))?;
        let Some(slot) = slot else {
            return Err(AttachError::TooManyPeers(provider));
        };
        // The slot's last peer may have died: clear its leases, then take over.
        view.vacate(slot, || used(&view));
        let header = view.header();
        let epoch = header.epochs[slot].occupy(&header.held[slot]);
        let id = PeerId {
            provider,
            slot: slot as u8,
            epoch,
        };
        let quota = match header.quota.load(Ordering::Relaxed) {
            0 => None,
            quota => Some(quota.min(MAX_HELD)),
        };
        Ok(Self {
            view,
            names: names.clone(),
            locks,
            id,
            fork: ForkGuard::new(),
            quota,
        })
    }

    /// Leaves everything except the lock, like a killed process.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn die(mut self) {
        self.locks
            .unlock(peer_byte(self.slot()))
            .expect("a lock that is held");
        // Disables this value's drop, as in a forked child, but not that of the lock file.
        self.fork = ForkGuard::of_no_process();
    }

    pub(crate) fn id(&self) -> PeerId {
        self.id
    }

    #[inline]
    pub(crate) fn slot(&self) -> usize {
        usize::from(self.id.slot)
    }

    /// Returns `true` if the slot is still this peer's. If the process has closed the descriptor
    /// with the lock, another peer may have taken it.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        self.view.header().epochs[self.slot()].is_of(self.id.epoch)
    }

    #[inline]
    pub(crate) fn check_slot(&self) -> Result<(), AttachError> {
        if self.view.header().epochs[self.slot()].is(self.id.epoch) {
            return Ok(());
        }
        let provider = self.id.provider;
        if self.has_slot() {
            Err(AttachError::Disconnected(provider))
        } else {
            Err(AttachError::SlotLost(provider))
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn lose_lock(&self) {
        self.locks
            .unlock(peer_byte(self.slot()))
            .expect("a lock that is held");
    }

    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    pub(crate) fn records(&self) -> u32 {
        self.view.record_count()
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        self.view.record(index)
    }

    /// Returns the place of a message if this peer has a pending grant of it.
    pub(crate) fn granted_place(&self, descriptor: &Descriptor) -> Option<Place> {
        if descriptor.granted != Some(self.id.slot) {
            return None;
        }
        let record = self.record(descriptor.record)?;
        let (_views, grants) = record.leases(self.slot());
        let (generation, place) = record.snapshot();
        if grants == 0 || generation != descriptor.generation {
            return None;
        }
        Some(place)
    }

    fn has_pending_grants(&self) -> bool {
        let mut records = self.view.records(used(&self.view));
        records.any(|record| {
            let (_views, grants) = record.leases(self.slot());
            grants > 0
        })
    }

    #[inline]
    pub(crate) fn charge(&self, len: u64) -> Result<(), AttachError> {
        let Some(max) = self.quota else {
            return Ok(());
        };
        self.charge_within(max, len)
    }

    fn charge_within(&self, max: u64, len: u64) -> Result<(), AttachError> {
        let over = |held| AttachError::OverQuota { len, held, max };
        self.held().charge(self.id.epoch, len, max).map_err(over)
    }

    #[inline]
    pub(crate) fn refund(&self, len: u64) {
        if self.quota.is_some() {
            self.held().refund(self.id.epoch, len);
        }
    }

    fn held(&self) -> &Held {
        &self.view.header().held[self.slot()]
    }

    /// Releases one lease of this peer, of a message of `len` bytes.
    #[inline]
    pub(crate) fn release(&self, record: u32, len: u64) {
        let Some(record) = self.record(record) else {
            return;
        };
        if !self.has_slot() {
            return;
        }
        record.release(self.slot());
        self.refund(len);
        self.notify();
    }

    pub(crate) fn notify(&self) {
        self.view.header().memory.notify();
    }

    /// Turns one lease of this peer, of a message of `len` bytes, back into a grant.
    pub(crate) fn put_back(&self, record: u32, len: u64) {
        let Some(record) = self.record(record) else {
            return;
        };
        if !self.has_slot() {
            return;
        }
        if !record.put_back(self.slot()) {
            self.refund(len);
        }
        self.take_back_if_refused(record);
        self.notify();
    }

    pub(crate) fn take_back_if_refused(&self, record: &Record) {
        let slot = self.slot();
        self.view.header().epochs[slot].take_back_if_refused(self.id.epoch, record, slot);
    }

    /// Returns `true` if the owner has destroyed the segment: a hint for unmapping.
    pub(crate) fn is_destroyed(&self, index: u64, serial: u64) -> bool {
        match self.view.segment_entry(index) {
            Some(entry) => entry.load(Ordering::Relaxed) != serial,
            None => true,
        }
    }

    /// Faults in the control object, and returns the index and the serial number of each segment.
    pub(crate) fn warm(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.view.prefault();
        self.view.segments()
    }

    /// Returns `true` if the owner has ended and this peer has no grant of it to take up.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.check_owner().is_err() && !self.has_pending_grants()
    }

    pub(crate) fn check_owner(&self) -> Result<(), AttachError> {
        let provider = self.id.provider;
        if self.view.header().state.load(Ordering::Relaxed) != OPEN {
            return Err(AttachError::Closed(provider));
        }
        if !self.locks.is_locked(OWNER_BYTE) {
            return Err(AttachError::ProviderDied(provider));
        }
        Ok(())
    }
}

fn used(view: &View) -> u32 {
    // Acquire: partner of the Release in `OwnerControl`.
    let high_water = view.header().high_water.load(Ordering::Acquire);
    high_water.min(view.record_count())
}

/// Locks a free slot. Waits for one that the owner is clearing, for a limited time: the owner may
/// be stopped.
fn free_slot(locks: &LockFile) -> io::Result<Option<usize>> {
    let begin = Instant::now();
    loop {
        for slot in 0..PEERS {
            if locks.try_lock(peer_byte(slot))? {
                return Ok(Some(slot));
            }
        }
        let is_full = (0..PEERS).all(|slot| locks.is_locked(peer_byte(slot)));
        if is_full || begin.elapsed() > CLEARING_LIMIT {
            return Ok(None);
        }
        thread::yield_now();
    }
}

impl Reader for Remote {
    fn finish(&self) {
        let control = &self.control;
        if !control.is_ours() || !control.has_slot() {
            return;
        }
        // Not while the owner lives: without the lock, it would reuse what is still read.
        if has_ended(&control.names, control.id.provider, Teardown::None) {
            let _ = control.locks.unlock(peer_byte(control.slot()));
            sweep_after_reading(&control.names, control.id.provider, Teardown::None);
        }
    }
}

impl Drop for Remote {
    /// The control, which is dropped next, sweeps.
    fn drop(&mut self) {
        readers::remove(ptr::addr_of!(*self).cast());
    }
}

impl Drop for PeerControl {
    fn drop(&mut self) {
        if self.is_ours() && self.has_slot() {
            self.view.vacate(self.slot(), || used(&self.view));
            self.notify();
            // Not left to the close: a child made by a raw `clone` may have a copy of the
            // descriptor. If this fails, the slot stays taken until that child exits.
            end_reading(
                &self.locks,
                peer_byte(self.slot()),
                &self.names,
                self.id.provider,
                || match self.check_owner() {
                    Err(AttachError::ProviderDied { .. }) => Some(Teardown::None),
                    Ok(_) | Err(_) => None,
                },
            );
        }
    }
}

pub(crate) use lease::Lease;

/// A module, so that only `Lease::take` makes a lease, and each one is released once.
mod lease {
    #![forbid(unsafe_code)]

    use super::PeerControl;
    use crate::peer::error::AttachError;
    use crate::protocol::descriptor::Descriptor;
    use crate::protocol::record::{Place, Refused};

    pub(crate) struct Lease<'a> {
        control: &'a PeerControl,
        record: u32,
        /// The message's length according to the descriptor, as charged.
        len: u64,
        origin: Origin,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Origin {
        Lease,
        /// Taken from a grant: an attach that fails puts the grant back.
        TakenUp,
    }

    impl<'a> Lease<'a> {
        #[inline]
        pub(crate) fn take(
            control: &'a PeerControl,
            descriptor: &Descriptor,
        ) -> Result<(Self, Place), AttachError> {
            let Some(record) = control.record(descriptor.record) else {
                let reason = format!(
                    "names buffer {} of provider {}, which shares at most {}",
                    descriptor.record,
                    descriptor.provider,
                    control.records()
                );
                return Err(AttachError::Forged(reason));
            };
            control.check_slot()?;
            let slot = control.slot();
            let generation = descriptor.generation;
            let len = descriptor.len;
            let (origin, taken) = match descriptor.granted {
                None => {
                    control.charge(len)?;
                    (Origin::Lease, record.attach(slot, generation))
                }
                Some(granted) if usize::from(granted) != slot => {
                    return Err(AttachError::OtherPeer);
                }
                // The owner has charged it.
                Some(_) => (Origin::TakenUp, record.accept(slot, generation)),
            };
            let refused = match taken {
                Ok(place) => {
                    let lease = Lease {
                        control,
                        record: descriptor.record,
                        len,
                        origin,
                    };
                    return Ok((lease, place));
                }
                Err(refused) => refused,
            };
            match (origin, refused) {
                (Origin::Lease, _) => control.refund(len),
                (Origin::TakenUp, Refused::Lost) => {
                    // The grant that was lost is for the message that the chunk holds now.
                    let (_generation, place) = record.snapshot();
                    control.refund(place.len);
                }
                (Origin::TakenUp, _) => {}
            }
            match refused {
                Refused::Stale | Refused::Lost => {
                    // A grant may have been taken up and put back.
                    control.take_back_if_refused(record);
                    // The lease may briefly have kept an owner from recycling the chunk.
                    control.notify();
                    Err(AttachError::Stale)
                }
                Refused::Full => Err(AttachError::TooManyLeases),
                Refused::NotGranted => Err(AttachError::NotGranted),
            }
        }

        pub(crate) fn moved_to(self, control: &PeerControl) -> Lease<'_> {
            let moved = Lease {
                control,
                record: self.record,
                len: self.len,
                origin: self.origin,
            };
            std::mem::forget(self);
            moved
        }
    }

    impl Drop for Lease<'_> {
        fn drop(&mut self) {
            match self.origin {
                Origin::Lease => self.control.release(self.record, self.len),
                Origin::TakenUp => self.control.put_back(self.record, self.len),
            }
        }
    }
}

/// The providers that a client is connected to. There are few, so lookup is a linear search.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<ProviderEntry>,
}

pub(crate) struct ProviderEntry {
    pub(crate) remote: Arc<Remote>,
    /// Indexed as in the control object's table.
    segments: Vec<Option<Arc<Cached>>>,
}

pub(crate) struct Remote {
    pub(crate) control: PeerControl,
    table: Weak<RwLock<Table>>,
}

/// A mapped segment. Keeps the connection alive, through which views release their leases.
pub(crate) struct Cached {
    mapping: Mapping,
    serial: u64,
    index: u64,
    remote: Arc<Remote>,
}

impl Remote {
    pub(crate) fn new(control: PeerControl, table: &Arc<RwLock<Table>>) -> Arc<Self> {
        let this = Arc::new(Self {
            control,
            table: Arc::downgrade(table),
        });
        let reader: Weak<Self> = Arc::downgrade(&this);
        readers::add(reader);
        this
    }
}

impl ProviderEntry {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        Self {
            remote,
            segments: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn provider(&self) -> ProviderId {
        self.remote.control.id().provider
    }

    #[inline]
    pub(crate) fn segment(&self, index: u64, serial: u64) -> Option<&Arc<Cached>> {
        let cached = self.segments.get(index as usize)?.as_ref()?;
        if cached.serial != serial {
            return None;
        }
        Some(cached)
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.segments.iter().flatten().count()
    }

    fn take_destroyed(&mut self) -> Vec<Arc<Cached>> {
        let mut destroyed = Vec::new();
        for segment in &mut self.segments {
            let is_destroyed = match segment {
                Some(cached) => cached.is_destroyed(),
                None => false,
            };
            if is_destroyed {
                destroyed.extend(segment.take());
            }
        }
        destroyed
    }
}

impl Table {
    #[inline]
    pub(crate) fn find(&self, provider: ProviderId) -> Option<&ProviderEntry> {
        self.entries
            .iter()
            .find(|entry| entry.provider() == provider)
    }

    fn entry_of(&mut self, remote: &Arc<Remote>) -> Option<&mut ProviderEntry> {
        self.entries
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.remote, remote))
    }

    /// Inserts a segment, unless another thread has mapped it already. Returns the segment that is
    /// in the table then, and destroyed ones that are no longer in it. The caller drops those
    /// without the table's lock: unmapping is a system call.
    pub(crate) fn insert(&mut self, cached: Arc<Cached>) -> (Arc<Cached>, Vec<Arc<Cached>>) {
        let Some(entry) = self.entry_of(&cached.remote) else {
            return (cached, Vec::new());
        };
        let destroyed = entry.take_destroyed();
        let at = cached.index as usize;
        if entry.segments.len() <= at {
            entry.segments.resize_with(at + 1, || None);
        }
        match &mut entry.segments[at] {
            Some(known) if known.serial == cached.serial => (known.clone(), destroyed),
            vacant => {
                *vacant = Some(cached.clone());
                (cached, destroyed)
            }
        }
    }

    pub(crate) fn take_destroyed(&mut self) -> Vec<Arc<Cached>> {
        let mut destroyed = Vec::new();
        for entry in &mut self.entries {
            destroyed.extend(entry.take_destroyed());
        }
        destroyed
    }

    pub(crate) fn take(&mut self, remotes: &[Arc<Remote>]) -> Vec<ProviderEntry> {
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            let is_wanted = |remote| Arc::ptr_eq(remote, &entry.remote);
            if remotes.iter().any(is_wanted) {
                taken.push(entry);
            } else {
                kept.push(entry);
            }
        }
        self.entries = kept;
        taken
    }
}

impl Cached {
    pub(crate) fn new(mapping: Mapping, index: u64, serial: u64, remote: Arc<Remote>) -> Self {
        Self {
            mapping,
            serial,
            index,
            remote,
        }
    }

    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    pub(crate) fn control(&self) -> &PeerControl {
        &self.remote.control
    }

    #[inline]
    pub(crate) fn is_destroyed(&self) -> bool {
        self.remote.control.is_destroyed(self.index, self.serial)
    }

    /// Removes this segment from the client's table, which keeps it mapped.
    #[cold]
    pub(crate) fn leave_table(&self) {
        let Some(table) = self.remote.table.upgrade() else {
            return;
        };
        let mut table = table.write();
        let Some(entry) = table.entry_of(&self.remote) else {
            return;
        };
        let Some(known) = entry.segments.get_mut(self.index as usize) else {
            return;
        };
        if matches!(known, Some(cached) if cached.serial == self.serial) {
            *known = None;
        }
    }
}
