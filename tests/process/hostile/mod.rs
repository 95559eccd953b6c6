//! What a process of the same user that violates the protocol can do to an owner and its peers.
//! Each attack is a program decoded from arbitrary bytes: random in the tests, chosen by coverage
//! in the fuzzers in `fuzz/`, which include these files. A program panics if a guarantee is broken.

mod channel;
mod descriptors;
mod foreign;
mod forgery;
mod inspect;
mod layout;
mod outside;
mod owner;
mod peers;
mod program;
mod publisher;
mod storm;

#[cfg(test)]
pub(crate) use layout::{OpenObject, Word};

use arbitrary::{Arbitrary, Unstructured};

/// An owner, its peers, and garbage in the control object.
pub(crate) fn control(prefix: &str, bytes: &[u8]) {
    if let Some(program) = read::<program::Program>(bytes) {
        program.run(prefix);
    }
}

/// Both ends of a channel, and garbage in its object.
pub(crate) fn channel(prefix: &str, bytes: &[u8]) {
    if let Some(program) = read::<channel::Program>(bytes) {
        program.run(prefix);
    }
}

/// A publisher and its receivers, one of which writes garbage wherever it can.
pub(crate) fn publisher(prefix: &str, bytes: &[u8]) {
    if let Some(program) = read::<publisher::Program>(bytes) {
        program.run(prefix);
    }
}

/// Forged descriptors and peer ids.
pub(crate) fn descriptor(prefix: &str, bytes: &[u8]) {
    if let Some(forgeries) = read::<descriptors::Forgeries>(bytes) {
        forgeries.run(prefix);
    }
}

/// Files of any name, kind and content beside a living owner.
pub(crate) fn foreign(prefix: &str, bytes: &[u8]) {
    if let Some(objects) = read::<foreign::Objects>(bytes) {
        objects.run(prefix);
    }
}

/// Damaged objects of every kind, and inspections of them.
pub(crate) fn inspect(prefix: &str, bytes: &[u8]) {
    if let Some(program) = read::<inspect::Program>(bytes) {
        program.run(prefix);
    }
}

fn read<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> Option<T> {
    T::arbitrary(&mut Unstructured::new(bytes)).ok()
}
