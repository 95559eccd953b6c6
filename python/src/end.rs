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
use crate::lock::lock;
use crate::pending::{Operation, Pending};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use shm_pool::channel::{Interrupter, SendError};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// An end of a channel, or a watcher, which `close` drops.
pub(crate) struct End<T> {
    end: Mutex<Slot<T>>,
    /// The task that awaits it.
    task: Mutex<Option<Waker>>,
    is_closed: AtomicBool,
    interrupter: Interrupter,
    process: Process,
    object: &'static str,
    name: String,
}

/// What the lock of an end guards.
pub(crate) enum Slot<T> {
    Open(T),
    /// A task waits with it, see [`Borrowed`].
    Borrowed,
    Closed,
}

impl<T> Slot<T> {
    /// Returns the end. It may have been closed since the check: `close` sets `is_closed` first.
    pub(crate) fn get(&mut self) -> PyResult<&mut T> {
        match self {
            Self::Open(end) => Ok(end),
            Self::Borrowed => Err(errors::InUse::new_err("a task waits with this end")),
            Self::Closed => Err(errors::Closed::new_err("closed")),
        }
    }

    fn close(&mut self) -> Self {
        mem::replace(self, Self::Closed)
    }
}

impl<T: Send + 'static> End<T> {
    pub(crate) fn new(
        end: T,
        interrupter: Interrupter,
        object: &'static str,
        name: &str,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            end: Mutex::new(Slot::Open(end)),
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

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Slot<T>>> {
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

    fn access<R>(&self, f: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let mut end = self.lock()?;
        Ok(f(end.get()?))
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
        lock(&self.task)
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
            Ok(mut end) => end.close(),
            // The thread that holds the lock does not return.
            Err(_) if exit::is_exiting() => Slot::Closed,
            Err(_) => {
                self.interrupter.interrupt();
                detach(py, || lock(&self.end).close())
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
        match &self.waker {
            Some(waker) => waker.will_wake(task),
            None => false,
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        let Some(waker) = &self.waker else {
            return;
        };
        let mut task = lock(&self.end.task);
        if let Some(current) = &*task {
            if waker.will_wake(current) {
                *task = None;
            }
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
                Poll::Ready(result) => Ok(Some(convert(py, result?)?)),
                Poll::Pending => Ok(None),
            });
        Pending::coroutine(py, operation)
    }
}

/// A wait that borrows an end.
pub(crate) type Wait<'a> = Pin<Box<dyn Future<Output = Result<(), SendError>> + Send + 'a>>;

/// An end with which a task waits. Until then, other calls raise `InUse`.
struct Borrowed<T: Send + 'static> {
    /// Borrows `value`, and is dropped first. `None` once it has ended.
    wait: Option<Wait<'static>>,
    /// A leaked box.
    value: NonNull<T>,
    end: Arc<End<T>>,
}

// SAFETY: it owns the value, which is `Send`, and so is the wait.
unsafe impl<T: Send + 'static> Send for Borrowed<T> {}

impl<T: Send + 'static> Borrowed<T> {
    fn new(end: &Arc<End<T>>, wait: impl for<'a> FnOnce(&'a mut T) -> Wait<'a>) -> PyResult<Self> {
        let mut slot = end.lock()?;
        slot.get()?;
        let Slot::Open(value) = mem::replace(&mut *slot, Slot::Borrowed) else {
            unreachable!("the end is open");
        };
        drop(slot);
        let value = NonNull::from(Box::leak(Box::new(value)));
        let mut this = Self {
            wait: None,
            value,
            end: end.clone(),
        };
        // SAFETY: the box lives until `this` is dropped, which drops the only borrow first.
        this.wait = Some(wait(unsafe { &mut *value.as_ptr() }));
        Ok(this)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        match &mut self.wait {
            Some(wait) => wait.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> Drop for Borrowed<T> {
    fn drop(&mut self) {
        self.wait = None;
        // SAFETY: `new` has leaked the box, and nothing borrows it any more.
        let value = unsafe { Box::from_raw(self.value.as_ptr()) };
        // No other thread holds the lock for long: it finds the end borrowed, or closes it.
        let mut slot = lock(&self.end.end);
        // An end that was closed meanwhile is dropped.
        if matches!(*slot, Slot::Borrowed) {
            *slot = Slot::Open(*value);
        }
    }
}

impl<T: Send + 'static> End<T> {
    /// Returns a coroutine of a wait that borrows this end. `attempt` only checks whether it would be
    /// ready.
    pub(crate) fn start_wait<'py>(
        self: &Arc<Self>,
        py: Python<'py>,
        mut attempt: impl FnMut(&mut T) -> Result<(), SendError> + Send + 'static,
        wait: impl for<'a> FnOnce(&'a mut T) -> Wait<'a> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        let end = self.clone();
        let mut awaited = Awaited::new(self);
        let mut wait = Some(wait);
        let mut borrowed: Option<Borrowed<T>> = None;
        let operation: Operation = Box::new(move |py, context| {
            end.check()?;
            let Some(context) = context else {
                let error = match end.with(&mut attempt)? {
                    Ok(()) => return Ok(Some(py.None())),
                    Err(error) => error.kind(),
                };
                if errors::is_full(&error) {
                    return Ok(None);
                }
                return Err(error.into_py());
            };
            awaited.register(context.waker())?;
            if let Some(wait) = wait.take() {
                borrowed = Some(Borrowed::new(&end, wait)?);
            }
            let Some(borrowing) = &mut borrowed else {
                return Ok(None);
            };
            match borrowing.poll(context) {
                Poll::Ready(result) => {
                    borrowed = None;
                    result.map_err(IntoPyErr::into_py)?;
                    Ok(Some(py.None()))
                }
                Poll::Pending => Ok(None),
            }
        });
        Pending::coroutine(py, operation)
    }
}
