//! The keeper: one thread per process that holds the process's bells, so that the kernel rings them when the process dies.
//!
//! The kernel walks a thread's *robust list* when the thread ends (see `man 2 set_robust_list`): for each entry it looks at a futex
//! word, a fixed distance behind it, and if that says that this thread holds it, sets `FUTEX_OWNER_DIED` and wakes a waiter. Threads come and
//! go; this one is started with the first channel, sleeps, and ends only with the process: by exit, by exec, by a signal. libc's own list,
//! for robust mutexes, is another thread's matter: each thread has one.
//!
//! The entries are this process's own memory, next to the shared words (see [`Mapping::behind_own_page`]): whatever a peer writes, the
//! list is whole. The list's head and its entries lie in pages that are mapped as shared, and that nobody else has: private ones may be taken
//! from a process that is killed for want of memory before the kernel walks its list.
//!
//! [`Mapping::behind_own_page`]: crate::os::segment::Mapping::behind_own_page
//!
//! # Killed at any instruction
//!
//! An entry is put into the list before its word names the keeper, and taken out after the ringer has left. Each change of the
//! list is one store, before or after which it is a whole list.
//!
//! A forked child has no keeper until it makes a channel of its own; the parent's bells do not name any thread of it.

use crate::os::fork;
use crate::os::futex::Futex;
use crate::os::posix::{check, page_size};
use parking_lot::Mutex;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The kernel walks no more of a list.
pub(crate) const MAX_BELLS: usize = 2048;

/// Enough for a thread that makes four system calls, and for what libc puts there.
const STACK: usize = 64 << 10;

/// A call that failed, and how.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) call: &'static str,
    pub(crate) error: io::Error,
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> Failed {
    move |error| Failed { call, error }
}

/// An entry of the list: `struct robust_list`.
#[repr(C)]
pub(crate) struct ListEntry {
    next: AtomicPtr<ListEntry>,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: ListEntry,
    /// From an entry to its word.
    distance: libc::c_long,
    pending: *mut ListEntry,
}

/// See the module's text. One per process; never unmapped, for the kernel reads it when the process ends.
#[repr(C)]
struct Keeper {
    head: Head,
    fork_epoch: u64,
    /// 0 until the thread has begun to keep, or has failed to.
    has_begun: Futex,
    /// Its id, if it keeps.
    id: AtomicU32,
    /// Why it does not keep.
    errno: AtomicI32,
    state: Mutex<KeeperState>,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Keeper>() <= crate::os::posix::PAGE);

// SAFETY: the list is changed under the lock of `state`, by single stores, after each of which it is whole; the kernel reads it when the
// keeper's thread ends.
unsafe impl Sync for Keeper {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Keeper {}

#[derive(Default)]
struct KeeperState {
    /// The thread, once it is there.
    thread: Option<u32>,
    entries: usize,
}

/// The keeper of this process, or of the one that it was forked from.
static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(ptr::null_mut());

impl Keeper {
    /// A keeper in a page of its own.
    fn new(fork_epoch: u64) -> Result<NonNull<Self>, Failed> {
        let (access, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let page = unsafe { libc::mmap(ptr::null_mut(), page_size(), access, own, -1, 0) };
        let Some(this) = NonNull::new(page.cast::<Self>()).filter(|_| page != libc::MAP_FAILED) else {
            return Err(failed("mmap")(io::Error::last_os_error()));
        };
        let list = ListEntry { next: AtomicPtr::new(ptr::null_mut()) };
        let head = Head { list, distance: distance() as libc::c_long, pending: ptr::null_mut() };
        let state = Mutex::default();
        let (has_begun, id, errno) = (Futex::new(0), AtomicU32::new(0), AtomicI32::new(0));
        // SAFETY: a page that was just mapped, large enough and aligned.
        unsafe { this.as_ptr().write(Self { head, fork_epoch, has_begun, id, errno, state }) };
        // SAFETY: written just now.
        let list = unsafe { &this.as_ref().head.list };
        // An empty list leads back to its head.
        list.next.store(ptr::addr_of!(*list).cast_mut(), Ordering::Relaxed);
        Ok(this)
    }

    /// The keeper of this process.
    fn get() -> Result<&'static Self, Failed> {
        let fork_epoch = fork::epoch();
        loop {
            let known = KEEPER.load(Ordering::Acquire);
            // SAFETY: null, or a keeper that is never unmapped.
            if let Some(keeper) = unsafe { known.as_ref() }.filter(|keeper| keeper.fork_epoch == fork_epoch) {
                return Ok(keeper);
            }
            let new = Self::new(fork_epoch)?;
            // Release: partner of the Acquire above.
            if KEEPER.compare_exchange(known, new.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: mapped above, and nobody has seen it.
                unsafe { libc::munmap(new.as_ptr().cast(), page_size()) };
            }
        }
    }

