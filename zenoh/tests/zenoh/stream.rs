//! Numbered messages, one after the other: written by a publisher, compared byte by byte by its
//! subscribers.

use crate::child::{Child, Link};
use crate::{invalidated, session};
use zenoh::bytes::ZBytes;
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::Subscriber;
use zenoh::sample::Sample;
use zenoh::{Session, Wait};

/// How many messages each subscriber holds.
pub(crate) const HELD: usize = 5;

pub(crate) const LENS: [usize; 4] = [100, 4096, 4090, 64 << 10];

/// How many size classes those are.
pub(crate) const CLASSES: u64 = 3;

/// The length of a message.
pub(crate) fn len(number: usize) -> usize {
    LENS[number % LENS.len()]
}

/// Writes a message, which is as long as its number says.
pub(crate) fn write(number: usize, bytes: &mut [u8]) {
    bytes.fill(number as u8);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
}

/// The number of a message.
pub(crate) fn number(payload: &ZBytes) -> usize {
    usize::from_le_bytes(payload.to_bytes()[..8].try_into().unwrap())
}

/// Checks that every byte is as it was written, and that the message arrived in the expected way.
pub(crate) fn is_intact(payload: &ZBytes, is_shared: bool) -> bool {
    let (bytes, number) = (payload.to_bytes(), number(payload));
    let is_written =
        bytes.len() == len(number) && bytes[8..].iter().all(|&byte| byte == number as u8);
    is_written && payload.as_shm().is_some() == is_shared
}

/// Receives `count` messages, or all up to the last of the first `count`; holds some of each for a
/// while, and compares every byte of a message on arrival and before it is released. The first may
/// have any number. The first gap is allowed, as zenoh sends to a new peer until it knows what that
/// subscribes to; after it only what zenoh has invalidated may be missing.
pub(crate) fn check(
    subscriber: &Subscriber<FifoChannelHandler<Sample>>,
    count: usize,
    is_shared: bool,
) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut held: Vec<Sample> = Vec::new();
    let (mut due, mut has_gap, mut missing) = (None, false, 0);
    for _ in 0..count {
        let sample = subscriber.recv().map_err(|error| error.to_string())?;
        let number = number(sample.payload());
        if !is_intact(sample.payload(), is_shared) {
            return Err(format!(
                "message {number} is not what was sent, or did not come as it was to come"
            ));
        }
        let Some(gap) = number.checked_sub(due.unwrap_or(number)) else {
            return Err(format!("message {number} came when {due:?} was due"));
        };
        if gap > 0 && has_gap {
            missing += gap;
            let invalidated = invalidated::count();
            if missing > invalidated {
                return Err(format!(
                    "message {number} came when {due:?} was due; {invalidated} were invalidated"
                ));
            }
        }
        has_gap |= gap > 0;
        due = Some(number + 1);
        let is_last = number + 1 == count;
        held.push(sample);
        if held.len() > HELD {
            let old = held.swap_remove(random.usize(..held.len()));
            if !is_intact(old.payload(), is_shared) {
                return Err("a message changed while it was held".to_owned());
            }
        }
        if is_last {
            break; // also after a gap
        }
    }
    match held
        .iter()
        .all(|sample| is_intact(sample.payload(), is_shared))
    {
        true => Ok(()),
        false => Err("one of the last messages changed".to_owned()),
    }
}

/// How messages come to a subscriber, and whether it has zenoh's shared memory.
pub(crate) const SHARED: &str = "shared";
pub(crate) const COPIED: &str = "copied";

/// A subscriber in a process of its own, which checks so many messages.
pub(crate) struct Reader {
    child: Child,
    ready: String,
}

impl Reader {
    /// Starts a subscriber to `key` that connects as a peer or a client. It `has` shared memory or
    /// not, and `gets` its messages there or not. No other one has its `name`.
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

    /// Returns once `session` sends to this subscriber. zenoh tells of subscribers in the order in
    /// which they arrive; the reader's other message is second.
    pub(crate) fn wait_until_known(&self, session: &Session) {
        session::publisher_of(session, &self.ready);
    }

    /// Fails unless it got all messages as they were sent.
    pub(crate) fn finish(&mut self) {
        self.child.link.expect("intact");
    }

    pub(crate) fn end(self) {
        self.child.end();
    }
}

/// Role: such a subscriber.
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
    // The publisher does not wait for a reader that has stopped.
    drop(subscriber);
    link.say(&outcome.map_or_else(|wrong| wrong, |()| "intact".to_owned()));
    link.expect("end");
}
