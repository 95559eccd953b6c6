//! Channels that carry messages from one process to another through shared memory.
//!
//! | | sender | receiver |
//! |---|---|---|
//! | one to one | a [`Sender`] | a [`Receiver`]; messages sent before it opens the channel wait for it |
//! | one to many | a [`Publisher`] | up to 64 [`Subscriber`]s, which may join, leave, die and join again at any time |
//!
//! A message is one cache line: the descriptor of a buffer, or up to [`MAX_INLINE`] bytes. The sender
//! may add 16 bytes of its own, such as a time stamp and a sequence number ([`SendOptions::tag`]).
//!
//! A [`Sender`] delivers every message exactly once and in order. A [`Publisher`] may skip messages for
//! a receiver that falls behind, by that receiver's [rule](OnFull), and [counts](Message::missed) each
//! of them. A side that waits first [spins](self#spinning) if that pays. Then it sleeps until the other
//! side, or an [`Interrupter`], wakes it.
//!
//! A buffer that was sent is *borrowed*: the receiver reads it in place, for any length of time, in any
//! thread and in any order. The memory returns to the pool when the receiver, or the last of several
//! receivers, drops the message. A buffer may be sent several times and through several channels.
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
//! let mut buffer = sender.alloc(7)?;
//! buffer.copy_from_slice(b"a frame");
//! sender.send(buffer)?;
//!
//! let message = receiver.recv()?; // read in place: a plain &[u8]
//! assert_eq!(message, b"a frame");
//! # Ok(())
//! # }
//! ```
//!
//! The guide [`choosing`](crate::docs::choosing) has a program for each way to use channels.
//!
//! # One to many
//!
//! Each [`Subscriber`] of a [`Publisher`] creates a ring of its own when it joins. A message's payload
//! is never copied. A subscriber gets the messages sent after it joins, and optionally the last few
//! before ([`PublisherBuilder::history`]).
//!
//! # Many producers and one consumer
//!
//! Give each producer a channel of its own, and wait for all of them with [`wait_any`](wait_any()).
//! Producers share nothing, so one that is slow or killed disturbs no other. With names such as
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
//! A receiver is *behind* when its queue is full. Its [rule](OnFull) decides what happens then, within
//! limits that the publisher sets. [`Message::missed`] tells the receiver how many messages it lost.
//!
//! * [`OnFull::DropOldest`], the default. The receiver loses the oldest message that it has not
//!   received. No side waits. The publisher learns of it from the field `withdrawn` of [`Sent`].
//! * [`OnFull::DropNewest`]. The receiver loses the new message. No side waits. The publisher learns of
//!   it from `full`.
//! * [`OnFull::Block`]. The publisher waits, and so do its other receivers, for at most
//!   [`block_limit`](PublisherBuilder::block_limit), once. After that the receiver is *stalled*: it
//!   loses new messages until it has room again, or is [disconnected](OnStall::Disconnect) and gets
//!   [`RecvError::Evicted`]. The publisher learns of it from `stalled`.
//!
//! A receiver may also hold as many buffers as it may ([`max_borrowed`](PublisherBuilder::max_borrowed))
//! or as many bytes ([`max_bytes_per_receiver`](PublisherBuilder::max_bytes_per_receiver)). With
//! [`OnFull::DropOldest`] it then loses the buffers that it has not received, and after these the new
//! ones. With the other rules it is treated as one that is behind. The publisher learns of it from
//! `too_many_borrowed`. The receiver gets [`RecvError::TooManyBorrowed`] at once.
//!
//! A [`Sender`] has no rule: it waits, and nothing is lost.
//!
//! [`Publisher::receivers`], [`Subscriber::missed`] and [`inspect`](crate::inspect) count what each
//! receiver has missed by the same reasons. [`Publisher::disconnect`] disconnects a receiver,
//! stopped or not, and frees what it has not received.
//!
//! For comparison:
//!
//! * iceoryx2 0.10 with `enable_safe_overflow`, its default: the subscriber loses the oldest message.
//!   It does not learn of the loss. The publisher learns how many subscribers received the message.
//! * zenoh 1.10 with `CongestionControl::Drop`, its default: the publisher waits for 1 ms, and then the
//!   new message is lost. No side learns of the loss.
//! * zenoh 1.10 with `CongestionControl::Block`: the publisher waits for 5 s, and then the session with
//!   that peer closes.
//!
//! # How many buffers it takes
//!
//! [`PublisherBuilder::buffers`] and [`SenderBuilder::buffers`] return how many buffers to
//! [reserve](crate::Provider::reserve) so that sending never waits for memory.
//! [`PublisherBuilder::share_among`] sets each receiver's share of the memory.
//!
//! # When a side closes
//!
//! What was sent arrives, however the program ends: a sender or publisher may be dropped, with its
//! provider or before it, and its process may return from `main`, exit, abort or be killed. The
//! receiver gets what was sent and then [`RecvError::Disconnected`]. No message depends on a call
//! before the end; [`Sender::wait_until_received`] is for programs that report to someone else that
//! everything has arrived.
//!
//! There is one exception: a [`Sender`]'s channel that no receiver has opened is discarded with its
//! sender. A program that ends early can [wait for a receiver](Sender::wait_for_receiver).
//!
//! The pool ends with the last provider, sender or publisher. If messages are unread then, the pool's
//! segments stay in /dev/shm until the last receiver has finished. That receiver removes them, unless
//! it belongs to another user. Then they wait for a sweep by the owner's user.
//!
//! When a receiver is dropped, the messages that it has not received return at once. Each message that
//! it has received returns when it is dropped, even after sender and provider.
//!
//! # When a side dies
//!
//! The other side gets [`SendErrorKind::Disconnected`] or [`RecvError::Disconnected`] at once, or when
//! the core dump is written if there is one. A receiver that its publisher has not connected yet learns
//! of the death within a second. A receiver first gets the messages that were sent before.
//!
//! A [`Sender`]'s channel serves a single receiver. After `Disconnected`, create a new channel, which a
//! receiver with [`OnEnd::Wait`] opens. A [`Publisher`] continues. A receiver's registration is free
//! again when its process is dead, or when the receiver and the last message that it received are
//! dropped.
//!
//! What a killed process leaves:
//!
//! * **A receiver** leaves messages, received or not. They remain until the owner's pool needs memory
//!   and no thread of the dead process can read any more.
//! * **A publisher's receiver** also leaves its object (`.connection`). It remains until the next
//!   receiver takes its registration, the publisher is dropped, or a sweep.
//! * **A sender or publisher** leaves its object (`.channel`). It remains until the next one of its
//!   name is created, its last receiver ends, or a sweep. A pair's object that is still read when the
//!   name is taken is renamed (`.connection`).
//! * **The provider's process** leaves its segments and its control object. They remain until the last
//!   receiver is dropped along with all that it received. If all receivers were killed too, they
//!   remain until a sweep.
//!
//! The receiver that drops the last message of a dead sender removes what the sender left. If the
//! kernel has not torn down the sender's process yet, which takes about a second for 4 GB of private
//! memory, the drop waits for up to 100 milliseconds, and then leaves the rest to a thread. A receiving
//! end that continues with a successor does not wait for that.
//!
//! # Spinning
//!
//! A thread that waits for a channel finds what it waits for soonest if it spins, because a wake-up
//! takes some microseconds. But a spinning thread uses its CPU, on which the other side cannot run
//! meanwhile. By default a wait spins for up to 20 µs where that pays:
//!
//! * Two sides on one CPU never spin. They share one if there is only one, if they are confined to it,
//!   or if the others are busy.
//! * After spins that paid, a wait spins. After waits that slept for longer, it spins for a shorter
//!   time, and soon not at all: a slow or throttled other side costs no CPU time.
//! * A wait that slept shows whether a spin would have paid. So the first of several quick messages
//!   after a pause costs a wake-up, and the others do not.
//! * Where a wake-up takes longer than that, two sides that answer each other at once still spin a few
//!   times after a pause: once both are awake, neither has to sleep.
//!
//! [`ReceiverBuilder::spin`], [`SubscriberBuilder::spin`], [`SenderBuilder::spin`] and
//! [`PublisherBuilder::spin`] set a fixed time instead: zero to save CPU time, or
//! [`Duration::MAX`](std::time::Duration::MAX) on a CPU that has nothing else to do.
//!
//! # Restarts
//!
//! A [`Subscriber`] may be opened before its publisher, and receives from each publisher of a name,
//! one after the other. A [`Receiver`] with [`OnEnd::Wait`] does the same with senders. `recv` returns
//! the messages of all of them. [`Subscriber::recv_event`] also reports the boundary between two, as
//! [`ChannelEvent::Disconnected`] and [`ChannelEvent::Connected`].
//!
//! A restarted sender creates its channel with [`SenderBuilder::create_timeout`] or
//! [`PublisherBuilder::create_timeout`], which waits until its predecessor has ended.
//!
//! # Waiting for a name
//!
//! [`ReceiverBuilder::open_timeout`] waits until a sender has created its channel.
//! [`SubscriberBuilder::open_timeout`] waits until a publisher has room for one more subscriber. Their
//! `open_async` forms are futures. The waits use `inotify`. Where that is not available, they look for
//! the name every 10 milliseconds.
//!
//! [`Namespace::channels`](crate::Namespace::channels) returns the channels that there are. A
//! [`Watcher`] also reports changes.
//!
//! # Upgrades
//!
//! Both ends of a channel must have the same version of its layout (`docs/format.md`). If they do
//! not, no message is read wrongly, and both sides learn both versions:
//!
//! * The receiver gets [`ChannelError::OtherVersion`] when it opens the channel. If it waits for a
//!   sender or publisher, it gets that error in [`RecvError::Open`], and its next call waits for the
//!   next sender or publisher.
//! * The sender or publisher gets [`SendErrorKind::OtherVersion`] when its wait [for
//!   receivers](Publisher::wait_for_receivers) ends without enough of them. It continues for
//!   receivers of its own version.
//!
//! So a program with several processes is upgraded in any order. Messages flow again when both sides of
//! a channel have been restarted.
//!
//! # Resources
//!
//! A receiver maps the first page of the provider's control object, and the provider's segments: 16 at
//! most, and those that they have replaced. It never maps more than 32 besides those of messages that
//! are being read. It keeps one descriptor open, or two with a publisher. A publisher maps each
//! receiver's object and keeps a descriptor open for it. The first channel of a process starts a
//! thread, which sleeps until the process exits.
//!
//! # Types
//!
//! An end is one of bytes, or with the feature `zerocopy` one of a [type](Payload): a
//! `Publisher<Scan>` sends values that are written in place, and a `Subscriber<Scan>` receives values
//! that are read in place. See the module `typed`. In other languages, a sender declares a
//! [`MessageType`], and a receiver expects one.
//!
//! # Awaiting
//!
//! [`Receiver::recv_async`], [`Sender::send_async`] and [`Publisher::send_async`] return futures
//! for any executor. With the feature `stream`, [`Receiver`] and [`Subscriber`] are `Stream`s. All of
//! them can be dropped at any time without loss. To wait for several channels,
//!
//! * a task uses its executor's `select!`;
//! * a thread uses [`wait_any`];
//! * an event loop polls the descriptor of each end: [`Subscriber::wake_fd`] and
//!   [`Receiver::wake_fd`] for those that receive, [`Publisher::wake_fd`] and [`Sender::wake_fd`] for
//!   those that send.
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
mod home;
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
pub use receiving_end::{ChannelEvent, IntoIter, Iter, OnEnd, TryIter};
pub use recipient::ReceiverState;
pub use ring::OnFull;
pub use send_options::SendOptions;
pub use sender::{Sender, SenderBuilder};
pub use subscriber::{Subscriber, SubscriberBuilder};
pub use wait_any::{wait_any, Source};
pub use watch::{ChannelChange, ChannelInfo, Watcher};
