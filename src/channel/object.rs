//! The two ends of a channel's objects: creating, joining and leaving them.
//!
//! A pair's sender creates the object, and its receiver joins; a connection's receiver creates it,
//! and the publisher opens it. A dead sender's object is removed only under its lock, and a sender
//! removes its own name before it releases the lock.
//!
//! # A publisher's registrations
//!
//! A publisher's object has a *registration* for each possible receiver, which locks its byte. A
//! registration is free, announced (R3), connected (P4), or read: a closed receiver keeps it, and
//! the publisher its borrowed buffers, a descriptor and two mappings, until its last message is
//! dropped.
//!
//! # A receiver joins
//!
//! | step | receiver | what is left if it dies here |
//! |---|---|---|
//! | R1 | lock the byte of a free registration; remove the connection last announced there, if its receiver was killed | nothing |
//! | R2 | create the connection: its locks, its doorbell, an empty ring | a connection without locks: for a sweep |
//! | R3 | write the connection's id at the registration: Release | the same; the publisher opens it once, and finds it dead |
//! | R4 | increment the count: SeqCst; full fence; wake | the same |
//! | R5 | if the channel is closed or the publisher's lock is free, undo it all, unless a message was sent to this receiver | the same |
//!
//! | step | publisher, before it sends, serves joins or waits for receivers | what its receiver learns if the publisher dies here |
//! |---|---|---|
//! | P1 | check whether the count has changed: one load in each call | `Disconnected`, by a check, within a second |
//! | P2 | read the ids of all registrations: Acquire, partner of R3 | the same |
//! | P3 | open each connection not seen before | the same |
//! | P3' | or, if the system refuses, write the error number to the registration; if descriptors or memory were short, note how many messages were sent, and try again after 1, 2, 4 … ms, at most a second | [`NotConnected`](super::RecvError::NotConnected), within a second; then the same |
//! | P4 | hold the connection's doorbell, once: the receiver is connected | `Disconnected`, at once: the kernel notifies |
//! | P5 | send it the history, and ring | the same, after what was sent |
//!
//! P4 and P5 are W1 to W5 of `doorbell` for the first message. Before P4 the receiver checks the
//! publisher's lock before it sleeps, then after 1, 2, 4 … ms, and then once a second. A `send` that
//! begins after `open` has returned finds the count changed and, if all registrations seem taken at
//! P3, drops the connections of receivers that have left. So the receiver gets that message.
//!
//! # The publisher closes
//!
//! | step | publisher | an unconnected receiver, if the publisher dies here |
//! |---|---|---|
//! | C1 | store that it is closed; full fence | `Disconnected`, by a check, within a second |
//! | C2 | close each connected connection: its doorbell says that the publisher has left | the same |
//! | C3 | open each announced connection not seen before, and close it too | the same; at once if its connection was closed |
//! | C4 | remove the connections of receivers that died, at any step of joining | |
//! | C5 | release the lock | |
//!
//! One of the fences of R4 and C1 comes first, so either R5 finds the channel closed, or C3 finds
//! the receiver's id. If C3 cannot open a connection, its receiver finds the lock free.

use super::doorbell::Doorbell;
use super::error::ChannelError;
use super::layout::{
    not_a_channel, size, Facts, Found, Kind, MappedArrivals, MappedRendezvous, MessageType,
    RendezvousHeader, Shared, TypeWords, MAX_SUBSCRIBERS,
};
use super::ring::OnFull;
use crate::error::OsError;
use crate::os::advice::{is_full, no_space};
use crate::os::fork::ForkGuard;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Mapping;
use crate::os::name::{Link, Name};
use crate::os::posix::{effective_uid, has_heap, round_to_pages, PAGE};
use crate::os::process::Seen;
use crate::os::robust_list::{Failed, Listed, Places};
use crate::os::segment::{set_mode, Locked};
use crate::protocol::control::{CHANNEL_MAGIC, OWNER_BYTE, RECEIVER_BYTE};
use crate::protocol::ids::{name_while_read, ProviderId};
use crate::protocol::sweep::{self, remove_or_rename_dead, Removal};
use std::fs;
use std::io;
use std::os::unix::fs::{fchown, MetadataExt};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;

const TRIES: usize = 16;

/// Enough heap for two names, in bytes.
const HEAP: usize = 4 << 10;

