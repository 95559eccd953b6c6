//! What the ends of channels and watchers have in common.
//!
//! One thread at a time uses an end: a call in another thread raises `InUse`, and never waits for
//! the first, which may wait for a message. An end is locked anew for each slice of a wait, so that
//! a signal handler may close it. `close` interrupts the wait of another thread.
//!
//! One task of asyncio at a time awaits an end ([`Pending`]). The end keeps only the last waker that
//! it was polled with. So each other call wakes the task, which then polls again.

use crate::errors::{self, IntoPyErr};
use crate::exit::{self, detach, Closes};
use crate::fork::Process;
use crate::pending::{Operation, Pending};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use shm_pool::channel::Interrupter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// An end of a channel, or a watcher, which `close` drops.
pub(crate) struct End<T> {
    end: Mutex<Option<T>>,
    /// The task that awaits it.
    task: Mutex<Option<Waker>>,
    is_closed: AtomicBool,
    interrupter: Interrupter,
    process: Process,
    object: &'static str,
    name: String,
}

impl<T: Send + 'static> End<T> {
    pub(crate) fn new(
        end: T,
        interrupter: Interrupter,
        object: &'static str,
        name: &str,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            end: Mutex::new(Some(end)),
            task: Mutex::new(None),
            is_closed: AtomicBool::new(false),
            interrupter,
            process: Process::current(),
            object,
            name: name.to_owned(),
        });
        exit::add(&this);
        this
    }

    /// Returns the name of the channel.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        self.process.check(self.object)?;
        // Acquire: partner of the Release in `close`.
        if !self.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        exit::park_if_exiting();
        Err(errors::Closed::new_err(format!(
            "this {} was closed",
            self.object
        )))
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        self.check()?;
        match self.end.try_lock() {
            Ok(end) => Ok(end),
            Err(TryLockError::Poisoned(end)) => Ok(end.into_inner()),
            Err(TryLockError::WouldBlock) => Err(errors::InUse::new_err(format!(
                "another thread uses this {}",
                self.object
            ))),
        }
    }

    /// The error of an end that another thread has closed in between: `close` sets `is_closed` first.
    pub(crate) fn closed() -> PyErr {
        errors::Closed::new_err("closed")
    }

    fn access<R>(&self, f: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let mut end = self.lock()?;
        end.as_mut().map(f).ok_or_else(Self::closed)
    }

    /// Calls `f` with the GIL held.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let result = self.access(f);
        self.wake_task();
        result
    }

    /// The call may have replaced the waker of the task that awaits this end.
    pub(crate) fn wake_task(&self) {
        if let Some(task) = &*self.task() {
            task.wake_by_ref();
        }
    }

    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`wait::until`]. `attempt` waits at most so long; the first time not at all, with
    /// the GIL held, and then without it.
    pub(crate) fn until<R: Send, E: IntoPyErr + Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        is_timeout: fn(&E) -> bool,
        mut attempt: impl FnMut(&mut T, Duration) -> Result<R, E> + Send,
    ) -> PyResult<R> {
        match self.with(|end| attempt(end, Duration::ZERO))? {
            Err(error) if is_timeout(&error) && !deadline.is_now() => {}
            result => return result.map_err(IntoPyErr::into_py),
        }
        wait::until(py, deadline, |time, is_last| {
            match self.with(|end| detach(py, || attempt(end, time)))? {
                Err(error) if is_timeout(&error) && !is_last => Ok(None),
                Ok(result) => Ok(Some(result)),
                // Closed rather than interrupted.
                Err(error) => self.check().and(Err(error.into_py())),
            }
        })
    }

    pub(crate) fn interrupt(&self) {
        self.interrupter.interrupt();
    }

    pub(crate) fn close(&self, py: Python<'_>) {
        // The end belongs to the parent, one of whose threads may have locked it.
        if !self.process.is_current() {
            return;
        }
        self.is_closed.store(true, Ordering::Release);
        // The task finds it closed.
        self.wake_task();
        let end = match self.end.try_lock() {
            Ok(mut end) => end.take(),
            // The thread that holds the lock does not come back.
            Err(_) if exit::is_exiting() => None,
            Err(_) => {
                self.interrupter.interrupt();
                detach(py, || {
                    self.end
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take()
                })
            }
        };
        detach(py, || drop(end));
    }

    /// Describes the end for `repr`.
    pub(crate) fn text(&self, class: &str) -> String {
        let name = &self.name;
        // Relaxed: another thread may close it right after.
        if self.is_closed.load(Ordering::Relaxed) {
            return format!("<shm_pool.{class} {name:?}, closed>");
        }
        format!("<shm_pool.{class} {name:?}>")
    }
}

impl<T: Send + 'static> Closes for End<T> {
    fn process(&self) -> Process {
        self.process
    }

    fn close(&self, py: Python<'_>) {
        self.close(py);
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        exit::remove(self);
    }
}

// ---- asyncio ------------------------------------------------------------------------------------

/// An end that a task awaits. It is the end's only one while its waker is registered.
pub(crate) struct Awaited<T> {
    end: Arc<End<T>>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Awaited<T> {
    pub(crate) fn new(end: &Arc<End<T>>) -> Self {
        Self {
            end: end.clone(),
            waker: None,
        }
    }

    /// Calls `poll`, at first without a context: if it is pending then, it is called again with one.
    pub(crate) fn poll<R>(
        &mut self,
        context: Option<&mut Context<'_>>,
        poll: impl FnOnce(&mut T, Option<&mut Context<'_>>) -> Poll<R>,
    ) -> PyResult<Poll<R>> {
        self.end.check()?;
        let Some(context) = context else {
            return self.end.with(|end| poll(end, None));
        };
        self.register(context.waker())?;
        self.end.access(|end| poll(end, Some(context)))
    }

    fn register(&mut self, waker: &Waker) -> PyResult<()> {
        let mut task = self.end.task();
        if let Some(other) = &*task {
            if !self.is_mine(other) {
                let object = self.end.object;
                let message = format!("another task waits for this {object}");
                return Err(errors::InUse::new_err(message));
            }
        }
        *task = Some(waker.clone());
        self.waker = Some(waker.clone());
        Ok(())
    }

    fn is_mine(&self, task: &Waker) -> bool {
        self.waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(task))
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        let Some(waker) = &self.waker else {
            return;
        };
        let mut task = self.end.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| waker.will_wake(task)) {
            *task = None;
        }
    }
}

impl<T: Send + 'static> End<T> {
    /// Returns a coroutine that polls this end, and converts what that returns.
    pub(crate) fn start<'py, R: 'static>(
        self: &Arc<Self>,
        py: Python<'py>,
        mut poll: impl FnMut(&mut T, Option<&mut Context<'_>>) -> Poll<PyResult<R>> + Send + 'static,
        convert: fn(Python<'_>, R) -> PyResult<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut awaited = Awaited::new(self);
        let operation: Operation =
            Box::new(move |py, context| match awaited.poll(context, &mut poll)? {
                Poll::Ready(result) => convert(py, result?).map(Some),
                Poll::Pending => Ok(None),
            });
        Pending::coroutine(py, operation)
    }
}
