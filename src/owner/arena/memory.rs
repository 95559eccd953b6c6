//! The memory of pages: an arena's pages are *holes* until memory is reserved for them.
//!
//! # System calls
//!
//! System calls on pages are made outside the mutex. Whose pages are they meanwhile?
//!
//! | call | pages | who else may have them |
//! |---|---|---|
//! | reserve a run's holes | of the run, filled from when it is carved | nobody: they are carved |
//! | reserve the rest of a hole | free, *in flight*, holes until the call has succeeded | who carves them |
//! | return a gap to the system | free, *in flight*, filled until the call has succeeded | who carves them |
//! | collapse a huge page | filled, *in flight* | their owners, who do not mind; who carves them |
//!
//! Pages in flight are free for a search like any others, so no request is refused because of them.
//! But a thread that has carved some of them waits until the calls have ended, before it reads which
//! pages of its run are holes, and before it writes there. Then nobody else can get the pages until
//! it frees them, so what it reads stays true. No pages are in flight twice: who wants to reserve or
//! to return memory leaves out those in flight, and the carved ones.
//!
//! So memory is never discarded while it is carved: a page is carved and not in flight, or not
//! carved when the call was planned, and then its new owner waits for the call's end. And a page that
//! is marked as filled has memory, or its owner is about to reserve it.

#![forbid(unsafe_code)]

use super::{Arena, ArenaState, Arenas, Carved, Payload};
use crate::owner::bits::overlap;
use crate::owner::limits::Account;
use parking_lot::MutexGuard;
use std::ops::Range;
use std::sync::Arc;

/// The rest of a hole is filled along with the carved part if it is at most this many bytes and
/// this share of the cap.
const REST: usize = 1 << 20;
const REST_SHARE: usize = 64;

/// The most bytes that are returned to the system in one call: some 20 µs.
const STEP: usize = 1 << 20;

/// The list of pages in flight needs no memory while it is used.
pub(super) const MOST_IN_FLIGHT: usize = 8;

/// Pages of one arena on which a thread makes a system call.
#[derive(Clone)]
pub(super) struct InFlight {
    serial: u64,
    pages: Range<usize>,
}

/// Where the search for gaps with memory goes on.
#[derive(Default)]
struct Cursor {
    serial: u64,
    page: usize,
}

/// A part of a gap that is to be returned to the system.
struct Part {
    payload: Arc<Payload>,
    pages: Range<usize>,
}

impl ArenaState {
    /// Returns the first pages in flight that overlap some of an arena's.
    fn in_flight(&self, serial: u64, pages: &Range<usize>) -> Option<&InFlight> {
        self.in_flight
            .iter()
            .filter(|other| other.serial == serial && overlap(&other.pages, pages))
            .min_by_key(|other| other.pages.start)
    }

    /// Returns `false` if too many are in flight.
    fn begin_call(&mut self, serial: u64, pages: &Range<usize>) -> bool {
        if self.in_flight.len() == MOST_IN_FLIGHT {
            return false;
        }
        self.in_flight.push(InFlight {
            serial,
            pages: pages.clone(),
        });
        true
    }

    fn end_call(&mut self, serial: u64, pages: &Range<usize>) {
        self.in_flight
            .retain(|other| other.serial != serial || other.pages != *pages);
    }
}

impl Arenas {
    /// Marks the holes of a run that was just carved as filled, and returns them in bytes.
    pub(super) fn take_holes(
        &self,
        state: &mut MutexGuard<'_, ArenaState>,
        run: &Carved,
    ) -> Vec<Range<usize>> {
        let serial = run.payload.serial();
        let pages = self.pages_of(&run.range());
        while state.in_flight(serial, &pages).is_some() {
            self.settled.wait(state);
        }
        let mut holes = Vec::new();
        if let Some(arena) = state.arena(serial) {
            for hole in arena.filled.clear_runs(pages.clone()) {
                holes.push(self.bytes_of(&hole));
            }
            arena.filled.set(pages);
        }
        holes
    }

    /// Reserves the rest of a filled run's last hole, if that is short.
    pub(crate) fn fill_rests(&self, run: &Carved, account: &Account) {
        if let Some(rest) = self.plan_rest(run) {
            let serial = run.payload.serial();
            let segment = run.payload.segment();
            let bytes = self.bytes_of(&rest);
            let is_reserved = segment.reserve(bytes.clone()).is_ok();
            if !is_reserved {
                // Undoes a partial reservation.
                segment.discard(bytes.clone());
            }
            let mut state = self.state.lock();
            if is_reserved {
                account.take(bytes.len());
                if let Some(arena) = state.arena(serial) {
                    arena.filled.set(rest.clone());
                }
            }
            state.end_call(serial, &rest);
            drop(state);
            self.settled.notify_all();
        }
        self.collapse_ends(run);
    }

