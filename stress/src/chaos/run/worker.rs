//! How a process learns its role, and the messages between it and the conductor.
//!
//! A worker is this program, started again with its role as its task. Its standard input is the
//! socket to the conductor. When that closes, the worker exits: no run leaves processes behind.

#![forbid(unsafe_code)]

use super::{owner, peer, Plan};
use derive_more::AddAssign;
use nix::sys::resource::{setrlimit, Resource};
use serde::{Deserialize, Serialize};
use shm_pool::Provider;
use shm_pool_support::process::{inherited_input, task};
use shm_pool_support::{procfs, wire};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use std::{panic, process, thread};

/// How long a process waits for a required event. Only a hang takes nearly that long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Owner,
    Peer,
}

/// A position in the crew, taken by one process after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
}

/// A worker's parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) post: Post,
    pub(crate) plan: Plan,
    /// Of the names under /dev/shm, and of the owners' sockets.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
    /// An owner's: where peers connect. It belongs to the conductor, so that it outlives the owner.
    pub(crate) listener: Option<RawFd>,
}

/// How a process ends, other than by being killed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything is dropped.
    Orderly,
    /// Nothing is dropped.
    Sudden,
    /// By a signal that it raises.
    Abort,
}

/// A command from the conductor to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    Exit(Exit),
    /// To an owner: pause publishing, have this many peers release everything, and report what is
    /// left.
    Quiesce(usize),
    /// To an owner: continue.
    Resume,
    /// To a peer: unmap what is unused, and report what is left.
    Measure,
    /// To a peer: replace the client, and report as well.
    Recreate,
}

/// A report from a worker to the conductor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Built; or connected for the first time.
    Ready,
    Counted(Counts),
    AtRest(Remains),
    /// It cannot continue, and has printed the reason to its standard error.
    Failed,
}

/// Work since the last report: of an owner first, of a peer below, and at the end of their
/// publishers and receivers.
#[derive(Clone, Copy, Debug, Default, AddAssign, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) published: u64,
    pub(crate) bytes_published: u64,
    /// Descriptors that were sent: granted, kept until confirmed, neither.
    pub(crate) granted: u64,
    pub(crate) kept: u64,
    pub(crate) fleeting: u64,
    /// Allocations that had to wait for peers to release memory.
    pub(crate) exhausted: u64,

    pub(crate) read: u64,
    /// Fleeting messages that were attached too late.
    pub(crate) stale: u64,
    /// Bytes checked, counted each time.
    pub(crate) bytes_checked: u64,
    /// Views checked again while they were held, or before they were dropped.
    pub(crate) again: u64,
    /// Those of them whose owner had exited.
    pub(crate) outlived: u64,
    /// Messages that were unavailable because their owner had exited.
    pub(crate) lost: u64,
    pub(crate) torn: u64,

    /// Messages of publishers, and how often these were sent, to one receiver each.
    pub(crate) sent: u64,
    pub(crate) takers: u64,
    /// Receivers that have joined.
    pub(crate) joined: u64,
    pub(crate) received: u64,
    /// Messages that receivers have missed.
    pub(crate) missed: u64,
}

/// What a process at rest still holds. A peer has no memory of its own.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Remains {
    /// Bytes leased after reclaiming.
    pub(crate) leased: usize,
    /// Bytes in use.
    pub(crate) in_use: usize,
    /// Bytes held after trimming.
    pub(crate) held: usize,
    /// The most that was held at any time.
    pub(crate) peak: usize,
    pub(crate) footprint: Footprint,
}

/// The descriptors and mappings of a process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Footprint {
    pub(crate) descriptors: usize,
    /// Mappings of shared memory with the run's prefix, including removed objects.
    pub(crate) shared: usize,
    /// Other mappings, such as those of the heap and the stacks.
    pub(crate) others: usize,
}

impl Remains {
    /// A provider's. The footprint, which is the process's, is left out.
    pub(crate) fn of(provider: &Provider) -> Self {
        provider.reclaim();
        let before = provider.stats();
        provider.trim();
        let after = provider.stats();
        Self {
            leased: before.bytes_leased,
            in_use: before.bytes_in_use,
            held: after.bytes_held,
            peak: after.peak_bytes_held,
            footprint: Footprint::default(),
        }
    }
}

impl Footprint {
    /// Takes that of this process, when it awaits nothing.
    pub(crate) fn take(prefix: &str) -> Self {
        // The library's threads for waits release the dropped channels, and exit, a moment later
        // than the drop and without notice.
        let threads = |name| procfs::threads(name).expect("/proc");
        while threads("shm-pool-await") + threads("shm-pool-names") > 0 {
            thread::yield_now();
        }
        let start = format!("{prefix}.");
        let mut shared = 0;
        for mapping in procfs::shared_mappings().expect("/proc") {
            if mapping.name.starts_with(&start) {
                shared += 1;
            }
        }
        let others = procfs::mappings().expect("/proc") - shared;
        Self {
            descriptors: procfs::descriptors().expect("/proc"),
            shared,
            others,
        }
    }
}

/// A worker's end of the conductor's socket.
pub(crate) struct Control {
    socket: UnixStream,
    post: Post,
}

impl Control {
    /// Reports to the conductor. Without a conductor, there is no reason to continue.
    pub(crate) fn report(&self, report: Report) {
        if wire::send(&self.socket, &report).is_err() {
            process::exit(2);
        }
    }

    /// Waits for the next command, for as long as the conductor lives. Disorderly exits happen
    /// here, at any moment of the other threads.
    pub(crate) fn next(&self) -> Command {
        match wire::receive(&self.socket).unwrap_or_default() {
            None => process::exit(2),
            Some(Command::Exit(Exit::Abort)) => process::abort(),
            Some(Command::Exit(Exit::Sudden)) => process::exit(0),
            Some(command) => command,
        }
    }

    /// Reports a failed check.
    pub(crate) fn print_problem(&self, text: &str) {
        eprintln!("{:?} {}: {text}", self.post.kind, self.post.index);
    }

    /// As [`print_problem`](Self::print_problem), for a process that cannot continue.
    pub(crate) fn fail(&self, text: &str) -> ! {
        self.print_problem(text);
        self.report(Report::Failed);
        process::exit(1)
    }
}

/// Runs the role, if this process was started as a worker, and exits.
pub(crate) fn play_role() {
    let Some(role) = task::<Role>() else { return };
    // A core file of each aborted process would be a nuisance. Lowering a limit cannot fail.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let socket = inherited_input().expect("the standard input is a socket");
    let control = Arc::new(Control {
        socket: socket.into(),
        post: role.post,
    });
    let for_panics = control.clone();
    panic::set_hook(Box::new(move |info| for_panics.fail(&info.to_string())));
    match role.post.kind {
        Kind::Owner => owner::run(&role, &control),
        Kind::Peer => peer::run(&role, &control),
    }
    process::exit(0)
}
