//! The object through which the receivers of a publisher and the publisher discover each other.
//!
//! A publisher's object has a *seat* for each possible receiver. A receiver takes a seat by locking
//! its byte, creates a [branch](super::layout) of its own, and writes the branch's id at its seat.
//! The publisher connects the receiver by opening the branch, before it next sends or when it is
//! asked for its receivers. A new receiver has a new branch, so nothing of a previous one needs
//! cleaning up; and only its receiver and the publisher map a branch, so no receiver can write to
//! another's.
//!
//! ```text
//!   offset 0      what it is (see `layout`)
//!   offset 64     the number of receivers that have joined: the publisher sleeps on it
//!   offset 128    64 seats of 16 bytes: why the publisher cannot connect the receiver, and the
//!                 branch's id
//!
//!   locked bytes (exclusive OFD locks):
//!     0 the publisher, as long as it exists
//!     2 + n the receiver on seat n, as long as its end exists or anything that it received is read
//! ```
//!
//! # States of a seat
//!
//! | state | its byte | the publisher has | leaves it by |
//! |---|---|---|---|
//! | free | unlocked | nothing, or what a dead receiver has left | R1 |
//! | announced | locked | nothing | the publisher, which connects or refuses the receiver; the receiver, which leaves or dies |
//! | connected | locked | the branch: a descriptor, two mappings | the receiver, which closes or dies |
//! | read | locked | the loans, with descriptor and mappings | the drop of the last message that the receiver received; its death |
//!
//! A closed receiver keeps its seat while any of its messages is read, because the publisher keeps
//! the descriptor and the mappings to learn of returned loans. So the seats bound what all
//! receivers together, closed ones included, cost the publisher.
//!
//! # A receiver joins
//!
//! An unconnected receiver sleeps on the bell of its own branch, as a connected one does. No thread
//! holds that bell before P4, so until then the kernel does not ring it for a dead publisher: the
//! receiver checks the publisher's lock before it sleeps, then once a second (see `bell`).
//!
//! | step | receiver | what is left if it dies here |
//! |---|---|---|
//! | R1 | lock the byte of a free seat; remove the branch last announced there, if its receiver was killed | nothing |
//! | R2 | create the branch: its locks, its bell, an empty ring | a branch without locks: for a sweep |
//! | R3 | write the branch's id at the seat: Release | the same; the publisher opens it once, and finds it dead |
//! | R4 | increment the count: SeqCst; full fence; wake | the same |
//! | R5 | if the channel is closed or the publisher's lock is free, undo it all | the same |
//!
//! | step | publisher | what its receiver learns if the publisher dies here |
//! |---|---|---|
//! | P1 | check whether the count has changed: one load in each call | `Disconnected`, by a check, within a second |
//! | P2 | read the ids of all seats: Acquire, partner of R3 | the same |
//! | P3 | open each branch not seen before | the same |
//! | P3' | or, if the system refuses, write the error number to the seat, note how many messages were sent, and try again later | [`NotConnected`](super::RecvError::NotConnected), within a second; then the same |
//! | P4 | hold the branch's bell: the receiver is connected. Once: a bell that was held is not held again. Its place in the robust list was reserved with the seat | `Disconnected`, at once: the kernel rings |
//! | P5 | send it the history, and ring | the same, after what was sent |
//!
//! P4 and P5 are W1 to W5 of `bell` for the first message. A refused receiver is not rung, because
//! the publisher has no branch to ring in.
//!
//! A message whose `send` begins after `open` has returned finds the count changed, so the receiver
//! gets it: if all seats seem taken when the publisher reaches its seat (P3), the publisher drops
//! the branches of receivers that have left by then, including previous ones of that seat.
//!
//! # The publisher closes
//!
//! | step | publisher | an unconnected receiver, if the publisher dies here |
//! |---|---|---|
//! | C1 | store that it is closed; full fence | `Disconnected`, by a check, within a second |
//! | C2 | close each connected branch: its bell says that the publisher has left | the same |
//! | C3 | open each announced branch not seen before, and close it too | the same; at once if its branch was closed |
//! | C4 | release the lock | |
//!
//! One of the fences of R4 and C1 comes first, so either R5 finds the channel closed, or C3 finds
//! the receiver's id. If C3 cannot open a branch, its receiver finds the lock free.
//!
//! # Garbage
//!
//! Any process of the same user can write here, even by accident.
//!
//! | damaged | effect |
//! |---|---|
//! | the count, an id | a receiver whose id is at another seat too is connected once. Otherwise the publisher looks for branches that do not exist, or overlooks a new receiver. Branches already open are safe: the publisher keeps its own list, and opens none twice, whatever seats name it and whatever its bell says |
//! | the reason for a refusal | a connected receiver does not notice. An unconnected one gets an error, and continues to wait |
//! | the header | new receivers are refused |

