//! Cases that averages hide, each with this crate's `PoolBackend`, its `BufferPool` and zenoh's
//! default provider in turn:
//!
//! ```text
//! cargo bench -p shm-pool-zenoh --bench zenoh_cases              # all
//! cargo bench -p shm-pool-zenoh --bench zenoh_cases -- long exit # some
//! cargo bench -p shm-pool-zenoh --bench zenoh_cases -- --quick   # one round of each, ten restarts
//! ```
//!
//! | case | what happens | what is measured |
//! |---|---|---|
//! | `long` | 1 MiB is wanted 40 times while four threads replace messages of 100 kB, 6 each, under 4 MiB | waits of at most 300 ms, and the longest |
//! | `waiting` | 65,536 messages of 1 KiB are in flight under 64 MiB, and one more is wanted; after a while the oldest, or another one, is read | CPU while nothing is read, and how long until the wait ends |
//! | `idle` | 50,000 messages of 1 KiB were in flight and have been read, 3 s ago | CPU of the idle process |
//! | `full` | a reader keeps the newest messages of up to 400 kB, 60 to 90 % of 64 MiB | messages that are sent, of 8,000, before one does not fit |
//! | `growth` | the first 1,500 messages of up to 1 MB, 20 in flight, under 256 MiB; as the pool grows, and with all memory allocated before | the allocations, and memory |
//! | `exit` | a publisher sends 100 messages of 1 KB and exits in good order, 0, 10 or 50 ms after the last | runs in which all arrived |
//! | `restarts` | 50 such publishers, one after the other, with one subscriber | messages that arrived |

#![deny(unsafe_code)]

use serde::{Deserialize, Serialize};
use shm_pool_support::compare::{comparison, Compared};
use shm_pool_support::process::{
    end_with_parent, exit_code, inherited_input, task, this_program, Child,
};
use shm_pool_support::table::{show, Goal};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{clock, wire, Fallible};
use shm_pool_zenoh::{BufferPool, PoolBackend, PoolProvider};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::shm::{
    cleanup_orphaned_shm_segments, BlockOn, GarbageCollect, PosixShmProviderBackend, ShmProvider,
    ShmProviderBuilder,
};
use zenoh::{Config, Session, Wait};

const MIB: usize = 1 << 20;

/// Rounds of each case, and of the two whose figures are close; one with `--quick`.
const ROUNDS: usize = 7;
const CLOSE_ROUNDS: usize = 9;

/// Publishers that follow each other; fewer with `--quick`.
const RESTARTS: usize = 50;
const QUICK_RESTARTS: usize = 10;

fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

const KEY: &str = "shm-pool/cases";

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Whose {
    Pool,
    Buffers,
    Zenoh,
}

const ALL: [Whose; 3] = [Whose::Pool, Whose::Buffers, Whose::Zenoh];

/// What messages are allocated from.
enum Memory {
    Pool(PoolProvider),
    Buffers(BufferPool),
    Zenoh(ShmProvider<PosixShmProviderBackend>),
}

impl Memory {
    fn new(whose: Whose, max_bytes: usize) -> Fallible<Self> {
        Self::preallocated(whose, max_bytes, false)
    }

    /// With all memory allocated before, or not. zenoh's default provider always has.
    fn preallocated(whose: Whose, max_bytes: usize, preallocate: bool) -> Fallible<Self> {
        let backend = || {
            PoolBackend::builder()
                .max_bytes(max_bytes)
                .preallocate(preallocate)
                .build()
        };
        Ok(match whose {
            Whose::Pool => Self::Pool(backend()?.provider()),
            Whose::Buffers => Self::Buffers(BufferPool::new(&backend()?)),
            Whose::Zenoh => Self::Zenoh(ShmProviderBuilder::default_backend(max_bytes).wait()?),
        })
    }

    /// Returns a message, or `None` if there is no memory.
    fn alloc(&self, len: usize) -> Option<ZBytes> {
        Some(match self {
            Self::Pool(provider) => provider
                .alloc(len)
                .with_policy::<GarbageCollect>()
                .wait()
                .ok()?
                .into(),
            Self::Buffers(pool) => pool.alloc(len).ok()?.into(),
            Self::Zenoh(provider) => provider
                .alloc(len)
                .with_policy::<GarbageCollect>()
                .wait()
                .ok()?
                .into(),
        })
    }

