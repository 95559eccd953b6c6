//! One thread per process, the *keeper*, that holds the process's doorbells, so that the kernel
//! notifies them when the process dies.
//!
//! When a thread exits, the kernel walks its *robust list* (`man 2 set_robust_list`) and checks the
//! futex word at a fixed distance after each entry. If the word names the dead thread as its
//! holder, the kernel sets `FUTEX_OWNER_DIED` and wakes a waiter. The keeper starts with the first
//! channel, sleeps, and ends only with the process.
//!
//! The entries are private memory next to the shared words (see [`Mapping::behind_own_page`]), so
//! no peer can corrupt the list. Yet head and entries are in pages mapped as shared: short of
//! memory, the kernel may reclaim a killed process's private pages before it walks the list.
//!
//! # Killed at any instruction
//!
//! An entry joins the list before its word names the keeper, and leaves it after the notifier has
//! left. Each change of the list is a single store, consistent before and after it.

use crate::error::OsError;
use crate::os::fork;
use crate::os::futex::Futex;
use crate::os::helper_thread::{call_hook, keep_loaded, settle_hook, without_signals};
use crate::os::mapping::Mapping;
use crate::os::posix::{check, page_size};
use parking_lot::Mutex;
use std::io;
use std::mem::{forget, size_of, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The kernel's `ROBUST_LIST_LIMIT`.
pub(crate) const MAX_DOORBELLS: usize = 2048;

/// The keeper's stack in bytes. If the program's thread-local variables leave too little of it, the
/// thread gets a stack of the default size.
const STACK: usize = 64 << 10;

#[derive(Debug)]
pub(crate) enum Failed {
    Call {
        call: &'static str,
        error: io::Error,
    },
    /// The library cannot be kept loaded, and the keeper runs its code.
    Unpinned(OsError),
}

impl Failed {
    fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { error, .. } => error.raw_os_error(),
            Self::Unpinned(_) => None,
        }
    }
}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> Failed {
    move |error| Failed::Call { call, error }
}

/// An entry of the list: the kernel's `struct robust_list`.
#[repr(C)]
pub(crate) struct ListEntry {
    next: AtomicPtr<ListEntry>,
}

/// The head of the list: the kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: ListEntry,
    distance: libc::c_long,
    pending: *mut ListEntry,
}

/// The list, and the state of the thread that holds it. Never unmapped: the kernel reads it when
/// the process ends.
#[repr(C)]
struct Keeper {
    head: Head,
    fork_epoch: u64,
    /// 0 until the thread has registered the list or failed to.
    has_begun: Futex,
    id: AtomicU32,
    errno: AtomicI32,
    state: Mutex<KeeperState>,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Keeper>() <= crate::os::posix::PAGE);

// SAFETY: the list changes under the lock of `state`, by single stores. All other fields are
// atomics, a lock, or immutable.
unsafe impl Sync for Keeper {}
// SAFETY: no field is bound to a thread.
unsafe impl Send for Keeper {}

#[derive(Default)]
struct KeeperState {
    thread: Option<u32>,
    taken: usize,
}

impl KeeperState {
    fn take(&mut self, places: usize) -> Result<(), Failed> {
        if places > MAX_DOORBELLS - self.taken {
            return Err(failed("set_robust_list")(io::Error::from_raw_os_error(
                libc::ENOSPC,
            )));
        }
        self.taken += places;
        Ok(())
    }
}

/// The keeper of this process, or of the ancestor that it was forked from.
static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(ptr::null_mut());

