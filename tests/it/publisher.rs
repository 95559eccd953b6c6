//! A publisher and its receivers within one process: delivery, slow receivers, returned buffers and
//! notifications.

use crate::fixtures::{
    address, builder, files, holds, mappings, message, provider, unique_prefix, FOR_EVER, NONE, NOW,
};
use crate::served::Served;
use shm_pool::channel::{
    ChannelError, Message, OnEnd, OnFull, Publisher, PublisherBuilder, RecvError, SendErrorKind,
    SendOptions, Subscriber, SubscriberBuilder,
};
use shm_pool::{Client, Namespace, Provider};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

struct Scene {
    publisher: Publisher,
    provider: Provider,
    client: Client,
    name: String,
}

impl Scene {
    fn new(test: &str, options: PublisherBuilder) -> Self {
        let provider = provider();
        let name = unique_prefix(test);
        Self {
            publisher: options.create(&provider, &name).unwrap(),
            provider,
            client: Client::new(),
            name,
        }
    }

    fn receiver(&self, options: SubscriberBuilder) -> Subscriber {
        options
            .namespace(self.client.namespace())
            .open(&self.name)
            .unwrap()
    }

    fn behind(&self, on_full: OnFull, capacity: usize) -> Subscriber {
        self.receiver(
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(on_full)
                .capacity(capacity),
        )
    }

    /// Sends a buffer of a thousand bytes, stamped.
    fn send(&mut self, stamp: u64) -> usize {
        self.publisher
            .send_timeout(message(&self.provider, 1_000, stamp), NOW)
            .unwrap()
            .receivers
    }

    /// Bytes that are not available to other requests.
    fn in_use(&self) -> usize {
        let stats = self.provider.stats();
        stats.bytes_in_use + stats.bytes_leased
    }

    fn dropped(&mut self) -> Vec<u64> {
        self.publisher
            .served()
            .receivers()
            .map(|receiver| receiver.missed.total())
            .collect()
    }
}

fn is(message: &Message, stamp: u64) -> bool {
    message.len() == 1_000 && holds(message, stamp)
}

/// Returns all messages that `receiver` gets without waiting, as their stamp and the number missed
/// before.
fn all(receiver: &mut Subscriber) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    while let Ok(message) = receiver.try_recv() {
        let stamp = u64::from_le_bytes(message[..8].try_into().unwrap());
        found.push((stamp, message.missed()));
    }
    found
}

/// Returns the stamps of all messages that `receiver` gets without waiting.
fn all_stamps(receiver: &mut Subscriber) -> Vec<u64> {
    all(receiver).into_iter().map(|(stamp, _)| stamp).collect()
}

/// All receivers get the same bytes, not copies, and the memory is released by the last one only.
#[test]
fn sixty_four_receivers() {
    let mut scene = Scene::new("pub-same", Publisher::builder().max_subscribers(64));
    let mut receivers = Vec::new();
    for _ in 0..64 {
        receivers.push(scene.receiver(Subscriber::builder().on_end(OnEnd::Return)));
    }
    assert_eq!(scene.send(7), 64);
    let mut messages = Vec::new();
    for receiver in &mut receivers {
        messages.push(receiver.try_recv().unwrap());
    }
    assert!(messages
        .iter()
        .all(|message| is(message, 7) && message.missed() == 0));
    let places: BTreeSet<_> = messages.iter().map(|message| address(message)).collect();
    assert_eq!(places.len(), 64, "each receiver maps for itself");
    assert_eq!(scene.in_use(), 1_024, "one chunk for all");
    let mut messages = messages.into_iter();
    let last = messages.next();
    drop(messages);
    assert_eq!(scene.in_use(), 1_024, "one still reads it");
    drop(last);
    assert_eq!(scene.in_use(), 0);
}

#[test]
fn no_receivers() {
    let mut scene = Scene::new("pub-nobody", Publisher::builder());
    assert!(scene.publisher.served().receivers().next().is_none());
    assert_eq!((scene.send(1), scene.in_use()), (0, 0));
    assert_eq!(scene.publisher.send_copy(b"x").unwrap().receivers, 0);
    assert_eq!(
        scene.publisher.wait_for_receivers(1, NOW),
        Err(SendErrorKind::NoReceiver {
            receivers: 1,
            timeout: NOW
        }
        .into())
    );
    assert_eq!(scene.publisher.wait_until_received(NOW), Ok(()));
}

