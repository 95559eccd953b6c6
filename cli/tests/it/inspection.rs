//! `ls`, `show` and `who`: their output about stopped peers, owners and channels; exit codes.

use crate::child::{Child, Request, Task};
use crate::command::{run, shm_pool, Names};
use serde_json::{json, Value};
use shm_pool::channel::{Publisher, Sender};
use shm_pool::Provider;
use std::path::PathBuf;
use std::process::Stdio;
use std::{fs, io, thread};

const MIB: u64 = 1 << 20;

/// The names of a living provider were removed: each command says so.
#[test]
fn removed_names() {
    let names = Names::new("removed");
    let provider = names.provider().build().unwrap();
    let object = format!("{}.{}.ctl", names.prefix, provider.id());
    fs::remove_file(format!("/dev/shm/{object}")).unwrap();
    let line = names.run(&["ls"]).line("removed: ");
    assert!(
        line.contains(&object) && line.contains(&std::process::id().to_string()),
        "{line}"
    );
    let ls = names.run(&["ls", "--json"]).json();
    assert_eq!(ls["removed"][0]["path"], format!("/dev/shm/{object}"));
    assert_eq!(ls["removed"][0]["process"]["id"], std::process::id());
    drop(provider);
}

/// The subscriber's container is paused.
#[test]
fn frozen_subscriber() {
    let names = Names::new("frozen");
    let (owner, _) = Child::owner(&names.prefix, 1 << 20);
    let message = owner.publish(1000).unwrap();
    let subscriber = Child::subscriber(&names.prefix, &[message]);
    owner.request::<()>(&Request::Forget);
    for version in [1, 2] {
        let frozen = match Frozen::new(version, subscriber.id()) {
            Ok(frozen) => frozen,
            Err(error) => {
                println!("SKIPPED: no freezer of version {version}: {error}");
                continue;
            }
        };
        let line = names.run(&["who", "--for", "0s"]).line("STOPPED");
        assert!(line.starts_with(&subscriber.id().to_string()), "{line}");
        drop(frozen);
        let who = names.run(&["who", "--for", "0s", "--json"]).json();
        for holder in who["holders"].as_array().unwrap() {
            assert_eq!(holder["process"]["is_stopped"], false, "{who}");
        }
    }
    subscriber.kill();
    owner.shut_down();
}

/// A cgroup with one process, which is frozen.
struct Frozen {
    cgroup: PathBuf,
    thaw: (&'static str, &'static str),
    process: String,
}

