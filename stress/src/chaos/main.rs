//! Kills owners and peers at random moments, thousands of times, and checks that nothing is lost,
//! leaked or torn.
//!
//! ```text
//! cargo run --release -p shm-pool-stress --bin chaos
//! cargo run --release -p shm-pool-stress --bin chaos -- --kills 10000
//! cargo run --release -p shm-pool-stress --bin chaos -- --seconds 60 --seed 7
//! ```
//!
//! A conductor starts owner processes, which publish, and peer processes, which read every owner's
//! messages, and ends them: by SIGKILL at any moment, also while they start or exit; by abort; by
//! exit with and without drop; one at a time, the same one again and again, or all of them in any
//! order. It restarts each at once.
//!
//! Each owner also has a publisher, and each peer a receiver of it. The receivers join by any rule,
//! receive in a thread or as a task, leave, and rejoin. They get the publisher's messages in order,
//! with exact gaps, and without gaps where it waits for them.
//!
//! Each message has a unique pattern in all its bytes, and is granted, kept until confirmed, or
//! neither. Peers check every byte when it arrives, again while they hold it, and again before they
//! release it, also after its owner has died. From time to time all processes come to rest, and
//! then nothing may be leased, held, open or mapped that was not at the start. See [`run`] for the
//! files.
//!
//! The exit code is 0 only if all checks passed.

mod run;

use clap::Parser;
use run::Plan;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::play_role();
    let plan = Plan::parse();
    println!("{plan:?}");
    let tally = run::run(&plan);
    print!("{tally}");
    if tally.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
