//! Events for subscribers of `tracing`: one for each change that concerns an operator, and none on
//! the warm path.

use crate::fixtures::{builder, fill, message, unique_prefix};
use crate::log::{self, Log};
use crate::served::Served;
use shm_pool::channel::{OnEnd, Publisher, Subscriber};
use shm_pool::{Client, Namespace};
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn events_on_cold_paths() {
    let log = Log::start();
    let assert_events = |expected: &[&str]| {
        let events = log.take();
        assert_eq!(events.len(), expected.len(), "{events:?}");
        for (event, words) in events.iter().zip(expected) {
            assert!(
                words.split(", ").all(|word| event.contains(word)),
                "{words:?} is not in {event:?}"
            );
        }
    };
    let prefix = unique_prefix("events");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .max_bytes(1 << 20)
        .build()
        .unwrap();
    assert_events(&[&format!(
        "INFO, provider made, max_bytes=1048576, {}, {prefix}",
        provider.id()
    )]);
    drop(message(&provider, 1_000, 1));
    assert_events(&["INFO, segment made, segment=1"]);
    let mut publisher = Publisher::builder().create(&provider, "c").unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut receiver = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(client.namespace())
        .open("c")
        .unwrap();
    assert!(publisher.served().receivers().next().is_some());
    assert_events(&["INFO, receiver connected, channel=\"c\", DropOldest"]);
    for stamp in 0..1_000 {
        publisher.send(message(&provider, 1_000, stamp)).unwrap();
        drop(receiver.recv().unwrap());
    }
    assert_events(&[]);
    drop(receiver);
    assert!(publisher.served().receivers().next().is_none());
    assert_events(&["INFO, receiver disconnected, channel=\"c\""]);
    drop(publisher);
    let all = fill(&provider, 100_000);
    assert!(log
        .take()
        .iter()
        .any(|event| event.contains("DEBUG") && event.contains("exhausted")));
    drop(all);
    provider.trim();
    let events = log.take();
    assert!(
        events
            .iter()
            .any(|event| event.contains("segment released")),
        "{events:?}"
    );
    assert!(events
        .iter()
        .any(|event| event.contains("idle memory returned")));
    drop(provider);
    assert_events(&["INFO, provider closed"]);
}

/// Even if other receivers are replaced during the `send`.
#[test]
fn newcomer_gets_first_message() {
    let prefix = unique_prefix("events-newcomer");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut publisher = Publisher::builder()
        .max_subscribers(3)
        .create(&provider, "c")
        .unwrap();
    let open = |client: &Client| {
        Subscriber::builder()
            .on_end(OnEnd::Return)
            .namespace(client.namespace())
            .open("c")
            .unwrap()
    };
    let first = open(&client);
    let _second = open(&client);
    let third = open(&client);
    assert_eq!(publisher.send_copy(b"a").unwrap().receivers, 3);
    drop(third);
    let mut newcomer = open(&client);
    let replaced = Rc::new(RefCell::new(Some(first)));
    let hooked = log::hook({
        let replaced = replaced.clone();
        move |event| {
            if event.contains("receiver disconnected") {
                drop(replaced.take());
                replaced.replace(Some(open(&client)));
            }
        }
    });
    publisher.send_copy(b"b").unwrap();
    drop(hooked);
    assert_eq!(&newcomer.try_recv().unwrap()[..], b"b");
    assert_eq!(publisher.send_copy(b"c").unwrap().receivers, 3);
    assert_eq!(
        &replaced.borrow_mut().as_mut().unwrap().try_recv().unwrap()[..],
        b"c"
    );
}
