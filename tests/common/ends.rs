//! The two ends that send, for tests of the common properties of a sender and a publisher.

#![allow(dead_code)] // not all of it by every test program

use shm_pool::channel::{
    ChannelError, Message, OnEnd, Publisher, Receiver, RecvError, SendError, SendOptions, Sender,
    Sent, Source, Subscriber,
};
use shm_pool::{Namespace, ShmBytes};
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

pub(crate) trait SendingEnd: Send {
    /// What it says of a message that it has sent: nothing, or the number of receivers.
    type Sent: Copy + Debug + PartialEq + Sync;

    fn send(&mut self, buffer: ShmBytes) -> Result<Self::Sent, SendError<ShmBytes>>;
    fn try_send(&mut self, buffer: ShmBytes) -> Result<Self::Sent, SendError<ShmBytes>>;
    fn send_timeout(
        &mut self,
        buffer: ShmBytes,
        timeout: Duration,
    ) -> Result<Self::Sent, SendError<ShmBytes>>;
    fn send_async(
        &mut self,
        buffer: ShmBytes,
    ) -> impl Future<Output = Result<Self::Sent, SendError<ShmBytes>>>;
    fn send_with(
        &mut self,
        buffer: ShmBytes,
        options: SendOptions,
    ) -> Result<Self::Sent, SendError<ShmBytes>>;
    fn send_with_async(
        &mut self,
        buffer: ShmBytes,
        options: SendOptions,
    ) -> impl Future<Output = Result<Self::Sent, SendError<ShmBytes>>>;
    fn send_copy(&mut self, bytes: &[u8]) -> Result<Self::Sent, SendError>;
    fn try_send_copy(&mut self, bytes: &[u8]) -> Result<Self::Sent, SendError>;
    fn send_copy_with(
        &mut self,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<Self::Sent, SendError>;
    fn send_copy_async(
        &mut self,
        bytes: &[u8],
    ) -> impl Future<Output = Result<Self::Sent, SendError>>;
}

macro_rules! sending_end {
    ($end:ty, $sent:ty, $of:expr) => {
        impl SendingEnd for $end {
            type Sent = $sent;

            fn send(&mut self, buffer: ShmBytes) -> Result<$sent, SendError<ShmBytes>> {
                self.send(buffer).map($of)
            }
            fn try_send(&mut self, buffer: ShmBytes) -> Result<$sent, SendError<ShmBytes>> {
                self.try_send(buffer).map($of)
            }
            fn send_timeout(
                &mut self,
                buffer: ShmBytes,
                timeout: Duration,
            ) -> Result<$sent, SendError<ShmBytes>> {
                self.send_timeout(buffer, timeout).map($of)
            }
            fn send_async(
                &mut self,
                buffer: ShmBytes,
            ) -> impl Future<Output = Result<$sent, SendError<ShmBytes>>> {
                async { self.send_async(buffer).await.map($of) }
            }
            fn send_with(
                &mut self,
                buffer: ShmBytes,
                options: SendOptions,
            ) -> Result<$sent, SendError<ShmBytes>> {
                self.send_with(buffer, options).map($of)
            }
            fn send_with_async(
                &mut self,
                buffer: ShmBytes,
                options: SendOptions,
            ) -> impl Future<Output = Result<$sent, SendError<ShmBytes>>> {
                async move { self.send_with_async(buffer, options).await.map($of) }
            }
            fn send_copy(&mut self, bytes: &[u8]) -> Result<$sent, SendError> {
                self.send_copy(bytes).map($of)
            }
            fn try_send_copy(&mut self, bytes: &[u8]) -> Result<$sent, SendError> {
                self.try_send_copy(bytes).map($of)
            }
            fn send_copy_with(
                &mut self,
                bytes: &[u8],
                options: SendOptions,
            ) -> Result<$sent, SendError> {
                self.send_copy_with(bytes, options).map($of)
            }
            fn send_copy_async(
                &mut self,
                bytes: &[u8],
            ) -> impl Future<Output = Result<$sent, SendError>> {
                async { self.send_copy_async(bytes).await.map($of) }
            }
        }
    };
}

sending_end!(Sender, (), |sent| sent);
sending_end!(Publisher, usize, |sent: Sent| sent.receivers);

/// A receiver of either kind, which ends with its sender or publisher.
pub(crate) enum AnyReceiver {
    Receiver(Receiver),
    Subscriber(Subscriber),
}

macro_rules! either {
    ($any:expr, $end:ident => $call:expr) => {
        match $any {
            Self::Receiver($end) => $call,
            Self::Subscriber($end) => $call,
        }
    };
}

impl AnyReceiver {
    /// Opens the channel, whichever kind it is of.
    pub(crate) fn open(namespace: &Namespace, name: &str) -> Result<Self, ChannelError> {
        Self::open_spinning(namespace, name, None)
    }

    pub(crate) fn open_spinning(
        namespace: &Namespace,
        name: &str,
        spin: Option<Duration>,
    ) -> Result<Self, ChannelError> {
        let mut receiver = Receiver::builder().namespace(namespace);
        let mut subscriber = Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(namespace);
        if let Some(spin) = spin {
            receiver = receiver.spin(spin);
            subscriber = subscriber.spin(spin);
        }
        match receiver.open(name) {
            Err(ChannelError::NotASender { .. }) => {
                let subscriber = subscriber.open_timeout(name, Duration::ZERO)?;
                Ok(Self::Subscriber(subscriber))
            }
            opened => Ok(Self::Receiver(opened?)),
        }
    }

    pub(crate) fn recv(&mut self) -> Result<Message, RecvError> {
        either!(self, end => end.recv())
    }

    pub(crate) fn try_recv(&mut self) -> Result<Message, RecvError> {
        either!(self, end => end.try_recv())
    }

    pub(crate) fn recv_timeout(&mut self, timeout: Duration) -> Result<Message, RecvError> {
        either!(self, end => end.recv_timeout(timeout))
    }

    pub(crate) fn mapped_segments(&self) -> usize {
        either!(self, end => end.mapped_segments())
    }

    /// For `wait_any`.
    pub(crate) fn source(&mut self) -> &mut dyn Source {
        either!(self, end => end)
    }
}
