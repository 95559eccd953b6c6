//! Zero-copy messaging between Linux processes, on a pooled POSIX shared-memory allocator.
//!
//! A publisher fills a message in shared memory, and subscribers in other processes read it in
//! place. The pool never reuses memory that is still being read. After the first message of a
//! length, sending another one needs no system call, lock or heap allocation, except to wake a
//! process that sleeps. The crate needs 64-bit Linux.
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
//! # A message's life
//!
#![doc = include_str!("docs/message.svg")]
//!
//! # Guides
//!
//! * [First steps](docs::first_steps): from an empty folder to two programs that talk.
//! * [Choosing a way to send](docs::choosing), with a program for each.
//! * [Coming from](docs::coming_from) `shared_memory`, iceoryx2, `multiprocessing.shared_memory`,
//!   `ipc-channel` or zenoh.
//! * [Embedded and real-time publishers](docs::embedded).
//! * [Deploying](docs::deploying): containers, systemd, several users, kernels, sandboxes.
//! * [ROS 2 and zenoh](docs::ros2).
//! * [For authors of middleware](docs::middleware).
//! * [Debugging](docs::debugging) with the command `shm-pool`.
//!
//! For reference: the [`channel`]s, the [guarantees](docs::guarantees), the [limits](docs::limits),
//! [`threads`] with all that the crate does to a process, and [`inspect`], which shows what each
//! process holds. In the package and the repository,
//! `docs/format.md` has the layout of shared memory, and `docs/design.md` the invariants.
//!
//! # Ways to send
//!
//! * [`channel::Publisher`] to [`channel::Subscriber`]: one process to up to 64 others, which join and
//!   leave at any time. Each chooses what it loses when it falls behind.
//! * [`channel::Sender`] to [`channel::Receiver`]: one process to one other. Nothing is lost.
//! * A [`Descriptor`], by a transport of your own: see below.
//! * The crate `shm-pool-zenoh`, if you publish with zenoh. Subscribers stay as they are.
//! * A [`backend`], for middleware that counts the readers of a message itself.
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
//! A [`ShmBytes`] is cheap to clone and may be sent to other threads. It compares and hashes as its
//! bytes, and stays valid after its provider is dropped. A [`ShmView`] stays valid after its client is
//! dropped and after the publisher has exited.
//!
//! While a descriptor is in transit, it does not keep the message. If the publisher drops its
//! [`ShmBytes`] before the receiver attaches, the receiver may get [`AttachError::Stale`], but never
//! wrong bytes. There are two ways to keep the message:
//!
//! * **Keep** the [`ShmBytes`] until the receiver confirms that it has attached. This works with any
//!   number of receivers.
//! * **Grant** the message to a receiver whose [`PeerId`] you know ([`Client::connect`]): send the
//!   descriptor that [`ShmBytes::grant`] returns, and drop the [`ShmBytes`] at once. If the transport
//!   fails, [`revoke`](ShmBytes::revoke) the grant. The grants of a receiver that dies are reclaimed.
//!
//! # When memory runs out
//!
//! [`Provider::alloc`] never waits for memory. At the cap,
//! [`max_bytes`](ProviderBuilder::max_bytes), it first reuses idle memory of other lengths, what
//! receivers have returned, and what dead processes held. If that is not enough, it fails with
//! [`AllocError::Exhausted`], which reports how much is in use, how much is leased and how much is
//! idle. [`Provider::alloc_timeout`] and a [`Request`] wait until any process releases enough.
//!
//! | symptom | remedy |
//! |---|---|
//! | [`AllocError::is_exhausted`], and most of the memory is *in use* | Drop buffers and try again, or raise the cap. |
//! | the same, and most of it is *leased* | Let receivers drop views and messages, or revoke grants with [`ShmBytes::revoke`]. |
//! | the same, and most of it is *idle* | The free memory is in pieces that are too short. Wait, or try again within 250 ms. Leave room for large messages ([`docs::limits`]). |
//! | [`AllocError::Os`] | /dev/shm is full, or the process has reached a limit of the system. [`Provider::trim`] returns idle memory to the system. |
//! | [`ShareError::TooManyShared`] | Raise [`max_shared`](ProviderBuilder::max_shared), or drop shared buffers. |
//! | `SendErrorKind::TooManyBorrowed` | Raise [`max_borrowed`](channel::SenderBuilder::max_borrowed), or let the receiver drop some messages. |
//!
//! After [`Provider::reserve`], [`Client::warm`] and [`channel::Subscriber::warm`], the first message
//! costs no more than later ones. Idle memory returns to the system after an
//! [`idle_window`](Tuning::idle_window), or with [`Provider::trim`].
//!
//! # Blocking, non-blocking, timeouts and async
//!
//! A call without a suffix blocks, except that `alloc`, `open` and `create` return at once. A prefix or
//! suffix says otherwise:
//!
//! | to | at once | for a limited time | as a future |
//! |---|---|---|---|
//! | `send` | `try_send` | `send_timeout` | `send_async` |
//! | `recv` | `try_recv` | `recv_timeout` | `recv_async` |
//! | open a channel | `open` | `open_timeout` | `open_async` |
//! | create a channel | `create` | `create_timeout` | `create_async` |
//! | allocate | `alloc` | `alloc_timeout` | `request(len)` `.wait_async` |
//! | wait for a peer | | `wait_for_…`, `wait_until_…`, `wait_any` | `wait_for_…_async`, `wait_until_…_async` |
//!
//! The timeout [`Duration::MAX`](std::time::Duration::MAX) has no end. `create_timeout` and
//! `create_async` wait until a predecessor with the same name has ended.
//!
//! [`channel::Interrupter::interrupt`] and [`Provider::close_waits`] end waits early. An event loop
//! polls the descriptor of a channel's end ([`channel::Subscriber::wake_fd`]), or a [`WakeFd`] for
//! anything else that can be awaited.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | *provider* | what a process allocates with; that process is its *owner* |
//! | *peer* | a process that is attached to a provider |
//! | *chunk* | the memory of one allocation |
//! | *size class* | the lengths that share chunks of one size: each multiple of 64 bytes up to 2 KiB, then 32 per doubling |
//! | *segment* | one shared-memory object that holds payload |
//! | *pool* | a provider's memory: its segments, and the idle chunks of each size class |
//! | *reservation* | chunks that are made in advance and stay |
//! | *descriptor* | 32 plain bytes that name a message |
//! | *lease* | a peer's counted right to read a chunk |
//! | *grant* | a lease that the owner adds before it sends the descriptor |
//! | *generation* | how often a chunk was published; it tells an old descriptor from the current one |
//! | *channel* | carries messages from one *sender* to one *receiver*, or from one *publisher* to many *subscribers* |
//! | *borrowed buffer* | a buffer that was sent through a channel, until the receiver returns it |
//! | *doorbell* | the word on which a process parks; another process wakes it there, and so does a death |
//! | *reclaim* | take back the leases of a dead peer |
//! | *sweep* | remove the objects of a dead owner |
//!
//! # Features
//!
//! None is enabled by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `bytes` | [`ShmBytes`], [`ShmBytesMut`], [`ShmView`], [`ShmSlice`] and [`channel::Message`] convert into `bytes::Bytes` without a copy; [`ShmBytesMut`] is a `bytes::BufMut` |
//! | `serde` | [`Descriptor`] and the ids are `Serialize` and `Deserialize`; [`Stats`], [`Counters`] and what [`inspect`] reports are `Serialize` |
//! | `stream` | [`channel::Receiver`], [`channel::Subscriber`] and [`channel::Watcher`] are `futures_core::Stream`s |
//! | `zerocopy` | the module `channel::typed`: channels of a type, `Publisher<Scan>`, whose values are written and read in place |
//! | `derive` | `#[derive(Schema)]` for such a type; enables `zerocopy` |
//! | `tracing` | events of the target `shm_pool`, none on the warm path. A subscriber must not allocate or send with the provider that emits the event |
//! | `unstable-backend` | what `shm-pool-zenoh` needs of [`backend`] beyond its stable part. **Exempt from semantic versioning** |

#![cfg_attr(docsrs, feature(doc_cfg))]

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

// The first module: rustdoc lists a type's methods in the order of modules, and those of a `Provider` that
// users need are here.
mod owner;

#[cfg(feature = "serde")]
mod as_text;
pub mod backend;
mod byte_types;
pub mod channel;
pub mod docs;
mod error;
#[cfg(all(test, not(loom)))]
mod error_texts;
#[cfg(all(test, not(loom)))]
mod format_tests;
pub mod inspect;
mod os;
mod peer;
mod protocol;
mod sync;
pub mod threads;
mod unwind_safe;
mod wording;

pub use byte_types::ShmSlice;
#[doc(hidden)]
pub use error::Advice;
pub use error::{BuildError, OsError, OutOfRange, WrongUid};
pub use os::name::Namespace;
pub use os::wake_fd::WakeFd;
pub use owner::buf::{ShmBytes, ShmBytesMut};
pub use owner::limits::{AllocError, CapacityError, ShareError, Tuning};
pub use owner::pool::{ClassStats, Counters, Reservation, Stats};
pub use owner::provider::{AllocFuture, Provider, ProviderBuilder, Request};
pub use peer::client::Client;
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
