//! The messages that a subscriber keeps until its hoard ends.

#![forbid(unsafe_code)]

use crate::schedule::Schedule;
use parking_lot::Mutex;
use shm_pool::channel::Message;
use shm_pool::ShmView;
use shm_pool_support::{clock, numbered, Fallible};

/// A view or a loan.
pub(crate) enum Memory {
    Frame(ShmView),
    Sample(Message),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(view) => view,
            Self::Sample(loan) => loan,
        }
    }
}

/// A message that is kept.
struct Kept {
    /// Of its sensor.
    number: u64,
    /// The camera's, when the message arrived.
    frame: u64,
    memory: Memory,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Hoard(Mutex<State>);

#[derive(Default)]
struct State {
    /// Older messages are not kept any longer.
    begin: u64,
    kept: Vec<Kept>,
}

impl Hoard {
    /// Keeps a message, if its time is not over.
    pub(crate) fn keep(&self, number: u64, frame: u64, memory: Memory) {
        let mut state = self.0.lock();
        if frame >= state.begin {
            state.kept.push(Kept { number, frame, memory });
        }
    }

    /// Releases messages according to the schedule, checking that each is still intact. Returns
    /// when the hoards actually ended, each with the frame before which it ends.
    pub(crate) fn let_go(&self, schedule: &Schedule, subscriber: u64) -> Fallible<Vec<(u64, u64)>> {
        let mut ended = Vec::new();
        for frame in schedule.ends(subscriber) {
            clock::sleep_until(schedule.end(frame));
            for kept in self.end(frame) {
                if numbered::number(kept.memory.bytes())? != kept.number {
                    return Err(format!("message {} was overwritten while it was held", kept.number).into());
                }
            }
            ended.push((frame, clock::now()));
        }
        Ok(ended)
    }

    fn end(&self, frame: u64) -> Vec<Kept> {
        let mut state = self.0.lock();
        state.begin = frame;
        let (over, kept) = std::mem::take(&mut state.kept).into_iter().partition(|kept| kept.frame < frame);
        state.kept = kept;
        over
    }
}
