//! Random hostile programs, run in a child process. A program that panics, crashes or hangs there
//! fails the test and is then shrunk. The fuzzers in `fuzz/` run the same programs, guided by
//! coverage and with AddressSanitizer.

use crate::child::Child;
use crate::hostile;
use crate::shm::Names;
use crate::wire::{Link, Message};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};

/// The longest program, in bytes.
const MAX_LEN: usize = 2000;

/// One rogue process takes down neither the owner of a control object nor its peers.
#[test]
fn control_object() {
    run_at_random("control", 80);
}

/// A process that can send 32 bytes can neither read unsent memory nor crash the receiver nor hold
/// memory for ever.
#[test]
fn forged_descriptor() {
    run_at_random("descriptor", 60);
}

/// One rogue process takes down neither a sender nor its receiver, and no message is lost,
/// duplicated or reordered.
#[test]
fn channel_object() {
    run_at_random("channel", 250);
}

/// One rogue receiver neither takes down a publisher nor takes or changes the messages of other
/// receivers.
#[test]
fn publisher_objects() {
    run_at_random("publisher", 250);
}

/// A process that can put a file into /dev/shm can neither crash or hang other processes nor have a
/// living owner swept.
#[test]
fn foreign_files() {
    run_at_random("foreign", 60);
}

/// A damaged object neither takes down the operator's tool nor affects its report on the living.
#[test]
fn inspected_objects() {
    run_at_random("inspect", 60);
}

/// Draws programs and runs them in a child. A new child takes over after each failure.
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
    // Shrinking a program that hangs takes the whole deadline at each step.
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&vec(any::<u8>(), 0..MAX_LEN), run);
    result.unwrap_or_else(|error| panic!("{error}"));
    child.take().expect("the last child").shut_down();
}

role!("hostile-bytes", role);

fn role(link: &Link, arguments: &[&str]) {
    let run = match arguments[1] {
        "channel" => hostile::channel,
        "control" => hostile::control,
        "descriptor" => hostile::descriptor,
        "inspect" => hostile::inspect,
        "publisher" => hostile::publisher,
        _ => hostile::foreign,
    };
    while let Ok(Some(Message::Program(bytes))) = link.receive() {
        run(arguments[0], &bytes);
        link.send(&Message::Done);
    }
}
