//! Frozen buffers: clones, thawing, messages kept until they are confirmed, and `Bytes` over them.

use crate::fixtures::{
    address, builder, fill, forge, holds, message, messages, messages_of, pair, provider, write,
    Random,
};
use bytes::Bytes;
use shm_pool::{
    AttachError, Client, Descriptor, Namespace, PeerId, Provider, ProviderId, ShareError, ShmBytes,
    ShmView, Tuning,
};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

#[test]
fn unshared_into_mut() {
    for len in [0, 100, 1 << 20] {
        let provider = provider();
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let mut buffer = buffer.try_into_mut().unwrap();
        assert_eq!(
            (address(&buffer), buffer.len()),
            (first, len),
            "the message moved or changed its length"
        );
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
    assert!(
        buffer.try_into_mut().is_ok(),
        "the last handle cannot be written"
    );
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
        assert!(
            matches!(client.attach(&old), Err(AttachError::Stale)),
            "a reader sees a message being written"
        );
        write(&mut buffer, 2);
        buffer.truncate(len / 2);
        let buffer = buffer.freeze();
        assert!(
            matches!(client.attach(&old), Err(AttachError::Stale)),
            "the old descriptor names the new message"
        );
        let new = buffer.descriptor().unwrap();
        assert_ne!(old, new);
        assert!(
            matches!(client.attach(&old), Err(AttachError::Stale)),
            "the old descriptor names the new message"
        );
        let view = client.attach(&new).unwrap();
        assert_eq!(view.len(), len / 2);
        assert!(holds(&view, 2));
        drop(view);
        assert!(
            buffer.try_into_mut().is_ok(),
            "a refused attach left a lease behind"
        );
    }
}

#[test]
fn clones_share_descriptor() {
    let provider = provider();
    let buffer = message(&provider, 100, 1);
    let descriptor = buffer.clone().descriptor().unwrap();
    assert_eq!(buffer.descriptor(), Ok(descriptor));
    assert_eq!(buffer.clone().descriptor(), Ok(descriptor));
    assert_eq!(
        (descriptor.provider(), descriptor.payload_len()),
        (provider.id(), 100)
    );
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
            assert!(
                holds(&client.attach(&descriptor).unwrap(), 1),
                "a kept message changed"
            );
        }
        drop(kept);
        let all = messages(&provider, len, 20..40);
        let next = all
            .iter()
            .find(|message| address(message) == first)
            .expect("the chunk is used again");
        let late = client.attach(&descriptor);
        assert!(
            matches!(late, Err(AttachError::Stale)),
            "a receiver that came too late got {late:?}"
        );
        next.descriptor().unwrap();
        assert!(
            matches!(client.attach(&descriptor), Err(AttachError::Stale)),
            "an old descriptor works again"
        );
        assert!(
            matches!(Client::new().attach(&descriptor), Err(AttachError::Stale)),
            "a new client got in"
        );
    }
}

#[test]
fn max_shared() {
    let provider = builder().max_shared(3).build().unwrap();
    let mut buffers = messages_of(&provider, &[100, 1000, 1 << 20, 2 << 20]);
    assert!(
        buffers[..3]
            .iter()
            .all(|buffer| buffer.descriptor().is_ok()),
        "all records can be used"
    );
    assert_eq!(
        buffers[3].descriptor(),
        Err(ShareError::TooManyShared { max: 3 })
    );
    assert!(
        buffers[..3]
            .iter()
            .all(|buffer| buffer.descriptor().is_ok()),
        "what is shared stays so"
    );
    drop(buffers.remove(0));
    assert!(
        buffers[2].descriptor().is_ok(),
        "an idle chunk keeps its record from a message that needs one"
    );
    assert!(
        buffers[..2]
            .iter()
            .all(|buffer| buffer.descriptor().is_ok()),
        "what is shared stays so"
    );
}

/// A dead subscriber, or one whose lease has long ended, does not prevent a publisher from sharing.
#[test]
fn record_reuse() {
    let provider = builder().max_shared(2).build().unwrap();
    let client = Client::new();
    let mut views = Vec::new();
    for len in [100, 1000] {
        let message = message(&provider, len, 1);
        views.push(client.attach(&message.descriptor().unwrap()));
    }
    // Dropped while they were read: they wait in the queue of leased chunks.
    drop(views);
    let next = messages_of(&provider, &[1 << 20, 2 << 20]);
    assert!(next.iter().all(|buffer| buffer.descriptor().is_ok()));
}

