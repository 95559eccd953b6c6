//! The lengths of new arenas and heaps.
//!
//! The arenas' total length stays within the cap. Each arena but the first is at least a 64th of
//! the cap, and at least as long as all earlier ones together, as far as the cap and the longest
//! possible segment allow. So there are at most eight, unless the longest segment is the limit. An
//! arena's length is a multiple of the run that it is made for, so that messages of one size leave
//! no remainder; only the last one takes all that is left. It holds at least eight such runs, or 32
//! if one is a large part of the cap, so that few of the gaps between messages of different sizes
//! are at the end of an arena. The user may choose the length of the first.
//!
//! When a message fits no arena and the cap allows no further one, arenas that hold only idle
//! memory make way for a single one (see `region`). Each time, the cap is divided into fewer
//! pieces, so with eight arenas this happens at most seven times.

#![forbid(unsafe_code)]

use super::carver::Carver;
use super::holes::Holes;
use super::{Arena, Arenas};
use crate::os::posix::round_to_pages;
use crate::owner::control::Payload;
use crate::owner::limits::First;
use crate::protocol::control::MAX_SEGMENTS;
use std::sync::Arc;

/// The shortest heap while the arenas can grow, unless the first arena is short, and the longest,
/// in bytes. A single small message that stays withholds its whole heap from large ones.
const HEAP: (usize, usize) = (64 << 10, 256 << 10);

/// The length of a heap in bytes, once the arenas can no longer grow.
const LAST_HEAP: usize = 32 << 10;

/// A new heap has this share of the length of all heaps.
const HEAP_GROWTH: usize = 16;

/// Each arena but the first is at least this share of the cap.
const LEAST_SHARE: usize = 64;

/// Each arena is at least this many times as long as the run it is made for, if the cap allows it
/// and the user did not set the length of the first one.
const LEAST_RUNS: usize = 8;

/// The same for a run of more than one [`LARGE_SHARE`]th of the cap. Long messages of different
/// lengths leave gaps between them, fewer in one arena than in several.
const LEAST_LARGE_RUNS: usize = 32;
const LARGE_SHARE: usize = 32;

/// The private memory for a new arena.
pub(crate) struct Blank(Carver, Holes);

impl Arenas {
    /// Returns how long a heap for pieces of `len` bytes should be, and how long it must be to hold
    /// one. `will_recur` says whether to expect more pieces of this length.
    pub(crate) fn heap_len(&self, len: usize, will_recur: bool) -> (usize, usize) {
        let pages = |len: usize| round_to_pages(len).unwrap_or(len);
        let first = match self.first {
            First::Given(bytes) | First::Usual(bytes) => bytes,
            First::OneMessage => 0,
        };
        let state = self.state.lock();
        if state.spanned() == self.max {
            // The arenas cannot grow, so any memory not needed soon is left to large messages. Two
            // pieces that are not whole pages waste less together than separately, if there will be
            // two.
            let least = if will_recur && len % self.page > 0 { 2 } else { 1 };
            let count = LAST_HEAP.min(first).div_ceil(len).max(least);
            return (pages(count * len), pages(len));
        }
        let all: usize = state.heaps.values().map(|heap| heap.run.len).sum();
        let wanted = (all / HEAP_GROWTH).clamp(HEAP.0.min(first / 2), HEAP.1);
        // A multiple, so that pieces of this length leave no remainder.
        (pages(wanted.div_ceil(len).max(1) * len), pages(len))
    }

    /// Returns the length of the next arena, made for a run of `len` bytes, or `None` if the cap or
    /// the number of arenas allows none, or no segment can hold the run.
    pub(crate) fn next_len(&self, len: usize) -> Option<usize> {
        let state = self.state.lock();
        let rest = self.max - state.spanned();
        if rest < len || len > self.longest || state.arenas.len() == MAX_SEGMENTS {
            return None;
        }
        let runs = if len > self.max / LARGE_SHARE { LEAST_LARGE_RUNS } else { LEAST_RUNS };
        let least = match self.first {
            _ if !state.arenas.is_empty() => state.spanned().max(self.max / LEAST_SHARE).max(runs * len),
            First::OneMessage => return Some(len),
            First::Given(bytes) => bytes.max(len),
            First::Usual(bytes) => bytes.max(runs * len),
        };
        // Long enough that the segments still allowed after this one can reach the cap.
        let others = (MAX_SEGMENTS - state.arenas.len() - 1).saturating_mul(self.longest);
        let wanted = least.max(rest.saturating_sub(others)).div_ceil(len) * len;
        let next = wanted.min(rest).min(self.longest / len * len);
        // The remainder would be too short to be much use as an arena of its own.
        let is_last = state.is_merged || rest - next < (next / 2).max(len);
        Some(if is_last { rest.min(self.longest) } else { next })
    }

    /// Returns `true` if there is a gap for a run of `len` bytes.
    pub(crate) fn has_gap(&self, len: usize) -> bool {
        let pages = len / self.page;
        self.state.lock().arenas.iter_mut().any(|arena| arena.pages.has_gap(pages))
    }

    /// Returns `true` if an arena lies in the segment with this number.
    pub(crate) fn has_segment(&self, serial: u64) -> bool {
        self.state.lock().arenas.iter().any(|arena| arena.payload.serial() == serial)
    }

    /// Allocates private memory for an arena of `len` bytes. Returns `None` if the system has none.
    pub(crate) fn prepare(&self, len: usize) -> Option<Blank> {
        let pages = len / self.page;
        Some(Blank(Carver::new(pages)?, Holes::all(pages)?))
    }

    /// Adds an arena for a segment of the length that `blank` was prepared for.
    pub(crate) fn add(&self, payload: Arc<Payload>, blank: Blank) {
        let mut state = self.state.lock();
        state.arenas.push(Arena { payload, pages: blank.0, holes: blank.1, was_used: false });
        self.note_room(&state);
    }
}
