//! The two ends that send, for tests of the common properties of a sender and a publisher.

#![allow(dead_code)] // not all of it by every test program

use shm_pool::channel::{Publisher, SendError, Sender, Sent};
use shm_pool::ShmBytes;
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
    fn send_bytes(&mut self, bytes: &[u8]) -> Result<Self::Sent, SendError>;
    fn send_bytes_async(
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
            fn send_bytes(&mut self, bytes: &[u8]) -> Result<$sent, SendError> {
                self.send_bytes(bytes).map($of)
            }
            fn send_bytes_async(
                &mut self,
                bytes: &[u8],
            ) -> impl Future<Output = Result<$sent, SendError>> {
                async { self.send_bytes_async(bytes).await.map($of) }
            }
        }
    };
}

sending_end!(Sender, (), |sent| sent);
sending_end!(Publisher, usize, |sent: Sent| sent.receivers);
