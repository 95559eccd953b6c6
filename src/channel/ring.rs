//! The rings of an object: messages to the receiver, and returned buffers to the sender.
//!
//! # Messages
//!
//! The slots are of one cache line each, with one writer and one reader. A message's *ticket* is
//! the number of messages sent before it. With `n` slots, at least two, ticket `t` uses slot `t %
//! n`, whose sequence says:
//!
//! | sequence | the slot | next to act |
//! |---|---|---|
//! | `t` | is free for ticket `t` | the writer |
//! | `t + 1` | carries ticket `t` | the reader |
//! | `t + n` | is free for ticket `t + n`, the next one | the writer |
//!
//! The reader [frees](free) a slot when it asks for the next message, and the writer checks the
//! next slot right after it has filled one.
//!
//! Where the writer may withdraw messages, a message belongs to the side that moves its slot from
//! `t + 1` to `t + n`: [`claim`]. The reader claims each message as it [receives](receive) it. A
//! writer that keeps the latest messages claims message `t - (n - 1)` ([`oldest`]), whose slot the
//! next one needs, after it has sent ticket `t`. So it never waits, and at most `n - 1` messages
//! wait, or `n` if it is stopped in between.
//!
//! A reader may thus find the slot of its ticket `t` some rounds ahead: free for ticket `t + r *
//! n`, or with it. Then message `t + (r - 1) * n` was sent, so its slot was free, as were the slots
//! of all messages before it: those up to `t + (r - 2) * n` are gone. Later ones may wait, even if
//! this slot is free: a writer withdraws the oldest buffer, so that the receiver may borrow
//! another, and leaves older messages that are none. So the reader goes on with the ticket after
//! those, or after its own ([`peek_next`]). The tickets say how many messages it missed.
//!
//! A message is sent once the sequence is stored, even if the writer dies there. Words are copied
//! out before they are validated. A garbage sequence makes the slot neither free nor full: the
//! channel stops.
//!
//! # Returns
//!
//! There are two rings of returns: one for the receiver's home thread (see `home`), and one for its
//! other threads. A return's *ticket* is the number of returns before it in its ring. With `n` words,
//! ticket `t` goes into word `t % n`. The home thread counts its tickets; other threads draw theirs
//! from a counter. So a return is one store. Each unread return belongs to a borrowed buffer that is
//! still out, so none is overwritten: there is a word for each borrowed buffer at home, and there are
//! two for other threads.
//!
//! Another thread that is stopped between drawing a ticket and storing the word leaves a gap;
//! `borrowed` says how the sender reads past it. If the thread dies there, so does its process,
//! and the sender reclaims all borrowed buffers. A garbage word is ignored until it is overwritten,
//! or returns a buffer of this channel too early.

#![forbid(unsafe_code)]

use crate::protocol::ids::ParseError;
use crate::sync::{AtomicU64, Ordering};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// What a publisher does with a message for a receiver whose ring is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFull {
    /// The publisher blocks until this receiver has room, at most for the timeout of the call and
    /// for [`block_limit`](super::PublisherBuilder::block_limit). Nothing is lost within it, but
    /// one slow receiver delays all others.
    Block,
    /// The message is dropped for this receiver, which keeps the older ones.
    DropNewest,
    /// The default: the oldest unreceived message of this receiver is withdrawn. The receiver is at
    /// most its capacity behind, or one more if the publisher is stopped or killed as it sends;
    /// with capacity 1 it gets the newest message.
    #[default]
    DropOldest,
}

impl OnFull {
    /// Returns the number that stands for it in a channel's object.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Block => 0,
            Self::DropNewest => 1,
            Self::DropOldest => 2,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        let rules = [Self::Block, Self::DropNewest, Self::DropOldest];
        rules.into_iter().find(|rule| rule.number() == number)
    }
}

/// `block`, `drop_newest` or `drop_oldest`.
impl fmt::Display for OnFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Block => "block",
            Self::DropNewest => "drop_newest",
            Self::DropOldest => "drop_oldest",
        })
    }
}

/// The inverse of `Display`.
impl FromStr for OnFull {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "block" => Ok(Self::Block),
            "drop_newest" => Ok(Self::DropNewest),
            "drop_oldest" => Ok(Self::DropOldest),
            _ => Err(ParseError {
                expected: "block, drop_newest or drop_oldest",
            }),
        }
    }
}

