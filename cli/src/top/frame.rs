//! The contents of the screen.

use super::sampler::Sampler;
use crate::unseen::is_there;
use crate::{text, who};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table};
use ratatui::{Frame, Terminal};
use shm_pool::inspect::ProviderReport;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// The size of a screen printed as text.
const SIZE: (u16, u16) = (80, 24);
/// The length of the longest bar, in cells.
const BAR: u64 = 40;
/// The space between two columns.
const SPACE: u16 = 2;
/// The least width of a column that takes the remaining space.
const LEAST: u16 = 12;

/// A section of the screen: a table with headings.
struct Part {
    heads: Vec<&'static str>,
    widths: Vec<Constraint>,
    rows: Vec<Vec<String>>,
}

/// Draws the screen: the most important rows first, and as many of each section as fit.
pub(super) fn draw(frame: &mut Frame<'_>, sampler: &Sampler) {
    let parts = [
        providers(sampler),
        channels(sampler),
        classes(sampler),
        holders(sampler),
    ];
    let notes = text::footer(sampler.report());
    let notes_height = notes.lines().count() as u16;
    let rows = [
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(notes_height),
    ];
    let [head, body, foot] = Layout::vertical(rows).areas(frame.area());

    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Line::styled(title(sampler, head.width), reversed), head);

    // A section has a line of headings, and an empty line.
    let wanted = parts.each_ref().map(|part| part.rows.len() as u16 + 2);
    let heights = share(wanted, body.height);
    let areas = Layout::vertical(heights.map(Constraint::Length)).split(body);
    for (at, part) in parts.iter().enumerate() {
        part.draw(frame, areas[at]);
    }

    frame.render_widget(Text::raw(notes).fg(Color::Yellow), foot);
}

pub(super) fn text(sampler: &Sampler) -> Result<String, Infallible> {
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1))?;
    let drawn = terminal.draw(|frame| draw(frame, sampler))?;
    Ok(lines(drawn.buffer))
}

fn lines(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut lines = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        for x in area.left()..area.right() {
            line += buffer[(x, y)].symbol();
        }
        lines += line.trim_end();
        lines.push('\n');
    }
    lines
}

/// Hands out rows round-robin, to each section no more than it wants.
fn share<const N: usize>(wanted: [u16; N], mut available: u16) -> [u16; N] {
    let mut heights = [0; N];
    while available > 0 && heights != wanted {
        for (section, height) in heights.iter_mut().enumerate() {
            if *height < wanted[section] && available > 0 {
                *height += 1;
                available -= 1;
            }
        }
    }
    heights
}

impl Part {
    /// Returns how many columns fit: always the first, the others from left to right.
    fn columns(&self, width: u16) -> usize {
        let mut count = 0;
        let mut end = 0;
        for constraint in &self.widths {
            end += match constraint {
                Constraint::Length(width) => *width,
                _ => LEAST,
            };
            if end > width {
                break;
            }
            count += 1;
            end += SPACE;
        }
        count.max(1)
    }

    /// Draws the section, followed by an empty line. The last row says how many rows did not fit. A
    /// narrow screen drops the last columns: without names, the others are meaningless.
    fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let available = usize::from(area.height.saturating_sub(2));
        let shown = if self.rows.len() > available {
            available.saturating_sub(1)
        } else {
            self.rows.len()
        };
        let columns = self.columns(area.width);
        let mut rows = Vec::new();
        for row in &self.rows[..shown] {
            rows.push(Row::new(row[..columns].to_vec()));
        }
        if self.rows.len() > shown {
            let left_out = self.rows.len() - shown;
            rows.push(Row::new([format!("… and {left_out} more")]));
        }
        let heads = Row::new(self.heads[..columns].to_vec()).bold();
        let table = Table::new(rows, &self.widths[..columns])
            .header(heads)
            .column_spacing(SPACE);
        frame.render_widget(table, area);
    }
}

fn title(sampler: &Sampler, width: u16) -> String {
    let report = sampler.report();
    let mut bytes_held: u64 = 0;
    let mut bytes_out: u64 = 0;
    for provider in &report.providers {
        bytes_held = bytes_held.saturating_add(provider.bytes_held);
        bytes_out = bytes_out.saturating_add(out(provider));
    }
    let directory = text::directory(report);
    let held = text::bytes(bytes_held);
    let out = text::bytes(bytes_out);
    let what = format!(" shm-pool top  {directory}  held {held}  out {out}");
    let width = usize::from(width).saturating_sub(8);
    format!("{what:<width$.width$}q quits ")
}

/// Returns the bytes that peers lease or channels have borrowed.
fn out(provider: &ProviderReport) -> u64 {
    provider
        .bytes_leased
        .saturating_add(provider.bytes_borrowed)
}

