//! Detects handles that a forked child inherited: they belong to the parent, and raise `Forked`.
//!
//! The crate refuses most calls by itself. This also covers the locks of this module, which a
//! thread of the parent may have held, and the memory of a `Buffer`, which the child could write.

use crate::{errors, exit};
use pyo3::exceptions::PyOSError;
use pyo3::PyResult;
use std::sync::atomic::{AtomicU64, Ordering};

static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The process in which a handle was created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    pub(crate) fn current() -> Self {
        // Relaxed: it changes right after a fork, in the child's only thread.
        Self(EPOCH.load(Ordering::Relaxed))
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Fails with `Forked` in a forked child.
    pub(crate) fn check(self, object: &str) -> PyResult<()> {
        if self.is_current() {
            return Ok(());
        }
        let message = format!(
            "the {object} belongs to the parent of this forked process; create a new one here"
        );
        Err(errors::Forked::new_err(message))
    }
}

extern "C" fn enter_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    exit::enter_child();
}

/// Registers the handler that distinguishes a child from its parent; once, when the module is
/// imported.
pub(crate) fn watch() -> PyResult<()> {
    // SAFETY: `enter_child` is async-signal-safe, and its code is never unloaded: Python does not
    // unload extension modules.
    let error = unsafe { libc::pthread_atfork(None, None, Some(enter_child)) };
    match error {
        0 => Ok(()),
        error => Err(PyOSError::new_err((error, "pthread_atfork"))),
    }
}
