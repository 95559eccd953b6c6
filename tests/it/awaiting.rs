//! Awaiting, waiting for any of several channels, and interrupts, within one process.

use crate::ends::SendingEnd;
use crate::fixtures::{mappings, unique_prefix, FOR_EVER, NOW};
use crate::served::Served;
use crate::threads::{assert_prompt, wait_until_asleep, wake_waiter, wake_waiter_after};
use shm_pool::channel::{
    wait_any, ChannelError, Interrupter, Message, OnEnd, OnFull, Publisher, Receiver, RecvError,
    SendErrorKind, Sender, Source, Subscriber,
};
use shm_pool::Provider;
use shm_pool_support::tasks::{
    block_on, noop_waker, panicking_waker, poll_once, reporting_waker, Woken,
};
use std::cell::RefCell;
use std::fs::File;
use std::future::{poll_fn, Future};
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// Channels that do not spin, so that each wait sleeps.
struct Scene {
    provider: Provider,
    test: String,
}

impl Scene {
    fn new(test: &str) -> Self {
        let provider = Provider::builder().max_bytes(8 << 20).build().unwrap();
        Self {
            provider,
            test: unique_prefix(test),
        }
    }

    fn channel(&self, number: usize, capacity: usize) -> (Sender, Receiver) {
        let name = format!("{}-{number}", self.test);
        let sender = Sender::builder()
            .capacity(capacity)
            .max_borrowed(16)
            .spin(NOW)
            .create(&self.provider, &name)
            .unwrap();
        (sender, Receiver::builder().spin(NOW).open(&name).unwrap())
    }

    /// Creates a publisher and two receivers that it waits for.
    fn publisher(&self) -> (Publisher, [Subscriber; 2]) {
        let publisher = Publisher::builder()
            .spin(NOW)
            .create(&self.provider, &self.test)
            .unwrap();
        let options = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(OnFull::Block)
            .capacity(1)
            .spin(NOW);
        let first = options.clone().open(&self.test).unwrap();
        let second = options.open(&self.test).unwrap();
        (publisher, [first, second])
    }

    fn channels(&self, count: usize) -> (Vec<Sender>, Vec<Receiver>) {
        (0..count).map(|number| self.channel(number, 2)).unzip()
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

/// With room for two messages, both ends repeatedly sleep; no wake-up or message is lost.
#[test]
fn send_and_recv() {
    const COUNT: u64 = 20_000;
    let scene = Scene::new("await-both");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let sending = thread::spawn(move || {
        block_on(async {
            for sent in 0..COUNT {
                sender.send_copy_async(&sent.to_ne_bytes()).await.unwrap();
            }
        });
    });
    block_on(async {
        for expected in 0..COUNT {
            assert_eq!(number(&receiver.recv_async().await.unwrap()), expected);
        }
        assert!(matches!(
            receiver.recv_async().await,
            Err(RecvError::Disconnected)
        ));
    });
    sending.join().unwrap();
}

/// Sends numbers. Before one is awaited, up to two futures are polled and dropped.
fn send_and_cancel<E: SendingEnd>(end: &mut E, count: u64, waker: &Waker, expected: E::Sent) {
    for number in 0..count {
        let bytes = number.to_ne_bytes();
        let mut sent = None;
        for _ in 0..number % 3 {
            sent = poll_once(pin!(end.send_copy_async(&bytes)), waker);
            if sent.is_some() {
                break;
            }
        }
        let sent = match sent {
            Some(early) => early,
            None => block_on(end.send_copy_async(&bytes)),
        };
        assert_eq!(sent, Ok(expected));
    }
}

/// A dropped future takes no message or wake-up with it, and leaves no waker behind.
#[test]
fn cancel_anywhere() {
    const COUNT: u64 = 5_000;
    let scene = Scene::new("await-cancel");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let sending = thread::spawn({
        let waker = waker.clone();
        move || send_and_cancel(&mut sender, COUNT, &waker, ())
    });
    for expected in 0..COUNT {
        let mut received = None;
        for _ in 0..expected % 4 {
            received = poll_once(pin!(receiver.recv_async()), &waker);
            if received.is_some() {
                break;
            }
        }
        let message = match received {
            Some(early) => early,
            None if expected % 2 == 0 => block_on(receiver.recv_async()),
            None => receiver.recv_timeout(FOR_EVER),
        };
        assert_eq!(number(&message.unwrap()), expected);
    }
    sending.join().unwrap();
    drop((waker, receiver));
    // The helper may be about to wake a waker that it took earlier. If one is kept, this hangs.
    while Arc::strong_count(&woken) > 1 {
        thread::yield_now();
    }
}

/// An unsent buffer is not leaked, and leaves no partial message in the channel.
#[test]
fn cancelled_send_returns_buffer() {
    let scene = Scene::new("await-unsent");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let buffer = || scene.provider.alloc(1000).unwrap().freeze();
    while sender.try_send_copy(b"full").is_ok() {}
    let (waker, woken) = reporting_waker();
    let mut sending = Box::pin(sender.send_async(buffer()));
    assert!(poll_once(sending.as_mut(), &waker).is_none());
    drop(sending);
    assert_eq!(scene.provider.stats().bytes_in_use, 0);
    let mut sending = Box::pin(sender.send_async(buffer()));
    assert!(poll_once(sending.as_mut(), &waker).is_none());
    receiver.recv().unwrap();
    receiver.recv().unwrap(); // frees the slot of the first
    woken.recv_timeout(FOR_EVER).unwrap();
    poll_once(sending.as_mut(), &waker).unwrap().unwrap();
    drop(sending);
    while sender.try_send_copy(b"full").is_ok() {}
    let mut sending = Box::pin(sender.send_async(buffer()));
    assert!(poll_once(sending.as_mut(), &waker).is_none());
    drop(receiver);
    woken.recv_timeout(FOR_EVER).unwrap();
    let error = poll_once(sending.as_mut(), &waker).unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.into_message().len()),
        (SendErrorKind::Disconnected, 1000)
    );
    drop(sending);
    assert_eq!(
        block_on(sender.send_copy_async(&[0; 49])),
        Err(SendErrorKind::Disconnected.into())
    );
}

