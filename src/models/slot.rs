//! Loom models of grants while peers attach and detach and the owner reclaims.

use super::*;
use crate::protocol::record::{Place, Refused};
use crate::sync::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const PLACE: Place = Place {
    segment: 1,
    index: 2,
    offset: 3,
    len: 4,
};

/// Its lane shares a word with slot 0's.
const SLOT: usize = 1;

const LEN: u64 = 4;

/// The epoch of the first peer in the slot.
const FIRST: u64 = 4;

struct Scene {
    epoch: Epoch,
    gate: GrantGate,
    held: Held,
    record: Record,
    payload: UnsafeCell<u64>,
}

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Scene {}

impl Scene {
    fn new() -> Arc<Self> {
        let (epoch, gate, record) = (
            Epoch(AtomicU64::new(FIRST)),
            GrantGate::new(),
            Record::new(),
        );
        let held = Held(AtomicU64::new(Held::none(FIRST)));
        let scene = Self {
            epoch,
            gate,
            held,
            record,
            payload: UnsafeCell::new(2),
        };
        scene.record.close_at(1);
        scene.record.publish(2, PLACE);
        Arc::new(scene)
    }

    fn grant(&self, wanted: u64) -> Result<(), NotGranted> {
        self.gate
            .grant(&self.epoch, wanted, &self.record, SLOT, self.cost(None))
    }

    /// The cost of a message of [`LEN`] bytes.
    fn cost(&self, max: Option<u64>) -> Cost<'_> {
        Cost {
            held: &self.held,
            len: LEN,
            max,
        }
    }

    /// Returns how many bytes the peer holds that connected with `epoch`.
    fn held(&self, epoch: u64) -> u64 {
        self.held.charge(epoch, MAX_HELD, 0).unwrap_err()
    }

    fn vacate(&self) {
        self.epoch.vacate(|| self.record.clear(SLOT));
    }
}

fn spawn(scene: &Arc<Scene>, run: impl FnOnce(&Scene) + 'static) -> thread::JoinHandle<()> {
    let scene = scene.clone();
    thread::spawn(move || run(&scene))
}

#[test]
fn grant_to_leaving_peer() {
    explore(4, || {
        let scene = Scene::new();
        let granting = spawn(&scene, |scene| drop(scene.grant(FIRST)));
        scene.vacate();
        granting.join().unwrap();
        assert!(!scene.record.is_leased());
    });
}

#[test]
fn grant_to_leaving_peer_spares_next() {
    explore(3, || {
        let scene = Scene::new();
        let late = spawn(&scene, |scene| drop(scene.grant(FIRST)));
        scene.vacate();
        let next = scene.epoch.occupy(&scene.held);
        assert_eq!(next, FIRST + 4);
        // Another thread of the owner sends to the next peer, which also attaches to a message.
        scene.grant(next).unwrap();
        scene.record.renew(SLOT).unwrap();
        late.join().unwrap();
        assert!(
            scene.record.accept(SLOT, 2).is_ok(),
            "its grant was taken back"
        );
        assert!(
            scene.record.accept(SLOT, 2).is_err(),
            "a grant that nobody was told of"
        );
        scene.record.release(SLOT);
        scene.record.release(SLOT);
        assert!(!scene.record.is_leased());
    });
}

/// Nor is one taken from the slot's next peer.
#[test]
fn refused_peer_keeps_no_grant() {
    explore(3, || {
        let scene = Scene::new();
        let granting = spawn(&scene, |scene| drop(scene.grant(FIRST)));
        let refusing = spawn(&scene, |scene| {
            let take_back = || while scene.record.revoke(SLOT) {};
            scene.gate.refuse(&scene.epoch, FIRST, take_back);
        });
        granting.join().unwrap();
        if scene.epoch.is(FIRST + REFUSED) && !scene.record.is_leased() {
            // No thread has been told of the refusal yet.
            refusing.join().unwrap();
            assert!(!scene.record.is_leased());
            assert!(!scene.epoch.is(FIRST) && scene.epoch.is_of(FIRST));
            return;
        }
        // The peer detaches meanwhile.
        scene.vacate();
        let next = scene.epoch.occupy(&scene.held);
        scene.grant(next).unwrap();
        refusing.join().unwrap();
        assert!(
            scene.record.accept(SLOT, 2).is_ok(),
            "its grant was taken back"
        );
        scene.record.release(SLOT);
        assert!(!scene.record.is_leased());
    });
}

#[test]
fn grant_to_refused_peer() {
    explore(4, || {
        let scene = Scene::new();
        let granting = spawn(&scene, |scene| drop(scene.grant(FIRST)));
        assert!(scene
            .gate
            .refuse(&scene.epoch, FIRST, || while scene.record.revoke(SLOT) {}));
        granting.join().unwrap();
        assert!(!scene.record.is_leased());
        assert_eq!(scene.grant(FIRST), Err(NotGranted::Gone));
    });
}

#[test]
fn refused_peer_puts_grant_back() {
    explore(4, || {
        let scene = Scene::new();
        scene.grant(FIRST).unwrap();
        scene.record.accept(SLOT, 2).unwrap();
        let failing = spawn(&scene, |scene| {
            scene.record.put_back(SLOT);
            scene.epoch.take_back_if_refused(FIRST, &scene.record, SLOT);
        });
        assert!(scene
            .gate
            .refuse(&scene.epoch, FIRST, || while scene.record.revoke(SLOT) {}));
        failing.join().unwrap();
        assert!(!scene.record.is_leased());
    });
}

