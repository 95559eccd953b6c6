//! The library between real processes: peers and owners that are slow, killed, forked, of another
//! user, or out of memory or descriptors. Also what only the kernel can tell: that the warm path
//! makes no system call.
//!
//! A child is this test binary again, run with the single test [`child::entry`] and with an
//! environment variable that names its role. The test and its child talk over a socket, which is
//! the child's standard input. Nothing here waits for time to pass: every step is an answer, and a
//! late answer fails the test.
//!
//! Each test has its own name prefix, leaves /dev/shm as it found it, and checks that itself
//! ([`shm::Names`]).

mod child;
#[cfg(feature = "tracing")]
#[path = "../support/log.rs"]
mod log;
#[path = "../support/own_shm.rs"]
mod own_shm;
mod peer;
mod shm;
mod spaces;
mod sys;
mod wire;

mod address_space;
mod at_the_cap;
mod awaiting;
mod channel;
mod channel_names;
mod descriptors;
mod file_size;
mod forked_owner;
mod forked_peer;
mod full_shm;
mod given_back;
mod hostile;
mod hostile_bytes;
mod hostile_segments;
mod hostile_writer;
mod in_flight;
mod inspect;
mod keeper;
mod killed_owner;
mod killed_peer;
mod last_reader;
mod leaving_peer;
mod loans;
mod lock_memory;
mod mounts;
mod namespaces;
mod pairs;
mod publisher;
mod reclaim_race;
mod rejects;
mod rejects_segment;
mod reserved;
mod slots;
mod slow_peer;
mod small_shm;
mod storms;
mod successor_race;
mod sweep;
mod swept_at_connect;
mod users;
mod waiting;
mod warm_path;
mod warm_threads;

/// A child's program, given its end of the socket and the arguments of its role.
type Role = fn(&wire::Link, &[&str]);

/// All roles by name.
const ROLES: &[(&str, Role)] = &[
    ("address-space-of-a-first-descriptor", address_space::first_descriptor),
    ("address-space-of-a-peer", address_space::peer),
    ("address-space-of-an-owner", address_space::owner),
    ("address-space-of-books", address_space::books),
    ("address-space-of-drops", address_space::drops),
    ("at-the-cap", at_the_cap::role),
    ("awaiting", awaiting::role),
    ("awaiting-forks", awaiting::forking_role),
    ("awaiting-receiver", awaiting::receiving_role),
    ("awaiting-sender", awaiting::sending_role),
    ("channel-echo", channel::echo_role),
    ("channel-receiver", channel::role),
    ("channel-sender", channel::sending_role),
    ("channel-poor", channel::poor_role),
    ("descriptors-of-an-owner", descriptors::owner),
    ("descriptors-of-a-peer", descriptors::peer),
    ("descriptors-of-a-receiver", descriptors::receiver),
    ("file-size", file_size::role),
    ("forked-owner", forked_owner::role),
    ("forked-peer", forked_peer::role),
    ("forked-peer-drops", forked_peer::drop_role),
    ("forked-peer-killed", forked_peer::killed_role),
    ("full-shm", full_shm::role),
    ("full-shm-inodes", full_shm::inodes_role),
    ("given-back", given_back::role),
    ("hostile-bytes", hostile_bytes::role),
    ("hostile-segments", hostile_segments::role),
    ("hostile-writer", hostile_writer::role),
    ("keeper", keeper::role),
    ("last-reader", last_reader::reader_role),
    ("last-reader-owner", last_reader::owner_role),
    ("last-reader-small-shm", last_reader::small_shm_role),
    ("last-reader-successor", last_reader::successor_role),
    ("loans-heir", loans::heir_role),
    ("loans-holder", loans::holder_role),
    ("loans-keeper", loans::keeper_role),
    ("lock-memory", lock_memory::role),
    ("looks-with-few-descriptors", inspect::poor_role),
    ("mounts", mounts::role),
    ("other-namespaces", namespaces::role),
    ("owner", killed_owner::role),
    ("owner-forks", sweep::forking_role),
    ("owner-swept", sweep::role),
    ("pairs-fork", pairs::forking_role),
    ("pairs-limits", pairs::limits_role),
    ("pairs-reclaims", pairs::reclaiming_role),
    ("pairs-window", pairs::window_role),
    ("peer", peer::role),
    ("publisher", publisher::role),
    ("publisher-bells", publisher::bells_role),
    ("publisher-forks", publisher::forking_role),
    ("publisher-full-shm", publisher::full_shm_role),
    ("publisher-garbage", publisher::garbage_role),
    ("publisher-joins", publisher::joining_role),
    ("publisher-keeper", publisher::keeper_role),
    ("publisher-maps", publisher::mapping_role),
    ("publisher-poor", publisher::poor_role),
    ("race-reader", successor_race::reader_role),
    ("race-sender", successor_race::sender_role),
    ("receiver-that-borrows", inspect::borrowers_role),
    ("receiver-that-stays", inspect::staying_role),
    ("reclaimed", reclaim_race::peers),
    ("reclaims", reclaim_race::role),
    ("rejects", rejects::role),
    ("rejects-segment", rejects_segment::role),
    ("reserved", reserved::role),
    ("small-shm", small_shm::role),
    ("storm-publisher", storms::publisher),
    ("storm-subscriber", storms::subscriber),
    ("stranger", users::role),
    ("stranger-looks", inspect::strangers_role),
    ("stranger-opens", users::opening_role),
    ("stranger-publishes", users::publishing_role),
    ("waiting-for-turns", waiting::turn_role),
    ("waiting-forgets", waiting::forgetting_role),
    ("waiting-forks", waiting::forking_role),
    ("waiting-owner", waiting::owner_role),
    ("waiting-receiver", waiting::receiver_role),
    ("waiting-small-shm", waiting::small_shm_role),
    ("waiting-turns", waiting::turns_role),
    ("warm-path", warm_path::role),
    ("warm-path-beside-a-waiter", warm_path::beside_a_waiter_role),
    ("warm-path-to-many", warm_path::many_role),
    ("warm-path-without-a-pool", warm_path::control_role),
    ("warm-threads", warm_threads::role),
    ("warmed", reserved::warmed_role),
];