    fn plan_rest(&self, run: &Carved) -> Option<Range<usize>> {
        let most = REST.min(self.max / REST_SHARE) / self.page;
        let serial = run.payload.serial();
        let start = self.pages_of(&run.range()).end;
        let mut state = self.state.lock();
        let arena = state.arena(serial)?;
        arena.was_used = true;
        let end = arena.pages.pages().min(start + most + 1);
        let end = arena.filled.next_set(start..end);
        let end = arena.pages.carved().next_set(start..end);
        let rest = start..end;
        if rest.is_empty() || rest.len() > most || state.in_flight(serial, &rest).is_some() {
            return None;
        }
        if state.begin_call(serial, &rest) {
            Some(rest)
        } else {
            None
        }
    }

    /// Collapses the huge pages at the ends of a run, if all their pages have memory. They are in
    /// flight, so that no gap beside the run is returned to the system at the same time.
    fn collapse_ends(&self, run: &Carved) {
        let serial = run.payload.serial();
        let segment = run.payload.segment();
        let Some(huge_page) = segment.huge_page() else {
            return;
        };
        let huge = huge_page / self.page;
        let pages = self.pages_of(&run.range());
        for at in [pages.start, pages.end - 1] {
            let whole = at / huge * huge..at / huge * huge + huge;
            let is_within_run = pages.start <= whole.start && whole.end <= pages.end;
            if is_within_run || !self.plan_collapse(serial, &whole) {
                continue;
            }
            segment.collapse(self.bytes_of(&whole));
            self.state.lock().end_call(serial, &whole);
            self.settled.notify_all();
        }
    }

    fn plan_collapse(&self, serial: u64, whole: &Range<usize>) -> bool {
        let mut state = self.state.lock();
        if state.in_flight(serial, whole).is_some() {
            return false;
        }
        let Some(arena) = state.arena(serial) else {
            return false;
        };
        let is_filled =
            whole.end <= arena.pages.pages() && arena.filled.next_clear(whole.clone()) == whole.end;
        is_filled && state.begin_call(serial, whole)
    }

    /// Returns the bytes of memory in gaps that may be returned to the system.
    pub(crate) fn filled_gaps(&self) -> usize {
        let state = self.state.lock();
        let mut pages = 0;
        for arena in &state.arenas {
            if self.may_punch(arena) {
                pages += arena.filled.count_without(arena.pages.carved());
            }
        }
        pages * self.page
    }

    /// Returns `true` if the arena's gaps may be returned to the system.
    fn may_punch(&self, arena: &Arena) -> bool {
        !self.whole || arena.pages.is_empty()
    }

    /// Returns at most `most` bytes of memory in gaps to the system, a part of a gap at a time. Parts
    /// that another thread is returning are left to that thread. Returns how many bytes there were.
    pub(crate) fn punch(&self, account: &Account, most: usize) -> usize {
        let mut given = 0;
        let mut after = Cursor::default();
        while let Some(part) = self.plan_punch(after, most - given) {
            let serial = part.payload.serial();
            after = Cursor {
                serial,
                page: part.pages.end,
            };
            let bytes = self.bytes_of(&part.pages);
            let is_discarded = part.payload.segment().discard(bytes.clone());
            let mut state = self.state.lock();
            match state.arena(serial) {
                // If the arena was removed meanwhile, its memory was given back with it.
                Some(arena) if is_discarded && Arc::ptr_eq(&arena.payload, &part.payload) => {
                    arena.filled.clear(part.pages.clone());
                    // Under the lock, so that pages that are reserved again are counted after this.
                    account.release(bytes.len());
                    given += bytes.len();
                }
                _ => {}
            }
            state.end_call(serial, &part.pages);
            drop(state);
            self.settled.notify_all();
        }
        given
    }

    fn plan_punch(&self, after: Cursor, most: usize) -> Option<Part> {
        let most = most.min(STEP) / self.page;
        let mut state = self.state.lock();
        while state.in_flight.len() == MOST_IN_FLIGHT {
            self.settled.wait(&mut state);
        }
        let known = state
            .arenas
            .iter()
            .position(|arena| arena.payload.serial() == after.serial);
        let (first, mut from) = match known {
            Some(number) => (number, after.page),
            // From the beginning: that arena was removed.
            None => (0, 0),
        };
        for number in first..state.arenas.len() {
            if most == 0 {
                break;
            }
            if self.may_punch(&state.arenas[number]) {
                state.arenas[number].is_bare = self.whole;
                if let Some(part) = state.find_to_punch(number, from, most) {
                    state.begin_call(part.payload.serial(), &part.pages);
                    self.note_room(&state);
                    return Some(part);
                }
            }
            from = 0;
        }
        self.note_room(&state);
        None
    }
}

