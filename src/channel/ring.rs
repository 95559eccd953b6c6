//! The ring: fixed slots of one cache line each, one writer, one reader.
//!
//! # States of a slot
//!
//! A message's *ticket* is the number of messages sent before it. With `n` slots, ticket `t` uses
//! slot `t % n`, whose sequence says:
//!
//! | sequence | the slot | whose turn |
//! |---|---|---|
//! | `t` | is free for ticket `t` | the writer's |
//! | `t + 1` | carries ticket `t` | the reader's |
//! | `t + n` | is free for the next one, ticket `t + n` | the writer's |
//!
//! With two slots or more these numbers differ. Each side keeps its own ticket privately. The
//! sequence is all that they share, and it lies in the same line as the message, so a message moves
//! one cache line from core to core.
//!
//! Fetching a line that the other core has written takes longer than everything else, so both sides
//! do it while they would wait anyway. The reader [frees](free) a slot not when it has [read] it,
//! but when it asks for the next message. The writer checks whether the next slot is free right
//! after it has filled one.
//!
//! # Keeping the latest
//!
//! Where the writer may withdraw what the reader has not received, a message belongs to the one
//! that moves its slot from `t + 1` to `t + n`: [`claim`]. The reader [claims](claim_next) each
//! message as it receives it, and the writer, before it sends ticket `t`, the message `t - (n - 1)`
//! ([`oldest`]). So at most `n - 1` messages wait, and the writer never waits. A reader that finds
//! its slot further on than its ticket has missed messages: it skips to the oldest that can still
//! be there, and the tickets say how many it skipped.
//!
//! # Orderings
//!
//! | writer of the sequence | reader of it | what becomes visible |
//! |---|---|---|
//! | [`put`]: Release | [`Slot::carries`]: Acquire | the words of the message |
//! | [`free`]: Release | [`has_room`], [`is_done`]: Acquire | that the words were copied out, so that they may be overwritten |
//! | [`claim`]: AcqRel | [`claim`]: AcqRel | one of two gets the message; its words were copied out before they may be overwritten |
//!
//! # Killed at any instruction
//!
//! A writer that dies before it stores the sequence has sent nothing; after the store it has sent
//! the message. What a dead reader had read is its own affair. Within an operation neither side
//! waits for the other.
//!
//! # Garbage
//!
//! Words are copied out before they are validated. A sequence with any other value makes the slot
//! neither free nor full: the channel stops, and nobody is harmed.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};

/// The words of a message: what fits in a cache line beside the sequence.
pub(super) const WORDS: usize = 7;

/// A message in the form in which it travels.
pub(super) type Words = [u64; WORDS];

/// One cache line. Atomics only: the other process may write at any time.
#[repr(C, align(64))]
pub(super) struct Slot {
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<Slot>() == 64);

/// The number of a message, and its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticket {
    number: u64,
    /// The number modulo the number of slots.
    at: usize,
}

impl Ticket {
    /// How many messages were sent before it.
    pub(super) fn number(self) -> u64 {
        self.number
    }

    fn slot(self, slots: &[Slot]) -> Option<&Slot> {
        slots.get(self.at)
    }

    #[inline]
    pub(super) fn next(self, slots: &[Slot]) -> Self {
        let at = self.at + 1;
        Self { number: self.number.wrapping_add(1), at: if at < slots.len() { at } else { 0 } }
    }

    /// The slot's sequence while it carries this ticket.
    fn full(self) -> u64 {
        self.number.wrapping_add(1)
    }

    /// The slot's sequence once it is free again.
    fn free_again(self, slots: &[Slot]) -> u64 {
        self.number.wrapping_add(slots.len() as u64)
    }
}

impl Slot {
    /// How many rounds further on than `ticket` is a slot that was free or full by the protocol?
    /// 0: it carries `ticket`; `None`: that was not sent yet, or this is garbage.
    #[inline]
    fn rounds_after(&self, ticket: Ticket, slots: &[Slot]) -> Option<u64> {
        let count = slots.len() as u64;
        // Acquire: partner of the Release in `put`.
        match self.sequence.load(Ordering::Acquire).wrapping_sub(ticket.number) {
            0 => None,
            1 => Some(0),
            ahead if ahead % count <= 1 && ahead as i64 > 0 => Some(ahead / count),
            _ => None,
        }
    }
}

