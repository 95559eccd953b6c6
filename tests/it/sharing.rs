//! Frozen buffers: clones, thawing, messages kept until they are confirmed, and `Bytes` over them.

use crate::support::{address, builder, holds, message, pair, provider, write};
use bytes::Bytes;
use shm_pool::{AttachError, Client, ShareError, ShmBuf};

#[test]
fn unshared_into_mut() {
    for len in [0, 100, 1 << 20] {
        let provider = provider();
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let mut buffer = buffer.try_into_mut().unwrap();
        assert_eq!((address(&buffer), buffer.len()), (first, len), "the message moved or changed its length");
        assert!(holds(&buffer, 1), "the message was lost on the way back");
        write(&mut buffer, 2);
        assert!(holds(&buffer.freeze(), 2));
    }
}

#[test]
fn cloned_into_mut() {
    let provider = provider();
    let buffer = message(&provider, 100, 1);
    let clone = buffer.clone();
    assert_eq!(address(&buffer), address(&clone), "a clone is a copy");
    let buffer = buffer.try_into_mut().unwrap_err();
    assert!(holds(&buffer, 1) && holds(&clone, 1));
    drop(clone);
    assert!(buffer.try_into_mut().is_ok(), "the last handle cannot be written");
}

#[test]
fn leased_into_mut() {
    let (provider, client) = pair();
    let buffer = message(&provider, 100, 1);
    let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
    assert!(buffer.is_leased());
    let buffer = buffer.try_into_mut().unwrap_err();
    assert!(holds(&view, 1));
    drop(view);
    assert!(!buffer.is_leased());
    let mut buffer = buffer.try_into_mut().unwrap();
    assert!(holds(&buffer, 1));
    write(&mut buffer, 2);
}

#[test]
fn granted_into_mut() {
    let (provider, client) = pair();
    let peer = client.connect(provider.id()).unwrap();
    let buffer = message(&provider, 100, 1);
    let granted = buffer.grant(peer).unwrap();
    assert!(buffer.is_leased(), "a grant not taken up is not seen");
    let buffer = buffer.try_into_mut().unwrap_err();
    let view = client.attach(&granted).unwrap();
    let buffer = buffer.try_into_mut().unwrap_err();
    assert!(holds(&view, 1));
    drop(view);
    assert!(buffer.try_into_mut().is_ok());
}

#[test]
fn rewritten_is_stale() {
    for len in [100, 1 << 20] {
        let (provider, client) = pair();
        let buffer = message(&provider, len, 1);
        let old = buffer.descriptor().unwrap();
        assert!(client.attach(&old).is_ok());
        let mut buffer = buffer.try_into_mut().unwrap();
        assert!(matches!(client.attach(&old), Err(AttachError::Stale)), "a reader sees a message being written");
        write(&mut buffer, 2);
        buffer.truncate(len / 2);
        let buffer = buffer.freeze();
        assert!(matches!(client.attach(&old), Err(AttachError::Stale)), "the old descriptor names the new message");
        let new = buffer.descriptor().unwrap();
        assert_ne!(old, new);
        assert!(matches!(client.attach(&old), Err(AttachError::Stale)), "the old descriptor names the new message");
        let view = client.attach(&new).unwrap();
        assert_eq!(view.len(), len / 2);
        assert!(holds(&view, 2));
        drop(view);
        assert!(buffer.try_into_mut().is_ok(), "a refused attach left a lease behind");
    }
}

#[test]
fn clones_share_descriptor() {
    let provider = provider();
    let buffer = message(&provider, 100, 1);
    let descriptor = buffer.clone().descriptor().unwrap();
    assert_eq!(buffer.descriptor(), Ok(descriptor));
    assert_eq!(buffer.clone().descriptor(), Ok(descriptor));
    assert_eq!((descriptor.provider(), descriptor.payload_len()), (provider.id(), 100));
    assert_eq!(descriptor.granted_to(), None);
}

