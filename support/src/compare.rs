//! By how much one subject of a bench differs from another, and whether that is more than noise.
//!
//! Rounds of both are made in turn, so each round gives a ratio of its own, and other load on the machine
//! affects both sides alike. A goal is missed only if the interval that has the true median
//! of the rounds' ratios with some 95 % is beyond it as a whole. One in forty rows is missed or met
//! by chance alone. With fewer than six rounds the interval is what was seen, and tells little.

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
        let mut ratios: Vec<_> = ours
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        ratios.sort_by(f64::total_cmp);
        let end = rounds_beyond(ratios.len());
        let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
        let most = at(ratios.len().wrapping_sub(end + 1));
        Self {
            median: Spread::of(&ratios).median,
            least: at(end),
            most,
        }
    }

    /// Formats the median and the interval.
    pub fn show(&self) -> String {
        let Self {
            median,
            least,
            most,
        } = self;
        format!("{median:.3} ({least:.3} to {most:.3})")
    }

    /// Compares it to a goal.
    pub fn verdict(&self, goal: Goal) -> &'static str {
        if matches!(goal, Goal::None) {
            return "";
        }
        let meets = |ratio| goal.verdict(ratio) == "pass";
        match (meets(self.median), meets(self.least) || meets(self.most)) {
            (true, _) => "pass",
            (false, true) => "pass, within noise",
            (false, false) => "MISSED",
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
    /// Of what ours are compared with.
    pub theirs: Vec<f64>,
}

/// Returns a table with a row for each figure: medians, and ratios to `theirs`.
pub fn comparison(ours: &[&str], theirs: &str, rows: impl IntoIterator<Item = Compared>) -> Table {
    let of_one = |title: &&str| [title.to_string(), format!("/ {theirs}"), String::new()];
    let fixed = [String::new(), "goal".to_owned(), theirs.to_owned()];
    let mut all = table(
        &fixed
            .into_iter()
            .chain(ours.iter().flat_map(of_one))
            .collect::<Vec<_>>(),
    );
    for Compared {
        name,
        goal,
        show,
        ours,
        theirs,
    } in rows
    {
        let median = |rounds: &[f64]| match rounds {
            [] => "-".to_owned(),
            rounds => show(Spread::of(rounds).median),
        };
        let cells = |ours: &Vec<f64>| {
            let ratio = Ratio::of(ours, &theirs);
            [median(ours), ratio.show(), ratio.verdict(goal).to_owned()]
        };
        let fixed = [name, goal.to_string(), median(&theirs)];
        all.add_row(fixed.into_iter().chain(ours.iter().flat_map(cells)));
    }
    all
}
