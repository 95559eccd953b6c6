//! The sending ends of channels: one to one, and one to many.

use crate::buf::{Buf, BufMut};
use crate::finalize::destroy;
use crate::message_type::MessageType;
use crate::provider::Provider;
use crate::receiver::{subscriber_builder, SubscriberOptions};
use crate::status::{guard, guard_value, Failure, Status};
use crate::value::{
    self, array, bytes, check_reserved, copy_out, create, create_listed, size_option, text,
    time_option, timeout, u32_option, Required, Value, SHM_POOL_FOREVER,
};
use shm_pool::channel::{
    self, Interrupter as Interrupt, OnFull, OnStall, ReceiverId, SendError, SendOptions,
};
use shm_pool::ShmBytes;
use std::ffi::{c_char, c_int, c_void, CString};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;

/// The most bytes that a slot of a channel holds. A message of `shm_pool_sender_send_copy` that is longer
/// takes a buffer.
pub const SHM_POOL_MAX_INLINE: usize = 48;
const _: () = assert!(SHM_POOL_MAX_INLINE == channel::MAX_INLINE);

/// In options: a receiver that is behind makes the publisher wait, at most for `block_limit_ns`.
pub const SHM_POOL_BLOCK: u64 = 1;

/// In options: a receiver that is behind misses new messages.
pub const SHM_POOL_DROP_NEWEST: u64 = 2;

/// In options: a receiver that is behind gets the newest messages, and misses older ones.
pub const SHM_POOL_DROP_OLDEST: u64 = 3;

/// In options: a receiver that makes no room in time misses messages until it has room.
pub const SHM_POOL_SKIP: u64 = 1;

/// In options: a receiver that makes no room in time is disconnected.
pub const SHM_POOL_DISCONNECT: u64 = 2;

/// Sends messages to one receiver, in order and without loss.
///
/// Thread safety: any thread may use it, one at a time. An interrupter works from other threads
/// and from signal handlers.
pub struct Sender {
    end: channel::Sender,
    name: CString,
}

/// Sends messages to any number of receivers, up to 64, which join and leave at any time.
///
/// Thread safety: any thread may use it, one at a time. An interrupter works from other threads
/// and from signal handlers.
pub struct Publisher {
    end: channel::Publisher,
    name: CString,
}

/// Ends the blocking calls of one end of a channel.
///
/// Thread safety: any number of threads may use it at a time, except to destroy it; also while the
/// end is being destroyed, and afterwards.
pub struct Interrupter(pub(crate) Interrupt);

/// Options of a sender. Initialise it with zeros: 0 means the default, and `SHM_POOL_ZERO` the
/// number 0.
#[repr(C)]
pub struct SenderOptions {
    /// How many unreceived messages the channel holds, 2 to 65,536; default 256.
    pub capacity: u64,
    /// How many buffers the receiver may hold at a time, received or not; default 2048.
    pub max_borrowed: u64,
    /// The permission bits of the object; default 0600.
    pub mode: u64,
    /// How long a send spins for room before it sleeps, in nanoseconds; by default up to 20,000,
    /// where that pays.
    pub spin_ns: u64,
    /// The type of the messages; default: none.
    pub message_type: MessageType,
    /// Must be 0.
    pub reserved: [u64; 4],
}

/// Options of a publisher. Initialise it with zeros: 0 and `false` mean the default, and
/// `SHM_POOL_ZERO` the number 0.
#[repr(C)]
pub struct PublisherOptions {
    /// How many receivers there may be at a time, 1 to 64; default 16.
    pub max_subscribers: u64,
    /// How many messages a receiver may be behind, 1 to 65,536; default 256.
    pub capacity: u64,
    /// How many buffers a receiver may hold at a time, received or not; default 2048.
    pub max_borrowed: u64,
    /// How many of the last messages a new receiver gets; default 0.
    pub history: u64,
    /// The rule for receivers that do not choose one: `SHM_POOL_BLOCK`, `SHM_POOL_DROP_NEWEST` or
    /// `SHM_POOL_DROP_OLDEST`, the default.
    pub on_full: u64,
    /// How long a send spins for room before it sleeps, in nanoseconds; by default up to 20,000,
    /// where that pays.
    pub spin_ns: u64,
    /// How long a message waits for receivers with `SHM_POOL_BLOCK`, all together, in nanoseconds;
    /// default 5 seconds. A receiver that has had no room for that long, over however many calls,
    /// is stalled: messages are sent to the others without waiting for it. With `SHM_POOL_FOREVER`,
    /// a stopped receiver stops the others.
    pub block_limit_ns: u64,
    /// What happens with a stalled receiver: `SHM_POOL_SKIP`, the default, or
    /// `SHM_POOL_DISCONNECT`.
    pub on_stall: u64,
    /// How many bytes of buffers a receiver may hold at a time, received or not; default: a quarter
    /// of the provider's `max_bytes`. Two buffers are always allowed.
    pub max_bytes_per_receiver: u64,
    /// Sets the default of `max_bytes_per_receiver` to what the largest of these subscribers needs, of
    /// what all of them need: an array of `expected_count` entries. Default: NULL.
    pub expected: *const ExpectedSubscriber,
    /// How many entries `expected` has.
    pub expected_count: usize,
    /// The type of the messages; default: none.
    pub message_type: MessageType,
    /// The permission bits of the object, and of those that its receivers create; default 0600.
    pub mode: u64,
    /// Refuses receivers with `SHM_POOL_BLOCK`, so that sends never wait.
    pub refuse_blocking: bool,
    /// Leaves receivers that have joined, closed or died to `shm_pool_publisher_serve_joins`, so
    /// that a send makes no system call for them; by default each send connects and disconnects
    /// them.
    pub defer_joins: bool,
    /// Must be 0.
    pub reserved: [u64; 4],
}

