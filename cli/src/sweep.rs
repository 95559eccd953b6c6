//! `sweep`: lists what dead owners have left and, with `--yes`, removes it.

use crate::args::{Code, Scope, Sweep};
use crate::json::Orphans;
use crate::{json, text, Answer, Fallible};
use serde::Serialize;
use shm_pool::inspect::{Report, State};
use shm_pool::Swept;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn run(scope: &Scope, options: &Sweep) -> Fallible<Answer> {
    let report = scope.inspector().report()?;
    let mut removal = Removal {
        prefixes: by_prefix(&report),
        is_done: options.yes,
        errors: Vec::new(),
    };
    if options.yes {
        removal.carry_out(|prefix| {
            let namespace = scope
                .namespace(prefix)
                .map_err(|error| text::with_causes(&error))?;
            namespace.sweep().map_err(|error| text::with_causes(&error))
        });
        // A sweep skips what it is not permitted to remove.
        removal.note_left(&still_there(&report, &scope.inspector().report()?));
    }
    let text = if scope.json {
        json::of(&Document::of(&report, &removal))?
    } else {
        describe(&report, &removal)
    };
    Ok(Answer {
        text,
        code: if removal.errors.is_empty() {
            Code::Fine
        } else {
            Code::Error
        },
    })
}

/// A removal, planned or carried out.
struct Removal<'a> {
    prefixes: BTreeMap<&'a str, Swept>,
    is_done: bool,
    /// The failures. The other prefixes were swept all the same.
    errors: Vec<String>,
}

impl Removal<'_> {
    /// Sweeps each prefix. The library checks again, under locks: an object that is alive by now
    /// stays.
    fn carry_out(&mut self, sweep: impl Fn(&str) -> Result<Swept, String>) {
        for (prefix, swept) in &mut self.prefixes {
            *swept = sweep(prefix).unwrap_or_else(|error| {
                self.errors.push(format!("prefix {prefix}: {error}"));
                Swept::default()
            });
        }
    }

    /// Records the objects that are still there as errors.
    fn note_left(&mut self, names: &[String]) {
        let left = |name| {
            format!(
                "{name} is still there; the directory's mode or its file system may not allow it"
            )
        };
        self.errors.extend(names.iter().map(left));
    }

    fn total(&self) -> Swept {
        self.prefixes
            .values()
            .fold(Swept::default(), |sum, swept| sum + *swept)
    }
}

/// Returns what would be removed, by prefix.
fn by_prefix(report: &Report) -> BTreeMap<&str, Swept> {
    let providers = report
        .providers
        .iter()
        .map(|provider| (&provider.prefix, provider.orphans));
    let channels = report
        .channels
        .iter()
        .map(|channel| (&channel.prefix, channel.orphans));
    let mut all = BTreeMap::<_, Swept>::new();
    for (prefix, orphans) in providers
        .chain(channels)
        .filter(|(_, orphans)| orphans.objects > 0)
    {
        let sum = all.entry(prefix.as_str()).or_default();
        *sum = *sum + orphans;
    }
    all
}

/// Returns the orphaned providers and channels, by name.
fn orphans(report: &Report) -> impl Iterator<Item = (String, Swept)> + '_ {
    let providers = report
        .providers
        .iter()
        .map(|provider| (text::name_of_provider(provider), provider.orphans));
    let channels = report
        .channels
        .iter()
        .map(|channel| (text::name_of_channel(channel), channel.orphans));
    providers
        .chain(channels)
        .filter(|(_, orphans)| orphans.objects > 0)
}

/// Returns the orphans that were there before and still are. Owners that died since are not listed.
fn still_there(before: &Report, now: &Report) -> Vec<String> {
    let before: BTreeSet<_> = orphans(before).map(|(name, _)| name).collect();
    orphans(now)
        .map(|(name, _)| name)
        .filter(|name| before.contains(name))
        .collect()
}

/// Returns the dead providers and channels that stay because a receiver still reads them.
fn kept(report: &Report) -> Vec<String> {
    let providers = report
        .providers
        .iter()
        .filter(|provider| provider.state == State::Dead && !provider.is_orphan);
    let channels = report.channels.iter().filter(|channel| {
        channel.state == State::Dead && channel.receivers.iter().any(|receiver| receiver.is_alive)
    });
    providers
        .map(text::name_of_provider)
        .chain(channels.map(text::name_of_channel))
        .collect()
}

