//! A channel within one process: capacity, ownership of buffers, and errors at its end.

use crate::fixtures::{
    builder, files, open_files, provider, segment, unique_prefix, FOR_EVER, NONE, NOW,
};
use shm_pool::channel::{
    ChannelError, Publisher, Receiver, RecvError, SendErrorKind, Sender, Subscriber,
};
use shm_pool::inspect::Inspector;
use shm_pool::{AttachError, Client, Namespace, Provider};
use std::alloc::Layout;
use std::fs;
use std::time::Duration;

fn channel(test: &str, provider: &Provider, slots: usize) -> (Sender, Receiver, Client) {
    let client = Client::new();
    let name = unique_prefix(test);
    let sender = Sender::builder()
        .capacity(slots)
        .create(provider, &name)
        .unwrap();
    let receiver = Receiver::builder()
        .namespace(client.namespace())
        .open(&name)
        .unwrap();
    (sender, receiver, client)
}

/// A single-threaded program that sends as many messages as fit must not block.
#[test]
fn capacity() {
    let provider = Provider::builder().build().unwrap();
    for slots in [2, 3, 8, 65_536] {
        let (mut sender, mut receiver, _client) = channel("chan-fit", &provider, slots);
        assert_eq!((sender.capacity(), receiver.capacity()), (slots, slots));
        assert_eq!(
            (sender.max_borrowed(), sender.provider().id()),
            (receiver.max_borrowed(), provider.id())
        );
        let mut sent = 0_u64;
        let mut received = 0_u64;
        for round in 0..20 {
            while sent - received < slots as u64 {
                sender.try_send_copy(&sent.to_ne_bytes()).unwrap();
                sent += 1;
            }
            for _ in 0..1 + round % slots {
                assert_eq!(&receiver.try_recv().unwrap()[..], received.to_ne_bytes());
                received += 1;
            }
        }
    }
}

#[test]
fn capacity_out_of_range() {
    let provider = Provider::builder().build().unwrap();
    for wanted in [0, 1, 65_537, usize::MAX] {
        let error = Sender::builder()
            .capacity(wanted)
            .create(&provider, &unique_prefix("chan-capacity"))
            .unwrap_err();
        assert!(
            matches!(&error, ChannelError::OutOfRange(of) if of.option() == "capacity" && of.allowed() == (2..=65_536)),
            "{error}"
        );
    }
}

/// With the prefix `shm_pool`, 218 bytes of a file name remain.
#[test]
fn invalid_names() {
    let provider = provider();
    let invalid = [
        (String::new(), 0),
        ("a\0b".to_owned(), 5),
        ("x".repeat(219), 219),
        ("/".repeat(73), 219),
        ("\u{e4}".repeat(37), 222),
    ];
    for (name, escaped) in invalid {
        let error = Sender::create(&provider, &name).unwrap_err();
        let text = error.to_string();
        let ChannelError::Name { max, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(max, 218);
        assert!(text.contains(&format!("takes {escaped} bytes")), "{text}");
        assert!(text.contains("1 to 218"), "{text}");
        assert!(matches!(
            Receiver::open(&name),
            Err(ChannelError::Name { .. })
        ));
    }
}

/// ROS topics and zenoh keys are names of channels as they are, and so is any other text. The
/// watcher and the inspector report them as they were given.
#[test]
fn any_name() {
    let longest = "/".repeat(166 / 3);
    let names = [
        "/front/image_raw",
        "robot/*/pose",
        "a.b",
        "a",
        "..",
        "%2E",
        "two words",
        "line\nbreak",
        "Z\u{fc}rich \u{1f916}",
        "channel",
        "c.00000000000000ff.connection",
        &longest,
    ];
    let unique = unique_prefix("any-name");
    let longest = format!("{unique}.{}", "p".repeat(59 - unique.len()));
    for prefix in [&unique, &format!("{unique}.dots"), &longest] {
        let names_here = Namespace::new(prefix).unwrap();
        let provider = builder().namespace(&names_here).build().unwrap();
        let mut publishers = Vec::new();
        let mut receivers = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let mut publisher = Publisher::create(&provider, name).unwrap();
            let subscriber = Subscriber::builder().namespace(&names_here).open(name);
            receivers.push(subscriber.unwrap());
            let sent = publisher.try_send_copy(&[number as u8]).unwrap();
            assert_eq!(sent.receivers, 1, "{name}");
            publishers.push(publisher);
        }
        for (number, receiver) in receivers.iter_mut().enumerate() {
            assert_eq!(receiver.recv().unwrap()[..], [number as u8]);
        }

        let mut expected = names;
        expected.sort();
        let mut listed = Vec::new();
        for channel in names_here.channels().unwrap() {
            listed.push(channel.name);
        }
        listed.sort();
        assert_eq!(listed, expected);
        let report = Inspector::new().namespace(&names_here).report().unwrap();
        let mut inspected = Vec::new();
        for channel in &report.channels {
            assert_eq!(channel.receivers.len(), 1, "{}", channel.name);
            assert_eq!(&channel.prefix, prefix);
            inspected.push(channel.name.clone());
        }
        inspected.sort();
        assert_eq!(inspected, expected);

        drop(receivers);
        drop(publishers);
        drop(provider);
        assert_eq!(files(&format!("{prefix}.")), NONE);
    }
}

