//! The publisher: one sender, many receivers.
//!
//! It has a [branch](super::branch) for each receiver, and nothing that two receivers share: each
//! has its own ring, its own returns and its own handle of each buffer. So a message takes a slot
//! for each receiver, and no payload is copied.
//!
//! # A message goes out
//!
//! 1. Open the branches of receivers that have come, and let go of those that have left.
//! 2. Make room, by each receiver's rule: wait for it, leave it out, or withdraw its oldest
//!    message. Only the sender fills slots, so room that was found stays. If a receiver that is
//!    waited for makes none in time, nobody gets the message.
//! 3. For each receiver: lend it the buffer, fill its slot.
//! 4. One full fence for all bells; ring those whose receivers sleep.
//! 5. Off the receivers' path: look for room for the next message and, where this one is a buffer,
//!    collect what has come back.
//!
//! # The messages that a late receiver gets
//!
//! With a [history](PublisherBuilder::history), the publisher keeps handles of the last messages,
//! and sends them to a newcomer in step 1, before anything else.
//!
//! # A receiver that is gone
//!
//! Its bell says so. Its branch is dropped, and the pool goes on asking the lender for what the
//! receiver still reads, or, if it is dead, takes all of it once its lock is free (see `lender`).
//! That is also where a message comes back that was sent as the receiver left. A killed receiver's
//! branch keeps its name until the next receiver takes its seat, the publisher is dropped, or a
//! sweep.

#![forbid(unsafe_code)]

use super::branch::{self, Branch, Patience};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::interrupt::{Asleep, Interrupter, Interrupts};
use super::layout::{self, Facts, Kind, EXTRA_SLOTS, MAX_LOANS, MAX_SLOTS};
use super::meeting::{Meeting, Seat, MAX_SEATS};
use super::message;
use super::object::Object;
use super::outlet::{Outlet, ReceiverState};
use super::receiver::may_work_later;
use super::ring::Words;
use super::rules::OnFull;
use super::{DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN};
use crate::os::deadline::Deadline;
use crate::os::name::Namespace;
use crate::os::posix::effective_uid;
use crate::owner::buf::ShmBuf;
use crate::owner::pool::Pool;
use crate::owner::provider::Provider;
use crate::protocol::control::CHANNEL_MAGIC;
use crate::protocol::dead::remove_dead;
use crate::protocol::ids::ProviderId;
use crate::sync::{fence, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest sleep before the publisher looks again who has come: it may have been short of
/// descriptors, or others have written over the count.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How many receivers a publisher has room for if nothing is said.
const DEFAULT_SEATS: usize = 16;

/// Options of a [`Publisher`]. Start with [`Publisher::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct PublisherBuilder {
    seats: usize,
    slots: usize,
    loans: usize,
    history: usize,
    on_full: OnFull,
    may_wait: bool,
    spin: Duration,
}

impl PublisherBuilder {
    /// Sets how many receivers there may be at a time, from 1 to 64; default 16. Each counts as two
    /// of the 2048 ends of channels that a process may have, whether or not it comes: the bell at
    /// its seat, and its own. Its memory is made when it comes, by the receiver. 64 is how many
    /// seats fit into a page.
    pub fn receivers(mut self, receivers: usize) -> Self {
        self.seats = receivers;
        self
    }

    /// Sets how many messages a receiver may be behind, from 1 to 65,536; default 256. A receiver
    /// may choose fewer ([`ReceiverBuilder::capacity`](super::ReceiverBuilder::capacity)).
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// Sets how many buffers a receiver may have at a time, including those that it has not
    /// received yet: from 1 to 1,048,576, rounded up to a power of two; default 2048. A receiver
    /// may choose fewer. Each takes 16 bytes of /dev/shm and 8 of heap for each receiver.
    pub fn loans(mut self, loans: usize) -> Self {
        self.loans = loans;
        self
    }

    /// Sets what happens when a receiver that does not say is behind by its capacity; default
    /// [`OnFull::KeepLatest`]. A receiver may choose otherwise.
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets whether a receiver may choose [`OnFull::Wait`]; default `true`. If not, such receivers
    /// are refused.
    pub fn may_wait(mut self, may_wait: bool) -> Self {
        self.may_wait = may_wait;
        self
    }

    /// Sets how many of the last messages a receiver gets that comes later, at most its capacity;
    /// default 0. It gets them when the publisher next sends, or is asked for its receivers:
    /// [`Publisher::receivers`], [`Publisher::wait_for_receivers`]. Their buffers stay in use.
    pub fn history(mut self, messages: usize) -> Self {
        self.history = messages;
        self
    }

