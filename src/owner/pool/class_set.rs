//! Which classes have chunks that shelves keep, as one bit each: a search for idle chunks reads a
//! cache line or two, not the counts of all classes.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// A set of classes. Writers hold a lock that orders the changes; readers get a snapshot.
pub(super) struct ClassSet(Box<[AtomicU64]>);

impl ClassSet {
    pub(super) fn new(classes: usize) -> Self {
        Self((0..classes.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn insert(&self, class: usize) {
        self.0[class / BITS].fetch_or(1 << (class % BITS), Ordering::Relaxed);
    }

    pub(super) fn remove(&self, class: usize) {
        self.0[class / BITS].fetch_and(!(1 << (class % BITS)), Ordering::Relaxed);
    }

    /// The classes in it, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = word.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at * BITS + bit)
            })
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_and_not_removed_is_in_it() {
        let set = ClassSet::new(200);
        assert_eq!(set.iter().next(), None);
        [199, 0, 63, 64, 127, 5].into_iter().for_each(|class| set.insert(class));
        set.remove(64);
        set.remove(7);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 63, 127, 199]);
    }
}