    /// Waits for memory.
    fn wait(&self, len: usize) -> Fallible<ZBytes> {
        Ok(match self {
            Self::Pool(provider) => provider
                .alloc(len)
                .with_policy::<BlockOn<GarbageCollect>>()
                .wait()?
                .into(),
            Self::Buffers(pool) => pool.request(len).wait()?.into(),
            Self::Zenoh(provider) => provider
                .alloc(len)
                .with_policy::<BlockOn<GarbageCollect>>()
                .wait()?
                .into(),
        })
    }
}

/// The name of a figure, how it is shown, and the goal for its ratio to that of zenoh's default.
type Figure = (&'static str, fn(f64) -> String, Goal);

const NO_MORE: Goal = Goal::AtMost(1.0);
const NO_LESS: Goal = Goal::AtLeast(1.0);

fn time(nanoseconds: f64) -> String {
    Nanoseconds(nanoseconds).to_string()
}

fn count(number: f64) -> String {
    format!("{number}")
}

/// A share of a CPU.
fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Measures some figures in each variant of a case, with each kind of memory in turn.
fn compare<V, const N: usize>(
    rounds: usize,
    variants: &[(&str, V)],
    figures: [Figure; N],
    measure: impl Fn(Whose, &V) -> Fallible<[f64; N]>,
) -> Fallible<Vec<Compared>> {
    let mut rows = Vec::new();
    for (variant, _) in variants {
        rows.extend(figures.map(|(name, show, goal)| Compared {
            name: format!("{variant}{name}"),
            goal,
            show,
            ours: vec![Vec::new(); 2],
            theirs: Vec::new(),
        }));
    }
    for _ in 0..if is_quick() { 1 } else { rounds } {
        for ((_, variant), rows) in variants.iter().zip(rows.chunks_mut(N)) {
            for whose in ALL {
                for (row, figure) in rows.iter_mut().zip(measure(whose, variant)?) {
                    match whose {
                        Whose::Pool => row.ours[0].push(figure),
                        Whose::Buffers => row.ours[1].push(figure),
                        Whose::Zenoh => row.theirs.push(figure),
                    }
                }
            }
        }
    }
    Ok(rows)
}

/// Waits for 1 MiB under threads that replace short messages.
fn long() -> Fallible<Vec<Compared>> {
    const WANTED: usize = 40;
    const IN_TIME: Duration = Duration::from_millis(300);
    let measure = |whose, _: &()| {
        let memory = Memory::new(whose, 4 * MIB)?;
        let is_over = AtomicBool::new(false);
        let replace = || {
            let mut held = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                held.extend(memory.alloc(100_000));
                if held.len() > 6 {
                    held.pop_front();
                }
                // One message at a time is written and sent.
                thread::sleep(Duration::from_micros(50));
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(replace);
            }
            let start = Instant::now();
            let (mut served, mut longest) = (0, Duration::ZERO);
            for _ in 0..WANTED {
                let asked = Instant::now();
                let long = loop {
                    match memory.alloc(MIB) {
                        Some(long) => break Some(long),
                        None if start.elapsed() > Duration::from_secs(20) => break None,
                        None => thread::sleep(Duration::from_millis(1)),
                    }
                };
                longest = longest.max(asked.elapsed());
                served += usize::from(long.is_some() && asked.elapsed() <= IN_TIME);
                drop(long);
                // Gives short messages time to occupy its range.
                thread::sleep(Duration::from_millis(5));
            }
            is_over.store(true, Ordering::Relaxed);
            Ok([served as f64, longest.as_nanos() as f64])
        })
    };
    let figures: [Figure; 2] = [
        (
            "1 MiB under 100 kB: served within 300 ms, of 40",
            count,
            NO_LESS,
        ),
        ("the longest wait", time, NO_MORE),
    ];
    compare(ROUNDS, &[("", ())], figures, measure)
}

