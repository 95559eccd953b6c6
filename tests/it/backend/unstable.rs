//! What the feature `unstable-backend` adds.

use super::*;
use shm_pool_support::machine::page_size;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

/// A pool has at most 16 segments, so their length limits the cap.
#[test]
fn short_segments_limit_the_cap() {
    let build = |max_bytes| {
        let source = Source::new("short-segments");
        let builder = Backend::builder().max_segment(1 << 20).max_bytes(max_bytes);
        builder.build(Shared(source)).err()
    };
    assert!(build(16 << 20).is_none());
    let Some(BuildError::OutOfRange(max_bytes)) = build((16 << 20) + 1) else {
        panic!("it was built");
    };
    assert_eq!(max_bytes.option(), "max_bytes");
    assert_eq!(*max_bytes.allowed().end(), 16 << 20);
}

fn alloc_many(backend: &Backend, size: usize, align: usize, count: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for _ in 0..count {
        chunks.push(backend.alloc(layout(size, align)).unwrap());
    }
    chunks
}

#[test]
fn dropped_cold() {
    let backend = build(&Source::new("cold"));
    let mut places = Vec::new();
    for chunk in alloc_many(&backend, 1000, 1, 3) {
        places.push(place(&chunk));
        chunk.drop_cold();
    }
    let one = backend.alloc(layout(1000, 1)).unwrap();
    let other = backend.alloc(layout(1000, 1)).unwrap();
    let third = backend.alloc(layout(1000, 1)).unwrap();
    assert_eq!(
        [place(&one), place(&other), place(&third)],
        places[..],
        "in the order of their release"
    );
    drop(one);
    other.drop_cold();
    assert_eq!(
        place(&backend.alloc(layout(1000, 1)).unwrap()),
        places[0],
        "before those that are cold"
    );
}

#[test]
fn dropped_cold_without_a_place() {
    let source = Source::new("cold-full");
    let backend = builder()
        .max_idle_per_class(0)
        .build(Shared(source.clone()))
        .unwrap();
    backend.alloc(layout(1000, 1)).unwrap().drop_cold();
    assert_eq!(backend.stats().bytes_held, 0, "nothing is kept");
    let chunk = backend.alloc(layout(1000, 1)).unwrap();
    drop(backend);
    chunk.drop_cold();
    assert!(source.files().is_empty());
}

#[test]
fn size_classes() {
    let backend = build(&Source::new("backend-classes"));
    let classes = backend.classes();
    for (len, align) in [(1, 1), (1000, 64), (300_000, 1), (5000, 4096)] {
        let class = classes[backend.class(layout(len, align)).unwrap()];
        assert!(
            class.size >= len && class.align >= align,
            "{len} {align}: {class:?}"
        );
    }
}

#[test]
fn last_chunk_removes_segments() {
    let source = Source::new("backend-outlives");
    let backend = build(&source);
    let chunk = backend.alloc(layout(100, 1)).unwrap();
    let other = backend.alloc(layout(100, 1)).unwrap();
    let mapped = other.keep_mapped();
    let address = other.as_ptr();
    drop(backend);
    drop(other);
    // SAFETY: there is no reader.
    unsafe { chunk.as_ptr().write(5) };
    drop(thread::spawn(|| drop(chunk)).join());
    assert_eq!(source.files().len(), 1, "it is kept mapped");
    // SAFETY: `mapped` keeps the address valid; the memory reads as zero once it was given back.
    let _byte = unsafe { address.read_volatile() };
    drop(mapped);
    assert_eq!(source.files(), NONE);
}