/// Waits for more ends than one system call takes, spread over several helpers.
#[test]
fn three_hundred_receivers() {
    const COUNT: usize = 300;
    let scene = Scene::new("await-many");
    let (mut senders, mut receivers) = scene.channels(COUNT);
    let (waker, woken) = reporting_waker();
    let mut context = Context::from_waker(&waker);
    let mut received = vec![0; COUNT];
    // Polls all receivers until none is ready.
    let mut poll_all = |received: &mut Vec<u64>| {
        for (receiver, received) in receivers.iter_mut().zip(received) {
            while let Poll::Ready(message) = receiver.poll_recv(&mut context) {
                assert_eq!(number(&message.unwrap()), *received);
                *received += 1;
            }
        }
    };
    poll_all(&mut received);
    for round in 0..3_u64 {
        for at in (0..COUNT).rev() {
            senders[at].send_copy(&round.to_ne_bytes()).unwrap();
            while received[at] != round + 1 {
                woken
                    .recv_timeout(FOR_EVER)
                    .expect("the helper of each end wakes");
                poll_all(&mut received);
            }
        }
    }
}

#[test]
fn drop_wakes_task() {
    let scene = Scene::new("await-drop");
    let (sender, mut receiver) = scene.channel(0, 2);
    let (waker, woken) = reporting_waker();
    let mut receiving = Box::pin(receiver.recv_async());
    assert!(poll_once(receiving.as_mut(), &waker).is_none());
    drop(sender);
    woken.recv_timeout(FOR_EVER).unwrap();
    assert!(matches!(
        poll_once(receiving.as_mut(), &waker),
        Some(Err(RecvError::Disconnected))
    ));
}

/// A panicking waker does not end the helper, on which all other tasks depend.
#[test]
fn waker_panics() {
    let scene = Scene::new("await-panic");
    let (mut senders, mut receivers) = scene.channels(2);
    assert!(receivers[0]
        .poll_recv(&mut Context::from_waker(&panicking_waker()))
        .is_pending());
    senders[0].send_copy(b"one").unwrap();
    let (waker, woken) = reporting_waker();
    assert!(receivers[1]
        .poll_recv(&mut Context::from_waker(&waker))
        .is_pending());
    senders[1].send_copy(b"two").unwrap();
    woken.recv_timeout(FOR_EVER).unwrap();
    // The end whose waker panicked can be awaited again.
    assert_eq!(&block_on(receivers[0].recv_async()).unwrap()[..], b"one");
    assert!(receivers[0]
        .poll_recv(&mut Context::from_waker(&waker))
        .is_pending());
    senders[0].send_copy(b"three").unwrap();
    woken.recv_timeout(FOR_EVER).unwrap();
}

