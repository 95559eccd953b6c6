//! What a slot carries: a descriptor, or some bytes.
//!
//! | word | of a descriptor | of bytes |
//! |---|---|---|
//! | 0 | 2 | 1, and their number in the bits from 8 on |
//! | 1 to 6 | its 32 bytes, then zero | the bytes, then zero |

#![forbid(unsafe_code)]

use super::error::{RecvError, SendFailure};
use super::ring::{Words, WORDS};
use crate::descriptor::Descriptor;
use crate::view::ShmView;
use std::ops::Deref;

/// Most bytes that a slot carries by itself.
pub const MAX_INLINE: usize = (WORDS - 1) * 8;

const BYTES: u64 = 1;
const DESCRIPTOR: u64 = 2;

/// A message that was received.
#[derive(Debug)]
pub enum Message {
    /// A buffer of the sender's provider, read in place.
    View(ShmView),
    /// Bytes that came in the slot itself.
    Bytes(Inline),
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::View(view) => view,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Message {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Up to [`MAX_INLINE`] bytes.
#[derive(Clone, Copy, Debug)]
pub struct Inline {
    len: usize,
    bytes: [u8; MAX_INLINE],
}

impl Deref for Inline {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // Checked in `read`; by `get` there is no way to panic left.
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// A message, copied out of its slot and checked.
pub(super) enum Carried {
    Bytes(Inline),
    Descriptor(Descriptor),
}

#[inline]
pub(super) fn of_descriptor(descriptor: &Descriptor) -> Words {
    words(DESCRIPTOR, &descriptor.to_bytes())
}

#[inline]
pub(super) fn of_bytes(bytes: &[u8]) -> Result<Words, SendFailure> {
    if bytes.len() > MAX_INLINE {
        return Err(SendFailure::TooLong { len: bytes.len(), max: MAX_INLINE });
    }
    Ok(words(BYTES | (bytes.len() as u64) << 8, bytes))
}

#[inline]
fn words(head: u64, bytes: &[u8]) -> Words {
    let mut all = [0; MAX_INLINE];
    all[..bytes.len()].copy_from_slice(bytes);
    let mut words = [head; WORDS];
    for (word, bytes) in words[1..].iter_mut().zip(all.chunks_exact(8)) {
        *word = u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]));
    }
    words
}

#[inline]
pub(super) fn read(words: &Words) -> Result<Carried, RecvError> {
    let mut bytes = [0; MAX_INLINE];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words[1..]) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    let len = words[0] >> 8;
    match words[0] & 0xff {
        BYTES if len <= MAX_INLINE as u64 => Ok(Carried::Bytes(Inline { len: len as usize, bytes })),
        BYTES => Err(RecvError::Damaged { what: "it has more bytes than a slot" }),
        DESCRIPTOR => {
            let bytes = std::array::from_fn(|at| bytes[at]);
            let descriptor = Descriptor::from_bytes(bytes);
            descriptor.map(Carried::Descriptor).map_err(|_| RecvError::Damaged { what: "it has no descriptor" })
        }
        _ => Err(RecvError::Damaged { what: "it is of no known kind" }),
    }
}
