//! A sequence of numbered messages, of which the subscribers check every byte.

use crate::child::{Child, Link};
use crate::support::is_filled;
use crate::{invalidated, session};
use zenoh::bytes::ZBytes;
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::Subscriber;
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

/// How many messages each subscriber holds.
pub(crate) const HELD: usize = 5;

pub(crate) const LENS: [usize; 4] = [100, 4096, 4090, 64 << 10];

/// How many size classes these lengths have.
pub(crate) const CLASSES: u64 = 3;

/// Returns the length of a message.
pub(crate) fn len(number: usize) -> usize {
    LENS[number % LENS.len()]
}

/// Writes a message of the length that belongs to its number.
pub(crate) fn write(number: usize, bytes: &mut [u8]) {
    bytes.fill(number as u8);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
}

/// Returns the number of a message.
pub(crate) fn number(payload: &ZBytes) -> usize {
    usize::from_le_bytes(payload.to_bytes()[..8].try_into().unwrap())
}

/// Returns `true` if every byte is as it was written, and the message arrived in shared memory if
/// it should, and only then.
pub(crate) fn is_intact(payload: &ZBytes, is_shared: bool) -> bool {
    let bytes = payload.to_bytes();
    let number = number(payload);
    bytes.len() == len(number)
        && is_filled(&bytes[8..], number as u8)
        && payload.as_shm().is_some() == is_shared
}

/// Receives `count` messages, or all up to number `count - 1`. Holds each message for a while, and
/// checks every byte when it arrives and before it is dropped.
///
/// The first message may have any number. The first gap is allowed, as zenoh sends to a new peer
/// until it knows the peer's subscriptions. Later, only messages that zenoh has invalidated may be
/// missing.
pub(crate) fn check(
    subscriber: &Subscriber<FifoChannelHandler<Sample>>,
    count: usize,
    is_shared: bool,
) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut held: Vec<Sample> = Vec::new();
    let mut due = None;
    let mut has_gap = false;
    let mut missing = 0;
    for _ in 0..count {
        let sample = subscriber.recv().map_err(|error| error.to_string())?;
        let number = number(sample.payload());
        if !is_intact(sample.payload(), is_shared) {
            return Err(format!(
                "message {number} is not as it was sent, or did not arrive as it should"
            ));
        }
        let expected = due.unwrap_or(number);
        if number < expected {
            return Err(format!("message {number} instead of {expected}"));
        }
        if number > expected && has_gap {
            missing += number - expected;
            let invalidated = invalidated::count();
            if missing > invalidated {
                return Err(format!(
                    "message {number} instead of {expected}; {invalidated} were invalidated"
                ));
            }
        }
        if number > expected {
            has_gap = true;
        }
        due = Some(number + 1);
        held.push(sample);
        if held.len() > HELD {
            let old = held.swap_remove(random.usize(..held.len()));
            if !is_intact(old.payload(), is_shared) {
                return Err("a message changed while it was held".to_owned());
            }
        }
        if number + 1 == count {
            break; // also after a gap
        }
    }
    for sample in &held {
        if !is_intact(sample.payload(), is_shared) {
            return Err("one of the last messages changed".to_owned());
        }
    }
    Ok(())
}

/// Whether a subscriber has zenoh's shared memory, and how its messages arrive.
pub(crate) const SHARED: &str = "shared";
pub(crate) const COPIED: &str = "copied";

/// A subscriber that checks messages in a process of its own.
pub(crate) struct Reader {
    child: Child,
    ready: String,
}

impl Reader {
    /// Starts a subscriber to `key` that connects as a peer or a client, and checks `count`
    /// messages. It `has` shared memory or not, and `gets` its messages there or not. Its `name` is
    /// unique.
    pub(crate) fn start(
        mode: &str,
        endpoint: &str,
        [has, gets]: [&str; 2],
        key: &str,
        name: &str,
        count: usize,
    ) -> Self {
        let ready = format!("{key}/ready/{name}");
        let child = Child::start(
            "reader",
            &[mode, endpoint, has, gets, key, &ready, &count.to_string()],
        );
        Self { child, ready }
    }

    /// Waits until `session` sends to this subscriber. zenoh announces the subscribers of a session
    /// in the order in which they are declared, and the reader declares the one of `ready` last.
    pub(crate) fn wait_until_known(&self, session: &Session) {
        session::publisher_of(session, &self.ready);
    }

    /// Waits until it has checked its messages, and fails unless all arrived as they were sent.
    pub(crate) fn finish(&mut self) {
        self.child.link.expect("intact");
    }

    pub(crate) fn end(self) {
        self.child.end();
    }
}

/// Role: the subscriber of a [`Reader`].
pub(crate) fn reader(link: &mut Link, arguments: &[&str]) {
    let [mode, endpoint, has, gets, key, ready, count] = arguments else {
        panic!("{arguments:?}")
    };
    invalidated::watch();
    let session = session::open_with(mode, "connect", endpoint, *has == SHARED);
    let subscriber = session.declare_subscriber(key.to_string()).wait().unwrap();
    let _ready = session
        .declare_subscriber(ready.to_string())
        .wait()
        .unwrap();
    let outcome = check(&subscriber, count.parse().unwrap(), *gets == SHARED);
    // The publisher must not wait for a reader that receives no more.
    drop(subscriber);
    match outcome {
        Ok(()) => link.send("intact"),
        Err(wrong) => link.send(&wrong),
    }
    link.expect("end");
}
