//! From inside a container that shares /dev/shm, processes outside count as alive because of their
//! locks, and are reported as not visible.

use crate::child::Child;
use crate::command::{shm_pool, Names, Printed};
use crate::own_shm::{is_root, skip};
use serde_json::Value;
use std::process::Command;

/// Runs the command in PID and mount namespaces of its own, through `unshare`. Returns `None` where
/// that is not possible.
fn elsewhere(names: &Names, arguments: &[&str]) -> Option<Printed> {
    let program = shm_pool(&[&["--prefix", &names.prefix], arguments].concat());
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    if !is_root() {
        unshare.arg("--map-root-user");
    }
    let is_possible = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let mut probe = Command::new(unshare.get_program());
    if !is_possible(probe.args(unshare.get_args()).arg("true")) {
        skip("no PID namespace of our own");
        return None;
    }
    Some(
        unshare
            .arg("--")
            .arg(program.get_program())
            .args(program.get_args())
            .output()
            .unwrap()
            .into(),
    )
}

/// A living owner outside the container does not look dead, and a sweep leaves its memory.
#[test]
fn owner_in_other_pid_namespace() {
    let names = Names::new("elsewhere");
    let (owner, id) = Child::owner(&names.prefix, 4 << 20);
    let message = owner.publish(1 << 20).unwrap();
    let subscriber = Child::subscriber(&names.prefix, &[message]);
    let Some(ls) = elsewhere(&names, &["ls", "--json"]) else {
        return;
    };
    let ls = ls.json();
    let provider = &ls["providers"][0];
    assert_eq!(
        (&provider["state"], &provider["owner"]),
        (&Value::from("alive"), &Value::Null)
    );
    assert_eq!(
        (
            &provider["peers"][0]["is_alive"],
            &provider["peers"][0]["bytes"]
        ),
        (&true.into(), &(1 << 20).into())
    );
    assert_eq!(ls["unseen"]["ends_without_process"], 2);
    let ls = elsewhere(&names, &["ls", "--check"]).unwrap().fine();
    assert!(
        ls.contains("not seen: who holds 2 of the locks") && ls.contains("PID namespace"),
        "{ls}"
    );
    let top = elsewhere(&names, &["top", "--once", "--interval", "100ms"])
        .unwrap()
        .fine();
    let notes = ls.lines().filter(|line| line.starts_with("not seen: "));
    assert!(
        notes.clone().count() > 0 && notes.clone().all(|line| top.contains(line)),
        "{top}"
    );
    let who = elsewhere(&names, &["who", "--for", "0s"])
        .unwrap()
        .line("1.0 MiB in 1");
    assert!(
        who.starts_with(&format!("not seen: peer 0 of {}.{id}", names.prefix)),
        "{who}"
    );
    assert_eq!(
        elsewhere(&names, &["sweep", "--yes"]).unwrap().fine(),
        "nothing to remove\n"
    );
    assert_eq!(names.objects().len(), 2);
    subscriber.shut_down();
    owner.shut_down();
}
