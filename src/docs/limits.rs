//! Every limit of the crate, and what happens there.
//!
//! # Limits that a program can meet
//!
//! | what | limit | at the limit |
//! |---|---|---|
//! | peers of a provider | 64 | [`AttachError::TooManyPeers`] |
//! | bytes that one peer reads at a time | [`ProviderBuilder::max_bytes_per_peer`]: no limit by default | [`AttachError::OverQuota`] |
//! | views of one message in one client | 31 | [`AttachError::TooManyLeases`] |
//! | grants of one message to one peer, not taken up | 7 | [`ShareError::TooManyGrants`] |
//! | capacity of a channel | 2 to 65,536 messages; 1 to 65,536 for a receiver of a publisher | [`ChannelError::Capacity`] |
//! | receivers of a publisher | [`PublisherBuilder::receivers`]: 16 by default, at most 64 | `ChannelError::TooManyReceivers` |
//! | bytes of a message in a channel's slot itself | [`channel::MAX_INLINE`], 48 | `SendErrorKind::TooLong` |
//! | buffers that the receiver of a channel has | [`SenderBuilder::loans`]: 2048 by default, at most 1,048,576 | `SendErrorKind::TooManyLent` |
//! | ends of channels in one process | 2048; a publisher counts as two for each receiver that it may have | [`ChannelError::TooMany`] |
//! | ends that tasks await | 127 for each helper thread, and one before Linux 5.16 | one more thread; without one, `RecvError::NoHelper` and `SendErrorKind::NoHelper` |
//! | chunks shared at a time | [`ProviderBuilder::max_shared`]: 4096 by default, at most 1,048,576; 128 bytes of /dev/shm each | [`ShareError::TooManyShared`] |
//! | payload held, and the length of all segments together | [`ProviderBuilder::max_bytes`], and 1 TiB: 16 segments of at most 64 GiB | [`AllocErrorKind::Exhausted`] |
//! | segments of a provider | 16 at a time; 16 ever made, unless it is trimmed or keeps nothing ([`max_idle_per_class`] 0) | idle ones give way to a longer one |
//! | a message | [`ProviderBuilder::max_alloc`], at most 64 GiB; 4 GiB with `zenoh::PoolBackend` | [`AllocErrorKind::TooLarge`] |
//! | alignment | 4096 bytes | [`AllocErrorKind::UnsupportedAlignment`] |
//! | [`ProviderBuilder::max_bytes`] | 2^48 - 1 bytes; 64 GiB with `zenoh::PoolBackend` | [`BuildError::OutOfRange`] |
//! | idle chunks of a size class | [`max_idle_per_class`]: 8 by default, at most 1,048,576 | what is dropped goes back to its arena |
//! | memory that a provider may lock ([`ProviderBuilder::lock_memory`]) | `RLIMIT_MEMLOCK`, for `max_bytes` and the control object | [`BuildError::LockMemory`] |
//! | NUMA node ([`ProviderBuilder::numa_node`]) | 1023, and one that has memory | [`BuildError::NumaNode`] |
//! | name prefix | 64 bytes | [`BuildError::Prefix`] |
//! | name of a channel | 64 bytes | [`ChannelError::Name`] |
//! | threads granting to one peer at the same moment | 65,535 | the next one waits for one of them |
//! | clones of one [`ShmBuf`] | `isize::MAX` | the process aborts, as with [`Arc`](std::sync::Arc) |
//!
//! # Numbers that no program lives to see the end of
//!
//! | what | how many | at most | at the end |
//! |---|---|---|---|
//! | messages in one chunk | at least 3 × 2^61: generations start at random below 2^62, and each message takes two | 10 million a second: 21,900 years | generations start over; a descriptor from before can be taken for a later one's |
//! | connections in one peer slot | 2^62: an epoch takes four | 100,000 a second: 1.4 million years | epochs start over; likewise a [`PeerId`] |
//! | segments of one provider | 2^64 - 1 | 100,000 a second: 5.8 million years | serial numbers start over, and pass by those in use |
//! | forks, each by the child of the one before | 2^64 | 20,000 a second: 29 million years | a handle that was inherited through all of them passes for the process's own |
//!
//! # Memory near the cap
//!
//! The pool moves nothing, so near the cap a large message can find no gap between what readers
//! keep, as with any such allocator. Leave a quarter of the cap free, or more.
//!
//! A length is rounded up to its class: by less than 64 bytes up to 2 KiB, and by at most 3.2 %
//! above that. No two messages share a cache line.
//!
//! Peers map whole the segments that they read from. That takes address space, and no memory of its
//! own. A peer that reads one message of a dead provider keeps the memory of that message's segment
//! until it lets go.
//!
//! # Forked processes
//!
//! A child made by `fork` finds the handles that it inherited inert: their drop does nothing, and
//! allocating or attaching is an error. It makes its own. It must not read or write through the
//! inherited ones, because the parent goes on using that memory. It keeps none of its parent's
//! locks, so a killed parent is found dead (but see the module `zenoh` for its backend).
//!
//! `fork` must not be called in a signal handler.
//!
//! A child made by a raw `clone` system call, `_Fork` or `vfork` is not noticed. It must not use
//! inherited handles, and until it calls `exec` or ends, a killed parent is not found dead.
//!
//! [`AllocErrorKind::Exhausted`]: crate::AllocErrorKind::Exhausted
//! [`AllocErrorKind::TooLarge`]: crate::AllocErrorKind::TooLarge
//! [`AllocErrorKind::UnsupportedAlignment`]: crate::AllocErrorKind::UnsupportedAlignment
//! [`AttachError::OverQuota`]: crate::AttachError::OverQuota
//! [`AttachError::TooManyLeases`]: crate::AttachError::TooManyLeases
//! [`AttachError::TooManyPeers`]: crate::AttachError::TooManyPeers
//! [`BuildError::LockMemory`]: crate::BuildError::LockMemory
//! [`BuildError::NumaNode`]: crate::BuildError::NumaNode
//! [`BuildError::OutOfRange`]: crate::BuildError::OutOfRange
//! [`BuildError::Prefix`]: crate::BuildError::Prefix
//! [`ChannelError::Capacity`]: crate::channel::ChannelError::Capacity
//! [`ChannelError::Name`]: crate::channel::ChannelError::Name
//! [`ChannelError::TooMany`]: crate::channel::ChannelError::TooMany
//! [`PeerId`]: crate::PeerId
//! [`ProviderBuilder::lock_memory`]: crate::ProviderBuilder::lock_memory
//! [`ProviderBuilder::max_alloc`]: crate::ProviderBuilder::max_alloc
//! [`ProviderBuilder::max_bytes`]: crate::ProviderBuilder::max_bytes
//! [`ProviderBuilder::max_bytes_per_peer`]: crate::ProviderBuilder::max_bytes_per_peer
//! [`ProviderBuilder::max_shared`]: crate::ProviderBuilder::max_shared
//! [`ProviderBuilder::numa_node`]: crate::ProviderBuilder::numa_node
//! [`PublisherBuilder::receivers`]: crate::channel::PublisherBuilder::receivers
//! [`SenderBuilder::loans`]: crate::channel::SenderBuilder::loans
//! [`ShareError::TooManyGrants`]: crate::ShareError::TooManyGrants
//! [`ShareError::TooManyShared`]: crate::ShareError::TooManyShared
//! [`ShmBuf`]: crate::ShmBuf
//! [`channel::MAX_INLINE`]: crate::channel::MAX_INLINE
//! [`max_idle_per_class`]: crate::ProviderBuilder::max_idle_per_class
#![forbid(unsafe_code)]
