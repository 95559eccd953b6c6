//! The shared object of a channel: a header of three cache lines, the slots, and the returns.
//!
//! ```text
//!   offset 0      magic, version, state, provider id, number of slots and of loans
//!   offset 64     the bell that the sender rings
//!   offset 128    the bell that the receiver rings
//!   offset 4096   the slots, 64 bytes each; behind them the returns, 8 bytes each
//!
//!   locked bytes (exclusive OFD locks):
//!     0 the sender, as long as its end exists or anything is lent
//!     1 the receiver, as long as its end exists or anything that it received is read
//! ```
//!
//! A name is reused when a sender ends and its successor starts. So a dead sender's object is
//! removed only under its lock (see `remove_dead`), and a sender removes its own name before it
//! releases the lock.

use super::bell::Bell;
use super::error::ChannelError;
use super::ring::Slot;
use crate::os::foreign::{Foreign, ObjectError};
use crate::os::fork;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{is_part, Link, Name, Namespace, MAX_PART};
use crate::os::posix::{effective_uid, round_to_pages, PAGE};
use crate::os::robust_list::{self, Failed, Listed, MAX_BELLS};
use crate::os::segment::{Locked, Segment};
use crate::protocol::control::{CHANNEL_MAGIC, CLOSED, OPEN, OWNER_BYTE, RECEIVER_BYTE};
use crate::protocol::dead::{remove_dead, Removal};
use crate::protocol::ids::ProviderId;
use std::mem::size_of;
use std::ptr::{addr_of, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;

/// Version of the layout and of the protocol on it.
const VERSION: u32 = 2;

/// The range of the number of slots.
pub(super) const MIN_SLOTS: usize = 2;
pub(super) const MAX_SLOTS: usize = 65_536;

/// The largest number of buffers that a receiver may have.
pub(super) const MAX_LOANS: usize = 1 << 20;

/// The extra slot is for the message that was received last: its slot is freed only when the next
/// message is asked for.
const EXTRA_SLOTS: usize = 1;

/// How often to try again when a sweep takes the object while it is being made, or somebody else
/// holds the lock of a dead sender.
const TRIES: usize = 16;

/// A value in a cache line of its own.
#[repr(C, align(64))]
struct Line<T>(T);

/// The first page. Atomics only: the other process may write at any time.
#[repr(C)]
struct ChannelHeader {
    what: Line<What>,
    to_receiver: Line<Bell>,
    to_sender: Line<Bell>,
}

#[repr(C)]
struct What {
    magic: AtomicU64,
    version: AtomicU32,
    state: AtomicU32,
    provider: AtomicU64,
    slots: AtomicU32,
    loans: AtomicU32,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<ChannelHeader>() == 192);

/// Turns what is wrong with an object into the channel's error for it.
pub(super) fn not_a_channel(error: ObjectError) -> ChannelError {
    match error {
        ObjectError::Unusable { object, reason } => ChannelError::NotAChannel { object, reason },
        ObjectError::WrongUid { object, found, expected } => ChannelError::WrongUid { object, found, expected },
        ObjectError::Os(error) => ChannelError::Os(error),
    }
}

/// The mapped object. Both ends hold it, as do the lender and every message that is still read.
pub(super) struct Shared {
    mapping: Mapping,
    slots: usize,
    loans: usize,
}

/// One side's end of the object. On drop it gives up its entry for the bell; the sender's also
/// removes the name.
pub(super) struct Object {
    /// Dropped before the mapping that its entry lies next to.
    listed: Option<Listed>,
    shared: Arc<Shared>,
    fork_epoch: u64,
    /// The sender's name, removed before its lock is released.
    _link: Option<Link>,
    locks: Arc<LockFile>,
}

/// The name of a channel's object.
pub(super) fn name(names: &Namespace, channel: &str) -> Result<Name, ChannelError> {
    if is_part(channel) {
        return Ok(names.name(&format!("{channel}.channel")));
    }
    Err(ChannelError::Name { name: channel.to_owned(), max: MAX_PART })
}

/// The size in bytes of an object with `slots` slots (the extra one included) and `loans` loans.
fn size(slots: usize, loans: usize) -> usize {
    PAGE + slots * size_of::<Slot>() + loans * size_of::<AtomicU64>()
}

impl Object {
    /// Creates the object for the sender, with room for `slots` messages and `loans` loans, a power
    /// of two.
    pub(super) fn create(
        name: &Name,
        slots: usize,
        loans: usize,
        provider: ProviderId,
        mode: u32,
    ) -> Result<Self, ChannelError> {
        let slots = slots + EXTRA_SLOTS;
        let len = round_to_pages(size(slots, loans)).unwrap_or(usize::MAX);
        let (segment, locks) = Self::create_locked(name, len, mode)?;
        let (mapping, link) = segment.into_parts();
        let shared = Arc::new(Shared::new(mapping, slots, loans));
        let fork_epoch = fork::epoch();
        let mut this = Self { listed: None, shared, fork_epoch, _link: Some(link), locks: Arc::new(locks) };
        let what = &this.shared.header().what.0;
        what.magic.store(CHANNEL_MAGIC, Ordering::Relaxed);
        what.version.store(VERSION, Ordering::Relaxed);
        what.provider.store(provider.0, Ordering::Relaxed);
        what.slots.store(slots as u32, Ordering::Relaxed);
        what.loans.store(loans as u32, Ordering::Relaxed);
        this.slots().iter().enumerate().for_each(|(at, slot)| slot.start(at));
        let listed = this.hold(this.to_receiver(), name)?;
        this.listed = listed;
        // Release: partner of the Acquire in `open`.
        this.shared.header().what.0.state.store(OPEN, Ordering::Release);
        Ok(this)
    }

    fn create_locked(name: &Name, len: usize, mode: u32) -> Result<(Segment, LockFile), ChannelError> {
        for _ in 0..TRIES {
            match Segment::create_locked(name.clone(), len, mode, OWNER_BYTE, Mapping::behind_own_page) {
                Ok(Locked::Made(segment, locks)) => return Ok((segment, locks)),
                Ok(Locked::Swept(link)) => {
                    link.disown();
                    continue;
                }
                Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error.into()),
                Err(_) => {}
            }
            // The object of a dead sender gives way to the next one of its name.
            match remove_dead(name, effective_uid(), CHANNEL_MAGIC, false).map_err(not_a_channel)? {
                Removal::Removed { .. } | Removal::Gone => {}
                // A living sender holds the lock, or somebody else is removing the object right
                // now.
                Removal::Locked | Removal::Read => thread::yield_now(),
                Removal::NotOurs => {
                    let reason = "it is no channel, and stands where one is to be made";
                    return Err(ChannelError::NotAChannel { object: name.path(), reason });
                }
            }
        }
        Err(ChannelError::Taken { object: name.path() })
    }

    /// Opens the object for the receiver; it must belong to user `uid`. This end becomes the
    /// receiver's only when it has [joined](Self::join).
    pub(super) fn open(name: &Name, uid: u32) -> Result<Self, ChannelError> {
        let object = || name.path();
        let missing = |error: ObjectError| match error {
            missing if missing.is_missing() => ChannelError::NoChannel { object: object() },
            other => not_a_channel(other),
        };
        let foreign = Foreign::open(name.clone(), Access::ReadWrite, uid).map_err(missing)?;
        // The object gets its length together with its memory, after its lock.
        let is_unfinished = || Err(ChannelError::Unfinished { object: object() });
        let locks = foreign.open_for_locks().map_err(|error| match error {
            // Another object took the name in between.
            ObjectError::Unusable { .. } => ChannelError::Unfinished { object: object() },
            other => missing(other),
        })?;
        let bad = |reason| Err(ChannelError::NotAChannel { object: object(), reason });
        let has_sender = locks.is_locked(OWNER_BYTE);
        if foreign.len < PAGE {
            return if has_sender || foreign.len == 0 { is_unfinished() } else { bad("it is too small for a header") };
        }
        let mapping = foreign.map_behind_own_page()?;
        // Mapped this way for its header only.
        let shared = Shared { mapping, slots: 0, loans: 0 };
        let what = &shared.header().what.0;
        match what.state.load(Ordering::Acquire) {
            OPEN => {}
            CLOSED => return Err(ChannelError::SenderGone { object: object() }),
            0 if has_sender => return is_unfinished(),
            0 => return bad("its sender died while it made it"),
            _ => return bad("it is in a state that there is not"),
        }
        if what.magic.load(Ordering::Relaxed) != CHANNEL_MAGIC {
            return bad("it has another magic number");
        }
        if what.version.load(Ordering::Relaxed) != VERSION {
            return bad("it was made by another version of shm-pool; build both sides with one");
        }
        let slots = what.slots.load(Ordering::Relaxed) as usize;
        let loans = what.loans.load(Ordering::Relaxed) as usize;
        let possible = MIN_SLOTS + EXTRA_SLOTS..=MAX_SLOTS + EXTRA_SLOTS;
        let are_loans = loans.is_power_of_two() && loans <= MAX_LOANS;
        if !possible.contains(&slots) || !are_loans || size(slots, loans) > foreign.len {
            return bad("its size does not match its header");
        }
        let shared = Arc::new(Shared::new(shared.mapping, slots, loans));
        if !shared.to_receiver().is_held() {
            return Err(ChannelError::SenderGone { object: object() });
        }
        Ok(Self { listed: None, shared, fork_epoch: fork::epoch(), _link: None, locks: Arc::new(locks) })
    }

    /// The provider whose messages are sent.
    pub(super) fn provider(&self) -> ProviderId {
        ProviderId(self.shared.header().what.0.provider.load(Ordering::Relaxed))
    }

    /// Makes this end the receiver's. If two try at the same time, one succeeds.
    pub(super) fn join(&mut self, name: &Name) -> Result<(), ChannelError> {
        let taken = || ChannelError::HasReceiver { object: name.path() };
        // The lock comes first: the holder of the bell always holds the lock too.
        match self.locks.try_lock(RECEIVER_BYTE) {
            Ok(true) => {}
            Ok(false) => return Err(taken()),
            Err(error) => return Err(name.error(LOCK, 0, error).into()),
        }
        let Some(listed) = self.hold(self.to_sender(), name)? else {
            // The sender may have closed the bell in between, because no receiver had come.
            return Err(if self.is_closed() { ChannelError::SenderGone { object: name.path() } } else { taken() });
        };
        self.listed = Some(listed);
        self.to_sender().ring();
        Ok(())
    }

    /// The mapping, for those that need it for longer than this end lives.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The locks of this end.
    pub(super) fn locks(&self) -> &Arc<LockFile> {
        &self.locks
    }

    /// How many messages fit, not counting the extra slot.
    pub(super) fn capacity(&self) -> usize {
        self.shared.slots - EXTRA_SLOTS
    }

    /// Holds a bell from now until this value is dropped or the process dies. `None` if the bell is
    /// held, or was.
    fn hold(&self, bell: &Bell, name: &Name) -> Result<Option<Listed>, ChannelError> {
        let word = addr_of!(*bell).cast::<u8>().cast_mut();
        // SAFETY: the bell lies in the first page of the mapping, and the page before the mapping
        // is mapped for entries.
        let entry = unsafe { word.sub(robust_list::distance()) };
        // SAFETY: an address inside a mapping is not null.
        let entry = unsafe { NonNull::new_unchecked(entry) };
        // SAFETY: the entry lies in the page before the mapping (`Mapping::behind_own_page`) and
        // serves this bell alone; `listed` is declared before the mapping, and so dropped first.
        let listed = unsafe { Listed::new(entry, |holder| bell.hold(holder)) };
        match listed {
            Ok(listed) => Ok(listed),
            Err(Failed { error, .. }) if error.raw_os_error() == Some(libc::ENOSPC) => {
                Err(ChannelError::TooMany { max: MAX_BELLS })
            }
            Err(Failed { call, error }) => Err(name.error(call, 0, error).into()),
        }
    }

    #[inline]
    pub(super) fn slots(&self) -> &[Slot] {
        self.shared.slots()
    }

    /// The bell that the sender rings.
    #[inline]
    pub(super) fn to_receiver(&self) -> &Bell {
        self.shared.to_receiver()
    }

    /// The bell that the receiver rings.
    #[inline]
    pub(super) fn to_sender(&self) -> &Bell {
        self.shared.to_sender()
    }

    /// Is the sender's process alive and the sender not dropped? For the receiver to ask.
    pub(super) fn has_sender(&self) -> bool {
        // The state tells of a drop: the sender's process holds the lock for as long as anything is
        // lent.
        !self.is_closed() && self.locks.is_locked(OWNER_BYTE)
    }

    fn is_closed(&self) -> bool {
        // Acquire: partner of the Release in `close`.
        self.shared.header().what.0.state.load(Ordering::Acquire) == CLOSED
    }

    /// Is the receiver's process alive, or has none come yet? For the sender to ask.
    pub(super) fn may_have_receiver(&self) -> bool {
        !self.to_sender().is_held() || self.is_receiver_locked()
    }

    /// Does anybody hold the receiver's lock, so that its process may still read? For the sender to
    /// ask.
    pub(super) fn is_receiver_locked(&self) -> bool {
        self.locks.is_locked(RECEIVER_BYTE)
    }

    /// Is this the process that created or opened the object, and not a forked child?
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// The sender leaves: nobody can open the channel any more.
    pub(super) fn close(&self) {
        self.shared.header().what.0.state.store(CLOSED, Ordering::Release);
        self.to_receiver().leave();
        // A receiver that found the channel open but has not joined yet is refused.
        self.to_sender().close();
    }
}

