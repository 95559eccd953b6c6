//! A client maps each segment once, and unmaps those that their owner has destroyed.

use crate::support::{builder, files, holds, mappings, message, pair, segment, NONE};
use shm_pool::{Client, Provider};

const LEN: usize = 1 << 20;

/// A provider that destroys every segment as soon as it is unused.
fn forgetful() -> Provider {
    builder().max_idle_per_class(0).build().unwrap()
}

#[test]
fn segment_is_mapped_once() {
    let (provider, client) = pair();
    let messages: Vec<_> = (0..20).map(|stamp| message(&provider, 1000, stamp)).collect();
    let views: Vec<_> = messages.iter().map(|message| client.attach(&message.descriptor().unwrap()).unwrap()).collect();
    assert!((0..).zip(&views).all(|(stamp, view)| holds(view, stamp)));
    assert_eq!(client.mapped_segments(), 1, "chunks of one arena are mapped apart");
    assert_eq!(mappings(&segment(&provider, 1)), 2, "one mapping of the owner's, one of the client's");
    drop(views);
    assert_eq!(client.mapped_segments(), 1, "a segment that will be used again is mapped anew each time");
}

#[test]
fn last_view_unmaps() {
    for len in [1000, LEN] {
        let (provider, client) = pair();
        let (name, id) = (segment(&provider, 1), provider.id().to_string());
        let buffer = message(&provider, len, 1);
        let descriptor = buffer.descriptor().unwrap();
        let [first, last] = [(); 2].map(|()| client.attach(&descriptor).unwrap());
        // A leased chunk is destroyed only when its provider closes.
        drop(buffer);
        drop(provider);
        assert_eq!(files(&id), NONE);
        drop(first);
        assert_eq!(mappings(&name), 1, "{len} bytes: the mapping is gone although a view needs it");
        assert!(holds(&last, 1));
        drop(last);
        assert_eq!(client.mapped_segments(), 0, "{len} bytes: the table keeps a segment that nobody can use");
        assert_eq!(mappings(&name), 0, "{len} bytes: memory of a destroyed segment is kept from the system");
    }
}

#[test]
fn attach_unmaps_destroyed() {
    let (provider, client) = (forgetful(), Client::new());
    for serial in 1..10 {
        let buffer = message(&provider, LEN, serial);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        assert!(holds(&view, serial));
        assert_eq!(client.mapped_segments(), 1, "a destroyed segment's mapping survives the attach to another");
        let older: usize = (1..serial).map(|older| mappings(&segment(&provider, older))).sum();
        assert_eq!(older, 0, "an old segment is still in the process's map");
        drop(view);
    }
}

#[test]
fn client_trim() {
    let (provider, client) = pair();
    let id = provider.id().to_string();
    let large = message(&provider, LEN, 1);
    drop(client.attach(&large.descriptor().unwrap()).unwrap());
    assert_eq!((client.mapped_segments(), client.trim()), (1, 0), "trim let a segment go that is in use");
    drop(large);
    assert_eq!(client.trim(), 0, "trim let an idle segment go, which will be used again");
    provider.trim();
    assert_eq!((client.trim(), client.mapped_segments()), (1, 0), "the destroyed segment stays mapped");
    assert_eq!(mappings(&segment(&provider, 1)), 0);
    let small = message(&provider, 100, 2);
    let small_view = client.attach(&small.descriptor().unwrap()).unwrap();
    drop(provider);
    assert_eq!(client.trim(), 0, "trim gave up a provider whose message is alive");
    drop(small);
    assert!(client.trim() > 0, "trim keeps a closed provider's control object");
    assert_eq!(client.mapped_segments(), 0);
    assert!(holds(&small_view, 2), "trim unmapped what a view reads");
    drop(small_view);
    assert_eq!(mappings(&id), 0, "something of a closed provider is still mapped");
}

/// A client need not map a segment again when its owner trims it.
#[test]
fn mapping_is_stable() {
    let (provider, client) = pair();
    let kept = message(&provider, LEN, 1);
    let kept_view = client.attach(&kept.descriptor().unwrap()).unwrap();
    for stamp in 2..20 {
        let held = provider.stats().bytes_held;
        let buffer = message(&provider, 4 * LEN, stamp);
        assert!(holds(&client.attach(&buffer.descriptor().unwrap()).unwrap(), stamp));
        drop(buffer);
        assert_eq!(provider.trim(), 4 * LEN, "an idle message's memory stays taken");
        assert_eq!(provider.stats().bytes_held, held);
        assert!(holds(&kept, 1) && holds(&kept_view, 1), "a reader's bytes were given back");
        assert_eq!((client.trim(), client.mapped_segments()), (0, 1));
    }
}

#[test]
fn client_drop_unmaps() {
    let (provider, client) = pair();
    let id = provider.id().to_string();
    let buffer = message(&provider, LEN, 1);
    let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
    drop(buffer);
    drop(client);
    drop(provider);
    assert!(holds(&view, 1));
    drop(view);
    assert_eq!(mappings(&id), 0);
}
