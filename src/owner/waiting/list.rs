//! The waiting requests in order of arrival, and whose turn it is. Plain data: `mod` locks it.
//!
//! Requests of one kind (a thread's or a future's), class and size are interchangeable, so only the
//! first of them is tried. So a pass along the list takes as many steps as different lengths wait,
//! however many requests do.

#![forbid(unsafe_code)]

use super::Waiter;
use crate::os::futex::Deadline;
use crate::owner::limits::Grain;
use crate::owner::pool::Pool;
use crate::protocol::memory_doorbell::RECHECK_AFTER;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most requests that [`List::pass_turn`] considers before others get the lock.
const MOST_AT_ONCE: usize = 64;

/// A round that serves nobody takes locks and searches that others would have used. So the next one
/// begins only after this many times as long, at most [`LONGEST_REST`].
const REST: u32 = 12;
const LONGEST_REST: Duration = Duration::from_millis(1);

/// Orders requests by size, then by kind, and those that are interchangeable by arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) size: usize,
    pub(super) class: usize,
    pub(super) is_future: bool,
    /// In order of arrival.
    pub(super) number: u64,
}

impl Place {
    fn is_like(&self, other: &Self) -> bool {
        self.size == other.size && self.class == other.class && self.is_future == other.is_future
    }
}

struct Turn {
    waiter: Arc<Waiter>,
    /// Between rounds, the first waiter has the turn. It sleeps on the doorbell.
    is_listening: bool,
}

struct Busy {
    waiter: Arc<Waiter>,
    /// The last pass that has visited it.
    visited: u64,
}

/// The first ones of the interchangeable requests, by arrival.
#[derive(Default)]
struct Firsts(Vec<Arc<Waiter>>);

impl Firsts {
    /// Has space for that many, so that a request that leaves needs no memory for the next one.
    fn reserve(&mut self, count: usize) {
        self.0.reserve(count.saturating_sub(self.0.len()));
    }

    /// Returns the index of the first one with this number or a later one.
    fn index(&self, number: u64) -> usize {
        self.0
            .partition_point(|waiter| waiter.place.number < number)
    }

    fn from(&self, number: u64) -> Option<&Arc<Waiter>> {
        self.0.get(self.index(number))
    }

    fn insert(&mut self, waiter: Arc<Waiter>) {
        let index = self.index(waiter.place.number);
        self.0.insert(index, waiter);
    }

    fn remove(&mut self, number: u64) -> bool {
        let index = self.index(number);
        match self.0.get(index) {
            Some(waiter) if waiter.place.number == number => {
                self.0.remove(index);
                true
            }
            _ => false,
        }
    }
}

/// Returns the one that arrived first.
fn earlier<'a>(
    one: Option<&'a Arc<Waiter>>,
    other: Option<&'a Arc<Waiter>>,
) -> Option<&'a Arc<Waiter>> {
    match (one, other) {
        (Some(a), Some(b)) if a.place.number < b.place.number => one,
        (_, Some(_)) => other,
        (_, None) => one,
    }
}

#[derive(Default)]
pub(super) struct List {
    waiting: BTreeMap<Place, Arc<Waiter>>,
    /// Of threads.
    threads: Firsts,
    futures: Firsts,
    /// Those whose thread does something else: they get no turn, and keep their place.
    busy: BTreeMap<Place, Busy>,
    /// How many requests of futures wait or are busy.
    future_count: usize,
    turn: Option<Turn>,
    round: Round,
    /// The helper thread takes turns for futures.
    pub(super) is_helper_ready: bool,
    /// The future that the helper thread tries.
    tried_future: Option<Place>,
    /// The first future that was passed over because the helper was not ready.
    missed_from: Option<u64>,
    pub(super) is_closed: bool,
    /// A request has joined since the list was empty.
    is_used: bool,
    /// Requests whose heavy barrier is under way.
    barriers: usize,
}

