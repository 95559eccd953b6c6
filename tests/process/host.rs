//! What the crate does to the process of a program, and what happens to it when the program forks,
//! executes another one, or exits.

use crate::child::{in_child_for, Child};
use crate::shm::{self, Names};
use crate::sys;
use crate::threads::wait_until_asleep;
use crate::wire::{Link, Message, FOR_EVER};
use nix::unistd::gettid;
use shm_pool::channel::{OnEnd, Publisher, RecvError, Subscriber};
use shm_pool::{Namespace, Provider};
use shm_pool_support::procfs;
use shm_pool_support::tasks::{noop_waker, poll_once};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{self, Command};
use std::sync::mpsc;
use std::{env, fs, thread};

const CHANNEL: &str = "c";
const LEN: usize = 100_000;
const SEED: u64 = 9;

/// `O_CLOEXEC` as /proc shows it, in octal.
const CLOSED_BY_EXEC: u32 = 0o2_000_000;

fn provider(namespace: &Namespace) -> Provider {
    let builder = Provider::builder().namespace(namespace);
    builder.max_bytes(4 << 20).build().unwrap()
}

fn subscriber(namespace: &Namespace) -> Subscriber {
    let builder = Subscriber::builder().namespace(namespace);
    builder.on_end(OnEnd::Return).open(CHANNEL).unwrap()
}

/// What a library should leave alone.
#[derive(Debug, PartialEq)]
struct Settings {
    /// Masks and dispositions of signals of this thread, and the umask.
    status: Vec<String>,
    limits: String,
    environment: BTreeMap<OsString, OsString>,
    directory: PathBuf,
    robust_list: u64,
}

impl Settings {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let names = ["SigBlk:", "SigIgn:", "SigCgt:", "Umask:", "NoNewPrivs:"];
        let is_setting = |line: &&str| names.iter().any(|name| line.starts_with(name));
        Self {
            status: status
                .lines()
                .filter(is_setting)
                .map(str::to_owned)
                .collect(),
            limits: fs::read_to_string("/proc/self/limits").unwrap(),
            environment: env::vars_os().collect(),
            directory: env::current_dir().unwrap(),
            robust_list: sys::robust_list(gettid().as_raw()),
        }
    }
}

/// The open descriptors, with their flags.
fn descriptors() -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap() {
        let entry = entry.unwrap();
        // The one that lists this directory is closed by now.
        let Ok(info) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        let number = entry.file_name().to_str().unwrap().parse().unwrap();
        found.insert(number, flags);
    }
    found
}

/// A process that has used everything is as before, but for the thread that stays.
#[test]
fn settings_stay() {
    in_child_for("settings", |prefix| {
        let namespace = shm::namespace(prefix);
        let before = Settings::now();
        let open_before = descriptors();
        {
            let provider = provider(&namespace);
            let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
            let mut receiving = subscriber(&namespace);
            let waker = noop_waker();
            {
                let mut waiting = pin!(receiving.recv_async());
                assert!(poll_once(waiting.as_mut(), &waker).is_none());
                let all = provider.alloc(4 << 20).unwrap();
                let mut memory = pin!(provider.request(LEN).wait_async());
                assert!(poll_once(memory.as_mut(), &waker).is_none());
                assert_eq!(Settings::now(), before, "while it waits");
                drop(all);
            }
            publisher.wait_for_receivers(1, FOR_EVER).unwrap();
            publisher.send(shm::message(&provider, LEN, SEED)).unwrap();
            shm::check(&receiving.recv().unwrap(), SEED).unwrap();
            assert_eq!(Settings::now(), before, "while it is used");

            for (number, flags) in descriptors() {
                let is_closed = flags & CLOSED_BY_EXEC != 0;
                assert!(
                    is_closed || open_before.contains_key(&number),
                    "descriptor {number} stays open in the programs that this one starts"
                );
            }
        }
        assert_eq!(Settings::now(), before, "afterwards");
        // Helper threads end a little later, and then close and unmap theirs.
        let numbers = |open: BTreeMap<u32, u32>| open.into_keys().collect::<BTreeSet<_>>();
        while numbers(descriptors()) != numbers(open_before.clone()) || shm::mappings(prefix) > 0 {
            thread::yield_now();
        }
        assert_eq!(procfs::threads("shm-pool-keeper").unwrap(), 1);
    });
}

