//! A chunk is never reused under a reader, whatever operations the owner performs.

use crate::support::{address, builder, holds, message, Random};
use shm_pool::{AttachError, Client, Provider, ShmBuf};
use std::collections::HashSet;

const CAP: usize = 256 << 10;

/// A provider with little memory, and a client.
fn tight() -> (Provider, Client) {
    (builder().max_bytes(CAP).arena_size(64 << 10).build().unwrap(), Client::new())
}

/// Allocates all the memory for messages of `len` bytes, and returns their addresses.
fn all_addresses(provider: &Provider, len: usize) -> HashSet<usize> {
    let live: Vec<_> = std::iter::from_fn(|| provider.alloc(len).ok()).collect();
    live.iter().map(|buffer| address(buffer)).collect()
}

#[test]
fn view_is_stable() {
    for len in [64, 4096, 20_480] {
        let (provider, client) = tight();
        let mut random = Random(len as u64);
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        drop(buffer);
        let mut live: Vec<ShmBuf> = Vec::new();
        for stamp in 2..2 + 100 * (CAP / len) as u64 {
            let other = message(&provider, len, stamp);
            assert_ne!(address(&other), first, "{len} bytes: the chunk was used again under the view");
            if random.below(2) == 0 {
                drop(client.attach(&other.descriptor().unwrap()).unwrap());
            }
            live.push(other);
            live.drain(..random.below(live.len().min(8)));
            assert!(holds(&view, 1), "{len} bytes: the view's bytes changed at message {stamp}");
        }
        live.clear();
        assert!(!all_addresses(&provider, len).contains(&first), "{len} bytes: taken under memory pressure");
        assert!(holds(&view, 1));
        drop(view);
        assert!(all_addresses(&provider, len).contains(&first), "{len} bytes: the chunk is lost after its view");
    }
}

#[test]
fn eviction_spares_views() {
    for len in [64, 4096, 20_480] {
        let (provider, client) = tight();
        let buffer = message(&provider, len, 1);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        drop(buffer);
        assert!(provider.alloc(CAP).unwrap_err().is_exhausted(), "{len} viewed bytes were given to somebody else");
        provider.trim();
        assert!(provider.alloc(CAP).unwrap_err().is_exhausted(), "{len} viewed bytes were trimmed away");
        assert!(holds(&view, 1));
        drop(view);
        assert!(provider.alloc(CAP).is_ok(), "{len} bytes are lost after their view");
    }
}

#[test]
fn two_views() {
    let (provider, client) = tight();
    let other = Client::new();
    let buffer = message(&provider, 20_480, 1);
    let first = address(&buffer);
    let descriptor = buffer.descriptor().unwrap();
    let mut views = vec![client.attach(&descriptor).unwrap(), other.attach(&descriptor).unwrap()];
    views.push(views[0].try_clone().unwrap());
    views.push(views[1].try_clone().unwrap());
    drop(buffer);
    while !views.is_empty() {
        assert!(!all_addresses(&provider, 20_480).contains(&first), "{} views are left", views.len());
        assert!(views.iter().all(|view| holds(view, 1)));
        views.pop();
    }
    assert!(all_addresses(&provider, 20_480).contains(&first));
}

#[test]
fn thirty_one_views() {
    let (provider, client) = tight();
    let buffer = message(&provider, 100, 1);
    let descriptor = buffer.descriptor().unwrap();
    let mut views: Vec<_> = (0..31).map(|_| client.attach(&descriptor).unwrap()).collect();
    let too_many = |result: Result<_, AttachError>| matches!(result, Err(AttachError::TooManyLeases { max: 31 }));
    assert!(too_many(client.attach(&descriptor)), "a 32nd lease would overflow into the grants");
    assert!(too_many(views[0].try_clone()), "a 32nd lease would overflow into the grants");
    let other = Client::new();
    let theirs: Vec<_> = (0..31).map(|_| other.attach(&descriptor).unwrap()).collect();
    views.pop();
    views.push(views[0].try_clone().unwrap());
    assert!(too_many(client.attach(&descriptor)));
    drop(views);
    assert!(buffer.is_leased(), "the other client's leases went with the first one's");
    assert!(theirs.iter().all(|view| holds(view, 1)));
    drop(theirs);
    assert!(!buffer.is_leased(), "refused attaches left leases behind");
    assert!(buffer.try_into_mut().is_ok());
}

#[test]
fn sixty_four_peers() {
    let (provider, first) = tight();
    let buffer = message(&provider, 100, 1);
    let descriptor = buffer.descriptor().unwrap();
    let connected = first.connect(provider.id()).unwrap();
    assert_eq!(first.connect(provider.id()).unwrap(), connected, "connecting again takes another slot");
    let mut others: Vec<_> = (1..64).map(|_| Client::new()).collect();
    let slots = others.iter().map(|client| client.connect(provider.id()).unwrap().slot());
    assert_eq!(slots.chain([connected.slot()]).collect::<HashSet<u8>>().len(), 64, "two peers share a slot");
    let late = Client::new();
    let refused = late.attach(&descriptor);
    assert!(matches!(refused, Err(AttachError::TooManyPeers { max: 64, .. })), "{refused:?}");
    let views: Vec<_> = others.iter().map(|client| client.attach(&descriptor).unwrap()).collect();
    drop(others.pop());
    assert!(late.attach(&descriptor).is_err(), "a slot is free although its peer still has a view");
    drop(views);
    assert!(holds(&late.attach(&descriptor).unwrap(), 1), "the slot of a peer that has gone is not used again");
}
