//! Loom models of the descriptor: a wake-up makes it readable, whenever it comes.

use super::*;
use crate::sync::{explore, fence};
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
        Self {
            count: Mutex::new(1),
            changed: Condvar::new(),
        }
    }

    pub(super) fn set(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_one();
    }

    pub(super) fn clear(&self) {
        *self.count.lock().unwrap() = 0;
    }

    /// In the model, a lost wake-up is a deadlock.
    fn poll(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.changed.wait(count).unwrap();
        }
    }
}

/// With one waker at most, which wakes once. Like `AtomicWaker`, changes its state by
/// read-modify-writes alone.
struct Scene {
    shared: Shared,
    messages: Word,
    is_armed: Word,
}

impl Scene {
    fn new() -> Arc<Self> {
        let (messages, is_armed) = (Word::new(0), Word::new(0));
        Arc::new(Self {
            shared: Shared::new(EventFd::new()),
            messages,
            is_armed,
        })
    }

    fn send(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.is_armed.swap(0, Ordering::SeqCst) != 0 {
            self.shared.wake();
        }
    }

    /// If the message has arrived, drops the waker.
    fn take(&self, number: u32) -> Poll<()> {
        let has_arrived = || self.messages.load(Ordering::SeqCst) > number;
        if !has_arrived() {
            self.is_armed.swap(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !has_arrived() {
                return Poll::Pending;
            }
        }
        self.is_armed.swap(0, Ordering::SeqCst);
        Poll::Ready(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Loop {
    /// Until the result is pending, whenever the descriptor is readable.
    UntilPending,
    /// Once, whenever the descriptor is readable.
    Once,
    /// Besides, twice at first for another reason.
    AlsoUnasked,
}

fn receive(scene: &Scene, sent: u32, polls: Loop) {
    let (mut received, mut is_cleared) = (0, false);
    let mut poll = || {
        let is_ready = received < sent
            && scene
                .shared
                .poll(&mut is_cleared, || scene.take(received))
                .is_ready();
        received += u32::from(is_ready);
        (is_ready, received < sent)
    };
    let mut is_waiting = true;
    if polls == Loop::AlsoUnasked {
        poll();
        is_waiting = poll().1;
    }
    while is_waiting {
        scene.shared.fd.poll();
        let mut is_ready = true;
        while is_ready && is_waiting {
            (is_ready, is_waiting) = poll();
            is_ready &= polls == Loop::UntilPending;
        }
    }
}

fn senders(count: u32, polls: Loop, preemptions: impl Into<Option<usize>>) {
    explore(preemptions, move || {
        let scene = Scene::new();
        let send = |scene: Arc<Scene>| thread::spawn(move || scene.send());
        let sending: Vec<_> = (0..count).map(|_| send(scene.clone())).collect();
        receive(&scene, count, polls);
        sending
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn poll_until_pending() {
    senders(1, Loop::UntilPending, None);
    senders(2, Loop::UntilPending, 2);
}

#[test]
fn poll_once() {
    senders(1, Loop::Once, None);
    senders(2, Loop::Once, 2);
}

#[test]
fn poll_unasked() {
    senders(1, Loop::AlsoUnasked, None);
    senders(2, Loop::AlsoUnasked, 2);
}

/// No model opens an end of a channel, so none has a descriptor.
impl WakeFd {
    pub(crate) fn new() -> Result<Self, OsError> {
        unreachable!("a model has no descriptors")
    }

    pub(crate) fn poll<T>(&mut self, _: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        unreachable!("a model has no descriptors")
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        unreachable!("a model has no descriptors")
    }
}
