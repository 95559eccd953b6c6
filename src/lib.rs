//! A pooled POSIX shared-memory allocator. A process publishes a message per allocation, and other
//! processes read it in place. The pool never reuses memory that somebody still reads. Once it is
//! warm, allocating and dropping a message makes no system call, takes no lock and does not touch
//! the heap.
//!
//! ```text
//!  owner process                                                peer process(es)
//!  ┌──────────────────────────────────────────────┐            ┌───────────────────────────┐
//!  │ Provider ── alloc(len) ──► ShmBufMut         │            │ Client                    │
//!  │    ▲                          │ freeze()     │ Descriptor │   │ attach(descriptor)    │
//!  │    │                          ▼              │  32 bytes  │   ▼                       │
//!  │    │                        ShmBuf ──────────┼────────────┼► ShmView                  │
//!  │    │                          │ drop         │    any     │   │ drop                  │
//!  │    │                          ▼              │ transport  │   ▼                       │
//!  │  size class ◄──── idle chunk ─┘              │            │ lease given back          │
//!  │    │ miss                                    │            └───────────────────────────┘
//!  │    └─ carved out of an arena: one of a few segments,
//!  │       whose memory is reserved when it is first carved
//!  └──────────────────────────────────────────────┘
//!    /dev/shm:  one control object per provider (leases; read-write for peers)
//!               payload segments (read-only for peers)
//! ```
//!
//! Linux only, 64-bit.
//!
//! # Quickstart
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::{Client, Descriptor, Provider};
//!
//! // The publishing process.
//! let provider = Provider::builder().max_bytes(256 << 20).build()?;
//! let mut buffer = provider.alloc(1 << 20)?;
//! buffer.fill(7); // a plain &mut [u8]
//! let message = buffer.freeze();
//! let bytes: [u8; 32] = message.descriptor()?.to_bytes(); // send these by any transport
//!
//! // A receiving process.
//! let client = Client::new();
//! let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
//! assert!(view.iter().all(|&byte| byte == 7)); // a plain &[u8], read in place
//! drop(message); // the publisher has let go; the view still holds the memory
//! drop(view); // from now on the pool may use it again
//! # Ok(())
//! # }
//! ```
//!
//! A [`ShmBuf`] derefs to `[u8]`, is cheap to clone, is `Send` and `Sync`, works with
//! `bytes::Bytes::from_owner`, and outlives its provider. A [`ShmView`] outlives its client, and
//! what it shows outlives the publisher.
//!
//! # Which way do I send?
//!
//! A descriptor in flight holds nothing: if the publisher drops its [`ShmBuf`] before the receiver
//! attaches, the memory may already hold another message, and the receiver gets
//! [`AttachError::Stale`]. It never gets wrong bytes. There are five ways to keep a message until
//! it is read:
//!
//! | way | use it when | what it costs | when the receiver dies |
//! |---|---|---|---|
//! | **keep**: send [`descriptor`](ShmBuf::descriptor), hold the [`ShmBuf`] until the receivers confirm | any transport; any number of receivers, known or not | you track confirmations | its leases come back; stop waiting for its confirmation |
//! | **grant**: send [`grant`](ShmBuf::grant), drop the [`ShmBuf`] at once | any transport; receivers that told you their [`PeerId`] ([`Client::connect`]) | one lease and one descriptor per receiver; [`revoke`](ShmBuf::revoke) if the transport fails | its grants and leases come back |
//! | [`channel`] | one receiver on this machine, and no transport yet; either side can sleep or be awaited | one shared object per channel, one sleeping thread per process | the sender gets `Disconnected`, even while it sleeps; what it lent comes back |
//! | [`channel::Publisher`] | up to 64 receivers on this machine that come and go; a slow one is waited for, misses new messages or keeps the latest | the same, and one shared object per receiver | nobody else notices; what it was lent comes back |
//! | `zenoh` (the feature) | you publish with zenoh or rmw_zenoh; stock receivers in any language | zenoh's own bookkeeping; receivers never unmap a segment | what it held stays out until you call `garbage_collect_unsafe` |
//!
//! Memory "comes back" when the owner needs it, or calls [`Provider::reclaim`].
//!
//! # When memory runs out
//!
//! [`Provider::alloc`] never waits for memory. The pool never holds more than
//! [`max_bytes`](ProviderBuilder::max_bytes). Until that cap is reached the pool grows. At the cap,
//! `alloc` looks for room in this order: idle chunks of the size class and chunks whose leases have
//! ended; buffers that channels have returned; idle chunks of other classes, which it evicts; the
//! leases of peers that have died. If all of that is not enough it fails with
//! [`AllocErrorKind::Exhausted`], which says how many bytes are in use, leased and idle.
//!
//! Or wait for it. [`Provider::alloc_timeout`] and a [`Request`] return as soon as memory comes
//! back in any process, in the order in which they came:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let provider = shm_pool::Provider::builder().build()?;
//! use std::time::Duration;
//!
//! let buffer = provider.alloc_timeout(1 << 20, Duration::from_millis(100))?;
//! let another = provider.request(1 << 20).zeroed().wait()?;
//! let future = provider.request(1 << 20).wait_async(); // for any executor
//! # drop((buffer, another, future));
//! # Ok(())
//! # }
//! ```
//!
//! | symptom | remedy |
//! |---|---|
//! | [`AllocError::is_exhausted`], most of it *in use* | drop buffers that you keep, and the same call works; or build with a larger cap |
//! | … most of it *leased* | receivers hold views or loans, or have not taken up grants: have them drop what they hold, or take grants back with [`ShmBuf::revoke`] |
//! | … most of it *idle* | free, but not in one piece: leave more room under the cap for large messages |
//! | [`AllocErrorKind::Os`] | /dev/shm is full, or the process is short of address space, descriptors or memory that it may lock; the error says which. [`Provider::trim`] gives idle memory back to the system |
//! | [`ShareError::TooManyShared`] | all records are taken: raise [`max_shared`](ProviderBuilder::max_shared), or trim |
//! | `SendErrorKind::TooManyLent` | the receiver of a [`channel`] has the most buffers it may: [`loans`](channel::SenderBuilder::loans) |
//!
//! [`Provider::reserve`] makes chunks of one size, with all that a message needs, so that the first
//! one costs no more than later ones; [`Client::warm`] and [`channel::Receiver::warm`] do the same
//! for peers. The chunks stay until the [`Reservation`] is dropped: no other size takes their
//! memory.
//!
//! Idle memory that has not been needed for a while goes back to the system by itself
//! ([`idle_window`](ProviderBuilder::idle_window)); at once with [`Provider::trim`] and
//! [`Provider::trim_to`]. [`Provider::reclaim`] takes back what dead peers held now, instead of at
//! the next shortage. [`Provider::stats`] says where the memory is.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | *provider*, *owner* | the process that creates segments and allocates |
//! | *peer* | a process that is attached to a provider |
//! | *segment* | one mapped shared-memory object |
//! | *arena* | a payload segment, as the thing that chunks of all lengths are carved out of |
//! | *run* | whole pages of an arena: a large chunk, or a heap |
//! | *heap* | a run that small chunks are carved out of |
//! | *chunk* | the memory of one allocation |
//! | *size class* | the lengths that share chunks of one size: each multiple of 64 bytes up to 2 KiB, then 32 per doubling |
//! | *shelf* | the idle chunks of one size class: a hot slot for the one given back last, and a queue |
//! | *pool* | all shelves of a provider, and the arenas behind them |
//! | *reservation* | chunks that are made before they are needed, and stay ([`Provider::reserve`]) |
//! | *warm* | has all that the next message needs: an idle chunk in the pool, the segments mapped and present in a peer |
//! | *one-off* | a chunk as long as its message, not kept when it is given back; made at the cap, for lengths that do not recur |
//! | *descriptor* | 32 plain bytes that name a message |
//! | *record* | the 128 bytes of the control object that count who reads a chunk |
//! | *lane* | a peer's byte in a record: how often it leases the chunk |
//! | *lease* | a peer's counted right to read a chunk |
//! | *grant* | a lease that the owner adds for a peer before it sends the descriptor |
//! | *generation* | how often a chunk was published; it tells an old descriptor from the current one |
//! | *channel* | carries buffers, and small messages, from one *sender* to one *receiver*, or from one *publisher* to many |
//! | *branch* | what a publisher and one of its receivers share: a ring, what has come back, a bell |
//! | *meeting*, *seat* | where the receivers of a publisher find it, and each one's place there |
//! | *loan* | a buffer that was sent by a channel, until the receiver gives it back |
//! | *bell* | the word by which one side of a channel wakes the other; the kernel rings it for a process that dies |
//! | *memory bell* | the word by which whoever gives memory back wakes a provider that waits for it |
//! | *create*, *attach* | what an owner does with an object, and what a peer does |
//! | *reclaim* | take back the leases of a peer that is gone |
//! | *sweep* | remove the objects of an owner that is gone |
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `stream` | no | [`channel::Receiver`] is a `futures_core::Stream` |
//! | `tracing` | no | events of the target `shm_pool`, for subscribers of the crate `tracing`: provider made and closed, segment made and given up, idle memory given back (`debug`), exhausted (`debug`), peer died, leftovers swept, receivers of a publisher met and gone. None on the warm path |
//! | `zenoh` | no | the module `zenoh`: the pool as a backend of zenoh's own `ShmProvider` (zenoh 1.10), and a pool of whole zenoh buffers on top of it; read by stock receivers |
//!
//! # More
//!
//! * [`docs::embedded`]: how an embedded or real-time publisher starts.
//! * [`docs::guarantees`]: what holds when processes die, what does not, and the threat model.
//! * [`docs::limits`]: every limit, and what happens there.
//! * [`docs::format`]: every byte in shared memory and in a descriptor.
//! * [`inspect`]: who holds what, seen from outside.
//! * [`docs::design`]: how the crate is built, its invariants, and what is lock-free.