/// A late receiver gets no accidental backlog, and misses no message sent after it joined.
#[test]
fn late_receiver() {
    let mut scene = Scene::new("pub-late", Publisher::builder());
    let mut first = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    assert_eq!(scene.send(0), 1);
    let mut second = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    assert_eq!(scene.send(1), 2);
    assert_eq!(all(&mut first), [(0, 0), (1, 0)]);
    assert_eq!(all(&mut second), [(1, 0)]);
}

/// It gets exactly the last `n`, before newer ones.
#[test]
fn history() {
    let mut scene = Scene::new("pub-history", Publisher::builder().history(3));
    let mut first = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    for number in 0..5 {
        scene.send(number);
    }
    assert_eq!(all(&mut first).len(), 5);
    assert_eq!(scene.in_use(), 3 * 1_024, "what is kept is in use");
    let mut late = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    let mut small = scene.behind(OnFull::DropNewest, 1);
    assert!(matches!(late.try_recv(), Err(RecvError::Empty)));
    assert_eq!(
        scene.publisher.served().receivers().count(),
        3,
        "asking is enough"
    );
    assert_eq!(all(&mut late), [(2, 0), (3, 0), (4, 0)]);
    assert_eq!(all(&mut small), [(4, 0)]);
    let sent = scene.publisher.send_copy(&5_u64.to_le_bytes()).unwrap();
    assert_eq!(sent.receivers, 3);
    let mut later = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    scene.send(6);
    assert_eq!(all(&mut later), [(3, 0), (4, 0), (5, 0), (6, 0)]);
    for receiver in [&mut first, &mut late, &mut small] {
        assert_eq!(all(receiver).first(), Some(&(5, 0)));
    }
    drop(scene.publisher);
    let stats = scene.provider.stats();
    assert_eq!(stats.bytes_in_use, 0);
}

/// The receiver knows how many it missed, and holds no memory of them.
#[test]
fn keep_latest() {
    for capacity in [1, 2, 3, 7, 256] {
        let mut scene = Scene::new(&format!("pub-latest-{capacity}"), Publisher::builder());
        let mut receiver = scene.behind(OnFull::DropOldest, capacity);
        let mut next = 0;
        let mut expected = 0;
        for burst in [
            1,
            capacity,
            1,
            capacity + 1,
            2 * capacity + 3,
            0,
            5 * capacity,
            1,
        ] {
            for _ in 0..burst {
                assert_eq!(scene.send(next), 1);
                next += 1;
            }
            assert!(
                scene.in_use() <= capacity * 1_024,
                "{} in use",
                scene.in_use()
            );
            let first = expected.max(next.saturating_sub(capacity as u64));
            let mut wanted = Vec::new();
            for stamp in first..next {
                // Only the first says how many were missed before it.
                let missed = if stamp == first { first - expected } else { 0 };
                wanted.push((stamp, missed as u32));
            }
            assert_eq!(all(&mut receiver), wanted);
            expected = next;
            assert_eq!(scene.in_use(), 0);
        }
        let dropped = scene.dropped()[0];
        let capacity = capacity as u64;
        let mut missed = 0;
        for burst in [capacity + 1, 2 * capacity + 3, 5 * capacity] {
            missed += burst.saturating_sub(capacity);
        }
        assert_eq!(dropped, missed);
    }
}

/// A message that is being read is neither withdrawn nor counted as queued.
#[test]
fn keep_latest_spares_received() {
    let mut scene = Scene::new("pub-read", Publisher::builder());
    let mut receiver = scene.behind(OnFull::DropOldest, 1);
    scene.send(0);
    let read = receiver.try_recv().unwrap();
    for number in 1..10 {
        scene.send(number);
    }
    assert!(is(&read, 0));
    assert_eq!(all(&mut receiver), [(9, 8)]);
    assert_eq!(scene.in_use(), 1_024);
    drop(read);
    assert_eq!(scene.in_use(), 0);
}

