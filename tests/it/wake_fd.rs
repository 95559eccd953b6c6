//! File descriptors of event loops.

use crate::fixtures::{holds, message, messages, unique_prefix, FOR_EVER, NOW};
use crate::served::Served;
use crate::threads::assert_prompt;
use shm_pool::channel::{
    wait_any, ChannelChange, ChannelEvent, OnEnd, OnFull, Publisher, Receiver, RecvError,
    SendErrorKind, Sender, Subscriber, Watcher,
};
use shm_pool::{Namespace, Provider, WakeFd};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

/// Returns `true` if the descriptor is readable within `timeout` milliseconds; -1 means forever.
pub(crate) fn is_readable(fd: &impl AsFd, timeout: i32) -> bool {
    let mut polled = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid element, which lives during the call.
    unsafe { libc::poll(&mut polled, 1, timeout) == 1 }
}

/// Sleeps until one of the descriptors is readable.
fn wait_for_any(fds: &[WakeFd]) {
    let mut polled = Vec::new();
    for fd in fds {
        polled.push(libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
    }
    // SAFETY: `polled` has that many elements, and lives during the call.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}

fn three_fds() -> [WakeFd; 3] {
    std::array::from_fn(|_| WakeFd::new().unwrap())
}

fn channel(provider: &Provider, name: &str) -> (Sender, Receiver) {
    let sender = Sender::builder()
        .spin(Duration::ZERO)
        .create(provider, name)
        .unwrap();
    (
        sender,
        Receiver::builder().spin(Duration::ZERO).open(name).unwrap(),
    )
}

#[test]
fn readable_while_ready() {
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver) = channel(&provider, &unique_prefix("wake-fd"));
    let mut ready = WakeFd::new().unwrap();
    assert!(is_readable(&ready, 0), "nothing has been polled yet");
    sender.send_copy(b"first").unwrap();
    sender.send_copy(b"second").unwrap();
    for expected in [b"first".as_slice(), b"second"] {
        let Poll::Ready(message) = ready.poll(|context| receiver.poll_recv(context)) else {
            panic!("it has arrived")
        };
        assert_eq!(&message.unwrap()[..], expected);
        assert!(is_readable(&ready, 0), "the last poll was ready");
    }
    assert!(ready
        .poll(|context| receiver.poll_recv(context))
        .is_pending());
    let sending = thread::spawn(move || {
        sender.send_copy(b"third").unwrap();
        sender
    });
    assert!(is_readable(&ready, -1));
    let sender = sending.join().unwrap();
    // The first wake-up may have been the check, once a second, that the sender exists.
    let message = loop {
        if let Poll::Ready(message) = ready.poll(|context| receiver.poll_recv(context)) {
            break message.unwrap();
        }
        assert!(is_readable(&ready, -1));
    };
    assert_eq!(&message[..], b"third");
    assert!(is_readable(&ready, 0), "the last poll was ready");
    while ready.poll(|context| receiver.poll_recv(context)).is_ready() {}
    drop(sender);
    let error = loop {
        assert!(is_readable(&ready, -1));
        if let Poll::Ready(received) = ready.poll(|context| receiver.poll_recv(context)) {
            break received.unwrap_err();
        }
    };
    assert!(matches!(error, RecvError::Disconnected), "{error}");
}

/// One loop for two channels and a request for memory.
#[test]
fn event_loop() {
    const MESSAGES: u64 = 20_000;
    let provider = Provider::builder().max_bytes(1 << 20).build().unwrap();
    let name = unique_prefix("wake-fd-loop");
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for number in 0..2 {
        let (sender, receiver) = channel(&provider, &format!("{name}-{number}"));
        senders.push(sender);
        receivers.push(receiver);
    }
    let all = provider.alloc(1 << 20).unwrap();
    let mut request = pin!(provider.request(4096).wait_async());
    let mut ready = three_fds();
    assert!(ready[2]
        .poll(|context| request.as_mut().poll(context))
        .is_pending());
    let mut sums = [0, 0];
    let mut buffer = None;
    thread::scope(|scope| {
        scope.spawn(move || drop(all));
        for mut sender in senders {
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    sender.send_copy(&number.to_ne_bytes()).unwrap();
                }
                sender
                    .wait_until_received(Duration::from_secs(240))
                    .unwrap();
            });
        }
        while sums != [MESSAGES * (MESSAGES - 1) / 2; 2] || buffer.is_none() {
            wait_for_any(&ready);
            let [channels @ .., memory] = &mut ready;
            for (at, ready) in channels.iter_mut().enumerate() {
                let receiver = &mut receivers[at];
                let sum = &mut sums[at];
                while let Poll::Ready(message) = ready.poll(|context| receiver.poll_recv(context)) {
                    match message {
                        Ok(message) => *sum += u64::from_ne_bytes(message[..].try_into().unwrap()),
                        Err(error) => {
                            assert!(matches!(error, RecvError::Disconnected), "{error}");
                            break;
                        }
                    }
                }
            }
            if buffer.is_none() {
                if let Poll::Ready(allocated) =
                    memory.poll(|context| request.as_mut().poll(context))
                {
                    buffer = Some(allocated.unwrap());
                }
            }
        }
    });
}

