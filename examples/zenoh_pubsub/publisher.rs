//! The publisher process: one allocation per message, filled and put; zenoh's sharing does the rest.
//!
//! # Flow control
//!
//! Three things keep the publisher from running away. It stays at most `--window` messages ahead of the slowest subscriber; when
//! there is no memory it waits until subscribers have let go of some; and a message that does not fit the connection's queue is
//! waited for, never dropped.

use crate::audience::Audience;
use crate::child::{end_with_parent, say};
use crate::footprint::Footprint;
use crate::memory::Memory;
use crate::options::{Options, Whose};
use crate::report::{percentiles, Percentiles};
use crate::session::{self, Stamp, DATA};
use crate::source::Source;
use crate::Result;
use hdrhistogram::Histogram;
use serde_json::json;
use std::time::{Duration, Instant};
use zenoh::pubsub::Publisher;
use zenoh::qos::{CongestionControl, Reliability};
use zenoh::Wait;

/// At every so many messages it looks at its footprint, and tells that it goes on.
const PULSE: u64 = 16;

/// Publishes the whole stream and tells how that went.
pub(crate) fn run(options: &Options) -> Result<()> {
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
    let start = Instant::now();
    let memory = Memory::new(whose, options.max_bytes)?;
    let setup = start.elapsed();
    let stream = Stream { options, publisher, audience, memory, footprint, waits: Histogram::new(3)?, bytes: 0 };
    stream.run(&source, setup)?;
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
}

impl Stream<'_> {
    fn run(mut self, source: &Source, setup: Duration) -> Result<()> {
        let messages = self.options.messages;
        let start = Instant::now();
        for (number, content) in (0..messages).zip(source.messages(&self.options.sizes)) {
            self.audience.wait_until_done((number + 1).saturating_sub(self.options.window.into()));
            self.publish(number, content)?;
            if number % PULSE == 0 {
                self.footprint.sample()?;
                say(&json!({ "published": number + 1 }))?;
            }
        }
        self.audience.wait_until_done(messages);
        let elapsed = start.elapsed();
        self.footprint.sample()?;
        self.audience.wait_until_gone();
        self.memory.check_for_leaks()?;

        let stats = self.memory.stats();
        let Percentiles { p50, p99, p999 } = percentiles(&self.waits);
        say(&json!({ "done": {
            "file": source.file_len(),
            "messages": messages,
            "bytes": self.bytes,
            "seconds": elapsed.as_secs_f64(),
            "setup": setup.as_nanos() as u64,
            "p50": p50, "p99": p99, "p999": p999,
            "payload": self.footprint.payload,
            "metadata": self.footprint.metadata,
            "held": stats.as_ref().map(|stats| stats.peak_bytes_held),
            "segments": stats.as_ref().map(|stats| stats.segments_created),
            "objects": self.footprint.objects(),
        }}))
    }

    /// The main job: allocate, fill, put.
    fn publish(&mut self, number: u64, content: &[u8]) -> Result<()> {
        let asked = Instant::now();
        let mut buffer = self.memory.alloc(content.len())?;
        self.waits.record(asked.elapsed().as_nanos() as u64)?;
        buffer.copy_from_slice(content);
        self.bytes += content.len() as u64;
        // The publisher has no handle of the message from here on. zenoh gives the memory back when all subscribers are done.
        self.publisher.put(buffer).attachment(Stamp::now(number).to_bytes()).wait()
    }
}