/// A subscriber that a publisher's memory is to suffice for.
#[repr(C)]
pub struct ExpectedSubscriber {
    /// The options that it opens the channel with.
    pub options: SubscriberOptions,
    /// How many messages it holds at a time that it has received and not yet dropped.
    pub views: u64,
}

/// 16 bytes of the program's own that travel with a message.
#[repr(C)]
pub struct Tag {
    /// The bytes, which mean nothing to the library.
    pub bytes: [u8; 16],
}

/// A receiver of a publisher.
#[repr(C)]
pub struct ReceiverState {
    /// A random id, part of the name of the object that publisher and receiver share.
    pub id: u64,
    /// The rule for when it falls behind: `SHM_POOL_BLOCK` and others.
    pub on_full: u64,
    /// How many messages it may be behind.
    pub capacity: u64,
    /// How many messages wait for it.
    pub waiting: u64,
    /// How many buffers it holds, received or not.
    pub borrowed: u64,
    /// The id of its process, as that states it, in its own PID namespace; 0 if it states none.
    pub process: u64,
    /// How many messages it has missed since it joined.
    pub missed: Missed,
    /// `true` if it has made no room within `block_limit_ns`: messages are skipped until it has room.
    pub is_stalled: bool,
}

/// How many messages a receiver of a publisher has missed since it joined, by reason.
#[repr(C)]
pub struct Missed {
    /// Sent to it, and withdrawn to make room for newer ones (`SHM_POOL_DROP_OLDEST`).
    pub withdrawn: u64,
    /// Skipped because it was behind by its capacity (`SHM_POOL_DROP_NEWEST`).
    pub full: u64,
    /// Skipped because it held as many buffers, or bytes, as it may.
    pub too_many_borrowed: u64,
    /// Skipped because it had made no room within `block_limit_ns` (`SHM_POOL_BLOCK`).
    pub stalled: u64,
    /// Sent before the system let the publisher connect it.
    pub not_connected: u64,
}

impl From<channel::Missed> for Missed {
    fn from(missed: channel::Missed) -> Self {
        Self {
            withdrawn: missed.withdrawn,
            full: missed.full,
            too_many_borrowed: missed.too_many_borrowed,
            stalled: missed.stalled,
            not_connected: missed.not_connected,
        }
    }
}

/// What became of a message that a publisher has sent: numbers of receivers.
#[repr(C)]
pub struct Sent {
    /// Those to which it was sent. May include one that closes meanwhile and does not get it.
    pub receivers: u64,
    /// Those that lost an older message, so that there is room for the next one.
    pub withdrawn: u64,
    /// Those skipped because they were behind by their capacity (`SHM_POOL_DROP_NEWEST`).
    pub full: u64,
    /// Those skipped because they held as many buffers, or bytes, as they may.
    pub too_many_borrowed: u64,
    /// Those skipped, or disconnected, because they had made no room within `block_limit_ns`.
    pub stalled: u64,
    /// All those connected to which it was not sent: the sum of the last three.
    pub skipped: u64,
}

impl From<channel::Sent> for Sent {
    #[inline]
    fn from(sent: channel::Sent) -> Self {
        Self {
            receivers: sent.receivers as u64,
            withdrawn: sent.missed.withdrawn,
            full: sent.missed.full,
            too_many_borrowed: sent.missed.too_many_borrowed,
            stalled: sent.missed.stalled,
            skipped: sent.skipped() as u64,
        }
    }
}

pub(crate) fn on_full(value: u64) -> Result<Option<OnFull>, Failure> {
    Ok(Some(match value {
        0 => return Ok(None),
        SHM_POOL_BLOCK => OnFull::Block,
        SHM_POOL_DROP_NEWEST => OnFull::DropNewest,
        SHM_POOL_DROP_OLDEST => OnFull::DropOldest,
        _ => {
            return Err(Failure::new(
                Status::InvalidArgument,
                format!("option on_full is {value}, which is no rule"),
            ))
        }
    }))
}

pub(crate) fn on_full_value(rule: OnFull) -> u64 {
    match rule {
        OnFull::Block => SHM_POOL_BLOCK,
        OnFull::DropNewest => SHM_POOL_DROP_NEWEST,
        OnFull::DropOldest => SHM_POOL_DROP_OLDEST,
        _ => 0,
    }
}

fn on_stall(value: u64) -> Result<Option<OnStall>, Failure> {
    Ok(Some(match value {
        0 => return Ok(None),
        SHM_POOL_SKIP => OnStall::Skip,
        SHM_POOL_DISCONNECT => OnStall::Disconnect,
        _ => {
            return Err(Failure::new(
                Status::InvalidArgument,
                format!("option on_stall is {value}, which is no rule"),
            ))
        }
    }))
}

