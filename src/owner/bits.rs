//! A bitmap, of the pages of an arena or of the cache lines of a heap.
//!
//! A walk over bits takes one step for 64 of them, and one for each run of equal bits that it
//! returns.

#![forbid(unsafe_code)]

use crate::owner::words::Words;
use std::ops::Range;

const BITS: usize = u64::BITS as usize;

pub(crate) struct Bits {
    /// Bits at or behind `len` are clear.
    words: Words,
    len: usize,
}

pub(crate) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

impl Bits {
    /// Returns `len` clear bits. `None`: no private memory.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let words = Words::new(len.div_ceil(BITS))?;
        Some(Self { words, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies a bitmap of the same length. Needs no memory.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.words.copy_from_slice(&other.words);
    }

    pub(crate) fn is_set(&self, at: usize) -> bool {
        self.words[at / BITS] >> (at % BITS) & 1 != 0
    }

    pub(crate) fn set(&mut self, range: Range<usize>) {
        for part in parts(range) {
            self.words[part.word] |= part.mask;
        }
    }

    pub(crate) fn clear(&mut self, range: Range<usize>) {
        for part in parts(range) {
            self.words[part.word] &= !part.mask;
        }
    }

    /// Returns how many bits of the range are set.
    pub(crate) fn count(&self, range: Range<usize>) -> usize {
        let mut count = 0;
        for part in parts(range) {
            count += (self.words[part.word] & part.mask).count_ones() as usize;
        }
        count
    }

    /// Returns how many bits are set here and clear in a bitmap of the same length.
    pub(crate) fn count_without(&self, other: &Self) -> usize {
        let mut count = 0;
        for (word, without) in self.words.iter().zip(other.words.iter()) {
            count += (word & !without).count_ones() as usize;
        }
        count
    }

    /// Returns the first set bit of the range, or its end.
    pub(crate) fn next_set(&self, range: Range<usize>) -> usize {
        next(range, |word| self.words[word])
    }

    /// Returns the first clear bit of the range, or its end.
    pub(crate) fn next_clear(&self, range: Range<usize>) -> usize {
        next(range, |word| !self.words[word])
    }

    /// Returns the first bit of the range that is set here and clear in a bitmap of the same
    /// length, or the range's end.
    pub(crate) fn next_without(&self, other: &Self, range: Range<usize>) -> usize {
        next(range, |word| self.words[word] & !other.words[word])
    }

    /// Returns the first bit of the range that is clear here or set in a bitmap of the same length,
    /// or the range's end.
    pub(crate) fn next_clear_or_in(&self, other: &Self, range: Range<usize>) -> usize {
        next(range, |word| !self.words[word] | other.words[word])
    }

    /// Returns the start of the run of set bits that ends at `end`.
    pub(crate) fn start_of_set(&self, end: usize) -> usize {
        start_of_run(end, |word| !self.words[word])
    }

    /// Returns the start of the run of clear bits that ends at `end`.
    pub(crate) fn start_of_clear(&self, end: usize) -> usize {
        start_of_run(end, |word| self.words[word])
    }

    /// Returns the runs of set bits in a range, in order.
    pub(crate) fn set_runs(
        &self,
        mut rest: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + '_ {
        std::iter::from_fn(move || {
            let start = self.next_set(rest.clone());
            let end = self.next_clear(start..rest.end);
            rest.start = end;
            if start < end {
                Some(start..end)
            } else {
                None
            }
        })
    }

    /// Returns the runs of clear bits in a range, in order.
    pub(crate) fn clear_runs(
        &self,
        mut rest: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + '_ {
        std::iter::from_fn(move || {
            let start = self.next_clear(rest.clone());
            let end = self.next_set(start..rest.end);
            rest.start = end;
            if start < end {
                Some(start..end)
            } else {
                None
            }
        })
    }

    /// Returns the first run of at least `least` clear bits in a range, up to the run's end.
    pub(crate) fn next_long_clear(
        &self,
        least: usize,
        range: Range<usize>,
    ) -> Option<Range<usize>> {
        let mut start = self.next_clear(range.clone());
        // The next `least` bits are looked at from their end: a run cannot begin before the last
        // set bit among them, so fragmented memory is passed over in long steps.
        while range.end.saturating_sub(start) >= least {
            let end = start + least;
            let clear = self.start_of_clear(end);
            if clear <= start {
                return Some(start..self.next_set(end..range.end));
            }
            start = self.next_clear(clear..range.end);
        }
        None
    }

    /// Returns the length of the longest run of clear bits.
    #[cfg(any(test, feature = "unstable-backend"))]
    pub(crate) fn longest_clear(&self) -> usize {
        let mut longest = 0;
        let mut from = 0;
        while let Some(run) = self.next_long_clear(longest + 1, from..self.len) {
            longest = run.len();
            from = run.end;
        }
        longest
    }
}

/// The bits of a range that are in one word.
struct Part {
    word: usize,
    mask: u64,
}

fn parts(mut range: Range<usize>) -> impl Iterator<Item = Part> {
    std::iter::from_fn(move || {
        if range.is_empty() {
            return None;
        }
        let word = range.start / BITS;
        let end = range.end.min((word + 1) * BITS);
        let mask = u64::MAX >> (BITS - (end - range.start)) << (range.start % BITS);
        range.start = end;
        Some(Part { word, mask })
    })
}

/// Returns the first bit of a range that is set in a word of `bits`, or the range's end.
#[inline]
fn next(range: Range<usize>, bits: impl Fn(usize) -> u64) -> usize {
    let mut at = range.start;
    while at < range.end {
        let word = bits(at / BITS) >> (at % BITS);
        if word != 0 {
            return range.end.min(at + word.trailing_zeros() as usize);
        }
        at = (at / BITS + 1) * BITS;
    }
    range.end
}

/// Returns the bit behind the last one before `end` that is set in a word of `bits`, or 0.
#[inline]
fn start_of_run(end: usize, bits: impl Fn(usize) -> u64) -> usize {
    let mut at = end;
    while at > 0 {
        let word = (at - 1) / BITS;
        let unused = (word + 1) * BITS - at;
        let before = bits(word) << unused;
        if before != 0 {
            return at - before.leading_zeros() as usize;
        }
        at = word * BITS;
    }
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: usize = 150;

    fn model_runs(model: &[bool], range: Range<usize>, set: bool) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for at in range.filter(|&at| model[at] == set) {
            match runs.last_mut() {
                Some(run) if run.end == at => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    fn bits_of(model: &[bool]) -> Bits {
        let mut bits = Bits::new(model.len()).unwrap();
        for at in (0..model.len()).filter(|&at| model[at]) {
            bits.set(at..at + 1);
        }
        bits
    }

    #[test]
    fn whole_words() {
        for len in [0, 1, 63, 64, 65, 128, 129] {
            let mut bits = Bits::new(len).unwrap();
            assert_eq!(bits.longest_clear(), len);
            bits.set(0..len);
            assert_eq!((bits.count(0..len), bits.longest_clear()), (len, 0));
            assert_eq!(bits.start_of_set(len), 0);
            assert_eq!(bits.next_clear(0..len), len);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_list(
            steps in proptest::collection::vec((any::<bool>(), 0..LEN, 1..90usize), 1..60),
            other in proptest::collection::vec(any::<bool>(), LEN),
            least in 1..100usize,
        ) {
            let mut bits = Bits::new(LEN).unwrap();
            let mut model = [false; LEN];
            let others = bits_of(&other);
            for (is_set, start, len) in steps {
                let range = start..(start + len).min(LEN);
                let expected = model_runs(&model, range.clone(), true);
                prop_assert_eq!(bits.set_runs(range.clone()).collect::<Vec<_>>(), expected.clone());
                prop_assert_eq!(bits.count(range.clone()), expected.iter().map(|run| run.len()).sum::<usize>());
                let expected = model_runs(&model, range.clone(), false);
                prop_assert_eq!(bits.clear_runs(range.clone()).collect::<Vec<_>>(), expected.clone());
                let long = expected.into_iter().find(|run| run.len() >= least);
                prop_assert_eq!(bits.next_long_clear(least, range.clone()), long);

                let without = range.clone().find(|&at| model[at] && !other[at]);
                prop_assert_eq!(bits.next_without(&others, range.clone()), without.unwrap_or(range.end));
                let stop = range.clone().find(|&at| !model[at] || other[at]);
                prop_assert_eq!(bits.next_clear_or_in(&others, range.clone()), stop.unwrap_or(range.end));
                prop_assert_eq!(bits.count_without(&others), (0..LEN).filter(|&at| model[at] && !other[at]).count());

                let same_before = (0..start).rev().take_while(|&at| model[at] == is_set).count();
                let run_start = if is_set { bits.start_of_set(start) } else { bits.start_of_clear(start) };
                prop_assert_eq!(run_start, start - same_before);

                if is_set {
                    bits.set(range.clone());
                } else {
                    bits.clear(range.clone());
                }
                model[range].fill(is_set);
                let listed: Vec<bool> = (0..LEN).map(|at| bits.is_set(at)).collect();
                prop_assert_eq!(listed, model.to_vec());
                let longest = model_runs(&model, 0..LEN, false).iter().map(|run| run.len()).max();
                prop_assert_eq!(bits.longest_clear(), longest.unwrap_or(0));
                let mut copy = Bits::new(LEN).unwrap();
                copy.copy_from(&bits);
                prop_assert_eq!(copy.count(0..LEN), bits.count(0..LEN));
            }
        }
    }
}
