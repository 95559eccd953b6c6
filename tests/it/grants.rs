//! A grant keeps a message in flight to one known receiver only.

use crate::fixtures::{
    address, builder, forge, holds, message, messages, messages_of, pair, provider, unique_prefix,
};
use shm_pool::{
    AttachError, Client, Descriptor, Namespace, PeerId, Provider, ShareError, ShmBytes, ShmView,
};

/// The lengths of a chunk carved in cache lines, and of one of whole pages.
const LENGTHS: [usize; 2] = [100, 1 << 20];

fn connected() -> (Provider, Client, PeerId) {
    let (provider, client) = pair();
    let peer = client.connect(provider.id()).unwrap();
    (provider, client, peer)
}

/// As many grants of one message as a peer may have pending.
#[track_caller]
fn seven_grants(buffer: &ShmBytes, peer: PeerId) -> Vec<Descriptor> {
    let mut grants = Vec::new();
    for _ in 0..7 {
        grants.push(buffer.grant(peer).unwrap());
    }
    grants
}

#[track_caller]
fn attach_to_each(client: &Client, descriptors: &[Descriptor]) -> Vec<ShmView> {
    let mut views = Vec::new();
    for descriptor in descriptors {
        views.push(client.attach(descriptor).unwrap());
    }
    views
}

#[test]
fn grant_keeps_message() {
    for len in LENGTHS {
        let (provider, client, peer) = connected();
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let granted = buffer.grant(peer).unwrap();
        assert_eq!(granted.granted_to(), Some(peer.slot()));
        drop(buffer);
        assert!(
            provider.stats().bytes_leased >= len,
            "a grant in flight is not counted as leased"
        );
        for stamp in 2..100 {
            assert_ne!(
                address(&message(&provider, len, stamp)),
                first,
                "a message was lost in flight"
            );
        }
        let view = client.attach(&granted).unwrap();
        assert!(holds(&view, 1));
        assert_ne!(
            address(&provider.alloc(len).unwrap()),
            first,
            "the grant is gone but the view is not guarded"
        );
        drop(view);
        let stats = provider.stats();
        assert_eq!(
            (stats.bytes_leased, stats.bytes_in_use),
            (0, 0),
            "the lease outlives grant and view"
        );
        provider.trim();
        assert_eq!(
            provider.stats().bytes_held,
            0,
            "the memory is lost after grant and view"
        );
    }
}

#[test]
fn grant_is_accepted_once() {
    let (provider, client, peer) = connected();
    let buffer = message(&provider, 100, 1);
    let granted = buffer.grant(peer).unwrap();
    let view = client.attach(&granted).unwrap();
    let second = client.attach(&granted);
    assert!(
        matches!(second, Err(AttachError::NotGranted)),
        "one grant was taken up twice: {second:?}"
    );
    assert!(holds(&view, 1));
    drop(view);
    assert!(
        matches!(client.attach(&granted), Err(AttachError::NotGranted)),
        "a used grant works again"
    );
    assert!(!buffer.is_leased());
    assert!(
        client.attach(&buffer.descriptor().unwrap()).is_ok(),
        "a grant shut the message off for everybody else"
    );
}

#[test]
fn grant_of_other_peer() {
    let (provider, client, peer) = connected();
    let thief = Client::new();
    let own = thief.connect(provider.id()).unwrap().slot();
    let buffer = message(&provider, 100, 1);
    let granted = buffer.grant(peer).unwrap();
    assert_eq!(granted.granted_to(), Some(peer.slot()));
    assert_ne!(own, peer.slot());
    let refused = thief.attach(&granted).map(drop);
    assert_eq!(refused, Err(AttachError::OtherPeer));
    assert!(
        holds(&client.attach(&granted).unwrap(), 1),
        "the refused client spent the grant"
    );
}

#[test]
fn grants_count_separately() {
    let (provider, client, peer) = connected();
    let other = Client::new();
    let other_peer = other.connect(provider.id()).unwrap();
    let buffer = message(&provider, 100, 1);
    let granted = [
        buffer.grant(peer).unwrap(),
        buffer.grant(peer).unwrap(),
        buffer.grant(other_peer).unwrap(),
    ];
    drop(buffer);
    drop(client.attach(&granted[0]).unwrap());
    drop(client.attach(&granted[1]).unwrap());
    assert!(
        provider.stats().bytes_leased > 0,
        "the last grant went with the others"
    );
    assert!(holds(&other.attach(&granted[2]).unwrap(), 1));
    assert_eq!(provider.stats().bytes_leased, 0);
}

