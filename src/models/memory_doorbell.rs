//! Loom models of an owner that waits for returned memory: it misses no wake-up.

use super::*;
use crate::sync::explore;
use loom::sync::Arc;
use loom::thread;

struct Scene {
    doorbell: MemoryDoorbell,
    free: AtomicU64,
}

fn wait_for(scene: &Scene, wanted: u64) {
    scene.doorbell.listen(true);
    crate::sync::fence(Ordering::SeqCst);
    loop {
        let count = scene.doorbell.count();
        if scene.free.load(Ordering::Acquire) == wanted {
            break;
        }
        // In the model, only a ring wakes a waiter: a lost one is a deadlock.
        scene.doorbell.sleep(count, None);
    }
    scene.doorbell.listen(false);
}

fn give(scene: &Scene) {
    scene.free.fetch_add(1, Ordering::Release);
    scene.doorbell.notify();
}

fn wait_for_givers(givers: u64, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let scene = Arc::new(Scene {
            doorbell: MemoryDoorbell::new(),
            free: AtomicU64::new(0),
        });
        let giving: Vec<_> = (0..givers)
            .map(|_| {
                let scene = scene.clone();
                thread::spawn(move || give(&scene))
            })
            .collect();
        wait_for(&scene, givers);
        giving.into_iter().for_each(|giver| giver.join().unwrap());
    });
}

#[test]
fn release_is_never_missed() {
    wait_for_givers(1, None);
}

/// With at most two preemptions: all interleavings of three threads take minutes.
#[test]
fn last_of_two_releases_is_never_missed() {
    wait_for_givers(2, Some(2));
}
