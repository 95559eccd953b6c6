//! The receiving end of a name: what a `Receiver` and a `Subscriber` have in common.
//!
//! It opens the channel of that name, receives until the other side ends, and then, with
//! [`OnEnd::Wait`], opens the channel of its successor.

#![forbid(unsafe_code)]

use super::doorbell::WakeReason;
use super::error::{ChannelError, RecvError};
use super::interrupt::{Interrupter, Interrupts};
use super::layout;
use super::payload::{Of, Payload};
use super::receiver::{Message, OpenChannel, Options};
use super::watch::Attempts;
use crate::error::OsError;
use crate::os::fork::ForkGuard;
use crate::os::futex::{barrier, Deadline};
use crate::os::wake_fd::EndFd;
use crate::protocol::ids::{ParseError, ProviderId};
use std::fmt;
use std::future::{poll_fn, Future};
use std::mem;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{ready, Context, Poll, Waker};
use std::time::Duration;

/// What a [`Receiver`](super::Receiver) or [`Subscriber`](super::Subscriber) does when the other
/// side has ended and everything that it sent has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnEnd {
    /// It waits for the successor of that name. The default of a
    /// [`Subscriber`](super::Subscriber).
    Wait,
    /// It returns [`RecvError::Disconnected`]. The default of a [`Receiver`](super::Receiver).
    Return,
}

/// `wait` or `return`.
impl fmt::Display for OnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wait => "wait",
            Self::Return => "return",
        })
    }
}

/// The inverse of `Display`.
impl FromStr for OnEnd {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "wait" => Ok(Self::Wait),
            "return" => Ok(Self::Return),
            _ => Err(ParseError {
                expected: "wait or return",
            }),
        }
    }
}

/// What [`Subscriber::recv_event`](super::Subscriber::recv_event) and
/// [`Receiver::recv_event`](super::Receiver::recv_event) return.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChannelEvent<M = Message> {
    /// The channel of this sender or publisher was opened.
    ///
    /// The id is that of the provider of its messages. A restarted process has a new one.
    Connected(ProviderId),
    /// A message; of a typed end, a value.
    Message(M),
    /// The sender or publisher has closed or died, and everything that it sent has been received.
    /// Its messages stay valid until they are dropped.
    Disconnected,
}

/// Returns `true` if an open may succeed later, of this channel or a successor.
pub(super) fn may_open_later(error: &ChannelError) -> bool {
    error.is_not_found() || matches!(error, ChannelError::TooManyReceivers { .. })
}

/// As [`may_open_later`], for an end that follows a name. The receiver of a sender's channel may
/// have been this process's predecessor: then the sender creates a new channel.
fn is_to_wait(error: &ChannelError) -> bool {
    may_open_later(error) || matches!(error, ChannelError::HasReceiver { .. })
}

/// A sender that has died.
///
/// The kernel tells its receivers some time before it releases the locks of its process. Until then its
/// channel looks alive. An end that opened it again would miss the successor until its next check of
/// the sender, up to a second later.
struct Died {
    provider: ProviderId,
    /// Garbage in shared memory may only have made it look dead.
    until: Option<Deadline>,
}

impl Died {
    /// The kernel takes about a second to release 4 GB of memory, and then the locks.
    const LONGEST_TEARDOWN: Duration = Duration::from_secs(10);

    fn new(provider: ProviderId) -> Self {
        Self {
            provider,
            until: Deadline::after(Self::LONGEST_TEARDOWN),
        }
    }

    /// Returns the provider whose channel is not opened now.
    fn provider(died: &Option<Self>) -> Option<ProviderId> {
        match died {
            Some(died) if !Deadline::is_past(died.until) => Some(died.provider),
            Some(_) | None => None,
        }
    }
}

pub struct ReceivingEnd {
    pub(super) open: Option<OpenChannel>,
    options: Options,
    name: String,
    attempts: Attempts,
    /// Why the last attempt failed, while the end waits.
    last_error: Option<ChannelError>,
    /// An error found by `wait_any`, which the next receive returns.
    failed: Option<Box<ChannelError>>,
    died: Option<Died>,
    /// Boundaries that no `recv_event` has reported.
    has_disconnected: bool,
    has_connected: bool,
    pub(super) interrupts: Arc<Interrupts>,
    fork: ForkGuard,
    /// Of an event loop. Its waker is registered while it is not readable.
    wake: EndFd,
    /// When [`wait_any`](super::wait_any) last returned this end; larger is later.
    pub(super) turn: u64,
}

impl ReceivingEnd {
    pub(super) fn new(options: Options, name: &str) -> Result<Self, ChannelError> {
        // Before there is a channel, and a helper thread that waits for one.
        barrier::enlist();
        let attempts = Attempts::new(layout::name(&options.names, name)?);
        Ok(Self {
            open: None,
            options,
            name: name.to_owned(),
            attempts,
            last_error: None,
            failed: None,
            died: None,
            has_disconnected: false,
            has_connected: false,
            interrupts: Interrupts::new(),
            fork: ForkGuard::new(),
            wake: EndFd::default(),
            turn: 0,
        })
    }

    /// Makes one attempt to open the channel. Returns only such an error that `may_open_later`
    /// does not allow for.
    pub(super) fn open(&mut self, may_open_later: bool) -> Result<(), ChannelError> {
        let wait = |_: &mut Attempts, _: &Interrupts| Poll::<Result<(), OsError>>::Pending;
        match self.poll_open(is_to_wait, wait) {
            Poll::Ready(Ok(opened)) => opened,
            // No attempt may block.
            Poll::Ready(Err(_)) | Poll::Pending if may_open_later => Ok(()),
            Poll::Ready(Err(_)) | Poll::Pending => match self.last_error.take() {
                Some(error) => Err(error),
                None => Ok(()),
            },
        }
    }

