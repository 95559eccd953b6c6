//! The warm path makes no system call: a thread that may make none still allocates, shares and
//! drops.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{OnFull, Publisher, Receiver, Sender};
use shm_pool::{Client, PeerId, Provider, ProviderBuilder, ShmBuf};
use shm_pool_support::tasks::noop_waker;
use std::alloc::Layout;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;

const CYCLES: usize = 1_000_000;
const SIZES: [usize; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Sizes of which several buffers are held at a time.
const SMALLER: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// A publisher in steady state does not wait for the kernel: it neither maps nor locks nor uses the
/// heap.
#[test]
fn million_warm_cycles() {
    let names = Names::new("warm");
    let child = Child::start("warm-path", &[names.prefix()]);
    child.expect_done();
    child.kill();
    // A process without system calls cannot remove its objects either.
    assert!(names.sweep() > 0);
}

/// A publisher with several receivers makes no system call while no thread is parked, nor do they.
#[test]
fn million_published_messages() {
    let names = Names::new("warm-many");
    let child = Child::start("warm-path-to-many", &[names.prefix()]);
    child.expect_done();
    child.kill();
    assert!(names.sweep() > 0);
}

/// One pool that is short of memory does not make every publisher of the process call the kernel.
#[test]
fn waiter_leaves_other_pools_warm() {
    let names = Names::new("warm-waiter");
    let child = Child::start("warm-path-beside-a-waiter", &[names.prefix()]);
    child.expect_done();
    child.kill();
    assert!(names.sweep() > 0);
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
    run(link, arguments[0], Provider::builder().idle_window(1 << 12), 1000);
}

role!("warm-path-beside-a-waiter", beside_a_waiter_role);

fn beside_a_waiter_role(link: &Link, arguments: &[&str]) {
    let other = Provider::builder().name_prefix(arguments[0]).max_bytes(1 << 20).build().unwrap();
    let _held = other.alloc(1 << 20).unwrap();
    let mut waits = pin!(other.request(1).wait_async());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&noop_waker())).is_pending());
    role(link, arguments);
}

role!("warm-path-without-a-pool", control_role);

fn control_role(link: &Link, arguments: &[&str]) {
    run(link, arguments[0], Provider::builder().max_idle_per_class(0), 1);
}

role!("warm-path-to-many", many_role);

fn many_role(link: &Link, arguments: &[&str]) {
    let provider = Provider::builder().name_prefix(arguments[0]).build().unwrap();
    let mut many = many(arguments[0], &provider);
    cycle(link, 1000, || SIZES.iter().map(|&size| to_many(&provider, &mut many, size)).sum());
}

fn run(link: &Link, prefix: &str, builder: ProviderBuilder, warm_up: usize) {
    let provider = builder.name_prefix(prefix).build().unwrap();
    let client = shm::client(prefix);
    let peer = client.connect(provider.id()).unwrap();
    let mut channel = channel(prefix, &provider);
    cycle(link, warm_up, || round(&provider, &client, peer, &mut channel));
}

/// Runs rounds until there were enough cycles, and notifies the test. A `round` returns its number
/// of cycles, or `None` if it failed.
fn cycle(link: &Link, warm_up: usize, mut round: impl FnMut() -> Option<usize>) {
    let (socket, good, bad) = (link.as_raw_fd(), Message::Done.to_frame(), Message::Trim.to_frame());
    (0..warm_up).for_each(|_| assert!(round().is_some()));
    sys::forbid_all_calls_but(&sys::STRICT).unwrap();
    let mut cycles = 0;
    while cycles < CYCLES {
        match round() {
            Some(count) => cycles += count,
            None => {
                sys::write(socket, &bad);
                sys::exit_thread();
            }
        }
    }
    sys::write(socket, &good);
    sys::exit_thread();
}

/// Does each operation once per size. Returns how many buffers it allocated and dropped, or `None`
/// on any error.
fn round(provider: &Provider, client: &Client, peer: PeerId, channel: &mut (Sender, Receiver)) -> Option<usize> {
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
        count += 6;
    }
    for size in SMALLER {
        let burst = [(); 6].map(|()| provider.alloc(size)); // the hot slot and the idle queue
        count += burst.iter().flatten().count();
        let frozen = burst.map(|buffer| buffer.ok().map(|buffer| buffer.freeze()));
        if frozen.iter().flatten().count() != 6 {
            return None;
        }
        frozen.into_iter().for_each(drop);
    }
    Some(count)
}

fn channel(prefix: &str, provider: &Provider) -> (Sender, Receiver) {
    let sender = Sender::builder().capacity(4).create(provider, "warm").unwrap();
    let client = Arc::new(shm::client(prefix));
    (sender, Receiver::builder().open(&client, "warm").unwrap())
}

/// Sends a buffer and some bytes through the channel.
fn through(provider: &Provider, (sender, receiver): &mut (Sender, Receiver), size: usize) -> Option<()> {
    sender.send(provider.alloc(size).ok()?.freeze()).ok()?;
    sender.send_bytes(b"bytes").ok()?;
    let buffer = receiver.recv().ok()?;
    let bytes = receiver.recv().ok()?;
    (buffer.len() == size && &bytes[..] == b"bytes").then_some(())
}

/// A publisher, and a receiver of each rule.
fn many(prefix: &str, provider: &Provider) -> (Publisher, [Receiver; 3]) {
    let mut publisher = Publisher::create(provider, "warm").unwrap();
    let client = shm::client(prefix);
    let receivers = [OnFull::Wait, OnFull::DropNew, OnFull::KeepLatest].map(|on_full| {
        // Only the first one has room for two messages.
        let capacity = if on_full == OnFull::Wait { 2 } else { 1 };
        Receiver::builder().on_full(on_full).capacity(capacity).open(&client, "warm").unwrap()
    });
    assert!(publisher.has_receivers());
    (publisher, receivers)
}

/// Sends a buffer and some bytes. The first receiver gets both, the second at least the buffer, and
/// the third the bytes, for which the buffer is withdrawn. Returns the number of these messages.
fn to_many(
    provider: &Provider,
    (publisher, [all, oldest, latest]): &mut (Publisher, [Receiver; 3]),
    size: usize,
) -> Option<usize> {
    publisher.send(provider.alloc(size).ok()?.freeze()).ok()?;
    publisher.send_bytes(b"bytes").ok()?;
    let (buffer, bytes) = (all.recv().ok()?, all.recv().ok()?);
    let are_right = buffer.len() == size && &bytes[..] == b"bytes" && &latest.recv().ok()?[..] == b"bytes";
    let first = oldest.recv().ok()?;
    while oldest.try_recv().is_ok() {}
    (are_right && first.len() == size).then_some(2)
}

/// Attaches by descriptor, dropping the two sides in both orders, and by a grant.
fn shared(provider: &Provider, client: &Client, peer: PeerId, size: usize) -> Option<()> {
    let message = || provider.alloc(size).ok().map(ShmBuf::from);
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
