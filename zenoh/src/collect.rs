//! Collecting: has zenoh's providers release what has been read, and releases their chunks in the
//! order of their addresses.
//!
//! zenoh frees chunks in an order of its own, and the pool uses them again in the order of their
//! release. In the order of addresses, a chunk and its entry are next to those of the one before, so
//! the processor has fetched them already. If thousands of messages are in flight and are read in any
//! order, a message costs a third less.
//!
//! A collection runs on one thread, which marks what zenoh frees meanwhile. The chunks stay in use
//! until the collection ends. One thread marks at a time. A second one that collects releases each
//! chunk at once, and then waits for the first, so that no request is refused because of marked chunks.
//!
//! In the middle of a collection, zenoh may call user code, a subscriber to its log, with the
//! provider's lock held. Nothing is collected from there.

#![forbid(unsafe_code)]

use crate::in_use::{ChunksInUse, Key};
use crate::PoolBackend;
use parking_lot::{Mutex, MutexGuard};
use shm_pool::backend::{Chunk, Collect};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zenoh::shm::ShmProvider;

/// After this many refusals in a row the caller polls, and [`BACKOFF`] applies.
const POLLING_REFUSALS: u32 = 8;

/// A collection that released nothing is followed by another one after this many times its
/// duration.
const BACKOFF: u32 = 512;

/// The providers on a backend, and the allocations that were refused since the last one that was
/// served. No lock for the latter, which a forked child reaches, too. All accesses are Relaxed:
/// each value is a hint by itself.
pub(crate) struct Providers {
    all: Mutex<Vec<Weak<ShmProvider<PoolBackend>>>>,
    in_use: Arc<ChunksInUse>,
    refusals: AtomicU32,
    /// Whether the system refused one of them, and the log has said so.
    is_logged: AtomicBool,
    /// No collection is worth its time before, in nanoseconds since `created`.
    next_collection: AtomicU64,
    created: Instant,
}

impl Providers {
    pub(crate) fn new(in_use: Arc<ChunksInUse>) -> Self {
        Self {
            all: Mutex::default(),
            in_use,
            refusals: AtomicU32::new(0),
            is_logged: AtomicBool::new(false),
            next_collection: AtomicU64::new(0),
            created: Instant::now(),
        }
    }

    pub(crate) fn add(&self, provider: Weak<ShmProvider<PoolBackend>>) {
        let mut providers = self.all.lock();
        providers.retain(|provider| provider.strong_count() > 0);
        providers.push(provider);
    }

    /// Notes an allocation that was served.
    #[inline]
    pub(crate) fn note_served(&self) {
        if self.refusals.load(Ordering::Relaxed) > 0 {
            self.forget_refusals();
        }
    }

    #[cold]
    fn forget_refusals(&self) {
        self.refusals.store(0, Ordering::Relaxed);
        self.is_logged.store(false, Ordering::Relaxed);
        self.end_backoff();
    }

    /// Notes an allocation that was refused. Returns `true` if the system `has_failed` and this is the
    /// first time since an allocation was served: a policy that waits for memory tries a thousand
    /// times a second.
    pub(crate) fn note_refused(&self, has_failed: bool) -> bool {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        has_failed && !self.is_logged.swap(true, Ordering::Relaxed)
    }

    /// Makes the next collection take place, however many allocations were refused.
    pub(crate) fn end_backoff(&self) {
        self.next_collection.store(0, Ordering::Relaxed);
    }

    /// Returns the last provider of those before an index, and its index.
    fn last_before(&self, index: usize) -> Option<(usize, Weak<ShmProvider<PoolBackend>>)> {
        let all = self.all.lock();
        let last = index.min(all.len()).checked_sub(1)?;
        Some((last, all[last].clone()))
    }
}

impl Collect for Providers {
    fn collect(&self) -> bool {
        let start = self.created.elapsed();
        let next = self.next_collection.load(Ordering::Relaxed);
        if start < Duration::from_nanos(next) {
            return false;
        }

        // Not under the lock: a collection runs the user's code, in zenoh's log. From the last one
        // on: `add` removes some and adds to the end, so none of the others is skipped.
        let mut has_collected = false;
        let mut index = usize::MAX;
        while let Some((last, provider)) = self.last_before(index) {
            index = last;
            if let Some(provider) = provider.upgrade() {
                has_collected |= collect_in_order(&self.in_use, &provider);
            }
        }

        if !has_collected && self.refusals.load(Ordering::Relaxed) >= POLLING_REFUSALS {
            let took = self.created.elapsed() - start;
            let next = start + took * BACKOFF;
            self.next_collection
                .store(next.as_nanos() as u64, Ordering::Relaxed);
        }
        has_collected
    }
}

/// The collection that a thread is in, if any.
#[derive(Clone, Copy)]
struct Current {
    /// Only compared. Null outside of collections.
    in_use: *const ChunksInUse,
    /// Whether it marks what zenoh frees.
    marks: bool,
    /// Whether there are marks. A wait collects every millisecond, mostly for nothing, and its caches are
    /// cold: then the record is not read.
    has_marked: bool,
    /// A descriptor of no chunk in use.
    unknown: Option<Key>,
}

