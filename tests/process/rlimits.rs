//! Limits of a process: an error names the limit, and all earlier steps are undone (D9). An owner
//! keeps one descriptor per segment, and a peer none.

use crate::child::{self, in_child, in_child_for, Child};
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use nix::sys::resource::Resource;
use shm_pool::channel::{ChannelError, Receiver, Sender};
use shm_pool::{
    AllocError, AttachError, BuildError, Namespace, OsError, Provider, ProviderBuilder, Tuning,
    WakeFd,
};
use shm_pool_support::machine::page_size;
use shm_pool_support::procfs::{mapped_memory, memory};
use std::fs::File;
use std::os::fd::AsRawFd;

/// The length of each of the `SEGMENTS` messages. Together they need several segments.
const LEN: usize = 96 << 10;
const SEGMENTS: usize = 60;

/// Building or connecting takes at most this many descriptors.
const ENOUGH: u64 = 8;

/// Neither a pool of many messages nor repeated failures exhaust the process's descriptors.
#[test]
fn owner_descriptors() {
    in_child(|prefix| {
        let before = shm::state(prefix);
        let provider = until_enough(prefix, || match builder(prefix).build() {
            Err(BuildError::Os(error)) => Err(error),
            built => Ok(built.unwrap()),
        });
        let built = shm::open_descriptors();
        for len in [LEN, 64] {
            let error = with_only(0, || provider.alloc(len)).unwrap_err();
            let AllocError::Os(error) = error else {
                panic!("{error}")
            };
            assert_no_descriptor_left(&error);
            assert_eq!(
                (provider.stats().bytes_held, provider.stats().segments),
                (0, 0)
            );
        }
        let mut all = Vec::new();
        for _ in 0..SEGMENTS {
            let message = provider.alloc(LEN).unwrap().freeze();
            message.descriptor().unwrap();
            all.push(message);
        }
        let segments = provider.stats().segments;
        assert!(
            (1..SEGMENTS).contains(&segments),
            "{segments} segments for {SEGMENTS} messages"
        );
        assert_eq!(
            shm::open_descriptors(),
            built + segments,
            "one for each segment"
        );
        drop(all);
        let warm = with_only(0, || provider.alloc(LEN).map(drop));
        warm.expect("a warm allocation needs no descriptor");
        drop(provider);
        assert_eq!(shm::state(prefix), before);
    });
}

/// Senders that were dropped keep no descriptor, nor memory, with or without a receiver.
#[test]
fn dropped_senders_have_no_descriptor() {
    in_child(|prefix| {
        let names = Namespace::new(prefix).unwrap();
        let provider = builder(prefix).build().unwrap();
        drop(provider.alloc(LEN).unwrap());
        let before = shm::open_descriptors();
        for number in 0..SEGMENTS {
            let name = format!("channel-{number}");
            let mut sender = Sender::create(&provider, &name).unwrap();
            if number % 2 == 0 {
                sender.send(provider.alloc(64).unwrap()).unwrap();
            } else {
                let mut receiver = Receiver::builder().namespace(&names).open(&name).unwrap();
                sender.send(provider.alloc(64).unwrap()).unwrap();
                drop(receiver.try_recv().unwrap());
                drop(receiver);
            }
        }
        let after = shm::open_descriptors();
        assert!(after <= before + 1, "{after} descriptors, {before} before");
    });
}

/// A channel that lacks descriptors uses those of channels that are over.
#[test]
fn channels_that_are_over_make_room() {
    in_child(|prefix| {
        let names = Namespace::new(prefix).unwrap();
        let provider = builder(prefix).build().unwrap();
        let open = |number: usize| {
            let name = format!("channel-{number}");
            let sender = Sender::create(&provider, &name).unwrap();
            let receiver = Receiver::builder().namespace(&names).open(&name).unwrap();
            (sender, receiver)
        };
        let mut held = Vec::new();
        for number in 0..8 {
            let (mut sender, mut receiver) = open(number);
            sender.send(provider.alloc(64).unwrap()).unwrap();
            held.push(receiver.try_recv().unwrap());
            // The message is still read, so the pool waits for it.
        }
        with_only(0, || {
            drop(held);
            // The receivers' descriptors are taken, so only those of the channels can serve.
            let _others: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
            Sender::create(&provider, "another").expect("eight channels are over")
        });
    });
}

