//! The meeting: where the receivers of a publisher find it, and it finds them.
//!
//! A publisher's object has a *seat* for each receiver that there may be. A receiver takes a seat
//! by locking its byte, makes a [branch](super::layout) of its own, writes the branch's id at its
//! seat, and rings. The publisher opens the branch before it next sends, or when it is asked for
//! its receivers. A new receiver has a new branch, so nothing of a former one has to be cleaned up;
//! and each branch is mapped by its receiver and by the publisher alone, so no receiver can write
//! to another's.
//!
//! ```text
//!   offset 0      what it is (see `layout`)
//!   offset 64     how many receivers have come: the publisher sleeps on it
//!   offset 2048   64 seats of 32 bytes: a bell that the publisher rings, and the branch's id
//!
//!   locked bytes (exclusive OFD locks):
//!     0 the publisher, as long as it exists
//!     2 + n the receiver on seat n, as long as its end exists
//! ```
//!
//! The seats end with the page, and so there are 64: the entries of the publisher's robust list lie
//! in the page before (see `robust_list`). The publisher holds the bells of all seats from the
//! start, so the kernel tells every receiver of its death, even one whose branch it has not opened.
//!
//! All receivers can write to this page. So a seat's bell serves a receiver only until it is met.
//! From then on the publisher holds and rings the bell in the branch, which no other receiver has
//! mapped, and the receiver sleeps there.
//!
//! # A receiver comes
//!
//! | step | receiver | what is left if it dies here |
//! |---|---|---|
//! | R1 | lock the byte of a free seat; remove the branch that was last announced there, if its receiver was killed | nothing |
//! | R2 | make the branch: its locks, its bell, an empty ring | a branch that nobody has locked: for a sweep |
//! | R3 | write the branch's id at the seat: Release | the same; the publisher looks at it once, and finds it dead |
//! | R4 | count up: SeqCst, and wake | the same |
//! | R5 | is the channel closed? then undo it all | the same |
//!
//! | step | publisher | |
//! |---|---|---|
//! | P1 | has the count changed? | one load in each call |
//! | P2 | read the ids of all seats: Acquire, partner of R3 | |
//! | P3 | open each branch that it has not seen | for want of descriptors or memory: later |
//! | P4 | hold the branch's own bell: the receiver is met | once: a bell that was held is not held again. Its place in the robust list was taken with the seat |
//! | P5 | send it the history; ring the bell of its seat, and its own | a receiver that sleeps at its seat looks, finds P4, and goes to sleep on its own bell |
//!
//! Being met is one of the things that a receiver at its seat asks for in step S3 of `bell`, so P4
//! and P5 are the W1 and W2 to W5 of one more message.
//!
//! A message whose `send` begins after `open` has returned finds the count changed, so the receiver
//! gets it. A publisher that closes stores that first and then rings all bells; a receiver counts
//! first and then looks whether it is closed. So it finds the channel closed, or its bell is rung.
//!
//! # A receiver leaves
//!
//! The bell that *it* rings is in its branch, and says that it is gone. Its lock on the seat goes
//! with it, so the next one can take the seat at once; the lock in its branch goes with the last
//! message that it reads. Until then what it has is lent.
//!
//! # Garbage
//!
//! Any process of the same user can write here, even by accident.
//!
//! | what is damaged | what it does |
//! |---|---|
//! | the count, an id | a receiver whose id stands at another's seat too is met once, and rung at both. Else the publisher looks for branches that are not there, or overlooks a newcomer. Branches that it has opened are safe: it knows them privately, and opens none twice, whatever seats name it |
//! | the bell of a seat | a receiver that was met does not notice. One that was not yet is woken or told of the publisher's end up to a second late (see `bell`); or gets `Disconnected`, if the bell says so, and may open the channel again, at another seat |
//! | what it is | newcomers are refused |

use super::bell::Bell;
use super::end::End;
use super::error::ChannelError;
use super::layout::{Facts, Found, Line, What};
use super::object::{hold, make, not_listed};
use crate::os::deadline::Deadline;
use crate::os::fork;
use crate::os::futex::Futex;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Name};
use crate::os::posix::PAGE;
use crate::os::robust_list::{Listed, Places};
use crate::protocol::control::OWNER_BYTE;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// The most receivers of a publisher.
pub(super) const MAX_SEATS: usize = 64;

