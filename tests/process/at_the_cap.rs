//! At the cap, with messages of random sizes and readers that hold some of them, memory moves
//! between the existing segments without a system call. (The C library may still ask the kernel for
//! private memory: carving takes a little heap.)

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{Client, Provider, ShmView};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;

const CAP: usize = 64 << 20;
const LARGEST: usize = 4 << 20;
/// The number of messages that readers hold: about 24 MiB.
const HELD: usize = 12;
const WARM_UP: usize = 1_000;
const MESSAGES: usize = 10_000;

/// Guards against a publisher that keeps calling the kernel because its messages vary in size, and
/// fills its receivers' tables with short-lived segments.
#[test]
fn random_sizes_without_syscalls() {
    let names = Names::new("at-the-cap");
    let child = Child::start("at-the-cap", &[names.prefix()]);
    child.expect_done();
    child.kill();
    // A process without system calls cannot remove its objects either.
    assert!(names.sweep() <= 1 + 2, "the control object, and few segments");
}

role!("at-the-cap", role);

fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).max_bytes(CAP).build().unwrap();
    let client = shm::client(prefix);
    let mut random = 0;
    let mut held = VecDeque::with_capacity(HELD + 1);
    // Allocates the whole cap first: carving a page that has no memory yet would take a system
    // call.
    let all: Vec<_> = std::iter::from_fn(|| provider.alloc(LARGEST).ok()).collect();
    assert_eq!(provider.stats().bytes_held, CAP);
    drop(all);
    (0..WARM_UP).for_each(|_| publish(&provider, &client, &mut held, &mut random).unwrap());
    let made = provider.stats().segments_created;
    let (socket, good, bad) = (link.as_raw_fd(), Message::Done.to_frame(), Message::Trim.to_frame());
    // None of these creates, maps or frees shared memory, takes a lock, or opens a file.
    let of_malloc = [libc::SYS_brk, libc::SYS_mprotect, libc::SYS_madvise];
    sys::forbid_all_calls_but(&[&sys::STRICT[..], &of_malloc].concat()).unwrap();
    let all = (0..MESSAGES).all(|_| publish(&provider, &client, &mut held, &mut random).is_some());
    let is_good = all && provider.stats().segments_created == made;
    sys::write(socket, if is_good { &good } else { &bad });
    sys::exit_thread();
}

/// Publishes a message of a random size, has a reader attach to it, and drops the buffer. Drops the
/// oldest view if there are too many.
fn publish(provider: &Provider, client: &Client, held: &mut VecDeque<ShmView>, random: &mut u64) -> Option<()> {
    // Vigna's SplitMix64.
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*random ^ *random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mut buffer = provider.alloc(1 + (mixed >> 16) as usize % LARGEST).ok()?;
    *buffer.last_mut()? = 1;
    let message = buffer.freeze();
    held.push_back(client.attach(&message.descriptor().ok()?).ok()?);
    if held.len() > HELD {
        held.pop_front();
    }
    Some(())
}
