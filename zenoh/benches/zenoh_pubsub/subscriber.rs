//! A subscriber process: stock zenoh, whoever allocated the messages. Compares each in place with
//! its own copy of the file.
//!
//! The slow one compares more often, or works longer, and keeps its messages until it has enough
//! newer ones. It compares them a last time when it drops them: they must not have changed while it
//! held them.

use crate::footprint::{self, holdings};
use crate::news::{figures, quantiles, News, Seen};
use crate::options::Options;
use crate::session::{self, key_of, Stamp, DATA, DONE, READY};
use hdrhistogram::Histogram;
use shm_pool_support::source::Source;
use shm_pool_support::{clock, Fallible};
use std::collections::VecDeque;
use std::hint::{self, black_box};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::Wait;

/// Follows the publisher to the last message, and tells what it has seen.
pub(crate) fn run(options: &Options, index: u8, endpoint: &str) -> Fallible {
    let source = Source::read(&options.file, options.largest())?;
    let session = session::connect(endpoint)?;
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
    let done = session
        .declare_publisher(key_of(DONE, index))
        .congestion_control(CongestionControl::Block)
        .wait()?;
    let token = session
        .liveliness()
        .declare_token(key_of(READY, index))
        .wait()?;

    let mut reader = Reader {
        options,
        held: VecDeque::new(),
        held_bytes: 0,
        most_held: (0, 0),
        compared: 0,
    };
    let (mut bytes, mut seen) = (0, figures([]));
    let mut latency = Histogram::<u64>::new(3)?;
    let sizes = options.stream();
    let (first, mut earliest) = match index < options.subscribers {
        true => (0, None),
        false => first_after_joining(&arrivals, index)?,
    };
    News::Joined.say()?;
    for (number, expected) in (0..options.messages)
        .zip(source.messages(&sizes))
        .skip(first as usize)
    {
        let (arrived, sample) = earliest.take().map_or_else(|| arrivals.recv(), Ok)?;
        let stamp = Stamp::from_attachment(sample.attachment())?;
        if stamp.number != number {
            return Err(format!(
                "message {} came when {number} was due: lost or out of order",
                stamp.number
            )
            .into());
        }
        latency.record(arrived.saturating_sub(stamp.sent.get()))?;
        bytes += expected.len();
        reader.read(Message {
            number,
            sample,
            expected,
        })?;
        if number + 1 == options.first_tenth() {
            seen.extend(holdings("early")?);
        }
        done.put((number + 1).to_le_bytes()).wait()?;
    }
    seen.extend(holdings("late")?);
    while reader.let_go_of_oldest()? {}
    if arrivals.try_recv().is_ok() {
        return Err("more messages came than were to be sent".into());
    }

    seen.extend(quantiles(&latency));
    seen.extend(figures([
        ("messages", (options.messages - first) as f64),
        ("missed", first as f64),
        ("bytes", bytes as f64),
        ("compared", reader.compared as f64),
        ("held", reader.most_held.0 as f64),
        ("held bytes", reader.most_held.1 as f64),
    ]));
    News::Done(Seen {
        objects: footprint::named()?,
        figures: seen,
    })
    .say()?;
    subscription.undeclare().wait()?;
    // Tells the publisher that this subscriber holds nothing any more.
    token.undeclare().wait()?;
    session.close().wait()
}

/// When a message came, and the message.
type Arrival = (u64, Sample);

/// The first message, and its number, that was sent after the publisher had heard of this subscriber,
/// which comes in the place of one that was killed. From then on it must miss none. Of earlier ones
/// zenoh may deliver some: it still works out who has subscribed.
fn first_after_joining(
    arrivals: &Receiver<Arrival>,
    index: u8,
) -> Fallible<(u64, Option<Arrival>)> {
    loop {
        let (arrived, sample) = arrivals.recv()?;
        let stamp = Stamp::from_attachment(sample.attachment())?;
        if stamp.shown.get() > index.into() {
            return Ok((stamp.number.get(), Some((arrived, sample))));
        }
    }
}

struct Reader<'a> {
    options: &'a Options,
    /// Messages that it holds on to, the oldest first.
    held: VecDeque<Message<'a>>,
    held_bytes: usize,
    /// Messages, and bytes.
    most_held: (usize, usize),
    compared: usize,
}

/// A message that is being read. While the sample is there, its memory is not used again.
struct Message<'a> {
    number: u64,
    sample: Sample,
    expected: &'a [u8],
}

impl<'a> Reader<'a> {
    fn read(&mut self, message: Message<'a>) -> Fallible {
        let (begun, work) = (Instant::now(), Duration::from_micros(self.options.work));
        for _ in 0..self.options.checks {
            self.compared += message.compare()?;
        }
        // Who works has a processor. A sleep could not be as short.
        while begun.elapsed() < work {
            hint::spin_loop();
        }
        if self.options.keep > 0 {
            self.held_bytes += message.expected.len();
            self.held.push_back(message);
        }
        while self.held.len() > self.options.keep || self.held_bytes > self.options.keep_bytes {
            self.let_go_of_oldest()?;
        }
        let (messages, bytes) = self.most_held;
        self.most_held = (messages.max(self.held.len()), bytes.max(self.held_bytes));
        Ok(())
    }

    /// Lets go of the message that was held longest; `false` if there is none.
    fn let_go_of_oldest(&mut self) -> Fallible<bool> {
        let Some(message) = self.held.pop_front() else {
            return Ok(false);
        };
        self.held_bytes -= message.expected.len();
        self.compared += message
            .compare()
            .map_err(|error| format!("{error}, after it was held"))?;
        Ok(true)
    }
}

impl Message<'_> {
    /// How many bytes were compared; an error if the message is not what it must be.
    fn compare(&self) -> Fallible<usize> {
        let Self {
            number,
            sample,
            expected,
        } = self;
        let seen: &[u8] = sample
            .payload()
            .as_shm()
            .ok_or(format!("message {number} is not in shared memory"))?;
        // The black box makes each comparison read the memory again.
        if black_box(seen) == *expected {
            return Ok(expected.len());
        }
        let at = seen
            .iter()
            .zip(*expected)
            .take_while(|(seen, meant)| seen == meant)
            .count();
        let (len, meant) = (seen.len(), expected.len());
        Err(format!("message {number} has {len} bytes, of {meant}, and differs from the file from byte {at} on").into())
    }
}
