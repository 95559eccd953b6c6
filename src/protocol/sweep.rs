//! Removes objects that killed owners have left.
//!
//! An owner locks a byte of its control object before it creates anything else, and until it has
//! removed everything else. If a sweep can take a shared lock on that byte, the owner is dead; or
//! it created the object this instant, and will find it locked or unlinked and start over under
//! another name. Holding the shared lock, possibly together with other sweeps, a sweep
//!
//! 1. marks the control object as closed and its segments as destroyed, so that a peer unmaps each
//!    with the next view of it that it drops,
//! 2. unlinks the owner's segments,
//! 3. unlinks the control object.
//!
//! A segment without a control object also belongs to a dead owner. [`remove_dead`] removes
//! channels and connections.
//!
//! # How an owner ends
//!
//! There is one way. An owner that is killed leaves all its objects. One that ends in an orderly
//! way, with its last provider, sender or publisher, does the same if a message may still have to
//! be read: if a buffer is borrowed to a receiver, or granted to a peer that has not taken it up.
//! Then
//!
//! 1. it closes its channels, and gives a pair's object that is still read the name of a connection
//!    ([`name_while_read`]), so that a successor can use the channel's name;
//! 2. it keeps the segments and the control object linked, and releases its lock;
//! 3. it sweeps what it left ([`sweep_after_end`]), as a last reader does.
//!
//! Only in this order: an owner that looked for readers while it had the lock might find one that,
//! releasing its own lock, found the owner alive. Then neither would remove anything. If no message
//! is left to read, no reader needs the objects, and the owner unlinks them itself.
//!
//! # When an object is removed
//!
//! Readers hold locks: a *receiver* on its channel's object and a *peer* on the control object,
//! until the last message is dropped too. A receiver may still have to map segments with messages
//! for it, and so does a peer with a *pending grant*: one that it has not taken up.
//!
//! | the owner | its readers | is removed by |
//! |---|---|---|
//! | is alive | | the owner only |
//! | has ended | a receiver is alive, or a peer with a pending grant | nothing; a successor that needs the name of a pair's object [renames](name_while_read) it |
//! | has ended | the last one has just released its lock | that reader ([`sweep_after_reading`]), or any [`sweep`] |
//! | has ended | only peers without pending grants, or none | any [`sweep`] |
//!
//! A sweep runs in the next `build` with the prefix, on request, when memory is short, and at an
//! owner's end. A reader of another user cannot remove the owner's objects: they wait for a sweep
//! by the owner's user. A pair that no receiver has opened cannot be opened after its sender's end;
//! every end discards its messages.
//!
//! # The last reader is always detected
//!
//! Each reader, and each owner that ends, releases its own lock first and then tests those of the
//! others ([`end_reading`]); a receiver tests first whether its sender still holds its doorbell, which
//! costs no system call. Of two that do so concurrently, at least one finds no other. If both do, they
//! sweep side by side. A successor that renames a pair's object holds its lock meanwhile, so it checks once
//! more for the receiver after it has released that ([`remove_or_rename_dead`]). A sweep checks all
//! channels twice, because an object that is renamed between the listing and the check is missed
//! once ([`Readers`]).
//!
//! The kernel notifies receivers of a sender's death some time before it releases the process's
//! locks. A receiver that is dropped in between waits for the release, [`TEARDOWN`] at most, and
//! then leaves the wait to a thread. A receiving end that goes on to the sender's successor leaves
//! it to a thread at once: no receive blocks for it.
//!
//! # Killed at any instruction
//!
//! A killed reader, sweep or successor leaves objects but no lock, for the last other reader or the
//! next sweep. An object has one of its two names at any time: the rename is one system call.
//!
//! # Never touched
//!
//! Objects of another user, files that are not regular, and files with a second name (a hard link);
//! all objects of a provider whose control object does not begin as one; a segment whose length is
//! not a multiple of the page size. Only the marks of step 1 are written.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::fork::PerProcess;
use crate::os::futex::Deadline;
use crate::os::helper_thread::start_thread;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Mapping;
use crate::os::name::{inode, Name, Namespace};
use crate::os::posix::{
    admits_others, check_file_size, effective_uid, has_heap, page_size, retry, PAGE,
};
use crate::os::segment::{check_regular, Locked, ObjectError, Segment};
use crate::protocol::control::{
    peer_byte, CHANNEL_MAGIC, CLOSED, HIGH_WATER_OFFSET, MAGIC, MAX_RECORDS, NO_SEGMENTS,
    OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE, SEGMENTS_OFFSET, STATE_OFFSET,
};
use crate::protocol::ids::{control_name, name_while_read, namespace, parse, Object, ProviderId};
use crate::protocol::record::{pending_grants, PEERS, RECORD_SIZE};
use crate::sync::before_system_call;
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::ops::Add;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, thread};

