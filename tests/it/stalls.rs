//! Receivers that are slow, stopped or at their limit, and publishers that may not wait: what each
//! side learns, and how much memory a receiver can take.

use crate::fixtures::{builder, holds, message, unique_prefix, FOR_EVER, NOW};
use crate::served::Served;
use crate::threads::{assert_prompt, wake_waiter};
use shm_pool::channel::{
    wait_any, ChannelError, ChannelEvent, Missed, OnEnd, OnFull, OnStall, Publisher,
    PublisherBuilder, RecvError, SendErrorKind, SendOptions, Sent, Subscriber, SubscriberBuilder,
};
use shm_pool::{Provider, ProviderBuilder};
use shm_pool_support::tasks::{block_on, Woken};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

const LEN: usize = 1 << 16;

struct Scene {
    publisher: Publisher,
    provider: Provider,
    name: String,
}

impl Scene {
    fn new(test: &str, options: PublisherBuilder) -> Self {
        Self::with(test, builder(), options)
    }

    fn with(test: &str, provider: ProviderBuilder, options: PublisherBuilder) -> Self {
        let provider = provider.build().unwrap();
        let name = unique_prefix(test);
        Self {
            publisher: options.create(&provider, &name).unwrap(),
            provider,
            name,
        }
    }

    fn try_open(&self, options: SubscriberBuilder) -> Result<Subscriber, ChannelError> {
        options.open_timeout(&self.name, NOW)
    }

    fn open(&self, on_full: OnFull, capacity: usize) -> Subscriber {
        self.try_open(
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(on_full)
                .capacity(capacity),
        )
        .unwrap()
    }

    fn try_send(&mut self, stamp: u64) -> Result<Sent, SendErrorKind> {
        self.publisher
            .try_send(message(&self.provider, LEN, stamp))
            .map_err(|error| error.kind())
    }

    fn send(&mut self, stamp: u64) -> Sent {
        self.publisher
            .send(message(&self.provider, LEN, stamp))
            .unwrap()
    }

    fn missed(&mut self) -> Vec<Missed> {
        self.publisher
            .served()
            .receivers()
            .map(|receiver| receiver.missed)
            .collect()
    }

    fn in_use(&self) -> usize {
        let stats = self.provider.stats();
        stats.bytes_in_use + stats.bytes_leased
    }
}

/// What became of a message: receivers, withdrawn, full, too many borrowed buffers, stalled.
fn figures(sent: Sent) -> [u64; 5] {
    [
        sent.receivers as u64,
        sent.missed.withdrawn,
        sent.missed.full,
        sent.missed.too_many_borrowed,
        sent.missed.stalled,
    ]
}

/// After the limit, the others get every message, at once. The receiver is waited for again once it
/// has made room.
#[test]
fn stalled_receiver_is_skipped() {
    let mut scene = Scene::new(
        "stall-skip",
        Publisher::builder().block_limit(Duration::from_millis(20)),
    );
    let mut stopped = scene.open(OnFull::Block, 1);
    let mut other = scene.open(OnFull::DropNewest, 64);
    for stamp in 0..2 {
        assert_eq!(figures(scene.send(stamp)), [2, 0, 0, 0, 0]);
    }
    assert_eq!(figures(scene.send(2)), [1, 0, 0, 0, 1]);
    let sent = scene.try_send(3).unwrap();
    assert_eq!(figures(sent), [1, 0, 0, 0, 1], "no longer waited for");
    let sent = block_on(scene.publisher.send_copy_async(b"4")).unwrap();
    assert_eq!(figures(sent), [1, 0, 0, 0, 1]);
    assert!(
        scene
            .publisher
            .served()
            .receivers()
            .next()
            .unwrap()
            .is_stalled
    );
    for stamp in 0..4 {
        assert!(holds(&other.try_recv().unwrap(), stamp));
    }
    assert_eq!(other.try_recv().unwrap().missed(), 0);
    for stamp in 0..2 {
        assert!(holds(&stopped.try_recv().unwrap(), stamp));
    }
    for stamp in 5..7 {
        assert_eq!(figures(scene.send(stamp)), [2, 0, 0, 0, 0]);
    }
    assert!(
        !scene
            .publisher
            .served()
            .receivers()
            .next()
            .unwrap()
            .is_stalled
    );
    let next = stopped.try_recv().unwrap();
    assert!(holds(&next, 5));
    assert_eq!(
        (
            next.missed(),
            stopped.missed().stalled,
            stopped.missed().total()
        ),
        (3, 3, 3)
    );
    assert_eq!(scene.missed()[0], stopped.missed());
}

