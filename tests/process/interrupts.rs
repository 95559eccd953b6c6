//! A signal handler that interrupts the very wait that it stops, at any instruction of it.

use crate::child::{in_child, in_child_for};
use crate::served::Served;
use crate::shm;
use crate::sys;
use crate::wire::FOR_EVER;
use shm_pool::channel::{
    wait_any, Interrupter, OnEnd, OnFull, Publisher, Receiver, RecvError, SendErrorKind, Sender,
    Source, Subscriber, Watcher,
};
use shm_pool::{Client, Namespace, Provider};
use std::fs;
use std::hint;
use std::os::unix::fs::FileExt;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Since Linux 5.16, on every architecture.
const FUTEX_WAITV: i64 = 449;

const NOW: Duration = Duration::ZERO;

const CHANNEL: &str = "c";

/// What the handler uses.
static INTERRUPTER: OnceLock<Interrupter> = OnceLock::new();

extern "C" fn interrupt(_signal: i32) {
    if let Some(interrupter) = INTERRUPTER.get() {
        interrupter.interrupt();
    }
}

/// Interrupts `wait`, which returns `true` if it was interrupted, `count` times from a handler that
/// runs in this thread. Each interrupt ends one wait.
fn storm(count: u64, interrupter: Interrupter, mut wait: impl FnMut() -> bool) {
    assert!(INTERRUPTER.set(interrupter).is_ok(), "once in a process");
    sys::handle_signals(interrupt);
    let waiter = sys::this_thread();
    let ended = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(count);
            for expected in 1..=count {
                delay(&mut random);
                sys::send_signal(waiter);
                wait_for(&ended, expected);
            }
        });
        let mut random = fastrand::Rng::with_seed(count + 1);
        for number in 1..=count {
            delay(&mut random);
            assert!(wait(), "wait {number}");
            ended.store(number, Ordering::Release);
        }
    });
}

/// Both threads pause for a while, so that the handler stops the wait at another instruction each
/// time: before it, until it sleeps, and asleep.
fn delay(random: &mut fastrand::Rng) {
    for _ in 0..random.u32(0..200) {
        hint::spin_loop();
    }
}

/// Ends the process if the wait goes on: then its thread cannot report anything.
fn wait_for(ended: &AtomicU64, expected: u64) {
    let start = Instant::now();
    while ended.load(Ordering::Acquire) < expected {
        if start.elapsed() > FOR_EVER {
            eprintln!("interrupt {expected} has ended no wait");
            process::abort();
        }
        thread::yield_now();
    }
}

struct Scene {
    provider: Provider,
    client: Client,
}

impl Scene {
    fn new(prefix: &str) -> Self {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(8 << 20);
        Self {
            provider: provider.build().unwrap(),
            client: shm::client(prefix),
        }
    }

    fn sender(&self, name: &str) -> Sender {
        let options = Sender::builder().capacity(2).spin(NOW);
        options.create(&self.provider, name).unwrap()
    }

    fn receiver(&self, name: &str) -> Receiver {
        let options = Receiver::builder().spin(NOW);
        options
            .namespace(self.client.namespace())
            .open(name)
            .unwrap()
    }

    fn publisher(&self) -> Publisher {
        let options = Publisher::builder().spin(NOW);
        options.create(&self.provider, CHANNEL).unwrap()
    }

    /// A receiver that the publisher waits for, and that has no room for another message.
    fn slow_receiver(&self, publisher: &mut Publisher) -> Subscriber {
        let options = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::Block)
            .capacity(1);
        let receiver = options
            .namespace(self.client.namespace())
            .open(CHANNEL)
            .unwrap();
        assert!(publisher.served().receivers().next().is_some());
        while publisher.try_send_copy(b"").is_ok() {}
        receiver
    }
}

fn is_interrupted<T>(received: Result<T, RecvError>) -> bool {
    matches!(received, Err(RecvError::Interrupted))
}

fn sources(receivers: &mut [Receiver]) -> Vec<&mut dyn Source> {
    let mut sources: Vec<&mut dyn Source> = Vec::new();
    for receiver in receivers {
        sources.push(receiver);
    }
    sources
}

fn storm_any(scene: &Scene, receivers: usize, count: u64) {
    let mut senders = Vec::new();
    let mut all = Vec::new();
    for at in 0..receivers {
        senders.push(scene.sender(&at.to_string()));
        all.push(scene.receiver(&at.to_string()));
    }
    let interrupter = all[1].interrupter();
    let mut all: Vec<&mut dyn Source> = sources(&mut all);
    storm(count, interrupter, || {
        let found = wait_any(&mut all, Duration::MAX);
        matches!(found, Err(RecvError::Interrupted))
    });
}

/// How often a handler of SIGALRM interrupts, each time.
const CALLS_OF_A_HANDLER: u64 = 200;

