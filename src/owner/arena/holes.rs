//! Which pages of an arena have no memory behind them: never carved, or given back to the system.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of pages, keyed by their start. Adjacent ranges are merged.
pub(super) struct Holes(BTreeMap<usize, usize>);

impl Holes {
    /// A new arena is one hole.
    pub(super) fn all(pages: usize) -> Self {
        Self(BTreeMap::from([(0, pages)]))
    }

    /// Takes out the parts of `range` that are holes.
    pub(super) fn take(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut taken = Vec::new();
        // Backwards, from the last hole that begins before the end of `range`.
        while let Some((&start, &end)) = self.0.range(..range.end).next_back().filter(|(_, &end)| end > range.start) {
            self.0.remove(&start);
            self.put_back(start..range.start);
            self.put_back(range.end..end);
            taken.push(start.max(range.start)..end.min(range.end));
        }
        taken
    }

    /// The holes of at most `most` pages that end where `range` begins, or begin where it ends.
    pub(super) fn rests_of(&self, range: &Range<usize>, most: usize) -> Vec<Range<usize>> {
        let before = self.0.range(..range.start).next_back().filter(|(_, &end)| end == range.start);
        let after = self.0.get_key_value(&range.end);
        let rests = before.into_iter().chain(after).map(|(&start, &end)| start..end);
        rests.filter(|rest| rest.len() <= most).collect()
    }

    fn put_back(&mut self, rest: Range<usize>) {
        if !rest.is_empty() {
            self.0.insert(rest.start, rest.end);
        }
    }

    /// Makes all of `range` a hole. Returns how many of its pages were not one before.
    pub(super) fn add(&mut self, range: Range<usize>) -> usize {
        let known: usize = self.take(&range).iter().map(ExactSizeIterator::len).sum();
        let before = self.0.range(..range.start).next_back().filter(|(_, &end)| end == range.start);
        let start = before.map_or(range.start, |(&start, _)| start);
        let end = self.0.remove(&range.end).unwrap_or(range.end);
        self.0.insert(start, end);
        range.len() - known
    }

    /// How many pages of `range` are not holes. Touches no heap.
    pub(super) fn filled_len(&self, range: &Range<usize>) -> usize {
        let overlap = |(&start, &end): (&usize, &usize)| end.min(range.end).saturating_sub(start.max(range.start));
        // From the last hole that begins at or before the start of `range`.
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        range.len() - self.0.range(first..range.end).map(overlap).sum::<usize>()
    }

    /// The parts of `range` that are not holes.
    pub(super) fn filled(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut filled = Vec::new();
        let mut from = range.start;
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        for (&start, &end) in self.0.range(first..range.end) {
            if start > from {
                filled.push(from..start);
            }
            from = from.max(end);
        }
        if from < range.end {
            filled.push(from..range.end);
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 64;

    proptest! {
        #[test]
        fn every_history_agrees_with_a_list_of_pages(
            steps in proptest::collection::vec((any::<bool>(), 0..PAGES, 1..20usize), 1..60),
        ) {
            let (mut holes, mut model) = (Holes::all(PAGES), [true; PAGES]);
            for (is_take, start, len) in steps {
                let range = start..(start + len).min(PAGES);
                let filled: Vec<usize> = holes.filled(&range).into_iter().flatten().collect();
                let expected: Vec<usize> = range.clone().filter(|&page| !model[page]).collect();
                prop_assert_eq!(&filled, &expected);
                prop_assert_eq!(holes.filled_len(&range), filled.len());
                for rest in holes.rests_of(&range, 3) {
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
                    prop_assert_eq!(holes.add(range.clone()), expected.len());
                }
                model[range].fill(!is_take);
                let ranges: Vec<_> = holes.0.iter().map(|(&start, &end)| (start, end)).collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "neighbours that are not one: {ranges:?}");
                let listed: Vec<bool> = (0..PAGES).map(|page| ranges.iter().any(|&(start, end)| (start..end).contains(&page))).collect();
                prop_assert_eq!(listed, model.to_vec());
            }
        }
    }
}
