//! Handles outlive their provider, views outlive their client, and no object is left under /dev/shm
//! after the owner's last handle.

use crate::fixtures::{
    address, alloc_many, attach_all, builder, files, holds, mappings, message, messages,
    open_files, pair, provider, segment, unique_prefix, write, Random, NONE,
};
use shm_pool::channel::{Publisher, Receiver, Sender};
use shm_pool::{AttachError, Client, Namespace, PeerId, Provider, ShmBytesMut, Tuning};
use std::fs;
use std::hint::spin_loop;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

/// The lengths of a chunk carved in cache lines, and of one of whole pages.
const LENGTHS: [usize; 2] = [1000, 1 << 20];

/// Each buffer that is dropped after its provider returns its memory.
#[test]
fn buffers_that_outlive_their_provider_return_memory() {
    const COUNT: usize = 16;
    let provider = builder()
        .max_bytes(64 << 20)
        .tuning(Tuning::new().arena_size(32 << 20))
        .build()
        .unwrap();
    let mut buffers = alloc_many(&provider, LENGTHS[1], COUNT);
    assert_eq!(provider.stats().segments, 1);
    let path = format!("/dev/shm/shm_pool{}", segment(&provider, 1));
    let held = || fs::metadata(&path).unwrap().blocks() as usize * 512;
    drop(provider);
    assert!(held() >= COUNT * LENGTHS[1]);
    while let Some(buffer) = buffers.pop() {
        drop(buffer);
        if !buffers.is_empty() {
            assert_eq!(held(), buffers.len() * LENGTHS[1]);
        }
    }
}

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
        assert_ne!(
            files(&id),
            NONE,
            "a live buffer has no name, so that no peer can map it"
        );
        drop(clone);
        assert_eq!(files(&id), NONE, "files are left after the last handle");
    }
}

#[test]
fn provider_drop_returns_idle() {
    let provider = provider();
    let id = provider.id().to_string();
    for &len in &LENGTHS {
        drop(provider.reserve(len, 8).unwrap());
    }
    let shared = LENGTHS.map(|len| provider.alloc(len).unwrap().freeze());
    for message in &shared {
        assert!(message.descriptor().is_ok());
    }
    drop(shared);
    assert_eq!(
        files(&id).len(),
        1 + provider.stats().segments,
        "a control object, and a file for each segment"
    );
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
        let views = [
            client.attach(&early_descriptor).unwrap(),
            client.attach(&late_descriptor).unwrap(),
        ];
        assert!(holds(&views[0], 1) && holds(&views[1], 2));
        drop((early, late));
        assert!(
            holds(&views[0], 1) && holds(&views[1], 2),
            "a view lost its bytes with the owner's last handle"
        );
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
        assert!(
            holds(&clone, 1),
            "{len} bytes were unmapped under the clone of a view"
        );
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
            assert_ne!(
                address(&other),
                first,
                "the chunk was used again under a view whose client is gone"
            );
        }
        assert!(holds(&view, 1));
        drop(view);
        drop(provider.alloc(len).unwrap());
        assert_eq!(
            provider.stats().bytes_leased,
            0,
            "the lease is left after the view"
        );
    }
}

#[test]
fn client_of_two_providers() {
    let (one, client) = pair();
    let two = provider();
    let kept = message(&two, 1 << 20, 2);
    let views = {
        let buffer = message(&one, 1 << 20, 1);
        [
            client.attach(&buffer.descriptor().unwrap()).unwrap(),
            client.attach(&kept.descriptor().unwrap()).unwrap(),
        ]
    };
    let late = message(&one, 100, 3).descriptor().unwrap();
    assert_eq!(client.mapped_segments(), 2);
    drop(one);
    assert!(
        holds(&views[0], 1) && holds(&views[1], 2),
        "closing a provider took bytes from a view"
    );
    assert!(
        client.attach(&late).is_err(),
        "a message of a provider that has closed is attached"
    );
    assert!(
        client.attach(&kept.descriptor().unwrap()).is_ok(),
        "the other provider's messages are out of reach"
    );
    client.unmap_unused();
    assert!(
        client.attach(&kept.descriptor().unwrap()).is_ok(),
        "trim let a living provider go"
    );
    assert!(
        matches!(client.attach(&late), Err(AttachError::NoProvider { .. })),
        "trim kept a closed provider"
    );
    assert!(
        holds(&views[0], 1) && holds(&views[1], 2),
        "trim took bytes from a view"
    );
    drop(views);
    assert_eq!(
        client.mapped_segments(),
        1,
        "a closed provider's segment stays mapped"
    );
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
        assert!(
            matches!(refused, Err(AttachError::Closed { .. })),
            "nothing is damaged: {refused:?}"
        );
        assert!(holds(&view, 1));
        drop(view);
        let refused = other.attach(&descriptor);
        assert!(
            matches!(refused, Err(AttachError::Closed { .. })),
            "nothing is damaged: {refused:?}"
        );
    }
}

