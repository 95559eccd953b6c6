//! The backend for other middleware: its source, its collector, and what both are asked for.

#[cfg(feature = "unstable-backend")]
mod unstable;

use crate::fixtures::{files, unique_prefix, NONE};
use shm_pool::backend::{Backend, BackendBuilder, Chunk, Collect, SegmentFile, SegmentSource};
use shm_pool::{AllocError, BuildError, OsError, Tuning};
use std::alloc::Layout;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);

struct Source {
    prefix: String,
    next: AtomicU64,
    /// It creates no segment as long as this is set.
    is_refusing: AtomicBool,
}

struct Shared(Arc<Source>);

impl Source {
    fn new(test: &str) -> Arc<Self> {
        Arc::new(Self {
            prefix: unique_prefix(test),
            next: AtomicU64::new(7),
            is_refusing: AtomicBool::new(false),
        })
    }

    fn path(&self, id: u64) -> String {
        format!("/dev/shm/{}.{id}", self.prefix)
    }

    fn files(&self) -> Vec<String> {
        files(&self.prefix)
    }
}

impl SegmentSource for Shared {
    fn create(&self, _len: usize) -> Result<SegmentFile, OsError> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let path = self.0.path(id);
        let failed = |error| OsError::new("open", &path, error);
        if self.0.is_refusing.load(Ordering::Relaxed) {
            return Err(failed(io::Error::from_raw_os_error(libc::EACCES)));
        }
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed)?;
        Ok(SegmentFile {
            id,
            file,
            path: path.into(),
        })
    }

    fn remove(&self, id: u64, _file: File) {
        std::fs::remove_file(self.0.path(id)).unwrap();
    }
}

fn builder() -> BackendBuilder {
    Backend::builder()
        .max_bytes(MIB)
        .tuning(Tuning::new().arena_size(MIB))
}

fn build(source: &Arc<Source>) -> Backend {
    builder().build(Shared(source.clone())).unwrap()
}

/// Holds chunks until it is asked to collect, if they are read by then.
#[derive(Default)]
struct InFlight {
    chunks: Mutex<Vec<Chunk>>,
    is_read: AtomicBool,
    asked: AtomicUsize,
}

impl Collect for InFlight {
    fn collect(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_read = self.is_read.load(Ordering::Relaxed);
        is_read && self.chunks.lock().unwrap().drain(..).count() > 0
    }
}

fn place(chunk: &Chunk) -> (u64, usize) {
    (chunk.segment(), chunk.offset())
}

#[test]
fn drop_returns_chunk() {
    let source = Source::new("backend-reuse");
    let backend = build(&source);
    let mut chunk = backend.alloc(layout(10_000, 1)).unwrap();
    // SAFETY: there is no reader.
    unsafe { chunk.bytes_mut() }.fill(1);
    let first = place(&chunk);
    assert_eq!((first.0, first.1 % 64, chunk.len() >= 10_000), (7, 0, true));
    let path = source.path(7);
    let read = || std::fs::read(&path).unwrap()[first.1..first.1 + 10_000].to_vec();
    assert!(
        read().iter().all(|&byte| byte == 1),
        "readers find it by segment and offset"
    );
    drop(chunk);
    assert_eq!(place(&backend.alloc(layout(10_000, 1)).unwrap()), first);
    assert_eq!((backend.stats().hits(), backend.stats().misses()), (1, 1));
}

#[test]
fn alignment_and_limits() {
    let source = Source::new("backend-limits");
    let backend = builder()
        .max_alloc(MIB / 2)
        .build(Shared(source.clone()))
        .unwrap();
    let chunk = backend.alloc(layout(100, 4096)).unwrap();
    assert_eq!(
        (chunk.offset() % 4096, chunk.as_ptr() as usize % 4096),
        (0, 0)
    );
    let kind = |len, align| backend.alloc(layout(len, align)).unwrap_err();
    assert!(matches!(kind(MIB, 1), AllocError::TooLarge { max, .. } if max == MIB / 2));
    assert!(matches!(
        kind(1, 8192),
        AllocError::UnsupportedAlignment { .. }
    ));
    let too_much = Backend::builder().max_bytes(2 << 40).build(Shared(source));
    let Some(BuildError::OutOfRange(max_bytes)) = too_much.err() else {
        panic!("it was built");
    };
    assert_eq!(max_bytes.option(), "max_bytes");
}

