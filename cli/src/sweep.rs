//! `sweep`: lists what dead owners have left and, with `--yes`, removes it.

use crate::args::{Code, Scope, Sweep};
use crate::json::Orphans;
use crate::{json, text, Answer, Fallible};
use serde::Serialize;
use shm_pool::inspect::{ObjectState, Report};
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
        removal.carry_out(|prefix| match scope.namespace(prefix) {
            Ok(namespace) => match namespace.sweep() {
                Ok(swept) => Ok(swept),
                Err(error) => Err(text::with_causes(&error)),
            },
            Err(error) => Err(text::with_causes(&error)),
        });
        // A sweep skips what it is not permitted to remove.
        removal.note_left(&still_there(&report, &scope.inspector().report()?));
    }
    let text = if scope.json {
        json::of(&Document::of(&report, &removal))?
    } else {
        describe(&report, &removal)
    };
    let code = if removal.errors.is_empty() {
        Code::Fine
    } else {
        Code::Error
    };
    Ok(Answer {
        text,
        notice: String::new(),
        code,
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
            match sweep(prefix) {
                Ok(removed) => *swept = removed,
                Err(error) => {
                    *swept = Swept::default();
                    self.errors.push(format!("prefix {prefix}: {error}"));
                }
            }
        }
    }

    /// Records the objects that are still there as errors.
    fn note_left(&mut self, names: &[String]) {
        for name in names {
            self.errors.push(format!(
                "{name} is still there; the directory's mode or its file system may not allow it"
            ));
        }
    }

    fn total(&self) -> Swept {
        let mut total = Swept::default();
        for swept in self.prefixes.values() {
            total = total + *swept;
        }
        total
    }
}

/// Returns what would be removed, by prefix.
fn by_prefix(report: &Report) -> BTreeMap<&str, Swept> {
    let mut all: BTreeMap<&str, Swept> = BTreeMap::new();
    let mut add = |prefix, orphans: Swept| {
        if orphans.objects > 0 {
            let sum = all.entry(prefix).or_default();
            *sum = *sum + orphans;
        }
    };
    for provider in &report.providers {
        add(&provider.prefix, provider.orphans);
    }
    for channel in &report.channels {
        add(&channel.prefix, channel.orphans);
    }
    all
}

/// Returns the orphaned providers and channels, by name.
fn orphans(report: &Report) -> Vec<(String, Swept)> {
    let mut all = Vec::new();
    for provider in &report.providers {
        if provider.orphans.objects > 0 {
            all.push((text::name_of_provider(provider), provider.orphans));
        }
    }
    for channel in &report.channels {
        if channel.orphans.objects > 0 {
            all.push((text::name_of_channel(channel), channel.orphans));
        }
    }
    all
}

/// Returns the orphans that were there before and still are. Owners that died since are not listed.
fn still_there(before: &Report, now: &Report) -> Vec<String> {
    let mut known = BTreeSet::new();
    for (name, _) in orphans(before) {
        known.insert(name);
    }
    let mut left = Vec::new();
    for (name, _) in orphans(now) {
        if known.contains(&name) {
            left.push(name);
        }
    }
    left
}

/// Returns the dead providers and channels that stay because a receiver still reads them.
fn kept(report: &Report) -> Vec<String> {
    let mut kept = Vec::new();
    for provider in &report.providers {
        if provider.state == ObjectState::Dead && provider.orphans.objects == 0 {
            kept.push(text::name_of_provider(provider));
        }
    }
    for channel in &report.channels {
        let is_read = channel.receivers.iter().any(|receiver| receiver.is_alive);
        if channel.state == ObjectState::Dead && is_read {
            kept.push(text::name_of_channel(channel));
        }
    }
    kept
}

/// Returns the objects that have one of this crate's names but other contents: any process may have
/// created them.
fn damaged(report: &Report) -> Vec<String> {
    let is_damaged = |state: &ObjectState, orphans: Swept| {
        matches!(state, ObjectState::Unusable(_)) && orphans.objects == 0
    };
    let mut names = Vec::new();
    for provider in &report.providers {
        if is_damaged(&provider.state, provider.orphans) {
            names.push(text::name_of_provider(provider));
        }
    }
    for channel in &report.channels {
        if is_damaged(&channel.state, channel.orphans) {
            names.push(text::name_of_channel(channel));
        }
        for connection in &channel.damaged {
            if !connection.is_orphan {
                names.push(text::name_of_connection(channel, connection));
            }
        }
    }
    names
}

fn describe(report: &Report, removal: &Removal<'_>) -> String {
    let is_done = removal.is_done;
    let total = removal.total();
    let all = text::objects(total.objects, total.bytes);
    let mut text = match (total.objects, is_done) {
        (0, true) if !removal.errors.is_empty() => "nothing was removed\n".to_owned(),
        (0, _) => "nothing to remove\n".to_owned(),
        (_, true) => format!("removed {all}\n"),
        (_, false) => format!("would remove {all}:\n"),
    };
    if is_done {
        for (prefix, swept) in &removal.prefixes {
            if swept.objects > 0 {
                let objects = text::objects(swept.objects, swept.bytes);
                text += &format!("  prefix {prefix}: {objects}\n");
            }
        }
    } else {
        for (name, swept) in orphans(report) {
            let objects = text::objects(swept.objects, swept.bytes);
            text += &format!("  {name}: {objects}\n");
        }
    }
    for error in &removal.errors {
        text += &format!("not done: {error}\n");
    }
    for name in kept(report) {
        text += &format!("kept {name}: it is dead, and a receiver still reads it\n");
    }
    for name in damaged(report) {
        text += &format!(
            "kept {name}: it is damaged, or no object of this program; `shm-pool show` says more\n"
        );
    }
    if report.others > 0 {
        let objects = text::plural(report.others, "object");
        text += &format!(
            "kept {} {objects} of other users: run this as their user\n",
            report.others
        );
    }
    if !is_done && total.objects > 0 {
        text += "nothing was changed; `shm-pool sweep --yes` removes them\n";
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
        let total = removal.total();
        let mut prefixes = Vec::new();
        for (prefix, swept) in &removal.prefixes {
            prefixes.push(Prefix {
                prefix,
                swept: (*swept).into(),
            });
        }
        let mut found = Vec::new();
        for (name, swept) in orphans(report) {
            found.push(Orphan {
                name,
                swept: swept.into(),
            });
        }
        Self {
            version: json::VERSION,
            done: removal.is_done,
            objects: total.objects,
            bytes: total.bytes,
            prefixes,
            orphans: found,
            kept: kept(report),
            damaged: damaged(report),
            errors: &removal.errors,
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
        removed.objects = 2;
        removed.bytes = 8192;
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
