//! Error messages: the object, the sizes, a remedy, and the source.

use crate::fixtures::{builder, files, message, pair, unique_prefix, NONE};
use shm_pool::channel::{
    ChannelError, OnFull, Publisher, Receiver, RecvError, SendError, SendErrorKind, Sender,
};
use shm_pool::inspect::Inspector;
use shm_pool::{
    AllocError, AttachError, BuildError, Client, DescriptorError, Namespace, OsError, Provider,
    ShareError, Tuning,
};
use std::error::Error;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Fails unless the error's text contains all of `parts`.
fn assert_says(error: &dyn Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    assert!(
        text.len() < 400 && !text.contains("  ") && !text.contains('\n'),
        "not one readable line: {text}"
    );
}

#[test]
fn too_large() {
    let provider = builder().max_alloc(64 << 10).build().unwrap();
    let error = provider.alloc(70_000).unwrap_err();
    assert_says(&error, &["70000", "65536", "max_alloc"]);
    assert!(error.source().is_none());
    assert!(!error.is_exhausted());
}

#[test]
fn exhausted() {
    let provider = builder().max_bytes(1 << 20).build().unwrap();
    let client = Client::new();
    let lent = message(&provider, 256 << 10, 1);
    let _view = client.attach(&lent.descriptor().unwrap()).unwrap();
    drop(lent);
    let _held = provider.alloc(512 << 10).unwrap();
    let error = provider.alloc(384 << 10).unwrap_err();
    let says = [
        "393216 bytes",
        "1048576",
        "524288 bytes are in use",
        "262144 are leased",
        "262144 are idle",
        "max_bytes",
    ];
    assert_says(&error, &says);
    assert_says(&error, &["drop"]);
    assert!(error.source().is_none());
}

#[test]
fn reserve_too_many() {
    let provider = builder().max_idle_per_class(3).build().unwrap();
    assert_says(
        &provider.reserve(100, 4).unwrap_err(),
        &["4 buffers", "max_idle_per_class", "3"],
    );
}

#[test]
fn system_without_memory() {
    const HUGE: usize = 64 << 30;
    let provider = builder().max_bytes(HUGE).build().unwrap();
    let error = provider.alloc(HUGE).unwrap_err();
    assert!(error.is_exhausted(), "room may be made");
    let object = format!("/dev/shm/shm_pool.{}.1", provider.id());
    assert_says(&error, &[&HUGE.to_string(), &object, "failed"]);

    let AllocError::Os(os) = &error else {
        panic!("{error}")
    };
    assert!(["posix_fallocate", "mmap"].contains(&os.call()), "{os}");
    assert_eq!((os.object(), os.bytes()), (Path::new(&object), Some(HUGE)));
    assert_says(&error, &[os.call()]);
    if os.errno() == Some(libc::ENOSPC) {
        assert_says(&error, &["bytes free", "max_bytes", "--shm-size"]);
    }
    let code = os.errno().unwrap();
    assert_says(&error, &[&io::Error::from_raw_os_error(code).to_string()]);
    assert!(error.source().is_none(), "it is in the text");

    let stats = provider.stats();
    assert_eq!(
        (stats.bytes_held, stats.peak_bytes_held),
        (0, 0),
        "what was not taken is counted"
    );
    assert_eq!(
        (stats.segments, stats.segments_created),
        (0, 0),
        "what was not made is counted"
    );
    assert_eq!(
        files(&format!("{}.1", provider.id())),
        NONE,
        "a segment that was made in vain is left"
    );
    assert!(
        provider.alloc(1 << 20).is_ok(),
        "the pool is spoilt by a refused allocation"
    );
}

#[test]
fn alignment_too_large() {
    let (provider, _) = pair();
    let layout = std::alloc::Layout::from_size_align(1, 8192).unwrap();
    assert_says(
        &provider.alloc_layout(layout).unwrap_err(),
        &["8192", "4096"],
    );
}

#[test]
fn share_errors() {
    let (provider, client) = pair();
    let peer = client.connect(provider.id()).unwrap();
    let buffer = message(&provider, 1, 1);
    let id = provider.id().to_string();
    let grants: Vec<_> = (0..7).map(|_| buffer.grant(peer).unwrap()).collect();
    assert_says(&buffer.grant(peer).unwrap_err(), &["7 pending grants", &id]);
    let (other, _) = pair();
    assert_says(
        &message(&other, 1, 1).grant(peer).unwrap_err(),
        &["not connected to the buffer's provider", &id],
    );
    drop((client, grants));
    assert_says(&buffer.grant(peer).unwrap_err(), &["has disconnected", &id]);
    assert_says(
        &ShareError::TooManyShared { max: 5 },
        &["5 buffers", "max_shared"],
    );
}