fn sender_builder(options: Option<&SenderOptions>) -> Result<channel::SenderBuilder, Failure> {
    let mut builder = channel::Sender::builder();
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
    if let Some(mode) = u32_option(options.mode, "mode")? {
        builder = builder.mode(mode);
    }
    if let Some(spin) = time_option(options.spin_ns) {
        builder = builder.spin(spin);
    }
    if let Some(message_type) = options.message_type.get()? {
        builder = builder.message_type(message_type);
    }
    Ok(builder)
}

/// # Safety
///
/// `expected` of the options is null, or has `expected_count` entries.
unsafe fn publisher_builder(
    options: Option<&PublisherOptions>,
) -> Result<channel::PublisherBuilder, Failure> {
    let mut builder = channel::Publisher::builder();
    let Some(options) = options else {
        return Ok(builder);
    };
    check_reserved(&options.reserved)?;
    builder = builder
        .allow_blocking(!options.refuse_blocking)
        .joins_in_send(!options.defer_joins);
    if let Some(max_subscribers) = size_option(options.max_subscribers) {
        builder = builder.max_subscribers(max_subscribers);
    }
    if let Some(capacity) = size_option(options.capacity) {
        builder = builder.capacity(capacity);
    }
    if let Some(max_borrowed) = size_option(options.max_borrowed) {
        builder = builder.max_borrowed(max_borrowed);
    }
    if let Some(history) = size_option(options.history) {
        builder = builder.history(history);
    }
    if let Some(rule) = on_full(options.on_full)? {
        builder = builder.on_full(rule);
    }
    if let Some(spin) = time_option(options.spin_ns) {
        builder = builder.spin(spin);
    }
    if let Some(limit) = time_option(options.block_limit_ns) {
        builder = builder.block_limit(limit);
    }
    if let Some(rule) = on_stall(options.on_stall)? {
        builder = builder.on_stall(rule);
    }
    if let Some(bytes) = size_option(options.max_bytes_per_receiver) {
        builder = builder.max_bytes_per_receiver(bytes);
    }
    if let Some(mode) = u32_option(options.mode, "mode")? {
        builder = builder.mode(mode);
    }
    if let Some(message_type) = options.message_type.get()? {
        builder = builder.message_type(message_type);
    }
    // SAFETY: by this function's contract.
    let expected = unsafe { expected(options.expected, options.expected_count)? };
    if !expected.is_empty() {
        builder = builder.share_among(expected.iter().map(|(builder, views)| (builder, *views)));
    }
    Ok(builder)
}

/// # Safety
///
/// `subscribers` is null, or has `count` entries.
unsafe fn expected(
    subscribers: *const ExpectedSubscriber,
    count: usize,
) -> Result<Vec<(channel::SubscriberBuilder, usize)>, Failure> {
    // SAFETY: by this function's contract.
    let subscribers = unsafe { array(subscribers, count, "expected")? };
    let mut expected = Vec::with_capacity(count);
    for subscriber in subscribers {
        let builder = subscriber_builder(Some(&subscriber.options))?;
        expected.push((builder, value::size(subscriber.views)));
    }
    Ok(expected)
}

#[inline]
fn send_options(tag: Option<&Tag>, timeout_ns: u64) -> SendOptions {
    let mut options = SendOptions::new();
    if timeout_ns != SHM_POOL_FOREVER {
        options = options.timeout(timeout(timeout_ns));
    }
    if let Some(tag) = tag {
        options = options.tag(tag.bytes);
    }
    options
}

/// The name of an end, for C.
pub(crate) fn c_name(name: &str) -> CString {
    // It came from C, so it has no NUL.
    CString::new(name).unwrap_or_default()
}

/// Sends a buffer, or leaves it in place.
#[inline]
fn send<T>(
    buf: Option<&mut Buf>,
    send: impl FnOnce(ShmBytes) -> Result<T, SendError<ShmBytes>>,
) -> Result<T, Failure> {
    let buf = buf.required("buf")?;
    let content = buf.take().required("buf")?;
    match send(content) {
        Ok(sent) => Ok(sent),
        Err(error) => Err(put_back(buf, error)),
    }
}

#[cold]
#[inline(never)]
fn put_back(buf: &mut Buf, error: SendError<ShmBytes>) -> Failure {
    let failure = error.kind().into();
    buf.put(error.into_message());
    failure
}

/// Freezes a buffer and sends it by the function for frozen ones, or leaves it in place. A second copy of
/// a send would be inlined into neither, which costs each send a nanosecond.
fn send_mut(buf: Option<&mut BufMut>, send: impl FnOnce(&mut Buf) -> Status) -> Status {
    guard(|| {
        let buf = buf.required("buf")?;
        let content = buf.take().required("buf")?;
        let mut frozen = Buf::of(content.freeze());
        let status = send(&mut frozen);
        let Some(content) = frozen.take() else {
            return Ok(());
        };
        // Always: what was not sent has no other handle, and no reader.
        if let Ok(content) = content.try_into_mut() {
            buf.put(content);
        }
        Err(Failure::described(status))
    })
}