static HANDLER_CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn interrupt_often(signal: i32) {
    for _ in 0..CALLS_OF_A_HANDLER {
        interrupt(signal);
        HANDLER_CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

/// A handler of SIGALRM interrupts a million times, in the thread whose wait it ends.
#[test]
fn alarms_interrupt() {
    const ALARMS: u64 = 5000;
    in_child(|prefix| {
        let scene = Scene::new(prefix);
        let mut sender = scene.sender(CHANNEL);
        let mut receiver = scene.receiver(CHANNEL);
        assert!(INTERRUPTER.set(receiver.interrupter()).is_ok());
        let alarms = sys::Alarms::start(interrupt_often, Duration::from_micros(50));
        for alarm in 0..ALARMS {
            assert!(is_interrupted(receiver.recv()), "alarm {alarm}");
        }
        alarms.end();
        assert!(HANDLER_CALLS.load(Ordering::Relaxed) >= ALARMS * CALLS_OF_A_HANDLER);
        // The last alarm may have come after the last wait.
        sender.send_copy(b"x").unwrap();
        let mut received = receiver.recv();
        if matches!(received, Err(RecvError::Interrupted)) {
            received = receiver.recv();
        }
        assert_eq!(received.unwrap()[..], *b"x");
    });
}

/// About a million waits, of all kinds, each with an interrupt of its own.
#[test]
fn handler_ends_its_wait() {
    type Kind = (&'static str, fn(&Scene, &str));
    let kinds: [Kind; 10] = [
        ("receiver", |scene, _| {
            let _sender = scene.sender(CHANNEL);
            let mut receiver = scene.receiver(CHANNEL);
            let interrupter = receiver.interrupter();
            storm(300_000, interrupter, || is_interrupted(receiver.recv()));
        }),
        ("spinning", |scene, _| {
            let _sender = scene.sender(CHANNEL);
            let mut receiver = Receiver::builder()
                .namespace(scene.client.namespace())
                .open(CHANNEL)
                .unwrap();
            let interrupter = receiver.interrupter();
            storm(80_000, interrupter, || is_interrupted(receiver.recv()));
        }),
        ("sender", |scene, _| {
            let mut sender = scene.sender(CHANNEL);
            let interrupter = sender.interrupter();
            storm(100_000, interrupter, || {
                sender.wait_for_receiver(Duration::MAX) == Err(SendErrorKind::Interrupted.into())
            });
        }),
        ("full", |scene, _| {
            let mut sender = scene.sender(CHANNEL);
            while sender.try_send_copy(b"").is_ok() {}
            let interrupter = sender.interrupter();
            storm(100_000, interrupter, || {
                sender.send_copy(b"") == Err(SendErrorKind::Interrupted.into())
            });
        }),
        ("publisher", |scene, _| {
            let options = Publisher::builder().spin(NOW).block_limit(Duration::MAX);
            let mut publisher = options.create(&scene.provider, CHANNEL).unwrap();
            let _receiver = scene.slow_receiver(&mut publisher);
            let interrupter = publisher.interrupter();
            storm(100_000, interrupter, || {
                publisher.send_copy(b"") == Err(SendErrorKind::Interrupted.into())
            });
        }),
        ("joins", |scene, _| {
            let mut publisher = scene.publisher();
            let interrupter = publisher.interrupter();
            storm(100_000, interrupter, || {
                let waited = publisher.wait_for_receivers(1, Duration::MAX);
                waited == Err(SendErrorKind::Interrupted.into())
            });
        }),
        ("subscriber", |scene, _| {
            let options = Subscriber::builder().spin(NOW);
            let options = options.namespace(scene.client.namespace());
            let mut subscriber = options.open(CHANNEL).unwrap();
            let interrupter = subscriber.interrupter();
            storm(50_000, interrupter, || is_interrupted(subscriber.recv()));
        }),
        ("watcher", |_, prefix| {
            // Each wait reads the directory.
            let directory = format!("/dev/shm/{prefix}.d");
            fs::create_dir(&directory).unwrap();
            let namespace = Namespace::default().in_directory(&directory).unwrap();
            let mut watcher = Watcher::new(&namespace);
            storm(50_000, watcher.interrupter(), || {
                matches!(watcher.recv(), Err(RecvError::Interrupted))
            });
            fs::remove_dir(&directory).unwrap();
        }),
        ("any", |scene, _| storm_any(scene, 3, 90_000)),
        // More words than one system call takes: a helper wakes the thread.
        ("many", |scene, _| storm_any(scene, 130, 10_000)),
    ];
    for (kind, run) in kinds {
        in_child_for(kind, |prefix| run(&Scene::new(prefix), prefix));
    }
}

/// Where the kernel does not let a thread sleep on two words.
#[test]
fn handler_without_futex_waitv() {
    const COUNT: u64 = 100;
    for errno in [libc::ENOSYS, libc::EACCES] {
        for kind in ["receiver", "publisher", "subscriber", "any"] {
            in_child_for(&format!("{kind} {errno}"), |prefix| {
                let scene = Scene::new(prefix);
                if errno == libc::EACCES {
                    // The process has found that the kernel has the call.
                    let _sender = scene.sender("found");
                    let mut receiver = scene.receiver("found");
                    let soon = Duration::from_millis(1);
                    assert!(wait_any(&mut [&mut receiver], soon).is_err());
                }
                sys::forbid_call(FUTEX_WAITV, errno).unwrap();
                match kind {
                    "receiver" => {
                        let _sender = scene.sender(CHANNEL);
                        let mut receiver = scene.receiver(CHANNEL);
                        let interrupter = receiver.interrupter();
                        storm(COUNT, interrupter, || is_interrupted(receiver.recv()));
                    }
                    "publisher" => {
                        let mut publisher = scene.publisher();
                        let interrupter = publisher.interrupter();
                        storm(COUNT, interrupter, || {
                            let waited = publisher.wait_for_receivers(1, Duration::MAX);
                            waited == Err(SendErrorKind::Interrupted.into())
                        });
                    }
                    "subscriber" => {
                        let options = Subscriber::builder().spin(NOW);
                        let options = options.namespace(scene.client.namespace());
                        let mut subscriber = options.open(CHANNEL).unwrap();
                        let interrupter = subscriber.interrupter();
                        storm(COUNT, interrupter, || is_interrupted(subscriber.recv()));
                    }
                    _ => storm_any(&scene, 3, COUNT),
                }
            });
        }
    }
}

/// Nothing that a signal handler must not do: no lock of the end, no heap, and `errno` stays, even
/// if the wake-up fails.
#[test]
fn interrupt_keeps_errno() {
    in_child(|prefix| {
        let scene = Scene::new(prefix);
        let _sender = scene.sender(CHANNEL);
        let mut receiver = scene.receiver(CHANNEL);
        let interrupter = receiver.interrupter();
        let waiter = sys::this_thread();
        let interrupting = thread::spawn(move || {
            crate::threads::wait_until_asleep(waiter);
            sys::forbid_call(libc::SYS_futex, libc::EPERM).unwrap();
            nix::errno::Errno::set_raw(libc::ENOLINK);
            interrupter.interrupt();
            nix::errno::Errno::last_raw()
        });
        // Without the wake-up, the wait learns it at its next check.
        assert!(is_interrupted(receiver.recv()));
        assert_eq!(interrupting.join().unwrap(), libc::ENOLINK);
    });
}

/// A forked child's interrupt does not end its parent's wait, also one that begins later.
#[test]
fn interrupt_in_forked_child() {
    in_child(|prefix| {
        let scene = Scene::new(prefix);
        let _sender = scene.sender(CHANNEL);
        let mut receiver = scene.receiver(CHANNEL);
        let interrupter = receiver.interrupter();
        let waiting = thread::scope(|scope| {
            let (sender, threads) = std::sync::mpsc::channel();
            let waiting = scope.spawn(move || {
                sender.send(sys::this_thread()).unwrap();
                let first = receiver.recv();
                (receiver, first.map(drop))
            });
            crate::threads::wait_until_asleep(threads.recv().unwrap());
            let Some(forked) = sys::fork() else {
                sys::end_with(|| interrupter.interrupt());
            };
            forked.finish();
            assert_eq!(format!("{interrupter:?}"), "Interrupter { is_set: false }");
            interrupter.interrupt();
            waiting.join().unwrap()
        });
        let (mut receiver, first) = waiting;
        assert!(is_interrupted(first));
        assert!(matches!(
            receiver.recv_timeout(Duration::from_millis(1)),
            Err(RecvError::TimedOut)
        ));
    });
}

/// The number of receivers that have joined, which is in the publisher's object, counts no interrupt.
#[test]
fn interrupt_is_no_join() {
    in_child(|prefix| {
        let scene = Scene::new(prefix);
        let mut publisher = scene.publisher();
        let _subscriber = Subscriber::builder()
            .namespace(scene.client.namespace())
            .open(CHANNEL)
            .unwrap();
        let interrupter = publisher.interrupter();
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        thread::scope(|scope| {
            let waiter = sys::this_thread();
            scope.spawn(move || {
                crate::threads::wait_until_asleep(waiter);
                interrupter.interrupt();
            });
            assert_eq!(
                publisher.wait_for_receivers(2, FOR_EVER),
                Err(SendErrorKind::Interrupted.into())
            );
        });
        let mut joined = [0; 4];
        let object = shm::channel_object(prefix, CHANNEL);
        object.read_exact_at(&mut joined, 64).unwrap();
        assert_eq!(u32::from_ne_bytes(joined), 1);
    });
}