#[test]
fn two_providers() {
    let (one, client) = pair();
    let two = provider();
    assert_ne!(one.id(), two.id());
    let mut buffers = Vec::new();
    let mut descriptors = Vec::new();
    for provider in [&one, &two] {
        let buffer = message(provider, 1000, u64::from(provider.id()));
        descriptors.push(buffer.descriptor().unwrap());
        buffers.push(buffer);
    }
    for (at, provider) in [&one, &two].into_iter().enumerate() {
        assert_eq!(descriptors[at].provider(), provider.id());
        let view = client.attach(&descriptors[at]).unwrap();
        assert!(
            holds(&view, u64::from(provider.id())),
            "the other provider's bytes came"
        );
    }
}

#[test]
fn object_names() {
    let prefix = unique_prefix("names");
    let provider = Provider::builder()
        .max_shared(1)
        .namespace(&Namespace::new(prefix.as_str()).unwrap())
        .build()
        .unwrap();
    let buffers = [
        provider.alloc(100).unwrap(),
        provider.alloc(1 << 20).unwrap(),
    ];
    let control = format!("{prefix}.{}.ctl", provider.id());
    let expected = [format!("{prefix}{}", segment(&provider, 1)), control];
    assert_eq!(files(&prefix), expected);
    drop((provider, buffers));
    assert_eq!(files(&prefix), NONE);
}

// ---- concurrent closes --------------------------------------------------------------------------

/// A handle that another thread checks and drops.
type Held = Box<dyn FnOnce() + Send>;

fn named(prefix: &str) -> Provider {
    let builder = Provider::builder()
        .max_shared(16)
        .max_bytes(1 << 20)
        .tuning(Tuning::new().arena_size(64 << 10))
        .max_idle_per_class(2);
    builder
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap()
}

/// Returns two handles to one buffer.
fn ways_to_hold(way: usize, mut buffer: ShmBytesMut, client: &Client, peer: PeerId) -> [Held; 2] {
    write(&mut buffer, way as u64);
    let check = move |bytes: &[u8]| {
        assert!(
            holds(bytes, way as u64),
            "bytes were lost when the provider closed"
        )
    };
    let nothing = || Box::new(|| ()) as Held;
    if way == 0 {
        return [Box::new(move || check(&buffer)), nothing()];
    }
    let message = buffer.freeze();
    match way {
        1 => [
            Box::new({
                let clone = message.clone();
                move || check(&clone)
            }),
            Box::new(move || check(&message)),
        ],
        2 => {
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            [
                Box::new(move || check(&view)),
                Box::new(move || check(&message)),
            ]
        }
        3 => {
            // The grant is never taken up.
            message.grant(peer).unwrap();
            [Box::new(move || check(&message)), nothing()]
        }
        4 => {
            // Shared for the first time while the provider closes, or after that.
            [
                Box::new(move || assert!(message.descriptor().is_ok())),
                nothing(),
            ]
        }
        _ => {
            message.descriptor().unwrap();
            let rewrite = move || {
                let mut buffer = message.try_into_mut().unwrap();
                write(&mut buffer, 9);
                assert!(holds(&buffer, 9));
            };
            [Box::new(rewrite), nothing()]
        }
    }
}

/// Spins for a random time, so that the threads interleave differently.
fn dawdle(random: &mut Random) {
    for _ in 0..random.below(3000) {
        spin_loop();
    }
}

fn assert_nothing_left(prefix: &str) {
    assert_eq!(files(prefix), NONE, "files are left");
    assert_eq!(mappings(prefix), 0, "mappings are left");
    assert_eq!(open_files(prefix), 0, "file descriptors are left");
}

#[test]
fn close_under_buffers() {
    let prefix = unique_prefix("closing");
    let client = Client::in_namespace(&Namespace::new(prefix.as_str()).unwrap());
    let mut random = Random(7);
    for round in 0..2000 {
        let provider = named(&prefix);
        let peer = client.connect(provider.id()).unwrap();
        let mut one = Vec::new();
        let mut two = Vec::new();
        for len in [100, 100, 3000, 70_000] {
            let buffer = provider.alloc(len).unwrap();
            let [first, second] = ways_to_hold(random.below(6), buffer, &client, peer);
            one.push(first);
            two.push(second);
        }
        // Leaves an idle chunk in each kind of place.
        drop(provider.reserve(100, 2).unwrap());
        assert!(provider
            .alloc(70_000)
            .unwrap()
            .freeze()
            .descriptor()
            .is_ok());
        let start = Barrier::new(3);
        thread::scope(|scope| {
            for held in [one, two] {
                let start = &start;
                let mut delay = Random(random.next());
                scope.spawn(move || {
                    start.wait();
                    for drop_one in held {
                        dawdle(&mut delay);
                        drop_one();
                    }
                });
            }
            start.wait();
            dawdle(&mut random);
            drop(provider);
        });
        if round % 100 == 0 {
            client.unmap_unused();
            assert_eq!(client.mapped_segments(), 0);
            assert_eq!(files(&prefix), NONE, "files are left after {round} rounds");
        }
    }
    drop(client);
    assert_nothing_left(&prefix);
}