/// Creates the channel `name`, for buffers of one provider and one receiver.
///
/// `provider`: may be destroyed before the sender.
/// `name`: UTF-8, not empty. `A-Z a-z 0-9 _ -` take one byte of a file name, and all others three
/// for each byte; 166 fit with every `name_prefix`, and 218 with the default one.
/// `options`: NULL for the defaults. Not kept.
/// `timeout_ns`: how long to wait while a live sender has the name, such as a predecessor that is still
/// exiting, in nanoseconds: 0 does not wait, `SHM_POOL_FOREVER` has no limit.
/// `sender`: set to the new sender, which the caller owns and destroys with `shm_pool_sender_destroy`;
/// NULL after an error.
///
/// Errors: `NAME_TAKEN`, whose message names the process that has the name; `INVALID_ARGUMENT`,
/// `NOT_USABLE`, `WRONG_UID`, `TOO_MANY_ENDS`, `FORKED`, `OS`.
///
/// # Safety
///
/// `name` is NULL, or ends with a NUL.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_sender_create(
    provider: Option<&Provider>,
    name: *const c_char,
    options: Option<&SenderOptions>,
    timeout_ns: u64,
    sender: Option<&mut MaybeUninit<Option<Box<Sender>>>>,
) -> Status {
    guard(|| {
        create_listed(sender, "sender", || {
            // SAFETY: by this function's contract.
            let name = unsafe { text(name, "name")? }.required("name")?;
            let builder = sender_builder(options)?;
            let provider = &provider.required("provider")?.0;
            let end = match timeout_ns {
                0 => builder.create(provider, name)?,
                _ => builder.create_timeout(provider, name, timeout(timeout_ns))?,
            };
            Ok(Sender {
                end,
                name: c_name(name),
            })
        })
    })
}

/// Closes a channel. Its receiver gets what was sent. Then it returns `DISCONNECTED`, or waits for the
/// next sender if it has `SHM_POOL_WAIT`. See also `shm_pool_sender_wait_until_received`.
///
/// `sender`: consumed, and its descriptor closed: remove that from the event loop before. NULL is
/// allowed.
#[no_mangle]
pub extern "C" fn shm_pool_sender_destroy(sender: Option<Box<Sender>>) {
    guard_value((), || destroy(sender));
}

/// Returns how many buffers of one length a sender with these options takes at most, if its receiver
/// holds up to `views` received messages at a time: for the option `room` of the provider.
///
/// `options`: NULL for the defaults. Not kept.
/// `buffers`: overwritten; not after an error.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_buffers(
    options: Option<&SenderOptions>,
    views: usize,
    buffers: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let buffers = buffers.required("buffers")?;
        buffers.write(sender_builder(options)?.buffers(views));
        Ok(())
    })
}

/// Returns the name of a sender's channel; NULL if `sender` is NULL.
///
/// Owner: the sender. Valid until it is destroyed.
#[no_mangle]
pub extern "C" fn shm_pool_sender_name(sender: Option<&Sender>) -> *const c_char {
    match sender {
        Some(sender) => sender.name.as_ptr(),
        None => ptr::null(),
    }
}

/// Returns how many messages a sender's channel holds, or a receiver may be behind; 0 if `sender`
/// is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_sender_capacity(sender: Option<&Sender>) -> usize {
    match sender {
        Some(sender) => sender.end.capacity(),
        None => 0,
    }
}

/// Returns how many buffers a receiver of a sender may hold at a time; 0 if `sender` is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_sender_max_borrowed(sender: Option<&Sender>) -> usize {
    match sender {
        Some(sender) => sender.end.max_borrowed(),
        None => 0,
    }
}

/// Allocates a buffer of a sender's provider, which may have been destroyed: `shm_pool_provider_alloc`.
///
/// `buf`: as there.
///
/// Errors: as there.
#[no_mangle]
pub extern "C" fn shm_pool_sender_alloc(
    sender: Option<&Sender>,
    len: usize,
    buf: Option<&mut MaybeUninit<BufMut>>,
) -> Status {
    guard(|| {
        BufMut::fill(buf, "buf", || {
            Ok(sender.required("sender")?.end.alloc(len)?)
        })
    })
}

/// Sends a buffer to the receiver, which need not have opened the channel yet.
///
/// `buf`: emptied; its memory is free again when all its handles and the receiver's message are
/// dropped. On an error it stays as it is.
/// `timeout_ns`: how long to wait for room, in nanoseconds: 0 does not wait, `SHM_POOL_FOREVER` has no
/// limit.
///
/// Errors: `DISCONNECTED` if the receiver has closed or died; `FULL` and `TOO_MANY_BORROWED`
/// without a wait; `TIMED_OUT`, `INTERRUPTED`, `OTHER_PROVIDER`, `NO_HELPER`, `FORKED`,
/// `INVALID_ARGUMENT`.
#[no_mangle]
#[inline(never)]
pub extern "C" fn shm_pool_sender_send(
    sender: Option<&mut Sender>,
    buf: Option<&mut Buf>,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        let sender = &mut sender.required("sender")?.end;
        send(buf, |content| match timeout_ns {
            SHM_POOL_FOREVER => sender.send(content),
            _ => sender.send_with(content, send_options(None, timeout_ns)),
        })
    })
}

