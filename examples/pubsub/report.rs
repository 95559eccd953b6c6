//! What came out of a run: the table, and what was wrong.

use crate::options::Options;
use crate::units::{align, grouped, Bytes};
use crate::wire::Summary;
use shm_pool::Stats;
use std::path::Path;
use std::time::Duration;

/// What the publisher counts while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    messages: u64,
    bytes: u64,
    /// Bytes of chunks that no message filled.
    wasted: u64,
    /// How often there was no memory before a subscriber gave some back.
    pub(crate) waits_for_memory: u64,
}

impl Published {
    /// Counts a message of `len` bytes in a chunk of `capacity`.
    pub(crate) fn count(&mut self, len: usize, capacity: usize) {
        self.messages += 1;
        self.bytes += len as u64;
        self.wasted += (capacity - len) as u64;
    }
}

/// A run in which all processes came to their end.
pub(crate) struct Report {
    pub(crate) published: Published,
    /// Each subscriber's name, and what it has seen.
    pub(crate) summaries: Vec<(String, Summary)>,
    /// From the first allocation until the last subscriber had let go of the last message.
    pub(crate) elapsed: Duration,
    /// Taken when all subscribers had gone.
    pub(crate) stats: Stats,
}

impl Report {
    /// What must not be. Empty after a good run.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut must_be_zero = |count: u64, what: &str| {
            if count > 0 {
                problems.push(format!("{count} {what}"));
            }
        };
        for (name, summary) in &self.summaries {
            must_be_zero(self.lost(summary), &format!("messages were lost on the way to {name}"));
            must_be_zero(summary.stale, &format!("messages were stale when they came to {name}"));
            must_be_zero(summary.mismatches, &format!("comparisons failed in {name}"));
        }
        must_be_zero(self.stats.bytes_in_use as u64, "bytes leaked: the provider says they are in use at the end");
        must_be_zero(self.stats.bytes_leased as u64, "bytes leaked: the provider says they are leased at the end");
        problems
    }

    /// Messages that never came to a subscriber.
    fn lost(&self, summary: &Summary) -> u64 {
        self.published.messages.saturating_sub(summary.messages + summary.stale)
    }

    fn sum(&self, count: impl Fn(&Summary) -> u64) -> u64 {
        self.summaries.iter().map(|(_, summary)| count(summary)).sum()
    }

    /// The whole story, as aligned text.
    pub(crate) fn table(&self, options: &Options, file: &Path, file_len: usize) -> String {
        let what = format!(
            "{} ({}), again and again, to {} subscribers; at most {} of shared memory, {} messages ahead\n",
            file.display(),
            Bytes(file_len as u64),
            options.subscribers,
            Bytes(options.max_bytes as u64),
            options.window(),
        );
        [what, align(&self.totals()), align(&self.per_subscriber()), align(&self.per_class())].join("\n")
    }

    fn totals(&self) -> Vec<Vec<String>> {
        let Self { published, stats, elapsed, .. } = self;
        let seconds = elapsed.as_secs_f64();
        let per_second = |amount: u64| amount as f64 / seconds;
        let giga = |bytes: u64| format!("{:.2} GB/s", per_second(bytes) / 1e9);
        let delivered = self.sum(|summary| summary.bytes);
        let wasted_share = 100.0 * published.wasted as f64 / (published.bytes + published.wasted).max(1) as f64;
        let row = |name: &str, value: String, note: String| vec![name.to_owned(), value, note];
        let none = String::new;
        vec![
            row("messages", grouped(published.messages), format!("in {seconds:.2} s")),
            row("bytes", Bytes(published.bytes).to_string(), format!("delivered {}", Bytes(delivered))),
            row("msg/s", grouped(per_second(published.messages) as u64), none()),
            row("throughput", giga(published.bytes), format!("delivered {}", giga(delivered))),
            row("pool hits", grouped(stats.hits()), none()),
            row("pool misses", grouped(stats.misses()), none()),
            row("fresh segments", grouped(stats.segments_created), none()),
            row("peak bytes held", Bytes(stats.peak_bytes_held as u64).to_string(), none()),
            row("wasted by rounding", Bytes(published.wasted).to_string(), format!("{wasted_share:.1} % of all")),
            row("waits for memory", grouped(published.waits_for_memory), none()),
            row("stale", grouped(self.sum(|summary| summary.stale)), none()),
            row("lost", grouped(self.sum(|summary| self.lost(summary))), none()),
            row("mismatches", grouped(self.sum(|summary| summary.mismatches)), none()),
        ]
    }

    fn per_subscriber(&self) -> Vec<Vec<String>> {
        let head = ["", "messages", "compared", "most kept", "in bytes"].map(str::to_owned).to_vec();
        let rows = self.summaries.iter().map(|(name, summary)| {
            vec![
                name.clone(),
                grouped(summary.messages),
                Bytes(summary.compared).to_string(),
                grouped(summary.peak_held),
                Bytes(summary.peak_held_bytes).to_string(),
            ]
        });
        std::iter::once(head).chain(rows).collect()
    }

    fn per_class(&self) -> Vec<Vec<String>> {
        let head = ["size class", "hits", "misses", "hit rate", "chunks at the end"].map(str::to_owned).to_vec();
        let rows = self.stats.classes.iter().map(|class| {
            let uses = class.hits + class.misses;
            vec![
                Bytes(class.size as u64).to_string(),
                grouped(class.hits),
                grouped(class.misses),
                format!("{:.2} %", 100.0 * class.hits as f64 / uses.max(1) as f64),
                grouped(class.chunks as u64),
            ]
        });
        std::iter::once(head).chain(rows).collect()
    }
}
