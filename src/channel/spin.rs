//! How long a wait spins before it sleeps.
//!
//! A spin pays only if the other end acts while it lasts, which takes another CPU. On the same CPU
//! the other end cannot run before the spin is over. Where the program has not said how long to
//! spin, a wait spins as the waits before it suggest ([`Adaptive`]).
//!
//! A wait that sleeps shows what a spin would have brought, at no cost: whoever notifies a waiter
//! leaves beside the doorbell when it did so and on which CPU ([`LastNotify`]).
//!
//! | the wait | the next one spins for |
//! |---|---|
//! | the first | nothing |
//! | ended during its spin | 20 µs |
//! | slept, and was notified from the CPU on which it wakes | nothing |
//! | slept, and was notified from another CPU within 20 µs | 20 µs |
//! | slept, and was notified from another CPU later, or ended otherwise | half as long as this one, unless that is less than 2.5 µs; then nothing |
//!
//! So after a spin that pays, those that do not last for 37.5 µs in all. Nothing is spun to find
//! out whether a spin pays:
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
//! What the other end leaves is a hint: garbage makes a wait spin in vain, or sleep where
//! a spin would have paid. In a time namespace of its own the time is wrong; then the length of the
//! wait counts, with the time that it took to wake up.

#![forbid(unsafe_code)]

use super::doorbell::{take_interrupt, Doorbell, LivenessCheck, WakeReason, LOOKS};
use super::interrupt::Interrupts;
use crate::os::cpu::current_cpu;
use crate::os::futex::{monotonic_nanos, Deadline};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// In nanoseconds, as all numbers here.
const LONGEST: u64 = 20_000;

const SHORTEST: u64 = LONGEST / 8;

/// When and on which CPU a doorbell was last notified. In shared memory.
#[repr(C)]
pub(super) struct LastNotify {
    /// The number of the CPU, plus 1; 0 if it is not known.
    cpu: AtomicU32,
    /// Of `CLOCK_MONOTONIC`.
    nanos: AtomicU64,
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
            nanos: AtomicU64::new(0),
        }
    }

    /// Notes a ring by this thread.
    pub(super) fn note(&self) {
        let cpu = cpu_word();
        // Relaxed: hints. Two notifiers may mix theirs.
        self.cpu.store(cpu, Ordering::Relaxed);
        self.nanos.store(monotonic_nanos(), Ordering::Relaxed);
    }
}

/// What a wait that slept has shown.
#[derive(Clone, Copy)]
struct Slept {
    began: u64,
    ended: u64,
    rung: u64,
    /// `true` if it was notified from another CPU than that on which it woke.
    is_apart: bool,
    woken: WakeReason,
}

/// The spin of one end's waits, where the program has not set one.
pub(super) struct Adaptive {
    budget: u64,
}

impl Adaptive {
    pub(super) fn new() -> Self {
        Self { budget: 0 }
    }

    #[inline]
    pub(super) fn budget(&self) -> Duration {
        Duration::from_nanos(self.budget)
    }

    /// A wait ended during its spin.
    #[inline]
    pub(super) fn grow(&mut self) {
        self.budget = LONGEST;
    }

    /// A wait slept for longer than a spin may last.
    pub(super) fn shrink(&mut self) {
        let half = self.budget / 2;
        self.budget = if half < SHORTEST { 0 } else { half };
    }

    /// A wait slept, which began at that time.
    pub(super) fn learn(&mut self, began: u64, doorbell: &Doorbell, woken: WakeReason) {
        let last = doorbell.last_notify();
        // Relaxed: see `LastNotify::note`.
        let cpu = last.cpu.load(Ordering::Relaxed);
        let here = cpu_word();
        self.update(Slept {
            began,
            ended: monotonic_nanos(),
            rung: last.nanos.load(Ordering::Relaxed),
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
        if end.saturating_sub(slept.began) <= LONGEST {
            self.grow();
        } else {
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
            is_apart: true,
            woken: WakeReason::Ready,
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
