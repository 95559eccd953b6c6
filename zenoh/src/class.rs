//! The buffers of one size class: which are idle, which were sent, and how many are worth keeping.
//!
//! Sent buffers stay in their queue, oldest first, read or not, until an allocation finds one that
//! has been read. Nothing else reports that: zenoh's readers decrement a count in zenoh's metadata
//! and wake no process.
//!
//! # Scans
//!
//! | scan | checks | made by |
//! |---|---|---|
//! | [`Class::take`] | the [`OLDEST`] ones; all of them if its [share](Class::spare_share) may have been read | every allocation |
//! | [`Scan::Batch`] | the next [`BATCH`] from where the last one ended; if the class is [long](Class::is_long), releases those that are in use | a request that waits, which checks the oldest ones besides |
//! | [`Scan::All`] | all | an allocation that needs memory, `trim`, `release_in_use`, the end of an epoch, the thread of `buffers` |

#![forbid(unsafe_code)]

use crate::buffer::{SharedBuffer, UniqueBuffer};
use crate::buffers::BufferStats;
use std::collections::VecDeque;
use std::ops::Range;

/// How many of the oldest sent buffers an allocation checks.
const OLDEST: usize = 4;

/// How many sent buffers a waiting request checks besides. A check takes some 0.1 µs if the
/// metadata is in no cache. zenoh visits ordinary messages faster, so a wait makes ordinary
/// messages of a class with more sent buffers than this.
pub(crate) const BATCH: usize = 1024;

/// The pool releases a buffer that so many allocations have found in use.
const MAX_CHECKS: u8 = 64;

/// An epoch is this many allocations, and [`EPOCH_SHARE`] more for each buffer of the class.
const EPOCH: usize = 256;
const EPOCH_SHARE: usize = 8;

/// Which of the sent buffers are checked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scan {
    /// Some of them, in turn.
    Batch,
    All,
}

/// The buffers of one size class. An *uncached* buffer, which is shorter than the class, is in neither
/// list: another message that fits in it rarely comes before its memory is needed for others.
#[derive(Default)]
pub(crate) struct Class {
    size: usize,
    /// Last in, first out: the latest may still be in the cache.
    idle: Vec<UniqueBuffer>,
    /// Oldest first.
    sent: VecDeque<Sent>,
    /// How many of `sent` a scan has emptied.
    emptied: usize,
    /// Where the next batch begins in `sent`.
    cursor: usize,
    /// Whether there were more than [`BATCH`] in `sent` when the cursor was last at its start.
    is_long: bool,
    /// The number of buffers of the class, including those that this process is writing. Both lists
    /// have room for all.
    count: usize,
    /// From this many buffers on, a scan comes before another one is created.
    scan_at: usize,
    /// Allocations in this epoch, and the fewest idle buffers in it.
    epoch_allocs: usize,
    low_water: usize,
    /// As of the last reservation or epoch.
    reserved: usize,
    reused: u64,
    created: u64,
    released_in_use: u64,
}

struct Sent {
    /// `None` once a scan has taken it.
    buffer: Option<SharedBuffer>,
    /// How many allocations found it in use.
    checks: u8,
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
    /// ninth. A scan visits every buffer, and of short ones there may be many, so up to 2 KiB it
    /// is a half.
    fn spare_share(&self) -> usize {
        (self.size / 1024).clamp(2, 9)
    }

    pub(crate) fn is_uncached(&self, capacity: usize) -> bool {
        capacity < self.size
    }

