//! Queries of a sweep: whether an object's owner is dead, and whether the object may be removed.

#![forbid(unsafe_code)]

use crate::os::locks::{LockFile, LOCK};
use crate::os::name::{Name, Namespace};
use crate::os::posix::{check_file_size, page_size, PAGE};
use crate::os::segment::{check_regular, ObjectError};
use crate::protocol::control::{
    peer_byte, CLOSED, MAGIC, NO_SEGMENTS, OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE, SEGMENTS_OFFSET, STATE_OFFSET,
};
use crate::protocol::ids::{control_name, ProviderId};
use crate::protocol::record::PEERS;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

pub(crate) enum Owner {
    Alive,
    /// Holds a shared lock on the owner's byte while this value lives, so that no process gets the
    /// exclusive one.
    Dead(LockFile),
    Gone,
}

/// Checks whether the owner of a control object is alive. Fails if the file is not a control object
/// of user `uid`, or has another name.
pub(crate) fn lock_dead_owner(names: &Namespace, provider: ProviderId, uid: u32) -> Result<Owner, ObjectError> {
    let name = control_name(names, provider);
    let locks = match open(&name, uid) {
        Err(missing) if missing.is_missing() => return Ok(Owner::Gone),
        result => result?,
    };
    // Shared, because a connecting peer may check at this moment whether the exclusive lock is
    // held.
    if !matches!(locks.try_lock_shared(OWNER_BYTE), Ok(true)) {
        return Ok(Owner::Alive);
    }
    if !is_object(locks.file(), MAGIC).map_err(|error| name.error("pread", 0, error))? {
        let reason = "it is no control object, or has another name";
        return Err(ObjectError::Unusable { object: name.path(), reason });
    }
    Ok(Owner::Dead(locks))
}

fn open(name: &Name, uid: u32) -> Result<LockFile, ObjectError> {
    let locks = LockFile::open(|| name.open(libc::O_RDWR, 0)).map_err(|error| name.error("open", 0, error))?;
    check_regular(locks.file(), name, uid)?;
    Ok(locks)
}

/// Returns `true` if the file begins with `magic` (or zero, if unfinished) and has no second name.
/// Any other file merely has a name like an object's. The caller has checked that its creator is
/// dead.
pub(crate) fn is_object(file: &File, magic: u64) -> io::Result<bool> {
    let mut first = [0; 8];
    // Short, or zero: its creator was killed while creating it.
    let _ = file.read_at(&mut first, 0)?;
    Ok([0, magic].contains(&u64::from_ne_bytes(first)) && file.metadata()?.nlink() <= 1)
}

/// Returns `true` if a file with a segment's name can be a segment of user `uid`. Its content is
/// arbitrary.
pub(crate) fn is_segment(metadata: &Metadata, uid: u32) -> bool {
    let is_whole = metadata.len() % page_size() as u64 == 0;
    metadata.is_file() && metadata.uid() == uid && metadata.nlink() == 1 && is_whole
}

/// Marks a dead owner's control object as closed and its segments as destroyed, for processes that
/// have it mapped.
pub(crate) fn mark_as_gone(control: &LockFile) {
    let file = control.file();
    // The owner may have died before it set the object's length. Written to the file, not through a
    // mapping: a file that merely looks like an owner's may have no memory there, and a store would
    // raise a signal. If a write fails, or would raise a signal too, peers still find the owner's
    // lock free.
    let is_whole = file.metadata().is_ok_and(|metadata| metadata.len() >= PAGE as u64);
    if is_whole && check_file_size(PAGE).is_ok() {
        let _ = file.write_at(&CLOSED.to_ne_bytes(), STATE_OFFSET);
        let _ = file.write_at(&NO_SEGMENTS, SEGMENTS_OFFSET);
    }
}

/// Returns `true` if a dead owner has a living peer.
pub(crate) fn has_peers(control: &LockFile) -> bool {
    (0..PEERS).any(|slot| control.is_locked(peer_byte(slot)))
}

pub(crate) enum Removal {
    Removed {
        /// The memory of the object, in bytes.
        bytes: u64,
    },
    /// The object no longer exists, or another one has its name.
    Gone,
    /// Its creator is alive, or another process is removing it.
    Locked,
    /// A channel whose receiver is alive and may not have received everything that its provider
    /// sent.
    Read,
    /// It begins with neither `magic` nor (unfinished) zero, or it has another name.
    NotOurs,
}

/// Removes an object whose creator is dead. A creator locks the owner's byte for life, and another
/// process may reuse the name at once. So this takes the exclusive lock, and unlinks the name only
/// while it holds the lock and after it has found the object still linked.
///
/// With `or_read`, keeps a channel whose receiver is alive.
pub(crate) fn remove_dead(name: &Name, uid: u32, magic: u64, or_read: bool) -> Result<Removal, ObjectError> {
    let failed = |call| move |error| name.error(call, 0, error);
    let locks = match open(name, uid) {
        Err(missing) if missing.is_missing() => return Ok(Removal::Gone),
        result => result?,
    };
    let is_read = || or_read && locks.is_locked(RECEIVER_BYTE);
    // First checked without the lock, which the receiver must be able to take as soon as it is
    // dropped.
    if is_read() {
        return Ok(Removal::Read);
    }
    if !locks.try_lock(OWNER_BYTE).map_err(failed(LOCK))? {
        return Ok(Removal::Locked);
    }
    let metadata = locks.file().metadata().map_err(failed("fstat"))?;
    // A process unlinks this name only with the object's lock. If that has happened, another object
    // may have the name.
    if metadata.nlink() == 0 {
        return Ok(Removal::Gone);
    }
    if !is_object(locks.file(), magic).map_err(failed("pread"))? {
        return Ok(Removal::NotOurs);
    }
    if is_read() {
        return Ok(Removal::Read);
    }
    name.unlink().map_err(failed("unlink"))?;
    // A block is 512 bytes here, regardless of the file system's block size.
    Ok(Removal::Removed { bytes: metadata.blocks() * 512 })
}

/// Returns `true` if a channel has a living receiver that may not have received everything this
/// provider sent, or if the channel cannot be opened for lack of descriptors or memory. Ignores who
/// holds the sender's lock, which may be a sweep.
pub(crate) fn is_read(channel: &Name, provider: ProviderId, uid: u32) -> bool {
    let locks = match open(channel, uid) {
        Err(ObjectError::Os(error)) => {
            return matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM));
        }
        Err(_) => return false,
        Ok(locks) => locks,
    };
    let mut found = [0; 8];
    // Shorter: nothing has been received through it.
    let is_its = locks.file().read_at(&mut found, PROVIDER_OFFSET).is_ok() && found == provider.0.to_ne_bytes();
    is_its && locks.is_locked(RECEIVER_BYTE)
}
