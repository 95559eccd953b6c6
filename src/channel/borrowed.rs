//! The borrowed buffers of one receiver, as its sender counts them.
//!
//! A *borrowed buffer* is a buffer that was sent. The sender keeps a handle of it, so the chunk
//! stays in use, under a number that travels with the message, until the receiver returns the
//! number (see
//! `ring`).
//!
//! | borrowed buffer | its cell in [`Borrowed`] | its number | until |
//! |---|---|---|---|
//! | free | null | in the sender's list, or in the account's | the sender's [`Borrowed::put`] |
//! | out | a handle | in its slot, or at the receiver | [`Account::take`], under the ledger's lock: the receiver has returned it or died, or it was not sent |
//!
//! So each number is in at most one list, even if a receiver returns garbage. The sender reuses the
//! number returned last, and takes the lock before a message only if its own list is empty.
//!
//! Until a message is in its slot, the sender makes no read-modify-write, which would wait for the
//! lines of the buffer just written.
//!
//! # Gaps
//!
//! A thread of the receiver draws the ticket of a return, and then stores the return. A thread other
//! than the home thread that is stopped in between leaves a *gap*: later returns lie behind it.
//! [`Account::take_late`] looks up to [`AHEAD`] words past a return that is missing, and remembers up
//! to [`MOST_GAPS`] gaps.
//!
//! The stopped thread will store its return in the end, so until then the word must not be used
//! again. With `w` words, and `c` returns read before the first gap, tickets up to `c + w - 1` use
//! other words. A receiver draws at most one ticket for each borrowed buffer, and none for those that
//! it returns at home. So the sender gets a number back only as long as it can lend at most `w`
//! borrowed buffers after those `c` ([`Account::credit`]). Without a gap this always holds: there are
//! twice as many words as borrowed buffers.

#![forbid(unsafe_code)]

use super::ring::{self, note_look, Returns};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// How many words to look past a return that is missing. A return further behind is found once one
/// of the threads in between has stored its own.
const AHEAD: usize = 8;

/// How many gaps to look past.
const MOST_GAPS: usize = 64;

/// The borrowed buffers of one receiver: what the sender writes without a lock.
pub(super) struct Borrowed<T> {
    cells: Box<[AtomicPtr<T>]>,
    /// How many buffers were lent. Only the sender writes it.
    lent: AtomicU64,
    /// The ticket of the return to read next, of those of other threads than the home thread. Written
    /// under the ledger's lock, as the next one.
    next: AtomicU64,
    /// Of those of the home thread.
    next_at_home: AtomicU64,
}

/// The rest of an account, under the ledger's lock.
pub(super) struct Account<T> {
    borrowed: Arc<Borrowed<T>>,
    /// How many borrowed buffers have ended.
    ended: u64,
    /// How many of these ended without a return of another thread than the home thread.
    not_elsewhere: u64,
    /// The tickets before `next` whose returns are missing, in order; never reallocated.
    gaps: Vec<u64>,
    /// The numbers freed since the sender last asked; never reallocated.
    free: Vec<u32>,
    /// The bytes of their chunks.
    pub(super) freed: usize,
}

/// What the sender knows of its own account.
pub(super) struct Known {
    pub(super) numbers: Vec<u32>,
    /// The bytes of the chunks whose numbers are not free.
    pub(super) out: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) max_borrowed: usize,
    pub(super) bytes: usize,
}

/// How many buffers a receiver may hold, whatever their length.
pub(super) const ALWAYS: usize = 2;

impl Limit {
    /// Returns `true` if the receiver may get a chunk of `bytes` (0: the message is no buffer) with
    /// `free` numbers free and `out` bytes borrowed.
    #[inline]
    pub(super) fn allows(&self, bytes: usize, free: usize, out: usize) -> bool {
        let has_bytes =
            out.saturating_add(bytes) <= self.bytes || self.max_borrowed - free < ALWAYS;
        bytes == 0 || free > 0 && has_bytes
    }
}

/// Creates an account of `count` borrowed buffers, with their numbers; `None` if memory is short.
pub(super) fn open_account<T>(count: usize) -> Option<(Account<T>, Known)> {
    let mut cells = Vec::new();
    cells.try_reserve_exact(count).ok()?;
    cells.resize_with(count, || AtomicPtr::new(ptr::null_mut()));

    let mut free = Vec::new();
    free.try_reserve_exact(count).ok()?;
    // So that its first use causes no page fault.
    free.resize(count, 0);
    free.clear();

    let mut gaps = Vec::new();
    gaps.try_reserve_exact(MOST_GAPS).ok()?;

    let mut numbers = Vec::new();
    numbers.try_reserve_exact(count).ok()?;
    numbers.extend((0..count as u32).rev());

    let borrowed = Arc::new(Borrowed {
        cells: cells.into_boxed_slice(),
        lent: AtomicU64::new(0),
        next: AtomicU64::new(0),
        next_at_home: AtomicU64::new(0),
    });
    let account = Account {
        borrowed,
        ended: 0,
        not_elsewhere: 0,
        gaps,
        free,
        freed: 0,
    };
    Some((account, Known { numbers, out: 0 }))
}

