//! A publisher and its receivers in separate processes: they are killed, restarted, forked, short
//! of descriptors or memory, or join while messages flow. The survivors are unaffected, or learn of
//! it at once.

use crate::channel::{provider, send_filled};
use crate::child::{in_child, in_small_shm, Child};
use crate::rlimits::with_only;
use crate::served::Served;
use crate::shm::{self, Names};
use crate::sys;
use crate::threads::{assert_prompt, beside, wait_until_asleep, wake_waiter};
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{
    wait_any, ChannelError, Message as Received, OnEnd, OnFull, Publisher, PublisherBuilder,
    RecvError, SendErrorKind, Source, Subscriber, SubscriberBuilder, MAX_INLINE,
};
use shm_pool::{Namespace, Provider, Tuning};
use shm_pool_support::machine::page_size;
use shm_pool_support::procfs;
use shm_pool_support::tasks::noop_waker;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

const CHANNEL: &str = "c";

const NOW: Duration = Duration::ZERO;

/// The lengths of messages, in turn: two that fit a slot, a small buffer and a large one.
const LENGTHS: [usize; 4] = [8, MAX_INLINE, 100, 20_000];

/// Fills a message with its number, which makes it unique.
fn fill(bytes: &mut [u8], number: u64) {
    let (head, rest) = bytes.split_at_mut(8);
    head.copy_from_slice(&number.to_le_bytes());
    shm::fill(rest, number);
}

/// Returns the number of a message, after checking all its bytes.
fn number_of(message: &Received) -> u64 {
    let (head, rest) = message.split_at(8);
    let number = u64::from_le_bytes(head.try_into().unwrap());
    assert_eq!(
        message.len(),
        LENGTHS[number as usize % LENGTHS.len()],
        "message {number}"
    );
    shm::check(rest, number).unwrap();
    number
}

/// Sends a message to all. Returns how many receivers got it.
fn send(publisher: &mut Publisher, provider: &Provider, number: u64) -> usize {
    send_filled(
        publisher,
        provider,
        LENGTHS[number as usize % LENGTHS.len()],
        |bytes| fill(bytes, number),
    )
}

fn open(prefix: &str, options: SubscriberBuilder) -> Subscriber {
    options
        .namespace(&shm::namespace(prefix))
        .open(CHANNEL)
        .unwrap()
}

/// Returns the number of bytes that cannot be reused now.
fn in_use(provider: &Provider) -> usize {
    provider.reclaim();
    let stats = provider.stats();
    stats.bytes_in_use + stats.bytes_leased
}

fn connections(prefix: &str) -> Vec<String> {
    let mut objects = shm::objects(prefix);
    objects.retain(|name| name.ends_with(".connection"));
    objects
}

role!("publisher-keeper", keeper_role);

/// The role of a receiver. At each `Go` it receives a message, keeps it, and answers its number; at
/// each `Done` it checks all kept messages.
fn keeper_role(link: &Link, arguments: &[&str]) {
    let mut receiver = open(
        arguments[0],
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::Block)
            .spin(NOW),
    );
    link.send(&Message::Done);
    let mut kept = Vec::new();
    while let Some(question) = link.receive().unwrap() {
        if question == Message::Go {
            kept.push(receiver.recv().unwrap());
            link.send(&Message::Number(number_of(kept.last().unwrap())));
        } else {
            for message in &kept {
                number_of(message);
            }
            link.send(&Message::Done);
        }
    }
}

fn keeper(names: &Names) -> Child {
    let child = Child::start_ready("publisher-keeper", &[names.prefix()]);
    child
}

role!("publisher", role);

/// The role of a publisher: sends as many messages as requested, each time.
fn role(link: &Link, arguments: &[&str]) {
    let provider = provider(arguments[0]);
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    link.send(&Message::Done);
    let mut next = 0;
    while let Some(Message::Number(count)) = link.receive().unwrap() {
        for number in next..next + count {
            send(&mut publisher, &provider, number);
        }
        next += count;
        link.send(&Message::Number(
            publisher.served().receivers().count() as u64
        ));
    }
}

fn publishing(names: &Names) -> Child {
    let child = Child::start_ready("publisher", &[names.prefix()]);
    child
}