#[test]
fn reserve_and_trim() {
    let source = Source::new("backend-reserves");
    let in_flight = Arc::new(InFlight::default());
    let backend = build(&source).with_collector(in_flight.clone());
    let class = backend.class(layout(1000, 1)).unwrap();
    let reserved = backend.reserve(layout(1000, 1), 4).unwrap();
    assert_eq!(
        (backend.reserved(class), backend.places(class).len()),
        (4, 4)
    );
    in_flight
        .chunks
        .lock()
        .unwrap()
        .extend(alloc_many(&backend, MIB / 8, 1, 7));
    assert!(backend
        .reserve(layout(MIB / 4, 1), 2)
        .unwrap_err()
        .is_exhausted());
    assert_eq!(backend.trim(), 0);
    in_flight.is_read.store(true, Ordering::Relaxed);
    drop(backend.reserve(layout(MIB / 4, 1), 2).unwrap());
    assert!(backend.trim() >= MIB / 2);
    assert_eq!(backend.places(class).len(), 4);
    drop(reserved);
    backend.evict_idle();
    assert_eq!(backend.largest_that_fits(), MIB);
    backend.trim();
    assert_eq!(
        (backend.stats().bytes_held, source.files().len()),
        (0, 0),
        "an empty segment goes"
    );
}

/// A source whose readers lock segments. No segment above the given length has room.
struct Locked(Shared, Arc<AtomicUsize>);

impl SegmentSource for Locked {
    fn create(&self, len: usize) -> Result<SegmentFile, OsError> {
        assert!(len <= self.1.load(Ordering::Relaxed), "not checked");
        self.0.create(len)
    }

    fn remove(&self, id: u64, file: File) {
        self.0.remove(id, file);
    }

    fn keeps_segments(&self) -> bool {
        true
    }

    fn reserves_whole(&self) -> bool {
        true
    }

    fn check_room(&self, len: usize) -> Result<(), OsError> {
        if len <= self.1.load(Ordering::Relaxed) {
            return Ok(());
        }
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        Err(OsError::new("statvfs", "/dev/shm", full).with_details(Some(len), ""))
    }
}

fn locked(test: &str) -> (Arc<Source>, Arc<AtomicUsize>, Backend) {
    let source = Source::new(test);
    let room = Arc::new(AtomicUsize::new(usize::MAX));
    let tuning = Tuning::new().arena_size(MIB);
    let builder = Backend::builder().max_bytes(4 * MIB).tuning(tuning);
    let backend = builder
        .build(Locked(Shared(source.clone()), room.clone()))
        .unwrap();
    (source, room, backend)
}

/// The bytes of /dev/shm that each segment has, and its length.
fn segments(source: &Source) -> Vec<(usize, usize)> {
    let mut segments = Vec::new();
    for file in source.files() {
        let data = std::fs::metadata(format!("/dev/shm/{file}")).unwrap();
        segments.push((data.blocks() as usize * 512, data.len() as usize));
    }
    segments.sort_unstable();
    segments
}

/// A reader that locks a segment while it has a chunk finds all of its memory there.
#[test]
fn whole_segment_while_it_has_a_chunk() {
    let (source, _, backend) = locked("backend-whole");
    let kept = backend.alloc(layout(1000, 1)).unwrap();
    let dropped = backend.alloc(layout(MIB / 2, 1)).unwrap();
    assert_eq!(segments(&source), [(MIB, MIB)]);
    assert_eq!(backend.stats().bytes_held, MIB);
    drop(dropped);
    assert_eq!(backend.trim(), 0, "its other chunk may still be read");
    assert_eq!(segments(&source), [(MIB, MIB)]);
    drop(kept);
    assert_eq!(backend.trim(), MIB);
    assert_eq!(segments(&source), [(0, MIB)]);
    assert_eq!(backend.stats().bytes_held, 0);
    drop(backend.alloc(layout(1000, 1)).unwrap());
    assert_eq!(segments(&source), [(MIB, MIB)]);
    assert_eq!(backend.stats().bytes_held, MIB);
}

/// An allocation is refused if the whole segment does not fit, and a shorter one serves it if
/// possible.
#[test]
fn no_room_for_a_whole_segment() {
    let (source, room, backend) = locked("backend-no-room");
    room.store(MIB / 4, Ordering::Relaxed);
    let error = backend.alloc(layout(MIB / 2, 1)).unwrap_err();
    assert!(error.is_exhausted(), "{error}");
    assert!(source.files().is_empty(), "nothing is left");
    drop(backend.alloc(layout(1000, 1)).unwrap());
    let [(held, len)] = segments(&source)[..] else {
        panic!("one segment")
    };
    assert!(held == len && (MIB / 8..=MIB / 4).contains(&len), "{len}");
    backend.trim();
    room.store(0, Ordering::Relaxed);
    let error = backend.alloc(layout(1000, 1)).unwrap_err();
    assert!(error.is_exhausted(), "its memory cannot be reserved again");
    assert_eq!(segments(&source), [(0, len)]);
    room.store(MIB, Ordering::Relaxed);
    drop(backend.alloc(layout(1000, 1)).unwrap());
    assert_eq!(segments(&source), [(len, len)]);
}