impl<T> Borrowed<T> {
    /// Lends a buffer under a free number.
    #[inline]
    pub(super) fn put(&self, number: u32, value: NonNull<T>) {
        let Some(cell) = self.cells.get(number as usize) else {
            return;
        };
        // Release: the chunk; partner of the Acquire in `take` and `all`.
        cell.store(value.as_ptr(), Ordering::Release);
        // Relaxed: only the sender writes it, and an account is over only after its sender has
        // closed it, under the lock.
        let lent = self.lent.load(Ordering::Relaxed);
        self.lent.store(lent.wrapping_add(1), Ordering::Relaxed);
    }

    #[inline]
    fn next(&self) -> u64 {
        // Relaxed: without the lock, a stale value only postpones the next look.
        self.next.load(Ordering::Relaxed)
    }

    #[inline]
    fn next_at_home(&self) -> u64 {
        // Relaxed: as above.
        self.next_at_home.load(Ordering::Relaxed)
    }

    /// Returns `true` if a next return is there.
    #[inline]
    pub(super) fn has_returned(&self, returns: Returns<'_>) -> bool {
        ring::returned(returns.at_home, self.next_at_home()).is_some()
            || ring::returned(returns.elsewhere, self.next()).is_some()
    }
}

impl<T> Account<T> {
    pub(super) fn borrowed(&self) -> &Arc<Borrowed<T>> {
        &self.borrowed
    }

    /// Clears the cell of this number and frees the number. Returns its pointer, if there was one.
    #[inline]
    fn end(&mut self, number: u32, strike: impl FnOnce(usize)) -> Option<NonNull<T>> {
        note_look();
        let cell = self.borrowed.cells.get(number as usize)?;
        // Acquire: partner of the Release in `put`, for numbers that a hostile receiver invents. A
        // genuine one has travelled to the receiver and back.
        let found = NonNull::new(cell.load(Ordering::Acquire))?;
        strike(number as usize);
        // Relaxed: only the holder of the lock empties cells, and the sender gets the number under
        // the lock before it fills the cell.
        cell.store(ptr::null_mut(), Ordering::Relaxed);
        self.ended = self.ended.wrapping_add(1);
        self.free.push(number);
        Some(found)
    }

    /// Takes the pointer of a buffer that no thread other than the home thread returns.
    pub(super) fn take(&mut self, number: u32, strike: impl FnOnce(usize)) -> Option<NonNull<T>> {
        let found = self.end(number, strike)?;
        self.not_elsewhere = self.not_elsewhere.wrapping_add(1);
        Some(found)
    }

    /// Takes the pointer that the next return of the home thread names.
    #[inline]
    fn take_returned_at_home(
        &mut self,
        returns: &[AtomicU64],
        strike: impl FnOnce(usize),
    ) -> Option<Option<NonNull<T>>> {
        let next = self.borrowed.next_at_home();
        let number = ring::returned(returns, next)?;
        let found = self.take(number, strike);
        // Relaxed: as in `pass`.
        self.borrowed
            .next_at_home
            .store(next.wrapping_add(1), Ordering::Relaxed);
        Some(found)
    }

    /// Takes the pointer that a next return names; `Some(None)` if none has that number.
    #[inline]
    pub(super) fn take_returned(
        &mut self,
        returns: Returns<'_>,
        strike: impl Fn(usize),
    ) -> Option<Option<NonNull<T>>> {
        if let Some(found) = self.take_returned_at_home(returns.at_home, &strike) {
            return Some(found);
        }
        let next = self.borrowed.next();
        let number = ring::returned(returns.elsewhere, next)?;
        let found = self.end(number, strike);
        self.pass(next);
        Some(found)
    }

    /// [`take_returned`](Self::take_returned) for a return that fills a gap, or lies behind one.
    #[cold]
    pub(super) fn take_late(
        &mut self,
        returns: Returns<'_>,
        strike: impl FnOnce(usize),
    ) -> Option<Option<NonNull<T>>> {
        for at in 0..self.gaps.len() {
            if let Some(number) = ring::returned(returns.elsewhere, self.gaps[at]) {
                self.gaps.remove(at);
                return Some(self.end(number, strike));
            }
        }

        // All borrowed buffers that are out may have been returned, but no others.
        let out = usize::try_from(self.out()).unwrap_or(usize::MAX);
        let most = AHEAD.min(MOST_GAPS - self.gaps.len()).min(out);
        let next = self.borrowed.next();
        for ahead in 1..=most as u64 {
            let ticket = next.wrapping_add(ahead);
            if let Some(number) = ring::returned(returns.elsewhere, ticket) {
                for gap in 0..ahead {
                    self.gaps.push(next.wrapping_add(gap));
                }
                let found = self.end(number, strike);
                self.pass(ticket);
                return Some(found);
            }
        }
        None
    }

