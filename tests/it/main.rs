//! Black-box tests with owner and peer in one process, through the public interface only.

mod awaiting;
mod backend;
mod builder;
mod cap;
mod channel;
mod closing;
mod descriptors;
mod directories;
mod errors;
#[cfg(feature = "tracing")]
mod events;
mod eviction;
mod grants;
mod idle_window;
mod lifetime;
#[cfg(feature = "tracing")]
#[path = "../support/log.rs"]
mod log;
mod mappings;
mod memory;
mod model;
mod occupied_names;
mod odd_generations;
mod pairs;
mod pooling;
mod publisher;
mod races;
mod readers;
mod sharing;
mod sizes;
mod starvation;
mod support;
mod trading;
mod waiting;
mod warming;
