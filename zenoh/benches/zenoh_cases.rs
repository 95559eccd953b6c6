//! Cases that averages hide, each with this crate's `PoolBackend`, its `BufferPool` and zenoh's
//! default provider in turn:
//!
//! ```text
//! cargo bench -p shm-pool-zenoh --bench zenoh_cases              # all
//! cargo bench -p shm-pool-zenoh --bench zenoh_cases -- long exit # some
//! cargo bench -p shm-pool-zenoh --bench zenoh_cases -- --quick   # one round of each, ten restarts
//! ```
//!
//! - `long`: 1 MiB is wanted 40 times while four threads replace messages of 100 kB, 6 each, under
//!   4 MiB. Measured: waits of at most 300 ms, and the longest.
//! - `waiting`: 65,536 messages of 1 KiB are in flight under 64 MiB, and one more is wanted. After
//!   a while the oldest, or another one, is read. Measured: CPU while nothing is read, and the time
//!   until the wait ends.
//! - `idle`: 50,000 messages of 1 KiB were in flight and have been read, 3 s ago. Measured: CPU of
//!   the idle process.
//! - `full`: a reader keeps the newest messages of up to 400 kB, 60 to 90 % of 64 MiB, at 85 and 90
//!   also with all memory allocated before, in one segment as the default has it. Measured: the
//!   messages that are sent, of 8,000, before one does not fit.
//! - `growth`: the first 1,500 messages of up to 1 MB, 20 in flight, under 256 MiB, while the pool
//!   grows, and with all memory allocated before. Measured: the allocations, and memory.
//! - `exit`: a publisher sends 100 messages of 1 KB and exits in good order, 0, 10 or 50 ms after
//!   the last. Measured: runs in which all arrived.
//! - `restarts`: 50 such publishers, one after the other, with one subscriber. Measured: messages
//!   that arrived.

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
use std::fs::{self, File};
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

/// Rounds of each case; one with `--quick`.
const ROUNDS: usize = 7;

/// Rounds of the two cases whose figures are close.
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

    /// Makes memory that is all allocated before, or not. zenoh's default provider always does.
    fn preallocated(whose: Whose, max_bytes: usize, preallocate: bool) -> Fallible<Self> {
        let builder = PoolBackend::builder()
            .max_bytes(max_bytes)
            .preallocate(preallocate);
        match whose {
            Whose::Pool => Ok(Self::Pool(builder.build()?.provider())),
            Whose::Buffers => Ok(Self::Buffers(BufferPool::new(&builder.build()?))),
            Whose::Zenoh => {
                let provider = ShmProviderBuilder::default_backend(max_bytes).wait()?;
                Ok(Self::Zenoh(provider))
            }
        }
    }

    /// Returns a message, or `None` if there is no memory.
    fn alloc(&self, len: usize) -> Option<ZBytes> {
        match self {
            Self::Pool(provider) => {
                let message = provider.alloc(len).with_policy::<GarbageCollect>().wait();
                Some(message.ok()?.into())
            }
            Self::Buffers(pool) => Some(pool.alloc(len).ok()?.into()),
            Self::Zenoh(provider) => {
                let message = provider.alloc(len).with_policy::<GarbageCollect>().wait();
                Some(message.ok()?.into())
            }
        }
    }

    /// Waits for memory.
    fn wait(&self, len: usize) -> Fallible<ZBytes> {
        match self {
            Self::Pool(provider) => {
                let message = provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?;
                Ok(message.into())
            }
            Self::Buffers(pool) => Ok(pool.request(len).wait()?.into()),
            Self::Zenoh(provider) => {
                let message = provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?;
                Ok(message.into())
            }
        }
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

fn tenths(number: f64) -> String {
    format!("{number:.1}")
}

/// Formats a share of a CPU.
fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Measures some figures in each variant of a case, with each kind of memory in turn. A variant has
/// a name and a parameter.
fn compare<V, const N: usize>(
    rounds: usize,
    variants: &[(&str, V)],
    figures: [Figure; N],
    measure: impl Fn(Whose, &V) -> Fallible<[f64; N]>,
) -> Fallible<Vec<Compared>> {
    let mut rows = Vec::new();
    for (variant, _) in variants {
        for (name, show, goal) in figures {
            rows.push(Compared {
                name: format!("{variant}{name}"),
                goal,
                show,
                ours: vec![Vec::new(); 2],
                theirs: Vec::new(),
            });
        }
    }
    let rounds = if is_quick() { 1 } else { rounds };
    for _ in 0..rounds {
        for (at, (_, variant)) in variants.iter().enumerate() {
            let rows = &mut rows[at * N..(at + 1) * N];
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
    let figures: [Figure; 2] = [
        (
            "1 MiB under 100 kB: served within 300 ms, of 40",
            count,
            NO_LESS,
        ),
        ("the longest wait", time, NO_MORE),
    ];
    compare(ROUNDS, &[("", ())], figures, |whose, ()| {
        measure_long(whose)
    })
}

fn measure_long(whose: Whose) -> Fallible<[f64; 2]> {
    const WANTED: usize = 40;
    const IN_TIME: Duration = Duration::from_millis(300);
    let memory = Memory::new(whose, 4 * MIB)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| replace_short(&memory, &is_over));
        }
        let start = Instant::now();
        let mut served = 0;
        let mut longest = Duration::ZERO;
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
            if long.is_some() && asked.elapsed() <= IN_TIME {
                served += 1;
            }
            drop(long);
            // Gives short messages time to occupy its range.
            thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, Ordering::Relaxed);
        Ok([served as f64, longest.as_nanos() as f64])
    })
}

