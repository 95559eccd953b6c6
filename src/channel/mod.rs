//! Channels that carry messages from one process to another through shared memory.
//!
//! | | sender | receiver |
//! |---|---|---|
//! | one to one | a [`Sender`] | a [`Receiver`]; messages sent before it opens the channel wait for it |
//! | one to many | a [`Publisher`] | up to 64 [`Receiver`]s, which may join, leave, die and rejoin at any time |
//!
//! The ends are in different processes, or in one. A message is one cache line: the descriptor of a
//! buffer, or up to [`MAX_INLINE`] bytes. A [`Sender`] loses, duplicates or reorders nothing. With
//! a [`Publisher`], a slow receiver loses what its [rule](OnFull) says, and the loss is
//! [counted](Message::missed). A side that waits spins for a while and then sleeps until the other
//! side wakes it; in steady state neither calls into the kernel. Each side sets how long it spins:
//! [`SenderBuilder::spin`], [`PublisherBuilder::spin`], [`ReceiverBuilder::spin`].
//!
//! A sent buffer is *on loan*: the sender's process keeps its memory for the receiver, which reads
//! it in place, for any length of time, in any thread and in any order. The memory returns to the
//! pool when the receiver, or the last of several, drops the message. A buffer may be sent several
//! times and through several channels.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::channel::{Receiver, Sender};
//! use shm_pool::{Client, Provider};
//!
//! # let name = format!("doc-{}", std::process::id());
//! // The publishing process.
//! let provider = Provider::builder().build()?;
//! let mut sender = Sender::create(&provider, &name)?;
//! # let channel_name = name.clone();
//!
//! // A receiving process.
//! # let receiving = std::thread::spawn(move || {
//! # let name = channel_name;
//! let client = Client::new();
//! let mut receiver = Receiver::open(&client, &name).unwrap();
//! let message = receiver.recv().unwrap(); // read in place: a plain &[u8]
//! assert_eq!(&message[..], b"a frame");
//! # });
//!
//! // The publishing process.
//! sender.wait_for_receiver(std::time::Duration::from_secs(10))?;
//! let mut buffer = provider.alloc(7)?;
//! buffer.copy_from_slice(b"a frame");
//! sender.send(buffer.freeze())?;
//! # receiving.join().unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! # One to many
//!
//! Each receiver of a [`Publisher`] has its own ring, which it creates when it joins. A message
//! takes one slot per receiver and its payload is never copied. A receiver delays the others only
//! with [`OnFull::Wait`], and none maps another's ring.
//!
//! A receiver gets the messages sent after it joins, and optionally the last few sent before
//! ([`PublisherBuilder::history`]). It is connected when the publisher next sends, or is asked for
//! its receivers.
//!
//! # How many buffers it takes
//!
//! For messages of one size class, a publisher never waits for memory if its pool has
//!
//! ```text
//!   1                   being filled
//! + max of              waiting for receivers, all among the newest:
//!     history             kept for late receivers
//!     capacity            of each receiver with KeepLatest
//!     capacity + 1        of each receiver with Wait
//! + sum of (capacity + 1) of the receivers with DropNew, which wait although newer ones exist
//! + sum of views          the most messages that each receiver has received and not yet dropped
//! ```
//!
//! chunks. A sender takes 1 + (capacity + 1) + views.
//! [`Provider::reserve`](crate::Provider::reserve) allocates them in advance.
//!
//! # When a side closes
//!
//! When the sender is dropped, the receiver still gets what was sent, and then
//! [`RecvError::Disconnected`]. There are two exceptions: a buffer in a segment that the receiver
//! has not mapped is lost once both sender *and* provider are dropped, and a channel that no
//! receiver has opened is removed with its sender. To avoid both, call
//! [`Sender::wait_until_received`] or [`Sender::wait_for_receiver`] first.
//!
//! When a receiver is dropped, the messages that it has not received are returned at once. Those
//! that it has received are returned one by one as they are dropped, even after the sender is
//! dropped. A message outlives the provider: its bytes stay readable until it is dropped.
//!
//! # When a side dies
//!
//! The kernel rings the bell of the dead side (see `bell`). The other side gets
//! [`SendErrorKind::Disconnected`] or [`RecvError::Disconnected`] at once, or after the core dump
//! if there is one, and is woken if it sleeps. A receiver that a publisher has not connected yet
//! learns of the publisher's death within a second. A receiver first gets the messages sent before
//! the death, and a sweep keeps them as long as the receiver lives. The owner's pool reclaims the
//! buffers of a dead receiver when it needs memory, once no thread of the dead process can still
//! read them.
//!
//! A [`Sender`]'s channel serves a single receiver: after `Disconnected`, create a new channel. A
//! [`Publisher`] goes on: a receiver's seat is free again once the receiver and the last message
//! that it received are dropped, or its process is dead. The next sender of the same name replaces
//! the object of a killed one; sweeps remove it too.
//!
//! | killed | held | remains until |
//! |---|---|---|
//! | a receiver | messages, received or not | the owner's pool needs memory and no thread of the dead process can read |
//! | a receiver of a publisher | its object (`.branch`), [capacity](ReceiverBuilder::capacity) × 64 + [loans](ReceiverBuilder::loans) × 16 bytes and a page | the next receiver takes its seat, the publisher is dropped, or a sweep |
//! | a sender or publisher | its object (`.channel`) | the next one of its name, the end of its last receiver, or a sweep |
//! | the provider's process | its segments and its control object | the last receiver is dropped along with all that it received, or a sweep finds that all were killed |
//!
//! Dropping the last receiver or message removes what the dead sender left. That takes as long as
//! the system takes to free the memory, and up to 100 milliseconds more if the sender's process has
//! not exited yet.
//!
//! A receiver has at most [loans](ReceiverBuilder::loans) buffers. It maps the provider's segments,
//! 16 at most and those that they have replaced (never more than 32 plus those of messages being
//! read, whatever a sender names), and keeps one descriptor open, or two with a publisher. A
//! publisher maps the object of each of its receivers, keeps a descriptor open for it, and uses 16
//! bytes of heap per loan. A receiver also maps the first page of the provider's control object,
//! for the bell by which it reports returned memory.
//!
//! The first channel of a process starts a thread that sleeps until the process exits; the kernel
//! rings the bells when that thread ends. Two ends in one process cannot detect each other's death,
//! but they do detect each other's drop.
//!
//! # Awaiting
//!
//! [`Receiver::recv_async`], [`Sender::send_async`] and [`Sender::send_bytes_async`], and the same
//! methods of [`Publisher`], return futures for any executor; with the feature `stream`,
//! [`Receiver`] is a `Stream`. They complete as the blocking calls do, with the same errors, and
//! can be dropped at any time without loss. A task waits for several channels with its executor's
//! `select!` or with [`Receiver::poll_recv`], a thread with [`wait_any`]:
//!
//! ```no_run
//! # async fn run(mut frames: shm_pool::channel::Receiver, mut samples: shm_pool::channel::Receiver)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! loop {
//!     tokio::select! {
//!         frame = frames.recv_async() => println!("a frame of {} bytes", frame?.len()),
//!         sample = samples.recv_async() => println!("a sample of {} bytes", sample?.len()),
//!     }
//! }
//! # }
//! ```
//!
//! The first await of a process starts a helper thread, which sleeps in the kernel on the bells of
//! all awaited ends and wakes their tasks. It exits with the last such end. There is one helper per
//! 127 ends; before Linux 5.16, or where a filter forbids `futex_waitv`, one per end. A task does
//! not spin. It is polled once a second even without a message, to check that the other side still
//! exists, as a sleeping thread does.
//!
//! An end that a task awaited and a thread then waits for leaves the helper, so alternating between
//! the two costs system calls. The helper unmaps a dropped end, a moment after the drop.
//!
//! # Interrupting
//!
//! [`Receiver::interrupter`], [`Sender::interrupter`] and [`Publisher::interrupter`] return a
//! handle with which any thread can end a wait; see [`Interrupter`].
//!
//! # Waiting and priorities
//!
//! Buffers return through the pool's queues (`crossbeam_queue::ArrayQueue`), which spin without
//! yielding while another thread is in the middle of an operation on the same slot. If a thread of
//! ordinary priority is preempted there, a real-time thread on the same core that returns a buffer
//! of the same class spins until the first one runs again.

