//! Processes that give up rights after their start. They keep the use of all that they have mapped by
//! then, and can open no more objects by name.

use crate::child::{self, in_child_for, Child};
use crate::own_shm::{mount, mount_shm};
use crate::shm::{self, Names};
use crate::sys;
use crate::users::STRANGER;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{ChannelEvent, OnEnd, Publisher, RecvError, Subscriber};
use shm_pool::{Namespace, Provider, ProviderBuilder, Tuning};
use shm_pool_support::procfs;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::chroot;
use std::time::Duration;
use std::{env, fs, io, thread};

const CHANNEL: &str = "c";
const CAP: usize = 4 << 20;
const LEN: usize = 100_000;

/// Of the pattern of all messages.
const SEED: u64 = 7;

/// The ways to give up rights.
const WAYS: [&str; 4] = ["chroot", "mounts", "user", "landlock"];

/// Afterwards, this process can open no object of the test.
fn restrict(way: &str) -> io::Result<()> {
    match way {
        "chroot" => {
            let root = env::temp_dir().join(format!("shm-pool-empty-{}", std::process::id()));
            fs::create_dir(&root)?;
            env::set_current_dir(&root)?;
            // Without a name, it stays the process's.
            fs::remove_dir(&root)?;
            chroot(".")
        }
        // In a mount namespace of its own: see `start`.
        "mounts" => mount_shm(b"size=1m,mode=1777\0"),
        "chroot with /proc" => {
            // In the mount namespace, so that nothing of it stays.
            mount(b"tmpfs\0", b"/tmp\0", 0, b"size=1m\0")?;
            fs::create_dir("/tmp/proc")?;
            mount(
                b"/proc\0",
                b"/tmp/proc\0",
                libc::MS_BIND | libc::MS_REC,
                b"\0",
            )?;
            env::set_current_dir("/tmp")?;
            chroot(".")
        }
        "user" => sys::become_user(STRANGER, &[]),
        _ => sys::forbid_files(),
    }
}

/// The ways after which /proc is still there.
const WAYS_WITH_PROC: [&str; 2] = ["mounts", "chroot with /proc"];

/// Says that a child reaches its objects by a descriptor of the directory.
const HELD: &str = "held";

/// The namespace of a child.
fn namespace(arguments: &[&str]) -> Namespace {
    let namespace = shm::namespace(arguments[0]);
    if arguments.get(2) != Some(&HELD) {
        return namespace;
    }
    let descriptor = fs::File::open("/dev/shm").unwrap().into_raw_fd();
    namespace
        .in_directory(format!("/proc/self/fd/{descriptor}"))
        .unwrap()
}

/// Starts a child that may restrict itself.
fn start(role: &str, names: &Names, way: &str) -> Option<Child> {
    start_as(role, &[names.prefix(), way])
}

fn start_as(role: &str, arguments: &[&str]) -> Option<Child> {
    child::skip_without_mounts(Child::start_with(
        role,
        arguments,
        sys::leave_mount_namespace,
    ))
}

/// Returns `false` if the child cannot restrict itself here.
fn is_restricted(child: &Child, way: &str) -> bool {
    match child.request(&Message::Go) {
        Message::Done => true,
        refused => {
            // Not every machine has Landlock, and only root is more than one user.
            println!("SKIPPED: {way}: {refused:?}");
            false
        }
    }
}

/// Restricts this process at the next `Go`. Returns `false` if that is not possible here.
fn restrict_at_go(link: &Link, way: &str) -> bool {
    link.expect_go();
    if let Err(error) = restrict(way) {
        link.send(&Message::Refused(error.to_string()));
        return false;
    }
    link.send(&Message::Done);
    true
}

fn one_segment(names: &Names) -> ProviderBuilder {
    let tuning = Tuning::new().arena_size(CAP);
    names.provider().max_bytes(CAP).tuning(tuning)
}

role!("restricted-receives", receiving_role);