#[test]
fn tokio_async_fd() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver) = channel(&provider, &unique_prefix("wake-fd-tokio"));
    runtime.block_on(async {
        let ready = WakeFd::new().unwrap();
        // SAFETY: a `WakeFd` has one descriptor, which stays open as long as it lives.
        let mut ready =
            unsafe { AsyncFd::register_with_interest(ready, Interest::READABLE) }.unwrap();
        let sending = thread::spawn(move || {
            for n in 0..1_000_u64 {
                sender.send_copy(&n.to_ne_bytes()).unwrap();
            }
        });
        let mut received = 0_u64;
        while received < 1_000 {
            let mut guard = ready.readable_mut().await.unwrap();
            while let Poll::Ready(message) = guard
                .get_inner_mut()
                .poll(|context| receiver.poll_recv(context))
            {
                match message {
                    Ok(message) => assert_eq!(message[..], received.to_ne_bytes()),
                    Err(error) => panic!("after {received}: {error}"),
                }
                received += 1;
                if received == 1_000 {
                    break;
                }
            }
            guard.clear_ready();
        }
        sending.join().unwrap();
    });
}

/// An epoll of descriptors, numbered in their order.
struct Epoll(OwnedFd);

impl Epoll {
    fn new(fds: &[WakeFd]) -> Self {
        // SAFETY: the call has no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        for (number, fd) in fds.iter().enumerate() {
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: number as u64,
            };
            // SAFETY: the event lives during the call.
            let added =
                unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) };
            assert_eq!(added, 0);
        }
        // SAFETY: the descriptor is new, and has no other owner.
        Self(unsafe { OwnedFd::from_raw_fd(epoll) })
    }

    /// Sleeps until one is readable. Returns the numbers of those that are.
    fn wait(&self) -> Vec<usize> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let millis = FOR_EVER.as_millis() as i32;
        // SAFETY: the array has that many elements, and lives during the call.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                millis,
            )
        };
        assert!(count > 0, "no descriptor became readable");
        events[..count as usize]
            .iter()
            .map(|event| event.u64 as usize)
            .collect()
    }
}

/// Sleeps on the descriptor, which the last poll has cleared, until the poll is ready.
fn wait_until_ready<T>(ready: &mut WakeFd, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < FOR_EVER && is_readable(ready, FOR_EVER.as_millis() as i32));
        if let Poll::Ready(done) = ready.poll(&mut poll) {
            return done;
        }
    }
}

