//! The sender's end of a channel.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::book::Book;
use super::borrower::SentBuffer;
use super::end::Sleeper;
use super::error::{ChannelError, SendError, SendErrorKind};
use super::interrupt::Interrupter;
use super::lender::{Lender, NotLent};
use super::object::{self, Object, Shared, MAX_LOANS, MAX_SLOTS, MIN_SLOTS};
use super::ring::{self, Ticket, Words};
use super::{message, spin, DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN};
use crate::error::OsError;
use crate::os::deadline::Deadline;
use crate::os::posix::is_object_mode;
use crate::owner::buf::ShmBuf;
use crate::owner::pool::Lends;
use crate::owner::provider::Provider;
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Options of a [`Sender`]. Start with [`Sender::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct SenderBuilder {
    slots: usize,
    loans: usize,
    mode: u32,
    spin: Duration,
}

impl SenderBuilder {
    /// Sets how many messages the channel holds that the receiver has not received, from 2 to
    /// 65,536; default 256. Each takes 64 bytes of /dev/shm. One more fits until the receiver gets
    /// its first message, and again from when it asks for the next one until it gets it.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// Sets how many buffers the receiver may have at a time, including those it has not received
    /// yet: from 1 to 1,048,576, rounded up to a power of two; default 2048. Each takes 8 bytes of
    /// /dev/shm and 8 of heap.
    pub fn loans(mut self, loans: usize) -> Self {
        self.loans = loans;
        self
    }

    /// Sets the permission bits of the object, whatever the umask; default `0o600`, for receivers
    /// of the same user. Both sides write to the object.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long [`send`](Sender::send) spins for room before it sleeps; default 20 µs.
    /// [`Duration::MAX`] means for ever.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Creates the channel `name`, for buffers of `provider`. The name is 1 to 64 of
    /// `A-Z a-z 0-9 _ -`. No other living sender whose provider has the same
    /// [`directory`](crate::ProviderBuilder::directory) and
    /// [`name_prefix`](crate::ProviderBuilder::name_prefix) may use it.
    ///
    /// A killed sender's name is free for the next one as soon as the kernel has torn down its
    /// process. That can be a little after its receiver is told: some milliseconds for each 100 MB
    /// of its memory.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::Capacity`], [`ChannelError::Loans`],
    /// [`ChannelError::Mode`], [`ChannelError::Forked`], [`ChannelError::Taken`],
    /// [`ChannelError::NotAChannel`], [`ChannelError::WrongUid`], [`ChannelError::TooMany`],
    /// [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Sender, ChannelError> {
        if !(MIN_SLOTS..=MAX_SLOTS).contains(&self.slots) {
            return Err(ChannelError::Capacity { capacity: self.slots, min: MIN_SLOTS, max: MAX_SLOTS });
        }
        if !(1..=MAX_LOANS).contains(&self.loans) {
            return Err(ChannelError::Loans { loans: self.loans, min: 1, max: MAX_LOANS });
        }
        if !is_object_mode(self.mode) {
            return Err(ChannelError::Mode { mode: self.mode });
        }
        // Check before taking any lock: after a fork, a thread that does not exist here may hold
        // it.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        let loans = self.loans.next_power_of_two();
        let name = object::name(provider.names(), name)?;
        // Make the book before the object: once the object exists, a receiver may come.
        let Some(book) = Book::new(loans) else {
            return Err(name
                .error("malloc", loans * size_of::<usize>(), io::Error::from_raw_os_error(libc::ENOMEM))
                .into());
        };
        let object = Object::create(&name, self.slots, loans, provider.id(), self.mode)?;
        let lender = Arc::new(Lender::new(object.shared().clone(), object.locks().clone(), book));
        provider.pool().add_lender(lender.clone());
        let progress = Progress { ticket: Ticket::default(), has_room: true, sent: None };
        let sleeper = Box::new(Sleeper::new(object.shared(), Shared::to_sender));
        Ok(Sender { object, sleeper, lender, next_loan: 0, loans, provider: provider.id(), progress, spin: self.spin })
    }
}

