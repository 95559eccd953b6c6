//! The library under a tracer: killed at every instruction, and with every system call failing
//! once.
//!
//! As in the tests of `process`, whose harness is used here, a child is this same test binary. It
//! marks one operation ([`trace::marked`]), through which the tracer steps it.
//!
//! ```text
//! cargo test --test traced
//!     a sample of the kill points, and all failing calls: a few seconds
//! SHM_POOL_KILL_POINTS=all cargo test --release --test traced -- --nocapture
//!     all kill points: many minutes; prints how many there were
//! SHM_POOL_KILL_POINTS=500 SHM_POOL_SEED=7 ...
//!     500 points of each operation: the sample of the run that printed this seed
//! ```
//!
//! Without `SHM_POOL_KILL_POINTS`, a long operation is tested at its end and in one random part. To
//! test all of it, the tracer would have to step through it once, and without optimisation some
//! operations have a million instructions.

#[macro_use]
mod harness;

mod calls;
mod channels;
mod dead_owner;
#[path = "../common/ends.rs"]
mod ends;
mod failing_calls;
mod fallible;
mod joins;
mod kill_points;
mod killed_channel;
mod killed_owner;
mod killed_peer;
#[path = "../common/own_shm.rs"]
#[allow(dead_code)] // other tests use more of it
mod own_shm;
mod owner_operations;
mod path;
mod send_costs;
#[path = "../common/served.rs"]
mod served;
mod stopped_thread;
mod table;
mod trace;
mod waits;

use harness::{child, peer, shm, sys, wire};