/// One loop sends through two channels that are mostly full, of bytes and of buffers, and receives
/// the answers from a third.
#[test]
fn epoll_of_sends() {
    const MESSAGES: u64 = 5_000;
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("wake-fd-send");
    let to_echo = format!("{name}-to-echo");
    let to_check = format!("{name}-to-check");
    let echo = format!("{name}-echo");
    let mut sender = Sender::builder()
        .capacity(2)
        .create(&provider, &to_echo)
        .unwrap();
    let mut publisher = Publisher::builder()
        .block_limit(Duration::MAX)
        .create(&provider, &to_check)
        .unwrap();
    let (mut answers, mut answer) = channel(&provider, &echo);
    let mut echoing = Receiver::builder().spin(NOW).open(&to_echo).unwrap();
    let blocking = Subscriber::builder()
        .on_end(OnEnd::Return)
        .spin(NOW)
        .on_full(OnFull::Block)
        .capacity(8)
        .max_borrowed(2);
    let mut checking = blocking.open(&to_check).unwrap();
    assert!(publisher.served().receivers().next().is_some());
    // Moved, so that a failure ends the other threads, too.
    thread::scope(move |scope| {
        scope.spawn(move || {
            for _ in 0..MESSAGES {
                answers.send_copy(&echoing.recv().unwrap()).unwrap();
            }
        });
        scope.spawn(move || {
            for number in 0..MESSAGES {
                // At its limit, it gets that error.
                let received = std::iter::repeat_with(|| checking.recv())
                    .find(|received| !matches!(received, Err(RecvError::TooManyBorrowed { .. })));
                assert!(holds(&received.unwrap().unwrap(), number));
            }
        });
        let mut ready = three_fds();
        let epoll = Epoll::new(&ready);
        let mut sent = 0;
        let mut published = 0;
        let mut answered = 0;
        let start = Instant::now();
        while sent < MESSAGES || published < MESSAGES || answered < MESSAGES {
            assert!(
                start.elapsed() < FOR_EVER,
                "{sent}, {published} and {answered} messages"
            );
            for number in epoll.wait() {
                let ready = &mut ready[number];
                match number {
                    0 if sent == MESSAGES => drop(ready.poll(|_| Poll::<()>::Pending)),
                    0 => {
                        if let Poll::Ready(room) =
                            ready.poll(|context| sender.poll_ready_copy(context, 0))
                        {
                            room.unwrap();
                            sender
                                .try_send_copy(&u64::to_ne_bytes(sent))
                                .expect("there is room");
                            sent += 1;
                        }
                    }
                    1 if published == MESSAGES => drop(ready.poll(|_| Poll::<()>::Pending)),
                    1 => {
                        let next = message(&provider, 1_000, published);
                        if let Poll::Ready(room) =
                            ready.poll(|context| publisher.poll_ready(context, &next))
                        {
                            room.unwrap();
                            assert_eq!(
                                publisher.try_send(next).expect("there is room").receivers,
                                1
                            );
                            published += 1;
                        }
                    }
                    _ => {
                        while let Poll::Ready(received) =
                            ready.poll(|context| answer.poll_recv(context))
                        {
                            match received {
                                Ok(received) => {
                                    assert_eq!(received[..], u64::to_ne_bytes(answered))
                                }
                                Err(_) if answered == MESSAGES => break,
                                Err(error) => panic!("{error}"),
                            }
                            answered += 1;
                        }
                    }
                }
            }
        }
    });
}

/// Ready exactly if `try_send` would not wait, for a slot or for a return; and if the receiver is
/// closed.
#[test]
fn sender_ready() {
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("wake-fd-sender");
    let mut sender = Sender::builder()
        .max_borrowed(2)
        .capacity(4)
        .create(&provider, &name)
        .unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    let mut ready = WakeFd::new().unwrap();
    let buffers = messages(&provider, 1_000, 0..3);
    for buffer in &buffers[..2] {
        assert!(matches!(
            ready.poll(|context| sender.poll_ready(context, buffer)),
            Poll::Ready(Ok(()))
        ));
        sender.try_send(buffer.clone()).unwrap();
    }
    assert!(
        ready
            .poll(|context| sender.poll_ready(context, &buffers[2]))
            .is_pending(),
        "none may be borrowed is left"
    );
    assert!(
        ready
            .poll(|context| sender.poll_ready_copy(context, 0))
            .is_ready(),
        "a slot is"
    );
    assert!(ready
        .poll(|context| sender.poll_ready(context, &buffers[2]))
        .is_pending());
    drop(receiver.recv().unwrap());
    wait_until_ready(&mut ready, |context| {
        sender.poll_ready(context, &buffers[2])
    })
    .unwrap();
    while sender.try_send_copy(b"x").is_ok() {}
    // A receive wakes at once.
    assert_prompt(|| {
        assert!(ready
            .poll(|context| sender.poll_ready_copy(context, 0))
            .is_pending());
        let start = Instant::now();
        // The slot of the last one becomes free with the next receive.
        drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
        wait_until_ready(&mut ready, |context| sender.poll_ready_copy(context, 0)).unwrap();
        let time = start.elapsed();
        while sender.try_send_copy(b"x").is_ok() {}
        time
    });
    assert!(ready
        .poll(|context| sender.poll_ready_copy(context, 0))
        .is_pending());
    drop(receiver);
    let error =
        wait_until_ready(&mut ready, |context| sender.poll_ready_copy(context, 0)).unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::Disconnected);
}

