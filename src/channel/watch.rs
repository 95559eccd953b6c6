//! Waiting for a channel's name, until a sender creates it, ends, or makes room; and discovery.
//!
//! A thread of this process, the *name watcher*, sleeps for all such waits: until the kernel
//! reports a change to the names of a directory (`inotify`), or a check is due. It starts with the
//! first wait and exits after the last.
//!
//! | step | the waiting thread or task | step | the name watcher |
//! |---|---|---|---|
//! | N1 | register the waker | L1 | take in new waits, and watch their directories |
//! | N2 | if marked, clear the mark, and check the name | L2 | mark the waits that are due: new ones, those whose names have changed |
//! | N3 | sleep | L3 | wake the marked ones |
//! | | | L4 | sleep |
//!
//! **No change is missed.** A new wait is marked after L1, so it checks the name again once changes
//! are reported. L2 precedes L3, and N1 precedes N2 (see `AtomicWaker`).
//!
//! A killed process's locks are released shortly *after* the report that its file was closed. So
//! the name watcher marks a wait again 1, 2, 4 … milliseconds after a change of its name, and later
//! once a second; every 10 milliseconds if the kernel watches no further directory
//! (`fs.inotify.max_user_instances`, too few descriptors), or if no name watcher can be started.
//!
//! A check that finds the name as it was at the last attempt makes no attempt, which would open the
//! object for writing, and so be reported: waits for one name would wake each other.
//!
//! A [`Watcher`] shares the name watcher.

#![forbid(unsafe_code)]

use super::doorbell::WakeReason;
use super::error::{ChannelError, RecvError};
use super::interrupt::{Interrupter, Interrupts, ThreadWaker};
use super::layout::{Kind, What, MAX_SUBSCRIBERS};
use crate::error::OsError;
use crate::os::fork::{ForkGuard, PerProcess};
use crate::os::futex::Deadline;
use crate::os::helper_thread::start_thread;
use crate::os::inotify::Watched;
use crate::os::locks::{self, LockFile};
use crate::os::mapping::Mapping;
use crate::os::name::{Inode, Name, Namespace};
use crate::os::posix::PAGE;
use crate::os::process::{Process, Seen};
use crate::os::segment::check_regular;
use crate::os::wake_fd::EndFd;
use crate::owner::waiting::wake;
use crate::protocol::control::{OWNER_BYTE, RECEIVER_BYTE};
use crate::protocol::ids::{parse, Object, ProviderId};
use crate::sync::{AtomicU32, Mutex, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::iter;
use std::mem;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{ready, Context, Poll, Waker};
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

static NAME_WATCHER: PerProcess<parking_lot::Mutex<Weak<NameWatcher>>> = PerProcess::new();

struct NameWatcher {
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
        Arc::new(Self {
            directory: directory.to_owned(),
            prefix: prefix.as_bytes().to_owned(),
            is_marked: AtomicU32::new(0),
            waker: AtomicWaker::new(),
        })
    }
}

/// A wait, as the name watcher sees it.
struct Known {
    wait: Weak<Wait>,
    watched: Option<Watched>,
    due: Instant,
    pause: Duration,
}

impl Known {
    fn note_change(&mut self) {
        self.due = Instant::now();
        self.pause = FIRST;
    }

    /// L2 and L3. Watches the directory, which may not have existed so far.
    fn look(&mut self, inotify: Option<&Inotify>) {
        let Some(wait) = self.wait.upgrade() else {
            return;
        };
        if let (None, Some(inotify)) = (self.watched, inotify) {
            self.watched = inotify.watch(&wait.directory).ok();
        }
        self.due = Instant::now() + self.pause;
        let longest = match self.watched {
            Some(_) => AGAIN,
            None => UNREPORTED,
        };
        self.pause = longest.min(2 * self.pause);
        // Release: partner of the Acquire in `Watch::poll`. A swap, as there: loom leaves a store
        // and another thread's swap unordered.
        wait.is_marked.swap(1, Ordering::Release);
        if let Some(waker) = wait.waker.take() {
            wake(waker);
        }
    }
}

