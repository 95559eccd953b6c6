//! Size classes: from a length in bytes to a class and back. Pure arithmetic, no state.
//!
//! Up to 2 KiB there is a class for each multiple of a cache line. Above, there are 32 evenly
//! spaced classes per doubling, so a class is at most 3.2 % larger than the smallest length that
//! needs it. This is the spacing that jemalloc documents as "size classes", with more of them per
//! doubling. Here a class costs one shelf and no memory of its own: idle chunks of a slightly
//! larger class serve too (see `pool`), and all chunks are carved from the same arenas.

#![forbid(unsafe_code)]

/// Size of the smallest class in bytes, and the alignment of every chunk: one cache line, so that
/// two messages in use by two processes never share a line.
pub(crate) const MIN_SIZE: usize = 64;

/// log2 of [`MIN_SIZE`].
const MIN_SHIFT: u32 = MIN_SIZE.trailing_zeros();

/// log2 of the number of classes per doubling.
const STEP_SHIFT: u32 = 5;

/// log2 of the length up to which the classes are a cache line apart.
const LINEAR_SHIFT: u32 = MIN_SHIFT + STEP_SHIFT;

/// Returns the class of a length: the smallest `c` with `size_of_class(c) >= len`.
///
/// Lengths above `isize::MAX` have a class too; the caller compares it with its number of classes.
#[inline]
pub(crate) const fn class_of(len: usize) -> usize {
    let last = len.saturating_sub(1);
    // Shorter lengths count as part of the first doubling, which has the same spacing.
    let log2 = (last | 1 << LINEAR_SHIFT).ilog2();
    (((log2 - LINEAR_SHIFT) as usize) << STEP_SHIFT) + (last >> (log2 - STEP_SHIFT))
}

/// Returns the size of a class in bytes: the largest length that it holds. Saturates at
/// `usize::MAX`.
pub(crate) const fn size_of_class(class: usize) -> usize {
    const PER_DOUBLING: usize = 1 << STEP_SHIFT;
    if class < PER_DOUBLING {
        return (class + 1) << MIN_SHIFT;
    }
    let steps = PER_DOUBLING + 1 + class % PER_DOUBLING;
    let shift = MIN_SHIFT + (class / PER_DOUBLING - 1) as u32;
    // `steps` needs at most `STEP_SHIFT + 2` bits.
    if shift > usize::BITS - STEP_SHIFT - 2 {
        return usize::MAX;
    }
    steps << shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_classes() {
        let sizes = |classes: std::ops::Range<usize>| classes.map(size_of_class).collect::<Vec<_>>();
        assert_eq!(sizes(0..3), [64, 128, 192]);
        assert_eq!(sizes(30..34), [1984, 2048, 2112, 2176]);
        assert_eq!(sizes(62..66), [4032, 4096, 4224, 4352]);
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(64), 0);
        assert_eq!(class_of(65), 1);
    }

    #[test]
    fn boundaries_round_trip() {
        for class in 0..1600 {
            let size = size_of_class(class);
            assert_eq!(class_of(size), class, "a length of exactly {size} belongs to its own class");
            assert_eq!(class_of(size + 1), class + 1, "one byte more belongs to the next");
            assert!(size_of_class(class + 1) > size);
        }
    }

    proptest! {
        #[test]
        fn class_waste(len in 0usize..1 << 48) {
            let size = size_of_class(class_of(len));
            prop_assert!(size >= len);
            prop_assert!(size - len < MIN_SIZE || (size - len) * 32 < len, "{len} rounds to {size}");
        }

        #[test]
        fn monotone(a in 0usize..1 << 48, b in 0usize..1 << 48) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(class_of(small) <= class_of(large));
        }

        #[test]
        fn any_length(len: usize) {
            let class = class_of(len);
            prop_assert!(size_of_class(class) >= len);
        }
    }
}