/// Allocates messages of 100 kB and keeps the newest 6, until `is_over`.
fn replace_short(memory: &Memory, is_over: &AtomicBool) {
    let mut held = VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        held.extend(memory.alloc(100_000));
        if held.len() > 6 {
            held.pop_front();
        }
        // One message at a time is written and sent.
        thread::sleep(Duration::from_micros(50));
    }
}

/// Waits with many in flight.
fn waiting() -> Fallible<Vec<Compared>> {
    let variants = [
        ("65,536 in flight, the oldest is read: ", true),
        ("65,536 in flight, another one is read: ", false),
    ];
    let figures: [Figure; 2] = [
        ("CPU before", percent, NO_MORE),
        ("until the wait ends", time, NO_MORE),
    ];
    compare(CLOSE_ROUNDS, &variants, figures, |whose, &is_oldest| {
        measure_waiting(whose, is_oldest)
    })
}

/// The length of the messages of `waiting`.
const WAITING_LEN: usize = 1024;

fn measure_waiting(whose: Whose, is_oldest: bool) -> Fallible<[f64; 2]> {
    const WAITS: usize = 200;
    let memory = Memory::new(whose, 64 * MIB)?;
    let mut in_flight = VecDeque::new();
    while let Some(message) = memory.alloc(WAITING_LEN) {
        in_flight.push_back(message);
    }
    let [share, _] = wait_once(&memory, &mut in_flight, is_oldest, Duration::from_secs(1))?;
    let mut sum = 0.0;
    for _ in 0..WAITS {
        let [_, end] = wait_once(&memory, &mut in_flight, is_oldest, Duration::ZERO)?;
        sum += end;
    }
    Ok([share, sum / WAITS as f64])
}

/// Waits for one more message, and reads one of those in flight. Returns the share of a CPU that
/// the process takes during `measured`, before that, and the nanoseconds from there until the wait
/// ends.
fn wait_once(
    memory: &Memory,
    in_flight: &mut VecDeque<ZBytes>,
    is_oldest: bool,
    measured: Duration,
) -> Fallible<[f64; 2]> {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| -> Fallible<(Instant, ZBytes)> {
            let message = memory.wait(WAITING_LEN)?;
            Ok((Instant::now(), message))
        });
        // By then the thread polls at regular intervals. The message is read at a random time
        // between two polls.
        thread::sleep(Duration::from_micros(fastrand::u64(20_000..30_000)));
        let share = cpu_share(measured);
        let at = if is_oldest {
            0
        } else {
            in_flight.len() * 3 / 4
        };
        let read = in_flight.remove(at);
        let freed = Instant::now();
        drop(read);
        let (served, message) = waiting.join().map_err(|_| "a waiting thread panicked")??;
        in_flight.push_back(message);
        let end = served.saturating_duration_since(freed);
        Ok([share, end.as_nanos() as f64])
    })
}