impl Frozen {
    fn new(version: u32, process: u32) -> io::Result<Self> {
        let v2 = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .map(PathBuf::from)
            .into_iter()
            .find(|root| root.join("cgroup.controllers").exists());
        let (root, freeze, thaw) = match version {
            1 => (
                PathBuf::from("/sys/fs/cgroup/freezer"),
                ("freezer.state", "FROZEN"),
                ("freezer.state", "THAWED"),
            ),
            _ => (
                v2.ok_or(io::ErrorKind::NotFound)?,
                ("cgroup.freeze", "1"),
                ("cgroup.freeze", "0"),
            ),
        };
        let cgroup = root.join(format!("shm-pool-frozen-{process}"));
        fs::create_dir(&cgroup)?;
        let this = Self {
            cgroup,
            thaw,
            process: process.to_string(),
        };
        fs::write(this.cgroup.join("cgroup.procs"), &this.process)?;
        fs::write(this.cgroup.join(freeze.0), freeze.1)?;
        // In version 2, the kernel freezes the process a moment later.
        let is_frozen = || {
            let events = fs::read_to_string(this.cgroup.join("cgroup.events"));
            version == 1 || events.is_ok_and(|events| events.contains("frozen 1"))
        };
        while !is_frozen() {
            thread::yield_now();
        }
        Ok(this)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.cgroup.join(self.thaw.0), self.thaw.1);
        if let Some(root) = self.cgroup.parent() {
            let _ = fs::write(root.join("cgroup.procs"), &self.process);
        }
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// A stopped process cannot answer, but `who` still names it and its leases.
#[test]
fn stopped_subscriber() {
    let names = Names::new("stopped");
    let (owner, id) = Child::owner(&names.prefix, 64 << 20);
    let message = owner.publish(40 << 20).unwrap();
    let subscriber = Child::subscriber(&names.prefix, &[message, message]);
    owner.request::<()>(&Request::Forget);
    subscriber.stop();

    let line = names.run(&["who", "--for", "10ms"]).line("STOPPED");
    assert!(line.starts_with(&subscriber.id().to_string()), "{line}");
    assert!(
        line.contains("40.0 MiB in 1") && line.contains("≥"),
        "{line}"
    );
    let once = names.run(&["who", "--for", "0s"]).line("STOPPED");
    assert!(!once.contains("≥"), "one look tells no time: {once}");

    let who = names.run(&["who", "--for", "10ms", "--json"]).json();
    let [holder, other] = &who["holders"].as_array().unwrap()[..] else {
        panic!("{who}")
    };
    assert_eq!(holder["process"]["id"], subscriber.id());
    assert_eq!(holder["process"]["is_stopped"], true);
    assert_eq!(
        (&holder["bytes_leased"], &holder["messages_leased"]),
        (&json!(40 * MIB), &json!(1))
    );
    assert!(holder["oldest_seconds"].as_f64().unwrap() >= 0.01, "{who}");
    assert_eq!(
        (&other["process"]["id"], &other["bytes_leased"]),
        (&json!(owner.id()), &json!(0))
    );
    assert!(other["bytes_owned"].as_u64().unwrap() >= 40 * MIB, "{who}");
    assert_eq!(who["unseen"]["ends_without_process"], 0);

    let name = format!("{}.{id}", names.prefix);
    let line = names.run(&["ls"]).line(&name);
    assert!(
        line.contains("alive")
            && line.contains(&owner.id().to_string())
            && line.contains("40.0 MiB"),
        "{line}"
    );
    let shown = names.run(&["show", &id.to_string()]).fine();
    let stopped = shown
        .lines()
        .find(|line| line.ends_with(" 0") && line.contains("STOPPED"))
        .unwrap();
    assert_eq!(
        stopped.split_whitespace().rev().take(3).collect::<Vec<_>>(),
        ["0", "2", "1"],
        "{shown}"
    );
    assert_eq!(names.run(&["show", &name]).fine(), shown, "with the prefix");
    let shown = names.run(&["show", &id.to_string(), "--json"]).json();
    assert_eq!(shown["providers"][0]["id"], id.to_string());
    assert_eq!(shown["providers"][0]["peers"][0]["views"], 2);
    assert_eq!(shown["providers"][0]["leased"][0]["bytes"], 40 * MIB);

    subscriber.kill();
    let line = names.run(&["who", "--for", "0s"]).line("dead: peer ");
    assert!(line.contains("40.0 MiB"), "{line}");
    owner.shut_down();
}

/// A channel is listed with its processes and with the messages that wait in it.
#[test]
fn channels() {
    let names = Names::new("channels");
    let provider = names.provider().build().unwrap();
    let mut alone = Sender::builder()
        .capacity(8)
        .create(&provider, "alone")
        .unwrap();
    for _ in 0..3 {
        alone.send_copy(b"early").unwrap();
    }
    let mut many = Publisher::builder()
        .max_subscribers(4)
        .capacity(4)
        .create(&provider, "many")
        .unwrap();
    let receiver = Child::start(&Task::ChannelSubscriber {
        prefix: names.prefix.clone(),
        channel: "many".to_owned(),
    });
    receiver.answer::<()>();
    for number in 0..4 {
        assert_eq!(many.try_send_copy(&[number]).unwrap().receivers, 1);
    }

    let ls = names.run(&["ls", "--json"]).json();
    let [alone, many] = &ls["channels"].as_array().unwrap()[..] else {
        panic!("{ls}")
    };
    assert_eq!(
        (&alone["name"], &alone["is_publisher"], &alone["state"]),
        (&json!("alone"), &json!(false), &json!("alive"))
    );
    assert_eq!(
        (&alone["sender"]["id"], &alone["provider"]),
        (
            &json!(std::process::id()),
            &json!(provider.id().to_string())
        )
    );
    assert_eq!(
        (
            &alone["receivers"][0]["waiting"],
            &alone["receivers"][0]["capacity"]
        ),
        (&json!(3), &json!(8))
    );
    let theirs = &many["receivers"][0];
    assert_eq!(
        (
            &theirs["process"]["id"],
            &theirs["waiting"],
            &theirs["sent"]
        ),
        (&json!(receiver.id()), &json!(4), &json!(4))
    );
    assert_eq!(theirs["id"].as_str().unwrap().len(), 16);
    let line = names.run(&["ls"]).line(".many");
    assert!(
        line.contains(&std::process::id().to_string()) && line.ends_with("1          4/4"),
        "{line}"
    );
    let line = names.run(&["ls"]).line(".alone");
    assert!(
        line.ends_with("0          3/8"),
        "no receiver has opened it: {line}"
    );
    let shown = names.run(&["show", "many"]).fine();
    assert!(
        shown.contains("drop oldest") && shown.contains(&receiver.id().to_string()),
        "{shown}"
    );
    let line = names.run(&["who", "--for", "0s"]).line(" 4/4 ");
    assert!(
        line.contains(".many ")
            && line.contains("receiver")
            && line.contains(&receiver.id().to_string()),
        "{line}"
    );
    let line = names.run(&["who", "--for", "0s"]).line(" sender ");
    assert!(line.contains(&std::process::id().to_string()), "{line}");
    receiver.shut_down();
}

/// Messages received through a channel count as well.
#[test]
fn receiver_borrowed() {
    let names = Names::new("borrows");
    let provider = names.provider().build().unwrap();
    let mut publisher = Publisher::builder()
        .max_subscribers(1)
        .capacity(4)
        .create(&provider, "frames")
        .unwrap();
    let receiver = Child::start(&Task::ChannelSubscriber {
        prefix: names.prefix.clone(),
        channel: "frames".to_owned(),
    });
    receiver.answer::<()>();
    receiver.stop();
    for _ in 0..2 {
        assert_eq!(
            publisher
                .send(provider.alloc(3 << 20).unwrap().freeze())
                .unwrap()
                .receivers,
            1
        );
    }
    let line = names.run(&["who", "--for", "10ms"]).line("STOPPED");
    assert!(line.starts_with(&receiver.id().to_string()), "{line}");
    assert!(
        line.contains("6.0 MiB in 2") && line.contains("≥"),
        "{line}"
    );
    let who = names.run(&["who", "--for", "10ms", "--json"]).json();
    let [holder, other] = &who["holders"].as_array().unwrap()[..] else {
        panic!("{who}")
    };
    assert_eq!(holder["process"]["id"], receiver.id());
    assert_eq!(
        (&holder["bytes_borrowed"], &holder["messages_borrowed"]),
        (&json!(6 * MIB), &json!(2))
    );
    assert_eq!(
        (&holder["bytes_leased"], &other["bytes_borrowed"]),
        (&json!(0), &json!(0))
    );
    let provider_line = names.run(&["ls"]).line(&provider.id().to_string());
    assert!(provider_line.contains("6.0 MiB"), "{provider_line}");
    let shown = names.run(&["show", &provider.id().to_string()]).fine();
    assert!(
        shown.contains("BORROWED CLASS") && shown.contains("6.0 MiB"),
        "{shown}"
    );
    let line = names.run(&["show", "frames"]).line("STOPPED");
    assert!(
        line.contains(" 2/2048 ") && line.ends_with("6.0 MiB"),
        "{line}"
    );
    let frame = names.run(&["top", "--once", "--interval", "100ms"]).fine();
    assert_eq!(
        frame.lines().map(|line| line.matches('█').count()).max(),
        Some(40),
        "{frame}"
    );
    assert!(
        frame
            .lines()
            .any(|line| line.contains("STOPPED") && line.contains("6.0 MiB in 2")),
        "{frame}"
    );

    receiver.kill();
    let who = names.run(&["who", "--for", "0s"]);
    assert!(who.text.contains(".frames"), "{}", who.text);
    let line = who.line("not there: receiver ");
    assert!(line.contains("6.0 MiB in 2"), "{line}");
    provider.reclaim();
    assert!(!names
        .run(&["who", "--for", "0s"])
        .fine()
        .contains("not there"));
}

/// Names of channels may contain anything. A name with dots can be shown with and without its
/// prefix.
#[test]
fn any_name() {
    let names = Names::new("any-name");
    let dotted = format!("{}.dotted", names.prefix);
    let provider = Provider::builder()
        .namespace(&shm_pool::Namespace::new(&dotted).unwrap())
        .build()
        .unwrap();
    let topics = ["/front/image.raw", "line\nbreak \u{1b}[2J", "c"];
    let senders = topics.map(|topic| Sender::create(&provider, topic).unwrap());
    let names_of = |what: &str| {
        let shown = run(&["--prefix", &dotted, "show", what, "--json"]).json();
        let channels = shown["channels"].as_array().unwrap();
        let names = channels.iter().map(|channel| channel["name"].clone());
        names.collect::<Vec<_>>()
    };
    for topic in topics {
        assert_eq!(names_of(topic), [topic]);
        assert_eq!(names_of(&format!("{dotted}.{topic}")), [topic]);
    }
    assert_eq!(run(&["--prefix", &dotted, "show", "raw"]).code, 3);

    let listed = run(&["--prefix", &dotted, "ls"]);
    let listed = listed.fine();
    assert!(
        listed.contains(&format!("{dotted}./front/image.raw")),
        "{listed}"
    );
    assert!(listed.contains("line\\nbreak \\u{1b}[2J"), "{listed}");
    assert!(!listed.contains('\u{1b}'), "{listed}");
    // Without `--prefix`, as `ls` prints it.
    let shown = run(&["show", &format!("{dotted}./front/image.raw")]).fine();
    assert!(shown.contains(&std::process::id().to_string()), "{shown}");
    drop(senders);
}

/// Scripts can rely on the exit codes.
#[test]
fn exit_codes() {
    let names = Names::new("codes");
    let codes = |arguments: &[&str]| names.run(arguments).code;
    assert_eq!(codes(&["ls", "--check"]), 0);
    let absent = names.run(&["show", "absent"]);
    assert!(
        absent.code == 3 && absent.text.is_empty() && absent.errors.contains("\"absent\""),
        "{absent:?}"
    );
    let absent = names.run(&["show", "absent", "--json"]);
    let found: Value = serde_json::from_str(&absent.text).unwrap();
    assert_eq!(
        (absent.code, &found["providers"], &found["channels"]),
        (3, &json!([]), &json!([]))
    );
    for wrong in [
        &["list"][..],
        &[],
        &["show"],
        &["who", "--for", "soon"],
        &["top", "--interval", "1ms"],
    ] {
        let printed = names.run(wrong);
        assert!(
            printed.code == 2 && printed.text.is_empty() && !printed.errors.is_empty(),
            "{printed:?}"
        );
    }
    for command in ["ls", "who", "sweep", "top"] {
        let printed = run(&[command, "--directory", "/nowhere/at/all"]);
        assert!(
            printed.code == 1
                && printed.errors.contains("/nowhere/at/all")
                && printed.text.is_empty(),
            "{printed:?}"
        );
    }
    let (owner, _) = Child::owner(&names.prefix, 1 << 20);
    assert_eq!(codes(&["ls", "--check"]), 0);
    owner.kill();
    assert_eq!((codes(&["ls", "--check"]), codes(&["ls"])), (4, 0));
    names.run(&["sweep", "--yes"]).fine();
    let help = run(&["--help"]).fine();
    assert!(
        (0..=4).all(|code| help.contains(&format!("\n  {code}  "))),
        "{help}"
    );
}

/// `shm-pool ls | head -1` does not panic.
#[test]
fn broken_pipe() {
    let names = Names::new("pipe");
    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["who", "--for", "0s"],
        &["top", "--once"],
        &["sweep"],
        &["--help"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = shm_pool(&[&["--prefix", &names.prefix], arguments].concat());
        let output = command
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), &output.stderr[..]),
            (Some(0), &b""[..]),
            "{arguments:?}"
        );
    }
}

