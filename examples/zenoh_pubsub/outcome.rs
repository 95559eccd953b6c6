//! What came out of one run, and whether receivers can live with it.

use crate::options::Whose;
use crate::{footprint, Result};
use serde_json::Value;
use std::collections::BTreeSet;

/// A run that has ended as it may.
pub(crate) enum Outcome {
    /// All messages came as they must.
    Finished(Finished),
    /// There was no provider, and this is why.
    Refused(String),
}

/// What the processes have seen.
pub(crate) struct Finished {
    pub(crate) publisher: Value,
    /// Each subscriber's name, and what it has seen.
    pub(crate) subscribers: Vec<(String, Value)>,
}

impl Finished {
    /// From what the processes say: first the publisher.
    pub(crate) fn new(mut results: Vec<(String, Value)>) -> Self {
        let subscribers = results.split_off(1);
        let publisher = results.pop().map(|(_, result)| result).unwrap_or_default();
        Self { publisher, subscribers }
    }

    /// Fails if an object that any of the processes had mapped is still there.
    pub(crate) fn check_for_leaks(&self) -> Result<()> {
        let results = self.subscribers.iter().map(|(_, result)| result).chain([&self.publisher]);
        let objects: BTreeSet<String> = results
            .flat_map(|result| result["objects"].as_array().into_iter().flatten())
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        let left: Vec<&String> = footprint::left(&objects).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("leak: left behind in /dev/shm: {left:?}").into())
        }
    }

    /// Fails if a subscriber has more at the end than after the first tenth of the messages, apart from what the pool
    /// has made meanwhile.
    pub(crate) fn check_growth(&self, whose: Whose) -> Result<()> {
        // zenoh's own provider has one segment from the start.
        let segments = |when: &str| self.publisher["segments"][when].as_u64().unwrap_or(0);
        let made = segments("late").saturating_sub(segments("early"));
        for (name, result) in &self.subscribers {
            for what in ["descriptors", "mappings"] {
                let of = |when: &str| {
                    let number = result[when][what].as_u64();
                    number.ok_or_else(|| format!("{name} does not tell how many {what} it has"))
                };
                let (early, late) = (of("early")?, of("late")?);
                if late.abs_diff(early) > made {
                    return Err(format!(
                        "memory of {}: {name} had {early} {what} after a tenth of the messages and {late} at the end, \
                         and {made} segments were made meanwhile",
                        whose.title(),
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}
