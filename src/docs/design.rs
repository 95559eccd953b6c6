//! Invariants, decisions, and which operations are lock-free.
//!
//! # Memory
//!
//! Arenas are carved by pages into runs: large chunks, and heaps, which are carved by cache lines
//! into small chunks. A page takes memory from the system when it is first carved. Once carved, a
//! chunk lives on its class's shelf.
//!
//! # At the cap
//!
//! Where no gap is long enough for a message, the pool searches for a range that contains only idle
//! chunks, sets it aside for the message's size class, evicts the chunks, and carves it anew. If
//! every range has chunks in use, nothing is evicted. If no segment can hold the message, those
//! without chunks in use make way for a longer one.
//!
//! A size class that is refused twice in a row within 250 ms gets a *region*, unless all memory is
//! in chunks of that class: the range with the fewest bytes in use, or whole segments that are to
//! be destroyed. Chunks that are dropped there return to the arena, unless they are reserved. So a
//! large message needs each chunk of one range to be dropped once, rather than gaps to merge by
//! chance. Other classes are served there only if they fit nowhere else. The region's own class is
//! served as soon as it fits, there or elsewhere. That ends the region, as do 250 ms without a
//! refusal. There is one at a time.
//!
//! # Invariants
//!
//! * **I1.** Only the owner runs the allocator.
//! * **I2.** A descriptor is checked before it becomes a pointer.
//! * **I3.** A chunk is on one shelf, or held by one handle (or by a channel, for a buffer on
//!   borrowed buffer), or leased and waiting: never two of these.
//! * **I4.** A segment's length never changes.
//! * **I5.** No Rust reference exists to bytes that another process may write at that time. `&mut
//!   [u8]` comes only from a [`ShmBytesMut`](crate::ShmBytesMut), which no peer can attach to; `&[u8]`
//!   exists only while a [`ShmBytes`](crate::ShmBytes), [`ShmView`](crate::ShmView) or
//!   [`channel::Message`](crate::channel::Message) is held.
//! * **I6.** After its provider is dropped, every chunk is destroyed exactly once, and with the
//!   last one the pool.
//! * **I7.** Each name is unlinked by the process that created it, while it refers to the file that
//!   this process created, or by a sweep that holds the dead owner's lock or finds no control
//!   object; a channel's name also by the next sender of that name. While a receiver may have to
//!   map a segment, the names of the segment, of the control object and of the receiver's object
//!   stay, the last one perhaps renamed. (The names of a [`backend`](crate::backend) are its
//!   source's.)
//!
//! # Decisions
//!
//! | | decision |
//! |---|---|
//! | D1 | One warm path for every size: per class, a hot slot and an `ArrayQueue` of idle chunks |
//! | D2 | Handles hold no count on the pool. A shelf that closes is filled with seals, so a chunk's return either happened first or is refused |
//! | D3 | Never recycle memory that a reader holds |
//! | D4 | Leases are counted per holder, never anonymously. Only the holder of a right may give it up |
//! | D5 | The kernel decides who is alive (OFD locks, robust list). No heartbeats, no probing of process ids |
//! | D6 | Attach: count, then check. Recycle: check, close, check again. Both sides fence |
//! | D7 | A message in flight is not lost: it is granted, borrowed, or kept. A late receiver gets `Stale`, never wrong bytes |
//! | D8 | Shared chunks are reused first in, first out; unshared ones last in, first out, unless they are dropped cold |
//! | D9 | Memory is reserved when a chunk is made; a step that fails undoes the earlier ones |
//! | D10 | Peers are not trusted with memory safety: payload is read-only to them, and what is read from shared memory is checked against private data. A peer maps writable only what it needs |
//! | D11 | A forked child owns nothing |
//! | D12 | Where another library counts readers ([`backend`](crate::backend)), the pool does not count them again |
//! | D13 | A channel's messages are borrowed buffers and take no lease: its own object records the returns |
//! | D14 | Waiting is an event, never a poll. It never makes things worse for callers that do not wait, for reserved memory, or for other pools |
//! | D15 | A reservation is a promise: not evicted, complete (record, queue space, mapping), no system call on its path |
//! | D16 | Whole zenoh buffers are recycled by zenoh's own uniqueness check |
//! | D17 | Observing does not disturb: inspection takes no peer slot, no lock that matters, and trusts nothing it reads |
//! | D18 | Segments are few, large and long-lived; they start small and grow. Shelves are for speed, arenas for memory |
//! | D19 | Receivers of one publisher share nothing but a page for discovery: each creates its own connection, so joining, leaving and dying need no clean-up |
//! | D20 | Fewer mechanisms: a new one has to replace an old one or be worth its interactions |
//! | D21 | A refused length is served by a [region](#at-the-cap), which bounds how long it can starve; smaller requests are never stopped by it |
//! | D22 | The backend is public. zenoh support is a crate of its own, which uses only public items |
//! | D23 | Releasing memory never needs memory |
//! | D24 | A dead owner's objects are removed by its last reader, or when memory is short |
//!
//! # Checked by models
//!
//! The models in `src/models` explore the interleavings of the protocols with
//! [loom](https://docs.rs/loom).
//!
//! # Lock freedom
//!
//! **Allocating and dropping a buffer** whose class has an idle chunk takes one atomic
//! read-modify-write on the hot slot each, or one operation on crossbeam's `ArrayQueue`. A thread
//! that is preempted in the latter can make another one spin at the same queue slot: forever, if
//! that one has real-time priority, and the preempted one does not and needs the same core.
//!
//! **Attaching** takes a reader lock of the client's table, for which it waits only while another
//! thread stores a new mapping.
//!
//! **Sending and receiving by a channel** waits for no lock, unless the receiver has borrowed all that it may or the other
//! side has closed or died.
//!
//! **Awaiting** takes no lock except for the first await of an end. Wakers are called with no lock
//! held.
//!
//! **Releasing memory**, in any process, costs one additional relaxed load while no request waits
//! for memory of that pool, and a system call while one does. (A process has 256 flags for this,
//! which more pools share.)
//!
//! **These take locks:** waiting for memory, drops in the owner's process meanwhile, making,
//! evicting and destroying chunks, the end of a window of allocations, the first descriptor of a
//! chunk, [`Provider::stats`](crate::Provider::stats), and mapping a segment for the first time. A
//! drop destroys its chunk above the idle cap, in a region, or if it was made at the cap for a
//! length that does not recur.
//!
//! **The last reader of a dead provider** sweeps its objects when it drops its last message, and
//! waits up to 100 ms for the kernel to release the locks of a sender that has just been killed.
#![forbid(unsafe_code)]