#[test]
fn tuning() {
    let source = Source::new("backend-tuning");
    let build = |tuning| {
        Backend::builder()
            .max_bytes(8 * MIB)
            .tuning(tuning)
            .build(Shared(source.clone()))
    };
    let option = |tuning| match build(tuning).err() {
        Some(BuildError::OutOfRange(of)) => of.option(),
        other => panic!("{other:?}"),
    };
    assert_eq!(option(Tuning::new().arena_size(0)), "arena_size");
    assert_eq!(option(Tuning::new().idle_window(1 << 40)), "idle_window");
    let node = build(Tuning::new().numa_node(1024)).err();
    assert!(
        matches!(node, Some(BuildError::NumaNode { node: 1024, .. })),
        "{node:?}"
    );
    let backend = build(Tuning::new().arena_size(4 * MIB).huge_pages(true)).unwrap();
    let _chunk = backend.alloc(layout(100, 1)).unwrap();
    assert_eq!(backend.stats().bytes_mapped, 4 * MIB);
}

#[test]
fn source_refuses() {
    let source = Source::new("backend-refuses");
    let backend = build(&source);
    source.is_refusing.store(true, Ordering::Relaxed);
    let error = backend.alloc(layout(100, 1)).unwrap_err();
    let AllocError::Os(os) = &error else {
        panic!("{error}")
    };
    assert_eq!((os.call(), os.errno()), ("open", Some(libc::EACCES)));
    assert!(os.to_string().contains(&source.prefix), "{os}");
    assert_eq!(
        (backend.stats().segments, backend.stats().bytes_held),
        (0, 0)
    );
    source.is_refusing.store(false, Ordering::Relaxed);
    drop(backend.alloc(layout(100, 1)).unwrap());
    drop(backend);
    assert_eq!(source.files(), NONE);
}

#[test]
fn unmappable_file_is_removed() {
    struct ReadOnly(Shared);
    impl SegmentSource for ReadOnly {
        fn create(&self, len: usize) -> Result<SegmentFile, OsError> {
            let made = self.0.create(len)?;
            Ok(SegmentFile {
                file: File::open(&made.path).unwrap(),
                ..made
            })
        }

        fn remove(&self, id: u64, file: File) {
            self.0.remove(id, file);
        }
    }
    let source = Source::new("backend-unfit");
    let backend = builder().build(ReadOnly(Shared(source.clone()))).unwrap();
    assert!(matches!(
        backend.alloc(layout(100, 1)).unwrap_err(),
        AllocError::Os(_)
    ));
    assert_eq!(source.files(), NONE);
}

#[test]
fn collects_before_refusal() {
    let source = Source::new("backend-collects");
    let in_flight = Arc::new(InFlight::default());
    let backend = builder()
        .collect_early(false)
        .build(Shared(source))
        .unwrap()
        .with_collector(in_flight.clone());
    for _ in 0..8 {
        let chunk = backend.alloc(layout(MIB / 8, 1)).unwrap();
        in_flight.chunks.lock().unwrap().push(chunk);
    }
    let asked = in_flight.asked.load(Ordering::Relaxed);
    assert!(backend
        .alloc(layout(MIB / 8, 1))
        .unwrap_err()
        .is_exhausted());
    assert!(in_flight.asked.load(Ordering::Relaxed) > asked);
    in_flight.is_read.store(true, Ordering::Relaxed);
    assert!(backend.alloc(layout(MIB, 1)).is_ok());
}

/// Another thread releases the last chunk, and its segment with it, while this one asks for a
/// collection.
#[test]
fn segment_is_removed_meanwhile() {
    struct Elsewhere(Mutex<Vec<Chunk>>);
    impl Collect for Elsewhere {
        fn collect(&self) -> bool {
            let chunks = std::mem::take(&mut *self.0.lock().unwrap());
            thread::scope(|scope| scope.spawn(|| drop(chunks)).join().unwrap());
            false
        }
    }
    let in_flight = Arc::new(Elsewhere(Mutex::default()));
    let builder = builder().max_idle_per_class(0).collect_early(false);
    let backend = builder
        .build(Shared(Source::new("backend-meanwhile")))
        .unwrap()
        .with_collector(in_flight.clone());
    for _ in 0..3 {
        let chunk = backend.alloc(layout(MIB, 1)).unwrap();
        in_flight.0.lock().unwrap().push(chunk);
    }
}

