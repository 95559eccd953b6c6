//! The lender: what the sender's process knows of the buffers that the receiver has.
//!
//! A *loan* is a buffer that was sent. The lender keeps its handle, so that the chunk is in use, and gives it a number, which travels with
//! the message. The receiver gives that number back (see `returns`), and then the handle is dropped. No record, no lease, no peer:
//! a message touches the lines of its slot, of what the receiver reads, and a share of one of the returns.
//!
//! # States of a loan
//!
//! | state | who has it | leaves it by |
//! |---|---|---|
//! | free | nobody | [`Lender::lend`]: the handle goes into the book, then the message into its slot |
//! | out | in its slot, or the receiver | the receiver's return; the sender, if it could not be sent; the receiver's death |
//!
//! # Who looks for returns, and when
//!
//! * The sender, right after a message has gone out and its receiver was woken: off that one's way, and in time for the next
//!   buffer to be the one that came back last, in the cache still. A few at a time. Their first and last lines are fetched for writing,
//!   so that whoever fills one next does not wait until the reader's core has given them up.
//! * The pool, when a class has no idle chunk, before it makes a fourth one; and when it trims or reclaims, or gets another lender.
//! * The sender, when it finds that the receiver is gone.
//!
//! Until a message is in its slot the sender makes no read-modify-write, which would wait until the lines of the buffer that it has just
//! written are its own: these, the slot's and the book's are fetched at the same time. Whoever collects takes a lock, the sender only if
//! nobody has it.
//!
//! # Who is gone, and when
//!
//! | event | what becomes of what is out |
//! |---|---|
//! | the receiver is dropped | it returns what it has not received; messages that it has received come back one by one |
//! | the receiver's process dies | all of it comes back, once nobody has the receiver's lock: then no thread of it can read any more. The bell may ring before that |
//! | the sender is dropped | the pool goes on asking this lender; nobody who has not opened the channel yet can do so now |
//! | provider and sender are dropped | the chunks are given up, but not their bytes: those are the receiver's for as long as it likes |
//! | the sender's process dies | the receiver reads on, and receives what was sent; see `sweep` for the names |
//!
//! # Several channels, several receivers
//!
//! A buffer may be lent to several channels: each has a handle of its own, and a number of its own. With several receivers of one channel
//! each would have its ring of returns and its own handle of each buffer; nothing that is shared by two of them has to be counted.
//!
//! # Hostile receivers
//!
//! A receiver that returns what it still reads may find another message there; one that returns nothing keeps what it has got until it
//! dies. Numbers are looked up in this book, so that nobody reaches loans of another channel.

#![forbid(unsafe_code)]

use super::book::{Book, Taking};
use super::object::Shared;
use super::returns;
use crate::os::fork;
use crate::os::locks::LockFile;
use crate::owner::buf::ShmBuf;
use crate::owner::chunk::Chunk;
use crate::owner::pool::Lends;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// How many returns the sender looks for after each message: more than one, so that it catches up.
const PER_MESSAGE: usize = 4;

/// See the module's text.
pub(super) struct Lender {
    shared: Arc<Shared>,
    /// To ask for the receiver's lock.
    locks: Arc<LockFile>,
    fork_epoch: u64,
    book: Book,
    /// The sender is gone: nothing is lent any more.
    is_closed: AtomicBool,
}

/// Why a buffer was not lent.
pub(super) enum NotLent {
    /// The receiver has the most already.
    TooMany(ShmBuf),
    NotSent(ShmBuf),
}

impl Lender {
    pub(super) fn new(shared: Arc<Shared>, locks: Arc<LockFile>, book: Book) -> Self {
        Self { shared, locks, fork_epoch: fork::epoch(), book, is_closed: AtomicBool::new(false) }
    }

    /// Lends a buffer, which `send` sends by its number; `false`: it was not sent. Then drops some of what has come back, off the
    /// receiver's way. `next` is where the sender looks for a free number. Only the sender calls this.
    #[inline]
    pub(super) fn lend(&self, next: &mut usize, buffer: ShmBuf, send: impl FnOnce(u32) -> bool) -> Result<(), NotLent> {
        let Some(number) = self.book.free(*next).or_else(|| self.free_after_collecting()) else {
            return Err(NotLent::TooMany(buffer));
        };
        *next = number + 1;
        let len = buffer.len();
        self.book.put(number, buffer);
        let is_sent = send(number as u32);
        if let Some(taking) = self.book.try_lock() {
            // The one that came back last is the next: so few numbers are used as can be, and few lines.
            *next = self.collect_some(taking, PER_MESSAGE).last().unwrap_or(*next);
        }
        if is_sent {
            return Ok(());
        }
        // If it is there. A receiver that makes numbers up may have returned it, or somebody who found it dead has taken it out: then it
        // counts as sent, and the next one is refused.
        let unsent = self.book.lock().take(number);
        unsent.map_or(Ok(()), |buffer| Err(NotLent::NotSent(buffer.with_len(len))))
    }

    #[cold]
    fn free_after_collecting(&self) -> Option<usize> {
        self.collect();
        self.book.free(0)
    }

    /// Drops what has come back by the next returns, at most so many, as it goes through their numbers.
    #[inline]
    fn collect_some<'a>(&'a self, mut taking: Taking<'a>, most: usize) -> impl Iterator<Item = usize> + 'a {
        let next = move |_| {
            let number = returns::read(self.shared.returns(), *taking.returned)?;
            *taking.returned = taking.returned.wrapping_add(1);
            // A number that is not out comes from a receiver that is broken, or hostile.
            Some(taking.take(number as usize).map(|buffer| {
                buffer.fetch_ends();
                number as usize
            }))
        };
        (0..most).map_while(next).flatten()
    }

    /// The sender is gone.
    pub(super) fn close(&self) {
        // After `Object::close`, and partner of `is_closed`: who has read it finds that nobody can join any more.
        self.is_closed.store(true, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) // partner: `close`
    }

    /// Is the receiver's process dead, or the receiver gone with all that it had? Or was there none, and can be none any more?
    fn is_nobody_reading(&self) -> bool {
        // In this order: who may still come has the lock, or is refused.
        let was_there = self.is_closed() || self.shared.to_sender().is_gone();
        was_there && self.shared.is_receiver_unlocked(&self.locks)
    }
}

impl Lends for Lender {
    fn collect(&self) -> usize {
        // No more are there, but of a receiver that goes on making some up.
        self.collect_some(self.book.lock(), self.shared.returns().len()).count()
    }

    fn bytes_lent(&self) -> usize {
        self.book.lock().chunks().map(Chunk::capacity).sum()
    }

    fn each_lent(&self, tell: &mut dyn FnMut(NonNull<Chunk>)) {
        self.book.lock().chunks().for_each(|chunk| tell(NonNull::from(chunk)));
    }

    fn reclaim(&self) -> usize {
        if self.book.lock().is_empty() || !self.is_nobody_reading() {
            return 0;
        }
        self.book.lock().take_all().count()
    }

    fn is_over(&self) -> bool {
        self.is_closed() && self.book.lock().is_empty()
    }
}

impl Drop for Lender {
    /// Sender and pool have let go of it. What is out still is the receiver's.
    fn drop(&mut self) {
        // In a forked child the handles do nothing, and a thread that is not there may have the lock.
        if self.fork_epoch != fork::epoch() {
            return;
        }
        self.collect();
        self.reclaim();
        self.book.lock().take_all().for_each(ShmBuf::give_up_to_reader);
    }
}
