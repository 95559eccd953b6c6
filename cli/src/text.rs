//! How people are told: sizes, processes, states and tables.

use crate::unseen::Unseen;
use bytesize::ByteSize;
use comfy_table::{presets, ContentArrangement, Table};
use shm_pool::inspect::{ChannelReport, Process, ProviderReport, ReceiverReport, Report, State};
use std::time::Duration;

/// Longest command in a line of a table, in characters.
const MAX_COMMAND: usize = 24;

/// What stands where there is nothing.
pub(crate) const NONE: &str = "-";

/// With the largest unit that fits, in powers of 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// Nothing if there are none.
pub(crate) fn bytes_or_none(count: u64) -> String {
    if count == 0 {
        NONE.to_owned()
    } else {
        bytes(count)
    }
}

pub(crate) fn objects(count: usize, held: u64) -> String {
    format!("{count} {}, {}", plural(count, "object"), bytes(held))
}

pub(crate) fn plural(count: usize, noun: &str) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// To the second, or below one to the millisecond: less is not what an operator looks for.
pub(crate) fn at_least(time: Duration) -> String {
    let whole = match time.as_secs() {
        0 => Duration::from_millis(time.subsec_millis().into()),
        seconds => Duration::from_secs(seconds),
    };
    format!("at least {}", humantime::format_duration(whole))
}

/// Its id and command, or why there is none.
pub(crate) fn process(process: Option<&Process>, is_alive: bool) -> String {
    match process {
        Some(Process { id, command, is_stopped, .. }) => format!("{id} {}{command}", stopped(*is_stopped)),
        None if is_alive => "not seen".to_owned(),
        None => NONE.to_owned(),
    }
}

/// As [`process`], with as much of the command as fits a line.
pub(crate) fn short_process(found: Option<&Process>, is_alive: bool) -> String {
    match found {
        Some(Process { id, command, is_stopped, .. }) => {
            let program = command.split(' ').next().unwrap_or_default();
            // The directories of the program say least.
            let directories = program.rfind('/').map_or(0, |slash| slash + 1);
            format!("{id} {}{}", stopped(*is_stopped), shortened(&command[directories..]))
        }
        None => process(None, is_alive),
    }
}

fn shortened(command: &str) -> String {
    match command.char_indices().nth(MAX_COMMAND) {
        Some((end, _)) => format!("{}…", command[..end].trim_end()),
        None => command.to_owned(),
    }
}

/// Before the command, so that it is there when a line is cut.
fn stopped(is_stopped: bool) -> &'static str {
    if is_stopped {
        "STOPPED "
    } else {
        ""
    }
}

pub(crate) fn name_of_provider(provider: &ProviderReport) -> String {
    format!("{}.{}", provider.prefix, provider.id)
}

pub(crate) fn name_of_channel(channel: &ChannelReport) -> String {
    format!("{}.{}", channel.prefix, channel.name)
}

pub(crate) fn state_of_provider(provider: &ProviderReport) -> &'static str {
    state(&provider.state, provider.is_orphan)
}

pub(crate) fn state_of_channel(channel: &ChannelReport) -> &'static str {
    let is_read = channel.receivers.iter().any(|receiver| receiver.is_alive);
    state(&channel.state, channel.orphans.objects > 0 && !is_read)
}

fn state(state: &State, is_orphan: bool) -> &'static str {
    match state {
        State::Alive => "alive",
        State::Unfinished => "starting",
        State::Dead if is_orphan => "orphan",
        State::Dead => "dead, read",
        State::Unusable(_) if is_orphan => "orphan, damaged",
        _ => "damaged",
    }
}

/// A list in one cell of a table.
pub(crate) fn joined(parts: impl Iterator<Item = String>) -> String {
    let text = parts.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        NONE.to_owned()
    } else {
        text
    }
}

/// How many of those that fit are waiting.
pub(crate) fn fill(receiver: &ReceiverReport) -> String {
    format!("{}/{}", receiver.waiting, receiver.capacity)
}

/// The receiver with the least room left.
pub(crate) fn fullest(channel: &ChannelReport) -> Option<&ReceiverReport> {
    let share = |receiver: &&ReceiverReport| receiver.waiting * 1_000 / receiver.capacity.max(1);
    channel.receivers.iter().max_by_key(share)
}

/// What a directory has, in a line.
pub(crate) fn directory(report: &Report) -> String {
    let free = report.free_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    format!("{}: {free} free", report.directory.display())
}

/// What a sweep would do, and what was not seen.
pub(crate) fn footer(report: &Report) -> String {
    let orphans = report.orphans();
    let left = match orphans.objects {
        0 => String::new(),
        count => format!("orphans: {}; `shm-pool sweep` removes them\n", objects(count, orphans.bytes)),
    };
    left + &Unseen::of(report).text()
}

/// Columns, as wide as what they hold. Nothing if there are no rows.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads).add_rows(rows);
    if table.is_empty() {
        return String::new();
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
