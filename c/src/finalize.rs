//! The end of a program that keeps objects in static variables.
//!
//! The objects are listed from their creation until they are destroyed. [`shm_pool_finalize`] drops
//! their contents, and leaves their memory allocated: so no other object has the address of one
//! that was finalized, and destroying that frees the memory only.

use crate::status::guard_value;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Listed {
    address: *mut (),
    /// Drops the content at `address`.
    finalize: unsafe fn(*mut ()),
    is_finalized: bool,
}

// SAFETY: an address. What makes it valid for `finalize` is that function's contract.
unsafe impl Send for Listed {}

struct Objects {
    /// A forked child has a list of its own: a thread of the parent may hold the parent's lock.
    process: u32,
    list: Mutex<Vec<Listed>>,
    /// The list of the parent, which a child cannot free: the parent's threads may be changing it. It
    /// stays reachable, for tools that look for leaks.
    _of_parent: *mut Objects,
}

/// Null, or leaked.
static OBJECTS: AtomicPtr<Objects> = AtomicPtr::new(ptr::null_mut());

/// Returns the list of this process.
fn objects() -> MutexGuard<'static, Vec<Listed>> {
    let process = std::process::id();
    loop {
        // Acquire: partner of the AcqRel below.
        let old = OBJECTS.load(Ordering::Acquire);
        // SAFETY: null, or leaked below.
        if let Some(objects) = unsafe { old.as_ref() } {
            if objects.process == process {
                return objects.list.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        let new = Box::into_raw(Box::new(Objects {
            process,
            list: Mutex::new(Vec::new()),
            _of_parent: old,
        }));
        let replaced = OBJECTS.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        if replaced.is_err() {
            // SAFETY: made just above, and shared with no thread.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// # Safety
///
/// `address` is that of a `T` that is dropped by this call, and not used any more.
unsafe fn finalize<T>(address: *mut ()) {
    // SAFETY: by this function's contract.
    unsafe { ptr::drop_in_place(address.cast::<T>()) };
}

pub(crate) fn add<T>(object: &mut Box<T>) {
    let address: *mut T = &mut **object;
    objects().push(Listed {
        address: address.cast(),
        finalize: finalize::<T>,
        is_finalized: false,
    });
}

/// Destroys an object, or frees the memory of one that was finalized.
pub(crate) fn destroy<T>(object: Option<Box<T>>) {
    let Some(object) = object else {
        return;
    };
    let address = Box::into_raw(object);
    let is_finalized = {
        let mut objects = objects();
        let at = objects
            .iter()
            .position(|listed| ptr::eq(listed.address, address.cast()));
        match at {
            Some(at) => objects.remove(at).is_finalized,
            // A forked child finds none of its parent's.
            None => false,
        }
    };
    if is_finalized {
        // SAFETY: the memory of a box. Its content was dropped, which the type ignores.
        drop(unsafe { Box::from_raw(address.cast::<MaybeUninit<T>>()) });
    } else {
        // SAFETY: the caller's box, turned into an address above.
        drop(unsafe { Box::from_raw(address) });
    }
}

/// Ends all providers, reservations, clients, senders, publishers and receivers of this process, the
/// newest first, as their `_destroy` functions do: what was sent and not received yet still arrives. Then
/// removes from /dev/shm what providers of other processes that have ended have left, if this process
/// is the last to read it.
///
/// For a program that keeps objects in static variables. Without it, its objects are left as by a kill,
/// until one of their readers ends, or the next provider is created in the namespace. The program calls
/// it at the end of `main`, or registers it by `atexit(shm_pool_finalize)`. The library registers nothing: a
/// library that is unloaded by `dlclose` must not be called afterwards, and other threads may still use
/// it when `exit` is called.
///
/// During the call and afterwards, no thread may use these objects, except to destroy them, which has no
/// other effect then. (So destructors of static C++ objects may run before or after it.) Interrupters stay
/// valid, and so do views and messages, which may be read and dropped. Drop or send other buffers
/// before: a provider without receivers leaves its memory until those are dropped.
///
/// New objects may be created afterwards, and finalized again. In a forked child, nothing of the parent's
/// is ended.
///
/// Any thread.
#[no_mangle]
pub extern "C" fn shm_pool_finalize() {
    guard_value((), || {
        let mut found = Vec::new();
        for listed in objects().iter_mut().rev() {
            if !listed.is_finalized {
                listed.is_finalized = true;
                found.push((listed.address, listed.finalize));
            }
        }
        // Without the lock: this makes system calls.
        for (address, finalize) in found {
            // SAFETY: listed once with its type, and not destroyed yet. The caller uses it no more.
            unsafe { finalize(address) };
        }
        shm_pool::finish_reading();
    });
}