    /// Opens the channel, blocking while it may be opened later; at the deadline, tries once more.
    pub(super) fn open_before(&mut self, deadline: Option<Deadline>) -> Result<(), ChannelError> {
        let Self {
            attempts,
            options,
            name,
            interrupts,
            died,
            ..
        } = self;
        let attempt = || options.open(name, interrupts, Died::provider(died));
        let opened = attempts.repeat_until(may_open_later, deadline, attempt)?;
        self.connected(opened);
        Ok(())
    }

    /// Opens the channel without blocking the thread.
    pub(super) async fn open_async(&mut self) -> Result<(), ChannelError> {
        poll_fn(|context| {
            let wait = |attempts: &mut Attempts, _: &Interrupts| attempts.poll(context);
            match ready!(self.poll_open(may_open_later, wait)) {
                Ok(opened) => Poll::Ready(opened),
                Err(error) => Poll::Ready(Err(error.into())),
            }
        })
        .await
    }

    /// Attempts to open the channel, and calls `wait` after each attempt that failed with an error
    /// to wait for. Returns what `wait` returns, unless that is `Ok`.
    fn poll_open<E>(
        &mut self,
        is_to_wait: fn(&ChannelError) -> bool,
        mut wait: impl FnMut(&mut Attempts, &Interrupts) -> Poll<Result<(), E>>,
    ) -> Poll<Result<Result<(), ChannelError>, E>> {
        let Self {
            attempts,
            options,
            name,
            interrupts,
            last_error,
            died,
            ..
        } = self;
        let attempt = || options.open(name, interrupts, Died::provider(died));
        let wait = |attempts: &mut Attempts| wait(attempts, interrupts);
        match ready!(attempts.repeat(is_to_wait, last_error, attempt, wait))? {
            Ok(opened) => {
                self.connected(opened);
                Poll::Ready(Ok(Ok(())))
            }
            Err(error) => Poll::Ready(Ok(Err(error))),
        }
    }

    fn connected(&mut self, opened: OpenChannel) {
        self.open = Some(opened);
        self.last_error = None;
        self.died = None;
        self.has_connected = true;
    }

    /// Receives the next message, waiting for it until the deadline.
    #[inline]
    pub(super) fn receive(&mut self, deadline: Option<Deadline>) -> Result<Message, RecvError> {
        if let Some(open) = &mut self.open {
            open.begin()?;
            if self.wake.exists() && !open.has_next() {
                self.wake.renew();
            }
            // Here and not on the slow path: in a round trip, each message is waited for.
            if let Some(received) = open.take_before(deadline) {
                return received;
            }
        }
        self.receive_later(deadline)
    }

    #[cold]
    fn receive_later(&mut self, deadline: Option<Deadline>) -> Result<Message, RecvError> {
        loop {
            if let ChannelEvent::Message(message) = self.receive_event(deadline)? {
                return Ok(message);
            }
        }
    }

    pub(super) fn receive_event(
        &mut self,
        deadline: Option<Deadline>,
    ) -> Result<ChannelEvent, RecvError> {
        self.receive_event_with(deadline, |attempts, interrupts| {
            attempts.wait(deadline, Some(interrupts))
        })
    }

    /// `wait_for_name` blocks until the next attempt, or until the deadline.
    fn receive_event_with(
        &mut self,
        deadline: Option<Deadline>,
        mut wait_for_name: impl FnMut(&mut Attempts, &Interrupts) -> WakeReason,
    ) -> Result<ChannelEvent, RecvError> {
        self.wake.renew();
        let receive = |open: &mut OpenChannel| Poll::Ready(open.receive(deadline));
        let wait = |attempts: &mut Attempts, interrupts: &Interrupts| match wait_for_name(
            attempts, interrupts,
        ) {
            WakeReason::Interrupted => Poll::Ready(Err(RecvError::Interrupted)),
            WakeReason::TimedOut => Poll::Ready(Err(RecvError::TimedOut)),
            WakeReason::Ready | WakeReason::Disconnected => Poll::Ready(Ok(())),
        };
        match self.next(receive, wait) {
            Poll::Ready(Err(RecvError::TimedOut)) if self.open.is_none() => self.last_attempt(),
            Poll::Ready(event) => event,
            // Never: `wait` blocks.
            Poll::Pending => Err(RecvError::TimedOut),
        }
    }

    /// The time is over while there is no sender: looks for one once more.
    #[cold]
    fn last_attempt(&mut self) -> Result<ChannelEvent, RecvError> {
        match self.try_recv_event() {
            Err(RecvError::Empty) => Err(RecvError::TimedOut),
            event => event,
        }
    }

    #[inline]
    pub(super) fn try_recv(&mut self) -> Result<Message, RecvError> {
        if let Some(open) = &mut self.open {
            open.ask()?;
            // Before the messages: those sent before the sender left precede its end.
            let is_disconnected = open.is_disconnected();
            if let Some(taken) = open.take() {
                return taken;
            }
            if !is_disconnected && !self.wake.exists() {
                return Err(RecvError::Empty);
            }
        }
        self.try_recv_later()
    }

    #[cold]
    fn try_recv_later(&mut self) -> Result<Message, RecvError> {
        loop {
            if let ChannelEvent::Message(message) = self.try_recv_event()? {
                return Ok(message);
            }
        }
    }

    pub(super) fn try_recv_event(&mut self) -> Result<ChannelEvent, RecvError> {
        let receive = |open: &mut OpenChannel| Poll::Ready(open.try_recv());
        let wait = |_: &mut Attempts, _: &Interrupts| Poll::Ready(Err(RecvError::Empty));
        match self.next(receive, wait) {
            Poll::Ready(Err(RecvError::Empty)) | Poll::Pending => self.found_none(),
            Poll::Ready(event) => event,
        }
    }

