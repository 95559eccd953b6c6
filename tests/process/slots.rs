//! The 64 peer slots of a provider: a killed peer's slot is free at once, and its id becomes
//! invalid (D5).

use crate::peer::Peer;
use crate::shm::{self, Names};
use shm_pool::{AttachError, Client, ShareError};

const PEERS: usize = 64;

/// A provider whose peers crash and restart does not run out of slots, nor mistake a new peer for a
/// dead one with grants.
#[test]
fn killed_peer_frees_slot() {
    let names = Names::new("slots");
    let provider = names.provider().build().unwrap();
    let victim = Peer::start(names.prefix());
    let dead = victim.connect(provider.id()).unwrap();
    let clients: Vec<Client> = (1..PEERS).map(|_| names.client()).collect();
    let ids: Vec<_> = clients.iter().map(|client| client.connect(provider.id()).unwrap()).collect();
    let one_more = names.client();
    let refused = one_more.connect(provider.id()).unwrap_err();
    assert!(matches!(refused, AttachError::TooManyPeers { max: PEERS, .. }), "{refused}");

    let mut buffer = provider.alloc(20_000).unwrap();
    shm::fill(&mut buffer, 1);
    let message = buffer.freeze();
    victim.attach(message.descriptor().unwrap(), 1).unwrap();
    let untaken = message.grant(dead).unwrap();
    victim.kill();

    let living = one_more.connect(provider.id()).unwrap();
    assert_eq!(living.slot(), dead.slot(), "there is no other");
    assert!(!message.is_leased(), "who takes a slot over clears what its last peer held");
    assert_eq!(message.grant(dead), Err(ShareError::PeerGone(dead)), "the dead one's id is not the new one's");
    assert!(!message.is_leased(), "a refused grant leaves nothing");
    let refused = one_more.attach(&untaken).unwrap_err();
    assert!(matches!(refused, AttachError::NotGranted), "a grant is not inherited: {refused}");

    for (client, id) in clients.iter().zip(ids) {
        let view = client.attach(&message.grant(id).unwrap()).unwrap();
        shm::check(&view, 1).unwrap();
    }
    let view = one_more.attach(&message.grant(living).unwrap()).unwrap();
    assert!(message.is_leased());
    drop(view);
    assert!(!message.is_leased());
}

#[test]
fn killed_peers_share_slot() {
    let names = Names::new("slots-again");
    let provider = names.provider().build().unwrap();
    let mut buffer = provider.alloc(5_000).unwrap();
    shm::fill(&mut buffer, 9);
    let message = buffer.freeze();
    let mut ids = Vec::new();
    for _ in 0..5 {
        let peer = Peer::start(names.prefix());
        peer.attach(message.descriptor().unwrap(), 9).unwrap();
        ids.push(peer.connect(provider.id()).unwrap());
        peer.kill();
    }
    assert!(ids.iter().all(|id| id.slot() == ids[0].slot()), "{ids:?}");
    assert!(message.is_leased(), "nobody has looked since the last one died");
    drop(message);
    assert_eq!(provider.stats().bytes_leased, provider.stats().classes[0].size);
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

/// With all 64 slots taken, another process never shares a slot, and joins once a slot is free.
#[test]
fn sixty_fifth_peer() {
    let names = Names::new("slots-65");
    let provider = names.provider().build().unwrap();
    let mut buffer = provider.alloc(5_000).unwrap();
    shm::fill(&mut buffer, 65);
    let message = buffer.freeze();
    let descriptor = message.descriptor().unwrap();
    let mut peers: Vec<Option<Peer>> = (0..PEERS).map(|_| Some(Peer::start(names.prefix()))).collect();
    let connected = peers.iter().flatten().map(|peer| peer.connect(provider.id()).unwrap().slot());
    assert!(connected.eq(0..PEERS as u8), "one slot each, the first that is free");
    let views: Vec<_> = peers.iter().flatten().map(|peer| peer.attach(descriptor, 65).unwrap()).collect();

    type Goes = fn(Peer);
    let ways: [(usize, Goes); 3] = [(40, Peer::kill), (63, Peer::leave), (0, Peer::kill)];
    let late = Peer::start(names.prefix());
    let mut latecomers = vec![late];
    for (slot, goes) in ways {
        let late = latecomers.last().expect("one was pushed");
        for refused in [late.connect(provider.id()).unwrap_err(), late.attach(descriptor, 65).unwrap_err()] {
            assert!(refused.starts_with("TooManyPeers") && refused.contains("max: 64"), "{refused}");
        }
        assert_eq!(late.mappings(), 0, "a refused peer keeps no mapping");
        goes(peers[slot].take().expect("each slot is left once"));
        assert_eq!(usize::from(late.connect(provider.id()).unwrap().slot()), slot, "there is no other");
        late.attach(descriptor, 65).unwrap();
        latecomers.push(Peer::start(names.prefix()));
    }
    assert_eq!(provider.reclaim(), 0, "who took the slots has cleared them");
    for (peer, view) in peers.iter().zip(&views) {
        peer.iter().for_each(|peer| peer.check(*view));
    }
    drop((peers, latecomers));
    assert_eq!(provider.reclaim(), PEERS, "all were killed with a view of the message");
    assert!(!message.is_leased());
}
