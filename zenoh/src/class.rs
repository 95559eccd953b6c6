//! The buffers of one size class: which are idle, which were sent, and how many are worth keeping.
//!
//! Sent buffers stay in their queue, oldest first, read or not, until an allocation finds one that
//! has been read. Nothing else reports that: zenoh's readers decrement a count in zenoh's metadata
//! and wake no process.
//!
//! # Searches
//!
//! | search | looks at | made by |
//! |---|---|---|
//! | [`Class::take`] | the [`LOOKS`] oldest; all of them if its [share](Class::spare_share) may have been read | every allocation |
//! | [`Class::look`] | the oldest, and [`BATCH`] more from where the last look ended; if the class is [long](Class::is_long), releases those it finds being read | a request that waits |
//! | [`Class::tidy`], also within a thorough `look` | all | an allocation that needs memory, `trim`, `let_go`, the end of a window, the thread of `idle` |

#![forbid(unsafe_code)]

use crate::buffers::BufferStats;
use crate::whole::{Shared, Whole};
use std::collections::VecDeque;
use std::ops::Range;

/// How many sent buffers an allocation looks at.
const LOOKS: usize = 4;

/// How many sent buffers a waiting request looks at besides. A look takes some 0.1 µs if the
/// metadata is in no cache. zenoh visits ordinary messages faster, so a wait makes ordinary
/// messages of a class with more sent buffers than this.
pub(crate) const BATCH: usize = 1024;

/// The pool releases a buffer that so many allocations have found being read.
const TIMEOUT: u8 = 64;

/// A window is this many allocations, and [`WINDOW_SHARE`] more for each buffer of the class.
const WINDOW: usize = 256;
const WINDOW_SHARE: usize = 8;

/// The buffers of one size class. A *one-off*, which is shorter than the class, is in neither list:
/// another message that fits in it rarely comes before its memory is needed for others.
#[derive(Default)]
pub(crate) struct Class {
    size: usize,
    /// Last in, first out: the latest may still be in the cache.
    idle: Vec<Whole>,
    /// Oldest first.
    sent: VecDeque<Sent>,
    /// How many of `sent` a look has emptied.
    emptied: usize,
    /// Where the next look begins in `sent`.
    cursor: usize,
    /// Whether there were more than [`BATCH`] in `sent` when the cursor was last at its start.
    is_long: bool,
    /// All buffers of the class, including those that this process is writing. Both lists have room
    /// for all.
    kept: usize,
    /// From this many buffers on, a search comes before another one is made.
    tidy_at: usize,
    /// Allocations in this window, and the fewest idle buffers in it.
    window: usize,
    low: usize,
    /// As of the last reservation or window.
    reserved: usize,
    reused: u64,
    made: u64,
    let_go: u64,
}

struct Sent {
    /// `None` once a look has taken it.
    buffer: Option<Shared>,
    /// How often an allocation found it being read.
    looks: u8,
}

impl Class {
    /// Creates a class for buffers of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// Buffers that are idle, or may have been read, are not too many up to this share of all: a
    /// ninth. A search visits every buffer, and of short ones there may be many, so up to 2 KiB it
    /// is a half.
    fn spare_share(&self) -> usize {
        (self.size / 1024).clamp(2, 9)
    }

    fn is_one_off(&self, capacity: usize) -> bool {
        capacity < self.size
    }

