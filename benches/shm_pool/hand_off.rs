//! What takes two threads: one allocates, the other drops, both busy all the time.
//!
//! The floor and the pool differ only in where the first thread takes from and the second gives
//! back to.

#![forbid(unsafe_code)]

use crate::subjects::{provider_with, steady, Batch, Timed, MIB};
use crossbeam_queue::ArrayQueue;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Entries of the queue between the threads.
const BELT: usize = 16;

/// Buffers, or tokens, that exist: twice what the belt holds, so that one is always free to be
/// taken.
const SUPPLY: usize = 2 * BELT;

/// Attempts before a waiting thread lets others run: more than it takes while its partner has a
/// core.
const SPINS: u32 = 300;

/// Longest run of messages between two looks at whether both threads had a core; well below a
/// scheduler's time slice.
pub(crate) const PIECE: u64 = 5000;

/// How often a disturbed piece is run again before it is taken as it is.
const RETRIES: usize = 4;

/// The floor: tokens of a free list that is a bare queue.
pub(crate) fn tokens() -> Batch {
    let belt = ArrayQueue::new(BELT);
    let free = ArrayQueue::new(SUPPLY);
    (0..SUPPLY).for_each(|token| free.push(token).expect("a free slot"));
    Box::new(move |count| {
        let take = || free.pop().expect("half of the tokens are never on their way");
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
/// Where other processes want the cores too, our threads may have to share one, and then what is
/// measured is the scheduler. So a piece is run again if one of the threads was without a core.
fn hand_off<T: Send>(
    count: u64,
    belt: &ArrayQueue<T>,
    mut take: impl FnMut() -> T,
    mut give: impl FnMut(T) + Send,
) -> Timed {
    let mut total = Timed { elapsed: Duration::ZERO, is_disturbed: false };
    let mut left = count;
    while left > 0 {
        let piece = left.min(PIECE);
        let mut run = || hand_off_piece(piece, belt, &mut take, &mut give);
        let mut timed = run();
        for _ in 0..RETRIES {
            if timed.is_disturbed {
                timed = run();
            }
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
    thread::scope(|scope| {
        let giver = scope.spawn(|| {
            meet(&present);
            let mut wait = Wait::default();
            for _ in 0..count {
                give(black_box(next(belt, &mut wait)));
            }
            (Instant::now(), wait.has_yielded)
        });
        meet(&present);
        let mut wait = Wait::default();
        let start = Instant::now();
        for _ in 0..count {
            pass_on(belt, black_box(take()), &mut wait);
        }
        let (end, giver_has_yielded) = giver.join().expect("the giving thread");
        Timed { elapsed: end - start, is_disturbed: wait.has_yielded || giver_has_yielded }
    })
}

/// Returns when both threads have called it: starting a thread is not part of the time.
fn meet(present: &AtomicUsize) {
    present.fetch_add(1, Ordering::AcqRel);
    let mut wait = Wait::default();
    while present.load(Ordering::Acquire) < 2 {
        wait.a_little();
    }
}

fn next<T>(belt: &ArrayQueue<T>, wait: &mut Wait) -> T {
    wait.attempts = 0;
    loop {
        match belt.pop() {
            Some(item) => return item,
            None => wait.a_little(),
        }
    }
}

fn pass_on<T>(belt: &ArrayQueue<T>, mut item: T, wait: &mut Wait) {
    wait.attempts = 0;
    while let Err(refused) = belt.push(item) {
        item = refused;
        wait.a_little();
    }
}

/// How a thread waits for its partner.
#[derive(Default)]
struct Wait {
    /// In the current wait.
    attempts: u32,
    /// In any wait.
    has_yielded: bool,
}

impl Wait {
    fn a_little(&mut self) {
        self.attempts += 1;
        if self.attempts % SPINS == 0 {
            self.has_yielded = true;
            thread::yield_now();
        } else {
            spin_loop();
        }
    }
}
