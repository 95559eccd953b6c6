//! A channel: messages from one process to another through shared memory, for those who have no other transport.
//!
//! One sender, one receiver; in two processes or in one. A message is one cache line: the descriptor of a buffer, or up to
//! [`MAX_INLINE`] bytes. Nothing is lost, duplicated or reordered. In steady state neither side calls into the kernel: a side that
//! has to wait looks again and again for a while, and then sleeps; the other one wakes it. How long it looks is for each side to
//! say: [`SenderBuilder::spin`], [`ReceiverBuilder::spin`].
//!
//! A buffer that is sent is *lent*: the sender's process keeps its memory for the receiver, which reads in place for as long as it likes, in
//! any thread, and in any order; the memory comes back when it drops the message. A buffer may be sent several times, and by several
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
//! A sender that is dropped has sent what it has sent: the receiver gets it, and then [`RecvError::Disconnected`]. But a buffer whose segment the
//! receiver has not mapped goes when sender *and* provider are gone, and a channel that nobody has opened goes with its sender:
//! [`Sender::wait_until_received`] and [`Sender::wait_for_receiver`] are for those who are about to drop them. What a receiver has not
//! received when it is dropped comes back at once; what it has received comes back message by message, whenever that is, also
//! after the sender is gone. Bytes that are still read when the provider is dropped are the reader's for as long as it likes.
//!
//! # When a side dies
//!
//! The kernel rings for it (see `bell`): the other side gets [`SendErrorKind::Disconnected`] or [`RecvError::Disconnected`] at once, also while it
//! sleeps; if a core is dumped, when that is done. A receiver gets what was sent before first, and a sweep leaves that alone as long
//! as the receiver lives. What a dead receiver had comes back to the owner's pool when the owner needs memory, once no thread of the dead
//! process can read any more. A channel is for one sender and one receiver, once: after `Disconnected` make a new one. The object of a
//! sender that was killed makes room for the next one of that name, and sweeps remove it.
//!
//! The first channel of a process starts a thread, which sleeps as long as the process lives; the kernel rings when it ends. Two
//! ends in one process do not hear of each other's death, of course, but of each other's drop.
//!
//! # Waiting and priorities
//!
//! Buffers come back through the pool's queues (`crossbeam_queue::ArrayQueue`), which spin while another thread is in the middle of the
//! same slot, and do not yield. A thread of real-time priority that gives back to a class in which one of ordinary priority is
//! stopped half-way, on the same core, spins until that one runs again.

mod bell;
mod book;
mod borrower;
mod counted;
mod error;
mod lender;
mod message;
#[cfg(all(test, loom))]
#[path = "../models/loans.rs"]
mod models;
mod object;
mod receiver;
mod returns;
mod ring;
mod sender;

pub use borrower::Loan;
pub use error::{ChannelError, RecvError, SendError, SendErrorKind};
pub use message::{Inline, Message, MAX_INLINE};
pub use receiver::{Receiver, ReceiverBuilder};
pub use sender::{Sender, SenderBuilder};

use bell::{Bell, Deadline, Woken};
use std::time::{Duration, Instant};

const DEFAULT_SLOTS: usize = 256;
const DEFAULT_LOANS: usize = 2048;
const DEFAULT_SPIN: Duration = Duration::from_micros(20);

/// Looks between two looks at the clock.
const LOOKS: usize = 64;

/// Looks for `is_ready` for some time, and then sleeps for it.
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
        // What the ringer did before it left counts.
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
