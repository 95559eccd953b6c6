//! What came out of the runs, side by side.

use crate::options::{Options, Whose};
use crate::units::{align, grouped, Bytes};
use hdrhistogram::Histogram;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Of a duration, in nanoseconds.
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
}

pub(crate) fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    let at = |quantile| histogram.value_at_quantile(quantile);
    Percentiles { p50: at(0.5), p99: at(0.99), p999: at(0.999) }
}

/// One run in which all was as it must be.
pub(crate) struct Column {
    whose: Whose,
    publisher: Value,
    /// Each subscriber's name, and what it has seen.
    subscribers: Vec<(String, Value)>,
    /// The names of all shared-memory objects that a process of the run had mapped.
    pub(crate) objects: BTreeSet<String>,
}

impl Column {
    /// From what the processes say: first the publisher.
    pub(crate) fn new(whose: Whose, mut results: Vec<(String, Value)>) -> Self {
        let objects = results
            .iter()
            .flat_map(|(_, result)| result["objects"].as_array().into_iter().flatten())
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        let subscribers = results.split_off(1);
        let publisher = results.pop().map(|(_, result)| result).unwrap_or_default();
        Self { whose, publisher, subscribers, objects }
    }

    /// Name and value of each row.
    fn rows(&self) -> Vec<(String, String)> {
        let Self { publisher, .. } = self;
        let seconds = publisher["seconds"].as_f64().unwrap_or(f64::NAN);
        let per_second = |what: &Value| what.as_f64().unwrap_or(f64::NAN) / seconds;
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
        row("messages", count(&publisher["messages"]));
        row("bytes", bytes(&publisher["bytes"]));
        row("seconds", format!("{seconds:.2}"));
        row("msg/s", grouped(per_second(&publisher["messages"]) as u64));
        row("GB/s to each subscriber", format!("{:.2}", per_second(&publisher["bytes"]) / 1e9));
        row("making the provider", micros(&publisher["setup"]));
        row("allocation, µs: p50 / p99 / p99.9", quantiles(publisher));
        row("peak payload in /dev/shm, from outside", bytes(&publisher["payload"]));
        row("…, by the pool's own statistics", bytes(&publisher["held"]));
        row("…, segments created", count(&publisher["segments"]));
        row("zenoh's metadata, not in the above", bytes(&publisher["metadata"]));
        for (name, subscriber) in &self.subscribers {
            row(&format!("{name}: messages"), count(&subscriber["messages"]));
            row("…, latency, µs: p50 / p99 / p99.9", quantiles(subscriber));
            row("…, compared / most held", format!("{} / {}", bytes(&subscriber["compared"]), subscriber["held"]));
        }
        rows
    }
}

/// The whole story, as aligned text.
pub(crate) fn table(options: &Options, file: &Path, columns: &[Column]) -> String {
    let what = format!(
        "{} ({}), again and again, by zenoh over TCP on this machine to {} subscribers; at most {} of shared memory, {} messages \
         ahead.\nEvery message came in shared memory, in order and unchanged; no object is left in /dev/shm.\n",
        file.display(),
        columns.first().map_or("-".to_owned(), |column| bytes(&column.publisher["file"])),
        options.audience(),
        Bytes(options.max_bytes as u64),
        options.window,
    );
    let mut rows = vec![vec![String::new()]];
    for column in columns {
        rows[0].push(match column.whose {
            Whose::Pool => "shm-pool".to_owned(),
            Whose::Zenoh => "zenoh's default".to_owned(),
        });
        for (at, (name, value)) in (1..).zip(column.rows()) {
            if rows.len() == at {
                rows.push(vec![name]);
            }
            rows[at].push(value);
        }
    }
    [what, align(&rows)].join("\n")
}

fn count(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), grouped)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |bytes| Bytes(bytes).to_string())
}

fn micros(nanoseconds: &Value) -> String {
    nanoseconds.as_f64().map_or("-".to_owned(), |nanoseconds| format!("{:.1} µs", nanoseconds / 1e3))
}

fn quantiles(result: &Value) -> String {
    let one = |name: &str| result[name].as_f64().map_or("-".to_owned(), |value| format!("{:.1}", value / 1e3));
    ["p50", "p99", "p999"].map(one).join(" / ")
}
