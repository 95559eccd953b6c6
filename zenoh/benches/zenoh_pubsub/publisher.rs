//! The publisher process: one allocation per message, filled and put. zenoh shares the memory with
//! the subscribers.
//!
//! # Flow control
//!
//! Three things keep the publisher close to its subscribers:
//!
//! - It stays at most `--window` messages ahead of the slowest subscriber.
//! - When there is no memory, it waits until subscribers have dropped some.
//! - A message that does not fit the connection's queue makes it wait, and is never dropped.
//!
//! With a rate, each message is due at its own time, however late the one before it was.
//!
//! # Subscribers that are killed
//!
//! To zenoh, the messages that a killed subscriber held are in use forever. When its token
//! disappears, the publisher waits until the living subscribers have received everything, reclaims
//! the messages of the killed one, and continues. It fails if more stays in use than the living
//! subscribers hold.

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

/// How often, in messages, the publisher measures its footprint and reports that it makes progress.
const PULSE: u64 = 16;

/// The most segments that the pool may make in a load. Receivers keep each segment that they have
/// ever seen open, mapped and locked for as long as they run.
const MAX_SEGMENTS: usize = 16;

/// How much longer a chunk may be than its message: a share of it, because of the steps between
/// classes, and a cache line.
const CLASS_SHARE: usize = 32;
const LINE: usize = 64;

/// Publishes the whole stream, and reports what it has seen.
pub(crate) fn run(options: &Options, whose: Whose) -> Fallible {
    let source = Source::read(&options.file, options.largest())?;
    let (session, endpoint) = session::listen()?;
    let publisher = session
        .declare_publisher(DATA)
        .congestion_control(CongestionControl::Block)
        .reliability(Reliability::Reliable)
        .wait()?;
    let audience = Audience::of(&session)?;
    News::Listening(endpoint).send()?;
    audience.wait_until_present(options.audience());

    let footprint = Footprint::new()?;
    // From here on, because zenoh's own backend allocates all of its memory when it is made. The
    // pool allocates then what is reserved, and the rest when a message needs it.
    let start = Instant::now();
    let cpu = clock::process_cpu();
    let memory = match Memory::new(whose, options) {
        Ok(memory) => memory,
        Err(error) if options.memlock.is_some() => return News::Refused(error.to_string()).send(),
        Err(error) => return Err(error),
    };
    let setup = start.elapsed().as_nanos() as f64;
    let mut stream = Stream {
        options,
        publisher,
        audience,
        memory,
        footprint,
        waits: Histogram::new(3)?,
        behind: Duration::ZERO,
        in_flight: 0,
        reclaimed: Vec::new(),
    };
    let mut seen = stream.run(&source, cpu)?;

    let elapsed = seen["elapsed"];
    seen.extend(figures([
        ("file", source.file_len() as f64),
        ("setup", setup),
        ("in all", setup + elapsed),
    ]));
    let seen = Seen {
        objects: stream.footprint.objects,
        figures: seen,
    };
    News::Done(seen).send()?;
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
    /// The most bytes that were out, including the message that is being written. Subscribers may
    /// have read some of them without the publisher knowing yet.
    in_flight: usize,
    /// What was in use when a killed subscriber's messages had been reclaimed, once for each.
    reclaimed: Vec<Reclaimed>,
}

/// Bytes in use, and how many of these the living subscribers kept.
struct Reclaimed {
    in_use: usize,
    kept: usize,
}

