//! The lender: what the sender's process knows of the buffers that the receiver has.
//!
//! A *loan* is a buffer that was sent. The lender keeps the buffer's handle, so the chunk stays in
//! use, and gives it a number, which travels with the message. When the receiver gives the number
//! back (see `returns`), the handle is dropped. There is no record, no lease and no peer: a message
//! touches the lines of its slot, the lines that the receiver reads, and its share of a line of
//! returns.
//!
//! # States of a loan
//!
//! | state | where it is | leaves it by |
//! |---|---|---|
//! | free | nowhere | [`Lender::put`]: the handle goes into the book, then the message into its slot |
//! | out | its slot, or the receiver | the receiver's return; the sender, if it could not be sent; the receiver's death |
//!
//! # Who looks for returns, and when
//!
//! * The sender, right after a message has gone out and its receiver was woken: that is off the
//!   receiver's path, and in time for the next buffer to be the one that came back last, which is
//!   still in the cache. It reads a few returns at a time, and fetches the first and last lines of
//!   the buffers for writing, so that filling one next does not wait for the reader's core to give
//!   them up.
//! * The sender, when no number is free. When it finds that the receiver is gone, it takes back
//!   everything.
//! * The pool, when a class has no idle chunk, and has three chunks already or the arenas cannot
//!   grow; when it trims or reclaims; when it gets another lender; and when it is asked whether a
//!   buffer is lent.
//!
//! Until a message is in its slot, the sender makes no read-modify-write. That would wait until the
//! lines of the buffer just written belong to its core; without one, those lines, the slot's and
//! the book's are fetched at the same time. Collecting takes a lock; after a message, the sender
//! collects only if the lock is free.
//!
//! # Who is gone, and when
//!
//! | event | what becomes of what is out |
//! |---|---|
//! | the receiver is dropped | it returns what it has not received; the messages that it has received come back one by one |
//! | the receiver's process dies | all of it comes back, once nobody holds the receiver's lock: then no thread of that process can read any more. The bell may ring before that |
//! | the sender is dropped | the pool goes on asking this lender; a receiver that has not opened the channel yet no longer can |
//! | provider and sender are dropped | the chunks are given up, but not their bytes: the receiver keeps those for as long as it likes |
//! | the sender's process dies | the receiver reads on, and receives what was sent; see `sweep` for the names |
//!
//! # Several channels, several receivers
//!
//! A buffer may be lent to several channels: each has its own handle and its own number. So have
//! the receivers of a publisher, each with its own ring of returns and its own lender, so nothing
//! that two of them share has to be counted.
//!
//! # Hostile receivers
//!
//! A receiver that returns what it still reads may find another message there. One that returns
//! nothing keeps what it has until it dies. Numbers are looked up in this channel's book, so no
//! receiver reaches the loans of another channel.

#![forbid(unsafe_code)]

use super::book::{Book, Cells, Taking};
use super::layout::Shared;
use super::object::Object;
use super::returns;
use crate::os::fork;
use crate::os::locks::LockFile;
use crate::owner::buf::ShmBuf;
use crate::owner::chunk::Chunk;
use crate::owner::pool::Lends;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// How many returns the sender reads after each message: more than one, so that it catches up.
const PER_MESSAGE: usize = 4;

/// The sender's side of all its loans. The pool asks it for what has come back.
pub(super) struct Lender {
    shared: Arc<Shared>,
    /// The sender's end of the locks, to ask about the receiver's.
    locks: Arc<LockFile>,
    fork_epoch: u64,
    book: Book,
    /// The sender is gone, and nothing is lent any more.
    is_closed: AtomicBool,
    /// Was there a receiver from the start, which held its lock?
    has_receiver: bool,
}

impl Lender {
    /// There is a cell for each of the object's loans.
    pub(super) fn new(object: &Object, cells: Cells<Chunk>) -> Self {
        let (shared, locks, has_receiver) = (object.shared().clone(), object.locks().clone(), object.is_branch());
        let book = Book::new(cells, shared.clone());
        Self { shared, locks, fork_epoch: fork::epoch(), book, is_closed: AtomicBool::new(false), has_receiver }
    }

    /// A free number; the search starts at `next`. Collects what has come back if there is none.
    #[inline]
    pub(super) fn free(&self, next: usize) -> Option<usize> {
        if self.book.is_full() && self.collect() == 0 {
            return None;
        }
        self.book.free(next)
    }

    /// Lends a buffer under a free number; the message follows, with this ticket. Only the sender
    /// calls this.
    #[inline]
    pub(super) fn put(&self, number: usize, ticket: u64, buffer: ShmBuf) {
        self.book.put(number, ticket, buffer);
    }

    /// Drops some of what has come back, if the lock is free. Returns the last one's number.
    #[inline]
    pub(super) fn collect_some(&self) -> Option<usize> {
        self.collect_few(self.book.try_lock()?, PER_MESSAGE).last()
    }

    /// Takes back a buffer that was not sent, or was withdrawn, if it is still there. Its length is
    /// lost.
    pub(super) fn take_back(&self, number: usize) -> Option<ShmBuf> {
        self.book.lock().take(number)
    }

    /// How many buffers are out.
    pub(super) fn lent(&self) -> usize {
        self.book.lock().chunks().count()
    }

