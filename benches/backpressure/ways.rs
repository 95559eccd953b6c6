//! The ways in which a publisher gets memory, and waits when there is none.

#![forbid(unsafe_code)]

use shm_pool::{AllocError, Provider, ShmBufMut};
use std::thread;
use std::time::{Duration, Instant};

/// How a publisher waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It sleeps until memory comes back.
    Timeout,
    /// It tries, and sleeps so long.
    Polling(Duration),
}

/// The way of the library, the loop that users write without it, and the loop in zenoh's
/// `BlockOn`, here around our own provider: what differs is the waiting and nothing else.
pub(crate) const WAYS: [(Way, &str); 3] = [
    (Way::Timeout, "`alloc_timeout`"),
    (Way::Polling(Duration::from_micros(200)), "`alloc`, polled every 200 µs"),
    (Way::Polling(Duration::from_millis(1)), "`alloc`, every 1 ms as by zenoh's `BlockOn`"),
];

/// Which of them the others are compared with.
pub(crate) const POLLING: usize = 1;

impl Way {
    /// Memory for a message; `None` if none came back within `patience`.
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