#[test]
fn eighth_grant() {
    let (provider, client, peer) = connected();
    let buffer = message(&provider, 100, 1);
    let granted = seven_grants(&buffer, peer);
    assert_eq!(buffer.grant(peer), Err(ShareError::TooManyGrants(peer)));
    let other = Client::new();
    let theirs = buffer.grant(other.connect(provider.id()).unwrap()).unwrap();
    let views = attach_to_each(&client, &granted);
    assert!(
        buffer.grant(peer).is_ok(),
        "grants that were taken up still count"
    );
    drop(views);
    drop(other.attach(&theirs).unwrap());
    drop(client);
    assert!(
        buffer.try_into_mut().is_ok(),
        "the refused grant left a lease behind"
    );
}

#[test]
fn grant_to_exited_peer() {
    let (provider, client, peer) = connected();
    let buffer = message(&provider, 100, 1);
    drop(client);
    assert_eq!(buffer.grant(peer), Err(ShareError::PeerDisconnected(peer)));
    let successor = Client::new();
    let new = successor.connect(provider.id()).unwrap();
    assert_eq!(new.slot(), peer.slot(), "the test needs the slot again");
    assert_eq!(
        buffer.grant(peer),
        Err(ShareError::PeerDisconnected(peer)),
        "the slot's next peer got the last one's message"
    );
    assert!(holds(
        &successor.attach(&buffer.grant(new).unwrap()).unwrap(),
        1
    ));
    assert!(
        buffer.try_into_mut().is_ok(),
        "a refused grant left a lease behind"
    );
}

#[test]
fn grant_to_peer_of_other_provider() {
    let (owner, _client, peer) = connected();
    let other = provider();
    let buffer = message(&other, 100, 1);
    assert_eq!(buffer.grant(peer), Err(ShareError::OtherProvider(peer)));
    assert!(!buffer.is_leased());
    assert_eq!(peer.provider(), owner.id());
}

#[test]
fn forged_peer_id() {
    let (provider, _client, peer) = connected();
    let buffer = message(&provider, 100, 1);
    assert_eq!(PeerId::from_bytes(peer.to_bytes()), peer);
    for slot in [0, 1, 63, 64, 255] {
        for change in [1, 2, 1 << 40, u64::MAX] {
            let mut bytes = peer.to_bytes();
            let epoch = u64::from_le_bytes(std::array::from_fn(|at| bytes[8 + at])) ^ change;
            bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
            bytes[16] = slot;
            let made_up = PeerId::from_bytes(bytes);
            assert!(
                matches!(buffer.grant(made_up), Err(ShareError::PeerDisconnected(_))),
                "{made_up:?} got a grant"
            );
        }
    }
    assert!(
        buffer.try_into_mut().is_ok(),
        "a refused grant left a lease behind"
    );
}

#[test]
fn dropped_client_returns_grants() {
    for len in LENGTHS {
        let (provider, client, peer) = connected();
        let mut buffers = Vec::new();
        let mut granted = Vec::new();
        for stamp in 0..5 {
            let buffer = message(&provider, len, stamp);
            granted.push(buffer.grant(peer).unwrap());
            buffers.push(buffer);
        }
        let view = client.attach(&granted[0]).unwrap();
        drop(buffers);
        drop(client);
        assert!(holds(&view, 0));
        drop(view);
        assert_eq!(
            provider.stats().bytes_leased,
            0,
            "a grant that nobody can take up holds memory for ever"
        );
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0);
    }
}

#[test]
fn reclaim_spares_living() {
    let (provider, client, peer) = connected();
    let buffers = messages(&provider, 100, 1..3);
    let view = client.attach(&buffers[0].descriptor().unwrap()).unwrap();
    let granted = buffers[1].grant(peer).unwrap();
    drop(buffers);
    assert_eq!(provider.reclaim(), 0, "a living peer was taken for dead");
    assert_eq!(provider.trim(), 0, "a living peer's chunks were taken back");
    assert!(holds(&view, 1));
    assert!(
        holds(&client.attach(&granted).unwrap(), 2),
        "a living peer's grant was taken back"
    );
}

#[test]
fn grant_outlives_provider() {
    for len in LENGTHS {
        let (provider, client, peer) = connected();
        let buffer = message(&provider, len, 1);
        let first = client.attach(&buffer.grant(peer).unwrap()).unwrap();
        drop(provider);
        let granted = buffer.grant(peer).unwrap();
        let second = client.attach(&granted).unwrap();
        drop(buffer);
        assert!(holds(&first, 1) && holds(&second, 1));
    }
}

#[test]
fn grant_of_earlier_message() {
    let (provider, client, peer) = connected();
    let buffer = message(&provider, 100, 1);
    let first = address(&buffer);
    let old = buffer.grant(peer).unwrap();
    drop(client.attach(&old).unwrap());
    drop(buffer);
    let buffer = message(&provider, 100, 2);
    assert_eq!(address(&buffer), first, "the test needs the chunk again");
    let new = buffer.grant(peer).unwrap();
    assert!(
        matches!(client.attach(&old), Err(AttachError::Stale)),
        "an old grant opens a new message"
    );
    assert!(
        holds(&client.attach(&new).unwrap(), 2),
        "the refused attach spent the new grant"
    );
    assert!(provider.alloc(100).is_ok());
}