/// A buffer that is withdrawn for its borrowed buffer leaves the older messages that wait, whole
/// rounds of slots after the receiver's last one.
#[test]
fn withdrawn_buffer_hides_no_older_message() {
    for behind in 1..20 {
        let name = format!("pub-older-{behind}");
        let mut scene = Scene::new(&name, Publisher::builder());
        let mut receiver = scene.receiver(
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .capacity(3)
                .max_borrowed(2),
        );
        scene.send(0);
        let held = receiver.try_recv().unwrap();
        let mut next = 1;
        for _ in 0..behind {
            let sent = scene.publisher.send_copy(&u64::to_le_bytes(next)).unwrap();
            assert_eq!(sent.receivers, 1);
            next += 1;
        }
        // The receiver's last borrowed buffer, taken from this buffer by the next one.
        scene.send(next);
        assert_eq!(scene.send(next + 1), 1);
        let waiting = scene.publisher.served().receivers().next().unwrap().waiting;
        let found = all_stamps(&mut receiver);
        assert_eq!(found.len(), waiting, "{behind} behind: {found:?}");
        assert_eq!(found.last(), Some(&(next + 1)));
        assert!(!found.contains(&next), "it was withdrawn");
        drop(held);
    }
}

#[test]
fn drop_new() {
    let mut scene = Scene::new("pub-new", Publisher::builder());
    let mut receiver = scene.behind(OnFull::DropNewest, 2);
    let mut sent = 0;
    for number in 0..10 {
        sent += scene.send(number);
    }
    assert_eq!(sent, 3, "one more fits until it gets its first");
    assert_eq!(all(&mut receiver), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(scene.dropped(), [7]);
    let sent = scene.publisher.send_copy(&10_u64.to_le_bytes()).unwrap();
    assert_eq!(sent.receivers, 1);
    assert_eq!(all(&mut receiver), [(10, 7)]);
    scene.send(11);
    assert_eq!(all(&mut receiver), [(11, 0)], "said once");
}

/// A receiver that has used its borrowed buffers gets no more, does not block others, and learns of
/// the gap.
#[test]
fn receiver_at_borrowed_limit() {
    for on_full in [OnFull::DropOldest, OnFull::DropNewest] {
        let mut scene = Scene::new(&format!("pub-holds-{on_full:?}"), Publisher::builder());
        let mut receiver = scene.receiver(
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(on_full)
                .max_borrowed(2),
        );
        let mut other = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
        let mut held = Vec::new();
        for number in 0..2 {
            scene.send(number);
            held.push(receiver.try_recv().unwrap());
        }
        assert_eq!((scene.send(2), scene.send(3)), (1, 1));
        let sent = scene.publisher.send_copy(&4_u64.to_le_bytes()).unwrap();
        assert_eq!(sent.receivers, 2);
        assert_eq!(all(&mut receiver), [(4, 2)]);
        assert_eq!(all(&mut other).len(), 5);
        drop(held);
        assert_eq!(scene.send(5), 2);
        assert_eq!(all(&mut receiver), [(5, 0)]);
    }
    let mut scene = Scene::new("pub-holds-wait", Publisher::builder());
    let mut receiver = scene.receiver(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::Block)
            .max_borrowed(1),
    );
    scene.send(0);
    let held = receiver.try_recv().unwrap();
    let refused = scene
        .publisher
        .try_send(message(&scene.provider, 1_000, 1))
        .unwrap_err();
    assert_eq!(
        refused.kind(),
        SendErrorKind::TooManyBorrowed {
            max: 1,
            max_bytes: Some(256 << 20)
        }
    );
    assert!(holds(&refused.into_message(), 1));
    drop(held);
    assert_eq!(scene.send(1), 1);
}

