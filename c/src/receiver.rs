//! The receiving end of channels.

use crate::channel::{c_name, on_full, on_full_value, Interrupter, Missed, Tag};
use crate::client::Client;
use crate::finalize::destroy;
use crate::message_type::MessageType;
use crate::status::{guard, guard_value, Failure, Status};
use crate::value::{
    check_reserved, content, create, create_listed, size_option, take, text, time_option, timeout,
    value, Required, Value, SHM_POOL_FOREVER,
};
use shm_pool::channel::{self, ChannelEvent, OnEnd, OnFull, RecvError, Source};
use std::ffi::{c_char, c_int, CString};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;

/// In options: a receiver returns `DISCONNECTED` when the other side has ended.
pub const SHM_POOL_RETURN: u64 = 1;

/// In options: a receiver waits for the successor when the other side has ended.
pub const SHM_POOL_WAIT: u64 = 2;

/// An event: a message.
pub const SHM_POOL_EVENT_MESSAGE: u64 = 1;

/// An event: the channel of a sender or publisher was opened.
pub const SHM_POOL_EVENT_CONNECTED: u64 = 2;

/// An event: the sender or publisher has closed or died, and everything that it sent has been received.
pub const SHM_POOL_EVENT_DISCONNECTED: u64 = 3;

/// Receives the messages of a sender, if `shm_pool_receiver_open` has opened it, or of a publisher, if
/// `shm_pool_subscriber_open` has.
///
/// Thread safety: any thread may use it, one at a time. An interrupter works from other threads
/// and from signal handlers.
pub struct Receiver {
    end: End,
    name: CString,
}

enum End {
    Receiver(channel::Receiver),
    Subscriber(channel::Subscriber),
}

macro_rules! each {
    ($end:expr, $inner:ident => $call:expr) => {
        match $end {
            End::Receiver($inner) => $call,
            End::Subscriber($inner) => $call,
        }
    };
}

fn on_end(value: u64) -> Result<Option<OnEnd>, Failure> {
    Ok(Some(match value {
        0 => return Ok(None),
        SHM_POOL_RETURN => OnEnd::Return,
        SHM_POOL_WAIT => OnEnd::Wait,
        _ => {
            return Err(Failure::new(
                Status::InvalidArgument,
                format!("option on_end is {value}, which is no rule"),
            ))
        }
    }))
}

/// Options of a sender's receiver. Initialise it with zeros: 0 means the default, and `SHM_POOL_ZERO`
/// the number 0.
#[repr(C)]
pub struct ReceiverOptions {
    /// How long a receive spins before it sleeps, in nanoseconds; by default up to 20,000, where
    /// that pays.
    pub spin_ns: u64,
    /// What happens when the sender has ended: `SHM_POOL_RETURN`, the default, or `SHM_POOL_WAIT`.
    /// With the latter, the channel may also be opened before there is a sender.
    pub on_end: u64,
    /// The type of messages that it expects: it opens no channel of another, or of none. Default: any
    /// channel.
    pub message_type: MessageType,
    /// Must be 0.
    pub reserved: [u64; 4],
}

/// Options of a publisher's subscriber, whose defaults and limits are the publisher's options.
/// Initialise it with zeros: 0 means the default, and `SHM_POOL_ZERO` the number 0.
#[repr(C)]
pub struct SubscriberOptions {
    /// How many messages this subscriber may be behind.
    pub capacity: u64,
    /// How many buffers it may hold at a time, received or not.
    pub max_borrowed: u64,
    /// What happens when it is behind: `SHM_POOL_BLOCK`, `SHM_POOL_DROP_NEWEST` or
    /// `SHM_POOL_DROP_OLDEST`.
    pub on_full: u64,
    /// How long a receive spins before it sleeps, in nanoseconds; by default up to 20,000, where
    /// that pays.
    pub spin_ns: u64,
    /// What happens when the publisher has ended: `SHM_POOL_WAIT`, the default, or
    /// `SHM_POOL_RETURN`.
    pub on_end: u64,
    /// The type of messages that it expects: it opens no channel of another, or of none. Default: any
    /// channel.
    pub message_type: MessageType,
    /// Must be 0.
    pub reserved: [u64; 4],
}

