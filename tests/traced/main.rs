//! The library under a tracer: killed at every instruction, and with every system call failing once.
//!
//! A child is this very test binary, as in the tests of `process`, whose harness is used here. It marks one operation
//! ([`trace::marked`]); the tracer steps it through that.
//!
//! ```text
//! cargo test --test traced                        a sample of the kill points, all failing calls: some seconds
//! SHM_POOL_KILL_POINTS=all cargo test --release --test traced -- --nocapture
//!                                                 all 173,000 kill points: twelve minutes on two busy processors
//! SHM_POOL_KILL_POINTS=500 SHM_POOL_SEED=7 ...    500 for each operation, of the sample that was printed with this seed
//! ```
//!
//! Without `SHM_POOL_KILL_POINTS` only a part of each long operation, drawn by lot, and its end are looked at: for all of it, it would
//! have to be stepped through once, and without optimisation some have a million instructions.

mod harness;

mod calls;
mod channels;
mod failing_calls;
mod fallible;
mod kill_points;
mod killed_channel;
mod killed_owner;
mod killed_peer;
#[path = "../support/own_shm.rs"]
#[allow(dead_code)] // Other tests need more of it.
mod own_shm;
mod owner_operations;
mod path;
mod table;
mod trace;

use harness::{child, peer, shm, spaces, sys, wire};

/// What a child does: its end of the socket, and the arguments of the role.
type Role = fn(&wire::Link, &[&str]);

/// All roles by name.
const ROLES: &[(&str, Role)] = &[
    ("fallible", fallible::role),
    ("idle", kill_points::idle_role),
    ("killed-owner", killed_owner::role),
    ("killed-peer", killed_peer::role),
    ("killed-receiver", channels::receiver_role),
    ("killed-sender", channels::sender_role),
    ("peer", peer::role),
];
