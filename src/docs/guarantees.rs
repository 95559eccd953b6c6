//! What holds when processes die or misbehave, the test that fails when it does not, and what is
//! not guaranteed.
//!
//! # Guarantees
//!
//! Each with one test that fails when it is broken. `tests/README.md` in the repository has the
//! whole table, with every test and how to run them.
//!
//! ## When processes die
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | A peer may be killed at any instruction of connect, attach, take-up of a grant, drop of a view or of the client. Its leases come back when the owner needs memory, and by [`Provider::reclaim`]; other peers and other leases are untouched | `a_peer_is_killed_at_every_instruction` in `tests/traced` |
//! | Whoever waits for memory that a killed process had, or was about to give back, gets it within 50 milliseconds of the death | `a_peer_is_killed_at_every_instruction` in `tests/traced` |
//! | However a peer ends (SIGKILL, abort, exit without drop, a fault), its slot can be taken again at once. The 65th peer gets a typed error, and a slot as soon as one is free | `the_65th_process_gets_the_slot_of_one_that_was_killed_or_has_left` |
//! | The owner may be killed at any instruction of build, alloc, freeze, grant, drop, trim, wait, close or sweep. Readers keep every byte that they hold; attach says [`OwnerDied`] or what came after it | `an_owner_is_killed_at_every_instruction` in `tests/traced` |
//! | The next `build()` of the same prefix, and `Provider::sweep`, remove what a dead owner left, half-made objects too, and never what a living one has, with any number of sweepers at once | `many_sweep_while_others_start_and_end` |
//! | Publishers and subscribers are restarted in any order, again and again: no growth of memory, files, descriptors or mappings | `nothing_adds_up_when_both_sides_restart_in_turn` |
//! | Either side of a channel may be killed at any instruction, or while it sleeps. The other side is told at once and keeps what it has; what was on its way comes back; the name can be used again, by one | `a_sender_is_killed_at_every_instruction` in `tests/traced` |
//! | What a killed sender has sent is received, whoever sweeps meanwhile, and whatever the receiver runs out of for a moment | `what_a_killed_sender_has_sent_outlives_a_sweep` |
//! | What a channel was lent is the receiver's until it drops it, in any order and thread, also when sender and provider are gone | `a_message_outlives_its_sender_and_its_provider` |
//! | A channel, or a peer that lost its slot, gives back nobody else's lease | `a_successor_loses_no_view_while_the_sender_is_stopped` |
//! | A forked child owns nothing, takes nothing from its parent, and does not keep a dead parent alive | `a_forked_child_of_an_owner_owns_nothing` |
//! | Owners and peers in other PID and mount namespaces that share /dev/shm are seen alive and dead | `a_peer_in_another_pid_namespace_is_seen_alive_and_dead` |
//!
//! ## When the system refuses
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | Every system call may fail, with every error that it can give: the result is a typed error with everything undone, or the call was not needed; the next attempt works | `every_system_call_fails_once` in `tests/traced` |
//! | A full /dev/shm is an error at allocation and never a signal in your code. After room is made the next allocation works | `a_full_dev_shm_is_an_error_with_a_remedy_and_never_a_signal` |
//! | Low limits of descriptors and of address space likewise | `an_owner_that_can_map_no_more_is_told_so_and_loses_nothing` |
//! | Locked memory is locked: all that the pool holds, from when it is reserved on. What may not be locked is not made | `a_locked_provider_stays_within_the_limit_and_says_so_when_it_cannot` |
//! | Each counter has a defined behaviour at its limit ([`limits`](super::limits)) | `no_operation_on_any_lane_spills_over` |
//!
//! ## Whatever others write
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | Any bytes in the control object, written at any time: no panic, hang or access out of bounds in the owner or in other peers | `whatever_is_written_into_a_control_object_the_others_stay_whole` |
//! | Any bytes in a channel, likewise at both ends | `whatever_is_written_into_a_channel_both_ends_stay_whole` |
//! | A descriptor that nobody sent opens nothing else | `a_descriptor_that_nobody_sent_opens_nothing_else` |
//! | What is not ours under our names (content, version, user, symbolic link, directory, pipe, length) is refused with a typed error | `what_is_no_control_object_is_refused_with_the_reason` |
//!
//! ## Always
//!
//! | guarantee | a test that shows it |
//! |---|---|
//! | A chunk is never used again under a reader | `a_chunk_is_never_recycled_under_a_reader`, a model |
//! | A receiver that attaches too late gets [`Stale`], never wrong bytes | `a_message_that_nobody_keeps_is_stale_and_never_another_one` |
//! | The pool never holds more than `max_bytes` | `the_cap_is_used_up_and_never_exceeded` |
//! | A channel loses, doubles and reorders nothing, and no wake-up is lost | `all_messages_come_in_order_with_two_slots`, `no_wake_up_is_lost` |
//! | A task that awaits a channel misses no wake-up, and loses nothing when its future is dropped; so on every kernel | `futures_can_be_dropped_at_any_await_point`, `tasks_and_threads_wait_on_every_kernel`, the model `a_task_that_awaits_misses_no_ring` |
//! | The warm path makes no system call | `a_million_warm_cycles_of_one_thread_make_no_system_call` |
//! | … and does not touch the heap, on either side | `messages_are_shared_read_and_recycled_without_the_heap` |
//! | After [`Provider::reserve`](crate::Provider::reserve) and the peers' `warm`, both hold from the first message on, and no page faults | `the_first_messages_after_a_reservation_touch_no_heap_and_fault_no_page` |
//!
//! # Not guaranteed
//!
//! * Other processes' memory limits: a peer that locks all that it maps (`mlockall`) takes memory
//!   for the whole of a segment.
//! * A process that is stopped, and not dead, keeps its leases. So does one that never drops its
//!   views.
//! * A process that closes descriptors which are not its own (`closefrom`) looks dead: what it
//!   reads may be used again. Once another peer has its slot it is told so ([`SlotLost`]), and
//!   takes nothing from that one, unless that comes between two of its instructions.
//! * A process that is killed with a channel whose object somebody else has truncated may not be
//!   told dead by its other channels.
//! * Truncating a mapped object makes SIGBUS for whoever touches it; so may punching holes into one
//!   when /dev/shm is full.
//! * Removing a living owner's control object by hand makes the next sweep take its segments:
//!   readers keep what they have mapped.
//! * A message that was neither granted, lent nor kept until its receivers confirmed may be gone
//!   when they attach: they get [`Stale`].
//! * zenoh's receivers are zenoh's: see the documentation of the module `zenoh` for what a dead one
//!   leaves behind, and the remedy.
//!
//! # Threat model
//!
//! **Processes that follow the protocol** cannot harm each other by crashing at any instruction.
//!
//! **A descriptor is untrusted input.** Everything in it is checked against the owner's record, and
//! against what is really mapped, before a pointer is formed.
//!
//! **Payload is read-only for peers.** They map it so, and whatever the mode, no other user gets
//! write access to it. (zenoh's receivers map it writable; see the module `zenoh`.)
//!
//! **A process of the same user that writes garbage** is not kept from doing so, but neither the
//! owner nor another peer believes what it reads in shared memory before it has checked it against
//! private knowledge. So garbage never makes them access memory out of bounds. What it can do:
//!
//! | garbage in | can |
//! |---|---|
//! | the control object | make messages be reused early, so that their readers see torn bytes, or get a signal if the memory went back to the system; or make them never be reused |
//! | a channel | be an error for its receiver; or a view of bytes that nobody holds for it, torn or a signal as above; or bring back early what its own receiver reads; or make the channel stand still, while its sides go on looking whether the other one lives |
//! | a publisher's object | keep newcomers away; until the publisher has met a receiver, wake it up to a second late, or tell it that the publisher is gone, so that it opens the channel again. Receivers that were met get what was sent, whole, in order and with every gap counted |
//!
//! Such a process can also truncate the objects, which no check can forestall: whoever has one
//! mapped then gets SIGBUS. Truncating a channel's object may keep the kernel from telling of its
//! process's death by other channels.
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