/// A round begins when the doorbell has rung. It is one pass along the list, or several: a request
/// that joins needs no try of the earlier ones.
#[derive(Default)]
struct Round {
    /// Counts rounds.
    number: u64,
    /// Counts passes.
    pass: u64,
    /// The doorbell's count before the first try.
    count: u32,
    /// Rings since then that only wake the listener, for a pass that is due.
    own_rings: u32,
    /// All requests before this arrival have been visited.
    position: u64,
    /// The fewest bytes that were refused in this pass, by grain: a request that needs as many is
    /// not tried.
    least_refused: [usize; 2],
    /// Where the next pass begins, if one is due.
    due_from: Option<u64>,
    /// The listener has been woken for it.
    is_listener_woken: bool,
    /// When the next round begins, even if the doorbell does not ring.
    recheck_at: Option<Deadline>,
    /// One has begun since the list was empty.
    has_begun: bool,
    began: Option<Instant>,
    /// It has served a request.
    has_served: bool,
    /// When the next one may begin (see [`REST`]).
    rest_until: Option<Instant>,
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.busy.is_empty()
    }

    pub(super) fn has_futures(&self) -> bool {
        self.future_count > 0
    }

    /// Returns the bytes that the shortest request needs.
    pub(super) fn shortest(&self) -> Option<usize> {
        let waiting = self.waiting.keys().next();
        let busy = self.busy.keys().next();
        match (waiting, busy) {
            (Some(waiting), Some(busy)) => Some(waiting.size.min(busy.size)),
            (Some(place), None) | (None, Some(place)) => Some(place.size),
            (None, None) => None,
        }
    }

    /// Adds a request whose thread is busy.
    pub(super) fn join(&mut self, waiter: Arc<Waiter>) {
        if waiter.place.is_future {
            self.future_count += 1;
        }
        self.is_used = true;
        // No pass has this number.
        let visited = u64::MAX;
        self.busy.insert(waiter.place, Busy { waiter, visited });
        let count = self.waiting.len() + self.busy.len();
        self.threads.reserve(count);
        self.futures.reserve(count);
    }

    /// Removes a request. Returns `false` if it has been removed.
    pub(super) fn remove(&mut self, place: &Place) -> bool {
        let is_removed = self.busy.remove(place).is_some() || self.unlist(place);
        if is_removed && place.is_future {
            self.future_count -= 1;
        }
        is_removed
    }

    /// The helper thread begins a try.
    pub(super) fn begin_try(&mut self, place: &Place) {
        self.tried_future = Some(*place);
    }

    pub(super) fn end_try(&mut self) {
        self.tried_future = None;
    }

    /// Returns `true` if the helper thread tries a future that was dropped meanwhile.
    pub(super) fn is_try_abandoned(&self) -> bool {
        match &self.tried_future {
            Some(place) => !self.is_listed(place),
            None => false,
        }
    }

    /// Returns `true` if a request waits or is busy.
    pub(super) fn is_listed(&self, place: &Place) -> bool {
        self.is_waiting(place) || self.busy.contains_key(place)
    }

    /// Returns `true` if a request waits and is not busy.
    pub(super) fn is_waiting(&self, place: &Place) -> bool {
        self.waiting.contains_key(place)
    }

    /// Ends the rounds after the last request was removed. Returns `true` once after that.
    pub(super) fn end_if_empty(&mut self) -> bool {
        if !self.is_used || !self.is_empty() {
            return false;
        }
        self.is_used = false;
        self.round.has_begun = false;
        self.round.rest_until = None;
        true
    }

    /// Called after a request has joined, with the shortest length before. Returns `true` if the
    /// caller has to run a heavy barrier: if one is necessary, or is under way elsewhere.
    pub(super) fn begin_barrier(&mut self, before: Option<usize>) -> bool {
        let is_shorter = match before {
            Some(before) => self.shortest() < Some(before),
            None => true,
        };
        let is_needed = is_shorter || self.barriers > 0;
        if is_needed {
            self.barriers += 1;
        }
        is_needed
    }

    pub(super) fn end_barrier(&mut self) {
        self.barriers -= 1;
    }

    /// Removes any request, for a room that closes.
    pub(super) fn pop(&mut self) -> Option<Arc<Waiter>> {
        let place = match self.waiting.first_key_value() {
            Some((place, _)) => *place,
            None => *self.busy.first_key_value()?.0,
        };
        let waiter = match self.waiting.get(&place) {
            Some(waiter) => waiter.clone(),
            None => self.busy.get(&place)?.waiter.clone(),
        };
        self.remove(&place);
        Some(waiter)
    }

    /// Its thread will do something else.
    pub(super) fn set_busy(&mut self, waiter: &Arc<Waiter>) {
        if self.unlist(&waiter.place) {
            let busy = Busy {
                waiter: waiter.clone(),
                visited: self.visited(waiter.place.number),
            };
            self.busy.insert(waiter.place, busy);
        }
    }

    /// Puts a request back in its place. If a pass has missed it, another one is due from there on.
    pub(super) fn set_ready(&mut self, place: &Place) {
        let Some(busy) = self.busy.remove(place) else {
            return;
        };
        let is_first = self.enlist(busy.waiter);
        if is_first && busy.visited != self.visited(place.number) {
            self.request_pass(place.number);
        }
    }

    /// Puts a request back in its place whose try has failed after it had passed the turn on. That
    /// try has held memory which others have missed meanwhile. It is not tried again in the round
    /// in which this try `began`, or two of them would have each other try for ever.
    pub(super) fn set_failed(&mut self, place: &Place, began: u64) {
        // Even if the request has left.
        self.request_pass(0);
        let Some(busy) = self.busy.remove(place) else {
            return;
        };
        busy.waiter.failed_in.store(began, Ordering::Relaxed);
        self.enlist(busy.waiter);
        self.round.recheck_at = Deadline::after(RECHECK_AFTER);
    }

    fn visited(&self, number: u64) -> u64 {
        if self.round.position > number {
            self.round.pass
        } else {
            self.round.pass.wrapping_sub(1)
        }
    }

    /// Returns `true` if no interchangeable request is before it.
    fn enlist(&mut self, waiter: Arc<Waiter>) -> bool {
        let place = waiter.place;
        let first = self.first_like(&place);
        self.waiting.insert(place, waiter.clone());
        if let Some(first) = first {
            if first.place.number < place.number {
                return false;
            }
            self.firsts(&place).remove(first.place.number);
        }
        self.firsts(&place).insert(waiter);
        true
    }

    fn unlist(&mut self, place: &Place) -> bool {
        if self.waiting.remove(place).is_none() {
            return false;
        }
        if self.firsts(place).remove(place.number) {
            if let Some(next) = self.first_like(place) {
                self.firsts(place).insert(next);
            }
        }
        true
    }

    fn first_like(&self, place: &Place) -> Option<Arc<Waiter>> {
        let least = Place {
            number: 0,
            ..*place
        };
        let (first, waiter) = self.waiting.range(least..).next()?;
        if first.is_like(place) {
            Some(waiter.clone())
        } else {
            None
        }
    }

    fn firsts(&mut self, place: &Place) -> &mut Firsts {
        if place.is_future {
            &mut self.futures
        } else {
            &mut self.threads
        }
    }
}