/// Sends a buffer that was just written, as freezing it and `shm_pool_sender_send` do.
///
/// `buf`, `timeout_ns`: as for `shm_pool_sender_send`. On an error the buffer can still be written.
///
/// Errors: those of `shm_pool_sender_send`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_send_mut(
    sender: Option<&mut Sender>,
    buf: Option<&mut BufMut>,
    timeout_ns: u64,
) -> Status {
    send_mut(buf, |frozen| {
        shm_pool_sender_send(sender, Some(frozen), timeout_ns)
    })
}

/// Sends a copy of bytes: up to `SHM_POOL_MAX_INLINE` in the slot itself, and more in a buffer of the
/// provider.
///
/// `bytes`: not kept.
/// `timeout_ns`: as for `shm_pool_sender_send`.
///
/// Errors: those of `shm_pool_provider_alloc` for more bytes than a slot holds, and those of
/// `shm_pool_sender_send`.
///
/// # Safety
///
/// `bytes` is NULL, or points to `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_sender_send_copy(
    sender: Option<&mut Sender>,
    bytes: *const c_void,
    len: usize,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        let sender = &mut sender.required("sender")?.end;
        // SAFETY: by this function's contract.
        let bytes = unsafe { self::bytes(bytes, len)? };
        sender.send_copy_with(bytes, send_options(None, timeout_ns))?;
        Ok(())
    })
}

/// `shm_pool_sender_send` with 16 bytes of the program's own beside the message, such as a time stamp:
/// `shm_pool_message_tag`. The buffer may be sent again with another tag.
///
/// `tag`: not kept. NULL for none.
///
/// Errors: those of `shm_pool_sender_send`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_send_tagged(
    sender: Option<&mut Sender>,
    buf: Option<&mut Buf>,
    tag: Option<&Tag>,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        let sender = &mut sender.required("sender")?.end;
        send(buf, |content| {
            sender.send_with(content, send_options(tag, timeout_ns))
        })
    })
}

/// `shm_pool_sender_send_copy` with a tag: up to 32 bytes fit in the slot beside it, and more take a
/// buffer.
///
/// `tag`: not kept. NULL for none.
///
/// Errors: those of `shm_pool_sender_send_copy`.
///
/// # Safety
///
/// `bytes` is NULL, or points to `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_sender_send_copy_tagged(
    sender: Option<&mut Sender>,
    bytes: *const c_void,
    len: usize,
    tag: Option<&Tag>,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        let sender = &mut sender.required("sender")?.end;
        // SAFETY: by this function's contract.
        let bytes = unsafe { self::bytes(bytes, len)? };
        sender.send_copy_with(bytes, send_options(tag, timeout_ns))?;
        Ok(())
    })
}

/// Waits until a receiver has opened the channel. Messages can be sent before that.
///
/// Errors: `TIMED_OUT`, or `OTHER_VERSION` if a receiver of another version has tried;
/// `DISCONNECTED`, `INTERRUPTED`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_wait_for_receiver(
    sender: Option<&mut Sender>,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        Ok(sender
            .required("sender")?
            .end
            .wait_for_receiver(timeout(timeout_ns))?)
    })
}

/// Waits until the receiver has received everything and asked for more. What was sent arrives
/// without this call, too, also if the process exits without destroying the sender.
///
/// Errors: `TIMED_OUT`, `DISCONNECTED`, `INTERRUPTED`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_wait_until_received(
    sender: Option<&mut Sender>,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        Ok(sender
            .required("sender")?
            .end
            .wait_until_received(timeout(timeout_ns))?)
    })
}

/// Returns a descriptor for event loops. It is readable until a send with a timeout of 0 has returned
/// `FULL` or `TOO_MANY_BORROWED`, and again when the refused message may fit, or when the receiver has
/// closed or died; sometimes also without a reason.
///
/// Wait for it only while a message is refused: it stays readable while nothing is sent, as a socket stays
/// writable. So an event loop is:
///
/// ```c
/// shm_pool_sender_fd(sender, &fd);
/// while ((status = shm_pool_sender_send(sender, &buf, 0)) == SHM_POOL_STATUS_FULL
///        || status == SHM_POOL_STATUS_TOO_MANY_BORROWED) {
///     poll(...); // until fd is readable
/// }
/// ```
///
/// A refused send returns `NO_HELPER` if the thread that would make the descriptor readable cannot be
/// started.
///
/// `fd`: overwritten; -1 after an error. Owner: the sender. Neither read, write nor close it. The same
/// each time.
///
/// Errors: `OS`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_fd(
    sender: Option<&mut Sender>,
    fd: Option<&mut MaybeUninit<c_int>>,
) -> Status {
    guard(|| {
        let fd = fd.required("fd")?.write(-1);
        *fd = sender.required("sender")?.end.wake_fd()?.as_raw_fd();
        Ok(())
    })
}

/// Creates a handle that ends this sender's waits.
///
/// `interrupter`: set to the new interrupter, which the caller owns and destroys with
/// `shm_pool_interrupter_destroy`, before or after the sender; NULL after an error.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_sender_interrupter(
    sender: Option<&Sender>,
    interrupter: Option<&mut MaybeUninit<Option<Box<Interrupter>>>>,
) -> Status {
    guard(|| {
        create(interrupter, "interrupter", || {
            Ok(Interrupter(sender.required("sender")?.end.interrupter()))
        })
    })
}

