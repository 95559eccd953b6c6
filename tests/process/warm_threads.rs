//! The warm path of two threads that hand buffers to each other: no system call to get memory, to
//! lock or to wait.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use crossbeam_queue::ArrayQueue;
use shm_pool::{Client, Provider, ShmBuf};
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::thread;

const SIZES: [usize; 3] = [64, 4 << 10, 300 << 10];
const WARM_UP: usize = 2_000;
const MESSAGES: usize = 30_000;
/// More chunks than two threads and two queues can hold at a time.
const CHUNKS: usize = 24;

/// Two threads of one publisher do not block each other in the kernel, and neither makes memory
/// while the other has some to spare.
#[test]
fn hand_over_without_syscalls() {
    let names = Names::new("warm2");
    let child = Child::start("warm-threads", &[names.prefix()]);
    child.expect_done();
    child.expect_done();
    child.kill();
    assert!(names.sweep() > 0);
}

/// State shared by both threads.
struct Shared {
    provider: Provider,
    client: Client,
    queues: [ArrayQueue<(usize, ShmBuf)>; 2],
    barrier: Barrier,
}

role!("warm-threads", role);

fn role(link: &Link, arguments: &[&str]) {
    let (prefix, socket) = (arguments[0], link.as_raw_fd());
    let builder = Provider::builder().name_prefix(prefix).max_bytes(64 << 20).max_idle_per_class(2 * CHUNKS);
    let builder = builder.idle_window(0);
    let queues = [(); 2].map(|()| ArrayQueue::new(2));
    let shared =
        Shared { provider: builder.build().unwrap(), client: shm::client(prefix), queues, barrier: Barrier::new(2) };
    for size in SIZES {
        shared.provider.reserve(size, CHUNKS).unwrap().keep();
        // A chunk's first descriptor takes a lock, so each chunk gets one now.
        let all: Vec<ShmBuf> = (0..CHUNKS).map(|_| shared.provider.alloc(size).unwrap().freeze()).collect();
        all.iter().for_each(|message| drop(shared.client.attach(&message.descriptor().unwrap()).unwrap()));
    }
    thread::scope(|scope| {
        for side in 0..2 {
            let shared = &shared;
            scope.spawn(move || run(shared, side, socket));
        }
    });
}

fn run(shared: &Shared, side: usize, socket: i32) -> ! {
    let (good, bad) = (Message::Done.to_frame(), Message::Trim.to_frame());
    assert!(exchange(shared, side, WARM_UP).is_some());
    shared.barrier.wait();
    // These threads wait for each other by yielding their time slice, and crossbeam's queue waits
    // that way for a thread that was stopped in the middle of a push or pop. It is the only call
    // allowed here that a single thread may not make.
    let allowed = [&sys::STRICT[..], &[libc::SYS_sched_yield]].concat();
    sys::forbid_all_calls_but(&allowed).unwrap();
    let is_good = exchange(shared, side, MESSAGES).is_some();
    sys::write(socket, if is_good { &good } else { &bad });
    sys::exit_thread();
}

/// Sends `count` messages to the other side and receives as many.
fn exchange(shared: &Shared, side: usize, count: usize) -> Option<()> {
    let [inbox, outbox] = [&shared.queues[side], &shared.queues[1 - side]];
    let (mut sent, mut received) = (0, 0);
    let mut waiting = None;
    while sent < count || received < count {
        let before = (sent, received, waiting.is_some());
        if let Some((number, message)) = inbox.pop() {
            receive(shared, received, number, message)?;
            received += 1;
        }
        if waiting.is_none() && sent < count {
            let mut buffer = shared.provider.alloc(SIZES[sent % SIZES.len()]).ok()?;
            buffer[..8].copy_from_slice(&sent.to_ne_bytes());
            waiting = Some((sent, buffer.freeze()));
            sent += 1;
        }
        waiting = waiting.and_then(|parcel| outbox.push(parcel).err());
        if before == (sent, received, waiting.is_some()) {
            thread::yield_now();
        }
    }
    while let Some(parcel) = waiting {
        waiting = outbox.push(parcel).err();
        thread::yield_now();
    }
    Some(())
}

/// Checks a message. Every fourth one is read as a peer would read it.
fn receive(shared: &Shared, expected: usize, number: usize, message: ShmBuf) -> Option<()> {
    let is_right = |bytes: &[u8]| number == expected && bytes[..8] == expected.to_ne_bytes();
    if number % 4 != 0 {
        return is_right(&message).then_some(());
    }
    let view = shared.client.attach(&message.descriptor().ok()?).ok()?;
    drop(message);
    is_right(&view).then_some(())
}