/// A peer that maps many segments, or often tries to connect, does not exhaust its descriptors.
#[test]
fn peer_descriptors() {
    in_child(|prefix| {
        let provider = builder(prefix).build().unwrap();
        let mut messages = Vec::new();
        let mut descriptors = Vec::new();
        for _ in 0..SEGMENTS {
            let message = provider.alloc(LEN).unwrap().freeze();
            descriptors.push(message.descriptor().unwrap());
            messages.push(message);
        }
        let before = (shm::open_descriptors(), shm::mappings(prefix));
        let client = shm::client(prefix);
        let id = until_enough(prefix, || match client.connect(provider.id()) {
            Err(AttachError::Os(error)) => Err(error),
            connected => Ok(connected.unwrap()),
        });
        assert_eq!(id.slot(), 0, "the attempts before took no slot");

        let connected = (shm::open_descriptors(), shm::mappings(prefix));
        let Err(AttachError::Os(error)) = with_only(0, || client.attach(&descriptors[0])) else {
            panic!("another error")
        };
        assert_no_descriptor_left(&error);
        assert!(
            !messages[0].is_leased(),
            "a failed attach gives its lease back"
        );
        assert_eq!((shm::open_descriptors(), shm::mappings(prefix)), connected);
        let mut views = Vec::new();
        for descriptor in &descriptors {
            views.push(client.attach(descriptor).unwrap());
        }
        assert_eq!(
            (shm::open_descriptors(), shm::mappings(prefix)),
            (connected.0, connected.1 + provider.stats().segments)
        );
        drop(views);
        let warm = with_only(0, || client.attach(&descriptors[0]).map(drop));
        warm.expect("attaching to what is mapped needs no descriptor");
        drop(client);
        assert_eq!((shm::open_descriptors(), shm::mappings(prefix)), before);
    });
}

#[test]
fn grant_survives_descriptor_limit() {
    in_child(|prefix| {
        let provider = builder(prefix).build().unwrap();
        for len in [LEN, 64] {
            // This client has not mapped the segment yet.
            let client = shm::client(prefix);
            let id = client.connect(provider.id()).unwrap();
            let message = shm::message(&provider, len, 1);
            let granted = message.grant(id).unwrap();
            drop(message); // from here on, only the grant holds it
            for _ in 0..3 {
                let Err(AttachError::Os(error)) = with_only(0, || client.attach(&granted)) else {
                    panic!("another error")
                };
                assert_no_descriptor_left(&error);
            }
            let stats = provider.stats();
            assert_eq!(
                (stats.bytes_in_use, stats.bytes_leased),
                (0, len),
                "the grant still holds the message"
            );
            provider.alloc(len).unwrap().freeze().descriptor().unwrap();
            let view = client.attach(&granted).expect("the grant was not spent");
            shm::check(&view, 1).unwrap();
            let again = client.attach(&granted).unwrap_err();
            assert!(
                matches!(again, AttachError::NotGranted),
                "one grant is one view: {again}"
            );
            drop(view);
            assert_eq!(provider.stats().bytes_leased, 0);
        }
    });
}

fn builder(prefix: &str) -> shm_pool::ProviderBuilder {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(8 << 20)
        .tuning(Tuning::new().arena_size(64 << 10))
        .max_idle_per_class(SEGMENTS)
}

/// Calls `body` while no more than `count` descriptors can be opened.
pub(crate) fn with_only<T>(count: u64, body: impl FnOnce() -> T) -> T {
    let lowest_free = File::open("/dev/null").unwrap().as_raw_fd();
    sys::limit_descriptors(lowest_free as u64 + count);
    let result = body();
    sys::limit_descriptors(1024);
    result
}

/// A sweep holds a descriptor of each dead owner that it looks after, of a few at a time, even if it
/// may have no more. A receiver of one of them keeps that one's objects.
#[test]
fn sweep_of_many_owners() {
    const OWNERS: usize = 100;
    for descriptors in [ENOUGH, 200] {
        in_child_for(&descriptors.to_string(), |prefix| {
            let owners = Child::start_ready("rlimits-owners", &[prefix, &OWNERS.to_string()]);
            let namespace = shm::namespace(prefix);
            let options = Receiver::builder().namespace(&namespace);
            let mut receiver = options.open("channel").unwrap();
            owners.kill();
            // A control object and a segment each.
            assert_eq!(shm::objects(prefix).len(), 2 * OWNERS + 1);

            let swept = with_only(descriptors, || namespace.sweep()).unwrap();
            assert_eq!(swept.objects, 2 * (OWNERS - 1));
            assert_eq!(*receiver.recv().unwrap(), [7; LEN]);
            drop(receiver);
            assert_eq!(shm::objects(prefix), [""; 0]);
        });
    }
}

role!("rlimits-owners", owners_role);

