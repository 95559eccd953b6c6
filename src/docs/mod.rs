//! The parts of the documentation that go beyond the use of the crate: how an embedded publisher
//! starts, how the crate is built, what it guarantees and where its limits are. Prose only; nothing
//! here has code.
#![forbid(unsafe_code)]

pub mod design;
pub mod embedded;
pub mod guarantees;
pub mod limits;