#[cfg(all(test, loom))]
#[path = "../models/awaiting.rs"]
mod awaiting_models;
mod bell;
mod borrower;
mod branch;
mod counted;
mod end;
mod error;
#[cfg(all(test, loom))]
#[path = "../models/fan_out.rs"]
mod fan_out_models;
mod futures;
mod helper;
mod interrupt;
mod layout;
mod lender;
pub(crate) mod lent;
mod meeting;
mod message;
#[cfg(all(test, loom))]
#[path = "../models/loans.rs"]
mod models;
mod object;
mod opening;
mod outlet;
pub(crate) mod outside;
mod publisher;
mod receiver;
mod returns;
mod ring;
mod rules;
mod sender;
mod wait_any;
#[cfg(all(test, loom))]
#[path = "../models/withdrawal.rs"]
mod withdrawal_models;

#[cfg(all(test, not(loom)))]
pub(crate) use layout::format;

pub use borrower::Loan;
pub use error::{ChannelError, RecvError, SendError, SendErrorKind, WaitAnyError};
pub use futures::RecvFuture;
pub use interrupt::Interrupter;
pub use message::{Inline, Message, MAX_INLINE};
pub use opening::ReceiverBuilder;
pub use outlet::ReceiverState;
pub use publisher::{Publisher, PublisherBuilder};
pub use receiver::Receiver;
pub use rules::OnFull;
pub use sender::{Sender, SenderBuilder};
pub use wait_any::wait_any;

use crate::os::futex::Deadline;
use bell::{Bell, Look, Woken};
use std::time::{Duration, Instant};

const DEFAULT_SLOTS: usize = 256;
const DEFAULT_LOANS: usize = 2048;
const DEFAULT_SPIN: Duration = Duration::from_micros(20);

/// The number of checks between two readings of the clock.
const LOOKS: usize = 64;

/// Counts, for tests, one visit to a slot or a loan.
#[inline(always)]
fn note_look() {
    #[cfg(all(test, not(loom)))]
    tests::LOOKS.set(tests::LOOKS.get() + 1);
}

/// Blocks until `is_ready` returns `true`: spins for at most `budget`, then sleeps.
fn spin(
    budget: Duration,
    bell: &Bell,
    deadline: Option<Deadline>,
    look: &mut Look,
    mut is_ready: impl FnMut() -> bool,
    is_there: impl Fn() -> bool,
) -> Woken {
    if budget.is_zero() {
        return bell.wait(deadline, look, is_ready, is_there);
    }
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if is_ready() {
                return Woken::Ready;
            }
            std::hint::spin_loop();
        }
        bell.look_for_ringer(look, &is_there);
        // What the ringer made ready before it left still counts.
        if bell.is_gone() {
            return if is_ready() { Woken::Ready } else { Woken::Gone };
        }
        let is_over = start.get_or_insert_with(Instant::now).elapsed() >= budget;
        // Past the deadline this does not sleep, but may still check that the ringer exists.
        if is_over || deadline.is_some_and(Deadline::has_passed) {
            return bell.wait(deadline, look, is_ready, is_there);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    thread_local! {
        /// How many slots and loans this thread has visited.
        pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
}
