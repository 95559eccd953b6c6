//! A receiver that survives restarts of its sender or publisher.

#![forbid(unsafe_code)]

use super::doorbell::WakeReason;
use super::error::{ChannelError, RecvError};
use super::interrupt::{Interrupter, Interrupts};
use super::layout;
use super::receiver::{may_open_later, Message, Receiver, ReceiverBuilder};
use super::watch::Attempts;
use crate::os::fork::ForkGuard;
use crate::os::futex::Deadline;
use crate::os::name::Namespace;
use crate::peer::client::Client;
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// What a [`Subscriber`] receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<M = Message> {
    /// The subscriber has opened the channel of this sender or publisher.
    Connected {
        /// The provider of its messages. A restarted process has a new one.
        provider: ProviderId,
    },
    /// A message; of a typed subscriber, a value.
    Message(M),
    /// The sender or publisher has closed or died, and everything that it sent has been received.
    /// Its messages stay valid until they are dropped.
    Disconnected,
}

impl ReceiverBuilder {
    /// Subscribes to the channel `name`, which need not exist yet: the subscriber opens it, and
    /// each successor of that name, with the options of this builder.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`].
    pub fn subscribe(self, client: &Client, name: &str) -> Result<Subscriber, ChannelError> {
        let (names, uid) = client.trusted();
        Ok(Subscriber {
            receiver: None,
            attempts: Attempts::new(layout::name(names, name)?),
            error: None,
            options: self,
            names: names.clone(),
            uid,
            channel: name.to_owned(),
            interrupts: Interrupts::new(),
            fork: ForkGuard::new(),
        })
    }
}

/// Receives from each [`Sender`](super::Sender) or [`Publisher`](super::Publisher) of a channel's
/// name, one after the other.
///
/// Between the last message of one sender and the first of the next there are always
/// [`Event::Disconnected`] and [`Event::Connected`]. A sender that starts and ends while the
/// subscriber neither receives nor waits is skipped, and so are the messages that a publisher sends
/// before the subscriber has joined it (but see
/// [`PublisherBuilder::history`](super::PublisherBuilder::history)).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Event, Receiver, Sender};
/// use shm_pool::{Client, Provider};
///
/// # let name = format!("doc-subscribe-{}", std::process::id());
/// let mut subscriber = Receiver::builder().subscribe(&Client::new(), &name)?;
/// # let provider = Provider::builder().build()?;
/// for _ in 0..2 {
///     // The sending process, which restarts.
///     let mut sender = Sender::create(&provider, &name)?;
///     sender.send_bytes(b"a sample")?;
///
///     assert!(matches!(subscriber.recv()?, Event::Connected { .. }));
///     assert!(matches!(subscriber.recv()?, Event::Message(message) if message[..] == *b"a sample"));
///     drop(sender);
///     assert!(matches!(subscriber.recv()?, Event::Disconnected));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Subscriber {
    receiver: Option<Receiver>,
    attempts: Attempts,
    error: Option<ChannelError>,
    options: ReceiverBuilder,
    names: Namespace,
    uid: u32,
    channel: String,
    interrupts: Arc<Interrupts>,
    fork: ForkGuard,
}

impl Subscriber {
    /// Receives the next event, blocking until there is one.
    ///
    /// # Errors
    ///
    /// * [`RecvError::Open`] if a channel of that name exists and cannot be opened, unless this
    ///   call [waits](Self::last_error) for that. The next call waits for a change of the object,
    ///   or a second; if the channel's options or type are the reason, for the next sender.
    /// * [`RecvError::Evicted`] if the publisher has disconnected this subscriber. The next call
    ///   joins it again.
    /// * Those of [`Receiver::recv`] except [`RecvError::Disconnected`].
    #[inline]
    pub fn recv(&mut self) -> Result<Event, RecvError> {
        self.receive(None)
    }

