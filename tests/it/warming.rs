//! Faulting everything in before the first message: mappings, memory, and errors if the provider
//! has closed. (`process/reserved.rs` and `no_heap.rs` show the cost of the first message
//! afterwards.)

use crate::support::{builder, files, mappings, message, pair, segment, unique_prefix, NONE};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{AttachError, Client, Provider, ProviderId};
use std::fs;
use std::os::unix::fs::MetadataExt;

const LENGTHS: [usize; 3] = [1000, 100_000, 3 << 20];

/// A provider with several segments, most of which have no memory yet.
fn spread() -> Provider {
    let provider = builder().arena_size(64 << 10).build().unwrap();
    LENGTHS.iter().for_each(|&len| provider.reserve(len, 2).unwrap().keep());
    let stats = provider.stats();
    assert!(stats.segments > 1 && stats.bytes_held < stats.bytes_mapped, "{stats:?}");
    provider
}

/// The memory of the provider's segments, in bytes.
fn memory(provider: &Provider) -> u64 {
    let prefix = format!("{}.", provider.id());
    let segments = files(&prefix).into_iter().filter(|name| !name.ends_with(".ctl"));
    segments.map(|name| fs::metadata(format!("/dev/shm/{name}")).unwrap().blocks() * 512).sum()
}

/// A peer must not allocate memory outside the cap by reading pages that have none.
#[test]
fn warm_populates() {
    let (provider, client) = (spread(), Client::new());
    let mut sender = Sender::create(&provider, &unique_prefix("warm-memory")).unwrap();
    let mut receiver = Receiver::open(&client, &unique_prefix("warm-memory")).unwrap();
    let held = provider.stats().bytes_held;
    assert_eq!(memory(&provider), held as u64);
    for _ in 0..2 {
        assert_eq!((client.warm(provider.id()).unwrap(), receiver.warm().unwrap()), (held, held));
        assert_eq!(memory(&provider), held as u64, "holes were filled");
        let segments = provider.stats().segments;
        assert_eq!((client.mapped_segments(), receiver.mapped_segments()), (segments, segments), "each once");
    }
    // Messages lie in the segments that they have mapped.
    for len in LENGTHS {
        let sent = message(&provider, len, 1);
        assert_eq!(client.attach(&sent.descriptor().unwrap()).unwrap().len(), len);
        sender.send(sent).unwrap();
        assert_eq!(receiver.recv().unwrap().len(), len);
    }
    assert_eq!(
        (client.mapped_segments(), receiver.mapped_segments()),
        (provider.stats().segments, provider.stats().segments)
    );
}

/// A subscriber that starts first can prepare before the first message.
#[test]
fn warm_again() {
    let (provider, client) = pair();
    assert_eq!(client.warm(provider.id()).unwrap(), 0, "there is no segment yet");
    let first = provider.alloc(1000).unwrap();
    let held = provider.stats().bytes_held;
    assert_eq!((client.warm(provider.id()).unwrap(), client.mapped_segments()), (held, 1));
    let _more = (first, provider.alloc(provider.stats().bytes_mapped).unwrap());
    let held = provider.stats().bytes_held;
    assert_eq!((client.warm(provider.id()).unwrap(), client.mapped_segments()), (held, 2));
}

/// A warm peer does not keep the memory of destroyed segments.
#[test]
fn warm_unmaps_destroyed() {
    let provider = builder().max_idle_per_class(0).build().unwrap();
    let (client, name) = (Client::new(), unique_prefix("warm-gone"));
    let _sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&client, &name).unwrap();
    for serial in 1..5 {
        let buffer = provider.alloc(1000).unwrap();
        assert!(client.warm(provider.id()).unwrap() > 0);
        receiver.warm().unwrap();
        assert_eq!((client.mapped_segments(), receiver.mapped_segments()), (1, 1));
        drop(buffer);
        assert_eq!((client.warm(provider.id()).unwrap(), receiver.warm().unwrap()), (0, 0));
        assert_eq!(mappings(&segment(&provider, serial)), 0);
    }
}

#[test]
fn warm_without_provider() {
    let (provider, client) = pair();
    let id = provider.id();
    let unknown = ProviderId::from_u64(id.to_u64() ^ 1);
    assert!(matches!(client.warm(unknown), Err(AttachError::NoProvider { .. })));
    client.warm(id).unwrap();
    drop(provider);
    assert!(matches!(client.warm(id), Err(AttachError::Closed { provider }) if provider == id));
    client.trim();
    assert_eq!((mappings(&id.to_string()), files(&id.to_string())), (0, NONE.map(str::to_owned).to_vec()));
}

/// A publisher whose readers hold many messages makes no more memory if it had reserved enough.
#[test]
fn reserved_behind_leased() {
    const COUNT: usize = 60;
    for in_channel in [false, true] {
        let provider = builder().max_idle_per_class(COUNT).build().unwrap();
        let client = Client::new();
        provider.reserve(64, COUNT).unwrap().keep();
        let all: Vec<_> = (0..COUNT as u64).map(|stamp| message(&provider, 64, stamp)).collect();
        let misses = provider.stats().misses();
        if in_channel {
            let name = unique_prefix("warm-leased");
            let mut sender = Sender::create(&provider, &name).unwrap();
            let mut receiver = Receiver::open(&client, &name).unwrap();
            all.into_iter().for_each(|message| sender.send(message).unwrap());
            let mut received: Vec<_> = (0..COUNT).map(|_| receiver.recv().unwrap()).collect();
            received.truncate(COUNT - 1);
            drop(provider.alloc(64).unwrap());
        } else {
            let mut views: Vec<_> =
                all.iter().map(|message| client.attach(&message.descriptor().unwrap()).unwrap()).collect();
            drop(all);
            views.truncate(COUNT - 1);
            drop(provider.alloc(64).unwrap());
        }
        assert_eq!(provider.stats().misses(), misses, "in a channel: {in_channel}");
    }
}
