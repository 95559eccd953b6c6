//! A peer's slot: its epoch, and how a grant and those who vacate the slot find out about each other.
//!
//! # A slot's epoch
//!
//! | epoch modulo 4 | the slot |
//! |---|---|
//! | 0 | is that of the peer that connected with this epoch |
//! | 1 | is being vacated, or was when its process was killed |
//! | 3 | is nobody's, and its lanes are clear |
//!
//! Whoever holds the slot's lock vacates it: moves the epoch on, then (full fence) clears the slot's lanes. That is a peer that
//! connects, a peer that leaves, or the owner when it finds the lock free; in the owner one thread at a time, for a process does
//! not exclude itself by its own lock. A grant adds to the lane, then (full fence) looks at the epoch; so a grant to a peer that is
//! gone is cleared by the one side or taken back by the other. It may be both, and then what is taken back must not be the grant of
//! the slot's next peer: see [`GrantGate`].
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | who vacates: epoch, then fence | a grant: lane, then fence | one sees the other (as in `lease`) |
//! | who connects: epoch, Release | a grant: epoch, Acquire | that the lanes are clear |
//! | a grant ends: gate, Release | the first grant of another epoch: gate, Acquire | what was taken back is back |

// The models write what the protocol guards without a lock, so that loom sees a missing ordering.
#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../models/slot.rs"]
mod models;

use crate::protocol::record::{Record, Refused};
use crate::sync::{fence, yield_now, AtomicU64, Ordering};

/// An epoch modulo 4; 0 is a slot that is taken.
const VACATING: u64 = 1;
pub(crate) const VACANT: u64 = 3;

/// Bits of a gate that count the grants under way.
pub(crate) const UNDER_WAY: u32 = 16;

/// Most grants under way in one gate: more would be counted as an epoch.
pub(crate) const MAX_UNDER_WAY: u64 = (1 << UNDER_WAY) - 1;

/// See the module's text. In the control object, where any peer can write it: nothing depends on it but who is granted what.
#[repr(transparent)]
pub(crate) struct Epoch(pub(crate) AtomicU64);

impl Epoch {
    pub(crate) fn is_vacant(&self) -> bool {
        self.0.load(Ordering::Relaxed) % 4 == VACANT
    }

    /// A slot that nobody ever had.
    pub(crate) fn start(&self) {
        self.0.store(VACANT, Ordering::Relaxed);
    }

    /// Makes the slot nobody's. `clear` clears its lanes. The caller holds the slot's lock.
    pub(crate) fn vacate<T>(&self, clear: impl FnOnce() -> T) -> T {
        let base = self.0.load(Ordering::Relaxed) / 4 * 4;
        self.0.store(base + VACATING, Ordering::Relaxed);
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::grant`
        let cleared = clear();
        // Relaxed: who has the slot next gets its lock after this one has given it back, and the kernel orders the two; and who only
        // looks decides nothing by what else it sees.
        self.0.store(base + VACANT, Ordering::Relaxed);
        cleared
    }

    /// Makes the slot, which the caller has just vacated and still has the lock of, the caller's. Returns its epoch.
    pub(crate) fn occupy(&self) -> u64 {
        let epoch = self.0.load(Ordering::Relaxed).wrapping_add(1) / 4 * 4;
        self.0.store(epoch, Ordering::Release); // partner: `is`
        epoch
    }

    /// Is the slot still that of the peer that connected with `epoch`?
    pub(crate) fn is(&self, epoch: u64) -> bool {
        // Acquire: partner of `occupy`, so that a grant comes after the lanes were cleared, however the peer's id came.
        self.0.load(Ordering::Acquire) == epoch
    }
}

/// Why a grant was not made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGranted {
    /// The peer is not in its slot any more.
    Gone,
    /// It has the most grants already.
    Full,
}

/// The owner's own count of grants under way in a slot, and the epoch that they are admitted for. A grant that finds its peer
/// gone may have to take itself back, and must not take another peer's: so the first grant of a new epoch waits until
/// none of an older one is under way. Of an epoch, 48 bits are kept: enough to tell it from all that a grant can have
/// begun under, and the whole of it is compared before the grant counts.
pub(crate) struct GrantGate(pub(crate) AtomicU64);

impl GrantGate {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds a grant on `record` for the peer that connected to `slot`, whose epoch is `current`, with the epoch `wanted`. The caller
    /// holds the chunk, published.
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

    /// Takes back a grant that the peer has not taken up; `false` if there is none. While this is under way, nobody is granted anything
    /// under another epoch: what is taken back is this peer's, or nothing.
    pub(crate) fn revoke(&self, current: &Epoch, wanted: u64, record: &Record, slot: usize) -> bool {
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return false;
        }
        let is_revoked = record.revoke(slot);
        self.leave();
        is_revoked
    }

    /// Ends what was under way.
    fn leave(&self) {
        // Release: what was taken back is back before the gate opens for another epoch.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Counts a grant as under way if the gate is, or can be made, that of `wanted`.
    fn enter(&self, current: &Epoch, wanted: u64) -> bool {
        let mine = wanted << UNDER_WAY;
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let is_open = seen & !MAX_UNDER_WAY == mine;
            let next = match seen & MAX_UNDER_WAY {
                under_way if is_open && under_way < MAX_UNDER_WAY => seen + 1,
                _ if !is_open && !current.is(wanted) => return false,
                0 => mine + 1,
                // A grant to the slot's last peer is about to end, or one of very many.
                _ => {
                    yield_now();
                    seen = self.0.load(Ordering::Relaxed);
                    continue;
                }
            };
            // Acquire: partner of the Release that ends a grant. Release, and Acquire of whoever enters later: that one finds the slot's
            // epoch no older than this one has found it.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}