/// The others get everything while one is stopped; its queue is returned while it is, and it learns
/// of it when it goes on.
#[test]
fn stopped_receiver_is_disconnected() {
    let names = Names::new("pub-stopped");
    let provider = provider(names.prefix());
    let options = Publisher::builder()
        .capacity(4)
        .block_limit(Duration::from_millis(20));
    let mut publisher = options.create(&provider, CHANNEL).unwrap();
    let stopped = keeper(&names);
    let mut other = open(
        names.prefix(),
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::DropNewest),
    );
    publisher.wait_for_receivers(2, FOR_EVER).unwrap();
    assert_eq!(send(&mut publisher, &provider, 3), 2);
    stopped.send(&Message::Go);
    assert_eq!(stopped.number(), 3);
    assert_eq!(number_of(&other.recv().unwrap()), 3);
    stopped.stop();
    for number in 4..40 {
        send(&mut publisher, &provider, number);
        assert_eq!(number_of(&other.recv().unwrap()), number);
    }
    let state = publisher
        .served()
        .receivers()
        .find(|state| state.process == Some(stopped.id()))
        .unwrap();
    assert_eq!(
        (state.waiting, state.missed.stalled, state.is_stalled),
        (5, 36 - 5, true)
    );
    assert!(publisher.disconnect(state.id));
    assert!(
        (20_000..2 * 20_000).contains(&in_use(&provider)),
        "only what it has received"
    );
    // It checks what it has received.
    stopped.signal(libc::SIGCONT);
    stopped.send(&Message::Done);
    stopped.expect_done();
    stopped.kill();
    assert_eq!(in_use(&provider), 0);
    drop((publisher, other, provider));
    names.sweep();
}

/// A receiver that crashes releases its memory and its registration, and no memory that others
/// read.
#[test]
fn killed_receiver_returns_borrowed() {
    let names = Names::new("pub-killed");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::builder()
        .max_subscribers(2)
        .create(&provider, CHANNEL)
        .unwrap();
    let good = keeper(&names);
    let victim = keeper(&names);
    for number in 0..8 {
        assert_eq!(send(&mut publisher, &provider, number), 2);
    }
    for number in 0..4 {
        assert_eq!(victim.request(&Message::Go), Message::Number(number));
    }
    for number in 0..8 {
        assert_eq!(good.request(&Message::Go), Message::Number(number));
    }
    let both = in_use(&provider);
    victim.kill();
    assert_eq!(in_use(&provider), both, "the other has all of it");
    // This message reaches the next receiver, which has its registration.
    let next = keeper(&names);
    assert_eq!(send(&mut publisher, &provider, 8), 2);
    assert_eq!(
        (good.request(&Message::Go), next.request(&Message::Go)),
        (Message::Number(8), Message::Number(8))
    );
    // All free memory is overwritten.
    let mut all = Vec::new();
    while let Ok(mut buffer) = provider.alloc(20_000) {
        buffer.fill(0xee);
        all.push(buffer);
    }
    drop(all);
    for child in [&good, &next] {
        assert_eq!(
            child.request(&Message::Done),
            Message::Done,
            "what it keeps is whole"
        );
    }
    good.kill();
    assert_eq!(in_use(&provider), 0, "the last one that had it");
    next.shut_down();
    assert_eq!(publisher.served().receivers().count(), 0);
    assert_eq!(
        names.sweep(),
        1,
        "the connection of the last one that was killed; its place is free"
    );
}

/// Restarts fill neither /dev/shm nor the registrations, and a receiver that stays is connected.
#[test]
fn idle_restarts() {
    let names = Names::new("pub-restarts");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::builder()
        .max_subscribers(2)
        .create(&provider, CHANNEL)
        .unwrap();
    let mut stays = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
    assert_eq!(publisher.served().receivers().count(), 1);
    let before = shm::open_objects(names.prefix(), ".connection");
    for _ in 0..64 {
        keeper(&names).kill();
    }
    assert_eq!(
        connections(names.prefix()).len(),
        2,
        "one that lives, and the last one that died"
    );
    let last = keeper(&names);
    assert_eq!(send(&mut publisher, &provider, 0), 2);
    assert_eq!(last.request(&Message::Go), Message::Number(0));
    assert_eq!(number_of(&stays.recv().unwrap()), 0);
    last.shut_down();
    assert_eq!(
        (publisher.served().receivers().count(), in_use(&provider)),
        (1, 0)
    );
    assert_eq!(shm::open_objects(names.prefix(), ".connection"), before);
}