/// The byte that the receiver on the first seat locks.
const SEATS_BYTE: usize = 2;

/// The object. Atomics only: another process may write at any time.
#[repr(C)]
pub(super) struct MeetingHeader {
    what: Line<What>,
    arrivals: Line<Futex>,
    unused: [Line<[u64; 8]>; 30],
    seats: [SeatWords; MAX_SEATS],
}

#[repr(C, align(32))]
struct SeatWords {
    to_receiver: Bell,
    branch: AtomicU64,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<MeetingHeader>() == PAGE);

impl MeetingHeader {
    /// A meeting in private memory, whose publisher holds all bells, for the models.
    #[cfg(all(test, loom))]
    pub(super) fn open() -> Self {
        let seat = |_| SeatWords { to_receiver: Bell::new(1), branch: AtomicU64::new(0) };
        let (what, arrivals) = (Line(What::finished()), Line(Futex::new(0)));
        Self { what, arrivals, unused: std::array::from_fn(|_| Line([0; 8])), seats: std::array::from_fn(seat) }
    }

    /// How many receivers have come so far (P1).
    #[inline]
    pub(super) fn arrivals(&self) -> u32 {
        // SeqCst: partner of R4.
        self.arrivals.0.load(Ordering::SeqCst)
    }

    /// The id of the branch that was last announced at a seat (P2).
    pub(super) fn branch(&self, at: usize) -> u64 {
        // Acquire: partner of the Release in R3.
        self.seats[at].branch.load(Ordering::Acquire)
    }

    /// Announces a branch (R3, R4). `false` if the publisher has closed the channel (R5).
    pub(super) fn announce(&self, at: usize, branch: u64) -> bool {
        self.seats[at].branch.store(branch, Ordering::Release); // R3
        self.arrivals.0.fetch_add(1, Ordering::SeqCst); // R4, partner of P1 and of `What::close`
        self.arrivals.0.wake();
        !self.what.0.is_closed()
    }

    /// Sleeps until another receiver has come than the `known` ones.
    pub(super) fn wait_for_another(&self, known: u32, deadline: Option<Deadline>) {
        self.arrivals.0.sleep_while(known, deadline);
    }

    /// The bell that the publisher rings for the receiver on a seat until it has met it.
    #[inline]
    pub(super) fn bell(&self, at: usize) -> &Bell {
        &self.seats[at].to_receiver
    }

    /// Nobody can come any more, and the receivers on the first seats learn of it.
    pub(super) fn close(&self, seats: usize) {
        self.what.0.close();
        self.seats.iter().take(seats).for_each(|seat| seat.to_receiver.leave());
    }
}

/// The object, mapped.
pub(super) struct Page(Mapping);

/// One side's end of a meeting.
pub(super) struct Meeting {
    /// The publisher's: the entries of its bells. Dropped before the mapping that they lie next to.
    listed: Vec<Listed>,
    /// The publisher's: places for the bells of the branches.
    _places: Option<Places>,
    page: Arc<Page>,
    fork_epoch: u64,
    seats: usize,
    /// The publisher's name, removed before its lock is released.
    _link: Option<Link>,
    locks: LockFile,
}

/// A seat at a meeting.
#[derive(Clone)]
pub(super) struct Seat {
    meeting: Arc<Meeting>,
    at: usize,
}

impl Page {
    fn header(&self) -> &MeetingHeader {
        // SAFETY: the mapping is page-aligned, at least a page long (`create` made, `layout::open`
        // checked it) and lives as long as `self`; all processes access the header by atomics of
        // the same width.
        unsafe { self.0.base().cast::<MeetingHeader>().as_ref() }
    }

    /// The bell of a seat.
    #[inline]
    pub(super) fn bell(&self, at: usize) -> &Bell {
        self.header().bell(at)
    }