impl List {
    /// Returns the number of this round.
    pub(super) fn round(&self) -> u64 {
        self.round.number
    }

    /// Returns `true` if the doorbell has rung for more than a pass that is due.
    pub(super) fn has_rung(&self, count: u32) -> bool {
        !self.round.has_begun || count.wrapping_sub(self.round.count) > self.round.own_rings
    }

    pub(super) fn recheck_at(&self) -> Option<Deadline> {
        self.round.recheck_at
    }

    /// Begins a round, if the doorbell's `count` was read before its first try.
    pub(super) fn begin_round(&mut self, count: u32) {
        self.round.number += 1;
        self.round.count = count;
        self.round.own_rings = 0;
        self.round.recheck_at = Deadline::after(RECHECK_AFTER);
        self.round.due_from = None;
        self.round.is_listener_woken = false;
        self.round.has_begun = true;
        self.round.has_served = false;
        self.round.began = Some(Instant::now());
        self.begin_pass(0);
    }

    fn begin_pass(&mut self, from: u64) {
        self.round.pass += 1;
        self.round.position = from;
        self.round.least_refused = [usize::MAX; 2];
    }

    /// Requests a pass from the request with this number on, unless this pass has yet to visit it.
    pub(super) fn request_pass(&mut self, from: u64) {
        let is_trying = self.turn.is_some() && !self.is_listening();
        if is_trying && self.round.position <= from {
            return;
        }
        self.round.due_from = match self.round.due_from {
            Some(other) => Some(other.min(from)),
            None => Some(from),
        };
    }

    /// Begins a pass if one is due.
    pub(super) fn begin_due_pass(&mut self) -> bool {
        let Some(from) = self.round.due_from.take() else {
            return false;
        };
        self.round.is_listener_woken = false;
        self.begin_pass(from);
        true
    }

