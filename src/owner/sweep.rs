//! Removes what killed owners have left under /dev/shm, or another directory.
//!
//! An owner takes the exclusive lock on a byte of its control object before it makes anything else,
//! and holds it until it has removed everything else (see `locks`). So if a sweep can take a shared
//! lock on that byte, the owner is dead; or it created the object this instant and has not locked
//! it yet. In that case the owner finds its object locked, or gone, and starts over under another
//! name. Holding the shared lock, perhaps along with other sweeps at the same work, a sweep
//!
//! 1. marks the control object as closed, for peers that have it mapped,
//! 2. unlinks the owner's segments,
//! 3. unlinks the control object.
//!
//! If it is killed at any step, the kernel drops its lock, and the next sweep starts from what is
//! left. A segment without a control object is a dead owner's as well: a living owner makes the
//! control object first and removes it last.
//!
//! A channel's object is removed on its own, as `dead::remove_dead` does it, because its name is
//! used again. So is a branch of a publisher's channel, whose maker is the receiver. As long as a
//! dead sender's receiver lives and has not dropped all that it received, neither the channel's
//! object nor anything of its provider is removed: there may be messages in segments that the
//! receiver has not mapped yet. (A successor under the channel's name does remove the object, and
//! the next sweep then removes the segments. A receiver that its sender's death has woken is done
//! with them by then.)
//!
//! Never touched: what belongs to another user, and what is not a regular file. No content is read
//! except that of channels, and none is written except that mark.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::name::{Name, Namespace};
use crate::os::posix::effective_uid;
use crate::protocol::control::{control_name, CHANNEL_MAGIC};
use crate::protocol::dead::{is_read, lock_dead_owner, remove_dead, Owner, Removal};
use crate::protocol::ids::ProviderId;
use crate::protocol::names::{parse, Object};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What a [`sweep`](crate::Provider::sweep) has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Objects, including control objects.
    pub objects: usize,
    /// Memory that they had, in bytes. What peers still have mapped goes back to the system when
    /// they let it go.
    pub bytes: u64,
}

impl Swept {
    /// Unlinks an object of a dead owner, if it is a regular file of user `uid`.
    fn remove(&mut self, name: &Name, uid: u32) {
        let Ok(metadata) = fs::symlink_metadata(name.as_path()) else { return };
        if metadata.is_file() && metadata.uid() == uid && name.unlink().is_ok() {
            self.objects += 1;
            // Blocks are 512 bytes, whatever the file system's block size.
            self.bytes += metadata.blocks() * 512;
        }
    }
}

/// Removes what dead owners with these names have left.
pub(crate) fn sweep(names: &Namespace) -> Result<Swept, OsError> {
    let uid = effective_uid();
    let mut swept = Swept::default();
    for channel in channels(names)? {
        if let Ok(Removal::Removed { bytes }) = remove_dead(&channel, uid, CHANNEL_MAGIC, true) {
            swept.objects += 1;
            swept.bytes += bytes;
        }
    }
    let providers: BTreeSet<ProviderId> = objects(names)?.into_iter().map(|(provider, ..)| provider).collect();
    for provider in providers {
        // Held until everything is removed.
        let (_lock, control) = match lock_dead_owner(names, provider, uid) {
            Ok(Owner::Dead(lock)) => (Some(lock), Some(control_name(names, provider))),
            Ok(Owner::Gone) => (None, None),
            Ok(Owner::Alive) | Err(_) => continue,
        };
        // Asked only now that the owner is known to be dead, because no receiver can come any more.
        if channels(names)?.iter().any(|channel| is_read(channel, provider, uid)) {
            continue;
        }
        // Listed again: the owner may have made more before it died.
        let is_its_segment = |(owner, object, _): &(_, _, _)| (*owner, *object) == (provider, Leftover::Segment);
        let segments = objects(names)?.into_iter().filter(is_its_segment).map(|(.., name)| name);
        segments.chain(control).for_each(|object| swept.remove(&object, uid));
    }
    Ok(swept)
}

/// The objects of all providers with these names.
fn objects(names: &Namespace) -> Result<Vec<(ProviderId, Leftover, Name)>, OsError> {
    list(names, |object| match object {
        Object::Control(provider) => Some((provider, Leftover::Control)),
        Object::Segment(provider, _) => Some((provider, Leftover::Segment)),
        Object::Channel(_) | Object::Branch(..) => None,
    })
    .map(|found| found.into_iter().map(|((provider, kind), name)| (provider, kind, name)).collect())
}

/// The channels with these names, and the branches of publishers' channels.
fn channels(names: &Namespace) -> Result<Vec<Name>, OsError> {
    let is_channel = |object: Object<'_>| matches!(object, Object::Channel(_) | Object::Branch(..)).then_some(());
    list(names, is_channel).map(|found| found.into_iter().map(|((), name)| name).collect())
}

/// Collects what `choose` returns for the objects with these names.
fn list<T>(names: &Namespace, choose: impl Fn(Object<'_>) -> Option<T>) -> Result<Vec<(T, Name)>, OsError> {
    let mut found = Vec::new();
    for file in names.files()? {
        if let Some((_, object)) = parse(&file).filter(|(prefix, _)| *prefix == names.prefix()) {
            found.extend(choose(object).map(|chosen| (chosen, names.file(&file))));
        }
    }
    Ok(found)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    Control,
    Segment,
}
