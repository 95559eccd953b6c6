//! How a process learns its role, and its end of the conductor's socket.
//!
//! A worker is this very program, started again with an environment variable that names its role. Its standard input is the
//! socket to the conductor. When that closes, the worker ends: no run leaves processes behind.

#![forbid(unsafe_code)]

use super::wire::{self, Command, Exit, Word};
use super::{owner, peer, sys};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic;
use std::process;
use std::sync::Arc;

/// Absent in a run by hand.
pub(crate) const VARIABLE: &str = "SHM_POOL_CHAOS_ROLE";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Owner,
    Peer,
}

/// What a worker needs to know.
#[derive(Clone, Debug)]
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

impl Role {
    pub(crate) fn to_text(&self) -> String {
        let Self { kind, index, prefix, seed, owners, largest, max_bytes, listener } = self;
        format!("{kind:?}:{index}:{prefix}:{seed}:{owners}:{largest}:{max_bytes}:{listener}")
    }

    fn from_text(text: &str) -> Self {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |at: usize| parts[at].parse::<usize>().expect("a number");
        Self {
            kind: if parts[0] == "Owner" { Kind::Owner } else { Kind::Peer },
            index: number(1),
            prefix: parts[2].to_owned(),
            seed: parts[3].parse().expect("a seed"),
            owners: number(4),
            largest: number(5),
            max_bytes: number(6),
            listener: parts[7].parse().expect("a descriptor"),
        }
    }
}

/// A worker's end of the conductor's socket.
pub(crate) struct Control {
    socket: UnixStream,
    name: String,
}

impl Control {
    /// Tells the conductor something. Without a conductor there is nothing to go on for.
    pub(crate) fn say(&self, word: Word) {
        if wire::send(&self.socket, word.to_frame()).is_err() {
            process::exit(2);
        }
    }

    /// Waits for the next command, for as long as the conductor lives. Ends that are not orderly happen here, in the middle of
    /// whatever the other threads do.
    pub(crate) fn next(&self) -> Command {
        match wire::receive(&self.socket).unwrap_or_default().map(Command::from_frame) {
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
    let Ok(text) = std::env::var(VARIABLE) else { return };
    sys::dump_no_core();
    let role = Role::from_text(&text);
    let socket = io::stdin().as_fd().try_clone_to_owned().expect("the standard input is a socket");
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