#[test]
fn failed_attach_keeps_grant() {
    for len in LENGTHS {
        let (provider, client, peer) = connected();
        let buffer = message(&provider, len, 1);
        let granted = buffer.grant(peer).unwrap();
        drop(buffer);
        let mut bytes = granted.to_bytes();
        bytes[24] ^= 1;
        let damaged = forge(bytes).unwrap();
        for _ in 0..40 {
            let refused = client.attach(&damaged);
            assert!(
                matches!(refused, Err(AttachError::Forged { .. })),
                "{refused:?}"
            );
        }
        assert!(
            provider.stats().bytes_leased >= len,
            "the message lost its grant"
        );
        drop(provider.alloc(len).unwrap());
        assert!(holds(&client.attach(&granted).unwrap(), 1));
        assert_eq!(
            provider.stats().bytes_leased,
            0,
            "the failed ones left leases behind"
        );
    }
}

/// A refused peer keeps the messages that it reads.
#[test]
fn disconnect() {
    let prefix = unique_prefix("disconnect");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let client = || Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let greedy = client();
    let other = client();
    let peer = greedy.connect(provider.id()).unwrap();
    let good = other.connect(provider.id()).unwrap();
    let read = message(&provider, 100, 1);
    let granted = message(&provider, 5_000, 2);
    let open = message(&provider, 100, 3);
    let view = greedy.attach(&read.descriptor().unwrap()).unwrap();
    let descriptors = [
        granted.grant(peer).unwrap(),
        granted.grant(peer).unwrap(),
        open.descriptor().unwrap(),
    ];
    drop((read, granted));
    let refused = || {
        let mut peers = Vec::new();
        for peer in provider.report().unwrap().peers {
            peers.push((peer.id, peer.is_refused));
        }
        peers
    };
    assert_eq!(refused(), [(Some(peer), false), (Some(good), false)]);

    assert!(provider.disconnect(peer));
    assert_eq!(refused(), [(Some(peer), true), (Some(good), false)]);
    assert_eq!(
        provider.stats().bytes_leased,
        128,
        "its grants came back, and what it reads did not"
    );
    for descriptor in &descriptors {
        let error = greedy.attach(descriptor).unwrap_err();
        assert!(
            matches!(error, AttachError::Disconnected(of) if of == provider.id()),
            "{error}"
        );
    }
    assert!(matches!(open.grant(peer), Err(ShareError::PeerDisconnected(of)) if of == peer));
    assert!(!provider.disconnect(peer));
    assert!(
        other.attach(&open.grant(good).unwrap()).is_ok(),
        "others are not touched"
    );

    let again = view.try_clone().unwrap();
    drop(view);
    for stamp in 4..50 {
        drop(message(&provider, 100, stamp));
    }
    assert!(holds(&again, 1));
    drop(again);
    assert_eq!(provider.stats().bytes_leased, 0);

    // The next peer gets the slot, as usual.
    drop(greedy);
    let next = client();
    let successor = next.connect(provider.id()).unwrap();
    assert_eq!((successor.slot(), successor == peer), (peer.slot(), false));
    assert!(next.attach(&open.grant(successor).unwrap()).is_ok());
    assert!(!provider.disconnect(peer));
    assert!(next.attach(&open.descriptor().unwrap()).is_ok());
    let elsewhere = builder().build().unwrap();
    assert!(!elsewhere.disconnect(successor));
}

const QUOTA: u64 = 1_000;

/// Returns how many bytes the peer reads or was granted, according to a grant that is refused.
fn held(provider: &Provider, peer: PeerId) -> u64 {
    let too_long = message(provider, QUOTA as usize + 1, 9);
    match too_long.grant(peer) {
        Err(ShareError::OverQuota {
            peer: of,
            len: 1_001,
            held,
            max: QUOTA,
        }) if of == peer => held,
        other => panic!("{other:?}"),
    }
}

