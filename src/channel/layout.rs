//! The layout of a channel's objects, and the checks on one that another process created.
//!
//! A *pair* is a whole channel of one sender and one receiver. At a publisher's *rendezvous*
//! receivers join, each with a *connection* that it creates. See
//! `docs/format.md`.
//!
//! The last words of an object's first page declare the type of its messages. The sender writes
//! them before it opens the object, and they never change. `typed` checks each message.

use super::doorbell::Doorbell;
use super::error::ChannelError;
use super::interrupt::{self, Interrupts};
use super::message::MissedWords;
use super::ring::{OnFull, Returns, Slot};
use crate::error::OsError;
use crate::os::fork::ForkGuard;
use crate::os::futex::{Deadline, Futex};
use crate::os::locks::LockFile;
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{Name, Namespace};
use crate::os::posix::{page_size, round_to_pages, PAGE};
use crate::os::segment::{Foreign, ObjectError};
use crate::protocol::control::{CHANNEL_MAGIC, CLOSED, OPEN, OWNER_BYTE};
use crate::protocol::ids::{channel_name, escaped, is_channel, max_channel_bytes, ProviderId};
use crate::sync::{self, fence, fence_after_rmw};
use std::alloc::Layout;
use std::borrow::Cow;
use std::fmt;
use std::mem::size_of;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

pub(super) use crate::protocol::ids::connection_name;

pub(crate) const VERSION: u32 = 10;

pub(super) const MIN_SLOTS: usize = 2;
pub(super) const MAX_SLOTS: usize = 65_536;

pub(super) const MAX_BORROWED: usize = 1 << 20;

pub(super) const DEFAULT_SLOTS: usize = 256;
pub(super) const DEFAULT_MAX_BORROWED: usize = 2048;

/// For a sender's message received last, or a publisher's that replaces the oldest.
pub(super) const EXTRA_SLOTS: usize = 1;

pub(super) const MAX_SUBSCRIBERS: usize = 64;

const EVICTED: u32 = 3;

#[repr(C, align(64))]
pub(super) struct Line<T>(pub(super) T);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pair = 1,
    Rendezvous = 2,
    Connection = 3,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    pub(super) provider: ProviderId,
    /// With the extra one; for a publisher, the maximum for a connection.
    pub(super) slots: usize,
    /// A power of two; for a publisher, the maximum for a connection.
    pub(super) max_borrowed: usize,
    /// Of a publisher; otherwise 1.
    pub(super) max_subscribers: usize,
    /// For a publisher, the default of its receivers.
    pub(super) on_full: OnFull,
    pub(super) allow_blocking: bool,
}

pub(super) const WRONG_SIZE: &str = "its size does not match its header";

impl Facts {
    pub(super) fn are_possible(&self) -> bool {
        let least = if self.kind == Kind::Pair {
            MIN_SLOTS
        } else {
            1
        };
        let are_slots = (least + EXTRA_SLOTS..=MAX_SLOTS + EXTRA_SLOTS).contains(&self.slots);
        are_slots && self.max_borrowed.is_power_of_two() && self.max_borrowed <= MAX_BORROWED
    }
}

/// The first line of every object. Atomics only: another process may write at any time.
#[derive(Default)]
#[repr(C)]
pub(super) struct What {
    magic: AtomicU64,
    version: AtomicU32,
    state: sync::AtomicU32,
    provider: AtomicU64,
    slots: AtomicU32,
    max_borrowed: AtomicU32,
    kind: AtomicU32,
    max_subscribers: AtomicU32,
    on_full: AtomicU32,
    allow_blocking: AtomicU32,
    /// The version of the receiver that was last refused because it has another one, or 0. This,
    /// `magic` and `version` have the same places in all versions.
    refused_version: AtomicU32,
}

impl What {
    #[cfg(all(test, loom))]
    pub(super) fn finished() -> Self {
        Self {
            state: sync::AtomicU32::new(OPEN),
            ..Self::default()
        }
    }

