//! How a message goes to the other process, by each way, and when the receiver looks at the clock for the first time.

#![forbid(unsafe_code)]

use crate::slot::{Slot, PATIENCE};
use crate::support::{clock, Fallible};
use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::Provider;

/// The sender's end.
pub(crate) trait Outbox {
    /// Sends a buffer of the application's, which has it back afterwards.
    fn send(&mut self, payload: &[u8]) -> Fallible;
}

/// The receiver's end.
pub(crate) trait Inbox {
    /// Waits for a message, and gives it to `read` with the time of the wake.
    fn receive(&mut self, read: impl FnOnce(u64, &[u8]) -> Fallible) -> Fallible;

    /// An error if something is left, now that the sender has ended.
    fn check_end(&mut self) -> Fallible;
}

/// One bulk copy, into a buffer of the pool.
pub(crate) struct ChannelOutbox {
    pub(crate) provider: Provider,
    pub(crate) sender: Sender,
}

impl Outbox for ChannelOutbox {
    fn send(&mut self, payload: &[u8]) -> Fallible {
        let mut buffer = self.provider.alloc(payload.len())?;
        buffer.copy_from_slice(payload);
        Ok(self.sender.send(buffer.freeze())?)
    }
}

/// No copy: the message is read in place.
pub(crate) struct ChannelInbox(pub(crate) Receiver);

impl Inbox for ChannelInbox {
    fn receive(&mut self, read: impl FnOnce(u64, &[u8]) -> Fallible) -> Fallible {
        // As with the slot, the clock is asked for a deadline only if there is nothing yet.
        let message = match self.0.try_recv() {
            Err(RecvError::Empty) => self.0.recv_timeout(PATIENCE)?,
            message => message?,
        };
        read(clock::now(), &message)
    }

    fn check_end(&mut self) -> Fallible {
        match self.0.try_recv() {
            Err(RecvError::Disconnected) => Ok(()),
            other => Err(format!("after the last message came {other:?}").into()),
        }
    }
}

/// One bulk copy, into the slot.
impl Outbox for Slot {
    fn send(&mut self, payload: &[u8]) -> Fallible {
        self.put(payload)
    }
}

/// One bulk copy, out of the slot into a buffer that is there already.
pub(crate) struct SlotInbox {
    pub(crate) slot: Slot,
    pub(crate) buffer: Vec<u8>,
}

impl Inbox for SlotInbox {
    fn receive(&mut self, read: impl FnOnce(u64, &[u8]) -> Fallible) -> Fallible {
        let (len, wake) = self.slot.take(&mut self.buffer)?;
        read(wake, &self.buffer[..len])
    }

    fn check_end(&mut self) -> Fallible {
        if self.slot.is_empty()? {
            Ok(())
        } else {
            Err("after the last message came another one".into())
        }
    }
}
