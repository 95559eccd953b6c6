//! `sweep`: says what dead owners have left and would go, and with `--yes` removes it.

use crate::args::{Scope, Sweep};
use crate::json::Orphans;
use crate::{json, text, Answer, Fallible};
use serde::Serialize;
use shm_pool::inspect::{Report, State};
use shm_pool::{Provider, Swept};
use std::collections::BTreeMap;

pub(crate) fn run(scope: &Scope, options: &Sweep) -> Fallible<Answer> {
    let report = scope.inspector().look()?;
    let mut prefixes = by_prefix(&report);
    if options.yes {
        for (prefix, swept) in &mut prefixes {
            // The library looks again, under locks: what lives by now stays.
            *swept = Provider::sweep_in(&scope.directory, prefix)?;
        }
    }
    let text = if scope.json {
        json::of(&Document::of(&report, &prefixes, options.yes))?
    } else {
        describe(&report, &prefixes, options.yes)
    };
    Ok(Answer::fine(text))
}

/// What would go, by prefix.
fn by_prefix(report: &Report) -> BTreeMap<&str, Swept> {
    let providers = report.providers.iter().map(|provider| (&provider.prefix, provider.orphans));
    let channels = report.channels.iter().map(|channel| (&channel.prefix, channel.orphans));
    let mut all = BTreeMap::<_, Swept>::new();
    for (prefix, orphans) in providers.chain(channels).filter(|(_, orphans)| orphans.objects > 0) {
        let sum = all.entry(prefix.as_str()).or_default();
        *sum = *sum + orphans;
    }
    all
}

/// What is dead, and stays because somebody still reads it.
fn kept(report: &Report) -> Vec<String> {
    let providers = report.providers.iter().filter(|provider| provider.state == State::Dead && !provider.is_orphan);
    let channels = report
        .channels
        .iter()
        .filter(|channel| channel.state == State::Dead && channel.receivers.iter().any(|receiver| receiver.is_alive));
    providers.map(text::name_of_provider).chain(channels.map(text::name_of_channel)).collect()
}

fn describe(report: &Report, prefixes: &BTreeMap<&str, Swept>, is_done: bool) -> String {
    let line = |name: &str, swept: &Swept| format!("  {name}: {}\n", text::objects(swept.objects, swept.bytes));
    let total = prefixes.values().fold(Swept::default(), |sum, swept| sum + *swept);
    let mut text = match (total.objects, is_done) {
        (0, _) => "nothing to remove\n".to_owned(),
        (_, true) => format!("removed {}\n", text::objects(total.objects, total.bytes)),
        (_, false) => format!("would remove {}:\n", text::objects(total.objects, total.bytes)),
    };
    if is_done {
        text.extend(prefixes.iter().map(|(prefix, swept)| line(&format!("prefix {prefix}"), swept)));
    } else {
        let providers = report.providers.iter().map(|provider| (text::name_of_provider(provider), &provider.orphans));
        let channels = report.channels.iter().map(|channel| (text::name_of_channel(channel), &channel.orphans));
        let left = providers.chain(channels).filter(|(_, orphans)| orphans.objects > 0);
        text.extend(left.map(|(name, orphans)| line(&name, orphans)));
    }
    text.extend(kept(report).iter().map(|name| format!("kept {name}: it is dead, and a receiver still reads it\n")));
    if !is_done && total.objects > 0 {
        text += "nothing was changed; --yes does it\n";
    }
    text
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    /// Was it removed, or would it be?
    done: bool,
    objects: usize,
    bytes: u64,
    prefixes: Vec<Prefix<'a>>,
    kept: Vec<String>,
}

#[derive(Serialize)]
struct Prefix<'a> {
    prefix: &'a str,
    #[serde(flatten)]
    swept: Orphans,
}

impl<'a> Document<'a> {
    fn of(report: &Report, prefixes: &BTreeMap<&'a str, Swept>, done: bool) -> Self {
        let total = prefixes.values().fold(Swept::default(), |sum, swept| sum + *swept);
        let prefixes = prefixes.iter().map(|(prefix, swept)| Prefix { prefix, swept: (*swept).into() });
        let (version, prefixes) = (json::VERSION, prefixes.collect());
        Self { version, done, objects: total.objects, bytes: total.bytes, prefixes, kept: kept(report) }
    }
}
