//! How long a wait spins before it sleeps.
//!
//! A spin pays only if the other end acts while it lasts, which takes another CPU. On the same CPU
//! the other end cannot run before the spin is over. Where the program has not said how long to
//! spin, a wait spins as the waits before it suggest ([`Adaptive`]).
//!
//! A wait that sleeps shows what a spin would have brought, at no cost: whoever notifies a waiter
//! leaves beside the doorbell when it did so, on which CPU, and how long its thread had been awake
//! ([`LastNotify`]).
//!
//! | the wait | the next one spins for |
//! |---|---|
//! | the first | nothing |
//! | ended during its spin | 20 µs |
//! | slept, and was notified from the CPU on which it wakes | nothing |
//! | slept, and was notified from another CPU within 20 µs | 20 µs |
//! | slept, and was notified from another CPU within 20 µs of the other end's own wake-up | 20 µs, with pauses |
//! | slept, and was notified from another CPU later, or ended otherwise | half as long as this one, unless that is less than 2.5 µs; then nothing |
//!
//! So after a spin that pays, those that do not last for 37.5 µs in all. Apart from two ends that wait
//! for each other to wake up (below), nothing is spun to find out whether a spin pays:
//!
//! * Two ends that are confined to one CPU never spin, whatever confines them: one CPU that is
//!   online, the affinity of their processes or threads, or other programs that keep the rest busy.
//!   No affinity is read, which would be that of a process or a thread in another PID namespace,
//!   may change later, and does not show a quota.
//! * An end whose other end is held up, by a quota for example, does not wait for it in a spin.
//! * After a pause, the first wait sleeps, and the second one spins.
//!
//! The price is one wake-up after a pause, where a spin might have paid at once.
//!
//! **Two ends that wait for each other to wake up.** Where a wake-up takes longer than 20 µs, as in
//! many virtual machines, two ends that answer each other at once would go on sleeping for each
//! other's wake-ups. With one spin that lasts until the other end is awake, both spin from then on.
//! So that wake-up does not count. But it may be longer than any spin: of such spins in vain, the
//! first 16 are made one after another. Then one, three, seven … and at most 63 waits without a
//! spin follow each of them, until a spin pays, or the other end makes a pause of its own.
//!
//! What the other end leaves is a hint: garbage makes a wait spin in vain, or sleep where
//! a spin would have paid. In a time namespace of its own the time is wrong; then the length of the
//! wait counts, with the time that it took to wake up.

#![forbid(unsafe_code)]

use super::doorbell::{take_interrupt, Doorbell, LivenessCheck, WakeReason, LOOKS};
use super::interrupt::Interrupts;
use crate::os::cpu::current_cpu;
use crate::os::futex::{monotonic_nanos, Deadline};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// In nanoseconds, as all numbers here.
const LONGEST: u64 = 20_000;

const SHORTEST: u64 = LONGEST / 8;

/// How many spins in vain for the other end's wake-up are made one after another.
const IN_A_ROW: u32 = 16;

/// The most waits without a spin between two of them.
const LONGEST_PAUSE: u32 = 63;

/// When and on which CPU a doorbell was last notified, and how long its notifier had been awake. In
/// shared memory.
#[repr(C)]
pub(super) struct LastNotify {
    /// The number of the CPU, plus 1; 0 if it is not known.
    cpu: AtomicU32,
    /// How long the notifier's thread had been awake; 0 if it is not known.
    awake: AtomicU32,
    /// Of `CLOCK_MONOTONIC`.
    nanos: AtomicU64,
}

thread_local! {
    /// When this thread last woke from a wait of an end; 0 before that.
    static WOKE: Cell<u64> = const { Cell::new(0) };
}

