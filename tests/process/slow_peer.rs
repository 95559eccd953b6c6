//! A peer holds a view while the owner publishes a hundred pools' worth of other messages (D3).

use crate::peer::Peer;
use crate::shm::{self, Names};
use shm_pool::{Provider, ShmBuf};
use std::collections::HashSet;

#[test]
fn held_segment() {
    let names = Names::new("slow-large");
    hold_while_publishing(&names, 1 << 20, 4 << 20);
}

#[test]
fn held_chunk() {
    let names = Names::new("slow-small");
    hold_while_publishing(&names, 4 << 10, 64 << 10);
}

fn hold_while_publishing(names: &Names, len: usize, max_bytes: usize) {
    let provider = names.provider().max_bytes(max_bytes).build().unwrap();
    let (slow, other) = (Peer::start(names.prefix()), Peer::start(names.prefix()));
    let held = message(&provider, len, 1);
    let address = held.as_ptr() as usize;
    let view = slow.attach(held.descriptor().unwrap(), 1).unwrap();
    drop(held);
    assert_eq!(provider.stats().bytes_leased, len);

    // Each round publishes two messages.
    let rounds = 50 * max_bytes / len;
    for round in 2..2 + rounds as u64 {
        publish(&provider, &other, len, round);
        if round % 20 == 0 {
            slow.check(view);
        }
    }
    assert!(!all_addresses(&provider, len).contains(&address), "handed out while a peer holds it");
    slow.check(view);

    slow.release(view);
    assert_eq!(provider.stats().bytes_leased, 0);
    assert!(all_addresses(&provider, len).contains(&address), "never used again");
}

/// Publishes two messages. Over the rounds, some are never shared, some are sent to no peer, and
/// some are read by another peer.
fn publish(provider: &Provider, other: &Peer, len: usize, seed: u64) {
    let [mut first, mut second] = [(); 2].map(|()| provider.alloc(len).unwrap());
    second.fill(seed as u8);
    match seed % 16 {
        0 => {
            shm::fill(&mut first, seed);
            let first = first.freeze();
            let read = other.attach(first.descriptor().unwrap(), seed).unwrap();
            drop(first);
            other.release(read);
        }
        1..=9 => {
            first.fill(!seed as u8);
            first.freeze().descriptor().unwrap();
        }
        _ => {}
    }
}

/// Returns the addresses of all buffers of one length that can be held at the same time.
fn all_addresses(provider: &Provider, len: usize) -> HashSet<usize> {
    let buffers: Vec<_> = std::iter::from_fn(|| provider.alloc(len).ok()).collect();
    buffers.iter().map(|buffer| buffer.as_ptr() as usize).collect()
}

fn message(provider: &Provider, len: usize, seed: u64) -> ShmBuf {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, seed);
    buffer.freeze()
}
