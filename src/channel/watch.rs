//! Waiting for a channel's name: until a sender creates it, ends, or makes room.
//!
//! Before a receiver has opened a channel, it shares nothing with the sender that could wake it. So
//! a thread of this process, the *lookout*, sleeps for all such waits: until the kernel reports a
//! change to the names of a directory (`inotify`), or a check is due. It starts with the first wait
//! and exits after the last.
//!
//! | step | the waiting thread or task | step | the lookout |
//! |---|---|---|---|
//! | N1 | register the waker | L1 | take in new waits, and watch their directories |
//! | N2 | if marked, clear the mark, and check the name | L2 | mark the waits that are due: new ones, those whose names have changed |
//! | N3 | sleep | L3 | wake the marked ones |
//! | | | L4 | sleep |
//!
//! **No change is missed.** A new wait is marked after L1, so it checks the name once more when
//! changes are reported already. L2 precedes L3, and N1 precedes N2 (see `AtomicWaker`).
//!
//! A killed process's locks are released shortly *after* the report that its file was closed. So
//! the lookout marks a wait again 1, 2, 4 … milliseconds after a change of its name, and later once
//! a second; every 10 milliseconds if the kernel watches no further directory
//! (`fs.inotify.max_user_instances`, too few descriptors).
//!
//! A check that finds the name as it was at the last attempt makes no attempt, which would open the
//! object for writing, and so be reported: waits for one name would wake each other.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::error::ChannelError;
use super::layout::MAX_SEATS;
use super::sleeper::{Asleep, Interrupts};
use crate::error::OsError;
use crate::os::fork::{self, PerProcess};
use crate::os::futex::Deadline;
use crate::os::inotify::Watched;
use crate::os::locks::LockFile;
use crate::os::name::{Inode, Name};
use crate::owner::waiting::wake;
use crate::protocol::control::{OWNER_BYTE, RECEIVER_BYTE};
use crate::sync::{AtomicU32, Mutex, Ordering};
use std::fs;
use std::mem;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

#[cfg(all(test, loom))]
use models::{sleep, AtomicWaker, Call, Inotify, Instant};
#[cfg(not(all(test, loom)))]
use {
    crate::os::inotify::{sleep, Call, Inotify},
    atomic_waker::AtomicWaker,
    std::time::Instant,
};

#[cfg(all(test, loom))]
#[path = "../models/watch.rs"]
mod models;

/// From a report to the next check.
const FIRST: Duration = Duration::from_millis(1);

/// Between checks of a name that does not change.
const AGAIN: Duration = Duration::from_secs(1);

/// Between checks of a name whose changes are not reported.
const UNREPORTED: Duration = Duration::from_millis(10);

/// In bytes: several times what a waker needs.
const STACK: usize = 1 << 20;

static LOOKOUT: PerProcess<parking_lot::Mutex<Weak<Lookout>>> = PerProcess::new();

struct Lookout {
    /// Empty while there are too few descriptors.
    call: OnceLock<Call>,
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    new: Vec<Weak<Wait>>,
    is_over: bool,
}

struct Wait {
    directory: PathBuf,
    /// What the names of the files begin with.
    prefix: Vec<u8>,
    is_marked: AtomicU32,
    waker: AtomicWaker,
}

impl Wait {
    fn new(directory: &Path, prefix: &str) -> Arc<Self> {
        let (directory, prefix) = (directory.to_owned(), prefix.as_bytes().to_owned());
        Arc::new(Self { directory, prefix, is_marked: AtomicU32::new(0), waker: AtomicWaker::new() })
    }
}

/// A wait, as the lookout sees it.
struct Known {
    wait: Weak<Wait>,
    watched: Option<Watched>,
    due: Instant,
    pause: Duration,
}

impl Known {
    fn note_change(&mut self) {
        (self.due, self.pause) = (Instant::now(), FIRST);
    }

    /// L2 and L3. Watches the directory, which may not have existed so far.
    fn look(&mut self, inotify: Option<&Inotify>) {
        let Some(wait) = self.wait.upgrade() else { return };
        if self.watched.is_none() {
            self.watched = inotify.and_then(|inotify| inotify.watch(&wait.directory).ok());
        }
        self.due = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(if self.watched.is_some() { AGAIN } else { UNREPORTED });
        // Release: partner of the Acquire in `Watch::poll`. A swap, as there: loom leaves a store and
        // another thread's swap unordered.
        wait.is_marked.swap(1, Ordering::Release);
        wait.waker.take().into_iter().for_each(wake);
    }
}

