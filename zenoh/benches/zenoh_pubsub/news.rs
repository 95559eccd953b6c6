//! What the processes of a run tell the program that started them: on standard output, a line of
//! JSON each. The subscriber in Python does, too.

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
    /// How many messages were published: all goes on.
    Published(u64),
    /// A subscriber has its first message.
    Joined,
    /// The publisher has taken back what a killed subscriber had.
    TakenBack,
    /// Why there is no provider, where that is what the run is about.
    Refused(String),
    Done(Seen),
}

/// What a process has seen.
#[derive(Serialize, Deserialize)]
pub(crate) struct Seen {
    /// zenoh's objects that it had mapped.
    pub(crate) objects: BTreeSet<String>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// By name. Figures that a process cannot determine are absent.
pub(crate) type Figures = BTreeMap<String, f64>;

impl News {
    /// Tells it.
    pub(crate) fn say(&self) -> Fallible {
        let line = serde_json::to_string(self)?;
        writeln!(io::stdout().lock(), "{line}")
            .map_err(|error| format!("nobody listens: {error}").into())
    }
}

/// Figures of these names.
pub(crate) fn figures<const N: usize>(all: [(&str, f64); N]) -> Figures {
    all.map(|(name, figure)| (name.to_owned(), figure)).into()
}

/// The quantiles of some nanoseconds, and their sum.
pub(crate) fn quantiles(all: &Histogram<u64>) -> Figures {
    let at = |quantile| all.value_at_quantile(quantile) as f64;
    figures([
        ("p50", at(0.5)),
        ("p99", at(0.99)),
        ("p999", at(0.999)),
        ("sum", all.mean() * all.len() as f64),
    ])
}
