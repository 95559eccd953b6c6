//! The thread of a receiver that returns buffers without drawing a ticket.
//!
//! The *home thread* of a receiver is the one that received its first buffer. Most programs drop all
//! messages there. It has a ring of returns of its own (see `ring`), and so counts its tickets with
//! plain stores. Other threads, which may drop messages at any time, draw theirs from a counter that
//! they share.
//!
//! A signal handler of the home thread may drop a message between the stores of a return:
//!
//! | step | the home thread | a handler that drops a message after this step |
//! |---|---|---|
//! | H1 | makes the count odd | returns it as other threads do |
//! | H2 | stores the return in the word of its ticket | likewise |
//! | H3 | makes the count even: the ticket is used | returns it at home |
//!
//! A thread is known by its token. A home thread that has exited may be followed by a thread with the
//! same token, which then is the home thread. A forked child has none: its threads have other
//! tokens.

#![forbid(unsafe_code)]

use super::ring;
use crate::os::fork::{recorded_token, token, NO_THREAD};
use crate::sync::AtomicU64 as ReturnWord;
use std::sync::atomic::{compiler_fence, AtomicU64, Ordering};

pub(super) struct Home {
    /// The token of the home thread; [`NO_THREAD`] before the first buffer. Written once.
    thread: AtomicU64,
    /// Twice the number of tickets used, plus 1 while one is being used. Only the home thread writes
    /// it.
    count: AtomicU64,
}

impl Home {
    pub(super) fn new() -> Self {
        Self {
            thread: AtomicU64::new(NO_THREAD),
            count: AtomicU64::new(0),
        }
    }

    /// Makes the calling thread the home thread. Only the receiving end calls it, once.
    pub(super) fn settle(&self) {
        // Relaxed: a thread finds its own token only if it has stored it.
        self.thread.store(recorded_token(), Ordering::Relaxed);
    }

    /// Returns a buffer. Does nothing, and returns `false`, on other threads and within another call.
    #[inline]
    pub(super) fn give_back(&self, words: &[ReturnWord], number: u32) -> bool {
        // Relaxed, here and below: as in `settle`, and the count is this thread's.
        if self.thread.load(Ordering::Relaxed) != token() {
            return false;
        }
        let count = self.count.load(Ordering::Relaxed);
        if count % 2 == 1 {
            return false;
        }
        self.count.store(count.wrapping_add(1), Ordering::Relaxed); // H1
                                                                    // Here and below: a signal handler sees the stores in this order.
        compiler_fence(Ordering::SeqCst);
        ring::give_back(words, count / 2, number); // H2
        compiler_fence(Ordering::SeqCst);
        self.count.store(count.wrapping_add(2), Ordering::Relaxed); // H3
        true
    }

    /// Returns how many buffers it has returned.
    pub(super) fn returned(&self) -> u64 {
        // Relaxed: as in `ReturnQueue::returned`.
        self.count.load(Ordering::Relaxed) / 2
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    fn words() -> Vec<ReturnWord> {
        (0..4).map(|_| ReturnWord::new(0)).collect()
    }

    #[test]
    fn only_the_home_thread() {
        let home = Home::new();
        let words = words();
        assert!(!home.give_back(&words, 0), "nothing has been received");
        home.settle();
        for number in 0..3 {
            assert!(home.give_back(&words, number));
        }
        thread::scope(|scope| {
            let other = scope.spawn(|| home.give_back(&words, 3));
            assert!(!other.join().unwrap());
        });
        assert_eq!(home.returned(), 3);
        let found = [0, 1, 2, 3].map(|ticket| ring::returned(&words, ticket));
        assert_eq!(found, [Some(0), Some(1), Some(2), None]);
    }

    /// As a signal handler does.
    #[test]
    fn within_another_return() {
        let home = Home::new();
        let words = words();
        home.settle();
        home.count.fetch_add(1, Ordering::Relaxed); // H1
        assert!(!home.give_back(&words, 5));
        assert_eq!(
            ring::returned(&words, 0),
            None,
            "that is the other's ticket"
        );
        home.count.fetch_add(1, Ordering::Relaxed); // H3
        assert!(home.give_back(&words, 5));
        assert_eq!(ring::returned(&words, 1), Some(5));
    }
}
