//! Awaiting across processes: the other side is killed, or this side forks. Both kinds of helper
//! are covered: with `futex_waitv`, and in a process where a filter rejects that call, either from
//! the start or only once it has been used.

use crate::child::{in_child, in_child_for, Child};
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{wait_any, Receiver, RecvError, SendErrorKind, Sender, Source};
use shm_pool::{Client, Namespace, Provider};
use shm_pool_support::procfs;
use shm_pool_support::tasks::{block_on, reporting_waker};
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::task::Context;
use std::thread;
use std::time::Duration;

const WAYS: [&str; 3] = ["many", "one", "forbidden"];

/// Since Linux 5.16, on every architecture.
const FUTEX_WAITV: i64 = 449;

/// Sets up how the kernel answers `futex_waitv` from now on: the call works, is unknown, or is
/// forbidden after it was found to exist.
fn go(way: &str, prefix: &str) {
    match way {
        "many" => {}
        "one" => sys::forbid_call(FUTEX_WAITV, libc::ENOSYS).unwrap(),
        "forbidden" => {
            let (_sender, mut receiver) = channel(&provider(prefix), &shm::client(prefix), "found");
            assert!(wait_any(&mut [&mut receiver], Duration::from_millis(1)).is_err());
            sys::forbid_call(FUTEX_WAITV, libc::EACCES).unwrap();
        }
        other => panic!("no way {other:?}"),
    }
}

fn helpers() -> usize {
    procfs::threads("shm-pool-await").unwrap()
}

fn provider(prefix: &str) -> Provider {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(8 << 20)
        .build()
        .unwrap()
}

fn channel(provider: &Provider, client: &Client, name: &str) -> (Sender, Receiver) {
    let sender = Sender::builder()
        .capacity(2)
        .max_borrowed(16)
        .spin(Duration::ZERO)
        .create(provider, name)
        .unwrap();
    (
        sender,
        Receiver::builder()
            .spin(Duration::ZERO)
            .namespace(client.namespace())
            .open(name)
            .unwrap(),
    )
}

/// Tasks are served on each kind of kernel, by a single thread where that is enough.
#[test]
fn with_and_without_futex_waitv() {
    for way in WAYS {
        in_child_for(way, |prefix| {
            const COUNT: usize = 130;
            go(way, prefix);
            // Without the call, a helper polls once per millisecond.
            let count: u64 = if way == "forbidden" { 500 } else { 5000 };
            let provider = provider(prefix);
            let client = shm::client(prefix);
            let mut senders = Vec::new();
            let mut receivers = Vec::new();
            for number in 0..COUNT {
                let (sender, receiver) = channel(&provider, &client, &number.to_string());
                senders.push(sender);
                receivers.push(receiver);
            }
            assert_eq!(helpers(), 0, "nobody has awaited yet");

            // Both ends of one channel are awaited.
            let mut sender = senders.pop().unwrap();
            let mut receiver = receivers.pop().unwrap();
            let sending = thread::spawn(move || {
                for sent in 0..count {
                    block_on(sender.send_copy_async(&sent.to_ne_bytes())).unwrap()
                }
            });
            for expected in 0..count {
                assert_eq!(
                    block_on(receiver.recv_async()).unwrap()[..],
                    expected.to_ne_bytes()
                );
            }
            sending.join().unwrap();
            assert!(matches!(
                block_on(receiver.recv_async()),
                Err(RecvError::Disconnected)
            ));

            // A thread waits for any of several receivers: without helpers, or with one helper
            // each.
            let mut some: Vec<&mut Receiver> = receivers.iter_mut().take(3).collect();
            let any = |some: &mut Vec<&mut Receiver>, timeout| {
                let mut sources: Vec<&mut dyn Source> = Vec::new();
                for receiver in some.iter_mut() {
                    sources.push(*receiver);
                }
                wait_any(&mut sources, timeout)
            };
            for number in 0..count as usize / 5 {
                let sender = &mut senders[number % 3];
                thread::scope(|scope| {
                    let sending = scope.spawn(|| sender.send_copy(b"any").unwrap());
                    assert_eq!(any(&mut some, FOR_EVER).unwrap(), number % 3);
                    sending.join().unwrap();
                });
                some[number % 3].try_recv().unwrap();
            }
            assert!(matches!(
                any(&mut some, Duration::from_millis(1)),
                Err(RecvError::TimedOut)
            ));
            let interrupter = some[1].interrupter();
            thread::scope(|scope| {
                scope.spawn(|| interrupter.interrupt());
                assert!(matches!(
                    any(&mut some, FOR_EVER),
                    Err(RecvError::Interrupted)
                ));
            });

            // One task awaits many channels.
            let (waker, woken) = reporting_waker();
            let mut context = Context::from_waker(&waker);
            for receiver in &mut receivers {
                assert!(receiver.poll_recv(&mut context).is_pending());
            }
            drop(receiver);
            for (at, sender) in senders.iter_mut().enumerate() {
                sender.send_copy(b"one").unwrap();
                // A woken task polls all its channels, and once a second it is woken for each of
                // them.
                let mut is_there = false;
                while !is_there {
                    woken.recv_timeout(FOR_EVER).unwrap();
                    is_there = receivers[at].poll_recv(&mut context).is_ready();
                    assert!(receivers[at + 1..]
                        .iter_mut()
                        .all(|later| later.poll_recv(&mut context).is_pending()));
                }
                assert!(receivers[at].poll_recv(&mut context).is_pending());
            }
            // A thread gets its name shortly after it starts, and exits shortly after it may.
            let expected = if way == "one" { COUNT - 1 } else { 2 };
            while helpers() != expected {
                thread::yield_now();
            }

            // The last helper exits with the last end.
            drop(receivers);
            while helpers() > 0 {
                thread::yield_now();
            }
        });
    }
}

