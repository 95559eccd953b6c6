//! The publisher: one sender, many receivers, each with a [branch] of its own.
//!
//! A send:
//!
//! 1. Open the branches of new receivers and send them the history; drop those of closed or dead
//!    ones.
//! 2. Find room, by each receiver's rule: wait for it, or skip the receiver. Only the sender fills
//!    slots, so room once found stays. If a receiver with [`OnFull::Block`] makes no room in time,
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
//! Dropping a branch leaves its loans to the pool (see `lender`), including a message sent while
//! the receiver closed.

#![forbid(unsafe_code)]

use super::branch::{self, Branch, Patience};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::layout::{
    self, Facts, Kind, DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN, EXTRA_SLOTS, MAX_LOANS, MAX_SEATS, MAX_SLOTS,
};
use super::message;
use super::object::{name_process, Meeting, Object, Seat};
use super::ring::{OnFull, Words};
use super::sleeper::{Asleep, Interrupter, Interrupts};
use super::watch::Attempts;
use crate::os::futex::Deadline;
use crate::os::name::{Name, Namespace};
use crate::os::posix::{admits_others, effective_uid, has_heap, is_object_mode};
use crate::owner::buf::ShmBuf;
use crate::owner::pool::Pool;
use crate::owner::provider::Provider;
use crate::protocol::control::CHANNEL_MAGIC;
use crate::protocol::ids::ProviderId;
use crate::protocol::sweep::remove_dead;
use crate::sync::{fence, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a wait checks for new receivers: the publisher may have been short of descriptors, or
/// another process may have overwritten the count.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An upper bound on the heap that dropping a publisher needs.
const HEAP: usize = 32 << 10;

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
    allow_blocking: bool,
    mode: u32,
    spin: Duration,
}

impl PublisherBuilder {
    /// Sets how many receivers there may be at a time, from 1 to 64; default 16. Each seat, even a
    /// free one, counts as one of the 2048 channel ends that a process may have. A closed receiver
    /// keeps its seat until the last message that it received is dropped.
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

    /// Sets the rule for receivers that do not choose one; default [`OnFull::DropOldest`].
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets whether a receiver may choose [`OnFull::Block`]; default `true`. If `false`, such
    /// receivers are refused.
    pub fn allow_blocking(mut self, allow_blocking: bool) -> Self {
        self.allow_blocking = allow_blocking;
        self
    }

    /// Sets how many of the last messages a new receiver gets, at most its capacity; default 0. It
    /// gets them when the publisher next sends, or is asked for its receivers
    /// ([`Publisher::receivers`], [`Publisher::wait_for_receivers`]). Their buffers stay in use.
    pub fn history(mut self, messages: usize) -> Self {
        self.history = messages;
        self
    }