    /// Returns the first line of an object or a copy of at least a page.
    pub(super) fn of(mapping: &Mapping) -> &Self {
        assert!(mapping.len() >= size_of::<Self>());
        // SAFETY: a mapping is page-aligned, this one is long enough (asserted), and the line
        // consists of atomics only.
        unsafe { mapping.base().cast::<Self>().as_ref() }
    }

    /// The object stays unfinished until [`finish`](Self::finish).
    pub(super) fn describe(&self, facts: &Facts) {
        self.magic.store(CHANNEL_MAGIC, Ordering::Relaxed);
        self.version.store(VERSION, Ordering::Relaxed);
        self.provider.store(facts.provider.0, Ordering::Relaxed);
        self.slots.store(facts.slots as u32, Ordering::Relaxed);
        self.max_borrowed
            .store(facts.max_borrowed as u32, Ordering::Relaxed);
        self.kind.store(facts.kind as u32, Ordering::Relaxed);
        self.max_subscribers
            .store(facts.max_subscribers as u32, Ordering::Relaxed);
        self.on_full
            .store(facts.on_full.number(), Ordering::Relaxed);
        self.allow_blocking
            .store(facts.allow_blocking.into(), Ordering::Relaxed);
    }

    pub(super) fn finish(&self) {
        // Release: partner of the Acquire in `read`.
        self.state.store(OPEN, Ordering::Release);
    }

    pub(super) fn close(&self) {
        // Release: partner of the Acquire in `is_closed`. (A publisher also fences.)
        self.state.store(CLOSED, Ordering::Release);
    }

    pub(super) fn evict(&self) {
        // Release: partner of the Acquire in `is_evicted`.
        self.state.store(EVICTED, Ordering::Release);
    }

    /// Tells the creator, which has another version, that this process cannot open the object.
    fn refuse_version(&self) {
        // Relaxed, here and below: it says nothing about other memory.
        self.refused_version.store(VERSION, Ordering::Relaxed);
    }

