//! The buffers that wait for one receiver, as its sender counts them.
//!
//! A sender that withdraws old messages so that their buffers return has to know how many bytes
//! that would free. It counts each buffer when it sends it, and passes each message once, when a
//! receiver at its limit makes it ask. So a send costs the same with any number of messages that
//! wait.
//!
//! The numbers are private. A receiver that claims messages out of order makes them wrong for
//! itself alone: the sender withdraws too much or too little of what that receiver would get.

#![forbid(unsafe_code)]

use super::ring::{self, note_look, Slot, Ticket, Words};

pub(super) struct Backlog {
    /// For each slot, the bytes of the chunk that was sent in it last; 0 for a message in the slot
    /// itself. Empty if the sender never withdraws buffers.
    bytes: Box<[usize]>,
    /// No message before this one is a buffer that waits. At most as many messages behind the next
    /// one as there are slots.
    first: Ticket,
    /// From `first` on.
    buffers: usize,
    total: usize,
}

impl Backlog {
    /// For a sender that never withdraws buffers.
    pub(super) fn none() -> Self {
        Self {
            bytes: Box::default(),
            first: Ticket::default(),
            buffers: 0,
            total: 0,
        }
    }

    /// Returns `None` if memory is short.
    pub(super) fn new(slots: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(slots).ok()?;
        bytes.resize(slots, 0);
        Some(Self {
            bytes: bytes.into_boxed_slice(),
            ..Self::none()
        })
    }

    /// Counts the message with this ticket, which is about to be sent; `bytes` is 0 if it is no
    /// buffer.
    #[inline]
    pub(super) fn push(&mut self, slots: &[Slot], ticket: Ticket, bytes: usize) {
        if self.bytes.is_empty() {
            return;
        }

        // The slot is free, so the message of the last round does not wait any more.
        if ticket == ring::next_round(slots, self.first) {
            self.pass(slots);
        }
        if bytes == 0 && self.buffers == 0 {
            self.first = ticket.next(slots);
            return;
        }

        if let Some(sent) = self.bytes.get_mut(ticket.at()) {
            *sent = bytes;
        }
        self.buffers += usize::from(bytes > 0);
        self.total = self.total.saturating_add(bytes);
    }

    /// Returns how many buffers sent before `end` wait, and the bytes of their chunks.
    #[cold]
    pub(super) fn count(&mut self, slots: &[Slot], end: Ticket) -> (usize, usize) {
        self.find_first(slots, end);
        (self.buffers, self.total)
    }

    /// Withdraws the oldest buffer sent before `end` that waits. Returns the words of its message.
    #[cold]
    pub(super) fn withdraw(&mut self, slots: &[Slot], end: Ticket) -> Option<Words> {
        while self.find_first(slots, end) {
            let mut oldest = self.first;
            self.pass(slots);
            // `None` if the receiver has claimed it in between.
            if let Some(words) = ring::claim(slots, &mut oldest) {
                return Some(words);
            }
        }
        None
    }

    /// Passes messages up to the oldest buffer that waits. Returns `false` if there is none.
    fn find_first(&mut self, slots: &[Slot], end: Ticket) -> bool {
        while self.buffers > 0 && self.first != end {
            note_look();
            if self.first_bytes() > 0 && ring::is_waiting(slots, self.first) {
                return true;
            }
            self.pass(slots);
        }
        self.first = end;
        self.buffers = 0;
        self.total = 0;
        false
    }

    fn pass(&mut self, slots: &[Slot]) {
        let bytes = self.first_bytes();
        self.first = self.first.next(slots);
        if bytes > 0 {
            self.buffers = self.buffers.saturating_sub(1);
            self.total = self.total.saturating_sub(bytes);
        }
    }

    fn first_bytes(&self) -> usize {
        self.bytes.get(self.first.at()).copied().unwrap_or(0)
    }
}
