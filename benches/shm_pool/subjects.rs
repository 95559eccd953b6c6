//! The subjects. Each is built once and then runs batches; Criterion and the table of ratios time
//! the same batches.

use crate::hand_off;
use crossbeam_queue::ArrayQueue;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use shm_pool::inspect::Inspector;
use shm_pool::{Client, PeerId, Provider, ShmBytes, ShmBytesMut};
use shm_pool_support::process::{end_with_parent, this_program, Child};
use shm_pool_support::Fallible;
use std::alloc::Layout;
use std::hint::black_box;
use std::process::Stdio;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use talc::base::Talc;
use talc::source::Manual;
use talc::DefaultBinning;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

const PAGE: usize = 4096;
const BURST: usize = 4;
const TALC_ARENA: usize = 16 * MIB;

/// Longer than any batch.
const FOR_EVER: Duration = Duration::from_secs(600);

/// How long a thread that is about to wait is given to park.
const UNTIL_PARKED: Duration = Duration::from_millis(2);

/// Runs an operation that many times.
pub(crate) type Batch = Box<dyn FnMut(u64) -> Timed>;

/// How long a batch took.
pub(crate) struct Timed {
    pub(crate) elapsed: Duration,
    /// A thread was found to lack a core, so that the scheduler was measured too.
    pub(crate) is_disturbed: bool,
}

