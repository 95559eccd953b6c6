//! `who`: how much each process holds.

use crate::args::{Scope, Who};
use crate::unseen::Unseen;
use crate::{json, text, Answer, Fallible};
use serde::Serialize;
use shm_pool::inspect::{Process, Report};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

pub(crate) fn run(scope: &Scope, options: &Who) -> Fallible<Answer> {
    let mut inspector = scope.inspector();
    let mut report = inspector.report()?;
    if !options.time.is_zero() {
        // Only a second sample shows which leases stay.
        thread::sleep(options.time);
        report = inspector.report()?;
    }
    let all = holders(&report);
    let text = if scope.json {
        json::of(&Document::of(&report, &all))?
    } else {
        list(&report, &all)
    };
    Ok(Answer::fine(text))
}

/// A holder of memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Process(Process),
    /// A living peer or receiver whose process is not visible.
    Unseen(String),
    /// A dead peer. The owner reclaims its leases when it needs memory.
    Dead(String),
    /// A receiver that is dead, or has not connected.
    Absent(String),
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Messages {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

/// The memory that a holder has, and its channels.
#[derive(Default)]
pub(crate) struct Holding {
    /// Memory that its own providers hold, in bytes.
    pub(crate) owns: u64,
    /// Messages that it leases, from other providers or its own.
    pub(crate) leases: Messages,
    /// Messages borrowed to it through channels.
    pub(crate) borrows: Messages,
    /// How long the oldest of them has been observed.
    pub(crate) oldest: Option<Duration>,
    /// Memory in the segments that it maps, in bytes.
    pub(crate) maps: u64,
    pub(crate) sends: Vec<String>,
    pub(crate) receives: Vec<Receives>,
}

/// A channel that a holder receives from.
#[derive(Clone, Serialize)]
pub(crate) struct Receives {
    channel: String,
    /// The number of queued messages.
    waiting: usize,
    capacity: usize,
}

/// Returns all holders, the largest holders of other processes' memory first.
pub(crate) fn holders(report: &Report) -> Vec<(Holder, Holding)> {
    let mut all = BTreeMap::<Holder, Holding>::new();
    for provider in &report.providers {
        if let Some(owner) = &provider.owner {
            let holding = all.entry(Holder::Process(owner.clone())).or_default();
            // Sums saturate: a damaged object may report any number.
            holding.owns = holding.owns.saturating_add(provider.bytes_held);
        }
        for segment in &provider.segments {
            for process in &segment.mapped_by {
                let holding = all.entry(Holder::Process(process.clone())).or_default();
                holding.maps = holding.maps.saturating_add(segment.bytes_held);
            }
        }
        for peer in &provider.peers {
            let place = || format!("peer {} of {}", peer.slot, text::name_of_provider(provider));
            let holder = match &peer.process {
                Some(process) => Holder::Process(process.clone()),
                None if peer.is_alive => Holder::Unseen(place()),
                None => Holder::Dead(place()),
            };
            let holding = all.entry(holder).or_default();
            holding.leases.add(peer.messages, peer.bytes);
            holding.oldest = holding.oldest.max(peer.oldest_lease);
        }
    }
    for channel in &report.channels {
        if let Some(sender) = &channel.sender {
            let holding = all.entry(Holder::Process(sender.clone())).or_default();
            holding.sends.push(text::name_of_channel(channel));
        }
        for receiver in &channel.receivers {
            let place = || {
                let channel = text::name_of_channel(channel);
                match receiver.id {
                    Some(id) => format!("receiver {id} of {channel}"),
                    None => format!("receiver of {channel}"),
                }
            };
            let holder = match &receiver.process {
                Some(process) => Holder::Process(process.clone()),
                None if receiver.is_alive => Holder::Unseen(place()),
                None if receiver.borrowed > 0 => Holder::Absent(place()),
                None => continue,
            };
            let holding = all.entry(holder).or_default();
            holding.receives.push(Receives {
                channel: text::name_of_channel(channel),
                waiting: receiver.waiting,
                capacity: receiver.capacity,
            });
            holding
                .borrows
                .add(receiver.borrowed, receiver.bytes_borrowed);
            holding.oldest = holding.oldest.max(receiver.oldest_borrowed);
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, holding)| {
        Reverse((holding.held_of_others().bytes, holding.owns, holding.maps))
    });
    all
}

impl Holder {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Process(process) => text::short_process(Some(process), true),
            Self::Unseen(place) => format!("not seen: {place}"),
            Self::Dead(place) => format!("dead: {place}"),
            Self::Absent(place) => format!("not there: {place}"),
        }
    }
}

