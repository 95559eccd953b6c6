//! The crate as a user sees it, with owner and peer in one process. Every test goes through the
//! public interface only.

mod awaiting;
mod builder;
mod cap;
mod channel;
mod closing;
mod descriptors;
mod directories;
mod errors;
#[cfg(feature = "tracing")]
mod events;
mod grants;
mod idle_window;
mod lifetime;
mod mappings;
mod memory;
mod model;
mod occupied_names;
mod odd_generations;
mod pooling;
mod publisher;
mod races;
mod readers;
mod sharing;
mod sizes;
mod support;
mod trading;
mod waiting;
mod warming;