/// Idle chunks make room as at the cap, and so does a chunk in use once a long message was refused.
#[test]
fn room_in_whole_segments() {
    let (source, room, backend) = locked("backend-whole-full");
    let first = backend.alloc(layout(MIB / 4, 1)).unwrap();
    room.store(0, Ordering::Relaxed);
    let others = alloc_many(&backend, MIB / 4, 1, 3);
    assert!(backend.alloc(layout(64, 1)).unwrap_err().is_exhausted());
    drop(others);
    let long = backend.alloc(layout(MIB * 3 / 4, 1)).unwrap();
    drop((first, long));
    drop(backend.alloc(layout(MIB, 1)).unwrap());
    assert_eq!(segments(&source), [(MIB, MIB)]);
}

/// Threads that allocate and return memory to the system at once agree on what a segment has.
#[test]
fn whole_segments_of_several_threads() {
    let (source, _, backend) = locked("backend-whole-threads");
    let held = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 0..3 {
            let source = &source;
            let backend = &backend;
            let held = &held;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..300 {
                    let chunk = backend.alloc(layout(random.usize(1..MIB), 1));
                    if let Ok(chunk) = &chunk {
                        held.fetch_add(1, Ordering::Relaxed);
                        let path = format!("/dev/shm/{}.{}", source.prefix, chunk.segment());
                        let data = std::fs::metadata(path).unwrap();
                        assert_eq!(data.blocks() * 512, data.len());
                    }
                    drop(chunk);
                    backend.trim();
                }
            });
        }
    });
    assert!(held.into_inner() > 300);
    backend.trim();
    assert_eq!(backend.stats().bytes_held, 0);
    assert!(segments(&source).iter().all(|&(held, _)| held == 0));
}

#[test]
fn leak() {
    let source = Source::new("backend-given-up");
    let backend = build(&source);
    let kept = backend.alloc(layout(MIB / 2, 1)).unwrap();
    let first = place(&kept);
    let address = kept.as_ptr();
    let mapped = kept.keep_mapped();
    // SAFETY: no reader writes.
    unsafe { address.write_bytes(9, MIB / 2) };
    kept.leak();
    assert_eq!(backend.stats().bytes_in_use, 0);
    assert!(backend.alloc(layout(MIB, 1)).unwrap_err().is_exhausted());
    assert_ne!(place(&backend.alloc(layout(MIB / 2, 1)).unwrap()), first);
    backend.trim();
    // SAFETY: `mapped` keeps it so.
    assert_eq!(unsafe { address.read_volatile() }, 9);
    drop((backend, mapped));
    assert_eq!(source.files(), NONE);
}

#[test]
fn tag() {
    let backend = build(&Source::new("backend-tag"));
    let mut chunk = backend.alloc(layout(100, 1)).unwrap();
    assert_eq!(chunk.tag(), 0);
    chunk.set_tag(9);
    let first = place(&chunk);
    drop(chunk);
    let again = backend.alloc(layout(100, 1)).unwrap();
    assert_eq!(
        (place(&again), again.tag()),
        (first, 9),
        "kept from use to use"
    );
    drop(again);
    backend.evict_idle();
    let new = backend.alloc(layout(100, 1)).unwrap();
    assert_eq!((place(&new), new.tag()), (first, 0), "of another chunk");
    drop(new);
    backend.evict_idle();
    backend.reserve(layout(100, 1), 1).unwrap().keep();
    assert_eq!(
        backend.alloc(layout(100, 1)).unwrap().tag(),
        0,
        "one that was reserved is new, too"
    );
}