/// Receivers wake at once, and receive what was sent even if they have not mapped it yet.
#[test]
fn killed_publisher() {
    const SENT: u64 = 64;
    let names = Names::new("pub-dies");
    assert_prompt(|| {
        let publisher = publishing(&names);
        let mut behind = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
        let mut asleep = open(
            names.prefix(),
            Subscriber::builder().on_end(OnEnd::Return).spin(NOW),
        );
        assert_eq!(
            publisher.request(&Message::Number(SENT)),
            Message::Number(2)
        );
        let mut unconnected = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
        let unconnected_and_parked = open(
            names.prefix(),
            Subscriber::builder().on_end(OnEnd::Return).spin(NOW),
        );
        let mut unconnected_and_spinning = open(
            names.prefix(),
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .spin(Duration::MAX),
        );
        assert_eq!(behind.mapped_segments(), 0);
        for number in 0..SENT {
            assert_eq!(number_of(&asleep.recv().unwrap()), number);
        }
        let (sender, threads) = mpsc::channel();
        let sleeping = [asleep, unconnected_and_parked].map(|mut receiver| {
            let sender = sender.clone();
            let sleep = move || {
                sender.send(nix::unistd::gettid().as_raw()).unwrap();
                let error = receiver.recv().err().unwrap();
                assert!(matches!(error, RecvError::Disconnected), "{error}");
                Instant::now()
            };
            thread::spawn(sleep)
        });
        for _ in 0..2 {
            wait_until_asleep(threads.recv().unwrap());
        }
        let spins = thread::spawn(move || unconnected_and_spinning.recv().err().unwrap());
        let start = Instant::now();
        publisher.kill();
        // Within a second: while another process reads its list of mappings, the kernel keeps a dead
        // process's locks.
        let error = unconnected.recv().err().unwrap();
        assert!(matches!(error, RecvError::Disconnected), "{error}");
        let [asleep, unconnected_and_parked] = sleeping;
        let time = asleep.join().unwrap() - start;
        unconnected_and_parked.join().unwrap(); // by its scan, within a second
        let error = spins.join().unwrap();
        assert!(matches!(error, RecvError::Disconnected), "{error}");
        assert_eq!(
            names.sweep(),
            0,
            "the publisher's object was removed with the first receiver; the rest has readers"
        );
        let mut all = Vec::new();
        for number in 0..SENT {
            let message = behind.recv().unwrap();
            assert_eq!(number_of(&message), number);
            all.push((message, number));
        }
        assert!(matches!(behind.recv(), Err(RecvError::Disconnected)));
        drop((unconnected, behind));
        assert!(names.sweep() >= 2, "a control object and segments");
        for (message, number) in &all {
            assert_eq!(number_of(message), *number);
        }
        time
    });
}

/// The publisher has just disconnected a receiver.
#[test]
fn interrupt_is_immediate() {
    let names = Names::new("pub-interrupted");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    let interrupter = publisher.interrupter();
    assert_prompt(|| {
        let receiver = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
        assert_eq!(publisher.served().receivers().count(), 1);
        drop(receiver);
        let (waited, time) = wake_waiter(
            || publisher.wait_for_receivers(1, FOR_EVER),
            || interrupter.interrupt(),
        );
        assert_eq!(waited, Err(SendErrorKind::Interrupted.into()));
        time
    });
}

/// The thread has a helper for each receiver.
#[test]
fn interrupt_is_immediate_with_helpers() {
    let names = Names::new("pub-interrupted-one");
    let provider = provider(names.prefix());
    let _publisher = Publisher::builder()
        .max_subscribers(64)
        .create(&provider, CHANNEL)
        .unwrap();
    let mut others = Vec::new();
    for name in ["d", "e"] {
        let other = Publisher::builder()
            .max_subscribers(64)
            .create(&provider, name)
            .unwrap();
        others.push(other);
    }
    let client = shm::client(names.prefix());
    let options = || {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .capacity(1)
            .max_borrowed(1)
            .spin(NOW)
    };
    // More than one thread can wait for without helpers.
    let mut all = Vec::new();
    for name in [CHANNEL, "d", "e"] {
        for _ in 0..43 {
            let receiver = options().namespace(client.namespace()).open(name);
            all.push(receiver.unwrap());
        }
    }
    let interrupter = all[7].interrupter();
    assert_prompt(|| {
        let wait = || {
            let mut sources: Vec<&mut dyn Source> = Vec::new();
            for subscriber in &mut all {
                sources.push(subscriber);
            }
            wait_any(&mut sources, FOR_EVER).unwrap_err()
        };
        let (error, time) = wake_waiter(wait, || interrupter.interrupt());
        assert!(matches!(error, RecvError::Interrupted), "{error}");
        time
    });
}

#[test]
fn sweep_of_connections_and_meetings() {
    let names = Names::new("pub-swept");
    let publisher = publishing(&names);
    let mut lives = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
    let met = keeper(&names);
    let unconnected = {
        assert_eq!(publisher.request(&Message::Number(4)), Message::Number(2));
        keeper(&names)
    };
    assert_eq!((names.sweep(), connections(names.prefix()).len()), (0, 3));
    met.kill();
    unconnected.kill();
    assert_eq!(
        (
            names.sweep(),
            names.sweep(),
            connections(names.prefix()).len()
        ),
        (2, 0, 1)
    );
    assert_eq!(publisher.request(&Message::Number(4)), Message::Number(1));
    for number in 0..8 {
        assert_eq!(number_of(&lives.recv().unwrap()), number);
    }
    assert_eq!(publisher.request(&Message::Number(1)), Message::Number(1));
    publisher.kill();
    let swept = names.sweep();
    assert_eq!(
        (swept, connections(names.prefix()).len()),
        (1, 1),
        "the publisher's object"
    );
    assert_eq!(number_of(&lives.recv().unwrap()), 8);
    drop(lives);
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "the last receiver has removed the rest"
    );
}