    /// Nothing has arrived. Registers the waker of the event loop's descriptor, if there is one,
    /// which may find that something has.
    fn found_none(&mut self) -> Result<ChannelEvent, RecvError> {
        let mut wake = mem::take(&mut self.wake);
        let polled = wake.poll(|context| self.poll_event(context));
        self.wake = wake;
        match polled {
            Some(Poll::Ready(event)) => event,
            Some(Poll::Pending) | None => Err(RecvError::Empty),
        }
    }

    /// Returns the descriptor of an event loop; the first call creates it.
    pub(super) fn wake_fd(&mut self) -> Result<BorrowedFd<'_>, OsError> {
        self.wake.get()
    }

    pub(super) fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Message, RecvError>> {
        self.wake.renew();
        if let Some(open) = &mut self.open {
            let received = ready!(open.poll_recv(context));
            if !is_end(&received) {
                return Poll::Ready(received);
            }
        }
        loop {
            if let ChannelEvent::Message(message) = ready!(self.poll_event(context))? {
                return Poll::Ready(Ok(message));
            }
        }
    }

    pub(super) fn poll_recv_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<ChannelEvent, RecvError>> {
        self.wake.renew();
        self.poll_event(context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<ChannelEvent, RecvError>> {
        // Two closures, of which one runs at a time, use the context.
        let waker = context.waker().clone();
        let receive = |open: &mut OpenChannel| open.poll_recv(context);
        let wait = |attempts: &mut Attempts, _: &Interrupts| {
            attempts
                .poll(&mut Context::from_waker(&waker))
                .map_err(RecvError::NoHelper)
        };
        self.next(receive, wait)
    }

    /// Returns the next event. `receive` receives from the open channel, and `wait` waits for the
    /// next attempt to open it.
    fn next(
        &mut self,
        mut receive: impl FnMut(&mut OpenChannel) -> Poll<Result<Message, RecvError>>,
        mut wait: impl FnMut(&mut Attempts, &Interrupts) -> Poll<Result<(), RecvError>>,
    ) -> Poll<Result<ChannelEvent, RecvError>> {
        self.check_fork()?;
        loop {
            if let Some(boundary) = self.take_boundary() {
                return Poll::Ready(Ok(boundary));
            }
            if let Some(open) = &mut self.open {
                let received = ready!(receive(open));
                match received {
                    Err(RecvError::Disconnected) if self.options.on_end == OnEnd::Wait => {
                        self.close()
                    }
                    Err(RecvError::Evicted) if self.options.on_end == OnEnd::Wait => {
                        self.open = None;
                        return Poll::Ready(Err(RecvError::Evicted));
                    }
                    received => return Poll::Ready(received.map(ChannelEvent::Message)),
                }
                continue;
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Err(RecvError::Open(error)));
            }
            if let Err(error) = ready!(self.poll_open(is_to_wait, &mut wait))? {
                self.last_error = None;
                return Poll::Ready(Err(RecvError::Open(Box::new(error))));
            }
        }
    }

    fn take_boundary(&mut self) -> Option<ChannelEvent> {
        if self.has_disconnected {
            self.has_disconnected = false;
            return Some(ChannelEvent::Disconnected);
        }
        if !self.has_connected {
            return None;
        }
        self.has_connected = false;
        Some(ChannelEvent::Connected(self.provider()?))
    }

    /// Closes the channel of a sender that has ended.
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            if open.has_sender_died() {
                self.died = Some(Died::new(open.provider()));
            }
            open.leave();
        }
        if self.has_connected {
            // No event has reported the beginning, and so none reports the end: they alternate.
            self.has_connected = false;
        } else {
            self.has_disconnected = true;
        }
    }

    /// Prepares a wait for several ends.
    pub(super) fn begin_wait(&mut self) -> Result<(), RecvError> {
        self.check_fork()?;
        self.wake.renew();
        if let Some(open) = &mut self.open {
            open.ask()?;
        }
        self.follow();
        Ok(())
    }

    /// Closes the channel of a sender that has ended, and opens that of its successor if that is
    /// possible now. Does nothing while the channel is open.
    pub(super) fn follow(&mut self) {
        if self.must_follow() {
            self.close();
        }
        if self.open.is_none() && self.failed.is_none() {
            self.poll_follow(|_, _| Poll::Pending);
        }
    }

    fn poll_follow(
        &mut self,
        wait: impl FnMut(&mut Attempts, &Interrupts) -> Poll<Result<(), OsError>>,
    ) -> Option<OsError> {
        match self.poll_open(is_to_wait, wait) {
            Poll::Ready(Ok(Err(error))) => {
                self.last_error = None;
                self.failed = Some(Box::new(error));
                None
            }
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(Ok(()))) | Poll::Pending => None,
        }
    }

    /// Returns `true` if a receive returns at once.
    pub(super) fn is_ready(&self) -> bool {
        match &self.open {
            Some(open) => open.has_next() || (open.is_disconnected() && !self.must_follow()),
            None => self.failed.is_some(),
        }
    }

    /// Returns `true` if the sender has ended and the end waits for the next one.
    pub(super) fn must_follow(&self) -> bool {
        match &self.open {
            Some(open) => {
                self.options.on_end == OnEnd::Wait
                    && open.is_disconnected()
                    && !open.is_evicted()
                    && !open.has_next()
            }
            None => false,
        }
    }

    /// Registers `waker`, to be woken when the end may be [ready](Self::is_ready).
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<(), OsError> {
        loop {
            if self.must_follow() {
                self.close();
            }
            if let Some(open) = &mut self.open {
                if open.arm(waker)?.is_none() || !self.must_follow() {
                    return Ok(());
                }
                continue;
            }
            if self.failed.is_some() {
                return Ok(());
            }
            let wait = |attempts: &mut Attempts, _: &Interrupts| {
                attempts.poll(&mut Context::from_waker(waker))
            };
            if let Some(error) = self.poll_follow(wait) {
                return Err(error);
            }
            if self.open.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) fn disarm(&mut self) {
        self.wake.renew();
        if let Some(open) = &mut self.open {
            open.parker.disarm();
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn last_error(&self) -> Option<&ChannelError> {
        self.last_error.as_ref()
    }

    pub(super) fn provider(&self) -> Option<ProviderId> {
        self.open.as_ref().map(OpenChannel::provider)
    }

    pub(super) fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    #[inline]
    fn check_fork(&self) -> Result<(), RecvError> {
        if self.fork.is_ours() {
            Ok(())
        } else {
            Err(RecvError::Forked)
        }
    }
}

#[inline]
fn is_end(received: &Result<Message, RecvError>) -> bool {
    matches!(received, Err(RecvError::Disconnected | RecvError::Evicted))
}

/// A future that receives the next message. Created by `recv_async` of a
/// [`Receiver`](super::Receiver) or [`Subscriber`](super::Subscriber).
#[must_use = "a future does nothing until it is polled"]
pub(super) struct RecvFuture<'a, T: ?Sized = [u8]> {
    pub(super) end: &'a mut ReceivingEnd,
    pub(super) of: Of<T>,
}

impl<T: Payload + ?Sized> Future for RecvFuture<'_, T> {
    type Output = Result<T::Message, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.end.poll_recv(context).map(T::received)
    }
}

