//! One side's end of a channel's object.
//!
//! A pair's sender creates the object, and its receiver joins. A branch's receiver creates it, and
//! the publisher opens it (see `meeting`).
//!
//! A name is reused when a sender exits and its successor starts. So a dead sender's object is
//! removed only under its lock (see `remove_dead`), and a sender removes its own name before it
//! releases the lock.

use super::bell::Bell;
use super::error::ChannelError;
use super::layout::{not_a_channel, size, Facts, Found, Kind, Shared};
use super::meeting::Seat;
use crate::os::fork;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Name};
use crate::os::posix::{effective_uid, round_to_pages};
use crate::os::robust_list::{self, Failed, Listed, MAX_BELLS};
use crate::os::segment::Locked;
use crate::protocol::control::{CHANNEL_MAGIC, OWNER_BYTE, RECEIVER_BYTE};
use crate::protocol::ids::ProviderId;
use crate::protocol::sweep::{self, remove_dead, Removal};
use std::ptr::{addr_of, NonNull};
use std::sync::Arc;
use std::thread;

/// The number of tries if a sweep takes the object during creation, or another process holds
/// the lock of a dead sender.
const TRIES: usize = 16;

/// One side's end of a pair or a branch. On drop it releases its entry for the bell; the creator's
/// end also removes the name.
pub(super) struct Object {
    /// Dropped before the mapping, next to which the entry lies.
    listed: Option<Listed>,
    shared: Arc<Shared>,
    /// Of a branch: its receiver's seat.
    seat: Option<Seat>,
    fork_epoch: u64,
    /// The creator's name, removed before its lock is released.
    _link: Option<Link>,
    locks: Arc<LockFile>,
}

/// A new object, mapped behind a private page of this process, with its name and the creator's
/// lock.
pub(super) type Made = (Mapping, Link, LockFile);

/// Creates an object of at least `len` bytes, replacing one that a dead sender has left.
pub(super) fn make(name: &Name, len: usize, mode: u32) -> Result<Made, ChannelError> {
    let len = round_to_pages(len).unwrap_or(usize::MAX);
    for _ in 0..TRIES {
        match sweep::create_locked(name.clone(), len, mode, OWNER_BYTE, Mapping::behind_own_page) {
            Ok(Locked::Made(segment, locks)) => {
                let (mapping, link) = segment.into_parts();
                return Ok((mapping, link, locks));
            }
            Ok(Locked::Swept(link)) => {
                link.disown();
                continue;
            }
            Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error.into()),
            Err(_) => {}
        }
        // A dead sender's object gives way to the next sender of its name.
        match remove_dead(name, effective_uid(), CHANNEL_MAGIC, false).map_err(not_a_channel)? {
            Removal::Removed { .. } | Removal::Gone => {}
            // A live sender holds the lock, or another process is removing the object right now.
            Removal::Locked | Removal::Read => thread::yield_now(),
            Removal::NotOurs => {
                let reason = "it is no channel, and stands where one is to be made";
                return Err(ChannelError::NotAChannel { object: name.path(), reason });
            }
        }
    }
    Err(ChannelError::Taken { object: name.path() })
}

/// Returns the user's error for a failure to get an entry, or a place for one.
pub(super) fn not_listed(Failed { call, error }: Failed, name: &Name) -> ChannelError {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => ChannelError::TooMany { max: MAX_BELLS },
        _ => name.error(call, 0, error).into(),
    }
}

impl Object {
    /// Creates a pair for its sender.
    pub(super) fn create(name: &Name, facts: &Facts, mode: u32) -> Result<Self, ChannelError> {
        let this = Self::make(name, facts, mode, None)?;
        let this = this.hold(name, false, Shared::to_receiver)?;
        this.shared.header().what.0.finish();
        Ok(this)
    }

    /// Creates a branch for the receiver on this seat. The publisher does not know of it yet.
    pub(super) fn create_branch(name: &Name, facts: &Facts, seat: Seat) -> Result<Self, ChannelError> {
        let this = Self::make(name, facts, 0o600, Some(seat))?;
        // The lock comes first: the holder of the bell always holds the lock too. No other process
        // knows the name, but any can guess it.
        if !this.locks.try_lock(RECEIVER_BYTE).map_err(|error| name.error(LOCK, 0, error))? {
            return Err(ChannelError::HasReceiver { object: name.path() });
        }
        let this = this.hold(name, false, Shared::to_sender)?;
        this.shared.header().what.0.finish();
        Ok(this)
    }

    fn make(name: &Name, facts: &Facts, mode: u32, seat: Option<Seat>) -> Result<Self, ChannelError> {
        let (mapping, link, locks) = make(name, size(facts.slots, facts.loans), mode)?;
        let shared = Arc::new(Shared::new(mapping, facts));
        shared.header().what.0.describe(facts);
        shared.slots().iter().enumerate().for_each(|(at, slot)| slot.start(at));
        Ok(Self { listed: None, shared, seat, fork_epoch: fork::epoch(), _link: Some(link), locks: Arc::new(locks) })
    }

    /// Holds a bell of this object for this end, until the end is dropped or the process dies.
    /// `listed` stays `None` if the bell has, or had, a holder. `has_place` is as in
    /// [`Listed::new`].
    fn hold(mut self, name: &Name, has_place: bool, bell: fn(&Shared) -> &Bell) -> Result<Self, ChannelError> {
        let bell = bell(&self.shared);
        let word = addr_of!(*bell).cast::<u8>().cast_mut();
        // SAFETY: both bells lie in the first page of the mapping, which `make` and `layout::open`
        // have put behind a page of this process's own, for entries.
        let entry = unsafe { word.sub(robust_list::distance()) };
        // SAFETY: an address inside a mapping is not null.
        let entry = unsafe { NonNull::new_unchecked(entry) };
        // SAFETY: the entry lies in the page before the mapping and serves this bell alone, which
        // each end holds once only; it stays until `listed` is dropped, before the mapping.
        let listed = unsafe { Listed::new(entry, has_place, |holder| bell.hold(holder)) };
        self.listed = listed.map_err(|failed| not_listed(failed, name))?;
        Ok(self)
    }

