//! Interactions of two mechanisms of channels that no other file covers (see the second table in
//! `../PAIRS.md`).

use crate::channel::provider;
use crate::child::{in_child, Child};
use crate::ends::AnyReceiver;
use crate::rlimits::with_only;
use crate::served::Served;
use crate::shm::{self, Names};
use crate::threads::assert_prompt;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{
    ChannelError, ChannelEvent, MessageType, OnEnd, OnFull, Publisher, Receiver, RecvError,
    SendErrorKind, Sender, Subscriber,
};
use shm_pool::{Provider, WakeFd};
use std::alloc::Layout;
use std::os::fd::{AsRawFd, RawFd};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

const CHANNEL: &str = "c";

const NOW: Duration = Duration::ZERO;

/// Long enough to be a buffer.
const LEN: usize = 5000;

/// Sends a buffer. Returns how many receivers got it.
fn send(publisher: &mut Publisher, provider: &Provider, number: u64) -> usize {
    crate::channel::send_filled(publisher, provider, LEN, |bytes| shm::fill(bytes, number))
}

/// Sleeps on the descriptor, as an event loop does, until the poll is ready.
fn wait_until_ready<T>(ready: &mut WakeFd, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let start = Instant::now();
    loop {
        if let Poll::Ready(done) = ready.poll(&mut poll) {
            return done;
        }
        let mut polled = libc::pollfd {
            fd: ready.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid element, which lives during the call.
        let count = unsafe { libc::poll(&mut polled, 1, FOR_EVER.as_millis() as i32) };
        assert_eq!(count, 1);
        assert!(start.elapsed() < FOR_EVER);
    }
}

role!("idle-receiver", idle_role);

/// The role of a receiver that receives nothing.
fn idle_role(link: &Link, arguments: &[&str]) {
    let _receiver = AnyReceiver::open(&shm::namespace(arguments[0]), CHANNEL).unwrap();
    link.send(&Message::Done);
    let _ = link.receive();
}

fn idle(names: &Names) -> Child {
    let child = Child::start_ready("idle-receiver", &[names.prefix()]);
    child
}

/// A receiver is killed while messages skip it: it is dropped by the next send, or when joins are
/// served, and the buffers that it held return.
#[test]
fn killed_while_stalled() {
    for serves in [true, false] {
        let names = Names::new(&format!("pairs-stalled-{serves}"));
        let provider = provider(names.prefix());
        let options = Publisher::builder()
            .max_subscribers(2)
            .capacity(1)
            .on_full(OnFull::Block)
            .block_limit(NOW);
        let mut publisher = options
            .joins_in_send(serves)
            .create(&provider, CHANNEL)
            .unwrap();
        let victim = idle(&names);
        let mut other = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::DropOldest)
            .namespace(&names.namespace())
            .open(CHANNEL)
            .unwrap();
        publisher.wait_for_receivers(2, FOR_EVER).unwrap();
        for (number, receivers) in [(0, 2), (1, 2), (2, 1)] {
            assert_eq!(send(&mut publisher, &provider, number), receivers);
        }
        assert!(publisher.served().receivers().next().unwrap().is_stalled);
        victim.kill();
        assert_eq!(send(&mut publisher, &provider, 3), 1);
        if !serves {
            assert!(publisher.serve_joins(), "one has left");
            assert!(!publisher.serve_joins());
        }
        assert_eq!(publisher.served().receivers().count(), 1);
        let newest = other.recv_timeout(FOR_EVER).unwrap();
        shm::check(&newest, 3).unwrap();
        assert_eq!(newest.missed(), 3);
        drop(newest);
        provider.reclaim();
        let stats = provider.stats();
        assert_eq!(stats.bytes_in_use + stats.bytes_leased, 0);
        let next = idle(&names);
        publisher.wait_for_receivers(2, FOR_EVER).unwrap();
        assert_eq!(
            send(&mut publisher, &provider, 4),
            2,
            "its clock is not the victim's"
        );
        next.kill();
        drop((other, publisher));
        names.sweep();
    }
}

