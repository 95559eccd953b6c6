//! Loom models of threads that release memory beside requests that wait for it: no wake-up is lost.

use super::*;
use crate::sync::{explore, Mutex};
use loom::sync::Arc;
use loom::thread;

/// A pool of bytes, and the lengths of the requests that wait. One of them listens, as in `list`.
struct Scene {
    notifier: Notifier,
    doorbell: MemoryDoorbell,
    free: AtomicU64,
    waiting: Mutex<Vec<u64>>,
}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            notifier: Notifier::new(),
            doorbell: MemoryDoorbell::new(),
            free: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        })
    }

    fn release(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::Release);
        let are_available = |bytes| self.free.load(Ordering::Relaxed) as usize >= bytes;
        self.notifier.notify(&self.doorbell, are_available);
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
    wait_for(&[1], None);
}

/// Each of the two releases is too little.
#[test]
fn releases_that_serve_together() {
    wait_for(&[1, 1], Some(3));
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
                scene.doorbell.sleep(count, None);
            }
        }
        releasing.join().unwrap();
        joining.join().unwrap();
    });
}