fn providers(sampler: &Sampler) -> Part {
    let mut all: Vec<_> = sampler.report().providers.iter().collect();
    all.sort_by_key(|provider| Reverse(provider.bytes_held));
    let mut rows = Vec::new();
    for provider in all {
        rows.push(vec![
            text::name_of_provider(provider),
            text::state_of_provider(provider).to_owned(),
            text::short_process(provider.owner.as_ref(), is_there(&provider.state)),
            text::bytes(provider.bytes_held),
            text::bytes_or_none(out(provider)),
        ]);
    }
    Part {
        heads: vec!["PROVIDER", "STATE", "OWNER", "HELD", "OUT"],
        widths: widths([25, 8, 0, 9, 9]),
        rows,
    }
}

fn channels(sampler: &Sampler) -> Part {
    let mut all = Vec::new();
    for channel in &sampler.report().channels {
        all.push((sampler.rate(channel), channel));
    }
    all.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let mut rows = Vec::new();
    for (rate, channel) in all {
        let waiting = match text::fullest(channel) {
            Some(receiver) => text::fill(receiver),
            None => text::NONE.to_owned(),
        };
        rows.push(vec![
            text::name_of_channel(channel),
            text::state_of_channel(channel).to_owned(),
            text::short_process(channel.sender.as_ref(), is_there(&channel.state)),
            format!("{rate:.1}/s"),
            waiting,
        ]);
    }
    Part {
        heads: vec!["CHANNEL", "STATE", "SENDER", "MESSAGES", "WAITING"],
        widths: widths([25, 8, 0, 9, 9]),
        rows,
    }
}

/// The messages of one size class that are out.
#[derive(Default)]
struct Out {
    messages: usize,
    bytes: u64,
}

/// Sums up leased and borrowed messages by size class, over all providers. The class with the most
/// bytes has a full bar.
fn classes(sampler: &Sampler) -> Part {
    let mut all: BTreeMap<u64, Out> = BTreeMap::new();
    for provider in &sampler.report().providers {
        for class in provider.leased.iter().chain(&provider.borrowed) {
            let out = all.entry(class.size).or_default();
            out.messages += class.messages;
            out.bytes = out.bytes.saturating_add(class.bytes);
        }
    }
    let mut all: Vec<(u64, Out)> = all.into_iter().collect();
    all.sort_by_key(|(_, out)| Reverse(out.bytes));
    let most = match all.first() {
        Some((_, out)) => out.bytes.max(1),
        None => 1,
    };
    let mut rows = Vec::new();
    for (size, out) in all {
        // Even the smallest class has a visible bar.
        let length = (out.bytes.saturating_mul(BAR) / most).max(1) as usize;
        rows.push(vec![
            text::bytes(size),
            "█".repeat(length),
            text::bytes(out.bytes),
            out.messages.to_string(),
        ]);
    }
    Part {
        heads: vec!["CLASS UP TO", "", "OUT", "MESSAGES"],
        widths: widths([12, 0, 10, 10]),
        rows,
    }
}

fn holders(sampler: &Sampler) -> Part {
    let mut rows = Vec::new();
    for (holder, holding) in who::holders(sampler.report()) {
        let age = match holding.oldest {
            Some(age) => format!("{}s", age.as_secs()),
            None => text::NONE.to_owned(),
        };
        rows.push(vec![
            holder.text(),
            text::bytes_or_none(holding.owns),
            holding.held_of_others().text(),
            age,
        ]);
    }
    Part {
        heads: vec!["PROCESS", "OWNS", "HAS", "FOR AT LEAST"],
        widths: widths([0, 10, 18, 12]),
        rows,
    }
}

/// Returns the constraints of columns; one of width 0 takes the remaining space.
fn widths<const N: usize>(widths: [u16; N]) -> Vec<Constraint> {
    let mut constraints = Vec::new();
    for width in widths {
        constraints.push(match width {
            0 => Constraint::Fill(1),
            width => Constraint::Length(width),
        });
    }
    constraints
}

#[cfg(test)]
mod tests {
    use super::share;

    /// A long section neither pushes the others off the screen nor leaves space unused.
    #[test]
    fn rows_by_demand() {
        assert_eq!(share([3, 30, 3, 3], 22), [3, 13, 3, 3]);
        assert_eq!(share([30, 30, 30, 30], 22), [6, 6, 5, 5]);
        assert_eq!(share([3, 3, 2, 2], 22), [3, 3, 2, 2]);
        assert_eq!(share([3, 3, 2, 2], 2), [1, 1, 0, 0]);
    }
}
