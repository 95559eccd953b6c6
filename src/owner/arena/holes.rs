//! The pages of an arena without memory: never carved, or returned to the system.

#![forbid(unsafe_code)]

use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// One bit for each page: set if the page has memory. The bits exist from the start, so that
/// returning memory to the system needs none.
pub(super) struct Holes(Vec<u64>);

impl Holes {
    /// Creates an arena's holes: one hole. Returns `None` if the process has no private memory for
    /// the bits.
    pub(super) fn all(pages: usize) -> Option<Self> {
        let (mut words, count) = (Vec::new(), pages.div_ceil(BITS));
        words.try_reserve_exact(count).ok()?;
        words.resize(count, 0);
        Some(Self(words))
    }

    /// Fills `range`, and returns the parts of it that were holes.
    pub(super) fn take(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let taken: Vec<_> = self.parts(range.clone(), false).collect();
        // Usually there are none, and nothing is written.
        taken.iter().for_each(|part| self.set(part, true));
        taken
    }

    /// Returns the holes of at most `most` pages that end where `range` begins, or begin where it
    /// ends.
    pub(super) fn rests_of(&self, range: &Range<usize>, most: usize, pages: usize) -> [Range<usize>; 2] {
        let start = (0..range.start).rev().take(most + 1).find(|&page| self.is_filled(page)).map_or(0, |page| page + 1);
        let end = pages.min(range.end + most + 1);
        let (before, after) = (start..range.start, range.end..self.next(range.end..end, true));
        [before, after].map(|rest| if rest.len() <= most { rest } else { 0..0 })
    }

    /// Makes all of `range` a hole. Returns how many of its pages were filled.
    pub(super) fn add(&mut self, range: &Range<usize>) -> usize {
        let filled = self.filled_len(range);
        self.set(range, false);
        filled
    }

    /// Returns the number of filled pages in `range`.
    pub(super) fn filled_len(&self, range: &Range<usize>) -> usize {
        self.parts(range.clone(), true).map(|part| part.len()).sum()
    }

    /// Returns the parts of a range that are `filled`, or those that are holes.
    pub(super) fn parts(&self, mut rest: Range<usize>, filled: bool) -> impl Iterator<Item = Range<usize>> + '_ {
        std::iter::from_fn(move || {
            rest.start = self.next(rest.clone(), filled);
            let part = rest.start..self.next(rest.clone(), !filled);
            rest.start = part.end;
            (!part.is_empty()).then_some(part)
        })
    }

    fn is_filled(&self, page: usize) -> bool {
        self.0[page / BITS] >> (page % BITS) & 1 != 0
    }

    /// Returns the first page of `range` that is filled, or is a hole; its end if there is none.
    fn next(&self, range: Range<usize>, filled: bool) -> usize {
        let mut at = range.start;
        while at < range.end {
            let word = if filled { self.0[at / BITS] } else { !self.0[at / BITS] } >> (at % BITS);
            if word != 0 {
                return range.end.min(at + word.trailing_zeros() as usize);
            }
            at = (at / BITS + 1) * BITS;
        }
        range.end
    }

    fn set(&mut self, range: &Range<usize>, filled: bool) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / BITS + 1) * BITS);
            let mask = u64::MAX >> (BITS - (end - at)) << (at % BITS);
            if filled {
                self.0[at / BITS] |= mask;
            } else {
                self.0[at / BITS] &= !mask;
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 150;

    proptest! {
        #[test]
        fn agrees_with_list_of_pages(
            steps in proptest::collection::vec((any::<bool>(), 0..PAGES, 1..90usize), 1..60),
        ) {
            let (mut holes, mut model) = (Holes::all(PAGES).unwrap(), [true; PAGES]);
            for (is_take, start, len) in steps {
                let range = start..(start + len).min(PAGES);
                let filled: Vec<usize> = holes.parts(range.clone(), true).flatten().collect();
                let expected: Vec<usize> = range.clone().filter(|&page| !model[page]).collect();
                prop_assert_eq!(&filled, &expected);
                prop_assert_eq!(holes.filled_len(&range), filled.len());
                for rest in holes.rests_of(&range, 3, PAGES).into_iter().filter(|rest| !rest.is_empty()) {
                    prop_assert!(rest.len() <= 3 && (rest.end == range.start || rest.start == range.end));
                    prop_assert!(model[rest.clone()].iter().all(|&hole| hole));
                    prop_assert!(rest.start == 0 || !model[rest.start - 1] || rest.start == range.end);
                }
                if is_take {
                    let mut taken: Vec<usize> = holes.take(&range).into_iter().flatten().collect();
                    taken.sort_unstable();
                    let expected: Vec<usize> = range.clone().filter(|&page| model[page]).collect();
                    prop_assert_eq!(taken, expected);
                } else {
                    prop_assert_eq!(holes.add(&range), expected.len());
                }
                model[range].fill(!is_take);
                let listed: Vec<bool> = (0..PAGES).map(|page| !holes.is_filled(page)).collect();
                prop_assert_eq!(listed, model.to_vec());
            }
        }
    }
}