/// Ends the current wait of its end with `INTERRUPTED`; without one, the next wait. At once; before
/// Linux 5.16, or where a filter forbids `futex_waitv`, within 10 milliseconds.
///
/// Safe in a signal handler, also in the thread whose wait it ends: it takes no lock, allocates
/// nothing, makes at most one system call and keeps `errno`. In a forked child it does nothing to
/// the parent.
#[no_mangle]
pub extern "C" fn shm_pool_interrupter_interrupt(interrupter: Option<&Interrupter>) {
    // Cannot panic, so it needs no guard, which is not meant for signal handlers.
    if let Some(interrupter) = interrupter {
        interrupter.0.interrupt();
    }
}

/// Destroys an interrupter.
///
/// `interrupter`: consumed. NULL is allowed.
#[no_mangle]
pub extern "C" fn shm_pool_interrupter_destroy(interrupter: Option<Box<Interrupter>>) {
    guard_value((), || drop(interrupter));
}

/// Creates the channel `name`, for buffers of one provider and up to 64 receivers; see the option
/// `mode` for those of other users.
///
/// `provider`: may be destroyed before the publisher.
/// `name`: UTF-8, not empty. `A-Z a-z 0-9 _ -` take one byte of a file name, and all others three
/// for each byte; 166 fit with every `name_prefix`, and 218 with the default one.
/// `options`: NULL for the defaults. Not kept.
/// `timeout_ns`: as for `shm_pool_sender_create`.
/// `publisher`: set to the new publisher, which the caller owns and destroys with
/// `shm_pool_publisher_destroy`; NULL after an error.
///
/// Errors: those of `shm_pool_sender_create`.
///
/// # Safety
///
/// `name` is NULL, or ends with a NUL. `expected` of the options is NULL, or has `expected_count`
/// entries.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_publisher_create(
    provider: Option<&Provider>,
    name: *const c_char,
    options: Option<&PublisherOptions>,
    timeout_ns: u64,
    publisher: Option<&mut MaybeUninit<Option<Box<Publisher>>>>,
) -> Status {
    guard(|| {
        create_listed(publisher, "publisher", || {
            // SAFETY: by this function's contract.
            let name = unsafe { text(name, "name")? }.required("name")?;
            // SAFETY: by this function's contract.
            let builder = unsafe { publisher_builder(options)? };
            let provider = &provider.required("provider")?.0;
            let end = match timeout_ns {
                0 => builder.create(provider, name)?,
                _ => builder.create_timeout(provider, name, timeout(timeout_ns))?,
            };
            Ok(Publisher {
                end,
                name: c_name(name),
            })
        })
    })
}

/// Closes a channel. Its receivers get what was sent. Then they wait for the next publisher, or return
/// `DISCONNECTED` if they have `SHM_POOL_RETURN`. See also `shm_pool_publisher_wait_until_received`.
///
/// `publisher`: consumed, and its descriptor closed: remove that from the event loop before. NULL is
/// allowed.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_destroy(publisher: Option<Box<Publisher>>) {
    guard_value((), || destroy(publisher));
}

/// Returns how many buffers of one length a publisher with these options takes at most, with these
/// subscribers: for the option `room` of the provider.
///
/// `options`: NULL for the defaults. Not kept.
/// `subscribers`: an array of `count` entries.
/// `buffers`: overwritten; not after an error.
///
/// Errors: `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `subscribers` is NULL, or has `count` entries. `expected` of the options is NULL, or has
/// `expected_count` entries.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_publisher_buffers(
    options: Option<&PublisherOptions>,
    subscribers: *const ExpectedSubscriber,
    count: usize,
    buffers: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let buffers = buffers.required("buffers")?;
        // SAFETY: by this function's contract.
        let builder = unsafe { publisher_builder(options)? };
        // SAFETY: by this function's contract.
        let subscribers = unsafe { expected(subscribers, count)? };
        let subscribers = subscribers.iter().map(|(builder, views)| (builder, *views));
        buffers.write(builder.buffers(subscribers));
        Ok(())
    })
}

/// Returns the name of a publisher's channel; NULL if `publisher` is NULL.
///
/// Owner: the publisher. Valid until it is destroyed.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_name(publisher: Option<&Publisher>) -> *const c_char {
    match publisher {
        Some(publisher) => publisher.name.as_ptr(),
        None => ptr::null(),
    }
}

/// Returns how many messages a publisher's channel holds, or a receiver may be behind; 0 if `publisher`
/// is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_capacity(publisher: Option<&Publisher>) -> usize {
    match publisher {
        Some(publisher) => publisher.end.capacity(),
        None => 0,
    }
}

/// Returns how many buffers a receiver of a publisher may hold at a time; 0 if `publisher` is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_max_borrowed(publisher: Option<&Publisher>) -> usize {
    match publisher {
        Some(publisher) => publisher.end.max_borrowed(),
        None => 0,
    }
}