/// Sends messages to one receiver, in this or another process. The [module](super) tells what
/// becomes of them.
pub struct Sender {
    object: Object,
    /// Not needed while there is no wait.
    pub(super) sleeper: Box<Sleeper>,
    lender: Arc<Lender>,
    /// The number from which to look for a free one.
    next_loan: usize,
    /// The most buffers that the receiver may have.
    loans: usize,
    provider: ProviderId,
    progress: Progress,
    spin: Duration,
}

/// The sender's position in the ring.
struct Progress {
    /// The ticket of the next message.
    ticket: Ticket,
    /// Is the next slot known to be free? Only the sender can fill it.
    has_room: bool,
    /// The message sent last.
    sent: Option<Ticket>,
}

impl Progress {
    /// Sends into the free slot. `false` if the receiver was gone by then and did not take the
    /// message.
    #[inline]
    fn put(&mut self, object: &Object, words: &Words) -> bool {
        let (slots, mut sent) = (object.slots(), self.ticket);
        ring::put(slots, &mut self.ticket, words);
        self.sent = Some(sent);
        object.to_receiver().ring();
        self.has_room = ring::has_room(slots, self.ticket);
        // The full fence in `ring` pairs with the one in `Receiver::drop`: a receiver that leaves
        // takes this message, or is seen to be gone, or both. Do not claim the message while the
        // receiver's process may still read: the bell of a dying process may ring before its last
        // thread stops.
        !object.to_sender().is_gone() || object.is_receiver_locked() || ring::claim(slots, &mut sent).is_none()
    }
}

/// How long a call may wait.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Until(Option<Deadline>),
}

impl Patience {
    fn of(timeout: Duration) -> Self {
        Self::Until(Deadline::after(timeout))
    }
}

impl Sender {
    /// A builder with the default options.
    pub fn builder() -> SenderBuilder {
        SenderBuilder { slots: DEFAULT_SLOTS, loans: DEFAULT_LOANS, mode: 0o600, spin: DEFAULT_SPIN }
    }

