//! Loom models of the descriptor: a wake-up makes it readable, whenever it comes.

use super::*;
use loom::sync::atomic::AtomicU32 as Word;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// The counter of an eventfd, which the kernel protects by a lock. Readable at first.
#[derive(Debug)]
pub(super) struct EventFd {
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventFd {
    fn new() -> Self {
        Self { count: Mutex::new(1), changed: Condvar::new() }
    }

    pub(super) fn set(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_one();
    }

    pub(super) fn clear(&self) {
        *self.count.lock().unwrap() = 0;
    }

    /// Blocks until it is readable: in the model, a lost wake-up is a deadlock.
    fn poll(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.changed.wait(count).unwrap();
        }
    }
}

/// A source of messages whose waker is always registered.
struct Scene {
    shared: Shared,
    messages: Word,
}

/// Receives all messages, as an event loop does: only while the descriptor is readable.
fn receive(scene: &Scene, sent: u32) {
    let (mut received, mut is_cleared) = (0, false);
    while received < sent {
        scene.shared.fd.poll();
        let arrived = |received| match scene.messages.load(Ordering::Relaxed) > received {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        while received < sent && scene.shared.poll(&mut is_cleared, || arrived(received)).is_ready() {
            received += 1;
        }
    }
}

fn senders(count: u32, most_preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = most_preemptions;
    model.check(move || {
        let scene = Arc::new(Scene { shared: Shared::new(EventFd::new()), messages: Word::new(0) });
        let sending: Vec<_> = (0..count)
            .map(|_| {
                let scene = scene.clone();
                thread::spawn(move || {
                    scene.messages.fetch_add(1, Ordering::Relaxed);
                    scene.shared.wake();
                })
            })
            .collect();
        receive(&scene, count);
        sending.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn wake_up_is_never_lost() {
    senders(1, None);
}

#[test]
fn last_of_two_wake_ups_is_never_lost() {
    senders(2, Some(3));
}
