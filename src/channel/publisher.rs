//! The publisher: one sender, many receivers, each with a [branch] of its own.
//!
//! A send:
//!
//! 1. Open the branches of new receivers and send them the history; drop those of closed or dead
//!    ones.
//! 2. Find room, by each receiver's rule. Only the sender fills slots, so room once found stays.
//!    Receivers with [`OnFull::Block`] are waited for together, until the *stall* deadline, which
//!    starts with the first message for which one has no room. Past it, the receiver is skipped
//!    until it has room, or disconnected. If the call may not wait that long, no receiver gets the
//!    message.
//! 3. For each receiver: lend it the buffer and fill its slot.
//! 4. One full fence for all bells, then ring those whose receivers sleep.
//! 5. Off the receivers' path: make room for the next message where the rule is to withdraw the
//!    oldest and, after a buffer, collect returned loans.
//!
//! Killed between 3 and 5, a publisher leaves one message too many for a receiver that keeps the
//! latest. Step 2 withdraws a buffer only if such a receiver has used up its loans.
//!
//! Dropping a branch leaves its loans to the pool (see `lender`), including a message sent while
//! the receiver closed.
//!
//! # Disconnecting a receiver
//!
//! | step | publisher | what is left if it dies here |
//! |---|---|---|
//! | E1 | store in the branch that its receiver is disconnected: Release | the kernel rings; the receiver gets the messages that wait, and then the error of E2 |
//! | E2 | leave the bell, which wakes the receiver | the same |
//! | E3 | claim each message that waits, and drop its buffer | the same, for the messages that are left |
//! | E4 | drop the branch | the loans of the messages received, as if the publisher had closed |
//!
//! The receiver claims each message before it reads it (see `ring`), so E3 takes none that is read.
//! What it has received, and its seat, it keeps as a closed receiver does. The publisher waits for
//! no step of the receiver, which may be killed or stopped.

#![forbid(unsafe_code)]

use super::branch::{self, Branch, Patience, WaitedFor};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::layout::{
    self, Facts, Kind, DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN, EXTRA_SLOTS, MAX_LOANS, MAX_SEATS, MAX_SLOTS,
};
use super::message;
use super::message_type::MessageType;
use super::missed::{Missed, Reason, Sent};
use super::object::{name_process, Meeting, Object, Seat};
use super::receiver::ReceiverBuilder;
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

/// How often a wait checks for new receivers: descriptors may have been short, or the count
/// overwritten.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An upper bound on the heap that dropping a publisher needs, in bytes.
const HEAP: usize = 32 << 10;

const DEFAULT_SEATS: usize = 16;

const DEFAULT_BLOCK_LIMIT: Duration = Duration::from_secs(5);

/// By default, a receiver holds at most this part of the provider's `max_bytes`.
const DEFAULT_SHARE: usize = 4;

/// What a publisher does with a receiver that makes no room within the
/// [limit](PublisherBuilder::block_limit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStall {
    /// The default: messages are skipped for this receiver until it has room again.
    #[default]
    Skip,
    /// The receiver is disconnected, as by [`Publisher::disconnect`].
    Disconnect,
}

/// Options of a [`Publisher`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct PublisherBuilder {
    seats: usize,
    slots: usize,
    loans: usize,
    history: usize,
    on_full: OnFull,
    allow_blocking: bool,
    block_limit: Duration,
    on_stall: OnStall,
    max_bytes: Option<usize>,
    serves_joins: bool,
    mode: u32,
    spin: Duration,
    message_type: Option<MessageType>,
}

impl PublisherBuilder {
    /// Sets how many receivers there may be at a time, from 1 to 64; default 16. Each counts as one
    /// of the process's 2048 channel ends.
    pub fn receivers(mut self, receivers: usize) -> Self {
        self.seats = receivers;
        self
    }

    /// Sets how many messages a receiver may be behind, from 1 to 65,536; default 256. A receiver
    /// may [choose less](super::ReceiverBuilder::capacity).
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// Sets how many buffers a receiver may hold at a time, received or not: from 1 to 1,048,576,
    /// rounded up to a power of two; default 2048. A receiver may choose less. Each takes 16 bytes
    /// of /dev/shm and 16 bytes of heap per receiver.
    pub fn loans(mut self, loans: usize) -> Self {
        self.loans = loans;
        self
    }