/// Criterion's function and parameter, with a slash between; and the function that builds it.
pub(crate) type Subject = (&'static str, fn() -> Batch);

/// While another process inspects all objects, over and over.
pub(crate) const INSPECTED: &str = "inspected/1MiB";

/// While another thread waits for memory of another pool.
pub(crate) const OTHER_POOL_WAITS: &str = "other_pool_waits/1MiB";

/// In the order in which they run. Floors are directly before the subjects that are compared with
/// them, because a machine's speed drifts. Subjects that start threads are last, because glibc's
/// malloc is faster in a process that never had a second one.
pub(crate) const ALL: &[Subject] = &[
    ("floor/array_queue", array_queue),
    ("warm/64B", || warm(64)),
    ("warm/4KiB", || warm(4 * KIB)),
    ("warm/64KiB", || warm(64 * KIB)),
    ("warm/1MiB", || warm(MIB)),
    ("warm/16MiB", || warm(16 * MIB)),
    ("malloc/1MiB", malloc),
    ("talc/1MiB", talc),
    ("burst/1MiB", burst),
    ("shared/1MiB", || shared(pass_by_reference)),
    ("shared_grant/1MiB", || shared(pass_by_grant)),
    ("warm_fill/1MiB", warm_fill),
    ("cold/1MiB", cold),
    ("floor/cross_thread", hand_off::tokens),
    ("cross_thread/1MiB", hand_off::buffers),
    ("malloc_threads/1MiB", malloc_threads),
    (OTHER_POOL_WAITS, other_pool_waits),
    (INSPECTED, inspected),
];

/// Times `count` runs. The result of an operation is dropped within the time.
#[inline]
fn time<T>(count: u64, mut operation: impl FnMut() -> T) -> Timed {
    let start = Instant::now();
    for _ in 0..count {
        black_box(operation());
    }
    Timed {
        elapsed: start.elapsed(),
        is_disturbed: false,
    }
}

/// Runs a batch that must make no new chunk, and so, where one chunk exists, must reuse that one
/// each time.
pub(crate) fn steady(provider: &Provider, batch: impl FnOnce() -> Timed) -> Timed {
    let made = || {
        let stats = provider.stats();
        (stats.segments_created, stats.misses())
    };
    let before = made();
    let timed = batch();
    assert_eq!(
        made(),
        before,
        "a chunk was made while only reuse was to be measured"
    );
    timed
}

/// A provider with idle chunks for `len` bytes, their pages faulted in.
pub(crate) fn provider_with(len: usize, chunks: usize) -> Provider {
    let provider = Provider::builder()
        .max_idle_per_class(chunks)
        .build()
        .expect("a provider");
    provider
        .reserve(len, chunks)
        .expect("room for the chunks in /dev/shm")
        .keep();
    provider
}

#[inline]
fn alloc(provider: &Provider, len: usize) -> ShmBytesMut {
    provider
        .alloc(black_box(len))
        .expect("an idle chunk, or room for a new one")
}

/// The minimum cost of a pool made of a lock-free queue.
fn array_queue() -> Batch {
    let queue = ArrayQueue::new(8);
    queue.push(1usize).expect("a free slot");
    Box::new(move |count| {
        time(count, || {
            let taken = black_box(queue.pop().expect("the one entry"));
            queue.push(black_box(taken)).expect("a free slot");
        })
    })
}

/// An operation on idle chunks for `len` bytes, which it must reuse each time.
fn reuse<T>(len: usize, chunks: usize, operation: impl Fn(&Provider) -> T + 'static) -> Batch {
    let provider = provider_with(len, chunks);
    Box::new(move |count| steady(&provider, || time(count, || operation(&provider))))
}

/// Allocated and dropped, never shared.
fn warm(len: usize) -> Batch {
    reuse(len, 1, move |provider| alloc(provider, len))
}

/// As `warm`, and every byte written: the cost of a message before it is read.
fn warm_fill() -> Batch {
    reuse(MIB, 1, |provider| {
        let mut buffer = alloc(provider, MIB);
        buffer.fill(black_box(7));
        buffer
    })
}

/// Several alive at a time: all but one are from the queue behind the hot slot.
fn burst() -> Batch {
    reuse(MIB, BURST, |provider| -> [ShmBytesMut; BURST] {
        std::array::from_fn(|_| alloc(provider, MIB))
    })
}

/// A segment created, faulted in and destroyed: the cost of a message without a pool.
fn cold() -> Batch {
    let provider = Provider::builder()
        .max_idle_per_class(0)
        .build()
        .expect("a provider");
    Box::new(move |count| {
        let created = || provider.stats().segments_created;
        let before = created();
        let timed = time(count, || {
            let mut buffer = alloc(&provider, MIB);
            for page in buffer.chunks_mut(PAGE) {
                page[0] = 1;
            }
            buffer
        });
        assert_eq!(
            created() - before,
            count,
            "a segment was reused where a fresh one was to be measured"
        );
        timed
    })
}

/// Allocated, frozen, and read through a client that has the segment mapped.
///
/// Owner and client are one process here. The protocol is the same as between two, but the lease's
/// cache line stays in one core: this measures the instructions, without the coherence traffic.
fn shared(pass: impl Fn(&Client, PeerId, ShmBytes) + 'static) -> Batch {
    let provider = provider_with(MIB, 1);
    let client = Client::new();
    let peer = client.connect(provider.id()).expect("a connection");
    pass(&client, peer, alloc(&provider, MIB).freeze()); // maps the segment
    Box::new(move |count| {
        let timed = steady(&provider, || {
            time(count, || {
                pass(&client, peer, alloc(&provider, MIB).freeze())
            })
        });
        assert_eq!(
            client.mapped_segments(),
            1,
            "the cached mapping was to be used each time"
        );
        timed
    })
}

#[inline]
fn pass_by_reference(client: &Client, _: PeerId, message: ShmBytes) {
    let descriptor = message.descriptor().expect("a record");
    drop(black_box(
        client
            .attach(black_box(&descriptor))
            .expect("a live message"),
    ));
}

/// Only the grant keeps the message between the owner's drop and the attach.
#[inline]
fn pass_by_grant(client: &Client, peer: PeerId, message: ShmBytes) {
    let descriptor = message.grant(peer).expect("a connected peer");
    drop(message);
    drop(black_box(
        client
            .attach(black_box(&descriptor))
            .expect("a granted message"),
    ));
}

/// glibc's malloc and free.
///
/// The first free of a block that was mapped separately raises glibc's mmap threshold above its
/// size, so that later ones are from the heap: no system call, no fault. That is the honest peer of
/// a warm pool. In a process that has not started a thread yet glibc does not even lock: malloc at
/// its fastest, where the pool pays for being thread-safe.
fn malloc() -> Batch {
    Box::new(|count| time(count, || Vec::<u8>::with_capacity(black_box(MIB))))
}

/// The same in a process that has had a second thread, as most that publish have: glibc locks from
/// then on.
fn malloc_threads() -> Batch {
    thread::spawn(|| ())
        .join()
        .expect("a thread that does nothing");
    malloc()
}

/// As `warm`, while another thread waits for memory of another pool.
///
/// It waits during a batch and not between batches, because it may slow the whole process,
/// including the other side of the comparison.
fn other_pool_waits() -> Batch {
    let provider = provider_with(MIB, 1);
    let full = Provider::builder()
        .max_bytes(MIB)
        .build()
        .expect("a provider");
    Box::new(move |count| {
        let both = Barrier::new(2);
        thread::scope(|scope| {
            let held = alloc(&full, MIB);
            let waiter = scope.spawn(|| {
                both.wait();
                drop(
                    full.alloc_timeout(MIB, FOR_EVER)
                        .expect("memory once the batch is over"),
                );
            });
            both.wait();
            thread::sleep(UNTIL_PARKED);
            let timed = steady(&provider, || time(count, || alloc(&provider, MIB)));
            assert!(
                !waiter.is_finished(),
                "a wait ended although the pool was full"
            );
            drop(held);
            timed
        })
    })
}

/// As `warm`, while another process inspects all objects without a pause. It is stopped between
/// batches.
fn inspected() -> Batch {
    let provider = provider_with(MIB, 1);
    let mut command = this_program(&Inspect).expect("this program's path");
    let inspector =
        Child::start("inspector", command.stdout(Stdio::null())).expect("another process");
    Box::new(move |count| {
        let pid = Pid::from_raw(inspector.id() as i32);
        kill(pid, Signal::SIGCONT).expect("a stopped process");
        let timed = steady(&provider, || time(count, || alloc(&provider, MIB)));
        kill(pid, Signal::SIGSTOP).expect("a running process");
        timed
    })
}

/// The task of the process that inspects. It exits with its parent.
#[derive(Serialize, Deserialize)]
pub(crate) struct Inspect;

impl Inspect {
    pub(crate) fn run(&self) -> Fallible {
        end_with_parent()?;
        let mut inspector = Inspector::new();
        loop {
            black_box(inspector.report()?);
        }
    }
}

/// An arena that was created and faulted in before, managed by talc behind a lock: shared memory
/// without a pool.
fn talc() -> Batch {
    let mut arena = provider_with(TALC_ARENA, 1)
        .alloc(TALC_ARENA)
        .expect("the reserved chunk");
    let mut talc = Talc::<_, DefaultBinning>::new(Manual);
    // SAFETY: nothing else reads or writes the arena, and the batch keeps it for as long as `talc`.
    unsafe { talc.claim(arena.as_mut_ptr(), TALC_ARENA) }.expect("an arena that is large enough");
    let talc = Mutex::new(talc);
    let layout = Layout::from_size_align(MIB, 64).expect("a power of two");
    Box::new(move |count| {
        let _kept = &arena;
        time(count, || {
            let layout = black_box(layout);
            // SAFETY: the size is not zero.
            let block =
                black_box(unsafe { talc.lock().allocate(layout) }).expect("room in the arena");
            // SAFETY: just allocated with this layout, and freed once.
            unsafe { talc.lock().deallocate(block.as_ptr(), layout) };
        })
    })
}
