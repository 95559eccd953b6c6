//! A child that is killed at every instruction of an operation: which instructions, and how it is brought there.

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

/// How many points there are for each operation: a number, or "all".
const POINTS: &str = "SHM_POOL_KILL_POINTS";

/// The number of points where nothing is said. Half of them are evenly spread, half are drawn by lot.
const FEW: usize = 16;

/// How many instructions of an operation are looked at then, beside its end. Without optimisation some have a million.
const SHORT: usize = 20_000;

/// How many system calls a mark makes.
const MARK_CALLS: usize = 3;

/// The lot's seed, to repeat a run.
const SEED: &str = "SHM_POOL_SEED";

/// How often a way is recorded, to take the shortest: a child whose way is longer can be led along it. And how often that is done if too
/// many points are missed.
const LOOKS: usize = 3;

/// How often a child that took another way is replaced by another child.
const TRIES: usize = 4;

/// Of so many points, one may be missed: where a way is shorter than it was when it was recorded, because there are fewer names
/// in /dev/shm.
const MISSED: usize = 8;

/// What is around the child: the processes that it deals with, and what they must find when it is dead.
pub(crate) trait Scene {
    /// Starts a child for an operation, and gives it what it needs; when this returns, it is about to come to its first mark.
    fn start(&mut self, operation: &str, round: usize) -> Victim;

    /// The child is dead: checks everything that it was not to harm, and cleans up.
    fn check(&mut self, operation: &str, round: usize);
}

/// A child that can be traced. Killed and reaped when this is dropped.
pub(crate) struct Victim {
    pub(crate) child: Child,
    thread: u64,
}

impl Victim {
    /// Starts a child in a role, which calls [`introduce`] first. `Err` where the machine does not allow it.
    pub(crate) fn try_start(role: &str, arguments: &[&str]) -> Result<Self, String> {
        // glibc's malloc gives memory back when much of it is free: calls that depend on what all threads have done with it.
        let without_trims = |command: &mut Command| {
            command.env("MALLOC_TRIM_THRESHOLD_", "1000000000");
        };
        let child = Child::start_with(role, arguments, without_trims).expect("a child process");
        match child.hear() {
            Message::Number(thread) => Ok(Self { child, thread }),
            Message::Refused(reason) => Err(reason),
            other => panic!("not a thread: {other:?}"),
        }
    }

    /// As [`try_start`](Self::try_start), where it is allowed.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Self {
        Self::try_start(role, arguments).expect("tracing was possible a moment ago")
    }

    /// SIGKILL, now. When this returns, the process is gone.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Waits for the first mark.
    pub(crate) fn at_first_mark(&self) -> Tracee {
        Tracee::at_first_mark(self.thread)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The thread first, which `child` could wait for in vain.
        trace::kill(self.thread);
    }
}

/// The role of a child that does nothing.
pub(crate) fn idle_role(link: &Link, _arguments: &[&str]) {
    introduce(link);
}

/// What each traced child says first.
pub(crate) fn introduce(link: &Link) {
    let refused = |error| Message::Refused(format!("no ptrace here: {error}"));
    link.send(&trace::let_parent_trace().map_or_else(refused, Message::Number));
}

/// Can children be traced here? If not, says so.
pub(crate) fn is_possible() -> bool {
    Victim::try_start("idle", &[]).map_err(|reason| child::skip(&reason)).is_ok()
}

/// Kills children at points of each operation, and prints how many.
pub(crate) fn sweep(operations: &[&str], scene: &mut dyn Scene) {
    if !is_possible() {
        return;
    }
    trace::stay_on_one_processor();
    let mut table = Table::new(&["operation", "instructions", "in the program", "kill points", "missed", "seconds"]);
    let seed = seed();
    for operation in operations {
        let start = Instant::now();
        let mut rounds = (0..LOOKS).map(|_| kill_along(operation, scene, seed));
        let round = rounds.find(|round| round.missed <= round.points / MISSED);
        let Round { path, points, missed } =
            round.unwrap_or_else(|| panic!("{operation}: too many points were missed"));
        let seconds = format!("{:.1}", start.elapsed().as_secs_f64());
        let done = points - missed;
        table.row(&[operation, &path.instructions, &(path.points() - 1), &done, &missed, &seconds]);
    }
    table.print();
    println!("{SEED}={seed}");
}

/// Children that were killed at points of one recorded way.
struct Round {
    path: Path,
    points: usize,
    missed: usize,
}

fn kill_along(operation: &str, scene: &mut dyn Scene, seed: u64) -> Round {
    let path = record(operation, scene, seed);
    let points = choose(path.points(), seed);
    let missed = points.iter().filter(|&&point| !kill_at(operation, scene, &path, point, seed)).count();
    Round { path, points: points.len(), missed }
}

/// The way through an operation; or where only a few points are asked for and it is long, a part of it that is drawn by lot.
fn record(operation: &str, scene: &mut dyn Scene, seed: u64) -> Path {
    if env::var_os(POINTS).is_some() {
        let paths = (0..LOOKS).map(|_| watch(operation, scene, |tracee| Path::record(tracee, 0, usize::MAX)));
        return paths.min_by_key(|path| path.instructions).expect("some paths");
    }
    let path = watch(operation, scene, |tracee| Path::record(tracee, 0, SHORT));
    if path.instructions < SHORT {
        return path;
    }
    let calls = watch(operation, scene, path::count_calls).saturating_sub(MARK_CALLS);
    let skipped = number((seed, operation)) as usize % (calls + 1);
    watch(operation, scene, |tracee| Path::record(tracee, skipped, SHORT))
}

/// Starts a child and kills it when it was looked at.
fn watch<T>(operation: &str, scene: &mut dyn Scene, look: impl FnOnce(&Tracee) -> T) -> T {
    let victim = scene.start(operation, 0);
    let result = look(&victim.at_first_mark());
    victim.kill();
    scene.check(operation, 0);
    result
}

/// Kills a child at a point, or if none gets there, some at the end.
fn kill_at(operation: &str, scene: &mut dyn Scene, path: &Path, point: usize, seed: u64) -> bool {
    let (points, address) = (path.points(), path.place(point));
    let _place = Place(format!("{operation}, killed at point {point} of {points} ({address}); {SEED}={seed}"));
    (0..TRIES).any(|_| {
        let victim = scene.start(operation, point);
        let is_there = path.lead(&victim.at_first_mark(), point);
        victim.kill();
        scene.check(operation, point);
        is_there
    })
}

/// Tells where a test has failed.
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
    let evenly = (0..spread).map(|at| at * (points - 1) / (spread - 1).max(1));
    let by_lot = (0..wanted - spread).map(|draw| (number((seed, draw)) % points as u64) as usize);
    evenly.chain(by_lot).collect()
}

fn seed() -> u64 {
    let given = env::var(SEED).ok().map(|seed| seed.parse().expect("a number"));
    given.unwrap_or_else(|| number(SystemTime::now()) % 1_000_000)
}

fn number(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
