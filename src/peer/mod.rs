//! The peer's side: the client, its mappings and its views of messages.

pub(crate) mod client;
pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod view;