/// One side's end of a pair or a connection. On drop it releases the doorbell and, if it is the
/// creator's, the name.
pub(super) struct Object {
    /// Dropped before the mapping, which its entry precedes.
    listed: Option<Listed>,
    shared: Arc<Shared>,
    /// Dropped before the locks: a creator removes its name before it releases its lock.
    role: Role,
    locks: Arc<LockFile>,
}

/// Whose end it is.
enum Role {
    /// Created the pair. It has no link once the object is [left](Object::leave_to_receiver).
    Sender { link: Option<Link> },
    /// Has joined the pair, or is about to.
    Receiver,
    /// Created the connection.
    Subscriber {
        registration: Registration,
        _link: Link,
    },
    /// Has opened the connection.
    Publisher { registration: Registration },
}

/// Mapped behind a private page of this process.
type Made = (Mapping, Link, LockFile);

/// Creates an object of at least `len` bytes, replacing one that a dead sender has left.
fn make(
    name: &Name,
    len: usize,
    mode: u32,
    message_type: Option<&MessageType>,
) -> Result<Made, ChannelError> {
    let len = round_to_pages(len).unwrap_or(usize::MAX);
    for _ in 0..TRIES {
        match sweep::create_locked(
            name.clone(),
            len,
            mode,
            OWNER_BYTE,
            Mapping::behind_own_page,
        ) {
            Ok(Locked::Made(segment, locks)) => {
                let (mapping, link) = segment.into_parts();
                if let Some(declared) = message_type {
                    TypeWords::of(&mapping).declare(declared);
                }
                return Ok((mapping, link, locks));
            }
            Ok(Locked::Swept(link)) => {
                link.keep();
                continue;
            }
            Err(error) if is_full(&error) => {
                let advice = no_space(
                    name.directory(),
                    "the channel's capacity or the providers' max_bytes",
                );
                return Err(error.with_advice(advice).into());
            }
            Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error.into()),
            Err(_) => {}
        }
        match remove_or_rename_dead(name, effective_uid(), CHANNEL_MAGIC).map_err(not_a_channel)? {
            Removal::Removed { .. } | Removal::Gone | Removal::Read => {}
            // A live sender holds the lock, or another process is removing the object.
            Removal::Locked => thread::yield_now(),
            Removal::NotOurs => {
                let reason = "another kind of object has this name";
                return Err(ChannelError::NotAChannel {
                    object: name.path(),
                    reason,
                });
            }
        }
    }
    Err(ChannelError::NameTaken {
        object: name.path(),
        process: None,
    })
}

pub(super) fn name_process(error: ChannelError, name: &Name) -> ChannelError {
    match error {
        ChannelError::NameTaken { object, .. } => {
            let process = match fs::symlink_metadata(name.as_path()) {
                Ok(file) => Seen::holder_of(name, (file.dev(), file.ino()), OWNER_BYTE),
                Err(_) => None,
            };
            ChannelError::NameTaken { object, process }
        }
        other => other,
    }
}

/// Tells receivers that wait for a finished object: see `watch`.
fn report(locks: &LockFile, mode: u32) {
    // If it fails, they find it by a check.
    let _ = set_mode(locks.file(), mode);
}

fn not_listed(failed: Failed, name: &Name) -> ChannelError {
    match failed {
        Failed::Call { error, .. } if error.raw_os_error() == Some(libc::ENOSPC) => {
            ChannelError::TooManyEnds
        }
        Failed::Call { call, error } => name.error(call, 0, error).into(),
        Failed::Unpinned(error) => error.into(),
    }
}

impl Object {
    pub(super) fn create(
        name: &Name,
        facts: &Facts,
        mode: u32,
        message_type: Option<&MessageType>,
    ) -> Result<Self, ChannelError> {
        let (mapping, link, locks) = make(
            name,
            size(facts.slots, facts.max_borrowed),
            mode,
            message_type,
        )?;
        let role = Role::Sender { link: Some(link) };
        let this = Self::initialise(mapping, facts, role, locks);
        let this = this.hold(name, false, Shared::to_receiver)?;
        this.shared.header().what.0.finish();
        report(&this.locks, mode);
        Ok(this)
    }

