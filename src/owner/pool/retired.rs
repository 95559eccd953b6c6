//! Shared chunks that no free list keeps: uncached and retired ones. They stay open to peers until
//! their memory is wanted, so a descriptor in flight remains valid.
//!
//! A released one waits in the leased queue of [`Pool::uncached`](super::Pool), which takes no lock.
//! A thread that looks for memory moves it to these lists, which it has with the making lock.
//!
//! | list | holds | is checked |
//! |---|---|---|
//! | recent | the chunks in the order of their release | from the front: that lease probably ends first |
//! | late | those that a peer has leased for longer than chunks that were released after them | in turn |

#![forbid(unsafe_code)]

use crate::owner::chunk::{ChunkFreeList, OwnedChunk};
use std::collections::VecDeque;
use std::mem;

/// How many recent chunks a search checks, and how many late ones. Two, so that the search overtakes
/// the releases.
const TRIES: usize = 2;

/// After so many searches in vain, the first recent chunk is late.
const PATIENCE: usize = 32;

#[derive(Default)]
pub(super) struct Retired {
    recent: VecDeque<OwnedChunk>,
    late: VecDeque<OwnedChunk>,
    /// Searches of the recent chunks since the last one that has found one.
    searches_in_vain: usize,
    /// Recent chunks that the check of all of them has made the last, since it has found one.
    passed: usize,
}

impl Retired {
    /// Moves the chunks of the queue to the list of recent ones. Without private memory, they stay.
    fn fill(&mut self, free_list: &ChunkFreeList) {
        // Bounded: other threads may go on releasing.
        for _ in 0..free_list.leased_count() {
            if self.recent.try_reserve(1).is_err() || self.late.try_reserve(1).is_err() {
                return;
            }
            let Some(chunk) = free_list.take_leased() else {
                return;
            };
            self.recent.push_back(chunk);
        }
    }

    /// Takes a chunk that no peer leases now, if one of the first few is such.
    pub(super) fn take_ended(&mut self, free_list: &ChunkFreeList) -> Option<OwnedChunk> {
        self.fill(free_list);
        if let Some(chunk) = self.take_recent() {
            return Some(chunk);
        }
        for _ in 0..TRIES {
            if let Some(chunk) = self.check_late() {
                return Some(chunk);
            }
        }
        None
    }

    fn take_recent(&mut self) -> Option<OwnedChunk> {
        for at in 0..=TRIES {
            if self.recent.get(at)?.is_leased() {
                continue;
            }
            self.searches_in_vain = 0;
            for _ in 0..at {
                self.delay_first();
            }
            return self.recent.pop_front();
        }
        self.searches_in_vain += 1;
        if self.searches_in_vain >= PATIENCE {
            self.searches_in_vain = 0;
            self.delay_first();
        }
        None
    }

    fn delay_first(&mut self) {
        // Without private memory, it is in the way a little longer.
        if self.late.try_reserve(1).is_err() {
            return self.recent.rotate_left(1);
        }
        if let Some(chunk) = self.recent.pop_front() {
            self.late.push_back(chunk);
        }
    }

    /// Begins a check of all chunks. Returns how many are recent and late.
    pub(super) fn check_all(&mut self, free_list: &ChunkFreeList) -> (usize, usize) {
        self.fill(free_list);
        self.passed = 0;
        (self.recent.len(), self.late.len())
    }

    /// Takes the first recent chunk if no peer leases it now; else makes it the last. Those that were
    /// released before one that is taken are late.
    pub(super) fn check_recent(&mut self) -> Option<OwnedChunk> {
        let Some(chunk) = check_first(&mut self.recent) else {
            self.passed += 1;
            return None;
        };
        for _ in 0..mem::take(&mut self.passed) {
            if self.late.try_reserve(1).is_err() {
                break;
            }
            if let Some(passed) = self.recent.pop_back() {
                self.late.push_back(passed);
            }
        }
        Some(chunk)
    }

    /// Takes the first late chunk if no peer leases it now; else makes it the last.
    pub(super) fn check_late(&mut self) -> Option<OwnedChunk> {
        check_first(&mut self.late)
    }

    pub(super) fn take_any(&mut self) -> Option<OwnedChunk> {
        self.recent.pop_front().or_else(|| self.late.pop_front())
    }
}

fn check_first(list: &mut VecDeque<OwnedChunk>) -> Option<OwnedChunk> {
    let chunk = list.pop_front()?;
    if !chunk.is_leased() {
        return Some(chunk);
    }
    // Needs no memory: it has just left its place.
    list.push_back(chunk);
    None
}
