//! The publisher process: one allocation per message, filled and put; zenoh's sharing does the
//! rest.
//!
//! # Flow control
//!
//! Three things keep the publisher from running away. It stays at most `--window` messages ahead of
//! the slowest subscriber; when there is no memory it waits until subscribers have dropped some;
//! and a message that does not fit the connection's queue is waited for, never dropped. With a rate
//! each message is due at its own time, however late the one before it was.
//!
//! # Subscribers that are killed
//!
//! zenoh counts the messages of a killed subscriber as read for ever. When its token disappears, the
//! publisher waits until the living subscribers have received everything, reclaims the messages of the dead one, and continues.
//! It fails if more stays in use than the living subscribers hold.

use crate::footprint::Footprint;
use crate::memory::{Memory, Message};
use crate::news::{figures, quantiles, Figures, News, Seen};
use crate::options::{Options, Whose};
use crate::session::{self, Audience, Stamp, DATA};
use hdrhistogram::Histogram;
use shm_pool_support::source::Source;
use shm_pool_support::{clock, Fallible};
use std::thread;
use std::time::{Duration, Instant};
use zenoh::pubsub::Publisher;
use zenoh::qos::{CongestionControl, Reliability};
use zenoh::Wait;
use zerocopy::IntoBytes;

/// At every so many messages it looks at its footprint, and tells that it goes on.
const PULSE: u64 = 16;

/// The most segments that the pool may make in a load. Receivers keep each segment that they have
/// ever seen open, mapped and locked for as long as they run.
const MAX_SEGMENTS: usize = 16;

/// How much longer a chunk may be than its message: by the steps between classes, and by a cache line.
const CLASS_SHARE: usize = 32;
const LINE: usize = 64;

/// Publishes the whole stream and tells how that went.
pub(crate) fn run(options: &Options, whose: Whose) -> Fallible {
    let source = Source::read(&options.file, options.largest())?;
    let (session, endpoint) = session::listen()?;
    let publisher = session
        .declare_publisher(DATA)
        .congestion_control(CongestionControl::Block)
        .reliability(Reliability::Reliable)
        .wait()?;
    let audience = Audience::of(&session)?;
    News::Listening(endpoint).say()?;
    audience.wait_until_present(options.audience());

    let footprint = Footprint::new()?;
    // From here on: zenoh's own backend takes all of its memory when it is made, the pool what is
    // reserved, and the rest when a message needs it.
    let (start, cpu) = (Instant::now(), clock::process_cpu());
    let memory = match Memory::new(whose, options) {
        Ok(memory) => memory,
        Err(error) if options.memlock.is_some() => return News::Refused(error.to_string()).say(),
        Err(error) => return Err(error),
    };
    let setup = start.elapsed();
    let waits = Histogram::new(3)?;
    let mut stream = Stream {
        options,
        publisher,
        audience,
        memory,
        footprint,
        waits,
        behind: Duration::ZERO,
        in_flight: 0,
        taken_back: Vec::new(),
    };
    let mut seen = stream.run(&source, cpu)?;
    seen.extend(figures([
        ("file", source.file_len() as f64),
        ("setup", setup.as_nanos() as f64),
    ]));
    let elapsed = seen.get("elapsed").copied().unwrap_or(f64::NAN);
    seen.extend(figures([("in all", setup.as_nanos() as f64 + elapsed)]));
    News::Done(Seen {
        objects: stream.footprint.objects,
        figures: seen,
    })
    .say()?;
    session.close().wait()
}

struct Stream<'a> {
    options: &'a Options,
    publisher: Publisher<'a>,
    audience: Audience,
    memory: Memory,
    footprint: Footprint,
    /// How long each allocation took, in nanoseconds.
    waits: Histogram<u64>,
    /// How far behind its schedule the publisher was at most.
    behind: Duration,
    /// The most bytes that were out, with the one that is being written, as far as the publisher has
    /// heard: some may have been read by then.
    in_flight: usize,
    /// What was in use when a killed subscriber's messages had been taken back, once for each.
    taken_back: Vec<TakenBack>,
}

/// Bytes in use, and how many of these the living kept.
struct TakenBack {
    in_use: usize,
    kept: usize,
}