/// A publisher cannot take over a living one's receivers, and a restarted one gets its name back.
#[test]
fn one_publisher() {
    let names = Names::new("pub-names");
    let first = publishing(&names);
    let own = provider(names.prefix());
    let error = Publisher::create(&own, CHANNEL).unwrap_err();
    assert!(matches!(error, ChannelError::NameTaken { .. }), "{error}");
    let mut receiver = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
    assert_eq!(first.request(&Message::Number(1)), Message::Number(1));
    first.kill();
    let mut second = Publisher::create(&own, CHANNEL).unwrap();
    assert_eq!(
        send(&mut second, &own, 1),
        0,
        "those of the dead one are not its receivers"
    );
    assert_eq!(number_of(&receiver.recv().unwrap()), 0);
    assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
    drop(receiver);
    let mut receiver = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
    assert_eq!(send(&mut second, &own, 2), 1);
    assert_eq!(number_of(&receiver.recv().unwrap()), 2);
    drop((receiver, second, own));
    names.sweep();
}

/// How often each joins, and how many messages it then receives.
const JOINS: usize = 60;
const RECEIVED: usize = 40;

role!("publisher-joins", joining_role);

/// The role of a receiver that joins again and again while messages flow, with another rule each
/// time.
fn joining_role(link: &Link, arguments: &[&str]) {
    link.send(&Message::Done);
    link.expect_go();
    for round in 0..arguments[1].parse().unwrap() {
        let on_full = [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest][round % 3];
        let options = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(on_full)
            .capacity(1 + round % 4)
            .spin(Duration::from_micros(1));
        let mut receiver = open(arguments[0], options);
        let mut last = None;
        for at in 0..RECEIVED {
            let message = receiver.recv().unwrap();
            let number = number_of(&message);
            let missed = message.missed();
            if let Some(last) = last {
                assert_eq!(
                    number,
                    last + 1 + u64::from(missed),
                    "{on_full:?}, message {at} of round {round}"
                );
            }
            assert!(missed == 0 || on_full != OnFull::Block, "{missed} missed");
            last = Some(number);
            if round % 5 == 0 {
                thread::yield_now();
            }
        }
    }
    link.send(&Message::Done);
}

/// No message is missed without a count, duplicated, out of order or torn.
#[test]
fn join_under_flow() {
    let names = Names::new("pub-joins");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::builder()
        .capacity(4)
        .create(&provider, CHANNEL)
        .unwrap();
    let children = [(); 6].map(|()| joining(&names, JOINS));
    let mut number = 0;
    let publish = || {
        send(&mut publisher, &provider, number);
        number += 1;
    };
    let (_, sent) = beside(publish, || {
        for child in &children {
            child.send(&Message::Go);
        }
        for child in &children {
            child.expect_done();
        }
    });
    assert!(sent >= (JOINS * RECEIVED) as u64);
    for child in children {
        child.finish();
    }
    assert_eq!(
        (publisher.served().receivers().count(), in_use(&provider)),
        (0, 0)
    );
    assert_eq!(connections(names.prefix()), [""; 0]);
}

fn joining(names: &Names, joins: usize) -> Child {
    let child = Child::start_ready("publisher-joins", &[names.prefix(), &joins.to_string()]);
    child
}