impl NameWatcher {
    /// Hands a wait to the name watcher of this process, or starts one.
    fn watch(
        current: &mut Weak<Self>,
        wait: &Arc<Wait>,
        start: impl FnOnce(Arc<Self>) -> Result<(), OsError>,
    ) -> Result<Arc<Self>, OsError> {
        if let Some(name_watcher) = current.upgrade() {
            if name_watcher.add(wait) {
                return Ok(name_watcher);
            }
        }
        let waits = Waits {
            new: vec![Arc::downgrade(wait)],
            is_over: false,
        };
        let name_watcher = Arc::new(Self {
            call: OnceLock::new(),
            waits: Mutex::new(waits),
        });
        start(name_watcher.clone())?;
        *current = Arc::downgrade(&name_watcher);
        Ok(name_watcher)
    }

    fn start(self: Arc<Self>) -> Result<(), OsError> {
        start_thread(
            "shm-pool-names",
            "a thread that waits for the names of channels",
            move || self.run(),
        )?;
        Ok(())
    }

    fn add(&self, wait: &Arc<Wait>) -> bool {
        let mut waits = self.waits.lock();
        if !waits.is_over {
            waits.new.push(Arc::downgrade(wait));
        }
        !waits.is_over
    }

    fn call(&self) {
        if let Some(call) = self.call.get() {
            call.call();
        }
    }

    fn run(self: Arc<Self>) {
        let mut inotify = None;
        let mut retry = Instant::now();
        let mut known: Vec<Known> = Vec::new();
        while self.update(&mut known) {
            let now = Instant::now();
            if inotify.is_none() && retry <= now {
                inotify = Inotify::new().ok();
                retry = now + AGAIN;
            }
            let mut next = now + AGAIN;
            for known in &mut known {
                if known.due <= now {
                    known.look(inotify.as_ref());
                }
                next = next.min(known.due);
            }

            let call = self.call.get();
            let most = if call.is_some() { AGAIN } else { UNREPORTED };
            let until = next.saturating_duration_since(Instant::now());
            sleep(inotify.as_ref(), call, until.min(most)); // L4
            if let Some(call) = call {
                call.clear();
            }
            if let Some(inotify) = &inotify {
                inotify.read(|report| note(&mut known, report));
            }
        }
    }

    /// L1: returns `false` if there is no wait any more.
    fn update(&self, known: &mut Vec<Known>) -> bool {
        let mut waits = self.waits.lock();
        // Under the lock: a wait that is taken in later finds it.
        if self.call.get().is_none() {
            if let Ok(call) = Call::new() {
                let _ = self.call.set(call);
            }
        }
        let due = Instant::now();
        for wait in mem::take(&mut waits.new) {
            known.push(Known {
                wait,
                watched: None,
                due,
                pause: FIRST,
            });
        }
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
    if !file.ends_with(b".channel") {
        return;
    }
    for known in known {
        if known.watched != Some(watched) {
            continue;
        }
        if let Some(wait) = known.wait.upgrade() {
            if file.starts_with(&wait.prefix) {
                known.note_change();
            }
        }
    }
}

/// A wait for changes of channels' names.
pub(super) struct Watch {
    /// `None` only while it is dropped.
    wait: Option<Arc<Wait>>,
    name_watcher: Arc<NameWatcher>,
    fork: ForkGuard,
}

impl Watch {
    /// Starts to watch the channels in a directory whose file names begin with `prefix`.
    pub(super) fn new(directory: &Path, prefix: &str) -> Result<Self, OsError> {
        locks::require_fork_handlers()?;
        let wait = Wait::new(directory, prefix);
        let name_watcher =
            NameWatcher::watch(&mut NAME_WATCHER.get().lock(), &wait, NameWatcher::start)?;
        name_watcher.call();
        Ok(Self {
            wait: Some(wait),
            name_watcher,
            fork: ForkGuard::new(),
        })
    }

