//! What a pool has in shared memory: the control object, and the payload segments that it lists.
//!
//! Peers can write the control object, so the owner keeps its own knowledge in private memory
//! (`FreeLists`, the chunks' generations) and never reads it back from there.

#![forbid(unsafe_code)]

#[cfg(all(test, not(loom)))]
#[path = "../limit_tests/control.rs"]
mod limit_tests;

use crate::error::OsError;
use crate::os::advice::{is_full, no_space};
use crate::os::locks::LockFile;
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Namespace};
use crate::os::posix::{round_to_pages, LOCK_MEMORY};
use crate::os::segment::{Locked, Memory, Segment};
use crate::owner::limits::ShareError;
use crate::protocol::control::{
    control_size, peer_byte, View, CLOSED, MAGIC, OPEN, OWNER_BYTE, VERSION,
};
use crate::protocol::ids::{control_name, segment_name, PeerId, ProviderId};
use crate::protocol::memory_doorbell::MemoryDoorbell;
use crate::protocol::record::{Record, MAX_GRANTS, PEERS};
use crate::protocol::slot::{Cost, Epoch, GrantGate, NotGranted, MAX_HELD};
use crate::protocol::sweep;
use parking_lot::Mutex;
use std::any::Any;
use std::io;
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct OwnerControl {
    view: View,
    link: Link,
    locks: LockFile,
    names: Namespace,
    id: ProviderId,
    free_lists: Mutex<FreeLists>,
    /// One per peer slot.
    gates: [GrantGate; PEERS],
    /// The limit on the bytes that a peer reads or is granted.
    quota: Option<u64>,
    /// Held while slots of the dead are vacated: the kernel's locks do not exclude two threads of
    /// one process.
    reclaiming: Mutex<()>,
}

struct FreeLists {
    /// Records that were used before, and the odd generation that each is closed at.
    used: Vec<(u32, u64)>,
    fresh: u32,
    seed: u64,
    listed: u32,
}

impl OwnerControl {
    /// `None`: a sweep mistook it for a dead owner's before it was locked.
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
        let made = sweep::create_locked(name, len, mode, OWNER_BYTE, Mapping::of_owner);
        let made = made.map_err(|error| {
            if !is_full(&error) {
                return error;
            }
            // The object's length follows from the number of records.
            error.with_advice(no_space(names.directory(), "max_shared"))
        })?;
        let Locked::Made(segment, locks) = made else {
            return Ok(None);
        };
        let (mapping, link) = segment.into_parts();
        let Some(view) = View::new(mapping, records) else {
            let source = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(link.name().error("mmap", len, source));
        };
        let header = view.header();
        header.magic.store(MAGIC, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.provider.store(id.0, Ordering::Relaxed);
        header.records.store(records as u32, Ordering::Relaxed);
        header.quota.store(quota, Ordering::Relaxed);
        for epoch in &header.epochs {
            epoch.start();
        }
        header.state.store(OPEN, Ordering::Release);
        let free_lists = Mutex::new(FreeLists {
            used: Vec::new(),
            fresh: 0,
            seed,
            listed: 0,
        });
        let gates = std::array::from_fn(|_| GrantGate::new());
        let quota = match quota {
            0 => None,
            quota => Some(quota.min(MAX_HELD)),
        };
        Ok(Some(Self {
            view,
            link,
            locks,
            names: names.clone(),
            id,
            free_lists,
            gates,
            quota,
            reclaiming: Mutex::new(()),
        }))
    }

    pub(crate) fn lock_memory(&self) -> Result<(), OsError> {
        let mapping = self.view.mapping();
        if let Err(error) = mapping.lock() {
            return Err(self.link.name().error(LOCK_MEMORY, mapping.len(), error));
        }
        // Peers may write it already. Before Linux 5.14 its pages fault in one by one.
        mapping.prefault(0..mapping.len());
        Ok(())
    }

    pub(crate) fn memory_doorbell(&self) -> &MemoryDoorbell {
        &self.view.header().memory
    }

    pub(crate) fn id(&self) -> ProviderId {
        self.id
    }

    pub(crate) fn records(&self) -> usize {
        self.view.record_count() as usize
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        self.view.record(index)
    }

    pub(crate) fn claim_record(&self) -> Result<(u32, u64), ShareError> {
        let mut free_lists = self.free_lists.lock();
        if let Some(used) = free_lists.used.pop() {
            return Ok(used);
        }
        let index = free_lists.fresh;
        let Some(record) = self.view.record(index) else {
            let max = self.records();
            return Err(ShareError::TooManyShared { max });
        };
        // So that releasing a record needs no memory.
        let count = index as usize + 1;
        let missing = count - free_lists.used.len();
        if free_lists.used.try_reserve(missing).is_err() {
            let bytes = count * size_of::<(u32, u64)>();
            return Err(ShareError::OutOfMemory { bytes });
        }
        let generation = first_generation(free_lists.seed, index);
        record.close_at(generation);
        free_lists.fresh += 1;
        // Release: partner of the Acquire in `peer::control`, where a peer clears its slot.
        self.view
            .header()
            .high_water
            .store(free_lists.fresh, Ordering::Release);
        Ok((index, generation))
    }