/// Notes that a wait of this thread is over, which began at that time. Returns the time.
pub(super) fn note_wake(began: u64) -> u64 {
    let now = monotonic_nanos();
    // A shorter one has not slept.
    if now.saturating_sub(began) >= SHORTEST {
        // Without it, after the thread's other destructors, the other end sleeps.
        let _ = WOKE.try_with(|woke| woke.set(now));
    }
    now
}

/// How long this thread has been awake; 0 if that is not known.
fn awake_since_wake(now: u64) -> u32 {
    match WOKE.try_with(Cell::get) {
        Ok(0) | Err(_) => 0,
        Ok(woke) => u32::try_from(now.saturating_sub(woke))
            .unwrap_or(u32::MAX)
            .max(1),
    }
}

/// The number of the CPU on which this thread runs, plus 1; 0 if it is not known.
fn cpu_word() -> u32 {
    match current_cpu() {
        Some(cpu) => cpu.saturating_add(1),
        None => 0,
    }
}

impl LastNotify {
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            cpu: AtomicU32::new(0),
            awake: AtomicU32::new(0),
            nanos: AtomicU64::new(0),
        }
    }

    /// Notes a ring by this thread.
    pub(super) fn note(&self) {
        let cpu = cpu_word();
        let now = monotonic_nanos();
        // Relaxed: hints. Two notifiers may mix theirs.
        self.cpu.store(cpu, Ordering::Relaxed);
        self.awake.store(awake_since_wake(now), Ordering::Relaxed);
        self.nanos.store(now, Ordering::Relaxed);
    }
}

/// What a wait that slept has shown.
#[derive(Clone, Copy)]
struct Slept {
    began: u64,
    ended: u64,
    rung: u64,
    /// How long the notifier had been awake by then, if that is known.
    awake: Option<u64>,
    /// `true` if it was notified from another CPU than that on which it woke.
    is_apart: bool,
    woken: WakeReason,
}

/// The spin of one end's waits, where the program has not set one.
pub(super) struct Adaptive {
    budget: u64,
    /// How many spins for the other end's wake-up were in vain since one has paid.
    in_vain: u32,
    /// How many waits are left before the next of these spins.
    pause: u32,
}

impl Adaptive {
    pub(super) fn new() -> Self {
        Self {
            budget: 0,
            in_vain: 0,
            pause: 0,
        }
    }

    #[inline]
    pub(super) fn budget(&self) -> Duration {
        Duration::from_nanos(self.budget)
    }

    /// A wait ended during its spin, or would have.
    #[inline]
    pub(super) fn grow(&mut self) {
        *self = Self {
            budget: LONGEST,
            ..Self::new()
        };
    }

    /// A wait slept for longer than a spin may last.
    pub(super) fn shrink(&mut self) {
        let half = self.budget / 2;
        self.budget = if half < SHORTEST { 0 } else { half };
    }

    /// A wait slept for as long as the other end took to wake up.
    fn spin_for_a_wake_up(&mut self) {
        if self.budget > 0 {
            self.in_vain = self.in_vain.saturating_add(1);
            let doublings = self.in_vain.saturating_sub(IN_A_ROW - 1);
            // One, three, seven …
            let pause = (1_u64 << doublings.min(32)) - 1;
            self.pause = pause.min(u64::from(LONGEST_PAUSE)) as u32;
        }
        if self.pause > 0 {
            self.pause -= 1;
            self.budget = 0;
        } else {
            self.budget = LONGEST;
        }
    }

    /// A wait slept, which began at that time.
    pub(super) fn learn(&mut self, began: u64, doorbell: &Doorbell, woken: WakeReason) {
        let last = doorbell.last_notify();
        // Relaxed: see `LastNotify::note`.
        let cpu = last.cpu.load(Ordering::Relaxed);
        let awake = match last.awake.load(Ordering::Relaxed) {
            0 => None,
            awake => Some(u64::from(awake)),
        };
        let here = cpu_word();
        self.update(Slept {
            began,
            ended: note_wake(began),
            rung: last.nanos.load(Ordering::Relaxed),
            awake,
            is_apart: cpu != 0 && here != 0 && here != cpu,
            woken,
        });
    }

