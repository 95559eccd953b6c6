//! A pooled POSIX shared-memory allocator: a process publishes a message per allocation, other processes read it in
//! place, and in steady state nobody calls into the kernel for memory, takes a lock or touches the heap.
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
//! # Quickstart
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
//! drop(message); // the chunk goes back to the pool, and is used again only after
//! drop(view); // the view is gone
//! # Ok(())
//! # }
//! ```
//!
//! Any transport will do for the 32 bytes. For those who have none there is [`channel`]: from one process to another, a cache line a
//! message.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | *segment* | one mapped shared-memory object |
//! | *arena* | a payload segment, as what chunks of all lengths are carved out of |
//! | *run* | whole pages of an arena: a large chunk, or a heap |
//! | *heap* | a run that small chunks are carved out of |
//! | *chunk* | the memory of one allocation |
//! | *size class* | the lengths that share chunks of one size; 32 classes per doubling |
//! | *one-off* | a chunk as long as its message, not kept when it is given back; made at the cap, for lengths that do not recur |
//! | *pool* | the idle chunks of each class |
//! | *provider*, *owner* | the process that creates segments and allocates |
//! | *peer* | a process that is attached to a provider |
//! | *lease* | a peer's counted right to read a chunk |
//! | *grant* | a lease that the owner adds for a peer before it sends the descriptor |
//! | *loan* | a chunk that is lent to a channel, until the receiver returns it |
//! | *generation* | how often a chunk was published; it tells an old descriptor from the current one |
//! | *descriptor* | 32 plain bytes that name a message |
//! | *channel* | carries descriptors, and small messages, from one *sender* to one *receiver* |
//! | *create*, *attach* | what an owner does with an object, and what a peer does |
//! | *reclaim* | taking back the leases of a peer that is gone |
//! | *sweep* | removing the objects of an owner that is gone |
//!
//! # How a message is kept until it is read
//!
//! A descriptor in flight has no holder. Either [`ShmBuf::grant`] leases the message to a known receiver before it is sent
//! or the sender keeps its [`ShmBuf`] until the receivers have confirmed. A receiver that comes too late gets
//! [`AttachError::Stale`], never the wrong bytes. A [`channel`] keeps what it is lent by itself.
//!
//! # Invariants
//!
//! The code cites them as I1 to I7.
//!
//! 1. Only the owner runs the allocator.
//! 2. A descriptor is checked before it becomes a pointer.
//! 3. A chunk is on one shelf, or in one hand, or leased and waiting: never two of these. (What a channel was lent is in its hand.)
//! 4. A segment's length never changes.
//! 5. No Rust reference exists to bytes that another process may write at that time: `&mut [u8]` only from a [`ShmBufMut`],
//!    which no peer can attach to; `&[u8]` only while a [`ShmBuf`], [`ShmView`] or [`channel::Loan`] is held.
//! 6. After its provider is dropped, every chunk is destroyed exactly once, and with the last one the pool.
//! 7. Each name under /dev/shm is unlinked by the process that created it, or by a sweep that holds the dead owner's lock or finds
//!    its control object gone; a channel's also by the next sender of that name. (Those of `zenoh::PoolBackend` by zenoh's rules.)
//!
//! # What is lock-free
//!
//! Allocating and dropping a buffer whose class has an idle chunk: one atomic exchange each, or one operation on
//! crossbeam's `ArrayQueue` when the hot slot is taken. The queue has no lock, but a thread that is stopped in the middle of
//! an operation can delay another one at the same queue slot, which then spins; where the one that spins has real-time priority, and
//! the other one has not and needs the same core, for ever. Attaching takes
//! a reader lock of the client's own table. Creating and destroying chunks, the first descriptor of a chunk,
//! [`Provider::stats`] and mapping a new segment take locks. Sending and receiving by a channel wait for none; a side
//! that has to wait for the other one sleeps in the kernel after a while, and is woken by a system call of the other one.
//!
//! # Threat model
//!
//! Processes that follow the protocol cannot harm each other by crashing at any instruction. Payload is read-only for peers. A
//! peer that writes garbage into the control object can make messages be reused early (their readers see torn bytes, or
//! get a signal if the memory went back to the system) or never; it cannot make the owner, or another peer, access memory
//! out of bounds: neither believes what it reads there before it is checked against private knowledge. Garbage in a channel is an
//! error for its receiver, or a view of bytes that nobody holds for it (torn, or a signal, as above), or brings back early what its own
//! receiver reads, or makes the channel stand still (its sides go on looking whether the other one lives);
//! and who truncates a channel's object may keep the kernel from telling of its process's death by other channels. (Such a process can also
//! truncate the control object, which no check can forestall: whoever has it mapped then gets SIGBUS.) Objects are created
//! with mode 0600 unless the builder says otherwise, and refused if they belong to another user.
//!
//! # Limits
//!
//! | what | limit | at the limit |
//! |---|---|---|
//! | peers of a provider | 64 | [`AttachError::TooManyPeers`] |
//! | views of one message in one client | 31 | [`AttachError::TooManyLeases`] |
//! | grants of one message to one peer, not taken up | 7 | [`ShareError::TooManyGrants`] |
//! | slots of a channel | 2 to 65,536 | [`channel::ChannelError::Capacity`] |
//! | bytes of a message in a slot itself | [`channel::MAX_INLINE`], 48 | [`channel::SendErrorKind::TooLong`] |
//! | buffers that the receiver of a channel has | [`channel::SenderBuilder::loans`], at most 1,048,576 | [`channel::SendErrorKind::TooManyLent`] |
//! | ends of channels in one process | 2048 | [`channel::ChannelError::TooMany`] |
//! | chunks shared at a time | [`ProviderBuilder::max_shared`], at most 1,048,576 | [`ShareError::TooManyShared`] |
//! | payload held, and the length of all segments together | [`ProviderBuilder::max_bytes`] | [`AllocErrorKind::Exhausted`] |
//! | segments of a provider | 16 at a time, and 16 ever made unless it is trimmed | idle ones give way to a longer one |
//! | a message | 64 GiB, of whatever `max_bytes` | [`AllocErrorKind::TooLarge`] |
//! | alignment | 4096 bytes | [`AllocErrorKind::UnsupportedAlignment`] |
//! | [`ProviderBuilder::max_bytes`] | 2^48 - 1 bytes | [`BuildError::OutOfRange`] |
//! | idle chunks of a size class | [`ProviderBuilder::max_idle_per_class`], at most 1,048,576 | what is dropped goes back to its arena |
//! | name prefix | 64 bytes | [`BuildError::Prefix`] |
//! | threads granting to one peer at the same moment | 65,535 | the next one waits for one of them |
//! | clones of one [`ShmBuf`] | `isize::MAX` | the process aborts, as with [`Arc`](std::sync::Arc) |
//!
//! And numbers that no program lives to see the end of:
//!
//! | what | how many | at most | at the end |
//! |---|---|---|---|
//! | messages in one chunk | at least 3 × 2^61: generations start at random below 2^62, and each message takes two | 10 million a second: 21,900 years | generations start over; a descriptor from before can be taken for a later one's |
//! | connections in one peer slot | 2^62: an epoch takes four | 100,000 a second: 1.4 million years | epochs start over; likewise a [`PeerId`] |
//! | segments of one provider | 2^64 - 1 | 100,000 a second: 5.8 million years | serial numbers start over, and pass by those in use |
//! | forks, each by the child of the one before | 2^64 | 20,000 a second: 29 million years | a handle that was inherited through all of them looks like an own one |
//!
//! Linux only. A process forked by a raw `clone` system call must not use handles it inherited; one made by `fork`, which must
//! not be called in a signal handler, finds them inert: their drop does nothing, and allocating or attaching is an error. The
//! bytes behind them stay shared with the parent, which may use them again: a forked child must not read or write through
//! handles that it inherited. It keeps none of its parent's locks, so that a killed parent is found dead (but see `zenoh` for
//! its backend); while a child of a raw `clone` lives that has not called `exec`, it is not.

#[cfg(not(target_os = "linux"))]
compile_error!("shm-pool needs Linux: open file description locks and a tmpfs at /dev/shm");

#[cfg(not(target_pointer_width = "64"))]
compile_error!("shm-pool needs a 64-bit target: shared counters are 64-bit atomics");

pub mod channel;
mod error;
mod os;
mod owner;
mod peer;
mod protocol;
mod sync;
#[cfg(feature = "zenoh")]
pub mod zenoh;

pub use error::{BuildError, OsError};
pub use owner::buf::{ShmBuf, ShmBufMut};
pub use owner::error::{AllocError, AllocErrorKind, CapacityError, ShareError};
pub use owner::provider::{Provider, ProviderBuilder};
pub use owner::stats::{ClassStats, Stats};
pub use owner::sweep::Swept;
pub use peer::client::{Client, ClientBuilder};
pub use peer::error::AttachError;
pub use peer::view::ShmView;
pub use protocol::descriptor::Descriptor;
pub use protocol::descriptor::DescriptorError;
pub use protocol::ids::{PeerId, ProviderId};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