/// Waits with many in flight.
fn waiting() -> Fallible<Vec<Compared>> {
    const LEN: usize = 1024;
    const WAITS: usize = 200;
    let measure = |whose, &is_oldest: &bool| {
        let memory = Memory::new(whose, 64 * MIB)?;
        let mut in_flight: VecDeque<ZBytes> = std::iter::from_fn(|| memory.alloc(LEN))
            .take(1 << 16)
            .collect();
        while let Some(more) = memory.alloc(LEN) {
            in_flight.push_back(more);
        }
        // Until its wait ends, and the share of a CPU that it takes if that is `measured`.
        let mut wait = |measured: Duration| {
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let message = memory.wait(LEN).map_err(|error| error.to_string());
                    message.map(|message| (Instant::now(), message))
                });
                // By then it looks at regular intervals. The message is read at a random time between two looks.
                thread::sleep(Duration::from_micros(fastrand::u64(20_000..30_000)));
                let (start, cpu) = (Instant::now(), clock::process_cpu());
                thread::sleep(measured);
                let share = (clock::process_cpu() - cpu) as f64 / start.elapsed().as_nanos() as f64;
                let at = if is_oldest {
                    0
                } else {
                    in_flight.len() * 3 / 4
                };
                let read = in_flight.remove(at);
                let freed = Instant::now();
                drop(read);
                let (served, message) =
                    waiting.join().map_err(|_| "a waiting thread panicked")??;
                in_flight.push_back(message);
                Ok([
                    share,
                    served.saturating_duration_since(freed).as_nanos() as f64,
                ])
            })
        };
        let [share, _] = wait(Duration::from_secs(1))?;
        let ends = (0..WAITS)
            .map(|_| wait(Duration::ZERO).map(|[_, end]| end))
            .collect::<Fallible<Vec<_>>>()?;
        Ok([share, ends.iter().sum::<f64>() / WAITS as f64])
    };
    let variants = [
        ("65,536 in flight, the oldest is read: ", true),
        ("65,536 in flight, another one is read: ", false),
    ];
    let figures: [Figure; 2] = [
        ("CPU before", percent, NO_MORE),
        ("until the wait ends", time, NO_MORE),
    ];
    compare(CLOSE_ROUNDS, &variants, figures, measure)
}

/// An idle process after a burst.
fn idle() -> Fallible<Vec<Compared>> {
    let measure = |whose, _: &()| {
        let memory = Memory::new(whose, 64 * MIB)?;
        let burst: Vec<_> = std::iter::from_fn(|| memory.alloc(1024))
            .take(50_000)
            .collect();
        drop(burst);
        // By then a pool has released what it does not need.
        thread::sleep(Duration::from_secs(3));
        let (start, cpu) = (Instant::now(), clock::process_cpu());
        thread::sleep(Duration::from_secs(5));
        let share = (clock::process_cpu() - cpu) as f64 / start.elapsed().as_nanos() as f64;
        Ok([share])
    };
    compare(
        CLOSE_ROUNDS,
        &[("", ())],
        [("50,000 have been read: CPU", percent, NO_MORE)],
        measure,
    )
}

/// Keeps the newest messages, as many as fit in a share of the cap. A reader that drops a message only
/// when it receives another one never ends a wait, so the publisher stops at the first refusal.
fn full() -> Fallible<Vec<Compared>> {
    const CAP: usize = 64 * MIB;
    const MESSAGES: usize = 8_000;
    /// zenoh's provider collects once an attempt, and gives up if the largest piece that this freed is
    /// too short, although several together may have made room.
    const ATTEMPTS: usize = 3;
    const SEEDS: u64 = 5;
    let measure = |whose, &percent: &usize| {
        let mut all = 0;
        for seed in 1..=SEEDS {
            let memory = Memory::new(whose, CAP)?;
            let mut random = fastrand::Rng::with_seed(seed);
            let mut kept = VecDeque::new();
            let mut kept_bytes = 0;
            let mut sent = 0;
            while sent < MESSAGES {
                let len = random.usize(64..=400_000);
                let Some(message) = (0..ATTEMPTS).find_map(|_| memory.alloc(len)) else {
                    break;
                };
                sent += 1;
                kept.push_back((message, len));
                kept_bytes += len;
                while kept_bytes > CAP / 100 * percent {
                    let Some((oldest, len)) = kept.pop_front() else {
                        break;
                    };
                    drop(oldest);
                    kept_bytes -= len;
                }
            }
            all += sent;
        }
        Ok([all as f64 / SEEDS as f64])
    };
    let variants = [
        ("60 % kept", 60),
        ("75 % kept", 75),
        ("85 % kept", 85),
        ("90 % kept", 90),
    ];
    let figures: [Figure; 1] = [(
        ": messages until one does not fit, of 8,000",
        count,
        NO_LESS,
    )];
    // The same in every round.
    compare(1, &variants, figures, measure)
}

