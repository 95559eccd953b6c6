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
        let Self {
            seed,
            newborns_killed,
            leaving_killed,
            recreated,
            storms,
            sweeps,
            eras,
            ..
        } = self;
        let Self {
            checks,
            checks_alone,
            survived,
            swept,
            left,
            problems,
            ..
        } = self;
        let Counts {
            published,
            granted,
            kept,
            fleeting,
            exhausted,
            ..
        } = self.counts;
        let Counts {
            read,
            stale,
            again,
            outlived,
            lost,
            torn,
            ..
        } = self.counts;
        let Counts {
            sent,
            takers,
            came,
            received,
            missed,
            ..
        } = self.counts;
        let [mib_published, mib_checked] =
            [self.counts.bytes_published, self.counts.bytes_checked].map(|b| b >> 20);
        let [peak, cap] = [self.peak, self.cap].map(|bytes| bytes >> 10);
        let (kills, [owners, peers]) = (self.kills(), self.killed);
        let [orderly, sudden, aborts] = self.exits;
        let [descriptors, shared, others] = self.gained;
        let seconds = self.elapsed.as_secs_f64();
        let rate = kills as f64 / seconds;
        write!(
            f,
            "\
seed                  {seed}
time                  {seconds:.1} s, {rate:.0} kills/s
killed (SIGKILL)      {kills}: {owners} owners, {peers} peers
  of them             {newborns_killed} not ready yet, {leaving_killed} about to exit
other ends            {aborts} aborts, {sudden} exits without drop, {orderly} orderly exits
storms, sweeps        {storms} storms, {sweeps} sweeps by the conductor
clients replaced      {recreated}
published             {published} messages, {mib_published} MiB
descriptors sent      {granted} granted, {kept} kept until confirmed, {fleeting} neither
waits for memory      {exhausted}
read                  {read} messages, {stale} stale, {lost} gone with their owner
looked at again       {again} views, {outlived} after their owner had gone
publishers            {sent} messages, to {takers} takers
receivers             {came} came, received {received}, were told of {missed} that they missed
bytes checked         {mib_checked} MiB
torn                  {torn}
times of quiet        {checks}, {checks_alone} without a peer: nothing leased
most held             {peak} KiB of {cap} KiB
veterans              {eras} eras, at most {survived} ends survived
  they gained         {descriptors} descriptors, {shared} shared mappings, {others} other mappings
in /dev/shm           {swept} swept at last, {left} left
"
        )?;
        problems
            .iter()
            .try_for_each(|problem| writeln!(f, "PROBLEM               {problem}"))
    }
}