    /// Sets how long [`send`](Publisher::send) spins for a receiver's room before it sleeps;
    /// default 20 µs. [`Duration::MAX`] means for ever.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Creates the channel `name`, for buffers of `provider`. The name is as
    /// [`SenderBuilder::create`](super::SenderBuilder::create) says. Receivers must be of this
    /// process's user.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::Receivers`], [`ChannelError::Capacity`],
    /// [`ChannelError::Loans`], [`ChannelError::Forked`], [`ChannelError::Taken`],
    /// [`ChannelError::NotAChannel`], [`ChannelError::WrongUid`], [`ChannelError::TooMany`],
    /// [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Publisher, ChannelError> {
        if !(1..=MAX_SEATS).contains(&self.seats) {
            return Err(ChannelError::Receivers { receivers: self.seats, min: 1, max: MAX_SEATS });
        }
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(ChannelError::Capacity { capacity: self.slots, min: 1, max: MAX_SLOTS });
        }
        if !(1..=MAX_LOANS).contains(&self.loans) {
            return Err(ChannelError::Loans { loans: self.loans, min: 1, max: MAX_LOANS });
        }
        // Check before taking any lock: after a fork, a thread that does not exist here may hold
        // it.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        let object = layout::name(provider.names(), name)?;
        let facts = Facts {
            kind: Kind::Meeting,
            provider: provider.id(),
            slots: self.slots + EXTRA_SLOTS,
            loans: self.loans.next_power_of_two(),
            seats: self.seats,
            on_full: self.on_full,
            may_wait: self.may_wait,
        };
        let meeting = Arc::new(Meeting::create(&object, &facts)?);
        Ok(Publisher {
            meeting,
            rules: facts,
            names: provider.names().clone(),
            channel: name.to_owned(),
            pool: Arc::downgrade(provider.pool()),
            outlets: Vec::new(),
            seen: [0; MAX_SEATS],
            arrivals: 0,
            history: VecDeque::new(),
            history_len: self.history.min(self.slots),
            interrupts: Interrupts::new(),
            spin: self.spin,
        })
    }
}

/// Sends messages to any number of receivers, up to [a number](PublisherBuilder::receivers) that is
/// set when it is made. They come and go as they like. The [module](super) tells what becomes of
/// the messages.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{OnFull, Publisher, Receiver};
/// use shm_pool::{Client, Provider};
/// use std::time::Duration;
///
/// # let name = format!("doc-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut publisher = Publisher::create(&provider, &name)?;
///
/// // Each of these would be a process of its own.
/// let client = Client::new();
/// let mut logger = Receiver::builder().on_full(OnFull::Wait).open(&client, &name)?;
/// let mut display = Receiver::builder().capacity(2).open(&client, &name)?;
///
/// publisher.wait_for_receivers(2, Duration::from_secs(10))?;
/// for number in 0..5_u8 {
///     let mut frame = provider.alloc(1_000)?;
///     frame.fill(number);
///     assert_eq!(publisher.send(frame.freeze())?, 2); // to two receivers, without a copy
/// }
/// assert_eq!(logger.recv()?[0], 0); // everything
/// let newest = display.recv()?; // the last two
/// assert_eq!((newest[0], newest.missed()), (3, 3));
/// # Ok(())
/// # }
/// ```
pub struct Publisher {
    meeting: Arc<Meeting>,
    rules: Facts,
    names: Namespace,
    channel: String,
    pool: Weak<Pool>,
    /// The receivers that there are. Those that are waited for come first, so that nothing is
    /// withdrawn for a message that is not sent.
    outlets: Vec<Outlet>,
    /// The branch that was last seen at each seat.
    seen: [u64; MAX_SEATS],
    /// How many receivers had come when it last looked.
    arrivals: u32,
    /// The last messages, for receivers that come later.
    history: VecDeque<Kept>,
    history_len: usize,
    interrupts: Arc<Interrupts>,
    spin: Duration,
}

/// A message that is kept for receivers that come later.
enum Kept {
    Buffer(ShmBuf),
    Bytes(Words),
}

impl Publisher {
    /// A builder with the default options.
    pub fn builder() -> PublisherBuilder {
        PublisherBuilder {
            seats: DEFAULT_SEATS,
            slots: DEFAULT_SLOTS,
            loans: DEFAULT_LOANS,
            history: 0,
            on_full: OnFull::default(),
            may_wait: true,
            spin: DEFAULT_SPIN,
        }
    }

