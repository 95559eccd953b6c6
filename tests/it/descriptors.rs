//! Descriptors are untrusted: stale, damaged and forged ones get a typed error, and leave no lease
//! behind.

use crate::support::{address, forge, holds, message, pair, provider, Random};
use shm_pool::{AttachError, Client, Descriptor, DescriptorError, ProviderId, ShmBuf};
use std::collections::BTreeMap;

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
    assert_eq!(ProviderId::from_u64(provider.id().to_u64()), provider.id());
    assert_eq!(provider.id().to_string(), format!("{:016x}", provider.id().to_u64()), "file names are made of it");
    assert_eq!(provider.id().to_string().parse(), Ok(provider.id()));
}

#[test]
fn unknown_provider() {
    let (provider, client) = pair();
    let nobody = ProviderId::from_u64(!provider.id().to_u64());
    let buffer = message(&provider, 1000, 1);
    let descriptor = forged(&buffer.descriptor().unwrap(), PROVIDER, &nobody.to_u64().to_le_bytes());
    for refused in [client.attach(&descriptor).map(drop), client.connect(nobody).map(drop)] {
        let Err(AttachError::NoProvider { provider, object }) = refused else { panic!("{refused:?}") };
        assert_eq!((provider, object), (nobody, format!("/dev/shm/shm_pool.{nobody}.ctl")));
    }
}

#[test]
fn swapped_provider_id() {
    let (one, client) = pair();
    let two = provider();
    let (ours, theirs) = (message(&one, 1000, 1), message(&two, 1000, 2));
    let (descriptor, other) = (ours.descriptor().unwrap(), theirs.descriptor().unwrap());
    let mixed = forged(&descriptor, PROVIDER, &other.provider().to_u64().to_le_bytes());
    assert_ne!(mixed, other, "generations of two providers start at the same number");
    let refused = client.attach(&mixed);
    assert!(matches!(refused, Err(AttachError::Stale)), "{refused:?}");
    assert!(theirs.try_into_mut().is_ok(), "the refused attach left a lease behind");
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
        let told = matches!(error, AttachError::NoSuchRecord { record: told, records: 64, .. } if told == record);
        assert!(told, "record {record} of 64: {error}");
    }
    for record in [1, 63] {
        assert!(matches!(attach(RECORD, &u32::to_le_bytes(record)), AttachError::Stale), "an unused record was opened");
    }
    for generation in [0, 1, 2, u64::MAX] {
        assert!(matches!(attach(GENERATION, &generation.to_le_bytes()), AttachError::Stale), "{generation}");
    }
    for length in [0, 999, 1001, 1024, 1 << 20, (1 << 48) - 1u64] {
        let error = attach(LENGTH, &length.to_le_bytes()[..6]);
        let told = matches!(error, AttachError::WrongLength { len, actual: 1000 } if len == length);
        assert!(told, "{length} of 1000 bytes: {error}");
    }
    assert!(matches!(attach(GRANT, &[slot + 1]), AttachError::NotGranted), "a grant was made up");
    for other in [slot + 1, 63, 64, 254] {
        assert!(matches!(attach(GRANT, &[other + 1]), AttachError::OtherPeer { .. }), "a grant for slot {other}");
    }
    assert!(buffer.try_into_mut().is_ok() && unshared.try_into_mut().is_ok(), "a refused attach left a lease behind");
}

#[test]
fn other_prefix_or_user() {
    let (provider, _) = pair();
    let descriptor = message(&provider, 100, 1).descriptor().unwrap();
    let stranger = Client::builder().name_prefix("it-other").build().unwrap();
    assert!(matches!(stranger.attach(&descriptor), Err(AttachError::NoProvider { .. })));
    let uid = Client::builder().owner_uid(u32::MAX - 1).build().unwrap();
    let Err(AttachError::WrongUid { expected, object, .. }) = uid.attach(&descriptor) else {
        panic!("an object of another user is trusted");
    };
    assert_eq!((expected, object), (u32::MAX - 1, format!("/dev/shm/shm_pool.{}.ctl", provider.id())));
}

