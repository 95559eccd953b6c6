//! Slots, epochs and gates at their limits. Each test plays both sides, on its own control object.

#![forbid(unsafe_code)]

use super::*;
use crate::os::name::Namespace;
use crate::os::posix::effective_uid;
use crate::peer::control::PeerControl;
use crate::peer::error::AttachError;
use crate::protocol::record::{published_after, Place};
use crate::protocol::slot::{Held, MAX_UNDER_WAY, UNDER_WAY, VACANT};
use std::sync::atomic::AtomicBool;
use std::sync::Barrier;
use std::thread;

/// The lowest bit of an epoch that a gate does not keep.
const BEYOND_THE_GATE: u64 = 1 << (u64::BITS - UNDER_WAY);

const RECORDS: usize = 4096;

struct Scene {
    owner: OwnerControl,
    names: Namespace,
    record: u32,
    generation: u64,
}

impl Scene {
    fn new(test: &str) -> Self {
        let names = Namespace::in_shm(&format!("shm_pool-unit-{}-{test}", std::process::id()));
        let owner = OwnerControl::create(&names, ProviderId(7), RECORDS, 0o600, 0, 1)
            .unwrap()
            .expect("no other process sweeps this prefix");
        let (record, closed) = owner.claim_record().unwrap();
        let generation = published_after(closed);
        owner.record(record).unwrap().publish(
            generation,
            Place {
                segment: 1,
                index: 0,
                offset: 0,
                len: 1,
            },
        );
        Self {
            owner,
            names,
            record,
            generation,
        }
    }

    fn connect(&self) -> Result<PeerControl, AttachError> {
        PeerControl::connect(&self.names, self.owner.id, effective_uid())
    }

    fn connect_after(&self, epoch: u64) -> PeerControl {
        self.owner.view.header().epochs[0]
            .0
            .store(epoch | VACANT, Ordering::Relaxed);
        let peer = self.connect().unwrap();
        assert_eq!((peer.slot(), peer.id().epoch), (0, epoch.wrapping_add(4)));
        peer
    }

    fn record(&self) -> &Record {
        self.owner.record(self.record).unwrap()
    }

    fn accept(&self, slot: usize) -> bool {
        self.record().accept(slot, self.generation).is_ok()
    }

    fn grant(&self, peer: PeerId) -> Result<(), ShareError> {
        self.owner.grant(self.record(), peer, 1)
    }
}

/// Otherwise the peer's message would be reused before it arrives.
#[test]
fn epoch_equal_modulo_gate() {
    let scene = Scene::new("alias");
    let peer = scene.connect().unwrap();
    scene.grant(peer.id()).unwrap();
    for factor in [1, 2, 3, 0xffff] {
        let alias = PeerId {
            epoch: peer
                .id()
                .epoch
                .wrapping_add(BEYOND_THE_GATE.wrapping_mul(factor)),
            ..peer.id()
        };
        assert_ne!(alias, peer.id());
        for _ in 0..=MAX_GRANTS {
            assert_eq!(scene.grant(alias), Err(ShareError::PeerDisconnected(alias)));
        }
        assert!(
            !scene.owner.revoke(scene.record(), alias, 1),
            "the peer's own grant"
        );
    }
    assert!(scene.accept(peer.slot()), "the peer's own grant is there");
    assert!(
        !scene.accept(peer.slot()),
        "and none that was for somebody else"
    );
    peer.release(scene.record, 0);
    assert!(!scene.record().is_leased());
}

