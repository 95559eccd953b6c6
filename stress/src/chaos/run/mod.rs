//! The run: a conductor, and the owners and peers that it starts, kills and starts again.
//!
//! | file | what is in it |
//! |---|---|
//! | `conductor.rs` | which process is to end next, when and how; what must hold between the storms |
//! | `crew.rs` | the running processes: start, end, hear what they tell |
//! | `worker.rs` | how a process learns its role, and its end of the conductor's socket |
//! | `owner.rs`, `hub.rs`, `publisher.rs` | the owner process: commands, connections, messages |
//! | `peer.rs`, `follower.rs` | the peer process: commands, and what it reads of each owner |
//! | `wire.rs` | what goes over the sockets |
//! | `tally.rs` | what is counted, and the report |
//! | `sys.rs` | system calls that the standard library does not offer |

mod conductor;
mod crew;
mod follower;
mod hub;
mod owner;
mod peer;
mod publisher;
mod sys;
mod tally;
mod wire;
mod worker;

pub(crate) use conductor::run;
pub(crate) use worker::play_role;

use std::time::Duration;

/// What a run is like.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The run is over after so many kills, or so much time.
    pub(crate) kills: Option<u64>,
    pub(crate) time: Option<Duration>,
    /// Settles what is decided at random, but not how the processes' steps interleave.
    pub(crate) seed: u64,
    pub(crate) owners: usize,
    pub(crate) peers: usize,
    /// Length of the longest message in bytes.
    pub(crate) largest: usize,
    /// Cap on each owner's payload memory in bytes.
    pub(crate) max_bytes: usize,
    /// After so many kills the veterans, who are spared until then, are looked at and replaced.
    pub(crate) era: u64,
    /// Arguments that make this program call [`play_role`].
    pub(crate) worker_args: &'static [&'static str],
}