/// What `shm_pool_receiver_recv_event` returns.
#[repr(C)]
pub struct Event {
    /// `SHM_POOL_EVENT_MESSAGE`, `SHM_POOL_EVENT_CONNECTED` or `SHM_POOL_EVENT_DISCONNECTED`. Later
    /// versions may have more.
    pub kind: u64,
    /// With `SHM_POOL_EVENT_CONNECTED`, the id of the provider of the messages: a restarted process has
    /// a new one. Otherwise 0.
    pub provider: u64,
}

fn receiver_builder(
    options: Option<&ReceiverOptions>,
) -> Result<channel::ReceiverBuilder, Failure> {
    let mut builder = channel::Receiver::builder();
    let Some(options) = options else {
        return Ok(builder);
    };
    check_reserved(&options.reserved)?;
    if let Some(spin) = time_option(options.spin_ns) {
        builder = builder.spin(spin);
    }
    if let Some(on_end) = on_end(options.on_end)? {
        builder = builder.on_end(on_end);
    }
    if let Some(message_type) = options.message_type.get()? {
        builder = builder.message_type(message_type);
    }
    Ok(builder)
}

pub(crate) fn subscriber_builder(
    options: Option<&SubscriberOptions>,
) -> Result<channel::SubscriberBuilder, Failure> {
    let mut builder = channel::Subscriber::builder();
    let Some(options) = options else {
        return Ok(builder);
    };
    check_reserved(&options.reserved)?;
    if let Some(capacity) = size_option(options.capacity) {
        builder = builder.capacity(capacity);
    }
    if let Some(max_borrowed) = size_option(options.max_borrowed) {
        builder = builder.max_borrowed(max_borrowed);
    }
    if let Some(rule) = on_full(options.on_full)? {
        builder = builder.on_full(rule);
    }
    if let Some(spin) = time_option(options.spin_ns) {
        builder = builder.spin(spin);
    }
    if let Some(on_end) = on_end(options.on_end)? {
        builder = builder.on_end(on_end);
    }
    if let Some(message_type) = options.message_type.get()? {
        builder = builder.message_type(message_type);
    }
    Ok(builder)
}

/// A received message: a buffer of the sender, read in place, or the bytes of a slot. A value, as
/// `shm_pool_buf_mut` is.
///
/// A buffer stays borrowed until the message is dropped.
///
/// Thread safety: any number of threads may read it at a time; one at a time may drop it.
#[repr(C)]
pub struct Message {
    opaque: [MaybeUninit<u64>; 10],
}
value!(Message: channel::Message);

impl Message {
    fn empty() -> Self {
        // Zeros are an empty handle.
        Self {
            opaque: [MaybeUninit::zeroed(); 10],
        }
    }
}

/// Opens the channel `name` of a sender.
///
/// `client`: says where to look, and which user to trust; NULL for the defaults. May be destroyed before
/// the receiver.
/// `name`: the channel's name.
/// `options`: NULL for the defaults. Not kept.
/// `timeout_ns`: how long to wait for the channel to appear, in nanoseconds: 0 does not wait,
/// `SHM_POOL_FOREVER` has no limit.
/// `receiver`: set to the new receiver, which the caller owns and destroys with
/// `shm_pool_receiver_destroy`; NULL after an error.
///
/// Errors: `NOT_FOUND`, `NOT_READY`, `CLOSED`, `HAS_RECEIVER`; `NOT_A_SENDER` if it is a publisher's;
/// `OTHER_VERSION`, `NOT_USABLE`, `WRONG_UID`, `TOO_MANY_ENDS`, `OS`, `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `name` is NULL, or ends with a NUL.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_receiver_open(
    client: Option<&Client>,
    name: *const c_char,
    options: Option<&ReceiverOptions>,
    timeout_ns: u64,
    receiver: Option<&mut MaybeUninit<Option<Box<Receiver>>>>,
) -> Status {
    guard(|| {
        create_listed(receiver, "receiver", || {
            // SAFETY: by this function's contract.
            let name = unsafe { text(name, "name")? }.required("name")?;
            let builder = receiver_builder(options)?.namespace(&Client::namespace(client));
            let end = match timeout_ns {
                0 => builder.open(name)?,
                _ => builder.open_timeout(name, timeout(timeout_ns))?,
            };
            Ok(Receiver {
                end: End::Receiver(end),
                name: c_name(name),
            })
        })
    })
}