impl Stream<'_> {
    fn run(&mut self, source: &Source, cpu: u64) -> Fallible<Figures> {
        let Options {
            messages, window, ..
        } = *self.options;
        let (sizes, mut bytes, mut seen) = (self.options.stream(), 0, figures([]));
        let (start, mut steady, mut early) = (Instant::now(), cpu, self.waits.clone());
        let mut tenth = start;
        for (number, content) in (0..messages).zip(source.messages(&sizes)) {
            self.wait_until_due(start, number);
            if number + self.options.first_tenth() == messages {
                // Who came in the place of one that was killed must not come too late for any message.
                let replaced = self.taken_back.len() as u8;
                self.audience
                    .wait_until_present(self.options.audience() + replaced);
            }
            self.audience
                .wait_until_done((number + 1).saturating_sub(window.into()));
            let message = self.alloc(number, &sizes, content.len())?;
            self.publish(message, number, content)?;
            bytes += content.len();
            if number + 1 == self.options.first_tenth() {
                (tenth, steady, early) = (Instant::now(), clock::process_cpu(), self.waits.clone());
                seen.extend(self.segments("early segments"));
            }
            if number % PULSE == 0 {
                self.look(number + 1)?;
                News::Published(number + 1).say()?;
            }
        }
        self.audience.wait_until_done(messages);
        let (seconds, steady_seconds) =
            (start.elapsed().as_secs_f64(), tenth.elapsed().as_secs_f64());
        let now = clock::process_cpu();
        let (cpu, steady) = (now - cpu, now - steady);
        self.look(messages)?;
        self.audience.wait_until_gone();
        if !self.taken_back.is_empty() {
            self.memory.take_back(0)?;
        }
        self.memory.check_for_leaks()?;

        seen.extend(self.segments("late segments"));
        let pool = self.memory.pool.as_ref();
        seen.extend(pool.map(|pool| ("held".to_owned(), pool.stats().peak_bytes_held as f64)));
        seen.extend(
            self.taken_back
                .last()
                .map(|last| ("in use".to_owned(), last.in_use as f64)),
        );
        seen.extend(
            self.taken_back
                .last()
                .map(|last| ("kept".to_owned(), last.kept as f64)),
        );
        seen.extend(figures([("killed", self.taken_back.len() as f64)]));
        seen.extend(self.footprint.figures());
        seen.extend(quantiles(&self.waits));
        self.waits.subtract(&early)?;
        let rest = (messages - self.options.first_tenth()).max(1) as f64;
        seen.extend(figures([
            ("messages", messages as f64),
            ("bytes", bytes as f64),
            ("seconds", seconds),
            ("elapsed", seconds * 1e9),
            ("per second", messages as f64 / seconds),
            ("steady per second", rest / steady_seconds),
            ("GB per second", bytes as f64 / 1e9 / seconds),
            ("cpu", cpu as f64 / messages as f64),
            ("steady p999", self.waits.value_at_quantile(0.999) as f64),
            ("steady cpu", steady as f64 / rest),
            ("in flight", self.in_flight as f64),
            ("behind", self.behind.as_nanos() as f64),
        ]));
        Ok(seen)
    }

    /// Paces the publisher, if there is a rate. A publisher that is late does not wait, and may catch up.
    fn wait_until_due(&mut self, start: Instant, number: u64) {
        let Some(due) = self.options.due(number) else {
            return;
        };
        match due.checked_sub(start.elapsed()) {
            Some(early) => thread::sleep(early),
            None => self.behind = self.behind.max(start.elapsed() - due),
        }
    }

    /// Returns memory for the message after so many. Waits if there is none, for example because a
    /// killed subscriber holds it.
    fn alloc(&mut self, published: u64, sizes: &[usize], len: usize) -> Fallible<Message> {
        let out =
            (published + 1).saturating_sub(self.audience.slowest()) as usize + self.options.keep;
        self.in_flight = self.in_flight.max(out * len);
        let asked = Instant::now();
        let message = loop {
            self.take_back_of_the_killed(published, sizes)?;
            if let Some(message) = self.memory.alloc(len)? {
                break message;
            }
        };
        self.waits.record(asked.elapsed().as_nanos() as u64)?;
        Ok(message)
    }

    /// The main job: fill, put.
    fn publish(&mut self, mut message: Message, number: u64, content: &[u8]) -> Fallible {
        message.copy_from_slice(content);
        // The publisher has no handle of the message from here on. Its memory comes back when all
        // subscribers are done.
        self.publisher
            .put(message)
            .attachment(Stamp::now(number, &self.audience).as_bytes())
            .wait()
    }

    /// Takes back what subscribers had that were killed since the last look.
    fn take_back_of_the_killed(&mut self, published: u64, sizes: &[usize]) -> Fallible {
        while self.taken_back.len() < self.audience.gone() {
            self.audience.wait_until_done(published);
            let kept = self.options.keep.min(published as usize);
            let kept = sizes
                .iter()
                .cycle()
                .skip(published as usize - kept)
                .take(kept);
            let kept = kept.map(|size| size + size / CLASS_SHARE + LINE).sum();
            let in_use = self.memory.take_back(kept)?;
            self.taken_back.push(TakenBack { in_use, kept });
            News::TakenBack.say()?;
        }
        Ok(())
    }

    /// How many the pool has made.
    fn segments(&self, name: &str) -> Option<(String, f64)> {
        self.memory
            .pool
            .as_ref()
            .map(|pool| (name.to_owned(), pool.stats().segments_created as f64))
    }

    /// Looks at the footprint. Fails if there are more segments than a load may take: soon, because
    /// receivers that have run out of descriptors can no longer say why.
    fn look(&mut self, published: u64) -> Fallible {
        self.footprint.sample()?;
        let made = self.footprint.segments();
        if self.options.load.is_none() || made <= MAX_SEGMENTS {
            return Ok(());
        }
        Err(format!(
            "the pool has made {made} segments for the first {published} messages, and {MAX_SEGMENTS} are allowed: \
             receivers keep a descriptor, a mapping and locked memory for each"
        )
        .into())
    }
}
