//! Behaviour when processes die or misbehave, and the exceptions.
//!
//! # Guarantees
//!
//! Each has tests that fail when it is violated, listed in `tests/GUARANTEES.md`.
//!
//! ## When processes die
//!
//! * A peer may be killed at any instruction. Its leases are reclaimed when the owner needs memory,
//!   and by [`Provider::reclaim`](crate::Provider::reclaim); no other peer is affected.
//! * A request that waits gets memory that a killed process held, or was about to release, within
//!   50 milliseconds of the death.
//! * However a peer ends, its slot can be taken again at once. The 65th peer gets a typed error.
//! * The owner may be killed at any instruction. Readers keep all bytes that they hold; attach
//!   returns [`ProviderDied`](crate::AttachError::ProviderDied) or the error of the state that
//!   followed.
//! * The next `build()` of the same prefix, and `Provider::sweep`, remove a dead owner's objects,
//!   including incomplete ones, and never a living owner's.
//! * A dead owner's objects are removed with its last reader, however soon the next owner starts;
//!   if all readers were killed, when memory is short.
//! * A sweep neither writes nor removes a file that only has a name like an object's, or has a hard
//!   link.
//! * Publishers and subscribers may restart any number of times, in any order: memory, files,
//!   descriptors and mappings do not grow.
//! * Either side of a channel may be killed at any instruction. The other side is notified at once
//!   and keeps its messages; buffers in flight are reclaimed; one successor can use the name again.
//! * A subscriber opens each successor of a sender or publisher, and reports every boundary between
//!   two, after all messages of the first.
//! * A successor gets a name as soon as its predecessor has ended. If that takes too long, the error
//!   names the process.
//! * A watcher reports every channel that exists when it looks, and the end of each one reported.
//! * Messages of a killed sender are received, even if the receiver is short of a resource for a
//!   while.
//! * A loan belongs to the receiver until it drops it, in any order and on any thread, even after
//!   sender and provider are dropped.
//! * A stopped receiver delays its publisher's others by at most
//!   [`block_limit`](crate::channel::PublisherBuilder::block_limit), once, and takes at most a
//!   stated share of the pool. A publisher can disconnect it; what it has received stays readable.
//! * A channel, or a peer that lost its slot, never releases another's lease.
//! * A forked child owns nothing, takes nothing from its parent, and does not keep a dead parent
//!   alive.
//! * Owners and peers may be in different PID and mount namespaces that share /dev/shm.
//!
//! ## When the system refuses
//!
//! * Every system call may fail, with every error that it can return: the result is a typed error
//!   with everything undone, or the call was not needed; the next attempt works.
//! * A full /dev/shm, or a low limit of descriptors or address space, is an error at allocation and
//!   never a signal.
//! * Releasing memory never needs memory: drops succeed without heap.
//! * Building a provider without heap is a typed error; statistics need no heap.
//! * Locked memory is locked from its reservation on. Memory that may not be locked is not
//!   reserved.
//!
//! ## When other processes write garbage
//!
//! * Any bytes in the control object, written at any time: no panic, hang or access out of bounds
//!   in any process.
//! * Any bytes in a channel, likewise at both ends.
//! * A forged descriptor opens at most the message that it names.
//! * A foreign file under one of our names is refused with a typed error.
//!
//! ## Always
//!
//! * A chunk is never reused under a reader.
//! * A receiver that attaches too late gets [`Stale`], never wrong bytes.
//! * The pool never holds more than `max_bytes`.
//! * A large request is served while smaller ones continue, whether it waits or retries, and none
//!   of these is refused because of it.
//! * A request that waits in vain causes no refusal, withholds no reserved memory, and slows no
//!   other pool.
//! * A request that waits depends on no other thread, and checks once more before it times out.
//! * An allocation releases at most 1 MiB of idle memory, and none if its length is reserved.
//! * Private memory grows with use, not with the configured limits.
//! * A channel never loses, duplicates or reorders messages, and loses no wake-up.
//! * A task that awaits a channel misses no wake-up, and loses no message when its future is
//!   dropped.
//! * The warm path makes no system call and does not touch the heap, on either side.
//! * Nor does a send while receivers join and leave, if the publisher
//!   [serves joins](crate::channel::Publisher::serve_joins) at other times.
//! * A receiver that gets nothing learns why. What it misses is counted, by reason, the same in all
//!   places.
//! * After [`Provider::reserve`](crate::Provider::reserve) and the peers' `warm`, both hold from
//!   the first message on, and no page faults.
//!
//! # Not guaranteed
//!
//! * A peer that locks all of its mappings (`mlockall`) takes memory for whole segments.
//! * A process that is stopped, not dead, keeps its leases. So does one that never drops its views.
//! * A process that closes descriptors that it does not own (`closefrom`) appears dead: memory that
//!   it reads may be reused. Once another peer has taken its slot, it gets an error
//!   ([`SlotLost`](crate::AttachError::SlotLost)), unless the slot is taken between two of its
//!   instructions.
//! * If another process has truncated a channel's object and a process that uses the channel is
//!   killed, the peers of its other channels may not be notified.
//! * Truncating a mapped object raises SIGBUS in a process that accesses it; so may punching holes
//!   into it when /dev/shm is full.
//! * Removing a living owner's control object by hand makes the next sweep remove its segments.
//! * A message that was neither granted, sent by a channel nor kept may have been overwritten when
//!   a receiver attaches, which then gets [`Stale`].
//!
//! # Threat model
//!
//! **Processes that follow the protocol** cannot harm each other by crashing at any instruction.
//!
//! **A descriptor is untrusted input,** checked before a pointer is formed.
//!
//! **Payload is read-only for peers.** They map it so, and no `mode` gives other users write access
//! to it. (zenoh's receivers map it writable; see `shm-pool-zenoh`.)
//!
//! **A process of the same user may write garbage,** and truncate the objects (see above). Garbage
//! never makes owners and peers access memory out of bounds. Its possible effects:
//!
//! | garbage in | effects |
//! |---|---|
//! | the control object | messages are reused early: their readers see torn bytes, or get a signal if the memory was released; or messages are never reused |
//! | a channel | the receiver gets an error, or a view of bytes that are not held for it, as above; a buffer that its own receiver still reads is returned early; counts and reasons are not true; the channel stalls, while its sides keep checking whether the other one is alive |
//! | a publisher's object | new receivers cannot join, or are overlooked or refused. Connected ones get all messages, whole, in order and with every gap counted |
//!
//! **Other users** are kept out: objects have mode 0600, are never opened through symbolic links,
//! and are refused if they belong to another user.
//!
//! **A user admitted by a `mode`** ([`ProviderBuilder::mode`](crate::ProviderBuilder::mode),
//! [`SenderBuilder::mode`](crate::channel::SenderBuilder::mode),
//! [`PublisherBuilder::mode`](crate::channel::PublisherBuilder::mode)) can write to the objects
//! that both sides write, and truncate them, with the effects above: files in /dev/shm cannot be
//! sealed. No mode lets it write payload. Admit only users whom you trust to that extent.
//!
//! | of a publisher that admits others | can be written by |
//! |---|---|
//! | its object | all that its mode admits |
//! | the branch of a receiver of its own user | that user only |
//! | the branch of another user's receiver, which that user owns | all that the mode admits: `0o660` the group of the publisher's object, `0o666` every user |
//!
//! Only a process of the same user can remove what a killed one has left. An admitted user can keep
//! a dead provider's memory from being swept, by claiming that a receiver reads it.
//!
//! [`Stale`]: crate::AttachError::Stale
#![forbid(unsafe_code)]
//! * Each counter has a defined behaviour at its limit ([`limits`](super::limits)).
