//! What [`ShmBytesMut`], [`ShmBytes`], [`ShmView`] and [`Message`] have in common, as users of
//! `bytes::Bytes` know it: comparisons, hashing, iteration and conversions. Also [`ShmSlice`], a
//! part of one of them.

#![forbid(unsafe_code)]

use crate::channel::Message;
use crate::owner::buf::{ShmBytes, ShmBytesMut};
use crate::peer::view::ShmView;
use std::borrow::{Borrow, BorrowMut};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::slice;

/// Implements the comparisons of a byte type with another type, in both directions.
macro_rules! compares_with {
    ([$($generics:tt)*] $type:ty, $other:ty) => {
        impl<$($generics)*> PartialEq<$other> for $type {
            fn eq(&self, other: &$other) -> bool {
                **self == *AsRef::<[u8]>::as_ref(other)
            }
        }

        impl<$($generics)*> PartialEq<$type> for $other {
            fn eq(&self, other: &$type) -> bool {
                *other == *self
            }
        }

        impl<$($generics)*> PartialOrd<$other> for $type {
            fn partial_cmp(&self, other: &$other) -> Option<Ordering> {
                (**self).partial_cmp(AsRef::<[u8]>::as_ref(other))
            }
        }

        impl<$($generics)*> PartialOrd<$type> for $other {
            fn partial_cmp(&self, other: &$type) -> Option<Ordering> {
                other.partial_cmp(self).map(Ordering::reverse)
            }
        }
    };
}

/// Implements what every byte type has. All traits behave as those of the `[u8]` that the type
/// dereferences to.
macro_rules! byte_type {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                **self == **other
            }
        }

        impl<$($generics)*> Eq for $type {}

        impl<$($generics)*> PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl<$($generics)*> Ord for $type {
            fn cmp(&self, other: &Self) -> Ordering {
                (**self).cmp(&**other)
            }
        }

        impl<$($generics)*> Hash for $type {
            fn hash<S: Hasher>(&self, state: &mut S) {
                (**self).hash(state);
            }
        }

        impl<$($generics)*> Borrow<[u8]> for $type {
            fn borrow(&self) -> &[u8] {
                self
            }
        }

        compares_with!([$($generics)*] $type, [u8]);
        compares_with!([$($generics)*] $type, &[u8]);
        compares_with!([$($generics)*] $type, Vec<u8>);
        compares_with!([$($generics)*] $type, str);
        compares_with!([$($generics)*] $type, &str);
        compares_with!([$($generics)*] $type, String);
        compares_with!([const N: usize, $($generics)*] $type, [u8; N]);
        compares_with!([const N: usize, $($generics)*] $type, &[u8; N]);
    };
}

byte_type!([] ShmBytesMut);
byte_type!([] ShmBytes);
byte_type!([] ShmView);
byte_type!([] Message);
byte_type!([B: AsRef<[u8]>] ShmSlice<B>);

compares_with!([] ShmBytesMut, ShmBytes);
compares_with!([] ShmBytesMut, ShmView);
compares_with!([] ShmBytesMut, Message);
compares_with!([] ShmBytes, ShmView);
compares_with!([] ShmBytes, Message);
compares_with!([] ShmView, Message);

/// Implements iteration over the bytes of a reference.
macro_rules! iterates {
    ($($type:ty),+) => { $(
        impl<'a> IntoIterator for &'a $type {
            type Item = &'a u8;
            type IntoIter = slice::Iter<'a, u8>;

            fn into_iter(self) -> slice::Iter<'a, u8> {
                self.iter()
            }
        }
    )+ };
}

iterates!(ShmBytesMut, ShmBytes, ShmView, Message);

impl<'a, B: AsRef<[u8]>> IntoIterator for &'a ShmSlice<B> {
    type Item = &'a u8;
    type IntoIter = slice::Iter<'a, u8>;

    fn into_iter(self) -> slice::Iter<'a, u8> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut ShmBytesMut {
    type Item = &'a mut u8;
    type IntoIter = slice::IterMut<'a, u8>;

    fn into_iter(self) -> slice::IterMut<'a, u8> {
        self.iter_mut()
    }
}

