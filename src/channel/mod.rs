//! Channels that carry messages from one process to another through shared memory.
//!
//! | | sender | receiver |
//! |---|---|---|
//! | one to one | a [`Sender`] | a [`Receiver`]; messages sent before it opens the channel wait for it |
//! | one to many | a [`Publisher`] | up to 64 [`Subscriber`]s, which may join, leave, die and rejoin at any time |
//!
//! A message is one cache line: the descriptor of a buffer, or up to [`MAX_INLINE`] bytes. With
//! it travel, if the sender wants, 16 bytes of its own, such as a time stamp and a sequence number
//! ([`SendOptions::tag`]). A [`Sender`] loses, duplicates or reorders nothing. With a [`Publisher`], a slow receiver loses
//! what its [rule](OnFull) says, and the loss is [counted](Message::missed). A side that waits
//! [spins](self#spinning) for a while if that pays, and then sleeps until the other side wakes it,
//! or an [`Interrupter`].
//!
//! A sent buffer is *borrowed*: the receiver reads it in place, for any length of time, in any
//! thread and in any order. The memory returns to the pool when the receiver, or the last of
//! several, drops the message. A buffer may be sent several times and through several channels.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::channel::{Receiver, Sender};
//! use shm_pool::Provider;
//!
//! # let name = format!("doc-{}", std::process::id());
//! let provider = Provider::builder().build()?;
//! let mut sender = Sender::create(&provider, &name)?;
//! let mut receiver = Receiver::open(&name)?; // in another process
//!
//! let mut buffer = provider.alloc(7)?;
//! buffer.copy_from_slice(b"a frame");
//! sender.send(buffer.freeze())?;
//!
//! let message = receiver.recv()?; // read in place: a plain &[u8]
//! assert_eq!(&message[..], b"a frame");
//! # Ok(())
//! # }
//! ```
//!
//! # One to many
//!
//! Each [`Subscriber`] of a [`Publisher`] creates its own ring when it joins; a message's payload is
//! never copied. It gets the messages sent after it joins, and optionally the last few before
//! ([`PublisherBuilder::history`]).
//!
//! # Many producers and one consumer
//!
//! Give each producer a channel of its own, and wait for all of them with [`wait_any`](wait_any()):
//! producers share nothing, so one that is slow or killed disturbs no other. With names such as
//! `work/1` and `work/2`, [`Namespace::channels`](crate::Namespace::channels) or a [`Watcher`] finds
//! them. A complete program is `examples/many_producers.rs`.
//!
//! # Request and response
//!
//! Give each client two channels: a [`Sender`] for its requests, and a [`Receiver`] for the
//! responses, which come in the order of the requests. Each side learns when the other one ends or
//! dies. A complete program is `examples/request_response.rs`.
//!
//! # Slow and stopped receivers
//!
//! When a receiver falls behind, holds as many messages as it may, or is stopped, its
//! [rule](OnFull) decides, within limits that the publisher sets:
//!
//! | rule | who waits | what is lost | the publisher learns | the receiver learns |
//! |---|---|---|---|---|
//! | [`OnFull::DropOldest`], the default | no side | the oldest message that it has not received | [`Sent::withdrawn`] | [`Message::missed`] |
//! | [`OnFull::DropNewest`] | no side | the new message, for this receiver | [`Sent::full`] | [`Message::missed`] |
//! | [`OnFull::Block`] | the publisher, and so the other receivers, for [`block_limit`](PublisherBuilder::block_limit), once | nothing within the limit; then the new message, for this receiver, or [the receiver](OnStall::Disconnect) | [`Sent::stalled`] | [`Message::missed`], or [`RecvError::Evicted`] |
//! | any, and it holds its [`max_borrowed`](PublisherBuilder::max_borrowed) or [bytes](PublisherBuilder::max_bytes_per_receiver) | with [`OnFull::Block`] as above | with [`OnFull::DropOldest`] the buffers that it has not received, then the new one; with [`OnFull::DropNewest`] the new one | [`Sent::too_many_borrowed`] | [`RecvError::TooManyBorrowed`] at once, and [`Message::missed`] |
//! | none: a [`Sender`] | the sender | nothing | | |
//! | iceoryx2 0.10, `enable_safe_overflow`, its default | no side | the oldest message | how many received it | nothing |
//! | zenoh 1.10, `CongestionControl::Drop`, its default | the publisher, 1 ms | the new message | nothing | nothing |
//! | zenoh, `Block` | the publisher, 5 s | then the session with that peer | nothing | that the session closed |
//!
//! [`Publisher::receivers`], [`Subscriber::missed`] and [`inspect`](crate::inspect) count what each
//! receiver has missed by the same reasons. [`Publisher::disconnect`] disconnects a receiver,
//! stopped or not, and frees what it has not received.
//!
//! # How many buffers it takes
//!
//! [`PublisherBuilder::buffers`] and [`SenderBuilder::buffers`] return with how many buffers an end
//! never waits for memory, for [`Provider::reserve`](crate::Provider::reserve); the former also
//! sets each receiver's share.
//!
//! # When a side closes
//!
//! What was sent arrives, however the program ends: a sender or publisher may be dropped, with its
//! provider or before it, and its process may return from `main`, exit, abort or be killed. The
//! receiver gets what was sent and then [`RecvError::Disconnected`]. No message depends on a call
//! before the end; [`Sender::wait_until_received`] is for programs that report to someone else that
//! everything has arrived. One exception: a [`Sender`]'s channel that no receiver has opened is
//! discarded with its sender, so a program may [wait for one](Sender::wait_for_receiver).
//!
//! The pool ends with the last provider, sender or publisher. If messages are unread then, its
//! segments stay in /dev/shm until the last receiver has finished, which removes them. A receiver
//! of another user cannot: they wait for a sweep by the owner's user.
//!
//! When a receiver is dropped, the messages that it has not received are returned at once, and each
//! received one when it is dropped, even after sender and provider.
//!
//! # When a side dies
//!
//! The other side gets [`SendErrorKind::Disconnected`] or [`RecvError::Disconnected`] at once, or
//! after the core dump if there is one; a receiver that its publisher has not connected yet, within
//! a second. A receiver first gets the messages sent before.
//!
//! A [`Sender`]'s channel serves a single receiver: after `Disconnected`, create a new channel, which
//! a receiver with [`OnEnd::Wait`] opens. A [`Publisher`] goes on: a receiver's registration is free again once
//! its process is dead, or the receiver and the last message that it received are dropped.
//!
//! | killed | held | remains until |
//! |---|---|---|
//! | a receiver | messages, received or not | the owner's pool needs memory and no thread of the dead process can read |
//! | a receiver of a publisher | its object (`.connection`) | the next receiver takes its registration, the publisher is dropped, or a sweep |
//! | a sender or publisher | its object (`.channel`) | the next one of its name (a pair's that is still read is renamed, `.connection`), the end of its last receiver, or a sweep |
//! | the provider's process | its segments and its control object | the last receiver is dropped along with all that it received, or a sweep finds that all were killed |
//!
//! Dropping the last receiver or message removes what the dead sender left. If the kernel has not
//! torn down the sender's process yet, which takes about a second for 4 GB of private memory, the
//! drop waits for up to 100 milliseconds, and then leaves the rest to a thread. A receiving end that
//! goes on to a successor does not wait for that.
//!
//! # Spinning
//!
//! A thread that waits for a channel finds what it waits for soonest if it spins; a wake-up takes
//! some microseconds. But it uses its CPU meanwhile, and on that CPU the other side cannot run. By
//! default a wait spins for up to 20 µs where that pays:
//!
//! * Two sides on one CPU never spin, whether there is only one, they are confined to it, or the
//!   others are busy.
//! * After spins that paid, a wait spins. After waits that slept for longer, it spins for a shorter
//!   time, and soon not at all: a slow or throttled other side costs no CPU time.
//! * A wait that slept shows whether a spin would have paid. So the first of several quick messages
//!   after a pause costs a wake-up, and the others do not.
//!
//! [`ReceiverBuilder::spin`], [`SubscriberBuilder::spin`], [`SenderBuilder::spin`] and
//! [`PublisherBuilder::spin`] set a fixed
//! time instead: none to save CPU time, [`Duration::MAX`](std::time::Duration::MAX) on a CPU that
//! has nothing else to do.
//!
//! # Restarts
//!
//! A [`Subscriber`] may be opened before its publisher, and receives from each publisher of a name,
//! one after the other. So does a [`Receiver`] with [`OnEnd::Wait`] from each sender. `recv` returns
//! the messages of all; [`Subscriber::recv_event`] also reports the boundary between two, as
//! [`ChannelEvent::Disconnected`] and [`ChannelEvent::Connected`].
//!
//! A restarted sender creates its channel with [`SenderBuilder::create_timeout`] or
//! [`PublisherBuilder::create_timeout`], which waits until its predecessor has ended.
//!
//! [`Namespace::channels`](crate::Namespace::channels) returns the channels that there are; a [`Watcher`] also reports changes.
//!
//! # Upgrades
//!
//! Both ends of a channel must have the same version of its layout (`docs/format.md`). If they do
//! not, no message is read wrongly, and both sides learn both versions:
//!
//! * the receiver gets [`ChannelError::OtherVersion`] when it opens the channel, or in
//!   [`RecvError::Open`] if it waits for a sender or publisher; then it waits for the next one;
//! * the sender or publisher gets [`SendErrorKind::OtherVersion`] when its wait
//!   [for receivers](Publisher::wait_for_receivers) ends without enough of them, and
//!   [`Publisher::refused_version`] at any time. It goes on for receivers of its own version.
//!
//! So a program with several processes is upgraded in any order; messages flow again when both
//! sides of a channel have been restarted.
//!
//! # Resources
//!
//! A receiver maps the provider's segments, 16 at most and those that they have replaced (never
//! more than 32 plus those of messages being read), and the first page of its control object. It
//! keeps one descriptor open, or two with a publisher. A publisher maps each receiver's object and
//! keeps a descriptor open for it. The first channel of a process starts a thread, which sleeps
//! until the process exits.
//!
//! # Types
//!
//! An end is one of bytes, or with the feature `zerocopy` of one [type](Payload): a
//! `Publisher<Scan>` sends values, written in place, and a `Subscriber<Scan>` receives them, read in
//! place. See the module `typed`. Other languages declare a [`MessageType`], and expect one.
//!
//! # Awaiting
//!
//! [`Receiver::recv_async`], [`Sender::send_async`] and [`Publisher::send_async`] return futures
//! for any executor; with the feature `stream`, [`Receiver`] and [`Subscriber`] are `Stream`s. They can be dropped at
//! any time without loss. A task waits for several channels with its executor's `select!`, a thread
//! with [`wait_any`], an event loop with the [descriptor](Subscriber::wake_fd) of each end
//! ([`Receiver::poll_recv`], [`Sender::poll_ready`], [`Publisher::poll_ready`]).
//!
//! A [helper thread](crate::docs::limits) sleeps for the awaited ends of the process. A task does
//! not spin. Alternating between awaiting an end and waiting for it in a thread costs system calls.

