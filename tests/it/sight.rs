//! Chunks that one thread searches or evicts while another thread needs them: a free chunk is found
//! whatever other threads do.

use crate::fixtures::{builder, unique_prefix, FOR_EVER};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Provider, Tuning};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::thread;

const ROUNDS: usize = 30_000;
const MIB: usize = 1 << 20;
const LENGTHS: [usize; 2] = [MIB, MIB + MIB / 4];

/// Shares a message with a reader of this process, as a request and its response would.
fn send_once(provider: &Provider, client: &Client, len: usize) -> Result<(), shm_pool::AllocError> {
    let message = provider.alloc(len)?.freeze();
    let view = client.attach(&message.descriptor().unwrap()).unwrap();
    drop(message);
    drop(view);
    Ok(())
}

fn misses(provider: &Provider) -> u64 {
    provider.stats().misses()
}

#[test]
fn two_threads_with_a_reserved_chunk_each() {
    let provider = builder().build().unwrap();
    for len in LENGTHS {
        provider.reserve(len, 1).unwrap().keep();
    }
    let made = misses(&provider);
    let start = Barrier::new(LENGTHS.len());
    thread::scope(|scope| {
        for len in LENGTHS {
            let provider = &provider;
            let start = &start;
            scope.spawn(move || {
                let client = Client::new();
                start.wait();
                for _ in 0..ROUNDS {
                    send_once(provider, &client, len).unwrap();
                }
            });
        }
    });
    assert_eq!(misses(&provider), made, "no other chunk was made");
}

#[test]
fn reserved_chunk_beside_a_thread_that_trims() {
    let provider = builder().build().unwrap();
    provider.reserve(MIB, 1).unwrap().keep();
    let made = misses(&provider);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                provider.trim_to(64 * MIB);
                provider.trim();
            }
        });
        let client = Client::new();
        for _ in 0..ROUNDS {
            send_once(&provider, &client, MIB).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(misses(&provider), made, "no other chunk was made");
}

#[test]
fn two_threads_with_reserved_chunks_and_a_channel_each() {
    let provider = builder().build().unwrap();
    let start = Barrier::new(LENGTHS.len());
    let mut channels = Vec::new();
    for len in LENGTHS {
        provider.reserve(len, 4).unwrap().keep();
        let name = unique_prefix(&format!("sight-{len}"));
        let sender = Sender::create(&provider, &name).unwrap();
        let receiver = Receiver::open(&name).unwrap();
        channels.push((len, sender, receiver));
    }
    let made = misses(&provider);
    thread::scope(|scope| {
        for (len, mut sender, mut receiver) in channels {
            let provider = &provider;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for _ in 0..ROUNDS {
                    let message = provider.alloc(len).unwrap();
                    sender.send(message).unwrap();
                    drop(receiver.recv_timeout(FOR_EVER).unwrap());
                }
            });
        }
    });
    assert_eq!(misses(&provider), made, "no other chunk was made");
}

/// The cap is as long as the chunks of both threads, so that neither may take the other's.
fn no_refusal(tuning: Tuning) {
    let cap = LENGTHS.iter().sum::<usize>() + MIB / 4;
    let provider = builder().max_bytes(cap).tuning(tuning).build().unwrap();
    let client = Client::new();
    for len in LENGTHS {
        send_once(&provider, &client, len).unwrap();
    }
    let start = Barrier::new(LENGTHS.len());
    thread::scope(|scope| {
        for len in LENGTHS {
            let provider = &provider;
            let client = &client;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    if let Err(error) = send_once(provider, client, len) {
                        panic!("round {round}: {error}");
                    }
                }
            });
        }
    });
}

#[test]
fn cap_for_one_chunk_of_each_thread() {
    no_refusal(Tuning::new());
}

#[test]
fn cap_for_one_chunk_of_each_thread_with_windows() {
    no_refusal(Tuning::new().idle_window(64));
}

/// One thread evicts a chunk for each of its messages. Another one grants messages to peers that it
/// disconnects. Neither takes memory from the other.
#[test]
fn disconnects_beside_a_thread_that_evicts() {
    const GRANTED: usize = MIB / 4;
    /// More than the cap has room for together, and less than half of it each.
    const EVICTED: [usize; 3] = [MIB, MIB + MIB / 4, MIB + MIB / 2];
    let provider = builder()
        .max_bytes(3 * MIB + MIB / 2)
        .max_bytes_per_peer(2 * MIB)
        .build()
        .unwrap();
    let start = Barrier::new(2);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client::new();
            start.wait();
            while !is_over.load(Ordering::Relaxed) {
                for len in EVICTED {
                    send_once(&provider, &client, len).unwrap();
                }
            }
        });
        start.wait();
        for _ in 0..ROUNDS / 100 {
            let client = Client::new();
            let peer = client.connect(provider.id()).unwrap();
            let message = provider.alloc(GRANTED).unwrap().freeze();
            let granted = message.grant(peer).unwrap();
            drop(message);
            assert!(provider.disconnect(peer));
            assert!(client.attach(&granted).is_err(), "it is disconnected");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let stats = provider.stats();
    assert_eq!((stats.bytes_leased, stats.bytes_in_use), (0, 0));
}
