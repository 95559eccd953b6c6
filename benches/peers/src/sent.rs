//! Messages that are sent and read, one at a time and with many in flight: the cost of zenoh's
//! providers and of a pool of whole buffers.

use crate::source::{text, Made, Source};
use shm_pool::AllocError;
use shm_pool_support::turns::Batch;
use shm_pool_zenoh::{Buffer, BufferPool};
use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::DerefMut;
use std::time::Instant;
use zenoh::bytes::ZBytes;

/// How many bytes of a message in flight are written.
const WRITTEN: usize = 64;

impl Source for BufferPool {
    type Message = Buffer;
    type Filled = Buffer;
    type Error = AllocError;

    #[inline]
    fn take(&self, len: usize) -> Result<Buffer, AllocError> {
        self.alloc(len)
    }

    fn fill(mut message: Buffer, byte: u8) -> Buffer {
        message.fill(byte);
        message
    }
}

/// Allocates a message, writes its first bytes, and makes it a `ZBytes`.
#[inline]
fn send<S>(source: &S, len: usize, number: u64) -> Made<ZBytes>
where
    S: Source,
    S::Message: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let mut message = source.take(black_box(len)).map_err(text)?;
    message[..WRITTEN].fill(number as u8);
    Ok(message.into())
}

/// How much of a message is written.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Written {
    OneByte,
    All,
}

/// How a message ends that is alone.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum End {
    /// It is dropped unsent.
    Dropped,
    /// It becomes a `ZBytes`, whose drop is the end of its last reader.
    Sent,
}

/// Allocates, writes and ends one message after the other. As in [`in_flight`], a batch should be
/// long enough for a provider to collect in each.
pub(crate) fn one_at_a_time<S>(
    source: Made<S>,
    len: usize,
    written: Written,
    end: End,
) -> Made<Batch>
where
    S: Source,
    S::Message: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let source = source?;
    let written = match written {
        Written::OneByte => 1,
        Written::All => len,
    };
    Ok(Box::new(move |count| {
        let start = Instant::now();
        for number in 0..count {
            let mut message = source.take(black_box(len)).map_err(text)?;
            message[..written].fill(number as u8);
            match end {
                End::Dropped => drop(black_box(message)),
                End::Sent => drop(black_box(message.into())),
            }
        }
        Ok(Some(start.elapsed()))
    }))
}

/// Which of the messages in flight is read next.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    Oldest,
    Any,
}

/// Sends a message and drops another one, with `held` in flight all the time. A batch should be
/// long enough for a provider to run out of memory, and to collect, in each.
pub(crate) fn in_flight<S>(source: Made<S>, len: usize, held: usize, order: Order) -> Made<Batch>
where
    S: Source,
    S::Message: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let source = source?;
    let mut messages: VecDeque<ZBytes> = VecDeque::with_capacity(held + 1);
    for number in 0..held {
        messages.push_back(send(&source, len, number as u64)?);
    }
    let mut random = fastrand::Rng::with_seed(1);
    Ok(Box::new(move |count| {
        let start = Instant::now();
        for number in 0..count {
            messages.push_back(send(&source, len, number)?);
            drop(black_box(match order {
                Order::Oldest => messages.pop_front(),
                Order::Any => messages.swap_remove_front(random.usize(..held)),
            }));
        }
        Ok(Some(start.elapsed()))
    }))
}

/// Sends all messages of the batch before any is read. Reading them is not timed.
pub(crate) fn burst<S>(source: Made<S>, len: usize) -> Made<Batch>
where
    S: Source,
    S::Message: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let source = source?;
    let mut messages = Vec::new();
    Ok(Box::new(move |count| {
        messages.reserve(count as usize);
        let start = Instant::now();
        for number in 0..count {
            messages.push(send(&source, len, number)?);
        }
        let took = start.elapsed();
        messages.clear();
        source.settle();
        Ok(Some(took))
    }))
}
