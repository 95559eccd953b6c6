//! Futures of a channel's two ends.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::error::{RecvError, SendError, SendErrorKind};
use super::message::Message;
use super::publisher::Publisher;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::error::OsError;
use crate::owner::buf::ShmBuf;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

impl Receiver {
    /// Receives the next message without blocking the thread. Works with any executor. Cancel safe:
    /// dropping the future loses no message.
    ///
    /// The future does not spin; see the [module](super#awaiting) for how the task is woken.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shm_pool::channel::{Receiver, Sender};
    /// use shm_pool::{Client, Provider};
    ///
    /// # let name = format!("doc-await-{}", std::process::id());
    /// let provider = Provider::builder().build()?;
    /// let mut sender = Sender::create(&provider, &name)?;
    /// let mut receiver = Receiver::open(&Client::new(), &name)?;
    /// sender.send_bytes_async(b"a sample").await?;
    /// assert_eq!(&receiver.recv_async().await?[..], b"a sample");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecvError::NoHelper`], and those of [`recv`](Self::recv) except
    /// [`RecvError::Interrupted`].
    pub fn recv_async(&mut self) -> RecvFuture<'_> {
        RecvFuture(self)
    }

    /// Receives the next message if it has arrived; otherwise registers the task to be woken when
    /// one may have. Only the waker of the last call is kept. With this method, one task can wait
    /// for many receivers.
    ///
    /// # Errors
    ///
    /// As [`recv_async`](Self::recv_async).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, RecvError>> {
        self.ask()?;
        loop {
            if let Some(taken) = self.take() {
                self.sleeper.disarm();
                return Poll::Ready(taken);
            }
            match self.arm(context.waker()).map_err(RecvError::NoHelper)? {
                None => return Poll::Pending,
                Some(Woken::Gone) => return Poll::Ready(Err(RecvError::Disconnected)),
                Some(Woken::Ready | Woken::TimedOut) => {}
            }
        }
    }
}

/// A future that receives the next message of a [`Receiver`]. Created by [`Receiver::recv_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct RecvFuture<'a>(&'a mut Receiver);

impl Future for RecvFuture<'_> {
    type Output = Result<Message, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_recv(context)
    }
}

impl Drop for RecvFuture<'_> {
    /// A message that has arrived by now stays queued for the next call.
    fn drop(&mut self) {
        self.0.sleeper.disarm();
    }
}

impl fmt::Debug for RecvFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecvFuture").field(&self.0).finish()
    }
}

/// A stream of the sender's messages; requires the feature `stream`. It ends when the sender has
/// closed and everything it sent has been received. Other errors are items.
#[cfg(feature = "stream")]
impl futures_core::Stream for Receiver {
    type Item = Result<Message, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(context).map(|received| match received {
            Err(RecvError::Disconnected) => None,
            received => Some(received),
        })
    }
}

fn no_helper(error: OsError) -> SendErrorKind {
    SendErrorKind::NoHelper { errno: error.errno().unwrap_or(libc::EAGAIN) }
}

impl Sender {
    /// Sends a buffer to the receiver, and waits for a free slot without blocking the thread. Works
    /// with any executor. An error returns the buffer. If the future is dropped before it is ready,
    /// nothing is sent, and the buffer is dropped with it.
    ///
    /// # Panics
    ///
    /// If the future is polled after completion.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub fn send_async(&mut self, buffer: ShmBuf) -> SendFuture<'_> {
        SendFuture { sender: self, buffer: Some(buffer) }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes in the slot itself, and waits for a free
    /// slot without blocking the thread. If the future is dropped before it is ready, nothing is
    /// sent.
    ///
    /// # Panics
    ///
    /// If the future is polled after completion.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub fn send_bytes_async<'a>(&'a mut self, bytes: &'a [u8]) -> SendBytesFuture<'a> {
        SendBytesFuture { sender: self, bytes: Some(bytes) }
    }

    /// Sends `message` with `try_send`, or registers the task to be woken when another try may
    /// succeed.
    fn poll_send<M>(
        &mut self,
        message: &mut Option<M>,
        is_buffer: bool,
        context: &mut Context<'_>,
        try_send: impl Fn(&mut Self, M) -> Result<(), SendError<M>>,
    ) -> Poll<Result<(), SendError<M>>> {
        loop {
            let unsent = message.take().expect("a sender's future polled after completion");
            let unsent = match try_send(self, unsent) {
                Err(SendError { kind: SendErrorKind::Full { .. } | SendErrorKind::TooManyLent { .. }, message }) => {
                    message
                }
                done => {
                    self.branch.sleeper.disarm();
                    return Poll::Ready(done);
                }
            };
            // A closed receiver is discovered by the next try, which takes its buffers back.
            let woken = match self.branch.arm(context.waker(), is_buffer) {
                Ok(woken) => woken,
                Err(error) => return Poll::Ready(Err(SendError { kind: no_helper(error), message: unsent })),
            };
            *message = Some(unsent);
            if woken.is_none() {
                return Poll::Pending;
            }
        }
    }
}