/// A prefix that begins with another one and a dot is another prefix: sweeps of the shorter one
/// leave its objects alone, and the inspector tells them apart.
#[test]
fn nested_prefixes() {
    let outer = unique_prefix("nested");
    let inner = format!("{outer}.0123456789abcdef");
    let inner_names = Namespace::new(&inner).unwrap();
    let outer_names = Namespace::new(&outer).unwrap();
    let provider = builder().namespace(&inner_names).build().unwrap();
    let message = provider.alloc(100).unwrap().freeze();
    let mut sender = Sender::create(&provider, "channel").unwrap();
    sender.send(message).unwrap();

    let swept = outer_names.sweep().unwrap();
    assert_eq!(swept.objects, 0);
    assert_eq!(files(&format!("{outer}.")).len(), 3);
    let report = Inspector::new().namespace(&outer_names).report().unwrap();
    assert!(report.providers.is_empty() && report.channels.is_empty());
    let report = Inspector::new().report().unwrap();
    let its: Vec<_> = report
        .channels
        .iter()
        .filter(|channel| channel.prefix.starts_with(&outer))
        .collect();
    let [channel] = its[..] else {
        panic!("{its:?}")
    };
    assert_eq!((&channel.prefix, &channel.name[..]), (&inner, "channel"));
    assert_eq!(channel.provider, Some(provider.id()));
}

/// A sweep removes no file whose name this crate would not write.
#[test]
fn files_of_others() {
    let prefix = unique_prefix("others");
    let others = [
        "a%2fb.channel",
        "a%41.channel",
        "a%00.channel",
        "%FF.channel",
        "a.b.channel",
        ".channel",
        "..channel",
        "a%2Fb.ff.connection",
        "0123456789ABCDEF.1",
    ];
    let mut paths = Vec::new();
    for other in others {
        let path = format!("/dev/shm/{prefix}.{other}");
        fs::write(&path, "").unwrap();
        paths.push(path);
    }
    // By its content, it is an object whose creator was killed.
    let ours = format!("/dev/shm/{prefix}.a%2Fb.channel");
    fs::write(&ours, "").unwrap();
    let swept = Namespace::new(&prefix).unwrap().sweep().unwrap();
    let mut left = 0;
    for path in &paths {
        if fs::metadata(path).is_ok() {
            left += 1;
        }
        let _ = fs::remove_file(path);
    }
    assert_eq!(left, others.len());
    assert_eq!(swept.objects, 1);
    assert!(fs::metadata(ours).is_err());
}

/// The number of buffers saturates with any options.
#[test]
fn number_of_buffers() {
    let options = Sender::builder().capacity(3);
    assert_eq!(options.buffers(2), 1 + 3 + 1 + 2);
    assert_eq!(options.buffers(usize::MAX), usize::MAX);
    for views in [0, 1, usize::MAX] {
        let options = Sender::builder().capacity(usize::MAX);
        assert_eq!(options.buffers(views), usize::MAX);
    }
}

