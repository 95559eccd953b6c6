//! The control object: one per provider, mapped read-write by the owner and by every peer.
//!
//! ```text
//!   offset 0      ControlHeader: magic, version, sizes, provider id, state; an epoch per peer slot; the serial numbers of the
//!                 segments that peers may map, 0 where there is none
//!   offset 4096   one Record of 128 bytes per shared chunk: generation, lanes, place (see `lease`)
//!
//!   locked bytes (exclusive OFD locks, held for life):  0 the owner,  1 + slot the peer in that slot
//! ```
//!
//! While an owner clears a dead peer's slot it has a shared lock on the peer's byte, so that who connects meanwhile can tell that the
//! slot is about to be free.
//!
//! The kernel says who is alive: it drops a process's locks when the process ends, however it ends. No heartbeat, no
//! process ids.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | owner: state = open, Release | peer connects: Acquire | the whole header |
//! | owner: high water, Release | who clears a slot: Acquire | that records below it may be in use |
//! | who has a slot's or the owner's lock: anything, then unlock or end | who gets the lock next: its system call | what was written under the lock; the kernel orders the two |
//! | owner: segment entry, Relaxed | peer: Relaxed | only a hint to unmap; never decides about access |

use crate::os::name::Name;
use crate::os::posix::PAGE;
use crate::os::segment::Mapping;
use crate::protocol::ids::ProviderId;
use crate::protocol::record::{Record, PEERS};
use crate::protocol::slot::Epoch;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// "SHMPOOL" and a zero.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SHMPOOL\0");

/// What the object of a channel begins with.
pub(crate) const CHANNEL_MAGIC: u64 = u64::from_le_bytes(*b"SHMCHAN\0");

/// Version of the layout and of the protocol on it.
pub(crate) const VERSION: u32 = 2;

/// Most records that a control object may have.
pub(crate) const MAX_RECORDS: usize = 1 << 20;

/// Most segments that a provider has at a time.
pub(crate) const MAX_SEGMENTS: usize = 16;

/// Entries of the table of segments: one that is about to go has its entry for a little longer than its place among those.
const ENTRIES: usize = 2 * MAX_SEGMENTS;

/// The locked byte of the owner.
pub(crate) const OWNER_BYTE: usize = 0;

/// The locked byte of a channel's receiver.
pub(crate) const RECEIVER_BYTE: usize = 1;

/// The locked byte of the peer in `slot`.
pub(crate) fn peer_byte(slot: usize) -> usize {
    1 + slot
}

/// Where [`ControlHeader::state`] is.
pub(crate) const STATE_OFFSET: u64 = 12;

/// Where the provider's id is, here and in a channel's object.
pub(crate) const PROVIDER_OFFSET: u64 = 16;

/// Values of [`ControlHeader::state`]; 0 is a control object that is not complete.
pub(crate) const OPEN: u32 = 1;
pub(crate) const CLOSED: u32 = 2;

/// The first page. Only atomics: other processes may write at any time.
#[repr(C)]
pub(crate) struct ControlHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) provider: AtomicU64,
    pub(crate) records: AtomicU32,
    /// Records below this number may have been used.
    pub(crate) high_water: AtomicU32,
    pub(crate) epochs: [Epoch; PEERS],
    pub(crate) segments: [AtomicU64; ENTRIES],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<ControlHeader>() <= PAGE && PAGE % std::mem::align_of::<Record>() == 0);

/// The name of the control object of a provider.
pub(crate) fn control_name(prefix: &str, provider: ProviderId) -> Name {
    Name::new(&format!("{prefix}.{provider}.ctl"))
}

/// The name of a payload segment of a provider.
pub(crate) fn segment_name(prefix: &str, provider: ProviderId, serial: u64) -> Name {
    Name::new(&format!("{prefix}.{provider}.{serial:x}"))
}

/// Bytes of a control object of `records` records: the header's page, and they.
pub(crate) fn control_size(records: usize) -> usize {
    PAGE + records * size_of::<Record>()
}

/// The typed view of a mapped control object that is large enough for its private `records` count.
pub(crate) struct View {
    pub(crate) mapping: Mapping,
    pub(crate) records: usize,
}

impl View {
    /// `None` if the mapping is too small for that many records, or the number is out of range.
    pub(crate) fn new(mapping: Mapping, records: usize) -> Option<Self> {
        let fits = (1..=MAX_RECORDS).contains(&records) && control_size(records) <= mapping.len();
        fits.then_some(Self { mapping, records })
    }

    pub(crate) fn header(&self) -> &ControlHeader {
        // SAFETY: the mapping is page-aligned, longer than a page (checked in `new`), lives as long as `self`, and
        // everybody accesses it by atomics of the same width.
        unsafe { self.mapping.base().cast::<ControlHeader>().as_ref() }
    }

    pub(crate) fn segment_entry(&self, index: u64) -> Option<&AtomicU64> {
        self.header().segments.get(usize::try_from(index).ok()?)
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        let index = index as usize;
        if index >= self.records {
            return None;
        }
        let offset = PAGE + index * size_of::<Record>();
        // SAFETY: `index < records`, and `new` checked that this many records lie within the mapping.
        let record = unsafe { self.mapping.base().as_ptr().add(offset) };
        // SAFETY: as above; the records start at a page and are 128 bytes each, so this is aligned; a record is made
        // of atomics only.
        Some(unsafe { &*record.cast() })
    }

    /// Makes the slot nobody's and clears its lanes. The caller holds the slot's lock. `used` tells how many records may have been
    /// used; it is asked when no grant to the slot can begin any more. Returns how many records the slot still held.
    pub(crate) fn vacate(&self, slot: usize, used: impl FnOnce() -> u32) -> usize {
        self.header().epochs[slot].vacate(|| self.records(used()).filter(|record| record.clear(slot)).count())
    }

    /// The first records.
    pub(crate) fn records(&self, count: u32) -> impl Iterator<Item = &Record> {
        (0..count).filter_map(|index| self.record(index))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Otherwise a sweep damages the control object instead of closing it.
    #[test]
    fn the_state_is_where_it_is_written() {
        // SAFETY: zero bytes are a valid header of atomics.
        let header: ControlHeader = unsafe { std::mem::zeroed() };
        let distance = std::ptr::addr_of!(header.state) as usize - std::ptr::addr_of!(header) as usize;
        assert_eq!(distance as u64, STATE_OFFSET);
        let distance = std::ptr::addr_of!(header.provider) as usize - std::ptr::addr_of!(header) as usize;
        assert_eq!(distance as u64, PROVIDER_OFFSET);
    }
}
