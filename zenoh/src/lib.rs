//! A backend for zenoh's own `ShmProvider`, and a pool of zenoh buffers on top of it. Only
//! the publisher changes, and only where it allocates; receivers, in any language, stay as they
//! are.
//!
//! # Before and after
//!
//! A stock publisher:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use zenoh::shm::{BlockOn, GarbageCollect, ShmProviderBuilder};
//! use zenoh::Wait;
//!
//! let session = zenoh::open(zenoh::Config::default()).wait()?;
//! let publisher = session.declare_publisher("camera/front").wait()?;
//! let provider = ShmProviderBuilder::default_backend(64 << 20).wait()?;
//! let mut frame = provider.alloc(1 << 20).with_policy::<BlockOn<GarbageCollect>>().wait()?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! The same on the pool of [`shm_pool`]. Only the line that creates the provider differs:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use zenoh::shm::{BlockOn, GarbageCollect};
//! use zenoh::Wait;
//!
//! let session = zenoh::open(zenoh::Config::default()).wait()?;
//! let publisher = session.declare_publisher("camera/front").wait()?;
//! let provider = shm_pool_zenoh::PoolBackend::builder().max_bytes(64 << 20).build()?.provider();
//! let mut frame = provider.alloc(1 << 20).with_policy::<BlockOn<GarbageCollect>>().wait()?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Provider or buffer pool
//!
//! For each message, zenoh's provider sets up metadata, registers it with two watching threads, and
//! removes both again. That is most of the cost of an allocation, with any backend. A
//! [`BufferPool`] keeps them together with the chunk, and reuses all three when zenoh's own check
//! says that no reader has the message any more:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # use zenoh::Wait;
//! # let session = zenoh::open(zenoh::Config::default()).wait()?;
//! # let publisher = session.declare_publisher("camera/front").wait()?;
//! use shm_pool_zenoh::{BufferPool, PoolBackend};
//! use std::time::Duration;
//!
//! let pool = BufferPool::new(&PoolBackend::builder().max_bytes(64 << 20).build()?);
//! let mut frame = pool.alloc_timeout(1 << 20, Duration::from_millis(100))?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! | | [`provider`](PoolBackend::provider) | [`BufferPool`] |
//! |---|---|---|
//! | use it if | existing code takes a `ShmProvider`; receivers write messages in place | allocation should be cheap, and lengths recur |
//! | lengths | any | any; a length that hardly recurs costs as much as with the provider |
//! | aligned, zeroed and typed buffers, precomputed layouts | as zenoh's | [`request`](BufferPool::request); nothing needs to be precomputed |
//! | waits for a reader by | sleeping for 1 ms at a time (zenoh's `BlockOn`) | trying again every millisecond |
//! | awaits | on tokio | [on any executor](BufferRequest::wait_async) |
//! | errors | zenoh's; the reason is in the log only | [`AllocError`], with all figures |
//! | the only holder of a received message may write it in place | yes | no: the pool is a holder, too, of each buffer that it reuses |
//! | memory | the messages in flight and a seventh, or 3 KiB for each of them if that is more, or 32 KiB | of each class the messages in flight and an eighth; twice those of up to 2 KiB, falling to an eighth more at 9 KiB |
//! | receivers may keep, of messages of any length up to a 160th of the cap | 85 % of the cap | 80 % of the cap |
//! | a receiver dies with messages | `garbage_collect_unsafe` | [`release_in_use`](BufferPool::release_in_use), or 64 allocations, then the same |
//!
//! Both may share one backend and its cap. Both serve publishers, queries, replies and attachments;
//! zenoh always copies attachments.
//!
//! # Segments
//!
//! All messages are carved from a few segments: never more than 16, and each exists until the
//! backend is dropped. There is one exception: if a message is longer than every segment and
//! nothing is in use, all segments are replaced, once, by a single one as long as the cap.
//! Receivers then keep the old ones locked too. An [`arena_size`](PoolBackendBuilder::arena_size)
//! as long as the cap rules that out.
//!
//! zenoh's receivers never unmap a segment. They keep a descriptor and a mapping for each segment
//! that they have seen, and lock the whole segment into memory when the first message in it
//! arrives.
//!
//! | a receiver needs, for one pool | how much | statistic |
//! |---|---|---|
//! | descriptors (`ulimit -n`) and mappings | one for each segment | [`Stats::segments`] |
//! | locked memory (`ulimit -l`) | at most [`max_bytes`](PoolBackendBuilder::max_bytes) | [`Stats::bytes_mapped`] |
//!
//! A receiver that may not lock that much loses messages, and zenoh logs this at its debug level
//! only. So [`build`](PoolBackendBuilder::build) fails if a process with this one's limits could
//! not lock it, as zenoh's own backends do.
//!
//! The publisher allocates all of a segment before its first message, and the receivers then map
//! that memory. Both together take some 0.4 ms per MiB. So segments start small
//! ([`arena_size`](PoolBackendBuilder::arena_size)) and grow: a receiver reads the first message
//! early, and a publisher that exits soon afterwards does not lose it. With messages of more than a
//! 32nd of the cap, one segment covers most of it, as zenoh's own does.
//!
//! Allocations that add memory wait for it. With random lengths up to 1 MB and 20 subscribers, the
//! 99th percentile of the first 1,500 allocations is 0.2 ms, and 0.03 ms with zenoh's own provider,
//! which has all its memory before. The pool takes 35 MiB for them, and zenoh's provider 86 MiB.
//! [`preallocate`](PoolBackendBuilder::preallocate) chooses the latter.
//!
//! # When /dev/shm is full
//!
//! A receiver's lock on a segment would fail if a part of the segment had no memory and /dev/shm
//! were full. zenoh would then drop the message, and log that at its debug level only. So a segment
//! has all its memory while it has a message or an idle chunk: receivers allocate none, whenever
//! they join.
//!
//! * **A message that was allocated and sent is not lost because /dev/shm is full**, with memory of
//!   this pool, of other pools and publishers, or of other programs.
//! * If /dev/shm has no room for a whole segment and 2 MiB for zenoh's metadata, the pool creates a
//!   shorter one. If there is no room for that either, the allocation is refused: with
//!   [`AllocError::Os`] and the sizes by a [`BufferPool`], and with zenoh's `OutOfMemory` and
//!   an error in the log by a provider. [`AllocError::is_exhausted`] is then `true`.
//! * A refusal takes nothing from the segments that exist. Idle memory in them is used as at the
//!   cap, so a cap above the size of /dev/shm does no harm. Pools that share /dev/shm get its
//!   memory in the order in which they need it: to divide it, give them caps that fit together.
//! * An empty segment's memory returns to the system by [`trim`](PoolBackend::trim), after a while
//!   without use, or if a longer segment needs it. Others may take it, and the next allocation may
//!   then be refused.
//!
//! Not promised, because no allocator can:
//!
//! * zenoh's own objects: 1.25 MiB of metadata for each process that publishes, as much for each
//!   further 32,768 messages in flight, and 16 KiB for each session. The pool leaves 2 MiB for
//!   them, which other programs may take. zenoh panics if there is no memory for the first metadata
//!   of a process; later, an allocation fails.
//! * What else keeps a receiver from a message: its limits on locked memory and descriptors (see
//!   above), and no CPU time for 100 ms, after which zenoh invalidates messages.
//!
//! # Waiting for memory
//!
//! A reader that finishes decrements a count in zenoh's metadata and wakes no process. So every wait
//! tries again each millisecond, with any backend, and each try visits all messages in flight:
//!
//! | wait | ended by | after | CPU meanwhile |
//! |---|---|---|---|
//! | `BlockOn`, with zenoh's backend or this one | any message that was read, if there is room then | 0.7 ms | 2.5 ns a millisecond for each message in flight: 17 % of a CPU for 65,536 |
//! | [`wait`](BufferRequest::wait), [`wait_timeout`](BufferRequest::wait_timeout), [`wait_async`](BufferRequest::wait_async) | the same | the same | the same |
//! | | a buffer of the size class that is dropped unsent | a wake-up | |
//!
//! Only zenoh can shorten this: its last reader would have to wake the publisher. `UPSTREAM.md` has
//! an outline of that.
//!
//! # When processes die
//!
//! * The publisher exits: receivers still read the messages that it has sent, even those that they
//!   receive later. The segments of these messages keep their names until the receivers exit or, if
//!   no receiver maps them, until another zenoh process starts or exits.
//! * The publisher is killed: the kernel drops its locks, and the next zenoh process that starts
//!   (or `zenoh::shm::cleanup_orphaned_shm_segments`) unlinks its segments. Running receivers keep
//!   what they have mapped, and its memory, until they exit: zenoh's receivers never unmap a
//!   segment. For each dead publisher that is at most `max_bytes`, in at most 16 segments; with
//!   zenoh's own backend it is always all of it.
//! * A receiver is killed while it holds messages, or exits while some are on their way to it:
//!   zenoh's count of their readers stays too high forever, so they do not return by themselves.
//!   Once you know that a receiver has died (for example because its liveliness token has
//!   disappeared), call `ShmProvider::garbage_collect_unsafe`. It reclaims every message that no
//!   living process has confirmed for 100 ms. A [`BufferPool`] confirms the buffers that it keeps,
//!   so call [`BufferPool::release_in_use`] before, each time. The call is unsafe because a living
//!   receiver, or this process, may still have such a message and lack the CPU time to confirm it.
//!   Keep the [`PoolBackend`] until then: a provider without a handle stays with such messages, and
//!   its whole backend, until the process exits. [`PoolBackend::provider`] returns it.
//! * A forked child of the publisher allocates nothing and releases nothing. It cannot publish with
//!   a pool of its own either: zenoh's threads do not exist there. While it runs without calling
//!   `exec`, the segments that it inherited look alive. Those that the publisher removes meanwhile
//!   lose their memory but keep their names, until a zenoh process starts or exits after the child.
//!
//! # Beyond one machine
//!
//! Subscribers without shared memory, on this machine or another, receive the same bytes: zenoh
//! copies them to the network before `put` returns. So they hold no buffer, and the next message
//! may use the same one, with or without a router in between. A subscriber or router with shared
//! memory receives the buffer itself, even if others do not.
//!
//! # Differences from zenoh's own provider
//!
//! | | zenoh 1.10's default | on this backend |
//! |---|---|---|
//! | `JustAlloc`, after all memory was used and read | fails until the publisher collects | succeeds: the backend collects |
//! | a message in use, and its provider is dropped | invalid: receivers lose it | valid ([`PoolProvider`]) |
//! | `available()` | always 0 | the bytes under the cap that no message uses |
//! | `garbage_collect()` | returns the length of the longest message collected | returns the size of its class |
//! | `try_resize` | makes a message shorter | also longer, up to the size of its class |
//! | largest alignment | that of the layout it was created with: 1 for a length | 4096 |
//! | cap | the requested bytes, allocated at once | rounded up to whole pages, allocated a segment at a time |
//!
//! `tests/zenoh/differences.rs` checks each of these on both backends; `tests/zenoh/zenohs_own.rs`
//! contains zenoh's checks of its own providers.
//!
//! # Threads
//!
//! | thread | runs | starts with | ends |
//! |---|---|---|---|
//! | `shm-pool-idle` | releases idle buffers of a [`BufferPool`] that is not used | the 129th buffer of a size class | when no class has more than 128 |
//! | `shm-pool-wait` | tries again for the futures that wait | the first [`wait_async`](BufferRequest::wait_async) that has to wait | when no future waits |
//!
//! They start as those of [`shm_pool`] do: they block all signals but those that their own
//! instructions cause, and call the hook of [`threads::on_start`](shm_pool::threads::on_start). The
//! threads of zenoh do neither.
//!
//! # Trust
//!
//! zenoh's receivers map segments writable, and zenoh's users can write through what they receive.
//! A receiver that writes beyond its message can damage other messages. Unlike with zenoh's own
//! backends, it cannot damage the allocator, whose bookkeeping is in private memory. If receivers
//! must not be trusted with other messages, use the `Provider` and the `Client` of [`shm_pool`].
//!
//! # Design
//!
//! ## Counting readers
//!
//! zenoh counts readers, in its own metadata. This crate does not count them again: a chunk returns
//! when zenoh frees it ([`ShmProviderBackend::free`]), not when the publisher's buffer is dropped.
//! Each such call is checked against a private record of the chunks in use. A descriptor of no such
//! chunk is logged and ignored.
//!
//! [`ShmProviderBackend::free`]: zenoh::shm::ShmProviderBackend::free
//!
//! ## Collecting early
//!
//! zenoh searches for messages that have been read only when an allocation fails. A backend that fails
//! only at its cap would therefore fill all of it, and each message would be written to memory that
//! left the cache long ago. So when no suitable chunk is idle, this backend first has its providers
//! collect, and creates another chunk only if that released none.
//!
//! A collection visits all messages in flight; if a slow subscriber holds thousands, it would cost
//! much and gain little. If few short messages are in flight, a collection for each allocation would
//! cost more than the allocation. So if a collection leaves less idle memory than a seventh of the
//! messages in flight, than 3 KiB for each of them, or than 32 KiB, the pool grows by the missing
//! amount before the next one. Its chunks are at most that much more than the messages in flight. Once nearly all of the
//! cap has been used, the backend collects only when there is no room for a message.
//!
//! Two other designs fall short. An allocation policy that collects first would help only
//! publishers that select it. A backend that returns `OutOfMemory` at a budget below the cap, to
//! make zenoh's policies collect, fails allocations that it could serve when nothing has been read
//! yet. (`benches/peers` compares collecting early with collecting when full.)
//!
//! Messages that the backend's collections release are used again in the order of their addresses,
//! which the processor's caches favour.
//!
//! The record of the chunks in use has a word for each cache line of a segment: 13 % of its length,
//! of which the pages that have been written are resident. So if messages of many lengths begin at
//! ever new lines, the publisher's private memory grows by that much and no further: with a cap of
//! 64 MiB, from 37 to 43 MB in 240,000 messages of up to 400 kB, of at most 45 MB.
//!
//! The backend also collects before it refuses an allocation. After eight refusals in a row, it
//! limits collections that release nothing to a 512th of the time: zenoh's policies collect in each
//! try themselves.
//!
//! The backend collects only the providers from [`PoolBackend::provider`], and only their messages
//! outlive them. A caller that passes the backend to `ShmProviderBuilder::backend` has to collect,
//! and has to keep the provider while its messages are in use.
//!
//! ## Long messages
//!
//! A message that is refused again and again gets a *region*: chunks in it return to the segment
//! when they have been read, instead of being reused, until the message fits. So it is not starved
//! by shorter messages, and these are never refused because of it. A [`BufferPool`] releases its
//! buffers in a region likewise.

mod backend;
mod buffer;
mod buffers;
mod builder;
mod class;
mod collect;
mod in_use;
mod provider;
mod request;
mod segments;

pub use backend::PoolBackend;
pub use buffer::Buffer;
pub use buffers::{BufferPool, BufferStats};
pub use builder::{BuildError, PoolBackendBuilder};
pub use provider::PoolProvider;
pub use request::{BufferFuture, BufferRequest};
pub use shm_pool::{AllocError, CapacityError, OsError, Reservation, Stats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