    /// Drops all buffers, before the pool is dropped.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(0);
    }

    /// Takes a free buffer. Prefers the oldest sent one to the idle ones, so that buffers that are
    /// not needed stay idle.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<UniqueBuffer> {
        self.epoch_allocs += 1;
        let checked = if self.idle.is_empty() { OLDEST } else { 1 };
        if let Some(buffer) = self.take_oldest(checked) {
            return Some(buffer);
        }
        if let Some(buffer) = self.take_idle() {
            return Some(buffer);
        }
        self.take_by_due_scan()
    }

    /// Takes a free buffer from behind others that are in use, if a scan is due. A scan that finds
    /// the class's share of all buffers is worth its time; after one that finds fewer, the missing
    /// ones are created before the next scan. So of 9 KiB and more, the pool has at most an eighth
    /// more than is in flight, and of up to 2 KiB at most twice as many.
    #[cold]
    fn take_by_due_scan(&mut self) -> Option<UniqueBuffer> {
        if self.count < self.scan_at {
            return None;
        }
        self.scan_all();
        let worthwhile = self.count / self.spare_share();
        self.scan_at = self.count + worthwhile.saturating_sub(self.idle.len());
        self.take_idle()
    }

    /// Takes a free buffer, after a scan if none is idle or among the oldest. Readers usually finish
    /// in order, so the oldest ones are checked each time.
    pub(crate) fn scan_and_take(&mut self, scan: Scan) -> Option<UniqueBuffer> {
        self.check(0..OLDEST.min(self.sent.len()), false);
        if self.idle.is_empty() {
            self.scan(scan);
        }
        self.take_idle()
    }

    /// Moves free buffers to the idle ones.
    pub(crate) fn scan(&mut self, scan: Scan) {
        match scan {
            Scan::Batch => self.scan_batch(),
            Scan::All => {
                self.scan_all();
            }
        }
    }

    /// Checks the next sent buffers. Free ones become idle; a long class releases the others.
    fn scan_batch(&mut self) {
        if self.cursor >= self.sent.len() {
            self.compact();
        }
        let start = self.cursor;
        if start == 0 {
            self.is_long = self.sent.len() > BATCH;
        }
        self.cursor = self.sent.len().min(start + BATCH);
        self.check(start..self.cursor, self.is_long);
    }

    /// Moves free buffers out of a part of the queue, and releases the others if told to.
    fn check(&mut self, range: Range<usize>, releases_others: bool) {
        let mut released = 0;
        for sent in self.sent.range_mut(range) {
            let Some(buffer) = sent.buffer.take() else {
                continue;
            };
            match buffer.reclaim() {
                Ok(buffer) => {
                    self.idle.push(buffer);
                    self.emptied += 1;
                }
                Err(_) if releases_others => {
                    self.emptied += 1;
                    released += 1;
                }
                Err(buffer) => sent.buffer = Some(buffer),
            }
        }
        if released > 0 {
            self.note_released_in_use(released);
        }
    }

    #[inline]
    pub(crate) fn take_idle(&mut self) -> Option<UniqueBuffer> {
        while let Some(buffer) = self.idle.pop() {
            // No other process holds it. But zenoh may have invalidated it, if this process had no
            // CPU to confirm it, and then the provider may have freed it.
            if buffer.is_valid() {
                self.low_water = self.low_water.min(self.idle.len());
                self.reused += 1;
                return Some(buffer);
            }
            self.note_released_in_use(1);
        }
        None
    }

    /// Takes the first free one of the oldest sent buffers. The others stay in their order, except
    /// those that have been in use for too long.
    #[inline]
    fn take_oldest(&mut self, checked: usize) -> Option<UniqueBuffer> {
        let mut passed_over = 0;
        let mut taken = None;
        for _ in 0..checked.min(self.sent.len()) {
            let Some(Sent { buffer, checks }) = self.sent.pop_front() else {
                break;
            };
            let Some(buffer) = buffer else {
                self.emptied -= 1;
                continue;
            };
            match buffer.reclaim() {
                Ok(buffer) => {
                    self.reused += 1;
                    taken = Some(buffer);
                    break;
                }
                Err(buffer) if checks + 1 < MAX_CHECKS && buffer.is_valid() => {
                    self.sent.push_back(Sent {
                        buffer: Some(buffer),
                        checks: checks + 1,
                    });
                    passed_over += 1;
                }
                Err(_) => self.note_released_in_use(1),
            }
        }
        self.sent.rotate_right(passed_over);
        taken
    }

    /// Moves all sent buffers that have been read to the idle ones. Releases what zenoh has
    /// invalidated, which would never become free; a buffer that this process was too slow to
    /// confirm may belong to another message after zenoh's `garbage_collect_unsafe`. Returns the
    /// number released.
    pub(crate) fn scan_all(&mut self) -> usize {
        let before = self.idle.len() + self.sent.len() - self.emptied;
        self.idle.retain(UniqueBuffer::is_valid);
        let idle = &mut self.idle;
        self.sent.retain_mut(|sent| {
            let Some(buffer) = sent.buffer.take() else {
                return false;
            };
            match buffer.reclaim() {
                Ok(buffer) => {
                    idle.push(buffer);
                    false
                }
                Err(buffer) if buffer.is_valid() => {
                    sent.buffer = Some(buffer);
                    true
                }
                Err(_) => false,
            }
        });
        self.emptied = 0;
        self.cursor = 0;
        let released = before - self.idle.len() - self.sent.len();
        if released > 0 {
            self.note_released_in_use(released);
        }
        released
    }

    /// Releases idle buffers, those that returned first before others.
    fn release_first_idle(&mut self, count: usize) {
        self.idle.drain(..count);
        self.note_released(count);
    }

    /// Releases all idle buffers. Returns their number.
    pub(crate) fn release_all_idle(&mut self) -> usize {
        let count = self.idle.len();
        self.release_first_idle(count);
        count
    }

    /// Releases some idle buffers, but not the last `least` or those that are reserved. Returns
    /// `true` if there may be more.
    pub(crate) fn release_some_idle(&mut self, least: usize) -> bool {
        if self.idle.len() <= least {
            self.scan_all();
        }
        let surplus = self.idle.len().saturating_sub(least.max(self.reserved));
        self.release_first_idle(surplus.min(BATCH));
        surplus > 0
    }

    /// Releases the sent buffers that are in use, and those that zenoh has invalidated. Returns
    /// their number.
    pub(crate) fn release_in_use(&mut self) -> usize {
        let invalid = self.scan_all();
        let in_use = self.sent.len();
        self.sent.clear();
        self.note_released_in_use(in_use);
        in_use + invalid
    }

    fn note_released_in_use(&mut self, count: usize) {
        self.released_in_use += count as u64;
        self.note_released(count);
    }

    pub(crate) fn note_released(&mut self, count: usize) {
        self.count -= count;
        self.low_water = self.low_water.min(self.idle.len());
        let worthwhile = self.count / self.spare_share();
        self.scan_at = self.scan_at.min(self.count + worthwhile);
    }

    pub(crate) fn note_created(&mut self) {
        self.created += 1;
        self.count += 1;
        self.idle.reserve(self.count - self.idle.len());
        self.sent
            .reserve(self.count.saturating_sub(self.sent.len()));
    }

    /// Returns `true` if it is time to find out whether there are more buffers than are needed.
    /// That takes a check of each, so the interval grows with their number.
    #[inline]
    pub(crate) fn is_epoch_over(&self) -> bool {
        self.epoch_allocs >= EPOCH + EPOCH_SHARE * self.count
    }

    /// Ends an epoch: releases half of the buffers that were idle all the time, except for a few
    /// spare ones and as many as are reserved. Returns the number released.
    pub(crate) fn end_epoch(&mut self, reserved: usize) -> usize {
        self.reserved = reserved;
        let spare = (self.count - self.low_water) / self.spare_share() + 1;
        let decayed = self.low_water.saturating_sub(spare).div_ceil(2);
        let released = decayed.min(self.count.saturating_sub(reserved));
        self.release_first_idle(released);
        self.scan_all();
        self.epoch_allocs = 0;
        self.low_water = self.idle.len();
        released
    }

    /// Returns the number of places in the queue, with and without a buffer.
    #[cfg(test)]
    pub(crate) fn queue_len(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns how many allocations the class has served.
    pub(crate) fn allocs(&self) -> u64 {
        self.reused + self.created
    }

    /// Notes how many buffers are reserved.
    pub(crate) fn note_reserved(&mut self, reserved: usize) {
        self.reserved = reserved;
    }

    /// Keeps a buffer that was not sent. Returns it if it is uncached.
    #[inline]
    pub(crate) fn push_idle(&mut self, buffer: UniqueBuffer) -> Result<(), UniqueBuffer> {
        if self.is_uncached(buffer.capacity()) {
            return Err(buffer);
        }
        self.idle.push(buffer);
        Ok(())
    }

    /// Keeps a buffer that was sent. An uncached one becomes an ordinary zenoh message.
    #[inline]
    pub(crate) fn push_sent(&mut self, buffer: SharedBuffer) {
        if self.is_uncached(buffer.capacity()) {
            return self.release_sent(buffer);
        }
        if self.sent.len() == self.sent.capacity() {
            self.compact();
        }
        self.sent.push_back(Sent {
            buffer: Some(buffer),
            checks: 0,
        });
    }

    /// Makes a buffer that was sent an ordinary zenoh message.
    pub(crate) fn release_sent(&mut self, buffer: SharedBuffer) {
        self.note_released(1);
        drop(buffer);
    }

    /// Drops the places that scans have emptied: the queue has room for all buffers, not for these
    /// too. The next batch begins with the oldest.
    #[cold]
    fn compact(&mut self) {
        self.sent.retain(|sent| sent.buffer.is_some());
        self.emptied = 0;
        self.cursor = 0;
    }

    /// Adds the statistics of this class.
    pub(crate) fn add_to(&self, stats: &mut BufferStats) {
        stats.reused += self.reused;
        stats.created += self.created;
        stats.released_in_use += self.released_in_use;
        stats.idle += self.idle.len();
        stats.sent += self.sent.len() - self.emptied;
    }
}