    /// Creates a connection for the receiver on this registration (R2); `group` if the publisher's
    /// user is another.
    pub(super) fn create_connection(
        name: &Name,
        facts: &Facts,
        registration: Registration,
        mode: u32,
        group: Option<u32>,
    ) -> Result<Self, ChannelError> {
        // At first for this user only: until `fchown`, the group is this process's.
        let (mapping, link, locks) =
            make(name, size(facts.slots, facts.max_borrowed), 0o600, None)?;
        let role = Role::Subscriber {
            registration,
            _link: link,
        };
        let this = Self::initialise(mapping, facts, role, locks);
        // A member of the group may do this. If it fails, the mode must admit the publisher as one
        // of all users, and the group gets no more than these.
        let is_changed = match group {
            Some(group) => fchown(this.locks.file(), None, Some(group)).is_ok(),
            None => true,
        };
        let mode = if is_changed {
            mode
        } else {
            mode & !0o070 | (mode & 0o007) << 3
        };
        set_mode(this.locks.file(), mode).map_err(|error| name.error("fchmod", 0, error))?;
        // The lock comes first: the holder of the doorbell always holds it too.
        if !this
            .locks
            .try_lock(RECEIVER_BYTE)
            .map_err(|error| name.error(LOCK, 0, error))?
        {
            return Err(ChannelError::HasReceiver(name.path()));
        }
        let this = this.hold(name, false, Shared::to_sender)?;
        this.shared
            .header()
            .process
            .0
            .store(std::process::id(), Ordering::Relaxed);
        this.shared.header().what.0.finish();
        Ok(this)
    }

    /// The creator's end of a new object. The object is not ready for others yet.
    fn initialise(mapping: Mapping, facts: &Facts, role: Role, locks: LockFile) -> Self {
        let shared = Arc::new(Shared::new(mapping, facts));
        shared.header().what.0.describe(facts);
        for (at, slot) in shared.slots().iter().enumerate() {
            slot.start(at);
        }
        Self {
            listed: None,
            shared,
            role,
            locks: Arc::new(locks),
        }
    }

    /// Holds a doorbell for this end until it is dropped or the process dies; `listed` stays `None`
    /// if the doorbell has, or had, a holder. `has_place` is as in [`Listed::new`].
    fn hold(
        mut self,
        name: &Name,
        has_place: bool,
        doorbell: fn(&Shared) -> &Doorbell,
    ) -> Result<Self, ChannelError> {
        let doorbell = doorbell(&self.shared);
        // `make` and `layout::open` have mapped the object behind a page of this process's own.
        let Some(entry) = self.shared.own_entry(doorbell) else {
            let error = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(name.error("mmap", 0, error).into());
        };
        // SAFETY: the entry lies in the page before the mapping and serves this doorbell alone,
        // which each end holds once only; it stays until `listed` is dropped, before the mapping.
        let listed = unsafe { Listed::new(entry, has_place, |holder| doorbell.hold(holder)) };
        self.listed = listed.map_err(|failed| not_listed(failed, name))?;
        Ok(self)
    }

    /// Connects the receiver of a connection (P4). Returns `None` if it was connected before.
    pub(super) fn connect(self, name: &Name) -> Result<Option<Self>, ChannelError> {
        // The registration keeps alive the publisher's object, which has reserved a place.
        let this = self.hold(name, true, Shared::to_receiver)?;
        if this.listed.is_none() {
            return Ok(None);
        }
        Ok(Some(this))
    }

    /// For the receiver: the sender is a publisher, which may withdraw messages: by the receiver's
    /// rule, or to disconnect it.
    #[inline]
    pub(super) fn is_of_publisher(&self) -> bool {
        self.registration().is_some()
    }