    /// Drops what the next returns name, `most` of them at most, while the iterator yields their
    /// numbers.
    #[inline]
    fn collect_few<'a>(&'a self, mut taking: Taking<'a>, most: usize) -> impl Iterator<Item = usize> + 'a {
        let next = move |_| {
            let number = returns::read(self.shared.returns(), *taking.returned)?;
            // A broken or hostile receiver may name a number that is not out.
            let buffer = taking.take(number as usize);
            taking.note_read();
            Some(buffer.map(|buffer| {
                // Another receiver may still read it.
                if buffer.is_last() {
                    buffer.fetch_ends();
                }
                number as usize
            }))
        };
        (0..most).map_while(next).flatten()
    }

    /// Drops all that has come back, while the iterator yields the numbers.
    fn collect_all(&self) -> impl Iterator<Item = usize> + '_ {
        // Bounded by the number of words: there are no more returns, unless the receiver goes on
        // making some up.
        self.collect_few(self.book.lock(), self.shared.returns().len())
    }

    /// Notes that the sender is gone.
    pub(super) fn close(&self) {
        // Called after `Object::close`. Release: partner of the Acquire in `is_closed`, whose
        // reader then finds that nobody can join any more.
        self.is_closed.store(true, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        // Acquire: partner of the Release in `close`.
        self.is_closed.load(Ordering::Acquire)
    }

    /// Can nobody be reading any more? That is so if the receiver's process is dead, if the
    /// receiver is gone with all that it had, or if none came and none can.
    fn is_nobody_reading(&self) -> bool {
        // The order matters: a receiver that may still come holds the lock, or is refused.
        let was_there = self.has_receiver || self.is_closed() || self.shared.to_sender().is_gone();
        was_there && self.shared.is_receiver_unlocked(&self.locks)
    }
}

impl Lends for Lender {
    fn collect(&self) -> usize {
        self.collect_all().count()
    }

    fn each_lent(&self, tell: &mut dyn FnMut(&Chunk)) {
        self.book.lock().chunks().for_each(tell);
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
    /// Runs when both sender and pool have let go. What is still out stays the receiver's.
    fn drop(&mut self) {
        // In a forked child the handles do nothing, and a thread that does not exist there may hold
        // the lock.
        if self.fork_epoch != fork::epoch() {
            return;
        }
        self.collect();
        self.reclaim();
        self.book.lock().take_all_kept().for_each(ShmBuf::give_up_to_reader);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::layout::{self, Facts};
    use super::*;
    use crate::Provider;

    const LOANS: usize = 16;

    /// Two channels of one provider, each with a lender.
    struct Scene {
        channels: [(Object, Lender); 2],
        provider: Provider,
    }

    impl Scene {
        fn new(test: &str) -> Self {
            let prefix = format!("shm_pool-unit-{}-{test}", std::process::id());
            let provider = Provider::builder().name_prefix(&prefix).build().unwrap();
            let channel = |name| {
                let name = layout::name(provider.names(), name).unwrap();
                let object = Object::create(&name, &Facts::of_pair(provider.id(), 3, LOANS), 0o600).unwrap();
                let lender = Lender::new(&object, Cells::new(LOANS).unwrap());
                (object, lender)
            };
            Self { channels: ["one", "other"].map(channel), provider }
        }

        fn buffer(&self) -> ShmBuf {
            self.provider.alloc(64).unwrap().freeze()
        }

        /// Lends one more buffer. The message is of no matter here.
        fn lend(&self, lender: &Lender) {
            lender.put(lender.free(0).unwrap(), 0, self.buffer());
            lender.collect_some();
        }
    }

    /// Otherwise a receiver that makes up returns as fast as they are read keeps a thread of the
    /// sender's process, and the lock, for ever.
    #[test]
    fn made_up_returns_hold_nobody_up() {
        let scene = Scene::new("made-up");
        let (_, lender) = &scene.channels[0];
        scene.lend(lender);
        let words = lender.shared.returns();
        returns::give_back(words, 0, 0);
        let mut steps = 0;
        for number in lender.collect_all() {
            steps += 1;
            assert!(steps <= LOANS, "there is no end");
            // While it is at it, the buffer is lent and returned once more.
            lender.book.put(number, 0, scene.buffer());
            returns::give_back(words, steps as u64, number as u32);
        }
        assert_eq!(*lender.book.lock().returned, LOANS as u64);

        // None of these is out, but that of the message just sent.
        (LOANS..2 * LOANS).for_each(|ticket| returns::give_back(words, ticket as u64, LOANS as u32 + 1));
        scene.lend(lender);
        assert_eq!(*lender.book.lock().returned, (LOANS + PER_MESSAGE) as u64, "a few returns for each message");
    }

    /// Otherwise a receiver frees what another one reads, or frees a buffer twice.
    #[test]
    fn made_up_returns_free_what_the_channel_has_lent_and_nothing_else() {
        let scene = Scene::new("not-its-own");
        let [(_, lender), (_, other)] = &scene.channels;
        (0..4).for_each(|_| scene.lend(lender));
        (0..LOANS).for_each(|_| scene.lend(other));
        let words = lender.shared.returns();
        // Twice each number that is out, numbers that are not, and the largest that there can be.
        let made_up = [0, 0, 2, 2, 2, 4, 15, 16, 17, 1000, 0xff_ffff, 2];
        made_up.iter().zip(0..).for_each(|(&number, ticket)| returns::give_back(words, ticket, number));
        assert_eq!(lender.collect_all().collect::<Vec<_>>(), [0, 2]);
        assert_eq!((lender.lent(), other.lent()), (2, LOANS));
        assert_eq!(scene.provider.stats().bytes_in_use, (2 + LOANS) * 64);
    }
}
