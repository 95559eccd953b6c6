//! An owner that waits while memory comes back: it never sleeps on.

use super::*;
use loom::sync::Arc;
use loom::thread;

struct Scene {
    bell: MemoryBell,
    /// How much has come back.
    free: AtomicU64,
}

/// What a server does until it has found `wanted`.
fn wait_for(scene: &Scene, wanted: u64) {
    scene.bell.listen(WAITS);
    crate::sync::fence(Ordering::SeqCst);
    loop {
        let count = scene.bell.count();
        if scene.free.load(Ordering::Acquire) == wanted {
            break;
        }
        // The model's sleepers are woken by a ring alone: one that is lost is a deadlock.
        scene.bell.sleep(count, None);
    }
    scene.bell.listen(0);
}

fn give(scene: &Scene) {
    scene.free.fetch_add(1, Ordering::Release);
    scene.bell.ring();
}

fn wait_for_givers(givers: u64, most_preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = most_preemptions;
    model.check(move || {
        let scene = Arc::new(Scene { bell: MemoryBell::new(), free: AtomicU64::new(0) });
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
fn a_giver_is_never_missed() {
    wait_for_givers(1, None);
}

/// With at most two preemptions: all interleavings of three threads take minutes.
#[test]
fn the_last_of_two_givers_is_never_missed() {
    wait_for_givers(2, Some(2));
}

/// What an owner remembers that compares the count: as long as it does not change, nothing that was
/// given back is missed.
#[test]
fn a_count_that_has_not_changed_means_that_nothing_came_back() {
    loom::model(|| {
        let scene = Arc::new(Scene { bell: MemoryBell::new(), free: AtomicU64::new(0) });
        let giving = thread::spawn({
            let scene = scene.clone();
            move || give(&scene)
        });
        scene.bell.listen(REFUSED);
        crate::sync::fence(Ordering::SeqCst);
        let count = scene.bell.count();
        let has_found = scene.free.load(Ordering::Acquire) == 1;
        giving.join().unwrap();
        assert!(has_found || scene.bell.count() != count, "a refusal would be repeated for ever");
    });
}
