//! What the publisher knows about its subscribers: who is there, by liveliness tokens, and how far each is, by counts that
//! they publish.
//!
//! zenoh's own flow control ends at the receiving process: there messages pile up until the shared memory is full. So
//! the publisher waits until the slowest subscriber is near.

use crate::session::{index_of, DONE, READY};
use crate::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use zenoh::pubsub::Subscriber;
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

/// More messages than anybody can see.
const GONE: u64 = u64::MAX;

/// The subscribers, as heard of by zenoh.
pub(crate) struct Audience {
    heard: Arc<Heard>,
    expected: usize,
    _tokens: Subscriber<()>,
    _counts: Subscriber<()>,
}

#[derive(Default)]
struct Heard {
    /// How many messages each is done with; whoever has shown its token has an entry.
    done: Mutex<BTreeMap<u8, u64>>,
    changed: Condvar,
}

impl Heard {
    /// A subscriber is done with so many messages. What it said earlier may be heard later: zenoh sends a token's end before what
    /// waits to be sent.
    fn advance(&self, index: u8, count: u64) {
        // A map of numbers is right after each step, whoever panicked elsewhere.
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let known = done.entry(index).or_default();
        *known = count.max(*known);
        drop(done);
        self.changed.notify_all();
    }

    fn wait_until(&self, reached: impl Fn(&BTreeMap<u8, u64>) -> bool) {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(done, |done| !reached(done)).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Audience {
    /// Listens for subscribers; `expected` of them are to come.
    pub(crate) fn new(session: &Session, expected: u8) -> Result<Self> {
        let heard = Arc::new(Heard::default());
        let (of_tokens, of_counts) = (heard.clone(), heard.clone());
        let tokens = session
            .liveliness()
            .declare_subscriber(format!("{READY}/*"))
            .history(true)
            .callback(move |token| {
                let Some(index) = index_of(token.key_expr()) else { return };
                match token.kind() {
                    SampleKind::Put => of_tokens.advance(index, 0),
                    // Who leaves has seen everything. If not, it has failed, and the conductor ends the run.
                    SampleKind::Delete => of_tokens.advance(index, GONE),
                }
            })
            .wait()?;
        let counts = session
            .declare_subscriber(format!("{DONE}/*"))
            .callback(move |sample| {
                let bytes = sample.payload().to_bytes();
                let (Some(index), Ok(bytes)) = (index_of(sample.key_expr()), bytes.as_ref().try_into()) else { return };
                of_counts.advance(index, u64::from_le_bytes(bytes));
            })
            .wait()?;
        Ok(Self { heard, expected: expected.into(), _tokens: tokens, _counts: counts })
    }

    /// Waits until all are there. A subscriber shows its token after it has subscribed, over the same connection, so from
    /// then on nobody misses a message.
    pub(crate) fn wait_until_present(&self) {
        self.heard.wait_until(|done| done.len() == self.expected);
    }

    /// Waits until all are done with the first `count` messages.
    pub(crate) fn wait_until_done(&self, count: u64) {
        self.heard.wait_until(|done| done.values().all(|&known| known >= count));
    }

    /// Waits until all have let go of everything and left.
    pub(crate) fn wait_until_gone(&self) {
        self.wait_until_done(GONE);
    }
}