    /// N1 and N2: returns `Ready` if a check is due, and otherwise wakes the task when one is.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(wait) = &self.wait else {
            return Poll::Pending;
        };
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
        // First, so that the name watcher finds it dropped. In a forked child there is no name
        // watcher.
        drop(self.wait.take());
        if self.fork.is_ours() {
            self.name_watcher.call();
        }
    }
}

/// Blocks until `watch` is due for a check, `deadline` passes or the wait is interrupted.
pub(super) fn wait(
    watch: Option<&Watch>,
    deadline: Option<Deadline>,
    interrupts: Option<&Interrupts>,
) -> WakeReason {
    if let Some(interrupts) = interrupts {
        interrupts.begin_wait();
    }
    let woken = park(watch, deadline, interrupts);
    if let Some(interrupts) = interrupts {
        interrupts.end_wait();
    }
    woken
}

fn park(
    watch: Option<&Watch>,
    deadline: Option<Deadline>,
    interrupts: Option<&Interrupts>,
) -> WakeReason {
    let thread = ThreadWaker::new();
    let waker = Waker::from(thread.clone());
    let pause = Deadline::after(UNREPORTED);
    loop {
        let count = thread.count();
        let is_due = match watch {
            Some(watch) => watch.poll(&mut Context::from_waker(&waker)).is_ready(),
            None => Deadline::is_past(pause),
        };
        if is_due {
            return WakeReason::Ready;
        }
        if interrupts.is_some_and(Interrupts::take) {
            return WakeReason::Interrupted;
        }
        if Deadline::is_past(deadline) {
            return WakeReason::TimedOut;
        }
        let until = if watch.is_some() {
            deadline
        } else {
            Deadline::first(deadline, pause)
        };
        thread.park(count, interrupts.into_iter(), until);
    }
}

/// What an attempt to open or create a channel depends on.
#[derive(PartialEq)]
struct Snapshot {
    file: Option<(Inode, u32, u32, u64)>,
    head: [u8; 64],
    /// Whether each byte is locked.
    locks: Vec<bool>,
}

impl Snapshot {
    fn of(name: &Name, max_subscribers: usize) -> Self {
        let mut this = Self {
            file: None,
            head: [0; 64],
            locks: Vec::new(),
        };
        if let Ok(file) = fs::symlink_metadata(name.as_path()) {
            let inode = (file.dev(), file.ino());
            this.file = Some((inode, file.uid(), file.mode(), file.len()));
        }
        // For reading, so that the kernel does not report it to this process.
        if let Ok(locks) = LockFile::open(|| name.open(libc::O_RDONLY, 0)) {
            let _ = locks.file().read_at(&mut this.head, 0);
            for byte in OWNER_BYTE..=RECEIVER_BYTE + max_subscribers {
                this.locks.push(locks.is_locked(byte));
            }
        }
        this
    }

    /// Returns `true` if each attempt has this error while the object looks like this. Not if it is
    /// due to a lock that another process held only briefly.
    fn explains(&self, error: &ChannelError) -> bool {
        let is_locked = |byte: usize| self.locks.get(byte) == Some(&true);
        match error {
            ChannelError::NameTaken { .. } => is_locked(OWNER_BYTE),
            ChannelError::NotReady { .. } => {
                is_locked(OWNER_BYTE) || self.file.is_some_and(|(.., len)| len == 0)
            }
            ChannelError::HasReceiver { .. } => is_locked(RECEIVER_BYTE),
            ChannelError::TooManyReceivers { max, .. } => {
                (1..=*max).all(|registration| is_locked(RECEIVER_BYTE + registration))
            }
            // For good.
            ChannelError::Closed { .. }
            | ChannelError::TypeMismatch { .. }
            | ChannelError::OutOfRange { .. }
            | ChannelError::BlockingNotAllowed { .. }
            | ChannelError::NotASender { .. }
            | ChannelError::NotAPublisher { .. } => self.file.is_some(),
            _ => false,
        }
    }
}

/// A series of attempts to open or create a channel. A new one is due when the object has changed,
/// and after a second unless it [explains](Snapshot::explains) the error.
pub(super) struct Attempts {
    name: Name,
    /// How many registrations matter.
    max_subscribers: usize,
    last: Option<(Snapshot, Option<Deadline>)>,
    watch: Option<Watch>,
}