impl Shared {
    /// Makes the whole object present at once, so that no message of the first round faults. If the
    /// kernel cannot, they fault.
    fn new(mapping: Mapping, slots: usize, loans: usize) -> Self {
        let _ = mapping.prefault(0..size(slots, loans));
        Self { mapping, slots, loans }
    }

    fn header(&self) -> &ChannelHeader {
        // SAFETY: the mapping is page-aligned, at least a page long (by `size` in `create`, checked
        // in `open`) and lives as long as `self`; all processes access the header by atomics of the
        // same width.
        unsafe { self.mapping.base().cast::<ChannelHeader>().as_ref() }
    }

    #[inline]
    pub(super) fn slots(&self) -> &[Slot] {
        // SAFETY: within the mapping: `create` made it long enough for the slots, and `open`
        // checked that it is.
        let first = unsafe { self.mapping.base().as_ptr().add(PAGE) };
        // SAFETY: the slots lie within the mapping (as `create` made and `open` checked it), are
        // aligned, because a page is a multiple of a line, and consist of atomics only.
        unsafe { std::slice::from_raw_parts(first.cast(), self.slots) }
    }

    /// The words of the returns.
    #[inline]
    pub(super) fn returns(&self) -> &[crate::sync::AtomicU64] {
        // SAFETY: within the mapping: `create` made it long enough for slots and loans, and `open`
        // checked that it is.
        let first = unsafe { self.mapping.base().as_ptr().add(PAGE + self.slots * size_of::<Slot>()) };
        // SAFETY: the words lie within the mapping (as `create` made and `open` checked it), are
        // aligned, because a slot is a multiple of a word, and are atomics.
        unsafe { std::slice::from_raw_parts(first.cast(), self.loans) }
    }

    /// The bell that the sender rings.
    #[inline]
    pub(super) fn to_receiver(&self) -> &Bell {
        &self.header().to_receiver.0
    }

    /// The bell that the receiver rings.
    #[inline]
    pub(super) fn to_sender(&self) -> &Bell {
        &self.header().to_sender.0
    }

    /// Is the receiver's lock free? `locks` are the sender's.
    pub(super) fn is_receiver_unlocked(&self, locks: &LockFile) -> bool {
        !locks.is_locked(RECEIVER_BYTE)
    }
}
