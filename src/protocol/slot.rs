//! A peer's slot: its epoch, and how a grant and a process that vacates the slot detect each other.
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
//! The holder of the slot's lock vacates it: it advances the epoch, then (full fence) clears the
//! slot's lanes. The holder is a peer that connects, a peer that disconnects, or the owner when it
//! finds the lock free. In the owner, one thread does so at a time, because a process's own lock
//! does not exclude its threads. A grant adds to the lane, then (full fence) checks the epoch. So
//! if the peer is dead or disconnected, either its slot's lanes are cleared after the grant, or the
//! grant revokes itself. Both may happen, and then the grant must not revoke a grant of the slot's
//! next peer instead: see [`GrantGate`].
//!
//! # Refused
//!
//! The owner refuses a peer by one exchange of the epoch. The peer can still release its own
//! leases, but no longer attach. The owner then revokes all grants that the peer has not taken up.
//! Meanwhile it counts as a grant under way, so that it revokes no grant of the slot's next peer.
//! If the owner is killed in between, the effect is that of any killed owner. A peer that puts a
//! grant back then (full fence) checks the epoch. So either the owner finds that grant, or the peer
//! finds itself refused, and revokes the grant itself.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | vacating process: epoch, then fence | grant: lane, then fence | one sees the other (as in `record`) |
//! | connecting peer: epoch, Release | grant: epoch, Acquire | that the lanes are clear |
//! | end of a grant: gate, Release | first grant of another epoch: gate, Acquire | its revocation, if any |
//! | grant that opens the gate: Release | grant that finds it open: Acquire | that the lanes are clear |

// The models write, without a lock, data that the protocol guards, so that loom sees a missing
// ordering.
#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../models/slot.rs"]
mod models;

use crate::protocol::record::{Record, Refused};
use crate::sync::{fence, yield_now, AtomicU64, Ordering};

/// Epochs modulo 4. 0 is an occupied slot.
const VACATING: u64 = 1;
const REFUSED: u64 = 2;
pub(crate) const VACANT: u64 = 3;

/// Bits of a gate that count grants under way.
pub(crate) const UNDER_WAY: u32 = 16;

/// Maximum number of grants under way in one gate. One more would carry into the epoch.
pub(crate) const MAX_UNDER_WAY: u64 = (1 << UNDER_WAY) - 1;

/// The epoch of one peer slot. It lies in the control object, where any peer can write it: only the
/// assignment of grants depends on it.
#[repr(transparent)]
pub(crate) struct Epoch(pub(crate) AtomicU64);

impl Epoch {
    pub(crate) fn is_vacant(&self) -> bool {
        self.0.load(Ordering::Relaxed) % 4 == VACANT
    }

    /// Initialises a slot that was never used.
    pub(crate) fn start(&self) {
        self.0.store(VACANT, Ordering::Relaxed);
    }

