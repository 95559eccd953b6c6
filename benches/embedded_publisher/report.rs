//! The figures of all rounds, as tables and curves.

#![forbid(unsafe_code)]

use crate::round::{Form, Round};
use hdrhistogram::Histogram;
use shm_pool_support::latency::{self, Spread};
use shm_pool_support::line::slope;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::Fallible;

/// CPU per message, pooled to baseline.
const GOAL: Goal = Goal::AtMost(0.5);

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
        row("context switches per second", &|column| column.spread(switches_per_second).range(0));
        row("heap operations per message", &|column| {
            format!("{:.2}", column.per_message(|round| round.published.usage.heap))
        });
        row("fresh segments per message", &|column| {
            format!("{:.2}", column.per_message(|round| round.published.counts.segments))
        });
        row("minor faults per message", &|column| {
            format!("{:.3}", column.per_message(|round| round.published.usage.faults))
        });
        row("peak RSS, KiB", &|column| column.spread(|round| (round.peak >> 10) as f64).range(0));
        row("RSS slope, bytes per message", &|column| column.spread(growth).range(2));
        row("**subscriber**: CPU per message", &|column| column.spread(subscriber_cpu).to_string());
        let latencies: Vec<_> = columns.iter().map(Column::latencies).collect::<Fallible<_>>()?;
        let late: Vec<_> =
            columns.iter().map(|column| column.merged(|round| &round.delivered.late)).collect::<Fallible<_>>()?;
        let mut quantiles = |head: &str, of: &[Histogram<u64>], quantile: f64| {
            let cells = of.iter().map(|all| latency::at(all, quantile));
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
        let name = format!("pooled / baseline, {}", rows.rate);
        table.add_row([name, GOAL.to_string(), ratio.range(3), GOAL.verdict(ratio.median).to_owned()]);
        let split = rows.ratio(Form::Pooled, Form::Blocking).range(3);
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
        self.merged(|round| &round.latencies)
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

fn growth(round: &Round) -> f64 {
    let points: Vec<_> =
        round.delivered.resident.iter().map(|&(messages, bytes)| (messages as f64, bytes as f64)).collect();
    slope(&points)
}
