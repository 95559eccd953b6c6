//! The shared object of a channel: a header of four lines, and the slots.
//!
//! ```text
//!   offset 0      magic, version, state, provider id, number of slots
//!   offset 64     who the receiver is to that provider: slot, epoch
//!   offset 128    the bell that the sender rings
//!   offset 192    the bell that the receiver rings
//!   offset 4096   the slots, 64 bytes each
//!
//!   locked byte (OFD lock, held for life):  0 the sender
//! ```
//!
//! Magic, version and state are where a provider's control object has them, and the sender locks the byte that an owner locks; so
//! sweeps treat the two alike.

use super::bell::Bell;
use super::error::ChannelError;
use super::keeper::{self, Listed, MAX_BELLS};
use super::ring::Slot;
use crate::control::{self, Owner, CLOSED, OPEN, OWNER_BYTE};
use crate::descriptor::{PeerId, ProviderId};
use crate::error::AttachError;
use crate::fork;
use crate::locks::LockFile;
use crate::posix::{effective_uid, round_to_pages, Link, Name, PAGE};
use crate::segment::{Access, Foreign, Mapping, Segment};
use std::mem::size_of;
use std::ptr::{addr_of, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// "SHMCHAN" and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"SHMCHAN\0");

/// Version of the layout and of the protocol on it.
const VERSION: u32 = 1;

/// Fewest and most slots.
pub(super) const MIN_SLOTS: usize = 2;
pub(super) const MAX_SLOTS: usize = 65_536;

/// How often the object may be swept away while it is made.
const SWEPT_TRIES: usize = 16;

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
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Header>() == 256);

/// One side's end of the object. Leaves its bell, and the sender the name, on drop.
pub(super) struct Object {
    /// Before the mapping, which the entry lies beside.
    listed: Option<Listed>,
    mapping: Mapping,
    slots: usize,
    fork_epoch: u64,
    /// The sender's: its lock, and the name.
    _owned: Option<(LockFile, Link)>,
}

/// The name of a channel's object.
pub(super) fn name(prefix: &str, channel: &str) -> Name {
    Name::new(&format!("{prefix}.{channel}.channel"))
}

impl Object {
    /// The sender's: makes the object, with `slots` slots, a power of two.
    pub(super) fn create(name: &Name, slots: usize, provider: ProviderId, mode: u32) -> Result<Self, ChannelError> {
        let len = round_to_pages(PAGE + slots * size_of::<Slot>()).unwrap_or(usize::MAX);
        let (first, locks) = Self::create_locked(name, len, mode)?;
        let (_, link) = first.into_parts();
        let foreign = Foreign::open(name.clone(), Access::ReadWrite, effective_uid())?;
        let mapping = foreign.map_beside_private()?;
        let fork_epoch = fork::epoch();
        let mut this = Self { listed: None, mapping, slots, fork_epoch, _owned: Some((locks, link)) };
        let what = &this.header().what.0;
        what.magic.store(MAGIC, Ordering::Relaxed);
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
        for _ in 0..SWEPT_TRIES {
            match Segment::create_locked(name.clone(), len, mode, OWNER_BYTE) {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error.into()),
                // A dead sender's makes room for the next one by this name.
                Err(_) => match control::owner_of(name.clone(), effective_uid()) {
                    Ok(Owner::Dead(_lock)) => drop(name.unlink()),
                    Ok(Owner::Gone) => {}
                    Ok(Owner::Alive) | Err(_) => break,
                },
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
            AttachError::NotAProvider { object, reason } => ChannelError::NotAChannel { object, reason },
            other => other.into(),
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
        if what.magic.load(Ordering::Relaxed) != MAGIC {
            return bad("it has another magic number");
        }
        if what.version.load(Ordering::Relaxed) != VERSION {
            return bad("it was made by another version of shm-pool; build both sides with one");
        }
        let slots = what.slots.load(Ordering::Relaxed) as usize;
        let is_possible = slots.is_power_of_two() && (MIN_SLOTS..=MAX_SLOTS).contains(&slots);
        if !is_possible || PAGE + slots * size_of::<Slot>() > foreign.len {
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
        if self.to_sender().is_held() || self.to_sender().is_gone() {
            return Err(ChannelError::HasReceiver { object: name.path() });
        }
        // Two that come here at the same time write both; the sender asks the provider's own table whom it grants to, so that a
        // mixture of them is nobody.
        let receiver = &self.header().receiver.0;
        receiver.slot.store(peer.slot.into(), Ordering::Relaxed);
        receiver.epoch.store(peer.epoch, Ordering::Relaxed);
        self.listed = self.hold(self.to_sender(), name)?;
        self.to_sender().ring();
        Ok(())
    }

    /// Who has joined, if somebody has.
    pub(super) fn receiver(&self) -> Option<PeerId> {
        let receiver = &self.header().receiver.0;
        // Acquire in there: partner of the Release with which the bell was taken.
        self.to_sender().is_held().then(|| PeerId {
            provider: self.provider(),
            slot: receiver.slot.load(Ordering::Relaxed) as u8,
            epoch: receiver.epoch.load(Ordering::Relaxed),
        })
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