/// A subscriber's task wakes when its publisher has crashed.
#[test]
fn killed_sender_wakes_task() {
    for way in WAYS {
        let names = Names::new(&format!("await-sender-dies-{way}"));
        let owner = Child::start_ready("channel-sender", &[names.prefix(), "2"]);
        let receiver = Child::start("awaiting-receiver", &[names.prefix(), way]);
        owner.expect_done();
        receiver.expect_done();
        owner.kill();
        receiver.expect_done();
        receiver.shut_down();
        assert_eq!(shm::objects(names.prefix()), [""; 0]);
    }
}

role!("awaiting-receiver", receiving_role);

fn receiving_role(link: &Link, arguments: &[&str]) {
    let [prefix, way] = arguments else {
        panic!("a prefix and a way")
    };
    go(way, prefix);
    let mut receiver = Receiver::builder()
        .namespace(&shm::namespace(prefix))
        .open("c")
        .unwrap();
    for _ in 0..2 {
        drop(block_on(receiver.recv_async()).unwrap());
    }
    let (waker, woken) = reporting_waker();
    assert!(receiver
        .poll_recv(&mut Context::from_waker(&waker))
        .is_pending());
    link.send(&Message::Done);
    woken.recv_timeout(FOR_EVER).unwrap();
    let ended = block_on(receiver.recv_async());
    assert!(matches!(ended, Err(RecvError::Disconnected)), "{ended:?}");
    link.done_until_end();
}

/// A publisher's task wakes when its subscriber has crashed, and its buffer is not lost.
#[test]
fn killed_receiver_wakes_task() {
    for way in WAYS {
        let names = Names::new(&format!("await-receiver-dies-{way}"));
        let sender = Child::start_ready("awaiting-sender", &[names.prefix(), way]);
        let receiver = Child::start_ready("channel-receiver", &[names.prefix(), "hold"]);
        sender.expect_done();
        receiver.kill();
        sender.expect_done();
        sender.shut_down();
    }
}

role!("awaiting-sender", sending_role);

fn sending_role(link: &Link, arguments: &[&str]) {
    let [prefix, way] = arguments else {
        panic!("a prefix and a way")
    };
    go(way, prefix);
    let provider = provider(prefix);
    let mut sender = Sender::builder()
        .capacity(2)
        .create(&provider, "c")
        .unwrap();
    link.send(&Message::Done);
    sender.wait_for_receiver(FOR_EVER).unwrap();
    while sender.try_send_copy(b"full").is_ok() {}
    let (waker, woken) = reporting_waker();
    let mut sending = Box::pin(sender.send_async(provider.alloc(100).unwrap().freeze()));
    assert!(sending
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending());
    link.send(&Message::Done);
    woken.recv_timeout(FOR_EVER).unwrap();
    let error = block_on(sending).unwrap_err();
    assert_eq!(
        (error.kind(), error.into_message().len()),
        (SendErrorKind::Disconnected, 100)
    );
    link.done_until_end();
}

/// A child does not consume its parent's wake-ups, nor wait for a helper that it does not have.
#[test]
fn forked_child_spares_tasks() {
    in_child(|prefix| {
        const SLEEPS: u32 = libc::FUTEX_WAITERS;
        let provider = provider(prefix);
        let client = shm::client(prefix);
        let (mut sender, mut receiver) = channel(&provider, &client, "c");
        let object = shm::channel_object(prefix, "c");
        let word = || {
            let mut bytes = [0; 4];
            object.read_exact_at(&mut bytes, 64).unwrap();
            u32::from_ne_bytes(bytes)
        };
        let (waker, woken) = reporting_waker();
        let interrupter = receiver.interrupter();
        assert!(receiver
            .poll_recv(&mut Context::from_waker(&waker))
            .is_pending());
        assert!(word() & SLEEPS != 0);
        match sys::fork() {
            None => sys::end_with(|| {
                interrupter.interrupt();
                assert!(matches!(
                    block_on(receiver.recv_async()),
                    Err(RecvError::Forked)
                ));
                assert!(matches!(
                    wait_any(&mut [&mut receiver], FOR_EVER),
                    Err(RecvError::Forked)
                ));
                for len in [1, 100] {
                    assert_eq!(
                        block_on(sender.send_copy_async(&vec![1; len])),
                        Err(SendErrorKind::Forked.into())
                    );
                }
                drop(receiver);
                // The child has no helper, and starts its own.
                assert_eq!(helpers(), 0);
                let prefix = format!("{prefix}.child");
                let provider = self::provider(&prefix.replace('.', "-"));
                let client = shm::client(&prefix.replace('.', "-"));
                let (mut sender, mut receiver) = channel(&provider, &client, "own");
                let sending = thread::spawn(move || sender.send_copy(b"own").unwrap());
                assert_eq!(&block_on(receiver.recv_async()).unwrap()[..], b"own");
                sending.join().unwrap();
            }),
            Some(forked) => forked.finish(),
        }
        assert!(
            word() & SLEEPS != 0,
            "the child has taken the parent's place on the doorbell"
        );
        sender.send_copy(b"one").unwrap();
        woken.recv_timeout(FOR_EVER).unwrap();
        assert_eq!(&block_on(receiver.recv_async()).unwrap()[..], b"one");
    });
}