impl Attempts {
    pub(super) fn new(name: Name) -> Self {
        Self {
            name,
            max_subscribers: 0,
            last: None,
            watch: None,
        }
    }

    pub(super) fn attempt<T>(
        &mut self,
        attempt: impl FnOnce() -> Result<T, ChannelError>,
    ) -> Option<Result<T, ChannelError>> {
        // Before the attempt: a change in between makes another one due.
        let snapshot = Snapshot::of(&self.name, self.max_subscribers);
        if let Some((last, next)) = &self.last {
            if *last == snapshot && !Deadline::is_past(*next) {
                return None;
            }
        }
        self.last = Some((snapshot, Deadline::after(AGAIN)));
        let result = attempt();
        match &result {
            Ok(_) => {
                self.last = None;
                self.watch = None;
            }
            Err(error) => {
                if let ChannelError::TooManyReceivers { max, .. } = error {
                    self.max_subscribers = *max.min(&MAX_SUBSCRIBERS);
                }
                if let Some((snapshot, next)) = &mut self.last {
                    if snapshot.explains(error) {
                        *next = None;
                    }
                }
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

    pub(super) fn wait(
        &mut self,
        deadline: Option<Deadline>,
        interrupts: Option<&Interrupts>,
    ) -> WakeReason {
        wait(self.watch().ok(), deadline, interrupts)
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), OsError>> {
        self.watch()?.poll(context).map(Ok)
    }

    /// Attempts it, and calls `wait` after each attempt that failed with an error to wait for, which
    /// is kept in `last_error`. Returns what `wait` returns, unless that is `Ok`.
    pub(super) fn repeat<T, E>(
        &mut self,
        is_to_wait: fn(&ChannelError) -> bool,
        last_error: &mut Option<ChannelError>,
        mut attempt: impl FnMut() -> Result<T, ChannelError>,
        mut wait: impl FnMut(&mut Self) -> Poll<Result<(), E>>,
    ) -> Poll<Result<Result<T, ChannelError>, E>> {
        loop {
            match self.attempt(&mut attempt) {
                Some(Err(error)) if is_to_wait(&error) => *last_error = Some(error),
                Some(result) => return Poll::Ready(Ok(result)),
                // None is due.
                None => {}
            }
            ready!(wait(self))?;
        }
    }

    /// Attempts it while `is_to_wait`, until the deadline; then once more.
    pub(super) fn repeat_until<T>(
        &mut self,
        is_to_wait: fn(&ChannelError) -> bool,
        deadline: Option<Deadline>,
        mut attempt: impl FnMut() -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        let wait = |attempts: &mut Self| {
            if Deadline::is_past(deadline) || attempts.wait(deadline, None) == WakeReason::TimedOut
            {
                return Poll::Pending;
            }
            Poll::Ready(Ok::<(), ChannelError>(()))
        };
        match self.repeat(is_to_wait, &mut None, &mut attempt, wait) {
            Poll::Ready(Ok(result)) => result,
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => {
                // This is the last attempt: the name is watched no longer.
                self.last = None;
                self.watch = None;
                attempt()
            }
        }
    }

    /// As [`repeat_until`](Self::repeat_until), for one call.
    pub(super) fn run<T>(
        name: Name,
        timeout: Duration,
        is_to_wait: fn(&ChannelError) -> bool,
        attempt: impl Fn() -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        Self::new(name).repeat_until(is_to_wait, Deadline::after(timeout), attempt)
    }
}

/// A channel whose sender or publisher is alive. Created by
/// [`Namespace::channels`] and [`Watcher`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ChannelInfo {
    /// Its name.
    pub name: String,
    /// Whether it has a [`Publisher`](super::Publisher), and not a [`Sender`](super::Sender).
    pub is_publisher: bool,
    /// The provider of its messages.
    pub provider: ProviderId,
    object: Name,
    inode: Inode,
}

impl ChannelInfo {
    /// Returns the channel of a file, if it is one that can be opened now.
    fn of(names: &Namespace, file: &str) -> Result<Option<Self>, OsError> {
        let Some((prefix, Object::Channel(name))) = parse(file) else {
            return Ok(None);
        };
        if prefix != names.prefix() {
            return Ok(None);
        }
        let object = names.file(file);
        // For reading, so that the kernel does not report it to this process.
        let opened = LockFile::open(|| object.open(libc::O_RDONLY, 0));
        let opened = opened.map_err(|error| object.error("open", 0, error))?;
        let metadata = opened
            .file()
            .metadata()
            .map_err(|error| object.error("fstat", 0, error))?;
        if !check_regular(opened.file(), &object, names.uid()).is_ok_and(|len| len >= PAGE) {
            return Ok(None);
        }
        let copy = Mapping::copy_of(opened.file(), &object, PAGE)?;
        let Ok(facts) = What::of(&copy).read(true, || object.path()) else {
            return Ok(None);
        };
        if facts.kind == Kind::Connection || !opened.is_locked(OWNER_BYTE) {
            return Ok(None);
        }
        Ok(Some(Self {
            name: name.into_owned(),
            is_publisher: facts.kind == Kind::Rendezvous,
            provider: facts.provider,
            object,
            inode: (metadata.dev(), metadata.ino()),
        }))
    }

    /// Returns the process of the sender or publisher, if it is visible: one of the same user and
    /// PID namespace. Scans /proc, which takes milliseconds.
    pub fn process(&self) -> Option<Process> {
        Seen::holder_of(&self.object, self.inode, OWNER_BYTE)
    }
}

impl Namespace {
    /// Returns the channels whose senders and publishers are alive, by name.
    ///
    /// # Errors
    ///
    /// [`OsError`] if the directory cannot be read, or descriptors or memory run out.
    pub fn channels(&self) -> Result<Vec<ChannelInfo>, OsError> {
        Ok(scan(self)?.into_values().collect())
    }
}

fn scan(names: &Namespace) -> Result<BTreeMap<String, ChannelInfo>, OsError> {
    let mut channels = BTreeMap::new();
    for file in names.files()? {
        match ChannelInfo::of(names, &file) {
            Ok(Some(channel)) => {
                channels.insert(channel.name.clone(), channel);
            }
            Ok(None) => {}
            Err(error) => {
                if let Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) = error.errno() {
                    return Err(error);
                }
                // Removed in between; or of another user, who may make any call fail: a link, a
                // lease.
            }
        }
    }
    Ok(channels)
}

/// What a [`Watcher`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelChange {
    /// A sender or publisher has created this channel.
    Created(ChannelInfo),
    /// The sender or publisher of this channel has closed or died.
    Closed(ChannelInfo),
}

