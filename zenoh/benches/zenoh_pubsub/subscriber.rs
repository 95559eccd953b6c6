//! A subscriber process: stock zenoh, for messages from any allocator. Compares each message in
//! place with its own copy of the file.
//!
//! The slow subscriber compares more often, or works longer, and keeps its messages until it has
//! enough newer ones. It compares them a last time when it drops them: they must not have changed
//! while it held them.

use crate::footprint::{self, holdings};
use crate::news::{figures, quantiles, Figures, News, Seen};
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

/// Receives all messages, and reports what it has seen.
pub(crate) fn run(options: &Options, index: u8, endpoint: &str) -> Fallible {
    let source = Source::read(&options.file, options.largest())?;
    let session = session::connect(endpoint)?;
    // No bound: zenoh's receiving thread must go on while this process compares, and the publisher
    // is never far ahead.
    let (sender, arrivals) = mpsc::channel();
    let subscription = session
        .declare_subscriber(DATA)
        .callback(move |sample| {
            let at = clock::now();
            // Only fails after the last message.
            let _ = sender.send(Arrival { at, sample });
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
        most_held: 0,
        most_held_bytes: 0,
        compared: 0,
    };
    let mut bytes = 0;
    let mut seen = Figures::new();
    let mut latency = Histogram::<u64>::new(3)?;
    let sizes = options.stream();

    // The number of the first message, and the message if it has been received already.
    let mut first = 0;
    let mut earliest = None;
    if index >= options.subscribers {
        let arrival = first_after_joining(&arrivals, index)?;
        first = arrival.stamp()?.number.get();
        earliest = Some(arrival);
    }
    News::Joined.send()?;

    let contents = source.messages(&sizes).skip(first as usize);
    for (number, expected) in (first..options.messages).zip(contents) {
        let arrival = match earliest.take() {
            Some(arrival) => arrival,
            None => arrivals.recv()?,
        };
        let stamp = arrival.stamp()?;
        if stamp.number != number {
            return Err(format!(
                "message {} came when {number} was due: lost or out of order",
                stamp.number
            )
            .into());
        }
        latency.record(arrival.at.saturating_sub(stamp.sent.get()))?;
        bytes += expected.len();
        reader.read(Message {
            number,
            sample: arrival.sample,
            expected,
        })?;
        if number + 1 == options.first_tenth() {
            seen.extend(holdings("early")?);
        }
        done.put((number + 1).to_le_bytes()).wait()?;
    }
    seen.extend(holdings("late")?);
    while reader.drop_oldest()? {}
    if arrivals.try_recv().is_ok() {
        return Err("more messages came than were to be sent".into());
    }

    seen.extend(quantiles(&latency));
    seen.extend(figures([
        ("messages", (options.messages - first) as f64),
        ("missed", first as f64),
        ("bytes", bytes as f64),
        ("compared", reader.compared as f64),
        ("held", reader.most_held as f64),
        ("held bytes", reader.most_held_bytes as f64),
    ]));
    let seen = Seen {
        objects: footprint::named()?,
        figures: seen,
    };
    News::Done(seen).send()?;
    subscription.undeclare().wait()?;
    // Notifies the publisher that this subscriber no longer holds any message.
    token.undeclare().wait()?;
    session.close().wait()
}

/// A message, and when it arrived.
struct Arrival {
    at: u64,
    sample: Sample,
}

impl Arrival {
    fn stamp(&self) -> Fallible<Stamp> {
        Stamp::from_attachment(self.sample.attachment())
    }
}

/// Receives the first message that was sent after the publisher knew of this subscriber, which
/// replaces one that was killed. From then on it must miss none. zenoh may deliver some earlier
/// messages, while it still works out which processes have subscribed.
fn first_after_joining(arrivals: &Receiver<Arrival>, index: u8) -> Fallible<Arrival> {
    loop {
        let arrival = arrivals.recv()?;
        if arrival.stamp()?.shown.get() > index.into() {
            return Ok(arrival);
        }
    }
}

struct Reader<'a> {
    options: &'a Options,
    /// Messages that the subscriber keeps, the oldest first.
    held: VecDeque<Message<'a>>,
    held_bytes: usize,
    most_held: usize,
    most_held_bytes: usize,
    /// How many bytes were compared.
    compared: usize,
}

/// A message that is being read. Its memory is not used again before the sample is dropped.
struct Message<'a> {
    number: u64,
    sample: Sample,
    expected: &'a [u8],
}

impl<'a> Reader<'a> {
    fn read(&mut self, message: Message<'a>) -> Fallible {
        let start = Instant::now();
        let work = Duration::from_micros(self.options.work);
        for _ in 0..self.options.checks {
            self.compared += message.compare()?;
        }
        // Work occupies a processor, and no sleep could be as short.
        while start.elapsed() < work {
            hint::spin_loop();
        }
        if self.options.keep > 0 {
            self.held_bytes += message.expected.len();
            self.held.push_back(message);
        }
        while self.held.len() > self.options.keep || self.held_bytes > self.options.keep_bytes {
            self.drop_oldest()?;
        }
        self.most_held = self.most_held.max(self.held.len());
        self.most_held_bytes = self.most_held_bytes.max(self.held_bytes);
        Ok(())
    }

    /// Compares and drops the message that was held longest. Returns `false` if there is none.
    fn drop_oldest(&mut self) -> Fallible<bool> {
        let Some(message) = self.held.pop_front() else {
            return Ok(false);
        };
        self.held_bytes -= message.expected.len();
        match message.compare() {
            Ok(compared) => self.compared += compared,
            Err(error) => return Err(format!("{error}, after it was held").into()),
        }
        Ok(true)
    }
}

impl Message<'_> {
    /// Returns how many bytes were compared, or an error if the message is not what it must be.
    fn compare(&self) -> Fallible<usize> {
        let number = self.number;
        let Some(shm) = self.sample.payload().as_shm() else {
            return Err(format!("message {number} is not in shared memory").into());
        };
        let seen: &[u8] = shm;
        let expected = self.expected;
        // The black box makes each comparison read the memory again.
        if black_box(seen) == expected {
            return Ok(expected.len());
        }

        let mut at = 0;
        while at < seen.len() && at < expected.len() && seen[at] == expected[at] {
            at += 1;
        }
        Err(format!(
            "message {number} has {} bytes, of {}, and differs from the file from byte {at} on",
            seen.len(),
            expected.len()
        )
        .into())
    }
}