/// Returns the objects that have one of this crate's names but other contents: any process may have
/// created them.
fn damaged(report: &Report) -> Vec<String> {
    let is_damaged =
        |state: &State, orphans: Swept| matches!(state, State::Unusable(_)) && orphans.objects == 0;
    let providers = report
        .providers
        .iter()
        .filter(|provider| is_damaged(&provider.state, provider.orphans));
    let channels = report.channels.iter().flat_map(|channel| {
        let own =
            is_damaged(&channel.state, channel.orphans).then(|| text::name_of_channel(channel));
        let connections = channel.damaged.iter().filter(|damaged| !damaged.is_orphan);
        let connections = connections.map(|damaged| text::name_of_connection(channel, damaged));
        own.into_iter().chain(connections)
    });
    providers
        .map(text::name_of_provider)
        .chain(channels)
        .collect()
}

fn describe(report: &Report, removal: &Removal<'_>) -> String {
    let is_done = removal.is_done;
    let line = |name: &str, swept: &Swept| {
        format!("  {name}: {}\n", text::objects(swept.objects, swept.bytes))
    };
    let total = removal.total();
    let mut text = match (total.objects, is_done) {
        (0, true) if !removal.errors.is_empty() => "nothing was removed\n".to_owned(),
        (0, _) => "nothing to remove\n".to_owned(),
        (_, true) => format!("removed {}\n", text::objects(total.objects, total.bytes)),
        (_, false) => format!(
            "would remove {}:\n",
            text::objects(total.objects, total.bytes)
        ),
    };
    if is_done {
        let removed = removal
            .prefixes
            .iter()
            .filter(|(_, swept)| swept.objects > 0);
        text.extend(removed.map(|(prefix, swept)| line(&format!("prefix {prefix}"), swept)));
    } else {
        text.extend(orphans(report).map(|(name, orphans)| line(&name, &orphans)));
    }
    text.extend(
        removal
            .errors
            .iter()
            .map(|error| format!("not done: {error}\n")),
    );
    text.extend(
        kept(report)
            .iter()
            .map(|name| format!("kept {name}: it is dead, and a receiver still reads it\n")),
    );
    let why = "it is damaged, or no object of this program; `shm-pool show` says more";
    text.extend(
        damaged(report)
            .iter()
            .map(|name| format!("kept {name}: {why}\n")),
    );
    if report.others > 0 {
        let objects = text::plural(report.others, "object");
        text += &format!(
            "kept {} {objects} of other users: run this as their user\n",
            report.others
        );
    }
    if !is_done && total.objects > 0 {
        text += "nothing was changed; --yes does it\n";
    }
    text
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    done: bool,
    objects: usize,
    bytes: u64,
    prefixes: Vec<Prefix<'a>>,
    /// The orphans that were found, by name.
    orphans: Vec<Orphan>,
    kept: Vec<String>,
    damaged: Vec<String>,
    errors: &'a [String],
}

#[derive(Serialize)]
struct Orphan {
    name: String,
    #[serde(flatten)]
    swept: Orphans,
}

#[derive(Serialize)]
struct Prefix<'a> {
    prefix: &'a str,
    #[serde(flatten)]
    swept: Orphans,
}

impl<'a> Document<'a> {
    fn of(report: &Report, removal: &'a Removal<'a>) -> Self {
        let Swept { objects, bytes, .. } = removal.total();
        let prefixes = removal.prefixes.iter().map(|(prefix, swept)| Prefix {
            prefix,
            swept: (*swept).into(),
        });
        let (version, prefixes) = (json::VERSION, prefixes.collect());
        let Removal {
            is_done: done,
            ref errors,
            ..
        } = *removal;
        let orphans = orphans(report)
            .map(|(name, swept)| Orphan {
                name,
                swept: swept.into(),
            })
            .collect();
        let (kept, damaged) = (kept(report), damaged(report));
        Self {
            version,
            done,
            objects,
            bytes,
            prefixes,
            orphans,
            kept,
            damaged,
            errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After an error, the other prefixes are swept and the results listed.
    #[test]
    fn errors_are_per_prefix() {
        let mut removed = Swept::default();
        (removed.objects, removed.bytes) = (2, 8192);
        let prefixes = ["a", "b", "c"].map(|prefix| (prefix, removed)).into();
        let mut removal = Removal {
            prefixes,
            is_done: true,
            errors: Vec::new(),
        };
        removal.carry_out(|prefix| {
            if prefix == "b" {
                Err("readdir failed".to_owned())
            } else {
                Ok(removed)
            }
        });
        assert_eq!(removal.errors, ["prefix b: readdir failed"]);
        let said = describe(&Report::default(), &removal);
        assert!(said.contains("removed 4 objects, 16.0 KiB"), "{said}");
        removal.note_left(&["c.0123456789abcdef".to_owned()]);
        assert!(
            said.contains("not done: prefix b: readdir failed") && !said.contains("  prefix b:"),
            "{said}"
        );
        assert!(describe(&Report::default(), &removal)
            .contains("not done: c.0123456789abcdef is still there"));
    }
}