/// A future that sends a buffer. Created by [`Sender::send_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct SendFuture<'a> {
    sender: &'a mut Sender,
    /// `None` once it was sent or returned.
    buffer: Option<ShmBuf>,
}

impl Future for SendFuture<'_> {
    type Output = Result<(), SendError<ShmBuf>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { sender, buffer } = &mut *self;
        sender.poll_send(buffer, true, context, Sender::try_send)
    }
}

impl Drop for SendFuture<'_> {
    fn drop(&mut self) {
        self.sender.branch.sleeper.disarm();
    }
}

impl fmt::Debug for SendFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFuture").field("sender", &self.sender).field("waits", &self.buffer.is_some()).finish()
    }
}

/// A future that sends bytes. Created by [`Sender::send_bytes_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct SendBytesFuture<'a> {
    sender: &'a mut Sender,
    /// `None` once they were sent.
    bytes: Option<&'a [u8]>,
}

impl Future for SendBytesFuture<'_> {
    type Output = Result<(), SendErrorKind>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { sender, bytes } = &mut *self;
        let try_send = |sender: &mut Sender, bytes| {
            sender.try_send_bytes(bytes).map_err(|kind| SendError { kind, message: bytes })
        };
        sender.poll_send(bytes, false, context, try_send).map_err(|error| error.kind)
    }
}

impl Drop for SendBytesFuture<'_> {
    fn drop(&mut self) {
        self.sender.branch.sleeper.disarm();
    }
}

impl fmt::Debug for SendBytesFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBytesFuture").field("sender", &self.sender).field("waits", &self.bytes.is_some()).finish()
    }
}

impl Publisher {
    /// Sends a buffer to all receivers, and waits without blocking the thread for each receiver
    /// that chose [`OnFull::Wait`](super::OnFull::Wait) and has no free slot. Works with any
    /// executor. An error returns the buffer. If the future is dropped before it is ready, nothing
    /// is sent, and the buffer is dropped with it.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        let mut buffer = buffer;
        loop {
            buffer = match self.try_send(buffer) {
                Err(SendError { kind: SendErrorKind::Full { .. } | SendErrorKind::TooManyLent { .. }, message }) => {
                    message
                }
                done => return done,
            };
            if let Err(kind) = RoomFuture(self, true).await {
                return Err(SendError { kind, message: buffer });
            }
        }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes to all receivers, and waits as
    /// [`send_async`](Self::send_async) does.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        loop {
            match self.try_send_bytes(bytes) {
                Err(SendErrorKind::Full { .. }) => RoomFuture(self, false).await?,
                done => return done,
            }
        }
    }
}

/// Waits until a publisher's receivers may have room for a message; the flag says that it is a
/// buffer.
struct RoomFuture<'a>(&'a mut Publisher, bool);

impl Future for RoomFuture<'_> {
    type Output = Result<(), SendErrorKind>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(publisher, is_buffer) = &mut *self;
        let Some(branch) = publisher.waited_for(*is_buffer) else { return Poll::Ready(Ok(())) };
        match branch.arm(context.waker(), *is_buffer).map_err(no_helper)? {
            None => Poll::Pending,
            Some(_) => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for RoomFuture<'_> {
    fn drop(&mut self) {
        self.0.disarm();
    }
}
