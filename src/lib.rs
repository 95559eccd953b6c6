//! Zero-copy messaging between Linux processes, on a pooled POSIX shared-memory allocator.
//!
//! A publisher fills a message in shared memory, and subscribers in other processes read it in
//! place. The pool never reuses memory that is still being read. After the first message of a
//! length, sending another one needs no system call, lock or heap allocation, except to wake a
//! process that sleeps. Linux only, 64-bit.
//!
//! # Quickstart
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::channel::{Publisher, Subscriber};
//! use shm_pool::Provider;
//!
//! # let name = format!("camera/front/{}", std::process::id());
//! # /*
//! let name = "camera/front";
//! # */
//! // The publishing process.
//! let provider = Provider::builder().max_bytes(256 << 20).build()?;
//! let mut publisher = Publisher::create(&provider, &name)?;
//!
//! // A subscribing process. It may be started first.
//! let mut subscriber = Subscriber::open(&name)?;
//!
//! let mut frame = publisher.alloc(1 << 20)?;
//! frame.fill(7); // a plain &mut [u8]
//! publisher.send(frame)?; // without a copy
//!
//! let message = subscriber.recv()?; // a plain &[u8], read in place
//! assert!(message.iter().all(|&byte| byte == 7));
//! # Ok(())
//! # }
//! ```
//!
//! # Your own transport
//!
//! A message's *descriptor* is 32 bytes, which any transport can carry:
//!
//! ```text
//!  owner process                                     peer process
//!  ┌────────────────────────────────────┐            ┌─────────────────────────┐
//!  │ Provider ── alloc ──► ShmBytesMut  │            │ Client                  │
//!  │    ▲                     │ freeze  │ Descriptor │   │ attach              │
//!  │    │                     ▼         │  32 bytes  │   ▼                     │
//!  │    │                   ShmBytes ───┼────────────┼► ShmView: &[u8]         │
//!  │    │                     │ drop    │    any     │   │ drop                │
//!  │   pool ◄── idle chunk ───┘         │ transport  │   ▼ lease released      │
//!  └────────────────────────────────────┘            └─────────────────────────┘
//!    /dev/shm: payload segments, read-only for peers; a control object that counts their leases
//! ```
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::{Client, Descriptor, Provider};
//!
//! // The publishing process.
//! let provider = Provider::builder().max_bytes(256 << 20).build()?;
//! let mut buffer = provider.alloc(1 << 20)?;
//! buffer.fill(7);
//! let message = buffer.freeze();
//! let bytes: [u8; 32] = message.descriptor()?.to_bytes(); // send these by any transport
//!
//! // A receiving process.
//! let client = Client::new();
//! let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
//! assert!(view.iter().all(|&byte| byte == 7));
//! drop(message); // the view still holds the memory
//! drop(view); // from now on the pool may reuse it
//! # Ok(())
//! # }
//! ```
//!
//! A [`ShmBytes`] is cheap to clone, `Send` and `Sync`, compares and hashes as its bytes, and outlives
//! its provider. A [`ShmView`] stays valid after its client is dropped and after the publisher has
//! exited.
//!
//! # Ways to send
//!
//! A descriptor in flight holds no lease: if the publisher drops its [`ShmBytes`] before the receiver
//! attaches, the receiver may get [`AttachError::Stale`], but never wrong bytes. There are five
//! ways to keep a message until it is read:
//!
//! | way | when to use it | cost | when the receiver dies |
//! |---|---|---|---|
//! | **keep**: hold the [`ShmBytes`] until the receivers of its [`descriptor`](ShmBytes::descriptor) confirm | any transport and receivers | you track confirmations | its leases are reclaimed |
//! | **grant**: send [`grant`](ShmBytes::grant), drop the [`ShmBytes`] at once | any transport; receivers whose [`PeerId`] you know ([`Client::connect`]) | one lease and one descriptor per receiver; [`revoke`](ShmBytes::revoke) if the transport fails | its grants and leases are reclaimed |
//! | [`channel`] | one receiver on this machine, and no transport yet | one shared object per channel, one sleeping thread per process | the sender gets `Disconnected`; its borrowed buffers are reclaimed |
//! | [`channel::Publisher`] | up to 64 [`channel::Subscriber`]s on this machine that join and leave, each with its own rule for falling behind | the same, and one shared object per receiver | the others are not affected; its borrowed buffers are reclaimed |
//! | the crate `shm-pool-zenoh` | you publish with zenoh; stock receivers | receivers never unmap a segment | its buffers stay in use until you call `garbage_collect_unsafe` |
//!
//! Middleware with reader counts of its own allocates from a [`backend`].
//!
//! # When memory runs out
//!
//! [`Provider::alloc`] never waits for memory. At the cap,
//! [`max_bytes`](ProviderBuilder::max_bytes), it evicts idle chunks and reclaims what receivers
//! have returned and dead peers have held. Then it fails with [`AllocError::Exhausted`], which
//! reports the bytes in use, leased and idle. [`Provider::alloc_timeout`] and a [`Request`] wait
//! until any process releases enough.
//!
//! | symptom | remedy |
//! |---|---|
//! | [`AllocError::is_exhausted`], most of it *in use* | drop buffers and retry; or raise the cap |
//! | … most of it *leased* | let receivers drop views and messages, or revoke grants with [`ShmBytes::revoke`] |
//! | … most of it *idle* | fragmented: wait, or retry within 250 ms; leave room for large messages ([`docs::limits`]) |
//! | [`AllocError::Os`] | /dev/shm is full, or the process is short of a resource. [`Provider::trim`] returns idle memory to the system |
//! | [`ShareError::TooManyShared`] | raise [`max_shared`](ProviderBuilder::max_shared), or drop shared buffers |
//! | `SendErrorKind::TooManyBorrowed` | raise [`max_borrowed`](channel::SenderBuilder::max_borrowed), or let the receiver drop some |
//!
//! [`Provider::reserve`], [`Client::warm`] and [`channel::Receiver::warm`] make the first message
//! cost no more than later ones. Idle memory returns to the system after an
//! [`idle_window`](Tuning::idle_window), or by [`Provider::trim`].
//!
//! # Blocking, non-blocking, timeouts and async
//!
//! | | at once | blocks | at most for a timeout | a future |
//! |---|---|---|---|---|
//! | send | `try_send` | `send` | `send_timeout` | `send_async` |
//! | receive | `try_recv` | `recv` | `recv_timeout` | `recv_async` |
//! | open | `open` | | `open_timeout` | `open_async` |
//! | create, after a predecessor | `create` | | `create_timeout` | `create_async` |
//! | allocate | `alloc` | `request(len).wait` | `alloc_timeout` | `request(len).wait_async` |
//! | an event of a peer | | | `wait_for_receiver`, `wait_until_received`, `wait_any` | `wait_for_receiver_async`, `wait_until_received_async` |
//!
//! Each `wait_…` of an end takes its timeout; [`Duration::MAX`](std::time::Duration::MAX) is none.
//!
//! [`channel::Interrupter::interrupt`] and [`Provider::close_waits`] end waits early. For
//! event loops, [`channel::Subscriber::wake_fd`] is a descriptor to poll, and a [`WakeFd`] one for
//! anything else that can be awaited.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | *provider*, *owner* | the process that allocates |
//! | *peer* | a process that is attached to a provider |
//! | *chunk* | the memory of one allocation |
//! | *size class* | the lengths that share chunks of one size: each multiple of 64 bytes up to 2 KiB, then 32 per doubling |
//! | *segment* | one shared-memory object that holds payload |
//! | *pool* | a provider's memory: its segments, and the idle chunks of each size class |
//! | *reservation* | chunks that are made in advance, and stay |
//! | *descriptor* | 32 plain bytes that name a message |
//! | *lease* | a peer's counted right to read a chunk |
//! | *grant* | a lease that the owner adds before it sends the descriptor |
//! | *generation* | how often a chunk was published; tells an old descriptor from the current one |
//! | *channel* | carries messages from one *sender* to one *receiver*, or from one *publisher* to many |
//! | *borrowed buffer* | a buffer sent by a channel, until the receiver returns it |
//! | *doorbell* | the word on which one process parks and another, or its death, wakes it |
//! | *reclaim* | take back the leases of a dead peer |
//! | *sweep* | remove the objects of a dead owner |
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `bytes` | no | [`ShmBytes`], [`ShmBytesMut`], [`ShmView`], [`ShmSlice`] and [`channel::Message`] convert into `bytes::Bytes` without a copy; [`ShmBytesMut`] is a `bytes::BufMut` |
//! | `serde` | no | [`Descriptor`] and the ids are `Serialize` and `Deserialize`; [`Stats`], [`Counters`] and what [`inspect`] reports are `Serialize` |
//! | `stream` | no | [`channel::Receiver`], [`channel::Subscriber`] and [`channel::Watcher`] are `futures_core::Stream`s |
//! | `zerocopy` | no | the module `channel::typed`: channels of a type, `Publisher<Scan>`, whose values are written and read in place |
//! | `derive` | no | `#[derive(Schema)]` for such a type; with `zerocopy` |
//! | `tracing` | no | events of the target `shm_pool`, none on the warm path. A subscriber must not allocate or send with the provider that emits the event |
//!
//! # More
//!
//! See [`docs`] for [embedded and real-time publishers](docs::embedded),
//! [guarantees](docs::guarantees) and [limits](docs::limits), and [`inspect`] for which process holds
//! what. In the package and the repository, `docs/format.md` has the layout of shared memory, and
//! `docs/design.md` the invariants.