    /// Creates a channel with the default options.
    ///
    /// # Errors
    ///
    /// As [`SenderBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Waits until a receiver has opened the channel, for `timeout` at most; [`Duration::MAX`]
    /// means for ever. Messages can be sent before that.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Disconnected`],
    /// [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_for_receiver(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        if !self.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        self.sleeper.leave_helper();
        let (bell, interrupts) = (self.object.to_sender(), self.sleeper.interrupts());
        let is_ready = || bell.is_held() || interrupts.is_set();
        match bell.wait(Deadline::after(timeout), is_ready, || self.object.may_have_receiver()) {
            Woken::Ready if !bell.is_held() && interrupts.take() => Err(SendErrorKind::Interrupted),
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
            Woken::Gone => Err(SendErrorKind::Disconnected),
        }
    }

    /// Waits until the receiver has received everything and asked for more, for `timeout` at most.
    /// Then sender and provider can be dropped without loss; a buffer that the receiver has not
    /// received would go with the two.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`]; [`SendErrorKind::Disconnected`], even if the receiver had
    /// received it all; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        if !self.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        let Some(sent) = self.progress.sent else { return Ok(()) };
        self.sleeper.leave_helper();
        let (slots, bell, interrupts) = (self.object.slots(), self.object.to_sender(), self.sleeper.interrupts());
        let is_ready = || ring::is_done(slots, sent) || interrupts.is_set();
        match bell.wait(Deadline::after(timeout), is_ready, || self.object.may_have_receiver()) {
            Woken::Ready if !ring::is_done(slots, sent) && interrupts.take() => Err(SendErrorKind::Interrupted),
            // A receiver that leaves marks what it has not received as received.
            Woken::Ready if !bell.is_gone() => Ok(()),
            Woken::Ready | Woken::Gone => Err(SendErrorKind::Disconnected),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
        }
    }

    /// A handle by which any thread ends a wait of this sender.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(self.sleeper.interrupts())
    }

    /// Has `waker` woken when there is room, or the receiver is gone; see [`Sleeper::arm`].
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<Option<Woken>, OsError> {
        let Self { object, sleeper, progress, .. } = self;
        sleeper.arm(waker, || ring::has_room(object.slots(), progress.ticket), || object.may_have_receiver())
    }

    /// How many messages the channel holds that the receiver has not received.
    pub fn capacity(&self) -> usize {
        self.object.capacity()
    }

    /// Lends a buffer to the receiver, and waits for room in the ring if need be. There need not be
    /// a receiver yet.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Disconnected`] if the receiver is gone, or goes while this waits;
    /// [`SendErrorKind::TooManyLent`], without waiting; [`SendErrorKind::OtherProvider`];
    /// [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`]. The buffer comes back with the
    /// error.
    ///
    /// A message sent just as the receiver goes may count as sent. It then comes back with
    /// everything else the receiver had, once the receiver cannot read any more.
    #[inline]
    pub fn send(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::Until(None))
    }

    /// Like [`send`](Self::send), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], and those of [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::None)
    }

    /// Like [`send`](Self::send), but waits for `timeout` at most.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(&mut self, buffer: ShmBuf, timeout: Duration) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::of(timeout))
    }

    #[inline]
    fn send_buffer(&mut self, message: ShmBuf, patience: Patience) -> Result<(), SendError<ShmBuf>> {
        let fail = |kind, message| Err(SendError { kind, message });
        if let Err(kind) = self.make_room(patience) {
            if kind == SendErrorKind::Disconnected {
                // If the provider is gone, nobody else reclaims.
                self.lender.reclaim();
            }
            return fail(kind, message);
        }
        // An inherited sender was refused above, so it is safe to ask the buffer for its provider.
        let (found, expected) = (message.provider(), self.provider);
        if found != expected {
            return fail(SendErrorKind::OtherProvider { found, expected }, message);
        }
        let (segment, offset, len) = message.place();
        let Self { object, progress, next_loan, .. } = self;
        let lent = self.lender.lend(next_loan, message, |number| {
            let place = SentBuffer { number, segment, offset, len };
            progress.put(object, &message::of_buffer(progress.ticket.number(), &place))
        });
        match lent {
            Ok(()) => Ok(()),
            Err(NotLent::TooMany(message)) => fail(SendErrorKind::TooManyLent { max: self.loans }, message),
            Err(NotLent::NotSent(message)) => fail(SendErrorKind::Disconnected, message),
        }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes in the slot itself, and waits for room
    /// if need be. There need not be a receiver yet.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Disconnected`], [`SendErrorKind::Interrupted`],
    /// [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Patience::Until(None))
    }

    /// Like [`send_bytes`](Self::send_bytes), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Patience::None)
    }

    /// Like [`send_bytes`](Self::send_bytes), but waits for `timeout` at most.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Patience::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], patience: Patience) -> Result<(), SendErrorKind> {
        let words = message::of_bytes(bytes)?;
        self.make_room(patience)?;
        if self.progress.put(&self.object, &words) {
            Ok(())
        } else {
            Err(SendErrorKind::Disconnected)
        }
    }

    /// Makes sure that the next slot is free.
    #[inline]
    fn make_room(&mut self, patience: Patience) -> Result<(), SendErrorKind> {
        if self.progress.has_room && self.object.is_ours() && !self.object.to_sender().is_gone() {
            return Ok(());
        }
        self.wait_for_room(patience)
    }

    #[inline(never)]
    fn wait_for_room(&mut self, patience: Patience) -> Result<(), SendErrorKind> {
        let Self { object, sleeper, progress, .. } = self;
        if !object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        if object.to_sender().is_gone() {
            return Err(SendErrorKind::Disconnected);
        }
        let has_room = || ring::has_room(object.slots(), progress.ticket);
        let deadline = match patience {
            _ if has_room() => return Ok(()),
            Patience::None => return Err(SendErrorKind::Full { capacity: object.capacity() }),
            Patience::Until(deadline) => deadline,
        };
        sleeper.leave_helper();
        let interrupts = sleeper.interrupts();
        let is_ready = || has_room() || interrupts.is_set();
        match spin(self.spin, object.to_sender(), deadline, is_ready, || object.may_have_receiver()) {
            Woken::Ready if !has_room() && interrupts.take() => Err(SendErrorKind::Interrupted),
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
            Woken::Gone => Err(SendErrorKind::Disconnected),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.object.is_ours() {
            self.object.close();
            self.lender.close();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.capacity()).field("provider", &self.provider).finish()
    }
}
