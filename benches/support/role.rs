//! The other process: this program again, in a role.

use super::Fallible;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::env;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// For the beginning of a role: this process ends when the one ends that started it, however that ends.
pub(crate) fn end_with_parent() -> Fallible {
    Ok(set_pdeathsig(Signal::SIGKILL)?)
}

/// A process that was started; killed if this program fails before it has ended.
pub(crate) struct Role {
    name: &'static str,
    child: Child,
}

impl Role {
    /// Starts this program with arguments, the first of which names the role.
    pub(crate) fn start<A: AsRef<OsStr>>(
        name: &'static str,
        arguments: impl IntoIterator<Item = A>,
        input: impl Into<Stdio>,
        output: impl Into<Stdio>,
    ) -> Fallible<Self> {
        Self::spawn(name, command(name, arguments)?.stdin(input).stdout(output))
    }

    /// As [`start`](Self::start), for a process that ends by itself when this one does. Ctrl-C reaches only this one, so that the other
    /// has the time to remove what it has made.
    pub(crate) fn start_apart<A: AsRef<OsStr>>(
        name: &'static str,
        arguments: impl IntoIterator<Item = A>,
        input: impl Into<Stdio>,
        output: impl Into<Stdio>,
    ) -> Fallible<Self> {
        Self::spawn(name, command(name, arguments)?.stdin(input).stdout(output).process_group(0))
    }

    fn spawn(name: &'static str, command: &mut Command) -> Fallible<Self> {
        Ok(Self { name, child: command.spawn()? })
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// An error if it has ended, which it never does before its time.
    pub(crate) fn check_alive(&mut self) -> Fallible {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the {} ended early: {status}", self.name).into()),
        }
    }

    /// Waits until it ends, as it must, with success.
    pub(crate) fn finish(mut self) -> Fallible {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the {} failed: {status}", self.name).into())
        }
    }
}

fn command<A: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Fallible<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(name).args(arguments);
    Ok(command)
}

impl Drop for Role {
    fn drop(&mut self) {
        // Nothing, if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
