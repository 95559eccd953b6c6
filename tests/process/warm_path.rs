//! The warm path makes no system call: a thread that may make none still allocates, shares and
//! drops.

use crate::child::{answer_without_calls, run_without_calls, Child};
use crate::served::Served;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use crossbeam_queue::ArrayQueue;
use nix::sys::resource::{getrusage, UsageWho};
use shm_pool::channel::{ChannelEvent, OnEnd, OnFull, Publisher, Receiver, Sender, Subscriber};
use shm_pool::{
    Client, Descriptor, Namespace, PeerId, Provider, ProviderBuilder, ShmBytes, ShmView, Tuning,
};
use shm_pool_support::tasks::noop_waker;
use std::alloc::Layout;
use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::Context;
use std::thread;
use std::time::Duration;

const CYCLES: usize = 1_000_000;
const SIZES: [usize; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Sizes of which several buffers are held at a time.
const SMALLER: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// A publisher in steady state neither maps nor locks nor uses the heap.
#[test]
fn million_warm_cycles() {
    assert!(run_without_calls("warm-path", 1) > 0);
}

/// A publisher with several receivers makes no system call while no thread is parked, nor do they.
#[test]
fn million_published_messages() {
    assert!(run_without_calls("warm-path-to-many", 1) > 0);
}

/// A subscriber that is connected costs no more than a receiver.
#[test]
fn million_subscribed_messages() {
    assert!(run_without_calls("warm-path-to-a-follower", 1) > 0);
}

/// One pool that is short of memory does not make every publisher of the process call the kernel.
#[test]
fn waiter_leaves_other_pools_warm() {
    assert!(run_without_calls("warm-path-beside-a-waiter", 1) > 0);
}

/// Checks that the tests above can fail: without idle chunks, the same calls end the child.
#[test]
fn first_syscall_is_fatal() {
    let names = Names::new("cold");
    let status = Child::start("warm-path-without-a-pool", &[names.prefix()]).ended();
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
    names.sweep();
}

role!("warm-path", role);

fn role(link: &Link, arguments: &[&str]) {
    // Enough rounds that each chunk of each class has been in each place, and shared once, and that
    // some windows have ended, which release the memory that only the start needed.
    run(
        link,
        arguments[0],
        Provider::builder().tuning(Tuning::new().idle_window(1 << 12)),
        1000,
    );
}

/// A publisher that serves joins at other times makes no system call, although receivers join and
/// leave.
#[test]
fn sends_beside_joins() {
    assert!(run_without_calls("warm-path-beside-joins", 1) > 0);
}

role!("warm-path-beside-joins", beside_joins_role);

/// Another thread serves the joins, when the sending thread leaves it the publisher.
fn beside_joins_role(link: &Link, arguments: &[&str]) {
    const JOINS: usize = 100;
    let prefix = arguments[0];
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let publisher = Publisher::builder()
        .joins_in_send(false)
        .create(&provider, "warm")
        .unwrap();
    // Large enough for the messages of a receiver that has left, until its connection is dropped.
    provider.reserve(4096, 8).unwrap().keep();
    let publisher = Mutex::new(publisher);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let client = shm::client(prefix);
            // Never blocks, so that the sending thread need not wake it.
            let serve = || loop {
                if let Ok(mut publisher) = publisher.try_lock() {
                    if publisher.serve_joins() {
                        return;
                    }
                }
            };
            for _ in 0..JOINS {
                let mut receiver = Subscriber::builder()
                    .on_end(OnEnd::Return)
                    .capacity(1)
                    .spin(Duration::MAX)
                    .namespace(client.namespace())
                    .open("warm")
                    .unwrap();
                serve();
                for _ in 0..3 {
                    assert_eq!(receiver.recv().unwrap().len(), 4096);
                }
                drop(receiver);
                serve();
            }
            is_over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            answer_without_calls(link, &[], || {
                while !is_over.load(Ordering::Acquire) {
                    let Ok(mut publisher) = publisher.try_lock() else {
                        continue;
                    };
                    let Ok(buffer) = provider.alloc(4096) else {
                        return false;
                    };
                    let Ok(_) = publisher.send(buffer.freeze()) else {
                        return false;
                    };
                }
                true
            })
        });
    });
}

