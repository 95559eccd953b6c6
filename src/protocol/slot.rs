//! A peer's slot: its epoch, and how grants and a process that vacates the slot detect each other.
//!
//! # A slot's epoch
//!
//! | epoch modulo 4 | the slot |
//! |---|---|
//! | 0 | belongs to the peer that connected with this epoch |
//! | 1 | is being vacated, or was when the process doing so was killed |
//! | 2 | belongs to the peer that connected with 2 less, and that the owner refuses |
//! | 3 | is vacant, and its lanes are clear |
//!
//! The holder of the slot's lock vacates it: a peer that connects or disconnects, or the owner when
//! it finds the lock free (one thread at a time).
//!
//! | vacating process | grant | refusing owner | peer that puts a grant back |
//! |---|---|---|---|
//! | advances the epoch | adds to the lane | changes the epoch | adds to the lane |
//! | full fence | full fence | full fence | full fence |
//! | clears the slot's lanes | checks the epoch; if it differs, revokes itself | revokes the peer's grants | checks the epoch; if refused, revokes the grant |
//!
//! So a grant to a disconnected or refused peer is cleared, or revokes itself, or both: then it
//! must not revoke a grant of the slot's next peer instead (see [`GrantGate`]). A refused peer can
//! still release its leases, but no longer attach.
//!
//! # What a peer holds
//!
//! If the provider limits the bytes of a peer, [`Held`] counts those that it reads or was granted.
//! Each lease and each grant is charged before it enters the lane, and refunded after it has left;
//! taking a grant up, or putting it back, changes nothing. The word has 16 bits of the epoch beside
//! the bytes, so a late grant to a disconnected peer does not touch the count of the next one,
//! which starts at zero.
//!
//! | killed | the count is |
//! |---|---|
//! | the peer, between a charge or refund and its lane | too high, never too low, until the next peer starts from zero |
//! | the owner | of no use: nothing is granted any more |
//!
//! A refused peer gets nothing more, so its revoked grants are not refunded.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | connecting peer: epoch, Release | grant: epoch, Acquire | that the lanes are clear |
//! | end of a grant: gate, Release | first grant of another epoch: gate, Acquire | its revocation, if any |
//! | grant that opens the gate: Release | grant that finds it open: Acquire | that the lanes are clear |

// The models write data that the protocol guards, so that loom sees a missing ordering.
#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../models/slot.rs"]
mod models;

use crate::protocol::record::Record;
use crate::sync::{fence, yield_now, AtomicU64, Ordering};

/// Of an epoch modulo 4. 0 is an occupied slot.
const VACATING: u64 = 1;
const REFUSED: u64 = 2;
pub(crate) const VACANT: u64 = 3;

pub(crate) const UNDER_WAY: u32 = 16;

pub(crate) const MAX_UNDER_WAY: u64 = (1 << UNDER_WAY) - 1;

/// The epoch of a slot in the control object, which any peer can write.
#[repr(transparent)]
pub(crate) struct Epoch(pub(crate) AtomicU64);

impl Epoch {
    pub(crate) fn is_vacant(&self) -> bool {
        self.0.load(Ordering::Relaxed) % 4 == VACANT
    }

    pub(crate) fn start(&self) {
        self.0.store(VACANT, Ordering::Relaxed);
    }