/// A publisher short of descriptors tells the receiver, only when it serves joins, and connects it
/// later.
#[test]
fn joins_apart_at_descriptor_limit() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let mut publisher = Publisher::builder()
            .joins_in_send(false)
            .create(&provider, CHANNEL)
            .unwrap();
        let mut receiver = Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(&shm::namespace(prefix))
            .open(CHANNEL)
            .unwrap();
        drop(provider.alloc(LEN).unwrap()); // its segment is open
        let before = shm::open_descriptors();
        for _ in 0..2 {
            // The second try is due after a while.
            let received = loop {
                assert!(!with_only(0, || publisher.serve_joins()));
                let received = receiver.try_recv();
                if !matches!(received, Err(RecvError::Empty)) {
                    break received;
                }
            };
            assert!(matches!(
                received,
                Err(RecvError::NotConnected {
                    errno: libc::EMFILE
                })
            ));
            assert_eq!(with_only(0, || send(&mut publisher, &provider, 0)), 0);
            assert!(
                matches!(receiver.try_recv(), Err(RecvError::Empty)),
                "no send has tried"
            );
        }
        assert_eq!(shm::open_descriptors(), before);
        while !publisher.serve_joins() {}
        assert_eq!(send(&mut publisher, &provider, 1), 1);
        let message = receiver.recv().unwrap();
        shm::check(&message, 1).unwrap();
        assert_eq!(message.missed(), 2, "since it was refused first");
    });
}

fn number_type(version: u64) -> MessageType {
    MessageType::new("number", version, Layout::new::<u64>())
}

role!("typed-sender", typed_role);

/// The role of a sender of numbers, of a version. Sends each number that it receives.
fn typed_role(link: &Link, arguments: &[&str]) {
    let [prefix, version] = arguments else {
        panic!("{arguments:?}")
    };
    let options = Sender::builder().message_type(number_type(version.parse().unwrap()));
    let mut sender = options
        .create_timeout(&provider(prefix), CHANNEL, FOR_EVER)
        .unwrap();
    link.send(&Message::Done);
    while let Some(Message::Number(number)) = link.receive().unwrap() {
        sender.send_copy(&number.to_ne_bytes()).unwrap();
        link.send(&Message::Done);
    }
}

/// The receiver of an event loop follows senders that are killed and restarted, in two versions.
#[test]
fn killed_sender_of_other_type() {
    let names = Names::new("pairs-typed");
    let options = Receiver::builder().message_type(number_type(1));
    let options = options.on_end(OnEnd::Wait).namespace(&names.namespace());
    let mut receiver = options.open(CHANNEL).unwrap();
    let mut ready = WakeFd::new().unwrap();
    let mut next = |receiver: &mut Receiver| {
        wait_until_ready(&mut ready, |context| receiver.poll_recv_event(context))
    };
    for (number, version) in [1, 2, 2, 1, 1].into_iter().enumerate() {
        let sender = Child::start_ready("typed-sender", &[names.prefix(), &version.to_string()]);
        if version == 2 {
            let error = next(&mut receiver).unwrap_err();
            let RecvError::Open(error) = error else {
                panic!("{error}")
            };
            assert!(
                matches!(*error, ChannelError::TypeMismatch { .. }),
                "{error}"
            );
            assert!(
                matches!(receiver.try_recv(), Err(RecvError::Empty)),
                "reported once"
            );
            sender.kill();
            continue;
        }
        assert!(matches!(
            next(&mut receiver),
            Ok(ChannelEvent::Connected(_))
        ));
        assert_eq!(
            sender.request(&Message::Number(number as u64)),
            Message::Done
        );
        let event = next(&mut receiver).unwrap();
        let ChannelEvent::Message(message) = event else {
            panic!("{event:?}")
        };
        assert_eq!(message[..], (number as u64).to_ne_bytes());
        sender.kill();
        assert!(matches!(
            next(&mut receiver),
            Ok(ChannelEvent::Disconnected)
        ));
    }
    drop(receiver);
    names.sweep();
}

/// Sleeps on an end's own descriptor, as an event loop does, until `try_send` returns something.
fn send_when_readable<S, T>(
    end: &mut S,
    fd: impl Fn(&mut S) -> RawFd,
    mut try_send: impl FnMut(&mut S) -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        let mut polled = libc::pollfd {
            fd: fd(end),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid element, which lives during the call.
        let count = unsafe { libc::poll(&mut polled, 1, FOR_EVER.as_millis() as i32) };
        assert_eq!(count, 1);
        assert!(start.elapsed() < FOR_EVER);
        if let Some(done) = try_send(end) {
            return done;
        }
    }
}