impl Lookout {
    /// Hands a wait to the lookout of this process, or starts one.
    fn watch(
        current: &mut Weak<Self>,
        wait: &Arc<Wait>,
        start: impl FnOnce(Arc<Self>) -> Result<(), OsError>,
    ) -> Result<Arc<Self>, OsError> {
        if let Some(lookout) = current.upgrade().filter(|lookout| lookout.take_in(wait)) {
            return Ok(lookout);
        }
        let waits = Waits { new: vec![Arc::downgrade(wait)], is_over: false };
        let lookout = Arc::new(Self { call: OnceLock::new(), waits: Mutex::new(waits) });
        start(lookout.clone())?;
        *current = Arc::downgrade(&lookout);
        Ok(lookout)
    }

    fn start(self: Arc<Self>) -> Result<(), OsError> {
        let thread = thread::Builder::new().name("shm-pool-names".to_owned()).stack_size(STACK);
        thread.spawn(move || self.run()).map(drop).map_err(|error| {
            let object = "a thread that waits for the names of channels";
            OsError::new("pthread_create", object, STACK, error, String::new())
        })
    }

    fn take_in(&self, wait: &Arc<Wait>) -> bool {
        let mut waits = self.waits.lock();
        if !waits.is_over {
            waits.new.push(Arc::downgrade(wait));
        }
        !waits.is_over
    }

    fn call(&self) {
        self.call.get().into_iter().for_each(Call::call);
    }

    fn run(self: Arc<Self>) {
        let (mut inotify, mut retry) = (None, Instant::now());
        let mut known: Vec<Known> = Vec::new();
        while self.update(&mut known) {
            let now = Instant::now();
            if inotify.is_none() && retry <= now {
                (inotify, retry) = (Inotify::new().ok(), now + AGAIN);
            }
            known.iter_mut().filter(|known| known.due <= now).for_each(|known| known.look(inotify.as_ref()));
            let next = known.iter().map(|known| known.due).min();
            let until = next.map_or(AGAIN, |next| next.saturating_duration_since(Instant::now()));
            let call = self.call.get();
            let most = if call.is_some() { AGAIN } else { UNREPORTED };
            sleep(inotify.as_ref(), call, until.min(most)); // L4
            call.into_iter().for_each(Call::clear);
            inotify.iter().for_each(|inotify| inotify.read(|report| note(&mut known, report)));
        }
    }

    /// L1: returns `false` if there is no wait any more.
    fn update(&self, known: &mut Vec<Known>) -> bool {
        let mut waits = self.waits.lock();
        // Under the lock: a wait that is taken in later finds it.
        if self.call.get().is_none() {
            Call::new().into_iter().for_each(|call| drop(self.call.set(call)));
        }
        let due = Instant::now();
        let new = mem::take(&mut waits.new).into_iter();
        known.extend(new.map(|wait| Known { wait, watched: None, due, pause: FIRST }));
        known.retain(|known| known.wait.strong_count() > 0);
        waits.is_over = known.is_empty();
        !waits.is_over
    }
}

/// Makes those waits due whose names have changed, or all if reports were lost.
fn note(known: &mut [Known], report: Option<(Watched, &[u8])>) {
    let Some((watched, file)) = report else {
        for known in known {
            known.watched = None;
            known.note_change();
        }
        return;
    };
    if file.ends_with(b".channel") {
        for known in known.iter_mut().filter(|known| known.watched == Some(watched)) {
            if known.wait.upgrade().is_some_and(|wait| file.starts_with(&wait.prefix)) {
                known.note_change();
            }
        }
    }
}

/// A wait for changes of channels' names.
pub(super) struct Watch {
    /// `None` only while it is dropped.
    wait: Option<Arc<Wait>>,
    lookout: Arc<Lookout>,
    fork_epoch: u64,
}

impl Watch {
    /// Starts to watch the channels in a directory whose file names begin with `prefix`.
    pub(super) fn new(directory: &Path, prefix: &str) -> Result<Self, OsError> {
        let wait = Wait::new(directory, prefix);
        let lookout = Lookout::watch(&mut LOOKOUT.get().lock(), &wait, Lookout::start)?;
        lookout.call();
        Ok(Self { wait: Some(wait), lookout, fork_epoch: fork::epoch() })
    }

