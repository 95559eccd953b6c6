//! The content of a slot: a descriptor of a buffer, or some bytes; see
//! `docs/format.md`.
//!
//! The check of a descriptor is a hash of its words and of the message's ticket. It keeps garbage
//! and leftovers from naming bytes that were never sent; it is no secret. It covers the tag, if the
//! message has one. A message without a tag costs nothing for it: its kind says so.
//!
//! Messages not sent are counted from the start, modulo 2^32: a count since the previous message
//! would be withdrawn with it.
//!
//! # Missed messages
//!
//! A publisher counts privately what each receiver misses, and stores each change in the connection
//! (Relaxed: the counts say nothing about other memory). Killed in between, it leaves a count that
//! is one too low.
//!
//! One more word tells the receiver that its own borrowed buffers are the reason. It has twice the
//! number of messages for which the publisher could lend no buffer, plus 1 if no buffer was sent
//! since:
//!
//! | step | publisher | step | receiver |
//! |---|---|---|---|
//! | B1 | store the word, odd | S1, S2 | see `doorbell` |
//! | W2 to W5 | ring, as for a message | S3 | if the word has changed and is odd, and it holds a borrowed buffer, [`TooManyBorrowed`] |
//! | B2 | with the next buffer that is sent: store it, even | | |
//!
//! B1 is W1 of `doorbell`, so a receiver that sleeps is woken; by the publisher's death, if it is
//! killed between B1 and W5. Garbage in these words makes the receiver report untrue reasons or
//! counts.
//!
//! [`TooManyBorrowed`]: super::RecvError::TooManyBorrowed

#![forbid(unsafe_code)]

use super::error::RecvError;
use super::ring::{Words, WORDS};
use crate::owner::buf::ShmBytes;
use crate::sync;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most bytes that a slot itself holds. [`send_copy`](super::Publisher::send_copy) copies up to
/// this many into the slot, and more into a buffer. A [tag](super::SendOptions::tag) takes 16 of
/// them.
pub const MAX_INLINE: usize = (WORDS - 1) * 8;

/// Bytes of the user's own beside a message.
pub(super) type Tag = [u8; 16];

/// Where the tag begins: in the last two words of the slot, of a buffer as of bytes.
const TAG_AT: usize = MAX_INLINE - std::mem::size_of::<Tag>();

/// The first word's lowest byte: the kind, and whether the message has a tag.
const KIND: u64 = 0x7f;
const TAGGED: u64 = 0x80;

const BYTES: u64 = 1;
const BUFFER: u64 = 2;
const TAGGED_BYTES: u64 = BYTES | TAGGED;
const TAGGED_BUFFER: u64 = BUFFER | TAGGED;

#[inline]
fn kind(words: &Words) -> u64 {
    words[0] & KIND
}

/// Returns the tag of a message.
#[inline]
pub(super) fn tag(words: &Words) -> Option<Tag> {
    if words[0] & TAGGED == 0 {
        return None;
    }
    let [.., first, second] = *words;
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&first.to_ne_bytes());
    tag[8..].copy_from_slice(&second.to_ne_bytes());
    Some(tag)
}

#[inline]
fn tag_words(tag: &Tag) -> [u64; 2] {
    let [first, second] = [0, 8].map(|start| std::array::from_fn(|at| tag[start + at]));
    [u64::from_ne_bytes(first), u64::from_ne_bytes(second)]
}

/// The alignment of the bytes in a slot, and of the copy that is received.
pub(super) const INLINE_ALIGN: usize = 8;

/// Up to [`MAX_INLINE`] bytes, copied out of their slot and aligned to 8 bytes.
#[derive(Clone)]
#[repr(C, align(8))]
pub(super) struct Inline {
    bytes: [u8; MAX_INLINE],
    len: u16,
    /// 1 if the last bytes are a tag, else 0. No `bool`, whose other values would be used to tell
    /// the kinds of a `Message` apart.
    is_tagged: u16,
    missed: u32,
}

impl Inline {
    #[inline]
    pub(super) fn missed(&self) -> u32 {
        self.missed
    }

