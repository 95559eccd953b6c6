//! Heaps: runs of pages that are carved into pieces of whole cache lines, for short messages.
//!
//! A heap has one bit for each of its lines, and knows the length of its longest gap. All heaps with
//! the same longest gap are in one list. So a search finds the heap with the shortest gap that is
//! long enough, without visiting any other: this keeps long gaps for long pieces.
//!
//! There are two sets of lists. Heaps in the region (see [`region`](super::region)) are *set apart*
//! when a search for another class comes across them, so each of them is met once.
//!
//! To free a piece needs no memory: the lists are linked through the heaps.

#![forbid(unsafe_code)]

use super::{Carved, Place};
use crate::owner::bits::Bits;
use crate::owner::limits::MIN_SIZE;
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// Lists are made in this number, so that a few sizes of heaps need few steps.
const LISTS_AT_ONCE: usize = 256;

#[derive(Default)]
pub(super) struct Heaps {
    /// By number.
    slots: Vec<Option<Heap>>,
    /// The numbers without a heap. Has space for all numbers.
    unused: Vec<u32>,
    open: Lists,
    apart: Lists,
    bytes: usize,
    free_bytes: usize,
}

pub(super) struct Heap {
    run: Carved,
    /// Set: in a piece.
    lines: Bits,
    free: usize,
    /// In lines.
    longest_gap: usize,
    is_apart: bool,
    /// In its list.
    previous: u32,
    next: u32,
}

/// Heaps by the length of their longest gap.
#[derive(Default)]
struct Lists {
    /// The first heap of each list.
    first: Vec<u32>,
    /// The lists that are not empty.
    used: Option<Bits>,
}

impl Heap {
    /// `Err`: no private memory.
    pub(super) fn new(run: Carved) -> Result<Self, Carved> {
        let count = run.len / MIN_SIZE;
        let Some(lines) = Bits::new(count) else {
            return Err(run);
        };
        Ok(Self {
            run,
            lines,
            free: count,
            longest_gap: count,
            is_apart: false,
            previous: NONE,
            next: NONE,
        })
    }

    pub(super) fn run(&self) -> &Carved {
        &self.run
    }

    pub(super) fn lines(&self) -> &Bits {
        &self.lines
    }

    pub(super) fn into_run(self) -> Carved {
        self.run
    }

    /// Returns the lines of one of its pieces.
    pub(super) fn lines_of(&self, piece: &Carved) -> Range<usize> {
        let start = (piece.offset - self.run.offset) / MIN_SIZE;
        start..start + piece.len / MIN_SIZE
    }

    /// Carves from the shortest gap that is long enough.
    fn carve(&mut self, lines: usize) -> Option<usize> {
        let mut best: Option<Range<usize>> = None;
        let mut longest_other = 0;
        for gap in self.lines.clear_runs(0..self.lines.len()) {
            let is_best = gap.len() >= lines
                && match &best {
                    Some(best) => gap.len() < best.len(),
                    None => true,
                };
            if !is_best {
                longest_other = longest_other.max(gap.len());
            } else if let Some(before) = best.replace(gap) {
                longest_other = longest_other.max(before.len());
            }
        }
        let gap = best?;
        self.lines.set(gap.start..gap.start + lines);
        self.free -= lines;
        self.longest_gap = longest_other.max(gap.len() - lines);
        Some(gap.start)
    }

    fn free(&mut self, lines: Range<usize>) {
        debug_assert_eq!(self.lines.count(lines.clone()), lines.len(), "freed twice");
        self.lines.clear(lines.clone());
        self.free += lines.len();
        let start = self.lines.start_of_clear(lines.start);
        let end = self.lines.next_set(lines.end..self.lines.len());
        self.longest_gap = self.longest_gap.max(end - start);
    }

    fn is_empty(&self) -> bool {
        self.free == self.lines.len()
    }
}

impl Lists {
    /// Makes lists for gaps of up to that many lines. Returns `false` without private memory.
    fn make(&mut self, lines: usize) -> bool {
        if lines < self.first.len() {
            return true;
        }
        let count = (lines + 1).next_multiple_of(LISTS_AT_ONCE);
        let Some(mut used) = Bits::new(count) else {
            return false;
        };
        if self
            .first
            .try_reserve_exact(count - self.first.len())
            .is_err()
        {
            return false;
        }
        if let Some(before) = &self.used {
            for run in before.set_runs(0..before.len()) {
                used.set(run);
            }
        }
        self.first.resize(count, NONE);
        self.used = Some(used);
        true
    }

    /// Returns the first heap with the shortest gap of at least that many lines.
    fn find(&self, lines: usize) -> Option<u32> {
        let used = self.used.as_ref()?;
        let list = used.next_set(lines..used.len());
        self.first.get(list).copied()
    }
}

impl Heaps {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Returns the heap of a piece.
    pub(super) fn get(&self, number: u32) -> Option<&Heap> {
        self.slots.get(number as usize)?.as_ref()
    }

