//! Releases the chunks that zenoh frees during a collection together, in the order of their addresses.
//!
//! zenoh frees them in an order of its own, and the pool uses them again in the order of their
//! release. In the order of addresses, a chunk and its entry are next to those of the one before, so the
//! processor has fetched them already. If thousands of messages are in flight and are read in any
//! order, a message costs a third less.
//!
//! A collection runs on one thread, which marks what zenoh frees meanwhile. The chunks stay in use
//! until the collection ends. One thread marks at a time; a second one that collects releases each
//! chunk at once, and then waits for the first, so that no request is refused because of marked chunks.
//!
//! In the middle of a collection, zenoh may call user code, a subscriber to its log, with the provider's
//! lock held. Nothing is collected from there.

use crate::outstanding::{Key, Outstanding};
use parking_lot::MutexGuard;
use shm_pool::backend::Chunk;
use std::cell::Cell;
use std::ptr;

/// The collection that a thread is in, if any.
#[derive(Clone, Copy)]
struct Current {
    /// Only compared. Null outside of collections.
    pool: *const Outstanding,
    /// Whether it marks what zenoh frees.
    marks: bool,
    /// Whether there are marks. A wait collects every millisecond, mostly for nothing, and its caches are cold:
    /// then the record is not read.
    has_marked: bool,
    /// A descriptor of no chunk in use.
    unknown: Option<Key>,
}

/// The state of a thread that is in none.
const OUTSIDE: Current = Current {
    pool: ptr::null(),
    marks: false,
    has_marked: false,
    unknown: None,
};

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(OUTSIDE) };
}

/// Ends a collection, even if it panics.
struct Collection<'a> {
    pool: &'a Outstanding,
    /// `None` if another collection marks.
    marking: Option<MutexGuard<'a, Vec<Chunk>>>,
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        // No marks from now on: the iteration would miss them.
        let Current {
            has_marked,
            mut unknown,
            ..
        } = CURRENT.replace(Current {
            pool: self.pool,
            ..OUTSIDE
        });
        if let Some(mut marking) = self.marking.take().filter(|_| has_marked) {
            unknown = self.pool.release_marked(&mut marking).or(unknown);
        }
        CURRENT.set(OUTSIDE);
        // Last: the log may panic, or call for a collection.
        if let Some(key) = unknown {
            log_unknown(key);
        }
    }
}

/// Returns `true` in the log's code that zenoh calls during a collection of this thread.
pub(crate) fn is_collecting() -> bool {
    !CURRENT.get().pool.is_null()
}

impl Outstanding {
    /// Calls `collect`, and releases in order what zenoh frees in it. Returns `true` if `collect` did, or
    /// if another thread was collecting. Does nothing inside a collection of this thread.
    pub(crate) fn collect_in_order(&self, collect: impl FnOnce() -> bool) -> bool {
        if is_collecting() {
            return false;
        }
        let marking = self.marking.try_lock();
        let marks = marking.is_some();
        CURRENT.set(Current {
            pool: self,
            marks,
            ..OUTSIDE
        });
        let ends = Collection {
            pool: self,
            marking,
        };
        let has_collected = collect();
        drop(ends);
        if !marks {
            drop(self.marking.lock());
        }
        has_collected || !marks
    }

    /// Releases a chunk that zenoh frees, now or at the end of this thread's collection.
    #[inline]
    pub(crate) fn free(&self, key: Key) {
        let current = CURRENT.get();
        if !current.marks || !ptr::eq(current.pool, self) {
            self.free_now(key);
        } else if self.mark(key) {
            CURRENT.set(Current {
                has_marked: true,
                ..current
            });
        } else {
            CURRENT.set(Current {
                unknown: Some(key),
                ..current
            });
        }
    }

    fn free_now(&self, key: Key) {
        if self.take(key).is_none() {
            log_unknown(key);
        }
    }
}

fn log_unknown(key: Key) {
    tracing::error!(?key, "freed a chunk that is not in use; ignored");
}

#[cfg(test)]
mod tests {
    use super::{Key, CURRENT};
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
        PoolBackend::builder()
            .max_bytes(CAP)
            .check_lock_limit(false)
            .build()
            .unwrap()
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
            assert_eq!(
                in_use(backend),
                before,
                "released before the collection ends"
            );
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
            let alloc = || {
                provider
                    .alloc(LEN)
                    .with_policy::<JustAlloc>()
                    .wait()
                    .unwrap()
            };
            let mut held: Vec<_> = (0..200).map(|_| alloc()).collect();
            random.shuffle(&mut held);
            drop(held);
            backend.core.providers.collect();
            let taken: Vec<_> = (0..200)
                .map(|_| backend.take(LEN, 1).unwrap().descriptor)
                .collect();
            assert!(
                taken.windows(2).all(|pair| pair[0].chunk < pair[1].chunk),
                "{taken:?}"
            );
            taken.iter().for_each(|chunk| backend.free(chunk));
        }
    }

    #[test]
    fn freed_twice() {
        let backend = backend();
        let chunk = taken(&backend);
        backend.core.outstanding.collect_in_order(|| {
            backend.free(&chunk);
            assert!(CURRENT.get().unknown.is_none());
            backend.free(&chunk);
            assert_eq!(
                CURRENT.get().unknown,
                Some(Key {
                    segment: chunk.segment,
                    offset: chunk.chunk
                }),
                "is logged"
            );
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

    /// zenoh calls the user's log with a provider's lock held, and collecting would take that again.
    #[test]
    fn no_collection_in_a_collection() {
        let (one, other) = (backend(), backend());
        let providers = [&one, &other].map(PoolBackend::provider);
        let chunk = taken(&other);
        collect(&one, || {
            for (backend, provider) in [&one, &other].into_iter().zip(&providers) {
                drop(provider.alloc(LEN).wait().unwrap());
                assert!(!backend.core.providers.collect());
                assert_eq!(backend.trim(), 0);
            }
            let before = in_use(&other);
            other.free(&chunk);
            assert!(
                in_use(&other) < before,
                "freed in a collection of another pool"
            );
        });
        for backend in [&one, &other] {
            assert!(backend.core.providers.collect());
            assert_eq!(in_use(backend), 0);
        }
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
                assert!(
                    in_use(backend) < before,
                    "released at once: the other thread marks"
                );
                collect_too.send(()).unwrap();
                false
            });
            assert!(has_collected, "a refused request would not try again");
            assert_eq!(in_use(backend), 0);
        });
    }
}
