//! One side's end of a channel's object.
//!
//! A pair's sender makes the object, and its receiver joins. A branch's receiver makes it, and the
//! publisher opens it; until then the receiver sleeps at its seat (see `meeting`).
//!
//! A name is reused when a sender ends and its successor starts. So a dead sender's object is
//! removed only under its lock (see `remove_dead`), and a sender removes its own name before it
//! releases the lock.

use super::bell::Bell;
use super::end::End;
use super::error::ChannelError;
use super::layout::{not_a_channel, size, Facts, Found, Kind, Shared};
use super::meeting::Seat;
use crate::os::fork;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Name};
use crate::os::posix::{effective_uid, round_to_pages};
use crate::os::robust_list::{self, Failed, Listed, MAX_BELLS};
use crate::os::segment::{Locked, Segment};
use crate::protocol::control::{CHANNEL_MAGIC, OWNER_BYTE, RECEIVER_BYTE};
use crate::protocol::dead::{remove_dead, Removal};
use crate::protocol::ids::ProviderId;
use std::ptr::{addr_of, NonNull};
use std::sync::Arc;
use std::thread;

/// How often to try again when a sweep takes the object while it is being made, or somebody else
/// holds the lock of a dead sender.
const TRIES: usize = 16;

/// One side's end of a pair or a branch. On drop it gives up its entry for the bell; its maker's
/// also removes the name.
pub(super) struct Object {
    /// Dropped before the mapping that its entry lies next to.
    listed: Option<Listed>,
    shared: Arc<Shared>,
    /// Of a branch: where its receiver sleeps until the publisher has met it.
    seat: Option<Seat>,
    fork_epoch: u64,
    /// The maker's name, removed before its lock is released.
    _link: Option<Link>,
    locks: Arc<LockFile>,
}

/// A new object, mapped behind a page of this process's own, with its name and the maker's lock.
pub(super) type Made = (Mapping, Link, LockFile);