    fn update(&mut self, slept: Slept) {
        if slept.woken != WakeReason::Ready {
            return self.shrink();
        }
        if !slept.is_apart {
            self.budget = 0;
            return;
        }
        // It may have been ready before it was notified, and the time may be garbage.
        let is_known = (slept.began..=slept.ended).contains(&slept.rung);
        let end = if is_known { slept.rung } else { slept.ended };
        let waited = end.saturating_sub(slept.began);
        let is_answer = is_known
            && slept
                .awake
                .is_some_and(|awake| awake <= LONGEST.min(waited));
        if waited <= LONGEST {
            self.grow();
        } else if is_answer {
            self.spin_for_a_wake_up();
        } else {
            // A pause.
            self.in_vain = 0;
            self.pause = 0;
            self.shrink();
        }
    }
}

/// Spins until `is_ready` returns `true`, an interrupt arrives or the notifier has left, for at
/// most
/// `budget`. Returns `None` after that, or if the deadline has passed: then [`Doorbell::wait`]. Notes in
/// `began` when it began, unless it was over by then.
#[allow(clippy::too_many_arguments)] // Those of `Doorbell::wait`, and two more.
pub(super) fn spin(
    budget: Duration,
    began: &mut Option<u64>,
    doorbell: &Doorbell,
    deadline: Option<Deadline>,
    check: &mut LivenessCheck,
    interrupts: &Interrupts,
    mut is_ready: impl FnMut() -> bool,
    is_there: impl Fn() -> bool,
) -> Option<WakeReason> {
    if budget.is_zero() {
        return None;
    }
    loop {
        for _ in 0..LOOKS {
            if is_ready() {
                return Some(WakeReason::Ready);
            }
            std::hint::spin_loop();
        }
        if let Some(woken) = take_interrupt(interrupts, &mut is_ready) {
            return Some(woken);
        }
        doorbell.check_notifier(check, &is_there);
        // What the notifier made ready before it left still counts.
        if doorbell.is_disconnected() {
            return Some(if is_ready() {
                WakeReason::Ready
            } else {
                WakeReason::Disconnected
            });
        }
        if is_over(budget, began) || Deadline::is_past(deadline) {
            return None;
        }
    }
}

