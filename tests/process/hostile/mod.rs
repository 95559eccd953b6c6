//! What a process of the same user that violates the protocol can do to an owner and its peers.
//! Each attack is a program decoded from arbitrary bytes: random in the tests, chosen by coverage
//! in the fuzzers in `fuzz/`, which include these files. A program panics if a guarantee is broken.

mod channel;
mod control;
mod descriptor;
mod foreign;
mod inspect;
mod layout;
mod outside;
mod publisher;

#[cfg(test)]
pub(crate) use layout::{OpenObject, Word};

use arbitrary::{Arbitrary, Unstructured};
use std::hint::black_box;

/// Reads every byte, as a program that uses the message does.
pub(crate) fn read_all(bytes: &[u8]) {
    let mut sum = 0;
    for byte in bytes {
        sum ^= byte;
    }
    black_box(sum);
}

macro_rules! attacks {
    ($($(#[$doc:meta])* $name:ident: $program:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(prefix: &str, bytes: &[u8]) {
            if let Ok(program) = $name::$program::arbitrary(&mut Unstructured::new(bytes)) {
                program.run(prefix);
            }
        }
    )*};
}

attacks! {
    /// An owner, its peers, and garbage in the control object.
    control: Program;
    /// Both ends of a channel, and garbage in its object.
    channel: Program;
    /// A publisher and its receivers, one of which writes garbage wherever it can.
    publisher: Program;
    /// Forged descriptors and peer ids.
    descriptor: Forgeries;
    /// Files of any name, kind and content beside a living owner.
    foreign: Objects;
    /// Damaged objects of every kind, and inspections of them.
    inspect: Program;
}

/// As many values as the bytes yield, up to `MAX`. A derived `Vec` would stop after each with even
/// odds.
#[derive(Clone, Debug)]
struct Many<T, const MAX: usize>(Vec<T>);

impl<'a, T: Arbitrary<'a>, const MAX: usize> Arbitrary<'a> for Many<T, MAX> {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let mut values = Vec::new();
        while !bytes.is_empty() && values.len() < MAX {
            values.push(bytes.arbitrary()?);
        }
        Ok(Self(values))
    }
}
