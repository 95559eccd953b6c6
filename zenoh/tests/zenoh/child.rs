//! Child processes that use zenoh. Each is this test binary, started again to run only the test
//! [`entry`], with its role as the task. Parent and child exchange lines over a socket, which is
//! the child's standard input. A line that does not arrive in time fails the test.

use crate::own_shm::{give_shm, skip};
use crate::support::MINUTE;
use crate::{cap, full_shm, killed, lingering, remote, small_shm, stream, threads, users};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use shm_pool_support::process::{self, inherited_input, this_test};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// One end of the socket.
pub(crate) struct Link {
    lines: BufReader<UnixStream>,
}

impl Link {
    fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(MINUTE)).unwrap();
        Self {
            lines: BufReader::new(socket),
        }
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &str) {
        self.lines
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    /// Waits for the next line. It is empty when the other end is closed.
    pub(crate) fn receive(&mut self) -> String {
        let mut line = String::new();
        self.lines
            .read_line(&mut line)
            .expect("a line within the time");
        line.trim_end().to_owned()
    }

    /// Waits for the next line, and fails unless it is `line`.
    pub(crate) fn expect(&mut self, line: &str) {
        assert_eq!(self.receive(), line);
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

    /// Starts a child in a role with its own /dev/shm, which `options` describe: those of a tmpfs,
    /// with a NUL at the end. Returns `None` where that is not permitted.
    pub(crate) fn start_with_shm(
        role: &str,
        arguments: &[&str],
        options: &'static [u8],
    ) -> Option<Self> {
        match Self::start_with(role, arguments, |command| give_shm(command, options)) {
            Ok(child) => Some(child),
            Err(error) => {
                skip(&format!("no mount namespace of our own: {error}"));
                None
            }
        }
    }

    /// Starts a child in a role, after `prepare` has changed its command.
    fn start_with(
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
        assert_eq!(self.link.receive(), "", "the child sends nothing more");
        self.process.finish().unwrap();
    }

    /// Makes the child end, and waits until it has exited.
    pub(crate) fn end(mut self) {
        self.link.send("end");
        self.finish();
    }
}

/// Returns `true` if all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let Ok(thread) = thread else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else {
            return false;
        };
        // The state follows the thread's name, which is in parentheses.
        let (_, state) = stat.rsplit_once(") ").unwrap();
        if !state.starts_with('T') {
            return false;
        }
    }
    true
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
        ["querier", endpoint, memory] => users::querier(&mut link, endpoint, memory),
        ["full-shm"] => full_shm::role(&mut link),
        ["small-shm", ..] => small_shm::publisher(&mut link, &arguments[1..]),
        ["late-receiver", memory] => small_shm::late_receiver(&mut link, memory),
        ["collector", endpoint, ready] => small_shm::collector(&mut link, endpoint, ready),
        ["exiting-publisher", memory, endpoint] => {
            lingering::exiting_publisher(&mut link, memory, endpoint)
        }
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