#[cfg(all(test, loom))]
#[path = "../models/one_way_to_end.rs"]
mod models;

/// The kernel takes some milliseconds for each 100 MB of a dead process's memory.
const TEARDOWN: Duration = Duration::from_millis(100);

const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// For a thread that waits for a teardown, which takes about a second for each 4 GB.
const BETWEEN_LATE_LOOKS: Duration = Duration::from_millis(10);

const LONGEST_TEARDOWN: Duration = Duration::from_secs(60);

/// The threads of a process that wait for a teardown, at most.
const MAX_WAITING: usize = 4;

/// How many owners a sweep looks after together: one descriptor each.
const AT_ONCE: usize = 32;

/// Enough heap for a sweep, unless there are thousands of names.
const HEAP: usize = 96 << 10;

/// The objects removed by a [`sweep`](Namespace::sweep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Swept {
    /// Number of objects.
    pub objects: usize,
    /// Memory of those objects, in bytes. It returns to the system once no peer maps it any more.
    pub bytes: u64,
}

impl Add for Swept {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            objects: self.objects + other.objects,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Swept {
    fn remove_channels(&mut self, names: &Namespace, uid: u32) -> Result<(), OsError> {
        for channel in channels(names)? {
            if let Ok(Removal::Removed { bytes }) = remove_dead(&channel, uid, CHANNEL_MAGIC) {
                self.objects += 1;
                self.bytes += bytes;
            }
        }
        Ok(())
    }

    /// Removes the objects of those of some owners that have ended, unless they are still read.
    /// Lists the directory for all of them together.
    fn remove_batch(
        &mut self,
        names: &Namespace,
        owners: &[ProviderId],
        scope: Scope,
        uid: u32,
    ) -> Result<(), OsError> {
        let mut batch = lock_dead_owners(names, owners, uid)?;
        // Only now that the owners are known to have ended: no further reader can connect.
        batch.retain(|dead| !dead.is_for_peers(scope));
        if batch.is_empty() {
            return Ok(());
        }
        let readers = Readers::find(names, uid)?;
        batch.retain(|dead| !readers.has(dead));
        for control in batch.iter().filter_map(|dead| dead.control.as_ref()) {
            mark_as_closed(control);
        }
        // Listed only now: an owner may have created more before it died.
        let owners = batch.iter().map(|dead| dead.provider).collect();
        for segment in segments(names, &owners)? {
            self.remove(&segment, |metadata| is_segment(metadata, uid));
        }
        for dead in &batch {
            let Some(control) = &dead.control else {
                continue;
            };
            let its = inode(control.file()).ok();
            self.remove(&control_name(names, dead.provider), |found| {
                Some((found.dev(), found.ino())) == its
            });
        }
        Ok(())
    }

