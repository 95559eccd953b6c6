//! The library's own threads.

use crate::status::{guard, Status};
use crate::value::Required;
use shm_pool::threads;
use std::ffi::{c_char, c_void, CString};

/// The program's pointer, which only its hook uses.
struct Context(*mut c_void);

// SAFETY: a number here. The hook's contract makes it valid in any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Sets a function that each thread of the library calls when it starts, on that thread: to set the
/// thread's scheduling policy, priority, CPUs or name. Without it, a thread inherits them from the
/// thread that happens to start it. Call this once, before the first channel and the first wait.
///
/// The library's threads block all signals but those that an instruction causes. `name` is one of
/// `shm-pool-keeper`, `shm-pool-await`, `shm-pool-names` and `shm-pool-sweep`.
///
/// `hook`: called with the thread's name, which is valid during the call, and `context`. It may be
/// called by several threads at the same time, until the process ends. It must return, and in C++ let
/// no exception out.
/// `context`: passed on. NULL is allowed.
///
/// Errors: `INVALID_ARGUMENT`; `OTHER` if a hook is set already, or a thread has started.
///
/// Any thread.
#[no_mangle]
pub extern "C" fn shm_pool_on_thread_start(
    hook: Option<extern "C" fn(name: *const c_char, context: *mut c_void)>,
    context: *mut c_void,
) -> Status {
    guard(|| {
        let hook = hook.required("hook")?;
        let context = Context(context);
        threads::on_start(move |name| {
            if let Ok(name) = CString::new(name) {
                hook(name.as_ptr(), context.pointer());
            }
        })?;
        Ok(())
    })
}
