//! Other processes: this program again, with a task, or another program. None outlives its handle.

use crate::Fallible;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{de::DeserializeOwned, Serialize};
use std::env;
use std::io::{self, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{self, ChildStdin, ChildStdout, Command, ExitCode};

/// Contains the task of a process that [`this_program`] started. Absent in a run by hand.
const VARIABLE: &str = "SHM_POOL_TASK";

/// A process; killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: process::Child,
}

impl Child {
    /// Starts a process, called `name` in errors.
    pub fn start(name: impl Into<String>, command: &mut Command) -> io::Result<Self> {
        Ok(Self {
            name: name.into(),
            process: command.spawn()?,
        })
    }

    /// Returns its name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its standard input, if that is a pipe, once.
    pub fn input(&mut self) -> Fallible<ChildStdin> {
        Ok(self.process.stdin.take().ok_or("no pipe")?)
    }

    /// Returns its standard output, if that is a pipe, once.
    pub fn output(&mut self) -> Fallible<ChildStdout> {
        Ok(self.process.stdout.take().ok_or("no pipe")?)
    }

    /// Waits until it has [reported](say_ready) that it is ready.
    pub fn wait_until_ready(&mut self) -> Fallible {
        let mut output = self.output()?;
        match output.read_exact(&mut [0]) {
            Ok(()) => Ok(()),
            Err(error) => Err(format!("the {} has not begun: {error}", self.name).into()),
        }
    }

    /// Returns an error if it has exited.
    pub fn check_alive(&mut self) -> Fallible {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the {} ended early: {status}", self.name).into()),
        }
    }

    /// Waits until it exits, and checks that it succeeded.
    pub fn finish(mut self) -> Fallible {
        let status = self.process.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the {} failed: {status}", self.name).into())
        }
    }
}

impl Deref for Child {
    type Target = process::Child;

    fn deref(&self) -> &process::Child {
        &self.process
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut process::Child {
        &mut self.process
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if it has exited, and was waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a command that runs this program again, with a task.
pub fn this_program(task: &impl Serialize) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.env(VARIABLE, serde_json::to_string(task)?);
    Ok(command)
}

/// Returns a command that runs this test binary again, with a task and the one test `entry`, given
/// by its path.
pub fn this_test(entry: &str, task: &impl Serialize) -> io::Result<Command> {
    let mut command = this_program(task)?;
    command.args([entry, "--exact", "--nocapture", "--test-threads=1"]);
    Ok(command)
}

/// Returns this process's task, or `None` in a run by hand.
pub fn task<T: DeserializeOwned>() -> Option<T> {
    let text = env::var(VARIABLE).ok()?;
    Some(serde_json::from_str(&text).expect("a task of this program"))
}

/// Returns the standard input as it was inherited: a socket, a pipe or memory.
pub fn inherited_input() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

/// Returns the standard output as it was inherited.
pub fn inherited_output() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Writes a byte to the standard output, for the process that
/// [waits](Child::wait_until_ready): this one has created what the other opens.
pub fn say_ready() -> io::Result<()> {
    io::stdout().write_all(b".")?;
    io::stdout().flush()
}

/// Makes this process exit when its parent exits, in whatever way.
pub fn end_with_parent() -> Fallible {
    Ok(set_pdeathsig(Signal::SIGKILL)?)
}

/// Returns the exit code of a program or a role, and prints an error under its name.
pub fn exit_code(name: &str, outcome: Fallible) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one call, so that two processes do not mix their lines.
            let mut lines = String::new();
            for line in error.to_string().lines() {
                lines += &format!("{name}: {line}\n");
            }
            eprint!("{lines}");
            ExitCode::FAILURE
        }
    }
}
