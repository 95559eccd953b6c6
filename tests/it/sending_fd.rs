//! The descriptors of senders and publishers, for event loops.

use crate::fixtures::{message, unique_prefix, FOR_EVER, NOW};
use crate::threads::assert_prompt;
use crate::wake_fd::is_readable;
use shm_pool::channel::{
    OnEnd, OnFull, Publisher, Receiver, SendErrorKind, SendOptions, Sender, Subscriber,
    SubscriberBuilder,
};
use shm_pool::Provider;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// An end that sends, and its descriptor.
trait Sends {
    fn fd(&mut self) -> BorrowedFd<'_>;

    fn try_send_number(&mut self, number: u64) -> Result<(), SendErrorKind>;
}

impl Sends for Sender {
    fn fd(&mut self) -> BorrowedFd<'_> {
        self.wake_fd().unwrap()
    }

    fn try_send_number(&mut self, number: u64) -> Result<(), SendErrorKind> {
        self.try_send_copy(&number.to_ne_bytes())
            .map_err(|error| error.kind())
    }
}

impl Sends for Publisher {
    fn fd(&mut self) -> BorrowedFd<'_> {
        self.wake_fd().unwrap()
    }

    fn try_send_number(&mut self, number: u64) -> Result<(), SendErrorKind> {
        match self.try_send_copy(&number.to_ne_bytes()) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.kind()),
        }
    }
}

fn has_fd(end: &mut impl Sends) -> bool {
    is_readable(&end.fd(), 0)
}

/// Sends until there is no room, and the descriptor says so.
fn fill(end: &mut impl Sends) {
    for _ in 0..10_000 {
        match end.try_send_number(0) {
            Ok(()) => {}
            // A wake-up of an earlier refusal may come late.
            Err(SendErrorKind::Full { .. }) if !has_fd(end) => return,
            Err(SendErrorKind::Full { .. }) => {}
            Err(kind) => panic!("{kind}"),
        }
    }
    panic!("it stays readable");
}

/// Sleeps on the descriptor, as an event loop does, until the message is sent or cannot be.
fn send_when_readable(end: &mut impl Sends, number: u64) -> Result<(), SendErrorKind> {
    let start = Instant::now();
    loop {
        match end.try_send_number(number) {
            Err(SendErrorKind::Full { .. }) => {}
            done => return done,
        }
        let timeout = FOR_EVER.as_millis() as i32;
        assert!(is_readable(&end.fd(), timeout) && start.elapsed() < FOR_EVER);
    }
}

fn small_channel(name: &str) -> (Provider, Sender, Receiver) {
    let provider = Provider::builder().build().unwrap();
    let options = Sender::builder().capacity(2).spin(NOW);
    let sender = options.create(&provider, name).unwrap();
    let receiver = Receiver::builder().spin(NOW).open(name).unwrap();
    (provider, sender, receiver)
}

fn small_publisher(name: &str) -> (Provider, Publisher) {
    let provider = Provider::builder().build().unwrap();
    let options = Publisher::builder()
        .capacity(2)
        .block_limit(Duration::MAX)
        .spin(NOW);
    let publisher = options.create(&provider, name).unwrap();
    (provider, publisher)
}

fn blocking() -> SubscriberBuilder {
    Subscriber::builder()
        .on_end(OnEnd::Return)
        .on_full(OnFull::Block)
        .spin(NOW)
}

#[test]
fn readable_until_a_send_is_refused() {
    let (_provider, mut sender, mut receiver) = small_channel(&unique_prefix("sending-fd"));
    assert!(has_fd(&mut sender), "at first");
    sender.try_send_number(0).unwrap();
    assert!(has_fd(&mut sender), "a send found room");
    fill(&mut sender);
    // Not by the check once a second.
    assert_prompt(|| {
        let start = Instant::now();
        // The slot of the last one becomes free with the next receive.
        drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
        assert!(is_readable(&sender.fd(), -1));
        send_when_readable(&mut sender, 0).unwrap();
        let time = start.elapsed();
        fill(&mut sender);
        time
    });
    drop(receiver);
    let sent = send_when_readable(&mut sender, 0);
    assert_eq!(sent, Err(SendErrorKind::Disconnected));
}

