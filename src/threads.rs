//! The threads that this crate starts in the program, and what else it does to a process.
//!
//! | thread | runs | starts with | ends |
//! |---|---|---|---|
//! | `shm-pool-keeper` | sleeps; its death tells the peers that the process has died | the first channel | with the process |
//! | `shm-pool-await` | wakes tasks, and descriptors of [`wake_fd`](crate::channel::Subscriber::wake_fd) | the first such wait that has to sleep | when there are none left |
//! | `shm-pool-names` | watches the directory for channels that are created or removed | the first wait for a name | when there are none left |
//! | `shm-pool-wait` | looks for memory on behalf of tasks | the first task that has to wait for memory | when there are none left |
//! | `shm-pool-sweep` | removes the objects of a killed process once the kernel has torn that down | the last reader of such a process is dropped | after at most a minute |
//!
//! `shm-pool-zenoh` starts `shm-pool-idle` and another `shm-pool-wait` in the same way.
//!
//! All of them, from their first instruction on, block all signals but those that an instruction of
//! the thread itself causes (`SIGBUS`, `SIGFPE`, `SIGILL`, `SIGSEGV`, `SIGSYS`, `SIGTRAP`). A waker
//! of the program runs on one of them, under that mask. A shared object that contains this crate
//! is never unloaded once one of them has started: `dlclose` leaves it where it is.
//!
//! A thread inherits its scheduling policy, priority and CPUs from the thread that happens to start
//! it. A real-time program sets them in a hook: see [`on_start`].
//!
//! | | what the crate does to the process |
//! |---|---|
//! | signals | changes no disposition, and no mask of the program's threads |
//! | environment, working directory, umask, resource limits | reads the limits for its messages, changes nothing |
//! | `fork` | handlers of `pthread_atfork` let a child find that what it inherited is its parent's, and close inherited descriptors that hold locks |
//! | exit | registers nothing with `atexit` |
//! | robust list | only that of `shm-pool-keeper` |
//! | `membarrier` | registers the process for global expedited barriers, with the first channel or wait |
//! | descriptors | all are closed by `exec` |
//! | mappings | none of an object is left once its handles have been dropped |
//!
//! | the program calls | what follows |
//! |---|---|
//! | `fork` | The child owns nothing: its calls return an error, and its drops do nothing. The parent goes on |
//! | `daemon` | A fork whose parent exits. Create providers and channels afterwards |
//! | `vfork` or `posix_spawn`, then `exec` | No handler runs, and the new program gets no descriptor. The parent goes on |
//! | `exec` | Peers see the channels and the provider end, although the process lives on |
//! | `setuid`, `chroot` | See [programs that restrict themselves](crate::docs::deploying#programs-that-restrict-themselves) |
//! | `dlclose` | The shared object stays loaded |
//! | `exit`, on any thread | No thread that waits delays it. What is in a `static` is not dropped |

#![forbid(unsafe_code)]

use crate::os::helper_thread;
use std::error::Error;
use std::fmt;

/// Calls `hook` at the start of each thread that this crate starts, on that thread and with its
/// name. For its scheduling policy, priority, CPUs or another name. To be called once, before the
/// first channel and the first wait.
///
/// The keeper has a stack of 64 KiB, and the others 1 MiB. A hook that panics is ignored.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// shm_pool::threads::on_start(|name| {
///     // For example `sched_setscheduler` or `pthread_setaffinity_np` of libc.
///     println!("{name} has started");
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`HookError`] if a hook is set already, or a thread has started.
pub fn on_start(hook: impl Fn(&str) + Send + Sync + 'static) -> Result<(), HookError> {
    if !helper_thread::set_hook(Box::new(hook)) {
        return Err(HookError(()));
    }
    Ok(())
}

/// The error of [`on_start`]: it was called before, or too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookError(());

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the hook for threads is set already, or a thread has started: set it once, before the \
             first channel and the first wait",
        )
    }
}

impl Error for HookError {}
