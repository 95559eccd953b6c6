//! The lease protocol: one [`Record`] per shared chunk, and the only code that accesses it.
//!
//! # A record
//!
//! The *lanes*, one byte per peer, count each peer's leases of the chunk:
//!
//! ```text
//!   bit  7 6 5   4 3 2 1 0
//!        grants  leases        grants: leases that the owner added, not taken up yet (0 to 7)
//!                              leases: views that the peer has open (0 to 31)
//! ```
//!
//! A chunk is free when every lane is zero. Eight lanes share an `AtomicU64`, which all processes
//! access as a whole. A dead peer's leases are those in its lane: [`Record::clear`] zeroes it, any
//! number of times.
//!
//! The *generation* is odd while the chunk is closed to peers and even while it is published. Only
//! the owner writes it, and it only grows (but see [`published_after`]). It shares a cache line
//! with the first lanes, because both change with each message. The second line has the last eight
//! lanes and the *place* of the bytes, which only the owner writes, and only if it differs.
//!
//! # Attach and recycle
//!
//! | step | peer: [`Record::attach`] | step | owner, to reuse the chunk: [`Record::recycle`] |
//! |---|---|---|---|
//! | A1 | add 1 to its own lane | U1 | stop unless all lanes are zero |
//! | A2 | full fence | U2 | make the generation odd |
//! | A3 | compare the generation with the descriptor's | U3 | full fence |
//! | A4 | if they differ, undo A1 | U4 | succeed if all lanes are still zero |
//!
//! The load after the later fence sees the store before the earlier one. So either the peer returns
//! `Stale` or the owner sees a lease, or both: the owner then leaves the chunk closed and tries
//! again later. From then on U4 alone decides, because no attach can succeed.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | owner publishes: generation, Release | A3, Acquire | place and payload, whichever transport carried the descriptor |
//! | peer releases a lease: lane, Release | U1 and U4, Acquire | that the peer has finished reading, so the owner may write |
//! | owner grants: lane, Release | peer takes the grant up: lane, Acquire | the generation that the grant is for |
//!
//! Other peers' operations on the word are read-modify-writes, which continue the release sequence.
//!
//! # Killed at any instruction
//!
//! A peer that dies leaves its own lane too high, never too low, until its slot is vacated (see
//! `slot`). The records of an owner that dies are never recycled.

// The models write data that the protocol guards, so that loom sees a missing ordering.
#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, not(loom)))]
#[path = "../limit_tests/record.rs"]
mod limit_tests;
#[cfg(all(test, loom))]
#[path = "../models/record.rs"]
mod models;

use crate::sync::{fence, fence_after_rmw, AtomicU64, Ordering};
use std::cell::Cell;

/// Peers of one provider at a time.
pub(crate) const PEERS: usize = 64;

const LANES: usize = 8;

/// The most leases of one chunk that one peer can have.
pub(crate) const MAX_LEASES: u64 = 31;

/// The most grants of one chunk that can be pending for one peer.
pub(crate) const MAX_GRANTS: u64 = 7;

const GRANT: u64 = MAX_LEASES + 1;

/// Where a message lies. A peer checks this before it forms a pointer (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) index: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The generation differs: the chunk has been recycled.
    Stale,
    Full,
    NotGranted,
    /// The generation differs, and a grant for a later one was lost; see [`Record::put_back`].
    Lost,
}

/// Zero bytes are a valid record, in generation 0, which no descriptor carries.
#[repr(C, align(128))]
pub(crate) struct Record {
    generation: AtomicU64,
    lanes: [AtomicU64; PEERS / LANES],
    segment: AtomicU64,
    index: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
}

#[cfg(all(test, not(loom)))]
pub(crate) const OFFSETS: &[(&str, usize)] =
    offsets!(Record: generation lanes segment index offset len);

/// The size of a record in bytes.
pub(crate) const RECORD_SIZE: usize = 128;

#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<Record>() == RECORD_SIZE && PEERS / LANES * 8 == 64);

