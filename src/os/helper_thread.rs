//! The library's own threads in a program that does not know about them.
//!
//! | what a program may do | what holds here |
//! |---|---|
//! | block a signal in all threads that it has, and read it with `signalfd` or `sigwait` | a helper thread has all signals blocked from its first instruction, except those that its own instructions raise ([`SYNCHRONOUS`]) |
//! | load the library as (a part of) a plug-in and unload it with `dlclose` | the library stays loaded once a helper thread has been started ([`keep_loaded`]): the thread runs its code |

use crate::error::OsError;
use std::mem::MaybeUninit;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::thread::{self, ThreadId};

/// The stack of a thread that calls wakers, in bytes: several times what one needs.
const STACK: usize = 1 << 20;

/// The signals that the kernel sends to the thread whose instruction caused them. If such a signal
/// is blocked, the kernel kills the process without calling its handler, which may be a crash
/// reporter's.
const SYNCHRONOUS: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// Read with `get` alone, which never blocks: a forked child may inherit it while another thread
/// sets it.
static HOOK: OnceLock<Hook> = OnceLock::new();

/// A helper thread was about to start, so it is too late to set a hook.
static HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// Has each helper thread call `hook` with its name. Returns `false` if a hook is set already, or a
/// thread has started.
pub(crate) fn set_hook(hook: Hook) -> bool {
    // Relaxed: a program that sets a hook while another of its threads starts one may get either
    // order.
    !HAS_STARTED.load(Ordering::Relaxed) && HOOK.set(hook).is_ok()
}

/// From now on, no hook can be set.
pub(crate) fn settle_hook() {
    HAS_STARTED.store(true, Ordering::Relaxed);
}

/// Calls the program's hook, on a thread that starts.
pub(crate) fn call_hook(name: &str) {
    if let Some(hook) = HOOK.get() {
        // The panic hook has reported it, and the thread has work to do.
        let _ = panic::catch_unwind(AssertUnwindSafe(|| hook(name)));
    }
}

/// Starts a thread that calls wakers. `purpose` says in the error what it is for.
pub(crate) fn start_thread(
    name: &'static str,
    purpose: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<ThreadId, OsError> {
    keep_loaded()?;
    settle_hook();
    let builder = thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK);
    let run = move || {
        call_hook(name);
        body();
    };
    let started = without_signals(|| builder.spawn(run));
    let failed = |error| OsError::new("pthread_create", purpose, error).with_bytes(STACK);
    Ok(started.map_err(failed)?.thread().id())
}

/// Calls `start` with all signals blocked but the [`SYNCHRONOUS`] ones. A new thread inherits the
/// mask.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `blocked` is valid for writes.
    unsafe { libc::sigfillset(blocked.as_mut_ptr()) };
    // SAFETY: `sigfillset` initialised it.
    let mut blocked = unsafe { blocked.assume_init() };
    for signal in SYNCHRONOUS {
        // SAFETY: `blocked` is an initialised set.
        unsafe { libc::sigdelset(&mut blocked, signal) };
    }

    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `blocked` is an initialised set, and `before` is valid for writes.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, before.as_mut_ptr()) };
    let started = start();
    // SAFETY: the call above initialised `before`: it cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

/// Other C libraries never unload code.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_loaded() -> Result<(), OsError> {
    Ok(())
}

#[cfg(target_env = "gnu")]
pub(crate) use gnu::keep_loaded;

#[cfg(target_env = "gnu")]
mod gnu {
    use crate::error::OsError;
    use std::ffi::{CStr, CString, OsStr};
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Makes `dlclose` leave the code of this crate where it is for as long as the process lives:
    /// the shared object that it is linked into, which may be the user's.
    pub(crate) fn keep_loaded() -> Result<(), OsError> {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // Relaxed: a thread that sees `false` repeats a call that changes nothing.
        if IS_DONE.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(object) = own_object() {
            pin(&object)?;
        }
        IS_DONE.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn pin(object: &CStr) -> Result<(), OsError> {
        let mode = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the name is NUL-terminated, and the object is loaded, so this runs no
        // constructors.
        let handle = unsafe { libc::dlopen(object.as_ptr(), mode) };
        if handle.is_null() {
            let path = Path::new(OsStr::from_bytes(object.to_bytes()));
            let error = OsError::new("dlopen", path, last_error());
            return Err(error.with_advice(
                "the library has to stay loaded while one of its threads runs: \
                 load it by a path that the dynamic linker finds again",
            ));
        }
        // SAFETY: `dlopen` returned the handle, which is closed once. The object stays.
        unsafe { libc::dlclose(handle) };
        Ok(())
    }

    fn last_error() -> io::Error {
        // SAFETY: no preconditions.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return io::Error::other("not loaded");
        }
        // SAFETY: a NUL-terminated string, valid until this thread's next call of `dlerror`.
        let text = unsafe { CStr::from_ptr(text) };
        io::Error::other(text.to_string_lossy().into_owned())
    }

    /// The name by which the dynamic linker knows the shared object with this code; `None` if it is
    /// the program itself.
    fn own_object() -> Option<CString> {
        let mut search = Search {
            address: own_object as *const () as usize,
            found: None,
        };
        // SAFETY: `visit` expects a `Search`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::addr_of_mut!(search).cast()) };
        // The program's name is empty.
        search.found.filter(|name| !name.is_empty())
    }

    struct Search {
        address: usize,
        found: Option<CString>,
    }

    /// Returns 1, which ends the search, once it is found.
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        search: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid object.
        let info = unsafe { &*info };
        // SAFETY: the `Search` of `own_object`, which has no other reference meanwhile.
        let search = unsafe { &mut *search.cast::<Search>() };
        // SAFETY: the loader describes so many headers, valid during this call.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        for header in headers {
            if header.p_type != libc::PT_LOAD {
                continue;
            }
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            if search.address.wrapping_sub(start) >= header.p_memsz as usize {
                continue;
            }
            // SAFETY: the loader's name for the object, a NUL-terminated string.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) };
            search.found = Some(name.to_owned());
            return 1;
        }
        0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn mask_of_this_thread() -> libc::sigset_t {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a null set changes nothing, and `mask` is valid for writes.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: the call initialised it.
        unsafe { mask.assume_init() }
    }

    fn is_blocked(mask: &libc::sigset_t, signal: libc::c_int) -> bool {
        // SAFETY: `mask` is an initialised set.
        unsafe { libc::sigismember(mask, signal) == 1 }
    }

    #[test]
    fn a_thread_takes_only_the_signals_that_it_causes() {
        let (tell, told) = std::sync::mpsc::channel();
        let body = move || tell.send(mask_of_this_thread()).unwrap();
        start_thread("shm-pool-test", "a thread of a test", body).unwrap();
        let mask = told.recv().unwrap();
        // The C library keeps those from 32 to `SIGRTMIN` for itself.
        let of_the_library = 32..libc::SIGRTMIN();
        for signal in 1..=libc::SIGRTMAX() {
            let cannot_be_blocked = matches!(signal, libc::SIGKILL | libc::SIGSTOP);
            if !cannot_be_blocked && !of_the_library.contains(&signal) {
                let is_synchronous = SYNCHRONOUS.contains(&signal);
                assert_eq!(
                    is_blocked(&mask, signal),
                    !is_synchronous,
                    "signal {signal}"
                );
            }
        }
        let own = mask_of_this_thread();
        assert!(
            !is_blocked(&own, libc::SIGTERM),
            "the caller's mask is as before"
        );
    }
}