    /// Returns the version of a receiver that could not open this object.
    pub(super) fn refused_version(&self) -> Option<u32> {
        match self.refused_version.load(Ordering::Relaxed) {
            0 => None,
            refused => Some(refused),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        // Acquire: partner of the Release in `close`.
        [CLOSED, EVICTED].contains(&self.state.load(Ordering::Acquire))
    }

    pub(super) fn is_evicted(&self) -> bool {
        // Acquire: partner of the Release in `evict`.
        self.state.load(Ordering::Acquire) == EVICTED
    }

    pub(super) fn provider(&self) -> ProviderId {
        ProviderId(self.provider.load(Ordering::Relaxed))
    }

    /// Returns the object's facts, or what is wrong with it. `has_maker`: its creator lives.
    pub(super) fn read(
        &self,
        has_maker: bool,
        object: impl Fn() -> PathBuf,
    ) -> Result<Facts, ChannelError> {
        let bad = |reason| {
            Err(ChannelError::NotAChannel {
                object: object(),
                reason,
            })
        };
        match self.state.load(Ordering::Acquire) {
            OPEN => {}
            CLOSED | EVICTED => return Err(ChannelError::Closed(object())),
            0 if has_maker => return Err(ChannelError::NotReady(object())),
            0 => return Err(ChannelError::Closed(object())),
            _ => return bad("its state has an unknown value"),
        }
        self.facts(object)
    }

    pub(super) fn facts(&self, object: impl Fn() -> PathBuf) -> Result<Facts, ChannelError> {
        let bad = |reason| {
            Err(ChannelError::NotAChannel {
                object: object(),
                reason,
            })
        };
        if self.magic.load(Ordering::Relaxed) != CHANNEL_MAGIC {
            return bad("it has another magic number");
        }
        let version = self.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(ChannelError::OtherVersion {
                object: object(),
                found: version,
            });
        }
        let kinds = [Kind::Pair, Kind::Rendezvous, Kind::Connection];
        let kind = self.kind.load(Ordering::Relaxed);
        let Some(kind) = kinds.into_iter().find(|&known| known as u32 == kind) else {
            return bad("it is of no known kind");
        };
        let Some(on_full) = OnFull::from_number(self.on_full.load(Ordering::Relaxed)) else {
            return bad("its rule for a full channel has an unknown value");
        };
        Ok(Facts {
            kind,
            on_full,
            provider: self.provider(),
            slots: self.slots.load(Ordering::Relaxed) as usize,
            max_borrowed: self.max_borrowed.load(Ordering::Relaxed) as usize,
            max_subscribers: self.max_subscribers.load(Ordering::Relaxed) as usize,
            allow_blocking: self.allow_blocking.load(Ordering::Relaxed) != 0,
        })
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod format {
    use super::*;

    pub(crate) use super::VERSION;

    pub(crate) fn number(rule: OnFull) -> u32 {
        rule.number()
    }

    pub(crate) fn offsets() -> Vec<(&'static str, usize)> {
        let what: &[_] = offsets!(What: magic version state provider slots max_borrowed kind max_subscribers on_full allow_blocking refused_version);
        let message_type: &[_] = offsets!(TypeWords: type_align type_name_len type_version type_size type_element type_name);
        let message_type = message_type
            .iter()
            .map(|(field, offset)| (*field, TYPE_OFFSET + offset));
        what.iter().copied().chain(message_type).collect()
    }

    pub(crate) const HEADER: &[(&str, usize)] =
        offsets!(Header: to_receiver to_sender returns_read missed process);

    pub(crate) const RETURNS_READ: &[(&str, usize)] = offsets!(ReturnsRead: elsewhere at_home);

    pub(crate) use crate::channel::message::OFFSETS as MISSED;

    pub(crate) fn names(names: &Namespace) -> [Name; 2] {
        [
            name(names, "camera").unwrap(),
            connection_name(names, "camera", 0xff),
        ]
    }
}

/// How many returns the sender has read: of those of other threads than the home thread, without a
/// gap.
#[derive(Default)]
#[repr(C)]
pub(super) struct ReturnsRead {
    pub(super) elsewhere: AtomicU64,
    pub(super) at_home: AtomicU64,
}

/// The first page of a pair or a connection. Atomics only.
#[repr(C)]
pub(super) struct Header {
    pub(super) what: Line<What>,
    pub(super) to_receiver: Line<Doorbell>,
    pub(super) to_sender: Line<Doorbell>,
    /// Written by the sender's process, which does not read it.
    pub(super) returns_read: Line<ReturnsRead>,
    pub(super) missed: Line<MissedWords>,
    /// The id of the receiver's process, in its own PID namespace, or 0. Written once.
    pub(super) process: Line<AtomicU32>,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<Header>() == 384 && size_of::<Header>() <= TYPE_OFFSET);

/// The first page of a publisher's object. Atomics only. For the steps see `object`.
#[repr(C)]
pub(super) struct RendezvousHeader {
    what: Line<What>,
    arrivals: Line<Futex>,
    registrations: [RegistrationWords; MAX_SUBSCRIBERS],
}

#[repr(C)]
struct RegistrationWords {
    refused: sync::AtomicU32,
    connection: sync::AtomicU64,
}

#[cfg(not(all(test, loom)))]
const _: () =
    assert!(size_of::<RendezvousHeader>() <= TYPE_OFFSET && size_of::<RegistrationWords>() == 16);

impl RendezvousHeader {
    #[cfg(all(test, loom))]
    pub(super) fn open() -> Self {
        let registration = |_| RegistrationWords {
            refused: sync::AtomicU32::new(0),
            connection: sync::AtomicU64::new(0),
        };
        let what = Line(What::finished());
        let arrivals = Line(Futex::new(0));
        Self {
            what,
            arrivals,
            registrations: std::array::from_fn(registration),
        }
    }

    pub(super) fn start(&self, facts: &Facts) {
        self.what.0.describe(facts);
        self.what.0.finish();
    }

    pub(super) fn refused_version(&self) -> Option<u32> {
        self.what.0.refused_version()
    }

    /// The number of receivers that have joined so far (P1).
    #[inline]
    pub(super) fn arrivals(&self) -> u32 {
        // SeqCst: partner of R4.
        self.arrivals.0.load(Ordering::SeqCst)
    }

    /// The connection last announced at a registration (P2); 0 if none was.
    pub(super) fn connection(&self, at: usize) -> u64 {
        // Acquire: partner of the Release in R3.
        self.registrations[at].connection.load(Ordering::Acquire)
    }

    /// Announces a connection (R3, R4). Returns `false` if the publisher has closed the channel
    /// (R5).
    pub(super) fn announce(&self, at: usize, connection: u64) -> bool {
        self.registrations[at].refused.store(0, Ordering::Relaxed);
        self.registrations[at]
            .connection
            .store(connection, Ordering::Release); // R3
        self.arrivals.0.fetch_add(1, Ordering::SeqCst); // R4, partner of P1
        fence_after_rmw(); // partner: the fence in `close`
        self.arrivals.0.wake();
        !self.what.0.is_closed()
    }

    /// The word with [that number](Self::arrivals), which R4 changes and wakes.
    fn arrivals_word(&self) -> &Futex {
        &self.arrivals.0
    }

    /// Sleeps until another receiver joins, an interrupt or the deadline. After J1 of `interrupt`.
    pub(super) fn wait_for_another(
        &self,
        known: u32,
        interrupts: &Interrupts,
        deadline: Option<Deadline>,
    ) {
        interrupt::sleep_while(
            &self.arrivals.0,
            known,
            std::iter::once(interrupts),
            deadline,
        );
    }

    /// Lets no further receiver join (C1).
    pub(super) fn close(&self) {
        self.what.0.close();
        fence(Ordering::SeqCst); // partner: the fence in `announce`
    }

    /// Records why the receiver cannot be connected now (P3'). Returns `true` if the receiver
    /// has read the previous reason.
    pub(super) fn refuse(&self, at: usize, errno: i32) -> bool {
        // Relaxed, here and in the two methods below: it says nothing about other memory.
        self.registrations[at]
            .refused
            .swap(errno as u32, Ordering::Relaxed)
            == 0
    }

    #[inline]
    pub(super) fn refusal(&self, at: usize) -> Option<i32> {
        match self.registrations[at].refused.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(errno as i32),
        }
    }

    pub(super) fn forget_refusal(&self, at: usize) {
        self.registrations[at].refused.store(0, Ordering::Relaxed);
    }
}

pub(super) fn not_a_channel(error: ObjectError) -> ChannelError {
    match error {
        ObjectError::Unusable { object, reason } => ChannelError::NotAChannel { object, reason },
        ObjectError::WrongUid(error) => ChannelError::WrongUid(error),
        ObjectError::Os(error) => ChannelError::Os(error),
    }
}

pub(super) fn name(names: &Namespace, channel: &str) -> Result<Name, ChannelError> {
    let max = max_channel_bytes(names.prefix());
    if !is_channel(channel) || escaped(channel).len() > max {
        return Err(ChannelError::Name {
            name: channel.to_owned(),
            max,
        });
    }
    Ok(channel_name(names, channel))
}

/// Returns the size of an object in bytes. `slots` includes the extra one.
pub(super) fn size(slots: usize, max_borrowed: usize) -> usize {
    borrowed_words_offset(slots, max_borrowed) + words(max_borrowed)
}

/// The two sides never write the same line.
fn borrowed_words_offset(slots: usize, max_borrowed: usize) -> usize {
    returns_at_home_offset(slots, max_borrowed) + words(max_borrowed)
}

fn returns_at_home_offset(slots: usize, max_borrowed: usize) -> usize {
    returns_offset(slots) + words(return_words(max_borrowed))
}

fn returns_offset(slots: usize) -> usize {
    PAGE + slots * size_of::<Slot>()
}

/// How many words the returns of other threads than the home thread have: twice as many as borrowed
/// buffers, so that a return that is missing does not stop the channel (see `borrowed`).
pub(super) fn return_words(max_borrowed: usize) -> usize {
    2 * max_borrowed
}

/// So many words in bytes, rounded up to whole lines.
fn words(count: usize) -> usize {
    (count * size_of::<AtomicU64>()).next_multiple_of(size_of::<Slot>())
}

pub(super) struct Found {
    pub(super) facts: Facts,
    /// As its creator has declared it.
    pub(super) message_type: Option<MessageType>,
    pub(super) mapping: Mapping,
    pub(super) locks: LockFile,
}

impl Found {
    /// Returns `true` if the whole object has memory, so that writing to it raises no signal.
    pub(super) fn has_all_its_memory(&self, name: &Name) -> Result<bool, OsError> {
        let needed = size(self.facts.slots, self.facts.max_borrowed) as u64;
        // A block has 512 bytes here, independent of the file system.
        let metadata = self
            .locks
            .file()
            .metadata()
            .map_err(|error| name.error("fstat", 0, error))?;
        Ok(metadata.blocks() * 512 >= needed)
    }
}

/// Opens a channel's object. If `uid` is `None`, any user's.
pub(super) fn open(name: &Name, uid: Option<u32>) -> Result<Found, ChannelError> {
    let object = || name.path();
    let missing = |error: ObjectError| match error {
        missing if missing.is_missing() => ChannelError::NotFound(object()),
        other => not_a_channel(other),
    };
    let opened = match uid {
        Some(uid) => Foreign::open(name.clone(), Access::ReadWrite, uid),
        None => Foreign::open_of_any_user(name.clone(), Access::ReadWrite),
    };
    let foreign = opened.map_err(missing)?;
    let locks = foreign.open_for_locks().map_err(|error| match error {
        // Another object took the name in between.
        ObjectError::Unusable { .. } => ChannelError::NotReady(object()),
        other => missing(other),
    })?;
    let bad = |reason| {
        Err(ChannelError::NotAChannel {
            object: object(),
            reason,
        })
    };
    let has_maker = locks.is_locked(OWNER_BYTE);
    // The creator sets the length after it has taken the lock.
    if foreign.len < PAGE {
        return if has_maker || foreign.len == 0 {
            Err(ChannelError::NotReady(object()))
        } else {
            bad("it is too small for a header")
        };
    }
    // Longer than any valid one: address space is limited.
    if foreign.len > size(MAX_SLOTS + EXTRA_SLOTS, MAX_BORROWED).next_multiple_of(page_size()) {
        return bad(WRONG_SIZE);
    }
    let mapping = foreign.map_behind_own_page()?;
    let what = What::of(&mapping);
    let facts = match what.read(has_maker, object) {
        Ok(facts) => facts,
        Err(error) => {
            if let ChannelError::OtherVersion { .. } = error {
                what.refuse_version();
            }
            return Err(error);
        }
    };
    let len = if facts.kind == Kind::Rendezvous {
        PAGE
    } else {
        size(facts.slots, facts.max_borrowed)
    };
    if !facts.are_possible() || round_to_pages(len) != Some(foreign.len) {
        return bad(WRONG_SIZE);
    }
    let message_type = TypeWords::of(&mapping).read();
    Ok(Found {
        facts,
        message_type,
        mapping,
        locks,
    })
}

/// The mapped object of a pair or a connection, held by its end, the account holder, and every
/// message being read.
pub(super) struct Shared {
    mapping: Mapping,
    slots: usize,
    max_borrowed: usize,
    returns_at_home_at: usize,
    borrowed_words_at: usize,
    fork: ForkGuard,
    /// Private to this process, unlike the doorbell.
    had_receiver: AtomicBool,
}

impl Shared {
    /// Faults in the whole object if the kernel can. The mapping is of a pair or a connection,
    /// begins on a page and is as long as [`size`] says.
    pub(super) fn new(mapping: Mapping, facts: &Facts) -> Self {
        let _ = mapping.prefault(0..size(facts.slots, facts.max_borrowed));
        let Facts {
            slots,
            max_borrowed,
            ..
        } = *facts;
        // A connection is created by its receiver.
        let had_receiver = AtomicBool::new(facts.kind == Kind::Connection);
        Self {
            mapping,
            slots,
            max_borrowed,
            returns_at_home_at: returns_at_home_offset(slots, max_borrowed),
            borrowed_words_at: borrowed_words_offset(slots, max_borrowed),
            fork: ForkGuard::new(),
            had_receiver,
        }
    }