#[cfg(not(target_os = "linux"))]
compile_error!("shm-pool needs Linux: open file description locks and a tmpfs at /dev/shm");

#[cfg(not(target_pointer_width = "64"))]
compile_error!("shm-pool needs a 64-bit target: shared counters are 64-bit atomics");

/// Emits a `tracing` event, with the feature of that name. Only off the warm path.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($event:tt)+) => { tracing::$level!(target: "shm_pool", $($event)+) };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($event:tt)+) => {};
}

/// Returns the fields of a type with their offsets, for the test of `docs/format.md`.
#[cfg(all(test, not(loom)))]
macro_rules! offsets {
    ($type:ty: $($field:ident)+) => {
        &[$((stringify!($field), std::mem::offset_of!($type, $field))),+]
    };
}

#[cfg(feature = "serde")]
mod as_text;
pub mod backend;
mod byte_types;
pub mod channel;
pub mod docs;
mod error;
#[cfg(all(test, not(loom)))]
mod format_tests;
pub mod inspect;
mod os;
mod owner;
mod peer;
mod protocol;
mod sync;
mod unwind_safe;
mod wording;

pub use byte_types::ShmSlice;
pub use error::{Advice, BuildError, OsError};
pub use os::name::Namespace;
pub use os::wake_fd::WakeFd;
pub use owner::buf::{ShmBytes, ShmBytesMut};
pub use owner::limits::{AllocError, CapacityError, ShareError, Tuning};
pub use owner::pool::{ClassStats, Counters, Reservation, Stats};
pub use owner::provider::{AllocFuture, Provider, ProviderBuilder, Request};
pub use peer::client::{Client, ClientBuilder};
pub use peer::error::AttachError;
pub use peer::view::ShmView;
pub use protocol::descriptor::{Descriptor, DescriptorError};
pub use protocol::ids::{ParseError, PeerId, ProviderId};
pub use protocol::readers::finish_reading;
pub use protocol::sweep::Swept;
#[doc(hidden)]
pub use wording::text_in;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
