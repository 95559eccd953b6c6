//! What is lent, for who looks from outside: a word for each loan, in the channel's object.
//!
//! The sender's own book (see `book`) is private memory. It writes these words along with it, and
//! never reads them: they decide about nothing. Nor does the receiver, so they stay in the cache of
//! the sender's core.
//!
//! | a word | says that the loan |
//! |---|---|
//! | 0 | is free |
//! | bits 0 to 36: 1 + the length; bits 37 to 63: how many messages were sent before it, modulo 2^27 | is out |
//!
//! A loan that came back is out until the sender reads its return. So the header also says how many
//! returns were read: a loan that is named by a later one is free (see [`all`]).
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | who takes a handle out of the book: 0, then the empty cell, Release | the sender: the empty cell, Acquire, then the next word | the 0, so that the next word comes after it |

#![forbid(unsafe_code)]

use super::layout::Shared;
use super::returns;
use crate::owner::limits::LONGEST;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bits of a word that hold 1 + the length.
const LEN_BITS: u32 = 37;
const LENGTHS: u64 = 1 << LEN_BITS;

const _: () = assert!((LONGEST as u64) < LENGTHS - 1);

/// A buffer that a receiver has, as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    /// The number of its loan.
    pub(crate) number: u32,
    /// Tells it apart from others that have had this number: from all but one in 2^27.
    pub(crate) word: u64,
    /// Length of the message in bytes.
    pub(crate) len: u64,
}

/// Notes that a message is lent. `ticket` is how many were sent before it.
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

/// All that is lent, from a copy of the object. What is lent or comes back while the copy is made may
/// be left out or counted in; what the receiver keeps is there.
pub(super) fn all(copy: &Shared) -> Vec<Lent> {
    let words = copy.lent();
    let read = copy.returns_read().load(Ordering::Relaxed);
    // Bounded: there are no more returns than words. The copy is private.
    let unread = (0..words.len() as u64).map_while(|ahead| returns::read(copy.returns(), read.wrapping_add(ahead)));
    unread.for_each(|number| strike(words, number as usize));
    let lent = |(number, word): (u32, &AtomicU64)| {
        let word = word.load(Ordering::Relaxed);
        let len = (word % LENGTHS).checked_sub(1)?;
        (len <= LONGEST as u64).then_some(Lent { number, word, len })
    };
    (0..).zip(words).filter_map(lent).collect()
}
