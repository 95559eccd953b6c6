//! One result out of those of several rounds.

use serde_json::Value;

/// The middle one of each number by itself. What is no number is as in the first round.
pub(crate) fn median(rounds: &[&Value]) -> Value {
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
