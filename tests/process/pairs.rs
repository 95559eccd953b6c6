//! Pairs of mechanisms that belong to no other topic and involve several processes (see the table
//! in `../PAIRS.md`).

use crate::child::{in_child, in_small_shm};
use crate::peer::Peer;
use crate::rlimits::with_only;
use crate::shm::{self, Names};
use crate::sys::{self, with_address_space};
use crate::wire::FOR_EVER;
use shm_pool::{AllocError, Namespace, Provider, ShareError, Tuning};
use std::io::Read;
use std::os::unix::net::UnixStream;

const MIB: usize = 1 << 20;

/// The parent keeps its reservations, and a trim leaves the child's pages alone.
#[test]
fn fork_beside_reservation_and_trim() {
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(4 * MIB)
            .build()
            .unwrap();
        let client = shm::client(prefix);
        let peer = client.connect(provider.id()).unwrap();
        let reservation = provider.reserve(100_000, 2).unwrap();
        drop([provider.alloc(MIB).unwrap(), provider.alloc(MIB).unwrap()]);
        let stats = provider.stats();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let Some(forked) = sys::fork() else {
            sys::end_with(move || {
                assert_eq!(
                    (provider.trim(), provider.trim_to(0), provider.reclaim()),
                    (0, 0, 0)
                );
                assert!(!provider.disconnect(peer));
                drop((reservation, provider, client));
                drop(ours);
                // The child runs until its parent closes the other end.
                let _ = (&theirs).read(&mut [0]);
            });
        };
        drop(theirs);
        assert_eq!(provider.stats(), stats, "as if there had been no fork");
        let message = provider.alloc(1000).unwrap().freeze();
        assert!(
            client.attach(&message.grant(peer).unwrap()).is_ok(),
            "nobody was disconnected"
        );
        let idle = 2 * MIB;
        assert!(
            provider.trim() >= idle,
            "all that is idle goes, whoever has it mapped"
        );
        assert!(
            (2 * 100_000..idle).contains(&provider.stats().bytes_held),
            "and what is reserved stays"
        );
        let others: Vec<_> = std::iter::from_fn(|| provider.alloc(64 << 10).ok()).collect();
        let misses = provider.stats().misses();
        let mut reserved = [
            provider.alloc(100_000).expect("it is reserved"),
            provider.alloc(100_000).expect("it is reserved"),
        ];
        assert_eq!(provider.stats().misses(), misses);
        for buffer in &mut reserved {
            shm::fill(buffer, 1);
        }
        drop(ours);
        forked.finish();
        for buffer in &reserved {
            shm::check(buffer, 1).unwrap();
        }
        drop((reserved, others, message, reservation, provider, client));
        assert_eq!(shm::objects(prefix), [""; 0]);
    });
}

/// A killed reader costs a control loop none of its chunks.
#[test]
fn killed_peer_returns_reserved() {
    let names = Names::new("pairs-killed");
    let provider = names.provider().max_bytes(4 * MIB).build().unwrap();
    let _reservation = provider.reserve(100_000, 1).unwrap();
    for round in 0..5 {
        let peer = Peer::start(names.prefix());
        let message = shm::message(&provider, 100_000, round);
        peer.attach(message.descriptor().unwrap(), round).unwrap();
        drop(message);
        // The cap is used up, which triggers a search for it.
        let others: Vec<_> = std::iter::from_fn(|| provider.alloc(4096).ok()).collect();
        let misses = provider.stats().misses();
        peer.kill();
        assert!(provider.alloc(100_000).is_ok(), "its reader is dead");
        assert_eq!(provider.stats().misses(), misses, "it is there");
        drop(others);
    }
}

/// A restarted peer is not refused for its earlier reads.
#[test]
fn quota_of_killed_peer_is_free() {
    let names = Names::new("pairs-quota");
    let provider = names.provider().max_bytes_per_peer(1000).build().unwrap();
    let message = shm::message(&provider, 1000, 1);
    for _ in 0..5 {
        let peer = Peer::start(names.prefix());
        peer.attach(message.descriptor().unwrap(), 1).unwrap();
        assert!(peer
            .attach(message.descriptor().unwrap(), 1)
            .unwrap_err()
            .contains("OverQuota"));
        peer.kill();
        // This one is killed with a grant that it did not take up.
        let peer = Peer::start(names.prefix());
        let id = peer.connect(provider.id()).unwrap();
        message.grant(id).unwrap();
        assert!(matches!(
            message.grant(id),
            Err(ShareError::OverQuota { held: 1000, .. })
        ));
        peer.kill();
    }
}

/// Failed reservations lose no memory; without descriptors, no call waits for available memory.
#[test]
fn address_space_beside_reserve_and_wait() {
    in_child(|prefix| {
        const LEN: usize = 4 * MIB;
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(32 * MIB)
            .tuning(Tuning::new().arena_size(LEN))
            .build()
            .unwrap();
        let state = || {
            (
                shm::objects(prefix),
                shm::mappings(prefix),
                provider.stats().bytes_held,
            )
        };
        let before = state();
        for _ in 0..20 {
            let error = with_address_space(512 << 10, || provider.reserve(LEN, 2)).unwrap_err();
            assert!(
                error.is_exhausted() && matches!(error, AllocError::Os(_)),
                "{error}"
            );
            assert_eq!(state(), before);
            let error = with_only(0, || provider.alloc_timeout(LEN, FOR_EVER)).unwrap_err();
            let AllocError::Os(error) = error else {
                panic!("{error}")
            };
            assert_eq!(error.errno(), Some(libc::EMFILE), "{error}");
            assert_eq!(state(), before);
        }
        assert!(provider.reserve(LEN, 2).is_ok());
        drop(provider);
    });
}

/// An owner that has run out of a resource can reclaim from the dead.
#[test]
fn address_space_beside_killed_peer() {
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(MIB)
            .build()
            .unwrap();
        for round in 0..6 {
            let message = shm::message(&provider, MIB, 1);
            let peer = Peer::start(prefix);
            peer.attach(message.descriptor().unwrap(), 1).unwrap();
            drop(message);
            peer.kill();
            match round % 3 {
                0 => assert_eq!(with_only(0, || provider.reclaim()), 1),
                1 => assert!(with_only(0, || provider.alloc_timeout(MIB, FOR_EVER)).is_ok()),
                _ => assert!(with_address_space(0, || provider.alloc(MIB)).is_ok()),
            }
        }
        drop(provider);
    });
}

/// Two publishers that share a small /dev/shm return to each other what they no longer need.
#[test]
fn window_makes_room_in_small_shm() {
    in_small_shm(|prefix| {
        let builder = || {
            Provider::builder()
                .namespace(&Namespace::new(prefix).unwrap())
                .max_bytes(16 * MIB)
                .max_shared(64)
                .tuning(Tuning::new().idle_window(64))
        };
        let first = builder().build().unwrap();
        let second = builder().build().unwrap();
        drop([
            first.alloc(MIB).unwrap(),
            first.alloc(MIB).unwrap(),
            first.alloc(MIB).unwrap(),
        ]);
        assert!(
            second.alloc(2 * MIB).unwrap_err().is_exhausted(),
            "the first one has it"
        );
        let mut rounds = 0;
        while second.alloc(2 * MIB).is_err() {
            for _ in 0..200 {
                drop(first.alloc(48).unwrap());
            }
            let mut burst = Vec::new();
            for _ in 0..20 {
                burst.push(first.alloc(48).unwrap());
            }
            drop(burst);
            rounds += 1;
            assert!(rounds < 10_000, "{:?}", first.stats());
        }
        drop((first, second));
    });
}