    /// The caller holds the slot's lock.
    pub(crate) fn vacate<T>(&self, clear: impl FnOnce() -> T) -> T {
        let base = self.0.load(Ordering::Relaxed) / 4 * 4;
        self.0.store(base + VACATING, Ordering::Relaxed);
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::grant`
        let cleared = clear();
        // Relaxed: the kernel orders this before the next holder of the lock. A process without the
        // lock takes no decision that depends on other memory.
        self.0.store(base + VACANT, Ordering::Relaxed);
        cleared
    }

    /// Occupies the slot, which the caller has just vacated. Returns the new epoch.
    pub(crate) fn occupy(&self, held: &Held) -> u64 {
        let epoch = self.0.load(Ordering::Relaxed).wrapping_add(1) / 4 * 4;
        held.start(epoch);
        self.0.store(epoch, Ordering::Release); // partner: `is`
        epoch
    }

    /// Returns `true` if the slot's peer connected with `epoch`, and is not refused.
    pub(crate) fn is(&self, epoch: u64) -> bool {
        // Acquire: partner of `occupy`, so that a grant follows the clearing of the lanes.
        self.0.load(Ordering::Acquire) == epoch
    }

    /// Returns `true` if the slot's peer connected with `epoch`, even if it is refused.
    #[inline]
    pub(crate) fn is_of(&self, epoch: u64) -> bool {
        // Acquire: as in `is`.
        self.0.load(Ordering::Acquire) & !REFUSED == epoch
    }

    /// Returns the epoch with which the slot's peer connected; `None` if the slot has no peer.
    pub(crate) fn peer(&self) -> Option<u64> {
        let epoch = self.0.load(Ordering::Relaxed);
        if epoch % 2 != 0 {
            return None;
        }
        Some(epoch & !REFUSED)
    }

    /// Revokes a grant that the slot's peer has put back, if the owner has refused the peer.
    pub(crate) fn take_back_if_refused(&self, epoch: u64, record: &Record, slot: usize) {
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::refuse`
        if self.0.load(Ordering::Relaxed) == epoch + REFUSED {
            record.revoke(slot);
        }
    }

