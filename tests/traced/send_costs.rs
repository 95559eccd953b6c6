//! How many system calls a publisher's sends make while a receiver cannot be connected, and when
//! one joins or leaves.

#![forbid(unsafe_code)]

use crate::channels::FOR_EVER;
use crate::kill_points::{introduce, is_possible, Victim};
use crate::owner_operations::{builder, SMALL};
use crate::shm::{self, Names};
use crate::sys;
use crate::trace::{marked, stay_on_one_processor, Pace, Stop};
use crate::wire::Link;
use libc::c_long;
use shm_pool::channel::{OnEnd, Publisher, Subscriber};
use shm_pool::Provider;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{symlink, FileExt};
use std::path::PathBuf;

const CHANNEL: &str = "c";

/// How many system calls the heap may make.
const FOR_THE_HEAP: usize = 4;

/// How many sends are counted together.
const SENDS: usize = 1_000;

/// Where a publisher's object counts the receivers that have joined, and where its registrations
/// are.
const ARRIVALS: u64 = 64;
const MAX_SUBSCRIBERS: u64 = 128;
const REGISTRATION: u64 = 16;

role!("send-costs", role);

/// The arguments are the operation, the prefix and the number of receivers.
fn role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let prefix = arguments[1];
    let count: usize = arguments[2].parse().unwrap();
    sys::limit_descriptors(1024);
    let provider = builder(prefix).build().unwrap();
    let client = shm::client(prefix);
    let max_subscribers = if operation == "replace" { count } else { 64 };
    let mut publisher = Publisher::builder()
        .max_subscribers(max_subscribers)
        .capacity(2)
        .max_borrowed(4)
        .create(&provider, CHANNEL)
        .unwrap();
    let open = || {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(client.namespace())
            .open(CHANNEL)
            .unwrap()
    };
    let mut receivers = Vec::new();
    for _ in 0..count {
        receivers.push(open());
    }
    publisher.wait_for_receivers(count, FOR_EVER).unwrap();
    send(&mut publisher, &provider);
    let mut held = Vec::new();
    for receiver in &mut receivers {
        held.push(receiver.recv().unwrap());
    }

    match operation {
        "refused" => {
            let late = open();
            // The next descriptor would be the first above the limit.
            let lowest_free = File::open("/dev/null").unwrap().as_raw_fd();
            sys::limit_descriptors(lowest_free as u64);
            send_copy(&mut publisher);
            marked(|| {
                for _ in 0..SENDS {
                    send_copy(&mut publisher);
                }
            });
            drop(late);
        }
        "garbage" => {
            symlink("/dev/null", connection(prefix)).unwrap();
            let object = shm::channel_object(prefix, CHANNEL);
            let registration = MAX_SUBSCRIBERS + REGISTRATION * 40;
            object
                .write_all_at(&GARBAGE.to_ne_bytes(), registration + 8)
                .unwrap();
            object.write_all_at(&[0xff; 4], ARRIVALS).unwrap();
            send_copy(&mut publisher);
            marked(|| {
                for _ in 0..SENDS {
                    send_copy(&mut publisher);
                }
            });
        }
        "leave" => {
            // It has read its message; the others still read theirs.
            held.pop();
            receivers.pop();
            marked(|| send_copy(&mut publisher));
        }
        "join" => {
            let late = open();
            marked(|| send_copy(&mut publisher));
            drop(late);
        }
        "replace" => {
            // All places are taken until it leaves.
            held.pop();
            receivers.pop();
            let late = open();
            marked(|| send_copy(&mut publisher));
            drop(late);
        }
        other => panic!("no operation {other:?}"),
    }
}

/// The id of a connection that no receiver has made.
const GARBAGE: u64 = 0xbad;

fn connection(prefix: &str) -> PathBuf {
    shm::path(&format!("{prefix}.{CHANNEL}.{GARBAGE:016x}.connection"))
}

fn send(publisher: &mut Publisher, provider: &Provider) {
    publisher
        .try_send(shm::message(provider, SMALL, 0))
        .unwrap();
}

fn send_copy(publisher: &mut Publisher) {
    publisher.try_send_copy(b"bytes").unwrap();
}

/// Returns the number of system calls between the marks of an operation.
fn calls(operation: &str, receivers: usize) -> usize {
    let names = Names::new(operation);
    let victim = Victim::start(
        "send-costs",
        &[operation, names.prefix(), &receivers.to_string()],
    );
    let tracee = victim.at_first_mark();
    let mut count = 0;
    let mut is_entry = true;
    loop {
        match tracee.go(Pace::Call) {
            Stop::Call if is_entry && !OF_MARKS.contains(&tracee.registers().call()) => count += 1,
            Stop::Call => {}
            Stop::Mark => break,
            other => panic!("{operation}: {other:?}"),
        }
        is_entry = !is_entry;
    }
    drop(victim);
    if operation == "garbage" {
        fs::remove_file(connection(names.prefix())).unwrap();
    }
    names.sweep();
    count
}

/// The system calls of a mark.
const OF_MARKS: [c_long; 3] = [libc::SYS_getpid, libc::SYS_gettid, libc::SYS_tgkill];

/// The publisher tries again at growing intervals, not in every send.
#[test]
fn refused_receiver() {
    if !is_possible() {
        return;
    }
    stay_on_one_processor();
    let calls = calls("refused", 1);
    // At most one try a second, after those of the first second.
    assert!(calls < SENDS / 2, "{calls} system calls");
}

/// What another process writes to a registration costs one try.
#[test]
fn garbage_at_a_registration() {
    if !is_possible() {
        return;
    }
    stay_on_one_processor();
    assert_eq!(calls("garbage", 1), 0);
}

/// However many receivers there are, which all read a message.
#[test]
fn receiver_leaves() {
    if !is_possible() {
        return;
    }
    let few = calls("leave", 2);
    assert!(few > 0, "the one that left was disconnected");
    let many = calls("leave", 40);
    assert!(
        many <= few + FOR_THE_HEAP,
        "{many} system calls, and {few} with 2"
    );
}

#[test]
fn receiver_joins() {
    if !is_possible() {
        return;
    }
    let few = calls("join", 2);
    assert!(few > 0, "it was connected");
    let many = calls("join", 40);
    assert!(
        many <= few + FOR_THE_HEAP,
        "{many} system calls, and {few} with 2"
    );
}

/// The publisher looks for those that have left before it asks the system about each.
#[test]
fn receiver_is_replaced() {
    if !is_possible() {
        return;
    }
    let few = calls("replace", 2);
    let many = calls("replace", 40);
    assert!(
        many <= few + FOR_THE_HEAP,
        "{many} system calls, and {few} with 2"
    );
}
