//! The outstanding loans, for observers in other processes: a word per loan in the channel's
//! object.
//!
//! The sender's own state (see `lender`) is private memory. The sender updates these words along
//! with it but never reads them, so no decision depends on them. The receiver does not read them
//! either, so they stay in the cache of the sender's core.
//!
//! | a word | says that the loan |
//! |---|---|
//! | 0 | is free |
//! | bits 0 to 36: 1 + the length; bits 37 to 63: how many messages were sent before it, modulo 2^27 | is out |
//!
//! A returned loan stays out until the sender reads its return. So the header also says how many
//! returns were read: a loan named by a later one is free (see [`all`]).
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | the thread that takes a handle out: 0, under the lender's lock | the sender, which gets the number under that lock, then writes the next word | the 0, so that the next word is written after it |

#![forbid(unsafe_code)]

use super::layout::Shared;
use super::ring;
use crate::owner::limits::LONGEST;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bits of a word that hold 1 + the length.
const LEN_BITS: u32 = 37;
const LENGTHS: u64 = 1 << LEN_BITS;

const _: () = assert!((LONGEST as u64) < LENGTHS - 1);

/// A buffer on loan to a receiver, as seen by an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    /// The number of its loan.
    pub(crate) number: u32,
    /// Distinguishes this loan from earlier ones of this number, except for one in 2^27.
    pub(crate) word: u64,
    /// Length of the message in bytes.
    pub(crate) len: u64,
}

/// Notes that a loan is out. `ticket` is the number of messages sent before it.
#[inline]
pub(super) fn note(words: &[AtomicU64], number: usize, ticket: u64, len: usize) {
    if let Some(word) = words.get(number) {
        word.store((ticket << LEN_BITS) | ((len as u64 + 1) % LENGTHS), Ordering::Relaxed);
    }
}

/// Notes that a loan is free.
#[inline]
pub(super) fn strike(words: &[AtomicU64], number: usize) {
    if let Some(word) = words.get(number) {
        word.store(0, Ordering::Relaxed);
    }
}

/// Returns the loans that are out, from a copy of the object. A loan that begins or ends while the
/// copy is made may be missing or included; one that the receiver keeps throughout is included.
pub(super) fn all(copy: &Shared) -> Vec<Lent> {
    let words = copy.lent();
    let read = copy.returns_read().load(Ordering::Relaxed);
    // Bounded: there are at most as many returns as words. The copy is private.
    let unread = (0..words.len() as u64).map_while(|ahead| ring::returned(copy.returns(), read.wrapping_add(ahead)));
    unread.for_each(|number| strike(words, number as usize));
    let lent = |(number, word): (u32, &AtomicU64)| {
        let word = word.load(Ordering::Relaxed);
        let len = (word % LENGTHS).checked_sub(1)?;
        (len <= LONGEST as u64).then_some(Lent { number, word, len })
    };
    (0..).zip(words).filter_map(lent).collect()
}