#[test]
fn epoch_wraps() {
    let scene = Scene::new("epochs");
    for before in [
        BEYOND_THE_GATE - 4,
        BEYOND_THE_GATE,
        3 * BEYOND_THE_GATE - 4,
        u64::MAX - 7,
        u64::MAX - 3,
        0,
    ] {
        let earlier = scene.connect_after(before.wrapping_sub(4)).id();
        let peer = scene.connect_after(before);
        assert_eq!(
            scene.grant(earlier),
            Err(ShareError::PeerDisconnected(earlier)),
            "after epoch {before:#x}"
        );
        assert_eq!(scene.grant(peer.id()), Ok(()), "after epoch {before:#x}");
        assert_eq!(
            scene.grant(earlier),
            Err(ShareError::PeerDisconnected(earlier)),
            "after epoch {before:#x}"
        );
        let id = peer.id();
        drop(peer);
        assert!(
            !scene.record().is_leased(),
            "a peer that leaves takes its grants with it"
        );
        assert_eq!(
            scene.grant(id),
            Err(ShareError::PeerDisconnected(id)),
            "after epoch {before:#x}"
        );
        assert_eq!(scene.owner.reclaim(), 0, "it has left");
    }
}

#[test]
fn dead_peer_with_any_epoch() {
    let scene = Scene::new("epochs-dead");
    for before in [BEYOND_THE_GATE - 4, u64::MAX - 7, u64::MAX - 3] {
        for is_found_by_the_owner in [true, false] {
            let peer = scene.connect_after(before);
            scene.grant(peer.id()).unwrap();
            // The kernel releases the lock of a process that exits. Here the process itself does.
            peer.die();
            if is_found_by_the_owner {
                assert_eq!(
                    (scene.owner.reclaim(), scene.owner.reclaim()),
                    (1, 0),
                    "after epoch {before:#x}"
                );
            } else {
                assert_eq!(scene.connect().unwrap().id().epoch, before.wrapping_add(8));
            }
            assert!(!scene.record().is_leased());
        }
    }
}

/// For example, of a peer killed while it tried a descriptor of a record that had no chunk yet.
#[test]
fn lease_of_empty_slot() {
    let scene = Scene::new("stray");
    for slot in [0, 7, PEERS - 1] {
        scene.record().renew(slot).unwrap();
        assert_eq!((scene.owner.reclaim(), scene.owner.reclaim()), (1, 0));
        assert!(!scene.record().is_leased());
    }
    let peer = scene.connect().unwrap();
    scene.record().renew(peer.slot()).unwrap();
    assert_eq!(scene.owner.reclaim(), 0, "somebody has this one");
    assert!(scene.record().is_leased());
}

/// The owner would overwrite the messages of the slot's next peer.
#[test]
fn lost_slot_releases_nothing() {
    let scene = Scene::new("lost");
    let lost = scene.connect().unwrap();
    scene
        .record()
        .attach(lost.slot(), scene.generation)
        .unwrap();
    assert!(lost.has_slot());
    lost.lose_lock();
    let next = scene.connect().unwrap();
    assert_eq!(next.slot(), lost.slot());
    assert!(next.has_slot() && !lost.has_slot());
    scene
        .record()
        .attach(next.slot(), scene.generation)
        .unwrap();
    lost.release(scene.record, 0);
    lost.put_back(scene.record, 0);
    assert!(
        !scene.accept(next.slot()),
        "a grant was made of the next one's lease"
    );
    drop(lost);
    assert!(scene.record().is_leased() && next.has_slot());
    next.release(scene.record, 0);
    assert!(!scene.record().is_leased());
}

/// It would redirect grants.
#[test]
fn full_gate_blocks() {
    let scene = Scene::new("gate-full");
    let peer = scene.connect().unwrap();
    let full = peer.id().epoch << UNDER_WAY | MAX_UNDER_WAY;
    scene.owner.gates[0].0.store(full, Ordering::Relaxed);
    let (begins, has_room) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let granted = scope.spawn(|| {
            begins.store(true, Ordering::Release);
            scene.grant(peer.id()).unwrap();
            assert!(has_room.load(Ordering::Acquire), "it did not wait");
        });
        // A grant that does not wait ends long before this loop. One that waits never ends.
        while !begins.load(Ordering::Acquire) {
            thread::yield_now();
        }
        for _ in 0..10_000 {
            assert_eq!(
                scene.owner.gates[0].0.load(Ordering::Relaxed),
                full,
                "the count went into the epoch"
            );
            thread::yield_now();
        }
        has_room.store(true, Ordering::Release);
        scene.owner.gates[0].0.fetch_sub(1, Ordering::Release);
        granted.join().unwrap();
    });
    assert_eq!(scene.owner.gates[0].0.load(Ordering::Relaxed), full - 1);
    assert!(scene.accept(0));
}

