//! What a slot carries: the place of a buffer, or some bytes.
//!
//! | word | of a buffer | of bytes |
//! |---|---|---|
//! | 0, bits 0 to 7 | 2 | 1 |
//! | 0, bits 8 to 31 | the loan's number | how many bytes |
//! | 0, bits 32 to 63 | how many messages this receiver was not sent before this one, since it came | the same |
//! | 1 | the segment's serial number | the bytes, then zeros, up to word 6 |
//! | 2, 3 | offset and length in bytes | |
//! | 4 | the check | |
//! | 5, 6 | zero | |
//!
//! The check is a hash of the buffer's other words and of the message's ticket. It keeps garbage,
//! and what is left of another message, from naming bytes that were never sent. It is no secret: it
//! guards against accidents.
//!
//! What was not sent is counted from the start, modulo 2^32, and not since the last message: that
//! one may be withdrawn, and its count with it.

#![forbid(unsafe_code)]

use super::borrower::{Loan, SentBuffer};
use super::error::{RecvError, SendErrorKind};
use super::ring::{Words, WORDS};
use std::ops::Deref;

/// The most bytes that a slot carries itself.
pub const MAX_INLINE: usize = (WORDS - 1) * 8;

const BYTES: u64 = 1;
const BUFFER: u64 = 2;

/// A received message. It derefs to `&[u8]`; its length is that of what was sent.
#[derive(Debug)]
pub enum Message {
    /// A buffer of the sender's provider, read in place. Aligned as [`Loan`] says.
    Buffer(Loan),
    /// Bytes that came in the slot itself, copied out of it. Aligned to 8 bytes.
    Bytes(Inline),
}

impl Message {
    /// How many messages the publisher sent between the one received before and this one: those
    /// that this receiver did not get because it was behind (see [`OnFull`](super::OnFull)), and
    /// those that were lost with an error. Above [`u32::MAX`] it starts over.
    #[inline]
    pub fn missed(&self) -> u32 {
        match self {
            Self::Buffer(loan) => loan.missed(),
            Self::Bytes(bytes) => bytes.missed(),
        }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Buffer(loan) => loan,
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

/// Up to [`MAX_INLINE`] bytes, copied out of their slot, and aligned to 8 bytes. It derefs to
/// `&[u8]`; its length is that of what was sent.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Inline {
    bytes: [u8; MAX_INLINE],
    len: u32,
    missed: u32,
}

impl Inline {
    /// Notes how many messages are missing before this one.
    #[inline]
    pub(super) fn with_missed(mut self, missed: u32) -> Self {
        self.missed = missed;
        self
    }

    /// As [`Message::missed`].
    pub fn missed(&self) -> u32 {
        self.missed
    }
}

impl Deref for Inline {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // `read` has checked the length; `get` leaves no path that panics.
        self.bytes.get(..self.len as usize).unwrap_or(&[])
    }
}

/// The bits of the first word above the kind: a number, and how many messages were not sent.
const NUMBERS: u64 = 0xff_ffff;
const LEFT_OUT: u32 = 32;

/// Notes in a message of bytes how many messages were not sent before it.
#[inline]
pub(super) fn after(mut words: Words, left_out: u32) -> Words {
    words[0] |= u64::from(left_out) << LEFT_OUT;
    words
}

/// How many messages the sender had for this receiver before this one, sent or not, modulo 2^32.
/// `ticket` is how many were sent.
#[inline]
pub(super) fn place(ticket: u64, words: &Words) -> u32 {
    (ticket as u32).wrapping_add((words[0] >> LEFT_OUT) as u32)
}

/// The number of the loan of a buffer.
pub(super) fn loan(words: &Words) -> Option<usize> {
    (words[0] & 0xff == BUFFER).then_some((words[0] >> 8 & NUMBERS) as usize)
}

/// The segment of a buffer, before it is checked.
#[inline]
pub(super) fn segment(words: &Words) -> Option<u64> {
    (words[0] & 0xff == BUFFER).then_some(words[1])
}

/// A message copied out of its slot and checked.
pub(super) enum Carried {
    Bytes(Inline),
    Buffer(SentBuffer),
}

/// The check of a buffer sent with this ticket. The factor is the increment of SplitMix64, an odd
/// number close to 2^64 divided by the golden ratio.
#[inline]
fn check(ticket: u64, [head, segment, offset, len]: [u64; 4]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(mix(!ticket, head), segment), offset), len)
}

#[inline]
pub(super) fn of_buffer(ticket: u64, place: &SentBuffer, left_out: u32) -> Words {
    let head = BUFFER | u64::from(place.number) << 8 | u64::from(left_out) << LEFT_OUT;
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
pub(super) fn read(ticket: u64, words: &Words) -> Result<Carried, RecvError> {
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
            Ok(Carried::Bytes(Inline { bytes, len: rest as u32, missed: 0 }))
        }
        BYTES => Err(RecvError::Damaged { what: "it has more bytes than a slot" }),
        _ => Err(RecvError::Damaged { what: "it is of no known kind" }),
    }
}