    #[inline]
    pub(super) fn tag(&self) -> Option<Tag> {
        if self.is_tagged == 0 {
            return None;
        }
        Some(std::array::from_fn(|at| self.bytes[TAG_AT + at]))
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
pub(super) fn ordinal(ticket: u64, words: &Words) -> u32 {
    (ticket as u32).wrapping_add((words[0] >> LEFT_OUT) as u32)
}

pub(super) fn borrowed_number(words: &Words) -> Option<u32> {
    if kind(words) != BUFFER {
        return None;
    }
    Some((words[0] >> 8 & NUMBERS) as u32)
}

/// Returns the segment of a buffer, unchecked.
#[inline]
pub(super) fn segment(words: &Words) -> Option<u64> {
    if kind(words) != BUFFER {
        return None;
    }
    Some(words[1])
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

/// A step of the check. The factor is SplitMix64's increment, an odd number close to 2^64 divided
/// by the golden ratio.
#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// Where a buffer lies, and its tag: what its messages to all receivers have in common.
pub(super) struct Located {
    kind: u64,
    segment: u64,
    offset: u64,
    len: u64,
    hash: u64,
    /// Zeros if there is none.
    tag: [u64; 2],
}

impl Located {
    #[inline]
    pub(super) fn new(buffer: &ShmBytes, tag: Option<Tag>) -> Self {
        let (segment, offset, len) = buffer.place();
        match tag {
            None => Self::at(BUFFER, segment, offset, len, [0; 2]),
            Some(tag) => Self::at(TAGGED_BUFFER, segment, offset, len, tag_words(&tag)),
        }
    }

    #[inline(always)]
    fn at(kind: u64, segment: u64, offset: u64, len: u64, tag: [u64; 2]) -> Self {
        let mut hash = mix(mix(mix(0, segment), offset), len);
        if kind & TAGGED != 0 {
            let [first, second] = tag;
            hash = mix(mix(hash, first), second);
        }
        Self {
            kind,
            segment,
            offset,
            len,
            hash,
            tag,
        }
    }

    /// The check of a message with this ticket and first word.
    #[inline]
    fn check(&self, ticket: u64, head: u64) -> u64 {
        mix(mix(self.hash, head), !ticket)
    }
}

/// The message that carries a buffer under this number.
#[inline]
pub(super) fn of_buffer(ticket: u64, number: u32, located: &Located, skipped: u32) -> Words {
    let Located {
        kind,
        segment,
        offset,
        len,
        tag: [first, second],
        ..
    } = *located;
    let head = kind | u64::from(number) << 8 | u64::from(skipped) << LEFT_OUT;
    let check = located.check(ticket, head);
    [head, segment, offset, len, check, first, second]
}

/// The message that carries these bytes itself. Returns `None` if they do not fit in a slot, with
/// the tag, or not with their alignment.
#[inline]
pub(super) fn of_bytes(bytes: &[u8], align: usize, tag: Option<Tag>) -> Option<Words> {
    if bytes.len() > MAX_INLINE || align > INLINE_ALIGN {
        return None;
    }
    let mut words = words(BYTES | (bytes.len() as u64) << 8, bytes);
    if let Some(tag) = tag {
        if bytes.len() > TAG_AT {
            return None;
        }
        let [.., first, second] = &mut words;
        [*first, *second] = tag_words(&tag);
        words[0] |= TAGGED;
    }
    Some(words)
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
    // Not first the kind and then the tag: a message without a tag costs no further comparison.
    match words[0] & (KIND | TAGGED) {
        BUFFER => read_buffer(ticket, words, BUFFER),
        TAGGED_BUFFER => read_buffer(ticket, words, TAGGED_BUFFER),
        BYTES if rest <= MAX_INLINE as u64 => Ok(read_bytes(words, rest, missed)),
        TAGGED_BYTES if rest <= TAG_AT as u64 => Ok(read_bytes(words, rest, missed)),
        BYTES | TAGGED_BYTES => Err(RecvError::Damaged {
            reason: "it has more bytes than a slot",
        }),
        _ => Err(RecvError::Damaged {
            reason: "it is of no known kind",
        }),
    }
}

/// `kind` is a constant.
#[inline(always)]
fn read_buffer(ticket: u64, words: &Words, kind: u64) -> Result<Carried, RecvError> {
    let [head, segment, offset, len, found, tag @ ..] = *words;
    let located = Located::at(kind, segment, offset, len, tag);
    if located.check(ticket, head) != found {
        return Err(RecvError::Damaged {
            reason: "its check is wrong",
        });
    }
    Ok(Carried::Buffer(SentBuffer {
        number: (head >> 8 & NUMBERS) as u32,
        segment,
        offset,
        len,
    }))
}

#[inline]
fn read_bytes(words: &Words, len: u64, missed: u32) -> Carried {
    let mut bytes = [0; MAX_INLINE];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words[1..]) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    Carried::Bytes(Inline {
        bytes,
        len: len as u16,
        is_tagged: u16::from(words[0] & TAGGED != 0),
        missed,
    })
}

/// How many messages a receiver of a [`Publisher`](super::Publisher) has missed since it joined, by
/// reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Missed {
    /// Sent to it, and withdrawn: to make room for newer ones ([`OnFull::DropOldest`]), or as it
    /// was disconnected.
    ///
    /// [`OnFull::DropOldest`]: super::OnFull::DropOldest
    pub withdrawn: u64,
    /// Skipped because it was behind by its capacity ([`OnFull::DropNewest`]).
    ///
    /// [`OnFull::DropNewest`]: super::OnFull::DropNewest
    pub full: u64,
    /// Skipped because it held as many buffers, or bytes, as it may.
    pub too_many_borrowed: u64,
    /// Skipped because it had made no room within
    /// [`block_limit`](super::PublisherBuilder::block_limit) ([`OnFull::Block`]).
    ///
    /// [`OnFull::Block`]: super::OnFull::Block
    pub stalled: u64,
    /// Sent before the system let the publisher connect it.
    pub not_connected: u64,
}

impl Missed {
    /// Returns the number of messages missed for any reason.
    pub fn total(&self) -> u64 {
        let Self {
            withdrawn,
            full,
            too_many_borrowed,
            stalled,
            not_connected,
        } = *self;
        [withdrawn, full, too_many_borrowed, stalled, not_connected]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// To how many receivers a [`Publisher`](super::Publisher) has sent a message, and how many have
/// missed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Sent {
    /// Receivers to which it was sent. One that closes concurrently may not get it.
    pub receivers: usize,
    /// Receivers that missed this message, by reason; as `withdrawn`, those that lost an older one to
    /// make room for it.
    pub missed: Missed,
}

impl Sent {
    /// Returns the number of connected receivers to which the message was not sent.
    pub fn skipped(&self) -> usize {
        let Missed {
            full,
            too_many_borrowed,
            stalled,
            ..
        } = self.missed;
        (full + too_many_borrowed + stalled) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Full,
    TooManyBorrowed,
    Stalled,
}

impl Missed {
    #[cold]
    pub(super) fn count(&mut self, reason: Reason) {
        *match reason {
            Reason::Full => &mut self.full,
            Reason::TooManyBorrowed => &mut self.too_many_borrowed,
            Reason::Stalled => &mut self.stalled,
        } += 1;
    }
}

#[derive(Default)]
#[repr(C)]
pub(super) struct MissedWords {
    withdrawn: AtomicU64,
    full: AtomicU64,
    too_many_borrowed: AtomicU64,
    stalled: AtomicU64,
    not_connected: AtomicU64,
    limit: LimitWord,
}

#[cfg(all(test, not(loom)))]
pub(crate) const OFFSETS: &[(&str, usize)] =
    offsets!(MissedWords: withdrawn full too_many_borrowed stalled not_connected limit);

impl MissedWords {
    pub(super) fn store(&self, missed: &Missed) {
        let Missed {
            withdrawn,
            full,
            too_many_borrowed,
            stalled,
            not_connected,
        } = *missed;
        self.withdrawn.store(withdrawn, Ordering::Relaxed);
        self.full.store(full, Ordering::Relaxed);
        self.too_many_borrowed
            .store(too_many_borrowed, Ordering::Relaxed);
        self.stalled.store(stalled, Ordering::Relaxed);
        self.not_connected.store(not_connected, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> Missed {
        Missed {
            withdrawn: self.withdrawn.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
            too_many_borrowed: self.too_many_borrowed.load(Ordering::Relaxed),
            stalled: self.stalled.load(Ordering::Relaxed),
            not_connected: self.not_connected.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(super) fn limit(&self) -> &LimitWord {
        &self.limit
    }
}

/// The word that says whether the receiver's own borrowed buffers are the reason.
#[repr(transparent)]
pub(super) struct LimitWord(sync::AtomicU64);

impl Default for LimitWord {
    fn default() -> Self {
        Self(sync::AtomicU64::new(0))
    }
}

impl LimitWord {
    /// B1: the publisher could lend no buffer, for the `count`th time. The caller then notifies.
    pub(super) fn reach(&self, count: u64) {
        // Relaxed: the fences W2 and S2 order it with the doorbell.
        self.0.store(count << 1 | 1, Ordering::Relaxed);
    }

    /// B2: a buffer is sent again.
    pub(super) fn clear(&self, count: u64) {
        self.0.store(count << 1, Ordering::Relaxed);
    }

    /// Returns the word if a message has found the receiver at its limit since it has `seen` the
    /// word, and no buffer was sent since.
    #[inline]
    pub(super) fn change(&self, seen: u64) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&word| word != seen && word & 1 != 0)
    }

    /// Takes note of a [change](Self::change). Returns `true` if there was one.
    pub(super) fn take(&self, seen: &mut u64) -> bool {
        let change = self.change(*seen);
        *seen = change.unwrap_or(*seen);
        change.is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TICKET: u64 = 5;
    const TAG: Tag = *b"0123456789abcdef";

    fn located(tag: Option<Tag>) -> Located {
        match tag {
            None => Located::at(BUFFER, 1, 4096, 1000, [0; 2]),
            Some(tag) => Located::at(TAGGED_BUFFER, 1, 4096, 1000, tag_words(&tag)),
        }
    }

    /// In every word that the check covers, which are the unused ones only if there is a tag.
    #[test]
    fn flipped_bit_of_a_buffer() {
        for (given, covered) in [(None, 5), (Some(TAG), WORDS)] {
            let sent = of_buffer(TICKET, 9, &located(given), 3);
            assert!(matches!(read(TICKET, &sent, 0), Ok(Carried::Buffer(_))));
            assert_eq!(tag(&sent), given);
            assert_eq!(borrowed_number(&sent), Some(9));
            assert!(read(TICKET + 1, &sent, 0).is_err(), "of another ticket");
            for at in 0..WORDS {
                for bit in 0..64 {
                    let mut words = sent;
                    words[at] ^= 1 << bit;
                    let is_intact = matches!(read(TICKET, &words, 0), Ok(Carried::Buffer(_)));
                    assert_eq!(is_intact, at >= covered, "bit {bit} of word {at}");
                }
            }
        }
    }

    #[test]
    fn bytes_with_a_tag() {
        let bytes: [u8; MAX_INLINE + 1] = std::array::from_fn(|at| at as u8);
        for given in [None, Some(TAG)] {
            let room = if given.is_some() { TAG_AT } else { MAX_INLINE };
            for len in 0..bytes.len() {
                let Some(words) = of_bytes(&bytes[..len], 1, given) else {
                    assert!(len > room);
                    continue;
                };
                assert!(len <= room);
                let Ok(Carried::Bytes(inline)) = read(TICKET, &words, 2) else {
                    panic!("{len} bytes");
                };
                assert_eq!(inline[..], bytes[..len]);
                assert_eq!((inline.tag(), inline.missed()), (given, 2));
            }
            assert!(of_bytes(&bytes[..1], 2 * INLINE_ALIGN, given).is_none());
        }
        let mut words = of_bytes(&bytes[..TAG_AT + 1], 1, None).unwrap();
        words[0] |= TAGGED;
        assert!(
            read(TICKET, &words, 0).is_err(),
            "its tag lies in its bytes"
        );
    }
}