/// Sleeps, and returns the share of a CPU that this process takes meanwhile.
fn cpu_share(measured: Duration) -> f64 {
    let start = Instant::now();
    let cpu = clock::process_cpu();
    thread::sleep(measured);
    (clock::process_cpu() - cpu) as f64 / start.elapsed().as_nanos() as f64
}

/// An idle process after a burst.
fn idle() -> Fallible<Vec<Compared>> {
    let figures: [Figure; 1] = [("50,000 have been read: CPU", percent, NO_MORE)];
    compare(CLOSE_ROUNDS, &[("", ())], figures, |whose, ()| {
        let memory = Memory::new(whose, 64 * MIB)?;
        let mut burst = Vec::new();
        while burst.len() < 50_000 {
            let Some(message) = memory.alloc(1024) else {
                break;
            };
            burst.push(message);
        }
        drop(burst);
        // By then a pool has released what it does not need.
        thread::sleep(Duration::from_secs(3));
        Ok([cpu_share(Duration::from_secs(5))])
    })
}

/// Keeps the newest messages, as many as fit in a share of the cap. A reader that drops a message
/// only when it receives another one never ends a wait, so the publisher stops at the first
/// refusal.
fn full() -> Fallible<Vec<Compared>> {
    const SEEDS: u64 = 5;
    let variants = [
        ("60 % kept", (60, false)),
        ("75 % kept", (75, false)),
        ("85 % kept", (85, false)),
        ("90 % kept", (90, false)),
        ("preallocated: 85 % kept", (85, true)),
        ("preallocated: 90 % kept", (90, true)),
    ];
    let figures: [Figure; 1] = [(
        ": messages until one does not fit, of 8,000",
        count,
        NO_LESS,
    )];
    // One round, because all rounds are the same.
    compare(1, &variants, figures, |whose, &(percent, preallocate)| {
        let mut all = 0;
        for seed in 1..=SEEDS {
            let memory = Memory::preallocated(whose, FULL_CAP, preallocate)?;
            all += messages_until_full(&memory, percent, seed);
        }
        Ok([all as f64 / SEEDS as f64])
    })
}

const FULL_CAP: usize = 64 * MIB;

fn messages_until_full(memory: &Memory, percent: usize, seed: u64) -> usize {
    const MESSAGES: usize = 8_000;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut kept = VecDeque::new();
    let mut kept_bytes = 0;
    for sent in 0..MESSAGES {
        let len = random.usize(64..=400_000);
        let Some(message) = alloc_in_attempts(memory, len) else {
            return sent;
        };
        kept.push_back((message, len));
        kept_bytes += len;
        while kept_bytes > FULL_CAP / 100 * percent {
            let Some((oldest, len)) = kept.pop_front() else {
                break;
            };
            drop(oldest);
            kept_bytes -= len;
        }
    }
    MESSAGES
}

/// Allocates a message in three attempts. zenoh's provider collects once in each, and fails if the
/// largest piece that this freed is too short, although several together may have made room.
fn alloc_in_attempts(memory: &Memory, len: usize) -> Option<ZBytes> {
    for _ in 0..3 {
        if let Some(message) = memory.alloc(len) {
            return Some(message);
        }
    }
    None
}

/// A pool that grows, beside one whose memory is there.
fn growth() -> Fallible<Vec<Compared>> {
    let variants = [("growing: ", false), ("preallocated: ", true)];
    let figures: [Figure; 3] = [
        ("allocation, p50", time, Goal::None),
        ("allocation, p99", time, Goal::None),
        ("MiB of memory", tenths, NO_MORE),
    ];
    compare(ROUNDS, &variants, figures, |whose, &preallocate| {
        measure_growth(whose, preallocate)
    })
}

