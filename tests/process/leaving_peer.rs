//! Peers that die while they leave, ids of peers that have left, and a header with a wrong number
//! of used records. The owner reclaims what the dead held, and the next peer in their slot inherits
//! nothing.

use crate::peer::Peer;
use crate::shm::{self, Names};
use shm_pool::{PeerId, Provider, ProviderId, ShareError, ShmBuf};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// Where a control object's header has the number of records ever used, and the slots' epochs.
const HIGH_WATER: u64 = 28;
const EPOCHS: u64 = 32;

fn message(provider: &Provider, seed: u64) -> ShmBuf {
    let mut buffer = provider.alloc(5_000).unwrap();
    shm::fill(&mut buffer, seed);
    buffer.freeze()
}

fn control(names: &Names, provider: ProviderId) -> File {
    let path = shm::path(&format!("{}.{provider}.ctl", names.prefix()));
    OpenOptions::new().read(true).write(true).open(path).expect("the control object has its documented name")
}

fn epoch(peer: PeerId) -> u64 {
    let bytes = peer.to_bytes();
    u64::from_le_bytes(std::array::from_fn(|at| bytes[8 + at]))
}

fn with_epoch(peer: PeerId, epoch: u64) -> PeerId {
    let mut bytes = peer.to_bytes();
    bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
    PeerId::from_bytes(bytes)
}

/// What a peer held is reclaimed if the peer is killed while it leaves, without waiting for another
/// peer to take the same slot.
#[test]
fn killed_during_disconnect() {
    let names = Names::new("leaving");
    let provider = names.provider().build().unwrap();
    let control = control(&names, provider.id());
    let victim = Peer::start(names.prefix());
    let dead = victim.connect(provider.id()).unwrap();
    let (read, granted) = (message(&provider, 1), message(&provider, 2));
    victim.attach(read.descriptor().unwrap(), 1).unwrap();
    let untaken = granted.grant(dead).unwrap();
    victim.kill();
    // The first step of leaving. The victim never gets to the second.
    let at = EPOCHS + 8 * u64::from(dead.slot());
    let mut word = [0; 8];
    control.read_exact_at(&mut word, at).unwrap();
    assert_eq!(u64::from_le_bytes(word), epoch(dead), "the header has the slot's epoch elsewhere");
    control.write_all_at(&(epoch(dead) + 1).to_le_bytes(), at).unwrap();

    assert!(read.is_leased() && granted.is_leased(), "nobody has looked yet");
    assert_eq!(granted.grant(dead), Err(ShareError::PeerGone(dead)), "it had begun to leave");
    assert_eq!((provider.reclaim(), provider.reclaim()), (2, 0), "both messages, and once");
    assert!(!read.is_leased() && !granted.is_leased());

    let next = Peer::start(names.prefix());
    let living = next.connect(provider.id()).unwrap();
    assert_eq!(living.slot(), dead.slot(), "the test needs the slot again");
    assert_eq!(next.attach(untaken, 2).unwrap_err(), "NotGranted", "a grant is not inherited");
    assert_eq!(granted.grant(dead), Err(ShareError::PeerGone(dead)));
    let own = granted.grant(living).unwrap();
    assert_eq!(provider.reclaim(), 0, "the slot is a living peer's now");
    let view = next.attach(own, 2).expect("the living peer's grant is there");
    assert!(granted.is_leased());
    next.release(view);
    assert!(!granted.is_leased());
}

/// Guards against a grant to a forged or damaged id, whose message would never become free again.
#[test]
fn no_grant_to_empty_slot() {
    let names = Names::new("leaving-ids");
    let provider = names.provider().build().unwrap();
    let message = message(&provider, 3);
    let peer = Peer::start(names.prefix());
    let id = peer.connect(provider.id()).unwrap();
    peer.kill();
    provider.reclaim();
    let mut never_taken = id.to_bytes();
    never_taken[16] = 63;
    let never_taken = PeerId::from_bytes(never_taken);
    for epoch in (0..=epoch(id) + 8).chain([u64::MAX, u64::MAX - 3, 1 << 48, 3 << 48]) {
        for id in [with_epoch(id, epoch), with_epoch(never_taken, epoch)] {
            assert_eq!(message.grant(id), Err(ShareError::PeerGone(id)));
            assert!(!message.is_leased(), "a refused grant leaves nothing");
        }
    }
}

/// A rogue peer cannot shorten the owner's search for leases of the dead, which would leave their
/// messages leased for ever.
#[test]
fn forged_slot_state() {
    let names = Names::new("leaving-wild");
    let provider = names.provider().build().unwrap();
    let messages: Vec<_> = (0..5).map(|seed| message(&provider, seed)).collect();
    let victim = Peer::start(names.prefix());
    for (seed, message) in (0..).zip(&messages) {
        victim.attach(message.descriptor().unwrap(), seed).unwrap();
    }
    let control = control(&names, provider.id());
    let mut word = [0; 4];
    control.read_exact_at(&mut word, HIGH_WATER).unwrap();
    assert_eq!(u32::from_le_bytes(word), 5, "the header has the number of used records elsewhere");
    control.write_all_at(&[0; 4], HIGH_WATER).unwrap();
    victim.kill();
    assert_eq!(provider.reclaim(), messages.len());
    assert!(messages.iter().all(|message| !message.is_leased()));
}
