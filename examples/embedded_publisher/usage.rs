//! What a process has used, and what it holds.

#![forbid(unsafe_code)]

use crate::heap;
use crate::support::{clock, Fallible};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeVal;
use std::fs;

/// Used by this process since it began, or between two such moments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// The moment, in nanoseconds.
    pub(crate) time: u64,
    /// Nanoseconds, of all threads, for the program and for the kernel on its behalf.
    pub(crate) cpu: u64,
    /// Context switches of all threads, voluntary or not.
    pub(crate) switches: u64,
    /// Minor faults of all threads.
    pub(crate) faults: u64,
    /// Heap operations of the calling thread.
    pub(crate) heap: u64,
}

impl Usage {
    pub(crate) fn now() -> Fallible<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let nanoseconds = |time: TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1_000;
        Ok(Self {
            time: clock::now(),
            cpu: nanoseconds(usage.user_time()) + nanoseconds(usage.system_time()),
            switches: (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64,
            faults: usage.minor_page_faults() as u64,
            heap: heap::operations(),
        })
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            time: self.time - earlier.time,
            cpu: self.cpu - earlier.cpu,
            switches: self.switches - earlier.switches,
            faults: self.faults - earlier.faults,
            heap: self.heap - earlier.heap,
        }
    }
}

/// Resident memory of a process, in bytes. Looked at from outside, it costs the process nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) now: u64,
    /// The most that it ever was.
    pub(crate) peak: u64,
}

impl Resident {
    pub(crate) fn of(process: u32) -> Fallible<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| -> Fallible<u64> {
            // A process that has ended has a status, but no memory.
            let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("the process has ended")?;
            Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
        };
        Ok(Self { now: field("VmRSS:")?, peak: field("VmHWM:")? })
    }
}
