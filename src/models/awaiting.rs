//! Loom models of a task whose helper sleeps for it, a thread on two bells, and interrupts.

use super::bell::{is_asleep, is_rung, Bell, Look, Woken};
use super::interrupt::{Interrupter, Interrupts};
use crate::os::futex::{Futex, Words};
use crate::sync::{explore, fence, fence_after_rmw, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

struct Scene {
    bell: Bell,
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
        let (bell, count, wakes) = (Bell::new(1), Futex::new(0), Futex::new(0));
        Arc::new(Self {
            bell,
            ready,
            count,
            has_waker,
            wakes,
            is_over,
            is_idle,
            has_many,
        })
    }

    fn ring(&self) {
        self.ready.fetch_add(1, Ordering::Release); // W1
        self.bell.ring();
    }

    /// As `Sleeper::arm`.
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
        self.bell.lie_down();
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
            // Forgets the waker, as `Sleeper::disarm` does.
            self.take_waker();
            self.bell.get_up();
        }
        self.is_over.store(1, Ordering::Release);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.count.wake();
        if !self.has_many {
            // A real helper would find the end a second later, but loom has no time.
            self.bell.leave();
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
            let word = self.bell.word().load(Ordering::Acquire); // H2
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
            words.push(self.bell.word(), word);
            words.push(&self.count, count);
            words.sleep(None);
        } else if !is_rung(word) {
            self.bell.word().sleep_while(word, None);
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
            move || (0..2).for_each(|_| scene.ring())
        });
        scene.await_all(2);
        ringer.join().unwrap();
        helper.join().unwrap();
    });
}

#[test]
fn two_bells() {
    explore(3, || {
        let bells = Arc::new([Bell::new(1), Bell::new(2)]);
        let ready = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let ringers = [0, 1].map(|at| {
            let (bells, ready) = (bells.clone(), ready.clone());
            thread::spawn(move || {
                ready[at].store(1, Ordering::Release);
                bells[at].ring();
            })
        });
        let is_ready = |at: usize| ready[at].load(Ordering::Acquire) == 1;
        // Until both are ready.
        while !(is_ready(0) && is_ready(1)) {
            let values = [bells[0].lie_down(), bells[1].lie_down()];
            if is_ready(0) && is_ready(1) {
                break;
            }
            let mut words = Words::new();
            bells
                .iter()
                .zip(values)
                .for_each(|(bell, value)| words.push(bell.word(), value.unwrap()));
            words.sleep(None);
        }
        ringers
            .into_iter()
            .for_each(|ringer| ringer.join().unwrap());
    });
}

/// None is lost, none takes the place of a ring, and none is mistaken for the ringer's death.
#[test]
fn interrupt_against_wait() {
    for holder in [0, 1] {
        explore(3, move || {
            let scene = Arc::new((Bell::new(holder), AtomicU64::new(0)));
            let interrupts = Interrupts::new();
            let interrupter = Interrupter::new(&interrupts);
            let interrupting = thread::spawn(move || interrupter.interrupt());
            let ringing = (holder != 0).then(|| {
                let scene = scene.clone();
                thread::spawn(move || {
                    scene.1.store(1, Ordering::Release);
                    scene.0.ring();
                })
            });
            let (bell, is_rung) = (&scene.0, &scene.1);
            let mut is_taken = false;
            let mut wait = || {
                let is_ready = || !is_taken && is_rung.load(Ordering::Acquire) == 1;
                let woken = bell.wait(None, &mut Look::new(), &interrupts, is_ready, || true);
                is_taken |= woken == Woken::Ready;
                woken
            };
            let first = wait();
            if let Some(ringing) = ringing {
                let second = wait();
                let both = [first, second];
                assert!(both.contains(&Woken::Ready) && both.contains(&Woken::Interrupted));
                ringing.join().unwrap();
            } else {
                assert_eq!(first, Woken::Interrupted);
            }
            assert!(!interrupts.is_set() && !bell.is_gone());
            interrupting.join().unwrap();
        });
    }
}

/// Two interrupts end one wait or two, and the second of them wakes where the first was taken.
#[test]
fn two_interrupts() {
    explore(3, || {
        let bell = Bell::new(1);
        let interrupts = Interrupts::new();
        let interrupters = [(); 2].map(|()| {
            let interrupter = Interrupter::new(&interrupts);
            thread::spawn(move || interrupter.interrupt())
        });
        let wait = || bell.wait(None, &mut Look::new(), &interrupts, || false, || true);
        assert_eq!(wait(), Woken::Interrupted);
        for interrupter in interrupters {
            interrupter.join().unwrap();
        }
        if interrupts.is_set() {
            assert_eq!(wait(), Woken::Interrupted);
        }
    });
}
