//! Zeroed words, for a bitmap.

use crate::os::mapping::Mapping;
use crate::os::posix::has_heap;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::slice;

/// From this many bytes on, words are mapped, so that those that stay zero take no memory.
const MAPPED: usize = 256 << 10;

pub(crate) enum Words {
    Heap(Vec<u64>),
    Mapped { mapping: Mapping, count: usize },
}

impl Words {
    /// Returns `count` words. `None`: no private memory.
    pub(crate) fn new(count: usize) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<u64>())?;
        if bytes >= MAPPED {
            let mapping = Mapping::private(bytes).ok()?;
            return Some(Self::Mapped { mapping, count });
        }
        if !has_heap(bytes) {
            return None;
        }
        Some(Self::Heap(vec![0; count]))
    }
}

impl Deref for Words {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        match self {
            Self::Heap(words) => words,
            Self::Mapped { mapping, count } => {
                let first = mapping.base().cast::<u64>();
                // SAFETY: `new` has mapped so many words, which are zero at first. A mapping begins
                // with a page, so they are aligned. Only this value uses them, as it is borrowed.
                unsafe { slice::from_raw_parts(first.as_ptr(), *count) }
            }
        }
    }
}

impl DerefMut for Words {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            Self::Heap(words) => words,
            Self::Mapped { mapping, count } => {
                let first = mapping.base().cast::<u64>();
                // SAFETY: as above; this value is borrowed exclusively.
                unsafe { slice::from_raw_parts_mut(first.as_ptr(), *count) }
            }
        }
    }
}
