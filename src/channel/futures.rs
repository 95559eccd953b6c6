//! Futures of a channel's two ends.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::branch::Branch;
use super::error::{RecvError, SendError, SendErrorKind};
use super::message::Message;
use super::publisher::Publisher;
use super::receiver::Receiver;
use super::sender::Sender;
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
                Some(_) => {}
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

/// Sends `message` with `try_send`, and between two tries waits, without blocking the thread, for the
/// branch that `waited_for` returns.
async fn send<S, M, T>(
    sends: &mut S,
    mut message: M,
    is_buffer: bool,
    try_send: impl Fn(&mut S, M) -> Result<T, SendError<M>>,
    waited_for: fn(&mut S, bool) -> Option<&mut Branch>,
) -> Result<T, SendError<M>> {
    use SendErrorKind::{Full, TooManyLent};
    loop {
        message = match try_send(sends, message) {
            Err(SendError { kind: Full { .. } | TooManyLent { .. }, message }) => message,
            done => return done,
        };
        let Some(branch) = waited_for(sends, is_buffer) else { continue };
        if let Err(kind) = (RoomFuture { branch, is_buffer }).await {
            return Err(SendError { kind, message });
        }
    }
}

/// Waits until a branch may have room for a message, or its receiver closes or dies.
struct RoomFuture<'a> {
    branch: &'a mut Branch,
    is_buffer: bool,
}

impl Future for RoomFuture<'_> {
    type Output = Result<(), SendErrorKind>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { branch, is_buffer } = &mut *self;
        match branch.arm(context.waker(), *is_buffer) {
            Ok(None) => Poll::Pending,
            // The next try discovers a closed receiver, and takes its buffers back.
            Ok(Some(_)) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(SendErrorKind::NoHelper { errno: error.errno().unwrap_or(libc::EAGAIN) })),
        }
    }
}

impl Drop for RoomFuture<'_> {
    fn drop(&mut self) {
        self.branch.sleeper.disarm();
    }
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
    pub async fn send_async(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        send(self, buffer, true, Self::try_send, |sender, _| Some(&mut sender.branch)).await
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes in the slot itself, and waits as
    /// [`send_async`](Self::send_async) does.
    ///
    /// # Panics
    ///
    /// If the future is polled after completion.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        let try_send =
            |sender: &mut Self, message| sender.try_send_bytes(message).map_err(|kind| SendError { kind, message });
        send(self, bytes, false, try_send, |sender, _| Some(&mut sender.branch)).await.map_err(|error| error.kind)
    }
}

impl Publisher {
    /// Sends a buffer to all receivers, and waits without blocking the thread for each receiver
    /// that chose [`OnFull::Wait`](super::OnFull::Wait) and has no free slot. Works with any
    /// executor. An error returns the buffer. If the future is dropped before it is ready, nothing
    /// is sent, and the buffer is dropped with it.
    ///
    /// # Panics
    ///
    /// If the future is polled after completion.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBuf) -> Result<usize, SendError<ShmBuf>> {
        send(self, buffer, true, Self::try_send, Self::waited_for).await
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes to all receivers, and waits as
    /// [`send_async`](Self::send_async) does.
    ///
    /// # Panics
    ///
    /// If the future is polled after completion.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<usize, SendErrorKind> {
        let try_send = |publisher: &mut Self, message| {
            publisher.try_send_bytes(message).map_err(|kind| SendError { kind, message })
        };
        send(self, bytes, false, try_send, Self::waited_for).await.map_err(|error| error.kind)
    }
}
