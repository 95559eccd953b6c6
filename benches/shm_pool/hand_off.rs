//! Operations with two threads: one allocates, the other drops, both busy all the time.
//!
//! The floor and the pool differ only in the source of the first thread and the target of the
//! second.

#![forbid(unsafe_code)]

use crate::subjects::{provider_with, steady, Batch, Timed, MIB};
use crossbeam_queue::ArrayQueue;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Entries of the queue between the threads.
const BELT: usize = 16;

/// Buffers, or tokens, that exist: twice what the belt holds, so that one is always free.
const SUPPLY: usize = 2 * BELT;

/// Attempts before a waiting thread yields: more than it takes while its partner has a core.
const SPINS: u32 = 300;

/// Longest run of messages between two checks that both threads had a core; well below a
/// scheduler's time slice.
pub(crate) const PIECE: u64 = 5000;

/// How often a disturbed piece is run again before it is used as it is.
const RETRIES: usize = 4;

/// The floor: tokens of a free list that is a bare queue.
pub(crate) fn tokens() -> Batch {
    let belt = ArrayQueue::new(BELT);
    let free = ArrayQueue::new(SUPPLY);
    for token in 0..SUPPLY {
        free.push(token).expect("a free slot");
    }
    Box::new(move |count| {
        let take = || {
            free.pop()
                .expect("half of the tokens are never on their way")
        };
        let give = |token| free.push(token).expect("a slot for each token");
        hand_off(count, &belt, take, give)
    })
}

/// Buffers of a pool.
pub(crate) fn buffers() -> Batch {
    let belt = ArrayQueue::new(BELT);
    let provider = provider_with(MIB, SUPPLY);
    Box::new(move |count| {
        let take = || provider.alloc(black_box(MIB)).expect("an idle chunk");
        steady(&provider, || hand_off(count, &belt, take, drop))
    })
}

/// The time from the first `take` in this thread to the last `give` in another, in pieces.
///
/// Where other processes compete for the cores, our threads may have to share one, which would
/// measure the scheduler. So a piece is run again if one of the threads was without a core.
fn hand_off<T: Send>(
    count: u64,
    belt: &ArrayQueue<T>,
    mut take: impl FnMut() -> T,
    mut give: impl FnMut(T) + Send,
) -> Timed {
    let mut total = Timed {
        elapsed: Duration::ZERO,
        is_disturbed: false,
    };
    let mut left = count;
    while left > 0 {
        let piece = left.min(PIECE);
        let mut timed = hand_off_piece(piece, belt, &mut take, &mut give);
        for _ in 0..RETRIES {
            if !timed.is_disturbed {
                break;
            }
            timed = hand_off_piece(piece, belt, &mut take, &mut give);
        }
        total.elapsed += timed.elapsed;
        total.is_disturbed |= timed.is_disturbed;
        left -= piece;
    }
    total
}

/// It was disturbed if a thread has waited so long that the other cannot have been running.
fn hand_off_piece<T: Send>(
    count: u64,
    belt: &ArrayQueue<T>,
    take: &mut impl FnMut() -> T,
    give: &mut (impl FnMut(T) + Send),
) -> Timed {
    let present = AtomicUsize::new(0);
    // Starting a thread is not timed.
    let wait_for_both = || {
        present.fetch_add(1, Ordering::AcqRel);
        while present.load(Ordering::Acquire) < 2 {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let giver = scope.spawn(|| {
            wait_for_both();
            let mut has_yielded = false;
            for _ in 0..count {
                give(black_box(until(|| belt.pop(), &mut has_yielded)));
            }
            (Instant::now(), has_yielded)
        });
        wait_for_both();
        let mut has_yielded = false;
        let start = Instant::now();
        for _ in 0..count {
            let mut item = Some(black_box(take()));
            let push = || {
                if let Err(refused) = belt.push(item.take()?) {
                    item = Some(refused);
                    return None;
                }
                Some(())
            };
            until(push, &mut has_yielded);
        }
        let (end, giver_has_yielded) = giver.join().expect("the giving thread");
        Timed {
            elapsed: end - start,
            is_disturbed: has_yielded || giver_has_yielded,
        }
    })
}

/// Repeats an attempt until it succeeds, and notes if that took long.
fn until<T>(mut attempt: impl FnMut() -> Option<T>, has_yielded: &mut bool) -> T {
    loop {
        for _ in 0..SPINS {
            if let Some(done) = attempt() {
                return done;
            }
            spin_loop();
        }
        *has_yielded = true;
        thread::yield_now();
    }
}