/// Returns `true` if that time has passed since `began`, which the first call sets.
pub(super) fn is_over(budget: Duration, began: &mut Option<u64>) -> bool {
    let now = monotonic_nanos();
    let began = *began.get_or_insert(now);
    u128::from(now.saturating_sub(began)) >= budget.as_nanos()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::{Receiver, Sender};
    use crate::os::name::Namespace;
    use crate::owner::provider::Provider;
    use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
    use nix::unistd::Pid;
    use std::cell::Cell;
    use std::thread;

    const MICRO: u64 = 1_000;

    /// A wait that begins at 1 s, is notified after so many microseconds, and wakes 5 µs later.
    fn rung_after(micros: u64) -> Slept {
        let began = 1_000_000 * MICRO;
        let rung = began + micros * MICRO;
        Slept {
            began,
            ended: rung + 5 * MICRO,
            rung,
            awake: None,
            is_apart: true,
            woken: WakeReason::Ready,
        }
    }

    /// As [`rung_after`], by an end that had been awake for so many microseconds.
    fn answered_after(micros: u64, awake: u64) -> Slept {
        Slept {
            awake: Some(awake * MICRO),
            ..rung_after(micros)
        }
    }

    #[test]
    fn budgets() {
        let same_cpu = |micros| Slept {
            is_apart: false,
            ..rung_after(micros)
        };
        let not_ready = |woken| Slept {
            woken,
            ..rung_after(1)
        };
        // As of another time namespace, or of an earlier wait.
        let unknown = |micros, rung| Slept {
            rung,
            ..rung_after(micros)
        };
        // The budget before in microseconds, the wait, and the budget after, in nanoseconds.
        let table = [
            ("apart, at once", 0, rung_after(0), 20_000),
            ("apart, just in time", 0, rung_after(20), 20_000),
            ("apart, too late", 0, rung_after(21), 0),
            ("apart, the spin was cut short", 5, rung_after(10), 20_000),
            ("too late after 20", 20, rung_after(1_000), 10_000),
            ("too late after 10", 10, rung_after(1_000), 5_000),
            ("too late after 5", 5, rung_after(1_000), 2_500),
            ("too late after 2", 2, rung_after(1_000), 0),
            ("one CPU, at once", 20, same_cpu(1), 0),
            ("one CPU, late", 20, same_cpu(1_000), 0),
            ("answered at once", 0, answered_after(50, 1), 20_000),
            ("answered in time", 0, answered_after(50, 20), 20_000),
            ("answered too late", 20, answered_after(50, 21), 10_000),
            (
                "awake all the time",
                20,
                answered_after(1_000, 2_000),
                10_000,
            ),
            (
                "one CPU, answered",
                20,
                Slept {
                    is_apart: false,
                    ..answered_after(50, 1)
                },
                0,
            ),
            (
                "answered, rung before",
                20,
                Slept {
                    rung: 7,
                    ..answered_after(100, 1)
                },
                10_000,
            ),
            ("timed out", 20, not_ready(WakeReason::TimedOut), 10_000),
            (
                "interrupted",
                20,
                not_ready(WakeReason::Interrupted),
                10_000,
            ),
            (
                "disconnected",
                20,
                not_ready(WakeReason::Disconnected),
                10_000,
            ),
            ("short, rung before", 0, unknown(1, 7), 20_000),
            ("long, rung before", 20, unknown(100, 7), 10_000),
            ("short, rung in the future", 0, unknown(1, u64::MAX), 20_000),
            (
                "long, rung in the future",
                20,
                unknown(100, u64::MAX),
                10_000,
            ),
        ];
        for (case, before, slept, after) in table {
            let mut adaptive = Adaptive {
                budget: before * MICRO,
                ..Adaptive::new()
            };
            adaptive.update(slept);
            assert_eq!(adaptive.budget, after, "{case}");
        }
    }

    /// Where the other end has a quota, it answers at once until it is held up for some 50 ms.
    #[test]
    fn quota() {
        let mut adaptive = Adaptive::new();
        let mut in_vain = 0;
        for period in 0..100 {
            for _ in 0..5 {
                in_vain += adaptive.budget;
                adaptive.update(rung_after(50_000));
            }
            assert_eq!(adaptive.budget, 0, "period {period}");
            adaptive.update(rung_after(3));
            assert_eq!(adaptive.budget, LONGEST, "period {period}");
        }
        assert_eq!(in_vain, 99 * (20_000 + 10_000 + 5_000 + 2_500));
    }

    /// Each end sleeps until the other one has woken, which takes longer than a spin.
    #[test]
    fn slow_wake_ups() {
        let mut adaptive = Adaptive::new();
        let mut spins = Vec::new();
        for wait in 0..500 {
            if adaptive.budget > 0 {
                assert_eq!(adaptive.budget, LONGEST);
                spins.push(wait);
            }
            adaptive.update(answered_after(50, 3));
        }
        let pauses: Vec<u32> = spins.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
        assert_eq!(pauses[..15], [0; 15]);
        assert_eq!(pauses[15..], [1, 3, 7, 15, 31, 63, 63, 63, 63, 63, 63]);

        // A spin that pays begins a new series.
        adaptive.grow();
        for _ in 0..IN_A_ROW {
            assert_eq!(adaptive.budget, LONGEST);
            adaptive.update(answered_after(50, 3));
        }
        assert_eq!(adaptive.budget, 0);

        // So does a pause of the other end.
        adaptive.update(rung_after(8_000));
        assert_eq!(adaptive.budget, 0);
        for _ in 0..IN_A_ROW {
            adaptive.update(answered_after(50, 3));
            assert_eq!(adaptive.budget, LONGEST);
        }
    }

    /// Messages that come too late for a spin cost none.
    #[test]
    fn slow_messages() {
        let mut adaptive = Adaptive::new();
        let mut spun = 0;
        for _ in 0..1000 {
            spun += adaptive.budget;
            adaptive.update(rung_after(100));
        }
        assert_eq!(spun, 0);
    }

    /// Returns whether the condition was checked at all, and for how long.
    fn spin_in_vain(budget: Duration) -> (bool, Duration) {
        let doorbell = Doorbell::new(1);
        let is_checked = Cell::new(false);
        let is_ready = || {
            is_checked.set(true);
            false
        };
        let start = monotonic_nanos();
        let woken = spin(
            budget,
            &mut None,
            &doorbell,
            None,
            &mut LivenessCheck::new(),
            &Interrupts::new(),
            is_ready,
            || true,
        );
        assert_eq!(woken, None);
        let took = Duration::from_nanos(monotonic_nanos() - start);
        (is_checked.get(), took)
    }

    #[test]
    fn spins_for_its_budget() {
        assert!(!spin_in_vain(Duration::ZERO).0);
        let budget = Duration::from_millis(2);
        let (is_checked, took) = spin_in_vain(budget);
        assert!(is_checked && took >= budget, "{took:?}");
    }

    const THIS_THREAD: Pid = Pid::from_raw(0);

    /// Returns the CPUs on which this thread may run.
    fn usable() -> Vec<usize> {
        let allowed = sched_getaffinity(THIS_THREAD).unwrap();
        (0..CpuSet::count())
            .filter(|&cpu| allowed.is_set(cpu).unwrap())
            .collect()
    }

    fn pin(cpu: usize) {
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        sched_setaffinity(THIS_THREAD, &only).unwrap();
    }

    /// Sends a message to a receiver that sleeps, from a thread on `there`, and calls `received`
    /// with its next budget until that returns `true`.
    fn ring_from(
        there: usize,
        here: usize,
        mut received: impl FnMut(u64) -> bool + Send + 'static,
    ) {
        let name = format!("spin-{}-{there}-{here}", std::process::id());
        let namespace = Namespace::new(&name).unwrap();
        let provider = Provider::builder().namespace(&namespace).build().unwrap();
        let mut sender = Sender::create(&provider, "c").unwrap();
        let mut receiver = Receiver::builder().namespace(&namespace).open("c").unwrap();
        let shared = receiver.end.open.as_ref().unwrap().shared();
        let sending = thread::spawn(move || {
            pin(there);
            loop {
                while !shared.to_receiver().is_slept_on() {
                    if shared.to_sender().is_disconnected() {
                        return;
                    }
                    thread::yield_now();
                }
                sender.send_copy(b"now").unwrap();
            }
        });
        let receiving = thread::spawn(move || {
            pin(here);
            loop {
                receiver.recv().unwrap();
                let open = receiver.end.open.as_ref().unwrap();
                if received(open.parker.adaptive.budget) {
                    return;
                }
            }
        });
        receiving.join().unwrap();
        sending.join().unwrap();
    }

    /// However the two ends came to share it.
    #[test]
    fn never_spins_on_one_cpu() {
        let cpu = usable()[0];
        let mut received = 0;
        ring_from(cpu, cpu, move |budget| {
            assert_eq!(budget, 0, "after {received} messages");
            received += 1;
            received == 2000
        });
    }

    #[test]
    fn spins_on_two_cpus() {
        if let [one, other, ..] = usable()[..] {
            // A wait or two may take longer than a spin, on a busy machine.
            ring_from(one, other, |budget| budget > 0);
        }
    }
}
