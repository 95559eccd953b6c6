//! The publisher: one sender, many receivers.
//!
//! It has a [branch](super::branch) for each receiver, and receivers share nothing: each has its
//! own ring, its own returns and its own handle of each buffer. So a message takes a slot per
//! receiver, and no payload is copied.
//!
//! # Sending a message
//!
//! 1. Open the branches of new receivers, and drop those of closed or dead ones.
//! 2. Find room, by each receiver's rule: wait for it, or skip the receiver. Only the sender fills
//!    slots, so room once found stays. If a receiver with [`OnFull::Wait`] makes no room in time,
//!    no receiver gets the message.
//! 3. For each receiver: lend it the buffer and fill its slot.
//! 4. One full fence for all bells, then ring those whose receivers sleep.
//! 5. Off the receivers' path: check for room for the next message, withdraw the oldest one where
//!    that is the receiver's rule, and, if this message is a buffer, collect returned loans.
//!
//! Killed between 3 and 5, a publisher leaves one message too many for a receiver that keeps the
//! latest. A buffer is withdrawn in step 2 only if such a receiver has used up its loans: the next
//! message takes over its loan.
//!
//! # History
//!
//! With a [history](PublisherBuilder::history), the publisher keeps handles of the last messages
//! and sends them to a new receiver in step 1, before anything else.
//!
//! # Closed and dead receivers
//!
//! A receiver's bell says that it closed or died. The publisher then drops its branch. The pool
//! goes on asking the lender for what a closed receiver still reads, and reclaims everything from a
//! dead one once its lock is free (see `lender`). That also recovers a message sent while the
//! receiver closed. A closed receiver keeps its seat until its last message is dropped, so there
//! are never more branches with loans than seats (see `meeting`). A killed receiver's branch keeps
//! its name until the next receiver takes the seat, the publisher is dropped, or a sweep.

#![forbid(unsafe_code)]

use super::branch::{self, Branch, Patience};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::interrupt::{Asleep, Interrupter, Interrupts};
use super::layout::{self, Facts, Kind, EXTRA_SLOTS, MAX_LOANS, MAX_SLOTS};
use super::meeting::{Meeting, Seat, MAX_SEATS};
use super::message;
use super::object::Object;
use super::outlet::{Outlet, ReceiverState};
use super::ring::Words;
use super::rules::OnFull;
use super::{DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN};
use crate::os::futex::Deadline;
use crate::os::name::{Name, Namespace};
use crate::os::posix::{effective_uid, has_heap};
use crate::owner::buf::ShmBuf;
use crate::owner::pool::Pool;
use crate::owner::provider::Provider;
use crate::protocol::control::CHANNEL_MAGIC;
use crate::protocol::ids::ProviderId;
use crate::protocol::sweep::remove_dead;
use crate::sync::{fence, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest sleep before the publisher checks again for new receivers: it may have been short of
/// descriptors, or another process may have overwritten the count.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An upper bound on the heap that dropping a publisher needs.
const HEAP: usize = 32 << 10;

/// The default number of seats for receivers.
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
    /// Sets how many receivers there may be at a time, from 1 to 64; default 16. Each seat counts
    /// as one of the 2048 channel ends that a process may have, even while it is free. The receiver
    /// allocates its own memory when it joins. A closed receiver keeps its seat until the last
    /// message that it received is dropped.
    pub fn receivers(mut self, receivers: usize) -> Self {
        self.seats = receivers;
        self
    }

    /// Sets how many messages a receiver may be behind, from 1 to 65,536; default 256. A receiver
    /// may choose a smaller number
    /// ([`ReceiverBuilder::capacity`](super::ReceiverBuilder::capacity)).
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// Sets how many buffers a receiver may hold at a time, including those that it has not
    /// received yet: from 1 to 1,048,576, rounded up to a power of two; default 2048. A receiver
    /// may choose a smaller number. Each takes 16 bytes of /dev/shm and 16 bytes of heap per
    /// receiver.
    pub fn loans(mut self, loans: usize) -> Self {
        self.loans = loans;
        self
    }

    /// Sets the rule for receivers that do not choose one; default [`OnFull::KeepLatest`].
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets whether a receiver may choose [`OnFull::Wait`]; default `true`. If `false`, such
    /// receivers are refused.
    pub fn may_wait(mut self, may_wait: bool) -> Self {
        self.may_wait = may_wait;
        self
    }

    /// Sets how many of the last messages a new receiver gets, at most its capacity; default 0. It
    /// gets them when the publisher next sends, or is asked for its receivers
    /// ([`Publisher::receivers`], [`Publisher::wait_for_receivers`]). Their buffers stay in use.
    pub fn history(mut self, messages: usize) -> Self {
        self.history = messages;
        self
    }

    /// Sets how long [`send`](Publisher::send) spins, waiting for room, before it sleeps; default
    /// 20 µs. With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Creates the channel `name`, for buffers of `provider`. For valid names, see
    /// [`SenderBuilder::create`](super::SenderBuilder::create). Receivers must run as the same
    /// user.
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
            sent: 0,
            seen: [0; MAX_SEATS],
            refused: [(0, 0); MAX_SEATS],
            arrivals: 0,
            history: VecDeque::new(),
            history_len: self.history.min(self.slots),
            interrupts: Interrupts::new(),
            spin: self.spin,
        })
    }
}

