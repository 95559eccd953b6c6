//! The exit of Python: open handles are closed, and threads that wait do not return.
//!
//! # Open handles
//!
//! Ends of channels, clients and providers are listed until they are dropped. At exit they are
//! closed, the newest first, by a handler of `atexit`. A child of `multiprocessing` that was forked
//! runs no such handlers, and ends by `os._exit`. It runs the finalizers of `multiprocessing.util`,
//! once those of its parent were removed; so each process registers one when it opens something.
//! A handle that a thread uses meanwhile is left as by a kill.
//!
//! # Threads that wait
//!
//! Until Python 3.13, a daemon thread that takes the GIL of an interpreter that exits is ended by
//! `pthread_exit`, which aborts the process if Rust has frames on its stack. So such a thread parks
//! instead, and never returns; it ends with the process. So does a daemon thread that uses a handle
//! that was closed at exit. Such a thread reads a flag that is set at exit:
//!
//! | step | a thread that has waited | step | the exiting thread, with the GIL |
//! |---|---|---|---|
//! | R1 | `RETURNING` += 1 | X1 | `EXITING` = this thread |
//! | R2 | if `EXITING`, undo R1 and park | X2 | while `RETURNING` is not 0, release the GIL and take it again |
//! | R3 | take the GIL | X3 | Python exits |
//! | R4 | `RETURNING` -= 1 | | |
//!
//! R1, R2, X1 and X2 are sequentially consistent: either R2 sees X1, or X2 sees R1 and waits for R4. So
//! no thread is at R3 during X3.

use crate::fork::Process;
use crate::lock::lock;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;

/// The thread in which Python exits; 0 before.
static EXITING: AtomicI32 = AtomicI32::new(0);
static RETURNING: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn this_thread() -> i32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Calls `f` without the GIL.
pub(crate) fn detach<T: Send>(py: Python<'_>, f: impl FnOnce() -> T + Send) -> T {
    let result = py.detach(|| {
        let result = f();
        RETURNING.fetch_add(1, Ordering::SeqCst); // R1
        let exiting = EXITING.load(Ordering::SeqCst); // R2
        if exiting != 0 && exiting != this_thread() {
            RETURNING.fetch_sub(1, Ordering::SeqCst);
            loop {
                thread::park();
            }
        }
        result
    }); // R3
    RETURNING.fetch_sub(1, Ordering::SeqCst); // R4
    result
}

/// Returns `true` if threads that wait do not return.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst) != 0
}

fn enter_exit(py: Python<'_>) {
    EXITING.store(this_thread(), Ordering::SeqCst); // X1
    while RETURNING.load(Ordering::SeqCst) != 0 {
        py.detach(thread::yield_now); // X2
    }
}

/// Parks another thread than the exiting one for good, if Python exits.
pub(crate) fn park_if_exiting() {
    let exiting = EXITING.load(Ordering::SeqCst);
    if exiting != 0 && exiting != this_thread() {
        Python::attach(|py| {
            py.detach(|| loop {
                thread::park();
            })
        })
    }
}

// ---- what is open -------------------------------------------------------------------------------

/// What is closed at exit.
pub(crate) trait Closes: Send + Sync {
    fn process(&self) -> Process;

    fn close(&self, py: Python<'_>);
}

/// Locked with the GIL held, so no other thread of the parent holds it when Python forks.
static OPEN: Mutex<Open> = Mutex::new(Open {
    process: None,
    list: Vec::new(),
});

struct Open {
    /// The process that has registered its finalizer.
    process: Option<Process>,
    /// The oldest first. A forked child also has its parent's.
    list: Vec<Weak<dyn Closes>>,
}

fn open() -> MutexGuard<'static, Open> {
    lock(&OPEN)
}

/// Lists what was opened, until [`remove`].
pub(crate) fn add<T: Closes + 'static>(opened: &Arc<T>) {
    let process = Process::current();
    let opened: Weak<T> = Arc::downgrade(opened);
    let is_first = {
        let mut open = open();
        open.list.push(opened);
        open.process.replace(process) != Some(process)
    };
    if is_first {
        // If it fails, this process ends like one that is killed.
        let _ = Python::attach(watch_child);
    }
}

pub(crate) fn remove<T>(closed: &T) {
    let mut open = open();
    let is_it = |listed: &Weak<dyn Closes>| ptr::eq(listed.as_ptr().cast(), closed);
    if let Some(at) = open.list.iter().rposition(is_it) {
        open.list.remove(at);
    }
}

/// If `multiprocessing` has started this process, registers the finalizer there.
fn watch_child(py: Python<'_>) -> PyResult<()> {
    // Not imported for this: in its children, it is already.
    let modules = py.import("sys")?.getattr("modules")?;
    let process = modules.call_method1("get", ("multiprocessing.process",))?;
    if process.is_none() || process.call_method0("parent_process")?.is_none() {
        return Ok(());
    }
    // Of the lowest priority, so it runs after those of the user.
    let options = [("exitpriority", i32::MIN)].into_py_dict(py)?;
    let finalize = wrap_pyfunction!(finalize_child, py)?;
    py.import("multiprocessing.util")?.call_method(
        "Finalize",
        (py.None(), finalize),
        Some(&options),
    )?;
    Ok(())
}

/// Closes what this process has opened, and removes what ended owners have left to it.
///
/// Python does so at exit, and a child of ``multiprocessing`` when its target has returned. Call it in a
/// process that ends by ``os._exit``, such as one that ``os.fork`` has made. What was sent still arrives, and
/// a forked child closes nothing of its parent. Messages and arrays stay valid.
#[pyfunction]
fn finalize(py: Python<'_>) {
    let process = Process::current();
    // Without the lock, because closing removes from the list.
    let mut list: Vec<Arc<dyn Closes>> = Vec::new();
    for opened in &open().list {
        list.extend(opened.upgrade());
    }
    for opened in list.iter().rev() {
        if opened.process() == process {
            opened.close(py);
        }
    }
    drop(list);
    detach(py, shm_pool::finish_reading);
}

/// The handler of `atexit`.
#[pyfunction]
fn finalize_at_exit(py: Python<'_>) {
    enter_exit(py);
    finalize(py);
}

/// The finalizer of `multiprocessing`, which runs before other threads than daemons were joined.
#[pyfunction]
fn finalize_child(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let this = threading.call_method0("current_thread")?;
    for thread in threading.call_method0("enumerate")?.try_iter()? {
        let thread = thread?;
        if !thread.is(&this) && !thread.getattr("daemon")?.is_truthy()? {
            // It may continue to send and receive. Its handles are left as by a kill.
            return Ok(());
        }
    }
    finalize_at_exit(py);
    Ok(())
}

/// In a forked child: threads that were returning do not exist.
pub(crate) fn enter_child() {
    RETURNING.store(0, Ordering::SeqCst);
}

/// Registers the handler, which runs after non-daemon threads were joined.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(finalize, module)?)?;
    let finalize_at_exit = wrap_pyfunction!(finalize_at_exit, module)?;
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (finalize_at_exit,))?;
    Ok(())
}
