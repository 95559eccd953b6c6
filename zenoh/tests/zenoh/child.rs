//! Child processes that speak zenoh: this test binary, started again with only the test [`entry`]
//! and its role as its task. Parent and child talk in lines over a socket, the child's standard
//! input. An answer that does not come in time fails the test.

use crate::{cap, full_shm, killed, lingering, remote, small_shm, stream, threads, users};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use shm_pool_support::process::{self, inherited_input, this_test};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest time that a step may take on a machine under load.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One end of the socket.
pub(crate) struct Link {
    lines: BufReader<UnixStream>,
}

impl Link {
    fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self {
            lines: BufReader::new(socket),
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.lines
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    /// The next line. It is empty when the other end has closed.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines
            .read_line(&mut line)
            .expect("a line within the time");
        line.trim_end().to_owned()
    }

    /// Reads the next line, and fails unless it is `line`.
    pub(crate) fn expect(&mut self, line: &str) {
        assert_eq!(self.hear(), line);
    }
}

/// A child process. It is killed and reaped on drop.
pub(crate) struct Child {
    process: process::Child,
    pub(crate) link: Link,
}

impl Child {
    /// Starts a child in a role.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Self {
        Self::start_with(role, arguments, |_| ()).unwrap()
    }

    /// Starts a child in a role, after `prepare` has changed its command.
    pub(crate) fn start_with(
        role: &str,
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = this_test("child::entry", &[&[role], arguments].concat())?;
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null());
        prepare(&mut command);
        Ok(Self {
            process: process::Child::start(role, &mut command)?,
            link: Link::new(ours),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process, and waits until none of its threads runs.
    pub(crate) fn stop(&self) {
        kill(Pid::from_raw(self.id() as i32), Signal::SIGSTOP).unwrap();
        while !is_stopped(self.id()) {
            std::thread::yield_now();
        }
    }

    /// Continues the process if it is stopped.
    pub(crate) fn resume(&self) {
        kill(Pid::from_raw(self.id() as i32), Signal::SIGCONT).unwrap();
    }

    /// Kills the process with SIGKILL, and waits until it has exited.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Waits until the process has exited by itself, and fails if it does not succeed.
    pub(crate) fn finish(mut self) {
        assert_eq!(self.link.hear(), "", "the child says nothing more");
        self.process.finish().unwrap();
    }

    /// Asks the child to end, and waits until it has.
    pub(crate) fn end(mut self) {
        self.link.say("end");
        self.finish();
    }
}

/// Returns `true` if all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().all(|thread| {
        fs::read_to_string(thread.path().join("stat"))
            .is_ok_and(|stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
    })
}

/// The program of every child. In a run by hand it does nothing.
#[test]
fn entry() {
    let Some(task) = process::task::<Vec<String>>() else {
        return;
    };
    let arguments: Vec<&str> = task.iter().map(String::as_str).collect();
    let mut link = Link::new(UnixStream::from(inherited_input().unwrap()));
    match arguments[..] {
        ["receiver"] => killed::receiver(&mut link),
        ["holder", endpoint, key] => users::holder(&mut link, endpoint, key),
        ["reader", ..] => stream::reader(&mut link, &arguments[1..]),
        ["router", memory] => remote::router(&mut link, memory),
        ["asker", endpoint, memory] => users::asker(&mut link, endpoint, memory),
        ["full-shm"] => full_shm::role(&mut link),
        ["small-shm", ..] => small_shm::publisher(&mut link, &arguments[1..]),
        ["late-receiver", memory] => small_shm::late_receiver(&mut link, memory),
        ["collector", endpoint, ready] => small_shm::collector(&mut link, endpoint, ready),
        ["leaver", memory, endpoint] => lingering::leaver(&mut link, memory, endpoint),
        ["log-panics"] => lingering::log_panics(),
        ["stopped-receiver"] => lingering::stopped_receiver(&mut link),
        ["threads"] => threads::role(&mut link),
        ["without-metadata"] => cap::without_metadata(&mut link),
        ["stopped"] => cap::stopped(&mut link),
        ["publisher", memory, endpoint, len, byte] => {
            killed::publisher(&mut link, memory, endpoint, len, byte)
        }
        _ => panic!("no role {arguments:?}"),
    }
}
