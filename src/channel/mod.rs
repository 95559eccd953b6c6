//! A channel carries messages from one process to another through shared memory, where there is no
//! other transport.
//!
//! | | who sends | who receives |
//! |---|---|---|
//! | one to one | a [`Sender`] | a [`Receiver`]; what is sent before it comes waits for it |
//! | one to many | a [`Publisher`] | up to 64 [`Receiver`]s, which come, leave, die and come back as they like |
//!
//! The ends are in different processes, or in one. A message is one cache line: the descriptor of a
//! buffer, or up to [`MAX_INLINE`] bytes. From a sender nothing is lost, duplicated or reordered;
//! from a publisher, what a slow receiver loses is that receiver's [rule](OnFull), and
//! [counted](Message::missed). A side that has to wait spins for a while, then sleeps, and the
//! other side wakes it; in steady state neither calls into the kernel. Each side sets how long it
//! spins: [`SenderBuilder::spin`], [`PublisherBuilder::spin`], [`ReceiverBuilder::spin`].
//!
//! A buffer that is sent is *lent*: the sender's process keeps its memory for the receiver, which
//! reads it in place for as long as it likes, in any thread and in any order. The memory comes back
//! when the receiver drops the message, or the last one of several does. A buffer may be sent
//! several times, and through several channels.
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
//! Each receiver of a [`Publisher`] has a ring of its own, which it makes when it comes. So a
//! message takes one slot for each receiver and its payload is not copied; no receiver waits for
//! another, except for one with [`OnFull::Wait`]; and none has another's ring mapped.
//!
//! A receiver that comes gets what is sent from then on, or also the last few messages
//! ([`PublisherBuilder::history`]). It is met when the publisher next sends, or is asked for its
//! receivers.
//!
//! # How many buffers it takes
//!
//! So that a publisher never waits for memory, its pool has to have, for messages of one size
//! class,
//!
//! ```text
//!   1                   being filled
//! + max of              that wait for receivers, all of them among the newest:
//!     history             what late receivers get
//!     capacity            of each receiver with KeepLatest
//!     capacity + 1        of each receiver with Wait
//! + sum of (capacity + 1) of the receivers with DropNew, which wait although newer ones exist
//! + sum of views          the most messages that each receiver has at a time, received and not dropped
//! ```
//!
//! chunks. A sender takes 1 + (capacity + 1) + views.
//! [`Provider::reserve`](crate::Provider::reserve) has them ready.
//!
//! # When a side leaves
//!
//! When the sender is dropped, the receiver still gets what was sent, and then
//! [`RecvError::Disconnected`]. There are two exceptions. A buffer whose segment the receiver has
//! not mapped is lost when both sender *and* provider are gone, and a channel that nobody has
//! opened goes with its sender. Before you drop them, call [`Sender::wait_until_received`] or
//! [`Sender::wait_for_receiver`].
//!
//! When a receiver is dropped, the messages that it has not received come back at once. Those
//! that it has received come back one by one as they are dropped, even after the sender is gone.
//! Bytes that are being read when the provider is dropped stay the reader's for as long as it
//! likes.
//!
//! # When a side dies
//!
//! The kernel rings for the dead side (see `bell`). The other side gets
//! [`SendErrorKind::Disconnected`] or [`RecvError::Disconnected`] at once, or after the core dump
//! if there is one; if it sleeps, it is woken. A receiver first gets what was sent before, and a
//! sweep leaves that alone as long as the receiver lives. What a dead receiver held comes back to
//! the owner's pool when the owner needs memory, once no thread of the dead process can read any
//! more.
//!
//! A [`Sender`]'s channel serves one receiver, once: after `Disconnected`, create a new one. A
//! [`Publisher`] goes on: the place of a receiver that is gone is free at once. The object of a
//! killed sender gives way to the next sender of that name; sweeps remove it too.
//!
//! | who is killed | what it had | what is left until when |
//! |---|---|---|
//! | a receiver | messages, received or not | comes back to the owner's pool when that needs memory, once no thread of the dead process can read |
//! | a receiver of a publisher | its object (`.branch`), [capacity](ReceiverBuilder::capacity) × 64 + [loans](ReceiverBuilder::loans) × 16 bytes and a page | until the next receiver takes its seat, the publisher is dropped, or a sweep |
//! | a sender or publisher | its object (`.channel`) | until the next one of its name, or a sweep |
//! | the provider's process | its segments and its control object | until a sweep finds no receiver that may still have to map them |
//!
//! A receiver has at most [loans](ReceiverBuilder::loans) buffers; it maps the provider's segments,
//! 16 at most, and keeps a descriptor open, or two with a publisher. A publisher maps the object of
//! each of its receivers and keeps a descriptor open for it, and has 8 bytes of heap for each loan.
//!
//! The first channel of a process starts a thread, which sleeps until the process ends; the kernel
//! rings the bells when that thread ends. Two ends in one process cannot learn of each other's
//! death, but they do learn of each other's drop.
//!
//! # Awaiting
//!
//! [`Receiver::recv_async`], [`Sender::send_async`] and [`Sender::send_bytes_async`], and the same
//! of a [`Publisher`], are futures for any executor, and [`Receiver`] is a `Stream` with the
//! feature `stream`. They end as the blocking calls do, with the same errors, and can be dropped at
//! any time without loss. One task waits for several channels with its executor's `select!`, or
//! with [`Receiver::poll_recv`]; a thread with [`wait_any`]:
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
//! The first await of a process starts a thread, which sleeps in the kernel on the bells of all
//! ends that are awaited and wakes their tasks. It ends with the last such end. There is one for
//! each 127 ends. Before Linux 5.16, or where a filter forbids `futex_waitv`, there is one for each
//! end. A task does not spin, and is polled once a second without need: it looks whether the other
//! side is still there, as a thread that sleeps does.
//!
//! An end that was awaited and is then waited for in a thread leaves the helper: going to and fro
//! between the two costs system calls. An end that is dropped is unmapped by the helper, a moment
//! later.
//!
//! # Interrupting
//!
//! [`Receiver::interrupter`], [`Sender::interrupter`] and [`Publisher::interrupter`] give a handle
//! by which any thread ends a wait, see [`Interrupter`].
//!
//! # Waiting and priorities
//!
//! Buffers come back through the pool's queues (`crossbeam_queue::ArrayQueue`). These spin, without
//! yielding, while another thread is in the middle of an operation on the same slot. If a thread of
//! ordinary priority is stopped there, a real-time thread on the same core that gives a buffer of
//! that class back spins until the first one runs again.