/// Reports the channels that [`Namespace::channels`] returns, and then each one that is created or ends. A restart
/// is reported as `Closed` and `Created`. A channel that ends before the watcher has looked at it
/// is not reported.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{ChannelChange, Sender, Watcher};
/// use shm_pool::{Namespace, Provider};
///
/// # let prefix = format!("doc-watch-{}", std::process::id());
/// # let namespace = Namespace::new(&prefix)?;
/// # let provider = Provider::builder().namespace(&namespace).build()?;
/// let mut watcher = Watcher::new(&namespace);
/// let camera = Sender::create(&provider, "camera")?; // in another process
/// assert!(matches!(watcher.recv()?, ChannelChange::Created(channel) if channel.name == "camera"));
/// drop(camera);
/// assert!(matches!(watcher.recv()?, ChannelChange::Closed(channel) if channel.name == "camera"));
/// # Ok(())
/// # }
/// ```
pub struct Watcher {
    names: Namespace,
    known: BTreeMap<String, ChannelInfo>,
    changes: VecDeque<ChannelChange>,
    watch: Option<Watch>,
    /// Of an event loop. Its waker is registered while it is not readable.
    wake: EndFd,
    interrupts: Arc<Interrupts>,
    fork: ForkGuard,
}

impl Watcher {
    /// Creates a watcher of the channels that [`Namespace::channels`] returns.
    pub fn new(namespace: &Namespace) -> Self {
        // If this fails, `Watch::new` tries again.
        let _ = locks::watch_forks();
        Self {
            names: namespace.clone(),
            known: BTreeMap::new(),
            changes: VecDeque::new(),
            watch: None,
            wake: EndFd::default(),
            interrupts: Interrupts::new(),
            fork: ForkGuard::new(),
        }
    }

