//! Owners and subscribers in processes of their own, and the test that is a child's whole program.
//! They talk over a socket, the child's standard input. Every step is an answer, and an answer that
//! is late fails the test.

use crate::session;
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Descriptor, Provider, ProviderId};
use shm_pool_support::process::{self, end_with_parent, inherited_input, this_test};
use shm_pool_support::wire;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest time that a step may take on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a child does.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Has a provider, and does what [`Ask`] says.
    Owner { prefix: String, max_bytes: usize },
    /// Attaches to messages, says so, and holds them until the socket closes.
    Subscriber { prefix: String, messages: Vec<[u8; Descriptor::SIZE]> },
    /// Opens a channel, says so, and receives nothing.
    Receiver { prefix: String, channel: String },
    /// Sends a message, says so, and stays until the socket closes.
    Sender { prefix: String, channel: String },
    /// In a /dev/shm of its own: the whole session.
    Session,
}

/// What an owner is asked for.
#[derive(Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Its id.
    Id,
    /// A message of this length, which the owner keeps: the descriptor, or why there is none.
    Publish(usize),
    /// To drop its messages.
    Forget,
}

/// The answer to [`Ask::Publish`].
pub(crate) type Published = Result<[u8; Descriptor::SIZE], String>;

/// A child process, killed and reaped on drop.
pub(crate) struct Child {
    process: process::Child,
    link: UnixStream,
}

impl Child {
    pub(crate) fn start(task: &Task) -> Self {
        Self::start_with(task, |_| ()).expect("a child process")
    }

    /// Starts a child whose command line begins so, as that of a program which sets it.
    fn start_as(name: &str, task: &Task) -> Self {
        let prepare = |command: &mut Command| {
            command.arg0(name);
        };
        Self::start_with(task, prepare).expect("a child process")
    }

    /// Starts a child after `prepare` has changed its command.
    pub(crate) fn start_with(task: &Task, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let (link, theirs) = UnixStream::pair()?;
        link.set_read_timeout(Some(PATIENCE))?;
        let mut command = this_test("child::entry", task)?;
        // libtest prints to standard output, so the socket is standard input.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        prepare(&mut command);
        Ok(Self { process: process::Child::start("child", &mut command)?, link })
    }

    /// An owner that is there, and its provider. The command says what it is for.
    pub(crate) fn owner(prefix: &str, max_bytes: usize) -> (Self, ProviderId) {
        let task = Task::Owner { prefix: prefix.to_owned(), max_bytes };
        let owner = Self::start_as(&format!("/opt/robot/{prefix} --device /dev/{prefix}0"), &task);
        let id = owner.ask::<u64>(&Ask::Id);
        (owner, ProviderId::from_u64(id))
    }

    /// A subscriber that has attached to these messages.
    pub(crate) fn subscriber(prefix: &str, messages: &[[u8; Descriptor::SIZE]]) -> Self {
        let task = Task::Subscriber { prefix: prefix.to_owned(), messages: messages.to_vec() };
        let subscriber = Self::start_as("/opt/robot/viewer --topic /front/image", &task);
        subscriber.hear::<()>();
        subscriber
    }

    pub(crate) fn ask<T: DeserializeOwned>(&self, what: &Ask) -> T {
        wire::send(&self.link, what).unwrap();
        self.hear()
    }

    /// Waits for an answer. Fails the test if the child panics, ends or hangs instead.
    pub(crate) fn hear<T: DeserializeOwned>(&self) -> T {
        wire::expect(&self.link).unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process, and waits until it is.
    pub(crate) fn stop(&self) {
        let id = Pid::from_raw(self.id() as i32);
        kill(id, Signal::SIGSTOP).unwrap();
        assert!(matches!(waitpid(id, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(..))));
    }

    /// Sends SIGKILL. When this returns, the process is gone.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Waits until the process has ended by itself, as it must, with success.
    pub(crate) fn finish(self) {
        self.process.finish().unwrap();
    }

    /// Has the process end, and waits until it has.
    pub(crate) fn shut_down(self) {
        drop(self.link);
        self.process.finish().unwrap();
    }
}

/// The program of every child. Does nothing when run by hand.
#[test]
fn entry() {
    let Some(task) = process::task::<Task>() else { return };
    end_with_parent().unwrap();
    let link = UnixStream::from(inherited_input().unwrap());
    match task {
        Task::Owner { prefix, max_bytes } => owner(&link, &prefix, max_bytes),
        Task::Subscriber { prefix, messages } => subscriber(&link, &prefix, &messages),
        Task::Receiver { prefix, channel } => {
            let client = Client::builder().name_prefix(&prefix).build().unwrap();
            let _receiver = Receiver::open(&client, &channel).unwrap();
            say_and_stay(&link);
        }
        Task::Sender { prefix, channel } => {
            let provider = Provider::builder().name_prefix(&prefix).build().unwrap();
            let mut sender = Sender::create(&provider, &channel).unwrap();
            sender.send_bytes(b"last words").unwrap();
            say_and_stay(&link);
        }
        Task::Session => session::run(&link),
    }
}

fn owner(link: &UnixStream, prefix: &str, max_bytes: usize) {
    let provider = Provider::builder().name_prefix(prefix).max_bytes(max_bytes).max_shared(64).build().unwrap();
    let mut messages = Vec::new();
    while let Some(asked) = wire::receive(link).unwrap() {
        match asked {
            Ask::Id => wire::send(link, &provider.id().to_u64()).unwrap(),
            Ask::Forget => {
                messages.clear();
                wire::send(link, &()).unwrap();
            }
            Ask::Publish(len) => {
                let published: Published = provider.alloc(len).map_err(|error| error.to_string()).map(|buffer| {
                    messages.push(buffer.freeze());
                    messages[messages.len() - 1].descriptor().unwrap().to_bytes()
                });
                wire::send(link, &published).unwrap();
            }
        }
    }
}

fn subscriber(link: &UnixStream, prefix: &str, messages: &[[u8; Descriptor::SIZE]]) {
    let client = Client::builder().name_prefix(prefix).build().unwrap();
    let attach = |bytes: &[u8; Descriptor::SIZE]| client.attach(&Descriptor::from_bytes(*bytes).unwrap()).unwrap();
    let _views: Vec<_> = messages.iter().map(attach).collect();
    say_and_stay(link);
}

fn say_and_stay(link: &UnixStream) {
    wire::send(link, &()).unwrap();
    assert!(wire::receive::<()>(link).unwrap().is_none());
}
