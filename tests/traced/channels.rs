//! Each end of a channel in its own process, with each operation marked for the tracer.

#![forbid(unsafe_code)]

use crate::kill_points::introduce;
use crate::owner_operations::{builder, SMALL};
use crate::shm;
use crate::trace::marked;
use crate::wire::{Link, Message};
use shm_pool::channel::{
    ChannelError, Message as Received, OnEnd, Receiver, SendOptions, Sender, Subscriber,
};
use shm_pool::{Client, Provider};
use shm_pool_support::tasks::noop_waker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

/// `CHANNEL` is the channel under test. `OTHER` is created before it, so that everything a process
/// creates only once exists.
pub(crate) const CHANNEL: &str = "c";
pub(crate) const OTHER: &str = "other";

/// Longer than any test may take.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(600);

/// The message in the slot itself. [`BUFFERS`] buffers follow it.
pub(crate) const BYTES: &[u8] = b"a message of its own";

pub(crate) const BUFFERS: u64 = 3;

pub(crate) fn sender(provider: &Provider, name: &str) -> Result<Sender, ChannelError> {
    Sender::builder().capacity(8).create(provider, name)
}

pub(crate) fn receiver(client: &Arc<Client>, name: &str) -> Result<Receiver, ChannelError> {
    Receiver::builder().namespace(client.namespace()).open(name)
}

pub(crate) fn subscriber(client: &Arc<Client>, name: &str) -> Result<Subscriber, ChannelError> {
    Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(client.namespace())
        .open_timeout(name, std::time::Duration::ZERO)
}

/// Every other message has a tag, beginning with the one in the slot.
fn tag(number: u64) -> Option<[u8; 16]> {
    if number % 2 == 1 {
        return None;
    }
    Some([number as u8 + 1; 16])
}

/// Those of a message with this number, which does not wait.
pub(crate) fn options(number: u64) -> SendOptions {
    let options = SendOptions::new().timeout(Duration::ZERO);
    match tag(number) {
        Some(tag) => options.tag(tag),
        None => options,
    }
}

/// How many messages this process has sent: those whose send has returned. The tracer reads it when
/// it kills the process.
pub(crate) static SENT: AtomicU64 = AtomicU64::new(0);

/// Counts a message whose send has returned.
pub(crate) fn count_sent() {
    SENT.fetch_add(1, Ordering::Release);
}

/// Sends the first `count` messages.
pub(crate) fn send(sender: &mut Sender, provider: &Provider, count: u64) {
    for number in 0..count {
        if number == 0 {
            sender.send_copy_with(BYTES, options(number)).unwrap();
        } else {
            let buffer = shm::message(provider, SMALL, number);
            sender.send_with(buffer, options(number)).unwrap();
        }
        count_sent();
    }
}

/// Checks that `message` is the one with this number.
pub(crate) fn check(message: &Received, number: u64) {
    assert_eq!(message.tag(), tag(number));
    if number == 0 {
        assert_eq!(message[..], *BYTES);
    } else {
        assert_eq!(message.len(), SMALL);
        shm::check(message, number).unwrap();
    }
}

role!("killed-receiver", receiver_role);

/// The role of a receiver. The arguments are the operation and the prefix.
fn receiver_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let prefix = arguments[1];
    let client = Arc::new(shm::client(prefix));
    let mut other = receiver(&client, OTHER).unwrap();
    if operation == "open" {
        drop(marked(|| receiver(&client, CHANNEL)).unwrap());
        return;
    }
    let mut receiver = receiver(&client, CHANNEL).unwrap();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    if operation == "await" {
        let waker = noop_waker();
        let poll = |receiver: &mut Receiver| receiver.poll_recv(&mut Context::from_waker(&waker));
        // Starts the helper.
        assert!(poll(&mut other).is_pending());
        for number in 0..=BUFFERS {
            check(&receiver.recv().unwrap(), number);
        }
        assert!(marked(|| poll(&mut receiver)).is_pending());
        return;
    }
    let mut receive = |count: u64| {
        for number in 0..count {
            check(&receiver.recv().unwrap(), number);
        }
    };
    match operation {
        "receive bytes" => marked(|| receive(1)),
        "receive a buffer" => {
            receive(1);
            check(&marked(|| receiver.recv()).unwrap(), 1);
        }
        "receive a buffer, mapped" => {
            receive(2);
            check(&marked(|| receiver.recv()).unwrap(), 2);
        }
        "drop a view" | "drop a view, waited for" => {
            receive(1);
            let view = receiver.recv().unwrap();
            marked(|| drop(view));
        }
        "drop the receiver" | "drop the receiver, waited for" => {
            receive(1);
            marked(|| drop(receiver));
        }
        other => panic!("no operation {other:?}"),
    }
}

role!("killed-sender", sender_role);

/// The role of a sender. The arguments are the operation and the prefix.
fn sender_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let prefix = arguments[1];
    let provider = builder(prefix).build().unwrap();
    let other = sender(&provider, OTHER).unwrap();
    if matches!(operation, "create" | "create over remains") {
        drop(marked(|| sender(&provider, CHANNEL)).unwrap());
        return;
    }
    let mut sender = sender(&provider, CHANNEL).unwrap();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    match operation {
        "find the receiver" => marked(|| sender.wait_for_receiver(FOR_EVER)).unwrap(),
        "send bytes" => marked(|| send(&mut sender, &provider, 1)),
        "send a buffer" => {
            send(&mut sender, &provider, 1);
            let buffer = shm::message(&provider, SMALL, 1);
            marked(|| {
                sender.try_send(buffer).unwrap();
                count_sent();
            });
        }
        "send several" => marked(|| send(&mut sender, &provider, 1 + BUFFERS)),
        "drop the sender" => {
            send(&mut sender, &provider, 1 + BUFFERS);
            marked(|| drop(sender));
        }
        "drop the provider, then the sender" => {
            send(&mut sender, &provider, 1 + BUFFERS);
            drop(other);
            marked(|| {
                drop(provider);
                drop(sender);
            });
        }
        "drop the sender, then the provider" => {
            send(&mut sender, &provider, 1 + BUFFERS);
            drop(other);
            marked(|| {
                drop(sender);
                drop(provider);
            });
        }
        other => panic!("no operation {other:?}"),
    }
}
