//! What is counted in a run, and the report.

#![forbid(unsafe_code)]

use super::wire::{Published, Seen};
use super::worker::Kind;
use std::fmt;
use std::time::Duration;

/// What is counted in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) seed: u64,
    pub(crate) elapsed: Duration,
    pub(crate) owners_killed: u64,
    pub(crate) peers_killed: u64,
    /// Of those killed: had not built or connected yet.
    pub(crate) newborns_killed: u64,
    /// Of those killed: were in the middle of an orderly end.
    pub(crate) leaving_killed: u64,
    pub(crate) aborts: u64,
    pub(crate) sudden_exits: u64,
    pub(crate) orderly_exits: u64,
    pub(crate) recreated: u64,
    pub(crate) storms: u64,
    pub(crate) sweeps: u64,
    pub(crate) eras: u64,
    /// Moments of quiet, at which everything must be back.
    pub(crate) checks: u64,
    /// Of those: without any peer alive.
    pub(crate) checks_alone: u64,
    pub(crate) published: Published,
    pub(crate) seen: Seen,
    /// The most that any owner held, in bytes, and its cap.
    pub(crate) peak: u64,
    pub(crate) cap: u64,
    /// Most descriptors, mappings of shared memory, and other mappings that a veteran has gained.
    pub(crate) gained: [usize; 3],
    /// Most processes of the other kind that a veteran has survived.
    pub(crate) survived: u64,
    /// Objects that the final sweep removed, and that were there after it.
    pub(crate) swept: u64,
    pub(crate) left: u64,
    /// What was not as it must be.
    pub(crate) problems: Vec<String>,
}

impl Tally {
    pub(crate) fn kills(&self) -> u64 {
        self.owners_killed + self.peers_killed
    }

    pub(crate) fn count_kill(&mut self, kind: Kind) {
        match kind {
            Kind::Owner => self.owners_killed += 1,
            Kind::Peer => self.peers_killed += 1,
        }
    }
}

const MIB: u64 = 1 << 20;

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { published, seen, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        let rate = self.kills() as f64 / seconds;
        let [descriptors, shared, others] = self.gained;
        writeln!(f, "seed                  {}", self.seed)?;
        writeln!(f, "time                  {seconds:.1} s, {rate:.0} kills/s")?;
        let (owners, peers) = (self.owners_killed, self.peers_killed);
        writeln!(f, "killed (SIGKILL)      {}: {owners} owners, {peers} peers", self.kills())?;
        let (newborn, leaving) = (self.newborns_killed, self.leaving_killed);
        writeln!(f, "  of them             {newborn} not ready yet, {leaving} about to exit")?;
        let (aborts, sudden, orderly) = (self.aborts, self.sudden_exits, self.orderly_exits);
        writeln!(f, "other ends            {aborts} aborts, {sudden} exits without drop, {orderly} orderly exits")?;
        writeln!(f, "storms, sweeps        {} storms, {} sweeps by the conductor", self.storms, self.sweeps)?;
        writeln!(f, "clients replaced      {}", self.recreated)?;
        writeln!(f, "published             {} messages, {} MiB", published.messages, published.bytes / MIB)?;
        let Published { granted, kept, fleeting, exhausted, .. } = published;
        writeln!(f, "descriptors sent      {granted} granted, {kept} kept until confirmed, {fleeting} neither")?;
        writeln!(f, "waits for memory      {exhausted}")?;
        let (stale, lost) = (seen.stale, seen.lost);
        writeln!(f, "read                  {} messages, {stale} stale, {lost} gone with their owner", seen.messages)?;
        writeln!(f, "looked at again       {} views, {} after their owner had gone", seen.again, seen.outlived)?;
        writeln!(f, "bytes checked         {} MiB", seen.bytes / MIB)?;
        writeln!(f, "torn                  {}", seen.torn)?;
        writeln!(f, "times of quiet        {}, {} without a peer: nothing leased", self.checks, self.checks_alone)?;
        writeln!(f, "most held             {} KiB of {} KiB", self.peak >> 10, self.cap >> 10)?;
        writeln!(f, "veterans              {} eras, at most {} ends survived", self.eras, self.survived)?;
        writeln!(
            f,
            "  they gained         {descriptors} descriptors, {shared} shared mappings, {others} other mappings"
        )?;
        writeln!(f, "in /dev/shm           {} swept at last, {} left", self.swept, self.left)?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "PROBLEM               {problem}"))
    }
}
