//! Awaiting: the futures of a channel's two ends.

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
    /// Receives the next message, and waits for it without blocking the thread. Works with any
    /// executor. The future can be dropped at any time: no message is lost by it.
    ///
    /// The [module](super#awaiting) tells who wakes the task. It does not spin.
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
    /// [`RecvError::NoHelper`], and those of [`recv`](Self::recv) but [`RecvError::Interrupted`].
    pub fn recv_async(&mut self) -> RecvFuture<'_> {
        RecvFuture(self)
    }

    /// Receives the next message, if it has arrived; otherwise has the task woken when it may have.
    /// Only the waker of the last call is kept. With this, one task waits for many receivers.
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

/// The next message of a [`Receiver`]. Made by [`Receiver::recv_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct RecvFuture<'a>(&'a mut Receiver);

impl Future for RecvFuture<'_> {
    type Output = Result<Message, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_recv(context)
    }
}

impl Drop for RecvFuture<'_> {
    /// A message that has arrived by now is the next call's.
    fn drop(&mut self) {
        self.0.sleeper.disarm();
    }
}

impl fmt::Debug for RecvFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecvFuture").field(&self.0).finish()
    }
}

/// The messages of the sender, as they come; with the feature `stream`. It ends when the sender is
/// gone and all its messages were received. Other errors are items.
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
    /// Lends a buffer to the receiver, and waits for room in the ring without blocking the thread.
    /// Works with any executor. The buffer comes back with an error. If the future is dropped
    /// before it is ready, nothing was sent, and the buffer is dropped with it.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) but
    /// [`SendErrorKind::Interrupted`].
    pub fn send_async(&mut self, buffer: ShmBuf) -> SendFuture<'_> {
        SendFuture { sender: self, buffer: Some(buffer) }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes in the slot itself, and waits for room
    /// without blocking the thread. If the future is dropped before it is ready, nothing was sent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) but
    /// [`SendErrorKind::Interrupted`].
    pub fn send_bytes_async<'a>(&'a mut self, bytes: &'a [u8]) -> SendBytesFuture<'a> {
        SendBytesFuture { sender: self, bytes }
    }

    /// `Ready` when it is worth while to try again.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendErrorKind>> {
        // A receiver that is gone is found by the next try, which takes back what it had.
        match self.branch.arm(context.waker()).map_err(no_helper)? {
            None => Poll::Pending,
            Some(_) => Poll::Ready(Ok(())),
        }
    }
}

/// A buffer that waits for room in a channel. Made by [`Sender::send_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct SendFuture<'a> {
    sender: &'a mut Sender,
    /// `None` once it is sent, or has come back.
    buffer: Option<ShmBuf>,
}

impl Future for SendFuture<'_> {
    type Output = Result<(), SendError<ShmBuf>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            // Polled again after it was ready, it has nothing to send.
            let Some(buffer) = this.buffer.take() else { return Poll::Pending };
            let message = match this.sender.try_send(buffer) {
                Err(SendError { kind: SendErrorKind::Full { .. }, message }) => message,
                done => {
                    this.sender.branch.sleeper.disarm();
                    return Poll::Ready(done);
                }
            };
            match this.sender.poll_room(context) {
                Poll::Ready(Ok(())) => this.buffer = Some(message),
                Poll::Ready(Err(kind)) => return Poll::Ready(Err(SendError { kind, message })),
                Poll::Pending => {
                    this.buffer = Some(message);
                    return Poll::Pending;
                }
            }
        }
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

/// Bytes that wait for room in a channel. Made by [`Sender::send_bytes_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct SendBytesFuture<'a> {
    sender: &'a mut Sender,
    bytes: &'a [u8],
}

impl Future for SendBytesFuture<'_> {
    type Output = Result<(), SendErrorKind>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match this.sender.try_send_bytes(this.bytes) {
                Err(SendErrorKind::Full { .. }) => {}
                done => {
                    this.sender.branch.sleeper.disarm();
                    return Poll::Ready(done);
                }
            }
            match this.sender.poll_room(context)? {
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for SendBytesFuture<'_> {
    fn drop(&mut self) {
        self.sender.branch.sleeper.disarm();
    }
}

impl fmt::Debug for SendBytesFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBytesFuture").field("sender", &self.sender).field("len", &self.bytes.len()).finish()
    }
}

impl Publisher {
    /// Sends a buffer to all receivers, and waits for room where a receiver chose
    /// [`OnFull::Wait`](super::OnFull::Wait), without blocking the thread. Works with any executor.
    /// The buffer comes back with an error. If the future is dropped before it is ready, nothing
    /// was sent, and the buffer is dropped with it.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) but
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        let mut buffer = buffer;
        loop {
            buffer = match self.try_send(buffer) {
                Err(SendError { kind: SendErrorKind::Full { .. }, message }) => message,
                done => return done,
            };
            if let Err(kind) = RoomFuture(self).await {
                return Err(SendError { kind, message: buffer });
            }
        }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes to all receivers, and waits for room as
    /// [`send_async`](Self::send_async) does.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) but
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        loop {
            match self.try_send_bytes(bytes) {
                Err(SendErrorKind::Full { .. }) => RoomFuture(self).await?,
                done => return done,
            }
        }
    }
}

/// Room for a message at the receivers of a publisher: `Ready` when it is worth while to try again.
struct RoomFuture<'a>(&'a mut Publisher);

impl Future for RoomFuture<'_> {
    type Output = Result<(), SendErrorKind>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(branch) = self.0.waited_for() else { return Poll::Ready(Ok(())) };
        match branch.arm(context.waker()).map_err(no_helper)? {
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
