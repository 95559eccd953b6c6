//! A publisher that ends while a receiver joins.

#![forbid(unsafe_code)]

use crate::channels::FOR_EVER;
use crate::kill_points::{introduce, is_possible, Victim};
use crate::owner_operations::builder;
use crate::served::Served;
use crate::shm::{self, Names};
use crate::trace::{marked, Pace, Stop};
use crate::wire::{Link, Message};
use shm_pool::channel::{OnEnd, Publisher, RecvError, Subscriber};

const CHANNEL: &str = "c";
const MESSAGES: u8 = 3;

role!("joining", role);

/// The argument is the prefix.
fn role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let client = shm::client(arguments[0]);
    let opened = marked(|| {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(client.namespace())
            .open(CHANNEL)
    });
    let mut receiver = opened.expect("a receiver with messages");
    for number in 0..MESSAGES {
        assert_eq!(receiver.recv().unwrap()[..], [number]);
    }
    assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
    drop(receiver);
    link.send(&Message::Done);
}

/// The receiver has announced itself, and has not looked yet whether the channel is still open. The
/// publisher connects it, sends, and ends.
#[test]
fn messages_sent_during_a_join_arrive() {
    if !is_possible() {
        return;
    }
    let names = Names::new("join-and-end");
    let provider = builder(names.prefix()).build().unwrap();
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    let victim = Victim::start("joining", &[names.prefix()]);
    let tracee = victim.at_first_mark();
    while publisher.served().receivers().next().is_none() {
        match tracee.go(Pace::Call) {
            Stop::Call => {}
            other => panic!("{other:?} before it has joined"),
        }
    }
    for number in 0..MESSAGES {
        let mut buffer = provider.alloc_timeout(1, FOR_EVER).unwrap();
        buffer[0] = number;
        assert_eq!(publisher.send(buffer.freeze()).unwrap().receivers, 1);
    }
    drop(publisher);
    drop(provider);
    assert_eq!(tracee.go(Pace::Run), Stop::Mark);
    tracee.continue_running();
    assert!(matches!(victim.child.receive(), Message::Done));
    drop(victim);
    names.sweep();
}
