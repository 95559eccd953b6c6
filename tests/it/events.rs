//! Events for subscribers of `tracing`: one for each change that concerns an operator, and none on
//! the warm path.

use crate::support::{builder, message, unique_prefix};
use shm_pool::channel::{Publisher, Receiver};
use shm_pool::Client;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the events of this thread, each as its message and fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "shm_pool"
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn cold_paths_tell_and_the_warm_path_does_not() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let told = |expected: &[&str]| {
        let events = log.take();
        assert_eq!(events.len(), expected.len(), "{events:?}");
        for (event, words) in events.iter().zip(expected) {
            assert!(words.split(", ").all(|word| event.contains(word)), "{words:?} is not in {event:?}");
        }
    };
    let prefix = unique_prefix("events");
    let provider = builder().name_prefix(&prefix).max_bytes(1 << 20).build().unwrap();
    told(&[&format!("INFO, provider made, max_bytes=1048576, {}, {prefix}", provider.id())]);
    drop(message(&provider, 1_000, 1));
    told(&["INFO, segment made, segment=1"]);
    let mut publisher = Publisher::builder().create(&provider, "c").unwrap();
    let client = Client::builder().name_prefix(&prefix).build().unwrap();
    let mut receiver = Receiver::open(&client, "c").unwrap();
    assert!(publisher.has_receivers());
    told(&["INFO, receiver met, channel=\"c\", KeepLatest"]);
    for stamp in 0..1_000 {
        publisher.send(message(&provider, 1_000, stamp)).unwrap();
        drop(receiver.recv().unwrap());
    }
    told(&[]);
    drop(receiver);
    assert!(!publisher.has_receivers());
    told(&["INFO, receiver gone, channel=\"c\""]);
    drop(publisher);
    let all: Vec<_> = std::iter::from_fn(|| provider.alloc(100_000).ok()).collect();
    assert!(log.take().iter().any(|event| event.contains("DEBUG") && event.contains("exhausted")));
    drop(all);
    provider.trim();
    let events = log.take();
    assert!(events.iter().any(|event| event.contains("segment given up")), "{events:?}");
    assert!(events.iter().any(|event| event.contains("idle memory given back")));
    drop(provider);
    told(&["INFO, provider closed"]);
}

/// Replaces one receiver by another as soon as the publisher has disconnected a third one.
struct Replacing<F>(F);

impl<F: Fn() + Send + Sync + 'static> Subscriber for Replacing<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "shm_pool"
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        if text.0.contains("receiver gone") {
            (self.0)();
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A receiver gets every message whose `send` began after its `open` returned, even if other
/// receivers are replaced during that `send`.
#[test]
fn newcomer_gets_first_message() {
    let prefix = unique_prefix("events-newcomer");
    let provider = builder().name_prefix(&prefix).build().unwrap();
    let client = Arc::new(Client::builder().name_prefix(&prefix).build().unwrap());
    let mut publisher = Publisher::builder().receivers(3).create(&provider, "c").unwrap();
    let open = |client: &Client| Receiver::open(client, "c").unwrap();
    let [first, _second, third] = [(); 3].map(|()| open(&client));
    assert_eq!(publisher.send_bytes(b"a"), Ok(3));
    drop(third);
    let mut newcomer = open(&client);
    let replaced = Arc::new(Mutex::new(Some(first)));
    let replace = {
        let (replaced, client) = (replaced.clone(), client.clone());
        move || {
            let mut replaced = replaced.lock().unwrap();
            drop(replaced.take());
            *replaced = Some(open(&client));
        }
    };
    tracing::subscriber::with_default(Replacing(replace), || publisher.send_bytes(b"b").unwrap());
    assert_eq!(&newcomer.try_recv().unwrap()[..], b"b");
    assert_eq!(publisher.send_bytes(b"c"), Ok(3));
    assert_eq!(&replaced.lock().unwrap().as_mut().unwrap().try_recv().unwrap()[..], b"c");
}
