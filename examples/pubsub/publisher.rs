//! The publisher: one allocation per message, granted to each subscriber, then dropped.
//!
//! # Flow control
//!
//! The publisher is at most `--window` messages ahead of the slowest subscriber; each tells it from time to time how
//! many messages it is done with. When the shared memory is exhausted before that, the publisher waits for the same
//! credits: a subscriber that has nothing left to read lets go of all that it holds, so either memory comes back, or
//! nobody holds any and the error is real. Nobody sleeps, nobody spins.

use crate::options::Options;
use crate::process::{Starting, Subscriber};
use crate::report::{Published, Report};
use crate::source::Source;
use crate::Result;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use shm_pool::{Provider, ProviderId, ShmBufMut};
use std::io::{self, Write};
use std::time::Instant;

/// Publishes the whole stream, prints the table, and fails if anything was not as it must be.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.check()?;
    let file = options.file()?;
    let source = Source::read(&file, options.largest())?;
    // The pool keeps as many free chunks of a size as can be in flight, so that none is made anew again and again.
    let provider =
        Provider::builder().max_bytes(options.max_bytes).max_idle_per_class(options.window() as usize).build()?;
    let id = provider.id();

    let starting: Result<Vec<Starting>> =
        (0..options.subscribers).map(|index| Starting::spawn(options, &file, id, index)).collect();
    let outcome = starting.and_then(|starting| Publisher::new(options, &provider, starting)?.run(&source));
    drop(provider);

    let mut problems = Vec::new();
    match outcome {
        Ok(report) => {
            let table = report.table(options, &file, source.file_len());
            if let Err(error) = io::stdout().write_all(table.as_bytes()) {
                problems.push(format!("cannot write the table: {error}"));
            }
            problems.extend(report.problems());
        }
        Err(error) => problems.push(error.to_string()),
    }
    problems.extend(files_left_by(id)?.into_iter().map(|name| format!("leak: /dev/shm/{name} is left behind")));
    if problems.is_empty() {
        return Ok(());
    }
    Err(problems.join("\n").into())
}

/// The provider's objects that are still there: each has the provider's id in its name.
fn files_left_by(id: ProviderId) -> Result<Vec<String>> {
    let named = |error: io::Error| format!("cannot look for leaks in /dev/shm: {error}");
    let mut left = Vec::new();
    for entry in std::fs::read_dir("/dev/shm").map_err(named)? {
        let name = entry.map_err(named)?.file_name().to_string_lossy().into_owned();
        if name.contains(&id.to_string()) {
            left.push(name);
        }
    }
    Ok(left)
}

struct Publisher<'a> {
    options: &'a Options,
    provider: &'a Provider,
    subscribers: Vec<Subscriber>,
    published: Published,
}

impl<'a> Publisher<'a> {
    /// Waits until every subscriber is connected: nobody misses the first message.
    fn new(options: &'a Options, provider: &'a Provider, starting: Vec<Starting>) -> Result<Self> {
        let subscribers = starting.into_iter().map(Starting::connected).collect::<Result<_>>()?;
        Ok(Self { options, provider, subscribers, published: Published::default() })
    }

    fn run(mut self, source: &Source) -> Result<Report> {
        let bar = progress_bar(self.options.messages)?;
        let start = Instant::now();
        for content in source.messages(&self.options.sizes).take(self.options.messages as usize) {
            self.wait_for_window()?;
            self.publish(content)?;
            bar.inc(1);
        }
        for subscriber in &mut self.subscribers {
            subscriber.end_stream()?;
        }
        let mut summaries = Vec::new();
        for subscriber in &mut self.subscribers {
            summaries.push((subscriber.name(), subscriber.summary()?));
        }
        let elapsed = start.elapsed();
        bar.finish_and_clear();
        for subscriber in self.subscribers {
            subscriber.join()?;
        }
        Ok(Report { published: self.published, summaries, elapsed, stats: self.provider.stats() })
    }

    /// The main job: allocate, fill, freeze, share, let go.
    fn publish(&mut self, content: &[u8]) -> Result<()> {
        let mut buffer = self.alloc(content.len())?;
        buffer.copy_from_slice(content);
        self.published.count(buffer.len(), buffer.capacity());
        let message = buffer.freeze();
        for subscriber in &mut self.subscribers {
            subscriber.send(&message)?;
        }
        // The message is dropped here. What the subscribers were granted keeps it until the last of them is done.
        Ok(())
    }

    /// Allocates, and waits for memory as long as subscribers have some to give back.
    fn alloc(&mut self, len: usize) -> Result<ShmBufMut> {
        loop {
            match self.provider.alloc(len) {
                Err(error) if error.is_exhausted() => {
                    let slowest = self.subscribers.iter_mut().max_by_key(|subscriber| subscriber.pending());
                    match slowest.filter(|subscriber| subscriber.pending() > 0) {
                        Some(subscriber) => subscriber.wait_for_credit()?,
                        None => return Err(error.into()),
                    }
                    self.published.waits_for_memory += 1;
                }
                other => return Ok(other?),
            }
        }
    }

    fn wait_for_window(&mut self) -> Result<()> {
        for subscriber in &mut self.subscribers {
            while subscriber.pending() >= self.options.window() {
                subscriber.wait_for_credit()?;
            }
        }
        Ok(())
    }
}

/// Hidden if standard error is not a terminal.
fn progress_bar(messages: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} messages, {eta} left")?;
    Ok(ProgressBar::new(messages).with_style(style).with_finish(ProgressFinish::AndClear))
}