#[test]
fn record_of_evicted_chunk() {
    let provider = builder()
        .max_shared(1)
        .max_idle_per_class(0)
        .build()
        .unwrap();
    let _keeps_the_arena = provider.alloc(100).unwrap();
    for round in 0..20 {
        let buffer = message(&provider, [200, 1 << 20, 2 << 20][round % 3], 1);
        assert!(
            buffer.descriptor().is_ok(),
            "round {round}: only one message is shared at a time"
        );
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
        let sent = Bytes::from_owner(buffer);
        let received = Bytes::from_owner(view);
        assert_eq!(
            (address(&sent), address(&received)),
            (first, mapped),
            "the bytes were copied"
        );
        let slices = [sent.slice(..16), received.slice(16..32)];
        drop(sent);
        assert_eq!(provider.stats().bytes_leased, 0, "a slice keeps the buffer");
        drop(received);
        assert!(
            slices.iter().all(|slice| holds(slice, 1)),
            "a slice lost its bytes"
        );
        let [sent, received] = slices;
        drop(sent);
        assert_ne!(
            address(&provider.alloc(len).unwrap()),
            first,
            "the chunk was used again under a slice of a view"
        );
        assert!(holds(&received, 1));
        drop(received);
        provider.trim();
        assert_eq!(
            provider.stats().bytes_held,
            0,
            "dropping the bytes did not give the chunk back"
        );
    }
}

// ---- readers ------------------------------------------------------------------------------------

const CAP: usize = 256 << 10;

/// A provider with little memory, and a client.
fn tight() -> (Provider, Client) {
    (
        builder()
            .max_bytes(CAP)
            .tuning(Tuning::new().arena_size(64 << 10))
            .build()
            .unwrap(),
        Client::new(),
    )
}

/// Allocates all the memory for messages of `len` bytes, and returns their addresses.
fn all_addresses(provider: &Provider, len: usize) -> HashSet<usize> {
    let live = fill(provider, len);
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
        let mut live: Vec<ShmBytes> = Vec::new();
        for stamp in 2..2 + 100 * (CAP / len) as u64 {
            let other = message(&provider, len, stamp);
            assert_ne!(
                address(&other),
                first,
                "{len} bytes: the chunk was used again under the view"
            );
            if random.below(2) == 0 {
                drop(client.attach(&other.descriptor().unwrap()).unwrap());
            }
            live.push(other);
            live.drain(..random.below(live.len().min(8)));
            assert!(
                holds(&view, 1),
                "{len} bytes: the view's bytes changed at message {stamp}"
            );
        }
        live.clear();
        assert!(
            !all_addresses(&provider, len).contains(&first),
            "{len} bytes: taken under memory pressure"
        );
        assert!(holds(&view, 1));
        drop(view);
        assert!(
            all_addresses(&provider, len).contains(&first),
            "{len} bytes: the chunk is lost after its view"
        );
    }
}

#[test]
fn eviction_spares_views() {
    for len in [64, 4096, 20_480] {
        let (provider, client) = tight();
        let buffer = message(&provider, len, 1);
        let view = client.attach(&buffer.descriptor().unwrap()).unwrap();
        drop(buffer);
        assert!(
            provider.alloc(CAP).unwrap_err().is_exhausted(),
            "{len} viewed bytes were given to somebody else"
        );
        provider.trim();
        assert!(
            provider.alloc(CAP).unwrap_err().is_exhausted(),
            "{len} viewed bytes were trimmed away"
        );
        assert!(holds(&view, 1));
        drop(view);
        assert!(
            provider.alloc(CAP).is_ok(),
            "{len} bytes are lost after their view"
        );
    }
}

#[test]
fn two_views() {
    let (provider, client) = tight();
    let other = Client::new();
    let buffer = message(&provider, 20_480, 1);
    let first = address(&buffer);
    let descriptor = buffer.descriptor().unwrap();
    let mut views = vec![
        client.attach(&descriptor).unwrap(),
        other.attach(&descriptor).unwrap(),
    ];
    views.push(views[0].try_clone().unwrap());
    views.push(views[1].try_clone().unwrap());
    drop(buffer);
    while !views.is_empty() {
        assert!(
            !all_addresses(&provider, 20_480).contains(&first),
            "{} views are left",
            views.len()
        );
        assert!(views.iter().all(|view| holds(view, 1)));
        views.pop();
    }
    assert!(all_addresses(&provider, 20_480).contains(&first));
}