/// A forked child cannot send or receive for its parent, remove its names, or take its locks.
#[test]
fn forked_child_has_no_ends() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let mut publisher = Publisher::builder()
            .history(2)
            .create(&provider, CHANNEL)
            .unwrap();
        let mut receiver = open(prefix, Subscriber::builder().on_end(OnEnd::Return));
        for number in 0..4 {
            assert_eq!(send(&mut publisher, &provider, number), 1);
        }
        assert_eq!(number_of(&receiver.recv().unwrap()), 0);
        let held = receiver.recv().unwrap();
        let objects = shm::objects(prefix);
        let buffer = provider.alloc(100).unwrap().freeze();
        let id = publisher.served().receivers().next().unwrap().id;
        let waker = noop_waker();
        let Some(forked) = sys::fork() else {
            sys::end_with(move || {
                let error = publisher.send(buffer).unwrap_err();
                assert_eq!(error.kind(), SendErrorKind::Forked);
                for len in [1, MAX_INLINE + 1] {
                    assert_eq!(
                        publisher.try_send_copy(&vec![1; len]),
                        Err(SendErrorKind::Forked.into())
                    );
                }
                assert_eq!(
                    publisher.wait_for_receivers(1, FOR_EVER),
                    Err(SendErrorKind::Forked.into())
                );
                assert_eq!(
                    publisher.wait_until_received(FOR_EVER),
                    Err(SendErrorKind::Forked.into())
                );
                assert_eq!(
                    (
                        publisher.receivers().count(),
                        publisher.receivers().next().is_some()
                    ),
                    (0, false)
                );
                assert!(!publisher.disconnect(id) && !publisher.serve_joins());
                let mut context = Context::from_waker(&waker);
                assert_eq!(
                    publisher.poll_ready_copy(&mut context, 0),
                    Poll::Ready(Err(SendErrorKind::Forked.into()))
                );
                for _ in 0..2 {
                    assert!(matches!(receiver.recv(), Err(RecvError::Forked)));
                    assert!(matches!(receiver.try_recv(), Err(RecvError::Forked)));
                }
                assert!(matches!(
                    Publisher::create(&provider, "mine"),
                    Err(ChannelError::Forked)
                ));
                assert_eq!(number_of(&held), 1, "it can still be read");
                drop((held, receiver, publisher, provider, error));
            })
        };
        forked.finish();
        assert_eq!(shm::objects(prefix), objects);
        assert_eq!(number_of(&held), 1);
        drop((held, buffer));
        assert_eq!(send(&mut publisher, &provider, 4), 1);
        for number in 2..5 {
            assert_eq!(number_of(&receiver.recv().unwrap()), number);
        }
        drop(publisher);
        assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
        assert_eq!(in_use(&provider), 0);
    });
}

/// The publisher tells the receiver, leaks no descriptor, and connects it later.
#[test]
fn join_at_descriptor_limit() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
        let mut known = open(prefix, Subscriber::builder().on_end(OnEnd::Return));
        assert_eq!(send(&mut publisher, &provider, 0), 1);
        let mut sent = 1;
        #[cfg(feature = "tracing")]
        let log = crate::log::Log::start();
        let mut comes = loop {
            let mut comes = open(
                prefix,
                Subscriber::builder().on_end(OnEnd::Return).spin(NOW),
            );
            let before = (shm::open_descriptors(), shm::mappings(prefix));
            let takers = with_only(sent - 1, || send(&mut publisher, &provider, 4 * sent));
            sent += 1;
            if takers == 2 {
                break comes;
            }
            assert_eq!(
                (shm::open_descriptors(), shm::mappings(prefix)),
                before,
                "nothing is left of the attempt"
            );
            #[cfg(feature = "tracing")]
            assert!(
                matches!(&log.take()[..], [event] if event.starts_with("WARN message=receiver not connected")),
                "there is an event for each refusal"
            );
            let error = comes.try_recv().unwrap_err();
            assert!(
                matches!(
                    error,
                    RecvError::NotConnected {
                        errno: libc::EMFILE
                    }
                ),
                "{error}"
            );
            assert!(error.to_string().contains("descriptors"), "{error}");
            assert!(
                matches!(comes.try_recv(), Err(RecvError::Empty)),
                "the error is returned once for each try"
            );
            // Longer than until the next try.
            let wait = Duration::from_millis(50);
            let wait_for_another = || {
                let error = with_only(sent - 2, || publisher.wait_for_receivers(2, wait));
                let error = error.expect_err("only one has joined");
                assert!(error.is_timeout(), "{error:?}");
            };
            let receive = || comes.recv().err().unwrap();
            let (error, _) = wake_waiter(receive, wait_for_another);
            assert!(matches!(error, RecvError::NotConnected { .. }), "{error}");
            assert!(sent < 8, "enough descriptors");
            // It is connected without the limit.
            publisher.wait_for_receivers(2, FOR_EVER).unwrap();
            drop(comes);
            assert_eq!(publisher.served().receivers().count(), 1);
            #[cfg(feature = "tracing")]
            log.take();
        };
        assert!(sent > 2, "the limit was felt");
        assert_eq!(number_of(&comes.recv().unwrap()), 4 * (sent - 1));
        let mut late = open(prefix, Subscriber::builder().on_end(OnEnd::Return));
        for number in 0..3 {
            assert_eq!(
                with_only(1, || send(&mut publisher, &provider, number)),
                2,
                "one is refused"
            );
        }
        publisher.wait_for_receivers(3, FOR_EVER).unwrap();
        assert_eq!(send(&mut publisher, &provider, 3), 3);
        let first = late.recv().unwrap();
        assert_eq!(
            (number_of(&first), first.missed()),
            (3, 3),
            "what it missed is counted, though it never looked"
        );
        assert_eq!(
            publisher
                .served()
                .receivers()
                .map(|receiver| receiver.missed.total())
                .max(),
            Some(3)
        );
        // The other one noticed nothing.
        for number in 0..sent {
            assert_eq!(number_of(&known.recv().unwrap()), 4 * number);
        }
        for number in 0..4 {
            assert_eq!(number_of(&known.recv().unwrap()), number);
        }
    });
}

