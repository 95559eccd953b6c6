//! Discovery and messages of the processes: zenoh's configuration, the keys, the stamp of a message;
//! and the publisher's view of its subscribers: their presence, by liveliness tokens, and their
//! progress, by counts that they publish. All is stock zenoh. Nothing here knows
//! whose memory the messages are in.
//!
//! zenoh's own flow control ends at the receiving process: there messages pile up until the shared
//! memory is full. So the publisher waits until the slowest subscriber is near.

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

/// Messages.
pub(crate) const DATA: &str = "shm_pool/example/data";

/// Liveliness tokens of subscribers that are ready: under it is the subscriber's number.
pub(crate) const READY: &str = "shm_pool/example/ready";

/// What subscribers are done with: under it is the subscriber's number, the value is a count of
/// messages.
pub(crate) const DONE: &str = "shm_pool/example/done";

/// A key of one subscriber.
pub(crate) fn key_of(prefix: &str, index: u8) -> String {
    format!("{prefix}/{index}")
}

/// Which subscriber's key this is.
fn index_of(key: &str) -> Option<u8> {
    key.rsplit('/').next()?.parse().ok()
}

/// A peer that others can connect to, at a port that the system chooses.
pub(crate) fn listen() -> Fallible<(Session, String)> {
    let session = open(&["tcp/127.0.0.1:0"], &[])?;
    let locators = session.info().locators().wait();
    let endpoint = locators.first().ok_or("zenoh listens nowhere")?.to_string();
    Ok((session, endpoint))
}

/// A peer that has one connection, to `endpoint`.
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
        "scouting": { "multicast": { "enabled": false }, "gossip": { "enabled": false } },
        // The optimization would copy large messages that are not in shared memory into a segment
        // of zenoh's own. Ours always are, of any size; only counts of a few bytes are left.
        "transport": { "shared_memory": { "enabled": true, "transport_optimization": { "enabled": false } } },
    });
    zenoh::open(Config::from_json5(&config.to_string())?).wait()
}

/// What goes along with a message, as its attachment.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Stamp {
    /// How many messages were sent before it.
    pub(crate) number: U64,
    /// When it was sent, by the clock that processes share.
    pub(crate) sent: U64,
    /// How many subscribers had shown their tokens by then, ever.
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
        let bytes = attachment
            .ok_or("a message came without a stamp")?
            .to_bytes();
        Ok(Self::read_from_bytes(&bytes).map_err(|_| "a message's stamp has not 24 bytes")?)
    }
}

/// More messages than anybody can see.
const GONE: u64 = u64::MAX;

/// The subscribers, as heard of by zenoh.
#[derive(Clone, Default)]
pub(crate) struct Audience(Arc<Heard>);

#[derive(Default)]
struct Heard {
    /// How many messages each is done with. Each subscriber whose token has appeared has an entry.
    done: Mutex<BTreeMap<u8, u64>>,
    changed: Condvar,
}

impl Audience {
    /// Listens for subscribers, for as long as the session lasts.
    pub(crate) fn of(session: &Session) -> Fallible<Self> {
        let audience = Self::default();
        let (of_tokens, of_counts) = (audience.clone(), audience.clone());
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
                    // Who leaves has seen everything, or was killed. If it has failed, the conductor
                    // ends the run.
                    SampleKind::Delete => of_tokens.advance(index, GONE),
                }
            })
            .background()
            .wait()?;
        session
            .declare_subscriber(format!("{DONE}/*"))
            .callback(move |sample| {
                let bytes = sample.payload().to_bytes();
                let (Some(index), Ok(bytes)) =
                    (index_of(sample.key_expr()), bytes.as_ref().try_into())
                else {
                    return;
                };
                of_counts.advance(index, u64::from_le_bytes(bytes));
            })
            .background()
            .wait()?;
        Ok(audience)
    }

    /// A subscriber is done with so many messages. An earlier report may arrive later: zenoh
    /// sends a token's end before what waits to be sent.
    fn advance(&self, index: u8, count: u64) {
        let mut done = self.0.done.lock();
        let known = done.entry(index).or_default();
        *known = count.max(*known);
        self.0.changed.notify_all();
    }

    fn wait_until(&self, reached: impl Fn(&BTreeMap<u8, u64>) -> bool) {
        self.0
            .changed
            .wait_while(&mut self.0.done.lock(), |done| !reached(done));
    }

    /// Waits until so many are there. A subscriber shows its token after it has subscribed, over
    /// the same connection, so from then on no subscriber misses a message.
    pub(crate) fn wait_until_present(&self, expected: u8) {
        self.wait_until(|done| done.len() == usize::from(expected));
    }

    /// Waits until all are done with the first `count` messages.
    pub(crate) fn wait_until_done(&self, count: u64) {
        self.wait_until(|done| done.values().all(|&known| known >= count));
    }

    /// How many messages the slowest of those that are here is done with.
    pub(crate) fn slowest(&self) -> u64 {
        self.0.done.lock().values().copied().min().unwrap_or(GONE)
    }

    /// How many have left.
    pub(crate) fn gone(&self) -> usize {
        self.0
            .done
            .lock()
            .values()
            .filter(|&&known| known == GONE)
            .count()
    }

    /// Waits until all have dropped everything and exited.
    pub(crate) fn wait_until_gone(&self) {
        self.wait_until_done(GONE);
    }
}
