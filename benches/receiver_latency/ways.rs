//! The two ends of each way that messages go, both for one message at a time.

#![forbid(unsafe_code)]

use crate::publisher::Bytes;
use shm_pool::channel::{Message, Receiver, RecvError, Sender};
use shm_pool_support::Fallible;
use std::hint::spin_loop;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

/// The publisher's end.
pub(crate) trait Outgoing {
    /// Sends a message, and waits for room if need be.
    fn send(&mut self, bytes: &Bytes) -> Fallible;
}

/// The receiver's end.
pub(crate) trait Incoming {
    /// Waits for the next message. `None` when the publisher has closed its end, and all that it
    /// had sent was received.
    fn receive(&mut self) -> Fallible<Option<Bytes>>;
}

/// An end that looks again and again where it would sleep otherwise.
pub(crate) struct Busy<T>(pub(crate) T);

impl Outgoing for Sender {
    fn send(&mut self, bytes: &Bytes) -> Fallible {
        Ok(self.send_bytes(bytes)?)
    }
}

impl Incoming for Receiver {
    fn receive(&mut self) -> Fallible<Option<Bytes>> {
        match self.recv() {
            Ok(Message::Bytes(bytes)) => Ok(Some(bytes[..].try_into()?)),
            Ok(other) => Err(format!("a message of another kind came: {other:?}").into()),
            Err(RecvError::Disconnected) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Outgoing for UnixStream {
    fn send(&mut self, bytes: &Bytes) -> Fallible {
        Ok(self.write_all(bytes)?)
    }
}

impl Outgoing for Busy<UnixStream> {
    fn send(&mut self, bytes: &Bytes) -> Fallible {
        Ok(self.write_all(bytes)?)
    }
}

/// What has come is read at once, in one call, and then handed out message by message.
impl<R: Read> Incoming for BufReader<R> {
    fn receive(&mut self) -> Fallible<Option<Bytes>> {
        if self.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut bytes = Bytes::default();
        self.read_exact(&mut bytes)?;
        Ok(Some(bytes))
    }
}

/// Repeats a call as long as it would block. The socket must be non-blocking.
#[inline]
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            outcome => return outcome,
        }
    }
}

impl Read for Busy<UnixStream> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        again(|| self.0.read(bytes))
    }
}

impl Write for Busy<UnixStream> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

const GONE: &str = "the receiver is gone";

impl Outgoing for mpsc::SyncSender<Bytes> {
    fn send(&mut self, bytes: &Bytes) -> Fallible {
        Ok(mpsc::SyncSender::send(self, *bytes).map_err(|_| GONE)?)
    }
}

impl Incoming for mpsc::Receiver<Bytes> {
    fn receive(&mut self) -> Fallible<Option<Bytes>> {
        // The only error is that the publisher is gone, and all was received.
        Ok(self.recv().ok())
    }
}

impl Outgoing for Busy<mpsc::SyncSender<Bytes>> {
    fn send(&mut self, bytes: &Bytes) -> Fallible {
        loop {
            match self.0.try_send(*bytes) {
                Ok(()) => return Ok(()),
                Err(mpsc::TrySendError::Full(_)) => spin_loop(),
                Err(mpsc::TrySendError::Disconnected(_)) => return Err(GONE.into()),
            }
        }
    }
}

impl Incoming for Busy<mpsc::Receiver<Bytes>> {
    fn receive(&mut self) -> Fallible<Option<Bytes>> {
        loop {
            match self.0.try_recv() {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(mpsc::TryRecvError::Empty) => spin_loop(),
                Err(mpsc::TryRecvError::Disconnected) => return Ok(None),
            }
        }
    }
}