impl ArenaState {
    fn find_to_punch(&self, number: usize, mut from: usize, most: usize) -> Option<Part> {
        let arena = &self.arenas[number];
        let carved = arena.pages.carved();
        let all = arena.pages.pages();
        loop {
            let start = arena.filled.next_without(carved, from..all);
            if start == all {
                return None;
            }
            let end = all.min(start + most);
            let end = arena.filled.next_clear_or_in(carved, start..end);
            let mut pages = start..end;
            if let Some(other) = self.in_flight(arena.payload.serial(), &pages) {
                if other.pages.start <= start {
                    from = other.pages.end;
                    continue;
                }
                pages.end = other.pages.start;
            }
            return Some(Part {
                payload: arena.payload.clone(),
                pages,
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::owner::arena::tests::{carve, provider, OTHER};
    use crate::owner::limits::Grain;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// Carves everything and reserves memory for it, and frees it.
    fn fill_all(arenas: &Arenas, account: &Account) -> usize {
        let len = arenas.free_bytes();
        let (run, holes) = arenas.carve_run(len, OTHER, false).unwrap();
        for hole in holes {
            run.payload.segment().reserve(hole.clone()).unwrap();
            account.take(hole.len());
        }
        arenas.free(run);
        len
    }

    /// A gap can be carved while it is returned to the system; but its new owner waits for the end,
    /// and then reserves memory anew.
    #[test]
    fn carve_waits_for_pages_in_flight() {
        let provider = provider("in-flight", 64 << 10);
        let arenas = &provider.pool().arenas;
        let account = Account::default();
        let len = fill_all(arenas, &account);
        let part = arenas.plan_punch(Cursor::default(), len).unwrap();
        assert_eq!(part.pages.len() * arenas.page, len);
        assert!(
            arenas.plan_punch(Cursor::default(), len).is_none(),
            "it is in flight"
        );
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let carver = scope.spawn(|| {
                let (run, holes) = arenas.carve_run(len, OTHER, false).unwrap();
                assert!(has_ended.load(Ordering::Relaxed), "its pages are in flight");
                assert_eq!(holes.len(), 1);
                assert_eq!(holes[0], 0..len);
                arenas.cancel(run, &holes);
            });
            while arenas.free_bytes() > 0 {
                thread::yield_now();
            }
            has_ended.store(true, Ordering::Relaxed);
            let mut state = arenas.state.lock();
            let arena = state.arena(part.payload.serial()).unwrap();
            arena.filled.clear(part.pages.clone());
            state.end_call(part.payload.serial(), &part.pages);
            drop(state);
            arenas.settled.notify_all();
            carver.join().unwrap();
        });
        assert!(arenas.state.lock().in_flight.is_empty());
    }

    #[test]
    fn punch_returns_the_memory_of_gaps() {
        let provider = provider("punch", 16 << 20);
        let arenas = &provider.pool().arenas;
        let page = arenas.page;
        let account = Account::default();
        let len = fill_all(arenas, &account);
        assert_eq!((account.held(), arenas.filled_gaps()), (len, len));
        let kept = carve(arenas, 3 * page, Grain::Page).unwrap();
        assert_eq!(arenas.filled_gaps(), len - 3 * page);
        assert_eq!(arenas.punch(&account, 2 * page + 1), 2 * page);
        assert_eq!(arenas.punch(&account, page - 1), 0);
        assert_eq!(arenas.punch(&account, usize::MAX), len - 5 * page);
        assert_eq!((account.held(), arenas.filled_gaps()), (3 * page, 0));
        assert_eq!(arenas.punch(&account, usize::MAX), 0);
        arenas.free(kept);
        assert_eq!(arenas.punch(&account, usize::MAX), 3 * page);
        assert_eq!(account.held(), 0);
    }

    /// Messages keep their bytes, and the account is right, whatever is returned meanwhile.
    #[test]
    fn punch_beside_messages() {
        const ROUNDS: usize = 400;
        let provider = provider("beside", 4 << 20);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        provider.trim();
                    }
                });
            }
            let writers = [1u8, 2].map(|number| {
                let provider = &provider;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(number.into());
                    for _ in 0..ROUNDS {
                        let len = random.usize(1..300_000);
                        let mut buffer = provider.alloc(len).unwrap();
                        buffer.fill(number);
                        assert!(buffer.iter().all(|&byte| byte == number));
                    }
                })
            });
            let results = writers.map(|writer| writer.join());
            is_over.store(true, Ordering::Relaxed);
            for result in results {
                result.unwrap();
            }
        });
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0);
    }
}