/// An empty variable in a script does not lead to a sweep that reports nothing left.
#[test]
fn invalid_prefixes() {
    for prefix in ["", "a..b", "a b"] {
        let printed = run(&["--prefix", prefix, "sweep", "--yes"]);
        let library = shm_pool::Namespace::new(prefix).unwrap_err().to_string();
        assert!(
            printed.code == 2 && printed.errors.contains(&library),
            "{printed:?}"
        );
    }
}

/// The command line of another process cannot change what the operator's terminal shows.
#[test]
fn control_characters_are_escaped() {
    let names = Names::new("bidi");
    let task = Task::Owner {
        prefix: names.prefix.clone(),
        max_bytes: 1 << 20,
    };
    let owner = Child::start_as("/bin/\u{202e}tac\u{2066}\u{200f}\u{9b}x", &task);
    let id = owner.request::<u64>(&Request::Id);
    let id = format!("{id:016x}");
    for command in [
        &["ls"][..],
        &["who", "--for", "0s"],
        &["show", &id],
        &["top", "--once", "--interval", "100ms"],
    ] {
        let text = names.run(command).fine();
        assert!(
            text.contains("\\u{202e}tac\\u{2066}"),
            "{command:?}: {}",
            text.escape_unicode()
        );
        assert!(
            !text.contains(['\u{202e}', '\u{2066}', '\u{200f}', '\u{9b}']),
            "{command:?}"
        );
    }
    let printed = run(&["--directory", "/no/\u{202e}where", "ls"]);
    assert!(
        printed.errors.contains("\\u{202e}") && !printed.errors.contains('\u{202e}'),
        "{printed:?}"
    );
    owner.shut_down();
}

/// Error messages include their causes.
#[test]
fn causes_are_printed() {
    let printed = run(&["ls", "--directory", "/nowhere/at/all"]);
    assert_eq!(
        printed.errors.matches("os error 2").count(),
        1,
        "{printed:?}"
    );
}