    /// Vacates the slot. `clear` clears its lanes. The caller holds the slot's lock.
    pub(crate) fn vacate<T>(&self, clear: impl FnOnce() -> T) -> T {
        let base = self.0.load(Ordering::Relaxed) / 4 * 4;
        self.0.store(base + VACATING, Ordering::Relaxed);
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::grant`
        let cleared = clear();
        // Relaxed: the slot's next holder gets its lock after this one has released it, and the
        // kernel orders the two. A process without the lock takes no decision that depends on other
        // memory.
        self.0.store(base + VACANT, Ordering::Relaxed);
        cleared
    }

    /// Occupies the slot, which the caller has just vacated and whose lock it still holds. Returns
    /// the slot's new epoch.
    pub(crate) fn occupy(&self) -> u64 {
        let epoch = self.0.load(Ordering::Relaxed).wrapping_add(1) / 4 * 4;
        self.0.store(epoch, Ordering::Release); // partner: `is`
        epoch
    }

    /// Returns `true` if the slot belongs to the peer that connected with `epoch`, and the owner
    /// does not refuse it.
    pub(crate) fn is(&self, epoch: u64) -> bool {
        // Acquire: partner of `occupy`, so that a grant follows the clearing of the lanes, however
        // the peer's id arrived.
        self.0.load(Ordering::Acquire) == epoch
    }

    /// Like [`is`](Self::is), but also `true` for a peer that the owner refuses.
    #[inline]
    pub(crate) fn is_of(&self, epoch: u64) -> bool {
        // Acquire: as in `is`.
        self.0.load(Ordering::Acquire) & !REFUSED == epoch
    }

    /// Returns the epoch that the slot's peer connected with, if it has one.
    pub(crate) fn peer(&self) -> Option<u64> {
        let epoch = self.0.load(Ordering::Relaxed);
        (epoch % 2 == 0).then_some(epoch & !REFUSED)
    }

    /// Revokes a grant on `record` if the owner refuses the peer that connected with `epoch`.
    /// Called by that peer after it has put a grant back, because the owner may have revoked its
    /// grants before.
    pub(crate) fn take_back_if_refused(&self, epoch: u64, record: &Record, slot: usize) {
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::refuse`
        if self.0.load(Ordering::Relaxed) == epoch + REFUSED {
            record.revoke(slot);
        }
    }

    /// Refuses the peer that connected with `epoch`. Returns `false` if it has disconnected or is
    /// already refused.
    fn refuse(&self, epoch: u64) -> bool {
        // Relaxed: a grant that does not see the new epoch precedes it.
        self.0.compare_exchange(epoch, epoch + REFUSED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGranted {
    /// The peer no longer holds its slot.
    Gone,
    /// It already has the maximum number of grants.
    Full,
}

/// The owner's private count of grants under way in a slot, and the epoch that they are admitted
/// for.
///
/// A grant that finds its peer disconnected may have to revoke itself, and must not revoke another
/// peer's. So the first grant of a new epoch waits until none of an older epoch is under way. The
/// gate keeps 48 bits of the epoch: enough to distinguish it from any epoch in which a grant under
/// way can have begun. A grant compares the whole epoch before it counts.
pub(crate) struct GrantGate(pub(crate) AtomicU64);

impl GrantGate {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds a grant on `record` for the peer that connected to `slot` with the epoch `wanted`.
    /// `current` is the slot's epoch. The caller holds the chunk, published.
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

    /// Revokes a grant that the peer has not taken up. Returns `false` if there is none. Grants
    /// under other epochs are blocked meanwhile, so it revokes this peer's grant or none.
    pub(crate) fn revoke(&self, current: &Epoch, wanted: u64, record: &Record, slot: usize) -> bool {
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return false;
        }
        // The gate has only 48 bits of the epoch.
        let is_revoked = current.is(wanted) && record.revoke(slot);
        self.leave();
        is_revoked
    }

    /// Refuses the peer that connected with the epoch `wanted`, then calls `take_back` to revoke
    /// the grants that the peer has not taken up. Returns `false` if the peer has disconnected or
    /// is already refused.
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

    /// Counts a grant as under way, if the gate is open for `wanted` or can be opened for it.
    fn enter(&self, current: &Epoch, wanted: u64) -> bool {
        let mine = wanted << UNDER_WAY;
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let is_open = seen & !MAX_UNDER_WAY == mine;
            let next = match seen & MAX_UNDER_WAY {
                under_way if is_open && under_way < MAX_UNDER_WAY => seen + 1,
                _ if !is_open && !current.is(wanted) => return false,
                0 => mine + 1,
                // Wait: a grant to the slot's last peer, or one of the maximum number, will end.
                _ => {
                    yield_now();
                    seen = self.0.load(Ordering::Relaxed);
                    continue;
                }
            };
            // Acquire: partner of the Release in `leave`. AcqRel: the grant that opens the gate has
            // seen the peer's epoch (Acquire, in `is`), and passes that on to grants that find the
            // gate open and do not check. Without it, such a grant could reach a lane before the
            // lane is cleared.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}