/// An error instead of a signal. No half-made connection is left, and no registration taken.
#[test]
fn join_at_full_shm() {
    in_small_shm(|prefix| {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(64 << 20)
            .tuning(Tuning::new().arena_size(64 << 10))
            .max_shared(64);
        let provider = builder.build().unwrap();
        let mut publisher = small_publisher().create(&provider, CHANNEL).unwrap();
        let mut hoard: Vec<_> = std::iter::from_fn(|| provider.alloc(64 << 10).ok()).collect();
        hoard.extend(std::iter::from_fn(|| provider.alloc(4 << 10).ok()));
        let before = (
            shm::objects(prefix),
            shm::open_descriptors(),
            shm::mappings(prefix),
        );
        for _ in 0..3 {
            let error = Subscriber::builder()
                .on_end(OnEnd::Return)
                .namespace(&shm::namespace(prefix))
                .open(CHANNEL)
                .unwrap_err();
            let ChannelError::Os(error) = &error else {
                panic!("{error}")
            };
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            let extension = error.object().extension();
            assert_eq!(extension, Some("connection".as_ref()), "{error}");
            assert_eq!(
                (
                    shm::objects(prefix),
                    shm::open_descriptors(),
                    shm::mappings(prefix)
                ),
                before
            );
        }
        assert_eq!(publisher.served().receivers().count(), 0);
        drop(hoard);
        provider.trim();
        let mut receiver = open(prefix, Subscriber::builder().on_end(OnEnd::Return));
        assert_eq!(publisher.send_copy(b"x").unwrap().receivers, 1);
        assert_eq!(&receiver.recv().unwrap()[..], b"x");
    });
}

/// With one registration, and a connection of half a MiB.
fn small_publisher() -> PublisherBuilder {
    Publisher::builder()
        .max_subscribers(1)
        .capacity(4096)
        .max_borrowed(32 << 10)
}

/// A receiver that opens a damaged object neither crashes nor waits for ever.
#[test]
fn open_garbage() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let mut publisher = Publisher::builder()
            .max_subscribers(64)
            .capacity(8)
            .max_borrowed(8)
            .create(&provider, CHANNEL)
            .unwrap();
        let mut known = open(prefix, Subscriber::builder().on_end(OnEnd::Return));
        assert!(publisher.served().receivers().next().is_some());
        let path = shm::path(&format!("{prefix}.{CHANNEL}.channel"));
        let genuine = fs::read(&path).unwrap();
        // The identification, the count, and the first registrations.
        let places = (0..72).chain(MAX_SUBSCRIBERS..MAX_SUBSCRIBERS + 48);
        let words = [
            0,
            1,
            2,
            3,
            7,
            1 << 16,
            1 << 20,
            1 << 30,
            0x4000_0001,
            i32::MAX as u32,
            1 << 31,
            u32::MAX,
        ];
        let mut damages = Vec::new();
        for at in places.step_by(4) {
            damages.extend(words.iter().map(|word| (at, *word)));
        }
        for (at, word) in damages {
            let mut content = genuine.clone();
            content[at..at + 4].copy_from_slice(&word.to_ne_bytes());
            for is_living in [true, false] {
                let name = if is_living { CHANNEL } else { "dead" };
                // In place, because the publisher maps it.
                let object = shm::path(&format!("{prefix}.{name}.channel"));
                let mut options = fs::OpenOptions::new();
                options
                    .write(true)
                    .create(!is_living)
                    .open(&object)
                    .unwrap()
                    .write_all_at(&content, 0)
                    .unwrap();
                match Subscriber::builder()
                    .on_end(OnEnd::Return)
                    .spin(NOW)
                    .namespace(&shm::namespace(prefix))
                    .open(name)
                {
                    Ok(mut receiver) => {
                        let error = receiver
                            .recv_timeout(Duration::from_micros(100))
                            .unwrap_err();
                        use RecvError::{Disconnected, NotConnected, TimedOut};
                        let is_expected =
                            matches!(error, TimedOut | Disconnected | NotConnected { .. });
                        assert!(is_expected, "{word:#x} at {at}: {error}");
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            // The publisher is unaffected, except that it may look for connections that do not
            // exist.
            let sent = publisher.try_send_copy(&(at as u64).to_le_bytes());
            assert!(sent.unwrap().receivers > 0);
            assert_eq!(known.try_recv().unwrap()[..], (at as u64).to_le_bytes());
        }
        let object = shm::channel_object(prefix, CHANNEL);
        object.write_all_at(&genuine, 0).unwrap();
        // More registrations than there are.
        object.write_all_at(&1_000_u32.to_ne_bytes(), 36).unwrap();
        let mut all = Vec::new();
        for _ in 1..64 {
            all.push(open(prefix, Subscriber::builder().on_end(OnEnd::Return)));
        }
        let error = Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(&shm::namespace(prefix))
            .open_timeout(CHANNEL, Duration::ZERO)
            .unwrap_err();
        assert!(
            matches!(error, ChannelError::TooManyReceivers { .. }),
            "{error}"
        );
        assert_eq!(
            (publisher.served().receivers().count(), all.len()),
            (64, 63)
        );
        for content in [
            &genuine[..0],
            &genuine[..100],
            &genuine[..4095],
            &[0; 4096],
            &[0xff; 8192],
        ] {
            let object = shm::path(&format!("{prefix}.dead.channel"));
            fs::write(&object, content).unwrap();
            let error = Subscriber::builder()
                .on_end(OnEnd::Return)
                .namespace(&shm::namespace(prefix))
                .open_timeout("dead", Duration::ZERO)
                .unwrap_err();
            use ChannelError::{Closed, NotAChannel, NotReady};
            assert!(
                matches!(error, NotAChannel { .. } | Closed { .. } | NotReady { .. }),
                "{error}"
            );
            fs::remove_file(&object).unwrap();
        }
    });
}

