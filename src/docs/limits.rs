//! Every limit of the crate, and the behaviour at each. For the words see the crate's
//! [vocabulary](crate#vocabulary).
//!
//! # Limits that a program can reach
//!
//! ## Peers and descriptors
//!
//! * **Peers of a provider:** 64. Above it:
//!   [`AttachError::TooManyPeers`](crate::AttachError::TooManyPeers).
//! * **Bytes that one peer reads or is granted at a time:**
//!   [`ProviderBuilder::max_bytes_per_peer`]: no limit by default, at least 1, at most 2^48 - 1.
//!   Above it: [`AttachError::OverQuota`](crate::AttachError::OverQuota),
//!   [`ShareError::OverQuota`](crate::ShareError::OverQuota).
//! * **Views of one message in one client:** 31. Above it:
//!   [`AttachError::TooManyLeases`](crate::AttachError::TooManyLeases).
//! * **Grants of one message to one peer, not taken up:** 7. Above it:
//!   [`ShareError::TooManyGrants`](crate::ShareError::TooManyGrants).
//!
//! ## Channels
//!
//! * **Capacity of a channel:** 2 to 65,536 messages; 1 to 65,536 for a receiver of a publisher.
//!   Above it: [`ChannelError::OutOfRange`](crate::channel::ChannelError::OutOfRange).
//! * **Receivers of a publisher:** [`PublisherBuilder::max_subscribers`]: 16 by default, at most
//!   64; a closed one counts while one of its messages is read. Above it:
//!   `ChannelError::TooManyReceivers`.
//! * **Bytes of a message in a channel's slot itself:**
//!   [`channel::MAX_INLINE`](crate::channel::MAX_INLINE), 48. Above it, `send_copy` copies into a
//!   buffer.
//! * **Buffers that the receiver of a channel holds:** [`SenderBuilder::max_borrowed`]: 2048 by
//!   default, at most 1,048,576. Above it: `SendErrorKind::TooManyBorrowed`.
//! * **Buffers that a receiver of a publisher holds:** [`PublisherBuilder::max_borrowed`]: as
//!   above; and [`PublisherBuilder::max_bytes_per_receiver`]: a quarter of `max_bytes` by default,
//!   or what [`PublisherBuilder::share_among`] finds, but always two buffers. Above it, messages
//!   are skipped, or waited for; `RecvError::TooManyBorrowed`.
//! * **Time that a message waits for receivers:** [`PublisherBuilder::block_limit`]: 5 seconds by
//!   default. Above it, the receiver is skipped, or disconnected.
//! * **Ends of channels in one process:** 2048; a publisher counts as one for each receiver. Above
//!   it: [`ChannelError::TooManyEnds`](crate::channel::ChannelError::TooManyEnds).
//! * **Ends that tasks await:** 127 for each helper thread, and one before Linux 5.16. Above it,
//!   one more thread; if it cannot start, `RecvError::NoHelper` and `SendErrorKind::NoHelper`.
//! * **Receivers and their `Interrupter`s in one [`wait_any`](crate::channel::wait_any):** 128
//!   together, and none before Linux 5.16. Above it, the helper threads above wake it; with more
//!   than 127 `Interrupter`s, interrupts take up to 10 milliseconds.
//! * **Threads that wait for the teardown of a killed owner's process:** 4, for 60 seconds each.
//!   Above it, what that owner left waits for the next sweep.
//! * **Waits for names of channels:** any number, by one `inotify` instance and one thread for
//!   each process. Above it, they check every 10 milliseconds.
//!
//! ## Memory
//!
//! * **Chunks shared at a time:** [`ProviderBuilder::max_shared`]: 4096 by default, at most
//!   1,048,576; 128 bytes of /dev/shm each. Above it:
//!   [`ShareError::TooManyShared`](crate::ShareError::TooManyShared).
//! * **Payload held, and the length of all segments together:** [`ProviderBuilder::max_bytes`],
//!   1 GiB by default, and 1 TiB: 16 segments of at most 64 GiB. Above it:
//!   [`AllocError::Exhausted`](crate::AllocError::Exhausted).
//! * **Segments of a provider:** 16 at a time. One that is never trimmed, and keeps idle chunks
//!   ([`max_idle_per_class`] above 0), creates no more in its life. Above it, idle ones are destroyed
//!   for a longer one.
//! * **A message:** [`ProviderBuilder::max_alloc`](crate::ProviderBuilder::max_alloc), at most
//!   `max_bytes` and 64 GiB; 4 GiB with `shm-pool-zenoh`. Above it:
//!   [`AllocError::TooLarge`](crate::AllocError::TooLarge).
//! * **Alignment:** 4096 bytes. Above it:
//!   [`AllocError::UnsupportedAlignment`](crate::AllocError::UnsupportedAlignment).
//! * **[`ProviderBuilder::max_bytes`]:** 2^48 - 1 bytes; 64 GiB with `shm-pool-zenoh`. Above it:
//!   [`BuildError::OutOfRange`](crate::BuildError::OutOfRange).
//! * **Idle chunks of a size class:** [`max_idle_per_class`]: 8 by default, at most 1,048,576.
//!   Above it, further ones return to their arena.
//! * **Memory that a provider may lock
//!   ([`ProviderBuilder::lock_memory`](crate::ProviderBuilder::lock_memory)):** `RLIMIT_MEMLOCK`,
//!   for `max_bytes` and the control object. Above it:
//!   [`BuildError::LockMemory`](crate::BuildError::LockMemory).
//! * **NUMA node ([`Tuning::numa_node`](crate::Tuning::numa_node)):** 1023, and one that has
//!   memory. Above it: [`BuildError::NumaNode`](crate::BuildError::NumaNode).
//! * **Private memory for a provider's own lists,** up to 180 bytes per chunk and 0.8 % of its length,
//!   and 32 bytes more once it was shared, until none is left:
//!   the heap that the process may have. Above it:
//!   [`BuildError::OutOfMemory`](crate::BuildError::OutOfMemory).
//!
//! ## Names and processes
//!
//! * **Name prefix:** 60 bytes. Above it: [`BuildError::Prefix`](crate::BuildError::Prefix).
//! * **Name of a channel:** 226 bytes less the prefix, 218 with the default one and at least 166;
//!   characters other than `A-Z a-z 0-9 _ -` take three for each byte of UTF-8. Above it:
//!   [`ChannelError::Name`](crate::channel::ChannelError::Name).
//! * **Threads granting to one peer at the same moment:** 65,535. Above it, the next one waits for
//!   one of them.
//! * **Clones of one [`ShmBytes`](crate::ShmBytes):** `isize::MAX`. Above it, the process aborts,
//!   as with [`Arc`](std::sync::Arc).
//!
//! # Larger pages
//!
//! The formats are the same on systems with pages of 4, 16 and 64 KiB. (`.ci/aarch64` runs tests on
//! kernels with 4 and 16 KiB; none has run with 64 KiB.) `max_bytes`, `max_alloc` and `arena_size`
//! are rounded up to whole pages. So is the memory of a control object, a channel, a message aligned
//! to more than 64 bytes, and a message of 32 pages or more.
//!
//! # Limits beyond any program's lifetime
//!
//! | quantity | limit | reached after | at the limit |
//! |---|---|---|---|
//! | messages in one chunk | at least 3 × 2^61 | 21,900 years of 10 million a second | an old descriptor can match a later message |
//! | connections in one peer slot during one grant | 65,536, if a limit per peer is set | the owner's thread stops in the middle of a grant meanwhile | the count of the next peer may lack that message |
//! | connections in one peer slot | 2^62 | 1.4 million years of 100,000 a second | an old [`PeerId`](crate::PeerId) can match a later one |
//! | segments of one provider | 2^64 - 1 | 5.8 million years of 100,000 a second | serial numbers wrap around |
//! | forks, each by the child of the one before | 2^64 | 29 million years of 20,000 a second | a handle inherited through all of them is accepted |
//!
//! # Memory near the cap
//!
//! The pool moves no memory, so near the cap a message may find no gap that is long enough. This
//! bench drops and allocates messages at random, in a pool that is always full, and in one whose
//! use stays below a given share:
//!
//! ```console
//! $ cargo bench --bench at_the_cap -- --fits --fitted 60000
//! ```
//!
//! | lengths up to | in use when a message is refused, mean | no refusal up to |
//! |---|---|---|
//! | 1/4 of the cap, uniform | 77 % | 45 % |
//! | 1/16 of the cap, uniform | 83 % | 62 % |
//! | 1/64 of the cap, uniform | 87 % | 75 % |
//! | 1/256 of the cap, uniform | 90 % | 83 % |
//! | 1/4 of the cap, log-uniform from 64 bytes on | 73 % | 41 % |
//! | 1/16 of the cap, log-uniform from 64 bytes on | 79 % | 57 % |
//! | 1/256 of the cap, log-uniform from 64 bytes on | 86 % | 80 % |
//!
//! Shares are of the requested bytes. Repeating lengths fit better.
//! [Reserved](crate::Provider::reserve) chunks have their place from the start. A range is set
//! aside for a message that waits or retries: see `docs/design.md`.
//!
//! A length is rounded up to its class: by less than 64 bytes up to 2 KiB, and by at most 3.2 %
//! above that. No two messages share a cache line.
//!
//! A peer that reads one message of a dead provider keeps the memory of that message's segment
//! until it drops the view.
//!
//! # Forked processes
//!
//! In a child made by `fork`, dropping inherited handles has no effect, and allocating or attaching
//! with them is an error. The child must not access memory through them, because the parent
//! continues to use it.
//!
//! `fork` must not be called in a signal handler. A child made by a raw `clone`,
//! `_Fork` or `vfork` is not detected: it must not use inherited handles, and may hide its parent's
//! death until it calls `exec` or exits.
//!
//! [`max_idle_per_class`]: crate::ProviderBuilder::max_idle_per_class
//! [`ProviderBuilder::max_bytes`]: crate::ProviderBuilder::max_bytes
//! [`ProviderBuilder::max_bytes_per_peer`]: crate::ProviderBuilder::max_bytes_per_peer
//! [`ProviderBuilder::max_shared`]: crate::ProviderBuilder::max_shared
//! [`PublisherBuilder::block_limit`]: crate::channel::PublisherBuilder::block_limit
//! [`PublisherBuilder::max_borrowed`]: crate::channel::PublisherBuilder::max_borrowed
//! [`PublisherBuilder::share_among`]: crate::channel::PublisherBuilder::share_among
//! [`PublisherBuilder::max_bytes_per_receiver`]: crate::channel::PublisherBuilder::max_bytes_per_receiver
//! [`PublisherBuilder::max_subscribers`]: crate::channel::PublisherBuilder::max_subscribers
//! [`SenderBuilder::max_borrowed`]: crate::channel::SenderBuilder::max_borrowed
#![forbid(unsafe_code)]