use super::error::ChannelError;
use super::layout::{Facts, Found, Line, What};
use super::object::{make, not_listed};
use crate::os::fork;
use crate::os::futex::{Deadline, Futex};
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Name};
use crate::os::posix::PAGE;
use crate::os::robust_list::Places;
use crate::protocol::control::OWNER_BYTE;
use crate::sync::{fence, fence_after_rmw, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// The maximum number of receivers of a publisher.
pub(super) const MAX_SEATS: usize = 64;

/// The byte that the receiver on the first seat locks.
const SEATS_BYTE: usize = 2;

/// The object. Atomics only: another process may write at any time.
#[repr(C)]
pub(super) struct MeetingHeader {
    what: Line<What>,
    arrivals: Line<Futex>,
    seats: [SeatWords; MAX_SEATS],
}

#[repr(C)]
struct SeatWords {
    refused: AtomicU32,
    branch: AtomicU64,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<MeetingHeader>() <= PAGE && std::mem::size_of::<SeatWords>() == 16);

impl MeetingHeader {
    /// A header in private memory, for the models.
    #[cfg(all(test, loom))]
    pub(super) fn open() -> Self {
        let seat = |_| SeatWords { refused: AtomicU32::new(0), branch: AtomicU64::new(0) };
        let (what, arrivals) = (Line(What::finished()), Line(Futex::new(0)));
        Self { what, arrivals, seats: std::array::from_fn(seat) }
    }

    /// Returns the number of receivers that have joined so far (P1).
    #[inline]
    pub(super) fn arrivals(&self) -> u32 {
        // SeqCst: partner of R4.
        self.arrivals.0.load(Ordering::SeqCst)
    }

    /// Returns the id of the branch last announced at a seat (P2).
    pub(super) fn branch(&self, at: usize) -> u64 {
        // Acquire: partner of the Release in R3.
        self.seats[at].branch.load(Ordering::Acquire)
    }

    /// Announces a branch (R3, R4). Returns `false` if the publisher has closed the channel (R5).
    pub(super) fn announce(&self, at: usize, branch: u64) -> bool {
        self.seats[at].refused.store(0, Ordering::Relaxed);
        self.seats[at].branch.store(branch, Ordering::Release); // R3
        self.arrivals.0.fetch_add(1, Ordering::SeqCst); // R4, partner of P1
        fence_after_rmw(); // partner: the fence in `close`
        self.arrivals.0.wake();
        !self.what.0.is_closed()
    }

    /// Sleeps until a receiver joins beyond the `known` ones.
    pub(super) fn wait_for_another(&self, known: u32, deadline: Option<Deadline>) {
        self.arrivals.0.sleep_while(known, deadline);
    }

    /// Lets no further receiver join (C1).
    pub(super) fn close(&self) {
        self.what.0.close();
        fence(Ordering::SeqCst); // partner: the fence in `announce`
    }
}

/// The object, mapped.
pub(super) struct Page(Mapping);

/// One side's end of the publisher's object.
pub(super) struct Meeting {
    /// The publisher's: reserved places in the robust list for the bells of the branches.
    _places: Option<Places>,
    page: Arc<Page>,
    fork_epoch: u64,
    seats: usize,
    /// The receiver's: the byte of its seat.
    taken: Option<usize>,
    /// The publisher's name, removed before its lock is released.
    _link: Option<Link>,
    locks: LockFile,
}

/// A seat of a publisher's object.
#[derive(Clone)]
pub(super) struct Seat {
    meeting: Arc<Meeting>,
    at: usize,
}

impl Page {
    #[inline]
    fn header(&self) -> &MeetingHeader {
        // SAFETY: the mapping is page-aligned, at least a page long (`create` made, `layout::open`
        // checked it) and lives as long as `self`; all processes access the header by atomics of
        // the same width.
        unsafe { self.0.base().cast::<MeetingHeader>().as_ref() }
    }

    /// Wakes the publisher if it sleeps until a receiver joins. The caller is in the publisher's
    /// process.
    pub(super) fn rouse(&self) {
        self.header().arrivals.0.fetch_add(1, Ordering::SeqCst);
        self.header().arrivals.0.wake();
    }
}

impl Meeting {
    /// Creates the object for the publisher.
    pub(super) fn create(name: &Name, facts: &Facts) -> Result<Self, ChannelError> {
        let places = Places::take(facts.seats).map_err(|failed| not_listed(failed, name))?;
        let (mapping, link, locks) = make(name, PAGE, 0o600)?;
        let (page, _places, _link) = (Arc::new(Page(mapping)), Some(places), Some(link));
        let this = Self { _places, page, fork_epoch: fork::epoch(), seats: facts.seats, taken: None, _link, locks };
        this.header().what.0.describe(facts);
        this.header().what.0.finish();
        Ok(this)
    }

    /// Returns a receiver's end of an object that was found.
    pub(super) fn of_receiver(found: Found) -> Self {
        let seats = found.facts.seats.min(MAX_SEATS);
        let Found { mapping, locks, .. } = found;
        let page = Arc::new(Page(mapping));
        Self { _places: None, page, fork_epoch: fork::epoch(), seats, taken: None, _link: None, locks }
    }

    #[inline]
    pub(super) fn header(&self) -> &MeetingHeader {
        self.page.header()
    }

    /// Returns the mapping, for callers that need it longer than this end lives.
    pub(super) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// Takes a free seat, for a receiver (R1). Returns `None` if there is none.
    pub(super) fn take_seat(mut self, name: &Name) -> Result<Option<Seat>, ChannelError> {
        for at in 0..self.seats {
            if self.locks.try_lock(SEATS_BYTE + at).map_err(|error| name.error(LOCK, 0, error))? {
                self.taken = Some(SEATS_BYTE + at);
                return Ok(Some(Seat { meeting: Arc::new(self), at }));
            }
        }
        Ok(None)
    }

    /// Returns `true` if the publisher's process is alive and the publisher not dropped. For the
    /// receiver.
    pub(super) fn has_publisher(&self) -> bool {
        // Outstanding loans do not keep this lock, and other receivers cannot write to it.
        self.locks.is_locked(OWNER_BYTE)
    }

    /// Returns the publisher's seats, and the id of the branch last announced at each (P2).
    pub(super) fn announced<'a>(self: &'a Arc<Self>) -> impl Iterator<Item = (Seat, u64)> + 'a {
        (0..self.seats).map(move |at| (Seat { meeting: self.clone(), at }, self.header().branch(at)))
    }

    /// Returns `true` in the process that created or opened the object, and `false` in a forked
    /// child.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // Explicitly, not by closing the file: a child that another thread has just started holds a
        // copy of the descriptor until it calls `exec`.
        let _ = self.taken.map(|byte| self.locks.unlock(byte));
    }
}