/// Ready if no receiver is waited for: each has room, or is past the limit, whose clock runs. A
/// receiver at its own limit gets that error.
#[test]
fn publisher_ready() {
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("wake-fd-publisher");
    let mut ready = WakeFd::new().unwrap();
    for (limit, serves) in [
        (Duration::MAX, true),
        (Duration::MAX, false),
        (Duration::from_millis(20), true),
    ] {
        let options = Publisher::builder()
            .block_limit(limit)
            .joins_in_send(serves);
        let mut publisher = options.create(&provider, &name).unwrap();
        let blocking = |max_borrowed| {
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(OnFull::Block)
                .capacity(1)
                .max_borrowed(max_borrowed)
                .open(&name)
        };
        let mut receivers = [blocking(1).unwrap(), blocking(4).unwrap()];
        let _stopped = Subscriber::builder()
            .on_end(OnEnd::Return)
            .capacity(1)
            .open(&name)
            .unwrap();
        publisher.wait_for_receivers(3, FOR_EVER).unwrap();
        let next = message(&provider, 1_000, 0);
        assert!(matches!(
            ready.poll(|context| publisher.poll_ready(context, &next)),
            Poll::Ready(Ok(()))
        ));
        assert_eq!(publisher.try_send(next.clone()).unwrap().receivers, 3);
        let mut held = Vec::new();
        for receiver in &mut receivers {
            held.push(receiver.recv().unwrap());
        }
        let start = Instant::now();
        assert!(ready
            .poll(|context| publisher.poll_ready(context, &next))
            .is_pending());
        assert!(matches!(
            receivers[0].try_recv(),
            Err(RecvError::TooManyBorrowed { max: 1 })
        ));
        assert!(ready
            .poll(|context| publisher.poll_ready(context, &next))
            .is_pending());
        assert!(
            matches!(receivers[0].try_recv(), Err(RecvError::Empty)),
            "once"
        );
        if limit < Duration::MAX {
            wait_until_ready(&mut ready, |context| publisher.poll_ready(context, &next)).unwrap();
            assert!(start.elapsed() >= limit);
            let sent = publisher.try_send(next).unwrap();
            assert_eq!((sent.receivers, sent.missed.stalled), (2, 1));
            continue;
        }
        drop(held);
        wait_until_ready(&mut ready, |context| publisher.poll_ready(context, &next)).unwrap();
        while publisher.try_send_copy(b"x").is_ok() {}
        // The first makes room, and then the second.
        for receiver in &mut receivers {
            assert!(ready
                .poll(|context| publisher.poll_ready_copy(context, 0))
                .is_pending());
            drop([receiver.recv().unwrap(), receiver.recv().unwrap()]);
        }
        wait_until_ready(&mut ready, |context| publisher.poll_ready_copy(context, 0)).unwrap();
        while publisher.try_send_copy(b"x").is_ok() {}
        assert!(ready
            .poll(|context| publisher.poll_ready_copy(context, 0))
            .is_pending());
        drop(receivers);
        wait_until_ready(&mut ready, |context| publisher.poll_ready_copy(context, 0)).unwrap();
        assert_eq!(publisher.try_send_copy(b"y").unwrap().receivers, 1);
    }
}

#[test]
fn tokio_async_fd_of_sender() {
    const MESSAGES: u64 = 1_000;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("wake-fd-tokio-send");
    let mut sender = Sender::builder()
        .capacity(2)
        .create(&provider, &name)
        .unwrap();
    let mut receiver = Receiver::builder().spin(NOW).open(&name).unwrap();
    runtime.block_on(async {
        // SAFETY: a `WakeFd` has one descriptor, which stays open as long as it lives.
        let ready =
            unsafe { AsyncFd::register_with_interest(WakeFd::new().unwrap(), Interest::READABLE) };
        let mut ready = ready.unwrap();
        let receiving = thread::spawn(move || {
            for number in 0..MESSAGES {
                assert_eq!(receiver.recv().unwrap()[..], number.to_ne_bytes());
            }
        });
        let mut sent = 0;
        while sent < MESSAGES {
            let mut guard = ready.readable_mut().await.unwrap();
            while sent < MESSAGES {
                let Poll::Ready(room) = guard
                    .get_inner_mut()
                    .poll(|context| sender.poll_ready_copy(context, 0))
                else {
                    break;
                };
                room.unwrap();
                sender
                    .try_send_copy(&sent.to_ne_bytes())
                    .expect("there is room");
                sent += 1;
            }
            guard.clear_ready();
        }
        receiving.join().unwrap();
    });
}