role!("warm-path-beside-a-waiter", beside_a_waiter_role);

fn beside_a_waiter_role(link: &Link, arguments: &[&str]) {
    let other = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .max_bytes(1 << 20)
        .build()
        .unwrap();
    let _held = other.alloc(1 << 20).unwrap();
    let mut waits = pin!(other.request(1).wait_async());
    assert!(waits
        .as_mut()
        .poll(&mut Context::from_waker(&noop_waker()))
        .is_pending());
    role(link, arguments);
}

role!("warm-path-without-a-pool", control_role);

fn control_role(link: &Link, arguments: &[&str]) {
    run(
        link,
        arguments[0],
        Provider::builder().max_idle_per_class(0),
        1,
    );
}

role!("warm-path-to-a-follower", following_role);

fn following_role(link: &Link, arguments: &[&str]) {
    let provider = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .build()
        .unwrap();
    let mut receiver = Receiver::builder()
        .on_end(OnEnd::Wait)
        .namespace(&shm::namespace(arguments[0]))
        .open("warm")
        .unwrap();
    let mut sender = Sender::create(&provider, "warm").unwrap();
    assert!(matches!(
        receiver.recv_event(),
        Ok(ChannelEvent::Connected(_))
    ));
    cycle(link, 1000, || {
        sender.send(provider.alloc(SIZES[0]).ok()?.freeze()).ok()?;
        let Ok(ChannelEvent::Message(message)) = receiver.recv_event() else {
            return None;
        };
        if message.len() != SIZES[0] || receiver.try_recv().is_ok() {
            return None;
        }
        Some(1)
    });
}

role!("warm-path-to-many", many_role);

fn many_role(link: &Link, arguments: &[&str]) {
    let provider = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .build()
        .unwrap();
    let mut many = many(arguments[0], &provider);
    cycle(link, 1000, || {
        let mut count = 0;
        for size in SIZES {
            count += to_many(&provider, &mut many, size)?;
        }
        Some(count)
    });
}

fn run(link: &Link, prefix: &str, builder: ProviderBuilder, warm_up: usize) {
    let provider = builder
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let client = shm::client(prefix);
    let peer = client.connect(provider.id()).unwrap();
    let mut channel = channel(prefix, &provider);
    cycle(link, warm_up, || {
        round(&provider, &client, peer, &mut channel)
    });
}

/// Runs rounds until there were enough cycles, and notifies the test. A `round` returns its number
/// of cycles, or `None` if it failed.
fn cycle(link: &Link, warm_up: usize, mut round: impl FnMut() -> Option<usize>) {
    for _ in 0..warm_up {
        assert!(round().is_some());
    }
    answer_without_calls(link, &[], || {
        let mut cycles = 0;
        while cycles < CYCLES {
            let Some(count) = round() else { return false };
            cycles += count;
        }
        true
    });
}

/// Does each operation once per size. Returns how many buffers it allocated and dropped, or `None`
/// on any error.
fn round(
    provider: &Provider,
    client: &Client,
    peer: PeerId,
    channel: &mut (Sender, Receiver),
) -> Option<usize> {
    let mut count = 0;
    for size in SIZES {
        let mut buffer = provider.alloc(size).ok()?; // the hot slot
        *buffer.last_mut()? = 1;
        drop(buffer);
        let layout = Layout::from_size_align(size, Provider::MAX_ALIGN).ok()?;
        let aligned = provider.alloc_layout(layout).ok()?;
        let message = aligned.freeze();
        let clone = message.clone();
        drop(message);
        drop(clone);
        shared(provider, client, peer, size)?;
        through(provider, channel, size)?;
        count += 7;
    }
    for size in SMALLER {
        // All chunks of the free list. An array, because a list would need the heap.
        let mut burst = [const { None }; 6];
        for slot in &mut burst {
            *slot = Some(provider.alloc(size).ok()?.freeze());
        }
        count += burst.len();
    }
    Some(count)
}

