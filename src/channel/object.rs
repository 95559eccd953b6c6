//! The shared object of a channel: a header of four lines, and the slots.
//!
//! ```text
//!   offset 0      magic, version, state, provider id, number of slots
//!   offset 64     who the receiver is to that provider: slot, epoch; and whether that is written
//!   offset 128    the bell that the sender rings
//!   offset 192    the bell that the receiver rings
//!   offset 4096   the slots, 64 bytes each
//!
//!   locked byte (OFD lock, held for life):  0 the sender
//! ```
//!
//! A name is used again, by a sender that has come to an end and been started anew. So what a dead one left is removed only with its
//! lock in hand (see `control::remove_dead`), and a sender removes its own name before it gives up the lock.

use super::bell::Bell;
use super::error::ChannelError;
use super::keeper::{self, Listed, MAX_BELLS};
use super::ring::Slot;
use crate::control::{remove_dead, Remains, CHANNEL_MAGIC, CLOSED, OPEN, OWNER_BYTE};
use crate::descriptor::{PeerId, ProviderId};
use crate::error::AttachError;
use crate::fork;
use crate::locks::LockFile;
use crate::posix::{effective_uid, is_part, round_to_pages, Link, Name, MAX_PART, PAGE};
use crate::segment::{Access, Foreign, Locked, Mapping, Segment};
use std::mem::size_of;
use std::ptr::{addr_of, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

/// Version of the layout and of the protocol on it.
const VERSION: u32 = 1;

/// Fewest and most slots.
pub(super) const MIN_SLOTS: usize = 2;
pub(super) const MAX_SLOTS: usize = 65_536;

/// One more is for the message that was received last: its slot is freed when the next one is asked for.
const EXTRA_SLOTS: usize = 1;

/// How often the object may be swept away while it is made, or somebody else may have the lock of a dead sender.
const TRIES: usize = 16;

/// Something in a cache line of its own.
#[repr(C, align(64))]
struct Line<T>(T);

/// The first page. Only atomics: the other process may write at any time.
#[repr(C)]
struct Header {
    what: Line<What>,
    receiver: Line<Identity>,
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
}

#[repr(C)]
struct Identity {
    slot: AtomicU64,
    epoch: AtomicU64,
    /// Not 0 when the others are written.
    is_known: AtomicU64,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Header>() == 256);

/// The same of a channel, or the system's.
fn not_a_channel(error: AttachError) -> ChannelError {
    match error {
        AttachError::NotAProvider { object, reason } => ChannelError::NotAChannel { object, reason },
        AttachError::Os(error) => ChannelError::Os(error),
        other => other.into(),
    }
}

/// One side's end of the object. Leaves its bell, and the sender the name, on drop.
pub(super) struct Object {
    /// Before the mapping, which the entry lies beside.
    listed: Option<Listed>,
    mapping: Mapping,
    slots: usize,
    fork_epoch: u64,
    /// The sender's: the name, and its lock, to be given up in this order.
    _owned: Option<(Link, LockFile)>,
}

/// The name of a channel's object.
pub(super) fn name(prefix: &str, channel: &str) -> Result<Name, ChannelError> {
    if is_part(channel) {
        return Ok(Name::new(&format!("{prefix}.{channel}.channel")));
    }
    Err(ChannelError::Name { name: channel.to_owned(), max: MAX_PART })
}

/// Bytes of an object with so many slots in all.
fn size(slots: usize) -> usize {
    PAGE + slots * size_of::<Slot>()
}

impl Object {
    /// The sender's: makes the object, with `slots` slots.
    pub(super) fn create(name: &Name, slots: usize, provider: ProviderId, mode: u32) -> Result<Self, ChannelError> {
        let slots = slots + EXTRA_SLOTS;
        let len = round_to_pages(size(slots)).unwrap_or(usize::MAX);
        let (segment, locks) = Self::create_locked(name, len, mode)?;
        let (mapping, link) = segment.into_parts();
        let fork_epoch = fork::epoch();
        let mut this = Self { listed: None, mapping, slots, fork_epoch, _owned: Some((link, locks)) };
        let what = &this.header().what.0;
        what.magic.store(CHANNEL_MAGIC, Ordering::Relaxed);
        what.version.store(VERSION, Ordering::Relaxed);
        what.provider.store(provider.0, Ordering::Relaxed);
        what.slots.store(slots as u32, Ordering::Relaxed);
        this.slots().iter().enumerate().for_each(|(at, slot)| slot.start(at));
        let listed = this.hold(this.to_receiver(), name)?;
        this.listed = listed;
        // Release: partner of the Acquire in `open`.
        this.header().what.0.state.store(OPEN, Ordering::Release);
        Ok(this)
    }

    fn create_locked(name: &Name, len: usize, mode: u32) -> Result<(Segment, LockFile), ChannelError> {
        for _ in 0..TRIES {
            match Segment::create_locked(name.clone(), len, mode, OWNER_BYTE, Mapping::beside_private) {
                Ok(Locked::Made(segment, locks)) => return Ok((segment, locks)),
                Ok(Locked::Swept(link)) => {
                    link.disown();
                    continue;
                }
                Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error.into()),
                Err(_) => {}
            }
            // A dead sender's makes room for the next one by this name.
            match remove_dead(name, effective_uid(), CHANNEL_MAGIC).map_err(not_a_channel)? {
                Remains::Removed { .. } | Remains::Gone => {}
                // By a sender that lives; or by somebody else who removes it at this moment.
                Remains::Locked => thread::yield_now(),
                Remains::NotOurs => {
                    let reason = "it is no channel, and stands where one is to be made";
                    return Err(ChannelError::NotAChannel { object: name.path(), reason });
                }
            }
        }
        Err(ChannelError::Taken { object: name.path() })
    }

    /// The receiver's: opens the object, which must belong to user `uid`. It is the receiver only when it has [joined](Self::join).
    pub(super) fn open(name: &Name, uid: u32) -> Result<Self, ChannelError> {
        let object = || name.path();
        let foreign = Foreign::open(name.clone(), Access::ReadWrite, uid).map_err(|error| match error {
            AttachError::Os(error) if error.errno() == Some(libc::ENOENT) => {
                ChannelError::NoChannel { object: object() }
            }
            other => not_a_channel(other),
        })?;
        let bad = |reason| Err(ChannelError::NotAChannel { object: object(), reason });
        if foreign.len < PAGE {
            return bad("it is too small for a header; its sender died while it made it, or has not finished");
        }
        let mapping = foreign.map_beside_private()?;
        let mut this = Self { listed: None, mapping, slots: 0, fork_epoch: fork::epoch(), _owned: None };
        let what = &this.header().what.0;
        match what.state.load(Ordering::Acquire) {
            OPEN => {}
            CLOSED => return Err(ChannelError::SenderGone { object: object() }),
            _ => return bad("its sender has not finished making it"),
        }
        if what.magic.load(Ordering::Relaxed) != CHANNEL_MAGIC {
            return bad("it has another magic number");
        }
        if what.version.load(Ordering::Relaxed) != VERSION {
            return bad("it was made by another version of shm-pool; build both sides with one");
        }
        let slots = what.slots.load(Ordering::Relaxed) as usize;
        let possible = MIN_SLOTS + EXTRA_SLOTS..=MAX_SLOTS + EXTRA_SLOTS;
        if !possible.contains(&slots) || size(slots) > foreign.len {
            return bad("its size does not match its header");
        }
        this.slots = slots;
        if !this.to_receiver().is_held() {
            return Err(ChannelError::SenderGone { object: object() });
        }
        Ok(this)
    }

    /// The provider whose messages are sent.
    pub(super) fn provider(&self) -> ProviderId {
        ProviderId(self.header().what.0.provider.load(Ordering::Relaxed))
    }

    /// Makes this end the receiver's, who is `peer` to the provider.
    pub(super) fn join(&mut self, peer: PeerId, name: &Name) -> Result<(), ChannelError> {
        // First the bell: of two who come at the same time, one gets it.
        let listed = self.hold(self.to_sender(), name)?;
        self.listed = listed;
        let receiver = &self.header().receiver.0;
        receiver.slot.store(peer.slot.into(), Ordering::Relaxed);
        receiver.epoch.store(peer.epoch, Ordering::Relaxed);
        receiver.is_known.store(1, Ordering::Release); // partner: `receiver`
        self.to_sender().ring();
        Ok(())
    }

    /// Who has joined to receive what `provider` sends, if somebody has.
    pub(super) fn receiver(&self, provider: ProviderId) -> Option<PeerId> {
        let receiver = &self.header().receiver.0;
        // Acquire: partner of `join`.
        (receiver.is_known.load(Ordering::Acquire) != 0).then(|| PeerId {
            provider,
            slot: receiver.slot.load(Ordering::Relaxed) as u8,
            epoch: receiver.epoch.load(Ordering::Relaxed),
        })
    }

    /// How many messages fit, however many the receiver has asked for.
    pub(super) fn capacity(&self) -> usize {
        self.slots - EXTRA_SLOTS
    }

    /// Holds a bell, from now until this value is dropped or the process dies.
    fn hold(&self, bell: &Bell, name: &Name) -> Result<Option<Listed>, ChannelError> {
        let word = addr_of!(*bell).cast::<u8>().cast_mut();
        // SAFETY: the bell lies in the first page of the mapping, before which there is a private one.
        let entry = unsafe { word.sub(keeper::distance()) };
        // SAFETY: an address in a mapping is not null.
        let entry = unsafe { NonNull::new_unchecked(entry) };
        // SAFETY: in the private page (`Foreign::map_beside_private`), for this bell's entry alone; `listed` is dropped before the
        // mapping.
        let listed = unsafe { Listed::new(entry, |holder| bell.hold(holder)) };
        match listed {
            Ok(Some(listed)) => Ok(Some(listed)),
            Ok(None) => Err(ChannelError::HasReceiver { object: name.path() }),
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Err(ChannelError::TooMany { max: MAX_BELLS }),
            Err(error) => Err(name.error("set_robust_list", 0, error).into()),
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, at least a page long (checked in `open`), lives as long as `self`, and everybody
        // accesses it by atomics of the same width.
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    #[inline]
    pub(super) fn slots(&self) -> &[Slot] {
        // SAFETY: within the mapping, whose length was checked for as many slots.
        let first = unsafe { self.mapping.base().as_ptr().add(PAGE) };
        // SAFETY: as above; aligned, because a page is a multiple of a line; made of atomics only.
        unsafe { std::slice::from_raw_parts(first.cast(), self.slots) }
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

    /// Is this process the one that made or opened it, and not a forked child?
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// The sender leaves: nobody can open the channel any more.
    pub(super) fn close(&self) {
        self.header().what.0.state.store(CLOSED, Ordering::Release);
        self.to_receiver().leave();
    }
}
