//! A subscriber process: stock zenoh, whoever allocated the messages. Compares each in place with
//! its own copy of the file.
//!
//! The slow one compares more often, or works longer, and keeps its messages until it has enough
//! newer ones. It compares them a last time when it lets go: they must not have changed while it
//! held them.

use crate::conductor::{end_with_parent, say};
use crate::footprint::{self, Holdings};
use crate::options::Options;
use crate::session::{self, key_of, Stamp, DATA, DONE, READY};
use hdrhistogram::Histogram;
use serde_json::json;
use shm_pool_support::source::Source;
use shm_pool_support::{clock, Fallible};
use std::collections::VecDeque;
use std::hint::{self, black_box};
use std::sync::mpsc;
use std::time::Instant;
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::Wait;

/// Follows the publisher to the last message, and tells what it has seen.
pub(crate) fn run(options: &Options) -> Fallible {
    end_with_parent();
    let source = Source::read(&options.file()?, options.largest())?;
    let session = session::connect(&options.connect)?;
    // No bound: zenoh's receiving thread must go on while this process compares, and the publisher
    // is never far ahead.
    let (sender, arrivals) = mpsc::channel();
    let subscription = session
        .declare_subscriber(DATA)
        .callback(move |sample| {
            // Only fails after the last message.
            let _ = sender.send((clock::now(), sample));
        })
        .wait()?;
    let done =
        session.declare_publisher(key_of(DONE, options.index)).congestion_control(CongestionControl::Block).wait()?;
    let token = session.liveliness().declare_token(key_of(READY, options.index)).wait()?;

    let mut reader = Reader::new(options);
    let mut latency = Histogram::<u64>::new(3)?;
    let mut early = None;
    let sizes = options.stream();
    for (number, expected) in (0..options.messages).zip(source.messages(&sizes)) {
        let (arrived, sample) = arrivals.recv()?;
        let stamp = Stamp::from_attachment(sample.attachment())?;
        if stamp.number != number {
            return Err(format!("message {} came when {number} was due: lost or out of order", stamp.number).into());
        }
        latency.record(arrived.saturating_sub(stamp.sent))?;
        reader.read(Message { number, sample, expected })?;
        if number + 1 == options.first_tenth() {
            early = Some(Holdings::now()?.to_json());
        }
        done.put((number + 1).to_le_bytes()).wait()?;
    }
    let late = Holdings::now()?.to_json();
    while reader.let_go_of_oldest()? {}
    if arrivals.try_recv().is_ok() {
        return Err("more messages came than were to be sent".into());
    }

    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| latency.value_at_quantile(quantile));
    say(&json!({ "done": {
        "messages": options.messages,
        "bytes": reader.bytes,
        "compared": reader.compared,
        "held": reader.most_held,
        "held_bytes": reader.most_held_bytes,
        "p50": p50, "p99": p99, "p999": p999,
        "early": early, "late": late,
        "objects": footprint::named()?,
    }}))?;
    subscription.undeclare().wait()?;
    // Tells the publisher that this subscriber holds nothing any more.
    token.undeclare().wait()?;
    session.close().wait()
}

struct Reader<'a> {
    options: &'a Options,
    /// Messages that it holds on to, the oldest first.
    held: VecDeque<Message<'a>>,
    held_bytes: usize,
    most_held: usize,
    most_held_bytes: usize,
    bytes: u64,
    compared: u64,
}

/// A message that is being read. While the sample is there, its memory is not used again.
struct Message<'a> {
    number: u64,
    sample: Sample,
    expected: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(options: &'a Options) -> Self {
        let held = VecDeque::new();
        Self { options, held, held_bytes: 0, most_held: 0, most_held_bytes: 0, bytes: 0, compared: 0 }
    }

    fn read(&mut self, message: Message<'a>) -> Fallible {
        let begun = Instant::now();
        for _ in 0..self.options.checks() {
            self.compared += message.compare()?;
        }
        // Who works has a processor. A sleep could not be as short.
        while begun.elapsed() < self.options.work() {
            hint::spin_loop();
        }
        self.bytes += message.expected.len() as u64;
        if self.options.keep() > 0 {
            self.held_bytes += message.expected.len();
            self.held.push_back(message);
        }
        while self.held.len() > self.options.keep() || self.held_bytes > self.options.keep_bytes() {
            self.let_go_of_oldest()?;
        }
        self.most_held = self.most_held.max(self.held.len());
        self.most_held_bytes = self.most_held_bytes.max(self.held_bytes);
        Ok(())
    }

    /// Lets go of the message that was held longest; `false` if there is none.
    fn let_go_of_oldest(&mut self) -> Fallible<bool> {
        let Some(message) = self.held.pop_front() else { return Ok(false) };
        self.held_bytes -= message.expected.len();
        self.compared += message.compare().map_err(|error| format!("{error}, after it was held"))?;
        Ok(true)
    }
}

impl Message<'_> {
    /// How many bytes were compared; an error if the message is not what it must be.
    fn compare(&self) -> Fallible<u64> {
        let Self { number, sample, expected } = self;
        let seen: &[u8] = sample.payload().as_shm().ok_or(format!("message {number} is not in shared memory"))?;
        // The black box makes each comparison read the memory again.
        if black_box(seen) == *expected {
            return Ok(expected.len() as u64);
        }
        if seen.len() != expected.len() {
            return Err(format!("message {number} has {} bytes, not {}", seen.len(), expected.len()).into());
        }
        let differs = seen.iter().zip(*expected).position(|(seen, meant)| seen != meant);
        let at = differs.map_or("no byte any more".to_owned(), |at| format!("byte {at}"));
        Err(format!("message {number} of {} bytes differs from the file, first in {at}", seen.len()).into())
    }
}