#[test]
fn kept_or_stale() {
    for len in [100, 1 << 20] {
        let (provider, client) = pair();
        let kept = message(&provider, len, 1);
        let first = address(&kept);
        let descriptor = kept.descriptor().unwrap();
        for stamp in 2..20 {
            drop(message(&provider, len, stamp));
            assert!(holds(&client.attach(&descriptor).unwrap(), 1), "a kept message changed");
        }
        drop(kept);
        let all: Vec<ShmBuf> = (20..40).map(|stamp| message(&provider, len, stamp)).collect();
        let next = all.iter().find(|message| address(message) == first).expect("the chunk is used again");
        let late = client.attach(&descriptor);
        assert!(matches!(late, Err(AttachError::Stale)), "a receiver that came too late got {late:?}");
        next.descriptor().unwrap();
        assert!(matches!(client.attach(&descriptor), Err(AttachError::Stale)), "an old descriptor works again");
        assert!(matches!(Client::new().attach(&descriptor), Err(AttachError::Stale)), "a new client got in");
    }
}

#[test]
fn max_shared() {
    let provider = builder().max_shared(3).build().unwrap();
    let mut buffers: Vec<ShmBuf> = [100, 1000, 1 << 20, 2 << 20].map(|len| message(&provider, len, 1)).into();
    assert!(buffers[..3].iter().all(|buffer| buffer.descriptor().is_ok()), "all records can be used");
    assert_eq!(buffers[3].descriptor(), Err(ShareError::TooManyShared { max: 3 }));
    assert!(buffers[..3].iter().all(|buffer| buffer.descriptor().is_ok()), "what is shared stays so");
    drop(buffers.remove(0));
    assert!(buffers[2].descriptor().is_ok(), "an idle chunk keeps its record from a message that needs one");
    assert!(buffers[..2].iter().all(|buffer| buffer.descriptor().is_ok()), "what is shared stays so");
}

/// A dead subscriber, or one whose lease has long ended, does not prevent a publisher from sharing.
#[test]
fn record_reuse() {
    let (provider, client) = (builder().max_shared(2).build().unwrap(), Client::new());
    let views: Vec<_> = [100, 1000].map(|len| client.attach(&message(&provider, len, 1).descriptor().unwrap())).into();
    // Dropped while they were read: they wait in the queue of leased chunks.
    drop(views);
    let next: Vec<ShmBuf> = [1 << 20, 2 << 20].map(|len| message(&provider, len, 1)).into();
    assert!(next.iter().all(|buffer| buffer.descriptor().is_ok()));
}

#[test]
fn record_of_evicted_chunk() {
    let provider = builder().max_shared(1).max_idle_per_class(0).build().unwrap();
    let _keeps_the_arena = provider.alloc(100).unwrap();
    for round in 0..20 {
        let buffer = message(&provider, [200, 1 << 20, 2 << 20][round % 3], 1);
        assert!(buffer.descriptor().is_ok(), "round {round}: only one message is shared at a time");
    }
}

#[test]
fn bytes_from_owner() {
    for len in [100, 1 << 20] {
        let (provider, client) = pair();
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        let mapped = address(&view);
        let (sent, received) = (Bytes::from_owner(buffer), Bytes::from_owner(view));
        assert_eq!((address(&sent), address(&received)), (first, mapped), "the bytes were copied");
        let slices = [sent.slice(..16), received.slice(16..32)];
        drop(sent);
        assert_eq!(provider.stats().bytes_leased, 0, "a slice keeps the buffer");
        drop(received);
        assert!(slices.iter().all(|slice| holds(slice, 1)), "a slice lost its bytes");
        let [sent, received] = slices;
        drop(sent);
        assert_ne!(address(&provider.alloc(len).unwrap()), first, "the chunk was used again under a slice of a view");
        assert!(holds(&received, 1));
        drop(received);
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0, "dropping the bytes did not give the chunk back");
    }
}
