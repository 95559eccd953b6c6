//! Loom models of the name watcher: no change of a name is missed, and no wait is left with a name
//! watcher that exits.

use super::*;
use crate::sync::explore;
use loom::sync::{Condvar, Mutex as Lock, MutexGuard};
use loom::thread::{self, JoinHandle};
use std::io;
use std::ops::Add;
use std::task::Wake;

/// Time stands still: no check is due but for a report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(Duration);

impl Instant {
    pub(super) fn now() -> Self {
        Self(Duration::ZERO)
    }

    pub(super) fn saturating_duration_since(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

#[derive(Default)]
struct State {
    is_watched: bool,
    has_report: bool,
    calls: Vec<u32>,
}

/// The kernel, whose locks order reports, eventfds and sleeps.
struct Kernel {
    state: Lock<State>,
    changed: Condvar,
}

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel { state: Lock::new(State::default()), changed: Condvar::new() };
}

fn kernel() -> MutexGuard<'static, State> {
    KERNEL.state.lock().unwrap()
}

/// Reports a change of the name, if its directory is watched.
fn report() {
    let mut state = kernel();
    state.has_report = state.is_watched;
    KERNEL.changed.notify_all();
}

pub(super) struct Inotify;

impl Inotify {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) fn watch(&self, _: &Path) -> io::Result<Watched> {
        kernel().is_watched = true;
        Ok(0)
    }

    pub(super) fn read(&self, mut each: impl FnMut(Option<(Watched, &[u8])>)) {
        if mem::take(&mut kernel().has_report) {
            each(Some((0, b"c.channel")));
        }
    }
}

/// The number of an eventfd.
pub(super) struct Call(usize);

impl Call {
    pub(super) fn new() -> io::Result<Self> {
        let mut state = kernel();
        state.calls.push(0);
        Ok(Self(state.calls.len() - 1))
    }

    pub(super) fn call(&self) {
        kernel().calls[self.0] += 1;
        KERNEL.changed.notify_all();
    }

    pub(super) fn clear(&self) {
        kernel().calls[self.0] = 0;
    }
}

pub(super) fn sleep(_: Option<&Inotify>, call: Option<&Call>, _: Duration) {
    let mut state = kernel();
    while !state.has_report && call.map_or(true, |call| state.calls[call.0] == 0) {
        state = KERNEL.changed.wait(state).unwrap();
    }
}

/// As the real one, changes its state by read-modify-writes alone.
pub(super) struct AtomicWaker {
    is_registered: AtomicU32,
    waker: parking_lot::Mutex<Option<Waker>>,
}

impl AtomicWaker {
    pub(super) fn new() -> Self {
        Self {
            is_registered: AtomicU32::new(0),
            waker: parking_lot::Mutex::new(None),
        }
    }

    pub(super) fn register(&self, waker: &Waker) {
        *self.waker.lock() = Some(waker.clone());
        self.is_registered.swap(1, Ordering::AcqRel);
    }

    pub(super) fn take(&self) -> Option<Waker> {
        if self.is_registered.swap(0, Ordering::AcqRel) == 0 {
            return None;
        }
        self.waker.lock().take()
    }
}

/// A thread's token: loom's own is lost if the thread is unparked while it waits for a lock.
struct Parked {
    has_token: Lock<bool>,
    changed: Condvar,
}

impl Parked {
    fn park(&self) {
        let mut has_token = self.has_token.lock().unwrap();
        while !mem::take(&mut *has_token) {
            has_token = self.changed.wait(has_token).unwrap();
        }
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.has_token.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// A process: its name watcher, and the threads of all that there were.
struct Scene {
    current: Lock<Weak<NameWatcher>>,
    threads: Lock<Vec<JoinHandle<()>>>,
}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            current: Lock::new(Weak::new()),
            threads: Lock::new(Vec::new()),
        })
    }

    /// As `Watch::new`.
    fn watch(&self) -> Watch {
        let wait = Wait::new(Path::new("/"), "c");
        let start = |name_watcher: Arc<NameWatcher>| {
            self.threads
                .lock()
                .unwrap()
                .push(thread::spawn(move || name_watcher.run()));
            Ok(())
        };
        let name_watcher =
            NameWatcher::watch(&mut self.current.lock().unwrap(), &wait, start).unwrap();
        name_watcher.call();
        Watch {
            wait: Some(wait),
            name_watcher,
            fork: ForkGuard::new(),
        }
    }

    fn join(&self) {
        let threads = mem::take(&mut *self.threads.lock().unwrap());
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

/// As `wait`: checks whenever one is due, until it succeeds. In the model, a missed change is a
/// deadlock.
fn wait_until(watch: &Watch, check: impl Fn() -> bool) {
    let parked = Arc::new(Parked {
        has_token: Lock::new(false),
        changed: Condvar::new(),
    });
    let waker = Waker::from(parked.clone());
    loop {
        if watch.poll(&mut Context::from_waker(&waker)).is_pending() {
            parked.park();
        } else if check() {
            return;
        }
    }
}

#[test]
fn no_change_is_missed() {
    explore(3, || {
        let (scene, name) = (Scene::new(), Arc::new(AtomicU32::new(0)));
        let watch = scene.watch();
        let changing = thread::spawn({
            let name = name.clone();
            move || {
                name.store(1, Ordering::Relaxed);
                report();
            }
        });
        wait_until(&watch, || name.load(Ordering::Relaxed) == 1);
        drop(watch);
        changing.join().unwrap();
        scene.join();
    });
}

/// A wait begins while the last one before it ends, and the name watcher with that.
#[test]
fn no_wait_is_left_behind() {
    explore(3, || {
        let scene = Scene::new();
        let first = scene.watch();
        let second = thread::spawn({
            let scene = scene.clone();
            move || wait_until(&scene.watch(), || true)
        });
        drop(first);
        second.join().unwrap();
        scene.join();
    });
}