/// A pool that grows, beside one whose memory is there.
fn growth() -> Fallible<Vec<Compared>> {
    const CAP: usize = 256 * MIB;
    const MESSAGES: usize = 1_500;
    const IN_FLIGHT: usize = 20;
    let measure = |whose, &preallocate: &bool| {
        let before = resident_shm()?;
        let memory = Memory::preallocated(whose, CAP, preallocate)?;
        let mut random = fastrand::Rng::with_seed(1);
        let mut in_flight = VecDeque::new();
        let mut times = Vec::new();
        for _ in 0..MESSAGES {
            let len = random.usize(64..=1_000_000);
            let start = Instant::now();
            let message = memory
                .alloc(len)
                .ok_or("no memory, with 20 messages in flight")?;
            times.push(start.elapsed().as_nanos() as f64);
            in_flight.push_back(message);
            if in_flight.len() > IN_FLIGHT {
                in_flight.pop_front();
            }
        }
        times.sort_by(f64::total_cmp);
        let held = resident_shm()?.saturating_sub(before);
        Ok([
            times[MESSAGES / 2],
            times[MESSAGES * 99 / 100],
            held as f64 / MIB as f64,
        ])
    };
    let variants = [("growing: ", false), ("preallocated: ", true)];
    let figures: [Figure; 3] = [
        ("allocation, p50", time, Goal::None),
        ("allocation, p99", time, Goal::None),
        ("MiB of memory", count, NO_MORE),
    ];
    compare(ROUNDS, &variants, figures, measure)
}

/// Returns the shared memory that this process has, in bytes.
fn resident_shm() -> Fallible<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssShmem:"))
        .ok_or("the kernel does not report RssShmem")?;
    let kib: usize = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib << 10)
}

fn open(role: &str, endpoint: &str) -> Fallible<Session> {
    let mut config = Config::default();
    config.insert_json5("mode", "\"peer\"")?;
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("listen/endpoints", "[]")?;
    config.insert_json5(&format!("{role}/endpoints"), &format!("[{endpoint:?}]"))?;
    zenoh::open(config).wait()
}

/// What another process of this program does.
#[derive(Serialize, Deserialize)]
enum Task {
    Publish(Publisher),
    Receive(Subscriber),
}

/// A publisher process that exits soon.
#[derive(Serialize, Deserialize)]
struct Publisher {
    whose: Whose,
    endpoint: String,
    delay: Duration,
}

const SENT: usize = 100;

impl Publisher {
    fn run(&self) -> Fallible {
        end_with_parent()?;
        let session = open("connect", &self.endpoint)?;
        let publisher = session
            .declare_publisher(KEY)
            .congestion_control(CongestionControl::Block)
            .wait()?;
        while !publisher.matching_status().wait()?.matching() {
            thread::sleep(Duration::from_millis(1));
        }
        let memory = Memory::new(self.whose, 64 * MIB)?;
        for _ in 0..SENT {
            publisher.put(memory.wait(1000)?).wait()?;
        }
        thread::sleep(self.delay);
        drop(publisher);
        session.close().wait()
    }
}

/// A process that counts the messages in shared memory that it receives from publishers, one after the
/// other. What zenoh's receivers have mapped stays mapped until they exit: 64 MiB of each publisher.
#[derive(Serialize, Deserialize)]
struct Subscriber {
    whose: Whose,
    delay: Duration,
    publishers: usize,
}

