//! Discovery: the channels that there are, and those that come and go.

use crate::channel::Interrupter;
use crate::client::Client;
use crate::finalize::destroy;
use crate::message_type::copy_text;
use crate::status::{guard, guard_value, Failure, Status};
use crate::value::{copy_out, create, create_listed, text, timeout, Required, SHM_POOL_FOREVER};
use shm_pool::channel::{self, ChannelChange as Change};
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// A channel whose sender or publisher is alive.
#[repr(C)]
pub struct ChannelInfo {
    /// The name, and a NUL.
    pub name: [c_char; 256],
    /// The id of the provider of its messages.
    pub provider: u64,
    /// `true` if a publisher sends, `false` if a sender does.
    pub is_publisher: bool,
}

impl ChannelInfo {
    fn of(info: &channel::ChannelInfo) -> Self {
        let mut of = Self {
            name: [0; 256],
            provider: u64::from(info.provider),
            is_publisher: info.is_publisher,
        };
        copy_text(&info.name, &mut of.name);
        of
    }
}

/// What a watcher reports.
#[repr(C)]
pub struct ChannelChange {
    /// The channel.
    pub channel: ChannelInfo,
    /// `true` if it was created, `false` if its sender or publisher has closed or died.
    pub is_created: bool,
}

/// Reports the channels that there are, and then each one that is created or ends. A restart is
/// reported as an end and a creation. A channel that ends before the watcher has looked at it is not
/// reported.
///
/// Thread safety: any thread may use it, one at a time. An interrupter works from other threads
/// and from signal handlers.
pub struct Watcher(channel::Watcher);

/// Lists the channels whose senders and publishers are alive, by name.
///
/// `client`: says where to look, and which user to trust; NULL for the defaults.
/// `channels`: an array with room for `capacity` entries, overwritten as far as there are channels. May
/// be NULL, to ask for their number.
/// `count`: set to the number of channels, which may exceed `capacity`.
///
/// Errors: `OS`, `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `channels` is NULL, or has room for `capacity` entries.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_client_channels(
    client: Option<&Client>,
    channels: *mut ChannelInfo,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let count = count.required("count")?.write(0);
        let found = Client::namespace(client).channels()?;
        let found = found.iter().map(ChannelInfo::of);
        // SAFETY: by this function's contract.
        *count = unsafe { copy_out(found, channels, capacity) };
        Ok(())
    })
}

/// Finds the process of a channel's sender or publisher. Scans /proc, which takes milliseconds.
///
/// `client`: says where to look, and which user to trust; NULL for the defaults.
/// `process`: set to its id; 0 if it is not visible: one of another user or PID namespace. Not after an
/// error.
///
/// Errors: `NOT_FOUND`, `OS`, `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `name` is NULL, or ends with a NUL.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_client_channel_process(
    client: Option<&Client>,
    name: *const c_char,
    process: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let process = process.required("process")?;
        // SAFETY: by this function's contract.
        let name = unsafe { text(name, "name")? }.required("name")?;
        let channels = Client::namespace(client).channels()?;
        let Some(channel) = channels.iter().find(|channel| channel.name == name) else {
            let text = format!("no live sender or publisher has a channel {name:?}");
            return Err(Failure::new(Status::NotFound, text));
        };
        process.write(match channel.process() {
            Some(process) => u64::from(process.id),
            None => 0,
        });
        Ok(())
    })
}

/// Creates a watcher of the channels that `shm_pool_client_channels` lists.
///
/// `client`: says where to look, and which user to trust; NULL for the defaults. May be destroyed before
/// the watcher.
/// `watcher`: set to the new watcher, which the caller owns and destroys with
/// `shm_pool_watcher_destroy`; NULL after an error.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_watcher_create(
    client: Option<&Client>,
    watcher: Option<&mut MaybeUninit<Option<Box<Watcher>>>>,
) -> Status {
    guard(|| {
        create_listed(watcher, "watcher", || {
            Ok(Watcher(channel::Watcher::new(&Client::namespace(client))))
        })
    })
}

/// Destroys a watcher.
///
/// `watcher`: consumed, and its descriptor closed: remove that from the event loop before. NULL is
/// allowed.
#[no_mangle]
pub extern "C" fn shm_pool_watcher_destroy(watcher: Option<Box<Watcher>>) {
    guard_value((), || destroy(watcher));
}

/// Returns the next change: first the channels that there are, each as a creation.
///
/// `timeout_ns`: how long to wait, in nanoseconds: 0 does not wait, `SHM_POOL_FOREVER` has no limit.
/// `change`: overwritten; not after an error.
///
/// Errors: `EMPTY` without a wait; `TIMED_OUT`, `INTERRUPTED`, `OS`, `NO_HELPER`, `FORKED`,
/// `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_watcher_recv(
    watcher: Option<&mut Watcher>,
    timeout_ns: u64,
    change: Option<&mut MaybeUninit<ChannelChange>>,
) -> Status {
    guard(|| {
        let out = change.required("change")?;
        let Watcher(watcher) = watcher.required("watcher")?;
        let change = match timeout_ns {
            0 => watcher.try_recv()?,
            SHM_POOL_FOREVER => watcher.recv()?,
            _ => watcher.recv_timeout(timeout(timeout_ns))?,
        };
        let (info, is_created) = match &change {
            Change::Created(info) => (info, true),
            Change::Closed(info) => (info, false),
            _ => {
                let text = "a change that this version of the interface does not know".to_owned();
                return Err(Failure::new(Status::Other, text));
            }
        };
        out.write(ChannelChange {
            channel: ChannelInfo::of(info),
            is_created,
        });
        Ok(())
    })
}

/// Returns a descriptor for event loops. It is used as that of `shm_pool_receiver_fd`, with
/// `shm_pool_watcher_recv`.
///
/// `fd`: overwritten; -1 after an error. Owner: the watcher. Neither read, write nor close it. The same
/// each time.
///
/// Errors: `OS`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_watcher_fd(
    watcher: Option<&mut Watcher>,
    fd: Option<&mut MaybeUninit<c_int>>,
) -> Status {
    guard(|| {
        let fd = fd.required("fd")?.write(-1);
        let Watcher(watcher) = watcher.required("watcher")?;
        *fd = watcher.wake_fd()?.as_raw_fd();
        Ok(())
    })
}

/// Creates a handle that ends this watcher's waits.
///
/// `interrupter`: as for `shm_pool_sender_interrupter`.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_watcher_interrupter(
    watcher: Option<&Watcher>,
    interrupter: Option<&mut MaybeUninit<Option<Box<Interrupter>>>>,
) -> Status {
    guard(|| {
        create(interrupter, "interrupter", || {
            let Watcher(watcher) = watcher.required("watcher")?;
            Ok(Interrupter(watcher.interrupter()))
        })
    })
}
