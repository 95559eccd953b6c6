//! Forged descriptors with the right checksum.

use arbitrary::Arbitrary;
use shm_pool::{Descriptor, DescriptorError};

/// A change that a forger makes to a descriptor it has seen.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Change {
    Grant(u8),
    Record(u32),
    SmallRecord(u8),
    Provider(u64),
    Generation(u64),
    GenerationBy(i8),
    Len(u64),
    LenBy(i8),
    Byte(u8, u8),
}

/// Returns the descriptor with these changes, or `None` if it no longer parses.
pub(crate) fn forge(seen: &Descriptor, changes: &[Change]) -> Option<Descriptor> {
    let mut bytes = seen.to_bytes();
    changes.iter().for_each(|change| change.apply(&mut bytes));
    sign(bytes)
}

/// Corrects the checksum. Returns `None` if the magic number or the version is wrong.
pub(crate) fn sign(mut bytes: [u8; Descriptor::SIZE]) -> Option<Descriptor> {
    if let Err(DescriptorError::Checksum { expected, .. }) = Descriptor::from_bytes(bytes) {
        bytes[30..].copy_from_slice(&expected.to_le_bytes());
    }
    Descriptor::from_bytes(bytes).ok()
}

impl Change {
    fn apply(self, bytes: &mut [u8; Descriptor::SIZE]) {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let len = |len: u64| len.to_le_bytes()[..6].to_vec();
        let (at, new) = match self {
            Self::Grant(slot) => (3, vec![slot]),
            Self::Record(record) => (4, record.to_le_bytes().to_vec()),
            Self::SmallRecord(record) => (4, u32::from(record).to_le_bytes().to_vec()),
            Self::Provider(id) => (8, id.to_le_bytes().to_vec()),
            Self::Generation(generation) => (16, generation.to_le_bytes().to_vec()),
            Self::GenerationBy(step) => (16, word(16).wrapping_add_signed(step.into()).to_le_bytes().to_vec()),
            Self::Len(bytes) => (24, len(bytes)),
            Self::LenBy(step) => (24, len(word(24).wrapping_add_signed(step.into()))),
            Self::Byte(at, byte) => (usize::from(at) % Descriptor::SIZE, vec![byte]),
        };
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
}
