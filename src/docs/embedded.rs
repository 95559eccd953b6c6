//! How an embedded or real-time publisher starts: every step that costs memory or time precedes the
//! first message.
//!
//! # How much memory
//!
//! Maximum size of a provider's objects, in bytes:
//!
//! | object | bytes, each rounded up to whole pages |
//! |---|---|
//! | payload segments, all together | [`max_bytes`](crate::ProviderBuilder::max_bytes) |
//! | control object, one | 4096 + 128 × [`max_shared`](crate::ProviderBuilder::max_shared) |
//! | [`channel`](crate::channel), each | 4096 + 64 × ([`capacity`](crate::channel::SenderBuilder::capacity) + 1) + 16 × [`max_borrowed`](crate::channel::SenderBuilder::max_borrowed), rounded up to a power of two, at least 8 |
//! | [`channel::Publisher`](crate::channel::Publisher), each | 4096, and for each receiver the size of a channel with [its capacity and borrowed buffers](crate::channel::SubscriberBuilder::capacity) |
//!
//! [`SenderBuilder::buffers`](crate::channel::SenderBuilder::buffers) and
//! [`PublisherBuilder::buffers`](crate::channel::PublisherBuilder::buffers) count the messages that
//! are queued, read by each receiver, and being written. Each is [rounded up to its
//! class](super::limits#memory-near-the-cap). Private memory, which no cap covers, is mostly 32
//! bytes per page of payload, and 32 per 64 bytes of pages that short messages are carved from.
//!
//! # The steps
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::{BuildError, Provider, Tuning};
//!
//! // 1. mount -t tmpfs -o size=1m,mode=0700 none /run/frames, and `Namespace::in_directory("/run/frames")`
//! let builder = Provider::builder().max_bytes(256 << 10).max_shared(16).max_idle_per_class(16);
//! let builder = builder.tuning(Tuning::new().idle_window(0)); // what is idle stays
//! // 2.
//! let provider = match builder.clone().lock_memory(true).build() {
//!     Err(error @ BuildError::LockMemory { .. }) => {
//!         eprintln!("{error}"); // reports the bytes needed and the bytes allowed
//!         builder.build()?
//!     }
//!     built => built?,
//! };
//! // 3. As many as can be under way at a time.
//! provider.reserve(1800, 6)?.keep();
//! provider.reserve(64, 16 - 6)?.keep();
//! # Ok(())
//! # }
//! ```
//!
//! 1. **Cap.** Set [`max_bytes`](crate::ProviderBuilder::max_bytes) and
//!    [`max_shared`](crate::ProviderBuilder::max_shared) as above;
//!    [`max_idle_per_class`](crate::ProviderBuilder::max_idle_per_class) to at least the largest
//!    reservation.
//! 2. **Lock.** [`lock_memory`](crate::ProviderBuilder::lock_memory) keeps the pool's memory out of
//!    swap. Raise `RLIMIT_MEMLOCK`, 8 MiB on many systems and 64 KiB on older ones, with
//!    `LimitMEMLOCK=` in the service's unit, or `docker run --ulimit memlock=`. Channels, stack,
//!    heap and code need `mlockall`.
//! 3. **Reserve.** [`reserve`](crate::Provider::reserve) makes the chunks with everything that
//!    their messages need. [`Reservation::keep`](crate::Reservation::keep) holds them for the
//!    provider's life.
//! 4. **Limit the receivers.** With a [`Publisher`](crate::channel::Publisher), set
//!    [`allow_blocking(false)`](crate::channel::PublisherBuilder::allow_blocking), or a short
//!    [`block_limit`](crate::channel::PublisherBuilder::block_limit). [What a stopped receiver
//!    costs](crate::channel#slow-and-stopped-receivers) is limited.
//! 5. **Warm the receivers,** by [`Client::warm`](crate::Client::warm), after the publisher has
//!    reserved. A [`channel`](crate::channel) is present from the start.
//!
//! # The warm path
//!
//! A message within the reservation makes no system call, takes no page fault or lock, and uses no
//! heap, except that waking a side of a channel is a system call.
//!
//! # While receivers join and leave
//!
//! A send connects the receivers that have joined since the last one, and drops what it shares with
//! those that have left, at some 20 system calls each. With
//! [`joins_in_send(false)`](crate::channel::PublisherBuilder::joins_in_send), only
//! [`serve_joins`](crate::channel::Publisher::serve_joins) does, one receiver at a time.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::{Duration, Instant};
//! # let name = format!("docs-joins-{}", std::process::id());
//! # let provider = shm_pool::Provider::builder().build()?;
//! # let options = shm_pool::channel::Publisher::builder().allow_blocking(false);
//! let mut publisher = options.joins_in_send(false).create(&provider, &name)?;
//! for _ in 0..10 {
//!     let deadline = Instant::now() + Duration::from_millis(1);
//!     publisher.send(provider.alloc(1800)?.freeze())?; // in time, whichever receivers join
//!     while Instant::now() < deadline && publisher.serve_joins() {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Sent`](crate::channel::Sent), which each send returns, and
//! [`Provider::counters`](crate::Provider::counters) take no lock;
//! [`Provider::stats`](crate::Provider::stats) and
//! [`Publisher::receivers`](crate::channel::Publisher::receivers) do.
//!
//! Leave to a thread without a deadline: allocating an unreserved length, or more messages than
//! were reserved; [`trim`](crate::Provider::trim); [`reclaim`](crate::Provider::reclaim); dropping
//! the provider.
//!
//! # Locked memory
//!
//! The lock ends with the owner. Memory that peers read after its death may be swapped, unless they
//! lock their mappings with `mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)`.
//!
//! # Huge pages
//!
//! [`huge_pages`](crate::Tuning::huge_pages) helps with messages of megabytes that are accessed at
//! random, not with copies from front to back. Huge pages cannot be required: on hugetlbfs, a cap
//! in bytes would not hold.
#![forbid(unsafe_code)]