/// A publisher has a doorbell for each receiver, even if its process is at its limit of ends.
#[test]
fn doorbell_limit() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let mut publisher = Publisher::builder()
            .max_subscribers(1)
            .create(&provider, CHANNEL)
            .unwrap();
        let mut receiver = open(prefix, Subscriber::builder().on_end(OnEnd::Return));
        // Others take all remaining doorbells, as many at a time as possible.
        let mut others = Vec::new();
        let mut max_subscribers = 64;
        let mut ends = 2;
        while max_subscribers > 0 {
            match Publisher::builder()
                .max_subscribers(max_subscribers)
                .create(&provider, &format!("other-{}", others.len()))
            {
                Ok(other) => {
                    others.push(other);
                    ends += max_subscribers;
                }
                Err(ChannelError::TooManyEnds) => max_subscribers /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(ends, 2048);
        assert_eq!(publisher.send_copy(b"x").unwrap().receivers, 1);
        assert_eq!(&receiver.recv().unwrap()[..], b"x");
        drop((publisher, receiver));
        assert!(Publisher::builder()
            .max_subscribers(1)
            .create(&provider, CHANNEL)
            .is_ok());
    });
}

/// The offset of a publisher's registrations in its object, in bytes.
const MAX_SUBSCRIBERS: usize = 128;

/// The offset in a connection, in bytes, of the doorbell that its receiver notifies.
const TO_SENDER: u64 = 128;

/// It is not waited for, and loses its registration and its leases.
#[test]
fn dead_receiver_with_damaged_doorbell() {
    let names = Names::new("pub-doorbell");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::builder()
        .max_subscribers(1)
        .capacity(2)
        .create(&provider, CHANNEL)
        .unwrap();
    for garbage in [0, 77, u32::MAX] {
        let receiver = keeper(&names);
        assert_eq!(send(&mut publisher, &provider, 0), 1);
        while publisher.try_send_copy(b"x").is_ok() {}
        let [connection] = &connections(names.prefix())[..] else {
            panic!("one connection")
        };
        let connection = fs::File::options()
            .write(true)
            .open(shm::path(connection))
            .unwrap();
        connection
            .write_all_at(&u32::to_ne_bytes(garbage), TO_SENDER)
            .unwrap();
        receiver.kill();
        // Its death is found by the once-a-second check, or when the next receiver joins.
        if garbage == 0 {
            assert_eq!(publisher.send_copy(b"y").unwrap().receivers, 0);
        }
        let next = keeper(&names);
        assert_eq!(publisher.served().receivers().count(), 1);
        assert_eq!(send(&mut publisher, &provider, 1), 1);
        assert_eq!(next.request(&Message::Go), Message::Number(1));
        next.kill();
        assert_eq!(in_use(&provider), 0);
        assert!(publisher.served().receivers().next().is_none());
    }
}

#[test]
fn receiver_died_before_connect() {
    let names = Names::new("pub-unmet");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    keeper(&names).kill();
    assert!(publisher.served().receivers().next().is_none());
    assert_eq!(
        publisher.wait_for_receivers(1, Duration::ZERO),
        Err(SendErrorKind::NoReceiver {
            receivers: 1,
            timeout: Duration::ZERO
        }
        .into())
    );
}

/// The connections of all killed receivers, even of those that were never connected.
#[test]
fn drop_removes_unconnected_connections() {
    let names = Names::new("pub-unmet-connection");
    let provider = provider(names.prefix());
    let publisher = Publisher::create(&provider, CHANNEL).unwrap();
    keeper(&names).kill();
    assert_eq!(connections(names.prefix()).len(), 1);
    drop(publisher);
    assert_eq!(connections(names.prefix()), [""; 0]);
}

