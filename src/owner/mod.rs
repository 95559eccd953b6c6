//! The owner's side: the provider, its pool and memory, and the buffers that it hands out.

pub(crate) mod arena;
pub(crate) mod bits;
pub(crate) mod buf;
pub(crate) mod carver;
pub(crate) mod chunk;
pub(crate) mod control;
pub(crate) mod free_list;
pub(crate) mod limits;
pub(crate) mod pool;
pub(crate) mod provider;
pub(crate) mod waiting;
pub(crate) mod words;
