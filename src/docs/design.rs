//! How the crate is built: its rooms, its invariants, the decisions behind it, and what is
//! lock-free.
//!
//! # Rooms
//!
//! The source is divided into folders, and imports go one way:
//!
//! ```text
//!   zenoh/   channel/        leaves: nothing uses them
//!       \     /    \
//!       owner/      peer/    never each other
//!          \        /
//!           protocol/        what both sides read and write
//!               |
//!              os/           names, mappings, locks, fork, futex
//! ```
//!
//! | room | holds | may use |
//! |---|---|---|
//! | `os` | names and their directory, mappings, segments, OFD locks, forks and values per process, the barrier, the futex and its deadlines, the robust list | `error`, `sync` |
//! | `protocol` | ids and the descriptor, the record with its leases, peer slots, the layout of the control object, the memory bell, the test for a dead owner | `os` |
//! | `owner` | the provider and its builder, buffers, the pool, shelves, arenas, limits, reservations, requests and waiting, refusals, statistics, the owner's side of the control object, the sweep | `protocol`, `os` |
//! | `peer` | the client, views, leases, the cache of mappings, the peer's side of the control object | `protocol`, `os`; never `owner` |
//! | `channel` | sender, publisher and receiver, the ring, loans and their returns, bells | all of the above |
//! | `zenoh` | the pool as a backend of zenoh's `ShmProvider`, and whole zenoh buffers on top of it | all of the above but `channel` |
//!
//! `error` and `sync` belong to no room: the errors that several rooms return, and the switch
//! between real atomics and loom's. A script, `.ci/layers`, fails when a lower room names a higher
//! one. `CONTRIBUTING.md` walks through the rooms file by file.
//!
//! # Memory
//!
//! | level | is | carved into |
//! |---|---|---|
//! | segment, or arena | one shared-memory object of fixed length; at most 16 at a time | runs, by pages |
//! | run | whole pages | nothing: it is one large chunk; or it is a heap |
//! | heap | a run for small chunks | chunks, by cache lines |
//! | chunk | the memory of one allocation | |
//!
//! A page of an arena takes memory from the system when it is first carved, and the system's
//! refusal is an error then. A chunk, once carved, lives on its class's shelf, so that the next
//! allocation of its class is one atomic exchange. At the cap memory changes hands inside the
//! segments: idle chunks of other classes are destroyed and their room is carved anew. No segment
//! is made for that, unless none can hold the message; then segments in which nothing is in use
//! give way to a longer one. The carver keeps its lists in private memory, never in the segments.
//!
//! # Invariants
//!
//! The code cites them as I1 to I7. SAFETY comments name the one that they rest on.
//!
//! * **I1.** Only the owner runs the allocator.
//! * **I2.** A descriptor is checked before it becomes a pointer.
//! * **I3.** A chunk is on one shelf, or in one hand, or leased and waiting: never two of these.
//!   (What a channel was lent is in the channel's hand.)
//! * **I4.** A segment's length never changes.
//! * **I5.** No Rust reference exists to bytes that another process may write at that time.
//!   `&mut [u8]` comes only from a [`ShmBufMut`](crate::ShmBufMut), which no peer can attach to;
//!   `&[u8]` exists only while a [`ShmBuf`](crate::ShmBuf), [`ShmView`](crate::ShmView) or
//!   [`channel::Loan`](crate::channel::Loan) is held.
//! * **I6.** After its provider is dropped, every chunk is destroyed exactly once, and with the
//!   last one the pool.
//! * **I7.** Each name, under /dev/shm or another directory, is unlinked by the process that
//!   created it, or by a sweep that holds the dead owner's lock or finds its control object gone; a
//!   channel's name also by the next sender of that name. (The names of `zenoh::PoolBackend` follow
//!   zenoh's rules.)
//!
//! # Decisions
//!
//! Comments and tests cite them by number.
//!
//! | | decision |
//! |---|---|
//! | D1 | One warm path for every size: a hot slot and an `ArrayQueue` of idle chunks for each size class |
//! | D2 | A handle gives its chunk back on drop and holds no count on the pool. A shelf that closes is filled with seals, so a give either came first or is refused |
//! | D3 | Never recycle under a reader |
//! | D4 | Leases are counted per holder, never anonymously. Only the holder of a right may take it away; a right that several may raise is never taken back by guess |
//! | D5 | The kernel says who is alive, by OFD locks and the robust list. No heartbeat, no probing of process ids |
//! | D6 | Attach: count, then check. Recycle: check, close, check again. Both sides fence |
//! | D7 | A message in flight is not lost: it is granted, lent, or kept until confirmed. Too late is `Stale`, never wrong bytes |
//! | D8 | Shared chunks are reused first in, first out; unshared ones last in, first out |
//! | D9 | Memory is reserved when a chunk is made. A step that fails undoes the earlier ones |
//! | D10 | Peers are not trusted with memory safety: payload is read-only for them, and whatever is read from shared memory is checked against private knowledge |
//! | D11 | A forked child owns nothing |
//! | D12 | Two front doors, one pool: where somebody else counts references (zenoh), the pool does not count them twice |
//! | D13 | A channel lends buffers and takes no lease by the record: its own object says what has come back, and only the cache lines that a message needs travel |
//! | D19 | Receivers of one publisher share nothing: each makes a branch of its own when it comes and nobody reuses it, so coming, leaving and dying need no clean-up that another could meet. They find each other at one page, which is believed only as far as it can be checked |
//! | D14 | Waiting is an event, never a poll. Whoever frees memory, in any process, wakes who waits; nobody waiting costs a relaxed load |
//! | D15 | A reservation is a promise: not evicted, complete (memory, record, room in every queue), counted |
//! | D18 | Segments are few, large and long-lived. Shelves are for speed, arenas for memory |
//!
//! # What is checked by a model
//!
//! [loom](https://docs.rs/loom) runs these protocols through their interleavings and reorderings;
//! the models are in `src/models`.
//!
//! | protocol | model |
//! |---|---|
//! | attach and recycle, grants, clearing a lane | `record` |
//! | peers that come, go and die while the owner grants and reclaims | `slot` |
//! | chunks between shelves and hands while the pool closes | `shelf` |
//! | the ring, its bells, loans and returns | `loans` |
//! | a task whose helper sleeps for it, a thread that sleeps on several bells, interrupts | `awaiting` |
//! | a publisher's receivers: withdrawal against receive, coming against sending and closing, one fence for several bells | `fan_out` |
//! | the memory bell: whoever gives memory back wakes who waits | `memory_bell` |
//!
//! # What is lock-free
//!
//! **Allocating and dropping a buffer** whose class has an idle chunk: one atomic read-modify-write
//! on the hot slot each, or one operation on crossbeam's `ArrayQueue` when the hot slot is taken.
//! The queue has no lock, but a thread that is stopped in the middle of an operation can delay
//! another one at the same queue slot, which then spins. If the thread that spins has real-time
//! priority, and the stopped one has not and needs the same core, it spins for ever.
//!
//! **Attaching** takes a reader lock of the client's own table. It waits only while another thread
//! of the same client enters a new mapping.
//!
//! **Sending and receiving by a channel** waits for no lock, unless every loan is out or the other
//! side is gone. A side that has to wait for the other one sleeps in the kernel after a while, and
//! a system call of the other one wakes it.
//!
//! **Awaiting** takes no lock but for the first await of an end. The thread that sleeps for all tasks
//! calls their wakers with no lock held.
//!
//! **Giving back**, in any process, costs one relaxed load more while nobody waits for memory (see
//! `protocol/memory_bell`). While somebody does, it is a system call. While the owner asks again
//! and again in vain, it is an atomic addition.
//!
//! **These take locks:** waiting for memory, drops while somebody waits and the first drop after
//! refused allocations, making and destroying chunks, the end of a window of allocations, the first
//! descriptor of a chunk, [`Provider::stats`](crate::Provider::stats), and mapping a segment for the
//! first time.
#![forbid(unsafe_code)]
