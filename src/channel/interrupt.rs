//! Interrupts: a thread, or a signal handler, ends a wait of this process.
//!
//! An end and its [`Interrupter`]s own a 32-bit word of private memory together:
//!
//! | bit | meaning |
//! |---|---|
//! | 0 | an interrupt has arrived, and no wait has taken it |
//! | 1 | a wait sleeps, or is about to |
//! | 2 | there is, or was, an [`Interrupter`] |
//!
//! A wait sleeps on the word that its other side changes, such as its doorbell, and on this one.
//! While bit 2 is clear, nobody can interrupt, and it sleeps on the former alone.
//!
//! | step | the wait | step | [`Interrupter::interrupt`] |
//! |---|---|---|---|
//! | J1 | set bit 1 | X1 | set bit 0 |
//! | J2 | if ready, end | X2 | if bit 1 was set and bit 0 clear, wake |
//! | J3 | if bit 0 is set, clear it and end | | |
//! | J4 | sleep, if both words are unchanged; then repeat from J2 | | |
//! | J5 | clear bit 1 | | |
//!
//! **No interrupt is lost.** J1 and X1 change the same word, so one comes first. If X1 does, J3 sees
//! it. If J1 does, X2 wakes: J4 finds the word changed, or sleeps by then. Of several interrupts in
//! a row, the first one wakes. The kernel compares and sleeps under the lock under which it wakes.
//!
//! **Safe in a signal handler** at every step of the wait that it interrupts, also of another one: X1
//! is one read-modify-write, X2 one system call, which keeps `errno`. Neither takes a lock,
//! allocates or drops anything, and the `Interrupter` owns the word. A handler that runs between J3
//! and J4 changes the word; one that runs in J4 makes the kernel compare again, or return.
//!
//! Bit 1 is a hint: left set, it costs a system call for each interrupt.
//!
//! **Without `futex_waitv`** (before Linux 5.16, or forbidden by a filter), and beside more words
//! than it takes, J4 sleeps on the other word alone, for at most [`SLICE`]: so long an interrupt
//! may take. A program without an `Interrupter` sleeps undisturbed.
//!
//! A forked child has a copy of the word: an interrupt in it does nothing to the parent.

#![forbid(unsafe_code)]

use crate::os::futex::{can_sleep_on_many, Deadline, Futex, Words, MOST_WORDS};
use crate::sync::Ordering;
use std::fmt;
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

const INTERRUPTED: u32 = 1 << 0;
const WAITS: u32 = 1 << 1;
const HAS_INTERRUPTER: u32 = 1 << 2;

/// How long a wait sleeps at a time where it cannot sleep on two words.
const SLICE: Duration = Duration::from_millis(10);

/// The interrupts of one end.
pub(super) struct Interrupts(Futex);

impl Interrupts {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Futex::new(0)))
    }

    /// Returns `true` if an end may be interrupted. It is set only between two waits.
    #[inline]
    pub(super) fn has_interrupter(&self) -> bool {
        // Relaxed: set by the thread that waits, or before the end was given to it.
        self.0.load(Ordering::Relaxed) & HAS_INTERRUPTER != 0
    }

    #[inline]
    pub(super) fn is_set(&self) -> bool {
        // Acquire: partner of the Release in `set`.
        self.0.load(Ordering::Acquire) & INTERRUPTED != 0
    }

    /// Clears the interrupt. Returns `true` if there was one. Only the end's own thread calls this.
    pub(super) fn take(&self) -> bool {
        let is_set = self.is_set();
        if is_set {
            self.0.fetch_and(!INTERRUPTED, Ordering::Relaxed);
        }
        is_set
    }

    /// J1. Call [`end_wait`](Self::end_wait) after the wait.
    pub(super) fn begin_wait(&self) {
        if self.has_interrupter() {
            // Relaxed: X1 changes the same word.
            self.0.fetch_or(WAITS, Ordering::Relaxed);
        }
    }

    /// J5.
    pub(super) fn end_wait(&self) {
        if self.has_interrupter() {
            self.0.fetch_and(!WAITS, Ordering::Relaxed);
        }
    }

    /// Adds the word, which keeps its value until an interrupt, if there may be one.
    pub(super) fn add_to<'a>(&'a self, words: &mut Words<'a>) {
        if self.has_interrupter() {
            words.push(&self.0, WAITS | HAS_INTERRUPTER);
        }
    }

    /// X1 and X2.
    fn set(&self) {
        // Release: partner of the Acquire in `is_set`.
        let old = self.0.fetch_or(INTERRUPTED, Ordering::Release); // X1
        if old & (WAITS | INTERRUPTED) == WAITS {
            self.0.wake_in_handler(); // X2
        }
    }
}