fn measure_growth(whose: Whose, preallocate: bool) -> Fallible<[f64; 3]> {
    const CAP: usize = 256 * MIB;
    const MESSAGES: usize = 1_500;
    const IN_FLIGHT: usize = 20;
    let before = resident_shm()?;
    let memory = Memory::preallocated(whose, CAP, preallocate)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut in_flight = VecDeque::new();
    let mut times = Vec::new();
    for _ in 0..MESSAGES {
        let len = random.usize(64..=1_000_000);
        let start = Instant::now();
        let Some(message) = memory.alloc(len) else {
            return Err("no memory, with 20 messages in flight".into());
        };
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
}

/// Returns the shared memory that this process has, in bytes.
fn resident_shm() -> Fallible<usize> {
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if let Some(value) = line.strip_prefix("RssShmem:") {
            let kib: usize = value.trim().trim_end_matches(" kB").trim().parse()?;
            return Ok(kib << 10);
        }
    }
    Err("the kernel does not report RssShmem".into())
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

/// A process that counts the messages in shared memory that it receives from publishers, one after
/// the other. zenoh's receivers keep everything mapped until they exit: 64 MiB of each publisher.
#[derive(Serialize, Deserialize)]
struct Subscriber {
    whose: Whose,
    delay: Duration,
    publishers: usize,
}

impl Subscriber {
    /// Sends the count to the process's standard input, which is a socket.
    fn run(&self) -> Fallible {
        end_with_parent()?;
        grow_descriptor_table();
        let session = open("listen", "tcp/127.0.0.1:0")?;
        let locators = session.info().locators().wait();
        let Some(endpoint) = locators.first() else {
            return Err("zenoh listens nowhere".into());
        };
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let subscriber = session.declare_subscriber(KEY).callback(move |sample| {
            if sample.payload().as_shm().is_some() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        subscriber.background().wait()?;
        for _ in 0..self.publishers {
            let publisher = Publisher {
                whose: self.whose,
                endpoint: endpoint.to_string(),
                delay: self.delay,
            };
            let mut command = this_program(&Task::Publish(publisher))?;
            Child::start("publisher", &mut command)?.finish()?;
        }
        // Messages that have not arrived by then never do.
        thread::sleep(Duration::from_millis(200));
        session.close().wait()?;
        let socket = UnixStream::from(inherited_input()?);
        wire::send(socket, &count.load(Ordering::Relaxed))?;
        Ok(())
    }
}

/// Returns how many messages a subscriber receives.
fn received(whose: Whose, delay: Duration, publishers: usize) -> Fallible<usize> {
    let (socket, its_socket) = UnixStream::pair()?;
    let subscriber = Subscriber {
        whose,
        delay,
        publishers,
    };
    let mut command = this_program(&Task::Receive(subscriber))?;
    command.stdin(OwnedFd::from(its_socket));
    let subscriber = Child::start("subscriber", &mut command)?;
    // Closes this process's copy of the socket, so that the subscriber's exit ends the wait for it.
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
    let figures: [Figure; 1] = [("all messages arrive, of 4 times", count, NO_LESS)];
    compare(ROUNDS, &DELAYS, figures, |whose, &delay| {
        let mut complete = 0;
        for _ in 0..RUNS {
            if received(whose, delay, 1)? == SENT {
                complete += 1;
            }
        }
        Ok([complete as f64])
    })
}

/// Makes room for as many descriptors as the subscriber will have.
///
/// zenoh keeps two for each publisher. When they outgrow the kernel's table, at 64 and at each
/// power of two from 128 on, the next `open` of a process with several threads waits for an RCU
/// grace period, often for more than 10 ms. A publisher that exits meanwhile loses all messages,
/// with any provider.
fn grow_descriptor_table() {
    const DESCRIPTORS: usize = 1000;
    let mut files = Vec::new();
    while files.len() < DESCRIPTORS {
        let Ok(file) = File::open("/dev/null") else {
            break;
        };
        files.push(file);
    }
}

/// Publishers that follow each other.
fn restarts() -> Fallible<Vec<Compared>> {
    let restarts = if is_quick() { QUICK_RESTARTS } else { RESTARTS };
    let figures: [Figure; 1] = [(
        "messages that arrive of 100, publisher after publisher",
        count,
        NO_LESS,
    )];
    compare(ROUNDS, &DELAYS[..2], figures, |whose, &delay| {
        let received = received(whose, delay, restarts)?;
        Ok([received as f64 / restarts as f64])
    })
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
    let mut wanted = Vec::new();
    for argument in std::env::args().skip(1) {
        if argument.starts_with("--") {
            continue;
        }
        if !cases.iter().any(|&(case, _)| case == argument) {
            return Err(format!("no case {argument:?}").into());
        }
        wanted.push(argument);
    }
    let mut rows = Vec::new();
    for (name, case) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name}");
            rows.extend(case()?);
        }
    }
    let table = comparison(&["PoolBackend", "BufferPool"], "zenoh's default", rows);
    show("zenoh_cases", &table);
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