    /// Returns `true` if the sender holds, or held, the doorbell of this receiver; always for a
    /// pair.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.registration().is_none() || self.shared.to_receiver().was_held()
    }

    #[inline]
    pub(super) fn refusal(&self) -> Option<i32> {
        let refusal = self.registration()?.refusal()?;
        if self.is_connected() {
            return None;
        }
        Some(refusal)
    }

    pub(super) fn take_refusal(&self) -> Option<i32> {
        let refusal = self.refusal()?;
        self.registration()?.forget_refusal();
        Some(refusal)
    }

    /// Leaves for a publisher that has died without connecting this receiver: a system call until
    /// connected.
    #[inline]
    pub(super) fn check_publisher(&self) {
        if !self.is_connected() && !self.has_sender() {
            self.shared.to_receiver().leave();
        }
    }

    pub(super) fn registration(&self) -> Option<&Registration> {
        match &self.role {
            Role::Sender { .. } | Role::Receiver => None,
            Role::Subscriber { registration, .. } | Role::Publisher { registration } => {
                Some(registration)
            }
        }
    }

    /// Returns a receiver's end of a pair, which has yet to [join](Self::join).
    pub(super) fn of_receiver(found: Found) -> Self {
        Self::found(found, Role::Receiver)
    }

    /// Returns a publisher's end, which has yet to [connect](Self::connect) its receiver.
    pub(super) fn of_publisher(found: Found, registration: Registration) -> Self {
        Self::found(found, Role::Publisher { registration })
    }

    fn found(found: Found, role: Role) -> Self {
        let shared = Arc::new(Shared::new(found.mapping, &found.facts));
        Self {
            listed: None,
            shared,
            role,
            locks: Arc::new(found.locks),
        }
    }

    pub(super) fn provider(&self) -> ProviderId {
        self.shared.header().what.0.provider()
    }

    /// Makes this end of a pair the receiver's. One of several concurrent tries succeeds.
    pub(super) fn join(self, name: &Name) -> Result<Self, ChannelError> {
        let gone = || ChannelError::Closed(name.path());
        if !self.shared.to_receiver().is_held() {
            return Err(gone());
        }
        let taken = || ChannelError::HasReceiver(name.path());
        // The lock comes first, as in `create_connection`.
        match self.locks.try_lock(RECEIVER_BYTE) {
            Ok(true) => {}
            Ok(false) => return Err(taken()),
            Err(error) => return Err(name.error(LOCK, 0, error).into()),
        }
        let this = self.hold(name, false, Shared::to_sender)?;
        if this.listed.is_none() {
            // The sender may have closed the doorbell in between.
            let is_closed = this.shared.header().what.0.is_closed();
            return Err(if is_closed { gone() } else { taken() });
        }
        this.shared.to_sender().notify();
        Ok(this)
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn locks(&self) -> &Arc<LockFile> {
        &self.locks
    }

    #[inline]
    pub(super) fn is_sender_disconnected(&self) -> bool {
        self.shared.to_receiver().is_disconnected()
    }

    /// For the receiver whose sender [is gone](Self::is_sender_disconnected).
    pub(super) fn is_evicted(&self) -> bool {
        self.shared.header().what.0.is_evicted()
    }

    /// For the sender: the id of the receiver's process, as stated by it.
    pub(super) fn receiver_process(&self) -> Option<u32> {
        match self.shared.header().process.0.load(Ordering::Relaxed) {
            0 => None,
            id => Some(id),
        }
    }

    /// For the receiver: the sender is alive and not dropped.
    pub(super) fn has_sender(&self) -> bool {
        // The state records a drop: any borrowed buffer keeps the sender's lock.
        match self.registration() {
            None => !self.shared.header().what.0.is_closed() && self.locks.is_locked(OWNER_BYTE),
            Some(registration) => registration.has_publisher(),
        }
    }

    /// For the sender: the receiver is alive, or none has joined yet.
    pub(super) fn may_have_receiver(&self) -> bool {
        !self.shared.has_had_receiver() || self.is_receiver_locked()
    }

    /// For the sender: a process holds the receiver's lock, and so may still read.
    pub(super) fn is_receiver_locked(&self) -> bool {
        self.locks.is_locked(RECEIVER_BYTE)
    }

    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.shared.is_ours()
    }

    /// Closes the object for the sender: no receiver can open it any more.
    pub(super) fn close(&self) {
        self.shared.header().what.0.close();
        self.leave();
    }

    /// For the sender of a pair that it has closed and that is still read: renames the object, so
    /// that a successor can use its name, and returns the link, to be kept as long as the borrowed
    /// buffers. If a rename is impossible now, the object keeps its name until the borrowed buffers
    /// have ended.
    pub(super) fn leave_to_receiver(&mut self) -> Option<Link> {
        let Role::Sender { link } = &mut self.role else {
            return None;
        };
        let mut link = link.take()?;
        if has_heap(HEAP) {
            if let Some(name) = name_while_read(link.name()) {
                let _ = link.rename(name);
            }
        }
        Some(link)
    }

    /// [`close`](Self::close) for a receiver that is disconnected.
    pub(super) fn evict(&self) {
        self.shared.header().what.0.evict();
        self.leave();
    }

    /// After the state, which the receiver reads next.
    fn leave(&self) {
        self.shared.to_receiver().leave();
        // Refuses a receiver that found the channel open but has not joined yet.
        self.shared.to_sender().close();
    }
}

impl Facts {
    pub(super) fn of_pair(provider: ProviderId, slots: usize, max_borrowed: usize) -> Self {
        Self {
            kind: Kind::Pair,
            provider,
            slots,
            max_borrowed,
            max_subscribers: 1,
            on_full: OnFull::Block,
            allow_blocking: true,
        }
    }
}