/// It counts once in the statistics.
#[test]
fn buffer_in_several_channels() {
    let provider = Provider::builder().build().unwrap();
    let mut channels = [
        channel("chan-a", &provider, 8),
        channel("chan-b", &provider, 8),
        channel("chan-c", &provider, 8),
    ];
    let buffer = provider.alloc(5000).unwrap().freeze();
    let size = buffer.capacity();
    let other = provider.alloc(5000).unwrap();
    for (sender, ..) in &mut channels {
        sender.send(buffer.clone()).unwrap();
    }
    drop(buffer);
    let mut received = Vec::new();
    for (_, receiver, _) in &mut channels {
        received.push(receiver.recv().unwrap());
    }
    let stats = provider.stats();
    assert_eq!(
        (stats.bytes_in_use, stats.bytes_leased),
        (size, size),
        "one is written, one is read by three"
    );
    drop((received, other));
}

/// A receiver must not retry a message that it can never map.
#[test]
fn unmappable_message() {
    let prefix = unique_prefix("chan-never");
    let provider = Provider::builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut sender = Sender::create(&provider, "never").unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("never")
        .unwrap();
    let buffer = provider.alloc(5000).unwrap().freeze();
    // Links are not followed, so this can never be opened.
    let segment = format!("/dev/shm/{prefix}{}", segment(&provider, 1));
    fs::remove_file(&segment).unwrap();
    std::os::unix::fs::symlink("/dev/null", &segment).unwrap();
    sender.send(buffer.clone()).unwrap();
    sender.send_copy(b"the next one").unwrap();
    let error = receiver.recv().unwrap_err();
    assert!(
        matches!(&error, RecvError::Attach(AttachError::Os(os)) if os.errno() == Some(libc::ELOOP)),
        "{error}"
    );
    assert_eq!(&receiver.recv().unwrap()[..], b"the next one");
    assert!(!buffer.is_leased(), "what was not received has come back");
    drop((sender, receiver, buffer, provider));
    // The link is not the provider's, so its end leaves it.
    fs::remove_file(&segment).unwrap();
}

/// A receiver can read a message as a struct.
#[test]
fn alignment() {
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver, _client) = channel("chan-align", &provider, 8);
    for (len, align) in [(1, 1), (100, 128), (70_000, 4096)] {
        let buffer = provider
            .alloc_layout(Layout::from_size_align(len, align).unwrap())
            .unwrap();
        sender.send(buffer.freeze()).unwrap();
        let message = receiver.recv().unwrap();
        assert_eq!(
            (message.len(), message.as_ptr() as usize % align.max(64)),
            (len, 0)
        );
    }
    for len in [0, 1, 7, 48] {
        sender.send_copy(&vec![1; len]).unwrap();
        // The alignment holds wherever the value is moved.
        let messages = [(0_u8, receiver.recv().unwrap())];
        assert_eq!(
            (messages[0].1.len(), messages[0].1.as_ptr() as usize % 8),
            (len, 0)
        );
    }
}

/// It does not release the message of a receiver that got it through a channel.
#[test]
fn duplicate_grant_beside_channel() {
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver, client) = channel("chan-taken-up", &provider, 4);
    sender.wait_for_receiver(FOR_EVER).unwrap();
    let peer = client.connect(provider.id()).unwrap();
    let mut buffer = provider.alloc(100).unwrap();
    buffer.fill(1);
    let message = buffer.freeze();
    let granted = message.grant(peer).unwrap();
    sender.send(message.clone()).unwrap();
    let received = receiver.recv().unwrap();
    drop(client.attach(&granted).unwrap());
    assert!(matches!(
        client.attach(&granted),
        Err(AttachError::NotGranted)
    ));
    assert!(message.is_leased());
    let message = message.try_into_mut().expect_err("it is being read");
    drop(received);
    assert!(!message.is_leased());
}

/// Miscounted borrowed buffers would release a message while its receiver reads it, or never.
#[test]
fn max_borrowed() {
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("chan-often");
    let mut sender = Sender::builder()
        .capacity(64)
        .max_borrowed(32)
        .create(&provider, &name)
        .unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    let message = provider.alloc_zeroed(10).unwrap().freeze();
    let mut held = Vec::new();
    for _ in 0..32 {
        sender.send(message.clone()).unwrap();
        held.push(receiver.recv().unwrap());
    }
    let error = sender.try_send(message.clone()).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            SendErrorKind::TooManyBorrowed {
                max: 32,
                max_bytes: None
            }
        ),
        "{error}"
    );
    drop(held);
    assert!(!message.is_leased());
    sender.send(message).unwrap();
    assert_eq!(receiver.recv().unwrap().len(), 10);
}