/// A call that may not wait as long returns the message; repeated, it skips the receivers in the
/// end.
#[test]
fn limit_spans_calls() {
    for limit in [Duration::ZERO, Duration::from_millis(5), Duration::MAX] {
        let mut scene = Scene::new("stall-calls", Publisher::builder().block_limit(limit));
        let _stopped = [scene.open(OnFull::Block, 1), scene.open(OnFull::Block, 1)];
        for stamp in 0..2 {
            assert_eq!(scene.send(stamp).receivers, 2);
        }
        let start = Instant::now();
        let mut refused = 0;
        let mut sent = None;
        while sent.is_none() && (limit < Duration::MAX || refused < 100) {
            assert!(start.elapsed() < FOR_EVER);
            sent = match scene.publisher.try_send_copy(b"x") {
                Err(error) if error.kind() == (SendErrorKind::Full { capacity: 1 }) => scene
                    .publisher
                    .send_copy_with(b"x", SendOptions::new().timeout(Duration::from_nanos(1))),
                sent => sent,
            }
            .map_err(|error| assert_eq!(error.kind(), SendErrorKind::TimedOut))
            .ok();
            refused += usize::from(sent.is_none());
        }
        if limit == Duration::MAX {
            assert_eq!(
                scene.missed(),
                [Missed::default(); 2],
                "what was refused is not missed"
            );
            continue;
        }
        let sent = sent.expect("the limit is over");
        assert_eq!(figures(sent), [0, 0, 0, 0, 2]);
        assert!(start.elapsed() >= limit);
        let missed = scene.missed();
        assert_eq!(missed.len(), 2);
        assert_eq!((missed[0].stalled, missed[1].stalled), (1, 1));
    }
}

/// One that has closed while its message is read is not waited for: the task sleeps until the other
/// has room.
#[test]
fn closed_receiver_is_not_awaited() {
    for serves in [true, false] {
        let options = Publisher::builder().max_borrowed(1).joins_in_send(serves);
        let mut scene = Scene::new("stall-closed", options);
        let receivers = [1, 2].map(|count| {
            let receiver = scene.open(OnFull::Block, 4);
            scene.publisher.wait_for_receivers(count, FOR_EVER).unwrap();
            receiver
        });
        assert_eq!(scene.send(0).receivers, 2);
        let [mut closes, mut stays] = receivers;
        let held = [closes.recv().unwrap(), stays.recv().unwrap()];
        drop(closes);
        let last = message(&scene.provider, LEN, 1);
        let mut sending = Box::pin(scene.publisher.send_async(last));
        let waker = Waker::from(Arc::new(Woken::default()));
        assert!(sending
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending());
        drop(held);
        assert_eq!(block_on(sending).unwrap().receivers, 1);
        assert!(holds(&stays.recv().unwrap(), 1));
    }
}

/// Inline bytes that it has room for do not start its clock again; a message that it had room for
/// before does.
#[test]
fn limit_spans_kinds() {
    const LIMIT: Duration = Duration::from_millis(100);
    let mut scene = Scene::new(
        "stall-kinds",
        Publisher::builder().max_borrowed(1).block_limit(LIMIT),
    );
    let mut stopped = scene.open(OnFull::Block, 4);
    assert_eq!(scene.send(0).receivers, 1);
    assert_eq!(scene.send(1).missed.stalled, 1);
    for stamp in 2..6 {
        assert_eq!(scene.publisher.send_copy(b"x").unwrap().receivers, 1);
        let state = scene.publisher.served().receivers().next().unwrap();
        assert!(state.is_stalled);
        let sent = scene.try_send(stamp).unwrap();
        assert_eq!(figures(sent), [0, 0, 0, 0, 1], "without a wait");
    }
    let start = Instant::now();
    assert_eq!(scene.publisher.send_copy(b"x").unwrap().missed.stalled, 1);
    assert!(start.elapsed() >= LIMIT, "it had room for these");
    assert_eq!(
        scene.publisher.try_send_copy(b"x").unwrap().missed.stalled,
        1
    );
    drop(stopped.recv().unwrap());
    assert!(
        !scene
            .publisher
            .served()
            .receivers()
            .next()
            .unwrap()
            .is_stalled
    );
    assert_eq!(scene.send(6).receivers, 1);
}