    /// Returns the next change, blocking until there is one.
    ///
    /// # Errors
    ///
    /// [`RecvError::Os`], as from [`Namespace::channels`]; [`RecvError::Interrupted`];
    /// [`RecvError::Forked`].
    pub fn recv(&mut self) -> Result<ChannelChange, RecvError> {
        self.receive(None)
    }

    /// Like [`recv`](Self::recv), but never blocks.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`] if nothing has changed, and those of [`recv`](Self::recv) except
    /// [`RecvError::Interrupted`]. With a [`wake_fd`](Self::wake_fd), also [`RecvError::NoHelper`].
    pub fn try_recv(&mut self) -> Result<ChannelChange, RecvError> {
        if let Some(change) = self.next()? {
            return Ok(change);
        }
        let mut wake = mem::take(&mut self.wake);
        let polled = wake.poll(|context| self.poll_next(context));
        self.wake = wake;
        match polled {
            Some(Poll::Ready(change)) => change,
            Some(Poll::Pending) | None => Err(RecvError::Empty),
        }
    }

    /// Returns an iterator that blocks for each change, and never ends. Errors are items.
    pub fn iter(&mut self) -> impl Iterator<Item = Result<ChannelChange, RecvError>> + '_ {
        iter::repeat_with(|| self.recv())
    }

    /// Like [`recv`](Self::recv), but blocks for at most `timeout`. With zero, this only looks.
    ///
    /// # Errors
    ///
    /// [`RecvError::TimedOut`], and those of [`recv`](Self::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<ChannelChange, RecvError> {
        self.receive(Deadline::after(timeout))
    }

    fn receive(&mut self, deadline: Option<Deadline>) -> Result<ChannelChange, RecvError> {
        self.wake.renew();
        loop {
            if let Some(change) = self.next()? {
                return Ok(change);
            }
            if Deadline::is_past(deadline) {
                return Err(RecvError::TimedOut);
            }
            // Without a watch, a check is due after a pause.
            let _ = self.watch();
            if wait(self.watch.as_ref(), deadline, Some(&self.interrupts))
                == WakeReason::Interrupted
            {
                return Err(RecvError::Interrupted);
            }
        }
    }

    /// Returns the next change without blocking the thread, with any executor. Cancel safe:
    /// dropping the future loses no change.
    ///
    /// # Errors
    ///
    /// [`RecvError::NoHelper`], and those of [`recv`](Self::recv) except
    /// [`RecvError::Interrupted`].
    pub async fn recv_async(&mut self) -> Result<ChannelChange, RecvError> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Returns the next change if there is one; otherwise registers the task to be woken when there
    /// may be. Only the waker of the last call is kept.
    ///
    /// # Errors
    ///
    /// As [`recv_async`](Self::recv_async).
    pub fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<ChannelChange, RecvError>> {
        self.wake.renew();
        self.poll_next(context)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<ChannelChange, RecvError>> {
        loop {
            if let Some(change) = self.next()? {
                return Poll::Ready(Ok(change));
            }
            ready!(self.watch().map_err(RecvError::NoHelper)?.poll(context));
        }
    }

    /// Returns a descriptor for an event loop, such as `poll` or `epoll`; the same one each time. When it is
    /// readable, call [`try_recv`](Self::try_recv) until it returns [`RecvError::Empty`]: that makes
    /// the descriptor wait for the next change. Do not read or write it.
    ///
    /// # Errors
    ///
    /// [`OsError`](crate::OsError) if the process or the system has too many descriptors.
    pub fn wake_fd(&mut self) -> Result<BorrowedFd<'_>, OsError> {
        self.wake.get()
    }

    /// Returns a handle that can interrupt this watcher's blocking waits.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.interrupts)
    }

    fn watch(&mut self) -> Result<&Watch, OsError> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => Watch::new(self.names.directory(), &format!("{}.", self.names.prefix()))?,
        };
        Ok(self.watch.insert(watch))
    }

    fn next(&mut self) -> Result<Option<ChannelChange>, RecvError> {
        if !self.fork.is_ours() {
            return Err(RecvError::Forked);
        }
        if self.changes.is_empty() {
            self.scan()?;
        }
        Ok(self.changes.pop_front())
    }

    /// Adds all changes since the last scan.
    fn scan(&mut self) -> Result<(), RecvError> {
        let found = scan(&self.names).map_err(RecvError::Os)?;
        // Those that ended come first: a name has one channel at a time.
        for channel in self.known.values() {
            if found.get(&channel.name) != Some(channel) {
                self.changes
                    .push_back(ChannelChange::Closed(channel.clone()));
            }
        }
        for channel in found.values() {
            if self.known.get(&channel.name) != Some(channel) {
                self.changes
                    .push_back(ChannelChange::Created(channel.clone()));
            }
        }
        self.known = found;
        Ok(())
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("prefix", &self.names.prefix())
            .field("known", &self.known.len())
            .finish()
    }
}