    /// Creates a channel with the default options.
    ///
    /// # Errors
    ///
    /// As [`PublisherBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Sends a buffer to all receivers, and waits for room where a receiver chose
    /// [`OnFull::Wait`]. Returns how many receivers it was sent to. With none, and without a
    /// [history](PublisherBuilder::history), the buffer is free again at once.
    ///
    /// A receiver that goes just now may count, although it does not get the message.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooManyLent`], without waiting, if a receiver that chose [`OnFull::Wait`]
    /// has as many buffers as it may; [`SendErrorKind::OtherProvider`];
    /// [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    /// Then nobody got the message, and the buffer comes back with the error.
    #[inline]
    pub fn send(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::Until(None))
    }

    /// Like [`send`](Self::send), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if a receiver that chose [`OnFull::Wait`] has no room, and those of
    /// [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::None)
    }

    /// Like [`send`](Self::send), but waits for `timeout` at most, for all receivers together.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(&mut self, buffer: ShmBuf, timeout: Duration) -> Result<usize, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::of(timeout))
    }

    #[inline]
    fn send_buffer(&mut self, message: ShmBuf, patience: Patience) -> Result<usize, SendError<ShmBuf>> {
        let fail = |kind, message| Err(SendError { kind, message });
        if !self.meeting.is_ours() {
            return fail(SendErrorKind::Forked, message);
        }
        let (found, expected) = (message.provider(), self.rules.provider);
        if found != expected {
            return fail(SendErrorKind::OtherProvider { found, expected }, message);
        }
        let takers = match self.prepare(true, patience) {
            Ok(takers) => takers,
            Err(kind) => return fail(kind, message),
        };
        let place = message.place();
        if self.history_len > 0 {
            self.keep(Kept::Buffer(message.clone()));
        }
        let mut handles = message.copies(takers);
        for outlet in self.outlets.iter_mut().filter(|outlet| outlet.turn.is_some()) {
            // There are as many handles as takers.
            if let Some(handle) = handles.next() {
                outlet.lend(place, handle);
            }
        }
        self.ring();
        self.outlets.iter_mut().for_each(|outlet| outlet.branch.collect_some());
        Ok(takers)
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes to all receivers, in their slots
    /// themselves. Waits and returns as [`send`](Self::send) does.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        self.send_inline(bytes, Patience::Until(None))
    }

    /// Like [`send_bytes`](Self::send_bytes), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if a receiver that chose [`OnFull::Wait`] has no room, and those of
    /// [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        self.send_inline(bytes, Patience::None)
    }

    /// Like [`send_bytes`](Self::send_bytes), but waits for `timeout` at most, for all receivers
    /// together.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<usize, SendErrorKind> {
        self.send_inline(bytes, Patience::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], patience: Patience) -> Result<usize, SendErrorKind> {
        if !self.meeting.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        // Here, and not below: a caller mostly knows the length when it is compiled.
        self.send_words(message::of_bytes(bytes)?, patience)
    }

    fn send_words(&mut self, words: Words, patience: Patience) -> Result<usize, SendErrorKind> {
        let takers = self.prepare(false, patience)?;
        if self.history_len > 0 {
            self.keep(Kept::Bytes(words));
        }
        self.outlets.iter_mut().for_each(|outlet| outlet.fill(words));
        self.ring();
        Ok(takers)
    }

    /// Steps 1 and 2: settles who gets the next message. Returns how many do.
    #[inline]
    fn prepare(&mut self, is_buffer: bool, patience: Patience) -> Result<usize, SendErrorKind> {
        self.meet();
        let (mut takers, mut is_one_gone) = (0, false);
        for outlet in &mut self.outlets {
            outlet.turn = None;
            if outlet.branch.is_gone() {
                is_one_gone = true;
                continue;
            }
            match outlet.branch.on_full {
                OnFull::Wait => outlet.wait(is_buffer, self.spin, patience)?,
                OnFull::DropNew | OnFull::KeepLatest => outlet.make_room(is_buffer),
            }
            takers += usize::from(outlet.turn.is_some());
        }
        if is_one_gone {
            self.let_go();
        }
        Ok(takers)
    }

    /// Steps 4 and 5. What has come back is collected with buffers only, as a sender does: with
    /// each message of bytes it would cost more than the rest of the send.
    #[inline]
    fn ring(&mut self) {
        fence(Ordering::SeqCst); // W2 of all bells (see `bell`)
        let takers = || self.outlets.iter().filter(|outlet| outlet.turn.is_some());
        takers().for_each(|outlet| outlet.branch.object.to_receiver().ring_after_fence());
        self.outlets.iter_mut().for_each(|outlet| outlet.branch.look_for_room());
    }

    /// Step 1: who has come?
    #[inline]
    fn meet(&mut self) {
        let arrivals = self.meeting.arrivals();
        if arrivals != self.arrivals {
            self.admit(arrivals);
        }
    }

    /// Who has come, and who is gone?
    fn look_around(&mut self) {
        if self.outlets.iter().any(|outlet| outlet.branch.is_gone()) {
            self.let_go();
        }
        self.meet();
    }

    /// Lets go of the receivers that are gone; also of those whose bell does not say so because it
    /// was damaged, for then nobody holds their lock.
    #[cold]
    fn let_go(&mut self) {
        let is_here = |outlet: &Outlet| !outlet.branch.is_gone() && outlet.branch.object.is_receiver_locked();
        let (here, gone): (_, Vec<_>) = std::mem::take(&mut self.outlets).into_iter().partition(is_here);
        self.outlets = here;
        for outlet in gone {
            event!(info, channel = self.channel, receiver = outlet.id, lent = outlet.branch.lent(), "receiver gone");
            outlet.branch.close();
        }
        // It may have slept on the bell of one of them, and would keep it mapped.
        self.interrupts.aim(Asleep::Nowhere);
        // The pool drops the lenders that are done with. Without it, they have just been.
        if let Some(pool) = self.pool.upgrade() {
            pool.reclaim_loans();
        }
    }

    /// Opens the branches that it has not seen yet.
    #[cold]
    fn admit(&mut self, arrivals: u32) {
        // Places may be taken by receivers whose bells were damaged.
        self.let_go();
        let mut are_all_seen = true;
        let meeting = self.meeting.clone();
        for (seat, id) in meeting.announced() {
            let at = seat.at();
            if id == self.seen[at] {
                continue;
            }
            if self.outlets.len() == self.rules.seats {
                // One has left this instant. Or somebody writes ids of his own at other seats.
                are_all_seen = false;
                break;
            }
            match self.open(seat, id) {
                Ok(outlet) => {
                    self.seen[at] = id;
                    self.add(outlet);
                }
                // Descriptors or memory are short: the receiver stays announced.
                Err(ChannelError::Os(error)) if may_work_later(&error) => are_all_seen = false,
                // It left or died before this, or it is no branch of this channel.
                Err(_) => self.seen[at] = id,
            }
        }
        if are_all_seen {
            self.arrivals = arrivals;
        }
    }

    fn add(&mut self, outlet: Option<Outlet>) {
        let Some(outlet) = outlet else { return };
        let waited_for = self.outlets.partition_point(|other| other.branch.on_full == OnFull::Wait);
        let at = if outlet.branch.on_full == OnFull::Wait { waited_for } else { self.outlets.len() };
        self.outlets.insert(at, outlet);
    }

    /// Opens a newcomer's branch, and sends it the history. `None` if the branch is not as it must
    /// be.
    fn open(&self, seat: Seat, id: u64) -> Result<Option<Outlet>, ChannelError> {
        let rules = &self.rules;
        let name = layout::branch_name(&self.names, &self.channel, id);
        let found = layout::open(&name, effective_uid())?;
        let facts = found.facts;
        let is_within = facts.kind == Kind::Branch
            && facts.provider == rules.provider
            && facts.slots <= rules.slots
            && facts.loans <= rules.loans
            && (rules.may_wait || facts.on_full != OnFull::Wait);
        if !is_within || !found.has_all_its_memory(&name)? {
            return Ok(None);
        }
        let cells = branch::cells(&name, facts.loans)?;
        let (object, interrupts) = (Object::of_branch(found, seat.clone()), self.interrupts.clone());
        if object.to_sender().is_gone() || !object.is_receiver_locked() {
            return Ok(None);
        }
        // Last, for it is not undone. The id may stand at two seats, or come again: a second ring
        // and a second book for one receiver would take its messages away while it reads them.
        let Some(object) = object.meet(&name)? else {
            // Met from another seat, where somebody else has written its id: it sleeps here.
            seat.bell().ring();
            return Ok(None);
        };
        let branch = Branch::new(object, cells, facts.on_full, interrupts, self.pool.upgrade().as_deref());
        let mut outlet = Outlet { branch, id, left_out: 0, dropped: 0, turn: None };
        let last = self.history.len().saturating_sub(outlet.branch.object.capacity().min(facts.loans));
        for kept in self.history.iter().skip(last) {
            outlet.make_room(matches!(kept, Kept::Buffer(_)));
            match kept {
                Kept::Buffer(buffer) => outlet.lend(buffer.place(), buffer.clone()),
                Kept::Bytes(words) => outlet.fill(*words),
            }
            outlet.branch.look_for_room();
        }
        event!(info, channel = self.channel, receiver = id, on_full = ?facts.on_full, "receiver met");
        // It may sleep on either bell by now.
        seat.bell().ring(); // P5
        outlet.branch.ring();
        Ok(Some(outlet))
    }

    #[cold]
    fn keep(&mut self, message: Kept) {
        if self.history.len() == self.history_len {
            self.history.pop_front();
        }
        self.history.push_back(message);
    }

    /// The receivers that there are now; those that are waited for come first. In a forked child
    /// there are none.
    pub fn receivers(&mut self) -> impl Iterator<Item = ReceiverState> + '_ {
        let is_ours = self.meeting.is_ours();
        if is_ours {
            self.look_around();
        }
        // In a forked child, a thread that does not exist there may hold a lock.
        self.outlets.iter().filter(move |_| is_ours).map(Outlet::state)
    }

    /// Is there a receiver now? In a forked child there is none.
    #[inline]
    pub fn has_receivers(&mut self) -> bool {
        if !self.meeting.is_ours() {
            return false;
        }
        self.look_around();
        !self.outlets.is_empty()
    }

    /// Waits until there are `count` receivers or more, for `timeout` at most; [`Duration::MAX`]
    /// means for ever.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooFewSeats`] at once, if there cannot be so many;
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_for_receivers(&mut self, count: usize, timeout: Duration) -> Result<(), SendErrorKind> {
        let (deadline, seats) = (Deadline::after(timeout), self.rules.seats);
        if count > seats {
            return Err(SendErrorKind::TooFewSeats { receivers: count, seats });
        }
        loop {
            if !self.meeting.is_ours() {
                return Err(SendErrorKind::Forked);
            }
            let known = self.meeting.arrivals();
            self.look_around();
            // After that, which forgets it when it lets go of somebody.
            self.interrupts.aim(Asleep::AtMeeting(self.meeting.page().clone()));
            if self.outlets.len() >= count {
                return Ok(());
            }
            if self.interrupts.take() {
                return Err(SendErrorKind::Interrupted);
            }
            if deadline.is_some_and(Deadline::has_passed) {
                return Err(SendErrorKind::TimedOut);
            }
            self.meeting.wait_for_another(known, Deadline::first(deadline, Deadline::after(LOOK_AGAIN)));
        }
    }

    /// Waits until all receivers that are there have received everything and, unless they keep the
    /// latest, have asked for more; for `timeout` at most. A receiver that goes is not waited for.
    /// Then publisher and provider can be dropped without loss.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        if !self.meeting.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        let deadline = Deadline::after(timeout);
        self.look_around();
        for outlet in &mut self.outlets {
            match outlet.branch.wait_until_received(deadline) {
                Err(SendErrorKind::Disconnected) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// A handle by which any thread ends a wait of this publisher.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    /// The branch of the first receiver that is waited for and has no room.
    pub(super) fn waited_for(&mut self) -> Option<&mut Branch> {
        let mut branches = self.outlets.iter_mut().filter(|outlet| outlet.branch.on_full == OnFull::Wait);
        branches.find(|outlet| !outlet.branch.has_room()).map(|outlet| &mut outlet.branch)
    }

    /// No task sleeps any more.
    pub(super) fn disarm(&mut self) {
        self.outlets.iter_mut().for_each(|outlet| outlet.branch.sleeper.disarm());
    }

    /// The provider whose buffers it sends.
    pub fn provider(&self) -> ProviderId {
        self.rules.provider
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.meeting.is_ours() {
            self.meeting.close();
            self.outlets.iter().for_each(|outlet| outlet.branch.close());
            // What killed receivers have left. Those that live still have their branches locked.
            for &id in self.seen.iter().filter(|&&id| id != 0) {
                let name = layout::branch_name(&self.names, &self.channel, id);
                let _ = remove_dead(&name, effective_uid(), CHANNEL_MAGIC, true);
            }
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let receivers = self.outlets.len();
        f.debug_struct("Publisher").field("provider", &self.provider()).field("receivers", &receivers).finish()
    }
}
