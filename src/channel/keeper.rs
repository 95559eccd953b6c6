//! The keeper: one thread per process that holds the process's bells, so that the kernel rings them when the process dies.
//!
//! The kernel walks a thread's *robust list* when the thread ends (see `man 2 set_robust_list`): for each entry it looks at a futex
//! word, a fixed distance behind it, and if that says that this thread holds it, sets `FUTEX_OWNER_DIED` and wakes a waiter. Threads come and
//! go; this one is started with the first channel, sleeps, and ends only with the process: by exit, by exec, by a signal. libc's own list,
//! for robust mutexes, is another thread's matter: each thread has one.
//!
//! The entries are private memory, next to the shared words (see [`Mapping::beside_private`]): whatever a peer writes, the list is whole.
//!
//! # Killed at any instruction
//!
//! An entry is put into the list before its word names the keeper, and taken out after the ringer has left. Each change of the
//! list is one store, before or after which it is a whole list.
//!
//! A forked child has no keeper until it makes a channel of its own; the parent's bells do not name any thread of it.

use crate::fork;
use crate::posix::page_size;
use parking_lot::Mutex;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc;
use std::thread;

/// The kernel walks no more of a list.
pub(super) const MAX_BELLS: usize = 2048;

/// Enough for a thread that makes three system calls.
const STACK: usize = 128 << 10;

/// An entry of the list: `struct robust_list`.
#[repr(C)]
pub(super) struct Entry {
    next: AtomicPtr<Entry>,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Entry,
    /// From an entry to its word.
    distance: libc::c_long,
    pending: *mut Entry,
}

/// See the module's text. One per process; never freed, for the kernel reads it when the process ends.
struct Keeper {
    fork_epoch: u64,
    head: Head,
    state: Mutex<State>,
}

// SAFETY: the list is changed under the lock of `state`, by single stores, after each of which it is whole; the kernel reads it when the
// keeper's thread ends.
unsafe impl Sync for Keeper {}
// SAFETY: as above.
unsafe impl Send for Keeper {}

#[derive(Default)]
struct State {
    /// The thread, once it is there.
    thread: Option<u32>,
    entries: usize,
}

/// The keeper of this process, or of the one that it was forked from.
static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(ptr::null_mut());

impl Keeper {
    fn new(fork_epoch: u64) -> Box<Self> {
        let list = Entry { next: AtomicPtr::new(ptr::null_mut()) };
        let distance = distance() as libc::c_long;
        let head = Head { list, distance, pending: ptr::null_mut() };
        let this = Box::new(Self { fork_epoch, head, state: Mutex::default() });
        // An empty list leads back to its head.
        this.head.list.next.store(ptr::addr_of!(this.head.list).cast_mut(), Ordering::Relaxed);
        this
    }

    /// The keeper of this process.
    fn get() -> &'static Self {
        let fork_epoch = fork::epoch();
        loop {
            let known = KEEPER.load(Ordering::Acquire);
            // SAFETY: null, or a keeper that is never freed.
            if let Some(keeper) = unsafe { known.as_ref() }.filter(|keeper| keeper.fork_epoch == fork_epoch) {
                return keeper;
            }
            let new = Box::into_raw(Self::new(fork_epoch));
            // Release: partner of the Acquire above.
            if KEEPER.compare_exchange(known, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Starts the thread. Returns its id, by which the kernel knows what it holds. It gets no signals: they are the program's.
    fn start(&'static self) -> io::Result<u32> {
        let (tell, told) = mpsc::sync_channel(1);
        let keep = move || {
            let id = self.become_keeper();
            let has_failed = id.is_err();
            let _ = tell.send(id);
            if has_failed {
                return;
            }
            loop {
                thread::park();
            }
        };
        // A thread starts with the mask of the one that starts it.
        let started =
            without_signals(|| thread::Builder::new().name("shm-pool-keeper".to_owned()).stack_size(STACK).spawn(keep));
        started?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
    }

    /// Makes the calling thread the one that holds what is listed.
    fn become_keeper(&self) -> io::Result<u32> {
        let head = ptr::addr_of!(self.head);
        // SAFETY: the head is never freed, has the layout that the kernel expects, and leads to a whole list at any time.
        let result = unsafe { libc::syscall(libc::SYS_set_robust_list, head, std::mem::size_of::<Head>()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: no preconditions.
        Ok(unsafe { libc::gettid() } as u32)
    }
}

/// Does something while no signal comes to this thread.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: zero bytes are a valid set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: a valid set to write to.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: two valid sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
    let done = work();
    // SAFETY: a valid set; what the mask was meanwhile is not asked.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    done
}

/// How far a bell's word lies behind its entry.
pub(super) fn distance() -> usize {
    page_size()
}

/// An entry in the list of this process's keeper. Taken out on drop.
pub(super) struct Listed {
    entry: NonNull<Entry>,
    keeper: &'static Keeper,
}

// SAFETY: the entry is only touched under the keeper's lock.
unsafe impl Send for Listed {}

impl Listed {
    /// Puts the entry of a bell into the list, and gives the bell's word the name of the keeper by `hold`, which may refuse. An error
    /// of kind `Other` or of the system if the list is full or there can be no thread; `None` if `hold` refused.
    ///
    /// # Safety
    ///
    /// `entry` is private memory, aligned, for this alone, and stays until the result was dropped, as does the word behind it.
    pub(super) unsafe fn new(entry: NonNull<u8>, hold: impl FnOnce(u32) -> bool) -> io::Result<Option<Self>> {
        let keeper = Keeper::get();
        let entry = entry.cast::<Entry>();
        let thread = {
            let mut state = keeper.state.lock();
            if state.entries == MAX_BELLS {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let thread = match state.thread {
                Some(thread) => thread,
                None => *state.thread.insert(keeper.start()?),
            };
            let first = keeper.head.list.next.load(Ordering::Relaxed);
            // SAFETY: memory for an entry, by the contract.
            unsafe { entry.as_ptr().write(Entry { next: AtomicPtr::new(first) }) };
            keeper.head.list.next.store(entry.as_ptr(), Ordering::Release);
            state.entries += 1;
            thread
        };
        let listed = Self { entry, keeper };
        Ok(hold(thread).then_some(listed))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // In a forked child the list is the parent's.
        if self.keeper.fork_epoch != fork::epoch() {
            return;
        }
        let mut state = self.keeper.state.lock();
        let mut at = ptr::addr_of!(self.keeper.head.list);
        loop {
            // SAFETY: the head, or an entry that is listed: those stay while they are (contract of `new`).
            let this = unsafe { &*at };
            let next = this.next.load(Ordering::Relaxed);
            if next == self.entry.as_ptr() {
                // SAFETY: as above.
                let after = unsafe { &*next }.next.load(Ordering::Relaxed);
                this.next.store(after, Ordering::Release);
                break;
            }
            at = next;
        }
        state.entries -= 1;
    }
}
