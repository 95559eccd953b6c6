//! The control object: one per provider, mapped read-write by the owner and by every peer.
//!
//! ```text
//!   offset 0      a ControlHeader
//!   offset 4096   a Record of 128 bytes per shared chunk
//!
//!   locked bytes (exclusive OFD locks, held for life): 0 the owner, 1 + slot the peer in that slot
//! ```
//!
//! While an owner clears a dead peer's slot, it holds a shared lock on the peer's byte, which tells
//! a connecting peer that the slot is about to be free. The kernel decides which processes are
//! alive (D5).
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | owner: state = open, Release | connecting peer: Acquire | the whole header |
//! | owner: high water, Release | peer that vacates a slot: Acquire | that records below it may be in use |
//! | holder of a slot's or the owner's lock: any write, then unlock or exit | next holder: its system call | all writes under the lock |
//! | owner: segment entry, Relaxed | peer: Relaxed | a hint for mapping and unmapping; access never depends on it |

use crate::os::mapping::Mapping;
use crate::os::posix::PAGE;
use crate::protocol::ids::ProviderId;
use crate::protocol::memory_doorbell::MemoryDoorbell;
use crate::protocol::record::{Record, PEERS};
use crate::protocol::slot::{Epoch, Held};
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SHMPOOL\0");

/// The magic number of a channel's object.
pub(crate) const CHANNEL_MAGIC: u64 = u64::from_le_bytes(*b"SHMCHAN\0");

pub(crate) const VERSION: u32 = 5;

pub(crate) const MAX_RECORDS: usize = 1 << 20;

pub(crate) const MAX_SEGMENTS: usize = 16;

/// A segment keeps its entry slightly longer than it counts.
const ENTRIES: usize = 2 * MAX_SEGMENTS;

pub(crate) const OWNER_BYTE: usize = 0;

/// The byte that a channel's receiver locks.
pub(crate) const RECEIVER_BYTE: usize = 1;

pub(crate) fn peer_byte(slot: usize) -> usize {
    1 + slot
}

pub(crate) const STATE_OFFSET: u64 = 12;

pub(crate) const HIGH_WATER_OFFSET: u64 = 28;

pub(crate) const SEGMENTS_OFFSET: u64 = 32 + (PEERS * size_of::<Epoch>()) as u64;

pub(crate) const NO_SEGMENTS: [u8; ENTRIES * size_of::<u64>()] = [0; ENTRIES * size_of::<u64>()];

/// Here and in a channel's object.
pub(crate) const PROVIDER_OFFSET: u64 = 16;

/// Values of [`ControlHeader::state`]. 0 is an incomplete object.
pub(crate) const OPEN: u32 = 1;
pub(crate) const CLOSED: u32 = 2;

/// Atomics: other processes may write at any time.
#[repr(C)]
pub(crate) struct ControlHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) provider: AtomicU64,
    pub(crate) records: AtomicU32,
    pub(crate) high_water: AtomicU32,
    pub(crate) epochs: [Epoch; PEERS],
    /// The serial numbers of the segments that peers may map, or 0.
    pub(crate) segments: [AtomicU64; ENTRIES],
    /// The most bytes that a peer may read or be granted at a time; 0 for no limit.
    pub(crate) quota: AtomicU64,
    /// In its own cache line: peers read it whenever they release a lease.
    pub(crate) memory: MemoryDoorbell,
    /// One per peer slot.
    pub(crate) held: [Held; PEERS],
}

#[cfg(all(test, not(loom)))]
pub(crate) const OFFSETS: &[(&str, usize)] = offsets!(
    ControlHeader: magic version state provider records high_water epochs segments quota memory
        held
);

#[cfg(not(all(test, loom)))]
const _: () =
    assert!(size_of::<ControlHeader>() <= PAGE && PAGE % std::mem::align_of::<Record>() == 0);

pub(crate) fn control_size(records: usize) -> usize {
    PAGE + records * size_of::<Record>()
}

/// A mapped control object. Its number of records is private: the one in the header is not trusted.
pub(crate) struct View {
    mapping: Mapping,
    records: usize,
}

impl View {
    pub(crate) fn new(mapping: Mapping, records: usize) -> Option<Self> {
        if !(1..=MAX_RECORDS).contains(&records) || control_size(records) > mapping.len() {
            return None;
        }
        Some(Self { mapping, records })
    }

    /// Returns `None` if this is not the header of an open provider with this id.
    pub(crate) fn of_header(mapping: Mapping, provider: ProviderId) -> Option<Self> {
        if mapping.len() < PAGE {
            return None;
        }
        let view = Self {
            mapping,
            records: 0,
        };
        let header = view.header();
        // Acquire: partner of the Release with which the owner opens the object.
        if header.state.load(Ordering::Acquire) != OPEN
            || header.magic.load(Ordering::Relaxed) != MAGIC
            || header.version.load(Ordering::Relaxed) != VERSION
            || header.provider.load(Ordering::Relaxed) != provider.0
        {
            return None;
        }
        Some(view)
    }

    pub(crate) fn with_records(self, records: usize) -> Option<Self> {
        Self::new(self.mapping, records)
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn record_count(&self) -> u32 {
        self.records as u32
    }

    pub(crate) fn header(&self) -> &ControlHeader {
        // SAFETY: the mapping is page-aligned, at least a page long (`new`, `of_header`), and lives
        // as long as `self`. All processes access it through atomics of the same width.
        unsafe { self.mapping.base().cast::<ControlHeader>().as_ref() }
    }

    pub(crate) fn segment_entry(&self, index: u64) -> Option<&AtomicU64> {
        self.header().segments.get(usize::try_from(index).ok()?)
    }

    /// Returns the index and the serial number of each segment: hints, which other processes can
    /// write.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let entries = self.header().segments.iter().enumerate();
        entries.filter_map(|(index, entry)| {
            let serial = entry.load(Ordering::Relaxed);
            if serial == 0 {
                return None;
            }
            Some((index as u64, serial))
        })
    }

    pub(crate) fn prefault(&self) {
        let _ = self.mapping.prefault(0..control_size(self.records));
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        let index = index as usize;
        if index >= self.records {
            return None;
        }
        let offset = PAGE + index * size_of::<Record>();
        // SAFETY: `index < records`, and that many records lie within the mapping (`new`).
        let record = unsafe { self.mapping.base().as_ptr().add(offset) };
        // SAFETY: within the mapping, and aligned: records of 128 bytes start at a page. A record
        // consists of atomics.
        Some(unsafe { &*record.cast() })
    }

    /// Vacates the slot, whose lock the caller holds, and clears its lanes. `used` runs once no new
    /// grant to the slot can begin. Returns how many records the slot still held.
    pub(crate) fn vacate(&self, slot: usize, used: impl FnOnce() -> u32) -> usize {
        self.header().epochs[slot].vacate(|| {
            let mut cleared = 0;
            for record in self.records(used()) {
                if record.clear(slot) {
                    cleared += 1;
                }
            }
            cleared
        })
    }

    pub(crate) fn records(&self, count: u32) -> impl Iterator<Item = &Record> {
        (0..count).filter_map(|index| self.record(index))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        let offset =
            |name: &str| OFFSETS.iter().find(|(field, _)| *field == name).unwrap().1 as u64;
        assert_eq!(
            ["state", "provider", "high_water", "segments"].map(offset),
            [
                STATE_OFFSET,
                PROVIDER_OFFSET,
                HIGH_WATER_OFFSET,
                SEGMENTS_OFFSET
            ]
        );
        assert_eq!(SEGMENTS_OFFSET + NO_SEGMENTS.len() as u64, offset("quota"));
    }
}
