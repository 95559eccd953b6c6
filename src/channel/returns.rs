//! The returns: the loans that the receiver has returned, in that order.
//!
//! They are a ring of words in the channel's object, one word per possible loan. A thread of the
//! receiver's process that drops a message writes one; the sender's process reads them. A return's
//! *ticket* is the number of returns before it. With `n` words, ticket `t` goes into word `t % n`,
//! with `t + 1` in the upper bits and the loan's number in the lower ones. The receiver's threads
//! draw their tickets from a counter in their own memory, so a return is one store to one cache
//! line, and no thread waits for that store.
//!
//! A word is never overwritten before its last return was read: each unread return belongs to a
//! loan that is still out, and there are at most `n` loans, so a new ticket is less than `n` ahead
//! of the last one read.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | [`give_back`]: Release | [`read`]: Acquire | that the receiver has finished reading, so the owner may write |
//!
//! # Killed at any instruction
//!
//! A thread that dies between drawing a ticket and storing the word leaves a gap, and no return
//! after the gap is read. But its whole process dies with it, and the lender reclaims all of its
//! loans (see `lender`). A thread that is stopped there delays the returns after its own.
//!
//! # Garbage
//!
//! A word that is not the expected return is ignored; the sender reads on once it is overwritten,
//! or the receiver is closed or dead. A word that names a loan returns that loan, perhaps too
//! early, but never a loan of another channel.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};

/// The bits of a word that hold a loan's number.
const NUMBER_BITS: u32 = 24;
const NUMBERS: u64 = 1 << NUMBER_BITS;

/// The upper bits of a return's word.
fn tag(ticket: u64) -> u64 {
    ticket.wrapping_add(1) << NUMBER_BITS
}

/// Returns the word for a ticket. The number of words is a power of two.
#[inline]
fn word(words: &[AtomicU64], ticket: u64) -> Option<&AtomicU64> {
    words.get(ticket as usize & words.len().wrapping_sub(1))
}

/// Returns loan `number` to the sender. Each ticket is used once.
#[inline]
pub(super) fn give_back(words: &[AtomicU64], ticket: u64, number: u32) {
    if let Some(word) = word(words, ticket) {
        word.store(tag(ticket) | (u64::from(number) % NUMBERS), Ordering::Release);
    }
}

/// Returns the number of the loan returned with this ticket, if there is one.
#[inline]
pub(super) fn read(words: &[AtomicU64], ticket: u64) -> Option<u32> {
    // Acquire: partner of the Release in `give_back`.
    let found = word(words, ticket)?.load(Ordering::Acquire);
    (found & !(NUMBERS - 1) == tag(ticket)).then_some((found % NUMBERS) as u32)
}
