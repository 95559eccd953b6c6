//! The returns: what the receiver has given back, in the order in which it did.
//!
//! A ring of words in the channel's object, one for each loan that there can be. Written by the receiver's process, by any thread that
//! drops a message; read by the sender's. A *return* has a ticket, how many there were before it: ticket `t` goes into word
//! `t % n` of `n`, and says `t + 1` in its upper bits and which loan it is in its lower ones. The receiver's threads draw their tickets
//! from a counter in their own memory, so that giving back moves one line, and waits for none: the store goes its way alone.
//!
//! A word is never written before the last return in it was read. For each return that was not read there is a loan that
//! is still out, and there are no more than `n`: a ticket that is drawn is less than `n` ahead of the last one that was read.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | [`give_back`]: Release | [`read`]: Acquire | that the receiver has done reading, so that the owner may write |
//!
//! # Killed at any instruction
//!
//! Whoever dies between drawing a ticket and storing the word leaves a gap, behind which nothing is read any more. It dies with its
//! whole process, so that all of its loans come back in another way (see `lender`). A thread that is stopped there delays
//! what others return after it.
//!
//! # Garbage
//!
//! A word that is no return is none, and the sender reads on when it is overwritten, or the receiver is gone. One that names a loan brings that
//! back, too soon perhaps; a loan of this channel, and of no other.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};

/// Bits of a word that number a loan.
const NUMBER_BITS: u32 = 24;
const NUMBERS: u64 = 1 << NUMBER_BITS;

/// The upper bits of the word of a return.
fn tag(ticket: u64) -> u64 {
    ticket.wrapping_add(1) << NUMBER_BITS
}

/// The word of a ticket. Their number is a power of two.
#[inline]
fn word(words: &[AtomicU64], ticket: u64) -> Option<&AtomicU64> {
    words.get(ticket as usize & words.len().wrapping_sub(1))
}

/// Gives the loan back that is called `number`. Each ticket is drawn once.
#[inline]
pub(super) fn give_back(words: &[AtomicU64], ticket: u64, number: u32) {
    if let Some(word) = word(words, ticket) {
        word.store(tag(ticket) | (u64::from(number) % NUMBERS), Ordering::Release);
        // partner: `read`
    }
}

/// Which loan was given back with this ticket, if one was.
#[inline]
pub(super) fn read(words: &[AtomicU64], ticket: u64) -> Option<u32> {
    let found = word(words, ticket)?.load(Ordering::Acquire); // partner: `give_back`
    (found & !(NUMBERS - 1) == tag(ticket)).then_some((found % NUMBERS) as u32)
}