    /// There is always a free entry: the table has twice as many as a pool has segments.
    pub(crate) fn list(&self, payload: &mut Payload) {
        let mut free_lists = self.free_lists.lock();
        let index = free_lists.listed.trailing_ones();
        if let Some(entry) = self.view.segment_entry(index.into()) {
            entry.store(payload.serial(), Ordering::Relaxed);
            free_lists.listed |= 1 << index;
            payload.set_index(index);
        }
    }

    /// Before it is removed itself, so that peers unmap it.
    pub(crate) fn unlist(&self, payload: &Payload) {
        let Some(index) = payload.index() else { return };
        let mut free_lists = self.free_lists.lock();
        if let Some(entry) = self.view.segment_entry(index.into()) {
            entry.store(0, Ordering::Relaxed);
            free_lists.listed &= !(1 << index);
        }
    }

    /// Releases the record of a chunk that is about to be destroyed, closed at an odd generation.
    pub(crate) fn release_record(&self, record: u32, generation: u64) {
        self.free_lists.lock().used.push((record, generation));
    }

    fn slot_of(&self, peer: PeerId) -> Result<(usize, &GrantGate, &Epoch), ShareError> {
        if peer.provider != self.id {
            return Err(ShareError::OtherProvider(peer));
        }
        let slot = usize::from(peer.slot);
        let Some(gate) = self.gates.get(slot) else {
            return Err(ShareError::PeerDisconnected(peer));
        };
        Ok((slot, gate, &self.view.header().epochs[slot]))
    }

    /// Returns what a message of `len` bytes costs the peer in this slot.
    fn cost(&self, slot: usize, len: u64) -> Cost<'_> {
        Cost {
            held: &self.view.header().held[slot],
            len,
            max: self.quota,
        }
    }

    pub(crate) fn grant(&self, record: &Record, peer: PeerId, len: u64) -> Result<(), ShareError> {
        let (slot, gate, epoch) = self.slot_of(peer)?;
        let cost = self.cost(slot, len);
        match gate.grant(epoch, peer.epoch, record, slot, cost) {
            Ok(()) => Ok(()),
            Err(NotGranted::Gone) => Err(ShareError::PeerDisconnected(peer)),
            Err(NotGranted::Full) => Err(ShareError::TooManyGrants(peer)),
            Err(NotGranted::OverQuota { held, max }) => Err(ShareError::OverQuota {
                peer,
                len,
                held,
                max,
            }),
        }
    }

    pub(crate) fn revoke(&self, record: &Record, peer: PeerId, len: u64) -> bool {
        let Ok((slot, gate, epoch)) = self.slot_of(peer) else {
            return false;
        };
        gate.revoke(epoch, peer.epoch, record, slot, self.cost(slot, len))
    }

    pub(crate) fn disconnect(&self, peer: PeerId) -> bool {
        let Ok((slot, gate, epoch)) = self.slot_of(peer) else {
            return false;
        };
        let take_back = || {
            for record in self.view.records(self.used()) {
                if record.holders() >> slot & 1 == 0 {
                    continue;
                }
                // Bounded: a lane has no more, unless a process overwrites it.
                for _ in 0..MAX_GRANTS {
                    if !record.revoke(slot) {
                        break;
                    }
                }
            }
        };
        gate.refuse(epoch, peer.epoch, take_back)
    }

    pub(crate) fn reclaim(&self) -> usize {
        let _one_at_a_time = self.reclaiming.lock();
        let mut held = 0;
        for record in self.view.records(self.used()) {
            held |= record.holders();
        }
        let mut cleared = 0;
        for slot in 0..PEERS {
            cleared += self.reclaim_slot(slot, held >> slot & 1 != 0);
        }
        cleared
    }

    /// Vacates the slot if its peer is dead. `is_held`: the slot leases a record. Even a vacant
    /// slot may, if a peer was killed while it tried a descriptor that was never sent.
    fn reclaim_slot(&self, slot: usize, is_held: bool) -> usize {
        let is_clear = || self.view.header().epochs[slot].is_vacant() && !is_held;
        // While this process holds the lock, no peer can connect in this slot.
        if is_clear() || !matches!(self.locks.try_lock_shared(peer_byte(slot)), Ok(true)) {
            return 0;
        }
        let mut cleared = 0;
        // The peer may have vacated it before this process took the lock.
        if !is_clear() {
            cleared = self.view.vacate(slot, || self.used());
            event!(
                warn,
                provider = %self.id,
                slot,
                messages = cleared,
                "peer died; what it leased is taken back"
            );
        }
        // If this fails, the slot only looks taken until this process exits.
        let _ = self.locks.unlock(peer_byte(slot));
        cleared
    }

    /// Peers can write the high water in shared memory.
    fn used(&self) -> u32 {
        self.free_lists.lock().fresh
    }
}

