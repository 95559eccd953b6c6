//! Killing a child at every instruction of an operation: the choice of instructions, and how the
//! child gets there.

#![forbid(unsafe_code)]

use crate::child::{self, Child};
use crate::path::{self, Path};
use crate::table::Table;
use crate::trace::{self, Tracee};
use crate::wire::{Link, Message};
use std::collections::BTreeSet;
use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::time::{Instant, SystemTime};

/// The number of points per operation: a number, or "all".
const POINTS: &str = "SHM_POOL_KILL_POINTS";

/// The default number of points. Half are evenly spread, half are random.
const FEW: usize = 16;

/// How many instructions of an operation are recorded by default, besides its end. Without
/// optimisation some operations have a million.
const SHORT: usize = 20_000;

/// The number of system calls of a mark.
const MARK_CALLS: usize = 3;

/// The seed of the random choices, to repeat a run.
const SEED: &str = "SHM_POOL_SEED";

/// How often a path is recorded, to take the shortest: a child whose own path is longer can still
/// be led along it. If a thread waits for the operation's effect, the longest is taken: a waiter
/// that happens to recheck at that moment is not woken, and the wake-up would not be on the path.
const LOOKS: usize = 3;

/// How often an operation is tried from the start if too many points are missed: other tests change what
/// is listed in /dev/shm meanwhile.
const ROUNDS: usize = 8;

/// The suffix of operations that release memory that another thread waits for.
const WAITED_FOR: &str = ", waited for";

/// How many children are started for a point, if the earlier ones took another path.
const TRIES: usize = 4;

/// One point in this many may be missed: the path is shorter than the recorded one if there are
/// fewer names in /dev/shm now.
const MISSED: usize = 8;

/// The processes that the child interacts with, and the checks after its death.
pub(crate) trait Scene {
    /// Starts a child for an operation and prepares it. On return, the child is on its way to its
    /// first mark.
    fn start(&mut self, operation: &str, round: usize) -> Victim;

    /// Called when the child has stopped at the instruction where it is killed.
    fn before_kill(&mut self, _victim: &Victim, _tracee: &Tracee) {}

    /// Called when the child is dead. Checks that everything else is intact, and cleans up.
    fn check(&mut self, operation: &str, round: usize);
}

/// A child that can be traced. Killed and reaped when this is dropped.
pub(crate) struct Victim {
    pub(crate) child: Child,
    thread: u64,
}

impl Victim {
    /// Starts a child in a role that calls [`introduce`] first. Returns `Err` if the machine does
    /// not allow tracing.
    pub(crate) fn try_start(role: &str, arguments: &[&str]) -> Result<Self, String> {
        // When much of its memory is free, glibc's malloc returns it to the system. Those system
        // calls depend on the history of all threads.
        let without_trims = |command: &mut Command| {
            command.env("MALLOC_TRIM_THRESHOLD_", "1000000000");
        };
        let child = Child::start_with(role, arguments, without_trims).expect("a child process");
        match child.receive() {
            Message::Number(thread) => Ok(Self { child, thread }),
            Message::Refused(reason) => Err(reason),
            other => panic!("not a thread: {other:?}"),
        }
    }

    /// Like [`try_start`](Self::try_start), where tracing is known to be allowed.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Self {
        Self::try_start(role, arguments).expect("tracing was possible a moment ago")
    }

    pub(crate) fn kill(self) {
        drop(self);
    }

    pub(crate) fn thread(&self) -> u64 {
        self.thread
    }

    pub(crate) fn at_first_mark(&self) -> Tracee {
        Tracee::at_first_mark(self.thread)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The thread is killed first: `child` could wait for it in vain.
        trace::kill(self.thread);
    }
}

role!("idle", idle_role);

fn idle_role(link: &Link, _arguments: &[&str]) {
    introduce(link);
}

/// The first step of each traced child: allows tracing, and reports its thread.
pub(crate) fn introduce(link: &Link) {
    link.send(&match trace::let_parent_trace() {
        Ok(thread) => Message::Number(thread),
        Err(error) => Message::Refused(format!("no ptrace here: {error}")),
    });
}

/// Returns `true` if children can be traced here. Otherwise reports the reason.
pub(crate) fn is_possible() -> bool {
    Victim::try_start("idle", &[])
        .map_err(|reason| child::skip(&reason))
        .is_ok()
}