#[test]
fn close_during_drops() {
    let prefix = unique_prefix("last-owner");
    for round in 0..500 {
        let provider = Arc::new(named(&prefix));
        let start = Arc::new(Barrier::new(3));
        let threads = [1, 2, 3].map(|nth| {
            let provider = provider.clone();
            let start = start.clone();
            thread::spawn(move || {
                let mut random = Random(round * 3 + nth);
                let mut held: Vec<ShmBytesMut> = Vec::new();
                start.wait();
                for _ in 0..random.below(20) {
                    held.push(provider.alloc(random.below(20_000)).unwrap());
                    held.drain(..random.below(held.len()));
                }
                drop(provider);
                dawdle(&mut random);
            })
        });
        drop(provider);
        for thread in threads {
            thread.join().unwrap();
        }
    }
    assert_nothing_left(&prefix);
}

// ---- mappings -----------------------------------------------------------------------------------

const LEN: usize = 1 << 20;

/// A provider that destroys every segment as soon as it is unused.
fn forgetful() -> Provider {
    builder().max_idle_per_class(0).build().unwrap()
}

#[test]
fn segment_is_mapped_once() {
    let (provider, client) = pair();
    let messages = messages(&provider, 1000, 0..20);
    let views = attach_all(&client, &messages);
    for (stamp, view) in views.iter().enumerate() {
        assert!(holds(view, stamp as u64));
    }
    assert_eq!(
        client.mapped_segments(),
        1,
        "chunks of one arena are mapped apart"
    );
    assert_eq!(
        mappings(&segment(&provider, 1)),
        2,
        "one mapping of the owner's, one of the client's"
    );
    drop(views);
    assert_eq!(
        client.mapped_segments(),
        1,
        "a segment that will be used again is mapped anew each time"
    );
}

#[test]
fn last_view_unmaps() {
    for len in [1000, LEN] {
        let (provider, client) = pair();
        let name = segment(&provider, 1);
        let id = provider.id().to_string();
        let buffer = message(&provider, len, 1);
        let descriptor = buffer.descriptor().unwrap();
        let first = client.attach(&descriptor).unwrap();
        let last = client.attach(&descriptor).unwrap();
        // A leased chunk is destroyed only when its provider closes.
        drop(buffer);
        drop(provider);
        assert_eq!(files(&id), NONE);
        drop(first);
        assert_eq!(
            mappings(&name),
            1,
            "{len} bytes: the mapping is gone although a view needs it"
        );
        assert!(holds(&last, 1));
        drop(last);
        assert_eq!(
            client.mapped_segments(),
            0,
            "{len} bytes: the table keeps a segment that nobody can use"
        );
        assert_eq!(
            mappings(&name),
            0,
            "{len} bytes: memory of a destroyed segment is kept from the system"
        );
    }
}

#[test]
fn attach_unmaps_destroyed() {
    let provider = forgetful();
    let client = Client::new();
    for serial in 1..10 {
        let buffer = message(&provider, LEN, serial);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        assert!(holds(&view, serial));
        assert_eq!(
            client.mapped_segments(),
            1,
            "a destroyed segment's mapping survives the attach to another"
        );
        for older in 1..serial {
            assert_eq!(
                mappings(&segment(&provider, older)),
                0,
                "an old segment is still in the process's map"
            );
        }
        drop(view);
    }
}

