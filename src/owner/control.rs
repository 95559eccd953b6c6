//! The owner's side of the control object: creates it, hands out records, lists segments, grants,
//! reclaims.
//!
//! The owner keeps what it needs to know in private memory (`FreeLists`, the chunks' own
//! generations). It never reads that back from the control object, which peers can write.

#![forbid(unsafe_code)]

#[cfg(all(test, not(loom)))]
#[path = "../limit_tests/control.rs"]
mod limit_tests;

use crate::error::OsError;
use crate::os::locks::LockFile;
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Namespace};
use crate::os::posix::{round_to_pages, LOCK_MEMORY};
use crate::os::segment::Locked;
use crate::owner::error::ShareError;
use crate::owner::payload::Payload;
use crate::protocol::control::{control_size, peer_byte, View, CLOSED, MAGIC, OPEN, OWNER_BYTE, VERSION};
use crate::protocol::ids::{control_name, PeerId, ProviderId};
use crate::protocol::memory_bell::MemoryBell;
use crate::protocol::record::{Record, MAX_GRANTS, PEERS};
use crate::protocol::slot::{Epoch, GrantGate, NotGranted};
use crate::protocol::sweep;
use parking_lot::Mutex;
use std::io;
use std::mem::size_of;
use std::sync::atomic::Ordering;

/// The owner's control object, with the private books about it.
pub(crate) struct OwnerControl {
    view: View,
    /// Unlinks the name on drop.
    link: Link,
    /// Holds the owner's lock.
    locks: LockFile,
    id: ProviderId,
    free_lists: Mutex<FreeLists>,
    /// One per peer slot.
    gates: [GrantGate; PEERS],
    /// Held while slots of the dead are vacated: the kernel's locks do not exclude two threads of
    /// one process.
    reclaiming: Mutex<()>,
}

/// Which records and which entries of the segment table are free.
struct FreeLists {
    /// Records that were used before, with the odd generation each is closed at.
    used: Vec<(u32, u64)>,
    /// The first record that was never used.
    fresh: u32,
    /// The seed for the first generation of fresh records.
    seed: u64,
    /// Which entries of the segment table are taken, one bit each.
    listed: u32,
}

impl OwnerControl {
    /// Creates the control object, locked by this process, with all records free; `quota` is as in
    /// [`ControlHeader`](crate::protocol::control::ControlHeader). `None` if a sweep
    /// took it for a dead owner's before it was locked.
    pub(crate) fn create(
        names: &Namespace,
        id: ProviderId,
        records: usize,
        mode: u32,
        quota: u64,
        seed: u64,
    ) -> Result<Option<Self>, OsError> {
        let name = control_name(names, id);
        let len = round_to_pages(control_size(records)).unwrap_or(usize::MAX);
        let made = sweep::create_locked(name, len, mode, OWNER_BYTE, Mapping::of_owner)?;
        let Locked::Made(segment, locks) = made else { return Ok(None) };
        let (mapping, link) = segment.into_parts();
        let unfit = || link.name().error("mmap", len, io::Error::from_raw_os_error(libc::EINVAL));
        let view = View::new(mapping, records).ok_or_else(unfit)?;
        let header = view.header();
        header.magic.store(MAGIC, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.provider.store(id.0, Ordering::Relaxed);
        header.records.store(records as u32, Ordering::Relaxed);
        header.quota.store(quota, Ordering::Relaxed);
        header.epochs.iter().for_each(Epoch::start);
        header.state.store(OPEN, Ordering::Release);
        let free_lists = Mutex::new(FreeLists { used: Vec::new(), fresh: 0, seed, listed: 0 });
        let gates = std::array::from_fn(|_| GrantGate::new());
        Ok(Some(Self { view, link, locks, id, free_lists, gates, reclaiming: Mutex::new(()) }))
    }

    /// Locks all of the control object into RAM, and makes it present.
    pub(crate) fn lock_memory(&self) -> Result<(), OsError> {
        let mapping = self.view.mapping();
        mapping.lock().map_err(|error| self.link.name().error(LOCK_MEMORY, mapping.len(), error))?;
        // Peers may write it already. On a kernel before 5.14 its pages fault in one by one.
        mapping.prefault(0..mapping.len());
        Ok(())
    }

    /// What peers ring when they give leases back.
    pub(crate) fn memory_bell(&self) -> &MemoryBell {
        &self.view.header().memory
    }

    /// The provider's id.
    pub(crate) fn id(&self) -> ProviderId {
        self.id
    }

    /// How many chunks can be shared at a time.
    pub(crate) fn records(&self) -> usize {
        self.view.record_count() as usize
    }

    /// The record that [`claim_record`](Self::claim_record) returned.
    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        self.view.record(index)
    }

    /// Hands out a free record, closed, with the odd generation it is closed at.
    pub(crate) fn claim_record(&self) -> Result<(u32, u64), ShareError> {
        let mut free_lists = self.free_lists.lock();
        if let Some(used) = free_lists.used.pop() {
            return Ok(used);
        }
        let index = free_lists.fresh;
        let record = self.view.record(index).ok_or(ShareError::TooManyShared { max: self.records() })?;
        // So that giving a record back needs no memory.
        let missing = index as usize + 1 - free_lists.used.len();
        let out_of_memory = |_| ShareError::OutOfMemory { bytes: (index as usize + 1) * size_of::<(u32, u64)>() };
        free_lists.used.try_reserve(missing).map_err(out_of_memory)?;
        let generation = first_generation(free_lists.seed, index);
        record.close_at(generation);
        free_lists.fresh += 1;
        // Release: pairs with the Acquire in `peer::control`, where a peer clears its slot.
        self.view.header().high_water.store(free_lists.fresh, Ordering::Release);
        Ok((index, generation))
    }

