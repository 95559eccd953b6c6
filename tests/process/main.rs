//! The library between real processes: peers and owners that are slow, killed, forked, of another user, out of memory
//! or out of descriptors; and what no process may see, a system call on the warm path.
//!
//! A child is this very test binary, started again with the one test [`child::entry`] and with an environment variable
//! that names its role. The test and its child talk over a socket, the child's standard input. Nothing here waits for
//! a time to pass: every step is an answer, and an answer that does not come in time fails the test.
//!
//! Each test has a name prefix of its own and leaves /dev/shm as it was, which it checks itself ([`shm::Names`]).

mod child;
#[path = "../support/own_shm.rs"]
mod own_shm;
mod peer;
mod shm;
mod spaces;
mod sys;
mod wire;

mod address_space;
mod at_the_cap;
mod channel;
mod channel_names;
mod descriptors;
mod forked_owner;
mod forked_peer;
mod full_shm;
mod given_back;
mod hostile;
mod hostile_bytes;
mod hostile_writer;
mod in_flight;
mod killed_owner;
mod killed_peer;
mod leaving_peer;
mod loans;
mod namespaces;
mod reclaim_race;
mod rejects;
mod rejects_segment;
mod slots;
mod slow_peer;
mod small_shm;
mod storms;
mod successor_race;
mod sweep;
mod swept_at_connect;
mod users;
mod warm_path;
mod warm_threads;

/// What a child does: its end of the socket, and the arguments of the role.
type Role = fn(&wire::Link, &[&str]);

/// All roles by name.
const ROLES: &[(&str, Role)] = &[
    ("address-space-of-a-first-descriptor", address_space::first_descriptor),
    ("address-space-of-a-peer", address_space::peer),
    ("address-space-of-an-owner", address_space::owner),
    ("at-the-cap", at_the_cap::role),
    ("channel-echo", channel::echo_role),
    ("channel-receiver", channel::role),
    ("channel-sender", channel::sending_role),
    ("channel-poor", channel::poor_role),
    ("descriptors-of-an-owner", descriptors::owner),
    ("descriptors-of-a-peer", descriptors::peer),
    ("descriptors-of-a-receiver", descriptors::receiver),
    ("forked-owner", forked_owner::role),
    ("forked-peer", forked_peer::role),
    ("forked-peer-drops", forked_peer::drop_role),
    ("forked-peer-killed", forked_peer::killed_role),
    ("full-shm", full_shm::role),
    ("given-back", given_back::role),
    ("hostile-bytes", hostile_bytes::role),
    ("hostile-writer", hostile_writer::role),
    ("loans-heir", loans::heir_role),
    ("loans-holder", loans::holder_role),
    ("loans-keeper", loans::keeper_role),
    ("other-namespaces", namespaces::role),
    ("owner", killed_owner::role),
    ("owner-forks", sweep::forking_role),
    ("owner-swept", sweep::role),
    ("peer", peer::role),
    ("race-reader", successor_race::reader_role),
    ("race-sender", successor_race::sender_role),
    ("reclaimed", reclaim_race::peers),
    ("reclaims", reclaim_race::role),
    ("rejects", rejects::role),
    ("rejects-segment", rejects_segment::role),
    ("small-shm", small_shm::role),
    ("storm-publisher", storms::publisher),
    ("storm-subscriber", storms::subscriber),
    ("stranger", users::role),
    ("warm-path", warm_path::role),
    ("warm-path-without-a-pool", warm_path::control_role),
    ("warm-threads", warm_threads::role),
];
