//! Generations that no owner sends: zero, and the odd ones of closed chunks. A forger can derive
//! them from a descriptor that was once valid. They are refused before a lease is tried.

use crate::support::{address, forge, holds, message, pair, write};
use shm_pool::{AttachError, Client, Descriptor, PeerId, ShmView};

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
    assert!(matches!(refused, Err(AttachError::Stale)), "{what}: {refused:?}");
}

/// A forger cannot read a chunk while its owner writes it: its generation is easily guessed.
#[test]
fn odd_generation() {
    for len in LENGTHS {
        let (provider, client) = pair();
        let peer = client.connect(provider.id()).unwrap();
        let buffer = message(&provider, len, 1);
        let (first, sent) = (address(&buffer), buffer.descriptor().unwrap());
        drop(client.attach(&sent).unwrap());
        drop(buffer);
        let mut writing = provider.alloc(len).unwrap();
        assert_eq!(address(&writing), first, "the test needs the chunk again");
        let closed = with_generation(&sent, generation(&sent) + 1);
        assert_stale(&client, &closed, "a chunk is read while its owner writes it");
        assert_stale(&client, &with_grant(&closed, peer), "the same by a grant that is made up");
        assert_stale(&Client::new(), &closed, "the same by a client that has nothing mapped");
        write(&mut writing, 2);
        let again = writing.freeze();
        assert!(holds(&client.attach(&again.descriptor().unwrap()).unwrap(), 2));
        assert!(again.try_into_mut().is_ok(), "a refused descriptor left a lease behind");
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
        assert_stale(&client, &unused, "an unused record, and a segment that is mapped");
        let peer = client.connect(provider.id()).unwrap();
        assert_stale(&client, &with_grant(&unused, peer), "an unused record, by a grant that is made up");
    }
}

/// A forged descriptor takes no lease, not even for a moment. It must not even reveal that no lease
/// is left.
#[test]
fn impossible_generation() {
    let (provider, client) = pair();
    let buffer = message(&provider, 100, 1);
    let sent = buffer.descriptor().unwrap();
    let views = [(); VIEWS].map(|()| client.attach(&sent).unwrap());
    let full = client.attach(&with_generation(&sent, generation(&sent) + 2)).map(|view| view.len());
    assert!(
        matches!(full, Err(AttachError::TooManyLeases { .. })),
        "the test needs a peer that is at its limit: {full:?}"
    );
    for other in [0, 1, u64::MAX, generation(&sent) - 1, generation(&sent) + 1] {
        assert_stale(&client, &with_generation(&sent, other), "its limit was looked at");
    }
    drop(views);
    assert!(buffer.try_into_mut().is_ok(), "a refused descriptor left a lease behind");
}