/// Opens the channel `name` of a publisher. Without a timeout, there need not be a publisher yet: the
/// subscriber then joins it while it receives.
///
/// `client`, `name`, `options`: as for `shm_pool_receiver_open`.
/// `timeout_ns`: how long to wait for a publisher with room for it, in nanoseconds; with 0, this
/// succeeds without one. `SHM_POOL_FOREVER` has no limit.
/// `subscriber`: set to the new receiver, which the caller owns and destroys with
/// `shm_pool_receiver_destroy`; NULL after an error.
///
/// Errors: after a timeout, `NOT_FOUND`, `NOT_READY`, `CLOSED`, `TOO_MANY_RECEIVERS`;
/// `BLOCKING_NOT_ALLOWED`; `NOT_A_PUBLISHER` if it is a sender's; `OTHER_VERSION`, `NOT_USABLE`, `WRONG_UID`,
/// `TOO_MANY_ENDS`, `OS`, `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `name` is NULL, or ends with a NUL.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_subscriber_open(
    client: Option<&Client>,
    name: *const c_char,
    options: Option<&SubscriberOptions>,
    timeout_ns: u64,
    subscriber: Option<&mut MaybeUninit<Option<Box<Receiver>>>>,
) -> Status {
    guard(|| {
        create_listed(subscriber, "subscriber", || {
            // SAFETY: by this function's contract.
            let name = unsafe { text(name, "name")? }.required("name")?;
            let builder = subscriber_builder(options)?.namespace(&Client::namespace(client));
            let end = match timeout_ns {
                0 => builder.open(name)?,
                _ => builder.open_timeout(name, timeout(timeout_ns))?,
            };
            Ok(Receiver {
                end: End::Subscriber(end),
                name: c_name(name),
            })
        })
    })
}

/// Destroys a receiver. Messages that it has received stay valid.
///
/// `receiver`: consumed, and its descriptor closed: remove that from the event loop before. NULL is
/// allowed.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_destroy(receiver: Option<Box<Receiver>>) {
    guard_value((), || destroy(receiver));
}

/// Receives the next message.
///
/// `timeout_ns`: how long to wait, in nanoseconds: 0 does not wait, `SHM_POOL_FOREVER` has no limit.
/// `message`: overwritten. The caller owns it, and drops it. Empty after an error.
///
/// Errors: `EMPTY` without a wait; `TIMED_OUT`, `INTERRUPTED`; with `SHM_POOL_RETURN`, `DISCONNECTED`
/// if the sender or publisher has closed or died, and everything it sent has been received; `EVICTED` if
/// the publisher has disconnected this receiver; `TOO_MANY_BORROWED`, once for each message that was
/// skipped, or waits, because this receiver holds as many buffers, or bytes, as it may: drop some; `OS`
/// if a resource has run out: the message stays queued; `MESSAGE_LOST`: receive again, the next message
/// may be good; `NOT_CONNECTED`; with `SHM_POOL_WAIT`, the errors of opening a successor's channel, such
/// as `TYPE_MISMATCH`; `NO_HELPER`; `FORKED`; `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_recv(
    receiver: Option<&mut Receiver>,
    timeout_ns: u64,
    message: Option<&mut MaybeUninit<Message>>,
) -> Status {
    guard(|| {
        Message::fill(message, "message", || {
            let end = &mut receiver.required("receiver")?.end;
            Ok(each!(end, end => match timeout_ns {
                0 => end.try_recv()?,
                SHM_POOL_FOREVER => end.recv()?,
                _ => end.recv_timeout(timeout(timeout_ns))?,
            }))
        })
    })
}

