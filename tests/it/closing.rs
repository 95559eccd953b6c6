//! Providers that close while other threads hold, share and drop their buffers, thousands of times.

use crate::support::{files, holds, mappings, open_files, unique_prefix, write, Random, NONE};
use shm_pool::{Client, PeerId, Provider, ShmBufMut};
use std::hint::spin_loop;
use std::sync::{Arc, Barrier};
use std::thread;

/// A handle that another thread checks and drops.
type Held = Box<dyn FnOnce() + Send>;

fn provider(prefix: &str) -> Provider {
    let builder = Provider::builder().max_shared(16).max_bytes(1 << 20).arena_size(64 << 10).max_idle_per_class(2);
    builder.name_prefix(prefix).build().unwrap()
}

/// Returns two handles to one buffer.
fn ways_to_hold(way: usize, mut buffer: ShmBufMut, client: &Client, peer: PeerId) -> [Held; 2] {
    write(&mut buffer, way as u64);
    let check = move |bytes: &[u8]| assert!(holds(bytes, way as u64), "bytes were lost when the provider closed");
    let nothing = || Box::new(|| ()) as Held;
    if way == 0 {
        return [Box::new(move || check(&buffer)), nothing()];
    }
    let message = buffer.freeze();
    match way {
        1 => [
            Box::new({
                let clone = message.clone();
                move || check(&clone)
            }),
            Box::new(move || check(&message)),
        ],
        2 => {
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            [Box::new(move || check(&view)), Box::new(move || check(&message))]
        }
        3 => {
            // The grant is never taken up.
            message.grant(peer).unwrap();
            [Box::new(move || check(&message)), nothing()]
        }
        4 => {
            // Shared for the first time while the provider closes, or after that.
            [Box::new(move || assert!(message.descriptor().is_ok())), nothing()]
        }
        _ => {
            message.descriptor().unwrap();
            let rewrite = move || {
                let mut buffer = message.try_into_mut().unwrap();
                write(&mut buffer, 9);
                assert!(holds(&buffer, 9));
            };
            [Box::new(rewrite), nothing()]
        }
    }
}

/// Spins for a random time, so that the threads interleave differently.
fn dawdle(random: &mut Random) {
    (0..random.below(3000)).for_each(|_| spin_loop());
}

fn assert_nothing_left(prefix: &str) {
    assert_eq!(files(prefix), NONE, "files are left");
    assert_eq!(mappings(prefix), 0, "mappings are left");
    assert_eq!(open_files(prefix), 0, "file descriptors are left");
}

#[test]
fn close_under_buffers() {
    let prefix = unique_prefix("closing");
    let client = Client::builder().name_prefix(prefix.as_str()).build().unwrap();
    let mut random = Random(7);
    for round in 0..2000 {
        let provider = provider(&prefix);
        let peer = client.connect(provider.id()).unwrap();
        let lengths = [100, 100, 3000, 70_000];
        let pairs = lengths.map(|len| ways_to_hold(random.below(6), provider.alloc(len).unwrap(), &client, peer));
        // Leaves an idle chunk in each kind of place.
        drop(provider.reserve(100, 2).unwrap());
        assert!(provider.alloc(70_000).unwrap().freeze().descriptor().is_ok());
        let (one, two): (Vec<Held>, Vec<Held>) = pairs.into_iter().map(|[one, two]| (one, two)).unzip();
        let start = Barrier::new(3);
        let mut delays = [(); 2].map(|()| Random(random.next()));
        thread::scope(|scope| {
            for (held, delay) in [one, two].into_iter().zip(&mut delays) {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for drop_one in held {
                        dawdle(delay);
                        drop_one();
                    }
                });
            }
            start.wait();
            dawdle(&mut random);
            drop(provider);
        });
        if round % 100 == 0 {
            client.trim();
            assert_eq!(client.mapped_segments(), 0);
            assert_eq!(files(&prefix), NONE, "files are left after {round} rounds");
        }
    }
    drop(client);
    assert_nothing_left(&prefix);
}

#[test]
fn close_during_drops() {
    let prefix = unique_prefix("last-owner");
    for round in 0..500 {
        let provider = Arc::new(provider(&prefix));
        let start = Arc::new(Barrier::new(3));
        let threads = [1, 2, 3].map(|nth| {
            let (provider, start) = (provider.clone(), start.clone());
            thread::spawn(move || {
                let mut random = Random(round * 3 + nth);
                let mut held: Vec<ShmBufMut> = Vec::new();
                start.wait();
                for _ in 0..random.below(20) {
                    held.push(provider.alloc(random.below(20_000)).unwrap());
                    held.drain(..random.below(held.len()));
                }
                drop(provider);
                dawdle(&mut random);
            })
        });
        drop(provider);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    assert_nothing_left(&prefix);
}
