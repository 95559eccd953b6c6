//! Handles outlive their provider, views outlive their client, and no object is left under /dev/shm
//! after the owner's last handle.

use crate::support::{address, files, holds, message, pair, provider, segment, unique_prefix, write, NONE};
use shm_pool::{AttachError, Client, Provider};

/// The lengths of a chunk carved in cache lines, and of one of whole pages.
const LENGTHS: [usize; 2] = [1000, 1 << 20];

#[test]
fn buffer_outlives_provider() {
    for len in LENGTHS {
        let provider = provider();
        let id = provider.id().to_string();
        let mut buffer = provider.alloc(len).unwrap();
        write(&mut buffer, 1);
        drop(provider);
        assert!(holds(&buffer, 1), "{len} bytes were lost with the provider");
        write(&mut buffer, 2);
        let message = buffer.freeze();
        let clone = message.clone();
        drop(message);
        assert!(holds(&clone, 2), "{len} bytes were lost with another clone");
        assert_ne!(files(&id), NONE, "a live buffer has no name, so that no peer can map it");
        drop(clone);
        assert_eq!(files(&id), NONE, "files are left after the last handle");
    }
}

#[test]
fn provider_drop_returns_idle() {
    let provider = provider();
    let id = provider.id().to_string();
    LENGTHS.iter().for_each(|&len| drop(provider.reserve(len, 8).unwrap()));
    let shared = LENGTHS.map(|len| provider.alloc(len).unwrap().freeze());
    shared.iter().for_each(|message| assert!(message.descriptor().is_ok()));
    drop(shared);
    assert_eq!(files(&id).len(), 1 + provider.stats().segments, "a control object, and a file for each segment");
    drop(provider);
    assert_eq!(files(&id), NONE, "files are left after the provider");
}

#[test]
fn share_after_provider() {
    for len in LENGTHS {
        let (provider, client) = pair();
        let id = provider.id().to_string();
        let early = message(&provider, len, 1);
        let early_descriptor = early.descriptor().unwrap();
        let late = message(&provider, len, 2);
        drop(provider);
        let late_descriptor = late.descriptor().unwrap();
        let views = [&early_descriptor, &late_descriptor].map(|descriptor| client.attach(descriptor).unwrap());
        assert!(holds(&views[0], 1) && holds(&views[1], 2));
        drop((early, late));
        assert!(holds(&views[0], 1) && holds(&views[1], 2), "a view lost its bytes with the owner's last handle");
        assert_eq!(files(&id), NONE, "files are left though only views remain");
    }
}

#[test]
fn view_outlives_all() {
    for len in LENGTHS {
        let (provider, client) = pair();
        let buffer = message(&provider, len, 1);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        let clone = view.try_clone().unwrap();
        drop(client);
        drop(buffer);
        drop(provider);
        assert!(holds(&view, 1), "{len} bytes were unmapped under a view");
        drop(view);
        assert!(holds(&clone, 1), "{len} bytes were unmapped under the clone of a view");
        let again = clone.try_clone().unwrap();
        drop(clone);
        assert!(holds(&again, 1));
    }
}

#[test]
fn view_outlives_client() {
    for len in LENGTHS {
        let (provider, client) = pair();
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        drop(client);
        drop(buffer);
        for stamp in 2..100 {
            let other = message(&provider, len, stamp);
            assert_ne!(address(&other), first, "the chunk was used again under a view whose client is gone");
        }
        assert!(holds(&view, 1));
        drop(view);
        drop(provider.alloc(len).unwrap());
        assert_eq!(provider.stats().bytes_leased, 0, "the lease is left after the view");
    }
}

#[test]
fn client_of_two_providers() {
    let (one, client) = pair();
    let two = provider();
    let kept = message(&two, 1 << 20, 2);
    let views = {
        let buffer = message(&one, 1 << 20, 1);
        [&buffer, &kept].map(|buffer| client.attach(&buffer.descriptor().unwrap()).unwrap())
    };
    let late = message(&one, 100, 3).descriptor().unwrap();
    assert_eq!(client.mapped_segments(), 2);
    drop(one);
    assert!(holds(&views[0], 1) && holds(&views[1], 2), "closing a provider took bytes from a view");
    assert!(client.attach(&late).is_err(), "a message of a provider that has closed is attached");
    assert!(client.attach(&kept.descriptor().unwrap()).is_ok(), "the other provider's messages are out of reach");
    client.trim();
    assert!(client.attach(&kept.descriptor().unwrap()).is_ok(), "trim let a living provider go");
    assert!(matches!(client.attach(&late), Err(AttachError::NoProvider { .. })), "trim kept a closed provider");
    assert!(holds(&views[0], 1) && holds(&views[1], 2), "trim took bytes from a view");
    drop(views);
    assert_eq!(client.mapped_segments(), 1, "a closed provider's segment stays mapped");
}

#[test]
fn closed_provider() {
    for len in LENGTHS {
        let (provider, reader) = pair();
        let other = Client::new();
        other.connect(provider.id()).unwrap();
        let buffer = message(&provider, len, 1);
        let descriptor = buffer.descriptor().unwrap();
        let view = reader.attach(&descriptor).unwrap();
        drop(buffer);
        drop(provider);
        let refused = other.attach(&descriptor);
        assert!(matches!(refused, Err(AttachError::Closed { .. })), "nothing is damaged: {refused:?}");
        assert!(holds(&view, 1));
        drop(view);
        let refused = other.attach(&descriptor);
        assert!(matches!(refused, Err(AttachError::Closed { .. })), "nothing is damaged: {refused:?}");
    }
}

#[test]
fn two_providers() {
    let (one, client) = pair();
    let two = provider();
    assert_ne!(one.id(), two.id());
    let buffers = [&one, &two].map(|provider| message(provider, 1000, provider.id().to_u64()));
    let descriptors = buffers.each_ref().map(|buffer| buffer.descriptor().unwrap());
    for (at, provider) in [&one, &two].into_iter().enumerate() {
        assert_eq!(descriptors[at].provider(), provider.id());
        let view = client.attach(&descriptors[at]).unwrap();
        assert!(holds(&view, provider.id().to_u64()), "the other provider's bytes came");
    }
}

#[test]
fn object_names() {
    let prefix = unique_prefix("names");
    let provider = Provider::builder().max_shared(1).name_prefix(prefix.as_str()).build().unwrap();
    let buffers = [100, 1 << 20].map(|len| provider.alloc(len).unwrap());
    let control = format!("{prefix}.{}.ctl", provider.id());
    let expected = [format!("{prefix}{}", segment(&provider, 1)), control];
    assert_eq!(files(&prefix), expected);
    drop((provider, buffers));
    assert_eq!(files(&prefix), NONE);
}