/// By their doorbells, without the once-a-second check.
#[test]
fn drop_notifies_unconnected_receivers() {
    let names = Names::new("pub-unmet-told");
    let provider = provider(names.prefix());
    for _ in 0..3 {
        let publisher = Publisher::create(&provider, CHANNEL).unwrap();
        let mut receivers = Vec::new();
        for _ in 0..2 {
            let options = Subscriber::builder().on_end(OnEnd::Return).spin(NOW);
            receivers.push(open(names.prefix(), options));
        }
        drop(publisher);
        for receiver in &mut receivers {
            // No look is due yet.
            assert!(matches!(
                receiver.recv_timeout(NOW),
                Err(RecvError::Disconnected)
            ));
        }
    }
}

/// So the publisher has no more connections open than registrations.
#[test]
fn kept_messages_keep_the_registration() {
    let names = Names::new("pub-kept");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::builder()
        .max_subscribers(2)
        .create(&provider, CHANNEL)
        .unwrap();
    let mut receive = || {
        let mut receiver = open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
        assert_eq!(send(&mut publisher, &provider, 2), 1);
        receiver.recv().unwrap()
    };
    let kept = [receive(), receive()];
    let error = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&shm::namespace(names.prefix()))
        .open_timeout(CHANNEL, Duration::ZERO)
        .unwrap_err();
    assert!(
        matches!(error, ChannelError::TooManyReceivers { max: 2, .. }),
        "{error}"
    );
    let [first, second] = kept;
    drop(first);
    drop(receive());
    let before = shm::open_objects(names.prefix(), ".connection");
    for _ in 0..64 {
        drop(receive());
    }
    assert_eq!(shm::open_objects(names.prefix(), ".connection"), before);
    assert_eq!(number_of(&second), 2);
}

/// Receivers that join take registrations with any content.
#[test]
fn damaged_registrations_lock_no_newcomer_out() {
    let names = Names::new("pub-max_subscribers");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::builder()
        .max_subscribers(2)
        .create(&provider, CHANNEL)
        .unwrap();
    let object = shm::channel_object(names.prefix(), CHANNEL);
    for byte in [0, 0x40, 0xff] {
        object
            .write_all_at(&[byte; 4096 - MAX_SUBSCRIBERS], MAX_SUBSCRIBERS as u64)
            .unwrap();
        let open = || open(names.prefix(), Subscriber::builder().on_end(OnEnd::Return));
        let mut receivers = [open(), open()];
        assert_eq!(send(&mut publisher, &provider, 2), 2);
        for receiver in &mut receivers {
            assert_eq!(number_of(&receiver.recv().unwrap()), 2);
        }
    }
}

/// Another receiver cannot tell an unconnected one that the publisher has closed.
#[test]
fn damaged_registration_disconnects_no_receiver() {
    let names = Names::new("pub-registration");
    let provider = provider(names.prefix());
    let _publisher = Publisher::create(&provider, CHANNEL).unwrap();
    let mut receiver = open(
        names.prefix(),
        Subscriber::builder().on_end(OnEnd::Return).spin(NOW),
    );
    let object = shm::channel_object(names.prefix(), CHANNEL);
    let gone = 0x4000_0000_u32.to_ne_bytes();
    for at in (MAX_SUBSCRIBERS..4096).step_by(4) {
        object.write_all_at(&gone, at as u64).unwrap();
    }
    let error = receiver.recv_timeout(NOW).unwrap_err();
    assert!(matches!(error, RecvError::NotConnected { .. }), "{error}");
    let error = receiver.recv_timeout(NOW).unwrap_err();
    assert!(matches!(error, RecvError::TimedOut), "{error}");
}

role!("publisher-maps", mapping_role);

/// The role of a receiver that reports how much of the control object it maps.
fn mapping_role(link: &Link, arguments: &[&str]) {
    let mut receiver = open(arguments[0], Subscriber::builder().on_end(OnEnd::Return));
    link.send(&Message::Done);
    let message = receiver.recv().unwrap();
    let mut bytes = 0;
    for mapping in procfs::shared_mappings().unwrap() {
        if mapping.name.ends_with(".ctl") {
            bytes += mapping.bytes;
        }
    }
    link.send(&Message::Number(bytes));
    drop(message);
}

/// A receiver needs the memory doorbell, and leaves the records alone (D10).
#[test]
fn receiver_maps_one_page_of_control() {
    let names = Names::new("pub-control");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    let receiver = Child::start_ready("publisher-maps", &[names.prefix()]);
    assert_eq!(send(&mut publisher, &provider, 2), 1);
    let bytes = receiver.number();
    assert_eq!(bytes, page_size() as u64);
    receiver.finish();
}