    /// Sets the permission bits of the channel's object, regardless of the umask; default `0o600`,
    /// for receivers of the same user. Receivers of other users also need the provider's
    /// [`mode`](crate::ProviderBuilder::mode) and
    /// [`ClientBuilder::owner_uid`](crate::ClientBuilder::owner_uid). The objects that they create
    /// have these bits and the group of the channel's object. With `0o660` and a group, only its
    /// members can write to them. See the [threat model](crate::docs::guarantees#threat-model).
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long [`send`](Publisher::send) spins, waiting for room, before it sleeps; default
    /// 20 µs. With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Creates the channel `name`, for buffers of `provider`. For valid names, see
    /// [`SenderBuilder::create`](super::SenderBuilder::create).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::OutOfRange`], [`ChannelError::Mode`],
    /// [`ChannelError::Forked`],
    /// [`ChannelError::NameTaken`],
    /// [`ChannelError::NotAChannel`], [`ChannelError::WrongUid`], [`ChannelError::TooManyEnds`],
    /// [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Publisher, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        self.try_create(provider, &object, name).map_err(|error| name_process(error, &object))
    }

    /// Like [`create`](Self::create), but waits, for at most `timeout`, while a live sender has
    /// the name: a predecessor that is still exiting.
    ///
    /// # Errors
    ///
    /// See [`create`](Self::create). [`ChannelError::NameTaken`] names the process of the
    /// predecessor, which may be stopped or hang.
    pub fn create_timeout(self, provider: &Provider, name: &str, timeout: Duration) -> Result<Publisher, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        let is_taken = |error: &ChannelError| matches!(error, ChannelError::NameTaken { .. });
        let made = Attempts::run(object.clone(), timeout, is_taken, || self.try_create(provider, &object, name));
        made.map_err(|error| name_process(error, &object))
    }

    fn try_create(&self, provider: &Provider, object: &Name, name: &str) -> Result<Publisher, ChannelError> {
        ChannelError::check("receivers", self.seats, 1, MAX_SEATS)?;
        ChannelError::check("capacity", self.slots, 1, MAX_SLOTS)?;
        ChannelError::check("loans", self.loans, 1, MAX_LOANS)?;
        if !is_object_mode(self.mode) {
            return Err(ChannelError::Mode { mode: self.mode });
        }
        // First: in a forked child, a thread that does not exist there may hold a lock.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        let facts = Facts {
            kind: Kind::Meeting,
            provider: provider.id(),
            slots: self.slots + EXTRA_SLOTS,
            loans: self.loans.next_power_of_two(),
            seats: self.seats,
            on_full: self.on_full,
            allow_blocking: self.allow_blocking,
        };
        let meeting = Arc::new(Meeting::create(object, &facts, self.mode)?);
        Ok(Publisher {
            meeting,
            rules: facts,
            admits_others: admits_others(self.mode),
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

/// A snapshot of a receiver of a [`Publisher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverState {
    /// A random id, part of the name of the object that publisher and receiver share:
    /// `{prefix}.{channel}.{id:016x}.branch`.
    pub id: u64,
    /// The rule for when it falls behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many messages wait for it. Unless the rule is [`OnFull::DropOldest`], this includes the
    /// last one received, until the receiver asks for the next.
    pub waiting: usize,
    /// How many buffers it holds, received or not.
    pub loaned: usize,
    /// How many messages it has missed since it joined: those withdrawn, and those never sent to
    /// it.
    pub dropped: u64,
}

/// Sends messages to several receivers, up to [a number](PublisherBuilder::receivers) set at
/// creation, which may join and leave at any time. See the [module documentation](super).
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
/// let mut logger = Receiver::builder().on_full(OnFull::Block).open(&client, &name)?;
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
    /// Whether receivers may belong to other users.
    admits_others: bool,
    names: Namespace,
    channel: String,
    pool: Weak<Pool>,
    /// Those with [`OnFull::Block`] precede the others, so that nothing is withdrawn for a message
    /// that is not sent.
    outlets: Vec<Outlet>,
    /// How many messages were sent, to however many receivers.
    sent: u64,
    seen: [u64; MAX_SEATS],
    /// The receiver last refused at each seat, and `sent` at its first refusal.
    refused: [(u64, u64); MAX_SEATS],
    arrivals: u32,
    history: VecDeque<Kept>,
    history_len: usize,
    interrupts: Arc<Interrupts>,
    spin: Duration,
}

enum Kept {
    Buffer(ShmBuf),
    Bytes(Words),
}

struct Outlet {
    branch: Branch,
    id: u64,
    /// How many messages were not sent to it, modulo 2^32.
    skipped: u32,
    /// How many messages it did not get, including withdrawn ones.
    dropped: u64,
    /// `true` if this receiver gets the message being sent.
    is_taker: bool,
}

impl Outlet {
    /// Waits for room and, for a buffer, a loan.
    #[inline]
    fn wait(&mut self, is_buffer: bool, budget: Duration, patience: Patience) -> Result<(), SendErrorKind> {
        match self.branch.reserve(is_buffer, budget, patience) {
            // The next send drops its branch.
            Err(SendErrorKind::Disconnected) => {}
            reserved => {
                reserved?;
                self.is_taker = true;
            }
        }
        Ok(())
    }

    /// Finds room without waiting, withdrawing a buffer for its loan if the rule says so.
    #[inline]
    fn make_room(&mut self, is_buffer: bool) {
        let branch = &mut self.branch;
        let has_room = branch.is_ready() || branch.has_room();
        self.is_taker = has_room && branch.has_loan(is_buffer);
        if has_room && !self.is_taker && branch.on_full == OnFull::DropOldest && branch.withdraw_buffer() {
            self.dropped += 1;
            self.is_taker = branch.has_loan(is_buffer);
        }
        if !self.is_taker {
            self.leave_out();
        }
    }

    /// Checks for room for the next message, and withdraws one if the rule says so.
    #[inline]
    fn look_for_room(&mut self) {
        self.dropped += u64::from(self.branch.look_for_room());
    }

    #[cold]
    fn leave_out(&mut self) {
        self.skipped = self.skipped.wrapping_add(1);
        self.dropped += 1;
    }

    #[inline]
    fn lend(&mut self, place: (u64, u64, u64), buffer: ShmBuf) {
        if self.is_taker {
            self.branch.lend(place, buffer, self.skipped);
        }
    }