/// A receiver that holds all the buffers that it may is waited for, too.
#[test]
fn readable_when_a_buffer_returns() {
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("sending-fd-borrowed");
    let options = Sender::builder().max_borrowed(1);
    let mut sender = options.create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    sender.wake_fd().unwrap();

    let send = |sender: &mut Sender, number| {
        let refused = sender.try_send(message(&provider, 1_000, number));
        refused.map_err(|error| error.kind())
    };
    send(&mut sender, 0).unwrap();
    assert_prompt(|| {
        let held = receiver.recv().unwrap();
        loop {
            let refused = send(&mut sender, 1).unwrap_err();
            assert!(matches!(refused, SendErrorKind::TooManyBorrowed { .. }));
            // A wake-up of an earlier refusal may come late.
            if !has_fd(&mut sender) {
                break;
            }
        }
        let start = Instant::now();
        drop(held);
        loop {
            assert!(is_readable(&sender.fd(), -1));
            match send(&mut sender, 1) {
                Err(SendErrorKind::TooManyBorrowed { .. }) => {}
                sent => break sent.unwrap(),
            }
        }
        start.elapsed()
    });
}

/// The descriptor waits for one receiver after the other.
#[test]
fn publisher_of_two() {
    let name = unique_prefix("sending-fd-two");
    let (_provider, mut publisher) = small_publisher(&name);
    let open = || blocking().capacity(2).open(&name).unwrap();
    let mut receivers = [open(), open()];
    publisher.wait_for_receivers(2, FOR_EVER).unwrap();
    fill(&mut publisher);
    assert_prompt(|| {
        let start = Instant::now();
        for (at, receiver) in receivers.iter_mut().enumerate() {
            drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
            if at == 0 {
                fill(&mut publisher);
            }
        }
        send_when_readable(&mut publisher, 0).unwrap();
        let time = start.elapsed();
        fill(&mut publisher);
        time
    });
}

/// Whatever ends the connection that the descriptor waits for makes it readable.
#[test]
fn publisher_that_loses_a_receiver() {
    let name = unique_prefix("sending-fd-lost");
    let (_provider, mut publisher) = small_publisher(&name);
    let ways: [fn(&mut Publisher, Subscriber); 3] = [
        |publisher, _receiver| {
            assert_eq!(publisher.disconnect_where(|_| true), 1);
        },
        |publisher, receiver| {
            drop(receiver);
            // Before the helper thread has woken, perhaps.
            while publisher.serve_joins() {}
        },
        |publisher, receiver| {
            drop(receiver);
            publisher.wait_until_received(FOR_EVER).unwrap();
        },
    ];
    for (at, lose) in ways.into_iter().enumerate() {
        let receiver = blocking().capacity(2).open(&name).unwrap();
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        fill(&mut publisher);
        lose(&mut publisher, receiver);
        assert!(has_fd(&mut publisher), "{at}");
        publisher.try_send_number(0).unwrap();
    }
}

/// A receiver past the limit is skipped, and the descriptor becomes readable for it.
#[test]
fn publisher_past_the_limit() {
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("sending-fd-limit");
    let limit = Duration::from_millis(20);
    let options = Publisher::builder().capacity(2).block_limit(limit);
    let mut publisher = options.create(&provider, &name).unwrap();
    let _stalled = blocking().open(&name).unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    publisher.wake_fd().unwrap();

    let start = Instant::now();
    let mut sent = publisher.try_send_copy(b"x");
    loop {
        match &sent {
            Ok(sent) if sent.missed.stalled == 1 => break,
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error.kind(), SendErrorKind::Full { .. }));
                assert!(is_readable(&publisher.fd(), FOR_EVER.as_millis() as i32));
            }
        }
        sent = publisher.try_send_copy(b"x");
    }
    assert!(start.elapsed() >= limit);
}

