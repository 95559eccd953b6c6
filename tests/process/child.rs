//! Child processes: how to start, query and kill one, and the test that serves as a child's entire
//! program.

pub(crate) use crate::own_shm::skip;
use crate::shm::Names;
use crate::sys;
use crate::wire::{Link, Message};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use shm_pool::Descriptor;
use shm_pool_support::process::{self, inherited_input, this_test};
use std::any::type_name;
use std::io;
use std::os::fd::AsRawFd;
use std::os::raw::c_long;
use std::panic;
use std::process::{Command, ExitStatus, Stdio};

/// A role: a program that a child runs instead of tests. It gets its end of the socket, and
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

    /// Starts a child in a role that first reports success.
    pub(crate) fn start_ready(role: &str, arguments: &[&str]) -> Self {
        let child = Self::start(role, arguments);
        child.expect_done();
        child
    }

    /// Starts a child in a role, after `prepare` has adjusted the command.
    pub(crate) fn start_with(
        role: &str,
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        // A test's name is its path without the crate.
        let (_, module) = module_path!()
            .split_once("::")
            .expect("a module of a test binary");
        let command = this_test(&format!("{module}::entry"), &[&[role], arguments].concat())?;
        Self::run(command, role, prepare)
    }

    fn run(
        mut command: Command,
        name: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let (link, theirs) = Link::pair();
        // libtest prints to standard output, so the socket is standard input.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
        prepare(&mut command);
        Ok(Self {
            process: process::Child::start(name, &mut command)?,
            link,
        })
    }

    /// Sends a message and waits for the reply.
    pub(crate) fn request(&self, message: &Message) -> Message {
        self.send(message);
        self.receive()
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &Message) {
        self.link.send(message);
    }

    /// Waits for a message. Fails the test if the child panics, exits or hangs instead.
    pub(crate) fn receive(&self) -> Message {
        match self.next() {
            Some(message) => message,
            None => panic!("child {:?} ended without an answer", self.process.name()),
        }
    }

    /// Waits for the number that the child answers.
    pub(crate) fn number(&self) -> u64 {
        match self.receive() {
            Message::Number(number) => number,
            other => panic!("not a number: {other:?}"),
        }
    }

    /// Waits for the descriptor of a message that the child sends.
    pub(crate) fn sent(&self) -> Descriptor {
        match self.receive() {
            Message::Sent(descriptor) => descriptor,
            other => panic!("not a descriptor: {other:?}"),
        }
    }

    /// Waits for the child to report success.
    pub(crate) fn expect_done(&self) {
        assert_eq!(
            self.receive(),
            Message::Done,
            "child {:?}",
            self.process.name()
        );
    }

    /// Waits for the child to exit by itself without another message, and returns its exit status.
    pub(crate) fn ended(mut self) -> ExitStatus {
        if let Some(message) = self.next() {
            panic!(
                "child {:?} was to end, but says {message:?}",
                self.process.name()
            );
        }
        // The socket is closed, so the process is exiting, and this cannot hang.
        self.process
            .wait()
            .expect("a child that was not reaped yet")
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
        let status = waitpid(
            Pid::from_raw(self.id() as i32),
            Some(WaitPidFlag::WUNTRACED),
        )
        .expect("a child");
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
            Ok(Some(Message::Panicked(text))) => {
                panic!("child {:?} failed: {text}", self.process.name())
            }
            Ok(message) => message,
            Err(error) => panic!(
                "child {:?} hangs: no answer before the deadline ({error})",
                self.process.name()
            ),
        }
    }
}

/// The program of every child in a role. Does nothing when run by hand.
#[test]
fn entry() {
    let Some(task) = process::task::<Vec<String>>() else {
        return;
    };
    let parts: Vec<&str> = task.iter().map(String::as_str).collect();
    let role = inventory::iter::<Role>()
        .find(|role| role.name == parts[0])
        .expect("a role of that name");
    (role.run)(&be_a_child(), &parts[1..]);
}

/// Limits this process to a child's life, and has its panics reported. Returns its end of the socket.
fn be_a_child() -> Link {
    sys::be_a_child();
    let socket = || Link::of_child(inherited_input().expect("the standard input is a socket"));
    let to_report = socket();
    panic::set_hook(Box::new(move |info| {
        to_report.send(&Message::Panicked(info.to_string()))
    }));
    socket()
}

/// Runs a role that ends in [`answer_without_calls`]. Returns how many objects it left, because a
/// process without system calls cannot remove any.
pub(crate) fn run_without_calls(role: &str, answers: usize) -> usize {
    let names = Names::new(role);
    let child = Child::start(role, &[names.prefix()]);
    for _ in 0..answers {
        child.expect_done();
    }
    child.kill();
    names.sweep()
}

/// Forbids this thread all system calls but those that strict mode and `more` allow, answers whether
/// `work` succeeds, and exits the thread.
pub(crate) fn answer_without_calls(link: &Link, more: &[c_long], work: impl FnOnce() -> bool) -> ! {
    let socket = link.as_raw_fd();
    let good = Message::Done.to_frame();
    let bad = Message::Trim.to_frame();
    let filter = sys::Filter::allowing(&[&sys::STRICT, more].concat());
    filter.enter().unwrap();
    let is_good = work();
    sys::write(socket, if is_good { &good } else { &bad });
    sys::exit_thread();
}

/// Runs the body of a test in a process of its own, where it may fork, limit its resources or crash.
/// The body gets a name prefix.
pub(crate) fn in_child(body: impl Fn(&str)) {
    in_child_for("", body);
}

/// The same for one of several cases of a test, each in its own process.
pub(crate) fn in_child_for(case: &str, body: impl Fn(&str)) {
    try_in_child(case, |_| (), body).expect("a child process");
}

/// Like [`in_child`], in a process that has its own /dev/shm of 4 MiB, where that is permitted.
pub(crate) fn in_small_shm(body: impl Fn(&str)) {
    in_small_shm_for("", body);
}

pub(crate) fn in_small_shm_for(case: &str, body: impl Fn(&str)) {
    skip_without_mounts(try_in_child(case, sys::give_small_shm, body));
}

/// Reports why a test cannot run here if no process could be started with its own mounts.
pub(crate) fn skip_without_mounts<T>(started: io::Result<T>) -> Option<T> {
    started
        .map_err(|error| skip(&format!("no mount namespace of our own: {error}")))
        .ok()
}

/// Runs the body of a test in a process of its own, after `prepare` has adjusted the command. That
/// process runs the same test, and gets past all cases but its own.
pub(crate) fn try_in_child<F: Fn(&str)>(
    case: &str,
    prepare: impl FnOnce(&mut Command),
    body: F,
) -> io::Result<()> {
    if let Some(task) = process::task::<[String; 2]>() {
        if task[0] == case {
            let link = be_a_child();
            body(&task[1]);
            link.send(&Message::Done);
        }
        return Ok(());
    }
    // A test's name is its path without the crate. The body is a closure in the test.
    let path = type_name::<F>()
        .split_once("::")
        .expect("a test in a module")
        .1;
    let (test, _closure) = path.split_once("::{{").expect("a closure in a test");
    let names = Names::new(
        &[test.rsplit("::").next().unwrap_or(test), case]
            .join("-")
            .replace(' ', "-"),
    );
    let child = Child::run(this_test(test, &[case, names.prefix()])?, test, prepare)?;
    child.expect_done();
    child.finish();
    Ok(())
}
