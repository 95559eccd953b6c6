//! The counters of a run, and the report.

#![forbid(unsafe_code)]

use super::worker::Counts;
use std::fmt;
use std::time::Duration;

/// The counters of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) seed: u64,
    pub(crate) elapsed: Duration,
    /// Owners, peers.
    pub(crate) killed: [u64; 2],
    /// Those of them that had not built or connected yet.
    pub(crate) newborns_killed: u64,
    /// Those of them that were in the middle of an orderly exit.
    pub(crate) leaving_killed: u64,
    /// Orderly, sudden, by abort.
    pub(crate) exits: [u64; 3],
    pub(crate) recreated: u64,
    pub(crate) storms: u64,
    pub(crate) sweeps: u64,
    pub(crate) eras: u64,
    /// Quiet periods, at which everything must have been returned.
    pub(crate) checks: u64,
    /// Those of them without any peer alive.
    pub(crate) checks_alone: u64,
    /// The work of the processes.
    pub(crate) counts: Counts,
    /// The most that any owner held, in bytes, and its cap.
    pub(crate) peak: usize,
    pub(crate) cap: usize,
    /// The most descriptors, mappings of shared memory, and other mappings that a veteran has
    /// gained.
    pub(crate) gained: [usize; 3],
    /// Most processes of the other kind that a veteran has survived.
    pub(crate) survived: u64,
    /// Objects that the final sweep removed, and those left after it.
    pub(crate) swept: usize,
    pub(crate) left: usize,
    /// Failed checks.
    pub(crate) problems: Vec<String>,
}

impl Tally {
    pub(crate) fn kills(&self) -> u64 {
        self.killed.iter().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let kills = self.kills();
        let seconds = self.elapsed.as_secs_f64();
        let rate = kills as f64 / seconds;
        let [owners, peers] = self.killed;
        let [orderly, sudden, aborts] = self.exits;
        let [descriptors, shared, others] = self.gained;

        let mut line = |name: &str, value: fmt::Arguments<'_>| writeln!(f, "{name:21} {value}");
        line("seed", format_args!("{}", self.seed))?;
        line("time", format_args!("{seconds:.1} s, {rate:.0} kills/s"))?;
        line(
            "killed (SIGKILL)",
            format_args!("{kills}: {owners} owners, {peers} peers"),
        )?;
        line(
            "  of them",
            format_args!(
                "{} not ready yet, {} about to exit",
                self.newborns_killed, self.leaving_killed
            ),
        )?;
        line(
            "other ends",
            format_args!("{aborts} aborts, {sudden} exits without drop, {orderly} orderly exits"),
        )?;
        line(
            "storms, sweeps",
            format_args!(
                "{} storms, {} sweeps by the conductor",
                self.storms, self.sweeps
            ),
        )?;
        line("clients replaced", format_args!("{}", self.recreated))?;
        line(
            "published",
            format_args!(
                "{} messages, {} MiB",
                counts.published,
                counts.bytes_published >> 20
            ),
        )?;
        line(
            "descriptors sent",
            format_args!(
                "{} granted, {} kept until confirmed, {} neither",
                counts.granted, counts.kept, counts.fleeting
            ),
        )?;
        line("waits for memory", format_args!("{}", counts.exhausted))?;
        line(
            "read",
            format_args!(
                "{} messages, {} stale, {} lost with their owner",
                counts.read, counts.stale, counts.lost
            ),
        )?;
        line(
            "checked again",
            format_args!(
                "{} views, {} after their owner had exited",
                counts.again, counts.outlived
            ),
        )?;
        line(
            "publishers",
            format_args!("{} messages, to {} takers", counts.sent, counts.takers),
        )?;
        line(
            "receivers",
            format_args!(
                "{} joined, received {}, missed {}",
                counts.joined, counts.received, counts.missed
            ),
        )?;
        line(
            "bytes checked",
            format_args!("{} MiB", counts.bytes_checked >> 20),
        )?;
        line("torn", format_args!("{}", counts.torn))?;
        line(
            "times of quiet",
            format_args!(
                "{}, {} without a peer: nothing leased",
                self.checks, self.checks_alone
            ),
        )?;
        line(
            "most held",
            format_args!("{} KiB of {} KiB", self.peak >> 10, self.cap >> 10),
        )?;
        line(
            "veterans",
            format_args!(
                "{} eras, at most {} ends survived",
                self.eras, self.survived
            ),
        )?;
        line(
            "  they gained",
            format_args!(
                "{descriptors} descriptors, {shared} shared mappings, {others} other mappings"
            ),
        )?;
        line(
            "in /dev/shm",
            format_args!("{} swept at last, {} left", self.swept, self.left),
        )?;
        for problem in &self.problems {
            line("PROBLEM", format_args!("{problem}"))?;
        }
        Ok(())
    }
}