#[test]
fn attach_errors() {
    let (provider, client) = pair();
    let buffer = message(&provider, 1, 1);
    let descriptor = buffer.descriptor().unwrap();
    assert!(buffer.try_into_mut().is_ok());
    let stale = client.attach(&descriptor).unwrap_err();
    assert!(matches!(stale, AttachError::Stale) && stale.source().is_none());
    assert_says(&stale, &["stale", "grant", "keep"]);
    let object = format!("/dev/shm/it-nobody.{}.ctl", provider.id());
    let stranger = Client::in_namespace(&Namespace::new("it-nobody").unwrap());
    assert_says(
        &stranger.attach(&descriptor).unwrap_err(),
        &[&object, &provider.id().to_string(), "another namespace"],
    );
    let uid = Client::in_namespace(&Namespace::default().of_user(12345));
    assert_says(
        &uid.attach(&descriptor).unwrap_err(),
        &["12345", "Namespace::of_user", ".ctl"],
    );
}

#[test]
fn descriptor_errors() {
    let error = shm_pool::Descriptor::from_bytes([0xab; 32]).unwrap_err();
    assert_says(&error, &["0xabab"]);
    let provider = pair().0;
    let descriptor = provider.alloc(1).unwrap().freeze().descriptor().unwrap();
    let changed = |at: usize| {
        let mut bytes = descriptor.to_bytes();
        bytes[at] ^= 3;
        shm_pool::Descriptor::from_bytes(bytes).unwrap_err()
    };
    assert_says(&changed(2), &["2", "1", "version"]);
    let checksum = u16::from_le_bytes(descriptor.to_bytes()[30..].try_into().unwrap());
    assert_says(&changed(30), &[&format!("{checksum:#06x}"), "instead of"]);
}

#[test]
fn build_errors() {
    let error = builder()
        .max_bytes(1 << 20)
        .tuning(Tuning::new().arena_size(2 << 20))
        .build()
        .unwrap_err();
    assert_says(&error, &["arena_size", "2097152", "1", "1048576", "bytes"]);
    assert_says(&Namespace::new("a/b").unwrap_err(), &["a/b", "60", "A-Z"]);
    assert_says(
        &builder().mode(0o777).build().unwrap_err(),
        &["0o777", "0o600"],
    );
    let stranger = Namespace::default().of_user(12345);
    assert_says(
        &builder().namespace(&stranger).build().unwrap_err(),
        &["12345", "the namespace"],
    );
}

#[test]
fn capacity_error() {
    let (provider, _) = pair();
    let mut buffer = provider.alloc(100).unwrap();
    let error = buffer.resize(1 << 20).unwrap_err();
    assert_says(&error, &["1048576", &buffer.capacity().to_string()]);
}

/// A call without a size that failed.
fn os() -> OsError {
    Inspector::in_directory("/nowhere/at/all")
        .report()
        .unwrap_err()
}

/// A printed chain of causes has no gaps, and says nothing twice.
#[test]
fn source_is_not_displayed() {
    let exhausted = || {
        builder()
            .max_bytes(1 << 20)
            .build()
            .unwrap()
            .alloc(2 << 20)
            .unwrap_err()
    };
    let caused: [(&str, Box<dyn Error>); 6] = [
        ("BuildError::NumaNode", {
            Box::new(BuildError::NumaNode {
                node: 1,
                source: os(),
            })
        }),
        ("AllocError::TimedOut", {
            Box::new(AllocError::TimedOut {
                timeout: Duration::from_secs(1),
                source: Box::new(exhausted()),
            })
        }),
        (
            "AllocError::ReserveShare",
            Box::new(AllocError::ReserveShare(ShareError::Forked)),
        ),
        (
            "RecvError::Attach",
            Box::new(RecvError::Attach(AttachError::Forked)),
        ),
        ("RecvError::NoHelper", Box::new(RecvError::NoHelper(os()))),
        (
            "SendErrorKind::NoHelper",
            Box::new(SendErrorKind::NoHelper(os())),
        ),
    ];
    for (name, error) in &caused {
        assert!(error.source().is_some(), "{name} keeps its cause to itself");
        assert_is_said_once(name, &**error);
    }
    let number = RecvError::NotConnected { errno: 24 };
    assert!(
        number.source().is_none() && number.to_string().contains("error"),
        "a number has no cause: {number}"
    );
}