/// A lane is the byte of its slot's number.
const _: () = assert!(cfg!(target_endian = "little"));

/// Returns the peers, one bit per slot, that have a pending grant in a copy of a record.
pub(crate) fn pending_grants(record: &[u8]) -> u64 {
    let lanes = record.iter().skip(LANES_OFFSET).take(PEERS);
    let mut slots = 0;
    for (slot, &lane) in lanes.enumerate() {
        if u64::from(lane) >= GRANT {
            slots |= 1 << slot;
        }
    }
    slots
}

const LANES_OFFSET: usize = std::mem::size_of::<u64>();

#[inline]
fn is_published(generation: u64) -> bool {
    generation != 0 && generation % 2 == 0
}

/// Wraps around after some 20,000 years.
#[inline]
pub(crate) fn published_after(odd: u64) -> u64 {
    // Not 0: see `is_published`.
    odd.wrapping_add(1).max(2)
}

/// Stores a value that rarely changes: an unchanged line stays in the peers' caches.
#[inline]
fn set(word: &AtomicU64, value: u64) {
    if word.load(Ordering::Relaxed) != value {
        word.store(value, Ordering::Relaxed);
    }
}

/// Returns the index of the word that has the slot's lane, and the lane's first bit in it.
#[inline]
fn lane(slot: usize) -> (usize, u32) {
    (slot / LANES % (PEERS / LANES), (slot % LANES * 8) as u32)
}