mod account_holder;
#[cfg(all(test, loom))]
#[path = "../models/awaiting.rs"]
mod awaiting_models;
mod backlog;
mod borrowed;
mod connection;
mod doorbell;
mod error;
mod fan_out;
#[cfg(all(test, loom))]
#[path = "../models/fan_out.rs"]
mod fan_out_models;
mod handle;
mod interrupt;
mod layout;
mod ledger;
mod message;
#[cfg(all(test, loom))]
#[path = "../models/borrowed.rs"]
mod models;
mod object;
mod options;
pub(crate) mod outside;
mod parker;
mod payload;
mod publisher;
mod receiver;
mod receiving_end;
mod recipient;
mod return_queue;
mod ring;
mod send_options;
mod sender;
mod spin;
mod subscriber;
#[cfg(feature = "zerocopy")]
pub mod typed;
mod wait_any;
mod watch;
#[cfg(all(test, loom))]
#[path = "../models/withdrawal.rs"]
mod withdrawal_models;

#[cfg(all(test, not(loom)))]
pub(crate) use layout::format;

pub use crate::protocol::ids::ReceiverId;
pub use error::{ChannelError, RecvError, SendError, SendErrorKind};
pub use interrupt::Interrupter;
pub use layout::MessageType;
pub use message::{Missed, Sent, MAX_INLINE};
pub use payload::Payload;
pub use publisher::{OnStall, Publisher, PublisherBuilder};
pub use receiver::{Message, Receiver, ReceiverBuilder};
pub use receiving_end::{ChannelEvent, IntoIter, Iter, OnEnd, RecvFuture, TryIter};
pub use recipient::ReceiverState;
pub use ring::OnFull;
pub use send_options::SendOptions;
pub use sender::{Sender, SenderBuilder};
pub use subscriber::{Subscriber, SubscriberBuilder};
pub use wait_any::{wait_any, Source};
pub use watch::{ChannelChange, ChannelInfo, Watcher};