/// Receives events until there is none, and the descriptor says so.
fn exhaust(receiver: &mut Subscriber) -> Vec<ChannelEvent> {
    let mut events = Vec::new();
    // A wake-up may have come before its event was received.
    for _ in 0..100 {
        match receiver.try_recv_event() {
            Ok(event) => events.push(event),
            Err(RecvError::Empty) if !is_readable(&receiver.wake_fd().unwrap(), 0) => {
                return events
            }
            Err(RecvError::Empty) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it stays readable: {events:?}");
}

/// Waits until the descriptor is readable and there is an event.
fn next_events(receiver: &mut Subscriber) -> Vec<ChannelEvent> {
    loop {
        assert!(is_readable(&receiver.wake_fd().unwrap(), -1));
        let events = exhaust(receiver);
        if !events.is_empty() {
            return events;
        }
    }
}

#[test]
fn fd_of_an_end_follows_restarts() {
    let name = unique_prefix("fd-of-end");
    let mut receiver = Subscriber::builder()
        .spin(Duration::ZERO)
        .open(&name)
        .unwrap();
    assert!(is_readable(&receiver.wake_fd().unwrap(), 0), "at first");
    assert!(exhaust(&mut receiver).is_empty());
    for round in 0..3 {
        let provider = Provider::builder().build().unwrap();
        let creating = {
            let provider = provider.clone();
            let name = name.clone();
            thread::spawn(move || Publisher::create(&provider, &name).unwrap())
        };
        let events = next_events(&mut receiver);
        assert!(
            matches!(events[..], [ChannelEvent::Connected(_)]),
            "{round}: {events:?}"
        );
        let mut publisher = creating.join().unwrap();
        let sending = thread::spawn(move || {
            publisher.send_copy(b"first").unwrap();
            publisher.send(publisher.alloc(10_000).unwrap()).unwrap();
            publisher
        });
        let mut received = 0;
        while received < 2 {
            received += next_events(&mut receiver).len();
        }
        drop(sending.join().unwrap());
        let events = next_events(&mut receiver);
        assert!(
            matches!(events[..], [ChannelEvent::Disconnected]),
            "{round}: {events:?}"
        );
    }
}

/// Waits of other kinds replace what the descriptor has registered.
#[test]
fn fd_of_an_end_beside_other_waits() {
    let provider = Provider::builder().build().unwrap();
    let name = unique_prefix("fd-beside");
    let mut publisher = Publisher::create(&provider, &name).unwrap();
    let mut receiver = Subscriber::builder()
        .spin(Duration::ZERO)
        .open(&name)
        .unwrap();
    receiver.wake_fd().unwrap();
    exhaust(&mut receiver);
    let waits: [fn(&mut Subscriber); 4] = [
        |receiver| {
            let received = receiver.recv_timeout(Duration::from_millis(1));
            assert!(matches!(received, Err(RecvError::TimedOut)));
        },
        |receiver| {
            let waited = wait_any(&mut [receiver], Duration::from_millis(1));
            assert!(matches!(waited, Err(RecvError::TimedOut)));
        },
        |receiver| {
            let mut context = Context::from_waker(Waker::noop());
            assert!(receiver.poll_recv(&mut context).is_pending());
        },
        |receiver| {
            let mut context = Context::from_waker(Waker::noop());
            let future = pin!(receiver.recv_async());
            assert!(future.poll(&mut context).is_pending());
        },
    ];
    for (at, wait) in waits.into_iter().enumerate() {
        wait(&mut receiver);
        assert!(is_readable(&receiver.wake_fd().unwrap(), 0), "{at}");
        assert!(exhaust(&mut receiver).is_empty(), "{at}");
        publisher.send_copy(b"a sample").unwrap();
        assert!(matches!(
            next_events(&mut receiver)[..],
            [ChannelEvent::Message(_)]
        ));
    }
}

/// Also after a wait of the same watcher, which replaces the waker.
#[test]
fn fd_of_a_watcher() {
    let name = unique_prefix("wake-fd-watch");
    let namespace = Namespace::new(&name).unwrap();
    let provider = Provider::builder().namespace(&namespace).build().unwrap();
    let mut watcher = Watcher::new(&namespace);
    assert!(is_readable(&watcher.wake_fd().unwrap(), 0));
    for number in 0..3 {
        assert!(matches!(watcher.try_recv(), Err(RecvError::Empty)));
        if number == 1 {
            let waited = watcher.recv_timeout(Duration::from_millis(1));
            assert!(matches!(waited, Err(RecvError::TimedOut)));
            assert!(is_readable(&watcher.wake_fd().unwrap(), 0));
            assert!(matches!(watcher.try_recv(), Err(RecvError::Empty)));
        }
        let sender = Sender::create(&provider, "camera").unwrap();
        assert!(matches!(next(&mut watcher), ChannelChange::Created(_)));
        drop(sender);
        assert!(matches!(next(&mut watcher), ChannelChange::Closed(_)));
    }
}

fn next(watcher: &mut Watcher) -> ChannelChange {
    loop {
        match watcher.try_recv() {
            Ok(change) => return change,
            Err(RecvError::Empty) => assert!(is_readable(&watcher.wake_fd().unwrap(), -1)),
            Err(error) => panic!("{error}"),
        }
    }
}
