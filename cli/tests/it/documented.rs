//! Compares the README's JSON tables with the command's output.

use crate::child::{Ask, Child, Published};
use crate::command::Names;
use serde_json::Value;
use shm_pool::channel::{OnEnd, Publisher, Subscriber};
use std::collections::BTreeSet;

/// Every field is documented, and every documented field exists.
#[test]
fn readme_lists_every_field() {
    let names = Names::new("fields");
    let (owner, _) = Child::owner(&names.prefix, 4 << 20);
    let message = owner.ask::<Published>(&Ask::Publish(1 << 20)).unwrap();
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
    let is_field = |text: &&str| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    // Between backticks; without what stands between brackets, if that names values or commands.
    let rows = tables
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let named = rows
        .flat_map(|(_, fields)| fields.split('`').skip(1).step_by(2))
        .filter(is_field);
    let values = [
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
    let documented: BTreeSet<_> = named
        .filter(|name| !values.contains(name))
        .map(str::to_owned)
        .collect();
    assert_eq!(documented, fields);
    names.run(&["sweep", "--yes"]).fine();
    subscriber.shut_down();
    owner.shut_down();
}

fn collect(value: &Value, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(parts) => parts.iter().for_each(|(name, part)| {
            fields.insert(name.clone());
            collect(part, fields);
        }),
        Value::Array(parts) => parts.iter().for_each(|part| collect(part, fields)),
        _ => {}
    }
}