fn channel(prefix: &str, provider: &Provider) -> (Sender, Receiver) {
    let sender = Sender::builder()
        .capacity(4)
        .create(provider, "warm")
        .unwrap();
    let client = Arc::new(shm::client(prefix));
    (
        sender,
        Receiver::builder()
            .namespace(client.namespace())
            .open("warm")
            .unwrap(),
    )
}

/// Does not fit in a slot.
const COPIED: [u8; 1000] = [7; 1000];

fn through(
    provider: &Provider,
    (sender, receiver): &mut (Sender, Receiver),
    size: usize,
) -> Option<()> {
    sender.send(provider.alloc(size).ok()?.freeze()).ok()?;
    sender.send_copy(b"bytes").ok()?;
    sender.send_copy(&COPIED).ok()?;
    let buffer = receiver.recv().ok()?;
    let bytes = receiver.recv().ok()?;
    let copy = receiver.recv().ok()?;
    let are_right = buffer.len() == size && &bytes[..] == b"bytes" && copy[..] == COPIED;
    if !are_right {
        return None;
    }
    Some(())
}

fn many(prefix: &str, provider: &Provider) -> (Publisher, [Subscriber; 3]) {
    let mut publisher = Publisher::create(provider, "warm").unwrap();
    let client = shm::client(prefix);
    let receivers = [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest].map(|on_full| {
        // Only the first one has room for two messages.
        let capacity = if on_full == OnFull::Block { 2 } else { 1 };
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(on_full)
            .capacity(capacity)
            .namespace(client.namespace())
            .open("warm")
            .unwrap()
    });
    assert!(publisher.served().receivers().next().is_some());
    (publisher, receivers)
}

/// Sends a buffer and some bytes. The first receiver gets both, the second at least the buffer, and
/// the third the bytes, for which the buffer is withdrawn. Returns the number of these messages.
fn to_many(
    provider: &Provider,
    (publisher, [all, oldest, latest]): &mut (Publisher, [Subscriber; 3]),
    size: usize,
) -> Option<usize> {
    publisher.send(provider.alloc(size).ok()?.freeze()).ok()?;
    publisher.send_copy(b"bytes").ok()?;
    let buffer = all.recv().ok()?;
    let bytes = all.recv().ok()?;
    let are_right =
        buffer.len() == size && &bytes[..] == b"bytes" && &latest.recv().ok()?[..] == b"bytes";
    let first = oldest.recv().ok()?;
    while oldest.try_recv().is_ok() {}
    if !are_right || first.len() != size {
        return None;
    }
    Some(2)
}

/// Attaches by descriptor, dropping the two sides in both orders, and by a grant.
fn shared(provider: &Provider, client: &Client, peer: PeerId, size: usize) -> Option<()> {
    let message = || provider.alloc(size).ok().map(ShmBytes::from);
    let owner_first = message()?;
    let view = client.attach(&owner_first.descriptor().ok()?).ok()?;
    drop(owner_first);
    drop(view);
    let peer_first = message()?;
    drop(client.attach(&peer_first.descriptor().ok()?).ok()?);
    drop(peer_first);
    let granted = message()?;
    let descriptor = granted.grant(peer).ok()?;
    drop(granted);
    drop(client.attach(&descriptor).ok()?);
    Some(())
}

// ---- two threads that hand buffers to each other ------------------------------------------------

const HANDED_OVER: [usize; 3] = [64, 4 << 10, 300 << 10];
const HAND_OVERS_BEFORE: usize = 2_000;
const HAND_OVERS: usize = 30_000;
/// More chunks than two threads and two queues can hold at a time.
const CHUNKS: usize = 24;

/// Neither thread makes memory while the other has some to spare.
#[test]
fn hand_over_without_syscalls() {
    assert!(run_without_calls("warm-threads", 2) > 0);
}

struct Shared {
    provider: Provider,
    client: Client,
    queues: [ArrayQueue<(usize, ShmBytes)>; 2],
    barrier: Barrier,
}

role!("warm-threads", threads_role);

