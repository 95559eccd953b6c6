//! The table of what fits, and what it means.

use super::stores::{OURS, PEERS};
use super::{Cell, Fill, Row};
use crate::measure::Effort;
use crate::ratios::Goal;
use crate::zenoh_peers::SEGMENT;
use std::collections::BTreeSet;

/// Nowhere more than 5 % fewer.
const GOAL: Goal = Goal::AtLeast(0.95);

const NOTES: &str = "\
It shows what each allocator loses by rounding lengths up, by its own data under the cap, and by fragmentation. It does
not show time, memory outside the cap, messages that wait for readers or for a collection, or several threads.
  mixtures   They fill the cap until a length is refused, although a shorter one might still fit. Churn goes on from
             there: what is refused waits until enough others, picked at random, have been dropped. The means are of
             the bytes asked for and live at a refusal, after churn at those of the second half.
  alignment  zenoh's backends are asked for their default, 1 byte. Ours aligns to 64, so that no two messages share a
             cache line: of 100 B it can hold at most 78 % of what fits without gaps.
  buddy      Depends on the address at which its segment is mapped, and so differs a little from run to run.
  heap       Asked only when it has enough free bytes, because it loses memory for good if it has not; defragmented
             when it asks for it.";

pub(super) fn print(sizes: &[Row<Fill>], first: &[Row<Fill>], churned: &[Row<f64>], effort: Effort) {
    let goal = if effort.is_quick { Goal::None } else { GOAL };
    let Effort { orders, churned: few, churn, .. } = effort;
    head(&format!("what fits under {} MiB", SEGMENT >> 20));
    println!("one length, messages");
    for row in sizes {
        line(row, goal, |fill| fill.messages, |fill| format!("{}", fill.messages));
    }
    println!("mixture, MiB at the first refusal (messages), mean of {orders} orders");
    for row in first {
        line(row, goal, |fill| fill.bytes, |fill| format!("{:.2} ({:.1})", mib(fill.bytes), fill.messages));
    }
    println!("mixture, MiB at refusals after churn, mean of {few} orders of {churn} messages");
    for row in churned {
        line(row, goal, |&bytes| bytes, |&bytes| format!("{:.2}", mib(bytes)));
    }
    println!();
    print_reasons(sizes, first, churned);
    println!("The last column is the worse of our two divided by the best of zenoh's three; its goal is {GOAL}.");
    println!("{NOTES}\n");
}

fn head(title: &str) {
    print!("{title:<30}");
    for peer in &PEERS {
        print!(" {:>13}", peer.name);
    }
    println!("   ours / zenoh's");
}

fn line<T>(row: &Row<T>, goal: Goal, figure: impl Fn(&T) -> f64, show: impl Fn(&T) -> String) {
    print!("  {:<28}", row.name);
    for cell in &row.cells {
        print!(" {:>13}", cell.as_ref().map_or_else(|_| "cannot".to_owned(), &show));
    }
    println!("   {}", ratio(&row.cells, goal, figure));
}

fn ratio<T>(cells: &[Cell<T>], goal: Goal, figure: impl Fn(&T) -> f64) -> String {
    let (ours, zenohs) = cells.split_at(OURS);
    // One of ours that cannot is not made up for by the other; of zenoh's, the others still have a best.
    let ours: Result<Vec<f64>, _> = ours.iter().map(|cell| cell.as_ref().map(&figure)).collect();
    let worst = ours.ok().and_then(|ours| ours.into_iter().reduce(f64::min));
    let best = zenohs.iter().filter_map(|cell| cell.as_ref().ok()).map(&figure).reduce(f64::max);
    match (worst, best) {
        (Some(worst), Some(best)) if best > 0.0 => {
            let ratio = worst / best;
            format!("{ratio:.3} {}", goal.verdict(ratio)).trim_end().to_owned()
        }
        (Some(_), Some(_)) => "fits in none of zenoh's".to_owned(),
        _ => "missing: one side was not measured".to_owned(),
    }
}

/// Each reason once, however many cells it is for.
fn print_reasons(sizes: &[Row<Fill>], first: &[Row<Fill>], churned: &[Row<f64>]) {
    let fills = sizes.iter().chain(first).flat_map(failures);
    let reasons: BTreeSet<_> = fills.chain(churned.iter().flat_map(failures)).collect();
    for (name, reason) in reasons {
        println!("{name} cannot: {reason}");
    }
}

fn failures<T>(row: &Row<T>) -> impl Iterator<Item = (&'static str, &str)> {
    PEERS.iter().zip(&row.cells).filter_map(|(peer, cell)| Some((peer.name, cell.as_ref().err()?.as_str())))
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