/// A refused message reaches no receiver, and none is withdrawn for a message that was never sent.
#[test]
fn send_is_all_or_nothing() {
    let mut scene = Scene::new("pub-wait", Publisher::builder());
    let mut slow = scene.behind(OnFull::Block, 2);
    let mut latest = scene.behind(OnFull::DropOldest, 1);
    while scene.publisher.try_send_copy(&7_u64.to_le_bytes()).is_ok() {}
    let refused = scene
        .publisher
        .try_send(message(&scene.provider, 1_000, 9))
        .unwrap_err();
    assert_eq!(refused.kind(), SendErrorKind::Full { capacity: 2 });
    let refused = scene
        .publisher
        .send_timeout(refused.into_message(), NOW)
        .unwrap_err();
    assert_eq!(refused.kind(), SendErrorKind::TimedOut);
    assert_eq!(
        scene
            .publisher
            .send_copy_with(b"", SendOptions::new().timeout(Duration::from_nanos(1))),
        Err(SendErrorKind::TimedOut.into())
    );
    let found = all(&mut latest);
    assert!(matches!(found[..], [(7, _)]), "{found:?}");
    let Scene {
        mut publisher,
        provider,
        ..
    } = scene;
    let sending = thread::spawn(move || {
        assert_eq!(publisher.send(refused.into_message()).unwrap().receivers, 2);
        (publisher, provider)
    });
    while !is_stamp(&slow.recv_timeout(FOR_EVER).unwrap(), 9) {}
    let _publisher = sending.join().unwrap();
    assert_eq!(all(&mut latest), [(9, 0)]);
}

fn is_stamp(message: &Message, stamp: u64) -> bool {
    message[..8] == stamp.to_le_bytes()
}

/// Others are not disturbed; the memory is released, and the registration can be reused.
#[test]
fn receivers_rejoin() {
    let mut scene = Scene::new("pub-come", Publisher::builder().max_subscribers(2));
    let mut stays = scene.behind(OnFull::Block, 64);
    for round in 0..40 {
        let mut guest = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
        let error = Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(scene.client.namespace())
            .open_timeout(&scene.name, NOW)
            .unwrap_err();
        assert!(
            matches!(error, ChannelError::TooManyReceivers { max: 2, .. }),
            "{error}"
        );
        assert_eq!(scene.send(round), 2);
        assert_eq!(scene.send(round), 2);
        let held = guest.try_recv().unwrap();
        drop(guest);
        assert_eq!(scene.send(round), 1);
        assert_eq!(all(&mut stays), [(round, 0); 3]);
        assert!(is(&held, round), "it is read even now");
        assert_eq!(scene.in_use(), 1_024);
        drop(held);
        assert_eq!(scene.in_use(), 0);
    }
    assert_eq!(scene.publisher.served().receivers().count(), 1);
}

/// No receiver waits for a dropped publisher, or loses a message that was sent.
#[test]
fn publisher_drop() {
    let mut scene = Scene::new("pub-goes", Publisher::builder());
    let mut known = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    scene.send(0);
    let mut unconnected = scene.receiver(Subscriber::builder().on_end(OnEnd::Return));
    let waiting = thread::spawn(move || unconnected.recv_timeout(FOR_EVER).map(|_| ()));
    let Scene {
        publisher,
        client,
        name,
        provider,
    } = scene;
    drop(publisher);
    assert!(matches!(
        waiting.join().unwrap(),
        Err(RecvError::Disconnected)
    ));
    assert_eq!(all(&mut known), [(0, 0)]);
    assert!(matches!(known.recv(), Err(RecvError::Disconnected)));
    assert!(matches!(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(client.namespace())
            .open_timeout(&name, NOW),
        Err(ChannelError::NotFound { .. })
    ));
    let again = Publisher::create(&provider, &name).unwrap();
    assert!(matches!(
        Publisher::create(&provider, &name),
        Err(ChannelError::NameTaken { .. })
    ));
    drop(again);
}

