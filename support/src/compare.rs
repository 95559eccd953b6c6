//! By how much one subject of a bench differs from another, and whether that is more than noise.
//!
//! Rounds of both are made in turn, so each round gives a ratio of its own, and other load on the
//! machine affects both sides alike. A goal is missed only if the whole interval is beyond it that
//! contains the true median of the rounds' ratios with some 95 %. One in forty rows is missed or met
//! by chance alone. With fewer than six rounds, the interval is the whole range, and says little.

use crate::latency::Spread;
use crate::table::{table, Goal, Table};

/// The ratios of some rounds.
pub struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl Ratio {
    /// Compares a figure of each round, ours and theirs.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Self {
        let mut ratios = Vec::new();
        for (ours, theirs) in ours.iter().zip(theirs) {
            ratios.push(ours / theirs);
        }
        ratios.sort_by(f64::total_cmp);
        let beyond = rounds_beyond(ratios.len());
        let interval = Spread::of(&ratios[beyond..ratios.len() - beyond]);
        Self {
            median: Spread::of(&ratios).median,
            least: interval.least,
            most: interval.most,
        }
    }

    /// Formats the median and the interval.
    pub fn show(&self) -> String {
        format!("{:.3} ({:.3} to {:.3})", self.median, self.least, self.most)
    }

    /// Compares it to a goal.
    pub fn verdict(&self, goal: Goal) -> &'static str {
        if matches!(goal, Goal::None) {
            return "";
        }
        let meets = |ratio| goal.verdict(ratio) == "pass";
        if meets(self.median) {
            "pass"
        } else if meets(self.least) || meets(self.most) {
            "pass, within noise"
        } else {
            "MISSED"
        }
    }
}

/// How many of the sorted rounds lie outside of the interval, at each end: as many as a fair coin
/// shows heads, or fewer, in one of forty series.
fn rounds_beyond(rounds: usize) -> usize {
    let rounds = rounds as f64;
    (rounds / 2.0 - 0.98 * rounds.sqrt()).max(0.0) as usize
}

/// A figure of several subjects, in each round.
pub struct Compared {
    /// The name of the figure.
    pub name: String,
    /// The goal for each ratio of ours to theirs.
    pub goal: Goal,
    /// Formats the figure.
    pub show: fn(f64) -> String,
    /// Of each of our subjects.
    pub ours: Vec<Vec<f64>>,
    /// Of the subject that ours are compared with.
    pub theirs: Vec<f64>,
}

/// Returns a table with a row for each figure: medians, and ratios to `theirs`.
pub fn comparison(ours: &[&str], theirs: &str, rows: impl IntoIterator<Item = Compared>) -> Table {
    let mut heads = vec![String::new(), "goal".to_owned(), theirs.to_owned()];
    for title in ours {
        heads.push(title.to_string());
        heads.push(format!("/ {theirs}"));
        heads.push(String::new());
    }
    let mut all = table(&heads);
    for row in rows {
        all.add_row(row.cells());
    }
    all
}

impl Compared {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.name.clone(),
            self.goal.to_string(),
            self.median(&self.theirs),
        ];
        for ours in &self.ours {
            let ratio = Ratio::of(ours, &self.theirs);
            cells.push(self.median(ours));
            cells.push(ratio.show());
            cells.push(ratio.verdict(self.goal).to_owned());
        }
        cells
    }

    fn median(&self, rounds: &[f64]) -> String {
        if rounds.is_empty() {
            return "-".to_owned();
        }
        (self.show)(Spread::of(rounds).median)
    }
}
