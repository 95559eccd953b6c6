//! Documentation beyond the API: how an embedded publisher starts, the crate's design, its
//! guarantees and limits, and the layout of shared memory. Prose only; the only code is the test of
//! the layout.
#![forbid(unsafe_code)]

pub mod design;
pub mod embedded;
pub mod format;
pub mod guarantees;
pub mod limits;
