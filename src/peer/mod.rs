//! The peer's side: the client, its mappings, and the views that it reads through.

pub(crate) mod cache;
pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod lease;
pub(crate) mod view;