impl<T: ?Sized> Drop for RecvFuture<'_, T> {
    /// A message that has arrived by now stays queued for the next call.
    fn drop(&mut self) {
        self.end.disarm();
    }
}

/// Receives the next message, for an iterator. Returns `None` at the end of an end that does not
/// wait for a successor.
fn next_message(end: &mut ReceivingEnd) -> Option<Result<Message, RecvError>> {
    let received = end.receive(None);
    if is_end(&received) && end.options.on_end == OnEnd::Return {
        return None;
    }
    Some(received)
}

/// As [`next_message`], for a stream.
#[cfg(feature = "stream")]
pub(super) fn poll_next_message(
    end: &mut ReceivingEnd,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Message, RecvError>>> {
    let received = ready!(end.poll_recv(context));
    if is_end(&received) && end.options.on_end == OnEnd::Return {
        return Poll::Ready(None);
    }
    Poll::Ready(Some(received))
}

/// An iterator that blocks for each message of a [`Receiver`](super::Receiver) or
/// [`Subscriber`](super::Subscriber). Created by their `iter`.
///
/// With [`OnEnd::Return`] it ends with the sender or publisher, or when that disconnects this end.
/// Other errors are items.
pub struct Iter<'a, T: ?Sized = [u8]> {
    pub(super) end: &'a mut ReceivingEnd,
    pub(super) of: Of<T>,
}

impl<T: Payload + ?Sized> Iterator for Iter<'_, T> {
    type Item = Result<T::Message, RecvError>;

    fn next(&mut self) -> Option<Self::Item> {
        next_message(self.end).map(T::received)
    }
}

/// An iterator over the messages that have arrived at a [`Receiver`](super::Receiver) or
/// [`Subscriber`](super::Subscriber). Created by their `try_iter`.
pub struct TryIter<'a, T: ?Sized = [u8]> {
    pub(super) end: &'a mut ReceivingEnd,
    pub(super) of: Of<T>,
}

impl<T: Payload + ?Sized> Iterator for TryIter<'_, T> {
    type Item = Result<T::Message, RecvError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.end.try_recv() {
            Err(RecvError::Empty) => None,
            next if is_end(&next) && self.end.options.on_end == OnEnd::Return => None,
            next => Some(T::received(next)),
        }
    }
}

/// An [`Iter`] that owns the [`Receiver`](super::Receiver) or [`Subscriber`](super::Subscriber).
pub struct IntoIter<T: ?Sized = [u8]> {
    pub(super) end: ReceivingEnd,
    pub(super) of: Of<T>,
}

impl<T: Payload + ?Sized> Iterator for IntoIter<T> {
    type Item = Result<T::Message, RecvError>;

    fn next(&mut self) -> Option<Self::Item> {
        next_message(&mut self.end).map(T::received)
    }
}

impl<T: ?Sized> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("name", &self.end.name())
            .finish()
    }
}

impl<T: ?Sized> fmt::Debug for TryIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryIter")
            .field("name", &self.end.name())
            .finish()
    }
}

impl<T: ?Sized> fmt::Debug for IntoIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoIter")
            .field("name", &self.end.name())
            .finish()
    }
}

