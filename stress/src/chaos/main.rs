//! Owners and peers are killed at random moments, thousands of times, and nothing is lost, leaked or torn.
//!
//! ```text
//! cargo run --release -p shm-pool-stress --bin chaos
//! cargo run --release -p shm-pool-stress --bin chaos -- --kills 10000
//! cargo run --release -p shm-pool-stress --bin chaos -- --seconds 60 --seed 7
//! ```
//!
//! A conductor starts owner processes, which publish, and peer processes, which read every owner's messages, and ends
//! them: by SIGKILL at any moment, also while they start or exit; by abort; by exit with and without drop; one at a time, the same
//! one again and again, or all of them in any order. It starts each anew at once.
//!
//! Each message has a sequence number and a checksum over all its bytes, and is granted, kept until confirmed, or neither. Peers
//! look at every byte when it comes, again while they hold it, and again before they let go, also after its owner has died.
//! From time to time all is brought to rest, and then nothing may be leased, held, open or mapped that was not at the start.
//! See [`run`] for where to find what.
//!
//! The exit code is 0 only if everything was as it must be.

mod run;

use clap::Parser;
use run::Plan;
use std::process::ExitCode;
use std::time::Duration;

/// Kills and restarts publishers and subscribers at random moments, and checks that nothing is lost, leaked or torn.
#[derive(Parser, Debug)]
#[command(name = "chaos")]
struct Options {
    /// End after so many kills [default: 1000, if no time is given]
    #[arg(long, value_name = "N")]
    kills: Option<u64>,

    /// End after so many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,

    /// Settles what is decided at random, but not how the processes' steps interleave [default: a random one]
    #[arg(long)]
    seed: Option<u64>,

    /// How many owners; the first of them is spared for an era
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=16))]
    owners: u8,

    /// How many peers, each connected to all owners; the first of them is spared for an era
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=16))]
    peers: u8,

    /// Kills in an era, at whose end the spared ones are replaced, too
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    era: u64,

    /// Length of the longest message in KiB
    #[arg(long, value_name = "KIB", default_value_t = 3072, value_parser = clap::value_parser!(u32).range(1..=65536))]
    largest: u32,

    /// Cap on each owner's payload memory, in lengths of the longest message
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(4..=64))]
    room: u32,
}

fn main() -> ExitCode {
    run::play_role();
    let options = Options::parse();
    let largest = options.largest as usize * 1024;
    let plan = Plan {
        kills: options.kills.or(options.seconds.is_none().then_some(1000)),
        time: options.seconds.map(Duration::from_secs),
        seed: options.seed.unwrap_or_else(|| fastrand::u64(..)),
        owners: options.owners.into(),
        peers: options.peers.into(),
        largest,
        max_bytes: largest * options.room as usize,
        era: options.era,
        worker_args: &[],
    };
    println!("{plan:?}");
    let tally = run::run(&plan);
    print!("{tally}");
    if tally.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
