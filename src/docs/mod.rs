//! Documentation beyond the API.
#![forbid(unsafe_code)]

pub mod design;
pub mod embedded;
pub mod format;
pub mod guarantees;
pub mod limits;