    /// Adds a heap and carves its first piece. `Err`: no private memory.
    pub(super) fn add(&mut self, mut heap: Heap, len: usize) -> Result<Carved, Heap> {
        let lines = heap.lines.len();
        let has_lists = self.open.make(lines) && self.apart.make(lines);
        let missing = self.slots.len() + 1 - self.unused.len();
        let has_space =
            self.slots.try_reserve(1).is_ok() && self.unused.try_reserve(missing).is_ok();
        if !has_lists || !has_space || len > heap.run.len {
            return Err(heap);
        }
        let number = match self.unused.pop() {
            Some(number) => number,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        self.bytes += heap.run.len;
        self.free_bytes += heap.run.len - len;
        let at = heap.carve(len / MIN_SIZE).unwrap_or(0);
        let carved = piece(&heap.run, number, at, len);
        self.slots[number as usize] = Some(heap);
        self.link(number);
        Ok(carved)
    }

    /// Carves from the heap with the shortest gap that is long enough. Those of which `is_apart` is
    /// true are set apart.
    pub(super) fn carve(
        &mut self,
        len: usize,
        is_apart: impl Fn(&Carved) -> bool,
    ) -> Option<Carved> {
        while let Some(number) = self.open.find(len / MIN_SIZE) {
            let heap = self.slots[number as usize].as_mut()?;
            if !is_apart(&heap.run) {
                return self.carve_from(number, len);
            }
            self.unlink(number);
            self.heap(number).is_apart = true;
            self.link(number);
        }
        None
    }

    /// Carves from a heap that was set apart.
    pub(super) fn carve_apart(&mut self, len: usize) -> Option<Carved> {
        let number = self.apart.find(len / MIN_SIZE)?;
        self.carve_from(number, len)
    }

    fn carve_from(&mut self, number: u32, len: usize) -> Option<Carved> {
        self.unlink(number);
        let heap = self.heap(number);
        let at = heap.carve(len / MIN_SIZE);
        let carved = at.map(|at| piece(&heap.run, number, at, len));
        self.link(number);
        if carved.is_some() {
            self.free_bytes -= len;
        }
        carved
    }

    /// Frees a piece, and returns its heap if that is empty now.
    pub(super) fn free(&mut self, number: u32, piece: &Carved) -> Option<Heap> {
        let heap = self.slots.get_mut(number as usize)?.as_mut()?;
        let before = heap.longest_gap;
        heap.free(heap.lines_of(piece));
        let is_empty = heap.is_empty();
        let is_longer = heap.longest_gap > before;
        self.free_bytes += piece.len;
        if !is_empty && !is_longer {
            return None;
        }
        // Its list is that of the gap before.
        let longest = std::mem::replace(&mut self.heap(number).longest_gap, before);
        self.unlink(number);
        self.heap(number).longest_gap = longest;
        if !is_empty {
            self.link(number);
            return None;
        }
        let heap = self.slots[number as usize].take()?;
        self.unused.push(number);
        self.bytes -= heap.run.len;
        self.free_bytes -= heap.run.len;
        Some(heap)
    }

    /// Opens the heaps that were set apart.
    pub(super) fn open_all(&mut self) {
        while let Some(number) = self.apart.find(0) {
            self.unlink(number);
            self.heap(number).is_apart = false;
            self.link(number);
        }
    }

    fn heap(&mut self, number: u32) -> &mut Heap {
        self.slots[number as usize]
            .as_mut()
            .expect("a number in a list is a heap's")
    }

    fn lists(&mut self, is_apart: bool) -> &mut Lists {
        if is_apart {
            &mut self.apart
        } else {
            &mut self.open
        }
    }

    fn link(&mut self, number: u32) {
        let heap = self.heap(number);
        let list = heap.longest_gap;
        let is_apart = heap.is_apart;
        let lists = self.lists(is_apart);
        let next = std::mem::replace(&mut lists.first[list], number);
        if let Some(used) = &mut lists.used {
            used.set(list..list + 1);
        }
        if next != NONE {
            self.heap(next).previous = number;
        }
        let heap = self.heap(number);
        heap.previous = NONE;
        heap.next = next;
    }

    fn unlink(&mut self, number: u32) {
        let heap = self.heap(number);
        let list = heap.longest_gap;
        let is_apart = heap.is_apart;
        let previous = heap.previous;
        let next = heap.next;
        if next != NONE {
            self.heap(next).previous = previous;
        }
        if previous != NONE {
            self.heap(previous).next = next;
            return;
        }
        let lists = self.lists(is_apart);
        lists.first[list] = next;
        if next != NONE {
            return;
        }
        if let Some(used) = &mut lists.used {
            used.clear(list..list + 1);
        }
    }

    /// Counts again what is kept of all heaps.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut bytes = 0;
        let mut free_bytes = 0;
        let mut numbers = Vec::new();
        for (number, heap) in self.slots.iter().enumerate() {
            let Some(heap) = heap else { continue };
            let lines = heap.lines.len();
            assert_eq!(heap.free, lines - heap.lines.count(0..lines));
            assert_eq!(heap.longest_gap, heap.lines.longest_clear());
            bytes += heap.run.len;
            free_bytes += heap.free * MIN_SIZE;
            numbers.push(number as u32);
        }
        assert_eq!((self.bytes, self.free_bytes), (bytes, free_bytes));
        assert_eq!(self.slots.len(), numbers.len() + self.unused.len());
        let mut listed = Vec::new();
        for lists in [&self.open, &self.apart] {
            for (list, &first) in lists.first.iter().enumerate() {
                assert_eq!(lists.used.as_ref().unwrap().is_set(list), first != NONE);
                let mut number = first;
                while number != NONE {
                    let heap = self.get(number).unwrap();
                    assert_eq!(heap.longest_gap, list);
                    assert_eq!(heap.is_apart, std::ptr::eq(lists, &self.apart));
                    listed.push(number);
                    number = heap.next;
                }
            }
        }
        listed.sort_unstable();
        assert_eq!(listed, numbers);
    }
}

fn piece(run: &Carved, number: u32, line: usize, len: usize) -> Carved {
    Carved {
        payload: run.payload.clone(),
        offset: run.offset + line * MIN_SIZE,
        len,
        place: Place::Heap(number),
    }
}