    /// Returns the address of a doorbell's entry in the robust list; `None` if it is no doorbell of
    /// this object.
    pub(super) fn own_entry(&self, doorbell: &Doorbell) -> Option<NonNull<u8>> {
        self.mapping.own_entry(doorbell)
    }

    /// Returns `true` in the process that mapped the object, and `false` in its forked children.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, at least a page long (`new`) and lives as long as
        // `self`; all processes access the header by atomics of the same width.
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots - EXTRA_SLOTS
    }

    pub(super) fn max_borrowed(&self) -> usize {
        self.max_borrowed
    }

    /// Returns `len` values that begin at this offset.
    ///
    /// # Safety
    ///
    /// They lie within the object, which is as long as [`size`] says, are aligned there, and
    /// consist of atomics only.
    #[inline]
    unsafe fn part<T>(&self, offset: usize, len: usize) -> &[T] {
        // SAFETY: within the mapping, which is long enough (`new`).
        let first = unsafe { self.mapping.base().as_ptr().add(offset) };
        // SAFETY: the caller's promise; the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(first.cast(), len) }
    }

    #[inline]
    pub(super) fn slots(&self) -> &[Slot] {
        // SAFETY: the slots begin with the second page, and a page is a multiple of a line.
        unsafe { self.part(PAGE, self.slots) }
    }