#[test]
fn raw() {
    let source = Source::new("backend-raw");
    let backend = build(&source);
    let chunk = backend.alloc(layout(100, 1)).unwrap();
    let before = place(&chunk);
    // SAFETY: turned back once.
    let chunk = unsafe { Chunk::from_raw(chunk.into_raw()) };
    assert_eq!(
        (place(&chunk), backend.stats().bytes_in_use),
        (before, chunk.len())
    );
    drop(chunk);
    assert_eq!(backend.stats().bytes_in_use, 0);
}

#[test]
fn forked_child() {
    let source = Source::new("backend-fork");
    let backend = build(&source);
    let chunk = backend.alloc(layout(100, 1)).unwrap();
    let idle = backend.alloc(layout(MIB / 2, 1)).unwrap();
    drop(idle);
    let mapped = chunk.keep_mapped();
    // SAFETY: the child takes no lock of other threads' and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_refused = [MIB / 2, MIB / 4].map(|len| match backend.alloc(layout(len, 1)) {
            Err(error) => matches!(error, AllocError::Forked),
            Ok(_) => false,
        });
        let is_inert =
            backend.is_inherited() && backend.trim() == 0 && backend.places(0).is_empty();
        let is_inert =
            is_inert && !backend.wants_back(chunk.segment(), chunk.offset(), chunk.len());
        drop(chunk);
        drop(backend);
        drop(mapped);
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(i32::from(!(is_refused == [true; 2] && is_inert))) }
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place to write to.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!((waited, status), (pid, 0));
    assert_eq!((source.files().len(), backend.is_inherited()), (1, false));
    drop((chunk, mapped, backend));
    assert_eq!(source.files(), NONE);
}

/// A chunk that was given up is never free, so no place that is kept for a refused length includes
/// it.
#[test]
fn long_message_beside_given_up_chunk() {
    let page = page_size();
    let source = Source::new("backend-long");
    let builder = Backend::builder()
        .max_bytes(32 * page)
        .tuning(Tuning::new().arena_size(32 * page).idle_window(0));
    let backend = builder.build(Shared(source.clone())).unwrap();
    let mut chunks = alloc_many(&backend, page, page, 32);
    chunks.sort_by_key(Chunk::offset);
    let mut places: Vec<_> = chunks.into_iter().map(Some).collect();
    places[0].take().unwrap().leak();
    // The cheapest window begins with the chunk that was given up; no gap is long enough.
    for gap in [1, 2, 3, 6, 10, 14, 18, 22, 26, 30] {
        places[gap] = None;
    }
    backend.evict_idle();
    let start = Instant::now();
    'refused: loop {
        for place in &mut places {
            if place.is_none() {
                continue;
            }
            *place = None;
            *place = Some(backend.alloc(layout(page, page)).unwrap());
            if backend.alloc(layout(4 * page, page)).is_ok() {
                break 'refused;
            }
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "refused although every chunk was dropped again and again"
        );
    }
    drop((places, backend));
    assert_eq!(source.files(), NONE);
}

/// Guards against middleware that keeps whole chunks in its own lists and starves long messages.
#[test]
fn wants_back_what_a_long_message_needs() {
    let backend = build(&Source::new("wants-back"));
    let wanted = |chunk: &Chunk| backend.wants_back(chunk.segment(), chunk.offset(), chunk.len());
    let is_refused = || backend.alloc(layout(MIB / 4, 1)).is_err();
    let mut chunks = alloc_many(&backend, MIB / 16, 1, 16);
    assert!(!chunks.iter().any(wanted));
    let mut tries = 0;
    while is_refused() {
        // Chunks that it does not want are used again, as if the middleware had kept them.
        let all = chunks.len();
        chunks.retain(|chunk| !wanted(chunk));
        assert!(
            chunks.len() >= MIB / 2 / (MIB / 16),
            "{} of {all} were dropped for a quarter of the cap",
            chunks.len()
        );
        tries += 1;
        assert!(tries < 1000, "no place was chosen");
    }
    assert!(!chunks.iter().any(wanted));
}
