//! A message that is sent and read: what zenoh's providers and a pool of whole buffers cost.

use crate::source::{text, Made, Source};
use shm_pool::zenoh::{Buffer, BufferPool};
use shm_pool::AllocError;
use shm_pool_support::turns::Batch;
use std::hint::black_box;
use std::ops::DerefMut;
use std::time::Instant;
use zenoh::bytes::ZBytes;

/// How many bytes are written of a message.
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

/// Allocates a message, writes its first bytes, makes it a `ZBytes`, and drops that. As nobody else
/// has it, this is the moment when its last reader is done. Where that leaves work for later, it is
/// done at the end of the batch, within the time.
pub(crate) fn sent<S>(source: Made<S>, len: usize) -> Made<Batch>
where
    S: Source,
    S::Message: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let source = source?;
    Ok(Box::new(move |count| {
        let start = Instant::now();
        for number in 0..count {
            let mut message = source.take(black_box(len)).map_err(text)?;
            message[..WRITTEN].fill(number as u8);
            let message: ZBytes = message.into();
            drop(black_box(message));
        }
        source.settle();
        Ok(Some(start.elapsed()))
    }))
}