/// Waits of other kinds replace what the descriptor has registered.
#[test]
fn beside_other_waits() {
    const A_LITTLE: Duration = Duration::from_millis(1);
    let (_provider, mut sender, mut receiver) = small_channel(&unique_prefix("sending-fd-beside"));
    let waits: [fn(&mut Sender); 6] = [
        |sender| {
            let sent = sender.send_copy_with(b"x", SendOptions::new().timeout(A_LITTLE));
            assert_eq!(sent.unwrap_err().kind(), SendErrorKind::TimedOut);
        },
        |sender| {
            let received = sender.wait_until_received(A_LITTLE);
            assert_eq!(received.unwrap_err().kind(), SendErrorKind::TimedOut);
        },
        |sender| sender.wait_for_receiver(FOR_EVER).unwrap(),
        |sender| {
            let mut context = Context::from_waker(Waker::noop());
            assert!(sender.poll_ready_copy(&mut context, 0).is_pending());
        },
        |sender| {
            let mut context = Context::from_waker(Waker::noop());
            let sending = pin!(sender.send_copy_async(b"x"));
            assert!(sending.poll(&mut context).is_pending());
        },
        |sender| {
            let mut context = Context::from_waker(Waker::noop());
            let waiting = pin!(sender.wait_until_received_async());
            assert!(waiting.poll(&mut context).is_pending());
        },
    ];
    for (at, wait) in waits.into_iter().enumerate() {
        fill(&mut sender);
        wait(&mut sender);
        assert!(has_fd(&mut sender), "{at}");
        fill(&mut sender);
        drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
        send_when_readable(&mut sender, 0).unwrap();
    }
}

/// The same of a publisher.
#[test]
fn publisher_beside_other_waits() {
    const A_LITTLE: Duration = Duration::from_millis(1);
    let name = unique_prefix("sending-fd-beside-publisher");
    let (_provider, mut publisher) = small_publisher(&name);
    let mut receiver = blocking().capacity(2).open(&name).unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    let waits: [fn(&mut Publisher); 5] = [
        |publisher| {
            let sent = publisher.send_copy_with(b"x", SendOptions::new().timeout(A_LITTLE));
            assert_eq!(sent.unwrap_err().kind(), SendErrorKind::TimedOut);
        },
        |publisher| {
            let received = publisher.wait_until_received(A_LITTLE);
            assert_eq!(received.unwrap_err().kind(), SendErrorKind::TimedOut);
        },
        |publisher| {
            let mut context = Context::from_waker(Waker::noop());
            assert!(publisher.poll_ready_copy(&mut context, 0).is_pending());
        },
        |publisher| {
            let mut context = Context::from_waker(Waker::noop());
            let sending = pin!(publisher.send_copy_async(b"x"));
            assert!(sending.poll(&mut context).is_pending());
        },
        |publisher| {
            let mut context = Context::from_waker(Waker::noop());
            let waiting = pin!(publisher.wait_until_received_async());
            assert!(waiting.poll(&mut context).is_pending());
        },
    ];
    for (at, wait) in waits.into_iter().enumerate() {
        fill(&mut publisher);
        wait(&mut publisher);
        assert!(has_fd(&mut publisher), "{at}");
        fill(&mut publisher);
        drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
        send_when_readable(&mut publisher, 0).unwrap();
    }
}

/// A wait for room that ends in a send makes it readable, too.
#[test]
fn beside_a_send_that_blocks() {
    let (_provider, mut sender, mut receiver) = small_channel(&unique_prefix("sending-fd-blocks"));
    fill(&mut sender);
    let mut sender = thread::scope(|scope| {
        let sending = scope.spawn(move || {
            sender.send_copy(b"x").unwrap();
            sender
        });
        drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
        sending.join().unwrap()
    });
    // If the send did not have to wait, the helper makes it readable.
    assert!(is_readable(&sender.fd(), 60_000));
}

/// Everything arrives, in order, through two channels that are full most of the time.
#[test]
fn event_loop_of_two_ends() {
    const MESSAGES: u64 = 5_000;
    let name = unique_prefix("sending-fd-loop");
    let to_one = format!("{name}-one");
    let to_all = format!("{name}-all");
    let (_of_sender, mut sender, mut receiver) = small_channel(&to_one);
    let (_of_publisher, mut publisher) = small_publisher(&to_all);
    let mut subscriber = blocking().open(&to_all).unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    // Moved, so that a failure ends the other threads, too.
    thread::scope(move |scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                assert_eq!(receiver.recv().unwrap()[..], number.to_ne_bytes());
            }
        });
        scope.spawn(move || {
            for number in 0..MESSAGES {
                assert_eq!(subscriber.recv().unwrap()[..], number.to_ne_bytes());
            }
        });
        for number in 0..MESSAGES {
            send_when_readable(&mut sender, number).unwrap();
            send_when_readable(&mut publisher, number).unwrap();
        }
    });
}