/// The role of a subscriber that warms up and restricts itself. It receives a message at each further
/// `Go`.
fn receiving_role(link: &Link, arguments: &[&str]) {
    let namespace = namespace(arguments);
    let builder = Subscriber::builder().namespace(&namespace);
    let mut subscriber = builder.open(CHANNEL).unwrap();
    let connected = subscriber.recv_event().unwrap();
    assert!(matches!(connected, ChannelEvent::Connected(_)));
    subscriber.warm().unwrap();
    if !restrict_at_go(link, arguments[1]) {
        return;
    }
    while let Some(Message::Go) = link.receive().unwrap() {
        // A message that arrives is there already.
        let answer = match subscriber.recv_timeout(Duration::from_millis(200)) {
            Ok(message) => {
                shm::check(&message, SEED).unwrap();
                Message::Done
            }
            Err(error) => Message::Refused(format!("{error:?}")),
        };
        link.send(&answer);
    }
}

/// A subscriber has mapped the only segment that there will be. It finds no next publisher.
#[test]
fn warmed_subscriber() {
    for way in WAYS {
        let names = Names::new(&format!("restricted-{way}"));
        let provider = one_segment(&names).build().unwrap();
        provider.reserve(LEN, 4).unwrap().keep();
        let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
        let Some(child) = start("restricted-receives", &names, way) else {
            return;
        };
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        if !is_restricted(&child, way) {
            continue;
        }
        // Lengths that were not reserved are in the same segment.
        for len in [LEN, LEN, 64, 5000, 1 << 20, LEN] {
            let message = shm::message(&provider, len, SEED);
            publisher.send(message).unwrap();
            assert_eq!(child.request(&Message::Go), Message::Done, "{way}: {len}");
        }
        assert_eq!(provider.stats().segments, 1);

        drop(publisher);
        let mut next = Publisher::create(&provider, CHANNEL).unwrap();
        next.send(shm::message(&provider, LEN, SEED)).unwrap();
        let Message::Refused(error) = child.request(&Message::Go) else {
            panic!("{way}: it has opened a channel")
        };
        let expected = match way {
            "chroot" | "mounts" => "TimedOut",
            _ => "Open(",
        };
        assert!(error.starts_with(expected), "{way}: {error}");
        child.shut_down();
    }
}

/// A message in a later segment cannot be read, and the next one can.
#[test]
fn later_segment() {
    for way in WAYS {
        let names = Names::new(&format!("restricted-later-{way}"));
        let tuning = Tuning::new().arena_size(LEN);
        let builder = names.provider().max_bytes(CAP).tuning(tuning);
        let provider = builder.build().unwrap();
        let early = shm::message(&provider, LEN, SEED);
        let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
        let Some(child) = start("restricted-receives", &names, way) else {
            return;
        };
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        if !is_restricted(&child, way) {
            continue;
        }
        let late = shm::message(&provider, 3 * LEN, SEED);
        assert_eq!(provider.stats().segments, 2);
        publisher.send(early.clone()).unwrap();
        publisher.send(late).unwrap();
        publisher.send(early).unwrap();
        assert_eq!(child.request(&Message::Go), Message::Done, "{way}");
        let Message::Refused(error) = child.request(&Message::Go) else {
            panic!("{way}: it has opened a segment")
        };
        assert!(error.starts_with("Attach("), "{way}: {error}");
        assert_eq!(child.request(&Message::Go), Message::Done, "{way}");
        child.shut_down();
    }
}

role!("restricted-publishes", publishing_role);

/// The role of a publisher that restricts itself. It sends a message at each further `Go`, and
/// answers the number of receivers.
fn publishing_role(link: &Link, arguments: &[&str]) {
    let namespace = namespace(arguments);
    let builder = Provider::builder().namespace(&namespace).max_bytes(CAP);
    let provider = builder
        .tuning(Tuning::new().arena_size(CAP))
        .build()
        .unwrap();
    provider.reserve(LEN, 4).unwrap().keep();
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    link.send(&Message::Done);
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    if !restrict_at_go(link, arguments[1]) {
        return;
    }
    while let Some(Message::Go) = link.receive().unwrap() {
        let sent = publisher.send(shm::message(&provider, LEN, SEED)).unwrap();
        link.send(&Message::Number(sent.receivers as u64));
    }
}