    #[inline]
    pub(super) fn returns(&self) -> Returns<'_> {
        // SAFETY: the words follow the slots, and a slot is a multiple of a word.
        let elsewhere =
            unsafe { self.part(returns_offset(self.slots), return_words(self.max_borrowed)) };
        // SAFETY: the words follow those and begin with a line, and `size` counts them.
        let at_home = unsafe { self.part(self.returns_at_home_at, self.max_borrowed) };
        Returns { at_home, elsewhere }
    }

    /// A word for each borrowed buffer; see [`outside`](super::outside).
    #[inline]
    pub(super) fn borrowed_words(&self) -> &[AtomicU64] {
        // SAFETY: the words follow the returns and begin with a line.
        unsafe { self.part(self.borrowed_words_at, self.max_borrowed) }
    }

    #[inline]
    pub(super) fn returns_read(&self) -> &ReturnsRead {
        &self.header().returns_read.0
    }

    #[inline]
    pub(super) fn missed(&self) -> &MissedWords {
        &self.header().missed.0
    }

    /// The doorbell that the sender notifies.
    #[inline]
    pub(super) fn to_receiver(&self) -> &Doorbell {
        &self.header().to_receiver.0
    }

    /// The doorbell that the receiver notifies.
    #[inline]
    pub(super) fn to_sender(&self) -> &Doorbell {
        &self.header().to_sender.0
    }

    /// For the sender: whether this process has seen the receiver, even if it left or its doorbell
    /// was damaged.
    #[inline]
    pub(super) fn has_had_receiver(&self) -> bool {
        // Relaxed: it says nothing about other memory.
        self.had_receiver.load(Ordering::Relaxed) || self.is_receiver_new()
    }

    #[cold]
    fn is_receiver_new(&self) -> bool {
        let is_new = self.to_sender().is_held();
        if is_new {
            self.had_receiver.store(true, Ordering::Relaxed);
        }
        is_new
    }
}