/// The state of a thread that is in none.
const OUTSIDE: Current = Current {
    in_use: ptr::null(),
    marks: false,
    has_marked: false,
    unknown: None,
};

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(OUTSIDE) };
}

/// Ends a collection, even if it panics.
struct Collection<'a> {
    in_use: &'a ChunksInUse,
    /// `None` if another collection marks.
    marking: Option<MutexGuard<'a, Vec<Chunk>>>,
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        // No marks from now on: the iteration would miss them.
        let ended = CURRENT.replace(Current {
            in_use: self.in_use,
            ..OUTSIDE
        });
        let mut unknown = ended.unknown;
        if let Some(mut chunks) = self.marking.take() {
            if ended.has_marked {
                unknown = self.in_use.release_marked(&mut chunks).or(unknown);
            }
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
    !CURRENT.get().in_use.is_null()
}

/// Has a provider collect, and releases in order what it frees. Returns `true` if it freed any, or if
/// another thread was collecting. Does nothing inside a collection of this thread.
pub(crate) fn collect_in_order(in_use: &ChunksInUse, provider: &ShmProvider<PoolBackend>) -> bool {
    in_order(in_use, || provider.garbage_collect() > 0)
}

fn in_order(in_use: &ChunksInUse, collect: impl FnOnce() -> bool) -> bool {
    if is_collecting() {
        return false;
    }
    let marking = in_use.marking.try_lock();
    let marks = marking.is_some();
    CURRENT.set(Current {
        in_use,
        marks,
        ..OUTSIDE
    });
    let collection = Collection { in_use, marking };
    let has_collected = collect();
    drop(collection);
    if !marks {
        // Waits for the other thread to end its collection.
        drop(in_use.marking.lock());
        return true;
    }
    has_collected
}

/// Releases a chunk that zenoh frees, now or at the end of this thread's collection.
#[inline]
pub(crate) fn free(in_use: &ChunksInUse, key: Key) {
    let mut current = CURRENT.get();
    if !current.marks || !ptr::eq(current.in_use, in_use) {
        match in_use.remove(key) {
            Some(chunk) => drop(chunk),
            None => log_unknown(key),
        }
        return;
    }
    if in_use.mark(key) {
        current.has_marked = true;
    } else {
        current.unknown = Some(key);
    }
    CURRENT.set(current);
}

fn log_unknown(key: Key) {
    tracing::error!(?key, "freed a chunk that is not in use; ignored");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::mpsc::channel;
    use std::thread;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};
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
        backend.alloc_chunk(LEN, 1).unwrap().descriptor
    }

    fn in_use(backend: &PoolBackend) -> usize {
        backend.stats().bytes_in_use
    }

    /// Does what `in_order` is for, with a chunk freed during the collection.
    fn collect(backend: &PoolBackend, during: impl FnOnce()) -> bool {
        let chunk = taken(backend);
        in_order(&backend.core.in_use, || {
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
                .map(|_| backend.alloc_chunk(LEN, 1).unwrap().descriptor)
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
        in_order(&backend.core.in_use, || {
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
            let has_collected = in_order(&backend.core.in_use, || {
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

    /// A caller that polls at the cap must not have every try visit all messages in flight.
    #[test]
    fn polling_collects_rarely() {
        let backend = PoolBackend::builder()
            .max_bytes(16 * 4096)
            .check_lock_limit(false)
            .build()
            .unwrap();
        let provider = backend.provider();
        let alloc = || provider.alloc(4096).with_policy::<JustAlloc>().wait().ok();
        let mut held: Vec<_> = std::iter::from_fn(alloc).collect();
        let is_limited = || {
            backend
                .core
                .providers
                .next_collection
                .load(Ordering::Relaxed)
                > 0
        };
        for _ in 1..POLLING_REFUSALS {
            assert!(alloc().is_none());
            assert!(!is_limited());
        }
        assert!(alloc().is_none());
        assert!(is_limited());
        held.pop();
        // Ends: the limit is a share of the time.
        let served = std::iter::repeat_with(alloc).flatten().next();
        assert!(!is_limited());
        assert!(alloc().is_none());
        drop(served);
        assert!(alloc().is_some(), "the next one is served at once");
    }

    /// Counts zenoh's collections, and those during which the list of providers is locked.
    #[derive(Clone, Default)]
    struct Watch {
        providers: Arc<Mutex<Option<Arc<Providers>>>>,
        collections: Arc<AtomicU32>,
        locked: Arc<AtomicU32>,
    }

    impl Subscriber for Watch {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            if let (true, Some(providers)) = (
                event.metadata().target().starts_with("zenoh_shm"),
                &*self.providers.lock(),
            ) {
                self.collections.fetch_add(1, Ordering::Relaxed);
                self.locked
                    .fetch_add(u32::from(providers.all.is_locked()), Ordering::Relaxed);
            }
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// A collection runs the user's code, which may create a provider.
    #[test]
    fn collection_holds_no_lock() {
        let backend = backend();
        let _provider = backend.provider();
        let watch = Watch::default();
        *watch.providers.lock() = Some(backend.core.providers.clone());
        tracing::subscriber::with_default(watch.clone(), || backend.core.providers.collect());
        assert!(watch.collections.load(Ordering::Relaxed) > 0);
        assert_eq!(watch.locked.load(Ordering::Relaxed), 0);
    }
}