#[test]
fn refusals() {
    let provider = provider();
    let client = Client::new();
    let name = unique_prefix("pub-no");
    for receivers in [0, 65, usize::MAX] {
        let error = Publisher::builder()
            .max_subscribers(receivers)
            .create(&provider, &name)
            .unwrap_err();
        assert!(
            matches!(
                &error,
                ChannelError::OutOfRange(of) if of.option() == "max_subscribers" && of.allowed() == (1..=64)
            ),
            "{error}"
        );
    }
    let options = Publisher::builder()
        .capacity(8)
        .max_borrowed(16)
        .allow_blocking(false);
    let publisher = options.create(&provider, &name).unwrap();
    assert_eq!((publisher.capacity(), publisher.max_borrowed()), (8, 16));
    let refused = |options: SubscriberBuilder| {
        options
            .namespace(client.namespace())
            .open(&name)
            .unwrap_err()
    };
    let error = refused(Subscriber::builder().on_end(OnEnd::Return).capacity(9));
    assert!(
        matches!(
            &error,
            ChannelError::OutOfRange(of) if of.option() == "capacity" && of.allowed() == (1..=8)
        ),
        "{error}"
    );
    let error = refused(Subscriber::builder().on_end(OnEnd::Return).capacity(0));
    assert!(
        matches!(
            &error,
            ChannelError::OutOfRange(of) if of.option() == "capacity"
        ),
        "{error}"
    );
    let error = refused(Subscriber::builder().on_end(OnEnd::Return).max_borrowed(17));
    assert!(
        matches!(
            &error,
            ChannelError::OutOfRange(of) if of.option() == "max_borrowed" && of.allowed() == (1..=16)
        ),
        "{error}"
    );
    let error = refused(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::Block),
    );
    assert!(
        matches!(error, ChannelError::BlockingNotAllowed { .. }),
        "{error}"
    );
    let pair = unique_prefix("pub-no-pair");
    let _sender = shm_pool::channel::Sender::create(&provider, &pair).unwrap();
    let error = Subscriber::builder()
        .on_end(OnEnd::Return)
        .capacity(4)
        .namespace(client.namespace())
        .open(&pair)
        .unwrap_err();
    assert!(
        matches!(error, ChannelError::NotAPublisher { .. }),
        "{error}"
    );
    let error = Publisher::create(&provider, &pair).unwrap_err();
    assert!(matches!(error, ChannelError::NameTaken { .. }), "{error}");
}

/// A publisher can send buffers after its provider is dropped, and their memory is released.
#[test]
fn publisher_outlives_provider() {
    let prefix = unique_prefix("pub-outlives");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut publisher = Publisher::create(&provider, "c").unwrap();
    let mut before = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(client.namespace())
        .open("c")
        .unwrap();
    let one = message(&provider, 1_000, 1);
    let two = message(&provider, 1_000, 2);
    assert_eq!(publisher.send(one).unwrap().receivers, 1);
    assert!(is(&before.recv().unwrap(), 1), "its segment is mapped");
    drop(provider);
    assert_eq!(publisher.send(two).unwrap().receivers, 1);
    assert!(is(&before.recv().unwrap(), 2));
    drop((publisher, before));
    assert_eq!(files(&prefix), NONE);
}

/// The receivers with which the documentation's formula is tested: a rule, a capacity, and how many
/// messages each holds at a time.
const RECEIVERS: [(OnFull, usize, usize); 4] = [
    (OnFull::DropOldest, 2, 1),
    (OnFull::Block, 3, 2),
    (OnFull::DropNewest, 2, 1),
    (OnFull::DropNewest, 1, 2),
];
const HISTORY: usize = 3;

/// A publisher, sized for them, with the documented number of chunks and no more.
fn sized_scene(test: &str) -> (Scene, usize) {
    let mut receivers = Vec::new();
    for (on_full, capacity, views) in RECEIVERS {
        let options = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(on_full)
            .capacity(capacity);
        receivers.push((options, views));
    }
    let receivers = || receivers.iter().map(|(options, views)| (options, *views));
    let options = Publisher::builder().history(HISTORY);
    let chunks = options.buffers(receivers());
    let options = options.share_among(receivers());
    let provider = builder().max_bytes(chunks * 1_024).build().unwrap();
    let name = unique_prefix(test);
    let publisher = options.create(&provider, &name).unwrap();
    (
        Scene {
            publisher,
            provider,
            client: Client::new(),
            name,
        },
        chunks,
    )
}

/// The documented number of buffers is sufficient, and the share that goes with it skips no
/// receiver.
#[test]
fn sizing_rule_suffices() {
    let (mut scene, chunks) = sized_scene("pub-rule");
    let mut receivers = RECEIVERS.map(|(on_full, capacity, views)| {
        (
            scene.behind(on_full, capacity),
            Vec::<Message>::new(),
            views,
        )
    });
    assert!(scene.publisher.served().receivers().next().is_some());
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for stamp in 0..3_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (receiver, views, most) = &mut receivers[random as usize % 4];
        match random >> 32 & 7 {
            0 | 1 if views.len() < *most => views.extend(receiver.try_recv().ok()),
            2 => drop(views.pop()),
            _ => match scene
                .publisher
                .try_send(message(&scene.provider, 1_000, stamp))
            {
                Ok(sent) => assert_eq!(sent.missed.too_many_borrowed, 0),
                Err(error) => assert!(
                    matches!(error.kind(), SendErrorKind::Full { .. }),
                    "{error}"
                ),
            },
        }
        let out = scene.in_use() / 1_024;
        assert!(out < chunks, "{out} chunks, and none to fill");
    }
}