fn threads_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let builder = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(64 << 20)
        .max_idle_per_class(2 * CHUNKS);
    let builder = builder.tuning(Tuning::new().idle_window(0));
    let queues = [(); 2].map(|()| ArrayQueue::new(2));
    let shared = Shared {
        provider: builder.build().unwrap(),
        client: shm::client(prefix),
        queues,
        barrier: Barrier::new(2),
    };
    for size in HANDED_OVER {
        shared.provider.reserve(size, CHUNKS).unwrap().keep();
        // A chunk's first descriptor takes a lock, so each chunk gets one now.
        let all: Vec<ShmBytes> = (0..CHUNKS)
            .map(|_| shared.provider.alloc(size).unwrap().freeze())
            .collect();
        for message in &all {
            drop(
                shared
                    .client
                    .attach(&message.descriptor().unwrap())
                    .unwrap(),
            )
        }
    }
    thread::scope(|scope| {
        for side in 0..2 {
            let shared = &shared;
            scope.spawn(move || hand_over(shared, side, link));
        }
    });
}

fn hand_over(shared: &Shared, side: usize, link: &Link) -> ! {
    assert!(exchange(shared, side, HAND_OVERS_BEFORE).is_some());
    shared.barrier.wait();
    // These threads wait for each other by yielding their time slice, and crossbeam's queue waits
    // that way for a thread that was stopped in the middle of a push or pop. It is the only call
    // allowed here that a single thread may not make.
    answer_without_calls(link, &[libc::SYS_sched_yield], || {
        exchange(shared, side, HAND_OVERS).is_some()
    })
}