    /// N1 and N2: returns `Ready` if a check is due, and otherwise wakes the task when one is.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(wait) = &self.wait else { return Poll::Pending };
        wait.waker.register(context.waker()); // N1

        // N2. Acquire: partner of the Release in `Known::look`.
        if wait.is_marked.swap(0, Ordering::Acquire) != 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // First, so that the lookout finds it dropped. In a forked child there is no lookout.
        drop(self.wait.take());
        if self.fork_epoch == fork::epoch() {
            self.lookout.call();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until `watch` is due for a check, `deadline` passes or the wait is interrupted.
pub(super) fn wait(watch: Option<&Watch>, deadline: Option<Deadline>, interrupts: Option<&Interrupts>) -> Woken {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    interrupts.iter().for_each(|interrupts| interrupts.aim(Asleep::Parked(thread::current())));
    let pause = Deadline::after(UNREPORTED);
    loop {
        let is_due = match watch {
            Some(watch) => watch.poll(&mut Context::from_waker(&waker)).is_ready(),
            None => pause.is_some_and(Deadline::has_passed),
        };
        if is_due {
            return Woken::Ready;
        }
        if interrupts.is_some_and(Interrupts::take) {
            return Woken::Interrupted;
        }
        if deadline.is_some_and(Deadline::has_passed) {
            return Woken::TimedOut;
        }
        let until = if watch.is_some() { deadline } else { Deadline::first(deadline, pause) };
        until.map(Deadline::left).map_or_else(thread::park, thread::park_timeout);
    }
}

/// What an attempt to open or create a channel depends on.
#[derive(PartialEq)]
struct Glimpse {
    file: Option<(Inode, u32, u32, u64)>,
    head: [u8; 64],
    /// Whether each byte is locked.
    locks: Vec<bool>,
}

impl Glimpse {
    fn of(name: &Name, seats: usize) -> Self {
        let file = fs::symlink_metadata(name.as_path());
        let file = file.map(|of| ((of.dev(), of.ino()), of.uid(), of.mode(), of.len())).ok();
        let mut this = Self { file, head: [0; 64], locks: Vec::new() };
        // For reading, so that the kernel does not report it to this process.
        if let Ok(locks) = LockFile::open(|| name.open(libc::O_RDONLY, 0)) {
            let _ = locks.file().read_at(&mut this.head, 0);
            let bytes = OWNER_BYTE..=RECEIVER_BYTE + seats;
            this.locks = bytes.map(|byte| locks.is_locked(byte)).collect();
        }
        this
    }

    /// Returns `true` if each attempt has this error while the object looks like this. Not if it is
    /// due to a lock that another process held only briefly.
    fn explains(&self, error: &ChannelError) -> bool {
        let is_locked = |byte: usize| self.locks.get(byte).is_some_and(|&is_locked| is_locked);
        match error {
            ChannelError::NameTaken { .. } => is_locked(OWNER_BYTE),
            ChannelError::NotReady { .. } => is_locked(OWNER_BYTE) || self.file.is_some_and(|(.., len)| len == 0),
            ChannelError::HasReceiver { .. } => is_locked(RECEIVER_BYTE),
            ChannelError::TooManyReceivers { max, .. } => (1..=*max).all(|seat| is_locked(RECEIVER_BYTE + seat)),
            // For good.
            ChannelError::Closed { .. }
            | ChannelError::TypeMismatch { .. }
            | ChannelError::OutOfRange { .. }
            | ChannelError::BlockingNotAllowed { .. }
            | ChannelError::NotAPublisher { .. } => self.file.is_some(),
            _ => false,
        }
    }
}

/// A series of attempts to open or create a channel. A new one is due when the object has changed,
/// and after a second unless it [explains](Glimpse::explains) the error.
pub(super) struct Attempts {
    name: Name,
    /// How many seats matter.
    seats: usize,
    last: Option<(Glimpse, Option<Deadline>)>,
    watch: Option<Watch>,
}

impl Attempts {
    pub(super) fn new(name: Name) -> Self {
        Self { name, seats: 0, last: None, watch: None }
    }

    pub(super) fn attempt<T>(
        &mut self,
        attempt: impl FnOnce() -> Result<T, ChannelError>,
    ) -> Option<Result<T, ChannelError>> {
        // Before the attempt: a change in between makes another one due.
        let glimpse = Glimpse::of(&self.name, self.seats);
        if let Some((last, next)) = &self.last {
            if *last == glimpse && !next.is_some_and(Deadline::has_passed) {
                return None;
            }
        }
        self.last = Some((glimpse, Deadline::after(AGAIN)));
        let result = attempt();
        match &result {
            Ok(_) => (self.last, self.watch) = (None, None),
            Err(error) => {
                if let ChannelError::TooManyReceivers { max, .. } = error {
                    self.seats = *max.min(&MAX_SEATS);
                }
                let explained = self.last.as_mut().filter(|(glimpse, _)| glimpse.explains(error));
                explained.into_iter().for_each(|(_, next)| *next = None);
            }
        }
        Some(result)
    }

    fn watch(&mut self) -> Result<&Watch, OsError> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => {
                let file = self.name.as_path().file_name().unwrap_or_default();
                Watch::new(self.name.directory(), &file.to_string_lossy())?
            }
        };
        Ok(self.watch.insert(watch))
    }