/// What fits in a cache line beside the sequence.
pub(super) const WORDS: usize = 7;

pub(super) type Words = [u64; WORDS];

/// One cache line. Atomics only: the other process may write at any time.
#[repr(C, align(64))]
pub(super) struct Slot {
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<Slot>() == 64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticket {
    number: u64,
    /// Modulo the number of slots.
    at: usize,
}

impl Ticket {
    pub(super) fn number(self) -> u64 {
        self.number
    }

    /// The index of its slot.
    #[inline]
    pub(super) fn at(self) -> usize {
        self.at
    }

    fn slot(self, slots: &[Slot]) -> Option<&Slot> {
        slots.get(self.at)
    }

    #[inline]
    pub(super) fn next(self, slots: &[Slot]) -> Self {
        let mut at = self.at + 1;
        if at >= slots.len() {
            at = 0;
        }
        Self {
            number: self.number.wrapping_add(1),
            at,
        }
    }

    /// `None` before the first message.
    pub(super) fn previous(self, slots: &[Slot]) -> Option<Self> {
        let number = self.number.checked_sub(1)?;
        let at = match self.at {
            0 => slots.len().checked_sub(1)?,
            at => at - 1,
        };
        Some(Self { number, at })
    }

    fn full(self) -> u64 {
        self.number.wrapping_add(1)
    }

