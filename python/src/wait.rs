//! Waits without the GIL, that end with an exception when a signal handler raises one.
//!
//! Python runs signal handlers, such as the one that raises KeyboardInterrupt, in the main thread,
//! between two calls into the interpreter. The C handler of a signal only sets a flag, and no
//! descriptor or callback reports it except `signal.set_wakeup_fd`, which belongs to asyncio. So
//! the main thread, and only that one, waits in slices and reads the flag between them. Within a
//! slice it is parked, and the other side wakes it at once. Other threads are parked for the whole
//! timeout.

use crate::errors::{self, IntoPyErr};
use crate::exit::{detach, this_thread};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// The longest time from a signal to its handler: not noticed by a person, and ten wake-ups per
/// second of an idle process.
const SLICE: Duration = Duration::from_millis(100);

/// Returns the duration of that many seconds; too many, or infinitely many, are the maximum.
pub(crate) fn duration(argument: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(errors::InvalidArgument::new_err(format!(
            "{argument} is {seconds}, but must be at least 0"
        )));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// The same, of an option.
pub(crate) fn optional_duration(
    argument: &str,
    seconds: Option<f64>,
) -> PyResult<Option<Duration>> {
    match seconds {
        Some(seconds) => Ok(Some(duration(argument, seconds)?)),
        None => Ok(None),
    }
}

/// The point in time at which a wait times out.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline of a wait that starts now: `None` waits without limit.
    pub(crate) fn after(timeout: Option<f64>) -> PyResult<Self> {
        let Some(seconds) = timeout else {
            return Ok(Self(None));
        };
        Ok(Self::within(duration("timeout", seconds)?))
    }

    /// Returns the deadline of a wait that starts now, and lasts at most so long.
    pub(crate) fn within(limit: Duration) -> Self {
        // Centuries are no limit.
        Self(Instant::now().checked_add(limit))
    }

    /// Returns `true` if the wait may not begin at all.
    pub(crate) fn is_now(self) -> bool {
        self.left().is_zero()
    }

    fn left(self) -> Duration {
        match self.0 {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }
}

fn is_main_thread() -> bool {
    // SAFETY: the call has no preconditions.
    this_thread() == unsafe { libc::getpid() }
}

/// Calls `attempt` with the time that it may wait, until it returns something, or a signal handler
/// raises an exception. It returns `None` if it timed out, except the last time (`true`): then the
/// deadline has passed, and it has to return the error.
pub(crate) fn until<T>(
    py: Python<'_>,
    deadline: Deadline,
    mut attempt: impl FnMut(Duration, bool) -> PyResult<Option<T>>,
) -> PyResult<T> {
    let slice = if is_main_thread() {
        SLICE
    } else {
        Duration::MAX
    };
    loop {
        let left = deadline.left();
        let is_last = left <= slice;
        if let Some(result) = attempt(left.min(slice), is_last)? {
            return Ok(result);
        }
        py.check_signals()?;
    }
}

/// Waits as [`until`], and calls `attempt` without the GIL. It returns an error that is temporary if
/// the time was too short.
pub(crate) fn retry<T: Send, E: IntoPyErr + Send>(
    py: Python<'_>,
    deadline: Deadline,
    is_temporary: fn(&E) -> bool,
    attempt: impl Fn(Duration) -> Result<T, E> + Sync,
) -> PyResult<T> {
    until(py, deadline, |time, is_last| {
        match detach(py, || attempt(time)) {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_temporary(&error) && !is_last => Ok(None),
            Err(error) => Err(error.into_py()),
        }
    })
}