    /// Sets how many bytes of buffers a receiver may hold at a time, received or not, as
    /// [`loans`](Self::loans) does for their number; default: a quarter of the provider's
    /// [`max_bytes`](crate::ProviderBuilder::max_bytes). Two buffers are always allowed.
    /// [`usize::MAX`] is no limit.
    pub fn max_bytes_per_receiver(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets the rule for receivers that do not choose one; default [`OnFull::DropOldest`].
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets whether receivers may choose [`OnFull::Block`], or are refused if they do; default
    /// `true`.
    pub fn allow_blocking(mut self, allow_blocking: bool) -> Self {
        self.allow_blocking = allow_blocking;
        self
    }

    /// Sets how long a message waits for all receivers with [`OnFull::Block`] together; default 5
    /// seconds. A receiver without room for that long, over however many calls, is *stalled*:
    /// messages skip it until it has room again. With [`Duration::MAX`] a stopped receiver stops the
    /// others. [`send_async`](Publisher::send_async) may notice up to a second later.
    pub fn block_limit(mut self, limit: Duration) -> Self {
        self.block_limit = limit;
        self
    }

    /// Sets what happens to a receiver past the [`block_limit`](Self::block_limit); default
    /// [`OnStall::Skip`].
    pub fn on_stall(mut self, on_stall: OnStall) -> Self {
        self.on_stall = on_stall;
        self
    }

    /// Sets whether a send connects receivers that have joined, and disconnects those that have
    /// closed or died, at some 20 system calls each; default `true`. If `false`, only
    /// [`serve_joins`](Publisher::serve_joins) and the calls that ask for receivers do.
    /// [`OnStall::Disconnect`] disconnects in the send nevertheless.
    pub fn joins_in_send(mut self, serve: bool) -> Self {
        self.serves_joins = serve;
        self
    }

    /// Sets how many of the last messages a new receiver gets when it is connected, at most its
    /// capacity; default 0. Their buffers stay in use.
    pub fn history(mut self, messages: usize) -> Self {
        self.history = messages;
        self
    }

    /// Sets the permission bits of the channel's objects, regardless of the umask; default `0o600`,
    /// for receivers of the same user. Other users also need the provider's
    /// [`mode`](crate::ProviderBuilder::mode) and
    /// [`ClientBuilder::owner_uid`](crate::ClientBuilder::owner_uid). See the [threat
    /// model](crate::docs::guarantees#threat-model).
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long a wait for room spins before it sleeps; default 20 µs. With
    /// [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Declares the type of the messages, for receivers that
    /// [expect](super::ReceiverBuilder::message_type) one; by default none. Neither side checks a
    /// message.
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.message_type = Some(message_type);
        self
    }