    fn free_again(self, slots: &[Slot]) -> u64 {
        self.number.wrapping_add(slots.len() as u64)
    }
}

impl Slot {
    /// Returns how many rounds the slot is ahead of `ticket`; `None` if `ticket` was not sent yet,
    /// or the sequence is garbage.
    #[inline]
    fn rounds_after(&self, ticket: Ticket, slots: &[Slot]) -> Option<u64> {
        let count = slots.len() as u64;
        // Acquire: partner of the Release in `put`.
        let sequence = self.sequence.load(Ordering::Acquire);
        let ahead = sequence.wrapping_sub(ticket.number);
        if ahead == 0 || ahead > i64::MAX as u64 {
            return None;
        }
        // Carries that round's ticket, or is free for it.
        if ahead % count > 1 {
            return None;
        }
        Some(ahead / count)
    }
}

impl Slot {
    #[cfg(all(test, loom))]
    pub(super) fn free_for(ticket: u64) -> Self {
        Self {
            sequence: AtomicU64::new(ticket),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(super) fn start(&self, ticket: usize) {
        self.sequence.store(ticket as u64, Ordering::Relaxed);
    }

    #[inline]
    fn carries(&self, ticket: Ticket) -> bool {
        // Acquire: partner of the Release in `put`.
        self.sequence.load(Ordering::Acquire) == ticket.full()
    }

    #[inline]
    fn words(&self) -> Words {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }
}

#[inline]
pub(super) fn has_room(slots: &[Slot], ticket: Ticket) -> bool {
    let Some(slot) = ticket.slot(slots) else {
        return false;
    };
    // Acquire: partner of the Release in `free`.
    slot.sequence.load(Ordering::Acquire) == ticket.number
}

/// Sends a message, for which there [is room](has_room).
#[inline]
pub(super) fn put(slots: &[Slot], ticket: &mut Ticket, message: &Words) {
    let Some(slot) = ticket.slot(slots) else {
        return;
    };
    for (word, &value) in slot.words.iter().zip(message) {
        word.store(value, Ordering::Relaxed);
    }
    // Release: the words; partner of the Acquire in `Slot::carries`.
    slot.sequence.store(ticket.full(), Ordering::Release);
    *ticket = ticket.next(slots);
}

#[inline]
pub(super) fn free(slots: &[Slot], read: Ticket) {
    if let Some(slot) = read.slot(slots) {
        // Release: the words were copied out; partner of the Acquire in `has_room` and `is_done`.
        slot.sequence
            .store(read.free_again(slots), Ordering::Release);
    }
}

/// Claims a message that both sides may take: the reader as it receives or closes, the writer to
/// withdraw it, or once it finds the reader closed or dead.
pub(super) fn claim(slots: &[Slot], ticket: &mut Ticket) -> Option<Words> {
    let words = peek(slots, *ticket)?;
    if !take(slots, ticket) {
        return None;
    }
    Some(words)
}

/// [`claim`] for a message already [peeked](peek) at; `false`: its words are invalid.
#[inline]
fn take(slots: &[Slot], ticket: &mut Ticket) -> bool {
    let Some(slot) = ticket.slot(slots) else {
        return false;
    };
    let full = ticket.full();
    let free = ticket.free_again(slots);
    // AcqRel: its own partner, so one side gets the message. Acquire even on failure: the other
    // side has copied the words out.
    let claimed = slot
        .sequence
        .compare_exchange(full, free, Ordering::AcqRel, Ordering::Acquire);
    if claimed.is_err() {
        return false;
    }
    *ticket = ticket.next(slots);
    true
}

/// The oldest message that may still wait before `ticket` is sent: the one in its slot.
#[inline]
pub(super) fn oldest(slots: &[Slot], ticket: Ticket) -> Ticket {
    Ticket {
        number: ticket.number.wrapping_sub(slots.len() as u64),
        ..ticket
    }
}

/// The ticket that uses the slot of this one next.
#[inline]
pub(super) fn next_round(slots: &[Slot], ticket: Ticket) -> Ticket {
    Ticket {
        number: ticket.free_again(slots),
        ..ticket
    }
}

/// Returns `true` if this message was sent and neither received nor withdrawn.
#[inline]
pub(super) fn is_waiting(slots: &[Slot], ticket: Ticket) -> bool {
    match ticket.slot(slots) {
        Some(slot) => slot.carries(ticket),
        None => false,
    }
}

pub(super) fn sent(slots: &[Slot]) -> u64 {
    let count = slots.len() as u64;
    // The next message to be sent is the lowest one that a slot is, or will be, free for.
    let mut next = u64::MAX;
    for (at, slot) in slots.iter().enumerate() {
        let mut free_for = slot.sequence.load(Ordering::Relaxed);
        if carries_one(free_for, at, slots) {
            free_for = free_for.wrapping_add(count - 1);
        }
        next = next.min(free_for);
    }
    if slots.is_empty() {
        return 0;
    }
    next
}

/// Returns `true` if the slot at this index, which has this sequence, carries a message.
fn carries_one(sequence: u64, at: usize, slots: &[Slot]) -> bool {
    sequence.wrapping_sub(at as u64) % slots.len() as u64 == 1
}

pub(super) fn waiting(slots: &[Slot]) -> usize {
    let mut waiting = 0;
    for (at, slot) in slots.iter().enumerate() {
        let sequence = slot.sequence.load(Ordering::Relaxed);
        waiting += usize::from(carries_one(sequence, at, slots));
    }
    waiting
}

/// Returns `true` if this message was sent, even if it was withdrawn since.
#[inline]
pub(super) fn has_passed(slots: &[Slot], ticket: Ticket) -> bool {
    match ticket.slot(slots) {
        Some(slot) => slot.rounds_after(ticket, slots).is_some(),
        None => false,
    }
}

#[inline]
fn peek(slots: &[Slot], ticket: Ticket) -> Option<Words> {
    let slot = ticket.slot(slots)?;
    if !slot.carries(ticket) {
        return None;
    }
    Some(slot.words())
}

/// Advances the ticket past withdrawn messages, and returns the next one's words.
#[inline(never)]
fn peek_next(slots: &[Slot], ticket: &mut Ticket) -> Option<Words> {
    // Bounded: only a writer that writes garbage, or laps this thread, makes it loop longer.
    for _ in 0..=2 * slots.len() {
        let here = *ticket;
        let rounds = here.slot(slots)?.rounds_after(here, slots)?;
        if rounds == 0 {
            if let Some(words) = peek(slots, here) {
                return Some(words);
            }
            continue;
        }
        // All of this slot's messages up to this one are gone, and all messages before it; see the
        // module's docs.
        let whole_rounds = rounds.saturating_sub(2);
        let gone = Ticket {
            number: here
                .number
                .wrapping_add(whole_rounds.wrapping_mul(slots.len() as u64)),
            ..here
        };
        *ticket = gone.next(slots);
    }
    None
}

/// Receives the next message, if one has arrived: advances `ticket` past it and returns its words
/// and ticket. Claims it if the writer may withdraw messages (`may_vanish`); else the caller
/// [frees](free) its slot. If `prepare`, which runs before that, fails, the message stays.
#[inline]
pub(super) fn receive<E>(
    slots: &[Slot],
    ticket: &mut Ticket,
    may_vanish: bool,
    mut prepare: impl FnMut(Ticket, &Words) -> Result<(), E>,
) -> Option<Result<(Words, Ticket), E>> {
    // Bounded, like `peek_next`.
    for _ in 0..=slots.len() {
        let words = match peek(slots, *ticket) {
            Some(words) => words,
            None => peek_next(slots, ticket)?,
        };
        let here = *ticket;
        if let Err(error) = prepare(here, &words) {
            return Some(Err(error));
        }
        if !may_vanish {
            *ticket = here.next(slots);
        } else if !take(slots, ticket) {
            continue;
        }
        return Some(Ok((words, here)));
    }
    None
}

/// [`receive`] for a closing reader: always claims.
pub(super) fn claim_next(slots: &[Slot], ticket: &mut Ticket) -> Option<(Words, Ticket)> {
    match receive(slots, ticket, true, |_, _| Ok::<_, Infallible>(())) {
        Some(Ok(received)) => Some(received),
        Some(Err(never)) => match never {},
        None => None,
    }
}

/// Withdraws the first message from `next` up to `end` that waits, and returns its words. Advances
/// `next` past every message visited. Before the first call, `next` is [`oldest`] or later.
#[cold]
pub(super) fn withdraw(slots: &[Slot], next: &mut Ticket, end: Ticket) -> Option<Words> {
    while *next != end {
        let mut here = *next;
        *next = here.next(slots);
        if let Some(words) = claim(slots, &mut here) {
            return Some(words);
        }
    }
    None
}

/// Returns `true` if the slot of this message is free again: it was claimed, or the reader has read
/// it and asked for the next.
pub(super) fn is_done(slots: &[Slot], sent: Ticket) -> bool {
    let Some(slot) = sent.slot(slots) else {
        return false;
    };
    // Acquire: partner of the Release in `free`.
    slot.sequence.load(Ordering::Acquire) == sent.free_again(slots)
}

/// The words of the returns.
#[derive(Clone, Copy)]
pub(super) struct Returns<'a> {
    /// Of the home thread.
    pub(super) at_home: &'a [AtomicU64],
    /// Of other threads.
    pub(super) elsewhere: &'a [AtomicU64],
}

impl Returns<'_> {
    /// At most so many returns are unread.
    pub(super) fn len(&self) -> usize {
        self.at_home.len() + self.elsewhere.len()
    }
}

/// The bits of a return that hold the borrowed buffer's number.
const NUMBER_BITS: u32 = 24;
const NUMBERS: u64 = 1 << NUMBER_BITS;

fn tag(ticket: u64) -> u64 {
    ticket.wrapping_add(1) << NUMBER_BITS
}

/// The number of words is a power of two.
#[inline]
fn word(words: &[AtomicU64], ticket: u64) -> Option<&AtomicU64> {
    words.get(ticket as usize & words.len().wrapping_sub(1))
}

#[inline]
pub(super) fn give_back(words: &[AtomicU64], ticket: u64, number: u32) {
    if let Some(word) = word(words, ticket) {
        // Release: the receiver has finished reading; partner of the Acquire in `returned`.
        word.store(
            tag(ticket) | (u64::from(number) % NUMBERS),
            Ordering::Release,
        );
    }
}

#[inline]
pub(super) fn returned(words: &[AtomicU64], ticket: u64) -> Option<u32> {
    // Acquire: partner of the Release in `give_back`.
    let found = word(words, ticket)?.load(Ordering::Acquire);
    if found & !(NUMBERS - 1) != tag(ticket) {
        return None;
    }
    Some((found % NUMBERS) as u32)
}

#[inline(always)]
pub(super) fn note_look() {
    #[cfg(all(test, not(loom)))]
    tests::LOOKS.set(tests::LOOKS.get() + 1);
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    thread_local! {
        /// How many visits this thread has made.
        pub(in crate::channel) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
}