    /// Like [`recv`](Self::recv), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvError::TimedOut`], and those of [`recv`](Self::recv).
    #[inline]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Event, RecvError> {
        self.receive(Deadline::after(timeout))
    }

    /// Like [`recv`](Self::recv), but never blocks. Makes system calls while there is no sender.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`], and those of [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Event, RecvError> {
        self.check_fork()?;
        match &mut self.receiver {
            Some(receiver) => {
                let received = receiver.try_recv();
                self.event(received)
            }
            None => self.open().unwrap_or(Err(RecvError::Empty)),
        }
    }

    #[inline]
    fn receive(&mut self, deadline: Option<Deadline>) -> Result<Event, RecvError> {
        if let Some(receiver) = &mut self.receiver {
            let received = receiver.receive(deadline);
            return self.event(received);
        }
        self.connect(deadline)
    }

    #[cold]
    fn connect(&mut self, deadline: Option<Deadline>) -> Result<Event, RecvError> {
        self.check_fork()?;
        loop {
            if let Some(opened) = self.open() {
                return opened;
            }
            match self.attempts.wait(deadline, Some(&self.interrupts)) {
                WakeReason::Interrupted => return Err(RecvError::Interrupted),
                WakeReason::TimedOut => return self.open().unwrap_or(Err(RecvError::TimedOut)),
                WakeReason::Ready | WakeReason::Disconnected => {}
            }
        }
    }

    /// Receives the next event without blocking the thread, with any executor. Cancel safe:
    /// dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// [`RecvError::NoHelper`], and those of [`recv`](Self::recv) except
    /// [`RecvError::Interrupted`].
    pub async fn recv_async(&mut self) -> Result<Event, RecvError> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Receives the next event if there is one; otherwise registers the task to be woken when there
    /// may be. Only the waker of the last call is kept.
    ///
    /// # Errors
    ///
    /// As [`recv_async`](Self::recv_async).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, RecvError>> {
        self.check_fork()?;
        loop {
            if let Some(receiver) = &mut self.receiver {
                let received = ready!(receiver.poll_recv(context));
                return Poll::Ready(self.event(received));
            }
            if let Some(opened) = self.open() {
                return Poll::Ready(opened);
            }
            ready!(self.attempts.poll(context)).map_err(RecvError::NoHelper)?;
        }
    }

    /// Returns the open channel, for its options and state; `None` while there is no sender.
    pub fn receiver(&self) -> Option<&Receiver> {
        self.receiver.as_ref()
    }

    /// Returns why the channel could not be opened at the last attempt, while it is not open: for
    /// example [`ChannelError::NotFound`], [`ChannelError::TooManyReceivers`] or
    /// [`ChannelError::HasReceiver`], for which the subscriber waits. `None` after
    /// [`RecvError::Open`], which contains the error.
    pub fn last_error(&self) -> Option<&ChannelError> {
        self.error.as_ref()
    }

    /// Returns a handle that can interrupt this subscriber's blocking waits.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    #[inline]
    fn event(&mut self, received: Result<Message, RecvError>) -> Result<Event, RecvError> {
        match received {
            Ok(message) => Ok(Event::Message(message)),
            Err(RecvError::Disconnected) => {
                self.close();
                Ok(Event::Disconnected)
            }
            Err(RecvError::Evicted) => {
                self.close();
                Err(RecvError::Evicted)
            }
            Err(error) => Err(error),
        }
    }

    #[cold]
    fn close(&mut self) {
        self.receiver = None;
    }

    /// Opens the channel if an attempt is due, unless it cannot be opened yet.
    fn open(&mut self) -> Option<Result<Event, RecvError>> {
        let Self {
            attempts,
            error,
            options,
            names,
            uid,
            channel,
            interrupts,
            ..
        } = self;
        let opened =
            attempts.attempt(|| options.open_in(names, *uid, channel, interrupts.clone()))?;
        match opened {
            Ok(receiver) => {
                let provider = receiver.provider();
                (self.receiver, self.error) = (Some(receiver), None);
                Some(Ok(Event::Connected { provider }))
            }
            Err(failed) if is_to_wait(&failed) => {
                *error = Some(failed);
                None
            }
            Err(failed) => {
                *error = None;
                Some(Err(RecvError::Open(Box::new(failed))))
            }
        }
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

/// The receiver of a [`Sender`](super::Sender)'s channel may have been this process's predecessor:
/// then the sender creates a new channel.
fn is_to_wait(error: &ChannelError) -> bool {
    may_open_later(error) || matches!(error, ChannelError::HasReceiver { .. })
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("channel", &self.channel)
            .field("receiver", &self.receiver)
            .finish()
    }
}

/// A stream of the subscriber's events (feature `stream`), which never ends. Errors are items.
#[cfg(feature = "stream")]
impl futures_core::Stream for Subscriber {
    type Item = Result<Event, RecvError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.poll_recv(context).map(Some)
    }
}