impl BorrowMut<[u8]> for ShmBytesMut {
    fn borrow_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Appends to the message, up to the buffer's [capacity](ShmBytesMut::capacity). A new buffer has
/// the length that was requested: [`clear`](ShmBytesMut::clear) it first.
///
/// [`write`](io::Write::write) returns 0 once the buffer is full, and
/// [`write_all`](io::Write::write_all) then fails with [`WriteZero`](io::ErrorKind::WriteZero).
///
/// ```
/// use std::io::Write;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let provider = shm_pool::Provider::builder().build()?;
/// let mut buffer = provider.alloc(64)?;
/// buffer.clear();
/// write!(buffer, "{} items", 3)?;
/// assert_eq!(buffer, "3 items");
/// # Ok(())
/// # }
/// ```
impl io::Write for ShmBytesMut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.len();
        let count = bytes.len().min(self.capacity() - len);
        self.resize(len + count).map_err(io::Error::other)?;
        self[len..].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part of a message, which keeps the whole message.
///
/// Created by [`ShmBytes::slice`] and [`Message::slice`], or by [`ShmSlice::new`] from any handle,
/// such as a [`ShmView`]. No byte is copied.
///
/// A message is sent, granted and described as a whole, so a slice cannot be:
/// [`handle`](Self::handle) returns the message.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let provider = shm_pool::Provider::builder().build()?;
/// let mut buffer = provider.alloc(12)?;
/// buffer.copy_from_slice(b"headpayload!");
/// let message = buffer.freeze();
/// let head = message.slice(..4);
/// let payload = message.slice(4..);
/// drop(message); // the slices keep the memory
/// assert_eq!(head, "head");
/// assert_eq!(payload.slice(..7), "payload");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ShmSlice<B> {
    handle: B,
    range: Range<usize>,
}

impl<B: AsRef<[u8]>> ShmSlice<B> {
    /// Creates a slice of a handle's bytes.
    ///
    /// # Panics
    ///
    /// If the range is decreasing, or ends after the last byte.
    pub fn new(handle: B, range: impl RangeBounds<usize>) -> Self {
        let range = within(range, handle.as_ref());
        Self { handle, range }
    }

    /// Returns a slice of this slice, with a clone of its handle.
    ///
    /// # Panics
    ///
    /// If the range is decreasing, or ends after the last byte of this slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self
    where
        B: Clone,
    {
        let inner = within(range, self);
        Self {
            handle: self.handle.clone(),
            range: self.range.start + inner.start..self.range.start + inner.end,
        }
    }

    /// Returns the handle of the whole message.
    pub fn handle(&self) -> &B {
        &self.handle
    }
}

/// Returns the range as indices of `bytes`.
fn within(range: impl RangeBounds<usize>, bytes: &[u8]) -> Range<usize> {
    let after = |index: usize| index.checked_add(1).expect("the range is out of bounds");
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => after(before),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => after(last),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => bytes.len(),
    };
    // Panics as an index does.
    let _ = &bytes[start..end];
    start..end
}

impl<B: AsRef<[u8]>> Deref for ShmSlice<B> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.handle.as_ref()[self.range.clone()]
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ShmSlice<B> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<B: fmt::Debug> fmt::Debug for ShmSlice<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmSlice")
            .field("handle", &self.handle)
            .field("range", &self.range)
            .finish()
    }
}

impl ShmBytes {
    /// Returns a part of the message, with a clone of this handle.
    ///
    /// # Panics
    ///
    /// If the range is decreasing, or ends after the last byte.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> ShmSlice<Self> {
        ShmSlice::new(self.clone(), range)
    }
}

impl Message {
    /// Returns a part of the message, with a [clone](Clone) of this handle.
    ///
    /// # Panics
    ///
    /// If the range is decreasing, or ends after the last byte.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> ShmSlice<Self> {
        ShmSlice::new(self.clone(), range)
    }
}

/// Conversions of the feature `bytes`: none of them copies.
#[cfg(feature = "bytes")]
mod with_bytes {
    use super::{Message, ShmBytes, ShmBytesMut, ShmSlice, ShmView};
    use bytes::Bytes;

    macro_rules! into_bytes {
        ($($type:ty),+) => { $(
            /// The result holds the message until its last clone is dropped. Nothing is copied.
            impl From<$type> for Bytes {
                fn from(message: $type) -> Self {
                    Self::from_owner(message)
                }
            }
        )+ };
    }

    into_bytes!(ShmBytesMut, ShmBytes, ShmView, Message);

    /// The result holds the whole message until its last clone is dropped. Nothing is copied.
    impl<B: AsRef<[u8]> + Send + 'static> From<ShmSlice<B>> for Bytes {
        fn from(slice: ShmSlice<B>) -> Self {
            Self::from_owner(slice)
        }
    }
}