    #[inline]
    fn pass(&self, ticket: u64) {
        // Relaxed: the next reader under the lock; without it, see `Borrowed::next`.
        self.borrowed
            .next
            .store(ticket.wrapping_add(1), Ordering::Relaxed);
    }

    /// How many returns of the home thread were read.
    #[inline]
    pub(super) fn read_at_home(&self) -> u64 {
        self.borrowed.next_at_home()
    }

    /// How many returns of other threads were read before the first one that is missing.
    #[inline]
    pub(super) fn read_in_order(&self) -> u64 {
        match self.gaps.first() {
            Some(&gap) => gap,
            None => self.borrowed.next(),
        }
    }

    /// Takes all pointers. The receiver returns none of them any more.
    pub(super) fn take_all<'a>(
        &'a mut self,
        strike: impl Fn(usize) + 'a,
    ) -> impl Iterator<Item = NonNull<T>> + 'a {
        let numbers = 0..self.borrowed.cells.len() as u32;
        numbers.filter_map(move |number| self.take(number, &strike))
    }

    /// How many borrowed buffers are out.
    pub(super) fn out(&self) -> u64 {
        let lent = self.borrowed.lent.load(Ordering::Relaxed);
        // A pointer taken for a hostile receiver may not be counted as borrowed yet.
        let out = lent.wrapping_sub(self.ended) as i64;
        out.max(0) as u64
    }

    /// The pointers of the borrowed buffers that are out.
    pub(super) fn all(&self) -> impl Iterator<Item = NonNull<T>> + '_ {
        // Acquire: partner of the Release in `put`.
        let pointers = self
            .borrowed
            .cells
            .iter()
            .map(|cell| cell.load(Ordering::Acquire));
        pointers.filter_map(NonNull::new)
    }

    /// How many more numbers the sender may get, which has `in_hand` now, so that no word is used
    /// again before its return is read.
    fn credit(&self, in_hand: usize) -> usize {
        if self.gaps.is_empty() {
            return usize::MAX;
        }
        let lent = self.borrowed.lent.load(Ordering::Relaxed);
        let with_a_return = lent.wrapping_sub(self.not_elsewhere);
        let unread = with_a_return.wrapping_sub(self.read_in_order()) as i64;
        let words = 2 * self.borrowed.cells.len();
        let used = usize::try_from(unread.max(0)).unwrap_or(usize::MAX);
        words.saturating_sub(used).saturating_sub(in_hand)
    }

    /// How many freed numbers the sender, which has `in_hand`, would get.
    pub(super) fn free(&self, in_hand: usize) -> usize {
        self.free.len().min(self.credit(in_hand))
    }

    /// Moves freed numbers to the sender's list.
    #[inline]
    pub(super) fn hand_over(&mut self, known: &mut Known) {
        // One or two as a rule, for which `memcpy` would cost more.
        for _ in 0..self.free(known.numbers.len()) {
            known.numbers.extend(self.free.pop());
        }
        known.out = known.out.wrapping_sub(std::mem::take(&mut self.freed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MAX_BORROWED: usize = 4;

    struct Scene {
        account: Account<u8>,
        known: Known,
        elsewhere: Vec<AtomicU64>,
        at_home: Vec<AtomicU64>,
    }

    impl Scene {
        fn new() -> Self {
            let (account, known) = open_account(MAX_BORROWED).unwrap();
            let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
            Self {
                account,
                known,
                elsewhere: words(2 * MAX_BORROWED),
                at_home: words(MAX_BORROWED),
            }
        }

        /// Lends as many as possible.
        fn lend_all(&mut self) -> Vec<u32> {
            self.account.hand_over(&mut self.known);
            let mut lent = Vec::new();
            while let Some(number) = self.known.numbers.pop() {
                self.account.borrowed.put(number, NonNull::dangling());
                lent.push(number);
            }
            lent
        }

        /// Reads all returns that can be read. Returns how many borrowed buffers ended.
        fn read(&mut self) -> usize {
            let returns = Returns {
                at_home: &self.at_home,
                elsewhere: &self.elsewhere,
            };
            let mut ended = 0;
            loop {
                let mut found = self.account.take_returned(returns, |_| ());
                if found.is_none() {
                    found = self.account.take_late(returns, |_| ());
                }
                match found {
                    Some(found) => ended += usize::from(found.is_some()),
                    None => return ended,
                }
            }
        }

        fn give_back(&self, ticket: u64, number: u32) {
            ring::give_back(&self.elsewhere, ticket, number);
        }

        fn give_back_at_home(&self, ticket: u64, number: u32) {
            ring::give_back(&self.at_home, ticket, number);
        }
    }

    #[test]
    fn return_past_a_gap() {
        let mut scene = Scene::new();
        let lent = scene.lend_all();
        assert_eq!(lent.len(), MAX_BORROWED);
        // The thread with ticket 1 has not stored its return.
        scene.give_back(0, lent[0]);
        scene.give_back(2, lent[2]);
        scene.give_back(3, lent[3]);
        assert_eq!(scene.read(), 3);
        assert_eq!(scene.account.out(), 1);
        assert_eq!(scene.read(), 0);

        // Now it has.
        scene.give_back(1, lent[1]);
        assert_eq!(scene.read(), 1);
        assert_eq!(scene.account.out(), 0);
        assert!(scene.account.gaps.is_empty());
        assert_eq!(scene.lend_all().len(), MAX_BORROWED);
    }

    #[test]
    fn word_of_a_gap_is_not_used_again() {
        let mut scene = Scene::new();
        let missing = scene.lend_all()[0];
        // The thread with ticket 0 is stopped. The others return whatever they get.
        let mut others: Vec<u32> = (0..MAX_BORROWED as u32)
            .filter(|&number| number != missing)
            .collect();
        let mut ticket = 1;
        while !others.is_empty() {
            for number in others.drain(..) {
                assert_ne!(
                    ticket % (2 * MAX_BORROWED as u64),
                    0,
                    "the word of ticket 0"
                );
                scene.give_back(ticket, number);
                ticket += 1;
            }
            scene.read();
            others = scene.lend_all();
            assert!(!others.contains(&missing));
        }
        assert_eq!(ticket, 2 * MAX_BORROWED as u64, "all other words were used");
        assert_eq!(scene.account.out(), 1);

        scene.give_back(0, missing);
        assert_eq!(scene.read(), 1);
        assert_eq!(scene.lend_all().len(), MAX_BORROWED, "nothing is lost");
    }

    /// The home thread's returns use words of their own, and none of those behind a gap.
    #[test]
    fn returns_at_home_beside_a_gap() {
        let mut scene = Scene::new();
        let missing = scene.lend_all()[0];
        let others: Vec<u32> = (0..MAX_BORROWED as u32)
            .filter(|&number| number != missing)
            .collect();
        scene.give_back(1, others[0]);
        assert_eq!(scene.read(), 1, "there is a gap");
        let mut ticket = 0;
        for number in &others[1..] {
            scene.give_back_at_home(ticket, *number);
            ticket += 1;
        }
        assert_eq!(scene.read(), others.len() - 1);
        for _ in 0..10 * MAX_BORROWED {
            let lent = scene.lend_all();
            assert_eq!(lent.len(), MAX_BORROWED - 1);
            for number in lent {
                scene.give_back_at_home(ticket, number);
                ticket += 1;
            }
            assert_eq!(scene.read(), MAX_BORROWED - 1);
        }
        scene.give_back(0, missing);
        assert_eq!(scene.read(), 1);
        assert_eq!(scene.account.out(), 0);
        assert_eq!(scene.lend_all().len(), MAX_BORROWED, "nothing is lost");
    }

    /// A withdrawn message is never returned.
    #[test]
    fn withdrawn_loans_use_no_words() {
        let mut scene = Scene::new();
        let missing = scene.lend_all()[0];
        let others: Vec<u32> = (0..MAX_BORROWED as u32)
            .filter(|&number| number != missing)
            .collect();
        scene.give_back(1, others[0]);
        assert_eq!(scene.read(), 1, "there is a gap");
        scene.account.take(others[1], |_| ()).unwrap();
        scene.account.take(others[2], |_| ()).unwrap();
        for _ in 0..10 * MAX_BORROWED {
            let lent = scene.lend_all();
            assert_eq!(lent.len(), MAX_BORROWED - 1);
            for number in lent {
                scene.account.take(number, |_| ()).unwrap();
            }
        }
        scene.give_back(0, missing);
        assert_eq!(scene.read(), 1);
    }

    #[test]
    fn forged_gaps_are_few() {
        let mut scene = Scene::new();
        scene.lend_all();
        // Far ahead of what it could have returned.
        scene.give_back(MAX_BORROWED as u64 + 1, 0);
        assert_eq!(scene.read(), 0);
        scene.give_back(MAX_BORROWED as u64, 0);
        assert_eq!(scene.read(), 1);
        assert_eq!(scene.account.gaps.len(), MAX_BORROWED);
    }
}
