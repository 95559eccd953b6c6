//! What a sweep asks of an object: is its owner dead, and may it be removed?

#![forbid(unsafe_code)]

use crate::os::foreign::{check_regular, is_linked, Foreign, ObjectError};
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Access;
use crate::os::name::{Name, Namespace};
use crate::os::posix::PAGE;
use crate::protocol::control::{control_name, CLOSED, OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE, STATE_OFFSET};
use crate::protocol::ids::ProviderId;
use std::os::unix::fs::{FileExt, MetadataExt};

/// What became of an owner.
pub(crate) enum Owner {
    Alive,
    /// Holds a shared lock on the owner's byte as long as this value lives: nobody else gets the
    /// exclusive one.
    Dead(LockFile),
    /// There is no control object of this name.
    Gone,
}

/// Finds out whether the owner of a control object is alive. The object must be a regular file of
/// user `uid`. A dead owner's is marked as closed, for peers that have it mapped.
pub(crate) fn lock_dead_owner(names: &Namespace, provider: ProviderId, uid: u32) -> Result<Owner, ObjectError> {
    match lock(names, provider, uid) {
        Err(missing) if missing.is_missing() => Ok(Owner::Gone),
        result => Ok(result?.map_or(Owner::Alive, Owner::Dead)),
    }
}

fn lock(names: &Namespace, provider: ProviderId, uid: u32) -> Result<Option<LockFile>, ObjectError> {
    let foreign = Foreign::open(control_name(names, provider), Access::ReadWrite, uid)?;
    let locks = foreign.open_for_locks()?;
    // Shared, because a peer that connects at this moment asks whether the exclusive lock is held.
    if !matches!(locks.try_lock_shared(OWNER_BYTE), Ok(true)) {
        return Ok(None);
    }
    // The owner may have died before it gave the object its length. Written to the file, not stored
    // through a mapping: a file that only looks like an owner's may have no memory there, and a
    // store would be a signal. If the write fails, peers still find the lock free.
    if foreign.len >= PAGE {
        let _ = locks.file().write_at(&CLOSED.to_ne_bytes(), STATE_OFFSET);
    }
    Ok(Some(locks))
}

/// What [`remove_dead`] found.
pub(crate) enum Removal {
    Removed {
        /// Memory that the object had, in bytes.
        bytes: u64,
    },
    /// The object does not exist any more, or another one has its name.
    Gone,
    /// Its maker is alive, or somebody else is removing it.
    Locked,
    /// A channel: its receiver is alive and may not have received all that its provider sent.
    Read,
    /// It begins with neither `magic` nor, unfinished, zero.
    NotOurs,
}

/// Removes an object whose maker is gone. Makers lock the owner's byte for life, and others may use
/// the name again at once. So this takes the exclusive lock, and removes the name only while it
/// holds that, after it has found the object still linked.
///
/// With `or_read`, a channel whose receiver is alive stays.
pub(crate) fn remove_dead(name: &Name, uid: u32, magic: u64, or_read: bool) -> Result<Removal, ObjectError> {
    let failed = |call| move |error| name.error(call, 0, error);
    let locks = match LockFile::open(|| name.open(libc::O_RDWR, 0)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Removal::Gone),
        result => result.map_err(failed("open"))?,
    };
    check_regular(locks.file(), name, uid)?;
    if !locks.try_lock(OWNER_BYTE).map_err(failed(LOCK))? {
        return Ok(Removal::Locked);
    }
    // Nobody removes this name without the object's lock. If it is gone already, another object may
    // have it by now.
    if !is_linked(locks.file()).map_err(failed("fstat"))? {
        return Ok(Removal::Gone);
    }
    let word = |at| {
        let mut found = [0; 8];
        // Short, or zero: its maker was killed while making it.
        let _ = locks.file().read_at(&mut found, at).map_err(failed("pread"))?;
        Ok::<_, ObjectError>(u64::from_ne_bytes(found))
    };
    if ![0, magic].contains(&word(0)?) {
        return Ok(Removal::NotOurs);
    }
    if or_read && locks.is_locked(RECEIVER_BYTE) {
        return Ok(Removal::Read);
    }
    // A block has 512 bytes here, whatever the file system's block size.
    let bytes = locks.file().metadata().map_or(0, |metadata| metadata.blocks() * 512);
    name.unlink().map_err(failed("unlink"))?;
    Ok(Removal::Removed { bytes })
}

/// Has a channel a receiver that is alive and may not have received all that this provider sent? It
/// does not matter who holds the sender's lock, which may be a sweep. Also `true` if the channel
/// cannot be opened for lack of descriptors or memory.
pub(crate) fn is_read(channel: &Name, provider: ProviderId, uid: u32) -> bool {
    let locks = match LockFile::open(|| channel.open(libc::O_RDWR, 0)) {
        Err(error) => return matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)),
        Ok(locks) => locks,
    };
    let mut found = [0; 8];
    // Shorter: nobody has received anything through it.
    let is_its = check_regular(locks.file(), channel, uid).is_ok()
        && locks.file().read_at(&mut found, PROVIDER_OFFSET).is_ok()
        && found == provider.0.to_ne_bytes();
    is_its && locks.is_locked(RECEIVER_BYTE)
}