/// Neither deadlocks on the helper that called it, nor lets the helper read an unmapped doorbell.
#[test]
fn waker_drops_its_end() {
    struct Drops {
        place: std::sync::Mutex<Option<Receiver>>,
        dropped: mpsc::SyncSender<()>,
        polling: thread::ThreadId,
        is_woken_in_poll: AtomicBool,
    }
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            // A poll that races with the helper calls the waker itself, and the test has the lock.
            if thread::current().id() == self.polling {
                self.is_woken_in_poll.store(true, Ordering::Relaxed);
                return;
            }
            drop(self.place.lock().unwrap().take());
            self.dropped.send(()).unwrap();
        }
    }
    let scene = Scene::new("await-drops");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let (dropped, was_dropped) = mpsc::sync_channel(1);
    let drops = Arc::new(Drops {
        place: std::sync::Mutex::default(),
        dropped,
        polling: thread::current().id(),
        is_woken_in_poll: AtomicBool::new(false),
    });
    let waker = Waker::from(drops.clone());
    // The waker, which the helper may call at any time, finds the receiver.
    let mut place = drops.place.lock().unwrap();
    loop {
        let polled = receiver.poll_recv(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        if !drops.is_woken_in_poll.swap(false, Ordering::Relaxed) {
            break;
        }
    }
    *place = Some(receiver);
    drop(place);
    let _early_call = sender.send_copy(b"drop it");
    was_dropped.recv_timeout(FOR_EVER).unwrap();
    assert_eq!(
        sender.send_copy(b"gone"),
        Err(SendErrorKind::Disconnected.into())
    );
}

/// A program that opens a channel for each client does not grow.
#[test]
fn awaited_end_is_unmapped() {
    let scene = Scene::new("await-unmap");
    let (waker, _woken) = reporting_waker();
    for _ in 0..50 {
        let (_sender, mut receiver) = scene.channel(0, 2);
        assert!(receiver
            .poll_recv(&mut Context::from_waker(&waker))
            .is_pending());
    }
    // A provider keeps the buffers borrowed to its channels.
    drop(scene.provider);
    // The helper drops its reference by itself, between two checks of this thread.
    let is_gone = (0..100_000).any(|_| {
        thread::yield_now();
        mappings(&scene.test) == 0
    });
    assert!(is_gone, "a mapping is kept");
}

/// One end with many messages does not starve the others, and no end without one is returned.
#[test]
fn wait_any_is_fair() {
    for count in [1, 2, 128, 129] {
        let scene = Scene::new(&format!("any-turn-{count}"));
        let (mut senders, mut receivers) = scene.channels(count);
        for sender in &mut senders {
            sender.send_copy(b"one").unwrap();
        }
        senders[0].send_copy(b"two").unwrap();
        let mut named = vec![0; count];
        for _ in 0..=count {
            let index = any(&mut receivers, FOR_EVER).unwrap();
            receivers[index].try_recv().unwrap();
            named[index] += 1;
        }
        let mut expected = vec![1; count];
        expected[0] = 2;
        assert_eq!(named, expected);
        assert!(matches!(any(&mut receivers, NOW), Err(RecvError::TimedOut)));
        let soon = Duration::from_millis(1);
        assert!(matches!(
            any(&mut receivers, soon),
            Err(RecvError::TimedOut)
        ));
    }
}

fn any(receivers: &mut [Receiver], timeout: Duration) -> Result<usize, RecvError> {
    let mut sources: Vec<&mut dyn Source> = Vec::new();
    for receiver in receivers {
        sources.push(receiver);
    }
    wait_any(&mut sources, timeout)
}

