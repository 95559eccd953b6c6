//! Messages that are dropped in the thread that receives, and in others, while the receiving end moves
//! and is dropped.

use crate::fixtures::{holds, mappings, message, unique_prefix, FOR_EVER};
use shm_pool::channel::{Message, OnEnd, Publisher, Receiver, Sender, Subscriber};
use shm_pool::{Namespace, Provider, ShmBytes};
use std::sync::mpsc;
use std::thread;

const LEN: usize = 5_000;

/// Messages that the first thread receives, and the second one.
const FIRST: usize = 6;
const SECOND: usize = 10;

const ROUNDS: usize = 200;

enum Sending {
    Pair(Box<Sender>),
    Publisher(Box<Publisher>),
}

impl Sending {
    fn send(&mut self, buffer: ShmBytes) {
        match self {
            Self::Pair(sender) => sender.send(buffer).unwrap(),
            Self::Publisher(publisher) => {
                assert_eq!(publisher.send(buffer).unwrap().receivers, 1);
            }
        }
    }
}

enum Receiving {
    Pair(Receiver),
    Subscriber(Subscriber),
}

impl Receiving {
    fn receive(&mut self, number: usize) -> Message {
        let message = match self {
            Self::Pair(receiver) => receiver.recv(),
            Self::Subscriber(subscriber) => subscriber.recv(),
        };
        let message = message.unwrap();
        assert!(holds(&message, number as u64));
        message
    }
}

fn ends(provider: &Provider, is_pair: bool) -> (Sending, Receiving) {
    let namespace = provider.namespace();
    if is_pair {
        let sender = Sender::builder().max_borrowed(FIRST + SECOND);
        let sender = sender.create(provider, "c").unwrap();
        let receiver = Receiver::builder().namespace(namespace).open("c").unwrap();
        return (Sending::Pair(Box::new(sender)), Receiving::Pair(receiver));
    }
    let publisher = Publisher::builder().max_borrowed(FIRST + SECOND);
    let mut publisher = publisher.create(provider, "c").unwrap();
    let subscriber = Subscriber::builder()
        .namespace(namespace)
        .on_end(OnEnd::Return)
        .open("c")
        .unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    (
        Sending::Publisher(Box::new(publisher)),
        Receiving::Subscriber(subscriber),
    )
}

/// The first thread receives some messages and goes on to drop messages, its own and such as the second
/// one has received. Meanwhile the second one receives, drops some, and drops the receiving end.
fn move_and_drop(sending: &mut Sending, mut receiving: Receiving, provider: &Provider) {
    for number in 0..FIRST {
        sending.send(message(provider, LEN, number as u64));
    }
    let (moving, moved) = mpsc::channel();
    let (passing, passed) = mpsc::channel::<Message>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut kept = Vec::new();
            for number in 0..FIRST {
                kept.push(receiving.receive(number));
            }
            // At home.
            drop(kept.pop());
            moving.send(receiving).unwrap();
            drop(kept);
            for message in passed {
                drop(message);
            }
        });
        scope.spawn(move || {
            let mut receiving: Receiving = moved.recv().unwrap();
            for number in 0..SECOND {
                sending.send(message(provider, LEN, number as u64));
                let message = receiving.receive(number);
                let clone = message.clone();
                if number % 3 != 0 {
                    passing.send(message).unwrap();
                }
                if number % 2 == 0 {
                    passing.send(clone).unwrap();
                }
            }
            drop(receiving);
        });
    });
}

/// Every buffer comes back, and nothing stays mapped.
#[test]
fn ends_move_while_messages_are_dropped() {
    for is_pair in [true, false] {
        let namespace = Namespace::new(&unique_prefix("returns-move")).unwrap();
        let provider = Provider::builder().namespace(&namespace).build().unwrap();
        let id = provider.id().to_string();
        drop(message(&provider, LEN, 0));
        let before = mappings(&id);
        for _ in 0..ROUNDS {
            let (mut sending, receiving) = ends(&provider, is_pair);
            move_and_drop(&mut sending, receiving, &provider);
            provider.reclaim();
            assert_eq!(provider.stats().bytes_in_use, 0, "the sender is there");
            drop(sending);
            assert!(mappings(&id) <= before, "a receiver's mapping is left");
        }
    }
}

/// All numbers that a receiver may hold are lent again, whichever threads have returned them.
#[test]
fn numbers_returned_by_two_threads() {
    for is_pair in [true, false] {
        let namespace = Namespace::new(&unique_prefix("returns-two")).unwrap();
        let provider = Provider::builder().namespace(&namespace).build().unwrap();
        let (mut sending, mut receiving) = ends(&provider, is_pair);
        let (passing, passed) = mpsc::sync_channel::<Message>(2);
        thread::scope(|scope| {
            scope.spawn(move || passed.into_iter().for_each(drop));
            let mut kept = Vec::new();
            for number in 0..100 * (FIRST + SECOND) {
                sending.send(message(&provider, LEN, number as u64));
                let message = receiving.receive(number);
                match number % 4 {
                    0 => passing.send(message).unwrap(),
                    1 => kept.push(message),
                    _ => drop(message),
                }
                if kept.len() == FIRST {
                    kept.clear();
                }
            }
            drop(passing);
        });
        provider.reclaim();
        assert_eq!(provider.stats().bytes_in_use, 0);
    }
}