/// The result of decoding and attaching 32 untrusted bytes.
fn outcome(client: &Client, bytes: [u8; Descriptor::SIZE]) -> &'static str {
    match Descriptor::from_bytes(bytes) {
        Err(DescriptorError::Magic { .. }) => "magic number",
        Err(DescriptorError::Version { .. }) => "version",
        Err(DescriptorError::Checksum { .. }) => "checksum",
        Err(_) => "unknown error",
        Ok(descriptor) => refusal(client, &descriptor),
    }
}

fn refusal(client: &Client, descriptor: &Descriptor) -> &'static str {
    match client.attach(descriptor) {
        Ok(_) => "attached",
        Err(AttachError::Stale) => "stale",
        Err(AttachError::NoSuchRecord { .. }) => "no such record",
        Err(AttachError::WrongLength { .. }) => "wrong length",
        Err(AttachError::NotGranted) => "not granted",
        Err(AttachError::OtherPeer { .. }) => "other peer",
        Err(AttachError::NoProvider { .. }) => "no provider",
        Err(_) => "another error",
    }
}

/// Flips one to four different bits of the first `bits`.
fn flip(random: &mut Random, mut bytes: [u8; Descriptor::SIZE], bits: usize) -> [u8; Descriptor::SIZE] {
    let (start, step) = (random.below(bits), 1 + random.below(bits / 4));
    for nth in 0..1 + random.below(4) {
        let bit = (start + nth * step) % bits;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

/// A provider, a client that has read all its messages, the live messages, and the bytes of their
/// descriptors and spent grants.
fn targets() -> (shm_pool::Provider, Client, Vec<ShmBuf>, Vec<[u8; Descriptor::SIZE]>) {
    let (provider, client) = pair();
    let messages: Vec<ShmBuf> = [0, 1, 100, 4096, 1 << 20].map(|len| message(&provider, len, 1)).into();
    let peer = client.connect(provider.id()).unwrap();
    let plain = messages.iter().map(|message| message.descriptor().unwrap());
    let spent = messages.iter().map(|message| message.grant(peer).unwrap());
    let descriptors: Vec<Descriptor> = plain.chain(spent).collect();
    descriptors.iter().for_each(|descriptor| drop(client.attach(descriptor).unwrap()));
    let bytes = descriptors.iter().map(|descriptor| descriptor.to_bytes()).collect();
    (provider, client, messages, bytes)
}

/// Fails if a lease is left, or if a message has changed.
fn assert_untouched(messages: Vec<ShmBuf>) {
    for message in messages {
        let first = address(&message);
        assert!(holds(&message, 1), "a refused descriptor changed a message");
        let buffer = message.try_into_mut().expect("a refused descriptor left a lease behind");
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
            let words = [(); 4].map(|()| random.next().to_le_bytes());
            std::array::from_fn(|at| words[at / 8][at % 8])
        } else {
            flip(&mut random, real[nth % real.len()], 256)
        };
        *counts.entry(outcome(&client, bytes)).or_insert(0) += 1;
    }
    assert_eq!(counts.values().sum::<i32>(), 1_000_000);
    for wrong in ["attached", "another error", "unknown error"] {
        assert_eq!(counts.get(wrong), None, "{counts:?}");
    }
    for (kind, least) in [("magic number", 500_000), ("checksum", 300_000), ("version", 10_000)] {
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
        let flipped = flip(&mut random, real[nth % real.len()].map(|byte| byte), 240);
        let Some(descriptor) = forge(flipped) else { continue };
        *counts.entry(refusal(&client, &descriptor)).or_insert(0) += 1;
    }
    // Clearing the grant leaves a valid descriptor of a live message.
    let honest = counts.remove("attached").unwrap_or(0);
    assert!(honest < 1000, "{honest} of the forged descriptors opened a message");
    for expected in ["stale", "no such record", "wrong length", "not granted", "other peer", "no provider"] {
        assert!(counts.remove(expected).unwrap_or(0) > 0, "no forged descriptor was refused as {expected}");
    }
    assert!(counts.is_empty(), "{counts:?}");
    assert_untouched(messages);
}
