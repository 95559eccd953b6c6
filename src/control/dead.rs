//! A sweep's side of the control object: is its owner dead?

#![forbid(unsafe_code)]

use super::{control_name, CLOSED, OWNER_BYTE, STATE_OFFSET};
use crate::descriptor::ProviderId;
use crate::error::AttachError;
use crate::locks::LockFile;
use crate::posix::{Name, PAGE};
use crate::segment::{Access, Foreign};
use std::os::unix::fs::FileExt;

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
pub(crate) fn owner(prefix: &str, provider: ProviderId, uid: u32) -> Result<Owner, AttachError> {
    owner_of(control_name(prefix, provider), uid)
}

/// As [`owner`], of any object with such a lock and such a beginning.
pub(crate) fn owner_of(name: Name, uid: u32) -> Result<Owner, AttachError> {
    match lock(name, uid) {
        Err(AttachError::Os(error)) if error.errno() == Some(libc::ENOENT) => Ok(Owner::Gone),
        result => Ok(result?.map_or(Owner::Alive, Owner::Dead)),
    }
}

fn lock(name: Name, uid: u32) -> Result<Option<LockFile>, AttachError> {
    let foreign = Foreign::open(name, Access::ReadWrite, uid)?;
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