/// The documented number of buffers is necessary.
#[test]
fn sizing_rule_is_tight() {
    let (mut scene, chunks) = sized_scene("pub-rule-met");
    let mut receivers = RECEIVERS.map(|(on_full, capacity, _)| scene.behind(on_full, capacity));
    // Each keeps its maximum when all others have moved on, and then receives no more.
    let kept: [&[u64]; 4] = [&[8], &[9, 10], &[0], &[4, 5]];
    let mut views = Vec::new();
    for stamp in 0..15 {
        scene.send(stamp);
        for (receiver, kept) in receivers.iter_mut().zip(kept) {
            while kept.last() >= Some(&stamp) {
                let Ok(message) = receiver.try_recv() else {
                    break;
                };
                if kept.contains(&stamp) {
                    views.push(message);
                }
            }
        }
    }
    assert_eq!(scene.in_use() / 1_024, chunks - 1);
    drop(views);
}

/// A gap is counted even if the message that was to report it is itself withdrawn.
#[test]
fn missed_survives_withdrawal() {
    let mut scene = Scene::new("pub-gaps", Publisher::builder());
    let mut receiver = scene.receiver(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .capacity(1)
            .max_borrowed(1),
    );
    scene.send(0);
    let held = receiver.try_recv().unwrap();
    assert_eq!(
        (scene.send(1), scene.send(2)),
        (0, 0),
        "it holds what it may"
    );
    for number in 3..5_u64 {
        let sent = scene.publisher.send_copy(&number.to_le_bytes()).unwrap();
        assert_eq!(sent.receivers, 1);
    }
    assert_eq!(all(&mut receiver), [(4, 3)]);
    drop(held);
    scene.send(5);
    assert_eq!(all(&mut receiver), [(5, 0)]);
    assert_eq!(scene.dropped(), [3]);
}

/// Repeated crashes do not fill /dev/shm, and no living receiver's connection is removed.
#[test]
fn registration_reuse_removes_dead_connection() {
    let prefix = unique_prefix("pub-dead");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut publisher = Publisher::builder()
        .max_subscribers(2)
        .create(&provider, "c")
        .unwrap();
    let connections = || {
        let mut files = files(&prefix);
        files.retain(|name| name.ends_with(".connection"));
        files
    };
    let mut stays = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(client.namespace())
        .open("c")
        .unwrap();
    let guest = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(client.namespace())
        .open("c")
        .unwrap();
    let [one, other] = &connections()[..] else {
        panic!("two connections")
    };
    let second = publisher.served().receivers().nth(1).unwrap();
    let guests = format!("{prefix}.c.{}.connection", second.id);
    assert!([one, other].contains(&&guests));
    drop(guest);
    assert_eq!(connections().len(), 1);
    // Simulates a killed receiver: its object exists, without locks.
    std::fs::write(format!("/dev/shm/{guests}"), 0_u64.to_ne_bytes()).unwrap();
    let _next = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(client.namespace())
        .open("c")
        .unwrap();
    assert_eq!(connections().len(), 2);
    assert!(!connections().contains(&guests), "the dead one's");
    assert_eq!(publisher.send_copy(b"x").unwrap().receivers, 2);
    assert_eq!(&stays.try_recv().unwrap()[..], b"x");
}