/// Allocates a buffer of a publisher's provider, which may have been destroyed: `shm_pool_provider_alloc`.
///
/// `buf`: as there.
///
/// Errors: as there.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_alloc(
    publisher: Option<&Publisher>,
    len: usize,
    buf: Option<&mut MaybeUninit<BufMut>>,
) -> Status {
    guard(|| {
        BufMut::fill(buf, "buf", || {
            Ok(publisher.required("publisher")?.end.alloc(len)?)
        })
    })
}

/// Returns `true` if a receiver is connected, so that it is worth to make a message; `false` if
/// `publisher` is NULL, and in a forked child.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_has_receivers(publisher: Option<&mut Publisher>) -> bool {
    guard_value(false, || match publisher {
        Some(publisher) => publisher.end.receivers().next().is_some(),
        None => false,
    })
}

/// Sends a buffer to all receivers, without a copy. Waits only for those with `SHM_POOL_BLOCK`, and
/// at most for the option `block_limit_ns`.
///
/// `buf`: emptied; its memory is free again when all its handles and the receivers' messages are
/// dropped. On an error it stays as it is, and no receiver gets it.
/// `timeout_ns`: how long to wait for room, in nanoseconds: 0 does not wait, `SHM_POOL_FOREVER` has no
/// limit.
/// `sent`: set to what became of the message; not after an error. May be NULL.
///
/// Errors: `FULL` and `TOO_MANY_BORROWED` without a wait, and `TIMED_OUT`, before `block_limit_ns`
/// has passed; `INTERRUPTED`, `OTHER_PROVIDER`, `NO_HELPER`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
#[inline(never)]
pub extern "C" fn shm_pool_publisher_send(
    publisher: Option<&mut Publisher>,
    buf: Option<&mut Buf>,
    timeout_ns: u64,
    sent: Option<&mut MaybeUninit<Sent>>,
) -> Status {
    guard(|| {
        let publisher = &mut publisher.required("publisher")?.end;
        let report = send(buf, |content| match timeout_ns {
            SHM_POOL_FOREVER => publisher.send(content),
            _ => publisher.send_with(content, send_options(None, timeout_ns)),
        })?;
        if let Some(sent) = sent {
            sent.write(report.into());
        }
        Ok(())
    })
}

/// Sends a buffer that was just written, as freezing it and `shm_pool_publisher_send` do.
///
/// `buf`, `timeout_ns`, `sent`: as for `shm_pool_publisher_send`. On an error the buffer can still be
/// written.
///
/// Errors: those of `shm_pool_publisher_send`.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_send_mut(
    publisher: Option<&mut Publisher>,
    buf: Option<&mut BufMut>,
    timeout_ns: u64,
    sent: Option<&mut MaybeUninit<Sent>>,
) -> Status {
    send_mut(buf, |frozen| {
        shm_pool_publisher_send(publisher, Some(frozen), timeout_ns, sent)
    })
}

/// Sends a copy of bytes: up to `SHM_POOL_MAX_INLINE` in the slots themselves, and more in a buffer of
/// the provider.
///
/// `bytes`: not kept.
/// `timeout_ns`, `sent`: as for `shm_pool_publisher_send`.
///
/// Errors: those of `shm_pool_provider_alloc` for more bytes than a slot holds, and those of
/// `shm_pool_publisher_send`.
///
/// # Safety
///
/// `bytes` is NULL, or points to `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_publisher_send_copy(
    publisher: Option<&mut Publisher>,
    bytes: *const c_void,
    len: usize,
    timeout_ns: u64,
    sent: Option<&mut MaybeUninit<Sent>>,
) -> Status {
    guard(|| {
        let publisher = &mut publisher.required("publisher")?.end;
        // SAFETY: by this function's contract.
        let bytes = unsafe { self::bytes(bytes, len)? };
        let report = publisher.send_copy_with(bytes, send_options(None, timeout_ns))?;
        if let Some(sent) = sent {
            sent.write(report.into());
        }
        Ok(())
    })
}

/// `shm_pool_publisher_send` with 16 bytes of the program's own beside the message, such as a time
/// stamp: `shm_pool_message_tag`. The buffer may be sent again with another tag.
///
/// `tag`: not kept. NULL for none.
/// `sent`: as for `shm_pool_publisher_send`.
///
/// Errors: those of `shm_pool_publisher_send`.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_send_tagged(
    publisher: Option<&mut Publisher>,
    buf: Option<&mut Buf>,
    tag: Option<&Tag>,
    timeout_ns: u64,
    sent: Option<&mut MaybeUninit<Sent>>,
) -> Status {
    guard(|| {
        let publisher = &mut publisher.required("publisher")?.end;
        let report = send(buf, |content| {
            publisher.send_with(content, send_options(tag, timeout_ns))
        })?;
        if let Some(sent) = sent {
            sent.write(report.into());
        }
        Ok(())
    })
}

