//! What the processes of a run report to the program that started them: on standard output, a line
//! of JSON each. The subscriber in Python does so, too.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use shm_pool_support::Fallible;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum News {
    /// Where the publisher listens.
    Listening(String),
    /// How many messages were published; shows that the publisher makes progress.
    Published(u64),
    /// A subscriber has its first message.
    Joined,
    /// The publisher has reclaimed the messages that a killed subscriber held.
    Reclaimed,
    /// Why there is no provider, in a run that is about this.
    Refused(String),
    /// The process has finished its part.
    Done(Seen),
}

/// What a process has seen.
#[derive(Serialize, Deserialize)]
pub(crate) struct Seen {
    /// zenoh's objects that the process had mapped.
    pub(crate) objects: BTreeSet<String>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// Figures by name. Those that a process cannot determine are absent.
pub(crate) type Figures = BTreeMap<String, f64>;

impl News {
    /// Writes the line to standard output.
    pub(crate) fn send(&self) -> Fallible {
        let line = serde_json::to_string(self)?;
        writeln!(io::stdout().lock(), "{line}")
            .map_err(|error| format!("nobody listens: {error}").into())
    }
}

/// Returns figures with their names.
pub(crate) fn figures<const N: usize>(all: [(&str, f64); N]) -> Figures {
    let mut figures = Figures::new();
    for (name, figure) in all {
        figures.insert(name.to_owned(), figure);
    }
    figures
}

/// Returns the quantiles of times in nanoseconds, and their sum.
pub(crate) fn quantiles(all: &Histogram<u64>) -> Figures {
    let at = |quantile| all.value_at_quantile(quantile) as f64;
    figures([
        ("p50", at(0.5)),
        ("p99", at(0.99)),
        ("p999", at(0.999)),
        ("sum", all.mean() * all.len() as f64),
    ])
}
