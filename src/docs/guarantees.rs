//! Behaviour when processes die or misbehave, the tests that show it, and the exceptions.
//!
//! # Guarantees
//!
//! Each has a test that fails when it is violated. `tests/README.md` in the repository has the
//! whole table, with every test and how to run them.
//!
//! ## When processes die
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | A peer may be killed at any instruction of connect, attach, take-up of a grant, drop of a view or of the client. Its leases are reclaimed when the owner needs memory, and by [`Provider::reclaim`]; other peers and other leases are not affected | `a_peer_is_killed_at_every_instruction` in `tests/traced` |
//! | A request that waits for memory that a killed process held, or was about to release, gets it within 50 milliseconds of the death | `a_peer_is_killed_at_every_instruction` in `tests/traced` |
//! | However a peer ends (SIGKILL, abort, exit without drop, a fault), its slot can be taken again at once. The 65th peer gets a typed error, and a slot as soon as one is free | `the_65th_process_gets_the_slot_of_one_that_was_killed_or_has_left` |
//! | The owner may be killed at any instruction of build, alloc, freeze, grant, drop, trim, wait, close or sweep. Readers keep all bytes that they hold; attach returns [`OwnerDied`] or the error of the state that followed | `an_owner_is_killed_at_every_instruction` in `tests/traced` |
//! | The next `build()` of the same prefix, and `Provider::sweep`, remove a dead owner's objects, including incomplete ones, and never a living owner's, with any number of concurrent sweeps | `many_sweep_while_others_start_and_end` |
//! | A dead owner's objects are removed with its last reader, however soon the next owner starts; if all readers were killed, when the system has no memory for an allocation, a waiting request, or a new channel | `the_last_message_that_is_dropped_leaves_nothing_of_a_killed_owner`, `a_successor_that_waits_gets_a_killed_owners_memory_when_the_last_reader_is_gone` |
//! | A sweep neither writes nor removes a file that only has a name like an object's, nor one with a second name (a hard link) | `a_file_that_only_has_a_name_like_ours_is_neither_written_nor_removed` |
//! | Publishers and subscribers may restart in any order, any number of times: memory, files, descriptors and mappings do not grow | `nothing_adds_up_when_both_sides_restart_in_turn` |
//! | Either side of a channel may be killed at any instruction, or while it sleeps. The other side is notified at once and keeps its messages; buffers in flight are reclaimed; one successor can use the name again | `a_sender_is_killed_at_every_instruction` in `tests/traced` |
//! | Messages of a killed sender are received, despite concurrent sweeps, and even if the receiver temporarily runs out of a resource | `what_a_killed_sender_has_sent_outlives_a_sweep` |
//! | A loan belongs to the receiver until it drops it, in any order and on any thread, even after sender and provider are dropped | `a_message_outlives_its_sender_and_its_provider` |
//! | A channel, or a peer that lost its slot, never releases another's lease | `a_successor_loses_no_view_while_the_sender_is_stopped` |
//! | A forked child owns nothing, takes nothing from its parent, and does not keep a dead parent alive | `a_forked_child_of_an_owner_owns_nothing` |
//! | Owners and peers in other PID and mount namespaces that share /dev/shm are correctly detected as alive or dead | `a_peer_in_another_pid_namespace_is_seen_alive_and_dead` |
//!
//! ## When the system refuses
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | Every system call may fail, with every error that it can return: the result is a typed error with everything undone, or the call was not needed; the next attempt works | `every_system_call_fails_once` in `tests/traced` |
//! | A full /dev/shm is an error at allocation and never a signal in your code. Once there is room, the next allocation works | `a_full_dev_shm_is_an_error_with_a_remedy_and_never_a_signal` |
//! | The same holds for low limits of descriptors and of address space | `an_owner_that_can_map_no_more_is_told_so_and_loses_nothing` |
//! | Releasing memory never needs memory: drops of buffers, views, reservations, futures and providers succeed without heap | `buffers_drop_without_heap`, `drops_need_no_heap` |
//! | Building a provider without heap is a typed error; statistics need no heap | `build_and_stats_without_heap` |
//! | Locked memory is locked: all of the pool's memory, from its reservation on. Memory that may not be locked is not reserved | `a_locked_provider_stays_within_the_limit_and_says_so_when_it_cannot` |
//! | Each counter has a defined behaviour at its limit ([`limits`](super::limits)) | `no_operation_on_any_lane_spills_over` |
//!
//! ## When other processes write garbage
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | Any bytes in the control object, written at any time: no panic, hang or access out of bounds in the owner or in other peers | `whatever_is_written_into_a_control_object_the_others_stay_whole` |
//! | Any bytes in a channel, likewise at both ends | `whatever_is_written_into_a_channel_both_ends_stay_whole` |
//! | A forged descriptor opens at most the message that it names | `a_descriptor_that_nobody_sent_opens_nothing_else` |
//! | A foreign file under one of our names (wrong content, version, user or length, a symbolic link, directory or pipe) is refused with a typed error | `what_is_no_control_object_is_refused_with_the_reason` |
//!
//! ## Always
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | A chunk is never reused under a reader | `a_chunk_is_never_recycled_under_a_reader`, a model |
//! | A receiver that attaches too late gets [`Stale`], never wrong bytes | `a_message_that_nobody_keeps_is_stale_and_never_another_one` |
//! | The pool never holds more than `max_bytes` | `the_cap_is_used_up_and_never_exceeded` |
//! | A large request is served while smaller ones continue, whether it waits or retries, and none of these is refused because of it | `large_waiter_among_small_ones`, `large_poller_among_small_ones` |
//! | A request that waits in vain causes no refusal, withholds no reserved memory, and slows no other pool | `waiter_refuses_nobody`, `waiter_keeps_no_reserved_chunk`, `waiter_leaves_other_pools_warm` |
//! | A request that waits depends on no other thread, and checks once more before it times out | `waiter_needs_no_other_waiter`, `waiter_last_look` |
//! | An allocation releases at most 1 MiB of idle memory at a time, and none if its length is reserved | `one_alloc_gives_back_one_mib`, `reserved_allocs_give_nothing_back` |
//! | Private memory grows with use, not with the configured limits | `cap_takes_no_heap`, `idle_limit_takes_no_heap` |
//! | A channel never loses, duplicates or reorders messages, and loses no wake-up | `all_messages_come_in_order_with_two_slots`, `no_wake_up_is_lost` |
//! | A task that awaits a channel misses no wake-up, and loses no message when its future is dropped, on every kernel | `futures_can_be_dropped_at_any_await_point`, `tasks_and_threads_wait_on_every_kernel`, the model `a_task_that_awaits_misses_no_ring` |
//! | The warm path makes no system call | `a_million_warm_cycles_of_one_thread_make_no_system_call` |
//! | … and does not touch the heap, on either side | `messages_are_shared_read_and_recycled_without_the_heap` |
//! | After [`Provider::reserve`](crate::Provider::reserve) and the peers' `warm`, both hold from the first message on, and no page faults | `the_first_messages_after_a_reservation_touch_no_heap_and_fault_no_page` |
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
//! * zenoh's receivers are zenoh's: see the documentation of the crate `shm-pool-zenoh` for
//!   the effects of a dead one, and the remedy.
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
