//! Compares the README's JSON tables with the command's output.

use crate::child::Child;
use crate::command::Names;
use serde_json::Value;
use shm_pool::channel::{OnEnd, Publisher, Subscriber};
use std::collections::BTreeSet;

/// Every field is documented, and every documented field exists.
#[test]
fn readme_lists_every_field() {
    let names = Names::new("fields");
    let (owner, _) = Child::owner(&names.prefix, 4 << 20);
    let message = owner.publish(1 << 20).unwrap();
    let subscriber = Child::subscriber(&names.prefix, &[message]);
    Child::owner(&names.prefix, 4 << 20).0.kill();
    let provider = names.provider().build().unwrap();
    let _publisher = Publisher::create(&provider, "c").unwrap();
    let _receiver = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&names.namespace())
        .open("c")
        .unwrap();
    let mut fields = BTreeSet::new();
    for command in [
        &["ls"][..],
        &["who", "--for", "0s"],
        &["sweep"],
        &["top", "--interval", "100ms"],
    ] {
        collect(
            &names.run(&[command, &["--json"]].concat()).json(),
            &mut fields,
        );
    }
    let (_, tables) = include_str!("../../README.md")
        .split_once("## JSON")
        .unwrap();
    // Values and commands stand between backticks as fields do.
    let not_fields = [
        "alive",
        "starting",
        "dead",
        "unusable",
        "block",
        "drop_newest",
        "drop_oldest",
        "show",
        "top",
        "null",
    ];
    let mut documented = BTreeSet::new();
    for line in tables.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            continue;
        };
        let Some((_, described)) = row.split_once(" | ") else {
            continue;
        };
        // Every second part is between backticks.
        for name in described.split('`').skip(1).step_by(2) {
            if is_name(name) && !not_fields.contains(&name) {
                documented.insert(name.to_owned());
            }
        }
    }
    assert_eq!(documented, fields);
    names.run(&["sweep", "--yes"]).fine();
    subscriber.shut_down();
    owner.shut_down();
}

fn is_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Adds the names of all fields in the value.
fn collect(value: &Value, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(parts) => {
            for (name, part) in parts {
                fields.insert(name.clone());
                collect(part, fields);
            }
        }
        Value::Array(parts) => {
            for part in parts {
                collect(part, fields);
            }
        }
        _ => {}
    }
}
