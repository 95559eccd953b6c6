//! The readers of this process: its receivers and its clients' connections, each with what it has
//! received, until they are dropped.
//!
//! A reader that is dropped sweeps if it was the last one (see `sweep`). A process may exit without
//! dropping its readers: one is in a `static`, or belongs to a thread that still runs. The kernel
//! then releases their locks, but nobody sweeps. So readers are listed here, for
//! [`finish_reading`].

#![forbid(unsafe_code)]

use crate::os::fork::PerProcess;
use parking_lot::Mutex;
use std::ptr;
use std::sync::{Arc, Weak};

pub(crate) trait Reader: Send + Sync {
    /// If its owner has ended, releases the lock, and sweeps as a last reader does. Bytes that were
    /// received stay as they are: only their owner would write to them.
    fn finish(&self);
}

#[derive(Default)]
struct Readers(Mutex<Vec<Weak<dyn Reader>>>);

/// A forked child has none at first: those of its parent stay the parent's.
static READERS: PerProcess<Readers> = PerProcess::new();

/// Lists a reader. Without memory it stays unlisted, and what it would have removed waits for the
/// next sweep.
pub(crate) fn add(reader: Weak<dyn Reader>) {
    let mut readers = READERS.get().0.lock();
    if readers.try_reserve(1).is_ok() {
        readers.push(reader);
    }
}

/// For the drop of a reader. Needs no memory.
pub(crate) fn remove(reader: *const ()) {
    let Some(readers) = READERS.existing() else {
        return;
    };
    let mut readers = readers.0.lock();
    let is_it = |listed: &Weak<dyn Reader>| ptr::eq(listed.as_ptr().cast(), reader);
    if let Some(at) = readers.iter().position(is_it) {
        let listed = readers.swap_remove(at);
        // Frees nothing yet: the reader is being dropped.
        drop(listed);
    }
    if readers.is_empty() {
        *readers = Vec::new();
    }
}

/// Removes what owners that have ended left to this process, if it is their last reader, although
/// it has not dropped everything that it received from them. For a process that is about to exit.
///
/// A receiver, or a client's connection, removes an ended owner's objects from /dev/shm when it is
/// dropped along with all its messages or views. A program that exits while it holds some of them,
/// for example in a `static`, leaves those objects until the next
/// [`build`](crate::ProviderBuilder::build) in the namespace, or the next
/// [`sweep`](crate::Namespace::sweep). It calls this instead, at the end of `main`.
///
/// Messages and views that the process holds stay valid. A message that was not received yet, or a
/// grant that was not taken up, may be lost. Nothing changes for readers of owners that are alive.
/// The readers of other processes lose nothing: what they read stays until they release it.
///
/// In a forked child, the parent's readers are none of its own.
///
/// Providers, senders and publishers are not ended. One in a `static` can be dropped at the end of
/// `main` if it is held as an `Option`:
///
/// ```
/// use shm_pool::{Namespace, Provider};
/// use std::sync::Mutex;
///
/// static PROVIDER: Mutex<Option<Provider>> = Mutex::new(None);
///
/// fn main() -> Result<(), shm_pool::BuildError> {
///     let namespace = Namespace::new("docs-static")?;
///     let provider = Provider::builder().namespace(&namespace).build()?;
///     *PROVIDER.lock().unwrap() = Some(provider);
///     // …
///     drop(PROVIDER.lock().unwrap().take());
///     shm_pool::finish_reading();
///     Ok(())
/// }
/// ```
pub fn finish_reading() {
    let Some(readers) = READERS.existing() else {
        return;
    };
    let mut found: Vec<Arc<dyn Reader>> = Vec::new();
    for reader in &*readers.0.lock() {
        let Some(reader) = reader.upgrade() else {
            // It is being dropped.
            continue;
        };
        if found.try_reserve(1).is_ok() {
            found.push(reader);
        }
    }
    // Without the lock: this makes system calls, and may drop the last reference of a reader.
    for reader in found {
        reader.finish();
    }
}
