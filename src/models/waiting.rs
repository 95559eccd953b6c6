//! Loom models of threads that release memory beside requests that wait for it: no wake-up is lost.

use super::*;
use crate::sync::{explore, Mutex};
use loom::sync::Arc;
use loom::thread;

/// A pool of bytes, and the lengths of the requests that wait. One of them listens, as in `list`.
struct Scene {
    notifier: Notifier,
    shortfall: Shortfall,
    doorbell: MemoryDoorbell,
    free: AtomicU64,
    waiting: Mutex<Vec<u64>>,
}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            notifier: Notifier::new(),
            shortfall: Shortfall {
                released: AtomicU64::new(0),
                resets: AtomicU64::new(0),
                check_at: AtomicU64::new(0),
            },
            doorbell: MemoryDoorbell::new(),
            free: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        })
    }

    fn release(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::Release);
        if self.shortfall.note_released(bytes as usize) {
            self.check();
        }
    }

    fn check(&self) {
        self.shortfall.check(|| {
            let missing = |bytes: usize| {
                let free = self.free.load(Ordering::Relaxed) as usize;
                bytes.saturating_sub(free)
            };
            self.notifier.notify(&self.doorbell, missing)
        });
    }

    /// A search that takes memory and puts it back.
    fn search(&self, bytes: u64) {
        if self.take(bytes) {
            self.free.fetch_add(bytes, Ordering::Release);
            self.shortfall.reset();
            self.check();
        }
    }

    /// Takes memory if there is enough.
    fn take(&self, bytes: u64) -> bool {
        loop {
            let free = self.free.load(Ordering::Relaxed);
            if free < bytes {
                return false;
            }
            let taken = self.free.compare_exchange(
                free,
                free - bytes,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return true;
            }
        }
    }

    fn note_change(&self, waiting: &[u64]) {
        let shortest = waiting.iter().min();
        self.notifier
            .set_shortest(shortest.map(|len| *len as usize));
    }

    fn join(&self, bytes: u64) {
        let mut waiting = self.waiting.lock();
        waiting.push(bytes);
        self.note_change(&waiting);
        drop(waiting);
        // As `barrier::heavy`, which is a fence in the models.
        fence(Ordering::SeqCst);
        self.shortfall.reset();
    }

    fn leave(&self, bytes: u64) {
        let mut waiting = self.waiting.lock();
        let at = waiting.iter().position(|len| *len == bytes).unwrap();
        waiting.swap_remove(at);
        self.note_change(&waiting);
    }

    /// Only a ring wakes it: a lost one is a deadlock.
    fn wait(&self, bytes: u64) {
        loop {
            let count = self.notifier.begin_round(&self.doorbell);
            if self.take(bytes) {
                return;
            }
            self.shortfall.reset();
            self.doorbell.sleep(count, None);
        }
    }
}

/// One request waits, and leaves, while other threads release what it needs, in one piece or two.
fn wait_for(pieces: &'static [u64], preemptions: Option<usize>) {
    explore(preemptions, move || {
        let scene = Scene::new();
        let mut releasing = Vec::new();
        for bytes in pieces {
            let scene = scene.clone();
            releasing.push(thread::spawn(move || scene.release(*bytes)));
        }
        let needed = pieces.iter().sum();
        scene.join(needed);
        scene.wait(needed);
        scene.leave(needed);
        for thread in releasing {
            thread.join().unwrap();
        }
    });
}

#[test]
fn release_beside_join() {
    wait_for(&[1], Some(3));
}

/// Each of the two releases is too little.
#[test]
fn releases_that_serve_together() {
    wait_for(&[1, 1], Some(2));
}

/// A ring that is pending when the request is tried stands for both releases.
#[test]
fn second_release_beside_pending_ring() {
    explore(3, || {
        let scene = Scene::new();
        scene.join(1);
        let releasing = thread::spawn({
            let scene = scene.clone();
            move || {
                scene.release(1);
                scene.release(1);
            }
        });
        scene.wait(1);
        scene.wait(1);
        scene.leave(1);
        releasing.join().unwrap();
    });
}

/// The shorter one leaves while memory for the longer one is released.
#[test]
fn release_beside_leave() {
    explore(3, || {
        let scene = Scene::new();
        scene.join(1);
        scene.join(2);
        let leaving = thread::spawn({
            let scene = scene.clone();
            move || scene.leave(1)
        });
        let releasing = thread::spawn({
            let scene = scene.clone();
            move || scene.release(2)
        });
        scene.wait(2);
        leaving.join().unwrap();
        releasing.join().unwrap();
    });
}

/// The longer one listens when the shorter one joins, which wakes it for another pass.
#[test]
fn shorter_one_joins_beside_release() {
    explore(3, || {
        let scene = Scene::new();
        scene.join(2);
        let releasing = thread::spawn({
            let scene = scene.clone();
            move || scene.release(1)
        });
        let joining = thread::spawn({
            let scene = scene.clone();
            move || {
                scene.join(1);
                scene.doorbell.notify_all();
            }
        });
        // The listener tries both.
        let mut is_served = false;
        while !is_served {
            let count = scene.notifier.begin_round(&scene.doorbell);
            let lengths = scene.waiting.lock().clone();
            is_served = lengths.contains(&1) && scene.take(1);
            if !is_served {
                scene.shortfall.reset();
                scene.doorbell.sleep(count, None);
            }
        }
        releasing.join().unwrap();
        joining.join().unwrap();
    });
}

/// Too little is free at the first check, so the next release is skipped.
#[test]
fn releases_below_the_threshold() {
    explore(2, || {
        let scene = Scene::new();
        scene.join(8);
        scene.release(2);
        let releasing = thread::spawn({
            let scene = scene.clone();
            move || {
                scene.release(1);
                scene.release(5);
            }
        });
        scene.wait(8);
        releasing.join().unwrap();
    });
}

/// A check misses what a search has in its hand.
#[test]
fn release_beside_search() {
    explore(2, || {
        let scene = Scene::new();
        scene.release(4);
        scene.join(8);
        let searching = thread::spawn({
            let scene = scene.clone();
            move || scene.search(4)
        });
        let releasing = thread::spawn({
            let scene = scene.clone();
            move || {
                scene.release(1);
                scene.release(3);
            }
        });
        scene.wait(8);
        searching.join().unwrap();
        releasing.join().unwrap();
    });
}