/// The role of a process with many providers, the last of which has sent a message.
fn owners_role(link: &Link, arguments: &[&str]) {
    let count: usize = arguments[1].parse().unwrap();
    let mut providers = Vec::new();
    for _ in 0..count {
        providers.push(builder(arguments[0]).build().unwrap());
    }
    for provider in &providers {
        drop(provider.alloc(LEN).unwrap());
    }
    let provider = providers.pop().unwrap();
    let mut sender = Sender::create(&provider, "channel").unwrap();
    let mut buffer = provider.alloc(LEN).unwrap();
    buffer.fill(7);
    sender.send(buffer).unwrap();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
}

/// Allows an attempt more and more descriptors until it succeeds. Each failure leaves nothing.
fn until_enough<T>(prefix: &str, mut attempt: impl FnMut() -> Result<T, OsError>) -> T {
    let before = shm::state(prefix);
    for count in 0..=ENOUGH {
        match with_only(count, &mut attempt) {
            Ok(result) => {
                assert!(count > 0, "the limit was felt");
                return result;
            }
            Err(error) => {
                assert_no_descriptor_left(&error);
                assert_eq!(shm::state(prefix), before);
            }
        }
    }
    panic!("{ENOUGH} descriptors are not enough")
}

fn assert_no_descriptor_left(error: &OsError) {
    assert_eq!(error.errno(), Some(libc::EMFILE), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}

// ---- file sizes (`ulimit -f`) -------------------------------------------------------------------
// The kernel answers a call beyond it with SIGXFSZ, which ends the process. This crate makes no such
// call.

/// Neither a provider, its first large message, a channel nor a sweep kills the process.
#[test]
fn wake_fd_descriptor() {
    in_child(|_| {
        let error = with_only(0, WakeFd::new).unwrap_err();
        assert_eq!(
            (error.call(), error.errno()),
            ("eventfd", Some(libc::EMFILE)),
            "{error}"
        );
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        WakeFd::new().unwrap();
    });
}

#[test]
fn file_size_limit_is_an_error() {
    in_child(|prefix| {
        let builder = || {
            Provider::builder()
                .namespace(&Namespace::new(prefix).unwrap())
                .max_shared(64)
                .tuning(Tuning::new().arena_size(64 << 10))
        };
        let limit = |bytes| sys::set_limit(Resource::RLIMIT_FSIZE, bytes);
        limit(4096);
        let BuildError::Os(error) = builder().build().unwrap_err() else {
            panic!()
        };
        assert_names_limit(&error, 4096);
        assert_eq!(
            shm::objects(prefix),
            [""; 0],
            "a provider that could not be built leaves nothing"
        );

        limit(1 << 20);
        let provider = builder().build().unwrap();
        let kept = provider.alloc(1000).unwrap();
        let error = provider.alloc(2 << 20).unwrap_err();
        let AllocError::Os(error) = error else {
            panic!("{error}")
        };
        assert_names_limit(&error, 1 << 20);
        let large = Sender::builder()
            .capacity(1 << 16)
            .create(&provider, "c")
            .unwrap_err();
        let ChannelError::Os(error) = large else {
            panic!("{large}")
        };
        assert_names_limit(&error, 1 << 20);

        // What is within the length of a segment needs no longer file.
        limit(0);
        provider
            .alloc(2000)
            .expect("a segment that has its length already");
        limit(1 << 20);
        let dead = Child::start("owner-swept", &[prefix]);
        dead.receive();
        dead.kill();
        limit(0);
        assert_eq!(Namespace::new(prefix).unwrap().sweep().unwrap().objects, 3);
        drop((kept, provider));
    });
}

fn assert_names_limit(error: &OsError, limit: u64) {
    let text = error.to_string();
    assert!(
        error.errno() == Some(libc::EFBIG) && text.contains("ulimit -f"),
        "{text}"
    );
    assert!(text.contains(&limit.to_string()), "{text}");
}

// ---- locked memory (`ulimit -l`) ----------------------------------------------------------------

const LIMIT: usize = 4 << 20;
const RECORDS: usize = 64;

/// A publisher is not refused memory that it was promised.
#[test]
fn memlock_limit() {
    let names = Names::new("locked");
    let child = Child::start("lock-memory", &[names.prefix()]);
    match child.receive() {
        Message::Refused(reason) => child::skip(&reason),
        answer => assert_eq!(answer, Message::Done),
    }
    child.finish();
}

role!("lock-memory", role);

fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    if let Err(error) = sys::give_up_locking_without_limit() {
        return link.send(&Message::Refused(format!(
            "the right to lock memory cannot be given up: {error}"
        )));
    }
    sys::set_limit(Resource::RLIMIT_MEMLOCK, LIMIT as u64);
    cap_above_memlock(prefix);
    what_has_memory_is_locked(prefix);
    segment_above_memlock(prefix);
    sys::set_limit(Resource::RLIMIT_MEMLOCK, 0);
    let error = locked(prefix).max_bytes(1).build().unwrap_err();
    assert!(
        matches!(error, BuildError::LockMemory { limit: 0, .. }),
        "{error}"
    );
    assert!(
        locked(prefix).lock_memory(false).build().is_ok(),
        "the default locks nothing"
    );
    link.send(&Message::Done);
}

