//! `sweep`: says what it would do, does just that with `--yes`, and never takes what lives.

use crate::child::{Ask, Child, Published, Task};
use crate::command::{shm_pool, Names, Said};
use serde_json::Value;
use shm_pool::channel::Receiver;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The objects, and when each was changed.
fn state(names: &Names) -> Vec<(String, u64, i64, i64)> {
    let metadata = |name: &String| fs::metadata(format!("/dev/shm/{name}")).unwrap();
    let objects = names.objects().into_iter().map(|name| (metadata(&name), name));
    objects.map(|(metadata, name)| (name, metadata.ino(), metadata.ctime(), metadata.ctime_nsec())).collect()
}

/// Otherwise an operator who only wanted to see has deleted something; or the other way round.
#[test]
fn a_sweep_without_yes_changes_nothing_and_with_it_does_what_it_said() {
    let names = Names::new("sweep");
    let (dead, id) = Child::owner(&names.prefix, 16 << 20);
    dead.ask::<Published>(&Ask::Publish(3 << 20)).unwrap();
    let (living, other) = Child::owner(&names.prefix, 16 << 20);
    living.ask::<Published>(&Ask::Publish(3 << 20)).unwrap();
    dead.kill();

    let before = state(&names);
    let said = names.run(&["sweep"]).fine();
    let promised = names.run(&["sweep", "--json"]).json();
    assert_eq!(state(&names), before);
    assert!(said.contains(&id.to_string()) && !said.contains(&other.to_string()), "{said}");
    assert!(said.contains("would remove 2 objects, ") && said.contains("--yes"), "{said}");
    assert_eq!((&promised["done"], &promised["objects"]), (&Value::from(false), &Value::from(2)));

    let mut done = names.run(&["sweep", "--yes", "--json"]).json();
    assert_eq!(done["done"].take(), true);
    done["done"] = Value::from(false);
    assert_eq!(done, promised);
    assert!(names.objects().iter().all(|name| name.contains(&other.to_string())), "{:?}", names.objects());
    assert_eq!(names.objects().len(), 2);
    assert_eq!(names.run(&["sweep", "--yes"]).fine(), "nothing to remove\n");
    assert_eq!(living.ask::<Published>(&Ask::Publish(1_000)).map(drop), Ok(()), "it has noticed nothing");
    living.shut_down();
}

/// Otherwise one prefix cannot be cleared without the others.
#[test]
fn a_sweep_of_one_prefix_leaves_others_alone() {
    let names = [Names::new("sweep-one"), Names::new("sweep-two")];
    for names in &names {
        Child::owner(&names.prefix, 1 << 20).0.kill();
    }
    let [one, two] = &names;
    let before = state(two);
    assert!(one.run(&["sweep", "--yes"]).fine().contains("removed 1 object, "), "{:?}", one.objects());
    assert_eq!((one.objects(), state(two)), (vec![], before));
    // In the same directory by another path.
    let mut relative = shm_pool(&["sweep", "--yes", "--directory", "./shm", "--prefix", &two.prefix]);
    let said = Said::from(relative.current_dir("/dev").output().unwrap()).fine();
    assert!(said.contains("removed 1 object, ") && two.objects().is_empty(), "{said}");
}

/// Otherwise a receiver loses what a dead sender has sent, or nobody knows why memory stays.
#[test]
fn what_a_living_receiver_still_reads_is_kept_and_said_to_be() {
    let names = Names::new("sweep-read");
    let sender = Child::start(&Task::Sender { prefix: names.prefix.clone(), channel: "c".to_owned() });
    sender.hear::<()>();
    let mut receiver = Receiver::open(&names.client(), "c").unwrap();
    sender.kill();
    let (before, kept) = (state(&names), format!("kept {}.c: it is dead", names.prefix));
    let said = names.run(&["sweep", "--yes"]).fine();
    assert!(said.starts_with("nothing to remove\nkept ") && said.contains(&kept), "{said}");
    assert_eq!(names.run(&["sweep", "--json"]).json()["kept"].as_array().unwrap().len(), 2, "provider and channel");
    assert!(names.run(&["ls", "--check"]).fine().contains("dead, read"));
    // The mark on a dead provider is all that has changed.
    let names_of = |state: &[(String, u64, i64, i64)]| state.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names_of(&state(&names)), names_of(&before));
    assert_eq!(&receiver.try_recv().unwrap()[..], b"last words");
    drop(receiver);
    assert_eq!(names.run(&["ls", "--check"]).code, 4);
    assert!(names.run(&["sweep", "--yes"]).fine().starts_with("removed 2 objects, "));
}
