//! What a round trip is, by each way: a message with a number there, and one with the same number back.

#![forbid(unsafe_code)]

use crate::support::Fallible;
use shm_pool::channel::{Message, Receiver, Sender};
use shm_pool::Provider;
use std::hint::spin_loop;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of the messages that are copied.
const LEN: usize = 32;

/// One side's ends of a way.
pub(crate) trait Way {
    /// Sends `number`, and waits for it to come back.
    fn round_trip(&mut self, number: u64) -> Fallible;

    /// Lets go of the reply, after the round trip.
    fn settle(&mut self) {}

    /// Waits for `number`, and sends it back.
    fn answer(&mut self, number: u64) -> Fallible;
}

fn expect(number: u64, came: u64) -> Fallible {
    if came == number {
        Ok(())
    } else {
        Err(format!("message {number} came as {came}").into())
    }
}

/// A word that says whose turn it is: odd when a number is on its way there.
pub(crate) struct Turns<'a> {
    pub(crate) word: &'a AtomicU64,
    /// Is the other side alive? Asked when it takes long.
    pub(crate) check: &'a mut dyn FnMut() -> Fallible,
}

impl Turns<'_> {
    fn wait(&mut self, value: u64) -> Fallible {
        const LOOKS: u32 = 1 << 20;
        loop {
            for _ in 0..LOOKS {
                if self.word.load(Ordering::Acquire) == value {
                    return Ok(());
                }
                spin_loop();
            }
            (self.check)()?;
        }
    }
}

impl Way for Turns<'_> {
    fn round_trip(&mut self, number: u64) -> Fallible {
        self.word.store(2 * number + 1, Ordering::Release);
        self.wait(2 * number + 2)
    }

    fn answer(&mut self, number: u64) -> Fallible {
        self.wait(2 * number + 1)?;
        self.word.store(2 * number + 2, Ordering::Release);
        Ok(())
    }
}

/// Two channels, one each way.
pub(crate) struct Channel {
    pub(crate) provider: Provider,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

/// Messages in the slots themselves.
pub(crate) struct Inline<'a>(pub(crate) &'a mut Channel);

impl Inline<'_> {
    fn send(&mut self, number: u64) -> Fallible {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        Ok(self.0.sender.send_bytes(&bytes)?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        match self.0.receiver.recv()? {
            Message::Bytes(bytes) if bytes.len() == LEN => {
                expect(number, u64::from_ne_bytes(std::array::from_fn(|at| bytes[at])))
            }
            other => Err(format!("message {number} came as {other:?}").into()),
        }
    }
}

impl Way for Inline<'_> {
    fn round_trip(&mut self, number: u64) -> Fallible {
        self.send(number)?;
        self.receive(number)
    }

    fn answer(&mut self, number: u64) -> Fallible {
        self.receive(number)?;
        self.send(number)
    }
}

/// Messages in buffers, of which the first and the last byte are written and read.
pub(crate) struct Pooled<'a> {
    pub(crate) channel: &'a mut Channel,
    pub(crate) len: usize,
    pub(crate) reply: Option<Message>,
}

impl Pooled<'_> {
    fn send(&mut self, number: u64) -> Fallible {
        let mut buffer = self.channel.provider.alloc(self.len)?;
        buffer[0] = number as u8;
        buffer[self.len - 1] = (number >> 8) as u8;
        Ok(self.channel.sender.send(buffer.freeze())?)
    }

    /// The view is dropped after the reply was sent, as everything that a function has.
    fn receive(&mut self, number: u64) -> Fallible<Message> {
        let message = self.channel.receiver.recv()?;
        if message.len() != self.len {
            return Err(format!("message {number} came with {} bytes", message.len()).into());
        }
        let came = u64::from(message[0]) | u64::from(message[self.len - 1]) << 8;
        expect(number & 0xffff, came)?;
        Ok(message)
    }
}

impl Way for Pooled<'_> {
    fn round_trip(&mut self, number: u64) -> Fallible {
        self.send(number)?;
        self.reply = Some(self.receive(number)?);
        Ok(())
    }

    fn settle(&mut self) {
        self.reply = None;
    }

    fn answer(&mut self, number: u64) -> Fallible {
        let _message = self.receive(number)?;
        self.send(number)
    }
}

/// Messages as bytes of a stream.
pub(crate) struct Bytes<I, O> {
    pub(crate) input: I,
    pub(crate) output: O,
}

impl<I: Read, O: Write> Bytes<I, O> {
    fn send(&mut self, number: u64) -> Fallible {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        Ok(self.output.write_all(&bytes)?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let mut bytes = [0; LEN];
        self.input.read_exact(&mut bytes)?;
        expect(number, u64::from_ne_bytes(std::array::from_fn(|at| bytes[at])))
    }
}

impl<I: Read, O: Write> Way for Bytes<I, O> {
    fn round_trip(&mut self, number: u64) -> Fallible {
        self.send(number)?;
        self.receive(number)
    }

    fn answer(&mut self, number: u64) -> Fallible {
        self.receive(number)?;
        self.send(number)
    }
}