#[derive(Clone)]
pub(super) struct MappedDoorbell {
    shared: Arc<Shared>,
    doorbell: fn(&Shared) -> &Doorbell,
}

impl MappedDoorbell {
    pub(super) fn new(shared: &Arc<Shared>, doorbell: fn(&Shared) -> &Doorbell) -> Self {
        Self {
            shared: shared.clone(),
            doorbell,
        }
    }

    pub(super) fn doorbell(&self) -> &Doorbell {
        (self.doorbell)(&self.shared)
    }

    pub(super) fn is_ours(&self) -> bool {
        self.shared.is_ours()
    }
}

pub(super) struct MappedRendezvous(Mapping);

impl MappedRendezvous {
    pub(super) fn new(mapping: Mapping) -> Self {
        assert!(mapping.len() >= size_of::<RendezvousHeader>());
        Self(mapping)
    }

    #[inline]
    pub(super) fn header(&self) -> &RendezvousHeader {
        // SAFETY: the mapping is page-aligned, long enough (`new`) and lives as long as `self`; all
        // processes access the header by atomics of the same width.
        unsafe { self.0.base().cast::<RendezvousHeader>().as_ref() }
    }
}

/// The number of receivers that have joined a publisher, in a mapping of its own: a helper may use
/// it longer than the publisher.
pub(super) struct MappedArrivals {
    page: MappedRendezvous,
    fork: ForkGuard,
}