impl OwnerControl {
    /// Ends the owner while messages may still have to be read (see `sweep`): the state stays open,
    /// as after a death. The caller has left the segments linked.
    pub(crate) fn leave(&self) {
        self.link.keep();
        // A peer may have overwritten it. Sweeps leave objects that do not begin as a control
        // object.
        self.view.header().magic.store(MAGIC, Ordering::Relaxed);
        // Explicitly, because a child made by a raw `clone` may share the file description.
        let _ = self.locks.unlock(OWNER_BYTE);
        sweep::sweep_after_end(&self.names, self.id);
    }
}

impl Drop for OwnerControl {
    fn drop(&mut self) {
        if !self.link.is_ours() {
            // It was left to its readers.
            return;
        }
        self.view.header().state.store(CLOSED, Ordering::Release);
        // Before the lock is released, or a sweep takes the object for a dead owner's.
        self.link.remove();
        // Explicitly, because a child made by a raw `clone` may share the file description.
        let _ = self.locks.unlock(OWNER_BYTE);
    }
}

/// Returns an odd generation that differs between records and providers, so that a damaged or
/// forged descriptor does not hit the right one by counting from 1. The top bits are clear, for
/// 21,900 years at 10 million messages a second.
fn first_generation(seed: u64, index: u32) -> u64 {
    // SplitMix64's increment.
    (seed ^ u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 2 | 1
}

pub(crate) struct Payload {
    segment: Segment,
    serial: u64,
    index: Option<u32>,
    /// Dropped last, when this process no longer has the segment mapped or open.
    _removes: Option<Box<dyn Any + Send + Sync>>,
}

impl Payload {
    pub(crate) fn new(segment: Segment, serial: u64) -> Self {
        Self {
            segment,
            serial,
            index: None,
            _removes: None,
        }
    }

    pub(crate) fn removed_by(
        segment: Segment,
        serial: u64,
        removes: impl Any + Send + Sync,
    ) -> Self {
        Self {
            _removes: Some(Box::new(removes)),
            ..Self::new(segment, serial)
        }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn len(&self) -> usize {
        self.segment.mapping().len()
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    fn set_index(&mut self, index: u32) {
        self.index = Some(index);
    }
}

/// How many more names are tried for a segment if the first is in use.
const NAME_TRIES: usize = 16;

pub(crate) trait SegmentFactory: Send + Sync {
    fn create(&self, len: usize) -> Result<Payload, OsError>;

    fn sweep(&self) -> u64 {
        0
    }

    fn keeps_segments(&self) -> bool {
        false
    }

    fn reserves_whole(&self) -> bool {
        false
    }

    fn check_room(&self, _len: usize) -> Result<(), OsError> {
        Ok(())
    }
}

/// Creates numbered segments, for peers that find them through the control object.
pub(crate) struct Numbered {
    names: Namespace,
    provider: ProviderId,
    mode: u32,
    memory: Memory,
    next: AtomicU64,
}

impl Numbered {
    pub(crate) fn new(names: Namespace, provider: ProviderId, mode: u32, memory: Memory) -> Self {
        Self {
            names,
            provider,
            mode,
            memory,
            next: AtomicU64::new(1),
        }
    }
}

impl SegmentFactory for Numbered {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        let mut tries = 0;
        loop {
            let serial = self.next.fetch_add(1, Ordering::Relaxed);
            // Numbers wrap. In the list of segments, 0 stands for none.
            if serial == 0 {
                continue;
            }
            let name = segment_name(&self.names, self.provider, serial);
            match Segment::create(name, len, self.mode, self.memory) {
                Ok(segment) => return Ok(Payload::new(segment, serial)),
                // Another file has that name.
                Err(error) if error.errno() == Some(libc::EEXIST) && tries < NAME_TRIES => {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn sweep(&self) -> u64 {
        match self.names.sweep() {
            Ok(swept) => swept.bytes,
            Err(_) => 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::posix::PAGE;

    /// A segment numbered 0 would look unlisted.
    #[test]
    fn serial_numbers_wrap_past_zero() {
        let names = Namespace::in_shm(&format!("shm_pool-unit-{}-serial", std::process::id()));
        let source = Numbered::new(names, ProviderId(8), 0o600, Memory::default());
        source.next.store(u64::MAX - 1, Ordering::Relaxed);
        let segments = [(); 4].map(|()| source.create(PAGE).unwrap());
        assert_eq!(
            segments.each_ref().map(Payload::serial),
            [u64::MAX - 1, u64::MAX, 1, 2]
        );
        drop(segments);
        source.next.store(u64::MAX, Ordering::Relaxed);
        let kept = [(); 2].map(|()| source.create(PAGE).unwrap());
        source.next.store(u64::MAX, Ordering::Relaxed);
        let others = [(); 2].map(|()| source.create(PAGE).map(|segment| segment.serial()));
        assert!(
            matches!(others, [Ok(2), Ok(3)]),
            "numbers that are in use are passed by: {others:?}"
        );
        assert_eq!(kept.map(|segment| segment.serial()), [u64::MAX, 1]);
    }
}