/// Receives the next event: a message as `shm_pool_receiver_recv` does, or that the channel of a sender
/// or publisher was opened, or has ended.
///
/// `timeout_ns`: as for `shm_pool_receiver_recv`.
/// `event`: overwritten; not after an error.
/// `message`: overwritten. With `SHM_POOL_EVENT_MESSAGE` the caller owns it, and drops it; otherwise, and
/// after an error, it is empty.
///
/// Errors: those of `shm_pool_receiver_recv`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_recv_event(
    receiver: Option<&mut Receiver>,
    timeout_ns: u64,
    event: Option<&mut MaybeUninit<Event>>,
    message: Option<&mut MaybeUninit<Message>>,
) -> Status {
    guard(|| {
        let out = message.required("message")?;
        let message = out.write(Message::empty());
        let out = event.required("event")?;
        let end = &mut receiver.required("receiver")?.end;
        let received = each!(end, end => match timeout_ns {
            0 => end.try_recv_event()?,
            SHM_POOL_FOREVER => end.recv_event()?,
            _ => end.recv_event_timeout(timeout(timeout_ns))?,
        });
        let mut event = Event {
            kind: 0,
            provider: 0,
        };
        match received {
            ChannelEvent::Message(content) => {
                event.kind = SHM_POOL_EVENT_MESSAGE;
                message.put(content);
            }
            ChannelEvent::Connected(provider) => {
                event.kind = SHM_POOL_EVENT_CONNECTED;
                event.provider = u64::from(provider);
            }
            ChannelEvent::Disconnected => event.kind = SHM_POOL_EVENT_DISCONNECTED,
            _ => {}
        }
        out.write(event);
        Ok(())
    })
}

/// Returns the name of a receiver's channel; NULL if `receiver` is NULL.
///
/// Owner: the receiver. Valid until it is destroyed.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_name(receiver: Option<&Receiver>) -> *const c_char {
    match receiver {
        Some(receiver) => receiver.name.as_ptr(),
        None => ptr::null(),
    }
}

/// Returns `true` if the sender or publisher is there and knows this receiver. A publisher does when it
/// next sends, waits for receivers, or serves joins.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_is_connected(receiver: Option<&Receiver>) -> bool {
    guard_value(false, || match receiver {
        Some(receiver) => each!(&receiver.end, end => end.is_connected()),
        None => false,
    })
}

/// Returns the id of the provider of the messages; 0 while there is no sender or publisher.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_provider(receiver: Option<&Receiver>) -> u64 {
    guard_value(0, || {
        let provider = match receiver {
            Some(receiver) => each!(&receiver.end, end => end.provider()),
            None => None,
        };
        provider.map_or(0, u64::from)
    })
}

/// Returns how many unreceived messages the channel can hold; 0 while there is no sender or publisher.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_capacity(receiver: Option<&Receiver>) -> usize {
    guard_value(0, || match receiver {
        Some(receiver) => each!(&receiver.end, end => end.capacity()),
        None => 0,
    })
}

/// Returns how many buffers this receiver may hold at a time; 0 while there is no sender or publisher.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_max_borrowed(receiver: Option<&Receiver>) -> usize {
    guard_value(0, || match receiver {
        Some(receiver) => each!(&receiver.end, end => end.max_borrowed()),
        None => 0,
    })
}

/// Returns what happens when `shm_pool_receiver_capacity` messages are waiting: `SHM_POOL_BLOCK` and
/// others; 0 while there is no sender or publisher.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_on_full(receiver: Option<&Receiver>) -> u64 {
    guard_value(0, || {
        let rule = match receiver {
            Some(receiver) => match &receiver.end {
                // A sender waits, and loses nothing.
                End::Receiver(end) => end.provider().map(|_| OnFull::Block),
                End::Subscriber(end) => end.on_full(),
            },
            None => None,
        };
        rule.map_or(0, on_full_value)
    })
}

/// Reads how many messages of the present publisher this receiver has missed.
///
/// `missed`: overwritten; not after an error.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_missed(
    receiver: Option<&Receiver>,
    missed: Option<&mut MaybeUninit<Missed>>,
) -> Status {
    guard(|| {
        let missed = missed.required("missed")?;
        let receiver = receiver.required("receiver")?;
        let counted = match &receiver.end {
            End::Receiver(_) => channel::Missed::default(),
            End::Subscriber(end) => end.missed(),
        };
        missed.write(counted.into());
        Ok(())
    })
}