/// Leases would be counted together.
#[test]
fn last_slot() {
    let scene = Scene::new("slots");
    let mut peers: Vec<_> = (0..PEERS).map(|_| scene.connect().unwrap()).collect();
    assert!(peers
        .iter()
        .enumerate()
        .all(|(slot, peer)| peer.slot() == slot));
    let refused = |scene: &Scene| matches!(scene.connect(), Err(AttachError::TooManyPeers(_)));
    assert!(refused(&scene) && refused(&scene));
    scene.owner.reclaim();
    assert!(refused(&scene), "nobody is gone");
    for slot in [PEERS - 1, 0, 31] {
        drop(peers.swap_remove(slot));
        peers.push(scene.connect().unwrap());
        assert_eq!(peers.last().map(PeerControl::slot), Some(slot));
        peers.sort_by_key(PeerControl::slot);
        assert!(refused(&scene));
    }
}

#[test]
fn slot_being_cleared() {
    let scene = Scene::new("clearing");
    // Makes clearing take a while.
    scene.owner.free_lists.lock().fresh = RECORDS as u32;
    let others: Vec<_> = (1..PEERS).map(|_| scene.connect().unwrap()).collect();
    for nth in 0..500 {
        scene.connect().unwrap().die();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                scene.owner.reclaim();
            });
            both.wait();
            let connected = scene.connect().map(|peer| peer.slot());
            assert_eq!(
                connected.map_err(|error| error.to_string()),
                Ok(PEERS - 1),
                "the {nth}th time"
            );
        });
    }
    drop(others);
}

/// For example by a debugger.
#[test]
fn slot_never_cleared() {
    let scene = Scene::new("clearing-stopped");
    let _others: Vec<_> = (1..PEERS).map(|_| scene.connect().unwrap()).collect();
    assert!(scene
        .owner
        .locks
        .try_lock_shared(peer_byte(PEERS - 1))
        .unwrap());
    assert!(matches!(scene.connect(), Err(AttachError::TooManyPeers(_))));
    scene.owner.locks.unlock(peer_byte(PEERS - 1)).unwrap();
    assert_eq!(scene.connect().unwrap().slot(), PEERS - 1);
}

/// A count in shared memory, which any process may write, never wraps, and a process that is late
/// never changes the count of the slot's next peer.
#[test]
fn held_bytes_at_their_limits() {
    let held = Held(AtomicU64::new(0));
    let count = || held.0.load(Ordering::Relaxed) & MAX_HELD;
    for epoch in [0, 4, 4 << 16, u64::MAX - 7, u64::MAX - 3] {
        assert_eq!(
            Epoch(AtomicU64::new(epoch.wrapping_sub(1))).occupy(&held),
            epoch
        );
        assert_eq!(held.charge(epoch, MAX_HELD, MAX_HELD), Ok(()));
        assert_eq!(held.charge(epoch, 1, MAX_HELD), Err(MAX_HELD));
        assert_eq!(held.charge(epoch, u64::MAX, MAX_HELD), Err(MAX_HELD));
        held.refund(epoch, 1);
        assert_eq!(count(), MAX_HELD - 1);
        for late in [epoch.wrapping_sub(4), epoch.wrapping_add(4)] {
            held.refund(late, 1);
            assert_eq!(
                (held.charge(late, 1, MAX_HELD), count()),
                (Ok(()), MAX_HELD - 1)
            );
        }
        held.refund(epoch, u64::MAX);
        assert_eq!(count(), 0);
    }
}