/// A duplicate of an older descriptor takes the grant up and puts it back.
#[test]
fn late_descriptor_of_refused_peer() {
    explore(4, || {
        let scene = Scene::new();
        let late = spawn(&scene, |scene| match scene.record.accept(SLOT, 2) {
            Ok(place) => panic!("{place:?} by a descriptor of another message"),
            Err(Refused::Stale) => scene.epoch.take_back_if_refused(FIRST, &scene.record, SLOT),
            Err(_) => {}
        });
        scene.record.close_at(3);
        scene.record.publish(4, PLACE);
        scene.grant(FIRST).unwrap();
        assert!(scene
            .gate
            .refuse(&scene.epoch, FIRST, || while scene.record.revoke(SLOT) {}));
        late.join().unwrap();
        assert!(!scene.record.is_leased());
    });
}

#[test]
fn reclaim_spares_living_peers() {
    explore(3, || {
        let scene = Scene::new();
        // The peer died with a view and a grant.
        scene.record.renew(SLOT).unwrap();
        scene.record.grant(SLOT).unwrap();
        let reader = spawn(&scene, |scene| {
            if scene.record.attach(0, 2).is_ok() {
                // SAFETY: loom checks the access.
                scene.payload.with(|bytes| assert_eq!(unsafe { *bytes }, 2));
                scene.record.release(0);
            }
        });
        let reclaiming = spawn(&scene, |scene| scene.vacate());
        let mut generation = 2;
        if scene.record.recycle(&mut generation) {
            // SAFETY: loom checks the access.
            scene.payload.with_mut(|bytes| unsafe { *bytes = 4 });
        }
        reader.join().unwrap();
        reclaiming.join().unwrap();
        assert!(scene.record.recycle(&mut generation), "nobody leases it");
        assert_eq!(generation, 3);
        assert!(scene.epoch.is_vacant());
    });
}

#[test]
fn grant_after_lanes_are_cleared() {
    explore(3, || {
        let scene = Scene::new();
        let next = FIRST + 4;
        // One of the two opens the gate. The other may find it open, and then does not check the
        // epoch.
        let enter = move |scene: &Scene| {
            if scene.gate.enter(&scene.epoch, next) {
                // SAFETY: loom checks the access.
                scene.payload.with(|lanes| assert_eq!(unsafe { *lanes }, 0));
                scene.gate.leave();
            }
        };
        let granting = [(); 2].map(|()| spawn(&scene, enter));
        // The payload stands for the slot's lanes.
        // SAFETY: loom checks the access.
        scene
            .epoch
            .vacate(|| scene.payload.with_mut(|lanes| unsafe { *lanes = 0 }));
        assert_eq!(scene.epoch.occupy(&scene.held), next);
        granting
            .into_iter()
            .for_each(|granting| granting.join().unwrap());
    });
}

/// A grant to a leaving peer does not count against the slot's next peer, and what the next one
/// holds is counted.
#[test]
fn late_grant_spares_count_of_next() {
    explore(3, || {
        let scene = Scene::new();
        let late = spawn(&scene, |scene| {
            let cost = scene.cost(Some(MAX_HELD));
            if scene
                .gate
                .grant(&scene.epoch, FIRST, &scene.record, SLOT, cost)
                .is_ok()
            {
                scene
                    .gate
                    .revoke(&scene.epoch, FIRST, &scene.record, SLOT, cost);
            }
        });
        scene.vacate();
        let next = scene.epoch.occupy(&scene.held);
        scene.held.charge(next, 2 * LEN, MAX_HELD).unwrap();
        late.join().unwrap();
        assert_eq!(scene.held(next), 2 * LEN);
        assert!(!scene.record.is_leased());
    });
}

/// Two threads and the peer never exceed the limit together, and all that is not granted is
/// refunded.
#[test]
fn grants_within_quota() {
    explore(3, || {
        let scene = Scene::new();
        let grant = |scene: &Scene| {
            let granted = scene.gate.grant(
                &scene.epoch,
                FIRST,
                &scene.record,
                SLOT,
                scene.cost(Some(2 * LEN)),
            );
            match granted {
                Ok(()) => LEN,
                Err(NotGranted::OverQuota { .. }) => 0,
                Err(other) => panic!("{other:?}"),
            }
        };
        let granting = spawn(&scene, move |scene| {
            grant(scene);
        });
        let reads = scene.held.charge(FIRST, LEN, 2 * LEN).is_ok();
        let granted = grant(&scene);
        granting.join().unwrap();
        let grants = scene.record.leases(SLOT).1;
        assert_eq!(scene.held(FIRST), LEN * (u64::from(reads) + grants));
        assert!(scene.held(FIRST) == 2 * LEN && grants * LEN >= granted);
    });
}

/// A grant that is taken up, read and released while it is revoked is refunded once.
#[test]
fn revoked_or_taken_up() {
    explore(4, || {
        let scene = Scene::new();
        let cost = scene.cost(Some(MAX_HELD));
        scene
            .gate
            .grant(&scene.epoch, FIRST, &scene.record, SLOT, cost)
            .unwrap();
        assert_eq!(scene.held(FIRST), LEN);
        let reading = spawn(&scene, |scene| {
            if scene.record.accept(SLOT, 2).is_ok() {
                scene.record.release(SLOT);
                scene.held.refund(FIRST, LEN);
            }
        });
        scene
            .gate
            .revoke(&scene.epoch, FIRST, &scene.record, SLOT, cost);
        reading.join().unwrap();
        assert_eq!(scene.held(FIRST), 0);
        assert!(!scene.record.is_leased());
    });
}