impl MappedArrivals {
    pub(super) fn new(mapping: Mapping) -> Self {
        Self {
            page: MappedRendezvous::new(mapping),
            fork: ForkGuard::new(),
        }
    }

    pub(super) fn word(&self) -> &Futex {
        self.page.header().arrivals_word()
    }

    pub(super) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }
}

/// The longest name of a type, in bytes.
pub(super) const MAX_NAME: usize = 96;

/// A type of messages: a name, a version, and the layout of a value.
///
/// A [`Sender`](super::Sender) or [`Publisher`](super::Publisher) may declare one for its channel.
/// A receiver that [expects a type](super::ReceiverBuilder::message_type) then opens no channel of
/// another, or of none; other receivers open any. With the feature `zerocopy`, the module `typed`
/// declares Rust types.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessageType {
    name: Cow<'static, str>,
    version: u64,
    size: u64,
    element: u64,
    align: u32,
}

impl MessageType {
    /// Creates a type of values of one layout. The name has from 1 to 96 bytes. `version` is any
    /// number that changes when the meaning of the bytes does.
    pub const fn new(name: &'static str, version: u64, layout: Layout) -> Self {
        // A `Layout` is at most half of the address space; no alignment above 2^31 can be
        // allocated.
        let mut align = u32::MAX;
        if layout.align() < align as usize {
            align = layout.align() as u32;
        }
        Self {
            name: Cow::Borrowed(name),
            version,
            size: layout.size() as u64,
            element: 0,
            align,
        }
    }

    /// Like [`new`](Self::new), with a name that is known only at run time: from a configuration, or
    /// from another language.
    ///
    /// ```
    /// use shm_pool::channel::MessageType;
    /// use std::alloc::Layout;
    ///
    /// let name = String::from("robot.Pose");
    /// let pose = MessageType::with_name(name, 1, Layout::new::<[f64; 7]>());
    /// assert_eq!(pose, MessageType::new("robot.Pose", 1, Layout::new::<[f64; 7]>()));
    /// ```
    pub fn with_name(name: String, version: u64, layout: Layout) -> Self {
        let mut message_type = Self::new("", version, layout);
        message_type.name = Cow::Owned(name);
        message_type
    }

