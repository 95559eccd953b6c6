//! Loom models of a task whose helper sleeps for it, a thread on two doorbells, and interrupts.

use super::doorbell::{is_asleep, is_notified, Doorbell, LivenessCheck, WakeReason};
use super::interrupt::{Interrupter, Interrupts};
use crate::os::futex::{Futex, Words};
use crate::sync::{explore, fence, fence_after_rmw, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

struct Scene {
    doorbell: Doorbell,
    ready: AtomicU64,
    count: Futex,
    has_waker: AtomicU64,
    wakes: Futex,
    is_over: AtomicU64,
    /// 1 while the helper sleeps on its count alone.
    is_idle: AtomicU64,
    /// Whether the helper can sleep on both words.
    has_many: bool,
}

impl Scene {
    fn new(has_many: bool) -> Arc<Self> {
        let new = || AtomicU64::new(0);
        let (ready, has_waker, is_over, is_idle) = (new(), new(), new(), new());
        let (doorbell, count, wakes) = (Doorbell::new(1), Futex::new(0), Futex::new(0));
        Arc::new(Self {
            doorbell,
            ready,
            count,
            has_waker,
            wakes,
            is_over,
            is_idle,
            has_many,
        })
    }

    fn notify(&self) {
        self.ready.fetch_add(1, Ordering::Release); // W1
        self.doorbell.notify();
    }

    /// As `Parker::arm`.
    fn poll(&self, received: u64) -> bool {
        let is_ready = || self.ready.load(Ordering::Acquire) > received;
        if is_ready() {
            return true;
        }
        self.has_waker.fetch_add(1, Ordering::Release); // T1
        self.count.fetch_add(1, Ordering::SeqCst); // T2
        fence_after_rmw();
        if self.is_idle.load(Ordering::Relaxed) == 1 {
            self.count.wake();
        }
        self.doorbell.announce_wait();
        is_ready() // S3
    }

    fn await_all(&self, all: u64) {
        for received in 0..all {
            loop {
                let wakes = self.wakes.load(Ordering::Acquire);
                if self.poll(received) {
                    break;
                }
                self.wakes.sleep_while(wakes, None);
            }
            // Forgets the waker, as `Parker::disarm` does.
            self.take_waker();
            self.doorbell.end_wait();
        }
        self.is_over.store(1, Ordering::Release);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.count.wake();
        if !self.has_many {
            // A real helper would find the end a second later, but loom has no time.
            self.doorbell.leave();
        }
    }

    fn take_waker(&self) -> bool {
        let found = self.has_waker.load(Ordering::Acquire);
        found > 0
            && self
                .has_waker
                .compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    fn help(&self) {
        loop {
            let count = self.count.load(Ordering::SeqCst); // H1
            if self.is_over.load(Ordering::Acquire) == 1 {
                return;
            }
            let word = self.doorbell.word().load(Ordering::Acquire); // H2
            if !is_asleep(word) && self.take_waker() {
                self.wakes.fetch_add(1, Ordering::Release); // H3
                self.wakes.wake();
            }
            self.sleep(word, count); // H4
        }
    }

    /// As `Helper::sleep`.
    fn sleep(&self, word: u32, count: u32) {
        if self.has_many {
            let mut words = Words::new();
            words.push(self.doorbell.word(), word);
            words.push(&self.count, count);
            words.sleep(None);
        } else if !is_notified(word) {
            self.doorbell.word().sleep_while(word, None);
        } else {
            self.is_idle.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.count.sleep_while(count, None);
            self.is_idle.store(0, Ordering::Relaxed);
        }
    }
}

/// Not even a ring that the helper could mistake for one already seen.
#[test]
fn await_misses_no_ring() {
    await_two_rings(true);
}

/// On kernels where the helper can only sleep on one word at a time.
#[test]
fn await_misses_no_ring_without_futex_waitv() {
    await_two_rings(false);
}

fn await_two_rings(has_many: bool) {
    explore(2, move || {
        let scene = Scene::new(has_many);
        let helper = thread::spawn({
            let scene = scene.clone();
            move || scene.help()
        });
        let ringer = thread::spawn({
            let scene = scene.clone();
            move || (0..2).for_each(|_| scene.notify())
        });
        scene.await_all(2);
        ringer.join().unwrap();
        helper.join().unwrap();
    });
}

#[test]
fn two_doorbells() {
    explore(3, || {
        let doorbells = Arc::new([Doorbell::new(1), Doorbell::new(2)]);
        let ready = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let ringers = [0, 1].map(|at| {
            let (doorbells, ready) = (doorbells.clone(), ready.clone());
            thread::spawn(move || {
                ready[at].store(1, Ordering::Release);
                doorbells[at].notify();
            })
        });
        let is_ready = |at: usize| ready[at].load(Ordering::Acquire) == 1;
        // Until both are ready.
        while !(is_ready(0) && is_ready(1)) {
            let values = [doorbells[0].announce_wait(), doorbells[1].announce_wait()];
            if is_ready(0) && is_ready(1) {
                break;
            }
            let mut words = Words::new();
            doorbells
                .iter()
                .zip(values)
                .for_each(|(doorbell, value)| words.push(doorbell.word(), value.unwrap()));
            words.sleep(None);
        }
        ringers
            .into_iter()
            .for_each(|ringer| ringer.join().unwrap());
    });
}

/// None is lost, none takes the place of a ring, and none is mistaken for the notifier's death.
#[test]
fn interrupt_against_wait() {
    for holder in [0, 1] {
        explore(3, move || {
            let scene = Arc::new((Doorbell::new(holder), AtomicU64::new(0)));
            let interrupts = Interrupts::new();
            let interrupter = Interrupter::new(&interrupts);
            let interrupting = thread::spawn(move || interrupter.interrupt());
            let ringing = (holder != 0).then(|| {
                let scene = scene.clone();
                thread::spawn(move || {
                    scene.1.store(1, Ordering::Release);
                    scene.0.notify();
                })
            });
            let (doorbell, is_notified) = (&scene.0, &scene.1);
            let mut is_taken = false;
            let mut wait = || {
                let is_ready = || !is_taken && is_notified.load(Ordering::Acquire) == 1;
                let woken = doorbell.wait(
                    None,
                    &mut LivenessCheck::new(),
                    &interrupts,
                    is_ready,
                    || true,
                );
                is_taken |= woken == WakeReason::Ready;
                woken
            };
            let first = wait();
            if let Some(ringing) = ringing {
                let second = wait();
                let both = [first, second];
                assert!(
                    both.contains(&WakeReason::Ready) && both.contains(&WakeReason::Interrupted)
                );
                ringing.join().unwrap();
            } else {
                assert_eq!(first, WakeReason::Interrupted);
            }
            assert!(!interrupts.is_set() && !doorbell.is_disconnected());
            interrupting.join().unwrap();
        });
    }
}

/// Two interrupts end one wait or two, and the second of them wakes where the first was taken.
#[test]
fn two_interrupts() {
    explore(3, || {
        let doorbell = Doorbell::new(1);
        let interrupts = Interrupts::new();
        let interrupters = [(); 2].map(|()| {
            let interrupter = Interrupter::new(&interrupts);
            thread::spawn(move || interrupter.interrupt())
        });
        let wait = || {
            doorbell.wait(
                None,
                &mut LivenessCheck::new(),
                &interrupts,
                || false,
                || true,
            )
        };
        assert_eq!(wait(), WakeReason::Interrupted);
        for interrupter in interrupters {
            interrupter.join().unwrap();
        }
        if interrupts.is_set() {
            assert_eq!(wait(), WakeReason::Interrupted);
        }
    });
}