/// `shm_pool_publisher_send_copy` with a tag: up to 32 bytes fit in the slots beside it, and more take
/// a buffer.
///
/// `tag`: not kept. NULL for none.
/// `sent`: as for `shm_pool_publisher_send`.
///
/// Errors: those of `shm_pool_publisher_send_copy`.
///
/// # Safety
///
/// `bytes` is NULL, or points to `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_publisher_send_copy_tagged(
    publisher: Option<&mut Publisher>,
    bytes: *const c_void,
    len: usize,
    tag: Option<&Tag>,
    timeout_ns: u64,
    sent: Option<&mut MaybeUninit<Sent>>,
) -> Status {
    guard(|| {
        let publisher = &mut publisher.required("publisher")?.end;
        // SAFETY: by this function's contract.
        let bytes = unsafe { self::bytes(bytes, len)? };
        let report = publisher.send_copy_with(bytes, send_options(tag, timeout_ns))?;
        if let Some(sent) = sent {
            sent.write(report.into());
        }
        Ok(())
    })
}

/// Waits until `count` receivers or more are connected.
///
/// Errors: `TIMED_OUT`, or `OTHER_VERSION` if a receiver of another version has tried; `INTERRUPTED`,
/// `FORKED`, `INVALID_ARGUMENT`, also if `count` is above the
/// publisher's option `max_subscribers`.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_wait_for_receivers(
    publisher: Option<&mut Publisher>,
    count: usize,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        Ok(publisher
            .required("publisher")?
            .end
            .wait_for_receivers(count, timeout(timeout_ns))?)
    })
}

/// Waits until all connected receivers have received everything. What was sent arrives without this
/// call, too, also if the process exits without destroying the publisher.
///
/// Errors: `TIMED_OUT`, `INTERRUPTED`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_wait_until_received(
    publisher: Option<&mut Publisher>,
    timeout_ns: u64,
) -> Status {
    guard(|| {
        Ok(publisher
            .required("publisher")?
            .end
            .wait_until_received(timeout(timeout_ns))?)
    })
}

/// Connects one receiver that has joined, or disconnects those that have closed or died, at some 20
/// system calls. Returns `true` if it did: call it again, when there is time, until it returns
/// `false`. A send does the same for all of them, unless the option `defer_joins` is set.
///
/// Returns `false` if `publisher` is NULL, and in a forked child.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_serve_joins(publisher: Option<&mut Publisher>) -> bool {
    guard_value(false, || match publisher {
        Some(publisher) => publisher.end.serve_joins(),
        None => false,
    })
}

/// Disconnects a receiver, which need not cooperate: one that is stopped, for example. Its messages
/// that it has not received are withdrawn. It may read on what it has received; its next receive
/// returns
/// `EVICTED`. It keeps its registration until it and what it has received are dropped, and may then join again.
///
/// `id`: from `shm_pool_publisher_receivers`.
///
/// Returns `false` if no receiver with this id is connected.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_disconnect(
    publisher: Option<&mut Publisher>,
    id: u64,
) -> bool {
    guard_value(false, || match publisher {
        Some(publisher) => publisher.end.disconnect(ReceiverId::from(id)),
        None => false,
    })
}

/// Reads the state of each connected receiver. One that has joined is connected by the next send,
/// `shm_pool_publisher_wait_for_receivers` or `shm_pool_publisher_serve_joins`.
///
/// `states`: an array with room for `capacity` entries, overwritten as far as there are receivers. May
/// be NULL, to ask for their number.
/// `count`: set to the number of receivers, which may exceed `capacity`.
///
/// Errors: `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `states` is NULL, or has room for `capacity` entries.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_publisher_receivers(
    publisher: Option<&Publisher>,
    states: *mut ReceiverState,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let count = count.required("count")?.write(0);
        let found = publisher
            .required("publisher")?
            .end
            .receivers()
            .map(|state| ReceiverState {
                id: state.id.into(),
                on_full: on_full_value(state.on_full),
                capacity: state.capacity as u64,
                waiting: state.waiting as u64,
                borrowed: state.borrowed as u64,
                process: state.process.map_or(0, u64::from),
                missed: state.missed.into(),
                is_stalled: state.is_stalled,
            });
        // SAFETY: by this function's contract.
        *count = unsafe { copy_out(found, states, capacity) };
        Ok(())
    })
}

/// Returns a descriptor for event loops. It is used as that of `shm_pool_sender_fd`, with
/// `shm_pool_publisher_send`: it is readable again when the receiver that had no room may have some, or
/// has closed or died.
///
/// Only a receiver with `SHM_POOL_BLOCK` has a send refused. When `block_limit_ns` has passed for it, so
/// that a send skips it, the descriptor is readable up to a second later.
///
/// `fd`: overwritten; -1 after an error. Owner: the publisher. Neither read, write nor close it. The same
/// each time.
///
/// Errors: `OS`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_fd(
    publisher: Option<&mut Publisher>,
    fd: Option<&mut MaybeUninit<c_int>>,
) -> Status {
    guard(|| {
        let fd = fd.required("fd")?.write(-1);
        *fd = publisher.required("publisher")?.end.wake_fd()?.as_raw_fd();
        Ok(())
    })
}

/// Creates a handle that ends this publisher's waits.
///
/// `interrupter`: as for `shm_pool_sender_interrupter`.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_publisher_interrupter(
    publisher: Option<&Publisher>,
    interrupter: Option<&mut MaybeUninit<Option<Box<Interrupter>>>>,
) -> Status {
    guard(|| {
        create(interrupter, "interrupter", || {
            Ok(Interrupter(
                publisher.required("publisher")?.end.interrupter(),
            ))
        })
    })
}