/// Sends messages to several receivers, up to [a number](PublisherBuilder::receivers) set at
/// creation. They may join and leave at any time. See the [module documentation](super) for the
/// lifetime of messages.
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
    /// The connected receivers. Those with [`OnFull::Wait`] precede the others, so that nothing is
    /// withdrawn for a message that is not sent.
    outlets: Vec<Outlet>,
    /// The number of messages sent, to however many receivers.
    sent: u64,
    /// The id of the branch last seen at each seat.
    seen: [u64; MAX_SEATS],
    /// The id of the receiver last refused at each seat, and `sent` at its first refusal.
    refused: [(u64, u64); MAX_SEATS],
    /// The count of arrivals at the last check.
    arrivals: u32,
    /// The last messages, for new receivers.
    history: VecDeque<Kept>,
    history_len: usize,
    interrupts: Arc<Interrupts>,
    spin: Duration,
}

/// A message in the history.
enum Kept {
    Buffer(ShmBuf),
    Bytes(Words),
}

impl Publisher {
    /// Returns a builder with the default options.
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
    /// Those of [`PublisherBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Sends a buffer to all receivers, and returns how many it was sent to. Blocks until every
    /// receiver with [`OnFull::Wait`] has room and a loan. Without any receiver or
    /// [history](PublisherBuilder::history), the buffer is free again at once.
    ///
    /// The count may include a receiver that closes concurrently and does not get the message.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::OtherProvider`]; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    /// On an error no receiver gets the message, and the error contains the buffer.
    #[inline]
    pub fn send(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::Until(None))
    }

    /// Like [`send`](Self::send), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if a receiver with [`OnFull::Wait`] has no room;
    /// [`SendErrorKind::TooManyLent`] if it has no free loan; and those of [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::None)
    }

    /// Like [`send`](Self::send), but blocks for at most `timeout`, for all receivers together.
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
        if let Err(kind) = self.check_fork() {
            return fail(kind, message);
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
        for outlet in self.outlets.iter_mut().filter(|outlet| outlet.is_taker) {
            // There are as many handles as takers.
            if let Some(handle) = handles.next() {
                outlet.lend(place, handle);
            }
        }
        self.ring();
        self.outlets.iter_mut().for_each(|outlet| outlet.branch.collect_some());
        Ok(takers)
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes to all receivers, inline in their slots.
    /// Blocks and returns as [`send`](Self::send) does.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        self.send_inline(bytes, Patience::Until(None))
    }

    /// Like [`send_bytes`](Self::send_bytes), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if a receiver with [`OnFull::Wait`] has no room, and those of
    /// [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        self.send_inline(bytes, Patience::None)
    }

    /// Like [`send_bytes`](Self::send_bytes), but blocks for at most `timeout`, for all receivers
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
        self.check_fork()?;
        // Converted here so that it inlines: callers mostly know the length at compile time.
        self.send_words(&message::of_bytes(bytes)?, patience)
    }

    fn send_words(&mut self, words: &Words, patience: Patience) -> Result<usize, SendErrorKind> {
        let takers = self.prepare(false, patience)?;
        if self.history_len > 0 {
            self.keep(Kept::Bytes(*words));
        }
        self.outlets.iter_mut().for_each(|outlet| outlet.fill(words));
        self.ring();
        Ok(takers)
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        self.meeting.is_ours().then_some(()).ok_or(SendErrorKind::Forked)
    }

    /// Steps 1 and 2: chooses the receivers of the next message. Returns their number.
    #[inline]
    fn prepare(&mut self, is_buffer: bool, patience: Patience) -> Result<usize, SendErrorKind> {
        self.meet();
        let (mut takers, mut is_one_gone) = (0, false);
        for outlet in &mut self.outlets {
            outlet.is_taker = false;
            if outlet.branch.is_gone() {
                is_one_gone = true;
                continue;
            }
            match outlet.branch.on_full {
                OnFull::Wait => outlet.wait(is_buffer, self.spin, patience)?,
                OnFull::DropNew | OnFull::KeepLatest => outlet.make_room(is_buffer),
            }
            takers += usize::from(outlet.is_taker);
        }
        if is_one_gone {
            self.let_go();
        }
        self.sent += 1;
        Ok(takers)
    }

    /// Step 4 and, except for returned loans, step 5. Like a sender, a publisher collects returns
    /// only when it sends a buffer: with inline bytes, that would cost more than the rest of the
    /// send.
    #[inline]
    fn ring(&mut self) {
        fence(Ordering::SeqCst); // W2 of all bells (see `bell`)
        let takers = || self.outlets.iter().filter(|outlet| outlet.is_taker);
        takers().for_each(|outlet| outlet.branch.object.shared().to_receiver().ring_after_fence());
        self.outlets.iter_mut().for_each(Outlet::look_for_room);
    }

    /// Step 1: connects new receivers.
    #[inline]
    fn meet(&mut self) {
        let arrivals = self.meeting.header().arrivals();
        if arrivals != self.arrivals {
            self.admit(arrivals);
        }
    }

    /// Drops closed and dead receivers, and connects new ones.
    fn look_around(&mut self) {
        if self.outlets.iter().any(|outlet| outlet.branch.is_gone()) {
            self.let_go();
        }
        self.meet();
    }

    /// Drops the branches of closed and dead receivers, including those whose bell does not say so
    /// because it was damaged: their lock is free.
    #[cold]
    fn let_go(&mut self) {
        let is_here = |outlet: &Outlet| !outlet.branch.is_gone() && outlet.branch.object.is_receiver_locked();
        let (here, gone): (_, Vec<_>) = std::mem::take(&mut self.outlets).into_iter().partition(is_here);
        self.outlets = here;
        for outlet in gone {
            event!(info, channel = self.channel, receiver = outlet.id, lent = outlet.branch.lent(), "receiver gone");
            outlet.branch.close();
        }
        // The publisher may have slept on a dropped receiver's bell, and would keep it mapped.
        self.interrupts.aim(Asleep::Nowhere);
        // The pool drops the lenders that are over. Without a pool, the branches just dropped them.
        if let Some(pool) = self.pool.upgrade() {
            pool.reclaim_loans();
        }
    }

    /// Opens the branches that this publisher has not seen yet.
    #[cold]
    fn admit(&mut self, arrivals: u32) {
        let mut are_all_seen = true;
        let meeting = self.meeting.clone();
        for (seat, id) in meeting.announced() {
            let at = seat.at();
            // Another process may have copied the id of a connected receiver to this seat.
            if id == self.seen[at] || self.outlets.iter().any(|outlet| outlet.id == id) {
                continue;
            }
            // The new receiver holds its seat's lock, so all earlier receivers of that seat have
            // left, even if they left after this loop began, or their bells are damaged.
            if self.outlets.len() == self.rules.seats {
                self.let_go();
            }
            if self.outlets.len() == self.rules.seats {
                // A receiver has written its own ids to other seats.
                are_all_seen = false;
                break;
            }
            match self.open(seat.clone(), id) {
                Ok(outlet) => {
                    self.seen[at] = id;
                    self.add(outlet);
                }
                // The system refused, for lack of descriptors or memory for example: the receiver stays
                // announced.
                Err(ChannelError::Os(error)) => {
                    are_all_seen = false;
                    if self.refused[at].0 != id {
                        self.refused[at] = (id, self.sent);
                    }
                    // P3'
                    if seat.refuse(error.errno().unwrap_or(libc::EMFILE)) {
                        event!(warn, channel = self.channel, receiver = id, error = %crate::error::Chain(&error), "receiver not connected");
                    }
                }
                // The receiver has left or died, or the object is no branch of this channel.
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

    /// Returns the branch of a receiver, if the branch is valid and the receiver alive.
    fn find(&self, seat: Seat, name: &Name) -> Result<Option<(Object, Facts)>, ChannelError> {
        let rules = &self.rules;
        let found = layout::open(name, effective_uid())?;
        let facts = found.facts;
        let is_within = facts.kind == Kind::Branch
            && facts.provider == rules.provider
            && facts.slots <= rules.slots
            && facts.loans <= rules.loans
            && (rules.may_wait || facts.on_full != OnFull::Wait);
        if !is_within || !found.has_all_its_memory(name)? {
            return Ok(None);
        }
        let object = Object::found(found, Some(seat));
        let is_here = !object.shared().to_sender().is_gone() && object.is_receiver_locked();
        Ok(is_here.then_some((object, facts)))
    }

    /// Connects a new receiver and sends it the history. Returns `None` if the branch is invalid.
    fn open(&self, seat: Seat, id: u64) -> Result<Option<Outlet>, ChannelError> {
        let name = layout::branch_name(&self.names, &self.channel, id);
        let (first_refused, sent_before) = self.refused[seat.at()];
        let missed = if first_refused == id { self.sent - sent_before } else { 0 };
        let Some((object, facts)) = self.find(seat, &name)? else { return Ok(None) };
        let (loans, interrupts) = (branch::loans(&name, facts.loans)?, self.interrupts.clone());
        // Last, because it cannot be undone. The id may appear at two seats, or again later: a
        // second ring and lender for one receiver would reclaim its messages while it reads them.
        let Some(object) = object.meet(&name)? else { return Ok(None) };
        let branch = Branch::new(object, loans, facts.on_full, interrupts, self.pool.upgrade().as_deref());
        let kept = self.history.len().min(branch.object.shared().capacity()).min(facts.loans);
        // What it missed while it was refused, except what the history has of it.
        let dropped = missed.saturating_sub(kept as u64);
        let mut outlet = Outlet { branch, id, left_out: dropped as u32, dropped, is_taker: false };
        for kept in self.history.iter().skip(self.history.len() - kept) {
            outlet.make_room(matches!(kept, Kept::Buffer(_)));
            match kept {
                Kept::Buffer(buffer) => outlet.lend(buffer.place(), buffer.clone()),
                Kept::Bytes(words) => outlet.fill(words),
            }
            outlet.look_for_room();
        }
        event!(info, channel = self.channel, receiver = id, on_full = ?facts.on_full, "receiver met");
        outlet.branch.ring(); // P5
        Ok(Some(outlet))
    }

    #[cold]
    fn keep(&mut self, message: Kept) {
        if self.history.len() == self.history_len {
            self.history.pop_front();
        }
        self.history.push_back(message);
    }

    /// Returns the connected receivers, those with [`OnFull::Wait`] first. In a forked child there
    /// are none.
    pub fn receivers(&mut self) -> impl Iterator<Item = ReceiverState> + '_ {
        let is_ours = self.meeting.is_ours();
        if is_ours {
            self.look_around();
        }
        // In a forked child, a lock may belong to a thread that does not exist there.
        self.outlets.iter().filter(move |_| is_ours).map(Outlet::state)
    }

    /// Returns `true` if a receiver is connected; always `false` in a forked child.
    #[inline]
    pub fn has_receivers(&mut self) -> bool {
        if !self.meeting.is_ours() {
            return false;
        }
        self.look_around();
        !self.outlets.is_empty()
    }

    /// Blocks until `count` receivers or more are connected, for at most `timeout`; with
    /// [`Duration::MAX`], without limit.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooFewSeats`], at once, if `count` exceeds the number of seats;
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_for_receivers(&mut self, count: usize, timeout: Duration) -> Result<(), SendErrorKind> {
        let (deadline, seats) = (Deadline::after(timeout), self.rules.seats);
        if count > seats {
            return Err(SendErrorKind::TooFewSeats { receivers: count, seats });
        }
        loop {
            self.check_fork()?;
            let known = self.meeting.header().arrivals();
            self.look_around();
            // After `look_around`, which resets this when it drops a receiver.
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
            self.meeting.header().wait_for_another(known, Deadline::first(deadline, Deadline::after(LOOK_AGAIN)));
        }
    }

    /// Blocks until all connected receivers have received everything and, unless they have
    /// [`OnFull::KeepLatest`], have asked for more; for at most `timeout`. Receivers that close or
    /// die are skipped. After that, publisher and provider can be dropped without loss.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        self.check_fork()?;
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

    /// Returns a handle with which any thread can end a wait of this publisher.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    /// Returns the branch of the first receiver with [`OnFull::Wait`] that has no room or, for a
    /// buffer, no loan.
    pub(super) fn waited_for(&mut self, is_buffer: bool) -> Option<&mut Branch> {
        let mut branches = self.outlets.iter_mut().filter(|outlet| outlet.branch.on_full == OnFull::Wait);
        branches.find(|outlet| !outlet.branch.is_ready_for(is_buffer)).map(|outlet| &mut outlet.branch)
    }

    /// Returns the id of the provider whose buffers this publisher sends.
    pub fn provider(&self) -> ProviderId {
        self.rules.provider
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.meeting.is_ours() {
            // C1
            self.meeting.header().close();
            // C2
            self.outlets.iter().for_each(|outlet| outlet.branch.close());
            // A drop must not need memory. Without heap, the receivers find the meeting's lock
            // free, and a sweep removes what killed ones left.
            let meeting = Some(self.meeting.clone()).filter(|_| has_heap(HEAP));
            for (seat, id) in meeting.iter().flat_map(Meeting::announced).filter(|&(_, id)| id != 0) {
                let name = layout::branch_name(&self.names, &self.channel, id);
                if id != self.seen[seat.at()] {
                    // C3
                    let found = self.find(seat, &name).ok().flatten();
                    found.iter().for_each(|(object, _)| object.close());
                }
                // Removes a killed receiver's branch. A living receiver holds its branch's lock.
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