/// Sends `count` messages to the other side and receives as many.
fn exchange(shared: &Shared, side: usize, count: usize) -> Option<()> {
    let [inbox, outbox] = [&shared.queues[side], &shared.queues[1 - side]];
    let mut sent = 0;
    let mut received = 0;
    let mut waiting = None;
    while sent < count || received < count {
        let before = (sent, received, waiting.is_some());
        if let Some((number, message)) = inbox.pop() {
            receive(shared, received, number, message)?;
            received += 1;
        }
        if waiting.is_none() && sent < count {
            let mut buffer = shared
                .provider
                .alloc(HANDED_OVER[sent % HANDED_OVER.len()])
                .ok()?;
            buffer[..8].copy_from_slice(&sent.to_ne_bytes());
            waiting = Some((sent, buffer.freeze()));
            sent += 1;
        }
        if let Some(parcel) = waiting {
            waiting = outbox.push(parcel).err();
        }
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
fn receive(shared: &Shared, expected: usize, number: usize, message: ShmBytes) -> Option<()> {
    let is_right = |bytes: &[u8]| number == expected && bytes[..8] == expected.to_ne_bytes();
    let mut are_right = is_right(&message);
    if number % 4 == 0 {
        let view = shared.client.attach(&message.descriptor().ok()?).ok()?;
        drop(message);
        are_right = is_right(&view);
    }
    if !are_right {
        return None;
    }
    Some(())
}

// ---- the first messages -------------------------------------------------------------------------
// `no_heap.rs` counts the heap calls and faults of both sides in one process.

const RESERVED_SIZES: [usize; 5] = [64, 4 << 10, 100_000, 1 << 20, 3 << 20];
const RESERVED: usize = 3;
const FIRST_MESSAGES: usize = 1000;

/// How often faults are counted. The kernel may reclaim a page from any process at any time, but
/// hardly in each try.
const TRIES: usize = 3;

/// A control loop's first messages do not wait for the kernel: for memory, a mapping or a lock.
#[test]
fn first_messages_without_syscalls() {
    assert!(run_without_calls("reserved", 1) > 0);
}

role!("reserved", reserved_role);

fn reserved_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let client = shm::client(prefix);
    let mut sender = Sender::create(&provider, "reserved").unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("reserved")
        .unwrap();
    for &len in &RESERVED_SIZES {
        provider.reserve(len, RESERVED).unwrap().keep();
    }
    client.warm(provider.id()).unwrap();
    receiver.warm().unwrap();
    let peer = client.connect(provider.id()).unwrap();
    let mut messages = RESERVED_SIZES
        .iter()
        .cycle()
        .take(FIRST_MESSAGES / (RESERVED + 1));
    answer_without_calls(link, &[], || {
        messages.all(|&len| {
            shared_at_once(&provider, &client, peer, len).is_some()
                && sent(&provider, &mut sender, &mut receiver, len).is_some()
        })
    });
}

/// Shares all chunks of a size at the same time: by descriptor, and the last one by a grant.
fn shared_at_once(provider: &Provider, client: &Client, peer: PeerId, len: usize) -> Option<()> {
    let messages = [(); RESERVED].map(|()| provider.alloc(len).ok().map(ShmBytes::from));
    let attach = |message: &ShmBytes| client.attach(&message.descriptor().ok()?).ok();
    // An array: a list would need the heap.
    let views: [Option<ShmView>; RESERVED] =
        std::array::from_fn(|at| attach(messages[at].as_ref()?));
    let granted = messages.last()?.as_ref()?.grant(peer).ok()?;
    drop(messages);
    let taken_up = client.attach(&granted).ok()?;
    for view in views {
        if view?.len() != len {
            return None;
        }
    }
    if taken_up.len() != len {
        return None;
    }
    Some(())
}

fn sent(
    provider: &Provider,
    sender: &mut Sender,
    receiver: &mut Receiver,
    len: usize,
) -> Option<()> {
    sender.send(provider.alloc(len).ok()?.freeze()).ok()?;
    sender.send_copy(b"bytes").ok()?;
    let buffer = receiver.recv().ok()?;
    let bytes = receiver.recv().ok()?;
    if buffer.len() != len || bytes.len() != b"bytes".len() {
        return None;
    }
    Some(())
}

/// A subscriber's first messages are not delayed by a mapping and a fault for each page.
#[test]
fn warm_peer_without_faults() {
    let faults = [(); TRIES].map(|()| {
        let names = Names::new("warmed");
        let provider = names
            .provider()
            .tuning(Tuning::new().arena_size(64 << 10))
            .build()
            .unwrap();
        for &len in &RESERVED_SIZES {
            provider.reserve(len, RESERVED).unwrap().keep();
        }
        assert!(provider.stats().segments > 1);
        let mut sender = Sender::create(&provider, "warmed").unwrap();
        let child = Child::start(
            "warmed",
            &[names.prefix(), &u64::from(provider.id()).to_string()],
        );
        let Message::Peer(peer) = child.receive() else {
            panic!("not a peer")
        };
        let messages = RESERVED_SIZES.map(|len| shm::message(&provider, len, len as u64));
        for message in &messages {
            // First, because the child may not wait for a message once it has all descriptors.
            sender.send(message.clone()).unwrap();
            child.send(&Message::Sent(message.descriptor().unwrap()));
            child.send(&Message::Sent(message.grant(peer).unwrap()));
        }
        let faults = child.number();
        child.kill();
        faults
    });
    assert!(
        faults.contains(&0),
        "faults in {} messages: {faults:?}",
        3 * RESERVED_SIZES.len()
    );
}

role!("warmed", warmed_role);

fn warmed_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let id = shm_pool::ProviderId::from(arguments[1].parse::<u64>().unwrap());
    let client = shm::client(prefix);
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("warmed")
        .unwrap();
    link.send(&Message::Peer(client.connect(id).unwrap()));
    let descriptors = [(); 2 * RESERVED_SIZES.len()].map(|()| link.sent());
    rehearse(prefix);
    assert_eq!(
        (client.mapped_segments(), receiver.mapped_segments()),
        (0, 0)
    );
    let present = [client.warm(id).unwrap(), receiver.warm().unwrap()];
    assert!(
        present
            .iter()
            .all(|&bytes| bytes >= RESERVED * RESERVED_SIZES.iter().sum::<usize>()),
        "{present:?}"
    );
    let answers: Vec<Vec<u8>> = (0..100)
        .map(|number| Message::Number(number).to_frame())
        .collect();
    let socket = link.as_raw_fd();
    let filter = sys::Filter::allowing(&[&sys::STRICT[..], &[libc::SYS_getrusage]].concat());
    filter.enter().unwrap();
    let faults = faults_of(|| read(&client, &mut receiver, &descriptors));
    sys::write(socket, &answers[faults.min(answers.len() - 1)]);
    sys::exit_thread();
}

