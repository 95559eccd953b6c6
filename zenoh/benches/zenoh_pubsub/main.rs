//! A zenoh publisher on this crate's `PoolBackend` and on its `BufferPool`, subscribers that are
//! ordinary zenoh programs, and the same with zenoh's own memory.
//!
//! ```text
//! cargo bench -p shm-pool-zenoh --bench zenoh_pubsub
//! cargo bench -p shm-pool-zenoh --bench zenoh_pubsub -- \
//!     --subscribers 4 --sizes 64KiB,1MiB --file /some/big/file
//! # With eclipse-zenoh installed:
//! cargo bench -p shm-pool-zenoh --bench zenoh_pubsub -- --python python3
//! ```
//!
//! The publisher streams a file, again and again, as messages of mixed sizes in shared memory. One
//! line of its code decides whose memory that is. The subscribers check that each message arrived
//! as shared memory, in order, and compare every byte with their own copy of the file. One of them
//! is slow on purpose: it keeps messages while the others go on, and compares them again before it
//! drops them. It would notice memory that was used again too early.
//!
//! A load (`--load`) is traffic of another kind, with its own defaults of the other options:
//!
//! - `paced`, `flat-out` and `first` send each size by itself, and compare the kinds of memory
//!   round by round.
//! - The others are hard on memory: the publisher waits for memory instead of its subscribers.
//!   `killed` kills subscribers and starts new ones meanwhile.
//!
//! A load fails if a pool makes more than 16 segments, or if a subscriber ends with more
//! descriptors or mappings than it had after a tenth of the messages, except for segments whose
//! first message arrived later. With `--memlock`, a provider that cannot be made is a result, and
//! no failure.
//!
//! | file | content |
//! |---|---|
//! | `memory.rs` | the kinds of memory for messages: the only place that names this crate |
//! | `publisher.rs` | allocate, fill, put; the check for leaks |
//! | `subscriber.rs` | stock zenoh: receive, read in place, hold, drop |
//! | `session.rs` | discovery, and the publisher's view of its subscribers |
//! | `footprint.rs` | a process's use of /dev/shm, descriptors and mappings |
//! | `limits.rs` | a process's limits |
//! | `conductor.rs` | starts the processes, ends all if one fails, judges their results |
//! | `options.rs` | the command line and the loads |
//! | `news.rs` | what processes report |
//! | `report.rs` | the tables |
//!
//! The exit code is 0 only if every subscriber received every message, unchanged, in order and in
//! shared memory, and no object is left behind.

#![deny(unsafe_code)]

mod conductor;
mod footprint;
mod limits;
#[allow(unsafe_code)] // to reclaim what killed subscribers held, as zenoh offers it
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
    // zenoh logs errors, and more with RUST_LOG=debug. The conductor passes them on to standard
    // error.
    zenoh::init_log_from_env_or("error");
    match task::<conductor::Task>() {
        None => exit_code("zenoh_pubsub", conductor::run(&Options::of_command_line())),
        Some(task) => exit_code(&task.role.name(), task.run()),
    }
}
