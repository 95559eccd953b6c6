//! The publisher process: one allocation per message, filled and put; zenoh's sharing does the
//! rest.
//!
//! # Flow control
//!
//! Three things keep the publisher from running away. It stays at most `--window` messages ahead of
//! the slowest subscriber; when there is no memory it waits until subscribers have let go of some;
//! and a message that does not fit the connection's queue is waited for, never dropped. With a rate
//! each message is due at its own time, however late the one before it was.

use crate::conductor::{end_with_parent, say};
use crate::footprint::Footprint;
use crate::memory::Memory;
use crate::options::{Options, Whose, MAX_SEGMENTS};
use crate::session::{self, Audience, Stamp, DATA};
use hdrhistogram::Histogram;
use serde_json::json;
use shm_pool_support::source::Source;
use shm_pool_support::{clock, Fallible};
use std::thread;
use std::time::{Duration, Instant};
use zenoh::pubsub::Publisher;
use zenoh::qos::{CongestionControl, Reliability};
use zenoh::Wait;

/// At every so many messages it looks at its footprint, and tells that it goes on.
const PULSE: u64 = 16;

/// Publishes the whole stream and tells how that went.
pub(crate) fn run(options: &Options) -> Fallible {
    end_with_parent();
    let whose = options.memory.first().copied().unwrap_or(Whose::Pool);
    let source = Source::read(&options.file()?, options.largest())?;
    let (session, endpoint) = session::listen()?;
    let publisher = session
        .declare_publisher(DATA)
        .congestion_control(CongestionControl::Block)
        .reliability(Reliability::Reliable)
        .wait()?;
    let audience = Audience::new(&session, options.subscribers)?;
    say(&json!({ "listening": endpoint }))?;
    audience.wait_until_present();

    let footprint = Footprint::new()?;
    // From here on: zenoh's own backend takes all of its memory when it is made, the pool what is
    // reserved, and the rest when a message needs it.
    let (start, cpu) = (Instant::now(), clock::process_cpu());
    let memory = match Memory::new(whose, options) {
        Ok(memory) => memory,
        // Then this is what the run is about.
        Err(error) if options.memlock.is_some() => return say(&json!({ "refused": error.to_string() })),
        Err(error) => return Err(error),
    };
    let setup = start.elapsed();
    let waits = Histogram::new(3)?;
    let stream = Stream { options, publisher, audience, memory, footprint, waits, bytes: 0, behind: Duration::ZERO };
    stream.run(&source, setup, cpu)?;
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
    bytes: u64,
    /// How long after it was due a message was published at most.
    behind: Duration,
}

impl Stream<'_> {
    fn run(mut self, source: &Source, setup: Duration, cpu: u64) -> Fallible {
        let messages = self.options.messages;
        let sizes = self.options.stream();
        let mut early = None;
        let start = Instant::now();
        for (number, content) in (0..messages).zip(source.messages(&sizes)) {
            self.wait_until_due(start, number);
            self.audience.wait_until_done((number + 1).saturating_sub(self.options.window.into()));
            self.publish(number, content)?;
            if number + 1 == self.options.first_tenth() {
                early = self.memory.stats().map(|stats| stats.segments_created);
            }
            if number % PULSE == 0 {
                self.footprint.sample()?;
                self.check_segments(number + 1)?;
                say(&json!({ "published": number + 1 }))?;
            }
        }
        self.audience.wait_until_done(messages);
        let (elapsed, cpu) = (start.elapsed(), clock::process_cpu() - cpu);
        self.footprint.sample()?;
        self.check_segments(messages)?;
        self.audience.wait_until_gone();
        self.memory.check_for_leaks()?;

        let stats = self.memory.stats();
        let held = stats.as_ref().map(|stats| stats.peak_bytes_held);
        let segments = stats.as_ref().map(|stats| stats.segments_created);
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| self.waits.value_at_quantile(quantile));
        say(&json!({ "done": {
            "file": source.file_len(),
            "messages": messages,
            "bytes": self.bytes,
            "seconds": elapsed.as_secs_f64(),
            "cpu": cpu,
            "behind": self.options.due(0).map(|_| self.behind.as_nanos() as u64),
            "setup": setup.as_nanos() as u64,
            "p50": p50, "p99": p99, "p999": p999,
            "payload": self.footprint.payload,
            "metadata": self.footprint.metadata,
            "held": held,
            "segments": { "early": early, "late": segments },
            "objects": self.footprint.objects(),
        }}))
    }

    /// Paces the publisher, if there is a rate. Who is late does not wait, and may catch up.
    fn wait_until_due(&mut self, start: Instant, number: u64) {
        let Some(due) = self.options.due(number) else { return };
        match due.checked_sub(start.elapsed()) {
            Some(early) => thread::sleep(early),
            None => self.behind = self.behind.max(start.elapsed() - due),
        }
    }

    /// Fails if the pool has made more segments than a load may take. Soon, because receivers that
    /// have run out of descriptors can no longer say why.
    fn check_segments(&self, published: u64) -> Fallible {
        if self.options.load.is_none() {
            return Ok(());
        }
        let made = self.footprint.segments();
        if made > MAX_SEGMENTS {
            return Err(format!(
                "the pool has made {made} segments for the first {published} messages, and {MAX_SEGMENTS} are allowed: \
                 receivers keep a descriptor, a mapping and locked memory for each"
            )
            .into());
        }
        Ok(())
    }

    /// The main job: allocate, fill, put.
    fn publish(&mut self, number: u64, content: &[u8]) -> Fallible {
        let asked = Instant::now();
        let mut buffer = self.memory.alloc(content.len())?;
        self.waits.record(asked.elapsed().as_nanos() as u64)?;
        buffer.copy_from_slice(content);
        self.bytes += content.len() as u64;
        // The publisher has no handle of the message from here on. zenoh gives the memory back when
        // all subscribers are done.
        self.publisher.put(buffer).attachment(Stamp::now(number).to_bytes()).wait()
    }
}