impl Seat {
    /// Returns the seat's number.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the branch last announced here.
    pub(super) fn branch(&self) -> Option<u64> {
        Some(self.meeting.header().branch(self.at)).filter(|&id| id != 0)
    }

    /// Announces the receiver's branch (R3, R4). Returns `false` if the publisher has closed the
    /// channel (R5).
    pub(super) fn announce(&self, branch: u64) -> bool {
        self.meeting.header().announce(self.at, branch)
    }

    /// Records the error number for which the receiver on this seat cannot be connected now.
    /// Returns `true` unless the receiver has yet to read the previous one (P3').
    pub(super) fn refuse(&self, errno: i32) -> bool {
        // Relaxed, here and in the two methods below: it says nothing about other memory.
        self.words().refused.swap(errno as u32, Ordering::Relaxed) == 0
    }

    /// Returns why the publisher's last try to connect the receiver on this seat failed.
    #[inline]
    pub(super) fn refusal(&self) -> Option<i32> {
        Some(self.words().refused.load(Ordering::Relaxed) as i32).filter(|&errno| errno != 0)
    }

    /// Clears the refusal, once the receiver on this seat has read it.
    pub(super) fn forget_refusal(&self) {
        self.words().refused.store(0, Ordering::Relaxed);
    }

    fn words(&self) -> &SeatWords {
        &self.meeting.header().seats[self.at]
    }

    /// See [`Meeting::has_publisher`].
    pub(super) fn has_publisher(&self) -> bool {
        self.meeting.has_publisher()
    }
}