    /// Returns how many buffers of one size class, for
    /// [`Provider::reserve`](crate::Provider::reserve), the publisher takes at most with these
    /// receivers, each with the most messages that it holds received.
    ///
    /// ```
    /// use shm_pool::channel::{OnFull, Publisher, Receiver};
    ///
    /// let camera = Publisher::builder().capacity(2).max_bytes_per_receiver(usize::MAX);
    /// let (display, logger) = (Receiver::builder(), Receiver::builder().on_full(OnFull::Block));
    /// // One being filled, three waiting for the logger, the newest two of them also for the display,
    /// // one being displayed, and four being written.
    /// assert_eq!(camera.buffers([(&display, 1), (&logger, 4)]), 1 + 3 + 1 + 4);
    /// ```
    ///
    /// The sum of:
    ///
    /// * 1 being filled;
    /// * for all receivers together, the maximum of [`history`](Self::history), of `capacity` for
    ///   each one with [`OnFull::DropOldest`], and of `capacity` + 1 for each one with
    ///   [`OnFull::Block`];
    /// * `capacity` + 1 for each receiver with [`OnFull::DropNewest`]; add as many for each one
    ///   that you expect to [stall](Self::block_limit);
    /// * the messages received and not yet dropped.
    ///
    /// [`max_bytes_per_receiver`](Self::max_bytes_per_receiver) is not taken into account. Set it
    /// too: its default may be less than one receiver needs.
    pub fn buffers<'a>(&self, receivers: impl IntoIterator<Item = (&'a ReceiverBuilder, usize)>) -> usize {
        let (mut newest, mut others) = (self.history.min(self.slots), 0);
        for (receiver, views) in receivers {
            let (capacity, on_full) = receiver.behind(self.slots, self.on_full);
            match on_full {
                OnFull::DropOldest => newest = newest.max(capacity),
                OnFull::Block => newest = newest.max(capacity + 1),
                OnFull::DropNewest => others += capacity + 1,
            }
            others += views;
        }
        1 + newest + others
    }

    /// Creates the channel `name`, for buffers of `provider`. For valid names, see
    /// [`SenderBuilder::create`](super::SenderBuilder::create).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::OutOfRange`], [`ChannelError::Mode`],
    /// [`ChannelError::Forked`], [`ChannelError::NameTaken`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::WrongUid`], [`ChannelError::TooManyEnds`], [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Publisher, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        self.try_create(provider, &object, name).map_err(|error| name_process(error, &object))
    }

    /// Like [`create`](Self::create), but waits, for at most `timeout`, while a predecessor that is
    /// still exiting has the name.
    ///
    /// # Errors
    ///
    /// See [`create`](Self::create). [`ChannelError::NameTaken`] names the predecessor's process.
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
        MessageType::check(&self.message_type)?;
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
        let meeting = Arc::new(Meeting::create(object, &facts, self.mode, self.message_type.as_ref())?);
        Ok(Publisher {
            meeting,
            rules: facts,
            admits_others: admits_others(self.mode),
            names: provider.names().clone(),
            channel: name.to_owned(),
            pool: Arc::downgrade(provider.pool()),
            // All at once, so that a send never moves them.
            outlets: Vec::with_capacity(self.seats),
            sent: 0,
            seen: [0; MAX_SEATS],
            refused: [(0, 0); MAX_SEATS],
            arrivals: 0,
            history: VecDeque::new(),
            history_len: self.history.min(self.slots),
            interrupts: Interrupts::new(),
            block_limit: self.block_limit,
            on_stall: self.on_stall,
            max_bytes: self.max_bytes.unwrap_or(provider.pool().limits.max_bytes / DEFAULT_SHARE),
            serves_joins: self.serves_joins,
            spin: self.spin,
        })
    }
}

/// A snapshot of a receiver of a [`Publisher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverState {
    /// A random id, part of the name of the receiver's object:
    /// `{prefix}.{channel}.{id:016x}.branch`.
    pub id: u64,
    /// The id of its process, as stated by that process, in its own PID namespace.
    pub process: Option<u32>,
    /// The rule for when it falls behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many messages wait for it.
    pub waiting: usize,
    /// How many buffers it holds, received or not.
    pub loaned: usize,
    /// How many messages it has missed since it joined, by reason.
    pub missed: Missed,
    /// `true` if it is past the [`block_limit`](PublisherBuilder::block_limit) and has no room yet.
    pub is_stalled: bool,
}

/// Sends messages to several receivers, which may join and leave. See the [module](super).
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
///     assert_eq!(publisher.send(frame.freeze())?.receivers, 2); // without a copy
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
    admits_others: bool,
    names: Namespace,
    channel: String,
    pool: Weak<Pool>,
    /// Those with [`OnFull::Block`] first: nothing is withdrawn for a message that is not sent.
    outlets: Vec<Outlet>,
    sent: u64,
    seen: [u64; MAX_SEATS],
    /// The receiver last refused at each seat, and `sent` at its first refusal.
    refused: [(u64, u64); MAX_SEATS],
    arrivals: u32,
    history: VecDeque<Kept>,
    history_len: usize,
    interrupts: Arc<Interrupts>,
    block_limit: Duration,
    on_stall: OnStall,
    max_bytes: usize,
    serves_joins: bool,
    spin: Duration,
}

