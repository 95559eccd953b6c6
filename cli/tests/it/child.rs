//! Owners and subscribers in processes of their own, and the test that is a child's whole program.
//! They communicate over a socket, the child's standard input. Each step ends with an answer, and a
//! late answer fails the test.

use crate::session;
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use shm_pool::channel::{Receiver, Sender, Subscriber as ChannelSubscriber};
use shm_pool::{Client, Descriptor, Namespace, Provider, ProviderId};
use shm_pool_support::process::{self, end_with_parent, inherited_input, this_test};
use shm_pool_support::wire;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest that a step may take on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a child does.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Builds a provider and serves [`Request`] requests.
    Owner { prefix: String, max_bytes: usize },
    /// Attaches to messages, answers, and holds them until the socket closes.
    Subscriber {
        prefix: String,
        messages: Vec<[u8; Descriptor::SIZE]>,
    },
    /// Opens a channel, answers, and receives nothing.
    Receiver { prefix: String, channel: String },
    /// The same for a publisher's channel.
    ChannelSubscriber { prefix: String, channel: String },
    /// Sends a message, answers, and stays until the socket closes.
    Sender { prefix: String, channel: String },
    /// Runs the whole session in a /dev/shm of its own.
    Session,
}

/// A request to an owner.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    Id,
    /// Publishes a message of this length, which the owner keeps: returns the descriptor, or the
    /// error.
    Publish(usize),
    Forget,
}

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

    /// Starts a child whose command line begins with `name`, as for a program that sets its own.
    pub(crate) fn start_as(name: &str, task: &Task) -> Self {
        let prepare = |command: &mut Command| {
            command.arg0(name);
        };
        Self::start_with(task, prepare).expect("a child process")
    }

    /// Starts a child after `prepare` has modified its command.
    pub(crate) fn start_with(task: &Task, prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let (link, theirs) = UnixStream::pair()?;
        link.set_read_timeout(Some(TIMEOUT))?;
        let mut command = this_test("child::entry", task)?;
        // libtest prints to standard output, so the socket is standard input.
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null());
        prepare(&mut command);
        Ok(Self {
            process: process::Child::start("child", &mut command)?,
            link,
        })
    }

    /// Starts an owner and waits for its provider. Its command line names the prefix.
    pub(crate) fn owner(prefix: &str, max_bytes: usize) -> (Self, ProviderId) {
        let task = Task::Owner {
            prefix: prefix.to_owned(),
            max_bytes,
        };
        let owner = Self::start_as(
            &format!("/opt/robot/{prefix} --device /dev/{prefix}0"),
            &task,
        );
        let id = owner.request::<u64>(&Request::Id);
        (owner, ProviderId::from(id))
    }

    /// Starts a subscriber and waits until it has attached to these messages.
    pub(crate) fn subscriber(prefix: &str, messages: &[[u8; Descriptor::SIZE]]) -> Self {
        let task = Task::Subscriber {
            prefix: prefix.to_owned(),
            messages: messages.to_vec(),
        };
        let subscriber = Self::start_as("/opt/robot/viewer --topic /front/image", &task);
        subscriber.answer::<()>();
        subscriber
    }

    /// Publishes a message of this length, which the owner keeps.
    pub(crate) fn publish(&self, len: usize) -> Published {
        self.request(&Request::Publish(len))
    }

    pub(crate) fn request<T: DeserializeOwned>(&self, request: &Request) -> T {
        wire::send(&self.link, request).unwrap();
        self.answer()
    }

    /// Waits for an answer. Fails the test if the child panics, exits or hangs instead.
    pub(crate) fn answer<T: DeserializeOwned>(&self) -> T {
        wire::expect(&self.link).unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process, and waits until it has stopped.
    pub(crate) fn stop(&self) {
        let id = Pid::from_raw(self.id() as i32);
        kill(id, Signal::SIGSTOP).unwrap();
        assert!(matches!(
            waitpid(id, Some(WaitPidFlag::WUNTRACED)),
            Ok(WaitStatus::Stopped(..))
        ));
    }

    /// Sends SIGKILL and reaps the process.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Waits until the process exits by itself, with success.
    pub(crate) fn finish(self) {
        self.process.finish().unwrap();
    }

    /// Closes the socket, which ends the child, and waits for it to exit.
    pub(crate) fn shut_down(self) {
        drop(self.link);
        self.process.finish().unwrap();
    }
}

/// The program of every child. Does nothing when run by hand.
#[test]
fn entry() {
    let Some(task) = process::task::<Task>() else {
        return;
    };
    end_with_parent().unwrap();
    let link = UnixStream::from(inherited_input().unwrap());
    match task {
        Task::Owner { prefix, max_bytes } => owner(&link, &prefix, max_bytes),
        Task::Subscriber { prefix, messages } => subscriber(&link, &prefix, &messages),
        Task::Receiver { prefix, channel } => {
            let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
            let _receiver = Receiver::builder()
                .namespace(client.namespace())
                .open(&channel)
                .unwrap();
            answer_and_wait(&link);
        }
        Task::ChannelSubscriber { prefix, channel } => {
            let _subscriber = ChannelSubscriber::builder()
                .namespace(&Namespace::new(&prefix).unwrap())
                .open_timeout(&channel, Duration::ZERO)
                .unwrap();
            answer_and_wait(&link);
        }
        Task::Sender { prefix, channel } => {
            let provider = Provider::builder()
                .namespace(&Namespace::new(&prefix).unwrap())
                .build()
                .unwrap();
            let mut sender = Sender::create(&provider, &channel).unwrap();
            sender.send_copy(b"last words").unwrap();
            answer_and_wait(&link);
        }
        Task::Session => session::run(&link),
    }
}

fn owner(link: &UnixStream, prefix: &str, max_bytes: usize) {
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(max_bytes)
        .max_shared(64)
        .build()
        .unwrap();
    let mut messages = Vec::new();
    while let Some(request) = wire::receive(link).unwrap() {
        match request {
            Request::Id => wire::send(link, &u64::from(provider.id())).unwrap(),
            Request::Forget => {
                messages.clear();
                wire::send(link, &()).unwrap();
            }
            Request::Publish(len) => {
                let published: Published = match provider.alloc(len) {
                    Ok(buffer) => {
                        let message = buffer.freeze();
                        let descriptor = message.descriptor().unwrap();
                        messages.push(message);
                        Ok(descriptor.to_bytes())
                    }
                    Err(error) => Err(error.to_string()),
                };
                wire::send(link, &published).unwrap();
            }
        }
    }
}

fn subscriber(link: &UnixStream, prefix: &str, messages: &[[u8; Descriptor::SIZE]]) {
    let client = Client::in_namespace(&Namespace::new(prefix).unwrap());
    let mut views = Vec::new();
    for bytes in messages {
        let descriptor = Descriptor::from_bytes(*bytes).unwrap();
        views.push(client.attach(&descriptor).unwrap());
    }
    answer_and_wait(link);
}

fn answer_and_wait(link: &UnixStream) {
    wire::send(link, &()).unwrap();
    assert!(wire::receive::<()>(link).unwrap().is_none());
}