    fn remove(&mut self, name: &Name, is_its: impl Fn(&Metadata) -> bool) {
        before_system_call();
        let Ok(metadata) = fs::symlink_metadata(name.as_path()) else {
            return;
        };
        if is_its(&metadata) && name.unlink().is_ok() {
            self.objects += 1;
            // In blocks of 512 bytes on any file system.
            self.bytes += metadata.blocks() * 512;
        }
    }
}

/// The owners whose objects a sweep removes.
#[derive(Clone, Copy)]
enum Scope {
    /// Every owner that has ended.
    All,
    /// This one, of which the caller is a part.
    Own(ProviderId),
    /// This one, unless a peer is connected: it may be attaching to a message.
    WithoutPeers(ProviderId),
}

impl Namespace {
    /// Removes the objects that killed providers of this namespace have left, if they belong to
    /// this process's user. Bytes that peers have mapped stay.
    ///
    /// A file is removed only if it looks like an object and has no hard link. Do not remove a
    /// living provider's control object by hand: its segments would be removed.
    ///
    /// You seldom need to call this: the last reader of a dead provider removes its objects, and
    /// [`ProviderBuilder::build`](crate::ProviderBuilder::build) sweeps, as do allocations and new
    /// channels if the system is out of memory.
    ///
    /// # Errors
    ///
    /// [`OsError`] if the directory cannot be read. An object that cannot be removed is left for
    /// the next sweep.
    pub fn sweep(&self) -> Result<Swept, OsError> {
        sweep_of(self, Scope::All)
    }
}

/// The caller is an owner that has ended, and has released its lock. Runs in drops, like
/// [`sweep_after_reading`].
pub(crate) fn sweep_after_end(names: &Namespace, provider: ProviderId) {
    // What cannot be removed now is left to the last reader, or to the next sweep.
    let _ = sweep_of(names, Scope::Own(provider));
}

/// What a reader does about an owner whose lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teardown {
    /// The owner lives.
    None,
    /// The owner is dying. The reader's process may end next, so the reader waits, at most for
    /// [`TEARDOWN`], and then leaves the rest to a thread.
    Wait,
    /// The owner is dying. The reader must not block, and leaves all to a thread.
    Later,
}

impl Teardown {
    fn timeout(self) -> Duration {
        match self {
            Self::Wait => TEARDOWN,
            Self::None | Self::Later => Duration::ZERO,
        }
    }
}

/// Ends a reader: releases its lock, and sweeps if its owner has ended, or is about to. `teardown`
/// tells that, and is called only now: an owner that ends after it finds the lock free.
pub(crate) fn end_reading(
    locks: &LockFile,
    byte: usize,
    names: &Namespace,
    provider: ProviderId,
    teardown: impl FnOnce() -> Option<Teardown>,
) {
    // If this fails, the lock is held until the last descriptor is closed, and the objects are left
    // to the next sweep.
    let _ = locks.unlock(byte);
    if let Some(teardown) = teardown() {
        sweep_after_reading(names, provider, teardown);
    }
}

/// The caller was a reader, and has released its lock. Runs in drops, which must not need memory
/// (D23): without heap, leaves all to the next sweep.
pub(crate) fn sweep_after_reading(names: &Namespace, provider: ProviderId, teardown: Teardown) {
    if !has_heap(HEAP) {
        return;
    }
    match owner_after(names, provider, teardown.timeout()) {
        Ok(Owner::Alive) => {
            if teardown != Teardown::None {
                sweep_later(names, provider);
            }
        }
        Ok(Owner::Dead(_)) => {
            // What cannot be removed now is left to the next sweep.
            let _ = sweep_of(names, Scope::WithoutPeers(provider));
        }
        Ok(Owner::Gone) | Err(_) => {}
    }
}

/// Returns `true` if an owner has ended and its objects are still there.
pub(crate) fn has_ended(names: &Namespace, provider: ProviderId, teardown: Teardown) -> bool {
    let owner = owner_after(names, provider, teardown.timeout());
    matches!(owner, Ok(Owner::Dead(_)))
}

