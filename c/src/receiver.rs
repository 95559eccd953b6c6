//! The receiving end of channels.

use crate::channel::{on_full, Interrupter};
use crate::client::Client;
use crate::finalize::destroy;
use crate::status::{guard, guard_value, Failure, Status};
use crate::value::{
    check_reserved, create, create_listed, size_option, text, time_option, timeout, value,
    Required, Value, SHM_POOL_FOREVER,
};
use shm_pool::channel::{self, OnEnd, RecvError, Source};
use shm_pool::WakeFd;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::task::Poll;

/// In options: a receiver returns `DISCONNECTED` when the other side has ended.
pub const SHM_POOL_RETURN: u64 = 1;

/// In options: a receiver waits for the successor when the other side has ended.
pub const SHM_POOL_WAIT: u64 = 2;

/// Receives the messages of a sender, if `shm_pool_receiver_open` has opened it, or of a publisher, if
/// `shm_pool_subscriber_open` has.
///
/// Thread safety: any thread may use it, one at a time. An interrupter works from other threads
/// and from signal handlers.
pub struct Receiver {
    end: End,
    /// Made when the descriptor is first asked for.
    ready: Option<WakeFd>,
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
    /// Must be 0.
    pub reserved: [u64; 4],
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

/// Opens the channel `name` of a sender.
///
/// `client`: says where to look, and which user to trust. May be destroyed before the receiver.
/// `name`: the channel's name.
/// `options`: NULL for the defaults. Not kept.
/// `timeout_ns`: how long to wait for the channel to appear, in nanoseconds: 0 does not wait,
/// `SHM_POOL_FOREVER` has no limit.
/// `receiver`: set to the new receiver, which the caller owns and destroys with
/// `shm_pool_receiver_destroy`; NULL after an error.
///
/// Errors: `NOT_FOUND`, `NOT_READY`, `CLOSED`, `HAS_RECEIVER`; `NOT_A_SENDER` if it is a publisher's;
/// `NOT_USABLE`, `WRONG_UID`, `TOO_MANY_ENDS`, `OS`, `INVALID_ARGUMENT`.
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
            let mut builder = channel::Receiver::builder();
            if let Some(options) = options {
                check_reserved(&options.reserved)?;
                if let Some(spin) = time_option(options.spin_ns) {
                    builder = builder.spin(spin);
                }
                if let Some(on_end) = on_end(options.on_end)? {
                    builder = builder.on_end(on_end);
                }
            }
            let builder = builder.namespace(client.required("client")?.0.namespace());
            let end = match timeout_ns {
                0 => builder.open(name)?,
                _ => builder.open_timeout(name, timeout(timeout_ns))?,
            };
            Ok(Receiver {
                end: End::Receiver(end),
                ready: None,
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
/// `BLOCKING_NOT_ALLOWED`; `NOT_A_PUBLISHER` if it is a sender's; `NOT_USABLE`, `WRONG_UID`,
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
            let mut builder = channel::Subscriber::builder();
            if let Some(options) = options {
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
            }
            let builder = builder.namespace(client.required("client")?.0.namespace());
            let end = match timeout_ns {
                0 => builder.open(name)?,
                _ => builder.open_timeout(name, timeout(timeout_ns))?,
            };
            Ok(Receiver {
                end: End::Subscriber(end),
                ready: None,
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
/// Errors: `EMPTY` without a wait; `TIMED_OUT`, `INTERRUPTED`; `DISCONNECTED` if the sender has
/// closed or died, and everything it sent has been received; `EVICTED` if the publisher has
/// disconnected this receiver; `TOO_MANY_BORROWED`, once for each message that was skipped, or
/// waits, because this receiver holds as many buffers, or bytes, as it may: drop some; `OS` if a
/// resource has run out: the message stays queued; `CLOSED` and `DAMAGED`: this message is lost,
/// the next one may be good; `NOT_CONNECTED`;
/// with `SHM_POOL_WAIT`, the errors of opening a successor's channel; `NO_HELPER`; `FORKED`;
/// `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_recv(
    receiver: Option<&mut Receiver>,
    timeout_ns: u64,
    message: Option<&mut MaybeUninit<Message>>,
) -> Status {
    guard(|| {
        Message::fill(message, "message", || {
            let Receiver { end, ready } = receiver.required("receiver")?;
            Ok(each!(end, end => match (timeout_ns, ready) {
                (0, None) => end.try_recv()?,
                (0, Some(ready)) => match ready.poll(|context| end.poll_recv(context)) {
                    Poll::Ready(received) => received?,
                    Poll::Pending => return Err(RecvError::Empty.into()),
                },
                (SHM_POOL_FOREVER, _) => end.recv()?,
                _ => end.recv_timeout(timeout(timeout_ns))?,
            }))
        })
    })
}

/// Returns a descriptor for event loops (`poll`, `epoll`, `select`). It is readable when a message
/// may have arrived, or the sender has closed or died; sometimes also without a reason.
///
/// Wait for it only after `shm_pool_receiver_recv` with a timeout of 0 has returned `EMPTY`: that
/// call, from the first call of this function on, makes the descriptor unreadable until there is
/// something to receive. At first it is readable. So an event loop is:
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
        let ready = &mut receiver.required("receiver")?.ready;
        let ready = match ready {
            Some(ready) => ready,
            None => ready.insert(WakeFd::new()?),
        };
        *fd = ready.as_raw_fd();
        Ok(())
    })
}

/// Waits until one of several receivers has a message, or its sender has closed or died.
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
/// Errors: `OS`, `FORKED`, `CLOSED`, `NOT_USABLE`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_receiver_warm(
    receiver: Option<&mut Receiver>,
    bytes: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let end = &mut receiver.required("receiver")?.end;
        let present = each!(end, end => end.warm()?);
        bytes
            .into_iter()
            .for_each(|bytes| *bytes = MaybeUninit::new(present));
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
    message
        .and_then(|message| message.get())
        .map_or(ptr::null(), |content| content.as_ptr())
}

/// Returns the length of a message in bytes; 0 if it is empty.
#[no_mangle]
pub extern "C" fn shm_pool_message_len(message: Option<&Message>) -> usize {
    message
        .and_then(|message| message.get())
        .map_or(0, |content| content.len())
}

/// Returns how many messages this receiver has missed just before this one; wraps around above 2^32
/// - 1.
#[no_mangle]
pub extern "C" fn shm_pool_message_missed(message: Option<&Message>) -> u32 {
    message
        .and_then(|message| message.get())
        .map_or(0, |content| content.missed())
}

/// Drops a message. Allowed in any thread, and after the receiver is destroyed.
///
/// `message`: emptied. NULL and an empty message are allowed.
#[no_mangle]
pub extern "C" fn shm_pool_message_drop(message: Option<&mut Message>) {
    guard_value((), || drop(message.and_then(|message| message.take())));
}