fn is_readable(fd: RawFd) -> bool {
    let mut polled = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid element, which lives during the call.
    unsafe { libc::poll(&mut polled, 1, 0) == 1 }
}

/// An event loop that sleeps on the descriptor of a sender or publisher learns at once that the
/// receiver was killed which made no room.
#[test]
fn killed_receiver_wakes_descriptor() {
    assert_prompt(|| {
        let names = Names::new("pairs-fd-sender");
        let provider = provider(names.prefix());
        let options = Sender::builder().capacity(2);
        let mut sender = options.create(&provider, CHANNEL).unwrap();
        let receiver = idle(&names);
        let fd = |sender: &mut Sender| sender.wake_fd().unwrap().as_raw_fd();
        let raw = fd(&mut sender);
        while sender.try_send_copy(b"x").is_ok() || is_readable(raw) {}
        receiver.kill();
        let start = Instant::now();
        let error = send_when_readable(&mut sender, fd, |sender| {
            let error = sender.try_send_copy(b"x").unwrap_err();
            error.is_disconnected().then_some(error)
        });
        let time = start.elapsed();
        assert_eq!(error.kind(), SendErrorKind::Disconnected);
        names.sweep();
        time
    });
    assert_prompt(|| {
        let names = Names::new("pairs-fd-publisher");
        let provider = provider(names.prefix());
        let options = Publisher::builder()
            .capacity(2)
            .on_full(OnFull::Block)
            .block_limit(FOR_EVER);
        let mut publisher = options.create(&provider, CHANNEL).unwrap();
        let receiver = idle(&names);
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        let fd = |publisher: &mut Publisher| publisher.wake_fd().unwrap().as_raw_fd();
        let raw = fd(&mut publisher);
        while publisher.try_send_copy(b"x").is_ok() || is_readable(raw) {}
        receiver.kill();
        let start = Instant::now();
        let sent = send_when_readable(&mut publisher, fd, |publisher| {
            publisher.try_send_copy(b"x").ok()
        });
        let time = start.elapsed();
        assert_eq!(sent.receivers, 0);
        names.sweep();
        time
    });
}

/// An event loop that waits for room learns at once that a receiver was killed: the sender's only one,
/// and one that a publisher waits for.
#[test]
fn killed_receiver_wakes_event_loop() {
    for is_publisher in [false, true] {
        assert_prompt(|| {
            let names = Names::new(&format!("pairs-room-{is_publisher}"));
            let provider = provider(names.prefix());
            let mut ready = WakeFd::new().unwrap();
            let time;
            if is_publisher {
                let options = Publisher::builder()
                    .capacity(2)
                    .on_full(OnFull::Block)
                    .block_limit(FOR_EVER);
                let mut publisher = options.create(&provider, CHANNEL).unwrap();
                let receiver = idle(&names);
                publisher.wait_for_receivers(1, FOR_EVER).unwrap();
                while publisher.try_send_copy(b"x").is_ok() {}
                assert!(ready
                    .poll(|context| publisher.poll_ready_copy(context, 0))
                    .is_pending());
                receiver.kill();
                let start = Instant::now();
                wait_until_ready(&mut ready, |context| publisher.poll_ready_copy(context, 0))
                    .unwrap();
                time = start.elapsed();
                assert_eq!(publisher.try_send_copy(b"x").unwrap().receivers, 0);
            } else {
                let mut sender = Sender::builder()
                    .capacity(2)
                    .create(&provider, CHANNEL)
                    .unwrap();
                let receiver = idle(&names);
                while sender.try_send_copy(b"x").is_ok() {}
                assert!(ready
                    .poll(|context| sender.poll_ready_copy(context, 0))
                    .is_pending());
                receiver.kill();
                let start = Instant::now();
                let room =
                    wait_until_ready(&mut ready, |context| sender.poll_ready_copy(context, 0));
                time = start.elapsed();
                assert_eq!(room, Err(SendErrorKind::Disconnected.into()));
            }
            names.sweep();
            time
        });
    }
}