impl Stream<'_> {
    /// Sends all messages, and returns the figures. `cpu` is the process's CPU time before it made
    /// its memory.
    fn run(&mut self, source: &Source, cpu: u64) -> Fallible<Figures> {
        let messages = self.options.messages;
        let first_tenth = self.options.first_tenth();
        let sizes = self.options.stream();
        let mut bytes = 0;
        let mut seen = Figures::new();

        let start = Instant::now();
        // As of the first tenth's end: the time, the CPU time, and the allocations until then.
        let mut tenth = start;
        let mut tenth_cpu = cpu;
        let mut tenth_waits = self.waits.clone();
        for (number, content) in (0..messages).zip(source.messages(&sizes)) {
            self.wait_until_due(start, number);
            self.wait_for_subscribers(number);
            let message = self.alloc(number, &sizes, content.len())?;
            self.publish(message, number, content)?;
            bytes += content.len();
            if number + 1 == first_tenth {
                tenth = Instant::now();
                tenth_cpu = clock::process_cpu();
                tenth_waits = self.waits.clone();
                if let Some(pool) = &self.memory.pool {
                    let segments = pool.stats().segments_created as f64;
                    seen.insert("early segments".to_owned(), segments);
                }
            }
            if number % PULSE == 0 {
                self.check_footprint(number + 1)?;
                News::Published(number + 1).send()?;
            }
        }
        self.audience.wait_until_done(messages);
        let seconds = start.elapsed().as_secs_f64();
        let steady_seconds = tenth.elapsed().as_secs_f64();
        let end_cpu = clock::process_cpu();

        self.check_footprint(messages)?;
        self.audience.wait_until_exited();
        if !self.reclaimed.is_empty() {
            self.memory.reclaim(0)?;
        }
        self.memory.check_for_leaks()?;

        seen.extend(self.memory_figures());
        seen.extend(quantiles(&self.waits));
        self.waits.subtract(&tenth_waits)?;
        let cpu = (end_cpu - cpu) as f64;
        let steady_cpu = (end_cpu - tenth_cpu) as f64;
        let steady_messages = (messages - first_tenth).max(1) as f64;
        let messages = messages as f64;
        let bytes = bytes as f64;
        seen.extend(figures([
            ("messages", messages),
            ("bytes", bytes),
            ("seconds", seconds),
            ("elapsed", seconds * 1e9),
            ("per second", messages / seconds),
            ("steady per second", steady_messages / steady_seconds),
            ("GB per second", bytes / 1e9 / seconds),
            ("cpu", cpu / messages),
            ("steady p999", self.waits.value_at_quantile(0.999) as f64),
            ("steady cpu", steady_cpu / steady_messages),
            ("in flight", self.in_flight as f64),
            ("behind", self.behind.as_nanos() as f64),
        ]));
        Ok(seen)
    }

    fn memory_figures(&self) -> Figures {
        let mut seen = self.footprint.figures();
        if let Some(pool) = &self.memory.pool {
            let stats = pool.stats();
            seen.extend(figures([
                ("late segments", stats.segments_created as f64),
                ("held", stats.peak_bytes_held as f64),
            ]));
        }
        if let Some(last) = self.reclaimed.last() {
            seen.extend(figures([
                ("in use", last.in_use as f64),
                ("kept", last.kept as f64),
            ]));
        }
        seen.extend(figures([("killed", self.reclaimed.len() as f64)]));
        seen
    }

    /// Paces the publisher, if there is a rate. A publisher that is late does not wait, and may
    /// catch up.
    fn wait_until_due(&mut self, start: Instant, number: u64) {
        let Some(due) = self.options.due(number) else {
            return;
        };
        match due.checked_sub(start.elapsed()) {
            Some(early) => thread::sleep(early),
            None => self.behind = self.behind.max(start.elapsed() - due),
        }
    }

    /// Waits until the slowest subscriber is near enough for this message.
    fn wait_for_subscribers(&self, number: u64) {
        if number + self.options.first_tenth() == self.options.messages {
            // The replacement of a killed subscriber must not join too late for any message.
            let replaced = self.reclaimed.len() as u8;
            self.audience
                .wait_until_present(self.options.audience() + replaced);
        }
        let window = u64::from(self.options.window);
        self.audience
            .wait_until_done((number + 1).saturating_sub(window));
    }

    /// Returns memory for the message with the number `published`. Waits if there is none, for
    /// example because a killed subscriber holds it.
    fn alloc(&mut self, published: u64, sizes: &[usize], len: usize) -> Fallible<Message> {
        let unread = (published + 1).saturating_sub(self.audience.slowest()) as usize;
        let out = unread + self.options.keep;
        self.in_flight = self.in_flight.max(out * len);
        let start = Instant::now();
        let message = loop {
            self.reclaim_from_killed(published, sizes)?;
            if let Some(message) = self.memory.alloc(len)? {
                break message;
            }
        };
        self.waits.record(start.elapsed().as_nanos() as u64)?;
        Ok(message)
    }

    /// Fills the message and puts it.
    fn publish(&mut self, mut message: Message, number: u64, content: &[u8]) -> Fallible {
        message.copy_from_slice(content);
        // The publisher has no handle of the message from here on. Its memory is free again when
        // all subscribers are done.
        let put = self.publisher.put(message);
        let stamp = Stamp::now(number, &self.audience);
        put.attachment(stamp.as_bytes()).wait()
    }

    /// Reclaims what subscribers held that were killed since the last call.
    fn reclaim_from_killed(&mut self, published: u64, sizes: &[usize]) -> Fallible {
        while self.reclaimed.len() < self.audience.exited() {
            self.audience.wait_until_done(published);
            // The chunks of the newest messages, which the slow subscriber keeps.
            let published = published as usize;
            let mut kept = 0;
            for number in published.saturating_sub(self.options.keep)..published {
                let size = sizes[number % sizes.len()];
                kept += size + size / CLASS_SHARE + LINE;
            }
            let in_use = self.memory.reclaim(kept)?;
            self.reclaimed.push(Reclaimed { in_use, kept });
            News::Reclaimed.send()?;
        }
        Ok(())
    }

    /// Measures the footprint. Fails as soon as there are more segments than a load may make:
    /// receivers that have run out of descriptors could no longer report the cause.
    fn check_footprint(&mut self, published: u64) -> Fallible {
        self.footprint.sample()?;
        let made = self.footprint.segments();
        if self.options.load.is_none() || made <= MAX_SEGMENTS {
            return Ok(());
        }
        Err(format!(
            "the pool has made {made} segments for the first {published} messages, and \
             {MAX_SEGMENTS} are allowed: receivers keep a descriptor, a mapping and locked memory \
             for each"
        )
        .into())
    }
}
