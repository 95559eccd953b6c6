//! The sender's side of one receiver: the ring that it fills, and what it has lent.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::book::Cells;
use super::end::Sleeper;
use super::error::SendErrorKind;
use super::interrupt::Interrupts;
use super::lender::Lender;
use super::object::Object;
use super::ring::{self, Ticket, Words};
use super::rules::OnFull;
use super::{message, spin};
use crate::error::OsError;
use crate::os::deadline::Deadline;
use crate::os::name::Name;
use crate::owner::buf::ShmBuf;
use crate::owner::chunk::Chunk;
use crate::owner::pool::{Lends, Pool};
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// The sender's side of one receiver.
pub(super) struct Branch {
    pub(super) object: Object,
    /// Not needed while there is no wait.
    pub(super) sleeper: Box<Sleeper>,
    lender: Arc<Lender>,
    /// The number from which to look for a free one.
    next_loan: usize,
    /// The ticket of the next message.
    ticket: Ticket,
    /// Is the next slot known to be free? Only the sender can fill it.
    has_room: bool,
    /// The message sent last.
    sent: Option<Ticket>,
    /// What happens when the receiver is behind. Only with [`OnFull::KeepLatest`] is anything
    /// withdrawn.
    pub(super) on_full: OnFull,
}

/// Room for so many loans. To be made before the object that it is for: once that exists, the other
/// side may come.
pub(super) fn cells(name: &Name, loans: usize) -> Result<Cells<Chunk>, OsError> {
    Cells::new(loans)
        .ok_or_else(|| name.error("malloc", loans * size_of::<usize>(), io::Error::from_raw_os_error(libc::ENOMEM)))
}

/// How long a call may wait.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    Until(Option<Deadline>),
}

impl Patience {
    pub(super) fn of(timeout: Duration) -> Self {
        Self::Until(Deadline::after(timeout))
    }
}

impl Branch {
    /// A branch on which nothing was sent yet. The pool, if there is one, asks it for what has come
    /// back.
    pub(super) fn new(
        object: Object,
        cells: Cells<Chunk>,
        on_full: OnFull,
        interrupts: Arc<Interrupts>,
        pool: Option<&Pool>,
    ) -> Self {
        let sleeper = Box::new(Sleeper::new(object.senders_end(), interrupts));
        let lender = Arc::new(Lender::new(&object, cells));
        if let Some(pool) = pool {
            pool.add_lender(lender.clone());
        }
        let ticket = Ticket::default();
        Self { object, sleeper, lender, next_loan: 0, ticket, has_room: true, sent: None, on_full }
    }

