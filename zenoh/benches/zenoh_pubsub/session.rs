//! How the processes discover each other and communicate: zenoh's configuration, the keys, and the
//! stamp of a message; and the publisher's view of its subscribers: their presence, by liveliness
//! tokens, and their progress, by counts that they publish. All is stock zenoh, and independent of
//! the memory that messages are in.
//!
//! zenoh's own flow control ends at the receiving process, where messages pile up until the shared
//! memory is full. So the publisher waits until the slowest subscriber has caught up.

use parking_lot::{Condvar, Mutex};
use serde_json::json;
use shm_pool_support::{clock, Fallible};
use std::collections::BTreeMap;
use std::sync::Arc;
use zenoh::bytes::ZBytes;
use zenoh::sample::SampleKind;
use zenoh::{Config, Session, Wait};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The key of messages.
pub(crate) const DATA: &str = "shm_pool/example/data";

/// The prefix of liveliness tokens of subscribers that are ready. The subscriber's number follows.
pub(crate) const READY: &str = "shm_pool/example/ready";

/// The prefix of counts of messages that subscribers are done with. The subscriber's number
/// follows.
pub(crate) const DONE: &str = "shm_pool/example/done";

/// Returns a key of one subscriber.
pub(crate) fn key_of(prefix: &str, index: u8) -> String {
    format!("{prefix}/{index}")
}

/// Returns the number of the subscriber that this key belongs to.
fn index_of(key: &str) -> Option<u8> {
    let (_, index) = key.rsplit_once('/')?;
    index.parse().ok()
}

/// Opens a peer that others can connect to, at a port that the system chooses. Returns its
/// endpoint, too.
pub(crate) fn listen() -> Fallible<(Session, String)> {
    let session = open(&["tcp/127.0.0.1:0"], &[])?;
    let locators = session.info().locators().wait();
    let Some(endpoint) = locators.first() else {
        return Err("zenoh listens nowhere".into());
    };
    Ok((session, endpoint.to_string()))
}

/// Opens a peer that has one connection, to `endpoint`.
pub(crate) fn connect(endpoint: &str) -> Fallible<Session> {
    open(&[], &[endpoint])
}

fn open(listen: &[&str], connect: &[&str]) -> Fallible<Session> {
    let config = json!({
        "mode": "peer",
        "listen": { "endpoints": listen },
        // By default a peer keeps trying in the background, and its program waits for messages that
        // cannot arrive.
        "connect": { "endpoints": connect, "timeout_ms": 5000, "exit_on_failure": true },
        // Only processes that know the address take part, no other zenoh program on this network.
        "scouting": {
            "multicast": { "enabled": false },
            "gossip": { "enabled": false },
        },
        "transport": {
            "shared_memory": {
                "enabled": true,
                // Copies large messages that are not in shared memory into a segment of zenoh's
                // own. All messages here are in shared memory, of any size, except counts of a few
                // bytes.
                "transport_optimization": { "enabled": false },
            },
        },
    });
    zenoh::open(Config::from_json5(&config.to_string())?).wait()
}

/// The attachment of a message.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Stamp {
    /// How many messages were sent before this one.
    pub(crate) number: U64,
    /// When the message was sent, by the clock that processes share.
    pub(crate) sent: U64,
    /// How many subscribers had ever shown their tokens by then.
    pub(crate) shown: U64,
}

impl Stamp {
    pub(crate) fn now(number: u64, audience: &Audience) -> Self {
        let shown = audience.0.done.lock().len() as u64;
        Self {
            number: number.into(),
            sent: clock::now().into(),
            shown: shown.into(),
        }
    }

    pub(crate) fn from_attachment(attachment: Option<&ZBytes>) -> Fallible<Self> {
        let Some(attachment) = attachment else {
            return Err("a message came without a stamp".into());
        };
        let bytes = attachment.to_bytes();
        Ok(Self::read_from_bytes(&bytes).map_err(|_| "a message's stamp has not 24 bytes")?)
    }
}

/// The count of a subscriber that has exited: more than all messages.
const EXITED: u64 = u64::MAX;

/// The subscribers, as far as zenoh has reported them.
#[derive(Clone, Default)]
pub(crate) struct Audience(Arc<Progress>);

#[derive(Default)]
struct Progress {
    /// How many messages each subscriber is done with. Each one whose token has ever appeared has
    /// an entry.
    done: Mutex<BTreeMap<u8, u64>>,
    changed: Condvar,
}

impl Audience {
    /// Observes subscribers, for as long as the session lasts.
    pub(crate) fn of(session: &Session) -> Fallible<Self> {
        let audience = Self::default();

        let of_tokens = audience.clone();
        session
            .liveliness()
            .declare_subscriber(format!("{READY}/*"))
            .history(true)
            .callback(move |token| {
                let Some(index) = index_of(token.key_expr()) else {
                    return;
                };
                match token.kind() {
                    SampleKind::Put => of_tokens.advance(index, 0),
                    // A subscriber exits when it has received everything, or when it is killed. If
                    // it has failed, the conductor ends the run.
                    SampleKind::Delete => of_tokens.advance(index, EXITED),
                }
            })
            .background()
            .wait()?;

        let of_counts = audience.clone();
        session
            .declare_subscriber(format!("{DONE}/*"))
            .callback(move |sample| {
                let Some(index) = index_of(sample.key_expr()) else {
                    return;
                };
                if let Ok(count) = sample.payload().to_bytes().as_ref().try_into() {
                    of_counts.advance(index, u64::from_le_bytes(count));
                }
            })
            .background()
            .wait()?;
        Ok(audience)
    }

    /// Records that a subscriber is done with so many messages. Reports may arrive out of order:
    /// zenoh sends a token's end before what waits to be sent.
    fn advance(&self, index: u8, count: u64) {
        let mut done = self.0.done.lock();
        let known = done.entry(index).or_default();
        *known = count.max(*known);
        self.0.changed.notify_all();
    }

    fn wait_until(&self, reached: impl Fn(&BTreeMap<u8, u64>) -> bool) {
        let mut done = self.0.done.lock();
        while !reached(&done) {
            self.0.changed.wait(&mut done);
        }
    }

    /// Waits until `expected` subscribers are there. A subscriber shows its token after it has
    /// subscribed, over the same connection, so from then on no subscriber misses a message.
    pub(crate) fn wait_until_present(&self, expected: u8) {
        self.wait_until(|done| done.len() == usize::from(expected));
    }

    /// Waits until all subscribers are done with the first `count` messages.
    pub(crate) fn wait_until_done(&self, count: u64) {
        self.wait_until(|done| done.values().all(|&known| known >= count));
    }

    /// Returns how many messages the slowest of the present subscribers is done with.
    pub(crate) fn slowest(&self) -> u64 {
        let mut slowest = EXITED;
        for &known in self.0.done.lock().values() {
            slowest = slowest.min(known);
        }
        slowest
    }

    /// Returns how many subscribers have exited.
    pub(crate) fn exited(&self) -> usize {
        let done = self.0.done.lock();
        done.values().filter(|&&known| known == EXITED).count()
    }

    /// Waits until all subscribers have dropped everything and exited.
    pub(crate) fn wait_until_exited(&self) {
        self.wait_until_done(EXITED);
    }
}