    /// Makes this end of a branch the publisher's (P4). Returns `None` if the receiver was
    /// connected before.
    pub(super) fn meet(self, name: &Name) -> Result<Option<Self>, ChannelError> {
        // The publisher's object, which the seat keeps alive, has reserved a place for each seat.
        let this = self.hold(name, true, Shared::to_receiver)?;
        Ok(this.listed.is_some().then_some(this))
    }

    /// Returns `true` if the sender holds, or held, the bell of this receiver. Always `true` for a
    /// pair.
    #[inline]
    pub(super) fn is_met(&self) -> bool {
        self.seat.is_none() || self.shared.to_receiver().was_held()
    }

    /// Returns why the publisher's last try to connect this receiver failed.
    #[inline]
    pub(super) fn refusal(&self) -> Option<i32> {
        // Ignored once the receiver is connected.
        self.seat.as_ref()?.refusal().filter(|_| !self.is_met())
    }

    /// Takes the [refusal](Self::refusal).
    pub(super) fn take_refusal(&self) -> Option<i32> {
        let refusal = self.refusal();
        self.seat.iter().filter(|_| refusal.is_some()).for_each(Seat::forget_refusal);
        refusal
    }

    /// Leaves on the publisher's behalf if it has died without connecting this receiver: the kernel
    /// rings only for connected ones. One system call while unconnected.
    #[inline]
    pub(super) fn look_for_publisher(&self) {
        if !self.is_met() && !self.has_sender() {
            self.shared.to_receiver().leave();
        }
    }

    /// Returns the receiver's seat, for callers that need it longer than this end lives.
    pub(super) fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// Returns an end of an object that was found, with the seat if it is a branch. It belongs to the
    /// receiver only when that has [joined](Self::join) the pair, or to the publisher when that has
    /// [connected](Self::meet) the receiver.
    pub(super) fn found(found: Found, seat: Option<Seat>) -> Self {
        let shared = Arc::new(Shared::new(found.mapping, &found.facts));
        Self { listed: None, shared, seat, fork_epoch: fork::epoch(), _link: None, locks: Arc::new(found.locks) }
    }

    /// Returns the provider whose messages are sent.
    pub(super) fn provider(&self) -> ProviderId {
        self.shared.header().what.0.provider()
    }

    /// Makes this end of a pair the receiver's. If two try at the same time, one succeeds.
    pub(super) fn join(self, name: &Name) -> Result<Self, ChannelError> {
        let gone = || ChannelError::SenderGone { object: name.path() };
        if !self.shared.to_receiver().is_held() {
            return Err(gone());
        }
        let taken = || ChannelError::HasReceiver { object: name.path() };
        // The lock comes first: the holder of the bell always holds the lock too.
        match self.locks.try_lock(RECEIVER_BYTE) {
            Ok(true) => {}
            Ok(false) => return Err(taken()),
            Err(error) => return Err(name.error(LOCK, 0, error).into()),
        }
        let this = self.hold(name, false, Shared::to_sender)?;
        if this.listed.is_none() {
            // The sender may have closed the bell in between, because no receiver had joined.
            let is_closed = this.shared.header().what.0.is_closed();
            return Err(if is_closed { gone() } else { taken() });
        }
        this.shared.to_sender().ring();
        Ok(this)
    }

    /// Returns the mapping, for callers that need it longer than this end lives.
    #[inline]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the locks of this end.
    pub(super) fn locks(&self) -> &Arc<LockFile> {
        &self.locks
    }

    /// Returns `true` if the sender has left or died. For the receiver.
    #[inline]
    pub(super) fn is_sender_gone(&self) -> bool {
        self.shared.to_receiver().is_gone()
    }

    /// Returns `true` if the sender's process is alive and the sender not dropped. For the
    /// receiver.
    pub(super) fn has_sender(&self) -> bool {
        // The state records a drop: the sender's process holds the lock as long as any loan is out.
        match &self.seat {
            None => !self.shared.header().what.0.is_closed() && self.locks.is_locked(OWNER_BYTE),
            Some(seat) => seat.has_publisher(),
        }
    }

    /// Returns `true` if the receiver's process is alive, or no receiver has joined yet. For the
    /// sender.
    pub(super) fn may_have_receiver(&self) -> bool {
        !self.shared.has_had_receiver() || self.is_receiver_locked()
    }

    /// Returns `true` if a process holds the receiver's lock, and so may still read. For the
    /// sender.
    pub(super) fn is_receiver_locked(&self) -> bool {
        self.locks.is_locked(RECEIVER_BYTE)
    }

    /// Returns `true` in the process that created or opened the object, and `false` in a forked
    /// child.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// Closes the object for the sender: no receiver can open it any more.
    pub(super) fn close(&self) {
        self.shared.header().what.0.close();
        self.shared.to_receiver().leave();
        // A receiver that found the channel open but has not joined yet is refused.
        self.shared.to_sender().close();
    }
}

impl Facts {
    /// Returns the facts of a pair.
    pub(super) fn of_pair(provider: ProviderId, slots: usize, loans: usize) -> Self {
        Self { kind: Kind::Pair, provider, slots, loans, seats: 1, on_full: super::OnFull::Wait, may_wait: true }
    }
}
