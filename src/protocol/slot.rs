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
//! it finds the lock free (one thread at a time: a process's lock does not exclude its own
//! threads).
//!
//! | vacating process | grant | refusing owner | peer that puts a grant back |
//! |---|---|---|---|
//! | advances the epoch | adds to the lane | changes the epoch | adds to the lane |
//! | full fence | full fence | full fence | full fence |
//! | clears the slot's lanes | checks the epoch; if it differs, revokes itself | revokes the peer's grants | checks the epoch; if refused, revokes the grant |
//!
//! So a grant to a disconnected or refused peer is cleared, or revokes itself. Both may happen, and
//! then it must not revoke a grant of the slot's next peer instead: see [`GrantGate`]. A refused
//! peer can still release its leases, but no longer attach.
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

use crate::protocol::record::{Record, Refused};
use crate::sync::{fence, yield_now, AtomicU64, Ordering};

/// Of an epoch modulo 4. 0 is an occupied slot.
const VACATING: u64 = 1;
const REFUSED: u64 = 2;
pub(crate) const VACANT: u64 = 3;

pub(crate) const UNDER_WAY: u32 = 16;

pub(crate) const MAX_UNDER_WAY: u64 = (1 << UNDER_WAY) - 1;

/// Any peer can write it: only the assignment of grants depends on it.
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

    pub(crate) fn occupy(&self) -> u64 {
        let epoch = self.0.load(Ordering::Relaxed).wrapping_add(1) / 4 * 4;
        self.0.store(epoch, Ordering::Release); // partner: `is`
        epoch
    }

    /// Returns `true` if the slot's peer connected with `epoch`, and is not refused.
    pub(crate) fn is(&self, epoch: u64) -> bool {
        // Acquire: partner of `occupy`, so that a grant follows the clearing of the lanes.
        self.0.load(Ordering::Acquire) == epoch
    }

    /// Also for a refused peer.
    #[inline]
    pub(crate) fn is_of(&self, epoch: u64) -> bool {
        // Acquire: as in `is`.
        self.0.load(Ordering::Acquire) & !REFUSED == epoch
    }

    pub(crate) fn peer(&self) -> Option<u64> {
        let epoch = self.0.load(Ordering::Relaxed);
        (epoch % 2 == 0).then_some(epoch & !REFUSED)
    }

    pub(crate) fn take_back_if_refused(&self, epoch: u64, record: &Record, slot: usize) {
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::refuse`
        if self.0.load(Ordering::Relaxed) == epoch + REFUSED {
            record.revoke(slot);
        }
    }

    fn refuse(&self, epoch: u64) -> bool {
        // Relaxed: a grant that does not see the new epoch precedes it.
        self.0.compare_exchange(epoch, epoch + REFUSED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGranted {
    Gone,
    Full,
}

/// The owner's private count of grants under way in a slot, and the epoch that they are for.
///
/// The first grant of a new epoch waits until none of an older one is under way, which may still
/// revoke itself. The gate keeps 48 bits of the epoch: enough to distinguish it from any epoch in
/// which a grant under way can have begun. A grant compares the whole epoch before it counts.
pub(crate) struct GrantGate(pub(crate) AtomicU64);

impl GrantGate {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The caller holds the chunk, published.
    pub(crate) fn grant(&self, current: &Epoch, wanted: u64, record: &Record, slot: usize) -> Result<(), NotGranted> {
        // Only a peer's epoch is a multiple of 4.
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return Err(NotGranted::Gone);
        }
        let granted = record.grant(slot);
        fence(Ordering::SeqCst); // partner: the fence in `Epoch::vacate`
        let is_there = current.is(wanted);
        if granted.is_ok() && !is_there {
            record.revoke(slot);
        }
        self.leave();
        match granted {
            _ if !is_there => Err(NotGranted::Gone),
            Err(Refused::Full) => Err(NotGranted::Full),
            _ => Ok(()),
        }
    }

    pub(crate) fn revoke(&self, current: &Epoch, wanted: u64, record: &Record, slot: usize) -> bool {
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return false;
        }
        // The gate has only 48 bits of the epoch.
        let is_revoked = current.is(wanted) && record.revoke(slot);
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
            fence(Ordering::SeqCst); // partners: the fences in `grant` and `Epoch::take_back_if_refused`
            take_back();
        }
        self.leave();
        is_refused
    }

    fn leave(&self) {
        // Release: revocations are complete before the gate opens for another epoch.
        self.0.fetch_sub(1, Ordering::Release);
    }

    fn enter(&self, current: &Epoch, wanted: u64) -> bool {
        let mine = wanted << UNDER_WAY;
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let is_open = seen & !MAX_UNDER_WAY == mine;
            let next = match seen & MAX_UNDER_WAY {
                under_way if is_open && under_way < MAX_UNDER_WAY => seen + 1,
                _ if !is_open && !current.is(wanted) => return false,
                0 => mine + 1,
                // A grant to the slot's last peer, or one of the maximum number, will end.
                _ => {
                    yield_now();
                    seen = self.0.load(Ordering::Relaxed);
                    continue;
                }
            };
            // Acquire: partner of `leave`. AcqRel: the grant that opens the gate has seen the
            // peer's epoch (`is`), and passes that on to grants that find the gate open. Otherwise
            // such a grant could reach a lane before the lane is cleared.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}