    fn refuse(&self, epoch: u64) -> bool {
        // Relaxed: a grant that does not see the new epoch precedes it.
        self.0
            .compare_exchange(epoch, epoch + REFUSED, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// Bits of [`Held`] that count bytes.
const BYTES: u32 = 48;

/// The most bytes that can be counted.
pub(crate) const MAX_HELD: u64 = (1 << BYTES) - 1;

/// The count in the control object, with 16 bits of the peer's epoch above the bytes.
#[repr(transparent)]
pub(crate) struct Held(pub(crate) AtomicU64);

impl Held {
    /// Returns the word of a peer that holds nothing.
    fn none(epoch: u64) -> u64 {
        (epoch / 4) << BYTES
    }

    fn start(&self, epoch: u64) {
        // Relaxed: published with the epoch. A read-modify-write, so that each change of an earlier
        // peer's count either precedes it or finds the new epoch.
        let mut word = self.0.load(Ordering::Relaxed);
        while let Err(now) = self.0.compare_exchange(
            word,
            Self::none(epoch),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            word = now;
        }
    }

    /// Replaces the count of the peer that connected with `epoch` by the result of `next`, unless
    /// another peer has the slot. Returns the count if `next` returns `None`.
    fn change(&self, epoch: u64, next: impl Fn(u64) -> Option<u64>) -> Result<(), u64> {
        // Relaxed: only a count.
        let mut word = self.0.load(Ordering::Relaxed);
        while word & !MAX_HELD == Self::none(epoch) {
            let held = word & MAX_HELD;
            let Some(next_held) = next(held) else {
                return Err(held);
            };
            let new = Self::none(epoch) | next_held;
            match self
                .0
                .compare_exchange_weak(word, new, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        Ok(())
    }

    /// Charges `len` bytes to the peer that connected with `epoch`. Returns the count if the sum
    /// would exceed `max`, at most [`MAX_HELD`].
    #[inline]
    pub(crate) fn charge(&self, epoch: u64, len: u64, max: u64) -> Result<(), u64> {
        self.change(epoch, |held| {
            let sum = held.checked_add(len)?;
            if sum > max {
                return None;
            }
            Some(sum)
        })
    }

    #[inline]
    pub(crate) fn refund(&self, epoch: u64, len: u64) {
        let _ = self.change(epoch, |held| Some(held.saturating_sub(len)));
    }
}

/// What a grant costs its peer.
#[derive(Clone, Copy)]
pub(crate) struct Cost<'a> {
    pub(crate) held: &'a Held,
    /// The message's length in bytes.
    pub(crate) len: u64,
    /// The limit, at most [`MAX_HELD`]; `None` if nothing is counted.
    pub(crate) max: Option<u64>,
}

impl Cost<'_> {
    fn charge(&self, epoch: u64) -> Result<(), NotGranted> {
        let Some(max) = self.max else {
            return Ok(());
        };
        let charged = self.held.charge(epoch, self.len, max);
        charged.map_err(|held| NotGranted::OverQuota { held, max })
    }

    fn refund(&self, epoch: u64) {
        if self.max.is_some() {
            self.held.refund(epoch, self.len);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGranted {
    Gone,
    Full,
    OverQuota {
        /// The bytes that it reads or was granted.
        held: u64,
        max: u64,
    },
}

/// The owner's private count of grants under way in a slot, and the epoch that they are for.
///
/// The first grant of a new epoch waits until none of an older one is under way, which may still
/// revoke itself. The gate keeps 48 bits of the epoch, enough for any grant under way. A grant
/// compares the whole epoch before it counts.
pub(crate) struct GrantGate(pub(crate) AtomicU64);

impl GrantGate {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds a grant on `record` for the peer that connected to `slot` with the epoch `wanted`. The
    /// caller holds the chunk, published.
    pub(crate) fn grant(
        &self,
        current: &Epoch,
        wanted: u64,
        record: &Record,
        slot: usize,
        cost: Cost<'_>,
    ) -> Result<(), NotGranted> {
        // Only a peer's epoch is a multiple of 4.
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return Err(NotGranted::Gone);
        }
        let mut granted = cost.charge(wanted);
        if granted.is_ok() && record.grant(slot).is_err() {
            cost.refund(wanted);
            granted = Err(NotGranted::Full);
        }
        fence(Ordering::SeqCst); // partner: the fence in `Epoch::vacate`
        let is_there = current.is(wanted);
        if granted.is_ok() && !is_there {
            record.revoke(slot);
            cost.refund(wanted);
        }
        self.leave();
        if is_there {
            granted
        } else {
            Err(NotGranted::Gone)
        }
    }

    /// Revokes a grant that the peer has not taken up. Returns `false` if there is none.
    pub(crate) fn revoke(
        &self,
        current: &Epoch,
        wanted: u64,
        record: &Record,
        slot: usize,
        cost: Cost<'_>,
    ) -> bool {
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return false;
        }
        // The gate has only 48 bits of the epoch.
        let is_revoked = current.is(wanted) && record.revoke(slot);
        if is_revoked {
            cost.refund(wanted);
        }
        self.leave();
        is_revoked
    }

    /// Refuses a peer, then calls `take_back` to revoke its grants. Counts as a grant under way.
    pub(crate) fn refuse(&self, current: &Epoch, wanted: u64, take_back: impl FnOnce()) -> bool {
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return false;
        }
        let is_refused = current.refuse(wanted);
        if is_refused {
            // Partners: the fences in `grant` and `Epoch::take_back_if_refused`.
            fence(Ordering::SeqCst);
            take_back();
        }
        self.leave();
        is_refused
    }

    /// Ends a grant under way.
    fn leave(&self) {
        // Release: revocations are complete before the gate opens for another epoch.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Begins a grant under way. Returns `false` if the slot's peer did not connect with `wanted`.
    fn enter(&self, current: &Epoch, wanted: u64) -> bool {
        let mine = wanted << UNDER_WAY;
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let under_way = seen & MAX_UNDER_WAY;
            let is_open = seen & !MAX_UNDER_WAY == mine;
            if !is_open && !current.is(wanted) {
                return false;
            }
            let next = if is_open && under_way < MAX_UNDER_WAY {
                seen + 1
            } else if !is_open && under_way == 0 {
                mine + 1
            } else {
                // A grant to the slot's last peer, or one of the maximum number, will end.
                yield_now();
                seen = self.0.load(Ordering::Relaxed);
                continue;
            };
            // Acquire: partner of `leave`. AcqRel: the grant that opens the gate has seen the
            // peer's epoch (`is`), and passes that on to grants that find the gate open. Otherwise
            // such a grant could reach a lane before it is cleared.
            match self
                .0
                .compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}
