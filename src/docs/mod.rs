//! Documentation beyond the API.
#![forbid(unsafe_code)]

pub mod embedded;
pub mod guarantees;
pub mod limits;