/// Fails if an error of the chain contains the text of a later one.
fn assert_is_said_once(name: &str, error: &dyn Error) {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        chain.push(cause.to_string());
        next = cause.source();
    }
    for (at, text) in chain.iter().enumerate() {
        for cause in &chain[at + 1..] {
            assert!(
                !text.contains(cause.as_str()),
                "{name} says its cause twice: {chain:?}"
            );
        }
    }
}

#[test]
fn os_error_without_size() {
    assert_says(&os(), &["/nowhere/at/all", "readdir"]);
    assert!(
        os().bytes().is_none() && !os().to_string().contains("bytes"),
        "{}",
        os()
    );
}

#[test]
fn errors_are_send() {
    fn is_error<T>()
    where
        T: Error + Clone + PartialEq + Send + Sync + UnwindSafe + RefUnwindSafe + Into<io::Error>,
    {
    }
    is_error::<AllocError>();
    is_error::<ChannelError>();
    is_error::<SendError>();
    is_error::<SendErrorKind>();
    is_error::<RecvError>();
    is_error::<shm_pool::BuildError>();
    is_error::<AttachError>();
    is_error::<ShareError>();
    is_error::<DescriptorError>();
    is_error::<shm_pool::CapacityError>();
    is_error::<OsError>();
}

/// The questions that a caller asks of an error of a channel.
#[test]
fn predicates() {
    let provider = Provider::builder().build().unwrap();
    let client = Client::new();
    let name = unique_prefix("predicates");
    assert!(Receiver::builder()
        .namespace(client.namespace())
        .open(&name)
        .unwrap_err()
        .is_retryable());
    let mut sender = Sender::builder()
        .capacity(2)
        .max_borrowed(1)
        .create(&provider, &name)
        .unwrap();
    assert!(Sender::create(&provider, &name).unwrap_err().is_retryable());
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open(&name)
        .unwrap();
    let error = receiver.try_recv().unwrap_err();
    assert!(error.is_retryable() && !error.is_timeout(), "{error}");
    let error = receiver.recv_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(error.is_retryable() && error.is_timeout(), "{error}");
    assert!(!error.is_disconnected() && !error.is_message_lost());

    let message = || provider.alloc(1).unwrap().freeze();
    sender.try_send(message()).unwrap();
    let error = sender.try_send(message()).unwrap_err();
    assert!(
        error.is_retryable() && !error.is_disconnected() && !error.is_timeout(),
        "none may be borrowed: {error}"
    );
    let refused = std::iter::repeat_with(|| sender.try_send_copy(b""))
        .find_map(Result::err)
        .unwrap();
    assert!(refused.is_retryable(), "no slot: {refused}");
    drop(receiver);
    let error = sender.try_send(message()).unwrap_err();
    assert!(error.is_disconnected() && !error.is_retryable(), "{error}");
    drop(sender);

    let successor = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open(&name)
        .unwrap();
    drop(successor);
    let error = receiver.recv().unwrap_err();
    assert!(error.is_disconnected() && !error.is_retryable(), "{error}");
}

/// Waits for receivers say that none joined, and how long they waited.
#[test]
fn no_receiver() {
    let (provider, _) = pair();
    let wait = Duration::from_millis(1);
    let mut sender = Sender::create(&provider, &unique_prefix("no-receiver")).unwrap();
    let error = sender.wait_for_receiver(wait).unwrap_err();
    assert_eq!(error.to_string(), "no receiver joined within 1ms");
    let mut publisher = Publisher::create(&provider, &unique_prefix("no-receivers")).unwrap();
    let few = publisher.wait_for_receivers(2, wait).unwrap_err();
    assert_eq!(few.to_string(), "fewer than 2 receivers joined within 1ms");
    assert!(error.is_timeout() && few.is_timeout());
}