#[test]
fn wait_any_beside_busy_end() {
    let scene = Scene::new("any-fair");
    let (mut senders, mut receivers) = scene.channels(3);
    let mut named = Vec::new();
    for _ in 0..9 {
        for sender in &mut senders {
            while sender.try_send_copy(b"more").is_ok() {}
        }
        let index = any(&mut receivers, FOR_EVER).unwrap();
        receivers[index].try_recv().unwrap();
        named.push(index);
    }
    assert_eq!(named, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// Whether the thread sleeps in its own system call or uses helpers.
#[test]
fn any_end_wakes() {
    for count in [2, 128, 200] {
        let scene = Scene::new(&format!("any-wakes-{count}"));
        let (mut senders, mut receivers) = scene.channels(count);
        let (ask, asked) = mpsc::sync_channel::<usize>(0);
        let sending = thread::spawn(move || {
            for index in asked {
                senders[index]
                    .send_copy(&(index as u64).to_ne_bytes())
                    .unwrap();
            }
        });
        for round in 0..1000 {
            let index = round * 7 % count;
            ask.send(index).unwrap();
            assert_eq!(any(&mut receivers, FOR_EVER).unwrap(), index);
            assert_eq!(number(&receivers[index].try_recv().unwrap()), index as u64);
        }
        drop(ask);
        sending.join().unwrap();
        // All senders are dropped; each receiver learns it.
        let index = any(&mut receivers, FOR_EVER).unwrap();
        assert!(matches!(
            receivers[index].try_recv(),
            Err(RecvError::Disconnected)
        ));
    }
}

#[test]
fn wait_any_of_none() {
    assert!(matches!(
        wait_any(&mut [], FOR_EVER),
        Err(RecvError::NoReceivers)
    ));
}

/// None is lost just as the thread falls asleep, and none counts twice.
#[test]
fn interrupt_ends_one_wait() {
    let scene = Scene::new("interrupt");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let interrupter = receiver.interrupter();

    // Two interrupts before the wait end one wait. A message takes precedence.
    interrupter.interrupt();
    interrupter.clone().interrupt();
    sender.send_copy(b"one").unwrap();
    assert_eq!(&receiver.recv().unwrap()[..], b"one");
    assert!(
        matches!(receiver.try_recv(), Err(RecvError::Empty)),
        "this does not wait"
    );
    assert!(matches!(receiver.recv(), Err(RecvError::Interrupted)));
    assert!(matches!(
        receiver.recv_timeout(NOW),
        Err(RecvError::TimedOut)
    ));

    // At any time. Each interrupt is acknowledged by the wait that it ends.
    let (answer, answers) = mpsc::channel();
    let receiving = thread::spawn(move || {
        while let Err(error) = receiver.recv() {
            answer
                .send(matches!(error, RecvError::Interrupted))
                .unwrap();
        }
        receiver
    });
    for _ in 0..20_000 {
        interrupter.interrupt();
        assert!(answers
            .recv_timeout(FOR_EVER)
            .expect("an interrupt was lost"));
    }
    sender.send_copy(b"end").unwrap();
    drop(receiving.join().unwrap());
    assert!(
        answers.recv().is_err(),
        "a wait was ended that nobody interrupted"
    );
    interrupter.interrupt(); // of a dropped end
}

/// Interrupts waits, alternately before and while they sleep.
fn assert_interrupted(
    count: usize,
    by: &Interrupter,
    mut wait: impl FnMut() -> Result<(), shm_pool::channel::SendError>,
) {
    for _ in 0..count {
        thread::scope(|scope| {
            scope.spawn(|| by.interrupt());
            assert_eq!(wait(), Err(SendErrorKind::Interrupted.into()));
        });
    }
}

/// The same for each wait of a sender.
#[test]
fn interrupt_sender() {
    let scene = Scene::new("interrupt-sender");
    let name = format!("{}-alone", scene.test);
    let mut alone = Sender::builder()
        .spin(NOW)
        .create(&scene.provider, &name)
        .unwrap();
    let interrupter = alone.interrupter();
    assert_interrupted(200, &interrupter, || alone.wait_for_receiver(FOR_EVER));
    // While no receiver is connected, an interrupt must not be reported as a disconnect.
    let receiver = Receiver::open(&name).unwrap();
    alone.wait_for_receiver(FOR_EVER).unwrap();
    while alone.try_send_copy(b"full").is_ok() {}
    assert_interrupted(200, &interrupter, || alone.wait_until_received(FOR_EVER));
    assert_interrupted(200, &interrupter, || alone.send_copy(b"more"));
    drop(receiver);
    assert_eq!(
        alone.send_copy(b"more"),
        Err(SendErrorKind::Disconnected.into())
    );
}

/// In the thread's own system call, and with helpers.
#[test]
fn interrupt_wait_any() {
    for count in [3, 129] {
        let scene = Scene::new(&format!("interrupt-any-{count}"));
        let (_senders, mut receivers) = scene.channels(count);
        for at in [0, count - 1, 1] {
            let interrupter = receivers[at].interrupter();
            thread::scope(|scope| {
                let waits = scope.spawn(|| any(&mut receivers, FOR_EVER));
                interrupter.interrupt();
                let ended = waits.join().unwrap();
                assert!(matches!(ended, Err(RecvError::Interrupted)), "{ended:?}");
            });
        }
        assert!(matches!(any(&mut receivers, NOW), Err(RecvError::TimedOut)));
    }
}

/// Interrupting a thread's wait does not consume the wake-up of a task.
#[test]
fn interrupt_spares_tasks() {
    let scene = Scene::new("interrupt-task");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let interrupter = receiver.interrupter();
    let sending = thread::spawn(move || {
        for sent in 0..2000_u64 {
            interrupter.interrupt();
            sender.send_copy(&sent.to_ne_bytes()).unwrap();
        }
    });
    block_on(async {
        for expected in 0..2000 {
            assert_eq!(number(&receiver.recv_async().await.unwrap()), expected);
        }
    });
    sending.join().unwrap();
}

#[cfg(feature = "stream")]
#[test]
fn stream() {
    use futures_core::Stream;
    let scene = Scene::new("await-stream");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    let sending = thread::spawn(move || {
        for sent in 0..1000_u64 {
            block_on(sender.send_copy_async(&sent.to_ne_bytes())).unwrap();
        }
    });
    let mut next = || {
        block_on(poll_fn(|context| {
            std::pin::Pin::new(&mut receiver).poll_next(context)
        }))
    };
    for expected in 0..1000 {
        assert_eq!(number(&next().unwrap().unwrap()), expected);
    }
    sending.join().unwrap();
    assert!(next().is_none());
    assert!(next().is_none());
}

/// Futures and interrupters can be used on multi-threaded executors.
#[test]
fn futures_are_send() {
    fn check<T: Send>(_: &T) {}
    fn check_sync<T: Send + Sync>(_: &T) {}
    let scene = Scene::new("await-send");
    let (mut sender, mut receiver) = scene.channel(0, 2);
    check_sync(&receiver.interrupter());
    check(&receiver.recv_async());
    check(&sender.send_copy_async(b""));
    check(&sender.send_async(scene.provider.alloc(1).unwrap().freeze()));
}

/// A task that polls several receivers misses none of their messages.
#[test]
fn task_polls_two_receivers() {
    const COUNT: u64 = 3000;
    let scene = Scene::new("await-select");
    let (mut senders, mut receivers) = scene.channels(3);
    let sending = thread::spawn(move || {
        for sent in 0..COUNT {
            senders[sent as usize % 3]
                .send_copy(&sent.to_ne_bytes())
                .unwrap();
        }
        senders // none ends before all was received
    });
    let mut next = [0, 1, 2];
    for _ in 0..COUNT {
        let (at, message) = block_on(poll_fn(|context| {
            // Receivers after the first that is ready are not polled, and keep their messages.
            for (at, receiver) in receivers.iter_mut().enumerate() {
                if let Poll::Ready(received) = receiver.poll_recv(context) {
                    return Poll::Ready((at, received));
                }
            }
            Poll::Pending
        }));
        assert_eq!(number(&message.unwrap()), next[at]);
        next[at] += 3;
    }
    drop(sending.join().unwrap());
}

/// A dropped future loses no message, and none is sent twice.
#[test]
fn publisher_awaits_slowest() {
    const COUNT: u64 = 5_000;
    let scene = Scene::new("await-pub");
    let (mut publisher, receivers) = scene.publisher();
    let mut receiving = Vec::new();
    for mut receiver in receivers {
        receiving.push(thread::spawn(move || {
            block_on(async {
                for expected in 0..COUNT {
                    assert_eq!(number(&receiver.recv_async().await.unwrap()), expected);
                }
            });
        }));
    }
    send_and_cancel(&mut publisher, COUNT, &noop_waker(), 2);
    for thread in receiving {
        thread.join().unwrap();
    }
}

/// While it waits for one of several receivers, or for a receiver to join.
#[test]
fn interrupt_publisher() {
    let scene = Scene::new("interrupt-pub");
    let (mut publisher, mut receivers) = scene.publisher();
    let interrupter = publisher.interrupter();
    interrupter.interrupt();
    assert_eq!(
        publisher.wait_for_receivers(3, FOR_EVER),
        Err(SendErrorKind::Interrupted.into()),
        "kept until a wait"
    );
    assert_eq!(
        publisher.wait_for_receivers(3, NOW),
        Err(SendErrorKind::NoReceiver {
            receivers: 3,
            timeout: NOW
        }
        .into()),
        "taken"
    );
    for slow in 0..2 {
        while publisher.try_send_copy(b"").is_ok() {}
        let other = &mut receivers[1 - slow];
        while other.try_recv().is_ok() {}
        assert_interrupted(50, &interrupter, || publisher.send_copy(b"").map(drop));
        assert_interrupted(50, &interrupter, || publisher.wait_until_received(FOR_EVER));
        assert_interrupted(50, &interrupter, || {
            publisher.wait_for_receivers(3, FOR_EVER)
        });
        while receivers[slow].try_recv().is_ok() {}
    }
}

/// Beside others, and a withdrawn message is not reported as an error.
#[test]
fn wait_any_of_publishers() {
    let scene = Scene::new("any-pub");
    let mut publisher = Publisher::create(&scene.provider, &scene.test).unwrap();
    let open = || {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .capacity(1)
            .spin(NOW)
            .open(&scene.test)
            .unwrap()
    };
    let mut one = open();
    let mut other = open();
    let mut pair = scene.channel(0, 2);
    assert!(publisher.served().receivers().next().is_some());
    let sending = thread::spawn(move || {
        for number in 0..20_000_u64 {
            let sent = publisher.send_copy(&number.to_ne_bytes()).unwrap();
            assert_eq!(sent.receivers, 2);
        }
        pair.0.send_copy(b"over").unwrap();
        (publisher, pair.0)
    });
    let mut next = [0, 0];
    let mut is_over = false;
    while !is_over || next != [20_000; 2] {
        let found = wait_any(&mut [&mut one, &mut other, &mut pair.1], FOR_EVER).unwrap();
        let received = match found {
            0 => one.try_recv(),
            1 => other.try_recv(),
            _ => pair.1.try_recv(),
        };
        match received {
            Ok(message) if found == 2 => is_over = &message[..] == b"over",
            Ok(message) => {
                assert_eq!(number(&message), next[found] + u64::from(message.missed()));
                next[found] = number(&message) + 1;
            }
            // The next send may withdraw it at this moment.
            Err(RecvError::Empty) => {}
            Err(error) => panic!("{error}"),
        }
    }
    drop(sending.join().unwrap());
}

/// A receiver cannot end another's channel by a word that all of them can write.
#[test]
fn connected_receiver_ignores_registration() {
    type Way = fn(&mut Subscriber) -> Result<Message, RecvError>;
    const REFUSED: u32 = 1 << 30;
    let scene = Scene::new("await-max_subscribers");
    let mut publisher = Publisher::builder()
        .max_subscribers(4)
        .create(&scene.provider, &scene.test)
        .unwrap();
    let ways: [Way; 4] = [
        |receiver| receiver.recv(),
        |receiver| block_on(receiver.recv_async()),
        |receiver| {
            wait_any(&mut [receiver], FOR_EVER).unwrap();
            receiver.try_recv()
        },
        |receiver| loop {
            match receiver.try_recv() {
                Err(RecvError::Empty) => thread::yield_now(),
                received => return received,
            }
        },
    ];
    let (tell, received) = mpsc::channel();
    let mut threads = Vec::new();
    for receive in ways {
        let mut receiver = Subscriber::builder()
            .on_end(OnEnd::Return)
            .spin(NOW)
            .open(&scene.test)
            .unwrap();
        let tell = tell.clone();
        threads.push(thread::spawn(move || loop {
            match receive(&mut receiver) {
                Ok(message) => tell.send(number(&message)).unwrap(),
                Err(error) => return error,
            }
        }));
    }
    let rendezvous = File::options()
        .write(true)
        .open(format!("/dev/shm/shm_pool.{}.channel", scene.test))
        .unwrap();
    for sent in 0..100_u64 {
        let receivers = publisher.send_copy(&sent.to_ne_bytes()).unwrap().receivers;
        assert_eq!(receivers, 4);
        // All receivers are connected by now.
        for registration in 0..4 {
            rendezvous
                .write_all_at(&REFUSED.to_ne_bytes(), 128 + registration * 16)
                .unwrap()
        }
        for _ in 0..4 {
            assert_eq!(received.recv_timeout(FOR_EVER), Ok(sent));
        }
    }
    drop(publisher);
    for thread in threads {
        assert!(matches!(thread.join().unwrap(), RecvError::Disconnected));
    }
}

/// The event that wakes a receiver that waits for its publisher.
#[derive(Clone, Copy, PartialEq)]
enum Rendezvous {
    /// Messages kept for late receivers.
    History,
    /// A message sent while the receiver is being connected.
    Message,
    /// A message sent after the receiver was connected.
    Before,
}

const RENDEZVOUS: [Rendezvous; 3] = [Rendezvous::History, Rendezvous::Message, Rendezvous::Before];

/// At once, by whichever call the receiver sleeps.
#[test]
fn first_message_wakes_unconnected() {
    type Way = fn(&mut Subscriber, &mut [Receiver]) -> Result<Message, RecvError>;
    let ways: [Way; 4] = [
        |receiver, _| receiver.recv(),
        |receiver, _| block_on(receiver.recv_async()),
        |receiver, _| {
            wait_any(&mut [receiver], FOR_EVER).unwrap();
            receiver.try_recv()
        },
        |receiver, others| {
            let mut all: Vec<&mut dyn Source> = Vec::new();
            for other in others {
                all.push(other);
            }
            all.push(receiver);
            assert_eq!(wait_any(&mut all, FOR_EVER).unwrap(), all.len() - 1);
            receiver.try_recv()
        },
    ];
    let scene = Scene::new("await-rendezvous");
    // More words than one system call waits for.
    let (_senders, mut others) = scene.channels(128);
    let mut cases = Vec::new();
    for way in ways {
        for rendezvous in RENDEZVOUS {
            cases.push((way, rendezvous));
        }
    }
    for (way, rendezvous) in cases {
        assert_prompt(|| {
            let publisher = Publisher::builder()
                .max_subscribers(1)
                .history(usize::from(rendezvous == Rendezvous::History));
            let publisher = publisher.create(&scene.provider, &scene.test).unwrap();
            let publisher = RefCell::new(publisher);
            publisher.borrow_mut().send_copy(b"before").unwrap();
            let mut receiver = Subscriber::builder()
                .on_end(OnEnd::Return)
                .spin(NOW)
                .open(&scene.test)
                .unwrap();
            let connect = |thread| {
                if rendezvous == Rendezvous::Before {
                    assert!(publisher.borrow_mut().served().receivers().next().is_some());
                    // It wakes, finds no message, and goes back to sleep on another word.
                    for _ in 0..1_000 {
                        thread::yield_now();
                    }
                    wait_until_asleep(thread);
                }
            };
            let wake = || match rendezvous {
                Rendezvous::History => {
                    assert!(publisher.borrow_mut().served().receivers().next().is_some())
                }
                Rendezvous::Message | Rendezvous::Before => {
                    let sent = publisher.borrow_mut().send_copy(b"first").unwrap();
                    assert_eq!(sent.receivers, 1);
                }
            };
            wake_waiter_after(
                connect,
                || drop(way(&mut receiver, &mut others).unwrap()),
                wake,
            )
            .1
        });
    }
}

/// Checks that a thread that sleeps in `send` is woken by the drop of the message that is held.
fn assert_woken_by_drop(mut recv: impl FnMut() -> Message, mut send: impl FnMut() + Send) {
    assert_prompt(|| {
        let held = recv();
        wake_waiter(&mut send, || drop(held)).1
    });
}

/// A thread or a task that sends to a receiver that has used its one borrowed buffer waits until
/// the receiver drops a message, on any thread, and is woken by the drop.
fn assert_waits_for_borrowed<E: SendingEnd>(
    scene: &Scene,
    mut end: E,
    mut recv: impl FnMut() -> Message,
    sent: E::Sent,
) {
    let buffer = || scene.provider.alloc(100).unwrap().freeze();
    end.send(buffer()).unwrap();
    let error = end.try_send(buffer()).unwrap_err();
    assert!(
        matches!(error.kind(), SendErrorKind::TooManyBorrowed { max: 1, .. }),
        "{error}"
    );
    let error = end
        .send_timeout(buffer(), Duration::from_millis(1))
        .unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::TimedOut);
    assert_woken_by_drop(&mut recv, || assert_eq!(end.send(buffer()).unwrap(), sent));
    let held = recv();
    let (waker, woken) = reporting_waker();
    let mut sending = pin!(end.send_async(buffer()));
    assert!(poll_once(sending.as_mut(), &waker).is_none());
    drop(held);
    loop {
        if let Some(sent) = poll_once(sending.as_mut(), &waker) {
            sent.unwrap();
            break;
        }
        woken.recv_timeout(FOR_EVER).unwrap();
    }
}

#[test]
fn send_waits_for_borrowed() {
    let scene = Scene::new("borrow-wait");
    let sender = Sender::builder()
        .max_borrowed(1)
        .spin(NOW)
        .create(&scene.provider, &scene.test)
        .unwrap();
    let mut receiver = Receiver::open(&scene.test).unwrap();
    assert_waits_for_borrowed(&scene, sender, || receiver.recv().unwrap(), ());
}

#[test]
fn publisher_waits_for_borrowed() {
    let scene = Scene::new("borrow-wait-pub");
    let publisher = Publisher::builder()
        .spin(NOW)
        .create(&scene.provider, &scene.test)
        .unwrap();
    let options = Subscriber::builder()
        .on_end(OnEnd::Return)
        .on_full(OnFull::Block)
        .max_borrowed(1);
    let mut receiver = options.open(&scene.test).unwrap();
    assert_waits_for_borrowed(&scene, publisher, || receiver.recv().unwrap(), 1);
}

/// Polling a sender's future after completion panics, as with those of std, and sends no message.
#[test]
fn send_future_is_polled_once() {
    let scene = Scene::new("await-again");
    let (mut sender, mut receiver) = scene.channel(0, 4);
    fn poll_twice<F: Future>(future: F) -> bool {
        let mut future = pin!(future);
        let (waker, _woken) = reporting_waker();
        assert!(poll_once(future.as_mut(), &waker).is_some());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            poll_once(future.as_mut(), &waker).is_some()
        }))
        .is_err()
    }
    assert!(poll_twice(
        sender.send_async(scene.provider.alloc(100).unwrap().freeze())
    ));
    assert!(poll_twice(sender.send_copy_async(b"x")));
    assert_eq!(
        (
            receiver.recv().unwrap().len(),
            receiver.recv().unwrap().len()
        ),
        (100, 1)
    );
    assert!(matches!(receiver.try_recv(), Err(RecvError::Empty)));
}