#[cfg(not(target_os = "linux"))]
compile_error!("shm-pool needs Linux: open file description locks and a tmpfs at /dev/shm");

#[cfg(not(target_pointer_width = "64"))]
compile_error!("shm-pool needs a 64-bit target: shared counters are 64-bit atomics");

/// Tells the subscribers of `tracing` what happened, with the feature of that name. Only off the warm
/// path.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($event:tt)+) => { tracing::$level!(target: "shm_pool", $($event)+) };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($event:tt)+) => {};
}

/// The fields of a type with their offsets, for the test of `docs::format`.
#[cfg(all(test, not(loom)))]
macro_rules! offsets {
    ($type:ty: $($field:ident)+) => {
        &[$((stringify!($field), std::mem::offset_of!($type, $field))),+]
    };
}

pub mod channel;
pub mod docs;
mod error;
pub mod inspect;
mod os;
mod owner;
mod peer;
mod protocol;
mod sync;
#[cfg(feature = "zenoh")]
pub mod zenoh;

pub use error::{BuildError, OsError};
pub use owner::buf::{ShmBuf, ShmBufMut};
pub use owner::builder::ProviderBuilder;
pub use owner::error::{AllocError, AllocErrorKind, CapacityError, ShareError};
pub use owner::provider::Provider;
pub use owner::request::{AllocFuture, Request};
pub use owner::reservation::Reservation;
pub use owner::stats::{ClassStats, Stats};
pub use owner::sweep::Swept;
pub use peer::client::{Client, ClientBuilder};
pub use peer::error::AttachError;
pub use peer::view::ShmView;
pub use protocol::descriptor::{Descriptor, DescriptorError};
pub use protocol::ids::{PeerId, ProviderId};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