/// Attaches `client` to one message `count` times.
#[track_caller]
fn attach_times(client: &Client, descriptor: &Descriptor, count: usize) -> Vec<ShmView> {
    let mut views = Vec::new();
    for _ in 0..count {
        views.push(client.attach(descriptor).unwrap());
    }
    views
}

#[test]
fn thirty_one_views() {
    let (provider, client) = tight();
    let buffer = message(&provider, 100, 1);
    let descriptor = buffer.descriptor().unwrap();
    let mut views = attach_times(&client, &descriptor, 31);
    let too_many =
        |result: Result<_, AttachError>| matches!(result, Err(AttachError::TooManyLeases));
    assert!(
        too_many(client.attach(&descriptor)),
        "a 32nd lease would overflow into the grants"
    );
    assert!(
        too_many(views[0].try_clone()),
        "a 32nd lease would overflow into the grants"
    );
    let other = Client::new();
    let theirs = attach_times(&other, &descriptor, 31);
    views.pop();
    views.push(views[0].try_clone().unwrap());
    assert!(too_many(client.attach(&descriptor)));
    drop(views);
    assert!(
        buffer.is_leased(),
        "the other client's leases went with the first one's"
    );
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
    assert_eq!(
        first.connect(provider.id()).unwrap(),
        connected,
        "connecting again takes another slot"
    );
    let mut others: Vec<_> = (1..64).map(|_| Client::new()).collect();
    let mut slots = HashSet::from([connected.slot()]);
    for client in &others {
        slots.insert(client.connect(provider.id()).unwrap().slot());
    }
    assert_eq!(slots.len(), 64, "two peers share a slot");
    let late = Client::new();
    let refused = late.attach(&descriptor);
    assert!(
        matches!(refused, Err(AttachError::TooManyPeers(_))),
        "{refused:?}"
    );
    let mut views = Vec::new();
    for client in &others {
        views.push(client.attach(&descriptor).unwrap());
    }
    drop(others.pop());
    assert!(
        late.attach(&descriptor).is_err(),
        "a slot is free although its peer still has a view"
    );
    drop(views);
    assert!(
        holds(&late.attach(&descriptor).unwrap(), 1),
        "the slot of a peer that has gone is not used again"
    );
}

// ---- untrusted descriptors ----------------------------------------------------------------------

/// Replaces one field and corrects the checksum.
fn forged(original: &Descriptor, at: usize, field: &[u8]) -> Descriptor {
    let mut bytes = original.to_bytes();
    bytes[at..at + field.len()].copy_from_slice(field);
    forge(bytes).expect("magic number and version are right")
}

const GRANT: usize = 3;
const RECORD: usize = 4;
const PROVIDER: usize = 8;
const GENERATION: usize = 16;
const LENGTH: usize = 24;

#[test]
fn bytes_and_fields() {
    let (provider, client) = pair();
    let peer = client.connect(provider.id()).unwrap();
    let buffer = message(&provider, 1000, 1);
    for descriptor in [buffer.descriptor().unwrap(), buffer.grant(peer).unwrap()] {
        let received = Descriptor::from_bytes(descriptor.to_bytes()).unwrap();
        assert_eq!(received, descriptor);
        assert!(holds(&client.attach(&received).unwrap(), 1));
    }
    assert_eq!(ProviderId::from(u64::from(provider.id())), provider.id());
    assert_eq!(
        provider.id().to_string(),
        format!("{:016x}", u64::from(provider.id())),
        "file names are made of it"
    );
    assert_eq!(provider.id().to_string().parse(), Ok(provider.id()));
}