/// Defines the options that both builders have.
macro_rules! receiving_end_builder {
    ($builder:ident, $end:ident, $other:literal, $on_end:literal) => {
        builder_traits!($builder);

        impl $builder {
            #[doc = concat!(
                "Sets the type that the channel's messages must have, as the ", $other,
                " has declared it; by default any, or none."
            )]
            pub fn message_type(mut self, message_type: crate::channel::MessageType) -> Self {
                self.options.message_type = Some(message_type);
                self
            }

            /// Sets the type of the messages (feature `zerocopy`), which the other side must have
            /// declared; see [`typed`](crate::channel::typed). Keeps all other options.
            #[cfg(feature = "zerocopy")]
            pub fn typed<T: Payload + ?Sized>(mut self) -> $builder<T> {
                self.options.message_type = T::message_type();
                $builder {
                    options: self.options,
                    of: PhantomData,
                }
            }
        }

        impl<T: Payload + ?Sized> $builder<T> {
            #[doc = concat!(
                "Sets the [`Namespace`] of the ", $other, "'s provider, whose user \
                 is trusted; default: that of [`Namespace::default`]."
            )]
            pub fn namespace(mut self, namespace: &Namespace) -> Self {
                self.options.names = namespace.clone();
                self
            }

            #[doc = concat!("Sets what happens when the ", $other, " has ended; default: ", $on_end, ".")]
            pub fn on_end(mut self, on_end: crate::channel::OnEnd) -> Self {
                self.options.on_end = on_end;
                self
            }

            #[doc = concat!(
                "Sets how long [`recv`](", stringify!($end), "::recv) spins for a message before it \
                 sleeps; by default up to 20 µs, [where that pays](super#spinning). With \
                 [`Duration::MAX`](std::time::Duration::MAX) it never sleeps."
            )]
            pub fn spin(mut self, spin: std::time::Duration) -> Self {
                self.options.spin = Some(spin);
                self
            }

            #[doc = concat!(
                "Like [`open`](Self::open), but waits, for at most `timeout`, while there is no ",
                $other, ", it is still creating the channel, it has died and has no successor yet, \
                 or all of its registrations are taken."
            )]
            ///
            /// # Errors
            ///
            /// See [`open`](Self::open). After `timeout`, the error of the last attempt, for
            /// example [`ChannelError::NotFound`](crate::channel::ChannelError::NotFound) or
            /// [`ChannelError::TooManyReceivers`](crate::channel::ChannelError::TooManyReceivers).
            pub fn open_timeout(
                self,
                name: &str,
                timeout: std::time::Duration,
            ) -> Result<$end<T>, crate::channel::ChannelError> {
                let mut end = ReceivingEnd::new(self.options, name)?;
                end.open_before(crate::os::futex::Deadline::after(timeout))?;
                Ok($end { end, of: PhantomData })
            }

            /// Like [`open_timeout`](Self::open_timeout), without a timeout and without blocking
            /// the thread, with any executor.
            ///
            /// # Errors
            ///
            /// See [`open`](Self::open), and
            /// [`ChannelError::Os`](crate::channel::ChannelError::Os) if the thread that waits for
            /// names cannot be started.
            pub async fn open_async(
                self,
                name: &str,
            ) -> Result<$end<T>, crate::channel::ChannelError> {
                let mut end = ReceivingEnd::new(self.options, name)?;
                end.open_async().await?;
                Ok($end { end, of: PhantomData })
            }
        }
    };
}
pub(super) use receiving_end_builder;