/// No message is lost for one that the receiver does not get either.
#[test]
fn keep_latest_out_of_borrowed_or_slots() {
    let mut scene = Scene::new("pub-max_borrowed", Publisher::builder().history(8));
    let mut receiver = scene.receiver(Subscriber::builder().on_end(OnEnd::Return).max_borrowed(2));
    for number in 0..10 {
        assert_eq!(scene.send(number), 1);
    }
    assert_eq!(all(&mut receiver), [(8, 8), (9, 0)]);
    let mut late = scene.receiver(Subscriber::builder().on_end(OnEnd::Return).max_borrowed(2));
    assert!(scene.publisher.served().receivers().next().is_some());
    assert_eq!(all(&mut late), [(8, 0), (9, 0)], "the history, too");
    drop(late);

    // It holds all its borrowed buffers, and bytes fill its slots: they are not dropped for a
    // buffer for which none may be borrowed.
    let mut full = scene.receiver(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .max_borrowed(1)
            .capacity(2),
    );
    scene.send(10);
    let held = full.try_recv().unwrap();
    for number in 11..13_u64 {
        scene.publisher.send_copy(&number.to_le_bytes()).unwrap();
    }
    scene.send(13);
    drop(held);
    assert_eq!(all_stamps(&mut full), [11, 12]);
    scene.send(14);
    assert_eq!(all(&mut full), [(14, 1)]);

    // A buffer in the middle is withdrawn, and its neighbours stay.
    let mut mixed = scene.receiver(
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .max_borrowed(1)
            .capacity(4),
    );
    assert!(scene.publisher.served().receivers().next().is_some());
    while mixed.try_recv().is_ok() {}
    let bytes =
        |scene: &mut Scene, number: u64| scene.publisher.send_copy(&number.to_le_bytes()).unwrap();
    bytes(&mut scene, 20);
    scene.send(21);
    bytes(&mut scene, 22);
    scene.send(23);
    assert_eq!(all_stamps(&mut mixed), [20, 22, 23]);
}

/// A publisher that waits until everything is received may then be dropped with its provider.
#[test]
fn received_outlives_publisher() {
    for round in 0..200 {
        let mut scene = Scene::new(&format!("pub-received-{round}"), Publisher::builder());
        let receiving = [OnFull::DropOldest, OnFull::Block, OnFull::DropNewest].map(|on_full| {
            let mut receiver = scene.behind(on_full, 2);
            thread::spawn(move || {
                assert!(
                    is(&receiver.recv_timeout(FOR_EVER).unwrap(), round),
                    "{on_full:?}"
                );
                assert!(matches!(
                    receiver.recv_timeout(FOR_EVER),
                    Err(RecvError::Disconnected)
                ));
            })
        });
        assert_eq!(scene.send(round), 3);
        assert_eq!(scene.publisher.wait_until_received(FOR_EVER), Ok(()));
        drop(scene);
        for thread in receiving {
            thread.join().unwrap();
        }
    }
}

/// A publisher does not wait forever for more receivers than it allows.
#[test]
fn wait_for_too_many_receivers() {
    let mut scene = Scene::new(
        "pub-max_subscribers",
        Publisher::builder().max_subscribers(2),
    );
    let error = scene.publisher.wait_for_receivers(3, FOR_EVER).unwrap_err();
    assert!(
        matches!(error.kind(), SendErrorKind::TooManyReceivers(error) if error.allowed() == (0..=2)),
        "{error}"
    );
}

/// The offset of the registrations, in bytes.
const MAX_SUBSCRIBERS: u64 = 128;
const ARRIVALS: u64 = 64;

/// It costs the publisher neither address space nor time with each message.
#[test]
fn announced_garbage() {
    let prefix = unique_prefix("pub-no-connection");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let mut publisher = Publisher::create(&provider, "c").unwrap();
    let rendezvous = File::options()
        .write(true)
        .open(format!("/dev/shm/{prefix}.c.channel"))
        .unwrap();
    for (id, len) in [(1_u64, 0), (2, 1), (3, 4_096), (4, 1 << 40), (5, 1 << 46)] {
        let path = format!("/dev/shm/{prefix}.c.{id:016x}.connection");
        File::create_new(&path).unwrap().set_len(len).unwrap();
        rendezvous
            .write_all_at(&id.to_ne_bytes(), MAX_SUBSCRIBERS + 8)
            .unwrap();
        rendezvous
            .write_all_at(&(id as u32).to_ne_bytes(), ARRIVALS)
            .unwrap();
        assert!(
            publisher.served().receivers().next().is_none(),
            "{len} bytes"
        );
        assert_eq!(mappings(&path), 0);
        fs::remove_file(&path).unwrap();
    }
}
