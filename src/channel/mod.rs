//! A channel carries messages from one process to another through shared memory, where there is no
//! other transport.
//!
//! It has one sender and one receiver, in two processes or in one. A message is one cache line: the
//! descriptor of a buffer, or up to [`MAX_INLINE`] bytes. Nothing is lost, duplicated or reordered.
//! A side that has to wait spins for a while, then sleeps, and the other side wakes it; in steady
//! state neither calls into the kernel. Each side sets how long it spins: [`SenderBuilder::spin`],
//! [`ReceiverBuilder::spin`].
//!
//! A buffer that is sent is *lent*: the sender's process keeps its memory for the receiver, which
//! reads it in place for as long as it likes, in any thread and in any order. The memory comes back
//! when the receiver drops the message. A buffer may be sent several times, and through several
//! channels.
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
//! # When a side leaves
//!
//! When the sender is dropped, the receiver still gets what was sent, and then
//! [`RecvError::Disconnected`]. There are two exceptions. A buffer whose segment the receiver has
//! not mapped is lost when both sender *and* provider are gone, and a channel that nobody has
//! opened goes with its sender. Before you drop them, call [`Sender::wait_until_received`] or
//! [`Sender::wait_for_receiver`].
//!
//! When the receiver is dropped, the messages that it has not received come back at once. Those
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
//! A channel serves one sender and one receiver, once: after `Disconnected`, create a new one. The
//! object of a killed sender gives way to the next sender of that name; sweeps remove it too.
//!
//! The first channel of a process starts a thread, which sleeps until the process ends; the kernel
//! rings the bells when that thread ends. Two ends in one process cannot learn of each other's
//! death, but they do learn of each other's drop.
//!
//! # Waiting and priorities
//!
//! Buffers come back through the pool's queues (`crossbeam_queue::ArrayQueue`). These spin, without
//! yielding, while another thread is in the middle of an operation on the same slot. If a thread of
//! ordinary priority is stopped there, a real-time thread on the same core that gives a buffer of
//! that class back spins until the first one runs again.

mod bell;
mod book;
mod borrower;
mod counted;
mod error;
#[cfg(all(test, loom))]
#[path = "../models/fan_out.rs"]
mod fan_out_models;
mod lane;
mod layout;
mod lender;
mod meeting;
mod message;
#[cfg(all(test, loom))]
#[path = "../models/loans.rs"]
mod models;
mod object;
mod publisher;
mod receiver;
mod returns;
mod ring;
mod rules;
mod sender;

pub use borrower::Loan;
pub use error::{ChannelError, RecvError, SendError, SendErrorKind};
pub use message::{Inline, Message, MAX_INLINE};
pub use publisher::{Publisher, PublisherBuilder, ReceiverState};
pub use receiver::{Receiver, ReceiverBuilder};
pub use rules::OnFull;
pub use sender::{Sender, SenderBuilder};

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
