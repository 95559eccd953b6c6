//! Releasing the GIL while a thread waits, and what becomes of that thread when Python exits.
//!
//! Until Python 3.13, a daemon thread that takes the GIL of an interpreter that exits is ended by
//! `pthread_exit`, which aborts the process if Rust has frames on its stack. So such a thread parks
//! instead, and never comes back; it ends with the process. A flag that is set at exit tells it:
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

use pyo3::prelude::*;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread;

/// The thread in which Python exits; 0 before.
static EXITING: AtomicI32 = AtomicI32::new(0);
static RETURNING: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn this_thread() -> i32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::gettid() }
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

/// Returns `true` if threads that wait do not come back.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst) != 0
}

#[pyfunction]
fn enter_exit(py: Python<'_>) {
    EXITING.store(this_thread(), Ordering::SeqCst); // X1
    while RETURNING.load(Ordering::SeqCst) != 0 {
        py.detach(thread::yield_now); // X2
    }
}

/// In a forked child: threads that were returning do not exist.
pub(crate) fn enter_child() {
    RETURNING.store(0, Ordering::SeqCst);
}

/// Registers the handler, which runs after non-daemon threads were joined.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let atexit = module.py().import("atexit")?;
    atexit
        .call_method1("register", (wrap_pyfunction!(enter_exit, module)?,))
        .map(drop)
}