impl Keeper {
    fn in_own_page(fork_epoch: u64) -> Result<Mapping, Failed> {
        let page = Mapping::shared(page_size()).map_err(failed("mmap"))?;
        let this = page.base().cast::<Self>();
        let list = ListEntry {
            next: AtomicPtr::new(ptr::null_mut()),
        };
        let head = Head {
            list,
            distance: distance() as libc::c_long,
            pending: ptr::null_mut(),
        };
        let keeper = Self {
            head,
            fork_epoch,
            has_begun: Futex::new(0),
            id: AtomicU32::new(0),
            errno: AtomicI32::new(0),
            state: Mutex::default(),
        };
        // SAFETY: the page was just mapped, and has room for a `Keeper` (asserted above).
        unsafe { this.as_ptr().write(keeper) };
        // SAFETY: initialised by the write above.
        let list = unsafe { &this.as_ref().head.list };
        // An empty list leads back to its head.
        list.next
            .store(ptr::addr_of!(*list).cast_mut(), Ordering::Relaxed);
        Ok(page)
    }

    fn get() -> Result<&'static Self, Failed> {
        let fork_epoch = fork::epoch();
        loop {
            let known = KEEPER.load(Ordering::Acquire);
            // SAFETY: null, or a keeper, which is never unmapped.
            let known_keeper = unsafe { known.as_ref() };
            if let Some(keeper) = known_keeper {
                if keeper.fork_epoch == fork_epoch {
                    return Ok(keeper);
                }
            }
            let page = Self::in_own_page(fork_epoch)?;
            let new = page.base().cast().as_ptr();
            // Release: partner of the Acquire above.
            if KEEPER
                .compare_exchange(known, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                forget(page);
            }
        }
    }

    fn thread(&'static self, state: &mut KeeperState) -> Result<u32, Failed> {
        if let Some(thread) = state.thread {
            return Ok(thread);
        }
        keep_loaded().map_err(Failed::Unpinned)?;
        settle_hook();
        let thread = match self.start(Some(STACK)) {
            Ok(thread) => thread,
            // The stack is too small for the program's thread-local variables.
            Err(failed) if failed.errno() == Some(libc::EINVAL) => self.start(None)?,
            Err(failed) => return Err(failed),
        };
        state.thread = Some(thread);
        Ok(thread)
    }

    /// Starts the thread. Uses libc: the standard library aborts if it cannot allocate a second
    /// stack for signals.
    fn start(&'static self, stack: Option<usize>) -> Result<u32, Failed> {
        self.has_begun.store(0, Ordering::Relaxed);
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let result = |number: i32| {
            if number == 0 {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(number))
            }
        };
        // SAFETY: `attributes` is valid for writes.
        result(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })
            .map_err(failed("pthread_attr_init"))?;
        if let Some(stack) = stack {
            // SAFETY: initialised above. If libc rejects the size, its default stays.
            unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack) };
        }
        // SAFETY: initialised above. The call cannot fail with this value.
        unsafe {
            libc::pthread_attr_setdetachstate(
                attributes.as_mut_ptr(),
                libc::PTHREAD_CREATE_DETACHED,
            )
        };
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        let argument = ptr::addr_of!(*self).cast_mut().cast();
        let started = without_signals(|| {
            // SAFETY: the attributes are initialised, and `self` is never unmapped.
            unsafe {
                libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), keep, argument)
            }
        });
        // SAFETY: initialised above, and not used after this.
        unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
        result(started).map_err(failed("pthread_create"))?;
        while self.has_begun.load(Ordering::Acquire) == 0 {
            self.has_begun.sleep_while(0, None);
        }
        match self.errno.load(Ordering::Relaxed) {
            0 => Ok(self.id.load(Ordering::Relaxed)),
            errno => Err(failed("set_robust_list")(io::Error::from_raw_os_error(
                errno,
            ))),
        }
    }

    fn begin(&self) -> io::Result<()> {
        let head = ptr::addr_of!(self.head);
        // SAFETY: the head is never unmapped and always leads to a consistent list.
        check(unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) } as i32)
    }
}

