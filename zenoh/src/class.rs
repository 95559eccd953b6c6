//! The buffers of one size class: which are idle, which were sent, and how many are worth keeping.
//!
//! Sent buffers stay in their queue, oldest first, read or not, until an allocation finds one at its
//! head that nobody has any more. Nothing else tells: zenoh's readers count in zenoh's metadata, and
//! ring no bell.

#![forbid(unsafe_code)]

use crate::buffers::BufferStats;
use crate::whole::{Shared, Whole};
use std::collections::VecDeque;

/// How many sent buffers an allocation looks at.
const LOOKS: usize = 4;

/// After so many looks at a buffer that is still read, the pool lets it go.
const PATIENCE: u8 = 64;

/// A window is so many allocations, and so many more for each buffer of the class.
const WINDOW: usize = 256;
const WINDOW_SHARE: usize = 8;

/// What is idle, or not known to be free, is not too much up to this share of all.
const SPARE_SHARE: usize = 9;

/// The buffers of one size class that are kept.
#[derive(Default)]
pub(crate) struct Class {
    /// The one that came back last is used first: it may be in the cache.
    idle: Vec<Whole>,
    /// Oldest first.
    sent: VecDeque<Sent>,
    /// How many there are, with those in the hands of this process. Both lists have room for all.
    kept: usize,
    /// From so many on, free ones are searched for before another one is made.
    tidy_at: usize,
    /// Allocations in this window, and the fewest idle ones in it.
    window: usize,
    low: usize,
    reused: u64,
    made: u64,
    let_go: u64,
}

struct Sent {
    buffer: Shared,
    /// How often it was looked at and still read.
    looks: u8,
}

impl Class {
    /// Takes a buffer that nobody has. The oldest that was sent comes before the idle ones, so that
    /// those that are not needed stay idle.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Whole> {
        self.window += 1;
        let looks = if self.idle.is_empty() { LOOKS } else { 1 };
        self.take_sent(looks).or_else(|| self.take_idle()).or_else(|| self.take_hidden())
    }

    /// Takes a buffer that nobody has from behind others that are read, if it is time to search for
    /// those. A search that finds a ninth of all is worth its time; after one that finds less,
    /// what is missing is made before the next. So the pool has at most an eighth more than is in flight.
    #[cold]
    fn take_hidden(&mut self) -> Option<Whole> {
        if self.kept < self.tidy_at {
            return None;
        }
        self.tidy();
        self.tidy_at = self.kept + (self.kept / SPARE_SHARE).saturating_sub(self.idle.len());
        self.take_idle()
    }

    /// Takes a buffer that nobody has, wherever it is.
    pub(crate) fn search(&mut self) -> Option<Whole> {
        self.tidy();
        self.take_idle()
    }

    #[inline]
    fn take_idle(&mut self) -> Option<Whole> {
        while let Some(whole) = self.idle.pop() {
            // Nobody else has it. But zenoh may have invalidated it, if this process got no CPU to
            // confirm it; then the provider may have freed it.
            if whole.is_valid() {
                self.low = self.low.min(self.idle.len());
                self.reused += 1;
                return Some(whole);
            }
            self.note_let_go(1);
        }
        None
    }

    /// Takes the first of the `looks` oldest sent buffers that nobody has. The others stay in their order,
    /// except those whose time is up.
    #[inline]
    fn take_sent(&mut self, looks: usize) -> Option<Whole> {
        let mut passed_over = 0;
        let mut taken = None;
        for _ in 0..looks.min(self.sent.len()) {
            let Some(Sent { buffer, looks }) = self.sent.pop_front() else { break };
            match buffer.reclaim() {
                Ok(whole) => {
                    self.reused += 1;
                    taken = Some(whole);
                    break;
                }
                Err(buffer) if looks + 1 < PATIENCE && buffer.is_valid() => {
                    self.sent.push_back(Sent { buffer, looks: looks + 1 });
                    passed_over += 1;
                }
                Err(_) => self.note_let_go(1),
            }
        }
        self.sent.rotate_right(passed_over);
        taken
    }

    /// Moves the sent buffers that nobody has any more to the idle ones. Whoever waits for memory
    /// looks often, so this does not count against anybody's patience. What zenoh has invalidated is
    /// let go: it would never be free. Returns how many those were.
    pub(crate) fn tidy(&mut self) -> usize {
        let mut invalid = 0;
        for _ in 0..self.sent.len() {
            let Some(Sent { buffer, looks }) = self.sent.pop_front() else { break };
            match buffer.reclaim() {
                Ok(whole) => self.idle.push(whole),
                Err(buffer) if buffer.is_valid() => self.sent.push_back(Sent { buffer, looks }),
                Err(_) => invalid += 1,
            }
        }
        if invalid > 0 {
            self.note_let_go(invalid);
        }
        invalid
    }

    /// Gives up idle buffers, those first that came back first.
    pub(crate) fn give_up(&mut self, count: usize) {
        self.idle.drain(..count);
        self.note_gone(count);
    }

    /// Forgets the sent buffers that somebody has.
    pub(crate) fn let_go(&mut self) -> usize {
        let invalid = self.tidy();
        let gone = self.sent.len();
        self.sent.clear();
        self.note_let_go(gone);
        gone + invalid
    }

    fn note_let_go(&mut self, count: usize) {
        self.let_go += count as u64;
        self.note_gone(count);
    }

    fn note_gone(&mut self, count: usize) {
        self.kept -= count;
        self.low = self.low.min(self.idle.len());
        self.tidy_at = self.tidy_at.min(self.kept + self.kept / SPARE_SHARE);
    }

    pub(crate) fn note_made(&mut self) {
        self.made += 1;
        self.kept += 1;
        self.idle.reserve(self.kept - self.idle.len());
        self.sent.reserve(self.kept - self.sent.len());
    }

    /// Is it time to look whether there are more than are needed? That costs a look at each, so the
    /// more there are, the more rarely.
    #[inline]
    pub(crate) fn is_window_over(&self) -> bool {
        self.window >= WINDOW + WINDOW_SHARE * self.kept
    }

    /// Ends a window: gives up half of what was idle all the time, but for a few spare ones. Returns
    /// how many those were.
    pub(crate) fn end_window(&mut self) -> usize {
        let spare = (self.kept - self.low) / SPARE_SHARE + 1;
        let count = self.low.saturating_sub(spare).div_ceil(2);
        self.give_up(count);
        let _invalid = self.tidy();
        (self.window, self.low) = (0, self.idle.len());
        count
    }

    /// Begins a window anew, as nothing of this class is too much.
    pub(crate) fn skip_window(&mut self) {
        self.window = 0;
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Takes a buffer back that was made or handed out, and not sent.
    #[inline]
    pub(crate) fn put_idle(&mut self, whole: Whole) {
        self.idle.push(whole);
    }

    /// Keeps a buffer that was sent.
    #[inline]
    pub(crate) fn put_sent(&mut self, buffer: Shared) {
        self.sent.push_back(Sent { buffer, looks: 0 });
    }

    /// Adds the figures of this class.
    pub(crate) fn add_to(&self, stats: &mut BufferStats) {
        stats.reused += self.reused;
        stats.made += self.made;
        stats.let_go += self.let_go;
        stats.idle += self.idle.len();
        stats.sent += self.sent.len();
    }
}
