//! Output for people: sizes, processes, states and tables.

use crate::unseen::Unseen;
use bytesize::ByteSize;
use comfy_table::{presets, ColumnConstraint, ContentArrangement, Table};
use shm_pool::inspect::{
    ChannelReport, DamagedReceiver, ObjectState, Process, ProviderReport, ReceiverReport, Report,
};
use std::error::Error;
use std::time::Duration;

/// The longest command in a table cell, in characters.
const MAX_COMMAND: usize = 24;

/// The longest line of a table that wraps, in characters.
const MAX_WIDTH: u16 = 100;

/// A column of at most this width is never wrapped. Those of numbers, ids and states are narrower.
const NARROW: u16 = 20;

/// Marks an empty cell.
pub(crate) const NONE: &str = "-";

/// Escapes, as Rust does, characters that control a terminal or change the direction of text. Line
/// feeds stay.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if c != '\n' && (c.is_control() || is_bidi(c)) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns `true` for characters that change the direction of the text after them.
fn is_bidi(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Formats an error and its causes on one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}

/// Formats bytes with the largest unit that fits, in powers of 1024.
pub(crate) fn bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// As [`bytes`], or [`NONE`] for zero.
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

/// Formats a minimum duration to the second or, below one second, to the millisecond: `≥ 3s`.
pub(crate) fn at_least(time: Duration) -> String {
    let whole = match time.as_secs() {
        0 => Duration::from_millis(time.subsec_millis().into()),
        seconds => Duration::from_secs(seconds),
    };
    format!("≥ {}", humantime::format_duration(whole))
}

/// Formats a process's id and command, or says why there is none.
pub(crate) fn process(process: Option<&Process>, is_alive: bool) -> String {
    match process {
        Some(process) => format!(
            "{} {}{}",
            process.id,
            stopped(process),
            visible(&process.command)
        ),
        None if is_alive => "not seen".to_owned(),
        None => NONE.to_owned(),
    }
}

/// As [`process`], with as much of the command as fits in a table cell.
pub(crate) fn short_process(found: Option<&Process>, is_alive: bool) -> String {
    let Some(found) = found else {
        return process(None, is_alive);
    };
    let command = visible(&found.command);
    let command = shortened(without_directories(&command));
    format!("{} {}{command}", found.id, stopped(found))
}

/// Removes the directories of the command's program: they are its least informative part.
fn without_directories(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default();
    match program.rfind('/') {
        Some(slash) => &command[slash + 1..],
        None => command,
    }
}

fn shortened(command: &str) -> String {
    match command.char_indices().nth(MAX_COMMAND) {
        Some((end, _)) => format!("{}…", command[..end].trim_end()),
        None => command.to_owned(),
    }
}

/// Stands before the command, so that truncation keeps it.
fn stopped(process: &Process) -> &'static str {
    if process.is_stopped {
        "STOPPED "
    } else {
        ""
    }
}

pub(crate) fn name_of_provider(provider: &ProviderReport) -> String {
    format!("{}.{}", provider.prefix, provider.id)
}

/// Returns a channel's prefix and name. A name may contain anything, so it is escaped before tables
/// measure it.
pub(crate) fn name_of_channel(channel: &ChannelReport) -> String {
    let name = visible(&channel.name).replace('\n', "\\n");
    format!("{}.{name}", channel.prefix)
}

pub(crate) fn name_of_connection(channel: &ChannelReport, damaged: &DamagedReceiver) -> String {
    format!("{}.{}.connection", name_of_channel(channel), damaged.id)
}

pub(crate) fn state_of_provider(provider: &ProviderReport) -> &'static str {
    state(&provider.state, provider.orphans.objects > 0)
}

pub(crate) fn state_of_channel(channel: &ChannelReport) -> &'static str {
    let is_read = channel.receivers.iter().any(|receiver| receiver.is_alive);
    let is_orphan = channel.orphans.objects > 0 && !is_read;
    match &channel.state {
        ObjectState::Alive if !channel.damaged.is_empty() => "alive, damaged",
        ObjectState::Dead if !channel.damaged.is_empty() && is_orphan => "orphan, damaged",
        ObjectState::Dead if !channel.damaged.is_empty() => "damaged",
        whole => state(whole, is_orphan),
    }
}

fn state(state: &ObjectState, is_orphan: bool) -> &'static str {
    match state {
        ObjectState::Alive => "alive",
        ObjectState::Starting => "starting",
        ObjectState::Dead if is_orphan => "orphan",
        ObjectState::Dead => "dead, read",
        ObjectState::Unusable(_) if is_orphan => "orphan, damaged",
        _ => "damaged",
    }
}

/// Says whether the sender sends to this receiver.
pub(crate) fn link(receiver: &ReceiverReport) -> &'static str {
    if receiver.is_evicted {
        "evicted"
    } else if receiver.is_connected {
        "connected"
    } else {
        NONE
    }
}

/// Formats the number of queued messages and the capacity.
pub(crate) fn fill(receiver: &ReceiverReport) -> String {
    format!("{}/{}", receiver.waiting, receiver.capacity)
}

/// Returns the receiver with the least space left.
pub(crate) fn fullest(channel: &ChannelReport) -> Option<&ReceiverReport> {
    let share = |receiver: &&ReceiverReport| receiver.waiting * 1_000 / receiver.capacity.max(1);
    channel.receivers.iter().max_by_key(share)
}

pub(crate) fn directory(report: &Report) -> String {
    let directory = visible(&report.directory.to_string_lossy());
    let free = match report.free_bytes {
        Some(free) => bytes(free),
        None => "unknown".to_owned(),
    };
    format!("{directory}: {free} free")
}

/// Says what a sweep would remove, and what could not be seen.
pub(crate) fn footer(report: &Report) -> String {
    let mut text = String::new();
    let orphans = report.orphans();
    if orphans.objects > 0 {
        let orphans = objects(orphans.objects, orphans.bytes);
        text += &format!("orphans: {orphans}; `shm-pool sweep` removes them\n");
    }
    for object in &report.removed {
        let path = visible(&object.path.display().to_string());
        let process = short_process(Some(&object.process), true);
        text += &format!(
            "removed: {path} of {process} is in use, but its name is gone: \
             no other process can open it; restart that one\n"
        );
    }
    text += &Unseen::of(report).text();
    text
}

/// Formats a table with one line per row, and columns as wide as their contents. Empty if there are
/// no rows.
pub(crate) fn table<const N: usize>(
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = plain_table();
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads);
    table.add_rows(rows);
    print_table(&mut table)
}

/// Formats a table of at most [`MAX_WIDTH`] characters: what does not fit in a wide column
/// continues on the row's next line. Empty if there are no rows.
pub(crate) fn wrapped_table<const N: usize>(
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = plain_table();
    table.set_header(heads);
    table.add_rows(rows);
    wrap(&mut table);
    print_table(&mut table)
}

/// Formats names and values, one pair per row. As in [`wrapped_table`], a long value takes several
/// lines.
pub(crate) fn named_values(rows: &[(&str, String)]) -> String {
    let mut table = plain_table();
    for (name, value) in rows {
        table.add_row([*name, value]);
    }
    wrap(&mut table);
    print_table(&mut table)
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn wrap(table: &mut Table) {
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(MAX_WIDTH);
    let widths = table.column_max_content_widths();
    for (column, width) in table.column_iter_mut().zip(widths) {
        if width <= NARROW {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
}

fn print_table(table: &mut Table) -> String {
    if table.is_empty() {
        return String::new();
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text += line.trim_end();
        text.push('\n');
    }
    text
}