/// A publisher serves the receivers that it has, and connects no more of them. It cannot remove its
/// objects, which the last receiver does.
#[test]
fn publisher() {
    for way in WAYS {
        let names = Names::new(&format!("restricted-sends-{way}"));
        let Some(child) = start("restricted-publishes", &names, way) else {
            return;
        };
        child.expect_done();
        let builder = Subscriber::builder().namespace(&names.namespace());
        let builder = builder.on_end(OnEnd::Return);
        let mut subscriber = builder.clone().open(CHANNEL).unwrap();
        if !is_restricted(&child, way) {
            drop(child);
            drop(subscriber);
            names.sweep();
            continue;
        }
        for _ in 0..8 {
            assert_eq!(child.request(&Message::Go), Message::Number(1), "{way}");
            shm::check(&subscriber.recv().unwrap(), SEED).unwrap();
        }

        let mut late = builder.open(CHANNEL).unwrap();
        assert_eq!(child.request(&Message::Go), Message::Number(1), "{way}");
        let refused = late.recv_timeout(Duration::from_millis(500));
        match way {
            // The receiver's objects do not exist for the publisher.
            "chroot" | "mounts" => {
                assert!(matches!(refused, Err(RecvError::TimedOut)), "{refused:?}")
            }
            _ => assert!(
                matches!(
                    refused,
                    Err(RecvError::NotConnected {
                        errno: libc::EACCES
                    })
                ),
                "{refused:?}"
            ),
        }

        child.shut_down();
        assert_ne!(shm::objects(names.prefix()), [""; 0], "{way}");
        drop(late);
        drop(subscriber);
        assert_eq!(shm::objects(names.prefix()), [""; 0], "{way}");
    }
}

/// A subscriber reaches its objects by a descriptor of the directory: it maps later segments, and
/// finds the next publisher.
#[test]
fn subscriber_with_held_directory() {
    for way in WAYS_WITH_PROC {
        let names = Names::new("restricted-held");
        let tuning = Tuning::new().arena_size(LEN);
        let builder = names.provider().max_bytes(CAP).tuning(tuning);
        let provider = builder.build().unwrap();
        let early = shm::message(&provider, LEN, SEED);
        let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
        let arguments = [names.prefix(), way, HELD];
        let Some(child) = start_as("restricted-receives", &arguments) else {
            return;
        };
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        if !is_restricted(&child, way) {
            continue;
        }
        publisher.send(early).unwrap();
        assert_eq!(child.request(&Message::Go), Message::Done, "{way}");
        let late = shm::message(&provider, 3 * LEN, SEED);
        assert_eq!(provider.stats().segments, 2);
        publisher.send(late).unwrap();
        assert_eq!(
            child.request(&Message::Go),
            Message::Done,
            "{way}: later segment"
        );

        drop(publisher);
        let mut next = Publisher::create(&provider, CHANNEL).unwrap();
        // It connects while it waits for a message, and misses what was sent before.
        let is_found = (0..100).any(|_| {
            next.send(shm::message(&provider, LEN, SEED)).unwrap();
            child.request(&Message::Go) == Message::Done
        });
        assert!(is_found, "{way}: next publisher");
        child.shut_down();
    }
}

/// A publisher that does so connects a later subscriber, and removes its objects.
#[test]
fn publisher_with_held_directory() {
    for way in WAYS_WITH_PROC {
        let names = Names::new("restricted-held-sends");
        let arguments = [names.prefix(), way, HELD];
        let Some(child) = start_as("restricted-publishes", &arguments) else {
            return;
        };
        child.expect_done();
        let builder = Subscriber::builder().namespace(&names.namespace());
        let early = builder.clone().open(CHANNEL).unwrap();
        if !is_restricted(&child, way) {
            drop(child);
            drop(early);
            names.sweep();
            continue;
        }
        let mut late = builder.open(CHANNEL).unwrap();
        assert_eq!(child.request(&Message::Go), Message::Number(2), "{way}");
        shm::check(&late.recv().unwrap(), SEED).unwrap();
        drop(late);
        drop(early);
        child.shut_down();
        assert_eq!(shm::objects(names.prefix()), [""; 0], "{way}");
    }
}

