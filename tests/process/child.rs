//! Child processes: how to start, query and kill one, and the test that serves as a child's entire
//! program.

pub(crate) use crate::own_shm::skip;
use crate::sys;
use crate::wire::{Link, Message};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use shm_pool_support::process::{self, inherited_input, this_test};
use std::io;
use std::panic;
use std::process::{Command, ExitStatus, Stdio};

/// A role: what a child does instead of running tests. It is given its end of the socket, and
/// arguments. Declared by [`role!`] beside the test that starts it.
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Link, &[&str]),
}

inventory::collect!(Role);

/// Declares the function that a child runs in the role of this name.
macro_rules! role {
    ($name:literal, $run:expr) => {
        inventory::submit! { crate::child::Role { name: $name, run: $run } }
    };
}

/// A child process, killed and reaped on drop.
pub(crate) struct Child {
    process: process::Child,
    link: Link,
}

impl Child {
    /// Starts a child in a role.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Self {
        Self::start_with(role, arguments, |_| ()).expect("a child process")
    }

    /// Starts a child in a role, after `prepare` has adjusted the command.
    pub(crate) fn start_with(role: &str, arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let (link, theirs) = Link::pair();
        // A test's name is its path without the crate.
        let (_, module) = module_path!().split_once("::").expect("a module of a test binary");
        let mut command = this_test(&format!("{module}::entry"), &[&[role], arguments].concat())?;
        // libtest prints to standard output, so the socket is standard input.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        prepare(&mut command);
        Ok(Self { process: process::Child::start(role, &mut command)?, link })
    }

    /// Sends a message and waits for the reply.
    pub(crate) fn ask(&self, message: &Message) -> Message {
        self.tell(message);
        self.hear()
    }

    /// Sends a message.
    pub(crate) fn tell(&self, message: &Message) {
        self.link.send(message);
    }

    /// Waits for a message. Fails the test if the child panics, exits or hangs instead.
    pub(crate) fn hear(&self) -> Message {
        match self.next() {
            Some(message) => message,
            None => panic!("child {:?} ended without an answer", self.process.name()),
        }
    }

    /// Waits for the child to report success.
    pub(crate) fn expect_done(&self) {
        assert_eq!(self.hear(), Message::Done, "child {:?}", self.process.name());
    }

    /// Waits for the child to exit by itself without another message, and returns its exit status.
    pub(crate) fn ended(mut self) -> ExitStatus {
        if let Some(message) = self.next() {
            panic!("child {:?} was to end, but says {message:?}", self.process.name());
        }
        // The socket is closed, so the process is exiting, and this cannot hang.
        self.process.wait().expect("a child that was not reaped yet")
    }

    /// Waits for the child to exit successfully.
    pub(crate) fn finish(self) {
        let status = self.ended();
        assert!(status.success(), "{status}");
    }

    /// Closes the child's input, and waits for it to exit successfully.
    pub(crate) fn shut_down(self) {
        self.link.end();
        self.finish();
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process, and waits until it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let status = waitpid(Pid::from_raw(self.id() as i32), Some(WaitPidFlag::WUNTRACED)).expect("a child");
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        sys::signal(self.process.id(), signal);
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Like [`kill`](Self::kill), but keeps the socket: a process that the child forked may hold
    /// the other end.
    pub(crate) fn kill_but_keep_link(mut self) -> Link {
        let (link, _) = Link::pair();
        std::mem::replace(&mut self.link, link)
    }

    fn next(&self) -> Option<Message> {
        match self.link.receive() {
            Ok(Some(Message::Panicked(text))) => panic!("child {:?} failed: {text}", self.process.name()),
            Ok(message) => message,
            Err(error) => panic!("child {:?} hangs: no answer before the deadline ({error})", self.process.name()),
        }
    }
}

/// The program of every child. Does nothing when run by hand.
#[test]
fn entry() {
    let Some(task) = process::task::<Vec<String>>() else { return };
    sys::be_a_child();
    let parts: Vec<&str> = task.iter().map(String::as_str).collect();
    let role = inventory::iter::<Role>().find(|role| role.name == parts[0]).expect("a role of that name");
    let socket = || inherited_input().expect("the standard input is a socket");
    let to_report = Link::of_child(socket());
    panic::set_hook(Box::new(move |info| to_report.send(&Message::Panicked(info.to_string()))));
    (role.run)(&Link::of_child(socket()), &parts[1..]);
}

/// Runs a role in a process that has its own /dev/shm of 4 MiB.
pub(crate) fn run_in_small_shm(role: &str, arguments: &[&str]) {
    match Child::start_with(role, arguments, sys::give_small_shm) {
        Ok(child) => {
            child.expect_done();
            child.finish();
        }
        Err(error) => skip(&format!("no mount namespace of our own: {error}")),
    }
}
