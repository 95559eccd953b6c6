//! By how much one kind of memory differs from another, and whether that is more than noise.
//!
//! Runs of both are made in turn, so each round gives a ratio of its own, and other load on the machine
//! affects both sides alike. A goal is missed only if the interval that has the true median
//! of the rounds' ratios with some 95 % is beyond it as a whole. One in forty rows is missed or met
//! by chance alone. With fewer than six rounds the interval is what was seen, and tells little.

use shm_pool_support::latency::Spread;
use shm_pool_support::table::Goal;

/// The ratios of some rounds.
pub(crate) struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl Ratio {
    /// Of a figure in each round, ours and theirs.
    pub(crate) fn of(ours: &[f64], theirs: &[f64]) -> Self {
        let mut ratios: Vec<_> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        ratios.sort_by(f64::total_cmp);
        let end = rounds_beyond(ratios.len());
        let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
        let most = at(ratios.len().wrapping_sub(end + 1));
        Self { median: Spread::of(&ratios).median, least: at(end), most }
    }

    /// The median, and the interval.
    pub(crate) fn show(&self) -> String {
        let Self { median, least, most } = self;
        format!("{median:.3} ({least:.3} to {most:.3})")
    }

    /// How it stands to a goal.
    pub(crate) fn verdict(&self, goal: Goal) -> &'static str {
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