role!("unshares", unsharing_role);

/// The role: tells whether a process can enter a user namespace of its own, without a channel and
/// after one.
fn unsharing_role(link: &Link, arguments: &[&str]) {
    for had_channel in [false, true] {
        // A forked child has one thread.
        let Some(forked) = sys::fork() else {
            sys::end_with(|| {
                if had_channel {
                    make_channel(arguments[0]);
                }
                let entered = sys::leave_user_namespace();
                let errno = entered.err().and_then(|error| error.raw_os_error());
                link.send(&Message::Number(errno.unwrap_or(0) as u64));
            })
        };
        forked.finish();
    }
}

fn make_channel(prefix: &str) {
    let builder = Provider::builder().namespace(&shm::namespace(prefix));
    let provider = builder.build().unwrap();
    let publisher = Publisher::create(&provider, CHANNEL).unwrap();
    drop(publisher);
    drop(provider);
    assert_eq!(procfs::threads("shm-pool-keeper").unwrap(), 1, "it stays");
}

/// A process with a second thread cannot enter a user namespace.
#[test]
fn user_namespace_after_channel() {
    let names = Names::new("restricted-unshares");
    let child = Child::start("unshares", &[names.prefix()]);
    match child.number() {
        0 => assert_eq!(child.number(), libc::EINVAL as u64),
        refused => {
            child.number();
            println!("SKIPPED: no user namespaces: error {refused}");
        }
    }
    child.finish();
}

/// Since Linux 5.16, on every architecture.
const FUTEX_WAITV: libc::c_long = 449;

/// Calls that an older kernel does not have, or a sandbox forbids.
#[test]
fn without_optional_calls() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        in_child_for(&errno.to_string(), |prefix| {
            let optional = [
                FUTEX_WAITV,
                libc::SYS_membarrier,
                libc::SYS_madvise,
                libc::SYS_flock,
                libc::SYS_getcpu,
                libc::SYS_inotify_init1,
            ];
            for call in optional {
                sys::forbid_call(call, errno).unwrap();
            }
            let namespace = shm::namespace(prefix);
            let mut subscriber = Subscriber::builder()
                .namespace(&namespace)
                .on_end(OnEnd::Return)
                .open(CHANNEL)
                .unwrap();
            thread::scope(|scope| {
                // Before the publisher.
                let receiving = scope.spawn(move || {
                    for number in 0..10 {
                        let message = subscriber.recv().unwrap();
                        shm::check(&message, number).unwrap();
                    }
                    assert!(matches!(subscriber.recv(), Err(RecvError::Disconnected)));
                });
                let builder = Provider::builder().namespace(&namespace).max_bytes(CAP);
                let builder = builder.tuning(Tuning::new().arena_size(CAP));
                let provider = builder.build().unwrap();
                let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
                publisher.wait_for_receivers(1, FOR_EVER).unwrap();
                for number in 0..10 {
                    thread::sleep(Duration::from_millis(2));
                    let message = shm::message(&provider, LEN, number);
                    assert_eq!(publisher.send(message).unwrap().receivers, 1);
                }
                drop(publisher);
                receiving.join().unwrap();

                let held = provider.alloc(CAP).unwrap();
                let waiting = scope.spawn(move || provider.alloc_timeout(CAP, FOR_EVER).map(drop));
                thread::sleep(Duration::from_millis(2));
                drop(held);
                waiting.join().unwrap().unwrap();
            });
            assert_eq!(shm::objects(prefix), [""; 0]);
        });
    }
}