    /// Returns `true` if the listener has to be woken for a pass that is due.
    pub(super) fn must_wake_listener(&mut self) -> bool {
        if self.round.due_from.is_none() || !self.is_listening() || self.round.is_listener_woken {
            return false;
        }
        self.round.is_listener_woken = true;
        self.note_own_ring();
        true
    }

    /// The caller is about to ring the doorbell, although no memory was released.
    pub(super) fn note_own_ring(&mut self) {
        self.round.own_rings += 1;
    }

    pub(super) fn helper_is_ready(&mut self) {
        self.is_helper_ready = true;
        if let Some(from) = self.missed_from.take() {
            self.request_pass(from);
        }
    }

    pub(super) fn note_refused(&mut self, grain: Grain, size: usize) {
        let least = &mut self.round.least_refused[grain as usize];
        *least = size.min(*least);
    }

    /// Passes the turn to the next request of this round or, after the last one, to the first
    /// request, which listens. Returns `false` if the search is not over yet.
    pub(super) fn pass_turn(&mut self, pool: &Pool) -> bool {
        for _ in 0..MOST_AT_ONCE {
            let Some(waiter) = self.next_first() else {
                if self.begin_due_pass() {
                    continue;
                }
                // This pass visits no other request.
                self.round.position = u64::MAX;
                self.note_end();
                self.turn = self.first_ready().map(|waiter| Turn {
                    waiter,
                    is_listening: true,
                });
                return true;
            };
            self.round.position = waiter.place.number + 1;
            if self.may_fit(pool, &waiter) {
                self.turn = Some(Turn {
                    waiter,
                    is_listening: false,
                });
                return true;
            }
        }
        false
    }

    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }

    fn note_end(&mut self) {
        let Some(began) = self.round.began.take() else {
            return;
        };
        let now = Instant::now();
        let rest = (now.duration_since(began) * REST).min(LONGEST_REST);
        self.round.rest_until = if self.round.has_served {
            None
        } else {
            Some(now + rest)
        };
    }

    /// Called when a request was served.
    pub(super) fn note_served(&mut self) {
        self.round.has_served = true;
        self.round.rest_until = None;
    }

    /// Returns how long the listener has to rest before it may begin a round.
    pub(super) fn rest(&self) -> Option<Duration> {
        let until = self.round.rest_until?;
        let left = until.checked_duration_since(Instant::now())?;
        if left.is_zero() {
            return None;
        }
        Some(left)
    }

    fn may_fit(&self, pool: &Pool, waiter: &Waiter) -> bool {
        if waiter.failed_in.load(Ordering::Relaxed) == self.round.number {
            return false;
        }
        let least_refused = self.round.least_refused[waiter.grain as usize];
        waiter.place.size < least_refused || pool.has_ready(waiter.place.class)
    }

    fn next_first(&mut self) -> Option<Arc<Waiter>> {
        let thread = self.threads.from(self.round.position);
        let future = self.futures.from(self.round.position);
        if self.is_helper_ready {
            return earlier(thread, future).cloned();
        }
        if let Some(future) = future {
            let number = future.place.number;
            self.missed_from = match self.missed_from {
                Some(other) => Some(other.min(number)),
                None => Some(number),
            };
        }
        thread.cloned()
    }

    /// Returns the first request that can listen.
    fn first_ready(&self) -> Option<Arc<Waiter>> {
        let thread = self.threads.from(0);
        if !self.is_helper_ready {
            return thread.cloned();
        }
        earlier(thread, self.futures.from(0)).cloned()
    }

    /// Returns the request that has the turn.
    pub(super) fn holder(&self) -> Option<&Arc<Waiter>> {
        self.turn.as_ref().map(|turn| &turn.waiter)
    }

    pub(super) fn holder_number(&self) -> Option<u64> {
        self.holder().map(|holder| holder.place.number)
    }

    pub(super) fn is_turn_of(&self, number: u64) -> bool {
        self.holder_number() == Some(number)
    }

    pub(super) fn is_turn_of_future(&self) -> bool {
        match self.holder() {
            Some(holder) => holder.place.is_future,
            None => false,
        }
    }

    /// Returns `true` if the request that has the turn listens.
    pub(super) fn is_listening(&self) -> bool {
        match &self.turn {
            Some(turn) => turn.is_listening,
            None => false,
        }
    }
}
