//! The contents of the screen.

use super::rates::Watch;
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
pub(super) fn draw(frame: &mut Frame<'_>, watch: &Watch) {
    let parts = [
        providers(watch),
        channels(watch),
        classes(watch),
        holders(watch),
    ];
    let notes = text::footer(watch.report());
    let rows = [
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(notes.lines().count() as u16),
    ];
    let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Line::styled(title(watch, head.width), bold), head);
    let heights = share(
        parts.each_ref().map(|part| part.rows.len() as u16 + 2),
        body.height,
    );
    for (part, area) in parts.iter().zip(
        Layout::vertical(heights.map(Constraint::Length))
            .split(body)
            .iter(),
    ) {
        part.draw(frame, *area);
    }
    frame.render_widget(Text::raw(notes).fg(Color::Yellow), foot);
}

pub(super) fn text(watch: &Watch) -> Result<String, Infallible> {
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1))?;
    let drawn = terminal.draw(|frame| draw(frame, watch))?;
    Ok(lines(drawn.buffer))
}

fn lines(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y| {
        (area.left()..area.right())
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (area.top()..area.bottom())
        .map(|y| format!("{}\n", line(y).trim_end()))
        .collect()
}

/// Hands out rows round-robin, to each section no more than it wants.
fn share<const N: usize>(wanted: [u16; N], mut room: u16) -> [u16; N] {
    let mut heights = [0; N];
    while room > 0 && heights != wanted {
        for (height, wanted) in heights.iter_mut().zip(wanted) {
            if *height < wanted && room > 0 {
                *height += 1;
                room -= 1;
            }
        }
    }
    heights
}

impl Part {
    /// Returns how many columns fit: always the first, the others from left to right.
    fn columns(&self, width: u16) -> usize {
        let least = |width: &Constraint| match width {
            Constraint::Length(width) => *width,
            _ => LEAST,
        };
        let ends = self.widths.iter().scan(0, |end, width| {
            *end += least(width) + SPACE;
            Some(*end - SPACE)
        });
        ends.take_while(|end| *end <= width).count().max(1)
    }

    /// Draws the section, followed by an empty line. The last row says how many rows did not fit. A
    /// narrow screen drops the last columns: without names, the others are meaningless.
    fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.height.saturating_sub(2));
        let shown = if self.rows.len() > room {
            room.saturating_sub(1)
        } else {
            self.rows.len()
        };
        let columns = self.columns(area.width);
        let rows = self.rows[..shown]
            .iter()
            .map(|row| Row::new(row[..columns].to_vec()));
        let left_out = (self.rows.len() > shown)
            .then(|| Row::new([format!("… and {} more", self.rows.len() - shown)]));
        let heads = Row::new(self.heads[..columns].to_vec()).bold();
        let table = Table::new(rows.chain(left_out), &self.widths[..columns]).header(heads);
        frame.render_widget(table.column_spacing(SPACE), area);
    }
}

fn title(watch: &Watch, width: u16) -> String {
    let report = watch.report();
    let sum = |of: fn(&ProviderReport) -> u64| {
        report.providers.iter().map(of).fold(0, u64::saturating_add)
    };
    let (held, out) = (
        text::bytes(sum(|provider| provider.bytes_held)),
        text::bytes(sum(out)),
    );
    let what = format!(
        " shm-pool top  {}  held {held}  out {out}",
        text::directory(report)
    );
    let width = usize::from(width).saturating_sub(8);
    format!("{what:<width$.width$}q quits ")
}

/// Returns the bytes that peers lease or channels have borrowed.
fn out(provider: &ProviderReport) -> u64 {
    provider
        .bytes_leased
        .saturating_add(provider.bytes_borrowed)
}

fn providers(watch: &Watch) -> Part {
    let mut all: Vec<_> = watch.report().providers.iter().collect();
    all.sort_by_key(|provider| Reverse(provider.bytes_held));
    let rows = all.into_iter().map(|provider| {
        vec![
            text::name_of_provider(provider),
            text::state_of_provider(provider).to_owned(),
            text::short_process(provider.owner.as_ref(), is_there(&provider.state)),
            text::bytes(provider.bytes_held),
            text::bytes_or_none(out(provider)),
        ]
    });
    Part {
        heads: vec!["PROVIDER", "STATE", "OWNER", "HELD", "OUT"],
        widths: widths([25, 8, 0, 9, 9]),
        rows: rows.collect(),
    }
}

fn channels(watch: &Watch) -> Part {
    let mut all: Vec<_> = watch
        .report()
        .channels
        .iter()
        .map(|channel| (watch.rate(channel), channel))
        .collect();
    all.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let rows = all.into_iter().map(|(rate, channel)| {
        let fullest = text::fullest(channel);
        vec![
            text::name_of_channel(channel),
            text::state_of_channel(channel).to_owned(),
            text::short_process(channel.sender.as_ref(), is_there(&channel.state)),
            format!("{rate:.1}/s"),
            fullest.map_or(text::NONE.to_owned(), text::fill),
        ]
    });
    Part {
        heads: vec!["CHANNEL", "STATE", "SENDER", "MESSAGES", "WAITING"],
        widths: widths([25, 8, 0, 9, 9]),
        rows: rows.collect(),
    }
}

/// Sums up leased and borrowed messages by size class, over all providers. The class with the most
/// bytes has a full bar.
fn classes(watch: &Watch) -> Part {
    let mut all = BTreeMap::<u64, (usize, u64)>::new();
    for class in watch
        .report()
        .providers
        .iter()
        .flat_map(|provider| provider.leased.iter().chain(&provider.borrowed))
    {
        let (messages, bytes) = all.entry(class.size).or_default();
        (*messages, *bytes) = (
            *messages + class.messages,
            bytes.saturating_add(class.bytes),
        );
    }
    let most = all
        .values()
        .map(|(_, bytes)| *bytes)
        .max()
        .unwrap_or(0)
        .max(1);
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, (_, bytes))| Reverse(*bytes));
    let rows = all.into_iter().map(|(size, (messages, bytes))| {
        // Even the smallest class has a visible bar.
        let length = (bytes.saturating_mul(BAR) / most).max(1) as usize;
        vec![
            text::bytes(size),
            "█".repeat(length),
            text::bytes(bytes),
            messages.to_string(),
        ]
    });
    Part {
        heads: vec!["CLASS UP TO", "", "OUT", "MESSAGES"],
        widths: widths([12, 0, 10, 10]),
        rows: rows.collect(),
    }
}

fn holders(watch: &Watch) -> Part {
    let rows = who::holders(watch.report())
        .into_iter()
        .map(|(holder, holding)| {
            let age = holding
                .oldest
                .map_or(text::NONE.to_owned(), |age| format!("{}s", age.as_secs()));
            vec![
                holder.text(),
                text::bytes_or_none(holding.owns),
                holding.has().text(),
                age,
            ]
        });
    Part {
        heads: vec!["PROCESS", "OWNS", "HAS", "FOR AT LEAST"],
        widths: widths([0, 10, 18, 12]),
        rows: rows.collect(),
    }
}

/// Returns the constraints of columns; one of width 0 takes the remaining space.
fn widths<const N: usize>(widths: [u16; N]) -> Vec<Constraint> {
    let width = |width| {
        if width == 0 {
            Constraint::Fill(1)
        } else {
            Constraint::Length(width)
        }
    };
    widths.into_iter().map(width).collect()
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