#[test]
fn unknown_provider() {
    let (provider, client) = pair();
    let nobody = ProviderId::from(!u64::from(provider.id()));
    let buffer = message(&provider, 1000, 1);
    let descriptor = forged(
        &buffer.descriptor().unwrap(),
        PROVIDER,
        &u64::from(nobody).to_le_bytes(),
    );
    for refused in [
        client.attach(&descriptor).map(drop),
        client.connect(nobody).map(drop),
    ] {
        let Err(AttachError::NoProvider(object)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(
            object,
            PathBuf::from(format!("/dev/shm/shm_pool.{nobody}.ctl"))
        );
    }
}

#[test]
fn swapped_provider_id() {
    let (one, client) = pair();
    let two = provider();
    let ours = message(&one, 1000, 1);
    let theirs = message(&two, 1000, 2);
    let descriptor = ours.descriptor().unwrap();
    let other = theirs.descriptor().unwrap();
    let mixed = forged(
        &descriptor,
        PROVIDER,
        &u64::from(other.provider()).to_le_bytes(),
    );
    assert_ne!(
        mixed, other,
        "generations of two providers start at the same number"
    );
    let refused = client.attach(&mixed);
    assert!(matches!(refused, Err(AttachError::Stale)), "{refused:?}");
    assert!(
        theirs.try_into_mut().is_ok(),
        "the refused attach left a lease behind"
    );
}

#[test]
fn changed_field_is_refused() {
    let (provider, client) = pair();
    let slot = client.connect(provider.id()).unwrap().slot();
    let buffer = message(&provider, 1000, 1);
    let unshared = message(&provider, 1000, 2);
    let real = buffer.descriptor().unwrap();
    let attach = |at, field: &[u8]| client.attach(&forged(&real, at, field)).unwrap_err();

    for record in [64, 65, u32::MAX] {
        let error = attach(RECORD, &u32::to_le_bytes(record));
        assert!(matches!(error, AttachError::Forged { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("buffer {record} ")) && text.ends_with(" 64"),
            "{text}"
        );
    }
    for record in [1, 63] {
        assert!(
            matches!(
                attach(RECORD, &u32::to_le_bytes(record)),
                AttachError::Stale
            ),
            "an unused record was opened"
        );
    }
    for generation in [0, 1, 2, u64::MAX] {
        assert!(
            matches!(
                attach(GENERATION, &generation.to_le_bytes()),
                AttachError::Stale
            ),
            "{generation}"
        );
    }
    for length in [0, 999, 1001, 1024, 1 << 20, (1 << 48) - 1u64] {
        let error = attach(LENGTH, &length.to_le_bytes()[..6]);
        assert!(matches!(error, AttachError::Forged { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("says {length} ")) && text.ends_with(" 1000 bytes"),
            "{text}"
        );
    }
    assert!(
        matches!(attach(GRANT, &[slot + 1]), AttachError::NotGranted),
        "a grant was made up"
    );
    for other in [slot + 1, 63, 64, 254] {
        assert!(
            matches!(attach(GRANT, &[other + 1]), AttachError::OtherPeer),
            "a grant for slot {other}"
        );
    }
    assert!(
        buffer.try_into_mut().is_ok() && unshared.try_into_mut().is_ok(),
        "a refused attach left a lease behind"
    );
}

#[test]
fn other_prefix_or_user() {
    let (provider, _) = pair();
    let descriptor = message(&provider, 100, 1).descriptor().unwrap();
    let stranger = Client::in_namespace(&Namespace::new("it-other").unwrap());
    assert!(matches!(
        stranger.attach(&descriptor),
        Err(AttachError::NoProvider { .. })
    ));
    let uid = Client::in_namespace(&Namespace::default().of_user(u32::MAX - 1));
    let Err(AttachError::WrongUid(error)) = uid.attach(&descriptor) else {
        panic!("an object of another user is trusted");
    };
    let object = PathBuf::from(format!("/dev/shm/shm_pool.{}.ctl", provider.id()));
    assert_eq!(error.object(), object);
    let trusted = format!("not to uid {}", u32::MAX - 1);
    assert!(error.to_string().ends_with(&trusted), "{error}");
}

/// The result of decoding and attaching 32 untrusted bytes, beside the real descriptors.
fn outcome(
    client: &Client,
    real: &[[u8; Descriptor::SIZE]],
    bytes: [u8; Descriptor::SIZE],
) -> &'static str {
    match Descriptor::from_bytes(bytes) {
        Err(error) => {
            let text = error.to_string();
            let reasons = [
                ("not a shm-pool descriptor", "magic number"),
                ("the descriptor has version", "version"),
                ("the descriptor's checksum", "checksum"),
            ];
            for (start, reason) in reasons {
                if text.starts_with(start) {
                    return reason;
                }
            }
            "unknown error"
        }
        Ok(descriptor) => refusal(client, real, &descriptor),
    }
}

/// The result of attaching an untrusted descriptor, beside the real ones.
fn refusal(
    client: &Client,
    real: &[[u8; Descriptor::SIZE]],
    descriptor: &Descriptor,
) -> &'static str {
    match client.attach(descriptor) {
        // A cleared grant leaves the plain descriptor of the same message.
        Ok(_) if real.contains(&descriptor.to_bytes()) => "attached by a real descriptor",
        Ok(_) => "attached",
        Err(AttachError::Stale) => "stale",
        Err(AttachError::Forged { .. }) => "forged",
        Err(AttachError::NotGranted) => "not granted",
        Err(AttachError::OtherPeer) => "other peer",
        Err(AttachError::NoProvider { .. }) => "no provider",
        Err(_) => "another error",
    }
}

/// Flips one to four different bits of the first `bits`.
fn flip(
    random: &mut Random,
    mut bytes: [u8; Descriptor::SIZE],
    bits: usize,
) -> [u8; Descriptor::SIZE] {
    let start = random.below(bits);
    let step = 1 + random.below(bits / 4);
    for nth in 0..1 + random.below(4) {
        let bit = (start + nth * step) % bits;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

/// A provider, a client that has read all its messages, the live messages, and the bytes of their
/// descriptors and spent grants.
fn targets() -> (
    shm_pool::Provider,
    Client,
    Vec<ShmBytes>,
    Vec<[u8; Descriptor::SIZE]>,
) {
    let (provider, client) = pair();
    let messages = messages_of(&provider, &[0, 1, 100, 4096, 1 << 20]);
    let peer = client.connect(provider.id()).unwrap();
    let mut descriptors = Vec::new();
    for message in &messages {
        descriptors.push(message.descriptor().unwrap());
    }
    // Grants, which are spent below.
    for message in &messages {
        descriptors.push(message.grant(peer).unwrap());
    }
    let mut bytes = Vec::new();
    for descriptor in descriptors {
        drop(client.attach(&descriptor).unwrap());
        bytes.push(descriptor.to_bytes());
    }
    (provider, client, messages, bytes)
}

/// Fails if a lease is left, or if a message has changed.
fn assert_untouched(messages: Vec<ShmBytes>) {
    for message in messages {
        let first = address(&message);
        assert!(holds(&message, 1), "a refused descriptor changed a message");
        let buffer = message
            .try_into_mut()
            .expect("a refused descriptor left a lease behind");
        assert_eq!(address(&buffer), first);
    }
}

#[test]
fn damaged_descriptors() {
    let (_provider, client, messages, real) = targets();
    let mut random = Random(1);
    let mut counts = BTreeMap::new();
    for nth in 0..1_000_000 {
        let bytes = if nth % 2 == 0 {
            let mut bytes = [0; Descriptor::SIZE];
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            bytes
        } else {
            flip(&mut random, real[nth % real.len()], 256)
        };
        *counts.entry(outcome(&client, &real, bytes)).or_insert(0) += 1;
    }
    assert_eq!(counts.values().sum::<i32>(), 1_000_000);
    // The checksum misses one damaged descriptor in 65,536.
    let missed = counts.get("attached by a real descriptor").unwrap_or(&0);
    assert!(*missed < 10, "{counts:?}");
    for wrong in ["attached", "another error", "unknown error"] {
        assert_eq!(counts.get(wrong), None, "{counts:?}");
    }
    for (kind, least) in [
        ("magic number", 500_000),
        ("checksum", 300_000),
        ("version", 10_000),
    ] {
        assert!(counts[kind] > least, "{counts:?}");
    }
    assert_untouched(messages);
}

#[test]
fn forged_descriptors() {
    let (_provider, client, messages, real) = targets();
    let mut random = Random(2);
    let mut counts = BTreeMap::new();
    for nth in 0..100_000 {
        // All bits but those of the checksum. `forge` skips a wrong magic number or version.
        let flipped = flip(&mut random, real[nth % real.len()], 240);
        let Some(descriptor) = forge(flipped) else {
            continue;
        };
        *counts
            .entry(refusal(&client, &real, &descriptor))
            .or_insert(0) += 1;
    }
    let cleared = counts.remove("attached by a real descriptor").unwrap_or(0);
    assert!(
        cleared < 1000,
        "{cleared} of the forged descriptors opened a message"
    );
    for expected in [
        "stale",
        "forged",
        "not granted",
        "other peer",
        "no provider",
    ] {
        assert!(
            counts.remove(expected).unwrap_or(0) > 0,
            "no forged descriptor was refused as {expected}"
        );
    }
    assert!(counts.is_empty(), "{counts:?}");
    assert_untouched(messages);
}

// ---- odd generations ----------------------------------------------------------------------------
// A forger can derive generations that no owner sends, zero and the odd ones of closed chunks, from a
// descriptor that was once valid. They are refused before a lease is tried.

/// The lengths of a chunk carved in cache lines, and of one of whole pages.
const LENGTHS: [usize; 2] = [100, 1 << 20];

/// The maximum number of views of one message in one client.
const VIEWS: usize = 31;

fn generation(descriptor: &Descriptor) -> u64 {
    let bytes = descriptor.to_bytes();
    u64::from_le_bytes(std::array::from_fn(|at| bytes[16 + at]))
}

fn with_generation(original: &Descriptor, generation: u64) -> Descriptor {
    let mut bytes = original.to_bytes();
    bytes[16..24].copy_from_slice(&generation.to_le_bytes());
    forge(bytes).expect("magic number and version are right")
}

/// The descriptor that the owner would send if it had granted the message to `peer`.
fn with_grant(original: &Descriptor, peer: PeerId) -> Descriptor {
    let mut bytes = original.to_bytes();
    bytes[3] = peer.slot() + 1;
    forge(bytes).expect("magic number and version are right")
}

/// A descriptor of record 63, which belongs to no chunk, at generation 0, the value of the record's
/// zero bytes.
fn of_an_unused_record(original: &Descriptor) -> Descriptor {
    let mut bytes = with_generation(original, 0).to_bytes();
    bytes[4..8].copy_from_slice(&63u32.to_le_bytes());
    bytes[24..30].fill(0);
    forge(bytes).expect("magic number and version are right")
}

fn assert_stale(client: &Client, descriptor: &Descriptor, what: &str) {
    let refused = client.attach(descriptor).map(|view: ShmView| view.len());
    assert!(
        matches!(refused, Err(AttachError::Stale)),
        "{what}: {refused:?}"
    );
}

/// A forger cannot read a chunk while its owner writes it: its generation is easily guessed.
#[test]
fn odd_generation() {
    for len in LENGTHS {
        let (provider, client) = pair();
        let peer = client.connect(provider.id()).unwrap();
        let buffer = message(&provider, len, 1);
        let first = address(&buffer);
        let sent = buffer.descriptor().unwrap();
        drop(client.attach(&sent).unwrap());
        drop(buffer);
        let mut writing = provider.alloc(len).unwrap();
        assert_eq!(address(&writing), first, "the test needs the chunk again");
        let closed = with_generation(&sent, generation(&sent) + 1);
        assert_stale(
            &client,
            &closed,
            "a chunk is read while its owner writes it",
        );
        assert_stale(
            &client,
            &with_grant(&closed, peer),
            "the same by a grant that is made up",
        );
        assert_stale(
            &Client::new(),
            &closed,
            "the same by a client that has nothing mapped",
        );
        write(&mut writing, 2);
        let again = writing.freeze();
        assert!(holds(
            &client.attach(&again.descriptor().unwrap()).unwrap(),
            2
        ));
        assert!(
            again.try_into_mut().is_ok(),
            "a refused descriptor left a lease behind"
        );
    }
}

/// The zero bytes of a record that never had a chunk do not pass for a message.
#[test]
fn zero_generation() {
    for len in LENGTHS {
        let (provider, client) = pair();
        let buffer = message(&provider, len, 1);
        let unused = of_an_unused_record(&buffer.descriptor().unwrap());
        assert_stale(&client, &unused, "an unused record");
        drop(client.attach(&buffer.descriptor().unwrap()).unwrap());
        assert_stale(
            &client,
            &unused,
            "an unused record, and a segment that is mapped",
        );
        let peer = client.connect(provider.id()).unwrap();
        assert_stale(
            &client,
            &with_grant(&unused, peer),
            "an unused record, by a grant that is made up",
        );
    }
}

/// A forged descriptor takes no lease, and does not reveal that no lease is left.
#[test]
fn impossible_generation() {
    let (provider, client) = pair();
    let buffer = message(&provider, 100, 1);
    let sent = buffer.descriptor().unwrap();
    let views = attach_times(&client, &sent, VIEWS);
    let full = client
        .attach(&with_generation(&sent, generation(&sent) + 2))
        .map(|view| view.len());
    assert!(
        matches!(full, Err(AttachError::TooManyLeases)),
        "the test needs a peer that is at its limit: {full:?}"
    );
    for other in [0, 1, u64::MAX, generation(&sent) - 1, generation(&sent) + 1] {
        assert_stale(
            &client,
            &with_generation(&sent, other),
            "its limit was looked at",
        );
    }
    drop(views);
    assert!(
        buffer.try_into_mut().is_ok(),
        "a refused descriptor left a lease behind"
    );
}
