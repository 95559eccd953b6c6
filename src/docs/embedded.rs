//! How an embedded or real-time publisher starts: everything that costs memory or time is done
//! before the first message.
//!
//! # How much memory
//!
//! All that the objects of a provider can ever take, in bytes:
//!
//! | object | bytes, each rounded up to whole pages |
//! |---|---|
//! | payload segments, all together | [`max_bytes`](crate::ProviderBuilder::max_bytes) |
//! | control object, one | 4096 + 128 × [`max_shared`](crate::ProviderBuilder::max_shared) |
//! | [`channel`](crate::channel), each | 4096 + 64 × ([`capacity`](crate::channel::SenderBuilder::capacity) + 1) + 16 × [`loans`](crate::channel::SenderBuilder::loans), with loans rounded up to a power of two, and at least 8 |
//! | [`channel::Publisher`](crate::channel::Publisher), each | 4096, and for each of its receivers what a channel takes, with [the capacity and loans that the receiver chose](crate::channel::ReceiverBuilder::capacity) |
//!
//! A provider with 256 KiB for payload and 16 messages that peers know at a time, and a channel
//! that queues 4 of them, take at most 262,144 + 8,192 + 8,192 bytes:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::channel::Sender;
//! use shm_pool::Provider;
//!
//! let pages = |bytes: usize| bytes.next_multiple_of(4096);
//! let (max_bytes, max_shared, capacity, loans) = (256 << 10, 16, 4, 8);
//! let control = pages(4096 + 128 * max_shared);
//! let channel = pages(4096 + 64 * (capacity + 1) + 16 * loans);
//! assert_eq!((control, channel), (8192, 8192));
//!
//! let provider = Provider::builder().max_bytes(max_bytes).max_shared(max_shared).build()?;
//! let name = format!("docs-{}", std::process::id());
//! let sender = Sender::builder().capacity(capacity).loans(loans).create(&provider, &name)?;
//! let len = |object: String| {
//!     std::fs::metadata(format!("/dev/shm/shm_pool.{object}")).map(|data| data.len())
//! };
//! assert_eq!(len(format!("{}.ctl", provider.id()))?, control as u64);
//! assert_eq!(len(format!("{name}.channel"))?, channel as u64);
//!
//! let everything: Vec<_> = std::iter::from_fn(|| provider.alloc(1000).ok()).collect();
//! assert!(everything.len() > 200 && provider.stats().bytes_held <= max_bytes);
//! # drop((everything, sender));
//! # Ok(())
//! # }
//! ```
//!
//! A chunk is as long as its message, rounded up by less than 64 bytes up to 2 KiB and by at most
//! 3.2 % above that, and to whole pages from 128 KiB on. Count what is queued, what each receiver
//! reads, and what is being written. Where messages of several lengths share the cap, leave a
//! quarter of it free. Whether it is enough shows at the start: a reservation that succeeds is a
//! promise, and one that does not fit is an error.
//!
//! The books are in private memory, which no cap covers: 32 bytes for each page of payload, and for
//! each 64 bytes of it that short messages are carved out of.
//!
//! # The steps
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::{BuildError, Provider};
//!
//! // 1. The cap, and where the memory is. A tmpfs of its own cannot be filled by others:
//! //    mount -t tmpfs -o size=1m,mode=0700 none /run/frames, and `.directory("/run/frames")`.
//! let builder = Provider::builder().max_bytes(256 << 10).max_shared(16).max_idle_per_class(16);
//! let builder = builder.idle_window(0); // what is idle stays
//! // 2. Locked into RAM, or the reason why not.
//! let provider = match builder.clone().lock_memory(true).build() {
//!     Err(error @ BuildError::LockMemory { .. }) => {
//!         eprintln!("{error}"); // names what is needed and what is allowed, in bytes
//!         builder.build()?
//!     }
//!     built => built?,
//! };
//! // 3. What can be under way at a time, made and paged in, with all that sharing it needs.
//! provider.reserve(1800, 6)?.keep();
//! provider.reserve(64, 16 - 6)?.keep();
//! // 4. From here on, these lengths cost no system call, no page fault and no heap.
//! let mut buffer = provider.alloc(1800)?;
//! buffer.fill(7);
//! let _bytes = buffer.freeze().descriptor()?.to_bytes();
//! # Ok(())
//! # }
//! ```
//!
//! 1. **Cap.** [`max_bytes`](crate::ProviderBuilder::max_bytes) and
//!    [`max_shared`](crate::ProviderBuilder::max_shared) as above;
//!    [`max_idle_per_class`](crate::ProviderBuilder::max_idle_per_class) at least as high as the
//!    largest reservation; [`directory`](crate::ProviderBuilder::directory) for a tmpfs of its own;
//!    [`numa_node`](crate::ProviderBuilder::numa_node) where there are several.
//! 2. **Lock.** [`lock_memory`](crate::ProviderBuilder::lock_memory) keeps what the pool holds out
//!    of swap. [`build`](crate::ProviderBuilder::build) compares cap and control object with
//!    `RLIMIT_MEMLOCK`. That limit is 8 MiB on many systems and 64 KiB on older ones: raise it by
//!    `LimitMEMLOCK=` in the service's unit, or `docker run --ulimit memlock=`. Channels are not
//!    locked by it; `mlockall` covers them and the program itself: stack, heap and code.
//! 3. **Reserve.** [`reserve`](crate::Provider::reserve) makes the chunks with everything that
//!    their messages need, and keeps them from being given up for other lengths.
//!    [`Reservation::keep`](crate::Reservation::keep) holds them for the provider's life.
//! 4. **Warm the receivers.** A peer maps a segment when the first message in it arrives, and
//!    faults in its pages as it reads them. [`Client::warm`](crate::Client::warm) does both
//!    beforehand, for what the provider has by then: call it after the publisher has reserved. A
//!    [`channel`](crate::channel) is present from the start.
//!
//! # What then costs nothing
//!
//! Allocating a reserved length, writing it, sharing or sending it, and dropping it: no system
//! call, no page fault, no lock and no heap, as long as no more are under way than were reserved.
//! Waking a side of a channel that sleeps is a system call.
//!
//! Every 32,768 allocations, one looks for idle memory that nobody needs, takes locks for it, and
//! gives back what it finds. [`idle_window(0)`](crate::ProviderBuilder::idle_window) leaves that
//! out.
//!
//! What still takes time, and is best left to a thread without a deadline: a length that was not
//! reserved, or more of one than that; [`trim`](crate::Provider::trim);
//! [`reclaim`](crate::Provider::reclaim); dropping the provider. With a real-time priority, mind
//! what [is lock-free](super::design#what-is-lock-free) says of a queue whose other user was
//! stopped.
//!
//! # What locking is, and what it is not
//!
//! The owner locks each segment when it makes it, with its whole length, but only pages that are
//! present: memory is taken page by page as without. Pages that go back to the system are unlocked,
//! and locked again when they are taken again. Without swap, a locked page differs from another one
//! only in that the kernel may not put it aside for any other reason; the first write of a message
//! does not fault in either case, because memory is made present when it is reserved.
//!
//! The lock ends with the owner. What peers go on reading after its death may be swapped, unless
//! they lock what they map, by `mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)`. Without the last
//! flag that takes memory for the whole of each segment, as zenoh's receivers do.
//!
//! # Huge pages
//!
//! [`huge_pages`](crate::ProviderBuilder::huge_pages) is advice: the kernel moves reserved memory
//! into huge pages (2 MiB on x86-64), as far as it has any. They take no more memory than small
//! ones: only a huge page is made all of whose small pages are reserved. So several short messages
//! share one if they are reserved together, and a message that stands alone begins and ends in
//! small pages. It is worth it for messages of megabytes that are read or written at random places;
//! one that is copied from front to back gains nothing. Where memory may be mounted for the pool, a
//! tmpfs with `huge=always` reserves it several times faster; it takes whole huge pages even for a
//! few bytes, so leave room for one more behind each segment. The bench `memory` measures both.
//!
//! There is no way to require them. That would be hugetlbfs, where every object, the control object
//! and each channel too, is whole huge pages, and memory that messages no longer need goes back by
//! huge pages only: a cap in bytes would no longer be one. A
//! [`directory`](crate::ProviderBuilder::directory) there is refused.
#![forbid(unsafe_code)]