impl Record {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            lanes: std::array::from_fn(|_| zero()),
            generation: zero(),
            segment: zero(),
            index: zero(),
            offset: zero(),
            len: zero(),
        }
    }

    #[inline]
    pub(crate) fn attach(&self, slot: usize, generation: u64) -> Result<Place, Refused> {
        // Before A1, so that a generation that no owner ever sent touches no lane.
        if !is_published(generation) {
            return Err(Refused::Stale);
        }
        self.renew(slot)?; // A1, a read-modify-write if it succeeds
        fence_after_rmw(); // A2, partner of U3
        match self.place_in(generation) {
            Some(place) => Ok(place),
            None => {
                self.release(slot); // A4
                Err(Refused::Stale)
            }
        }
    }

    /// Turns a grant into a lease. Needs no fence: a pending grant keeps the chunk in its
    /// generation.
    #[inline]
    pub(crate) fn accept(&self, slot: usize, generation: u64) -> Result<Place, Refused> {
        if self.place_in(generation).is_none() {
            return Err(Refused::Stale);
        }
        self.change(slot, |lane| match (lane / GRANT, lane % GRANT) {
            (0, _) => Err(Refused::NotGranted),
            (_, MAX_LEASES) => Err(Refused::Full),
            _ => Ok(lane - GRANT + 1),
        })?;
        if let Some(place) = self.place_in(generation) {
            return Ok(place);
        }
        // The descriptor was delivered twice, and the grant is for a later message. Acquire in
        // `change` made this check see that.
        if self.put_back(slot) {
            Err(Refused::Stale)
        } else {
            Err(Refused::Lost)
        }
    }

    /// Turns a lease back into the grant that it was taken from. Returns `false` if the maximum
    /// number of grants is pending by now: the last of their receivers will be refused.
    pub(crate) fn put_back(&self, slot: usize) -> bool {
        let is_kept = Cell::new(false);
        let _ = self.change(slot, |lane| {
            is_kept.set(lane / GRANT < MAX_GRANTS);
            let grants = (lane / GRANT + 1).min(MAX_GRANTS);
            Ok(grants * GRANT + (lane % GRANT).saturating_sub(1))
        });
        is_kept.get()
    }

    /// Adds a lease of a chunk of which the peer has one already.
    pub(crate) fn renew(&self, slot: usize) -> Result<(), Refused> {
        self.change(slot, |lane| {
            if lane % GRANT == MAX_LEASES {
                return Err(Refused::Full);
            }
            Ok(lane + 1)
        })
    }

    /// Releases a lease, unless the owner has cleared the lane, as it does if a live peer has lost
    /// its lock.
    #[inline]
    pub(crate) fn release(&self, slot: usize) {
        // Release in `change`: partner of the Acquire in U1 and U4.
        let _ = self.change(slot, |lane| {
            if lane % GRANT == 0 {
                return Err(Refused::Stale);
            }
            Ok(lane - 1)
        });
    }

    /// Returns the place of the message with this generation, which is valid while a lease is held.
    #[inline]
    fn place_in(&self, generation: u64) -> Option<Place> {
        // A3. Acquire: partner of the Release in `publish`.
        if self.generation.load(Ordering::Acquire) != generation || !is_published(generation) {
            return None;
        }
        Some(self.place())
    }

    /// Relaxed: the owner changes a place only while the generation is odd and no lease is held.
    #[inline]
    fn place(&self) -> Place {
        Place {
            segment: self.segment.load(Ordering::Relaxed),
            index: self.index.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
        }
    }

    /// Two threads that share the chunk may publish the same generation concurrently.
    pub(crate) fn publish(&self, generation: u64, place: Place) {
        set(&self.segment, place.segment);
        set(&self.index, place.index);
        set(&self.offset, place.offset);
        set(&self.len, place.len);
        self.generation.store(generation, Ordering::Release);
    }

    /// Closes the record. Relaxed: publishes nothing.
    pub(crate) fn close_at(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// Returns `true` if the owner may write the chunk. `generation` is the owner's private copy;
    /// afterwards it is odd if and only if the record is closed.
    #[inline]
    pub(crate) fn recycle(&self, generation: &mut u64) -> bool {
        if *generation % 2 == 0 {
            if self.is_leased() {
                return false; // U1
            }
            *generation += 1;
            self.generation.store(*generation, Ordering::Relaxed); // U2
            fence(Ordering::SeqCst); // U3, partner of A2
        }
        !self.is_leased() // U4
    }

    #[inline]
    pub(crate) fn is_leased(&self) -> bool {
        // Acquire: partner of the Release in `release`.
        let mut all = 0;
        for word in &self.lanes {
            all |= word.load(Ordering::Acquire);
        }
        all != 0
    }

    /// Returns the peers, one bit per slot, that have a lease or a pending grant.
    pub(crate) fn holders(&self) -> u64 {
        let mut slots = 0;
        for (at, word) in self.lanes.iter().enumerate() {
            let lanes = word.load(Ordering::Relaxed);
            // Nearly all words are zero, and an owner short of memory checks every record.
            if lanes == 0 {
                continue;
            }
            for (lane, count) in lanes.to_le_bytes().into_iter().enumerate() {
                if count != 0 {
                    slots |= 1 << (at * LANES + lane);
                }
            }
        }
        slots
    }

    /// Returns `true` if a grant is pending.
    pub(crate) fn is_granted(&self) -> bool {
        const GRANTS: u64 = u64::from_ne_bytes([0xff - MAX_LEASES as u8; LANES]);
        let mut lanes = self.lanes.iter();
        lanes.any(|word| word.load(Ordering::Relaxed) & GRANTS != 0)
    }

    /// Returns the numbers of open views and of pending grants.
    pub(crate) fn leases(&self, slot: usize) -> (u64, u64) {
        let (word, shift) = lane(slot);
        let lane = self.lanes[word].load(Ordering::Relaxed) >> shift & 0xff;
        (lane % GRANT, lane / GRANT)
    }

    /// Returns the generation and the place, which need not belong together.
    pub(crate) fn snapshot(&self) -> (u64, Place) {
        let place = self.place();
        let generation = self.generation.load(Ordering::Relaxed);
        (generation, place)
    }

    /// The caller holds the chunk, published.
    pub(crate) fn grant(&self, slot: usize) -> Result<(), Refused> {
        self.change(slot, |lane| {
            if lane / GRANT == MAX_GRANTS {
                return Err(Refused::Full);
            }
            Ok(lane + GRANT)
        })
    }

    pub(crate) fn revoke(&self, slot: usize) -> bool {
        let revoked = self.change(slot, |lane| {
            if lane < GRANT {
                return Err(Refused::NotGranted);
            }
            Ok(lane - GRANT)
        });
        revoked.is_ok()
    }

    /// Zeroes a dead peer's lane. Returns `true` if the peer still held something.
    pub(crate) fn clear(&self, slot: usize) -> bool {
        let (word, shift) = lane(slot);
        let word = &self.lanes[word];
        if word.load(Ordering::Relaxed) >> shift & 0xff == 0 {
            return false;
        }
        // Relaxed: a read-modify-write continues the release sequences of the other lanes. The dead
        // peer itself reads no more.
        let old = word.fetch_and(!(0xff << shift), Ordering::Relaxed);
        old >> shift & 0xff != 0
    }

    /// Replaces a peer's lane by the result of `next`. Never changes the other seven lanes.
    #[inline]
    fn change(
        &self,
        slot: usize,
        next: impl Fn(u64) -> Result<u64, Refused>,
    ) -> Result<(), Refused> {
        let (word, shift) = lane(slot);
        let word = &self.lanes[word];
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let lane = next(old >> shift & 0xff)?;
            let new = old & !(0xff << shift) | (lane & 0xff) << shift;
            // Release for `grant` and `release`; Acquire for `accept`, which must see the
            // generation that the grant is for.
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => old = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PLACE: Place = Place {
        segment: 1,
        index: 2,
        offset: 3,
        len: 4,
    };

    fn published() -> (Record, u64) {
        let record = Record::new();
        record.close_at(41);
        record.publish(42, PLACE);
        (record, 42)
    }

    #[test]
    fn lanes_saturate() {
        let (record, generation) = published();
        for _ in 0..MAX_LEASES {
            assert_eq!(record.attach(3, generation), Ok(PLACE));
        }
        assert_eq!(record.attach(3, generation), Err(Refused::Full));
        assert_eq!(record.renew(3), Err(Refused::Full));
        assert_eq!(record.attach(4, generation), Ok(PLACE));
        assert!(
            record.clear(3),
            "clearing a lane tells that it held something"
        );
        assert!(!record.clear(3));
        assert!(record.is_leased(), "the neighbour's lease survives");
        record.release(4);
        assert!(!record.is_leased());
    }

    #[test]
    fn grant_is_accepted_once() {
        let (record, generation) = published();
        for _ in 0..MAX_GRANTS {
            assert_eq!(record.grant(63), Ok(()));
        }
        assert_eq!(record.grant(63), Err(Refused::Full));
        for _ in 0..MAX_GRANTS {
            assert_eq!(record.accept(63, generation), Ok(PLACE));
        }
        assert_eq!(record.accept(63, generation), Err(Refused::NotGranted));
        assert_eq!(record.accept(0, generation), Err(Refused::NotGranted));
        assert_eq!(record.accept(63, generation + 2), Err(Refused::Stale));
        for _ in 0..MAX_GRANTS {
            record.release(63);
        }
        assert!(!record.is_leased());
        record.grant(0).unwrap();
        assert!(record.revoke(0));
        assert!(!record.revoke(0));
        assert!(!record.is_leased());
    }

    #[test]
    fn recycle_spares_leased() {
        let (record, mut generation) = published();
        record.attach(9, 42).unwrap();
        assert!(!record.recycle(&mut generation));
        assert_eq!(
            generation, 42,
            "a leased chunk stays open to its other readers"
        );
        record.release(9);
        assert!(record.recycle(&mut generation));
        assert_eq!(generation, 43);
        assert_eq!(record.attach(9, 42), Err(Refused::Stale));
        assert!(!record.is_leased(), "a refused attach takes its lease back");
    }
}