fn owner_after(
    names: &Namespace,
    provider: ProviderId,
    timeout: Duration,
) -> Result<Owner, ObjectError> {
    let deadline = Deadline::after(timeout);
    loop {
        let owner = lock_dead_owner(names, provider, effective_uid())?;
        let is_alive = matches!(owner, Owner::Alive);
        if !is_alive || Deadline::is_past(deadline) {
            return Ok(owner);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// One of the threads of this process that may wait for a teardown. Released on drop.
struct Waiting;

/// Of this process: a forked child has none of these threads. Relaxed: only a count.
static WAITING: PerProcess<AtomicUsize> = PerProcess::new();

impl Waiting {
    /// Returns `None` if as many threads wait as may.
    fn start() -> Option<Self> {
        // Counts while it exists, so an early return takes it from the count.
        let this = Self;
        let others = WAITING.get().fetch_add(1, Ordering::Relaxed);
        if others >= MAX_WAITING {
            return None;
        }
        Some(this)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.get().fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sweeps what a dying owner has left once the kernel has torn down its process, which takes
/// seconds for gigabytes of memory. A thread waits for that, since a drop must not. If this process
/// ends before, or no thread can be started, the objects are left to the next sweep.
fn sweep_later(names: &Namespace, provider: ProviderId) {
    let Some(waiting) = Waiting::start() else {
        return;
    };
    let names = names.clone();
    let purpose = names.directory().to_string_lossy().into_owned();
    // If it cannot be started, the next sweep does it.
    let _ = start_thread("shm-pool-sweep", &purpose, move || {
        let _waiting = waiting;
        // Not by a lock that blocks: if garbage made a living owner look dead, it would wait for
        // ever.
        let deadline = Deadline::after(LONGEST_TEARDOWN);
        while !Deadline::is_past(deadline) {
            match lock_dead_owner(&names, provider, effective_uid()) {
                Ok(Owner::Alive) => thread::sleep(BETWEEN_LATE_LOOKS),
                Ok(Owner::Dead(_)) => {
                    let _ = sweep_of(&names, Scope::WithoutPeers(provider));
                    break;
                }
                Ok(Owner::Gone) | Err(_) => break,
            }
        }
    });
}

/// Creates a locked object. If memory is short, sweeps and tries again.
pub(crate) fn create_locked(
    name: Name,
    len: usize,
    mode: u32,
    byte: usize,
    map: fn(&File, &Name, usize) -> Result<Mapping, OsError>,
) -> Result<Locked, OsError> {
    let create = || Segment::create_locked(name.clone(), len, mode, byte, map);
    let error = match create() {
        Err(error) if error.is_out_of_memory() => error,
        made => return made,
    };
    let Some(names) = namespace(&name) else {
        return Err(error);
    };
    match names.sweep() {
        Ok(swept) if swept.objects > 0 => create(),
        Ok(_) | Err(_) => Err(error),
    }
}

fn sweep_of(names: &Namespace, scope: Scope) -> Result<Swept, OsError> {
    if !has_heap(HEAP) {
        let source = io::Error::from_raw_os_error(libc::ENOMEM);
        return Err(OsError::new("malloc", names.directory(), source).with_bytes(HEAP));
    }
    let uid = effective_uid();
    let mut swept = Swept::default();
    swept.remove_channels(names, uid)?;
    let before = swept.objects;
    let providers = match scope {
        Scope::Own(provider) | Scope::WithoutPeers(provider) => vec![provider],
        Scope::All => owners(names)?,
    };
    let mut at_once = AT_ONCE;
    let mut waiting = providers.as_slice();
    while !waiting.is_empty() {
        let (batch, rest) = waiting.split_at(at_once.min(waiting.len()));
        match swept.remove_batch(names, batch, scope, uid) {
            // Each owner of a batch takes one, and the listing another.
            Err(error) if error.is_out_of_descriptors() && batch.len() > 1 => {
                at_once = batch.len() / 2;
            }
            removed => {
                removed?;
                waiting = rest;
            }
        }
    }
    if swept.objects > before {
        // If the directory cannot be read now, its channel is left for the next sweep.
        let _ = swept.remove_channels(names, uid);
    }
    if swept.objects > 0 {
        event!(
            info,
            prefix = names.prefix(),
            swept.objects,
            swept.bytes,
            "swept what dead owners left"
        );
    }
    Ok(swept)
}

/// An owner that has ended.
struct DeadOwner {
    provider: ProviderId,
    /// With a shared lock on the owner's byte, held until its objects are removed; `None` if the
    /// control object is gone.
    control: Option<LockFile>,
}

impl DeadOwner {
    /// Returns `true` if its objects stay for a peer.
    fn is_for_peers(&self, scope: Scope) -> bool {
        match (&self.control, scope) {
            (None, _) => false,
            (Some(control), Scope::WithoutPeers(_)) => has_peers(control),
            (Some(control), Scope::All | Scope::Own(_)) => has_pending_grants(control),
        }
    }
}

/// Locks the owners that have ended. Passes the others, and those that cannot be opened unless it is
/// for lack of descriptors.
fn lock_dead_owners(
    names: &Namespace,
    owners: &[ProviderId],
    uid: u32,
) -> Result<Vec<DeadOwner>, OsError> {
    let mut dead = Vec::new();
    for &provider in owners {
        let control = match lock_dead_owner(names, provider, uid) {
            Ok(Owner::Dead(control)) => Some(control),
            Ok(Owner::Gone) => None,
            Err(ObjectError::Os(error)) if error.is_out_of_descriptors() => return Err(error),
            Ok(Owner::Alive) | Err(_) => continue,
        };
        dead.push(DeadOwner { provider, control });
    }
    Ok(dead)
}

/// Returns the owners that have a control object or a segment.
fn owners(names: &Namespace) -> Result<Vec<ProviderId>, OsError> {
    let mut owners = BTreeSet::new();
    for file in names.files()? {
        if let Some(Object::Control(owner) | Object::Segment(owner, _)) = object(names, &file) {
            owners.insert(owner);
        }
    }
    Ok(owners.into_iter().collect())
}

/// Returns the segments of some owners.
fn segments(names: &Namespace, owners: &BTreeSet<ProviderId>) -> Result<Vec<Name>, OsError> {
    let mut segments = Vec::new();
    for file in names.files()? {
        match object(names, &file) {
            Some(Object::Segment(owner, _)) if owners.contains(&owner) => {
                segments.push(names.file(&file));
            }
            _ => {}
        }
    }
    Ok(segments)
}

/// Returns the objects of channels, and of connections.
fn channels(names: &Namespace) -> Result<Vec<Name>, OsError> {
    let mut channels = Vec::new();
    for file in names.files()? {
        if let Some(Object::Channel(_) | Object::Connection(..)) = object(names, &file) {
            channels.push(names.file(&file));
        }
    }
    Ok(channels)
}

/// Removes the connections of a channel that no receiver reads, for the channel's publisher.
pub(crate) fn remove_connections(names: &Namespace, channel: &str) -> Result<(), OsError> {
    for file in names.files()? {
        match object(names, &file) {
            Some(Object::Connection(of, _)) if of == channel => {
                // If this fails, a sweep does it.
                let _ = remove_dead(&names.file(&file), effective_uid(), CHANNEL_MAGIC);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the object that a file is, by its name; `None` if it has another prefix.
fn object<'a>(names: &Namespace, file: &'a str) -> Option<Object<'a>> {
    let (prefix, object) = parse(file)?;
    if prefix != names.prefix() {
        return None;
    }
    Some(object)
}

enum Owner {
    Alive,
    /// With a shared lock on the owner's byte.
    Dead(LockFile),
    Gone,
}

/// Fails if the file is not its control object, or not of user `uid`.
fn lock_dead_owner(
    names: &Namespace,
    provider: ProviderId,
    uid: u32,
) -> Result<Owner, ObjectError> {
    let name = control_name(names, provider);
    let locks = match open(&name, uid) {
        Err(missing) if missing.is_missing() => return Ok(Owner::Gone),
        result => result?,
    };
    // Shared: a connecting peer may be checking whether the exclusive lock is held.
    if !matches!(locks.try_lock_shared(OWNER_BYTE), Ok(true)) {
        return Ok(Owner::Alive);
    }
    if !is_object(locks.file(), MAGIC).map_err(|error| name.error("pread", 0, error))? {
        let reason = "it is not a control object, or has another name";
        return Err(ObjectError::Unusable {
            object: name.path(),
            reason,
        });
    }
    Ok(Owner::Dead(locks))
}

fn open(name: &Name, uid: u32) -> Result<LockFile, ObjectError> {
    let locks = LockFile::open(|| name.open(libc::O_RDWR, 0))
        .map_err(|error| name.error("open", 0, error))?;
    check_regular(locks.file(), name, uid)?;
    Ok(locks)
}

/// The caller has checked that the creator is dead.
pub(crate) fn is_object(file: &File, magic: u64) -> io::Result<bool> {
    let mut first = [0; 8];
    // Short, or zero: its creator was killed while creating it.
    let _ = file.read_at(&mut first, 0)?;
    Ok([0, magic].contains(&u64::from_ne_bytes(first)) && file.metadata()?.nlink() <= 1)
}

pub(crate) fn is_segment(metadata: &Metadata, uid: u32) -> bool {
    let is_whole = metadata.len() % page_size() as u64 == 0;
    metadata.is_file() && metadata.uid() == uid && metadata.nlink() == 1 && is_whole
}

/// Marks a control object as closed, and its segments as destroyed. If it fails, peers still find
/// the owner's lock free.
fn mark_as_closed(control: &LockFile) {
    let file = control.file();
    let Ok(metadata) = file.metadata() else {
        return;
    };
    // The owner may have died before it set the length.
    if metadata.len() < PAGE as u64 || check_file_size(PAGE).is_err() {
        return;
    }
    // Written to the file, not through a mapping, which could raise a signal.
    let _ = file.write_at(&CLOSED.to_ne_bytes(), STATE_OFFSET);
    let _ = file.write_at(&NO_SEGMENTS, SEGMENTS_OFFSET);
}

fn has_peers(control: &LockFile) -> bool {
    (0..PEERS).any(|slot| control.is_locked(peer_byte(slot)))
}

/// Returns `true` if a living peer has a grant that it has not taken up. Reads the records from the
/// file, without mapping it: another process may truncate it. Reads a bounded number of records,
/// even if the header is garbage.
fn has_pending_grants(control: &LockFile) -> bool {
    const AT_ONCE: usize = 512 * RECORD_SIZE;
    let mut high_water = [0; 4];
    match retry(|| control.file().read_at(&mut high_water, HIGH_WATER_OFFSET)) {
        Ok(4) => {}
        // Shorter: no record was ever used.
        Ok(_) => return false,
        Err(_) => return true,
    }
    let used = (u32::from_ne_bytes(high_water) as usize).min(MAX_RECORDS);
    let mut copy = Vec::new();
    if copy.try_reserve_exact(AT_ONCE).is_err() {
        // They are left to the next sweep.
        return true;
    }
    copy.resize(AT_ONCE, 0);
    let mut slots = 0;
    let mut read = 0;
    while read < used {
        let part = &mut copy[..AT_ONCE.min((used - read) * RECORD_SIZE)];
        let offset = (PAGE + read * RECORD_SIZE) as u64;
        // A bounded number of times, unlike `read_exact_at`.
        let Ok(len) = retry(|| control.file().read_at(part, offset)) else {
            return true;
        };
        // Fewer records than the header says: another process has changed it, or truncated the
        // file.
        if len < RECORD_SIZE {
            break;
        }
        for record in part[..len].chunks_exact(RECORD_SIZE) {
            slots |= pending_grants(record);
        }
        read += len / RECORD_SIZE;
    }
    (0..PEERS).any(|slot| slots >> slot & 1 != 0 && control.is_locked(peer_byte(slot)))
}

/// Returns `true` if receivers may belong to other users, which own their connections.
fn has_other_users(control: &LockFile) -> bool {
    match control.file().metadata() {
        Ok(metadata) => admits_others(metadata.mode()),
        Err(_) => false,
    }
}

pub(crate) enum Removal {
    Removed {
        /// Of memory.
        bytes: u64,
    },
    /// It no longer exists, or another object has its name.
    Gone,
    /// Its creator is alive, or another process is removing it.
    Locked,
    /// A channel whose receiver is alive and may not have received everything. It keeps its name,
    /// or has been renamed.
    Read,
    /// It begins with neither `magic` nor (unfinished) zero, or it has another name.
    NotOurs,
}

/// Removes an object whose creator has ended, unless a receiver still reads it.
pub(crate) fn remove_dead(name: &Name, uid: u32, magic: u64) -> Result<Removal, ObjectError> {
    remove_if(name, uid, magic, None)
}

/// Frees the name of a channel whose creator has ended: removes the object, or renames it if a
/// receiver still reads it.
pub(crate) fn remove_or_rename_dead(
    name: &Name,
    uid: u32,
    magic: u64,
) -> Result<Removal, ObjectError> {
    let renamed = name_while_read(name);
    let removal = remove_if(name, uid, magic, renamed.as_ref())?;
    if let (Removal::Read, Some(renamed)) = (&removal, renamed) {
        // The receiver may have ended meanwhile, and found the object locked. This time the lock is
        // taken only if the receiver has ended.
        let _ = remove_if(&renamed, uid, magic, None);
    }
    Ok(removal)
}

/// Removes an object whose creator has ended. One that is still read gets the name `renamed`, or
/// keeps its own. Another process may reuse the name at once, so this takes the exclusive lock, and
/// changes the name only if it still refers to the object then.
fn remove_if(
    name: &Name,
    uid: u32,
    magic: u64,
    renamed: Option<&Name>,
) -> Result<Removal, ObjectError> {
    let failed = |call| move |error| name.error(call, 0, error);
    let locks = match open(name, uid) {
        Err(missing) if missing.is_missing() => return Ok(Removal::Gone),
        result => result?,
    };
    // First without the lock: a receiver that is dropped right now must be able to take it.
    if renamed.is_none() && locks.is_locked(RECEIVER_BYTE) {
        return Ok(Removal::Read);
    }
    if !locks.try_lock(OWNER_BYTE).map_err(failed(LOCK))? {
        return Ok(Removal::Locked);
    }
    let metadata = locks.file().metadata().map_err(failed("fstat"))?;
    if !name.is_of((metadata.dev(), metadata.ino())) {
        // Another process has unlinked or renamed it.
        return Ok(Removal::Gone);
    }
    if !is_object(locks.file(), magic).map_err(failed("pread"))? {
        return Ok(Removal::NotOurs);
    }
    if locks.is_locked(RECEIVER_BYTE) {
        if let Some(renamed) = renamed {
            name.rename(renamed).map_err(failed("rename"))?;
        }
        return Ok(Removal::Read);
    }
    name.unlink().map_err(failed("unlink"))?;
    // In blocks of 512 bytes on any file system.
    Ok(Removal::Removed {
        bytes: metadata.blocks() * 512,
    })
}

/// The owners that living receivers may still read, by all channels of the prefix.
#[derive(Default)]
struct Readers {
    /// Through channels of this process's user.
    own: Found,
    /// Through channels of any user, for owners that admit others.
    all: Found,
}

#[derive(Default)]
struct Found {
    owners: BTreeSet<ProviderId>,
    /// A channel could not be opened: it may be any owner's.
    has_unknown: bool,
}

impl Readers {
    /// Checks all channels twice: a successor may rename an object between the listing and the
    /// check of it, but an object is renamed at most once.
    fn find(names: &Namespace, uid: u32) -> Result<Self, OsError> {
        let mut readers = Self::default();
        for _ in 0..2 {
            for channel in channels(names)? {
                before_system_call();
                let its_uid = match fs::symlink_metadata(channel.as_path()) {
                    Ok(metadata) => metadata.uid(),
                    // It may be gone. If not, opening it as one of this user's tells.
                    Err(_) => uid,
                };
                // An owner that admits only its own user has no reader in another user's channel.
                let found = if its_uid == uid {
                    &mut readers.own
                } else {
                    &mut readers.all
                };
                found.note(&channel, its_uid)?;
            }
        }
        readers.all.owners.extend(&readers.own.owners);
        readers.all.has_unknown |= readers.own.has_unknown;
        Ok(readers)
    }

    /// Returns `true` if a living receiver may not have received everything.
    fn has(&self, dead: &DeadOwner) -> bool {
        let found = match &dead.control {
            Some(control) if has_other_users(control) => &self.all,
            _ => &self.own,
        };
        found.has_unknown || found.owners.contains(&dead.provider)
    }
}

impl Found {
    /// Notes the owner of a channel of this user if its receiver is alive. Ignores the sender's
    /// lock, which a sweep may hold.
    fn note(&mut self, channel: &Name, uid: u32) -> Result<(), OsError> {
        let locks = match open(channel, uid) {
            Ok(locks) => locks,
            Err(ObjectError::Os(error)) if error.is_out_of_descriptors() => return Err(error),
            Err(ObjectError::Os(error)) => {
                self.has_unknown |= matches!(error.errno(), Some(libc::ENOMEM | libc::EACCES));
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let mut provider = [0; 8];
        // Shorter: nothing has been received through it.
        let is_whole = matches!(locks.file().read_at(&mut provider, PROVIDER_OFFSET), Ok(8));
        if is_whole && locks.is_locked(RECEIVER_BYTE) {
            self.owners.insert(ProviderId(u64::from_ne_bytes(provider)));
        }
        Ok(())
    }
}
