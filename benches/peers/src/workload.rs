//! The two workloads: one message after the other, and a robot's mixture with several messages
//! alive.

use crate::source::{text, Source};
use fastrand::Rng;
use shm_pool_support::payload;
use shm_pool_support::turns::Batch;
use std::fmt::Display;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Messages alive at a time, not counting the one that is being written.
pub(crate) const LIVE: usize = 4;

/// Messages after which the mixture repeats.
pub(crate) const MIXTURE: usize = 512;

/// The longest message of the mixture: 2000 × 1000 pixels of three bytes.
pub(crate) const FRAME: usize = 6_000_000;

const CLOUD: usize = 1_000_000;

/// Allocates a message and drops it. Where dropping leaves work for later, that is done at the end
/// of the batch, within the time: a short batch could otherwise leave it to another one that the
/// median does not see.
pub(crate) fn one_by_one<S: Source + 'static>(source: S, len: usize) -> Batch {
    Box::new(move |count| {
        let start = Instant::now();
        for _ in 0..count {
            drop(black_box(source.take(black_box(len)).map_err(text)?));
        }
        source.settle();
        Ok(Some(start.elapsed()))
    })
}

/// Messages of the mixture, every byte written, each dropped when four later ones have been
/// written.
pub(crate) struct Mixed<S: Source> {
    source: S,
    lens: Vec<usize>,
    live: [Option<(S::Filled, u8)>; LIVE],
    sent: usize,
    /// Look at every byte of a message before it is dropped, and not only at its ends.
    is_thorough: bool,
}

impl<S: Source> Mixed<S> {
    pub(crate) fn new(source: S, is_thorough: bool) -> Self {
        Self { source, lens: mixture(), live: [const { None }; LIVE], sent: 0, is_thorough }
    }

    pub(crate) fn run(&mut self, count: u64) -> Result<Option<Duration>, String> {
        let start = Instant::now();
        for _ in 0..count {
            self.send()?;
        }
        Ok(Some(start.elapsed()))
    }

    fn send(&mut self) -> Result<(), String> {
        let (len, byte) = (self.lens[self.sent % MIXTURE], self.sent as u8);
        let message = self.source.take(len).map_err(|error| self.failure(len, error))?;
        let place = &mut self.live[self.sent % LIVE];
        let old = place.replace((S::fill(message, byte), byte));
        self.sent += 1;
        match old {
            Some((message, byte)) if !is_intact(&message, byte, self.is_thorough) => {
                Err("a live message was overwritten".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn failure(&self, len: usize, error: impl Display) -> String {
        format!("message {} of the mixture, {len} bytes: {error}", self.sent + 1)
    }

    pub(crate) fn account(&self) -> String {
        self.source.account()
    }

    pub(crate) fn into_batch(mut self) -> Batch
    where
        S: 'static,
    {
        Box::new(move |count| self.run(count))
    }
}

fn is_intact(message: &[u8], byte: u8, is_thorough: bool) -> bool {
    if is_thorough {
        message.iter().all(|&each| each == byte)
    } else {
        payload::has_ends(message, byte)
    }
}

/// The lengths of the mixture, in the order that is the same for everybody.
fn mixture() -> Vec<usize> {
    let mut random = Rng::with_seed(0);
    (0..MIXTURE).map(|_| mixture_len(&mut random)).collect()
}

/// Of sixteen messages about two are camera frames, two are point clouds, and the rest is
/// telemetry.
pub(crate) fn mixture_len(random: &mut Rng) -> usize {
    match random.u8(..16) {
        0 | 1 => FRAME,
        2 | 3 => CLOUD * 3 / 4 + random.usize(..CLOUD / 2),
        _ => random.usize(100..=4000),
    }
}
