//! A sweep's side of the control object: is its owner dead?

#![forbid(unsafe_code)]

use crate::os::locks::{LockFile, LOCK};
use crate::os::name::{shm_open, Name};
use crate::os::posix::PAGE;
use crate::os::segment::{check_regular, is_linked, Access, Foreign, ObjectError};
use crate::protocol::control::{control_name, CLOSED, OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE, STATE_OFFSET};
use crate::protocol::ids::ProviderId;
use std::os::unix::fs::{FileExt, MetadataExt};

/// What became of an owner.
pub(crate) enum Owner {
    Alive,
    /// With a shared lock on its byte, for as long as this value lives: nobody else gets the exclusive one.
    Dead(LockFile),
    /// It has no control object under this name.
    Gone,
}

/// Finds out about the owner of a control object, which must be a regular file of user `uid`. A dead one's is closed, for peers that
/// have it mapped.
pub(crate) fn lock_dead_owner(prefix: &str, provider: ProviderId, uid: u32) -> Result<Owner, ObjectError> {
    match lock(prefix, provider, uid) {
        Err(missing) if missing.is_missing() => Ok(Owner::Gone),
        result => Ok(result?.map_or(Owner::Alive, Owner::Dead)),
    }
}

fn lock(prefix: &str, provider: ProviderId, uid: u32) -> Result<Option<LockFile>, ObjectError> {
    let foreign = Foreign::open(control_name(prefix, provider), Access::ReadWrite, uid)?;
    let locks = foreign.open_for_locks()?;
    // Shared, for a peer that connects at this moment asks whether the exclusive one is held.
    if !matches!(locks.try_lock_shared(OWNER_BYTE), Ok(true)) {
        return Ok(None);
    }
    // It may have died before it gave the object its length. Written and not stored: the file of somebody who only looks like an
    // owner may have no memory there, which would be a signal. Should it fail, peers find the lock free.
    if foreign.len >= PAGE {
        let _ = locks.file().write_at(&CLOSED.to_ne_bytes(), STATE_OFFSET);
    }
    Ok(Some(locks))
}

/// What [`remove_dead`] has found.
pub(crate) enum Removal {
    Removed {
        /// Memory that it had.
        bytes: u64,
    },
    /// There is none any more, or another one.
    Gone,
    /// Whoever made it lives, or somebody else removes it.
    Locked,
    /// A channel's, whose receiver lives and may not have received all that its provider has sent.
    Read,
    /// It is nothing that `magic` was ever written to, or about to be.
    NotOurs,
}

/// Removes an object whose maker, who locks the owner's byte for life, is gone, and whose name may be used again at once by
/// others. So the lock is exclusive, and the name is removed only while it is held, by whom it was found there still.
///
/// `or_read`: not if the channel has a receiver that lives.
pub(crate) fn remove_dead(name: &Name, uid: u32, magic: u64, or_read: bool) -> Result<Removal, ObjectError> {
    let failed = |call| move |error| name.error(call, 0, error);
    let locks = match LockFile::open(|| shm_open(name, libc::O_RDWR, 0)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Removal::Gone),
        result => result.map_err(failed("shm_open"))?,
    };
    check_regular(locks.file(), name, uid)?;
    if !locks.try_lock(OWNER_BYTE).map_err(failed(LOCK))? {
        return Ok(Removal::Locked);
    }
    // The name can be removed with this lock only, or that of another object.
    if !is_linked(locks.file()).map_err(failed("fstat"))? {
        return Ok(Removal::Gone);
    }
    let word = |at| {
        let mut found = [0; 8];
        // Shorter, or zero: killed while it was made.
        let _ = locks.file().read_at(&mut found, at).map_err(failed("pread"))?;
        Ok::<_, ObjectError>(u64::from_ne_bytes(found))
    };
    if ![0, magic].contains(&word(0)?) {
        return Ok(Removal::NotOurs);
    }
    if or_read && locks.is_locked(RECEIVER_BYTE) {
        return Ok(Removal::Read);
    }
    // Blocks are of 512 bytes, whatever the file system's block size.
    let bytes = locks.file().metadata().map_or(0, |metadata| metadata.blocks() * 512);
    name.unlink().map_err(failed("shm_unlink"))?;
    Ok(Removal::Removed { bytes })
}

/// Has a channel a receiver that lives, and that may not have received all that this provider has sent? Whoever has the sender's lock: it may
/// be a sweep. `true` if it cannot be opened for want of descriptors or memory.
pub(crate) fn is_read(channel: &Name, provider: ProviderId, uid: u32) -> bool {
    let locks = match LockFile::open(|| shm_open(channel, libc::O_RDWR, 0)) {
        Err(error) => return matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)),
        Ok(locks) => locks,
    };
    let mut found = [0; 8];
    // Shorter: nobody has received anything by it.
    let is_its = check_regular(locks.file(), channel, uid).is_ok()
        && locks.file().read_at(&mut found, PROVIDER_OFFSET).is_ok()
        && found == provider.0.to_ne_bytes();
    is_its && locks.is_locked(RECEIVER_BYTE)
}