/// J4: sleeps as [`Futex::sleep_while`] does, and until one of these ends is interrupted. After J1.
pub(super) fn sleep_while<'a>(
    word: &Futex,
    value: u32,
    ends: impl Iterator<Item = &'a Interrupts> + Clone,
    deadline: Option<Deadline>,
) {
    let ends = ends.filter(|end| end.has_interrupter());
    let count = ends.clone().count();
    if count == 0 {
        word.sleep_while(value, deadline);
    } else if count < MOST_WORDS && can_sleep_on_many() {
        let mut words = Words::new();
        for end in ends {
            end.add_to(&mut words);
        }
        // Last: if the kernel refuses the call, this is the one to sleep on.
        words.push(word, value);
        words.sleep(deadline);
    } else {
        word.sleep_while(value, Deadline::first(deadline, Deadline::after(SLICE)));
    }
}

/// A thread that another thread wakes through a [`Waker`](std::task::Waker).
pub(super) struct ThreadWaker(Futex);

impl ThreadWaker {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Futex::new(0)))
    }

    /// Returns how often it was woken, for [`park`](Self::park). Read it before the check that the
    /// waker was registered for.
    pub(super) fn count(&self) -> u32 {
        // Acquire: partner of the Release in `wake`.
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps unless it was woken since [`count`](Self::count), until then, an interrupt of one of
    /// these ends, or the deadline. After J1.
    pub(super) fn park<'a>(
        &self,
        count: u32,
        ends: impl Iterator<Item = &'a Interrupts> + Clone,
        deadline: Option<Deadline>,
    ) {
        sleep_while(&self.0, count, ends, deadline);
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
        self.0.wake();
    }
}

/// Interrupts the waits of one [`Receiver`](super::Receiver), [`Sender`](super::Sender),
/// [`Publisher`](super::Publisher), [`Subscriber`](super::Subscriber) or
/// [`Watcher`](super::Watcher), from any thread, or from a signal handler.
///
/// An interrupt ends the current wait, or else the next one that would sleep or spin, which returns
/// `Interrupted`; several in a row count as one. A wait that is ready by then returns what it waits
/// for, and the next wait is interrupted. Futures are not interrupted; drop them.
///
/// The wait ends at once; before Linux 5.16, or where a filter forbids `futex_waitv`, within 10
/// milliseconds. So does a [`wait_any`](super::wait_any) in which more than 127 receivers have an
/// `Interrupter`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, RecvError, Sender};
/// use shm_pool::Provider;
///
/// # let name = format!("doc-interrupt-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let sender = Sender::create(&provider, &name)?;
/// let mut receiver = Receiver::open(&name)?;
/// let interrupter = receiver.interrupter();
/// let receiving = std::thread::spawn(move || receiver.recv().map(drop));
/// interrupter.interrupt(); // before or during the wait
/// assert!(matches!(receiving.join().unwrap(), Err(RecvError::Interrupted)));
/// # drop(sender);
/// # Ok(())
/// # }
/// ```
///
/// # In a signal handler
///
/// [`interrupt`](Self::interrupt) is async-signal-safe, also in the thread whose wait it ends.
/// Creating, cloning and dropping an `Interrupter` are not: the handler uses one that outlives it,
/// such as one in a static.
///
/// ```no_run
/// # use shm_pool::channel::{Interrupter, Receiver, RecvError};
/// # use std::sync::OnceLock;
/// static INTERRUPTER: OnceLock<Interrupter> = OnceLock::new();
///
/// extern "C" fn on_signal(_: libc::c_int) {
///     if let Some(interrupter) = INTERRUPTER.get() {
///         interrupter.interrupt();
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut receiver = Receiver::open("frames")?;
/// INTERRUPTER.get_or_init(|| receiver.interrupter());
/// // SAFETY: the handler is async-signal-safe.
/// unsafe { libc::signal(libc::SIGTERM, on_signal as libc::sighandler_t) };
/// loop {
///     match receiver.recv() {
///         Ok(message) => println!("{} bytes", message.len()),
///         Err(RecvError::Interrupted) => return Ok(()),
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Interrupter(Arc<Interrupts>);

impl Interrupter {
    pub(super) fn new(interrupts: &Arc<Interrupts>) -> Self {
        interrupts.0.fetch_or(HAS_INTERRUPTER, Ordering::Relaxed);
        Self(interrupts.clone())
    }

    /// Interrupts the current or the next wait, unless the end was dropped or this is a forked
    /// child. Never blocks; makes at most one system call; keeps `errno`. Async-signal-safe.
    pub fn interrupt(&self) {
        self.0.set();
    }
}

impl fmt::Debug for Interrupter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupter")
            .field("is_set", &self.0.is_set())
            .finish()
    }
}