    #[inline]
    fn fill(&mut self, words: &Words) {
        if self.is_taker {
            self.branch.fill(&message::after(words, self.skipped));
        }
    }

    fn state(&self) -> ReceiverState {
        ReceiverState {
            id: self.id,
            on_full: self.branch.on_full,
            capacity: self.branch.object.shared().capacity(),
            waiting: self.branch.waiting(),
            loaned: self.branch.loaned(),
            dropped: self.dropped,
        }
    }
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
            allow_blocking: true,
            mode: 0o600,
            spin: DEFAULT_SPIN,
        }
    }

    /// Creates a channel with the default options.
    ///
    /// # Errors
    ///
    /// See [`PublisherBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Sends a buffer to all receivers, and returns to how many. Blocks until every receiver with
    /// [`OnFull::Block`] has room and a loan. Without any receiver or
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
    /// [`SendErrorKind::Full`] if a receiver with [`OnFull::Block`] has no room;
    /// [`SendErrorKind::TooManyLoans`] if it has no free loan; and those of [`send`](Self::send).
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
    /// [`SendErrorKind::Full`] if a receiver with [`OnFull::Block`] has no room, and those of
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
        // Here, where it inlines: callers mostly know the length.
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

    /// Sends a buffer to all receivers, and waits without blocking the thread for each receiver
    /// with [`OnFull::Block`] that has no free slot. An error returns the buffer. If the future is
    /// dropped before it is ready, so is the buffer, and nothing is sent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        branch::send(self, buffer, true, Self::try_send, Self::waited_for).await
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes to all receivers, and waits as
    /// [`send_async`](Self::send_async) does.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        let try_send = |publisher: &mut Self, message| {
            publisher.try_send_bytes(message).map_err(|kind| SendError { kind, message })
        };
        branch::send(self, bytes, false, try_send, Self::waited_for).await.map_err(|error| error.kind)
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        self.meeting.is_ours().then_some(()).ok_or(SendErrorKind::Forked)
    }

    /// Steps 1 and 2. Returns the number of receivers that get the message.
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
                OnFull::Block => outlet.wait(is_buffer, self.spin, patience)?,
                OnFull::DropNewest | OnFull::DropOldest => outlet.make_room(is_buffer),
            }
            takers += usize::from(outlet.is_taker);
        }
        if is_one_gone {
            self.let_go();
        }
        self.sent += 1;
        Ok(takers)
    }

    /// Steps 4 and 5, except for returned loans: collecting those after inline bytes would cost
    /// more than the rest of the send.
    #[inline]
    fn ring(&mut self) {
        fence(Ordering::SeqCst); // W2 of all bells (see `bell`)
        let takers = || self.outlets.iter().filter(|outlet| outlet.is_taker);
        takers().for_each(|outlet| outlet.branch.object.shared().to_receiver().ring_after_fence());
        self.outlets.iter_mut().for_each(Outlet::look_for_room);
    }

    #[inline]
    fn meet(&mut self) {
        let arrivals = self.meeting.header().arrivals();
        if arrivals != self.arrivals {
            self.admit(arrivals);
        }
    }

    fn look_around(&mut self) {
        if self.outlets.iter().any(|outlet| outlet.branch.is_gone()) {
            self.let_go();
        }
        self.meet();
    }

    /// Drops the branches of closed and dead receivers, including those whose bell was damaged:
    /// their lock is free.
    #[cold]
    fn let_go(&mut self) {
        let is_here = |outlet: &Outlet| !outlet.branch.is_gone() && outlet.branch.object.is_receiver_locked();
        let (here, gone): (_, Vec<_>) = std::mem::take(&mut self.outlets).into_iter().partition(is_here);
        self.outlets = here;
        for outlet in gone {
            event!(
                info,
                channel = self.channel,
                receiver = outlet.id,
                loaned = outlet.branch.loaned(),
                "receiver disconnected"
            );
            outlet.branch.close();
        }
        // Its target may be a dropped receiver's bell, which would stay mapped.
        self.interrupts.aim(Asleep::Nowhere);
        // The pool drops the lenders that are over.
        if let Some(pool) = self.pool.upgrade() {
            pool.reclaim_loans();
        }
    }

    /// P2 and P3.
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
            // All earlier receivers of that seat, whose lock the new one holds, have left, even if
            // their bells are damaged.
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
                // The receiver stays announced.
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
        let waited_for = self.outlets.partition_point(|other| other.branch.on_full == OnFull::Block);
        let at = if outlet.branch.on_full == OnFull::Block { waited_for } else { self.outlets.len() };
        self.outlets.insert(at, outlet);
    }

    /// Returns the branch of a receiver, unless it is invalid or the receiver dead.
    fn find(&self, seat: Seat, name: &Name) -> Result<Option<(Object, Facts)>, ChannelError> {
        let rules = &self.rules;
        let uid = match fs::symlink_metadata(name.as_path()) {
            Ok(branch) if self.admits_others => branch.uid(),
            _ => effective_uid(),
        };
        let found = layout::open(name, uid)?;
        let facts = found.facts;
        let is_within = facts.kind == Kind::Branch
            && facts.provider == rules.provider
            && facts.slots <= rules.slots
            && facts.loans <= rules.loans
            && (rules.allow_blocking || facts.on_full != OnFull::Block);
        if !is_within || !found.has_all_its_memory(name)? {
            return Ok(None);
        }
        let object = Object::found(found, Some(seat));
        let is_here = !object.shared().to_sender().is_gone() && object.is_receiver_locked();
        Ok(is_here.then_some((object, facts)))
    }

    /// P3 to P5. Returns `None` if the branch is invalid.
    fn open(&self, seat: Seat, id: u64) -> Result<Option<Outlet>, ChannelError> {
        let name = layout::branch_name(&self.names, &self.channel, id);
        let (first_refused, sent_before) = self.refused[seat.at()];
        let missed = if first_refused == id { self.sent - sent_before } else { 0 };
        let Some((object, facts)) = self.find(seat, &name)? else { return Ok(None) };
        let (loans, interrupts) = (branch::loans(&name, facts.loans)?, self.interrupts.clone());
        // Last, because it cannot be undone. The id may appear at two seats, or again later: a
        // second lender for one receiver would reclaim its messages while it reads them.
        let Some(object) = object.meet(&name)? else { return Ok(None) };
        let branch = Branch::new(object, loans, facts.on_full, interrupts, self.pool.upgrade().as_deref());
        let kept = self.history.len().min(branch.object.shared().capacity()).min(facts.loans);
        // The history has some of the messages that it missed.
        let dropped = missed.saturating_sub(kept as u64);
        let mut outlet = Outlet { branch, id, skipped: dropped as u32, dropped, is_taker: false };
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

    /// Returns the connected receivers, those with [`OnFull::Block`] first. In a forked child there
    /// are none.
    pub fn receivers(&mut self) -> impl Iterator<Item = ReceiverState> + '_ {
        let is_ours = self.meeting.is_ours();
        if is_ours {
            self.look_around();
        }
        // In a forked child, a thread that does not exist there may hold a lock.
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
    /// [`SendErrorKind::TooManyReceivers`], at once, if `count` exceeds the number of seats;
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_for_receivers(&mut self, count: usize, timeout: Duration) -> Result<(), SendErrorKind> {
        let (deadline, max) = (Deadline::after(timeout), self.rules.seats);
        if count > max {
            return Err(SendErrorKind::TooManyReceivers { receivers: count, max });
        }
        loop {
            self.check_fork()?;
            let known = self.meeting.header().arrivals();
            self.look_around();
            // After `look_around`, which may reset this.
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
    /// [`OnFull::DropOldest`], have asked for more; for at most `timeout`. Skips receivers that
    /// close or die. Then publisher and provider can be dropped without loss.
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

    /// Returns the branch of the first receiver to wait for.
    fn waited_for(&mut self, is_buffer: bool) -> Option<&mut Branch> {
        let mut branches = self.outlets.iter_mut().filter(|outlet| outlet.branch.on_full == OnFull::Block);
        branches.find(|outlet| !outlet.branch.is_ready_for(is_buffer)).map(|outlet| &mut outlet.branch)
    }

    /// Returns how many messages a receiver may be behind at most.
    pub fn capacity(&self) -> usize {
        self.rules.slots - EXTRA_SLOTS
    }

    /// Returns how many buffers a receiver may hold at a time at most.
    pub fn loans(&self) -> usize {
        self.rules.loans
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
            // A drop must not need memory. Without heap, the receivers find the lock free, and a
            // sweep removes the branches of killed ones.
            let meeting = Some(self.meeting.clone()).filter(|_| has_heap(HEAP));
            for (seat, id) in meeting.iter().flat_map(Meeting::announced).filter(|&(_, id)| id != 0) {
                let name = layout::branch_name(&self.names, &self.channel, id);
                if id != self.seen[seat.at()] {
                    // C3
                    let found = self.find(seat, &name).ok().flatten();
                    found.iter().for_each(|(object, _)| object.close());
                }
                // A living receiver holds its branch's lock.
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
