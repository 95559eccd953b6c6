//! How a message goes to the other process, by each way; and what both sides do, by whatever way:
//! the stamps, and the checks.

#![forbid(unsafe_code)]

use crate::payload::{touch, Payload};
use crate::rows::Setting;
use crate::slot::{Slot, PATIENCE};
use hdrhistogram::Histogram;
use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::Provider;
use shm_pool_support::{clock, latency, Fallible};
use std::hint::black_box;
use std::time::Duration;

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

/// What the receiver has seen of one round.
pub(crate) struct Round {
    pub(crate) wake: Histogram<u64>,
    pub(crate) usable: Histogram<u64>,
    pub(crate) took: Duration,
}

/// Sends all messages, each when its time has come, or back to back. The stamp is the last thing
/// before.
pub(crate) fn send_all(outbox: &mut impl Outbox, setting: &Setting) -> Fallible {
    let pace = setting.kind.pace().map(|pace| pace.as_nanos() as u64);
    let mut payload = Payload::new(setting.len);
    let start = clock::now();
    for number in 0..setting.messages() {
        if let Some(pace) = pace {
            clock::sleep_until(start + number * pace);
        }
        payload.set_number(number);
        payload.set_sent(clock::now());
        outbox.send(payload.bytes())?;
    }
    Ok(())
}

/// Receives all messages in order, reads every byte of each, and then compares it with what was
/// sent. Those of the warm-up are not recorded.
pub(crate) fn receive_all(inbox: &mut impl Inbox, setting: &Setting) -> Fallible<Round> {
    let mut round = Round { wake: latency::histogram(), usable: latency::histogram(), took: Duration::ZERO };
    let mut expected = Payload::new(setting.len);
    let mut start = clock::now();
    for number in 0..setting.messages() {
        if number == setting.warm_up {
            start = clock::now();
        }
        inbox.receive(|wake, bytes| {
            black_box(touch(bytes));
            let usable = clock::now();
            let sent = expected.check(number, bytes)?;
            if number < setting.warm_up {
                return Ok(());
            }
            round.wake.saturating_record(since(sent, wake)?);
            round.usable.saturating_record(since(sent, usable)?);
            Ok(())
        })?;
    }
    round.took = Duration::from_nanos(clock::now() - start);
    Ok(round)
}

fn since(sent: u64, received: u64) -> Fallible<u64> {
    received.checked_sub(sent).ok_or_else(|| "received before it was sent: the cores' clocks differ".into())
}
