//! The way that a child takes through an operation: recorded once, step by step, and then gone along up to any point.

#![forbid(unsafe_code)]

use crate::trace::{Pace, Stop, Tracee};
use std::collections::HashMap;

/// The instructions of an operation that are in the test's own program: the crate, the standard library, the test. What
/// is in libc counts as one step with the instruction that calls it; the kernel knows no more of it than its system calls.
pub(crate) struct Path {
    /// Distances from the program's first byte, in the order in which they are done.
    own: Vec<u64>,
    /// For each of them the cheapest way there: the place before it where to wait for the child, and for the how manieth time.
    leads: Vec<Lead>,
    /// How many there are, libc's included.
    pub(crate) instructions: usize,
    /// How many system calls there are before the first of them.
    skipped: usize,
}

/// To wait for a child at `own[at]` until it has passed there `passes` times, and to step it from there.
#[derive(Clone, Copy)]
struct Lead {
    at: usize,
    passes: usize,
}

/// What it costs to let a child pass a breakpoint, in steps.
const PASS: usize = 4;

impl Path {
    /// Runs a child from its first mark, or from the end of the system call `skipped` after it, to its second mark, or no further
    /// than `limit` instructions.
    pub(crate) fn record(tracee: &Tracee, skipped: usize, limit: usize) -> Self {
        assert!(skip(tracee, skipped), "fewer system calls than were counted");
        let program = tracee.program();
        let (mut own, mut steps, mut instructions) = (Vec::new(), Vec::new(), 0);
        while instructions < limit {
            let ip = tracee.ip();
            if program.contains(ip) {
                own.push(ip - program.base);
                steps.push(instructions);
            }
            match tracee.go(Pace::Step) {
                Stop::Trap => instructions += 1,
                Stop::Mark => break,
                other => panic!("the child did not come to its second mark: {other:?}"),
            }
        }
        Self { leads: leads(&own, &steps), own, instructions, skipped }
    }

    /// At how many points a child can be killed: before each of the instructions, and after the last.
    pub(crate) fn points(&self) -> usize {
        self.own.len() + 1
    }

    /// Leads a child from its first mark to a point. `false` if it took another way, and is at its second mark.
    ///
    /// A way can be a little longer, where what it depends on changes: the other names in /dev/shm. Then the point is where the
    /// child next comes to the same instruction.
    pub(crate) fn lead(&self, tracee: &Tracee, point: usize) -> bool {
        let Some(&Lead { at, passes }) = self.leads.get(point) else { return tracee.go(Pace::Run) == Stop::Mark };
        let program = tracee.program();
        if !skip(tracee, self.skipped) {
            return false;
        }
        if !tracee.run_to(program.base + self.own[at], passes) {
            return false;
        }
        let next = || loop {
            match tracee.go(Pace::Step) {
                Stop::Trap if program.contains(tracee.ip()) => return true,
                Stop::Trap => {}
                _ => return false,
            }
        };
        let goal = program.base + self.own[point];
        if !(at..point).all(|_| next()) {
            return false;
        }
        while tracee.ip() != goal {
            if !next() {
                return false;
            }
        }
        true
    }

    /// What is at a point, for addr2line.
    pub(crate) fn place(&self, point: usize) -> String {
        self.own.get(point).map_or("the end".to_owned(), |offset| format!("{offset:#x}"))
    }
}

/// Runs a child from its first mark to the end of so many system calls. `false` if there are fewer.
fn skip(tracee: &Tracee, calls: usize) -> bool {
    (0..calls * 2).all(|_| tracee.go(Pace::Call) == Stop::Call)
}

/// How many system calls a child makes from its first mark to its second one; the mark's own come last.
pub(crate) fn count_calls(tracee: &Tracee) -> usize {
    std::iter::from_fn(|| (tracee.go(Pace::Call) == Stop::Call).then_some(())).count() / 2
}

/// For each instruction the cheaper of two ways: from the way to the one before it, or by waiting for it.
fn leads(own: &[u64], steps: &[usize]) -> Vec<Lead> {
    let mut passed = HashMap::new();
    let (mut lead, mut cost) = (Lead { at: 0, passes: 0 }, usize::MAX);
    let lead_to = |at: usize| {
        let passes = passed.entry(own[at]).or_insert(0);
        let stepped = cost.saturating_add(if at > 0 { steps[at] - steps[at - 1] } else { 0 });
        if *passes * PASS < stepped {
            (lead, cost) = (Lead { at, passes: *passes }, *passes * PASS);
        } else {
            cost = stepped;
        }
        *passes += 1;
        lead
    };
    (0..own.len()).map(lead_to).collect()
}