/// Kills children at points of each operation, and prints the number of points.
pub(crate) fn sweep(operations: &[&str], scene: &mut dyn Scene) {
    if !is_possible() {
        return;
    }
    trace::stay_on_one_processor();
    let mut table = Table::new(&[
        "operation",
        "instructions",
        "in the program",
        "kill points",
        "missed",
        "seconds",
    ]);
    let seed = seed();
    for operation in operations {
        let start = Instant::now();
        let Some(round) = try_rounds(operation, scene, seed) else {
            panic!("{operation}: too many points were missed");
        };
        let Round {
            path,
            points,
            missed,
        } = round;
        let seconds = format!("{:.1}", start.elapsed().as_secs_f64());
        let done = points - missed;
        table.row(&[
            operation,
            &path.instructions,
            &(path.points() - 1),
            &done,
            &missed,
            &seconds,
        ]);
    }
    table.print();
    println!("{SEED}={seed}");
}

/// The result of killing children along one recorded path.
struct Round {
    path: Path,
    points: usize,
    missed: usize,
}

/// Kills children along a path until one round has missed few of its points.
fn try_rounds(operation: &str, scene: &mut dyn Scene, seed: u64) -> Option<Round> {
    for _ in 0..ROUNDS {
        let round = kill_along(operation, scene, seed);
        if round.missed <= round.points / MISSED {
            return Some(round);
        }
    }
    None
}

fn kill_along(operation: &str, scene: &mut dyn Scene, seed: u64) -> Round {
    let path = record(operation, scene, seed);
    let points = choose(path.points(), seed);
    let mut missed = 0;
    for point in &points {
        if !kill_at(operation, scene, &path, *point, seed) {
            missed += 1;
        }
    }
    Round {
        path,
        points: points.len(),
        missed,
    }
}

/// Records the path through an operation. If only a few points are wanted and the path is long,
/// records a random part of it.
fn record(operation: &str, scene: &mut dyn Scene, seed: u64) -> Path {
    let is_waited_for = operation.ends_with(WAITED_FOR);
    if env::var_os(POINTS).is_some() || is_waited_for {
        let mut paths = Vec::new();
        for _ in 0..LOOKS {
            let path = watch(operation, scene, |tracee| {
                Path::record(tracee, 0, usize::MAX)
            });
            paths.push(path);
        }
        paths.sort_unstable_by_key(|path| path.instructions);
        let at = if is_waited_for { LOOKS - 1 } else { 0 };
        return paths.swap_remove(at);
    }
    let path = watch(operation, scene, |tracee| Path::record(tracee, 0, SHORT));
    if path.instructions < SHORT {
        return path;
    }
    let calls = watch(operation, scene, path::count_calls).saturating_sub(MARK_CALLS);
    let skipped = number((seed, operation)) as usize % (calls + 1);
    watch(operation, scene, |tracee| {
        Path::record(tracee, skipped, SHORT)
    })
}

/// Starts a child, observes it, and kills it.
fn watch<T>(operation: &str, scene: &mut dyn Scene, inspect: impl FnOnce(&Tracee) -> T) -> T {
    let victim = scene.start(operation, 0);
    let tracee = victim.at_first_mark();
    let result = inspect(&tracee);
    scene.before_kill(&victim, &tracee);
    victim.kill();
    scene.check(operation, 0);
    result
}

/// Kills a child at a point. A child that takes another path is killed where it stops, and replaced
/// by a new one. Returns `false` if none gets there.
fn kill_at(operation: &str, scene: &mut dyn Scene, path: &Path, point: usize, seed: u64) -> bool {
    let points = path.points();
    let address = path.place(point);
    let _place = Place(format!(
        "{operation}, killed at point {point} of {points} ({address}); {SEED}={seed}"
    ));
    (0..TRIES).any(|_| {
        let victim = scene.start(operation, point);
        let tracee = victim.at_first_mark();
        let is_there = path.lead(&tracee, point);
        scene.before_kill(&victim, &tracee);
        victim.kill();
        scene.check(operation, point);
        is_there
    })
}

/// Prints where a test failed.
pub(crate) struct Place(pub(crate) String);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0);
        }
    }
}

fn choose(points: usize, seed: u64) -> BTreeSet<usize> {
    let wanted = match env::var(POINTS).as_deref() {
        Ok("all") => points,
        Ok(number) => number.parse().expect("a number, or \"all\""),
        Err(_) => FEW,
    };
    if wanted >= points {
        return (0..points).collect();
    }
    let spread = wanted / 2;
    let mut chosen = BTreeSet::new();
    for at in 0..spread {
        chosen.insert(at * (points - 1) / (spread - 1).max(1));
    }
    for draw in 0..wanted - spread {
        chosen.insert((number((seed, draw)) % points as u64) as usize);
    }
    chosen
}

fn seed() -> u64 {
    match env::var(SEED) {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => number(SystemTime::now()) % 1_000_000,
    }
}

fn number(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