    /// Starts the thread. Returns its id, by which the kernel knows what it holds. It gets no signals: they are the program's.
    ///
    /// By libc, and not by the standard library: that gives each thread a second stack for signals, and aborts where there is no room for it.
    fn start(&'static self) -> Result<u32, Failed> {
        self.has_begun.store(0, Ordering::Relaxed);
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let result = |number: i32| if number == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(number)) };
        // SAFETY: a place to write to.
        result(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) }).map_err(failed("pthread_attr_init"))?;
        // SAFETY: initialised just now. A size that libc does not like leaves its default.
        unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK) };
        // SAFETY: initialised above. It cannot fail with this value.
        unsafe { libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED) };
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        let argument = ptr::addr_of!(*self).cast_mut().cast();
        // A thread starts with the mask of the one that starts it.
        let started = without_signals(|| {
            // SAFETY: valid attributes, and an argument that is never freed, as `keep` expects.
            unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), keep, argument) }
        });
        // SAFETY: initialised above, and not used any more.
        unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
        result(started).map_err(failed("pthread_create"))?;
        while self.has_begun.load(Ordering::Acquire) == 0 {
            self.has_begun.sleep_while(0, None);
        }
        match self.errno.load(Ordering::Relaxed) {
            0 => Ok(self.id.load(Ordering::Relaxed)),
            errno => Err(failed("set_robust_list")(io::Error::from_raw_os_error(errno))),
        }
    }

    /// Makes the calling thread the one that holds what is listed.
    fn begin(&self) -> io::Result<()> {
        let head = ptr::addr_of!(self.head);
        // SAFETY: the head is never unmapped, has the layout that the kernel expects, and leads to a whole list at any time.
        check(unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) } as i32)
    }
}

/// The thread. `keeper` is one that is never unmapped.
extern "C" fn keep(keeper: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: by the contract above.
    let keeper = unsafe { &*keeper.cast::<Keeper>() };
    // SAFETY: a NUL-terminated name of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, b"shm-pool-keeper\0".as_ptr()) };
    let begun = keeper.begin();
    keeper.errno.store(
        begun.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0),
        Ordering::Relaxed,
    );
    // SAFETY: no preconditions.
    keeper.id.store(unsafe { libc::gettid() } as u32, Ordering::Relaxed);
    keeper.has_begun.store(1, Ordering::Release); // partner: `start`
    keeper.has_begun.wake();
    if begun.is_ok() {
        loop {
            // SAFETY: no preconditions. All signals are blocked: it sleeps until the process ends.
            unsafe { libc::pause() };
        }
    }
    ptr::null_mut()
}

/// Does something while no signal comes to this thread.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: a place to write to.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: a set that was filled, and a place to write to.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let done = work();
    // SAFETY: the set that was written above; what the mask was meanwhile is not asked.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    done
}

/// How far a bell's word lies behind its entry.
pub(crate) fn distance() -> usize {
    page_size()
}

/// An entry in the list of this process's keeper. Taken out on drop.
pub(crate) struct Listed {
    entry: NonNull<ListEntry>,
    keeper: &'static Keeper,
}

// SAFETY: the entry is only touched under the keeper's lock.
unsafe impl Send for Listed {}

impl Listed {
    /// Puts the entry of a bell into the list, and gives the bell's word the name of the keeper by `hold`, which may refuse.
    /// `None` if it did. `ENOSPC`: the list is full.
    ///
    /// # Safety
    ///
    /// `entry` is this process's own memory, aligned, for this alone, and stays until the result was dropped, as does the word behind it.
    pub(crate) unsafe fn new(entry: NonNull<u8>, hold: impl FnOnce(u32) -> bool) -> Result<Option<Self>, Failed> {
        let keeper = Keeper::get()?;
        let entry = entry.cast::<ListEntry>();
        let thread = {
            let mut state = keeper.state.lock();
            if state.entries == MAX_BELLS {
                return Err(failed("set_robust_list")(io::Error::from_raw_os_error(libc::ENOSPC)));
            }
            let thread = match state.thread {
                Some(thread) => thread,
                None => *state.thread.insert(keeper.start()?),
            };
            let first = keeper.head.list.next.load(Ordering::Relaxed);
            // SAFETY: memory for an entry, by the contract.
            unsafe { entry.as_ptr().write(ListEntry { next: AtomicPtr::new(first) }) };
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
                // SAFETY: an entry that is listed.
                let after = unsafe { &*next }.next.load(Ordering::Relaxed);
                this.next.store(after, Ordering::Release);
                break;
            }
            at = next;
        }
        state.entries -= 1;
    }
}
