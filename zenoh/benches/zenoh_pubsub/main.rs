//! A zenoh publisher on this crate's `PoolBackend` and on its `BufferPool`, subscribers that know
//! nothing of it, and the same with zenoh's own memory.
//!
//! ```text
//! cargo bench -p shm-pool-zenoh --bench zenoh_pubsub
//! cargo bench -p shm-pool-zenoh --bench zenoh_pubsub -- --subscribers 4 --sizes 64KiB,1MiB --file /some/big/file
//! cargo bench -p shm-pool-zenoh --bench zenoh_pubsub -- --python python3   # with eclipse-zenoh installed
//! ```
//!
//! The publisher streams a file, again and again, as messages of mixed sizes in shared memory; one
//! line says whose memory that is. The subscribers are ordinary zenoh programs: they check that
//! each message came as shared memory, in order, and compare every byte with their own copy of the
//! file. One of them is slow on purpose: it keeps messages while the others go on, and compares
//! them again before it drops them, so that memory that was used again too early would be noticed.
//!
//! A load (`--load`) is traffic of another kind, with its own defaults of the other options. `paced`,
//! `flat-out` and `first` send each size by itself, and compare the kinds of memory round by round.
//! The others are hard on memory: the publisher waits for memory instead of its subscribers.
//! `killed` kills subscribers and starts new ones meanwhile. A load fails if a pool makes
//! more than 16 segments, or if a subscriber ends with more descriptors or mappings than it had
//! after a tenth of the messages, except for segments whose first message arrived later. With `--memlock` a
//! provider that cannot be made is a result, and no failure.
//!
//! | file | what it shows |
//! |---|---|
//! | `memory.rs` | the kinds of memory that messages are allocated from: the only place that names this crate |
//! | `publisher.rs` | allocate, fill, put; the check for leaks |
//! | `subscriber.rs` | stock zenoh: receive, read in place, hold, drop |
//! | `session.rs` | discovery, and the publisher's view of its subscribers |
//! | `footprint.rs`, `limits.rs` | a process's use of /dev/shm, descriptors and mappings; its limits |
//! | `conductor.rs` | starts the processes, ends them all if one fails, judges what they have seen |
//! | `options.rs`, `news.rs`, `report.rs` | the command line and the loads; what processes tell; the tables |
//!
//! The exit code is 0 only if every subscriber saw every message, unchanged, in order and in shared
//! memory, and nothing is left behind.

#![deny(unsafe_code)]

mod conductor;
mod footprint;
mod limits;
#[allow(unsafe_code)] // zenoh's remedy for what killed subscribers held
mod memory;
mod news;
mod options;
mod publisher;
mod report;
mod session;
mod subscriber;

use options::Options;
use shm_pool_support::process::{exit_code, task};
use std::process::ExitCode;

fn main() -> ExitCode {
    // What zenoh has to complain about; the conductor passes it on to standard error.
    // RUST_LOG=debug tells more.
    zenoh::init_log_from_env_or("error");
    match task::<conductor::Task>() {
        None => exit_code("zenoh_pubsub", conductor::run(&Options::of_command_line())),
        Some(task) => exit_code(&task.role.name(), task.run()),
    }
}