    /// Makes the publisher look who has come, if it sleeps until somebody has. The caller is in its
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
        let (listed, page) = (Vec::new(), Arc::new(Page(mapping)));
        let (_places, _link) = (Some(places), Some(link));
        let mut this = Self { listed, _places, page, fork_epoch: fork::epoch(), seats: facts.seats, _link, locks };
        this.header().what.0.describe(facts);
        for at in 0..facts.seats {
            // SAFETY: the seats lie in the first page of the mapping, which `make` has put behind a
            // page of this process's own; `listed` is dropped before it. Each bell is held once.
            let listed = unsafe { hold(&this.header().seats[at].to_receiver, false, name) }?;
            this.listed.extend(listed);
        }
        this.header().what.0.finish();
        Ok(this)
    }

    /// A receiver's end of a meeting that was found.
    pub(super) fn of_receiver(found: Found) -> Self {
        let seats = found.facts.seats.min(MAX_SEATS);
        let Found { mapping, locks, .. } = found;
        let page = Arc::new(Page(mapping));
        Self { listed: Vec::new(), _places: None, page, fork_epoch: fork::epoch(), seats, _link: None, locks }
    }

    fn header(&self) -> &MeetingHeader {
        self.page.header()
    }

    /// The mapping, for those that need it for longer than this end lives.
    pub(super) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// Takes a free seat, for a receiver (R1). `None` if there is none, or if the publisher is
    /// gone.
    pub(super) fn take_seat(self: &Arc<Self>, name: &Name) -> Result<Option<Seat>, ChannelError> {
        let failed = |error| name.error(LOCK, 0, error);
        for at in 0..self.seats {
            if !self.locks.try_lock(SEATS_BYTE + at).map_err(failed)? {
                continue;
            }
            // A bell that nobody holds, although the publisher lives, was damaged, and is not
            // mended.
            if self.page.bell(at).is_held() {
                return Ok(Some(Seat { meeting: self.clone(), at }));
            }
            self.locks.unlock(SEATS_BYTE + at).map_err(failed)?;
        }
        Ok(None)
    }

    /// Is the publisher's process alive and the publisher not dropped? For the receiver to ask.
    pub(super) fn has_publisher(&self) -> bool {
        // Nothing that is lent keeps this lock, and other receivers cannot write to it.
        self.locks.is_locked(OWNER_BYTE)
    }

    /// How many receivers have come so far (P1).
    #[inline]
    pub(super) fn arrivals(&self) -> u32 {
        self.header().arrivals()
    }

    /// The publisher's seats, and the id of the branch that was last announced at each (P2).
    pub(super) fn announced<'a>(self: &'a Arc<Self>) -> impl Iterator<Item = (Seat, u64)> + 'a {
        (0..self.seats).map(move |at| (Seat { meeting: self.clone(), at }, self.header().branch(at)))
    }

    /// As [`MeetingHeader::wait_for_another`].
    pub(super) fn wait_for_another(&self, known: u32, deadline: Option<Deadline>) {
        self.header().wait_for_another(known, deadline);
    }

    /// Is this the process that created or opened the object, and not a forked child?
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// The publisher leaves: nobody can come any more, and all receivers learn of it.
    pub(super) fn close(&self) {
        self.header().close(self.seats);
    }
}

impl Seat {
    /// Its number.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The bell that the publisher rings for the receiver that sits here until it has met it.
    #[inline]
    pub(super) fn bell(&self) -> &Bell {
        self.meeting.page.bell(self.at)
    }

    /// The end of the receiver that sits here and was not met.
    pub(super) fn end(&self) -> End {
        End::of_seat(&self.meeting.page, self.at)
    }

    /// The branch that was last announced here.
    pub(super) fn branch(&self) -> Option<u64> {
        Some(self.meeting.header().branch(self.at)).filter(|&id| id != 0)
    }

    /// Tells the publisher of the receiver's branch (R3, R4). `false` if it has closed the channel
    /// (R5).
    pub(super) fn announce(&self, branch: u64) -> bool {
        self.meeting.header().announce(self.at, branch)
    }

    /// As [`Meeting::has_publisher`].
    pub(super) fn has_publisher(&self) -> bool {
        self.meeting.has_publisher()
    }
}
