//! Releases the chunks that zenoh frees during a collection together, in the order of their addresses.
//!
//! zenoh frees them in an order of its own, and the pool uses them again in the order of their
//! release. In the order of addresses, a chunk, its record and its cell are next to those of the
//! one before, so the processor has fetched them already. If thousands of messages are in flight and
//! are read in any order, a message costs a quarter less.
//!
//! A collection runs on one thread, which lists what zenoh frees meanwhile. The chunks stay in their
//! cells until the collection ends or the list is full. One thread has the list at a time; a second
//! one that collects releases each chunk at once, and then waits for the first, so that no request
//! is refused because of chunks in the list.

use crate::outstanding::{Key, Outstanding};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::mem;
use std::ptr;

/// The list has room for a chunk per this many bytes of the cap; with shorter ones, it may be full.
const BYTES: usize = 1024;

/// Chunks, and the lengths by which they were freed.
type List = Vec<(Key, usize)>;

/// The memory of the list, allocated with the pool and not touched before it is needed.
pub(crate) struct Freed(Mutex<List>);

impl Freed {
    pub(crate) fn new(max_bytes: usize) -> Self {
        let mut list = List::new();
        // Without room, chunks are released at once.
        let _may_fail = list.try_reserve_exact(max_bytes / BYTES);
        Self(Mutex::new(list))
    }
}

/// The collection that a thread is in, if any. In the middle of it, zenoh may call user code (a
/// subscriber to its log), which may collect another pool, or the same one.
struct Current {
    /// Only compared. Null outside of collections.
    pool: Cell<*const Outstanding>,
    list: Cell<List>,
}

thread_local! {
    static CURRENT: Current = const { Current { pool: Cell::new(ptr::null()), list: Cell::new(List::new()) } };
}

impl Current {
    /// Makes another collection the current one.
    fn replace(&self, pool: *const Outstanding, list: List) -> (*const Outstanding, List) {
        (self.pool.replace(pool), self.list.replace(list))
    }
}

/// Ends a collection, even if it panics.
struct Collection<'a> {
    pool: &'a Outstanding,
    /// `None` if another collection has the list.
    home: Option<MutexGuard<'a, List>>,
    outer: (*const Outstanding, List),
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        let (pool, list) = (self.outer.0, mem::take(&mut self.outer.1));
        let (_, list) = CURRENT.with(|current| current.replace(pool, list));
        if let Some(home) = &mut self.home {
            **home = list;
            self.pool.release(home);
        }
    }
}

/// Returns `true` in the log's code that zenoh calls during a collection of this thread. zenoh holds the
/// collected provider's lock then, so nothing may be collected.
pub(crate) fn is_collecting() -> bool {
    CURRENT.try_with(|current| !current.pool.get().is_null()).unwrap_or(false)
}

impl Outstanding {
    /// Calls `collect`, and releases in order what zenoh frees in it. Returns `true` if `collect` did, or
    /// if another thread was collecting.
    pub(crate) fn collect_in_order(&self, collect: impl FnOnce() -> bool) -> bool {
        if CURRENT.try_with(|_| ()).is_err() {
            // The thread is exiting.
            return collect();
        }
        let mut home = self.freed.0.try_lock();
        let list = home.as_deref_mut().map(mem::take).unwrap_or_default();
        let outer = CURRENT.with(|current| current.replace(self, list));
        // Inside another collection, the list may be this thread's own, or that of a thread that waits
        // for this one.
        let waits = home.is_none() && outer.0.is_null();
        let ends = Collection { pool: self, home, outer };
        let has_collected = collect();
        drop(ends);
        if waits {
            drop(self.freed.0.lock());
        }
        has_collected || waits
    }

    /// Releases a chunk that zenoh frees, now or at the end of this thread's collection.
    #[inline]
    pub(crate) fn free(&self, key: Key, len: usize) {
        let list = |current: &Current| ptr::eq(current.pool.get(), self) && self.list(current, key, len);
        if CURRENT.try_with(list) != Ok(true) {
            self.free_now(key, len);
        }
    }

    /// Returns `false` if there is no room.
    #[inline]
    fn list(&self, current: &Current, key: Key, len: usize) -> bool {
        let mut list = current.list.take();
        if list.len() == list.capacity() {
            self.release(&mut list);
        }
        let has_room = list.len() < list.capacity();
        if has_room {
            list.push((key, len));
        }
        current.list.set(list);
        has_room
    }

    /// Empties a list. Its memory stays.
    fn release(&self, list: &mut List) {
        // One number is compared faster than two.
        list.sort_unstable_by_key(|&(key, _)| u64::from(key.segment) << 32 | u64::from(key.offset));
        let mut unknown = None;
        list.drain(..).for_each(|(key, len)| {
            if self.take(key, len).is_none() {
                unknown = Some((key, len));
            }
        });
        // Last: the log may panic.
        if let Some((key, len)) = unknown {
            log_unknown(key, len);
        }
    }

    fn free_now(&self, key: Key, len: usize) {
        if self.take(key, len).is_none() {
            log_unknown(key, len);
        }
    }
}

