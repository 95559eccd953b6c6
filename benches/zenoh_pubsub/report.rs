//! What came out of the runs, side by side: of several rounds the median of each figure, and how
//! they compare.

use crate::conductor::Outcome;
use crate::options::{Load, Options, Whose};
use serde_json::Value;
use shm_pool_support::table::{table, Goal, Table};
use shm_pool_support::units::{grouped, Bytes};
use std::path::Path;

/// The row that is there even if there was no provider.
const SETUP: &str = "making the provider";

/// One kind of memory: of several runs the median of each figure.
pub(crate) struct Column {
    whose: Whose,
    /// Why there was no provider.
    refused: Option<String>,
    pub(crate) publisher: Value,
    /// Each subscriber's name, and what it has seen.
    subscribers: Vec<(String, Value)>,
}

impl Column {
    pub(crate) fn new(whose: Whose, outcomes: Vec<Outcome>) -> Self {
        let (mut refused, mut publishers, mut subscribers) = (None, Vec::new(), Vec::new());
        for outcome in outcomes {
            match outcome {
                Outcome::Refused(why) => refused = Some(why),
                Outcome::Finished(finished) => {
                    publishers.push(finished.publisher);
                    subscribers.push(finished.subscribers);
                }
            }
        }
        let names = subscribers.first().into_iter().flatten().map(|(name, _)| name.clone()).enumerate();
        let of = |at: usize| median(&subscribers.iter().map(|round| &round[at].1).collect::<Vec<_>>());
        let subscribers = names.map(|(at, name)| (name, of(at))).collect();
        Self { whose, refused, publisher: median(&publishers.iter().collect::<Vec<_>>()), subscribers }
    }

    /// Name and value of each row.
    fn rows(&self) -> Vec<(String, String)> {
        let Self { publisher, .. } = self;
        let seconds = publisher["seconds"].as_f64().unwrap_or(f64::NAN);
        let per_second = |what: &Value| what.as_f64().unwrap_or(f64::NAN) / seconds;
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
        row("messages", count(&publisher["messages"]));
        row("bytes", bytes(&publisher["bytes"]));
        row("seconds", format!("{seconds:.2}"));
        row("msg/s", grouped(per_second(&publisher["messages"]) as u64));
        row("GB/s to each subscriber", format!("{:.2}", per_second(&publisher["bytes"]) / 1e9));
        row("publisher's CPU per message", micros(&per_message(publisher, "cpu")));
        if !publisher["behind"].is_null() {
            row("behind schedule at most", micros(&publisher["behind"]));
        }
        row(SETUP, micros(&publisher["setup"]));
        row("allocation, µs: p50 / p99 / p99.9", quantiles(publisher));
        row("peak payload in /dev/shm, from outside", bytes(&publisher["payload"]));
        row("…, by the pool's own statistics", bytes(&publisher["held"]));
        row("…, segments created: first tenth / all", early_late(publisher, count, |run, when| &run["segments"][when]));
        row("zenoh's metadata, not in the above", bytes(&publisher["metadata"]));
        for (name, subscriber) in &self.subscribers {
            row(&format!("{name}: messages"), count(&subscriber["messages"]));
            row("…, latency, µs: p50 / p99 / p99.9", quantiles(subscriber));
            row("…, compared", bytes(&subscriber["compared"]));
            row("…, most held", format!("{} / {}", count(&subscriber["held"]), bytes(&subscriber["held_bytes"])));
            let both = |what: &'static str, text| early_late(subscriber, text, move |run, when| &run[when][what]);
            row("…, descriptors: first tenth / all", both("descriptors", count));
            row("…, zenoh's mappings: first tenth / all", both("mappings", count));
            row("…, locked memory: first tenth / all", both("locked", bytes));
        }
        rows
    }
}

/// The whole story.
pub(crate) fn print(options: &Options, file: &Path, columns: &[Column]) {
    println!("{}\n{}", story(options, file, columns), rows(columns));
    for Column { whose, refused, .. } in columns {
        if let Some(why) = refused {
            println!("\n{}: refused at build: {why}", whose.title());
        }
    }
    let finished = |wanted| columns.iter().find(|column| column.whose == wanted && column.refused.is_none());
    if let (Some(Load::Saturated), Some(ours), Some(theirs)) =
        (options.load, finished(Whose::Pool), finished(Whose::Zenoh))
    {
        println!("\n{}", ratios(&ours.publisher, &theirs.publisher));
    }
}