/// Reads the type of messages that the sender or publisher has declared.
///
/// `message_type`: overwritten: with an empty name if none is declared, or the channel is not open; not
/// after an error.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_message_type(
    receiver: Option<&Receiver>,
    message_type: Option<&mut MaybeUninit<MessageType>>,
) -> Status {
    guard(|| {
        let out = message_type.required("message_type")?;
        let receiver = receiver.required("receiver")?;
        let declared = each!(&receiver.end, end => end.message_type());
        out.write(declared.map_or(MessageType::NONE, MessageType::of));
        Ok(())
    })
}

/// Returns why the channel could not be opened at the last attempt, while this receiver waits for it, with
/// a message in `shm_pool_last_error`: for example `NOT_FOUND`, `TOO_MANY_RECEIVERS` or `HAS_RECEIVER`.
///
/// Returns `OK` if it is open. Errors: those of opening it; `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_last_error(receiver: Option<&Receiver>) -> Status {
    guard(|| {
        let receiver = receiver.required("receiver")?;
        match each!(&receiver.end, end => end.last_error()) {
            Some(error) => Err(Failure::of_open(error)),
            None => Ok(()),
        }
    })
}

/// Returns a descriptor for event loops (`poll`, `epoll`, `select`). It is readable when a message
/// may have arrived, or the sender or publisher has closed or died; sometimes also without a reason.
///
/// Wait for it only after `shm_pool_receiver_recv` with a timeout of 0 has returned `EMPTY`: that
/// call, from the first call of this function on, makes the descriptor unreadable until there is
/// something to receive. At first it is readable, and so it is after a receive with another timeout and
/// after `shm_pool_wait_any`. So an event loop is:
///
/// ```c
/// shm_pool_receiver_fd(receiver, &fd);
/// for (;;) {
///     poll(...); // until fd is readable
///     while ((status = shm_pool_receiver_recv(receiver, 0, &message)) == SHM_POOL_STATUS_OK) {
///         ...
///         shm_pool_message_drop(&message);
///     }
///     if (status != SHM_POOL_STATUS_EMPTY) break;
/// }
/// ```
///
/// `fd`: overwritten; -1 after an error. Owner: the receiver. Neither read, write nor close it. The same
/// each time.
///
/// Errors: `OS`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_fd(
    receiver: Option<&mut Receiver>,
    fd: Option<&mut MaybeUninit<c_int>>,
) -> Status {
    guard(|| {
        let fd = fd.required("fd")?.write(-1);
        let end = &mut receiver.required("receiver")?.end;
        *fd = each!(end, end => end.wake_fd()?.as_raw_fd());
        Ok(())
    })
}

/// Waits until one of several receivers has a message or an error to report, or its sender or publisher
/// has ended. With `SHM_POOL_WAIT`, the default of subscribers, an end is nothing to report: the
/// receiver waits for the next one.
///
/// `receivers`: an array of `count` different receivers.
/// `timeout_ns`: how long to wait, in nanoseconds; `SHM_POOL_FOREVER` has no limit.
/// `index`: set to the place of that receiver in the array; not after an error. Receivers take turns.
///
/// Errors: `TIMED_OUT`, `INTERRUPTED`, `NO_HELPER`, `FORKED`, `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `receivers` is NULL, or an array of `count` receivers, none of which any thread uses meanwhile.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_wait_any(
    receivers: *const *mut Receiver,
    count: usize,
    timeout_ns: u64,
    index: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let index = index.required("index")?;
        if count == 0 {
            return Err(RecvError::NoReceivers.into());
        }
        if receivers.is_null() {
            return Err(Failure::new(
                Status::InvalidArgument,
                "argument receivers is NULL".to_owned(),
            ));
        }
        // SAFETY: by this function's contract.
        let receivers = unsafe { std::slice::from_raw_parts(receivers, count) };
        let mut ends: Vec<&mut dyn Source> = Vec::with_capacity(count);
        for (at, &receiver) in receivers.iter().enumerate() {
            if receiver.is_null() || receivers[..at].contains(&receiver) {
                let text = format!("receivers[{at}] is NULL, or one of the receivers before it");
                return Err(Failure::new(Status::InvalidArgument, text));
            }
            // SAFETY: by this function's contract, and no receiver is in the array twice.
            let end = unsafe { &mut (*receiver).end };
            ends.push(each!(end, end => end));
        }
        index.write(channel::wait_any(&mut ends, timeout(timeout_ns))?);
        Ok(())
    })
}