fn log_unknown(key: Key, len: usize) {
    tracing::error!(?key, len, "freed a chunk that is not in use; ignored");
}

#[cfg(test)]
mod tests {
    use crate::PoolBackend;
    use shm_pool::backend::Collect;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::mpsc::channel;
    use std::thread;
    use zenoh::shm::{ChunkDescriptor, JustAlloc, ShmProviderBackend};
    use zenoh::Wait;

    const LEN: usize = 1000;
    const CAP: usize = 1 << 20;

    fn backend() -> PoolBackend {
        PoolBackend::builder().max_bytes(CAP).check_lock_limit(false).build().unwrap()
    }

    fn taken(backend: &PoolBackend) -> ChunkDescriptor {
        backend.take(LEN, 1).unwrap().descriptor
    }

    fn in_use(backend: &PoolBackend) -> usize {
        backend.stats().bytes_in_use
    }

    /// Does what `collect_in_order` is for, with a chunk freed during the collection.
    fn collect(backend: &PoolBackend, during: impl FnOnce()) -> bool {
        let chunk = taken(backend);
        backend.core.outstanding.collect_in_order(|| {
            let before = in_use(backend);
            backend.free(&chunk);
            assert_eq!(in_use(backend), before, "released before the collection ends");
            during();
            true
        })
    }

    #[test]
    fn released_in_order() {
        let backend = backend();
        let provider = backend.provider();
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..3 {
            let alloc = || provider.alloc(LEN).with_policy::<JustAlloc>().wait().unwrap();
            let mut held: Vec<_> = (0..200).map(|_| alloc()).collect();
            random.shuffle(&mut held);
            drop(held);
            backend.core.providers.collect();
            let taken: Vec<_> = (0..200).map(|_| backend.take(LEN, 1).unwrap().descriptor).collect();
            // The first is the chunk that was released last.
            assert!(taken[1..].windows(2).all(|pair| pair[0].chunk < pair[1].chunk), "{taken:?}");
            taken.iter().for_each(|chunk| backend.free(chunk));
        }
    }

    #[test]
    fn list_is_full() {
        let backend = backend();
        // A cache line each: many more than there is room for in the list.
        let taken: Vec<_> = std::iter::from_fn(|| backend.take(1, 1).ok()).map(|chunk| chunk.descriptor).collect();
        assert!(taken.len() > 4 * CAP / super::BYTES);
        backend.core.outstanding.collect_in_order(|| {
            taken.iter().for_each(|chunk| backend.free(chunk));
            true
        });
        assert_eq!(in_use(&backend), 0);
    }

    #[test]
    fn freed_twice() {
        let backend = backend();
        let chunk = taken(&backend);
        backend.core.outstanding.collect_in_order(|| {
            (0..2).for_each(|_| backend.free(&chunk));
            true
        });
        assert_eq!(in_use(&backend), 0);
        assert_ne!(taken(&backend).chunk, taken(&backend).chunk, "in two hands");
    }

    #[test]
    fn collection_panics() {
        let backend = backend();
        let panics = AssertUnwindSafe(|| collect(&backend, || panic!("in a subscriber")));
        assert!(catch_unwind(panics).is_err());
        assert_eq!(in_use(&backend), 0);
        assert!(collect(&backend, || ()));
    }

    #[test]
    fn collections_of_two_pools() {
        let (one, other) = (backend(), backend());
        let chunk = taken(&other);
        collect(&one, || {
            other.free(&chunk);
            assert_eq!(in_use(&other), 0, "not freed in a collection of its pool");
            collect(&other, || ());
            assert_eq!(in_use(&other), 0);
            assert!(in_use(&one) > 0);
        });
        assert_eq!(in_use(&one), 0);
    }

    #[test]
    fn collection_in_a_collection() {
        let backend = backend();
        let chunk = taken(&backend);
        collect(&backend, || {
            let before = in_use(&backend);
            let has_collected = backend.core.outstanding.collect_in_order(|| {
                backend.free(&chunk);
                false
            });
            assert!(!has_collected);
            assert!(in_use(&backend) < before, "a request inside the collection would be refused");
        });
        assert_eq!(in_use(&backend), 0);
    }

    /// A thread that collected nothing, because another one did, must find what that has freed.
    #[test]
    fn second_thread_waits() {
        let backend = backend();
        let (start, started) = channel();
        let (collect_too, collected) = channel();
        thread::scope(|scope| {
            let backend = &backend;
            scope.spawn(move || {
                collect(backend, || {
                    start.send(()).unwrap();
                    collected.recv().unwrap();
                })
            });
            started.recv().unwrap();
            let chunk = taken(backend);
            let has_collected = backend.core.outstanding.collect_in_order(|| {
                let before = in_use(backend);
                backend.free(&chunk);
                assert!(in_use(backend) < before, "released at once: the other thread has the list");
                collect_too.send(()).unwrap();
                false
            });
            assert!(has_collected, "a refused request would not try again");
            assert_eq!(in_use(backend), 0);
        });
    }
}
