//! A client that connects to a dead owner while that owner's objects are being swept.

use crate::shm::{self, Names};
use shm_pool::{AttachError, ProviderId};
use std::fs;
use std::thread;

/// The position of the provider's id in a control object.
const ID: std::ops::Range<usize> = 16..24;

/// How many owners die.
const OWNERS: u64 = 300;

/// A peer does not mistake a sweep, which briefly holds the dead owner's lock, for the owner, and
/// wait for messages that are never sent.
#[test]
fn connect_during_sweep() {
    let names = Names::new("connect-swept");
    let provider = names.provider().max_shared(1).build().unwrap();
    let mut object = fs::read(shm::path(&format!("{}.{}.ctl", names.prefix(), provider.id()))).unwrap();
    for owner in 1..=OWNERS {
        // As left by a killed owner: an open control object whose lock is free.
        let id = ProviderId::from_u64(owner);
        object[ID].copy_from_slice(&owner.to_le_bytes());
        let dead = shm::path(&format!("{}.{id}.ctl", names.prefix()));
        fs::write(&dead, &object).unwrap();
        fs::set_permissions(&dead, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let client = names.client();
        let connected = thread::scope(|scope| {
            scope.spawn(|| names.sweep());
            loop {
                match client.connect(id) {
                    // Not swept yet.
                    Err(AttachError::OwnerDied { .. }) => {}
                    other => break other,
                }
            }
        });
        let error = connected.expect_err("a connection to a dead owner");
        let is_typed = matches!(error, AttachError::NoProvider { .. } | AttachError::Closed { .. });
        assert!(is_typed, "owner {owner}: {error:?}");
    }
    assert!(names.client().connect(provider.id()).is_ok(), "the living one is not swept");
}
