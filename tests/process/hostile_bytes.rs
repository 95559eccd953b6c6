//! Hostile programs at random, each in a child process: one that panics, crashes or hangs there fails the test, and is made smaller.
//! The fuzzers in `fuzz/` run the same programs, guided by coverage, with AddressSanitizer.

use crate::child::Child;
use crate::hostile;
use crate::shm::Names;
use crate::wire::{Link, Message};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};

/// Longest program in bytes.
const MAX_LEN: usize = 2000;

/// Otherwise one process that runs wild takes the owner of a control object and all its peers with it.
#[test]
fn whatever_is_written_into_a_control_object_the_others_stay_whole() {
    run_at_random("control", 80);
}

/// Otherwise who can send 32 bytes reads what nobody sent, or crashes the receiver, or holds memory for ever.
#[test]
fn a_descriptor_that_nobody_sent_opens_nothing_else() {
    run_at_random("descriptor", 60);
}

/// Otherwise one process that runs wild takes a sender and its receiver with it, or a message is lost, doubled or out of order.
#[test]
fn whatever_is_written_into_a_channel_both_ends_stay_whole() {
    run_at_random("channel", 250);
}

/// Otherwise who can put a file into /dev/shm crashes or stops those who look there, or has a living owner swept away.
#[test]
fn files_of_any_kind_do_not_disturb_a_living_owner() {
    run_at_random("foreign", 60);
}

/// Draws programs and runs them in a child, a new one after each failure.
fn run_at_random(target: &str, cases: u32) {
    let names = Names::new(&format!("hostile-{target}"));
    let child = RefCell::new(None);
    let start = || Child::start("hostile-bytes", &[names.prefix(), target]);
    let run = |bytes: Vec<u8>| {
        let running = child.take().unwrap_or_else(start);
        let answer = panic::catch_unwind(AssertUnwindSafe(|| running.ask(&Message::Program(bytes))));
        if answer.is_err() {
            drop(running);
            names.sweep();
            return Err(TestCaseError::fail("the child panicked, crashed or hung"));
        }
        child.replace(Some(running));
        Ok(())
    };
    // A program that hangs takes the deadline's time at each step that makes it smaller.
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&vec(any::<u8>(), 0..MAX_LEN), run);
    result.unwrap_or_else(|error| panic!("{error}"));
    child.take().expect("the last child").shut_down();
}

pub(crate) fn role(link: &Link, arguments: &[&str]) {
    let run = match arguments[1] {
        "channel" => hostile::channel,
        "control" => hostile::control,
        "descriptor" => hostile::descriptor,
        _ => hostile::foreign,
    };
    while let Ok(Some(Message::Program(bytes))) = link.receive() {
        run(arguments[0], &bytes);
        link.send(&Message::Done);
    }
}