#[cfg(all(test, loom))]
#[path = "../models/awaiting.rs"]
mod awaiting_models;
mod bell;
mod book;
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

#[cfg(all(test, not(loom)))]
pub(crate) use layout::format;

pub use borrower::Loan;
pub use error::{ChannelError, RecvError, SendError, SendErrorKind, WaitAnyError};
pub use futures::{RecvFuture, SendBytesFuture, SendFuture};
pub use interrupt::Interrupter;
pub use message::{Inline, Message, MAX_INLINE};
pub use opening::ReceiverBuilder;
pub use outlet::ReceiverState;
pub use publisher::{Publisher, PublisherBuilder};
pub use receiver::Receiver;
pub use rules::OnFull;
pub use sender::{Sender, SenderBuilder};
pub use wait_any::wait_any;

use crate::os::deadline::Deadline;
use bell::{Bell, Woken};
use std::time::{Duration, Instant};

const DEFAULT_SLOTS: usize = 256;
const DEFAULT_LOANS: usize = 2048;
const DEFAULT_SPIN: Duration = Duration::from_micros(20);

/// How often to look before reading the clock again.
const LOOKS: usize = 64;

/// Spins until `is_ready`, for `budget` at most, and then sleeps until it is.
fn spin(
    budget: Duration,
    bell: &Bell,
    deadline: Option<Deadline>,
    mut is_ready: impl FnMut() -> bool,
    is_there: impl Fn() -> bool,
) -> Woken {
    if budget.is_zero() {
        return bell.wait(deadline, is_ready, is_there);
    }
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if is_ready() {
                return Woken::Ready;
            }
            std::hint::spin_loop();
        }
        // What the ringer did before it left still counts.
        if bell.is_gone() {
            return if is_ready() { Woken::Ready } else { Woken::Gone };
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= budget {
            return bell.wait(deadline, is_ready, is_there);
        }
        if deadline.is_some_and(Deadline::has_passed) {
            return Woken::TimedOut;
        }
    }
}