impl Holding {
    /// Returns the sum of its leases and borrowed buffers.
    pub(crate) fn held_of_others(&self) -> Messages {
        let mut all = self.leases;
        all.add(self.borrows.count, self.borrows.bytes);
        all
    }
}

impl Messages {
    fn add(&mut self, count: usize, bytes: u64) {
        self.count += count;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(crate) fn text(self) -> String {
        match self.count {
            0 => text::NONE.to_owned(),
            count => format!("{} in {count}", text::bytes(self.bytes)),
        }
    }
}

fn list(report: &Report, all: &[(Holder, Holding)]) -> String {
    let mut text = memory(all);
    if text.is_empty() {
        text += "nobody holds anything\n";
    }
    let channels = channels(all);
    if !channels.is_empty() {
        text.push('\n');
        text += &channels;
    }
    let footer = text::footer(report);
    if !footer.is_empty() {
        text.push('\n');
        text += &footer;
    }
    text
}

/// The table of memory: one row per holder.
fn memory(all: &[(Holder, Holding)]) -> String {
    let mut rows = Vec::new();
    for (holder, holding) in all {
        let age = match holding.oldest {
            // After a single sample, every age is zero.
            Some(age) if !age.is_zero() => text::at_least(age),
            _ => text::NONE.to_owned(),
        };
        rows.push([
            holder.text(),
            text::bytes_or_none(holding.owns),
            holding.leases.text(),
            holding.borrows.text(),
            age,
            text::bytes_or_none(holding.maps),
        ]);
    }
    let heads = ["PROCESS", "OWNS", "LEASES", "BORROWS", "FOR", "MAPS"];
    text::wrapped_table(heads, rows)
}

/// The table of channels: one row for each sender and each receiver, those of a channel together.
fn channels(all: &[(Holder, Holding)]) -> String {
    let mut rows = Vec::new();
    for (holder, holding) in all {
        for name in &holding.sends {
            rows.push([
                name.clone(),
                "sender".to_owned(),
                text::NONE.to_owned(),
                holder.text(),
            ]);
        }
    }
    for (holder, holding) in all {
        for receives in &holding.receives {
            rows.push([
                receives.channel.clone(),
                "receiver".to_owned(),
                format!("{}/{}", receives.waiting, receives.capacity),
                holder.text(),
            ]);
        }
    }
    // The sort is stable: a channel's sender stays before its receivers.
    rows.sort_by(|one, other| one[0].cmp(&other[0]));
    text::wrapped_table(["CHANNEL", "END", "WAITING", "PROCESS"], rows)
}

#[derive(Serialize)]
struct Document {
    version: u32,
    holders: Vec<Entry>,
    unseen: Unseen,
}

#[derive(Serialize)]
struct Entry {
    /// `null` for a peer or receiver that is dead or whose process is not visible.
    process: Option<json::Process>,
    peer: Option<String>,
    is_alive: bool,
    bytes_owned: u64,
    bytes_leased: u64,
    messages_leased: usize,
    bytes_borrowed: u64,
    messages_borrowed: usize,
    oldest_seconds: Option<f64>,
    bytes_mapped: u64,
    sends: Vec<String>,
    receives: Vec<Receives>,
}

impl Document {
    fn of(report: &Report, all: &[(Holder, Holding)]) -> Self {
        let mut holders = Vec::new();
        for (holder, holding) in all {
            holders.push(Entry::of(holder, holding));
        }
        Self {
            version: json::VERSION,
            holders,
            unseen: Unseen::of(report),
        }
    }
}

impl Entry {
    fn of(holder: &Holder, holding: &Holding) -> Self {
        let (process, peer) = match holder {
            Holder::Process(process) => (Some(json::Process::of(process)), None),
            Holder::Unseen(place) | Holder::Dead(place) | Holder::Absent(place) => {
                (None, Some(place.clone()))
            }
        };
        Self {
            process,
            peer,
            is_alive: matches!(holder, Holder::Process(_) | Holder::Unseen(_)),
            bytes_owned: holding.owns,
            bytes_leased: holding.leases.bytes,
            messages_leased: holding.leases.count,
            bytes_borrowed: holding.borrows.bytes,
            messages_borrowed: holding.borrows.count,
            oldest_seconds: json::seconds(holding.oldest),
            bytes_mapped: holding.maps,
            sends: holding.sends.clone(),
            receives: holding.receives.clone(),
        }
    }
}