/// The same without a collector: threads create and remove the segment in turn, and there is always
/// room for each of them.
#[test]
fn segment_comes_and_goes() {
    let backend = builder()
        .max_idle_per_class(0)
        .build(Shared(Source::new("backend-goes")))
        .unwrap();
    let alloc_many = || {
        let mut refused = 0;
        for _ in 0..3_000 {
            if backend.alloc(layout(MIB / 4, 1)).is_err() {
                refused += 1;
            }
        }
        refused
    };
    let mut refused = 0;
    thread::scope(|scope| {
        let threads = [
            scope.spawn(alloc_many),
            scope.spawn(alloc_many),
            scope.spawn(alloc_many),
        ];
        for thread in threads {
            refused += thread.join().unwrap();
        }
    });
    assert_eq!(refused, 0);
}

/// Of short chunks, which would need a search for gaps. Of long ones, idle ones are evicted first.
#[test]
fn collects_before_making_room() {
    for (len, idle_len, collects) in [(1000, 3000, true), (MIB / 8, MIB / 2, false)] {
        let in_flight = Arc::new(InFlight::default());
        let backend = build(&Source::new("backend-room")).with_collector(in_flight.clone());
        let idle = backend.alloc(layout(idle_len, 1)).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| backend.alloc(layout(len, 1)).ok()).collect();
        assert!(all.len() > 3);
        in_flight.chunks.lock().unwrap().extend(all);
        drop(idle);
        in_flight.is_read.store(true, Ordering::Relaxed);
        let before = in_flight.asked.load(Ordering::Relaxed);
        let _chunk = backend.alloc(layout(len, 1)).unwrap();
        assert_eq!(
            in_flight.asked.load(Ordering::Relaxed) > before,
            collects,
            "{len}"
        );
        let idle = |class: &shm_pool::ClassStats| class.size >= idle_len && class.idle == 1;
        assert_eq!(
            backend.stats().classes.iter().any(idle),
            collects,
            "it is evicted"
        );
    }
}

#[test]
fn collects_before_growth() {
    let source = Source::new("backend-early");
    let in_flight = Arc::new(InFlight::default());
    let backend = build(&source).with_collector(in_flight.clone());
    in_flight.is_read.store(true, Ordering::Relaxed);
    for _ in 0..100 {
        let chunk = backend.alloc(layout(1000, 1)).unwrap();
        in_flight.chunks.lock().unwrap().push(chunk);
    }
    // A collection has to leave 32 KiB.
    assert!(backend.stats().misses() < 40, "{:?}", backend.stats());
}

#[test]
fn wait() {
    let source = Source::new("backend-waits");
    let in_flight = Arc::new(InFlight::default());
    let backend = build(&source).with_collector(in_flight.clone());
    let held = backend.alloc(layout(MIB, 1)).unwrap();
    let error = backend
        .alloc_timeout(layout(1, 1), Duration::ZERO)
        .unwrap_err();
    assert!(matches!(error, AllocError::TimedOut { .. }));
    thread::scope(|scope| {
        let waits = scope.spawn(|| backend.alloc_timeout(layout(MIB, 1), TIMEOUT));
        drop(held);
        let taken = waits.join().unwrap().unwrap();
        in_flight.chunks.lock().unwrap().push(taken);
        let waits = scope.spawn(|| backend.alloc_timeout(layout(MIB, 1), TIMEOUT));
        in_flight.is_read.store(true, Ordering::Relaxed);
        drop(waits.join().unwrap().unwrap());
    });
}

/// A source that gives all its segments one id, in files of their own.
struct OneId(Arc<Source>);

impl SegmentSource for OneId {
    fn create(&self, len: usize) -> Result<SegmentFile, OsError> {
        let segment = Shared(self.0.clone()).create(len)?;
        std::fs::remove_file(self.0.path(segment.id)).unwrap();
        Ok(SegmentFile { id: 7, ..segment })
    }

    fn remove(&self, _id: u64, _file: File) {}
}

/// With one id for two segments, a chunk of one would be returned to the other.
#[test]
fn segment_id_used_twice() {
    let source = Source::new("backend-id");
    let backend = builder()
        .tuning(Tuning::new().arena_size(MIB / 16))
        .build(OneId(source.clone()))
        .unwrap();
    let first = backend.alloc(layout(MIB / 32, 1)).unwrap();
    let error = backend.alloc(layout(MIB / 4, 1)).unwrap_err();
    let AllocError::Os(os) = &error else {
        panic!("{error}")
    };
    assert_eq!(
        (os.errno(), os.object()),
        (Some(libc::EEXIST), Path::new("segment 7")),
        "{error}"
    );
    drop(first);
    assert!(backend.alloc(layout(MIB / 32, 1)).is_ok());
    assert_eq!(source.files(), NONE);
}

fn layout(len: usize, align: usize) -> Layout {
    Layout::from_size_align(len, align).unwrap()
}