#[test]
fn client_unmap_unused() {
    let (provider, client) = pair();
    let id = provider.id().to_string();
    let large = message(&provider, LEN, 1);
    drop(client.attach(&large.descriptor().unwrap()).unwrap());
    assert_eq!(
        (client.mapped_segments(), client.unmap_unused()),
        (1, 0),
        "trim let a segment go that is in use"
    );
    drop(large);
    assert_eq!(
        client.unmap_unused(),
        0,
        "trim let an idle segment go, which will be used again"
    );
    provider.trim();
    assert_eq!(
        (client.unmap_unused(), client.mapped_segments()),
        (1, 0),
        "the destroyed segment stays mapped"
    );
    assert_eq!(mappings(&segment(&provider, 1)), 0);
    let small = message(&provider, 100, 2);
    let small_view = client.attach(&small.descriptor().unwrap()).unwrap();
    drop(provider);
    assert_eq!(
        client.unmap_unused(),
        0,
        "trim gave up a provider whose message is alive"
    );
    drop(small);
    assert!(
        client.unmap_unused() > 0,
        "trim keeps a closed provider's control object"
    );
    assert_eq!(client.mapped_segments(), 0);
    assert!(holds(&small_view, 2), "trim unmapped what a view reads");
    drop(small_view);
    assert_eq!(
        mappings(&id),
        0,
        "something of a closed provider is still mapped"
    );
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
        assert!(holds(
            &client.attach(&buffer.descriptor().unwrap()).unwrap(),
            stamp
        ));
        drop(buffer);
        assert_eq!(
            provider.trim(),
            4 * LEN,
            "an idle message's memory stays taken"
        );
        assert_eq!(provider.stats().bytes_held, held);
        assert!(
            holds(&kept, 1) && holds(&kept_view, 1),
            "a reader's bytes were given back"
        );
        assert_eq!((client.unmap_unused(), client.mapped_segments()), (0, 1));
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

/// Names that a cleaner has removed may be a successor's by now.
#[test]
fn end_leaves_successors_objects() {
    let prefix = unique_prefix("removed-name");
    let builder = Provider::builder().namespace(&Namespace::new(&prefix).unwrap());
    let provider = builder.build().unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let object = format!("/dev/shm/{prefix}.c.channel");
    let publisher = Publisher::create(&provider, "c").unwrap();
    fs::remove_file(&object).unwrap();
    let sender = Sender::create(&provider, "c").unwrap();
    drop(publisher);
    let receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("c")
        .expect("the successor's object");
    drop((sender, receiver));
    assert!(!Path::new(&object).exists());
}

/// A segment whose name a cleaner has removed stays mapped, with the messages that are yet to
/// arrive.
#[test]
fn removed_names_lose_no_message() {
    let prefix = unique_prefix("removed-segment");
    let provider = Provider::builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .tuning(Tuning::new().arena_size(64 << 10))
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut sender = Sender::create(&provider, "c").unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open("c")
        .unwrap();
    let early = provider.alloc(5000).unwrap().freeze();
    sender.send(early.clone()).unwrap();
    drop(receiver.recv().unwrap());
    for file in fs::read_dir("/dev/shm").unwrap() {
        let file = file.unwrap();
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_file(file.path()).unwrap();
        }
    }
    let late = provider.alloc(1 << 20).unwrap().freeze();
    sender.send(late).unwrap();
    sender.send(early).unwrap();
    assert_eq!(receiver.recv().unwrap().len(), 1 << 20);
    assert_eq!(receiver.mapped_segments(), 2);
    assert_eq!(receiver.recv().unwrap().len(), 5000);
}

/// A receiver that is killed while it joins may leave a connection that the publisher never learns
/// of.
#[test]
fn end_removes_unannounced_connections() {
    let prefix = unique_prefix("unannounced");
    let builder = Provider::builder().namespace(&Namespace::new(&prefix).unwrap());
    let provider = builder.build().unwrap();
    let publisher = Publisher::create(&provider, "c").unwrap();
    // As it is before it is locked, and of another channel.
    let connection = |channel| format!("/dev/shm/{prefix}.{channel}.{:016x}.connection", 7);
    fs::write(connection("c"), []).unwrap();
    fs::write(connection("other"), []).unwrap();
    drop(publisher);
    assert!(!Path::new(&connection("c")).exists());
    assert!(Path::new(&connection("other")).exists());
    fs::remove_file(connection("other")).unwrap();
}

/// A pool ends with the last provider, sender or publisher, whichever it is.
#[test]
fn pool_ends_with_last_clone() {
    let prefix = unique_prefix("clones");
    let provider = builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let clone = provider.clone();
    assert_eq!(clone.id(), provider.id());
    let control = format!("{prefix}.{}.ctl", provider.id());
    let sender = Sender::create(&clone, "one").unwrap();
    let publisher = Publisher::create(&provider, "many").unwrap();
    drop(provider);
    drop(clone.alloc(100).unwrap());
    assert_eq!(files(&control).len(), 1);
    let moved = thread::spawn(move || drop(clone.clone()));
    moved.join().unwrap();
    assert_eq!(files(&control).len(), 1, "the sender's");
    drop(sender);
    assert_eq!(files(&control).len(), 1, "the publisher's");
    drop(publisher);
    assert_eq!(files(&prefix), NONE);
}