enum Kept {
    Buffer(ShmBuf),
    Bytes(Words),
}

impl Kept {
    /// As in [`Branch::reserve`].
    fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.capacity(),
            Self::Bytes(_) => 0,
        }
    }
}

struct Outlet {
    branch: Branch,
    id: u64,
    process: Option<u32>,
    /// How many messages were not sent to it, modulo 2^32.
    skipped: u32,
    missed: Missed,
    outcome: Outcome,
    /// Set by the first message for which it had no room.
    stall: Option<Stall>,
    /// `true` if messages were withdrawn for the one being sent.
    has_lost: bool,
    /// How many messages have found no loan, and whether the last one that needed one has.
    limit_reached: u64,
    is_at_limit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Gone,
    Taken,
    Skipped(Reason),
}

/// The wait for a receiver, over however many messages.
#[derive(Clone, Copy)]
struct Stall {
    /// Until when.
    end: Deadline,
    /// For the largest message that it had no room for, in bytes as in [`Branch::reserve`].
    bytes: usize,
    /// The largest one that it has had room for since. It is waited for anew for one that is no
    /// larger.
    met: Option<usize>,
}

impl Stall {
    fn is_over(stall: Option<Self>) -> bool {
        stall.is_some_and(|stall| stall.end.has_passed())
    }
}

impl Outlet {
    fn new(branch: Branch, id: u64, not_connected: u64) -> Self {
        let process = branch.object.receiver_process();
        let missed = Missed { not_connected, ..Missed::default() };
        branch.note_missed(&missed);
        let (skipped, outcome, stall, has_lost) = (not_connected as u32, Outcome::Gone, None, false);
        Self { branch, id, process, skipped, missed, outcome, stall, has_lost, limit_reached: 0, is_at_limit: false }
    }

    fn is_taker(&self) -> bool {
        self.outcome == Outcome::Taken
    }

    /// Waits for room and, for a buffer, a loan, at most until the stall deadline.
    #[inline]
    fn wait(
        &mut self,
        bytes: usize,
        budget: Duration,
        patience: Patience,
        limit: &mut Limit,
    ) -> Result<(), SendErrorKind> {
        self.outcome = match self.branch.reserve(bytes, Duration::ZERO, Patience::None) {
            Ok(()) => {
                if self.stall.is_some() {
                    self.note_room(bytes);
                }
                Outcome::Taken
            }
            Err(kind) => self.wait_for_room(kind, bytes, budget, patience, limit)?,
        };
        Ok(())
    }

    #[cold]
    fn wait_for_room(
        &mut self,
        kind: SendErrorKind,
        bytes: usize,
        budget: Duration,
        patience: Patience,
        limit: &mut Limit,
    ) -> Result<Outcome, SendErrorKind> {
        if matches!(kind, SendErrorKind::TooManyLoans { .. }) {
            self.reach_limit();
            self.branch.ring();
        }
        self.start_clock(bytes, limit);
        if Stall::is_over(self.stall) {
            return Ok(Outcome::Skipped(Reason::Stalled));
        }
        let Patience::Until(deadline) = patience else { return Err(kind) };
        let patience = Patience::Until(Deadline::first(deadline, self.stall.map(|stall| stall.end)));
        match self.branch.reserve(bytes, budget, patience) {
            Ok(()) => {
                self.note_room(bytes);
                Ok(Outcome::Taken)
            }
            // The next send drops its branch.
            Err(SendErrorKind::Disconnected) => Ok(Outcome::Gone),
            Err(SendErrorKind::TimedOut) if Stall::is_over(self.stall) => Ok(Outcome::Skipped(Reason::Stalled)),
            Err(kind) => Err(kind),
        }
    }

    /// Returns `true` if a living receiver has no room for a message.
    fn is_short_of(&self, bytes: usize) -> bool {
        !self.branch.is_gone() && !self.branch.is_ready_for(bytes)
    }