/// Polls a future that has to wait, lets `act` end its wait, and awaits it.
fn waits_until<T>(future: impl Future<Output = T>, act: impl FnOnce()) -> T {
    let mut future = pin!(future);
    let (waker, woken) = reporting_waker();
    assert!(poll_once(future.as_mut(), &waker).is_none());
    act();
    loop {
        // A check, once a second, also wakes it.
        woken.recv_timeout(FOR_EVER).expect("it was not woken");
        if let Some(output) = poll_once(future.as_mut(), &waker) {
            return output;
        }
    }
}

#[test]
fn task_awaits_predecessor() {
    let scene = Scene::new("predecessor");
    let first = Sender::create(&scene.provider, &scene.test).unwrap();
    let second = Publisher::builder().create_async(&scene.provider, &scene.test);
    let second = waits_until(second, || drop(first)).unwrap();
    let third = Sender::builder().create_async(&scene.provider, &scene.test);
    let third = waits_until(third, || drop(second)).unwrap();
    let refused = block_on(
        Sender::builder()
            .capacity(0)
            .create_async(&scene.provider, "it"),
    );
    assert!(matches!(refused, Err(ChannelError::OutOfRange { .. })));
    drop(third);
}

#[test]
fn task_awaits_receivers() {
    let scene = Scene::new("await-receivers");
    let mut sender = Sender::create(&scene.provider, &scene.test).unwrap();
    let mut receiver = None;
    waits_until(sender.wait_for_receiver_async(), || {
        receiver = Some(Receiver::open(&scene.test).unwrap());
    })
    .unwrap();
    block_on(sender.wait_for_receiver_async()).unwrap();
    drop(receiver);
    let gone = block_on(sender.wait_for_receiver_async()).unwrap_err();
    assert_eq!(gone.kind(), SendErrorKind::Disconnected);
    drop(sender);

    let builder = Publisher::builder().max_subscribers(3);
    let mut publisher = builder.create(&scene.provider, &scene.test).unwrap();
    block_on(publisher.wait_for_receivers_async(0)).unwrap();
    let too_many = block_on(publisher.wait_for_receivers_async(4)).unwrap_err();
    assert!(
        matches!(too_many.kind(), SendErrorKind::TooManyReceivers(error) if error.allowed() == (0..=3)),
        "{too_many}"
    );
    let mut subscribers = Vec::new();
    for count in 1..=3 {
        waits_until(publisher.wait_for_receivers_async(count), || {
            subscribers.push(Subscriber::open(&scene.test).unwrap());
        })
        .unwrap();
        assert_eq!(publisher.receivers().count(), count);
    }
    // A future that is dropped leaves nothing that wakes its task.
    let (waker, woken) = reporting_waker();
    subscribers.truncate(1);
    let mut dropped = Box::pin(publisher.wait_for_receivers_async(2));
    assert!(poll_once(dropped.as_mut(), &waker).is_none());
    while woken.try_recv().is_ok() {}
    drop(dropped);
    subscribers.push(Subscriber::open(&scene.test).unwrap());
    block_on(publisher.wait_for_receivers_async(2)).unwrap();
    assert!(woken.try_recv().is_err());
}