    /// The same, followed by any number of elements of `bytes` each.
    pub const fn with_elements(mut self, bytes: usize) -> Self {
        self.element = bytes as u64;
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the size of a value in bytes, without elements.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of an element in bytes, or 0 if there are none.
    pub const fn element_size(&self) -> u64 {
        self.element
    }

    /// Returns the alignment in bytes.
    pub const fn align(&self) -> u32 {
        self.align
    }

    pub(super) fn check(this: &Option<Self>) -> Result<(), ChannelError> {
        match this {
            Some(this) => ChannelError::check("message_type", this.name.len(), 1, MAX_NAME),
            None => Ok(()),
        }
    }

    /// Returns what was found. Fails if a type is expected and this is not that one.
    pub(super) fn expect(
        expected: &Option<Self>,
        found: Option<Self>,
        object: impl Fn() -> PathBuf,
    ) -> Result<Option<Self>, ChannelError> {
        match expected {
            Some(expected) if found.as_ref() != Some(expected) => Err(ChannelError::TypeMismatch {
                object: object(),
                expected: Box::new(expected.clone()),
                found: found.map(Box::new),
            }),
            _ => Ok(found),
        }
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            version,
            size,
            element,
            align,
        } = self;
        write!(f, "{name:?}, version {version:#x}: {size} bytes")?;
        if *element > 0 {
            write!(f, " and elements of {element} bytes")?;
        }
        write!(f, ", aligned to {align}")
    }
}

/// The words of a type in an object. Atomics only.
#[derive(Default)]
#[repr(C)]
pub(super) struct TypeWords {
    /// 0 if no type is declared.
    type_align: AtomicU32,
    type_name_len: AtomicU32,
    type_version: AtomicU64,
    type_size: AtomicU64,
    type_element: AtomicU64,
    type_name: [AtomicU64; MAX_NAME / size_of::<u64>()],
}

const TYPE_OFFSET: usize = PAGE - size_of::<TypeWords>();

impl TypeWords {
    /// Returns the words of an object, at least a page long.
    pub(super) fn of(mapping: &Mapping) -> &Self {
        assert!(mapping.len() >= PAGE);
        // SAFETY: within the mapping (asserted).
        let words = unsafe { mapping.base().as_ptr().add(TYPE_OFFSET) };
        // SAFETY: a mapping is page-aligned and the offset a multiple of 8; the words are atomics.
        unsafe { &*words.cast() }
    }

    /// Declares the type of a new object, which is not open yet, and so full of zeros.
    pub(super) fn declare(&self, message_type: &MessageType) {
        // Relaxed, here and below: published with the object's state.
        let MessageType {
            name,
            version,
            size,
            element,
            align,
        } = message_type;
        self.type_name_len
            .store(name.len() as u32, Ordering::Relaxed);
        self.type_version.store(*version, Ordering::Relaxed);
        self.type_size.store(*size, Ordering::Relaxed);
        self.type_element.store(*element, Ordering::Relaxed);
        for (word, bytes) in self
            .type_name
            .iter()
            .zip(name.as_bytes().chunks(size_of::<u64>()))
        {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.type_align.store(*align, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Option<MessageType> {
        let align = self.type_align.load(Ordering::Relaxed);
        if align == 0 {
            return None;
        }
        let len = (self.type_name_len.load(Ordering::Relaxed) as usize).min(MAX_NAME);
        let name: Vec<u8> = self
            .type_name
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        Some(MessageType {
            name: String::from_utf8_lossy(&name[..len]).into_owned().into(),
            version: self.type_version.load(Ordering::Relaxed),
            size: self.type_size.load(Ordering::Relaxed),
            element: self.type_element.load(Ordering::Relaxed),
            align,
        })
    }
}