/// How the two kinds of memory compare. A ratio that misses its goal says so, and that is all. Both
/// kinds have published as many messages.
fn ratios(ours: &Value, theirs: &Value) -> Table {
    let mut rows = table(&["shm-pool / zenoh's default", "goal", "this run", ""]);
    let mut row = |name: &str, goal: Goal, ratio: f64| {
        rows.add_row([name.to_owned(), goal.to_string(), format!("{ratio:.3}"), goal.verdict(ratio).to_owned()]);
    };
    let figure = |publisher: &Value, name: &str| publisher[name].as_f64().unwrap_or(f64::NAN);
    let ratio = |name| figure(ours, name) / figure(theirs, name);
    row("publisher's CPU per message", Goal::AtMost(1.0), ratio("cpu"));
    row("messages per second", Goal::AtLeast(1.0), 1.0 / ratio("seconds"));
    row("allocation, p99", Goal::AtMost(1.0), ratio("p99"));
    row("allocation, p99.9", Goal::AtMost(1.0), ratio("p999"));
    rows
}

fn story(options: &Options, file: &Path, columns: &[Column]) -> String {
    let len = columns.iter().map(|column| &column.publisher["file"]).find(|len| !len.is_null());
    let traffic = format!(
        "{} ({}), again and again, by zenoh over TCP on this machine to {} subscribers; at most {} of shared memory, {} messages \
         ahead, {} files for each process.\n",
        file.display(),
        len.map_or("-".to_owned(), bytes),
        options.audience(),
        Bytes(options.max_bytes as u64),
        grouped(options.window.into()),
        grouped(options.nofile),
    );
    let rounds = match options.rounds {
        1 => String::new(),
        rounds => format!("Each figure is the median of {rounds} rounds.\n"),
    };
    let outcome = if columns.iter().all(|column| column.refused.is_none()) {
        "Every message came in shared memory, in order and unchanged; no object is left in /dev/shm.\n"
    } else {
        ""
    };
    [&traffic, &*rounds, outcome].concat()
}

fn rows(columns: &[Column]) -> Table {
    let heads: Vec<_> = [""].into_iter().chain(columns.iter().map(|column| column.whose.title())).collect();
    let finished = columns.iter().find(|column| column.refused.is_none());
    let names: Vec<String> =
        finished.map_or(vec![SETUP.to_owned()], |column| column.rows().into_iter().map(|(name, _)| name).collect());
    let values: Vec<Option<Vec<_>>> =
        columns.iter().map(|column| column.refused.is_none().then(|| column.rows())).collect();
    let mut rows = table(&heads);
    for (at, name) in names.iter().enumerate() {
        let refused = if name == SETUP { "refused" } else { "-" };
        let cell =
            |rows: &Option<Vec<(String, String)>>| rows.as_ref().map_or(refused.to_owned(), |rows| rows[at].1.clone());
        rows.add_row([name.clone()].into_iter().chain(values.iter().map(cell)));
    }
    rows
}

fn count(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), grouped)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |bytes| Bytes(bytes).to_string())
}

fn micros(nanoseconds: &Value) -> String {
    nanoseconds.as_f64().map_or("-".to_owned(), |nanoseconds| format!("{:.1} µs", nanoseconds / 1e3))
}

fn per_message(publisher: &Value, what: &str) -> Value {
    let each = |of: &str| publisher[of].as_f64();
    each(what).zip(each("messages")).map(|(all, messages)| all / messages).into()
}

/// What there was after the first tenth of the messages, and what in the end.
fn early_late<'a>(result: &'a Value, text: fn(&Value) -> String, of: impl Fn(&'a Value, &str) -> &'a Value) -> String {
    format!("{} / {}", text(of(result, "early")), text(of(result, "late")))
}

fn quantiles(result: &Value) -> String {
    let one = |name: &str| result[name].as_f64().map_or("-".to_owned(), |value| format!("{:.1}", value / 1e3));
    ["p50", "p99", "p999"].map(one).join(" / ")
}

/// The middle one of each number by itself. What is no number is as in the first round.
fn median(rounds: &[&Value]) -> Value {
    let Some(&first) = rounds.first() else { return Value::Null };
    match first {
        Value::Number(_) => {
            let mut ordered = rounds.to_vec();
            ordered.sort_by(|one, other| number(one).total_cmp(&number(other)));
            ordered[ordered.len() / 2].clone()
        }
        Value::Object(fields) => {
            let of = |name: &String| median(&rounds.iter().map(|round| &round[name]).collect::<Vec<_>>());
            Value::Object(fields.keys().map(|name| (name.clone(), of(name))).collect())
        }
        _ => first.clone(),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}
