//! How a publisher allocates, and waits when there is no memory.

#![forbid(unsafe_code)]

use shm_pool::{AllocError, Provider, ShmBufMut};
use std::thread;
use std::time::{Duration, Instant};

/// How a publisher waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It sleeps until memory is released.
    Timeout,
    /// It tries, and sleeps for this long.
    Polling(Duration),
}

/// The library's way, the loop that users write without it, and the loop in zenoh's `BlockOn`, here
/// around our own provider, so that only the waiting differs.
pub(crate) const WAYS: [(Way, &str); 3] = [
    (Way::Timeout, "`alloc_timeout`"),
    (Way::Polling(Duration::from_micros(200)), "`alloc`, polled every 200 µs"),
    (Way::Polling(Duration::from_millis(1)), "`alloc`, every 1 ms as by zenoh's `BlockOn`"),
];

/// The one that the others are compared with.
pub(crate) const POLLING: usize = 1;

impl Way {
    /// Returns memory for a message, or `None` if none was released within `patience`.
    pub(crate) fn alloc(
        self,
        provider: &Provider,
        len: usize,
        patience: Duration,
    ) -> Result<Option<ShmBufMut>, AllocError> {
        let outcome = match self {
            Self::Timeout => provider.alloc_timeout(len, patience),
            Self::Polling(nap) => poll(provider, len, patience, nap),
        };
        match outcome {
            Err(error) if error.is_exhausted() => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}

fn poll(provider: &Provider, len: usize, patience: Duration, nap: Duration) -> Result<ShmBufMut, AllocError> {
    let end = Instant::now() + patience;
    loop {
        match provider.alloc(len) {
            Err(error) if error.is_exhausted() && Instant::now() < end => thread::sleep(nap),
            outcome => return outcome,
        }
    }
}
