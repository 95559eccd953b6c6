//! The path of a child through an operation. It is recorded once, step by step; then other children
//! are led along it to any point.

#![forbid(unsafe_code)]

use crate::trace::{Pace, Stop, Tracee};
use std::collections::HashMap;

/// The instructions of an operation that are in the test's own program: the crate, the standard
/// library, the test. A stretch of libc counts as one step with the instruction that calls it; the
/// kernel sees only libc's system calls.
pub(crate) struct Path {
    /// Distances from the program's first byte, in order of execution.
    own: Vec<u64>,
    /// The cheapest way to each of them.
    leads: Vec<Lead>,
    /// The number of instructions, libc's included.
    pub(crate) instructions: usize,
    /// The number of system calls before the first instruction.
    skipped: usize,
}

/// Run the child to `own[at]`, past it `passes` times and to it again; then step.
#[derive(Clone, Copy)]
struct Lead {
    at: usize,
    passes: usize,
}

/// The cost of letting a child pass a breakpoint, in steps.
const PASS: usize = 4;

impl Path {
    /// Records a child from its first mark, or from the end of the `skipped`th system call after
    /// it, to its second mark, or for at most `limit` instructions.
    pub(crate) fn record(tracee: &Tracee, skipped: usize, limit: usize) -> Self {
        assert!(
            skip(tracee, skipped),
            "fewer system calls than were counted"
        );
        let program = tracee.program();
        let mut own = Vec::new();
        let mut steps = Vec::new();
        let mut instructions = 0;
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
        Self {
            leads: leads(&own, &steps),
            own,
            instructions,
            skipped,
        }
    }

    /// Returns the number of points at which a child can be killed: before each instruction, and
    /// after the last.
    pub(crate) fn points(&self) -> usize {
        self.own.len() + 1
    }

    /// Leads a child from its first mark to a point. Returns `false` if the child took another
    /// path; it is then at its second mark, or lost.
    ///
    /// A path depends on the other names in /dev/shm, so it can be a little longer than the
    /// recorded one. The point is then where the child next reaches the same instruction.
    pub(crate) fn lead(&self, tracee: &Tracee, point: usize) -> bool {
        let Some(&Lead { at, passes }) = self.leads.get(point) else {
            return tracee.go(Pace::Run) == Stop::Mark;
        };
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

    /// Returns the location of a point in the program, for addr2line.
    pub(crate) fn place(&self, point: usize) -> String {
        match self.own.get(point) {
            Some(offset) => format!("{offset:#x}"),
            None => "the end".to_owned(),
        }
    }
}

/// Runs a child from its first mark to the end of the given number of system calls. Returns `false`
/// if it makes fewer.
fn skip(tracee: &Tracee, calls: usize) -> bool {
    (0..calls * 2).all(|_| tracee.go(Pace::Call) == Stop::Call)
}

/// Returns the number of system calls from a child's first mark to its second one. The last ones
/// are those of the second mark itself.
pub(crate) fn count_calls(tracee: &Tracee) -> usize {
    let mut stops = 0;
    while tracee.go(Pace::Call) == Stop::Call {
        stops += 1;
    }
    stops / 2
}

/// Returns the cheaper of two leads for each instruction: a step from the instruction before it, or
/// a breakpoint at it.
fn leads(own: &[u64], steps: &[usize]) -> Vec<Lead> {
    let mut passed = HashMap::new();
    let mut lead = Lead { at: 0, passes: 0 };
    let mut cost = usize::MAX;
    let mut leads = Vec::new();
    for at in 0..own.len() {
        let passes = passed.entry(own[at]).or_insert(0);
        let stepped = cost.saturating_add(if at > 0 { steps[at] - steps[at - 1] } else { 0 });
        if *passes * PASS < stepped {
            lead = Lead {
                at,
                passes: *passes,
            };
            cost = *passes * PASS;
        } else {
            cost = stepped;
        }
        *passes += 1;
        leads.push(lead);
    }
    leads
}
