//! The two workloads: one message after the other, and a robot's mixture with several live
//! messages.

use crate::source::{text, Made, Source};
use fastrand::Rng;
use shm_pool_support::payload;
use shm_pool_support::turns::Batch;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Messages alive at a time, not counting the one that is being written.
pub(crate) const LIVE: usize = 4;

/// Messages after which the mixture repeats.
pub(crate) const MIXTURE: usize = 512;

/// The longest message of the mixture: 2000 × 1000 pixels of three bytes.
pub(crate) const FRAME: usize = 6_000_000;

const CLOUD: usize = 1_000_000;

/// Allocates a message and drops it. Any deferred work is done at the end of the batch, within the
/// time: a short batch could otherwise leave it to another one that the median does not see.
pub(crate) fn one_by_one(source: Made<impl Source>, len: usize) -> Made<Batch> {
    let source = source?;
    Ok(Box::new(move |count| {
        let start = Instant::now();
        for _ in 0..count {
            drop(black_box(source.take(black_box(len)).map_err(text)?));
        }
        source.settle();
        Ok(Some(start.elapsed()))
    }))
}

/// Continues to send the mixture, from any source.
pub(crate) trait Mixture {
    /// Sends `count` messages, and returns how long that took.
    fn run(&mut self, count: u64) -> Result<Option<Duration>, String>;

    /// Returns the source's account.
    fn account(&self) -> String;
}

/// Messages of the mixture, every byte written, each dropped when four later ones have been
/// written. With `is_thorough`, every byte of a message is checked before it is dropped, and not
/// only its ends.
pub(crate) fn mixture<S: Source>(source: Made<S>, is_thorough: bool) -> Made<Box<dyn Mixture>> {
    let mut random = Rng::with_seed(0);
    // The order is the same for all peers.
    let mut lens = Vec::new();
    for _ in 0..MIXTURE {
        lens.push(mixture_len(&mut random));
    }
    Ok(Box::new(Mixed {
        source: source?,
        lens,
        live: [const { None }; LIVE],
        sent: 0,
        is_thorough,
    }))
}

struct Mixed<S: Source> {
    source: S,
    lens: Vec<usize>,
    live: [Option<(S::Filled, u8)>; LIVE],
    sent: usize,
    is_thorough: bool,
}

impl<S: Source> Mixture for Mixed<S> {
    fn run(&mut self, count: u64) -> Result<Option<Duration>, String> {
        let start = Instant::now();
        for _ in 0..count {
            self.send()?;
        }
        Ok(Some(start.elapsed()))
    }

    fn account(&self) -> String {
        self.source.account()
    }
}

impl<S: Source> Mixed<S> {
    fn send(&mut self) -> Result<(), String> {
        let len = self.lens[self.sent % MIXTURE];
        let byte = self.sent as u8;
        let number = self.sent + 1;
        let failure =
            |error: S::Error| format!("message {number} of the mixture, {len} bytes: {error}");
        let message = S::fill(self.source.take(len).map_err(failure)?, byte);
        let old = self.live[self.sent % LIVE].replace((message, byte));
        self.sent = number;
        match old {
            Some((message, byte)) if !is_intact(&message, byte, self.is_thorough) => {
                Err("a live message was overwritten".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn is_intact(message: &[u8], byte: u8, is_thorough: bool) -> bool {
    if is_thorough {
        message.iter().all(|&each| each == byte)
    } else {
        payload::has_ends(message, byte)
    }
}

/// Of sixteen messages about two are camera frames, two are point clouds, and the rest is
/// telemetry.
fn mixture_len(random: &mut Rng) -> usize {
    match random.u8(..16) {
        0 | 1 => FRAME,
        2 | 3 => CLOUD * 3 / 4 + random.usize(..CLOUD / 2),
        _ => random.usize(100..=4000),
    }
}