    /// Starts the clock if it does not run for such a message.
    fn start_clock(&mut self, bytes: usize, limit: &mut Limit) {
        let stall = self.stall.filter(|stall| !self.branch.is_ready_for(stall.bytes));
        let largest = stall.map_or(bytes, |stall| stall.bytes.max(bytes));
        let running = stall.filter(|stall| stall.met.map_or(true, |met| met < bytes));
        let stall = running.or_else(|| limit.deadline().map(|end| Stall { end, bytes, met: None }));
        self.stall = stall.map(|stall| Stall { bytes: largest, ..stall });
    }

    /// There is room for this message: ends the stall, unless that was for a larger one.
    #[cold]
    fn note_room(&mut self, bytes: usize) {
        let met = |stall: Stall| Stall { met: stall.met.max(Some(bytes)), ..stall };
        self.stall = self.stall.filter(|stall| !self.branch.is_ready_for(stall.bytes)).map(met);
    }

    /// Finds room without waiting, withdrawing buffers for their loans by the rule.
    #[inline]
    fn make_room(&mut self, bytes: usize) {
        let branch = &mut self.branch;
        let has_room = branch.is_ready() || branch.has_room();
        self.outcome = match has_room {
            true if branch.has_loan(bytes) || self.withdraw_for(bytes) => Outcome::Taken,
            true => Outcome::Skipped(Reason::TooManyLoans),
            false => Outcome::Skipped(Reason::Full),
        };
        if let Outcome::Skipped(reason) = self.outcome {
            self.leave_out(reason);
        }
    }

    #[cold]
    fn withdraw_for(&mut self, bytes: usize) -> bool {
        let may_withdraw = self.branch.on_full == OnFull::DropOldest && self.branch.can_make_room(bytes);
        while may_withdraw && self.branch.withdraw_buffer() {
            self.note_withdrawn();
            if self.branch.has_loan(bytes) {
                return true;
            }
        }
        false
    }

    #[cold]
    fn note_withdrawn(&mut self) {
        self.has_lost = true;
        self.missed.withdrawn += 1;
        self.branch.note_missed(&self.missed);
    }

    /// Step 5. Returns `true` if a message was withdrawn since the last call.
    #[inline]
    fn look_for_room(&mut self) -> bool {
        if self.branch.look_for_room() {
            self.note_withdrawn();
        }
        std::mem::take(&mut self.has_lost)
    }

    #[cold]
    fn leave_out(&mut self, reason: Reason) {
        self.skipped = self.skipped.wrapping_add(1);
        self.missed.count(reason);
        self.branch.note_missed(&self.missed);
        if reason == Reason::TooManyLoans {
            self.reach_limit();
        }
    }

    /// L1. The caller rings.
    fn reach_limit(&mut self) {
        self.limit_reached += 1;
        self.is_at_limit = true;
        self.branch.object.shared().missed().limit().reach(self.limit_reached);
    }

    #[inline]
    fn lend(&mut self, place: (u64, u64, u64), buffer: ShmBuf) {
        if self.is_taker() {
            self.branch.lend(place, buffer, self.skipped);
            if self.is_at_limit {
                self.is_at_limit = false;
                self.branch.object.shared().missed().limit().clear(self.limit_reached);
                // L2
            }
        }
    }

    #[inline]
    fn fill(&mut self, words: &Words) {
        if self.is_taker() {
            self.branch.fill(&message::after(words, self.skipped));
        }
    }

    fn state(&self) -> ReceiverState {
        ReceiverState {
            id: self.id,
            process: self.process,
            on_full: self.branch.on_full,
            capacity: self.branch.object.shared().capacity(),
            waiting: self.branch.waiting(),
            loaned: self.branch.loaned(),
            missed: self.missed,
            is_stalled: Stall::is_over(self.stall) && self.stall.is_some_and(|stall| self.is_short_of(stall.bytes)),
        }
    }
}

/// The stall deadline of one message: the clock is read only if a receiver has no room.
struct Limit {
    time: Duration,
    deadline: Option<Option<Deadline>>,
}