    /// Lists a new segment, so that peers can tell which ones exist. There is always a free entry:
    /// the table has twice as many as a pool has segments at a time.
    pub(crate) fn list(&self, payload: &mut Payload) {
        let mut free_lists = self.free_lists.lock();
        let index = free_lists.listed.trailing_ones();
        if let Some(entry) = self.view.segment_entry(index.into()) {
            entry.store(payload.serial(), Ordering::Relaxed);
            free_lists.listed |= 1 << index;
            payload.set_index(index);
        }
    }

    /// Strikes a segment that is about to go off the list, so that peers unmap it.
    pub(crate) fn unlist(&self, payload: &Payload) {
        let Some(index) = payload.index() else { return };
        let mut free_lists = self.free_lists.lock();
        if let Some(entry) = self.view.segment_entry(index.into()) {
            entry.store(0, Ordering::Relaxed);
            free_lists.listed &= !(1 << index);
        }
    }

    /// Takes back the record of a chunk that is about to be destroyed, closed at an odd generation,
    /// for another chunk.
    pub(crate) fn release_record(&self, record: u32, generation: u64) {
        self.free_lists.lock().used.push((record, generation));
    }

    /// A peer's slot: its number, gate and epoch.
    fn slot_of(&self, peer: PeerId) -> Result<(usize, &GrantGate, &Epoch), ShareError> {
        if peer.provider != self.id {
            return Err(ShareError::OtherProvider { peer, provider: self.id });
        }
        let slot = usize::from(peer.slot);
        let gate = self.gates.get(slot).ok_or(ShareError::PeerGone(peer))?;
        Ok((slot, gate, &self.view.header().epochs[slot]))
    }

    /// Adds a grant on `record` for `peer`. The caller holds the chunk, published.
    pub(crate) fn grant(&self, record: &Record, peer: PeerId) -> Result<(), ShareError> {
        let (slot, gate, epoch) = self.slot_of(peer)?;
        gate.grant(epoch, peer.epoch, record, slot).map_err(|error| match error {
            NotGranted::Gone => ShareError::PeerGone(peer),
            NotGranted::Full => ShareError::TooManyGrants { peer, max: MAX_GRANTS as usize },
        })
    }

    /// Takes back a grant on `record` that `peer` has not taken up. Returns `false` if there is none.
    pub(crate) fn revoke(&self, record: &Record, peer: PeerId) -> bool {
        self.slot_of(peer).is_ok_and(|(slot, gate, epoch)| gate.revoke(epoch, peer.epoch, record, slot))
    }

    /// Refuses a peer, and takes back what it was granted and has not taken up.
    pub(crate) fn disconnect(&self, peer: PeerId) -> Result<(), ShareError> {
        let (slot, gate, epoch) = self.slot_of(peer)?;
        let take_back = || {
            let granted = self.view.records(self.used()).filter(|record| record.holders() >> slot & 1 != 0);
            // Bounded: a lane has no more, unless a process writes over it.
            granted.for_each(|record| (0..MAX_GRANTS).take_while(|_| record.revoke(slot)).for_each(|_| ()));
        };
        let is_refused = gate.refuse(epoch, peer.epoch, take_back);
        is_refused.then_some(()).ok_or(ShareError::PeerGone(peer))
    }

    /// Takes back the leases of peers that are gone. Returns how many records they still held.
    pub(crate) fn reclaim(&self) -> usize {
        let _one_at_a_time = self.reclaiming.lock();
        let held = self.view.records(self.used()).fold(0, |held, record| held | record.holders());
        (0..PEERS).map(|slot| self.reclaim_slot(slot, held >> slot & 1 != 0)).sum()
    }

    /// Vacates the slot if its peer is gone. `is_held`: the slot leases a record. Even a vacant
    /// slot may, if a peer was killed while it tried a descriptor that was never sent.
    fn reclaim_slot(&self, slot: usize, is_held: bool) -> usize {
        let is_clear = || self.view.header().epochs[slot].is_vacant() && !is_held;
        // While this process holds the lock, no peer can connect in this slot.
        if is_clear() || !matches!(self.locks.try_lock_shared(peer_byte(slot)), Ok(true)) {
            return 0;
        }
        let mut cleared = 0;
        // It may have been vacated before the lock was taken.
        if !is_clear() {
            cleared = self.view.vacate(slot, || self.used());
            event!(warn, provider = %self.id, slot, messages = cleared, "peer died; what it leased is taken back");
        }
        // If this fails, the slot only looks taken until this process ends.
        let _ = self.locks.unlock(peer_byte(slot));
        cleared
    }

    /// How many records were used. Not the shared high water, which a peer can write.
    fn used(&self) -> u32 {
        self.free_lists.lock().fresh
    }
}

impl Drop for OwnerControl {
    fn drop(&mut self) {
        self.view.header().state.store(CLOSED, Ordering::Release);
        // Before the lock goes, or a process that looks at this moment takes it for a dead owner's.
        self.link.remove();
        // Explicitly, because a child made by a raw `clone` may have a copy of the descriptor.
        let _ = self.locks.unlock(OWNER_BYTE);
    }
}

/// An odd generation that differs from record to record and from provider to provider, so that a
/// damaged or made-up descriptor does not hit the right one by counting from 1. The top bits are
/// clear. That leaves 3 * 2^61 steps of two, enough for 21,900 years at 10 million messages a
/// second in one record. For what comes then see `record::published_after`.
fn first_generation(seed: u64, index: u32) -> u64 {
    // The increment of SplitMix64, an odd number near 2^64 divided by the golden ratio.
    (seed ^ u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 2 | 1
}