/// Reads other messages in the same way, so that the code is present, too.
fn rehearse(prefix: &str) {
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let client = shm::client(prefix);
    let mut sender = Sender::create(&provider, "rehearsal").unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("rehearsal")
        .unwrap();
    let message = provider.alloc_zeroed(1).unwrap().freeze();
    let granted = message
        .grant(client.connect(provider.id()).unwrap())
        .unwrap();
    let descriptors = [message.descriptor().unwrap(), granted];
    sender.send(message).unwrap();
    faults_of(|| read(&client, &mut receiver, &descriptors));
}

fn read(client: &Client, receiver: &mut Receiver, descriptors: &[Descriptor]) {
    let touch = |bytes: &[u8]| {
        for &byte in bytes.iter().step_by(4096) {
            assert!(black_box(Some(byte)).is_some());
        }
    };
    for descriptor in descriptors {
        touch(&client.attach(descriptor).unwrap());
    }
    for _ in 0..descriptors.len() / 2 {
        touch(&receiver.recv().unwrap());
    }
}

/// Returns how many pages fault in this thread while `what` runs.
fn faults_of(what: impl FnOnce()) -> usize {
    let faults = || {
        getrusage(UsageWho::RUSAGE_THREAD)
            .unwrap()
            .minor_page_faults()
    };
    let before = faults();
    what();
    (faults() - before) as usize
}

// ---- at the cap ---------------------------------------------------------------------------------
// With messages of random sizes and readers that hold some of them, memory moves between the
// existing segments. The C library may still ask the kernel for private memory: carving takes a
// little heap.

const CAP: usize = 64 << 20;
const LARGEST: usize = 4 << 20;
/// The number of messages that readers hold: about 24 MiB.
const HELD: usize = 12;
const WARM_UP: usize = 1_000;
const MESSAGES: usize = 10_000;

/// Nor do varying sizes fill the receivers' tables with short-lived segments.
#[test]
fn random_sizes_without_syscalls() {
    assert!(
        run_without_calls("at-the-cap", 1) <= 1 + 2,
        "the control object, and few segments"
    );
}

role!("at-the-cap", cap_role);

fn cap_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(CAP)
        .build()
        .unwrap();
    let client = shm::client(prefix);
    let mut random = 0;
    let mut held = VecDeque::with_capacity(HELD + 1);
    // Allocates the whole cap first: carving a page that has no memory yet would take a system
    // call.
    let all: Vec<_> = std::iter::from_fn(|| provider.alloc(LARGEST).ok()).collect();
    assert_eq!(provider.stats().bytes_held, CAP);
    drop(all);
    for _ in 0..WARM_UP {
        publish(&provider, &client, &mut held, &mut random).unwrap();
    }
    let made = provider.stats().segments_created;
    // None of these creates, maps or frees shared memory, takes a lock, or opens a file.
    let of_malloc = [libc::SYS_brk, libc::SYS_mprotect, libc::SYS_madvise];
    // musl's malloc maps each group of blocks. To map a segment, the reader would have to open it.
    #[cfg(target_env = "musl")]
    let of_malloc = [&of_malloc[..], &[libc::SYS_mmap, libc::SYS_munmap]].concat();
    answer_without_calls(link, &of_malloc, || {
        let all =
            (0..MESSAGES).all(|_| publish(&provider, &client, &mut held, &mut random).is_some());
        all && provider.stats().segments_created == made
    });
}

/// Publishes a message of a random size, has a reader attach to it, and drops the buffer. Drops the
/// oldest view if there are too many.
fn publish(
    provider: &Provider,
    client: &Client,
    held: &mut VecDeque<ShmView>,
    random: &mut u64,
) -> Option<()> {
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