/// A publisher that exits cleanly does not lose its last messages.
#[test]
fn wait_until_received() {
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver, _client) = channel("chan-received", &provider, 4);
    assert_eq!(sender.wait_until_received(NOW), Ok(()), "nothing was sent");
    // Each slot is once the last one sent.
    for _ in 0..10 {
        sender.send_copy(b"").unwrap();
        assert_eq!(
            sender.wait_until_received(NOW),
            Err(SendErrorKind::TimedOut.into())
        );
        assert!(receiver.try_recv().unwrap().is_empty());
        assert!(matches!(receiver.try_recv(), Err(RecvError::Empty)));
        assert_eq!(sender.wait_until_received(NOW), Ok(()));
    }
    sender
        .send(provider.alloc_zeroed(20_000).unwrap().freeze())
        .unwrap();
    assert_eq!(
        sender.wait_until_received(NOW),
        Err(SendErrorKind::TimedOut.into())
    );
    let receiving = std::thread::spawn(move || {
        let message = receiver.recv().unwrap();
        (message.len(), receiver.recv().map(|_| ()))
    });
    sender.wait_until_received(FOR_EVER).unwrap();
    drop((sender, provider));
    let (len, end) = receiving.join().unwrap();
    assert_eq!(len, 20_000);
    assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
}

/// A program that keeps a clone of a sent buffer cannot overwrite the receiver's memory.
#[test]
fn borrowed_outlives_sender_and_provider() {
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver, _client) = channel("chan-kept", &provider, 4);
    let mut buffer = provider.alloc(5).unwrap();
    buffer.copy_from_slice(b"hello");
    let kept = buffer.freeze();
    sender.send(kept.clone()).unwrap();
    let message = receiver.recv().unwrap();
    let kept = kept.try_into_mut().expect_err("it is lent");
    drop((sender, provider));
    assert!(kept.is_leased());
    let kept = kept
        .try_into_mut()
        .expect_err("nobody knows any more when it comes back");
    assert_eq!((&message[..], &kept[..]), (&b"hello"[..], &b"hello"[..]));
}

/// A server that opens a channel for each client does not run out of descriptors.
#[test]
fn closed_channels_are_unmapped() {
    let provider = Provider::builder().build().unwrap();
    for _ in 0..50 {
        let (mut sender, receiver, _client) = channel("chan-over", &provider, 4);
        // This message is returned when its receiver is dropped, without notifying the pool.
        sender.send(provider.alloc(5000).unwrap().freeze()).unwrap();
        drop((receiver, sender));
        assert!(
            open_files("chan-over") <= 4,
            "the last channel's, and no more"
        );
    }
}

#[test]
fn channel_modes() {
    let provider = Provider::builder().build().unwrap();
    for mode in [0o400, 0o700, 0o066, 0o1600] {
        let made = Sender::builder().mode(mode).create(&provider, "chan-mode");
        assert!(
            matches!(made, Err(ChannelError::Mode(found)) if found == mode),
            "{mode:#o}"
        );
    }
}

/// Its creator was killed. `open_timeout` waits for a successor.
#[test]
fn unfinished_object() {
    let prefix = unique_prefix("ch-unfinished");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let path = format!("/dev/shm/{prefix}.c.channel");
    // Whole pages of any system.
    for len in [64 << 10, 3 * (64 << 10)] {
        std::fs::write(&path, vec![0; len]).unwrap();
        let error = Receiver::builder()
            .namespace(client.namespace())
            .open("c")
            .unwrap_err();
        assert!(matches!(error, ChannelError::Closed { .. }), "{error}");
        let sender = Sender::create(&provider, "c").unwrap();
        drop(
            Receiver::builder()
                .namespace(client.namespace())
                .open_timeout("c", Duration::ZERO)
                .unwrap(),
        );
        drop(sender);
    }
}
