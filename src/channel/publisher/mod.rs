//! The publisher: one sender, many receivers, each with a [connection] of its own.
//!
//! A send:
//!
//! 1. Open the connections of new receivers and send them the history; drop those of closed or dead
//!    ones.
//! 2. Find room, by each receiver's rule. Only the sender fills slots, so room once found stays.
//!    Receivers with [`OnFull::Block`] are waited for together, until the *stall* deadline, which
//!    starts with the first message for which one has no room. Past it, the receiver is skipped
//!    until it has room, or disconnected. If the call may not wait that long, no receiver gets the
//!    message.
//! 3. For each receiver: lend it the buffer and fill its slot.
//! 4. One full fence for all doorbells, then ring those whose receivers sleep.
//! 5. Off the receivers' path: make room for the next message where the rule is to withdraw the
//!    oldest and, after a buffer, collect returned buffers.
//!
//! Killed between 3 and 5, a publisher leaves one message too many for a receiver that keeps the
//! latest. Step 2 withdraws a buffer only if such a receiver has borrowed all that it may.
//!
//! Dropping a connection leaves its borrowed buffers to the ledger, including a message sent while
//! the receiver closed.
//!
//! # Disconnecting a receiver
//!
//! | step | publisher | what is left if it dies here |
//! |---|---|---|
//! | E1 | store in the connection that its receiver is disconnected: Release | the kernel notifies; the receiver gets the messages that wait, and then the error of E2 |
//! | E2 | leave the doorbell, which wakes the receiver | the same |
//! | E3 | claim each message that waits, and drop its buffer | the same, for the messages that are left |
//! | E4 | drop the connection | the borrowed buffers of the messages received, as if the publisher had closed |
//!
//! The receiver claims each message before it reads it (see `ring`), so E3 takes none that is read.
//! What it has received, and its registration, it keeps as a closed receiver does. The publisher
//! waits for no step of the receiver, which may be killed or stopped.

#![forbid(unsafe_code)]

mod builder;
mod subscription;

pub use builder::{OnStall, PublisherBuilder};
pub use subscription::ReceiverState;

use super::connection::{self, Connection, Tables, Timeout, WaitedFor};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::interrupt::{Interrupter, Interrupts};
use super::layout::{self, Facts, Kind, EXTRA_SLOTS, MAX_SUBSCRIBERS};
use super::ledger::Ledger;
use super::message::{self, Located, Reason, Sent};
use super::object::{Object, Registration, Rendezvous};
use super::ring::{OnFull, Words};
use crate::os::futex::Deadline;
use crate::os::name::{Name, Namespace};
use crate::os::posix::{effective_uid, has_heap};
use crate::owner::buf::ShmBytes;
use crate::owner::pool::PoolGuard;
use crate::owner::provider::Provider;
use crate::protocol::ids::ProviderId;
use crate::protocol::sweep;
use crate::sync::{fence, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use subscription::{BlockLimit, Outcome, Subscription};

/// How often a wait checks for new receivers: descriptors may have been short, or the count
/// overwritten.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long to wait before the first retry to connect a receiver. Doubled for each retry, up to
/// [`LOOK_AGAIN`].
const FIRST_RETRY: Duration = Duration::from_millis(1);

/// An upper bound on the heap that dropping a publisher needs, in bytes.
const HEAP: usize = 32 << 10;

/// Sends messages to several receivers, which may join and leave. See the [module](super).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{OnFull, Publisher, Subscriber};
/// use shm_pool::Provider;
/// use std::time::Duration;
///
/// # let name = format!("doc-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut publisher = Publisher::create(&provider, &name)?;
///
/// // Each of these would be a process of its own.
/// let mut logger = Subscriber::builder().on_full(OnFull::Block).open(&name)?;
/// let mut display = Subscriber::builder().capacity(2).open(&name)?;
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
    rendezvous: Arc<Rendezvous>,
    rules: Facts,
    admits_others: bool,
    names: Namespace,
    channel: String,
    /// Those with [`OnFull::Block`] first: nothing is withdrawn for a message that is not sent.
    subscriptions: Vec<Subscription>,
    ledger: Arc<Ledger>,
    sent: u64,
    seen: [u64; MAX_SUBSCRIBERS],
    /// The receiver last refused at each registration.
    refused: [Refusal; MAX_SUBSCRIBERS],
    /// When to try again to connect one of them.
    retry: Option<Deadline>,
    arrivals: u32,
    history: VecDeque<Kept>,
    history_len: usize,
    interrupts: Arc<Interrupts>,
    block_limit: Duration,
    on_stall: OnStall,
    max_bytes: usize,
    serves_joins: bool,
    spin: Option<Duration>,
    /// Dropped after the subscriptions, the history and the ledger.
    _guard: Arc<PoolGuard>,
}

