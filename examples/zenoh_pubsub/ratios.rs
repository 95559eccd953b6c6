//! How the two kinds of memory compare: four ratios, and what each should be.

use crate::report::Column;
use crate::units::align;
use serde_json::Value;

/// What a ratio should be.
#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// The ratios as aligned text. One that misses its goal says so, and that is all.
pub(crate) fn ratios(ours: &Column, theirs: &Column) -> String {
    let mut rows = vec![["shm-pool / zenoh's default", "goal", "this run", ""].map(str::to_owned).to_vec()];
    let mut row = |name: &str, goal: Goal, of: fn(&Value) -> f64| {
        let ratio = of(&ours.publisher) / of(&theirs.publisher);
        let (text, met) = match goal {
            Goal::AtMost(most) => (format!("at most {most}"), ratio <= most),
            Goal::AtLeast(least) => (format!("at least {least}"), ratio >= least),
        };
        let verdict = if met { "pass" } else { "MISSED" };
        rows.push(vec![name.to_owned(), text, format!("{ratio:.3}"), verdict.to_owned()]);
    };
    row("publisher's CPU per message", Goal::AtMost(1.0), |publisher| figure(publisher, "cpu"));
    row("messages per second", Goal::AtLeast(1.0), |publisher| 1.0 / figure(publisher, "seconds"));
    row("allocation, p99", Goal::AtMost(1.0), |publisher| figure(publisher, "p99"));
    row("allocation, p99.9", Goal::AtMost(1.0), |publisher| figure(publisher, "p999"));
    align(&rows)
}

/// Both kinds have published as many messages.
fn figure(publisher: &Value, name: &str) -> f64 {
    publisher[name].as_f64().unwrap_or(f64::NAN)
}
