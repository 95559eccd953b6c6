//! File descriptors of event loops.

use crate::fixtures::unique_prefix;
use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::{Client, Provider, WakeFd};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

/// Returns `true` if the descriptor is readable within `timeout` milliseconds; -1 means forever.
fn is_readable(fd: &impl AsFd, timeout: i32) -> bool {
    let mut polled = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid element, which lives during the call.
    unsafe { libc::poll(&mut polled, 1, timeout) == 1 }
}

/// Sleeps until one of the descriptors is readable.
fn wait_for_any(fds: &[WakeFd]) {
    let polled = |fd: &WakeFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<_> = fds.iter().map(polled).collect();
    // SAFETY: `polled` has that many elements, and lives during the call.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}

fn channel(provider: &Provider, name: &str) -> (Sender, Receiver) {
    let sender = Sender::builder().spin(Duration::ZERO).create(provider, name).unwrap();
    (sender, Receiver::builder().spin(Duration::ZERO).open(&Client::new(), name).unwrap())
}

#[test]
fn readable_while_ready() {
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver) = channel(&provider, &unique_prefix("wake-fd"));
    let mut ready = WakeFd::new().unwrap();
    assert!(is_readable(&ready, 0), "nothing has been polled yet");
    sender.send_bytes(b"first").unwrap();
    sender.send_bytes(b"second").unwrap();
    for expected in [b"first".as_slice(), b"second"] {
        let Poll::Ready(message) = ready.poll(|context| receiver.poll_recv(context)) else { panic!("it has arrived") };
        assert_eq!(&message.unwrap()[..], expected);
        assert!(is_readable(&ready, 0), "the last poll was ready");
    }
    assert!(ready.poll(|context| receiver.poll_recv(context)).is_pending());
    let sending = thread::spawn(move || sender.send_bytes(b"third").map(|()| sender).unwrap());
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
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..2).map(|number| channel(&provider, &format!("{name}-{number}"))).unzip();
    let all = provider.alloc(1 << 20).unwrap();
    let mut request = pin!(provider.request(4096).wait_async());
    let mut ready = [(); 3].map(|()| WakeFd::new().unwrap());
    assert!(ready[2].poll(|context| request.as_mut().poll(context)).is_pending());
    let (mut sums, mut buffer) = ([0, 0], None);
    thread::scope(|scope| {
        scope.spawn(move || drop(all));
        for mut sender in senders {
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    sender.send_bytes(&number.to_ne_bytes()).unwrap();
                }
                sender.wait_until_received(Duration::from_secs(240)).unwrap();
            });
        }
        while sums != [MESSAGES * (MESSAGES - 1) / 2; 2] || buffer.is_none() {
            wait_for_any(&ready);
            let [channels @ .., memory] = &mut ready;
            for ((receiver, sum), ready) in receivers.iter_mut().zip(&mut sums).zip(channels) {
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
                if let Poll::Ready(allocated) = memory.poll(|context| request.as_mut().poll(context)) {
                    buffer = Some(allocated.unwrap());
                }
            }
        }
    });
}

#[test]
fn tokio_async_fd() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let provider = Provider::builder().build().unwrap();
    let (mut sender, mut receiver) = channel(&provider, &unique_prefix("wake-fd-tokio"));
    runtime.block_on(async {
        let ready = WakeFd::new().unwrap();
        // SAFETY: a `WakeFd` has one descriptor, which stays open as long as it lives.
        let mut ready = unsafe { AsyncFd::register_with_interest(ready, Interest::READABLE) }.unwrap();
        let sending = thread::spawn(move || (0..1_000_u64).for_each(|n| sender.send_bytes(&n.to_ne_bytes()).unwrap()));
        let mut received = 0_u64;
        while received < 1_000 {
            let mut guard = ready.readable_mut().await.unwrap();
            while let Poll::Ready(message) = guard.get_inner_mut().poll(|context| receiver.poll_recv(context)) {
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