    pub(super) fn wait(&mut self, deadline: Option<Deadline>, interrupts: Option<&Interrupts>) -> Woken {
        wait(self.watch().ok(), deadline, interrupts)
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), OsError>> {
        self.watch()?.poll(context).map(Ok)
    }

    /// Attempts it while `is_to_wait`, until `timeout` is over; then once more.
    pub(super) fn run<T>(
        name: Name,
        timeout: Duration,
        is_to_wait: fn(&ChannelError) -> bool,
        attempt: impl Fn() -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        let (mut this, deadline) = (Self::new(name), Deadline::after(timeout));
        loop {
            match this.attempt(&attempt) {
                Some(Err(error)) if is_to_wait(&error) => {}
                None => {}
                Some(result) => return result,
            }
            if deadline.is_some_and(Deadline::has_passed) || this.wait(deadline, None) == Woken::TimedOut {
                return attempt();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::name::{Link, Namespace};

    /// While the object shows why it fails, none is due: each would wake all other waits for the name.
    #[test]
    fn no_attempt_in_vain() {
        type Error = fn(String) -> ChannelError;
        let errors: [(usize, Error); 4] = [
            (OWNER_BYTE, |object| ChannelError::NameTaken { object, process: None }),
            (OWNER_BYTE, |object| ChannelError::NotReady { object }),
            (RECEIVER_BYTE, |object| ChannelError::HasReceiver { object }),
            (RECEIVER_BYTE + 1, |object| ChannelError::TooManyReceivers { object, max: 1 }),
        ];
        let name = Namespace::in_shm("unit-attempts").name(&format!("{}.channel", std::process::id()));
        let link = Link::new(name.clone());
        let locks = LockFile::open(|| name.open(libc::O_CREAT | libc::O_RDWR, 0o600)).unwrap();
        locks.file().set_len(1).unwrap();
        for (byte, error) in errors {
            let mut attempts = Attempts::new(name.clone());
            // Returns whether it was attempted, and whether it will be although nothing changes.
            let mut attempt = || {
                let was_due = attempts.attempt(|| Err::<(), _>(error(name.path()))).is_some();
                (was_due, attempts.last.as_ref().unwrap().1.is_some())
            };
            assert_eq!(attempt(), (true, true), "the lock was held only briefly");
            assert!(locks.try_lock(byte).unwrap());
            assert_eq!(attempt(), (true, false));
            assert_eq!(attempt(), (false, false));
            locks.unlock(byte).unwrap();
            assert_eq!(attempt(), (true, true));
        }
        let for_good: [Error; 4] = [
            |object| ChannelError::Closed { object },
            |object| ChannelError::NotAPublisher { object },
            |object| ChannelError::BlockingNotAllowed { object },
            |object| ChannelError::TypeMismatch { object, types: Box::new((None, None)) },
        ];
        for error in for_good {
            let mut attempts = Attempts::new(name.clone());
            let mut attempt = || attempts.attempt(|| Err::<(), _>(error(name.path()))).is_some();
            assert_eq!([attempt(), attempt()], [true, false]);
            assert!(attempts.last.as_ref().unwrap().1.is_none(), "not even after a second");
        }
        drop(link);
    }
}