/// The helper thread that sleeps for the publisher sees each one that joins.
#[test]
fn task_awaits_each_of_many_receivers() {
    let scene = Scene::new("await-many");
    let mut publisher = Publisher::create(&scene.provider, &scene.test).unwrap();
    thread::scope(|scope| {
        let (allow, allowed) = mpsc::channel();
        let name = &scene.test;
        scope.spawn(move || {
            for _ in 0..200 {
                let subscriber = Subscriber::open(name).unwrap();
                allowed.recv().unwrap();
                drop(subscriber);
                allowed.recv().unwrap();
            }
        });
        for _ in 0..200 {
            block_on(publisher.wait_for_receivers_async(1)).unwrap();
            allow.send(()).unwrap();
            while publisher.served().receivers().next().is_some() {
                thread::yield_now();
            }
            allow.send(()).unwrap();
        }
    });
}

#[test]
fn task_awaits_that_all_is_received() {
    let scene = Scene::new("await-received");
    let (mut sender, mut receiver) = scene.channel(0, 4);
    block_on(sender.wait_until_received_async()).unwrap();
    for _ in 0..3 {
        sender.send_copy(b"a sample").unwrap();
    }
    waits_until(sender.wait_until_received_async(), || {
        for _ in 0..3 {
            receiver.recv().unwrap();
        }
        assert!(receiver.try_recv().is_err());
    })
    .unwrap();
    sender.send_copy(b"a sample").unwrap();
    let gone = waits_until(sender.wait_until_received_async(), || drop(receiver));
    assert_eq!(gone.unwrap_err().kind(), SendErrorKind::Disconnected);

    let (mut publisher, [mut first, second]) = scene.publisher();
    publisher.send_copy(b"a sample").unwrap();
    waits_until(publisher.wait_until_received_async(), || {
        first.recv().unwrap();
        // One that closes is not waited for.
        drop(second);
    })
    .unwrap();
}
