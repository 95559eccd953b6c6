//! Waiting under asyncio: a coroutine polls an operation, and waits for its descriptor in between.
//!
//! The loop is in `package/shm_pool/_asyncio.py`. A cancelled coroutine drops the operation.

use crate::errors::{self, IntoPyErr};
use crate::lock::lock;
use pyo3::prelude::*;
use shm_pool::WakeFd;
use std::future::Future;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll};

/// Returns a result, or `None` if it is not ready. The first call has no context, as many operations
/// are ready at once; if it returns `None`, the operation is called again with one.
pub(crate) type Operation =
    Box<dyn FnMut(Python<'_>, Option<&mut Context<'_>>) -> PyResult<Option<Py<PyAny>>> + Send>;

/// An operation that a coroutine awaits.
#[pyclass(frozen, name = "_Pending", module = "shm_pool._native")]
pub(crate) struct Pending(Mutex<State>);

struct State {
    /// Dropped before the descriptor, of which it may keep a waker.
    operation: Option<Operation>,
    wake: Option<WakeFd>,
}

impl Pending {
    /// Returns a coroutine of the operation.
    pub(crate) fn coroutine(py: Python<'_>, operation: Operation) -> PyResult<Bound<'_, PyAny>> {
        Self::coroutine_by(py, "complete", operation)
    }

    /// The same, by another function of `_asyncio.py`.
    pub(crate) fn coroutine_by<'py>(
        py: Python<'py>,
        function: &str,
        operation: Operation,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pending = Self(Mutex::new(State {
            operation: Some(operation),
            wake: None,
        }));
        py.import("shm_pool._asyncio")?
            .call_method1(function, (pending,))
    }

    /// Returns a coroutine of a future, and converts what that returns.
    pub(crate) fn of_future<'py, T: 'static, E: IntoPyErr>(
        py: Python<'py>,
        future: impl Future<Output = Result<T, E>> + Send + 'static,
        mut convert: impl FnMut(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut future = Box::pin(future);
        let operation: Operation = Box::new(move |py, context| {
            let Some(context) = context else {
                return Ok(None);
            };
            match future.as_mut().poll(context) {
                Poll::Ready(Ok(value)) => Ok(Some(convert(py, value)?)),
                Poll::Ready(Err(error)) => Err(error.into_py()),
                Poll::Pending => Ok(None),
            }
        });
        Self::coroutine(py, operation)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[pymethods]
impl Pending {
    /// Returns a tuple of the result, or None if the descriptor will be readable when it may be ready.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        let mut state = self.state();
        let State { operation, wake } = &mut *state;
        let Some(operation) = operation else {
            return Err(errors::Closed::new_err("this operation has ended"));
        };
        if wake.is_none() {
            if let Some(result) = operation(py, None)? {
                return Ok(Some((result,)));
            }
        }
        let wake = match wake {
            Some(wake) => wake,
            None => wake.insert(WakeFd::new().map_err(IntoPyErr::into_py)?),
        };
        let polled = wake.poll(|context| match operation(py, Some(context)) {
            Ok(Some(result)) => Poll::Ready(Ok(result)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        });
        match polled {
            Poll::Ready(result) => Ok(Some((result?,))),
            Poll::Pending => Ok(None),
        }
    }

    fn fileno(&self) -> PyResult<RawFd> {
        match &self.state().wake {
            Some(wake) => Ok(wake.as_raw_fd()),
            None => Err(errors::Closed::new_err("this operation does not wait")),
        }
    }

    /// Ends the operation. Its descriptor is registered nowhere.
    fn close(&self) {
        let mut state = self.state();
        state.operation = None;
        state.wake = None;
    }
}
