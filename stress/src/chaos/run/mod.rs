//! The run: a conductor, and the owners and peers that it starts, kills and starts again.
//!
//! | file | contents |
//! |---|---|
//! | `conductor.rs` | which process ends next, when and how; the checks between the storms |
//! | `crew.rs` | the running processes: starting, ending, receiving reports |
//! | `worker.rs` | how a process learns its role; the messages between it and the conductor |
//! | `owner.rs` | the owner process: connections, messages, commands |
//! | `publisher.rs` | the publisher beside an owner |
//! | `peer.rs` | the peer process: reading from each owner, commands |
//! | `receiver.rs` | the receiver beside each connection of a peer, by any rule |
//! | `tally.rs` | the counters, and the report |

mod conductor;
mod crew;
mod owner;
mod peer;
mod publisher;
mod receiver;
mod tally;
mod worker;

pub(crate) use conductor::run;
pub(crate) use worker::play_role;

use clap::Parser;
use serde::{Deserialize, Serialize};

/// The number of owners. The first of them is spared for an era.
const OWNERS: usize = 2;

/// The number of peers, each connected to all owners. The first of them is spared for an era.
const PEERS: usize = 5;

/// Kills and restarts publishers and subscribers at random moments, and checks that nothing is
/// lost, leaked or torn.
#[derive(Parser, Clone, Debug, Serialize, Deserialize)]
#[command(name = "chaos")]
pub(crate) struct Plan {
    /// End after so many kills [default: 1000, if no time is given]
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        hide_default_value = true,
        default_value_if("seconds", clap::builder::ArgPredicate::IsPresent, None)
    )]
    pub(crate) kills: Option<u64>,

    /// End after so many seconds
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,

    /// Seed of the random decisions; the processes' steps still interleave freely [default: a
    /// random one]
    #[arg(long, default_value_t = fastrand::u64(..), hide_default_value = true)]
    pub(crate) seed: u64,

    /// Length of an owner's longest message in KiB
    #[arg(
        long,
        value_name = "KIB",
        default_value_t = 3072,
        value_parser = clap::value_parser!(u32).range(1..=65536)
    )]
    pub(crate) largest: u32,

    /// Arguments that make this program call [`play_role`].
    #[arg(skip)]
    #[serde(skip)]
    pub(crate) worker_args: &'static [&'static str],
}

impl Plan {
    /// In bytes.
    fn largest(&self) -> usize {
        self.largest as usize * 1024
    }

    /// Cap on each owner's payload memory in bytes: a few of the longest messages.
    fn max_bytes(&self) -> usize {
        4 * self.largest()
    }
}
