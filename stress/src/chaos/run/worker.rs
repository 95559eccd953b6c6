//! How a process learns its role, and its end of the conductor's socket.
//!
//! A worker is this very program, started again with its role as its task. Its standard input is
//! the socket to the conductor. When that closes, the worker ends: no run leaves processes behind.

#![forbid(unsafe_code)]

use super::wire::{Command, Exit, Word};
use super::{owner, peer, sys};
use serde::{Deserialize, Serialize};
use shm_pool_support::process::{inherited_input, task};
use shm_pool_support::wire;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::panic;
use std::process;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Owner,
    Peer,
}

/// What a worker needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
    /// Of the names under /dev/shm, and of the owners' sockets.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
    pub(crate) owners: usize,
    pub(crate) largest: usize,
    pub(crate) max_bytes: usize,
    /// An owner's: where peers connect. It is the conductor's, so that it outlives the owner.
    pub(crate) listener: RawFd,
}

/// A worker's end of the conductor's socket.
pub(crate) struct Control {
    socket: UnixStream,
    name: String,
}

impl Control {
    /// Tells the conductor something. Without a conductor there is nothing to go on for.
    pub(crate) fn say(&self, word: Word) {
        if wire::send(&self.socket, &word).is_err() {
            process::exit(2);
        }
    }

    /// Waits for the next command, for as long as the conductor lives. Ends that are not orderly
    /// happen here, in the middle of whatever the other threads do.
    pub(crate) fn next(&self) -> Command {
        match wire::receive(&self.socket).unwrap_or_default() {
            None => process::exit(2),
            Some(Command::Exit(Exit::Abort)) => process::abort(),
            Some(Command::Exit(Exit::Sudden)) => process::exit(0),
            Some(command) => command,
        }
    }

    /// What must not happen has happened.
    pub(crate) fn complain(&self, text: &str) {
        eprintln!("{}: {text}", self.name);
    }

    /// As [`complain`](Self::complain); and this process cannot go on.
    pub(crate) fn fail(&self, text: &str) -> ! {
        self.complain(text);
        self.say(Word::Failed);
        process::exit(1)
    }
}

/// If this process was started as a worker, it is one until it ends.
pub(crate) fn play_role() {
    let Some(role) = task::<Role>() else { return };
    sys::dump_no_core();
    let socket = inherited_input().expect("the standard input is a socket");
    let name = format!("{:?} {}", role.kind, role.index);
    let control = Arc::new(Control { socket: socket.into(), name });
    let to_complain = control.clone();
    panic::set_hook(Box::new(move |info| to_complain.fail(&info.to_string())));
    match role.kind {
        Kind::Owner => owner::run(&role, &control),
        Kind::Peer => peer::run(&role, &control),
    }
    process::exit(0)
}