/// The byte that the receiver on the first registration locks.
const REGISTRATIONS_BYTE: usize = 2;

pub(super) struct Rendezvous {
    page: MappedRendezvous,
    fork: ForkGuard,
    registrations: usize,
    /// Dropped before the locks: a publisher removes its name before it releases its lock.
    side: Side,
    locks: LockFile,
}

enum Side {
    /// Created the object.
    Publisher { _places: Places, link: Link },
    /// Has locked the byte of a registration, or is about to.
    Subscriber { taken: Option<usize> },
}

#[derive(Clone)]
pub(super) struct Registration {
    rendezvous: Arc<Rendezvous>,
    at: usize,
}

impl Rendezvous {
    pub(super) fn create(
        name: &Name,
        facts: &Facts,
        mode: u32,
        message_type: Option<&MessageType>,
    ) -> Result<Self, ChannelError> {
        let places =
            Places::take(facts.max_subscribers).map_err(|failed| not_listed(failed, name))?;
        let (mapping, link, locks) = make(name, PAGE, mode, message_type)?;
        let this = Self {
            page: MappedRendezvous::new(mapping),
            fork: ForkGuard::new(),
            registrations: facts.max_subscribers,
            side: Side::Publisher {
                _places: places,
                link,
            },
            locks,
        };
        this.header().start(facts);
        report(&this.locks, mode);
        Ok(this)
    }

    pub(super) fn of_receiver(found: Found) -> Self {
        Self {
            page: MappedRendezvous::new(found.mapping),
            fork: ForkGuard::new(),
            registrations: found.facts.max_subscribers.min(MAX_SUBSCRIBERS),
            side: Side::Subscriber { taken: None },
            locks: found.locks,
        }
    }

    #[inline]
    pub(super) fn header(&self) -> &RendezvousHeader {
        self.page.header()
    }

    /// Takes a free registration (R1), if there is one.
    pub(super) fn register(mut self, name: &Name) -> Result<Option<Registration>, ChannelError> {
        for at in 0..self.registrations {
            let byte = REGISTRATIONS_BYTE + at;
            let is_free = self
                .locks
                .try_lock(byte)
                .map_err(|error| name.error(LOCK, 0, error))?;
            if is_free {
                self.side = Side::Subscriber { taken: Some(byte) };
                let rendezvous = Arc::new(self);
                return Ok(Some(Registration { rendezvous, at }));
            }
        }
        Ok(None)
    }

    pub(super) fn has_publisher(&self) -> bool {
        // Borrowed buffers do not keep this lock.
        self.locks.is_locked(OWNER_BYTE)
    }

    /// Returns the publisher's registrations, and the id of the connection last announced at each
    /// (P2).
    pub(super) fn announced<'a>(
        self: &'a Arc<Self>,
    ) -> impl Iterator<Item = (Registration, u64)> + 'a {
        (0..self.registrations).map(move |at| {
            (
                Registration {
                    rendezvous: self.clone(),
                    at,
                },
                self.header().connection(at),
            )
        })
    }

    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    /// Maps the number of receivers once more, for the publisher's helper. `None` for a receiver.
    pub(super) fn map_arrivals(&self) -> Result<Option<MappedArrivals>, OsError> {
        let Side::Publisher { link, .. } = &self.side else {
            return Ok(None);
        };
        let mapping = Mapping::of_owner(self.locks.file(), link.name(), PAGE)?;
        Ok(Some(MappedArrivals::new(mapping)))
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        // Explicitly: until a child just started calls `exec`, it holds a copy of the descriptor.
        if let Side::Subscriber { taken: Some(byte) } = self.side {
            let _ = self.locks.unlock(byte);
        }
    }
}

impl Registration {
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn connection(&self) -> Option<u64> {
        match self.rendezvous.header().connection(self.at) {
            0 => None,
            id => Some(id),
        }
    }

    pub(super) fn announce(&self, connection: u64) -> bool {
        self.rendezvous.header().announce(self.at, connection)
    }

    pub(super) fn refuse(&self, errno: i32) -> bool {
        self.rendezvous.header().refuse(self.at, errno)
    }

    #[inline]
    pub(super) fn refusal(&self) -> Option<i32> {
        self.rendezvous.header().refusal(self.at)
    }

    pub(super) fn forget_refusal(&self) {
        self.rendezvous.header().forget_refusal(self.at);
    }

    pub(super) fn has_publisher(&self) -> bool {
        self.rendezvous.has_publisher()
    }
}
