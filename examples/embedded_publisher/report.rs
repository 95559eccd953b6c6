//! The figures of all rounds, as tables and curves.

#![forbid(unsafe_code)]

use crate::line::Line;
use crate::round::Round;
use crate::support::latency::{self, Nanoseconds, Spread};
use crate::support::table::table;
use crate::support::Fallible;
use crate::task::Form;
use hdrhistogram::Histogram;

/// CPU per message, pooled to baseline: at most this.
const GOAL: f64 = 0.5;

/// All rounds of one rate, by form.
pub(crate) struct Rows {
    pub(crate) rate: &'static str,
    pub(crate) rounds: [Vec<Round>; Form::ALL.len()],
}

impl Rows {
    pub(crate) fn new(rate: &'static str) -> Self {
        Self { rate, rounds: Default::default() }
    }

    pub(crate) fn of(&self, form: Form) -> &[Round] {
        &self.rounds[form as usize]
    }

    pub(crate) fn print(&self) -> Fallible {
        let names = Form::ALL.map(|form| form.to_string());
        let [one, two, three] = names.each_ref().map(String::as_str);
        let mut table = table(&[self.rate, one, two, three]);
        let columns = Form::ALL.map(|form| Column(self.of(form)));
        let mut row = |head: &str, cell: &dyn Fn(&Column) -> String| {
            table.add_row(std::iter::once(head.to_owned()).chain(columns.iter().map(cell)));
        };
        row("samples = sent = received", &|column| column.messages());
        row("bytes per message", &|column| format!("{:.0}", column.per_message(|round| round.published.counts.bytes)));
        row("**publisher**: CPU per message", &|column| column.spread(cpu_per_message).to_string());
        row("context switches per second", &|column| range(column.spread(switches_per_second), 0));
        row("heap operations per message", &|column| {
            format!("{:.2}", column.per_message(|round| round.published.usage.heap))
        });
        row("fresh segments per message", &|column| {
            format!("{:.2}", column.per_message(|round| round.published.counts.segments))
        });
        row("minor faults per message", &|column| {
            format!("{:.3}", column.per_message(|round| round.published.usage.faults))
        });
        row("peak RSS, KiB", &|column| range(column.spread(|round| (round.peak >> 10) as f64), 0));
        row("RSS slope, bytes per message", &|column| range(column.spread(slope), 2));
        row("**subscriber**: CPU per message", &|column| column.spread(subscriber_cpu).to_string());
        let latencies: Vec<_> = columns.iter().map(Column::latencies).collect::<Fallible<_>>()?;
        let late: Vec<_> =
            columns.iter().map(|column| column.merged(|round| &round.delivered.late)).collect::<Fallible<_>>()?;
        let mut quantiles = |head: &str, of: &[Histogram<u64>], quantile: f64| {
            let cells = of.iter().map(|all| Nanoseconds(all.value_at_quantile(quantile) as f64).to_string());
            table.add_row(std::iter::once(head.to_owned()).chain(cells));
        };
        quantiles("**end to end**: p50", &latencies, 0.5);
        quantiles("p99", &latencies, 0.99);
        quantiles("of it the device was late: p50", &late, 0.5);
        quantiles("p99", &late, 0.99);
        println!("{table}\n");
        Ok(())
    }

    /// The rounds' CPU per message, of one form to another's in the same round.
    fn ratio(&self, form: Form, to: Form) -> Spread {
        let pairs = self.of(form).iter().zip(self.of(to));
        Spread::of(&pairs.map(|(one, other)| cpu_per_message(one) / cpu_per_message(other)).collect::<Vec<_>>())
    }

    /// All latencies of a form.
    pub(crate) fn latencies(&self, form: Form) -> Fallible<Histogram<u64>> {
        Column(self.of(form)).latencies()
    }
}

/// Prints whether the goal was met.
pub(crate) fn print_ratios(all: &[Rows]) {
    let mut table = table(&["CPU per message, publisher", "goal", "this run, median (range)", ""]);
    for rows in all {
        let ratio = rows.ratio(Form::Pooled, Form::Baseline);
        let verdict = if ratio.median <= GOAL { "met" } else { "**missed**" };
        let row = [
            format!("pooled / baseline, {}", rows.rate),
            format!("at most {GOAL}"),
            range(ratio, 3),
            verdict.to_owned(),
        ];
        table.add_row(row);
        let split = range(rows.ratio(Form::Pooled, Form::Blocking), 3);
        table.add_row([format!("pooled / {}, {}", Form::Blocking, rows.rate), String::new(), split, String::new()]);
    }
    println!("{table}");
}

/// The rounds of a form.
struct Column<'a>(&'a [Round]);

impl Column<'_> {
    fn spread(&self, value: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(&self.0.iter().map(value).collect::<Vec<_>>())
    }

    /// Over all rounds.
    fn per_message(&self, value: impl Fn(&Round) -> u64) -> f64 {
        let messages: u64 = self.0.iter().map(|round| round.published.counts.messages).sum();
        self.0.iter().map(value).sum::<u64>() as f64 / messages as f64
    }

    /// All counts are equal, or there would be no table.
    fn messages(&self) -> String {
        self.0.iter().map(|round| round.received.messages).sum::<u64>().to_string()
    }

    fn latencies(&self) -> Fallible<Histogram<u64>> {
        self.merged(|round| &round.received.latency)
    }

    fn merged(&self, of: impl Fn(&Round) -> &Histogram<u64>) -> Fallible<Histogram<u64>> {
        let mut all = latency::histogram();
        self.0.iter().try_for_each(|round| all.add(of(round)))?;
        Ok(all)
    }
}

fn cpu_per_message(round: &Round) -> f64 {
    round.published.usage.cpu as f64 / round.published.counts.messages as f64
}

fn switches_per_second(round: &Round) -> f64 {
    round.published.usage.switches as f64 * 1e9 / round.published.usage.time as f64
}

fn subscriber_cpu(round: &Round) -> f64 {
    round.received.cpu as f64 / round.received.messages as f64
}

fn slope(round: &Round) -> f64 {
    let points: Vec<_> =
        round.delivered.resident.iter().map(|&(messages, bytes)| (messages as f64, bytes as f64)).collect();
    Line::fit(&points).slope
}

fn range(spread: Spread, decimals: usize) -> String {
    let Spread { median, least, most } = spread;
    format!("{median:.decimals$} ({least:.decimals$} to {most:.decimals$})")
}