/// Maps and faults in all memory that the sender's provider has now, so that the first read of a
/// buffer costs no system call and no page fault.
///
/// `bytes`: set to the number of payload bytes present; not after an error. May be NULL.
///
/// Errors: `OS`, `FORKED`, `NOT_USABLE`, `INVALID_ARGUMENT`. No message is lost.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_warm(
    receiver: Option<&mut Receiver>,
    bytes: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let end = &mut receiver.required("receiver")?.end;
        let present = each!(end, end => end.warm()).map_err(Failure::of_warm)?;
        if let Some(bytes) = bytes {
            bytes.write(present);
        }
        Ok(())
    })
}

/// Creates a handle that ends this receiver's waits.
///
/// `interrupter`: as for `shm_pool_sender_interrupter`.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_interrupter(
    receiver: Option<&Receiver>,
    interrupter: Option<&mut MaybeUninit<Option<Box<Interrupter>>>>,
) -> Status {
    guard(|| {
        create(interrupter, "interrupter", || {
            let end = &receiver.required("receiver")?.end;
            Ok(Interrupter(each!(end, end => end.interrupter())))
        })
    })
}

/// Returns the first byte of a message, for reading; NULL if it is empty. Aligned to at least 8, a
/// buffer to 64.
///
/// Owner: the message. Valid until it is dropped, or moved: the bytes of a slot are in the struct
/// itself.
#[no_mangle]
pub extern "C" fn shm_pool_message_data(message: Option<&Message>) -> *const u8 {
    match content(message) {
        Some(content) => content.as_ptr(),
        None => ptr::null(),
    }
}

/// Returns the length of a message in bytes; 0 if it is empty.
#[no_mangle]
pub extern "C" fn shm_pool_message_len(message: Option<&Message>) -> usize {
    match content(message) {
        Some(content) => content.len(),
        None => 0,
    }
}

/// Returns how many messages this receiver has missed just before this one; wraps around above 2^32
/// - 1.
#[no_mangle]
pub extern "C" fn shm_pool_message_missed(message: Option<&Message>) -> u32 {
    match content(message) {
        Some(content) => content.missed(),
        None => 0,
    }
}

/// Reads the tag that a message was sent with. Returns `false` if it was sent without, or is empty.
///
/// `tag`: overwritten; not if this returns `false`. May be NULL.
#[no_mangle]
pub extern "C" fn shm_pool_message_tag(
    message: Option<&Message>,
    tag: Option<&mut MaybeUninit<Tag>>,
) -> bool {
    let Some(content) = content(message) else {
        return false;
    };
    let Some(bytes) = content.tag() else {
        return false;
    };
    if let Some(tag) = tag {
        tag.write(Tag { bytes });
    }
    true
}

/// Returns `true` if the bytes of a message are in the struct itself, and not in a buffer.
#[no_mangle]
pub extern "C" fn shm_pool_message_is_inline(message: Option<&Message>) -> bool {
    match content(message) {
        Some(content) => content.is_inline(),
        None => false,
    }
}

/// Clones a message: another handle of the same buffer, which counts once for `max_borrowed`, or a copy of
/// the bytes of a slot.
///
/// `clone`: overwritten. The caller owns it, and drops it. Empty after an error.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_message_clone(
    message: Option<&Message>,
    clone: Option<&mut MaybeUninit<Message>>,
) -> Status {
    guard(|| {
        Message::fill(clone, "clone", || {
            let content = content(message).required("message")?;
            Ok(content.clone())
        })
    })
}

/// Drops a message. Allowed in any thread, and after the receiver is destroyed.
///
/// `message`: emptied. NULL and an empty message are allowed.
#[no_mangle]
pub extern "C" fn shm_pool_message_drop(message: Option<&mut Message>) {
    guard_value((), || drop(take(message)));
}