    /// Is the receiver gone?
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.object.to_sender().is_gone()
    }

    /// Is the next slot free, as far as is known without looking?
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.has_room
    }

    /// Is the next slot free, and, where messages are withdrawn, need none be?
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        let slots = self.object.slots();
        if self.on_full == OnFull::KeepLatest {
            return !ring::is_there(slots, ring::oldest(slots, self.ticket));
        }
        ring::has_room(slots, self.ticket)
    }

    /// Withdraws the oldest message that was not received, so that there is room. `false` if the
    /// receiver took it meanwhile.
    pub(super) fn withdraw(&mut self) -> bool {
        let slots = self.object.slots();
        self.withdraw_ticket(ring::oldest(slots, self.ticket))
    }

    /// Withdraws the oldest buffer that was not received, so that there is a loan. `false` if none
    /// is left.
    #[cold]
    pub(super) fn withdraw_buffer(&mut self) -> bool {
        let slots = self.object.slots();
        let mut next = ring::oldest(slots, self.ticket);
        (1..slots.len()).any(|_| {
            let ticket = next;
            next = ticket.next(slots);
            let is_buffer = ring::peek(slots, ticket).is_some_and(|words| message::loan(&words).is_some());
            is_buffer && self.withdraw_ticket(ticket)
        })
    }

    fn withdraw_ticket(&self, mut ticket: Ticket) -> bool {
        let Some(words) = ring::claim(self.object.slots(), &mut ticket) else { return false };
        // The number is checked: it may have been damaged in its slot.
        drop(message::loan(&words).and_then(|number| self.lender.take_back(number)));
        true
    }

    /// How many messages wait for the receiver.
    pub(super) fn waiting(&self) -> usize {
        ring::waiting(self.object.slots())
    }

    /// How many messages were sent.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.ticket.number()
    }

    /// Is there a receiver, or was there one?
    pub(super) fn has_had_receiver(&self) -> bool {
        self.object.to_sender().is_held()
    }

    /// Spins, and then sleeps, until `is_ready`.
    pub(super) fn wait(
        &mut self,
        budget: Duration,
        deadline: Option<Deadline>,
        is_ready: impl Fn(&Self) -> bool,
    ) -> Result<(), SendErrorKind> {
        self.sleeper.leave_helper();
        let (this, object, interrupts) = (&*self, &self.object, self.sleeper.interrupts());
        let is_ready = || is_ready(this);
        let is_over = || is_ready() || interrupts.is_set();
        match spin(budget, object.to_sender(), deadline, is_over, || object.may_have_receiver()) {
            Woken::Ready if !is_ready() && interrupts.take() => Err(SendErrorKind::Interrupted),
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
            Woken::Gone => Err(SendErrorKind::Disconnected),
        }
    }

    /// Waits until the next slot is free.
    #[inline(never)]
    pub(super) fn wait_for_room(&mut self, budget: Duration, patience: Patience) -> Result<(), SendErrorKind> {
        match patience {
            _ if self.has_room() => Ok(()),
            Patience::None => Err(SendErrorKind::Full { capacity: self.object.capacity() }),
            Patience::Until(deadline) => self.wait(budget, deadline, Self::has_room),
        }
    }

    /// Has `waker` woken when the next slot is free, or the receiver is gone; see [`Sleeper::arm`].
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<Option<Woken>, OsError> {
        let Self { object, sleeper, ticket, .. } = self;
        sleeper.arm(waker, || ring::has_room(object.slots(), *ticket), || object.may_have_receiver())
    }

    /// Waits until the receiver has received everything and asked for more, or is gone.
    pub(super) fn wait_until_received(&mut self, deadline: Option<Deadline>) -> Result<(), SendErrorKind> {
        let Some(sent) = self.sent else { return Ok(()) };
        self.wait(Duration::ZERO, deadline, |this| ring::is_done(this.object.slots(), sent))
    }

    /// A free number for a loan. Collects what has come back if need be.
    #[inline]
    pub(super) fn free_loan(&self) -> Option<usize> {
        self.lender.free(self.next_loan)
    }

    /// Lends a buffer under a free number. To be followed by [`fill`](Self::fill).
    #[inline]
    pub(super) fn lend(&mut self, number: usize, buffer: ShmBuf) {
        self.next_loan = number + 1;
        self.lender.put(number, self.ticket.number(), buffer);
    }

    /// Fills the free slot. To be followed by [`ring`](Self::ring).
    #[inline]
    pub(super) fn fill(&mut self, words: &Words) {
        self.sent = Some(self.ticket);
        ring::put(self.object.slots(), &mut self.ticket, words);
    }

    /// Wakes the receiver if it sleeps.
    #[inline]
    pub(super) fn ring(&self) {
        self.object.to_receiver().ring();
    }

    /// Looks whether there is room for another message, now that the receiver was woken.
    #[inline]
    pub(super) fn look_for_room(&mut self) {
        self.has_room = self.has_room();
    }

    /// Drops some of what has come back, now that the receiver was woken.
    #[inline]
    pub(super) fn collect_some(&mut self) {
        if let Some(number) = self.lender.collect_some() {
            // Reuse the number that came back last: the fewest numbers are used, and the fewest
            // lines.
            self.next_loan = number;
        }
    }

    /// Was the message just sent left to this side, because the receiver was gone by then and did
    /// not take it?
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        // The full fence in `ring` pairs with the one in `Receiver::drop`: a receiver that leaves
        // takes this message, or is seen to be gone, or both. Do not claim the message while the
        // receiver's process may still read: the bell of a dying process may ring before its last
        // thread stops.
        self.is_gone() && !self.object.is_receiver_locked() && self.claim_sent().is_some()
    }

    fn claim_sent(&self) -> Option<Words> {
        ring::claim(self.object.slots(), &mut self.sent?)
    }

    /// Takes a loan back that was left to this side. It had this length.
    ///
    /// A receiver that makes numbers up may have returned it, or a thread that found the receiver
    /// dead may have taken it out. Then it counts as sent, and the next one is refused.
    pub(super) fn take_back(&self, number: usize, len: usize) -> Option<ShmBuf> {
        self.lender.take_back(number).map(|buffer| buffer.with_len(len))
    }

    /// Drops all that has come back, also from a receiver that is dead.
    pub(super) fn reclaim(&self) {
        self.lender.collect();
        self.lender.reclaim();
    }

    /// How many buffers the receiver has, received or not.
    pub(super) fn lent(&self) -> usize {
        self.lender.lent()
    }

    /// Nothing is sent any more, and the receiver learns of it.
    pub(super) fn close(&self) {
        self.object.close();
        self.lender.close();
    }
}
