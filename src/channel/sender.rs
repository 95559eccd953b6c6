//! The sender's end of a channel.

#![forbid(unsafe_code)]

use super::borrower::SentBuffer;
use super::branch::{self, Branch, Patience};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::interrupt::{Interrupter, Interrupts};
use super::layout::{self, Facts, EXTRA_SLOTS, MAX_LOANS, MAX_SLOTS, MIN_SLOTS};
use super::object::Object;
use super::{message, DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN};
use crate::os::deadline::Deadline;
use crate::os::posix::is_object_mode;
use crate::owner::buf::ShmBuf;
use crate::owner::provider::Provider;
use crate::protocol::ids::ProviderId;
use std::fmt;
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
    /// yet: from 1 to 1,048,576, rounded up to a power of two; default 2048. Each takes 16 bytes
    /// of /dev/shm and 8 of heap.
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
        let name = layout::name(provider.names(), name)?;
        let cells = branch::cells(&name, loans)?;
        let facts = Facts::of_pair(provider.id(), self.slots + EXTRA_SLOTS, loans);
        let object = Object::create(&name, &facts, self.mode)?;
        let branch = Branch::new(object, cells, facts.on_full, Interrupts::new(), Some(provider.pool()));
        Ok(Sender { branch, loans, provider: provider.id(), spin: self.spin })
    }
}

/// Sends messages to one receiver, in this or another process. The [module](super) tells what
/// becomes of them.
pub struct Sender {
    pub(super) branch: Branch,
    /// The most buffers that the receiver may have.
    loans: usize,
    provider: ProviderId,
    spin: Duration,
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
        if !self.branch.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        self.branch.wait(Duration::ZERO, Deadline::after(timeout), Branch::has_had_receiver)
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
        if !self.branch.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        self.branch.wait_until_received(Deadline::after(timeout))?;
        // A receiver that leaves marks what it has not received as received.
        if self.branch.is_gone() {
            return Err(SendErrorKind::Disconnected);
        }
        Ok(())
    }

    /// A handle by which any thread ends a wait of this sender.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(self.branch.sleeper.interrupts())
    }

    /// How many messages the channel holds that the receiver has not received.
    pub fn capacity(&self) -> usize {
        self.branch.object.capacity()
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
                self.branch.reclaim();
            }
            return fail(kind, message);
        }
        // An inherited sender was refused above, so it is safe to ask the buffer for its provider.
        let (found, expected) = (message.provider(), self.provider);
        if found != expected {
            return fail(SendErrorKind::OtherProvider { found, expected }, message);
        }
        let Some(number) = self.branch.free_loan() else {
            return fail(SendErrorKind::TooManyLent { max: self.loans }, message);
        };
        let (branch, lent, (segment, offset, len)) = (&mut self.branch, message.len(), message.place());
        let place = SentBuffer { number: number as u32, segment, offset, len };
        // Until the message is in its slot, no read-modify-write (see `lender`).
        branch.lend(number, message);
        branch.fill(&message::of_buffer(branch.count(), &place, 0));
        branch.ring();
        branch.look_for_room();
        let is_left = branch.is_left();
        branch.collect_some();
        match is_left.then(|| branch.take_back(number, lent)).flatten() {
            Some(message) => fail(SendErrorKind::Disconnected, message),
            None => Ok(()),
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
        let branch = &mut self.branch;
        branch.fill(&words);
        branch.ring();
        branch.look_for_room();
        if branch.is_left() {
            Err(SendErrorKind::Disconnected)
        } else {
            Ok(())
        }
    }

    /// Makes sure that the next slot is free.
    #[inline]
    fn make_room(&mut self, patience: Patience) -> Result<(), SendErrorKind> {
        if self.branch.is_ready() && self.branch.object.is_ours() && !self.branch.is_gone() {
            return Ok(());
        }
        self.wait_for_room(patience)
    }

    #[inline(never)]
    fn wait_for_room(&mut self, patience: Patience) -> Result<(), SendErrorKind> {
        let branch = &mut self.branch;
        if !branch.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        if branch.is_gone() {
            return Err(SendErrorKind::Disconnected);
        }
        branch.wait_for_room(self.spin, patience)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.branch.object.is_ours() {
            self.branch.close();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.capacity()).field("provider", &self.provider).finish()
    }
}