/// A program that this one starts gets no descriptor and no name of an object. The standard library
/// calls `posix_spawn`, which does not run the handlers of `fork`.
#[test]
fn spawned_program() {
    in_child_for("spawned", |prefix| {
        let open = || {
            let mut command = Command::new("sh");
            let output = command.args(["-c", "ls /proc/$$/fd"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let before = open();
        let namespace = shm::namespace(prefix);
        let provider = provider(&namespace);
        let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
        let mut receiving = subscriber(&namespace);
        assert_eq!(open(), before);

        // This process still has its ends.
        thread::scope(|scope| {
            let received = scope.spawn(|| shm::check(&receiving.recv().unwrap(), SEED));
            publisher.wait_for_receivers(1, FOR_EVER).unwrap();
            publisher.send(shm::message(&provider, LEN, SEED)).unwrap();
            received.join().unwrap().unwrap();
        });
    });
}

role!("host-publishes", publishing_role);

/// The role of a publisher that sends a message, and then becomes something else at `Go`.
fn publishing_role(link: &Link, arguments: &[&str]) {
    let namespace = shm::namespace(arguments[0]);
    let provider = provider(&namespace);
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    publisher.send(shm::message(&provider, LEN, SEED)).unwrap();
    link.expect_go();
    match arguments[1] {
        "another program" => {
            let error = Command::new("sleep").arg("1000").exec();
            panic!("it goes on: {error}");
        }
        "a daemon" => {
            sys::become_daemon().unwrap();
            // A forked child: the parent has exited.
            sys::end_with(|| {
                let message = provider.alloc(LEN).unwrap_err();
                let sent = publisher.send_copy(&[1]).unwrap_err();
                link.send(&Message::Refused(format!("{message:?}, {:?}", sent.kind())));
            })
        }
        "nothing" => exit_beside_waits(&namespace, provider),
        other => panic!("{other}"),
    }
}

/// Exits on a thread, while the others wait for messages, memory and names.
fn exit_beside_waits(namespace: &Namespace, provider: Provider) {
    let held = provider.alloc(3 << 20).unwrap();
    let builder = Subscriber::builder().namespace(namespace);
    let mut of_absent = builder.open("absent").unwrap();
    let (sender, waiting) = mpsc::channel();
    thread::scope(|scope| {
        let for_memory = sender.clone();
        let provider = &provider;
        scope.spawn(move || {
            for_memory.send(gettid().as_raw()).unwrap();
            provider.request(3 << 20).wait()
        });
        scope.spawn(move || {
            sender.send(gettid().as_raw()).unwrap();
            of_absent.recv()
        });
        scope.spawn(move || {
            for thread in waiting.iter().take(2) {
                wait_until_asleep(thread);
            }
            process::exit(7)
        });
    });
    drop(held);
}

/// Has a publisher become something else. Its message has arrived before. What follows is the end of
/// its channel, once `then` is satisfied.
fn becomes(what: &str, test: &str, then: impl FnOnce(Child)) {
    let names = Names::new(test);
    let child = Child::start("host-publishes", &[names.prefix(), what]);
    let mut receiving = subscriber(&names.namespace());
    shm::check(&receiving.recv().unwrap(), SEED).unwrap();
    child.send(&Message::Go);
    let end = receiving.recv();
    assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
    then(child);
    names.sweep();
}

/// `exec` closes everything. The process lives on, and its publisher does not.
#[test]
fn publisher_executes_another_program() {
    becomes("another program", "host-exec", drop);
}

/// `daemon` forks, and the parent exits: what was created before is lost with it.
#[test]
fn publisher_becomes_a_daemon() {
    becomes("a daemon", "host-daemon", |child| {
        let refused = Message::Refused("Forked, Forked".to_owned());
        assert_eq!(child.receive(), refused);
    });
}

#[test]
fn exit_beside_threads_that_wait() {
    becomes("nothing", "host-exit", |child| {
        assert_eq!(child.ended().code(), Some(7));
    });
}