impl Limit {
    fn deadline(&mut self) -> Option<Deadline> {
        *self.deadline.get_or_insert_with(|| Deadline::after(self.time))
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
            block_limit: DEFAULT_BLOCK_LIMIT,
            on_stall: OnStall::default(),
            max_bytes: None,
            serves_joins: true,
            mode: 0o600,
            spin: DEFAULT_SPIN,
            message_type: None,
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

    /// Sends a buffer to all receivers, and returns to how many, and why others were skipped.
    /// Blocks until every receiver with [`OnFull::Block`] has room and a loan, at most for the
    /// [`block_limit`](PublisherBuilder::block_limit).
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::OtherProvider`]; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    /// Then no receiver gets the message, and the error contains the buffer.
    #[inline]
    pub fn send(&mut self, buffer: ShmBuf) -> Result<Sent, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::Until(None))
    }

    /// Like [`send`](Self::send), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if the call would wait for room,
    /// [`SendErrorKind::TooManyLoans`] if it would wait for a loan, and those of
    /// [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBuf) -> Result<Sent, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::None)
    }

    /// Like [`send`](Self::send), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`] if that ends before the [`block_limit`](PublisherBuilder::block_limit),
    /// and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(&mut self, buffer: ShmBuf, timeout: Duration) -> Result<Sent, SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::of(timeout))
    }

    #[inline]
    fn send_buffer(&mut self, message: ShmBuf, patience: Patience) -> Result<Sent, SendError<ShmBuf>> {
        let fail = |kind, message| Err(SendError { kind, message });
        if let Err(kind) = self.check_fork() {
            return fail(kind, message);
        }
        let (found, expected) = (message.provider(), self.rules.provider);
        if found != expected {
            return fail(SendErrorKind::OtherProvider { found, expected }, message);
        }
        let mut sent = match self.prepare(message.capacity(), patience) {
            Ok(sent) => sent,
            Err(kind) => return fail(kind, message),
        };
        let place = message.place();
        if self.history_len > 0 {
            self.keep(Kept::Buffer(message.clone()));
        }
        let mut handles = message.copies(sent.receivers);
        for outlet in self.outlets.iter_mut().filter(|outlet| outlet.is_taker()) {
            // There are as many handles as takers.
            if let Some(handle) = handles.next() {
                outlet.lend(place, handle);
            }
        }
        sent.withdrawn = self.ring();
        self.outlets.iter_mut().for_each(|outlet| outlet.branch.collect_some());
        Ok(sent)
    }

    /// Like [`send`](Self::send), for up to [`MAX_INLINE`](super::MAX_INLINE) bytes, inline in the
    /// slots.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<Sent, SendErrorKind> {
        self.send_inline(bytes, Patience::Until(None))
    }

    /// Like [`send_bytes`](Self::send_bytes), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], as for [`try_send`](Self::try_send), and those of
    /// [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<Sent, SendErrorKind> {
        self.send_inline(bytes, Patience::None)
    }

    /// Like [`send_bytes`](Self::send_bytes), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<Sent, SendErrorKind> {
        self.send_inline(bytes, Patience::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], patience: Patience) -> Result<Sent, SendErrorKind> {
        self.check_fork()?;
        // Here, where it inlines: callers mostly know the length.
        self.send_words(&message::of_bytes(bytes)?, patience)
    }

    fn send_words(&mut self, words: &Words, patience: Patience) -> Result<Sent, SendErrorKind> {
        let mut sent = self.prepare(0, patience)?;
        if self.history_len > 0 {
            self.keep(Kept::Bytes(*words));
        }
        self.outlets.iter_mut().for_each(|outlet| outlet.fill(words));
        sent.withdrawn = self.ring();
        Ok(sent)
    }

    /// Like [`send`](Self::send), but waits without blocking the thread. Dropping the future before
    /// it is ready drops the buffer unsent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBuf) -> Result<Sent, SendError<ShmBuf>> {
        let bytes = buffer.capacity();
        branch::send(self, buffer, bytes, Self::try_send, Self::waited_for).await
    }

    /// Like [`send_async`](Self::send_async), for up to [`MAX_INLINE`](super::MAX_INLINE) bytes.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<Sent, SendErrorKind> {
        let try_send = |publisher: &mut Self, message| {
            publisher.try_send_bytes(message).map_err(|kind| SendError { kind, message })
        };
        branch::send(self, bytes, 0, try_send, Self::waited_for).await.map_err(|error| error.kind)
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        self.meeting.is_ours().then_some(()).ok_or(SendErrorKind::Forked)
    }

    /// Steps 1 and 2. Returns what becomes of the message.
    #[inline]
    fn prepare(&mut self, bytes: usize, patience: Patience) -> Result<Sent, SendErrorKind> {
        if self.serves_joins {
            self.meet();
        }
        let (mut sent, mut is_one_gone) = (Sent::default(), false);
        let mut limit = Limit { time: self.block_limit, deadline: None };
        for outlet in &mut self.outlets {
            if outlet.branch.is_gone() {
                outlet.outcome = Outcome::Gone;
                is_one_gone = true;
                continue;
            }
            match outlet.branch.on_full {
                OnFull::Block => {
                    if let Err(kind) = outlet.wait(bytes, self.spin, patience, &mut limit) {
                        self.give_up(bytes, &mut limit);
                        return Err(kind);
                    }
                }
                OnFull::DropNewest | OnFull::DropOldest => outlet.make_room(bytes),
            }
            match outlet.outcome {
                Outcome::Taken => sent.receivers += 1,
                Outcome::Skipped(reason) => sent.count(reason),
                Outcome::Gone => {}
            }
        }
        if sent.stalled > 0 {
            self.leave_out_stalled();
        }
        if is_one_gone && self.serves_joins {
            self.let_go();
        }
        self.sent += 1;
        Ok(sent)
    }

    /// The message is not sent, because a receiver has no room. The clocks of the others that have
    /// none start too, so that all end together.
    #[cold]
    fn give_up(&mut self, bytes: usize, limit: &mut Limit) {
        let waited_for = self.outlets.iter_mut().filter(|outlet| outlet.branch.on_full == OnFull::Block);
        waited_for.filter(|outlet| outlet.is_short_of(bytes)).for_each(|outlet| outlet.start_clock(bytes, limit));
        if self.serves_joins && self.is_one_gone() {
            self.let_go();
        }
    }

    /// Once no receiver is waited for any more, so that the message is sent.
    #[cold]
    fn leave_out_stalled(&mut self) {
        let is_stalled = |outlet: &Outlet| outlet.outcome == Outcome::Skipped(Reason::Stalled);
        let stalled = self.outlets.iter_mut().filter(|outlet| is_stalled(outlet));
        stalled.for_each(|outlet| outlet.leave_out(Reason::Stalled));
        if self.on_stall == OnStall::Disconnect {
            while let Some(at) = self.outlets.iter().position(is_stalled) {
                self.evict(at);
            }
        }
    }

    /// Steps 4 and 5, except for returned loans. Returns from how many receivers a message was
    /// withdrawn.
    #[inline]
    fn ring(&mut self) -> usize {
        fence(Ordering::SeqCst); // W2 of all bells (see `bell`)
        let is_news = |outcome| matches!(outcome, Outcome::Taken | Outcome::Skipped(Reason::TooManyLoans));
        let rung = self.outlets.iter().filter(|outlet| is_news(outlet.outcome));
        rung.for_each(|outlet| outlet.branch.object.shared().to_receiver().ring_after_fence());
        self.outlets.iter_mut().map(|outlet| usize::from(outlet.look_for_room())).sum()
    }

    #[inline]
    fn meet(&mut self) {
        let arrivals = self.meeting.header().arrivals();
        if arrivals != self.arrivals {
            self.admit(arrivals, MAX_SEATS);
        }
    }

    fn is_one_gone(&self) -> bool {
        self.outlets.iter().any(|outlet| outlet.branch.is_gone())
    }

    fn look_around(&mut self) {
        if self.is_one_gone() {
            self.let_go();
        }
        self.meet();
    }

    /// Connects one receiver that has joined, or disconnects those that have closed or died.
    /// Returns `true` if it did: then call it again, when there is time. For a real-time publisher,
    /// which sets [`joins_in_send`](PublisherBuilder::joins_in_send) to `false`. In a forked child
    /// it does nothing.
    pub fn serve_joins(&mut self) -> bool {
        if !self.meeting.is_ours() {
            return false;
        }
        if self.is_one_gone() {
            self.let_go();
            return true;
        }
        let arrivals = self.meeting.header().arrivals();
        arrivals != self.arrivals && self.admit(arrivals, 1) > 0
    }

    /// Disconnects a receiver, which may be stopped. Returns `false` if none with this
    /// [`id`](ReceiverState::id) is connected.
    ///
    /// Withdraws the messages that it has not received; its next receive returns
    /// [`RecvError::Evicted`](super::RecvError::Evicted). It may read on what it has received, and
    /// join again once it and all of that are dropped.
    pub fn disconnect(&mut self, receiver: u64) -> bool {
        let at = self.outlets.iter().position(|outlet| outlet.id == receiver);
        at.filter(|_| self.meeting.is_ours()).map(|at| self.evict(at)).is_some()
    }

    /// E1 to E4.
    #[cold]
    fn evict(&mut self, at: usize) {
        let mut outlet = self.outlets.remove(at);
        outlet.missed.withdrawn += outlet.branch.evict();
        outlet.branch.note_missed(&outlet.missed);
        event!(info, channel = self.channel, receiver = outlet.id, loaned = outlet.branch.loaned(), "receiver evicted");
        self.interrupts.aim(Asleep::Nowhere);
    }

    /// Drops the branches of receivers that are closed or dead (their lock is free).
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

    /// P2 and P3, for the first receivers only, up to `most`. Returns how many were connected.
    #[cold]
    fn admit(&mut self, arrivals: u32, most: usize) -> usize {
        let (mut are_all_seen, mut admitted) = (true, 0);
        let meeting = self.meeting.clone();
        for (seat, id) in meeting.announced() {
            let at = seat.at();
            // Ids may have been copied to other seats.
            if id == self.seen[at] || self.outlets.iter().any(|outlet| outlet.id == id) {
                continue;
            }
            if admitted == most {
                are_all_seen = false;
                break;
            }
            // All earlier receivers of that seat, whose lock the new one holds, have left.
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
                    admitted += usize::from(outlet.is_some());
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
        admitted
    }

    fn add(&mut self, outlet: Option<Outlet>) {
        let Some(outlet) = outlet else { return };
        let waited_for = self.outlets.partition_point(|other| other.branch.on_full == OnFull::Block);
        let at = if outlet.branch.on_full == OnFull::Block { waited_for } else { self.outlets.len() };
        self.outlets.insert(at, outlet);
    }

    /// Returns the branch of a receiver that is alive, if it is valid.
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
        // Last, because it cannot be undone. An id may appear twice: a second lender for one
        // receiver would reclaim its messages while it reads them.
        let Some(object) = object.meet(&name)? else { return Ok(None) };
        let branch =
            Branch::new(object, loans, facts.on_full, self.max_bytes, interrupts, self.pool.upgrade().as_deref());
        let newest = self.history.iter().rev().take(branch.object.shared().capacity());
        let kept = branch.fitting(newest.map(Kept::bytes));
        // The history has some of the messages that it missed.
        let mut outlet = Outlet::new(branch, id, missed.saturating_sub(kept as u64));
        for kept in self.history.iter().skip(self.history.len() - kept) {
            outlet.make_room(kept.bytes());
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

    /// Returns the connected receivers, those with [`OnFull::Block`] first; in a forked child,
    /// none.
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

    /// Blocks until `count` receivers or more are connected, for at most `timeout`, or without
    /// limit with [`Duration::MAX`].
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

    /// Blocks until all connected receivers have received everything, for at most `timeout`. Skips
    /// receivers that close or die. Then publisher and provider can be dropped without loss.
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

    /// Returns the branch of the first receiver to wait for, and until when.
    fn waited_for(&mut self, bytes: usize) -> Option<WaitedFor<'_>> {
        let mut outlets = self.outlets.iter_mut().filter(|outlet| outlet.branch.on_full == OnFull::Block);
        let outlet = outlets.find(|outlet| !Stall::is_over(outlet.stall) && outlet.is_short_of(bytes))?;
        Some((&mut outlet.branch, outlet.stall.map(|stall| stall.end)))
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
            // A drop must not need memory: without heap, receivers find the lock free.
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