/// Defines what a `Receiver` and a `Subscriber` have in common.
macro_rules! receiving_end {
    ($end:ident, $builder:ident, $other:literal, $sending:literal) => {
        impl $end {
            /// Opens a channel with the default options.
            ///
            /// # Errors
            ///
            #[doc = concat!("See [`", stringify!($builder), "::open`].")]
            pub fn open(name: &str) -> Result<Self, crate::channel::ChannelError> {
                Self::builder().open(name)
            }
        }

        impl<T: Payload + ?Sized> $end<T> {
            /// Opens a channel of this type with the default options (feature `zerocopy`).
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "[`ChannelError::TypeMismatch`](crate::channel::ChannelError::TypeMismatch), and \
                 those of [`", stringify!($builder), "::open`]."
            )]
            #[cfg(feature = "zerocopy")]
            pub fn open_typed(name: &str) -> Result<Self, crate::channel::ChannelError> {
                $end::builder().typed::<T>().open(name)
            }

            #[doc = concat!(
                "Receives the next message, blocking until one arrives. With [`OnEnd::Wait`], also \
                 waits for the ", $other, ", and for its successor."
            )]
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "* [`RecvError::Disconnected`], with [`OnEnd::Return`], if the ", $other, " has \
                 been dropped or has died, and everything it sent has been received."
            )]
            /// * [`RecvError::Evicted`] if the publisher has disconnected this subscriber. With
            ///   [`OnEnd::Wait`], the next call joins it again.
            /// * [`RecvError::Open`] if a channel of that name exists and cannot be opened. Some
            ///   reasons pass by themselves: this call [waits](Self::last_error) for those. Otherwise
            ///   the next call tries again when the object has changed, or after a second. If the
            ///   reason is in the channel's options or type, the next call waits for the next channel
            ///   of that name.
            /// * [`RecvError::Os`]: try again for the same message.
            /// * [`RecvError::NotConnected`]: if descriptors or memory were short, the publisher
            ///   retries within a second; messages are lost until then.
            /// * [`RecvError::TooManyBorrowed`]: drop some messages. Until then, new ones are skipped or
            ///   wait.
            /// * [`RecvError::MessageLost`], [`RecvError::Attach`] and [`RecvError::Damaged`]: this
            ///   message is lost; the next one may be good.
            /// * [`RecvError::Interrupted`] if an [`Interrupter`] ended the wait.
            /// * [`RecvError::Forked`] in a forked child.
            ///
            /// [`OnEnd::Wait`]: crate::channel::OnEnd::Wait
            /// [`OnEnd::Return`]: crate::channel::OnEnd::Return
            /// [`Interrupter`]: crate::channel::Interrupter
            /// [`RecvError::Disconnected`]: crate::channel::RecvError::Disconnected
            /// [`RecvError::Evicted`]: crate::channel::RecvError::Evicted
            /// [`RecvError::Open`]: crate::channel::RecvError::Open
            /// [`RecvError::Os`]: crate::channel::RecvError::Os
            /// [`RecvError::NotConnected`]: crate::channel::RecvError::NotConnected
            /// [`RecvError::TooManyBorrowed`]: crate::channel::RecvError::TooManyBorrowed
            /// [`RecvError::MessageLost`]: crate::channel::RecvError::MessageLost
            /// [`RecvError::Attach`]: crate::channel::RecvError::Attach
            /// [`RecvError::Damaged`]: crate::channel::RecvError::Damaged
            /// [`RecvError::Interrupted`]: crate::channel::RecvError::Interrupted
            /// [`RecvError::Forked`]: crate::channel::RecvError::Forked
            #[inline]
            pub fn recv(&mut self) -> Result<T::Message, crate::channel::RecvError> {
                T::received(self.end.receive(None))
            }

            /// Like [`recv`](Self::recv), but blocks for at most `timeout`.
            ///
            /// # Errors
            ///
            /// [`RecvError::TimedOut`](crate::channel::RecvError::TimedOut), and those of
            /// [`recv`](Self::recv).
            #[inline]
            pub fn recv_timeout(
                &mut self,
                timeout: std::time::Duration,
            ) -> Result<T::Message, crate::channel::RecvError> {
                T::received(self.end.receive(crate::os::futex::Deadline::after(timeout)))
            }

            #[doc = concat!(
                "Like [`recv`](Self::recv), but never blocks. Makes system calls while there is no ",
                $other, "."
            )]
            ///
            /// # Errors
            ///
            /// [`RecvError::Empty`](crate::channel::RecvError::Empty), and those of
            /// [`recv`](Self::recv).
            #[inline]
            pub fn try_recv(
                &mut self,
            ) -> Result<T::Message, crate::channel::RecvError> {
                T::received(self.end.try_recv())
            }

            /// Receives the next message without blocking the thread, with any executor. Cancel
            /// safe: dropping the future loses no message.
            ///
            /// # Errors
            ///
            /// [`RecvError::NoHelper`](crate::channel::RecvError::NoHelper), and those of
            /// [`recv`](Self::recv) except
            /// [`RecvError::Interrupted`](crate::channel::RecvError::Interrupted).
            pub fn recv_async(
                &mut self,
            ) -> impl std::future::Future<Output = Result<T::Message, crate::channel::RecvError>>
                   + Unpin
                   + '_ {
                crate::channel::receiving_end::RecvFuture::<T> {
                    end: &mut self.end,
                    of: PhantomData,
                }
            }

            /// Receives the next message if it has arrived; otherwise registers the task to be
            /// woken when one may have. Only the waker of the last call is kept.
            ///
            /// # Errors
            ///
            /// As [`recv_async`](Self::recv_async).
            pub fn poll_recv(
                &mut self,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Result<T::Message, crate::channel::RecvError>> {
                self.end.poll_recv(context).map(T::received)
            }

            #[doc = concat!(
                "Receives the next event: a message, or the beginning or the end of a ", $other,
                ". Blocks until there is one."
            )]
            ///
            /// [`ChannelEvent::Connected`] precedes the first message of each one. Its end is
            /// [`ChannelEvent::Disconnected`], or with
            /// [`OnEnd::Return`](crate::channel::OnEnd::Return) the error
            /// [`RecvError::Disconnected`](crate::channel::RecvError::Disconnected). The other
            /// methods that receive skip these events.
            ///
            /// # Errors
            ///
            /// Those of [`recv`](Self::recv).
            ///
            /// [`ChannelEvent::Connected`]: crate::channel::ChannelEvent::Connected
            /// [`ChannelEvent::Disconnected`]: crate::channel::ChannelEvent::Disconnected
            pub fn recv_event(
                &mut self,
            ) -> Result<crate::channel::ChannelEvent<T::Message>, crate::channel::RecvError> {
                payload::event::<T>(self.end.receive_event(None)?)
            }

            /// Like [`recv_event`](Self::recv_event), but blocks for at most `timeout`.
            ///
            /// # Errors
            ///
            /// Those of [`recv_timeout`](Self::recv_timeout).
            pub fn recv_event_timeout(
                &mut self,
                timeout: std::time::Duration,
            ) -> Result<crate::channel::ChannelEvent<T::Message>, crate::channel::RecvError> {
                payload::event::<T>(self.end.receive_event(crate::os::futex::Deadline::after(timeout))?)
            }

            /// Like [`recv_event`](Self::recv_event), but never blocks.
            ///
            /// # Errors
            ///
            /// Those of [`try_recv`](Self::try_recv).
            pub fn try_recv_event(
                &mut self,
            ) -> Result<crate::channel::ChannelEvent<T::Message>, crate::channel::RecvError> {
                payload::event::<T>(self.end.try_recv_event()?)
            }

            /// Receives the next event without blocking the thread, with any executor. Cancel
            /// safe: dropping the future loses no event.
            ///
            /// # Errors
            ///
            /// Those of [`recv_async`](Self::recv_async).
            pub async fn recv_event_async(
                &mut self,
            ) -> Result<crate::channel::ChannelEvent<T::Message>, crate::channel::RecvError> {
                std::future::poll_fn(|context| self.poll_recv_event(context)).await
            }

            /// Receives the next event if there is one; otherwise registers the task to be woken
            /// when there may be. Only the waker of the last call is kept.
            ///
            /// # Errors
            ///
            /// As [`recv_async`](Self::recv_async).
            pub fn poll_recv_event(
                &mut self,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Result<crate::channel::ChannelEvent<T::Message>, crate::channel::RecvError>>
            {
                self.end.poll_recv_event(context).map(|event| payload::event::<T>(event?))
            }

            /// Returns an iterator that blocks for each message. With
            /// [`OnEnd::Return`](crate::channel::OnEnd::Return) it ends with the
            #[doc = concat!($other, ", or when that disconnects this end. Other errors are items.")]
            pub fn iter(&mut self) -> crate::channel::Iter<'_, T> {
                crate::channel::Iter { end: &mut self.end, of: PhantomData }
            }

            /// Returns an iterator over the messages that have arrived, which never blocks. Errors
            /// are items, except `Empty` and the end.
            pub fn try_iter(&mut self) -> crate::channel::TryIter<'_, T> {
                crate::channel::TryIter { end: &mut self.end, of: PhantomData }
            }

            /// Returns the channel's name.
            pub fn name(&self) -> &str {
                self.end.name()
            }

            #[doc = concat!(
                "Returns `true` if the ", $other, " is there and knows this end. A publisher does \
                 when it next sends, waits for receivers, or serves joins."
            )]
            pub fn is_connected(&self) -> bool {
                match &self.end.open {
                    Some(open) => open.is_connected(),
                    None => false,
                }
            }

            #[doc = concat!(
                "Returns the id of the provider of the messages; `None` while there is no ", $other,
                "."
            )]
            pub fn provider(&self) -> Option<ProviderId> {
                self.end.provider()
            }

            #[doc = concat!(
                "Returns how many unreceived messages the channel can hold; 0 while there is no ",
                $other, "."
            )]
            pub fn capacity(&self) -> usize {
                match &self.end.open {
                    Some(open) => open.capacity(),
                    None => 0,
                }
            }

            #[doc = concat!(
                "Returns how many buffers this end may hold at a time; 0 while there is no ",
                $other, "."
            )]
            pub fn max_borrowed(&self) -> usize {
                match &self.end.open {
                    Some(open) => open.max_borrowed(),
                    None => 0,
                }
            }

            #[doc = concat!("Returns the type of the messages, if the ", $other, " has declared one.")]
            pub fn message_type(&self) -> Option<&crate::channel::MessageType> {
                match &self.end.open {
                    Some(open) => open.message_type(),
                    None => None,
                }
            }

            /// For this project's tests.
            #[doc(hidden)]
            pub fn mapped_segments(&self) -> usize {
                match &self.end.open {
                    Some(open) => open.mapped_segments(),
                    None => 0,
                }
            }

            /// Returns why the channel could not be opened at the last attempt, while it is not
            /// open: for example
            /// [`ChannelError::NotFound`](crate::channel::ChannelError::NotFound),
            /// [`ChannelError::TooManyReceivers`](crate::channel::ChannelError::TooManyReceivers)
            /// or [`ChannelError::HasReceiver`](crate::channel::ChannelError::HasReceiver), for
            /// which this end waits. `None` after
            /// [`RecvError::Open`](crate::channel::RecvError::Open), which contains the error.
            pub fn last_error(&self) -> Option<&crate::channel::ChannelError> {
                self.end.last_error()
            }

            #[doc = concat!(
                "Returns a descriptor for event loops: `poll`, `epoll`, `mio` and others. It is \
                 readable until [`try_recv`](Self::try_recv) or \
                 [`try_recv_event`](Self::try_recv_event) has returned \
                 [`RecvError::Empty`](crate::channel::RecvError::Empty), and again when something \
                 may have arrived, also from the successor of a ", $other, "."
            )]
            ///
            /// It may be readable although nothing has arrived, so never block on it; and receive
            /// until there is nothing more. The first call creates it, and the end closes it. Use
            /// [`try_clone_to_owned`](std::os::fd::BorrowedFd::try_clone_to_owned) for an event
            /// loop that owns what it polls.
            ///
            /// ```
            /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
            #[doc = concat!("use shm_pool::channel::{RecvError, ", stringify!($end), "};")]
            /// use std::os::fd::AsRawFd;
            ///
            /// # let name = format!("doc-wake-fd-{}-{}", stringify!($end), std::process::id());
            /// # let provider = shm_pool::Provider::builder().build()?;
            #[doc = concat!("# let mut sender = shm_pool::channel::", $sending, "::create(&provider, &name)?;")]
            #[doc = concat!("let mut receiver = ", stringify!($end), "::open(&name)?;")]
            /// # sender.send_copy(b"a sample")?;
            /// let mut events = [libc::pollfd {
            ///     fd: receiver.wake_fd()?.as_raw_fd(),
            ///     events: libc::POLLIN,
            ///     revents: 0,
            /// }];
            /// // In the loop, with other descriptors and a timeout:
            /// unsafe { libc::poll(events.as_mut_ptr(), 1, -1) };
            /// loop {
            ///     match receiver.try_recv() {
            ///         Ok(message) => println!("{} bytes", message.len()),
            ///         Err(RecvError::Empty) => break,
            ///         Err(error) => return Err(error.into()),
            ///     }
            /// }
            /// # Ok(())
            /// # }
            /// ```
            ///
            /// # Errors
            ///
            /// [`OsError`](crate::OsError) if the process or the system has too many descriptors.
            pub fn wake_fd(&mut self) -> Result<std::os::fd::BorrowedFd<'_>, crate::error::OsError> {
                self.end.wake_fd()
            }

            /// Returns a handle that can interrupt the blocking waits of this end, including
            /// [`wait_any`](crate::channel::wait_any()).
            pub fn interrupter(&self) -> crate::channel::Interrupter {
                self.end.interrupter()
            }

            #[doc = concat!(
                "Maps and faults in all segments that the ", $other, "'s provider has now, so that \
                 the first read of a buffer in them costs no system call and no page fault. Returns \
                 the number of payload bytes present."
            )]
            ///
            /// For memory that the provider takes later, call this again, or let it
            /// [`reserve`](crate::Provider::reserve) first. The result is 0 if the channel is not
            /// open, the provider has closed, or does not admit this user, and before Linux 5.14.
            ///
            /// # Errors
            ///
            /// [`RecvError::Os`](crate::channel::RecvError::Os) if descriptors or memory run
            /// out; [`RecvError::Attach`](crate::channel::RecvError::Attach) if a segment is not
            /// the provider's; [`RecvError::Forked`](crate::channel::RecvError::Forked) in a forked
            /// child.
            pub fn warm(&mut self) -> Result<usize, crate::channel::RecvError> {
                match &mut self.end.open {
                    Some(open) => open.warm(),
                    None => Ok(0),
                }
            }
        }

        impl<T: Payload + ?Sized> std::fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($end))
                    .field("name", &self.name())
                    .field("provider", &self.provider())
                    .finish()
            }
        }

        impl<T: Payload + ?Sized> IntoIterator for $end<T> {
            type Item = Result<T::Message, crate::channel::RecvError>;
            type IntoIter = crate::channel::IntoIter<T>;

            fn into_iter(self) -> Self::IntoIter {
                crate::channel::IntoIter { end: self.end, of: PhantomData }
            }
        }

        impl<'a, T: Payload + ?Sized> IntoIterator for &'a mut $end<T> {
            type Item = Result<T::Message, crate::channel::RecvError>;
            type IntoIter = crate::channel::Iter<'a, T>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl<T: ?Sized> crate::channel::wait_any::Source for $end<T> {}

        impl<T: ?Sized> crate::channel::wait_any::HasEnd for $end<T> {
            fn end(&self, _: crate::channel::wait_any::Seal) -> &ReceivingEnd {
                &self.end
            }

            fn end_mut(&mut self, _: crate::channel::wait_any::Seal) -> &mut ReceivingEnd {
                &mut self.end
            }
        }

        #[doc = concat!(
            "A stream of the ", $other, "'s messages (feature `stream`), as \
             [`iter`](Self::iter) is an iterator."
        )]
        #[cfg(feature = "stream")]
        impl<T: Payload + ?Sized> futures_core::Stream for $end<T> {
            type Item = Result<T::Message, crate::channel::RecvError>;

            fn poll_next(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                let next = crate::channel::receiving_end::poll_next_message(&mut self.end, context);
                next.map(|next| next.map(T::received))
            }
        }
    };
}
pub(super) use receiving_end;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::{wait_any, Receiver, Sender};
    use crate::{Namespace, Provider};
    use nix::sys::resource::{getrusage, UsageWho};
    use std::time::Duration;

    fn provider_and_name(test: &str) -> (Provider, Namespace) {
        let prefix = format!("unit-{test}-{}", std::process::id());
        let namespace = Namespace::new(&prefix).unwrap();
        let provider = Provider::builder().namespace(&namespace).build().unwrap();
        (provider, namespace)
    }

    fn follower(namespace: &Namespace) -> Receiver {
        let builder = Receiver::builder().namespace(namespace);
        builder.on_end(OnEnd::Wait).open("camera").unwrap()
    }

    /// The kernel notifies of a death before it releases the locks. Meanwhile the end looks like
    /// this: its doorbell says that the sender has left, and the sender's locks are held.
    fn seem_to_die(receiver: &Receiver) {
        let open = receiver.end.open.as_ref().unwrap();
        open.shared().to_receiver().leave();
    }

    /// A wait for the teardown would sleep, time and again.
    #[test]
    fn following_does_not_wait_for_a_teardown() {
        fn receives(receiver: &mut Receiver) {
            let event = receiver.try_recv_event().unwrap();
            assert!(matches!(event, ChannelEvent::Connected(_)));
            let event = receiver.try_recv_event().unwrap();
            assert!(matches!(event, ChannelEvent::Disconnected));
        }
        fn waits(receiver: &mut Receiver) {
            let waited = wait_any(&mut [receiver], Duration::ZERO);
            assert!(matches!(waited, Err(RecvError::TimedOut)), "{waited:?}");
        }
        for way in ["receives", "waits"] {
            let (provider, namespace) = provider_and_name(&format!("teardown-{way}"));
            let sender = Sender::create(&provider, "camera").unwrap();
            let mut receiver = follower(&namespace);
            seem_to_die(&receiver);
            let slept = || {
                let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
                usage.voluntary_context_switches()
            };
            let before = slept();
            if way == "receives" {
                receives(&mut receiver);
            } else {
                waits(&mut receiver);
            }
            assert!(receiver.end.open.is_none(), "{way}: it has not followed");
            let sleeps = slept() - before;
            assert!(sleeps < 30, "{way}: it slept {sleeps} times");
            drop(sender);
        }
    }

    #[test]
    fn events_alternate_beside_wait_any() {
        let (provider, namespace) = provider_and_name("alternate");
        let first = Sender::create(&provider, "camera").unwrap();
        let mut receiver = follower(&namespace);
        let event = receiver.recv_event().unwrap();
        assert!(matches!(event, ChannelEvent::Connected(_)));
        drop(first);

        let second = Sender::create(&provider, "camera").unwrap();
        let nothing = wait_any(&mut [&mut receiver], Duration::ZERO);
        assert!(matches!(nothing, Err(RecvError::TimedOut)), "{nothing:?}");
        let event = receiver.recv_event().unwrap();
        assert!(matches!(event, ChannelEvent::Disconnected));
        assert!(receiver.end.has_connected, "it knows the second");
        drop(second);

        let nothing = wait_any(&mut [&mut receiver], Duration::ZERO);
        assert!(matches!(nothing, Err(RecvError::TimedOut)), "{nothing:?}");
        let third = Sender::create(&provider, "camera").unwrap();
        let event = receiver.recv_event().unwrap();
        assert!(matches!(event, ChannelEvent::Connected(_)), "{event:?}");
        drop(third);
    }

    #[test]
    fn last_attempt_at_the_deadline() {
        let (provider, namespace) = provider_and_name("last-attempt");
        let mut receiver = follower(&namespace);
        let mut sender = None;
        let event = receiver.end.receive_event_with(None, |_, _| {
            // The name watcher has not reported it yet when the time is over.
            sender = Some(Sender::create(&provider, "camera").unwrap());
            WakeReason::TimedOut
        });
        let event = event.unwrap();
        assert!(matches!(event, ChannelEvent::Connected(_)), "{event:?}");
    }
}
