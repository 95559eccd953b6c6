//! Black-box tests with owner and peer in one process, through the public interface only.

mod awaiting;
mod backend;
mod builder;
mod cap;
mod channel;
mod copies;
#[path = "../common/ends.rs"]
mod ends;
mod errors;
#[cfg(feature = "tracing")]
mod events;
mod eviction;
mod fixtures;
mod grants;
mod lifetime;
#[cfg(feature = "tracing")]
#[path = "../common/log.rs"]
mod log;
mod memory;
mod model;
mod pairs;
mod pooling;
mod publisher;
mod races;
mod returns;
mod sending_fd;
#[path = "../common/served.rs"]
mod served;
mod sharing;
mod sight;
mod stalls;
#[path = "../common/threads.rs"]
mod threads;
mod traits;
#[cfg(feature = "zerocopy")]
mod typed;
mod waiting;
mod wake_fd;