/// A peer that has dropped some messages can read again.
#[test]
fn quota() {
    let provider = builder()
        .max_bytes_per_peer(QUOTA as usize)
        .build()
        .unwrap();
    let greedy = Client::new();
    let other = Client::new();
    let peer = greedy.connect(provider.id()).unwrap();
    let messages = messages_of(&provider, &[400, 592, 9, 1_001]);
    let mut descriptors = Vec::new();
    for message in &messages {
        descriptors.push(message.descriptor().unwrap());
    }
    let granted = message(&provider, 8, 1).grant(peer).unwrap();
    let views = attach_to_each(&greedy, &descriptors[..2]);
    let over = |error| {
        matches!(
            error,
            AttachError::OverQuota {
                len: 9,
                held: QUOTA,
                max: QUOTA,
                ..
            }
        )
    };
    for _ in 0..40 {
        assert!(over(greedy.attach(&descriptors[2]).unwrap_err()));
    }
    assert!(matches!(
        views[0].try_clone(),
        Err(AttachError::OverQuota { len: 400, .. })
    ));
    assert!(matches!(
        other.attach(&descriptors[3]),
        Err(AttachError::OverQuota {
            len: 1_001,
            held: 0,
            ..
        })
    ));
    assert!(
        other.attach(&descriptors[1]).is_ok(),
        "others are not touched"
    );
    let taken_up = greedy.attach(&granted).unwrap();

    // An attach that fails for another reason does not count.
    let [first, second] = <[ShmView; 2]>::try_from(views).unwrap();
    drop(first);
    let stale = descriptors[0];
    drop(messages);
    assert!(holds(&message(&provider, 400, 2), 2));
    for _ in 0..40 {
        assert!(matches!(greedy.attach(&stale), Err(AttachError::Stale)));
    }
    assert!(matches!(
        other.attach(&granted),
        Err(AttachError::OtherPeer)
    ));
    let clones: Vec<_> = std::iter::from_fn(|| taken_up.try_clone().ok()).collect();
    assert_eq!(clones.len(), 30, "until there are 31 views of it");
    drop((second, clones, taken_up));
    assert_eq!(held(&provider, peer), 0);
    let last = message(&provider, 1_000, 3);
    let descriptor = last.descriptor().unwrap();
    for _ in 0..10 {
        assert!(greedy.attach(&descriptor).is_ok());
    }
}

/// Grants count until they are revoked, and while they are read; nothing counts twice.
#[test]
fn quota_counts_grants() {
    let provider = builder()
        .max_bytes_per_peer(QUOTA as usize)
        .build()
        .unwrap();
    let client = Client::new();
    let other = Client::new();
    let peer = client.connect(provider.id()).unwrap();
    let good = other.connect(provider.id()).unwrap();
    let messages = messages_of(&provider, &[600, 400, 100]);
    let granted = messages[0].grant(peer).unwrap();
    assert_eq!(held(&provider, peer), 600);
    let second = messages[1].grant(peer).unwrap();
    let over = ShareError::OverQuota {
        peer,
        len: 100,
        held: QUOTA,
        max: QUOTA,
    };
    for _ in 0..40 {
        assert_eq!(messages[2].grant(peer), Err(over));
    }
    assert!(
        !messages[2].is_leased(),
        "a refused grant left a lease behind"
    );
    assert_eq!(
        (held(&provider, good), messages[1].grant(good).is_ok()),
        (0, true),
        "others are not touched"
    );

    // Taken up, put back by an attach that fails, revoked, refused, dropped.
    let view = client.attach(&second).unwrap();
    assert!(matches!(
        client.attach(&second),
        Err(AttachError::NotGranted)
    ));
    let mut bytes = granted.to_bytes();
    bytes[24] ^= 1;
    let damaged = forge(bytes).unwrap();
    for _ in 0..40 {
        assert!(matches!(
            client.attach(&damaged),
            Err(AttachError::Forged { .. })
        ))
    }
    assert_eq!(held(&provider, peer), QUOTA);
    assert!(messages[0].revoke(peer));
    assert!(!messages[0].revoke(peer) && !messages[1].revoke(peer));
    assert_eq!(held(&provider, peer), 400);
    let tiny = message(&provider, 8, 1);
    let grants = seven_grants(&tiny, peer);
    for _ in 0..40 {
        assert!(matches!(
            tiny.grant(peer),
            Err(ShareError::TooManyGrants { .. })
        ))
    }
    assert_eq!(held(&provider, peer), 456);
    drop(view);
    assert_eq!(held(&provider, peer), 56);
    drop(attach_to_each(&client, &grants));
    assert_eq!(held(&provider, peer), 0);

    // The slot's next peer starts from zero, not from the bytes of the last one.
    let unclaimed = messages[0].grant(peer).unwrap();
    drop(client);
    let next = Client::new();
    let successor = next.connect(provider.id()).unwrap();
    assert_eq!(
        (successor.slot(), held(&provider, successor)),
        (peer.slot(), 0)
    );
    assert!(!messages[0].revoke(peer), "its grants were cleared");
    assert!(matches!(
        next.attach(&unclaimed),
        Err(AttachError::NotGranted)
    ));
    messages[0].grant(successor).unwrap();
    assert_eq!(held(&provider, successor), 600);
    assert!(provider.disconnect(successor));
    assert!(matches!(
        messages[1].grant(successor),
        Err(ShareError::PeerDisconnected(_))
    ));
}