/// A receiver that could not be connected, but perhaps can be later.
#[derive(Clone, Copy, Default)]
struct Refusal {
    id: u64,
    /// How many messages had been sent when it was refused first.
    sent: u64,
    /// Between the last try and the next one.
    delay: Duration,
    due: Option<Deadline>,
}

/// Returns `true` if the same call may succeed later.
fn is_temporary(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

enum Kept {
    Buffer(ShmBytes),
    Bytes(Words),
}

impl Kept {
    /// As in [`Connection::reserve`].
    fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.capacity(),
            Self::Bytes(_) => 0,
        }
    }
}

impl Publisher {
    /// Returns a builder with the default options.
    pub fn builder() -> PublisherBuilder {
        PublisherBuilder::new()
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
    /// Blocks until every receiver with [`OnFull::Block`] has room and may borrow a buffer, at most
    /// for the [`block_limit`](PublisherBuilder::block_limit).
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::OtherProvider`]; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    /// Then no receiver gets the message, and the error contains the buffer.
    #[inline]
    pub fn send(&mut self, buffer: ShmBytes) -> Result<Sent, SendError<ShmBytes>> {
        self.send_buffer(buffer, Timeout::Until(None))
    }

    /// Like [`send`](Self::send), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if the call would wait for room, [`SendErrorKind::TooManyBorrowed`]
    /// if it would wait for a receiver to return one, and those of [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBytes) -> Result<Sent, SendError<ShmBytes>> {
        self.send_buffer(buffer, Timeout::None)
    }

    /// Like [`send`](Self::send), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`] if that ends before the
    /// [`block_limit`](PublisherBuilder::block_limit), and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(
        &mut self,
        buffer: ShmBytes,
        timeout: Duration,
    ) -> Result<Sent, SendError<ShmBytes>> {
        self.send_buffer(buffer, Timeout::of(timeout))
    }

    #[inline]
    fn send_buffer(
        &mut self,
        message: ShmBytes,
        timeout: Timeout,
    ) -> Result<Sent, SendError<ShmBytes>> {
        let fail = |kind, message| Err(SendError { kind, message });
        if let Err(kind) = self.check_fork() {
            return fail(kind, message);
        }
        let (found, expected) = (message.provider(), self.rules.provider);
        if found != expected {
            return fail(SendErrorKind::OtherProvider { found, expected }, message);
        }
        let bytes = message.capacity();
        let mut sent = match self.prepare(bytes, timeout) {
            Ok(sent) => sent,
            Err(kind) => return fail(kind, message),
        };
        let located = Located::new(&message);
        if self.history_len > 0 {
            self.keep(Kept::Buffer(message.clone()));
        }
        let mut handles = message.copies(sent.receivers);
        for subscription in &mut self.subscriptions {
            if !subscription.is_taker() {
                continue;
            }
            // There are as many handles as takers.
            if let Some(handle) = handles.next() {
                subscription.lend(&located, bytes, handle);
            }
        }
        sent.withdrawn = self.notify();
        self.collect_some();
        Ok(sent)
    }

    /// Step 5, for returned buffers: a few of each receiver, if the ledger's lock is free.
    #[inline]
    fn collect_some(&mut self) {
        let mut collection = None;
        for subscription in &mut self.subscriptions {
            let account_holder = &mut subscription.connection.account_holder;
            if !account_holder.has_returned() {
                continue;
            }
            if collection.is_none() {
                collection = self.ledger.try_collect();
            }
            let Some(taken) = &mut collection else {
                return;
            };
            if !account_holder.collect_with(taken) {
                collection = None;
            }
        }
    }

    /// Like [`send`](Self::send), for up to [`MAX_INLINE`](super::MAX_INLINE) bytes, inline in the
    /// slots.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<Sent, SendErrorKind> {
        self.send_inline(bytes, Timeout::Until(None))
    }

    /// Like [`send_bytes`](Self::send_bytes), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], as for [`try_send`](Self::try_send), and those of
    /// [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<Sent, SendErrorKind> {
        self.send_inline(bytes, Timeout::None)
    }

    /// Like [`send_bytes`](Self::send_bytes), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(
        &mut self,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Sent, SendErrorKind> {
        self.send_inline(bytes, Timeout::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], timeout: Timeout) -> Result<Sent, SendErrorKind> {
        self.check_fork()?;
        // Here, where it inlines: callers mostly know the length.
        self.send_words(&message::of_bytes(bytes)?, timeout)
    }

    fn send_words(&mut self, words: &Words, timeout: Timeout) -> Result<Sent, SendErrorKind> {
        let mut sent = self.prepare(0, timeout)?;
        if self.history_len > 0 {
            self.keep(Kept::Bytes(*words));
        }
        for subscription in &mut self.subscriptions {
            subscription.fill(words);
        }
        sent.withdrawn = self.notify();
        Ok(sent)
    }

    /// Like [`send`](Self::send), but waits without blocking the thread. Dropping the future before
    /// it is ready drops the buffer unsent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBytes) -> Result<Sent, SendError<ShmBytes>> {
        let bytes = buffer.capacity();
        connection::send(self, buffer, bytes, Self::try_send, Self::waited_for).await
    }

    /// Like [`send_async`](Self::send_async), for up to [`MAX_INLINE`](super::MAX_INLINE) bytes.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<Sent, SendErrorKind> {
        let try_send = |publisher: &mut Self, message| {
            publisher
                .try_send_bytes(message)
                .map_err(|kind| SendError { kind, message })
        };
        connection::send(self, bytes, 0, try_send, Self::waited_for)
            .await
            .map_err(|error| error.kind)
    }

    /// Returns ready if [`try_send`](Self::try_send) would not wait for a receiver, and otherwise
    /// registers the task to be woken when that may be so. Only the waker of the last call is kept.
    /// For event loops, with a [`WakeFd`](crate::WakeFd). It counts as a wait for the
    /// [`block_limit`](PublisherBuilder::block_limit), whose end it may notice up to a second
    /// later.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], [`SendErrorKind::Forked`].
    pub fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
        buffer: &ShmBytes,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.poll_room(context, buffer.capacity())
    }

    /// Like [`poll_ready`](Self::poll_ready), for [`try_send_bytes`](Self::try_send_bytes).
    ///
    /// # Errors
    ///
    /// Those of [`poll_ready`](Self::poll_ready).
    pub fn poll_ready_bytes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.poll_room(context, 0)
    }

    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.check_fork()?;
        // Twice, so that a receiver that pretends to have room does not block the thread.
        for _ in 0..2 {
            let mut limit = BlockLimit::new(self.block_limit);
            for subscription in &mut self.subscriptions {
                if subscription.connection.on_full == OnFull::Block
                    && subscription.is_waited_for(bytes)
                {
                    subscription.note_wait(bytes, &mut limit);
                }
            }
            let Some((connection, _)) = self.waited_for(bytes) else {
                for subscription in &mut self.subscriptions {
                    subscription.connection.parker.disarm();
                }
                return Poll::Ready(Ok(()));
            };
            if connection.arm(context.waker(), bytes)?.is_none() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        if !self.rendezvous.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        Ok(())
    }

    /// Steps 1 and 2. Returns what becomes of the message.
    #[inline]
    fn prepare(&mut self, bytes: usize, timeout: Timeout) -> Result<Sent, SendErrorKind> {
        if self.serves_joins {
            self.meet();
        }
        let mut sent = Sent::default();
        let mut is_one_disconnected = false;
        let mut limit = BlockLimit::new(self.block_limit);
        for subscription in &mut self.subscriptions {
            if subscription.connection.is_disconnected() {
                subscription.outcome = Outcome::Disconnected;
                is_one_disconnected = true;
                continue;
            }
            match subscription.connection.on_full {
                OnFull::Block => {
                    if let Err(kind) = subscription.wait(bytes, self.spin, timeout, &mut limit) {
                        self.give_up(bytes, &mut limit);
                        return Err(kind);
                    }
                }
                OnFull::DropNewest | OnFull::DropOldest => subscription.make_room(bytes),
            }
            match subscription.outcome {
                Outcome::Taken => sent.receivers += 1,
                Outcome::Skipped(reason) => sent.count(reason),
                Outcome::Disconnected => {}
            }
        }
        if sent.stalled > 0 {
            self.leave_out_stalled();
        }
        if is_one_disconnected && self.serves_joins {
            self.drop_disconnected();
        }
        self.sent += 1;
        Ok(sent)
    }

    /// The message is not sent, because a receiver has no room. The clocks of the others that have
    /// none start too, so that all end together.
    #[cold]
    fn give_up(&mut self, bytes: usize, limit: &mut BlockLimit) {
        for subscription in &mut self.subscriptions {
            if subscription.connection.on_full == OnFull::Block && subscription.is_short_of(bytes) {
                subscription.start_clock(bytes, limit);
            }
        }
        if self.serves_joins && self.is_one_disconnected() {
            self.drop_disconnected();
        }
    }

    /// Once no receiver is waited for any more, so that the message is sent.
    #[cold]
    fn leave_out_stalled(&mut self) {
        let is_stalled =
            |subscription: &Subscription| subscription.outcome == Outcome::Skipped(Reason::Stalled);
        for subscription in &mut self.subscriptions {
            if is_stalled(subscription) {
                subscription.leave_out(Reason::Stalled);
            }
        }
        if self.on_stall == OnStall::Disconnect {
            while let Some(at) = self.subscriptions.iter().position(is_stalled) {
                self.evict(at);
            }
        }
    }

    /// Steps 4 and 5, except for returned buffers. Returns from how many receivers a message was
    /// withdrawn.
    #[inline]
    fn notify(&mut self) -> usize {
        fence(Ordering::SeqCst); // W2 of all doorbells (see `doorbell`)
        for subscription in &self.subscriptions {
            if subscription.is_taker() {
                subscription.connection.notify_after_fence();
            }
        }
        let mut withdrawn = 0;
        for subscription in &mut self.subscriptions {
            withdrawn += usize::from(subscription.look_for_room());
        }
        withdrawn
    }

    #[inline]
    fn meet(&mut self) {
        let arrivals = self.rendezvous.header().arrivals();
        if arrivals != self.arrivals || self.is_retry_due() {
            self.admit(arrivals, MAX_SUBSCRIBERS);
        }
    }

    /// Reads the clock only while a receiver cannot be connected.
    #[inline]
    fn is_retry_due(&self) -> bool {
        Deadline::is_past(self.retry)
    }

    fn is_one_disconnected(&self) -> bool {
        self.subscriptions
            .iter()
            .any(|subscription| subscription.connection.is_disconnected())
    }

    fn look_around(&mut self) {
        if self.is_one_disconnected() {
            self.drop_disconnected();
        }
        self.meet();
    }

    /// Connects one receiver that has joined, or disconnects those that have closed or died.
    /// Returns `true` if it did: then call it again, when there is time. For a real-time publisher,
    /// which sets [`joins_in_send`](PublisherBuilder::joins_in_send) to `false`. In a forked child
    /// it does nothing.
    pub fn serve_joins(&mut self) -> bool {
        if !self.rendezvous.is_ours() {
            return false;
        }
        if self.is_one_disconnected() {
            self.drop_disconnected();
            return true;
        }
        let arrivals = self.rendezvous.header().arrivals();
        let may_connect = arrivals != self.arrivals || self.is_retry_due();
        may_connect && self.admit(arrivals, 1) > 0
    }

    /// Disconnects a receiver, which may be stopped. Returns `false` if none with this
    /// [`id`](ReceiverState::id) is connected.
    ///
    /// Withdraws the messages that it has not received; its next receive returns
    /// [`RecvError::Evicted`](super::RecvError::Evicted). It may read on what it has received, and
    /// join again once it and all of that are dropped.
    pub fn disconnect(&mut self, receiver: u64) -> bool {
        if !self.rendezvous.is_ours() {
            return false;
        }
        let Some(at) = self
            .subscriptions
            .iter()
            .position(|subscription| subscription.id == receiver)
        else {
            return false;
        };
        self.evict(at);
        true
    }

    /// E1 to E4.
    #[cold]
    fn evict(&mut self, at: usize) {
        let mut subscription = self.subscriptions.remove(at);
        subscription.missed.withdrawn += subscription.connection.evict();
        subscription.connection.note_missed(&subscription.missed);
        event!(
            info,
            channel = self.channel,
            receiver = subscription.id,
            borrowed = subscription.connection.borrowed(),
            "receiver evicted"
        );
    }

    /// Disconnects the receivers that have closed or died.
    #[cold]
    fn drop_disconnected(&mut self) {
        self.disconnect_if(|subscription| subscription.connection.is_disconnected());
    }

    /// Also disconnects those whose lock is free although their doorbell, which others may write,
    /// says that they are there. A system call for each receiver.
    #[cold]
    fn disconnect_unlocked(&mut self) {
        self.disconnect_if(|subscription| {
            subscription.connection.is_disconnected()
                || !subscription.connection.object.is_receiver_locked()
        });
    }

    fn disconnect_if(&mut self, is_disconnected: impl Fn(&Subscription) -> bool) {
        while let Some(at) = self.subscriptions.iter().position(&is_disconnected) {
            let subscription = self.subscriptions.remove(at);
            event!(
                info,
                channel = self.channel,
                receiver = subscription.id,
                borrowed = subscription.connection.borrowed(),
                "receiver disconnected"
            );
            subscription.connection.close();
        }
        self.ledger.settle_closed();
    }

    /// P2 and P3, for the first receivers only, up to `most`. Returns how many were connected.
    #[cold]
    fn admit(&mut self, arrivals: u32, most: usize) -> usize {
        let mut admitted = 0;
        let mut retry = None;
        let rendezvous = self.rendezvous.clone();
        for (registration, id) in rendezvous.announced() {
            let at = registration.at();
            // Ids may have been copied to other registrations.
            if id == self.seen[at]
                || self
                    .subscriptions
                    .iter()
                    .any(|subscription| subscription.id == id)
            {
                continue;
            }
            let refused = self.refused[at];
            if refused.id == id && !Deadline::is_past(refused.due) {
                retry = Deadline::first(retry, refused.due);
                continue;
            }
            if admitted == most {
                // The next call continues here.
                return admitted;
            }

            // All earlier receivers of that registration, whose lock the new one holds, have left.
            if self.subscriptions.len() == self.rules.max_subscribers {
                self.disconnect_unlocked();
            }
            if self.subscriptions.len() == self.rules.max_subscribers {
                // A receiver has written its own ids to other registrations.
                retry = Deadline::first(retry, self.postpone(at, id));
                continue;
            }
            match self.open(registration.clone(), id) {
                Ok(subscription) => {
                    self.seen[at] = id;
                    admitted += usize::from(subscription.is_some());
                    self.add(subscription);
                }
                Err(ChannelError::Os(error)) => {
                    if is_temporary(error.errno()) {
                        // The receiver stays announced.
                        retry = Deadline::first(retry, self.postpone(at, id));
                    } else {
                        self.seen[at] = id;
                    }
                    // P3'
                    if registration.refuse(error.errno().unwrap_or(libc::EMFILE)) {
                        event!(warn, channel = self.channel, receiver = id, error = %crate::error::Chain(&error), "receiver not connected");
                    }
                }
                // The receiver has left or died, or the object is no connection of this channel.
                Err(_) => self.seen[at] = id,
            }
        }
        self.arrivals = arrivals;
        self.retry = retry;
        admitted
    }

    /// Returns when to try again to connect this receiver.
    fn postpone(&mut self, at: usize, id: u64) -> Option<Deadline> {
        let refused = &mut self.refused[at];
        if refused.id == id {
            refused.delay = LOOK_AGAIN.min(2 * refused.delay);
        } else {
            refused.id = id;
            refused.sent = self.sent;
            refused.delay = FIRST_RETRY;
        }
        refused.due = Deadline::after(refused.delay);
        refused.due
    }

    fn add(&mut self, subscription: Option<Subscription>) {
        let Some(subscription) = subscription else {
            return;
        };
        let waited_for = self
            .subscriptions
            .partition_point(|other| other.connection.on_full == OnFull::Block);
        let at = if subscription.connection.on_full == OnFull::Block {
            waited_for
        } else {
            self.subscriptions.len()
        };
        self.subscriptions.insert(at, subscription);
    }

    /// Returns the connection of a receiver that is alive, if it is valid.
    fn find(
        &self,
        registration: Registration,
        name: &Name,
    ) -> Result<Option<(Object, Facts)>, ChannelError> {
        let rules = &self.rules;
        let uid = match fs::symlink_metadata(name.as_path()) {
            Ok(connection) if self.admits_others => connection.uid(),
            _ => effective_uid(),
        };
        let found = layout::open(name, uid)?;
        let facts = found.facts;
        let is_within = facts.kind == Kind::Connection
            && facts.provider == rules.provider
            && facts.slots <= rules.slots
            && facts.max_borrowed <= rules.max_borrowed
            && (rules.allow_blocking || facts.on_full != OnFull::Block);
        if !is_within || !found.has_all_its_memory(name)? {
            return Ok(None);
        }
        let object = Object::found(found, Some(registration));
        let is_here = !object.shared().to_sender().is_disconnected() && object.is_receiver_locked();
        if !is_here {
            return Ok(None);
        }
        Ok(Some((object, facts)))
    }

    /// P3 to P5. Returns `None` if the connection is invalid.
    fn open(
        &self,
        registration: Registration,
        id: u64,
    ) -> Result<Option<Subscription>, ChannelError> {
        let name = layout::connection_name(&self.names, &self.channel, id);
        let refused = self.refused[registration.at()];
        let missed = if refused.id == id {
            self.sent - refused.sent
        } else {
            0
        };
        let Some((object, facts)) = self.find(registration, &name)? else {
            return Ok(None);
        };
        let tables = Tables::new(&name, &facts)?;
        // Last, because it cannot be undone. An id may appear twice: a second account holder for
        // one receiver would reclaim its messages while it reads them.
        let Some(object) = object.connect(&name)? else {
            return Ok(None);
        };
        let connection = Connection::new(
            object,
            tables,
            facts.on_full,
            self.max_bytes,
            self.interrupts.clone(),
            &self.ledger,
        );
        let newest = self
            .history
            .iter()
            .rev()
            .take(connection.object.shared().capacity());
        let kept = connection.fitting(newest.map(Kept::bytes));
        // The history has some of the messages that it missed.
        let mut subscription =
            Subscription::new(connection, id, missed.saturating_sub(kept as u64));
        for kept in self.history.iter().skip(self.history.len() - kept) {
            subscription.make_room(kept.bytes());
            match kept {
                Kept::Buffer(buffer) => {
                    subscription.lend(&Located::new(buffer), kept.bytes(), buffer.clone());
                }
                Kept::Bytes(words) => subscription.fill(words),
            }
            subscription.look_for_room();
        }
        event!(info, channel = self.channel, receiver = id, on_full = ?facts.on_full, "receiver connected");
        subscription.connection.notify(); // P5
        Ok(Some(subscription))
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
        let is_ours = self.rendezvous.is_ours();
        if is_ours {
            self.look_around();
        }
        // In a forked child, a thread that does not exist there may hold a lock.
        self.subscriptions
            .iter()
            .filter(move |_| is_ours)
            .map(Subscription::state)
    }

    /// Returns `true` if a receiver is connected; always `false` in a forked child.
    #[inline]
    pub fn has_receivers(&mut self) -> bool {
        if !self.rendezvous.is_ours() {
            return false;
        }
        self.look_around();
        !self.subscriptions.is_empty()
    }

    /// Blocks until `count` receivers or more are connected, for at most `timeout`, or without
    /// limit with [`Duration::MAX`].
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooManyReceivers`], at once, if `count` exceeds the number of
    /// registrations; [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`],
    /// [`SendErrorKind::Forked`].
    pub fn wait_for_receivers(
        &mut self,
        count: usize,
        timeout: Duration,
    ) -> Result<(), SendErrorKind> {
        let deadline = Deadline::after(timeout);
        let max = self.rules.max_subscribers;
        if count > max {
            return Err(SendErrorKind::TooManyReceivers {
                receivers: count,
                max,
            });
        }
        self.check_fork()?;
        self.interrupts.begin_wait();
        let waited = self.wait_for_subscriptions(count, deadline);
        self.interrupts.end_wait();
        waited
    }

    fn wait_for_subscriptions(
        &mut self,
        count: usize,
        deadline: Option<Deadline>,
    ) -> Result<(), SendErrorKind> {
        loop {
            let known = self.rendezvous.header().arrivals();
            self.look_around();
            if self.subscriptions.len() >= count {
                return Ok(());
            }
            if self.interrupts.take() {
                return Err(SendErrorKind::Interrupted);
            }
            if Deadline::is_past(deadline) {
                return Err(SendErrorKind::TimedOut);
            }
            let look_again = Deadline::first(self.retry, Deadline::after(LOOK_AGAIN));
            let until = Deadline::first(deadline, look_again);
            self.rendezvous
                .header()
                .wait_for_another(known, &self.interrupts, until);
        }
    }

    /// Blocks until all connected receivers have received everything, for at most `timeout`. Skips
    /// receivers that close or die. What was sent arrives even without this call.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        self.check_fork()?;
        let deadline = Deadline::after(timeout);
        self.look_around();
        for subscription in &mut self.subscriptions {
            match subscription.connection.wait_until_received(deadline) {
                Err(SendErrorKind::Disconnected) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Returns the channel's name.
    pub fn name(&self) -> &str {
        &self.channel
    }

    /// Returns a handle with which any thread can end a wait of this publisher.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    /// Returns the connection of the first receiver to wait for, and until when.
    fn waited_for(&mut self, bytes: usize) -> Option<WaitedFor<'_>> {
        for subscription in &mut self.subscriptions {
            if subscription.connection.on_full == OnFull::Block && subscription.is_waited_for(bytes)
            {
                let end = subscription.stall_end();
                return Some((&mut subscription.connection, end));
            }
        }
        None
    }

    /// Returns how many messages a receiver may be behind at most.
    pub fn capacity(&self) -> usize {
        self.rules.slots - EXTRA_SLOTS
    }

    /// Returns how many buffers a receiver may hold at a time at most.
    pub fn max_borrowed(&self) -> usize {
        self.rules.max_borrowed
    }

    /// Returns the id of the provider whose buffers this publisher sends.
    pub fn provider(&self) -> ProviderId {
        self.rules.provider
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.rendezvous.is_ours() {
            // C1
            self.rendezvous.header().close();
            // C2
            for subscription in &self.subscriptions {
                subscription.connection.close();
            }
            self.ledger.close();
            // A drop must not need memory: without heap, receivers find the lock free.
            if !has_heap(HEAP) {
                return;
            }
            for (registration, id) in self.rendezvous.announced() {
                if id == 0 || id == self.seen[registration.at()] {
                    continue;
                }
                // C3
                let name = layout::connection_name(&self.names, &self.channel, id);
                if let Ok(Some((object, _))) = self.find(registration, &name) {
                    object.close();
                }
            }
            // C4. Also of receivers that were killed before they announced theirs. A living
            // receiver holds its connection's lock. If this fails, a sweep does it.
            let _ = sweep::remove_connections(&self.names, &self.channel);
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let receivers = self.subscriptions.len();
        f.debug_struct("Publisher")
            .field("name", &self.channel)
            .field("provider", &self.provider())
            .field("receivers", &receivers)
            .finish()
    }
}