impl Subscriber {
    /// Sends the count to its standard input, a socket.
    fn run(&self) -> Fallible {
        end_with_parent()?;
        grow_descriptor_table();
        let session = open("listen", "tcp/127.0.0.1:0")?;
        let endpoint = session
            .info()
            .locators()
            .wait()
            .first()
            .ok_or("zenoh listens nowhere")?
            .to_string();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let subscriber = session.declare_subscriber(KEY).callback(move |sample| {
            counted.fetch_add(
                usize::from(sample.payload().as_shm().is_some()),
                Ordering::Relaxed,
            );
        });
        subscriber.background().wait()?;
        for _ in 0..self.publishers {
            let publisher = Publisher {
                whose: self.whose,
                endpoint: endpoint.clone(),
                delay: self.delay,
            };
            Child::start("publisher", &mut this_program(&Task::Publish(publisher))?)?.finish()?;
        }
        // What has not arrived by now never does.
        thread::sleep(Duration::from_millis(200));
        session.close().wait()?;
        wire::send(
            UnixStream::from(inherited_input()?),
            &count.load(Ordering::Relaxed),
        )?;
        Ok(())
    }
}

/// Returns how many messages a subscriber receives.
fn received(whose: Whose, delay: Duration, publishers: usize) -> Fallible<usize> {
    let (socket, its_socket) = UnixStream::pair()?;
    let mut command = this_program(&Task::Receive(Subscriber {
        whose,
        delay,
        publishers,
    }))?;
    let subscriber = Child::start("subscriber", command.stdin(OwnedFd::from(its_socket)))?;
    drop(command);
    let count = wire::expect(socket);
    subscriber.finish()?;
    count
}

/// How long after its last message a publisher exits.
const DELAYS: [(&str, Duration); 3] = [
    ("exit after 0 ms: ", Duration::ZERO),
    ("exit after 10 ms: ", Duration::from_millis(10)),
    ("exit after 50 ms: ", Duration::from_millis(50)),
];

/// Publishers that exit soon.
fn exit() -> Fallible<Vec<Compared>> {
    const RUNS: usize = 4;
    compare(
        ROUNDS,
        &DELAYS,
        [("all messages arrive, of 4 times", count, NO_LESS)],
        |whose, &delay| {
            let counts = (0..RUNS)
                .map(|_| received(whose, delay, 1))
                .collect::<Fallible<Vec<_>>>()?;
            Ok([counts.into_iter().filter(|&count| count == SENT).count() as f64])
        },
    )
}

/// Makes room for as many descriptors as the subscriber will have.
///
/// zenoh keeps two for each publisher. When they outgrow the kernel's table, at 64 and at each power
/// of two from 128 on, the next `open` of a process with several threads waits for an RCU grace period,
/// often for more than 10 ms. A publisher that exits meanwhile loses all messages, with any provider.
fn grow_descriptor_table() {
    const DESCRIPTORS: usize = 1000;
    drop(
        std::iter::from_fn(|| File::open("/dev/null").ok())
            .take(DESCRIPTORS)
            .collect::<Vec<_>>(),
    );
}

/// Publishers that follow each other.
fn restarts() -> Fallible<Vec<Compared>> {
    let restarts = if is_quick() { QUICK_RESTARTS } else { RESTARTS };
    compare(
        ROUNDS,
        &DELAYS[..2],
        [(
            "messages that arrive of 100, publisher after publisher",
            count,
            NO_LESS,
        )],
        |whose, &delay| Ok([received(whose, delay, restarts)? as f64 / restarts as f64]),
    )
}

fn run() -> Fallible {
    type Case = (&'static str, fn() -> Fallible<Vec<Compared>>);
    let cases: [Case; 7] = [
        ("long", long),
        ("waiting", waiting),
        ("idle", idle),
        ("full", full),
        ("growth", growth),
        ("exit", exit),
        ("restarts", restarts),
    ];
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    for name in &wanted {
        if !cases.iter().any(|(case, _)| case == name) {
            return Err(format!("no case {name:?}").into());
        }
    }
    let mut rows = Vec::new();
    for (name, case) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            rows.extend(case()?);
        }
    }
    show(
        "zenoh_cases",
        &comparison(&["PoolBackend", "BufferPool"], "zenoh's default", rows),
    );
    // A publisher that exits leaves its metadata behind.
    cleanup_orphaned_shm_segments();
    Ok(())
}

fn main() -> ExitCode {
    zenoh::init_log_from_env_or("error");
    match task() {
        None => exit_code("zenoh_cases", run()),
        Some(Task::Publish(publisher)) => exit_code("publisher", publisher.run()),
        Some(Task::Receive(subscriber)) => exit_code("subscriber", subscriber.run()),
    }
}