/// The clocks of all receivers start with the first message that finds one of them full.
#[test]
fn clocks_start_together() {
    const LIMIT: Duration = Duration::from_millis(100);
    let mut scene = Scene::new("stall-clocks", Publisher::builder().block_limit(LIMIT));
    let mut stopped = Vec::new();
    for _ in 0..4 {
        stopped.push(scene.open(OnFull::Block, 1));
    }
    for stamp in 0..2 {
        assert_eq!(scene.send(stamp).receivers, 4);
    }
    assert_eq!(scene.try_send(2), Err(SendErrorKind::Full { capacity: 1 }));
    while !scene
        .publisher
        .served()
        .receivers()
        .next()
        .unwrap()
        .is_stalled
    {
        thread::yield_now();
    }
    assert!(scene
        .publisher
        .served()
        .receivers()
        .all(|state| state.is_stalled));
    assert_eq!(figures(scene.try_send(2).unwrap()), [0, 0, 0, 0, 4]);
}

/// However many receivers are stopped, a message waits for the limit once.
#[test]
fn one_limit_for_all() {
    const LIMIT: Duration = Duration::from_millis(200);
    let mut scene = Scene::new(
        "stall-sum",
        Publisher::builder().max_subscribers(64).block_limit(LIMIT),
    );
    let _stopped: Vec<_> = (0..64).map(|_| scene.open(OnFull::Block, 1)).collect();
    for stamp in 0..2 {
        assert_eq!(scene.send(stamp).receivers, 64);
    }
    let start = Instant::now();
    assert_eq!(scene.send(2).missed.stalled, 64);
    assert!(
        (LIMIT..LIMIT * 32).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

/// It gets nothing more, its queue is returned at once, and a task that waits for it goes on.
#[test]
fn stalled_receiver_is_disconnected() {
    let options = Publisher::builder()
        .block_limit(Duration::from_millis(20))
        .on_stall(OnStall::Disconnect);
    let mut scene = Scene::new("stall-out", options);
    let mut stopped = scene.open(OnFull::Block, 1);
    for stamp in 0..2 {
        assert_eq!(scene.send(stamp).receivers, 1);
    }
    let held = stopped.try_recv().unwrap();
    assert_eq!(scene.send(2).receivers, 1);
    let last = message(&scene.provider, LEN, 3);
    let sent = block_on(scene.publisher.send_async(last)).unwrap();
    assert_eq!(figures(sent), [0, 0, 0, 0, 1]);
    assert_eq!(scene.missed(), []);
    assert_eq!(scene.in_use(), LEN, "what it has received");
    assert!(matches!(stopped.recv(), Err(RecvError::Evicted)));
    assert!(holds(&held, 0));
    drop(held);
    assert_eq!(scene.in_use(), 0);
}

/// It keeps what it has received, and its registration until that is dropped. Then it may join
/// again.
#[test]
fn disconnect() {
    for on_full in [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest] {
        let mut scene = Scene::new("disconnect", Publisher::builder().max_subscribers(2));
        let mut stays = scene.open(OnFull::Block, 8);
        let mut leaves = scene.open(on_full, 8);
        let state = scene
            .publisher
            .served()
            .receivers()
            .find(|state| state.on_full == on_full && state.capacity == 8);
        assert_eq!(state.unwrap().process, Some(std::process::id()));
        for stamp in 0..4 {
            assert_eq!(scene.send(stamp).receivers, 2);
        }
        assert_eq!(scene.publisher.send_copy(b"bytes").unwrap().receivers, 2);
        let held = leaves.try_recv().unwrap();
        assert!(leaves.is_connected());
        let mut states = scene.publisher.served().receivers();
        let id = states
            .find(|state| state.waiting == 4)
            .expect("one has received a message")
            .id;
        drop(states);
        assert!(scene.publisher.disconnect(id));
        assert!(!scene.publisher.disconnect(id), "it is no longer connected");
        for stamp in 0..4 {
            assert!(holds(&stays.try_recv().unwrap(), stamp));
        }
        assert_eq!(scene.in_use(), LEN, "only what it has received");
        assert!(!leaves.is_connected());
        for _ in 0..2 {
            assert!(matches!(leaves.try_recv(), Err(RecvError::Evicted)));
            assert!(matches!(leaves.recv(), Err(RecvError::Evicted)));
        }
        assert!(leaves.try_recv().unwrap_err().is_disconnected());
        assert_eq!(scene.send(4).receivers, 1);
        drop(leaves);
        assert!(holds(&held, 0), "nothing has overwritten it");
        assert!(matches!(
            scene.try_open(Subscriber::builder().on_end(OnEnd::Return)),
            Err(ChannelError::TooManyReceivers { .. })
        ));
        drop(held);
        assert_eq!(scene.in_use(), LEN, "what waits for the other");
        let mut again = scene.open(on_full, 8);
        assert_eq!(scene.send(5).receivers, 2);
        assert!(holds(&again.try_recv().unwrap(), 5));
    }
}

/// Wakes a receiver that sleeps, in a thread or a task.
#[test]
fn disconnect_wakes() {
    for is_task in [false, true] {
        let mut scene = Scene::new("disconnect-wakes", Publisher::builder());
        let mut receiver = scene.open(OnFull::DropOldest, 1);
        let id = scene.publisher.served().receivers().next().unwrap().id;
        let receiving = thread::spawn(move || {
            let received = if is_task {
                block_on(receiver.recv_async())
            } else {
                receiver.recv()
            };
            received.map(drop)
        });
        assert!(scene.publisher.disconnect(id));
        assert!(matches!(receiving.join().unwrap(), Err(RecvError::Evicted)));
    }
}

/// The error is reported once; the next call joins the same publisher again.
#[test]
fn disconnected_subscriber() {
    let mut scene = Scene::new("subscriber", Publisher::builder());
    let mut subscriber = Subscriber::builder().open(&scene.name).unwrap();
    for stamp in 0..3 {
        assert!(matches!(
            subscriber.try_recv_event(),
            Ok(ChannelEvent::Connected(_))
        ));
        let id = scene.publisher.served().receivers().next().unwrap().id;
        assert_eq!(scene.send(stamp).receivers, 1);
        assert!(
            matches!(subscriber.try_recv_event(), Ok(ChannelEvent::Message(message)) if holds(&message, stamp))
        );
        assert!(scene.publisher.disconnect(id));
        assert!(matches!(subscriber.recv(), Err(RecvError::Evicted)));
    }
}

/// With default options, a stopped receiver, and one that drops nothing, take a quarter of the pool
/// each.
#[test]
fn default_share() {
    for drops in [None, Some(false), Some(true)] {
        let mut scene = Scene::with("share", builder().max_bytes(20 * LEN), Publisher::builder());
        let mut receiver = scene
            .try_open(Subscriber::builder().on_end(OnEnd::Return))
            .unwrap();
        let mut kept = Vec::new();
        for stamp in 0..100 {
            let sent = scene.send(stamp);
            assert!(scene.in_use() <= 5 * LEN, "after {stamp} messages");
            match drops {
                None => assert_eq!(sent.receivers, 1, "the newest ones wait"),
                Some(true) => assert!(holds(&receiver.try_recv().unwrap(), stamp)),
                Some(false) if stamp < 5 => kept.push(receiver.try_recv().unwrap()),
                Some(false) => {
                    assert_eq!(sent.missed.too_many_borrowed, 1);
                    assert!(matches!(
                        receiver.try_recv(),
                        Err(RecvError::TooManyBorrowed { .. })
                    ));
                }
            }
        }
        let withdrawn = if drops.is_none() { 95 } else { 0 };
        let too_many_borrowed = if drops == Some(false) { 95 } else { 0 };
        let missed = receiver.missed();
        assert_eq!(
            (missed.withdrawn, missed.too_many_borrowed),
            (withdrawn, too_many_borrowed)
        );
        if drops.is_none() {
            for stamp in 95..100 {
                assert!(holds(&receiver.try_recv().unwrap(), stamp));
            }
        }
        for (message, stamp) in kept.iter().zip(0..) {
            assert!(holds(message, stamp));
        }
        drop(kept);
        assert_eq!(scene.send(100).receivers, 1, "it may hold more again");
    }
}

/// The sizing function sets the share too: a receiver that drops nothing gets what the largest
/// needs, and the others every message, with exactly that many buffers. An explicit limit takes
/// precedence.
#[test]
fn share_of_sizes() {
    let how = Subscriber::builder().on_end(OnEnd::Return);
    for (scale, limit, expected) in [(1, None, 10), (3, None, 30), (1, Some(4 * LEN), 4)] {
        let mut options = Publisher::builder().capacity(3);
        if let Some(limit) = limit {
            options = options.max_bytes_per_receiver(limit);
        }
        let receivers = [(&how, 1), (&how, 6)];
        let buffers = options.buffers(receivers);
        // In any order with the other options.
        let options = options.capacity(2).share_among(receivers).capacity(3);
        assert_eq!(buffers, 11);
        let mut scene = Scene::with(
            "share-sizes",
            builder().max_bytes(scale * buffers * LEN),
            options,
        );
        let mut greedy = scene.open(OnFull::DropNewest, 3);
        let mut other = scene.try_open(how.clone()).unwrap();
        let mut kept = Vec::new();
        for stamp in 0..100 {
            assert!(scene.send(stamp).receivers > 0);
            assert!(holds(&other.try_recv().unwrap(), stamp));
            kept.extend(greedy.try_recv());
        }
        assert_eq!((kept.len(), other.missed()), (expected, Missed::default()));
    }
    // None is the default, a quarter; no number of views is too large.
    let options = Publisher::builder();
    assert_eq!(
        options.buffers([(&how, usize::MAX), (&how, usize::MAX)]),
        usize::MAX
    );
    assert_eq!(options.buffers([]), 1);
    let options = options.share_among([(&how, usize::MAX)]).share_among([]);
    let mut scene = Scene::with("share-none", builder().max_bytes(20 * LEN), options);
    let _stopped = scene.open(OnFull::DropNewest, 64);
    let mut sent = 0;
    for stamp in 0..10 {
        sent += scene.send(stamp).receivers;
    }
    assert_eq!(sent, 5);
}

/// Two of any length; a short one makes a long one wait, and its withdrawal makes room.
#[test]
fn share_of_bytes() {
    let mut scene = Scene::with(
        "bytes",
        builder().max_bytes(40 * LEN),
        Publisher::builder().max_bytes_per_receiver(1),
    );
    let mut receiver = scene.open(OnFull::DropNewest, 8);
    for (stamp, receivers) in [(0, 1), (1, 1), (2, 0)] {
        assert_eq!(scene.send(stamp).receivers, receivers);
    }
    drop(receiver.try_recv().unwrap());
    assert_eq!(scene.send(3).receivers, 1);

    let options = Publisher::builder()
        .max_bytes_per_receiver(4 * LEN)
        .capacity(64);
    let mut scene = Scene::with("bytes-mixed", builder().max_bytes(40 * LEN), options);
    let mut receiver = scene.open(OnFull::DropOldest, 64);
    for stamp in 0..4 {
        assert_eq!(scene.send(stamp).receivers, 1);
    }
    let long = message(&scene.provider, 3 * LEN, 4);
    assert_eq!(scene.publisher.send(long).unwrap().receivers, 1);
    assert_eq!(scene.missed()[0].withdrawn, 3);
    assert_eq!(scene.in_use(), 4 * LEN);
    assert!(holds(&receiver.try_recv().unwrap(), 3) && holds(&receiver.try_recv().unwrap(), 4));

    // A blocking receiver is waited for, and its return is noticed.
    let options = Publisher::builder()
        .max_bytes_per_receiver(3 * LEN)
        .block_limit(Duration::MAX);
    let mut scene = Scene::with("bytes-wait", builder().max_bytes(40 * LEN), options);
    let mut receiver = scene.open(OnFull::Block, 64);
    for stamp in 0..3 {
        assert_eq!(scene.send(stamp).receivers, 1);
    }
    assert!(matches!(
        scene.try_send(3),
        Err(SendErrorKind::TooManyBorrowed { .. })
    ));
    let first = receiver.recv().unwrap();
    let sending = thread::spawn(move || {
        assert_eq!(scene.send(3).receivers, 1);
        let last = message(&scene.provider, LEN, 4);
        assert_eq!(
            block_on(scene.publisher.send_async(last))
                .unwrap()
                .receivers,
            1
        );
        scene
    });
    drop(first);
    for stamp in 1..5 {
        // It holds none, so it does not learn that it was waited for.
        assert!(holds(&receiver.recv_timeout(FOR_EVER).unwrap(), stamp));
    }
    drop(sending.join().unwrap());
}

/// A receiver at its own limit gets that error, once for each message, and not the one of a quiet
/// publisher.
#[test]
fn receiver_learns_of_its_limit() {
    let mut scene = Scene::new("limit", Publisher::builder());
    let mut receiver = scene
        .try_open(Subscriber::builder().on_end(OnEnd::Return).max_borrowed(2))
        .unwrap();
    for stamp in 0..2 {
        assert_eq!(scene.send(stamp).receivers, 1);
    }
    let held = [receiver.try_recv().unwrap(), receiver.try_recv().unwrap()];
    assert!(matches!(receiver.try_recv(), Err(RecvError::Empty)));
    assert_eq!(figures(scene.send(2)), [0, 0, 0, 1, 0]);
    assert!(matches!(
        receiver.recv(),
        Err(RecvError::TooManyBorrowed { max: 2 })
    ));
    assert!(matches!(
        receiver.recv_timeout(NOW),
        Err(RecvError::TimedOut)
    ));
    // One that sleeps is woken.
    assert_prompt(|| {
        let recv = || matches!(receiver.recv(), Err(RecvError::TooManyBorrowed { max: 2 }));
        let (is_refused, time) =
            wake_waiter(recv, || assert_eq!(figures(scene.send(3)), [0, 0, 0, 1, 0]));
        assert!(is_refused);
        time
    });
    assert_eq!(receiver.missed(), scene.missed()[0]);
    assert_eq!(receiver.missed().too_many_borrowed, 4);
    drop(held);
    assert_eq!(scene.send(4).receivers, 1);
    assert_eq!(receiver.try_recv().unwrap().missed(), 4);
    assert!(
        matches!(receiver.try_recv(), Err(RecvError::Empty)),
        "that is over"
    );

    let mut waited_for = scene
        .try_open(
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(OnFull::Block)
                .max_borrowed(1),
        )
        .unwrap();
    assert_eq!(scene.send(5).receivers, 2);
    let held = waited_for.try_recv().unwrap();
    assert_eq!(
        scene.try_send(6),
        Err(SendErrorKind::TooManyBorrowed {
            max: 1,
            max_bytes: Some(256 << 20)
        })
    );
    assert!(matches!(
        waited_for.try_recv(),
        Err(RecvError::TooManyBorrowed { max: 1 })
    ));
    drop(held);
    assert_eq!(scene.send(6).receivers, 2);
    assert_eq!(
        waited_for.try_recv().unwrap().missed(),
        0,
        "it was waited for"
    );
    // A receiver that has dropped everything can do no more.
    assert_eq!(scene.send(7).receivers, 2);
    let held = waited_for.try_recv().unwrap();
    assert_eq!(
        scene.try_send(8),
        Err(SendErrorKind::TooManyBorrowed {
            max: 1,
            max_bytes: Some(256 << 20)
        })
    );
    drop(held);
    let nothing = wait_any(&mut [&mut waited_for], NOW);
    assert!(matches!(nothing, Err(RecvError::TimedOut)), "{nothing:?}");
    assert!(matches!(waited_for.try_recv(), Err(RecvError::Empty)));
}

/// A buffer that was sent since ends the limit, and is received already.
#[test]
fn past_limit_is_no_news() {
    let mut scene = Scene::new("limit-past", Publisher::builder().max_borrowed(2));
    let mut receiver = scene.open(OnFull::DropNewest, 8);
    let mut quiet = scene.open(OnFull::DropNewest, 8);
    for stamp in 0..2 {
        assert_eq!(scene.send(stamp).receivers, 2);
    }
    assert_eq!(scene.send(2).missed.too_many_borrowed, 2);
    for _ in 0..2 {
        drop((receiver.recv().unwrap(), quiet.recv().unwrap()));
    }
    assert_eq!(scene.send(3).receivers, 2);
    drop((receiver.recv().unwrap(), quiet.recv().unwrap()));
    assert!(matches!(
        wait_any(&mut [&mut receiver, &mut quiet], NOW),
        Err(RecvError::TimedOut)
    ));
}

/// One withdrawn to free its borrowed buffer is counted like one withdrawn for its slot.
#[test]
fn withdrawn_for_borrowed() {
    let mut scene = Scene::new("limit-withdrawn", Publisher::builder().max_borrowed(2));
    let receiver = scene.open(OnFull::DropOldest, 8);
    for (stamp, withdrawn) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        assert_eq!(scene.send(stamp).missed.withdrawn, withdrawn);
    }
    assert_eq!(scene.publisher.send_copy(b"x").unwrap().missed.withdrawn, 0);
    assert_eq!(receiver.missed().withdrawn, 2);
}

/// Nothing is withdrawn for a message that does not fit even then.
#[test]
fn nothing_withdrawn_in_vain() {
    let options = Publisher::builder().max_bytes_per_receiver(4 * LEN);
    let mut scene = Scene::with("limit-vain", builder().max_bytes(40 * LEN), options);
    let mut receiver = scene.open(OnFull::DropOldest, 8);
    for stamp in 0..4 {
        assert_eq!(scene.send(stamp).receivers, 1);
    }
    let held = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    let long = message(&scene.provider, 3 * LEN, 4);
    let sent = scene.publisher.send(long.clone()).unwrap();
    assert_eq!(figures(sent), [0, 0, 0, 1, 0]);
    for stamp in 2..4 {
        assert!(holds(&receiver.recv().unwrap(), stamp));
    }
    drop(held);
    let sent = scene.publisher.send(long).unwrap();
    assert_eq!(figures(sent), [1, 0, 0, 0, 0]);
}

/// What an evicted receiver loses is counted: the message that it had no room for, and those that
/// waited. At its limit, it learns of the eviction first.
#[test]
fn eviction_is_counted() {
    let options = Publisher::builder()
        .max_borrowed(4)
        .block_limit(NOW)
        .on_stall(OnStall::Disconnect);
    let mut scene = Scene::new("stall-counted", options);
    let mut stopped = scene.open(OnFull::Block, 8);
    for stamp in 0..4 {
        assert_eq!(scene.send(stamp).receivers, 1);
    }
    let held = stopped.recv().unwrap();
    assert_eq!(scene.send(4).missed.stalled, 1);
    let missed = stopped.missed();
    assert_eq!(
        (missed.stalled, missed.withdrawn, missed.total()),
        (1, 3, 4)
    );
    assert!(matches!(stopped.try_recv(), Err(RecvError::Evicted)));
    drop(held);
}

/// A history beyond the limits of a new receiver: it gets the newest part, and nothing is
/// withdrawn.
#[test]
fn history_within_limits() {
    for on_full in [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest] {
        let options = Publisher::builder()
            .history(5)
            .max_bytes_per_receiver(3 * LEN);
        let mut scene = Scene::with("limit-history", builder().max_bytes(40 * LEN), options);
        for stamp in 0..5 {
            assert_eq!(scene.send(stamp).receivers, 0);
        }
        let mut receiver = scene.open(on_full, 8);
        assert_eq!(scene.missed(), [Missed::default()]);
        let mut held = Vec::new();
        for stamp in 2..5 {
            held.push((receiver.try_recv().unwrap(), stamp));
        }
        assert!(held.iter().all(|(message, stamp)| holds(message, *stamp)));
        assert!(matches!(receiver.try_recv(), Err(RecvError::Empty)));
    }
}

/// Each rule is counted by its own reason, on both sides.
#[test]
fn reasons() {
    let mut scene = Scene::new("reasons", Publisher::builder().block_limit(NOW));
    let receivers = [
        scene.open(OnFull::Block, 1),
        scene.open(OnFull::DropNewest, 1),
        scene.open(OnFull::DropOldest, 1),
    ];
    assert_eq!(figures(scene.send(0)), [3, 0, 0, 0, 0]);
    assert_eq!(figures(scene.send(1)), [3, 1, 0, 0, 0]);
    assert_eq!(figures(scene.send(2)), [1, 1, 1, 0, 1]);
    assert_eq!(scene.send(3).skipped(), 2);
    let reasons = scene
        .missed()
        .iter()
        .map(|missed| [missed.stalled, missed.full, missed.withdrawn])
        .collect::<Vec<_>>();
    assert_eq!(reasons, [[2, 0, 0], [0, 2, 0], [0, 0, 3]]);
    assert_eq!(
        receivers.iter().map(Subscriber::missed).collect::<Vec<_>>(),
        scene.missed()
    );
}

/// Without joins in a send, a receiver is connected, and its connection dropped, when the publisher
/// asks.
#[test]
fn serve_joins() {
    let mut scene = Scene::new("joins", Publisher::builder().joins_in_send(false));
    let mut receivers = [
        scene.open(OnFull::Block, 4),
        scene.open(OnFull::DropOldest, 4),
    ];
    assert_eq!(scene.send(0), Sent::default());
    assert!(receivers.iter().all(|receiver| !receiver.is_connected()));
    assert!(scene.publisher.serve_joins(), "the first");
    assert_eq!(scene.send(1).receivers, 1);
    assert!(scene.publisher.serve_joins(), "the second");
    assert!(!scene.publisher.serve_joins());
    assert_eq!(scene.send(2).receivers, 2);
    assert!(holds(&receivers[1].try_recv().unwrap(), 2));
    let [stays, leaves] = receivers;
    drop(leaves);
    assert_eq!(scene.send(3).receivers, 1);
    assert!(scene.publisher.serve_joins(), "one has left");
    assert!(!scene.publisher.serve_joins());
    drop(scene.open(OnFull::Block, 1));
    assert!(
        !scene.publisher.serve_joins(),
        "it left before it was connected"
    );
    assert_eq!(scene.send(4).receivers, 1);
    drop(stays);
}

/// A subscriber of publishers that restart, and serve joins apart: it gets what is sent after it
/// was connected, and learns of the end even if it never was. The messages that it keeps are not
/// borrowed from the next one.
#[test]
fn restarts_with_joins_apart() {
    let options = || Publisher::builder().joins_in_send(false).max_borrowed(1);
    let mut scene = Scene::new("joins-restart", options());
    let mut subscriber = Subscriber::builder().open(&scene.name).unwrap();
    let mut kept = Vec::new();
    for stamp in 0..4 {
        assert!(matches!(
            subscriber.recv_event(),
            Ok(ChannelEvent::Connected(_))
        ));
        assert_eq!(scene.send(stamp).receivers, 0);
        if stamp != 2 {
            assert!(scene.publisher.serve_joins());
            assert_eq!(scene.send(stamp).receivers, 1);
            let event = subscriber.recv_event().unwrap();
            let ChannelEvent::Message(message) = event else {
                panic!("{event:?}")
            };
            kept.push((message, stamp));
        }
        let Scene {
            publisher,
            provider,
            name,
        } = scene;
        drop(publisher);
        assert!(matches!(
            subscriber.recv_event(),
            Ok(ChannelEvent::Disconnected)
        ));
        scene = Scene {
            publisher: options().create(&provider, &name).unwrap(),
            provider,
            name,
        };
    }
    assert!(kept.iter().all(|(message, stamp)| holds(message, *stamp)));
}

#[test]
fn counters() {
    let provider = builder().max_bytes(1 << 20).build().unwrap();
    let held = [
        provider.alloc(64).unwrap(),
        provider.alloc(4096).unwrap(),
        provider.alloc(100_000).unwrap(),
    ];
    drop(provider.alloc(5_000).unwrap());
    let stats = provider.stats();
    let counters = provider.counters();
    assert_eq!(
        (
            counters.max_bytes,
            counters.bytes_held,
            counters.peak_bytes_held,
            counters.segments_created
        ),
        (
            stats.max_bytes,
            stats.bytes_held,
            stats.peak_bytes_held,
            stats.segments_created
        )
    );
    assert_eq!(
        (counters.misses, counters.bytes_out),
        (stats.misses(), stats.bytes_in_use)
    );
    drop(held);
    assert_eq!(provider.counters().bytes_out, 0);
}
