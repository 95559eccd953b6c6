//! Behaviour when processes die or misbehave, the tests that show it, and the exceptions.
//!
//! # Guarantees
//!
//! Each has a test that fails when it is violated. `tests/GUARANTEES.md` in the repository has the
//! whole table, with every test; `tests/README.md` says how to run them.
//!
//! ## When processes die
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | A peer may be killed at any instruction of connect, attach, take-up of a grant, drop of a view or of the client. Its leases are reclaimed when the owner needs memory, and by [`Provider::reclaim`]; other peers and other leases are not affected | `peer_killed_anywhere` in `tests/traced` |
//! | A request that waits for memory that a killed process held, or was about to release, gets it within 50 milliseconds of the death | `peer_killed_anywhere` in `tests/traced` |
//! | However a peer ends (SIGKILL, abort, exit without drop, a fault), its slot can be taken again at once. The 65th peer gets a typed error, and a slot as soon as one is free | `sixty_fifth_peer` |
//! | The owner may be killed at any instruction of build, alloc, freeze, grant, drop, trim, wait, close or sweep. Readers keep all bytes that they hold; attach returns [`OwnerDied`] or the error of the state that followed | `owner_killed_anywhere` in `tests/traced` |
//! | The next `build()` of the same prefix, and `Provider::sweep`, remove a dead owner's objects, including incomplete ones, and never a living owner's, with any number of concurrent sweeps | `concurrent_sweeps` |
//! | A dead owner's objects are removed with its last reader, however soon the next owner starts; if all readers were killed, when the system has no memory for an allocation, a waiting request, or a new channel | `last_message_sweeps`, `waiting_successor_is_served` |
//! | A sweep neither writes nor removes a file that only has a name like an object's, nor one with a second name (a hard link) | `file_with_our_name` |
//! | Publishers and subscribers may restart in any order, any number of times: memory, files, descriptors and mappings do not grow | `alternating_restarts` |
//! | Either side of a channel may be killed at any instruction, or while it sleeps. The other side is notified at once and keeps its messages; buffers in flight are reclaimed; one successor can use the name again | `sender_killed_anywhere` in `tests/traced` |
//! | Messages of a killed sender are received, despite concurrent sweeps, and even if the receiver temporarily runs out of a resource | `sent_outlives_killed_sender` |
//! | A loan belongs to the receiver until it drops it, in any order and on any thread, even after sender and provider are dropped | `message_outlives_sender_and_provider` |
//! | A channel, or a peer that lost its slot, never releases another's lease | `stopped_sender` |
//! | A forked child owns nothing, takes nothing from its parent, and does not keep a dead parent alive | `forked_child_owns_nothing` |
//! | Owners and peers in other PID and mount namespaces that share /dev/shm are correctly detected as alive or dead | `peer_in_namespace` |
//!
//! ## When the system refuses
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | Every system call may fail, with every error that it can return: the result is a typed error with everything undone, or the call was not needed; the next attempt works | `every_syscall_fails_once` in `tests/traced` |
//! | A full /dev/shm is an error at allocation and never a signal in your code. Once there is room, the next allocation works | `enospc` |
//! | The same holds for low limits of descriptors and of address space | `owner_cannot_map` |
//! | Releasing memory never needs memory: drops of buffers, views, reservations, futures and providers succeed without heap | `buffers_drop_without_heap`, `drops_need_no_heap` |
//! | Building a provider without heap is a typed error; statistics need no heap | `build_and_stats_without_heap` |
//! | Locked memory is locked: all of the pool's memory, from its reservation on. Memory that may not be locked is not reserved | `memlock_limit` |
//! | Each counter has a defined behaviour at its limit ([`limits`](super::limits)) | `lanes_do_not_carry` |
//!
//! ## When other processes write garbage
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | Any bytes in the control object, written at any time: no panic, hang or access out of bounds in the owner or in other peers | `control_object` |
//! | Any bytes in a channel, likewise at both ends | `channel_object` |
//! | A forged descriptor opens at most the message that it names | `forged_descriptor` |
//! | A foreign file under one of our names (wrong content, version, user or length, a symbolic link, directory or pipe) is refused with a typed error | `garbage_control_objects` |
//!
//! ## Always
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | A chunk is never reused under a reader | `no_recycle_under_reader`, a model |
//! | A receiver that attaches too late gets [`Stale`], never wrong bytes | `unkept_is_stale` |
//! | The pool never holds more than `max_bytes` | `fills_cap` |
//! | A large request is served while smaller ones continue, whether it waits or retries, and none of these is refused because of it | `large_waiter_among_small_ones`, `large_poller_among_small_ones` |
//! | A request that waits in vain causes no refusal, withholds no reserved memory, and slows no other pool | `waiter_causes_no_refusals`, `waiter_keeps_no_reserved_chunk`, `waiter_leaves_other_pools_warm` |
//! | A request that waits depends on no other thread, and checks once more before it times out | `waiter_needs_no_other_waiter`, `waiter_last_look` |
//! | An allocation releases at most 1 MiB of idle memory at a time, and none if its length is reserved | `one_alloc_gives_back_one_mib`, `reserved_allocs_give_nothing_back` |
//! | Private memory grows with use, not with the configured limits | `cap_takes_no_heap`, `idle_limit_takes_no_heap` |
//! | A channel never loses, duplicates or reorders messages, and loses no wake-up | `in_order_with_two_slots`, `no_lost_wake_up` |
//! | A task that awaits a channel misses no wake-up, and loses no message when its future is dropped, on every kernel | `cancel_anywhere`, `with_and_without_futex_waitv`, the model `await_misses_no_ring` |
//! | The warm path makes no system call | `million_warm_cycles` |
//! | … and does not touch the heap, on either side | `share_and_attach` |
//! | After [`Provider::reserve`](crate::Provider::reserve) and the peers' `warm`, both hold from the first message on, and no page faults | `first_reserved_messages` |
//!
//! # Not guaranteed
//!
//! * Other processes' memory limits: a peer that locks all of its mappings (`mlockall`) takes
//!   memory for whole segments.
//! * A process that is stopped, not dead, keeps its leases. So does one that never drops its views.
//! * A process that closes descriptors that it does not own (`closefrom`) appears dead: memory that
//!   it reads may be reused. Once another peer has taken its slot, it gets an error ([`SlotLost`])
//!   and does not touch that peer's leases, unless the slot is taken between two of its
//!   instructions.
//! * If another process has truncated a channel's object and a process that uses the channel is
//!   killed, the peers of its other channels may not be notified.
//! * Truncating a mapped object raises SIGBUS in a process that accesses it; so may punching holes
//!   into it when /dev/shm is full.
//! * Removing a living owner's control object by hand makes the next sweep remove its segments:
//!   readers keep their mappings.
//! * A message that was neither granted, sent by a channel nor kept until its receivers confirmed
//!   may have been overwritten when they attach: they get [`Stale`].
//! * zenoh's receivers are zenoh's: see the documentation of the crate `shm-pool-zenoh` for the
//!   effects of a dead one, and the remedy.
//!
//! # Threat model
//!
//! **Processes that follow the protocol** cannot harm each other by crashing at any instruction.
//!
//! **A descriptor is untrusted input.** Every field is checked against the owner's record, and
//! against the actual mapping, before a pointer is formed.
//!
//! **Payload is read-only for peers.** They map it so, and no `mode` gives other users write access
//! to it. (zenoh's receivers map it writable; see `shm-pool-zenoh`.)
//!
//! **A process of the same user that writes garbage** cannot be prevented from doing so, but owners
//! and peers check all values in shared memory against private data before they use them. So
//! garbage never makes them access memory out of bounds. Its possible effects:
//!
//! | garbage in | effects |
//! |---|---|
//! | the control object | messages are reused early, so that their readers see torn bytes, or get a signal if the memory was released to the system; or messages are never reused |
//! | a channel | the receiver gets an error; or a view of bytes that are not held for it, torn or raising a signal as above; or a buffer that its own receiver still reads is returned early; or the channel stalls, while its sides keep checking whether the other one is alive |
//! | a publisher's object | new receivers cannot join; the publisher overlooks a new receiver, or tells it that it cannot be connected. Connected receivers get all messages, whole, in order and with every gap counted |
//!
//! Such a process can also truncate the objects, which no check can prevent: a process that has one
//! mapped then gets SIGBUS. Truncating a channel's object may keep the kernel from announcing its
//! process's death on other channels.
//!
//! **Other users** are kept out: objects have mode 0600 unless
//! [`ProviderBuilder::mode`](crate::ProviderBuilder::mode) says otherwise, are never opened through
//! symbolic links, and are refused if they belong to another user.
//!
//! [`OwnerDied`]: crate::AttachError::OwnerDied
//! [`Provider::reclaim`]: crate::Provider::reclaim
//! [`SlotLost`]: crate::AttachError::SlotLost
//! [`Stale`]: crate::AttachError::Stale
#![forbid(unsafe_code)]