impl Slot {
    /// A slot in private memory, free for `ticket`, for the models.
    #[cfg(all(test, loom))]
    pub(super) fn free_for(ticket: u64) -> Self {
        Self { sequence: AtomicU64::new(ticket), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Makes a slot of a new ring free for its first ticket.
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

/// Is there room for a message with this ticket?
#[inline]
pub(super) fn has_room(slots: &[Slot], ticket: Ticket) -> bool {
    // Acquire: partner of the Release in `free`.
    ticket.slot(slots).is_some_and(|slot| slot.sequence.load(Ordering::Acquire) == ticket.number)
}

/// Sends a message. The caller knows that [there is room](has_room).
#[inline]
pub(super) fn put(slots: &[Slot], ticket: &mut Ticket, message: &Words) {
    let Some(slot) = ticket.slot(slots) else { return };
    for (word, &value) in slot.words.iter().zip(message) {
        word.store(value, Ordering::Relaxed);
    }
    // Release: partner of the Acquire in `Slot::carries`.
    slot.sequence.store(ticket.full(), Ordering::Release);
    *ticket = ticket.next(slots);
}

/// Has the message with this ticket arrived?
#[inline]
pub(super) fn is_there(slots: &[Slot], ticket: Ticket) -> bool {
    ticket.slot(slots).is_some_and(|slot| slot.carries(ticket))
}

/// Reads a message, if it has arrived. The caller [frees](free) its slot with the ticket that comes
/// with it.
#[inline]
pub(super) fn read(slots: &[Slot], ticket: &mut Ticket) -> Option<(Words, Ticket)> {
    let read = *ticket;
    let words = peek(slots, read)?;
    *ticket = read.next(slots);
    Some((words, read))
}

/// Makes the slot of a message that was read free for the writer.
#[inline]
pub(super) fn free(slots: &[Slot], read: Ticket) {
    if let Some(slot) = read.slot(slots) {
        // Release: partner of the Acquire in `has_room` and `is_done`.
        slot.sequence.store(read.free_again(slots), Ordering::Release);
    }
}

/// Takes a message when both sides may: the reader as it leaves, and the writer once it finds that
/// the reader has left. One of them gets it.
pub(super) fn claim(slots: &[Slot], ticket: &mut Ticket) -> Option<Words> {
    let words = peek(slots, *ticket)?;
    take(slots, ticket).then_some(words)
}

/// Takes the message whose words were [peeked](peek) at, as [`claim`] does. `false` if it was taken
/// since; then the words are worth nothing.
#[inline]
pub(super) fn take(slots: &[Slot], ticket: &mut Ticket) -> bool {
    let Some(slot) = ticket.slot(slots) else { return false };
    let (full, free) = (ticket.full(), ticket.free_again(slots));
    let is_ours = slot.sequence.compare_exchange(full, free, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if is_ours {
        *ticket = ticket.next(slots);
    }
    is_ours
}

/// The message that is withdrawn before `ticket` is sent, if it was not received by then.
#[inline]
pub(super) fn oldest(slots: &[Slot], ticket: Ticket) -> Ticket {
    let waiting = (slots.len() as u64).wrapping_sub(1);
    Ticket { number: ticket.number.wrapping_sub(waiting), at: ticket.next(slots).at }
}

/// How many messages were sent, at some moment.
pub(super) fn sent(slots: &[Slot]) -> u64 {
    let count = slots.len() as u64;
    let next = |(at, slot): (usize, &Slot)| {
        let sequence = slot.sequence.load(Ordering::Relaxed);
        match sequence.wrapping_sub(at as u64) % count {
            1 => sequence.wrapping_add(count - 1),
            _ => sequence,
        }
    };
    slots.iter().enumerate().map(next).min().unwrap_or(0)
}

/// The words of the message with this ticket, whether or not they have been received. Garbage if
/// there is none.
pub(super) fn words_of(slots: &[Slot], number: u64) -> Option<Words> {
    slots.get((number % slots.len() as u64) as usize).map(Slot::words)
}

/// How many messages wait for the reader, at some moment.
pub(super) fn waiting(slots: &[Slot]) -> usize {
    let carries_one = |(at, slot): &(usize, &Slot)| {
        let sequence = slot.sequence.load(Ordering::Relaxed);
        sequence.wrapping_sub(*at as u64) % slots.len() as u64 == 1
    };
    slots.iter().enumerate().filter(carries_one).count()
}

/// Has the message with this ticket been sent, whether or not it was withdrawn since?
#[inline]
pub(super) fn has_passed(slots: &[Slot], ticket: Ticket) -> bool {
    ticket.slot(slots).is_some_and(|slot| slot.rounds_after(ticket, slots).is_some())
}

/// The words of the message with this ticket, if it waits there.
#[inline]
pub(super) fn peek(slots: &[Slot], ticket: Ticket) -> Option<Words> {
    ticket.slot(slots).filter(|slot| slot.carries(ticket)).map(Slot::words)
}

/// Moves the ticket on to the next message that was not withdrawn, and returns its words. The
/// caller then [claims](claim) it, if it still can. The ticket also moves on if nothing has arrived
/// behind what was withdrawn.
#[inline]
pub(super) fn peek_next(slots: &[Slot], ticket: &mut Ticket) -> Option<Words> {
    // Bounded: only a writer that writes garbage, or laps this thread, has it go round again.
    for _ in 0..=slots.len() {
        let here = *ticket;
        match here.slot(slots)?.rounds_after(here, slots)? {
            0 => {
                if let Some(words) = peek(slots, here) {
                    return Some(words);
                }
            }
            rounds => {
                // Its slot is free for, or carries, the ticket `rounds` rounds later, and all but
                // the last `slots.len() - 1` before that one were withdrawn or received.
                let whole_rounds = (rounds - 1).wrapping_mul(slots.len() as u64);
                *ticket = Ticket { number: here.number.wrapping_add(whole_rounds), ..here }.next(slots);
            }
        }
    }
    None
}

/// Receives the next message that was not withdrawn, if one has arrived. The ticket is the one
/// after it then.
#[inline]
pub(super) fn claim_next(slots: &[Slot], ticket: &mut Ticket) -> Option<Words> {
    (0..=slots.len()).find_map(|_| match peek_next(slots, ticket) {
        Some(_) => claim(slots, ticket).map(Some),
        None => Some(None),
    })?
}

/// Has the reader read the message with this ticket and asked for the next?
pub(super) fn is_done(slots: &[Slot], sent: Ticket) -> bool {
    // Acquire: partner of the Release in `free`.
    sent.slot(slots).is_some_and(|slot| slot.sequence.load(Ordering::Acquire) == sent.free_again(slots))
}
