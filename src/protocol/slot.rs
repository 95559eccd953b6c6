//! A peer's slot: its epoch, and how a grant and a process that vacates the slot find out about
//! each other.
//!
//! # A slot's epoch
//!
//! | epoch modulo 4 | the slot |
//! |---|---|
//! | 0 | belongs to the peer that connected with this epoch |
//! | 1 | is being vacated, or was when the process doing so was killed |
//! | 2 | belongs to the peer that connected with 2 less, and whom the owner refuses |
//! | 3 | belongs to nobody, and its lanes are clear |
//!
//! The holder of the slot's lock vacates it: it moves the epoch on, then (full fence) clears the
//! slot's lanes. The holder is a peer that connects, a peer that leaves, or the owner when it finds
//! the lock free. In the owner one thread does so at a time, because a process's own lock does not
//! exclude its threads. A grant adds to the lane, then (full fence) looks at the epoch. So if the
//! peer is gone, either its slot's lanes are cleared after the grant, or the grant takes itself
//! back. Both may happen, and then it must not take back a grant of the slot's next peer instead:
//! see [`GrantGate`].
//!
//! # Refused
//!
//! The owner refuses a peer by one exchange of the epoch, in which the peer still finds its own
//! leases, to give them back, but none of its own to attach by. Then it takes back all grants that
//! the peer has not taken up. Meanwhile it counts as a grant under way, so that it does not take
//! back one of the slot's next peer. Killed in between, it leaves what a killed owner leaves. A peer
//! that puts a grant back then (full fence) looks at the epoch. So either the owner finds that grant,
//! or the peer finds out that it is refused, and takes it back itself.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | vacating process: epoch, then fence | grant: lane, then fence | one sees the other (as in `record`) |
//! | connecting peer: epoch, Release | grant: epoch, Acquire | that the lanes are clear |
//! | end of a grant: gate, Release | first grant of another epoch: gate, Acquire | what was taken back is back |
//! | grant that opens the gate: Release | grant that finds it open: Acquire | that the lanes are clear |

// The models write without a lock what the protocol guards, so that loom sees a missing ordering.
#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../models/slot.rs"]
mod models;

use crate::protocol::record::{Record, Refused};
use crate::sync::{fence, yield_now, AtomicU64, Ordering};

/// An epoch modulo 4. 0 is a slot that is taken.
const VACATING: u64 = 1;
const REFUSED: u64 = 2;
pub(crate) const VACANT: u64 = 3;

/// Bits of a gate that count grants under way.
pub(crate) const UNDER_WAY: u32 = 16;

/// Most grants under way in one gate. One more would carry into the epoch.
pub(crate) const MAX_UNDER_WAY: u64 = (1 << UNDER_WAY) - 1;

/// The epoch of one peer slot. It lies in the control object, where any peer can write it: nothing
/// depends on it but who is granted what.
#[repr(transparent)]
pub(crate) struct Epoch(pub(crate) AtomicU64);

impl Epoch {
    pub(crate) fn is_vacant(&self) -> bool {
        self.0.load(Ordering::Relaxed) % 4 == VACANT
    }

    /// Starts a slot that nobody ever had.
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
        // kernel orders the two. A process that only looks decides nothing by what else it sees.
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

    /// Is the slot still that of the peer that connected with `epoch`?
    pub(crate) fn is(&self, epoch: u64) -> bool {
        // Acquire: partner of `occupy`, so that a grant comes after the lanes were cleared, however
        // the peer's id arrived.
        self.0.load(Ordering::Acquire) == epoch
    }

    /// The same, whether or not the owner refuses that peer.
    #[inline]
    pub(crate) fn is_of(&self, epoch: u64) -> bool {
        // Acquire: as in `is`.
        self.0.load(Ordering::Acquire) & !REFUSED == epoch
    }

    /// The epoch that the slot's peer connected with, if it has one.
    pub(crate) fn peer(&self) -> Option<u64> {
        let epoch = self.0.load(Ordering::Relaxed);
        (epoch % 2 == 0).then_some(epoch & !REFUSED)
    }

    /// Takes back a grant on `record` if the owner refuses the peer that connected with `epoch`. For
    /// that peer, after it has put a grant back: the owner may have looked for them before.
    pub(crate) fn take_back_if_refused(&self, epoch: u64, record: &Record, slot: usize) {
        fence(Ordering::SeqCst); // partner: the fence in `GrantGate::refuse`
        if self.0.load(Ordering::Relaxed) == epoch + REFUSED {
            record.revoke(slot);
        }
    }

    /// Refuses the peer that connected with `epoch`. `false` if it is gone, or refused.
    fn refuse(&self, epoch: u64) -> bool {
        // Relaxed: a grant that does not see it comes before it.
        self.0.compare_exchange(epoch, epoch + REFUSED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Why a grant was not made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGranted {
    /// The peer is no longer in its slot.
    Gone,
    /// It already has the most grants there can be.
    Full,
}

/// The owner's own count of grants under way in a slot, and the epoch that they are admitted for.
///
/// A grant that finds its peer gone may have to take itself back, and must not take back another
/// peer's. So the first grant of a new epoch waits until none of an older epoch is under way. The
/// gate keeps 48 bits of the epoch: enough to tell it from any that a grant under way can have
/// begun in. A grant compares the whole epoch before it counts.
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

    /// Takes back a grant that the peer has not taken up. Returns `false` if there is none.
    /// Meanwhile nobody is granted anything under another epoch, so it takes back this peer's grant
    /// or nothing.
    pub(crate) fn revoke(&self, current: &Epoch, wanted: u64, record: &Record, slot: usize) -> bool {
        if wanted % 4 != 0 || !self.enter(current, wanted) {
            return false;
        }
        // The gate has only 48 bits of the epoch.
        let is_revoked = current.is(wanted) && record.revoke(slot);
        self.leave();
        is_revoked
    }

    /// Refuses the peer that connected with the epoch `wanted`, then has `take_back` take back what
    /// the peer was granted and has not taken up. Returns `false` if the peer is gone, or refused.
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

    /// Ends what `enter` began.
    fn leave(&self) {
        // Release: what was taken back is back before the gate opens for another epoch.
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
                // Wait: a grant to the slot's last peer, or one of the most there can be, will end.
                _ => {
                    yield_now();
                    seen = self.0.load(Ordering::Relaxed);
                    continue;
                }
            };
            // Acquire: partner of the Release in `leave`. Both: the grant that opens the gate has
            // seen the peer's epoch (Acquire, in `is`), and passes that on to those that find the
            // gate open and do not look. Else their grant could join a lane before it is cleared.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}