fn locked(prefix: &str) -> ProviderBuilder {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_shared(RECORDS)
        .lock_memory(true)
}

/// Returns how many bytes of a prefix's objects are locked in RAM.
fn bytes_locked(prefix: &str) -> usize {
    mapped_memory(prefix, "Locked").unwrap() as usize
}

/// Returns the length of the control object: 4096 bytes, and 128 for each record, in whole pages.
fn control() -> usize {
    (4096 + 128 * RECORDS).next_multiple_of(page_size())
}

fn cap_above_memlock(prefix: &str) {
    let error = locked(prefix)
        .max_bytes(LIMIT - control() + 1)
        .build()
        .unwrap_err();
    let BuildError::LockMemory { needed, limit } = error else {
        panic!("{error}")
    };
    assert_eq!(
        (needed, limit),
        (LIMIT + page_size(), LIMIT as u64),
        "the cap is whole pages"
    );
    let text = error.to_string();
    assert!(
        [&needed.to_string(), &limit.to_string(), "ulimit -l"]
            .iter()
            .all(|part| text.contains(*part)),
        "{text}"
    );
    assert_eq!(shm::objects(prefix), [""; 0]);
    assert!(
        locked(prefix).max_bytes(LIMIT - control()).build().is_ok(),
        "all that the limit allows"
    );
}

fn what_has_memory_is_locked(prefix: &str) {
    let provider = locked(prefix)
        .max_bytes(2 << 20)
        .tuning(Tuning::new().arena_size(2 << 20))
        .build()
        .unwrap();
    assert_eq!(bytes_locked(prefix), control(), "no payload memory yet");
    let assert_all = |what: &str| {
        let held = provider.stats().bytes_held;
        assert_eq!(bytes_locked(prefix), control() + held, "{what}");
        held
    };
    let kept = provider.alloc(1000).unwrap();
    let large = provider.alloc(1 << 20).unwrap();
    let all = assert_all("after the first messages");
    assert!(
        (1 << 20..2 << 20).contains(&all),
        "memory is taken page by page all the same: {all}"
    );
    drop(large);
    provider.trim();
    assert!(assert_all("after the pages of the large message went back") < all);
    let again = provider.alloc(1 << 20).unwrap();
    assert_eq!(assert_all("after they were taken again"), all);
    let reservation = provider.reserve(100_000, 4).unwrap();
    assert_all("what is reserved");
    drop((reservation, again, kept, provider));
    assert_eq!(
        (
            bytes_locked(prefix),
            memory(std::process::id(), "VmLck").unwrap()
        ),
        (0, 0)
    );
}

fn segment_above_memlock(prefix: &str) {
    let build = || {
        locked(prefix)
            .max_bytes(3 << 20)
            .tuning(Tuning::new().arena_size(3 << 20))
            .build()
            .unwrap()
    };
    // Each may lock its cap; both together may not.
    let first = build();
    let second = build();
    let taken = first.alloc(3 << 20).unwrap();
    let objects = shm::objects(prefix);
    for error in [
        second.alloc(2 << 20).err().unwrap(),
        second.reserve(2 << 20, 1).err().unwrap(),
    ] {
        let AllocError::Os(os) = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (os.call(), os.errno(), os.bytes()),
            ("mlock2", Some(libc::ENOMEM), Some(2 << 20)),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            [&LIMIT.to_string(), "ulimit -l"]
                .iter()
                .all(|part| text.contains(*part)),
            "{text}"
        );
        assert!(error.is_exhausted(), "it may work later");
        assert_eq!(
            (shm::objects(prefix), second.stats().bytes_held),
            (objects.clone(), 0),
            "nothing is left of it"
        );
    }
    let small = second
        .alloc(200_000)
        .expect("a shorter segment is within the limit");
    drop((taken, small));
    first.trim();
    second.trim();
    assert!(
        second.alloc(2 << 20).is_ok(),
        "the first has unlocked its memory"
    );
}
