//! `sweep`: lists what it would remove, removes exactly that with `--yes`, and spares what is
//! alive.

use crate::child::{Child, Task};
use crate::command::{shm_pool, Names, Printed};
use serde_json::Value;
use shm_pool::channel::Receiver;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the objects with their inodes and change times.
fn state(names: &Names) -> Vec<(String, u64, i64, i64)> {
    let mut state = Vec::new();
    for name in names.objects() {
        let metadata = fs::metadata(format!("/dev/shm/{name}")).unwrap();
        state.push((
            name,
            metadata.ino(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ));
    }
    state
}

/// A dry run deletes nothing, and `--yes` removes what the dry run listed.
#[test]
fn dry_run_and_yes() {
    let names = Names::new("sweep");
    let (dead, id) = Child::owner(&names.prefix, 16 << 20);
    dead.publish(3 << 20).unwrap();
    let (living, other) = Child::owner(&names.prefix, 16 << 20);
    living.publish(3 << 20).unwrap();
    dead.kill();

    let before = state(&names);
    let printed = names.run(&["sweep"]).fine();
    let promised = names.run(&["sweep", "--json"]).json();
    assert_eq!(state(&names), before);
    assert!(
        printed.contains(&id.to_string()) && !printed.contains(&other.to_string()),
        "{printed}"
    );
    assert!(
        printed.contains("would remove 2 objects, ") && printed.contains("--yes"),
        "{printed}"
    );
    assert_eq!(
        (&promised["done"], &promised["objects"]),
        (&Value::from(false), &Value::from(2))
    );

    let mut done = names.run(&["sweep", "--yes", "--json"]).json();
    assert_eq!(done["done"].take(), true);
    done["done"] = Value::from(false);
    assert_eq!(done, promised);
    assert!(
        names
            .objects()
            .iter()
            .all(|name| name.contains(&other.to_string())),
        "{:?}",
        names.objects()
    );
    assert_eq!(names.objects().len(), 2);
    assert_eq!(names.run(&["sweep", "--yes"]).fine(), "nothing to remove\n");
    assert_eq!(
        living.publish(1_000).map(drop),
        Ok(()),
        "it has noticed nothing"
    );
    living.shut_down();
}

/// One prefix can be swept without the others.
#[test]
fn sweep_of_one_prefix() {
    let names = [Names::new("sweep-one"), Names::new("sweep-two")];
    for names in &names {
        Child::owner(&names.prefix, 1 << 20).0.kill();
    }
    let [one, two] = &names;
    let before = state(two);
    assert!(
        one.run(&["sweep", "--yes"])
            .fine()
            .contains("removed 1 object, "),
        "{:?}",
        one.objects()
    );
    assert_eq!((one.objects(), state(two)), (vec![], before));
    // The same directory by another path.
    let mut relative = shm_pool(&[
        "sweep",
        "--yes",
        "--directory",
        "./shm",
        "--prefix",
        &two.prefix,
    ]);
    let printed = Printed::from(relative.current_dir("/dev").output().unwrap()).fine();
    assert!(
        printed.contains("removed 1 object, ") && two.objects().is_empty(),
        "{printed}"
    );
}

/// A receiver does not lose a dead sender's messages, and the output says why memory stays.
#[test]
fn sweep_keeps_read_segments() {
    let names = Names::new("sweep-read");
    let sender = Child::start(&Task::Sender {
        prefix: names.prefix.clone(),
        channel: "c".to_owned(),
    });
    sender.answer::<()>();
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open("c")
        .unwrap();
    sender.kill();
    let before = state(&names);
    let kept = format!("kept {}.c: it is dead", names.prefix);
    let printed = names.run(&["sweep", "--yes"]).fine();
    assert!(
        printed.starts_with("nothing to remove\nkept ") && printed.contains(&kept),
        "{printed}"
    );
    assert_eq!(
        names.run(&["sweep", "--json"]).json()["kept"]
            .as_array()
            .unwrap()
            .len(),
        2,
        "provider and channel"
    );
    assert!(names.run(&["ls", "--check"]).fine().contains("dead, read"));
    assert_eq!(state(&names), before);
    assert_eq!(&receiver.try_recv().unwrap()[..], b"last words");
    drop(receiver);
    assert!(names.objects().is_empty(), "the last reader has removed it");
}

/// `sweep` names damaged objects instead of reporting that nothing is left.
#[test]
fn sweep_keeps_damaged_objects() {
    let names = Names::new("sweep-harm");
    let files = [
        "noise.channel",
        "other.0000000000000001.connection",
        "0000000000000003.ctl",
    ]
    .map(|kind| names.path(kind));
    for path in &files {
        fs::write(path, [0x5a; 8_192]).unwrap();
    }
    let damaged = [
        "0000000000000003",
        "noise",
        "other.0000000000000001.connection",
    ];
    let damaged = damaged.map(|name| format!("{}.{name}", names.prefix));
    let ls = names.run(&["ls"]).fine();
    assert_eq!(ls.matches("damaged").count(), 3, "{ls}");
    for command in [&["sweep"][..], &["sweep", "--yes"]] {
        let printed = names.run(command).fine();
        let kept = damaged
            .iter()
            .all(|name| printed.contains(&format!("kept {name}: it is damaged")));
        assert!(
            kept && printed.starts_with("nothing to remove\n"),
            "{printed}"
        );
        let json = names.run(&[command, &["--json"]].concat()).json();
        assert_eq!(json["damaged"], Value::from(damaged.to_vec()), "{json}");
    }
    let shown = names.run(&["show", "other"]).fine();
    assert!(
        shown.contains("0000000000000001") && shown.contains("damaged"),
        "{shown}"
    );
    for path in files {
        assert_eq!(fs::read(&path).unwrap(), [0x5a; 8_192]);
        fs::remove_file(path).unwrap();
    }
}

/// A program can tell which provider's memory is removed.
#[test]
fn sweep_json() {
    let names = Names::new("sweep-names");
    let (dead, id) = Child::owner(&names.prefix, 1 << 20);
    dead.kill();
    let name = format!("{}.{id}", names.prefix);
    for command in [&["sweep", "--json"][..], &["sweep", "--yes", "--json"]] {
        let json = names.run(command).json();
        let [orphan] = &json["orphans"].as_array().unwrap()[..] else {
            panic!("{json}")
        };
        assert_eq!(
            (&orphan["name"], &orphan["objects"]),
            (&Value::from(&name[..]), &Value::from(1)),
            "{json}"
        );
    }
    assert!(!Path::new(&names.path(&format!("{id}.ctl"))).exists());
}
