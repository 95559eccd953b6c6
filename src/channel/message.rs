//! The content of a slot: a descriptor of a buffer, or some bytes; see
//! [`docs::format`](crate::docs::format).
//!
//! The check of a descriptor is a hash of its words and of the message's ticket. It keeps garbage
//! and leftovers from naming bytes that were never sent; it is no secret.
//!
//! Messages not sent are counted from the start, modulo 2^32: a count since the previous message
//! would be withdrawn with it.

#![forbid(unsafe_code)]

use super::error::{RecvError, SendErrorKind};
use super::ring::{Words, WORDS};
use std::ops::Deref;

/// The most bytes that a slot itself holds.
pub const MAX_INLINE: usize = (WORDS - 1) * 8;

const BYTES: u64 = 1;
const BUFFER: u64 = 2;

/// Up to [`MAX_INLINE`] bytes, copied out of their slot and aligned to 8 bytes.
#[repr(C, align(8))]
pub(super) struct Inline {
    bytes: [u8; MAX_INLINE],
    len: u32,
    missed: u32,
}

impl Inline {
    #[inline]
    pub(super) fn missed(&self) -> u32 {
        self.missed
    }
}

impl Deref for Inline {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // `read` has checked the length; `get` leaves no panicking path.
        self.bytes.get(..self.len as usize).unwrap_or(&[])
    }
}

/// The fields of the first word above the kind: a number, and the count of messages not sent.
const NUMBERS: u64 = 0xff_ffff;
const LEFT_OUT: u32 = 32;

#[inline]
pub(super) fn after(words: &Words, skipped: u32) -> Words {
    let mut words = *words;
    words[0] |= u64::from(skipped) << LEFT_OUT;
    words
}

/// Returns how many messages the sender had for this receiver before this one, modulo 2^32.
#[inline]
pub(super) fn place(ticket: u64, words: &Words) -> u32 {
    (ticket as u32).wrapping_add((words[0] >> LEFT_OUT) as u32)
}

pub(super) fn loan(words: &Words) -> Option<u32> {
    (words[0] & 0xff == BUFFER).then_some((words[0] >> 8 & NUMBERS) as u32)
}

/// Returns the segment of a buffer, unchecked.
#[inline]
pub(super) fn segment(words: &Words) -> Option<u64> {
    (words[0] & 0xff == BUFFER).then_some(words[1])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentBuffer {
    pub(super) number: u32,
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) enum Carried {
    Bytes(Inline),
    Buffer(SentBuffer),
}

/// The factor is SplitMix64's increment, an odd number close to 2^64 divided by the golden ratio.
#[inline]
fn check(ticket: u64, [head, segment, offset, len]: [u64; 4]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(mix(!ticket, head), segment), offset), len)
}

#[inline]
pub(super) fn of_buffer(ticket: u64, place: &SentBuffer, skipped: u32) -> Words {
    let head = BUFFER | u64::from(place.number) << 8 | u64::from(skipped) << LEFT_OUT;
    let check = check(ticket, [head, place.segment, place.offset, place.len]);
    [head, place.segment, place.offset, place.len, check, 0, 0]
}

#[inline]
pub(super) fn of_bytes(bytes: &[u8]) -> Result<Words, SendErrorKind> {
    if bytes.len() > MAX_INLINE {
        return Err(SendErrorKind::TooLong { len: bytes.len(), max: MAX_INLINE });
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
pub(super) fn read(ticket: u64, words: &Words, missed: u32) -> Result<Carried, RecvError> {
    let rest = words[0] >> 8 & NUMBERS;
    match words[0] & 0xff {
        BUFFER => {
            let [head, segment, offset, len, found, ..] = *words;
            if check(ticket, [head, segment, offset, len]) != found {
                return Err(RecvError::Damaged { what: "its check is wrong" });
            }
            Ok(Carried::Buffer(SentBuffer { number: rest as u32, segment, offset, len }))
        }
        BYTES if rest <= MAX_INLINE as u64 => {
            let mut bytes = [0; MAX_INLINE];
            for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words[1..]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            Ok(Carried::Bytes(Inline { bytes, len: rest as u32, missed }))
        }
        BYTES => Err(RecvError::Damaged { what: "it has more bytes than a slot" }),
        _ => Err(RecvError::Damaged { what: "it is of no known kind" }),
    }
}