/// A limit of bytes is in the text of an error that it causes.
#[test]
fn both_limits() {
    let (provider, _) = pair();
    let name = unique_prefix("both-limits");
    let publisher = Publisher::builder().max_bytes_per_receiver(128);
    let mut publisher = publisher
        .on_full(OnFull::Block)
        .create(&provider, &name)
        .unwrap();
    let _subscriber = shm_pool::channel::Subscriber::open(&name).unwrap();
    publisher.wait_for_receivers(1, Duration::MAX).unwrap();
    let refused = std::iter::repeat_with(|| publisher.try_send(message(&provider, 64, 1)))
        .take(100)
        .find_map(Result::err)
        .expect("the limit is reached");
    assert_says(&refused, &["2048 buffers", "128 bytes"]);
}

fn io_kind(error: impl Into<io::Error>) -> io::ErrorKind {
    error.into().kind()
}

/// The kind of each error survives the conversion into an [`io::Error`], and so does the text.
#[test]
fn into_io_error() {
    use io::ErrorKind as Kind;
    let shm = || PathBuf::from("/dev/shm/x");
    let provider = pair().0.id();
    let kinds = [
        (io_kind(RecvError::Empty), Kind::WouldBlock),
        (io_kind(RecvError::TimedOut), Kind::TimedOut),
        (io_kind(RecvError::Disconnected), Kind::BrokenPipe),
        (io_kind(RecvError::Interrupted), Kind::Interrupted),
        (
            io_kind(SendErrorKind::Full { capacity: 1 }),
            Kind::WouldBlock,
        ),
        (io_kind(SendErrorKind::TimedOut), Kind::TimedOut),
        (io_kind(SendErrorKind::Disconnected), Kind::BrokenPipe),
        (
            io_kind(SendErrorKind::Alloc(Box::new(AllocError::TooLarge {
                len: 2,
                max: 1,
            }))),
            Kind::InvalidInput,
        ),
        (
            io_kind(SendError::from(SendErrorKind::Interrupted)),
            Kind::Interrupted,
        ),
        (io_kind(ChannelError::NotFound(shm())), Kind::NotFound),
        (
            io_kind(ChannelError::NameTaken {
                object: shm(),
                process: None,
            }),
            Kind::AlreadyExists,
        ),
        (
            io_kind(AllocError::TooLarge { len: 2, max: 1 }),
            Kind::InvalidInput,
        ),
        (
            io_kind(AllocError::Exhausted {
                len: 1,
                max_bytes: 1,
                in_use: 1,
                idle: 0,
                leased: 0,
            }),
            Kind::OutOfMemory,
        ),
        (io_kind(AttachError::Closed(provider)), Kind::BrokenPipe),
        (io_kind(AttachError::NoProvider(shm())), Kind::NotFound),
        (
            io_kind(ShareError::TooManyShared { max: 1 }),
            Kind::WouldBlock,
        ),
        (io_kind(BuildError::Mode(0)), Kind::InvalidInput),
        (io_kind(BuildError::Os(os())), Kind::NotFound),
        (io_kind(os()), Kind::NotFound),
        (
            io_kind(shm_pool::Descriptor::from_bytes([0; 32]).unwrap_err()),
            Kind::InvalidData,
        ),
    ];
    for (at, (found, expected)) in kinds.into_iter().enumerate() {
        assert_eq!(found, expected, "error {at}");
    }
    assert_eq!(io::Error::from(os()).to_string(), os().to_string());
}

/// The system's own text is in the error's.
#[test]
fn cause_is_displayed() {
    let text = "No such file or directory (os error 2)";
    assert_says(&os(), &[text]);
    assert_says(&BuildError::Os(os()), &[text]);
    assert_says(&ChannelError::Os(os()), &[text]);
}

/// Each advice is worded for another language too, with nothing of Rust in it.
#[test]
fn advice_is_worded_elsewhere() {
    let error = pair().0.alloc(usize::MAX).unwrap_err();
    assert!(error.to_string().contains("ProviderBuilder::max_alloc"));
    let caused = AllocError::TimedOut {
        timeout: Duration::from_secs(1),
        source: Box::new(error),
    };
    let text = shm_pool::text_in(&caused, |advice| match advice {
        shm_pool::Advice::RaiseMaxAlloc => "do something",
        _ => "do something else",
    });
    assert!(
        text.ends_with("; do something") && !text.contains("::"),
        "{text}"
    );
}