extern "C" fn keep(keeper: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `start` passes a keeper, which is never unmapped.
    let keeper = unsafe { &*keeper.cast::<Keeper>() };
    // SAFETY: the name has 16 bytes including its NUL, the maximum.
    unsafe { libc::prctl(libc::PR_SET_NAME, b"shm-pool-keeper\0".as_ptr()) };
    call_hook("shm-pool-keeper");
    let begun = keeper.begin();
    let errno = match &begun {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    keeper.errno.store(errno, Ordering::Relaxed);
    // Not the function of this name, which glibc has only since version 2.30.
    // SAFETY: `gettid` has no preconditions.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    keeper.id.store(id as u32, Ordering::Relaxed);
    keeper.has_begun.store(1, Ordering::Release); // partner: `start`
    keeper.has_begun.wake();
    if begun.is_ok() {
        loop {
            // SAFETY: `pause` has no preconditions. It returns if a debugger or another process
            // raises a synchronous signal that has a handler.
            unsafe { libc::pause() };
        }
    }
    ptr::null_mut()
}

/// The distance in bytes from each entry to its futex word.
fn distance() -> usize {
    page_size()
}

/// A number of entries that are reserved in the list.
pub(crate) struct Places {
    keeper: &'static Keeper,
    count: usize,
}

impl Places {
    /// Reserves `count` entries. Fails with `ENOSPC` if there are too few.
    pub(crate) fn take(count: usize) -> Result<Self, Failed> {
        let keeper = Keeper::get()?;
        let mut state = keeper.state.lock();
        keeper.thread(&mut state)?;
        state.take(count)?;
        drop(state);
        Ok(Self { keeper, count })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // In a forked child, the list belongs to the parent.
        if self.keeper.fork_epoch == fork::epoch() {
            self.keeper.state.lock().taken -= self.count;
        }
    }
}

/// An entry in the list, which leaves it on drop.
pub(crate) struct Listed {
    entry: NonNull<ListEntry>,
    keeper: &'static Keeper,
    /// Released after the entry has left the list.
    _place: Option<Places>,
}

// SAFETY: the entry is touched only under the keeper's lock.
unsafe impl Send for Listed {}
// SAFETY: a shared reference allows no operation.
unsafe impl Sync for Listed {}

impl Listed {
    /// Adds a doorbell's entry to the list, then calls `hold` to write the thread's id into the
    /// doorbell's word; `None` if that returns `false`. With `has_place`, the caller keeps a
    /// [place](Places) while the entry is listed.
    ///
    /// # Safety
    ///
    /// `entry` points to aligned memory of this process only, used for nothing else. It and the
    /// word behind it stay valid until the result is dropped.
    pub(crate) unsafe fn new(
        entry: NonNull<u8>,
        has_place: bool,
        hold: impl FnOnce(u32) -> bool,
    ) -> Result<Option<Self>, Failed> {
        let keeper = Keeper::get()?;
        let place = if has_place {
            None
        } else {
            Some(Places::take(1)?)
        };
        let entry = entry.cast::<ListEntry>();
        let mut state = keeper.state.lock();
        let thread = keeper.thread(&mut state)?;
        let head = &keeper.head.list.next;
        let first = ListEntry {
            next: AtomicPtr::new(head.load(Ordering::Relaxed)),
        };
        // SAFETY: memory for an entry, by this function's contract.
        unsafe { entry.as_ptr().write(first) };
        head.store(entry.as_ptr(), Ordering::Release);
        drop(state);
        let listed = Self {
            entry,
            keeper,
            _place: place,
        };
        if !hold(thread) {
            return Ok(None);
        }
        Ok(Some(listed))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // In a forked child, the list belongs to the parent.
        if self.keeper.fork_epoch != fork::epoch() {
            return;
        }
        let _state = self.keeper.state.lock();
        let mut at = ptr::addr_of!(self.keeper.head.list);
        loop {
            // SAFETY: the head, or an entry, which is valid while it is listed (contract of `new`).
            let this = unsafe { &*at };
            let next = this.next.load(Ordering::Relaxed);
            if next == self.entry.as_ptr() {
                // SAFETY: a listed entry, likewise.
                let after = unsafe { &*next }.next.load(Ordering::Relaxed);
                this.next.store(after, Ordering::Release);
                break;
            }
            at = next;
        }
    }
}