    /// Drops all buffers, before the pool is dropped.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(0);
    }

    /// Takes a free buffer. Prefers the oldest sent one to the idle ones, so that buffers that are
    /// not needed stay idle.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Whole> {
        self.window += 1;
        let looks = if self.idle.is_empty() { LOOKS } else { 1 };
        self.take_sent(looks)
            .or_else(|| self.take_idle())
            .or_else(|| self.take_hidden())
    }

    /// Takes a free buffer from behind others that are being read, if a search is due. A search
    /// that finds the class's share of all buffers is worth its time; after one that finds fewer,
    /// the missing ones are made before the next search. So of 9 KiB and more, the pool has at most
    /// an eighth more than is in flight, and of up to 2 KiB at most twice as many.
    #[cold]
    fn take_hidden(&mut self) -> Option<Whole> {
        if self.kept < self.tidy_at {
            return None;
        }
        self.tidy();
        self.tidy_at = self.kept + (self.kept / self.spare_share()).saturating_sub(self.idle.len());
        self.take_idle()
    }

    /// Takes a free buffer. Looks at all buffers if `is_thorough`, and otherwise, for a request
    /// that waits, at a bounded number. Readers usually finish in order, so the oldest ones are
    /// looked at each time.
    pub(crate) fn look(&mut self, is_thorough: bool) -> Option<Whole> {
        self.look_at(0..LOOKS.min(self.sent.len()), false);
        if self.idle.is_empty() {
            self.find(is_thorough);
        }
        self.take_idle()
    }

    /// Moves free buffers to the idle ones. Looks at all sent buffers if `is_thorough`, or at the
    /// next ones, of which a long class then keeps none.
    pub(crate) fn find(&mut self, is_thorough: bool) {
        if is_thorough {
            self.tidy();
        } else {
            self.look_on();
        }
    }

    /// Looks at the next sent buffers. Free ones become idle; a long class releases the others.
    fn look_on(&mut self) {
        if self.cursor >= self.sent.len() {
            self.compact();
        }
        let (begin, len) = (self.cursor, self.sent.len());
        if begin == 0 {
            self.is_long = len > BATCH;
        }
        self.cursor = (begin + BATCH).min(len);
        self.look_at(begin..self.cursor, self.is_long);
    }

    /// Moves free buffers out of a part of the queue, and if it `lets_go`, releases the others.
    fn look_at(&mut self, range: Range<usize>, lets_go: bool) {
        let mut released = 0;
        for sent in self.sent.range_mut(range) {
            match sent.buffer.take().map(Shared::reclaim) {
                Some(Ok(whole)) => {
                    self.idle.push(whole);
                    self.emptied += 1;
                }
                Some(Err(_)) if lets_go => {
                    self.emptied += 1;
                    released += 1;
                }
                Some(Err(buffer)) => sent.buffer = Some(buffer),
                None => {}
            }
        }
        if released > 0 {
            self.note_let_go(released);
        }
    }

    #[inline]
    pub(crate) fn take_idle(&mut self) -> Option<Whole> {
        while let Some(whole) = self.idle.pop() {
            // No other process holds it. But zenoh may have invalidated it, if this process had no
            // CPU to confirm it, and then the provider may have freed it.
            if whole.is_valid() {
                self.low = self.low.min(self.idle.len());
                self.reused += 1;
                return Some(whole);
            }
            self.note_let_go(1);
        }
        None
    }

    /// Takes the first free one of the `looks` oldest sent buffers. The others stay in their order,
    /// except those that have been read for too long.
    #[inline]
    fn take_sent(&mut self, looks: usize) -> Option<Whole> {
        let mut passed_over = 0;
        let mut taken = None;
        for _ in 0..looks.min(self.sent.len()) {
            let Some(Sent { buffer, looks }) = self.sent.pop_front() else {
                break;
            };
            match buffer.map(Shared::reclaim) {
                Some(Ok(whole)) => {
                    self.reused += 1;
                    taken = Some(whole);
                    break;
                }
                Some(Err(buffer)) if looks + 1 < TIMEOUT && buffer.is_valid() => {
                    self.sent.push_back(Sent {
                        buffer: Some(buffer),
                        looks: looks + 1,
                    });
                    passed_over += 1;
                }
                Some(Err(_)) => self.note_let_go(1),
                None => self.emptied -= 1,
            }
        }
        self.sent.rotate_right(passed_over);
        taken
    }

    /// Moves all sent buffers that have been read to the idle ones. Releases what zenoh has
    /// invalidated, which would never become free; a buffer that this process was too slow to
    /// confirm may belong to another message after zenoh's `garbage_collect_unsafe`. Returns the
    /// number released.
    pub(crate) fn tidy(&mut self) -> usize {
        let kept = self.idle.len() + self.sent.len() - self.emptied;
        self.idle.retain(Whole::is_valid);
        let idle = &mut self.idle;
        self.sent
            .retain_mut(|sent| match sent.buffer.take().map(Shared::reclaim) {
                Some(Ok(whole)) => {
                    idle.push(whole);
                    false
                }
                Some(Err(buffer)) if buffer.is_valid() => {
                    sent.buffer = Some(buffer);
                    true
                }
                _ => false,
            });
        (self.emptied, self.cursor) = (0, 0);
        let released = kept - self.idle.len() - self.sent.len();
        if released > 0 {
            self.note_let_go(released);
        }
        released
    }

    /// Releases idle buffers, those that returned first before others.
    fn release_first_idle(&mut self, count: usize) {
        self.idle.drain(..count);
        self.note_gone(count);
    }

    /// Releases all idle buffers. Returns their number.
    pub(crate) fn release_all_idle(&mut self) -> usize {
        let count = self.idle.len();
        self.release_first_idle(count);
        count
    }

    /// Releases the sent buffers that are being read, and those that zenoh has invalidated. Returns
    /// their number.
    pub(crate) fn let_go(&mut self) -> usize {
        let invalid = self.tidy();
        let read = self.sent.len();
        self.sent.clear();
        self.note_let_go(read);
        read + invalid
    }

    fn note_let_go(&mut self, count: usize) {
        self.let_go += count as u64;
        self.note_gone(count);
    }

    /// Notes that buffers were released.
    pub(crate) fn note_gone(&mut self, count: usize) {
        self.kept -= count;
        self.low = self.low.min(self.idle.len());
        self.tidy_at = self.tidy_at.min(self.kept + self.kept / self.spare_share());
    }

    pub(crate) fn note_made(&mut self) {
        self.made += 1;
        self.kept += 1;
        self.idle.reserve(self.kept - self.idle.len());
        self.sent
            .reserve(self.kept - self.sent.len().min(self.kept));
    }

    /// Returns `true` if it is time to find out whether there are more buffers than are needed.
    /// That takes a look at each, so the interval grows with their number.
    #[inline]
    pub(crate) fn is_window_over(&self) -> bool {
        self.window >= WINDOW + WINDOW_SHARE * self.kept
    }

    /// Ends a window: releases half of the buffers that were idle all the time, except for a few
    /// spare ones and as many as are reserved. Returns the number released.
    pub(crate) fn end_window(&mut self, reserved: usize) -> usize {
        self.note_reserved(reserved);
        let spare = (self.kept - self.low) / self.spare_share() + 1;
        let unneeded = self.low.saturating_sub(spare).div_ceil(2);
        let count = unneeded.min(self.kept.saturating_sub(reserved));
        self.release_first_idle(count);
        self.tidy();
        (self.window, self.low) = (0, self.idle.len());
        count
    }

    /// Returns the number of places in the queue, with and without a buffer.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Returns how many allocations the class has served.
    pub(crate) fn uses(&self) -> u64 {
        self.reused + self.made
    }

    /// Releases some idle buffers, but not the last `least` or those that are reserved. Returns
    /// `true` if there may be more.
    pub(crate) fn release_idle(&mut self, least: usize) -> bool {
        if self.idle.len() <= least {
            self.tidy();
        }
        let surplus = self.idle.len().saturating_sub(least.max(self.reserved));
        self.release_first_idle(surplus.min(BATCH));
        surplus > 0
    }

    /// Notes how many buffers are reserved.
    pub(crate) fn note_reserved(&mut self, reserved: usize) {
        self.reserved = reserved;
    }

    /// Puts back a buffer that was made or handed out, and not sent. Refuses a one-off.
    #[inline]
    pub(crate) fn put_idle(&mut self, whole: Whole) -> Result<(), Whole> {
        if self.is_one_off(whole.capacity()) {
            return Err(whole);
        }
        self.idle.push(whole);
        Ok(())
    }

    /// Keeps a buffer that was sent, unless it is a one-off.
    #[inline]
    pub(crate) fn put_sent(&mut self, buffer: Shared) {
        if self.is_one_off(buffer.capacity()) {
            return self.note_gone(1);
        }
        if self.sent.len() == self.sent.capacity() {
            self.compact();
        }
        self.sent.push_back(Sent {
            buffer: Some(buffer),
            looks: 0,
        });
    }

    /// Drops the places that looks have emptied: the queue has room for all buffers, not for these
    /// too. The next look begins with the oldest.
    #[cold]
    fn compact(&mut self) {
        self.sent.retain(|sent| sent.buffer.is_some());
        (self.emptied, self.cursor) = (0, 0);
    }

    /// Adds the statistics of this class.
    pub(crate) fn add_to(&self, stats: &mut BufferStats) {
        stats.reused += self.reused;
        stats.made += self.made;
        stats.let_go += self.let_go;
        stats.idle += self.idle.len();
        stats.sent += self.sent.len() - self.emptied;
    }
}