/// A stream of the watcher's changes (feature `stream`), which never ends. Errors are items.
#[cfg(feature = "stream")]
impl futures_core::Stream for Watcher {
    type Item = Result<ChannelChange, RecvError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.poll_recv(context).map(Some)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::MessageType;
    use crate::os::name::Link;
    use std::alloc::Layout;
    use std::path::PathBuf;

    /// While the object shows why it fails, none is due: each would wake all other waits for the
    /// name.
    #[test]
    fn no_attempt_in_vain() {
        type Error = fn(PathBuf) -> ChannelError;
        let errors: [(usize, Error); 4] = [
            (OWNER_BYTE, |object| ChannelError::NameTaken {
                object,
                process: None,
            }),
            (OWNER_BYTE, ChannelError::NotReady),
            (RECEIVER_BYTE, ChannelError::HasReceiver),
            (RECEIVER_BYTE + 1, |object| ChannelError::TooManyReceivers {
                object,
                max: 1,
            }),
        ];
        let name = Name::new(&format!("unit-attempts.{}.channel", std::process::id()));
        let locks = LockFile::open(|| name.open(libc::O_CREAT | libc::O_RDWR, 0o600)).unwrap();
        let link = Link::new(name.clone(), locks.file());
        locks.file().set_len(1).unwrap();
        for (byte, error) in errors {
            let mut attempts = Attempts::new(name.clone());
            // Returns whether it was attempted, and whether it will be although nothing changes.
            let mut attempt = || {
                let was_due = attempts
                    .attempt(|| Err::<(), _>(error(name.path())))
                    .is_some();
                (was_due, attempts.last.as_ref().unwrap().1.is_some())
            };
            assert_eq!(attempt(), (true, true), "the lock was held only briefly");
            assert!(locks.try_lock(byte).unwrap());
            assert_eq!(attempt(), (true, false));
            assert_eq!(attempt(), (false, false));
            locks.unlock(byte).unwrap();
            assert_eq!(attempt(), (true, true));
        }
        let for_good: [Error; 5] = [
            ChannelError::Closed,
            ChannelError::NotAPublisher,
            ChannelError::NotASender,
            ChannelError::BlockingNotAllowed,
            |object| ChannelError::TypeMismatch {
                object,
                expected: Box::new(MessageType::new("Any", 1, Layout::new::<u8>())),
                found: None,
            },
        ];
        for error in for_good {
            let mut attempts = Attempts::new(name.clone());
            let mut attempt = || {
                attempts
                    .attempt(|| Err::<(), _>(error(name.path())))
                    .is_some()
            };
            assert_eq!([attempt(), attempt()], [true, false]);
            assert!(
                attempts.last.as_ref().unwrap().1.is_none(),
                "not even after a second"
            );
        }
        drop(link);
    }
}
