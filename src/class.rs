//! Size classes: from a length in bytes to a class and back. Pure arithmetic, no state.
//!
//! Four classes per doubling: between `2^k` and `2^(k+1)` the class sizes are `5/4`, `6/4`, `7/4` and `8/4`
//! of `2^k`, so a class is never more than 25 % larger than the smallest length that needs it. The first class
//! holds everything up to one cache line. This is the spacing that jemalloc documents as "size classes".

#![forbid(unsafe_code)]

/// Size of the smallest class in bytes, and the alignment of every chunk: one cache line, so that two messages
/// never share a line that two processes use at the same time.
pub(crate) const MIN_SIZE: usize = 64;

/// log2 of [`MIN_SIZE`].
const MIN_SHIFT: u32 = MIN_SIZE.trailing_zeros();

/// log2 of the number of classes per doubling.
const STEP_SHIFT: u32 = 2;

/// What the arithmetic of [`class_of`] gives for the first class.
const FIRST: usize = ((MIN_SHIFT as usize - 1) << STEP_SHIFT) + (1 << (STEP_SHIFT + 1)) - 1;

/// The class of a length: the smallest `c` with `size_of_class(c) >= len`.
///
/// Lengths above `isize::MAX` have a class number too; the caller compares it with the number of classes that it has.
#[inline]
pub(crate) const fn class_of(len: usize) -> usize {
    let last = if len < MIN_SIZE { MIN_SIZE - 1 } else { len - 1 };
    // The top three bits of `last`, 4 to 7, are the step within the doubling. `last >= 63`, so `log2 >= 5` and the shift is
    // in range; the smallest sum is that of the first class, 4 * 5 + 7, which is taken off so that it gets number 0.
    let log2 = usize::BITS - 1 - last.leading_zeros();
    let steps = ((log2 as usize) << STEP_SHIFT) + (last >> (log2 - STEP_SHIFT));
    steps - FIRST
}

/// The size of a class in bytes: the largest length that it holds. Saturates at `usize::MAX`.
pub(crate) const fn size_of_class(class: usize) -> usize {
    if class == 0 {
        return MIN_SIZE;
    }
    let index = class - 1;
    let quarters = (1usize << STEP_SHIFT) + 1 + (index & ((1 << STEP_SHIFT) - 1));
    let shift = MIN_SHIFT - STEP_SHIFT + (index >> STEP_SHIFT) as u32;
    // `quarters` needs four bits at most.
    if shift > usize::BITS - 4 {
        return usize::MAX;
    }
    quarters << shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_classes_are_the_documented_ones() {
        let sizes: Vec<usize> = (0..10).map(size_of_class).collect();
        assert_eq!(sizes, [64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(64), 0);
        assert_eq!(class_of(65), 1);
    }

    #[test]
    fn every_boundary_up_to_the_largest_class_round_trips() {
        for class in 0..220 {
            let size = size_of_class(class);
            assert_eq!(class_of(size), class, "a length of exactly {size} belongs to its own class");
            assert_eq!(class_of(size + 1), class + 1, "one byte more belongs to the next");
            assert!(size_of_class(class + 1) > size);
        }
    }

    proptest! {
        #[test]
        fn a_class_holds_its_length_and_wastes_at_most_a_quarter(len in 0usize..1 << 48) {
            let size = size_of_class(class_of(len));
            prop_assert!(size >= len);
            prop_assert!(len <= MIN_SIZE || (size - len) * 4 <= len, "{len} rounds to {size}");
        }

        #[test]
        fn classes_are_monotone(a in 0usize..1 << 48, b in 0usize..1 << 48) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(class_of(small) <= class_of(large));
        }

        #[test]
        fn any_length_whatever_has_a_class(len: usize) {
            let class = class_of(len);
            prop_assert!(size_of_class(class) >= len);
        }
    }
}