/// Makes an object of at least `len` bytes, in place of one that a dead sender has left.
pub(super) fn make(name: &Name, len: usize, mode: u32) -> Result<Made, ChannelError> {
    let len = round_to_pages(len).unwrap_or(usize::MAX);
    for _ in 0..TRIES {
        match Segment::create_locked(name.clone(), len, mode, OWNER_BYTE, Mapping::behind_own_page) {
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
        // The object of a dead sender gives way to the next one of its name.
        match remove_dead(name, effective_uid(), CHANNEL_MAGIC, false).map_err(not_a_channel)? {
            Removal::Removed { .. } | Removal::Gone => {}
            // A living sender holds the lock, or somebody else is removing the object right now.
            Removal::Locked | Removal::Read => thread::yield_now(),
            Removal::NotOurs => {
                let reason = "it is no channel, and stands where one is to be made";
                return Err(ChannelError::NotAChannel { object: name.path(), reason });
            }
        }
    }
    Err(ChannelError::Taken { object: name.path() })
}

/// Holds a bell from now until this value is dropped or the process dies. `None` if the bell is
/// held, or was. `has_place` is as in [`Listed::new`].
///
/// # Safety
///
/// The bell lies in the first page of a mapping made by [`Mapping::behind_own_page`], which stays
/// until the result is dropped. Nobody else uses the entry before it.
pub(super) unsafe fn hold(bell: &Bell, has_place: bool, name: &Name) -> Result<Option<Listed>, ChannelError> {
    let word = addr_of!(*bell).cast::<u8>().cast_mut();
    // SAFETY: the bell lies in the first page of the mapping, and the page before the mapping is
    // mapped for entries (this function's contract).
    let entry = unsafe { word.sub(robust_list::distance()) };
    // SAFETY: an address inside a mapping is not null.
    let entry = unsafe { NonNull::new_unchecked(entry) };
    // SAFETY: the entry lies in the page before the mapping, serves this bell alone, and stays
    // until the result is dropped (this function's contract).
    unsafe { Listed::new(entry, has_place, |holder| bell.hold(holder)) }.map_err(|failed| not_listed(failed, name))
}

/// Why there is no entry, or no place for one, as the user sees it.
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
        let this = this.hold(name, false, Self::to_receiver)?;
        this.shared.header().what.0.finish();
        Ok(this)
    }

    /// Creates a branch for the receiver on this seat. The publisher does not know of it yet.
    pub(super) fn create_branch(name: &Name, facts: &Facts, seat: Seat) -> Result<Self, ChannelError> {
        let this = Self::make(name, facts, 0o600, Some(seat))?;
        // The lock comes first: the holder of the bell always holds the lock too. Nobody else knows
        // the name, but anybody can guess it.
        if !this.locks.try_lock(RECEIVER_BYTE).map_err(|error| name.error(LOCK, 0, error))? {
            return Err(ChannelError::HasReceiver { object: name.path() });
        }
        let this = this.hold(name, false, Self::to_sender)?;
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

    /// Holds a bell of this object for this end.
    fn hold(mut self, name: &Name, has_place: bool, bell: impl Fn(&Self) -> &Bell) -> Result<Self, ChannelError> {
        // SAFETY: both bells lie in the first page of the mapping, which `make` and `layout::open`
        // have put behind a page of this process's own; `listed` is dropped before it. Each end
        // holds one bell, and once only.
        self.listed = unsafe { hold(bell(&self), has_place, name) }?;
        Ok(self)
    }

    /// The receiver's end of a pair that was found. It becomes the receiver's only when it has
    /// [joined](Self::join).
    pub(super) fn of_pair(found: Found, name: &Name) -> Result<Self, ChannelError> {
        let this = Self::found(found, None);
        if this.to_receiver().is_held() {
            return Ok(this);
        }
        Err(ChannelError::SenderGone { object: name.path() })
    }

    /// The publisher's end of a branch that was found. It becomes the publisher's only when it has
    /// [met](Self::meet) the receiver.
    pub(super) fn of_branch(found: Found, seat: Seat) -> Self {
        Self::found(found, Some(seat))
    }

    /// Makes this end of a branch the publisher's (P4). `None` if the receiver was met before.
    pub(super) fn meet(self, name: &Name) -> Result<Option<Self>, ChannelError> {
        // The meeting, which the seat keeps, has taken a place for each seat.
        let this = self.hold(name, true, Self::to_receiver)?;
        Ok(this.listed.is_some().then_some(this))
    }

    /// Has the publisher met this receiver, so that it rings the object's own bell? A pair's sender
    /// always does.
    #[inline]
    pub(super) fn is_met(&self) -> bool {
        self.seat.is_none() || self.to_receiver().was_held()
    }

    fn found(found: Found, seat: Option<Seat>) -> Self {
        let shared = Arc::new(Shared::new(found.mapping, &found.facts));
        Self { listed: None, shared, seat, fork_epoch: fork::epoch(), _link: None, locks: Arc::new(found.locks) }
    }

    /// The provider whose messages are sent.
    pub(super) fn provider(&self) -> ProviderId {
        self.shared.header().what.0.provider()
    }

    /// Makes this end of a pair the receiver's. If two try at the same time, one succeeds.
    pub(super) fn join(self, name: &Name) -> Result<Self, ChannelError> {
        let taken = || ChannelError::HasReceiver { object: name.path() };
        // The lock comes first: the holder of the bell always holds the lock too.
        match self.locks.try_lock(RECEIVER_BYTE) {
            Ok(true) => {}
            Ok(false) => return Err(taken()),
            Err(error) => return Err(name.error(LOCK, 0, error).into()),
        }
        let this = self.hold(name, false, Self::to_sender)?;
        if this.listed.is_none() {
            // The sender may have closed the bell in between, because no receiver had come.
            let is_closed = this.shared.header().what.0.is_closed();
            return Err(if is_closed { ChannelError::SenderGone { object: name.path() } } else { taken() });
        }
        this.to_sender().ring();
        Ok(this)
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
        self.shared.capacity()
    }

    #[inline]
    pub(super) fn slots(&self) -> &[super::ring::Slot] {
        self.shared.slots()
    }

    /// The bell that the sender rings; in a branch, from the meeting on.
    #[inline]
    pub(super) fn to_receiver(&self) -> &Bell {
        self.shared.to_receiver()
    }

    /// Was there a sender, and has it gone? For the receiver to ask.
    #[inline]
    pub(super) fn is_sender_gone(&self) -> bool {
        match &self.seat {
            // Whoever was met does not mind what has become of the seat since.
            Some(seat) if !self.is_met() => seat.bell().is_gone() && !self.is_met() || self.to_receiver().is_gone(),
            _ => self.to_receiver().is_gone(),
        }
    }

    /// The bell that the receiver rings.
    #[inline]
    pub(super) fn to_sender(&self) -> &Bell {
        self.shared.to_sender()
    }

    /// What the receiver sleeps on now.
    pub(super) fn receivers_end(&self) -> End {
        match &self.seat {
            Some(seat) if !self.is_met() => seat.end(),
            _ => End::of_object(&self.shared, Shared::to_receiver),
        }
    }

    /// What the sender sleeps on.
    pub(super) fn senders_end(&self) -> End {
        End::of_object(&self.shared, Shared::to_sender)
    }

    /// Is the sender's process alive and the sender not dropped? For the receiver to ask.
    pub(super) fn has_sender(&self) -> bool {
        // The state tells of a drop: the sender's process holds the lock for as long as anything is
        // lent.
        match &self.seat {
            None => !self.shared.header().what.0.is_closed() && self.locks.is_locked(OWNER_BYTE),
            Some(seat) => seat.has_publisher(),
        }
    }

    /// Is the receiver's process alive, or has none come yet? For the sender to ask.
    pub(super) fn may_have_receiver(&self) -> bool {
        // A branch is made by its receiver.
        let may_come = self.seat.is_none() && !self.to_sender().is_held();
        may_come || self.is_receiver_locked()
    }

    /// Was there a receiver from the start?
    pub(super) fn is_branch(&self) -> bool {
        self.seat.is_some()
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

    /// The sender leaves: nobody can open the object any more.
    pub(super) fn close(&self) {
        self.shared.header().what.0.close();
        self.to_receiver().leave();
        // A receiver that found the channel open but has not joined yet is refused.
        self.to_sender().close();
    }
}

impl Facts {
    /// What a pair says of itself.
    pub(super) fn of_pair(provider: ProviderId, slots: usize, loans: usize) -> Self {
        Self { kind: Kind::Pair, provider, slots, loans, seats: 1, on_full: super::OnFull::Wait, may_wait: true }
    }
}
