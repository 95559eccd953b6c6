//! A short run of `stress/src/chaos`, which kills owners and peers at random moments. The long one
//! is `cargo run --release -p shm-pool-stress --bin chaos -- --kills 10000`.
//!
//! The workers are this test binary, restarted with only the test [`worker`] and an environment
//! variable.

#[path = "../stress/src/chaos/run/mod.rs"]
mod run;

use run::Plan;
use shm_pool_support::payload::{check_pattern, fill_pattern, seed};

/// The program of every worker. Does nothing in a normal test run.
#[test]
fn worker() {
    run::play_role();
}

/// Processes that are killed, and publishers and subscribers that are restarted, leave no leases,
/// memory, files, descriptors or mappings behind, and no reader sees another message's bytes.
#[test]
fn hundred_kills() {
    let plan = Plan {
        kills: Some(100),
        seconds: None,
        seed: fastrand::u64(..),
        largest: 512,
        worker_args: &["worker", "--exact", "--nocapture", "--test-threads=1"],
    };
    println!("{plan:?}");
    let tally = run::run(&plan);
    println!("{tally}");
    assert!(
        tally.problems.is_empty(),
        "seed {}: {:?}",
        plan.seed,
        tally.problems
    );
    assert!(tally.killed.iter().all(|&killed| killed > 0) && tally.kills() >= 100);
    assert!(tally.counts.published > 0 && tally.counts.read > 0 && tally.checks_alone > 0);
    assert!(tally.counts.received > 0 && tally.counts.missed > 0);
}

/// The chaos run can detect a torn message.
#[test]
fn changed_message_is_detected() {
    let seed = seed(7, 1);
    for len in 1..=64 {
        let mut bytes = vec![0; len];
        fill_pattern(&mut bytes, seed);
        assert_eq!(check_pattern(&bytes, seed), Ok(()));
        for at in 0..len {
            bytes[at] ^= 1;
            assert!(check_pattern(&bytes, seed).is_err(), "byte {at} of {len}");
            bytes[at] ^= 1;
        }
        assert!(
            len < 9 || check_pattern(&bytes[..len - 1], seed).is_err(),
            "{len} bytes, cut off"
        );
    }
}

/// A message that is overwritten by the next one, wholly or in part, does not pass as intact.
#[test]
fn mixed_message_is_detected() {
    let mine = seed(7, 1);
    let next = seed(7, 2);
    let mut bytes = vec![0; 4096];
    let mut other = vec![0; 4096];
    fill_pattern(&mut bytes, mine);
    fill_pattern(&mut other, next);
    for copied in (8..=bytes.len()).step_by(8) {
        bytes[..copied].copy_from_slice(&other[..copied]);
        assert!(
            check_pattern(&bytes, mine).is_err(),
            "the first {copied} bytes are the next message's"
        );
    }
}
