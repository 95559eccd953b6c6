//! The parts of the documentation that go beyond the use of the crate: how an embedded publisher
//! starts, how the crate is built, what it guarantees, where its limits are, and what stands in
//! shared memory. Prose only; nothing here has code but the test that the last one is true.
#![forbid(unsafe_code)]

pub mod design;
pub mod embedded;
pub mod format;
pub mod guarantees;
pub mod limits;
