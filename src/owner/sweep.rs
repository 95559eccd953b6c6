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
use crate::os::name::{is_part, Name, Namespace};
use crate::os::posix::effective_uid;
use crate::protocol::control::{control_name, CHANNEL_MAGIC};
use crate::protocol::dead::{is_read, lock_dead_owner, remove_dead, Owner, Removal};
use crate::protocol::ids::ProviderId;
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
    list(names, |file| parse(names.prefix(), file).map(|(provider, object)| (provider, object, names.file(file))))
}

/// The channels with these names, and the branches of publishers' channels.
fn channels(names: &Namespace) -> Result<Vec<Name>, OsError> {
    list(names, |file| {
        let rest = file.strip_prefix(names.prefix())?.strip_prefix('.')?;
        let branch = || rest.strip_suffix(".branch")?.split_once('.').filter(|(_, id)| hexadecimal(id).is_some());
        let channel = rest.strip_suffix(".channel").or_else(|| Some(branch()?.0))?;
        is_part(channel).then(|| names.file(file))
    })
}

/// Collects what `choose` returns for the files of the directory.
fn list<T>(names: &Namespace, choose: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, OsError> {
    let directory = names.directory();
    let failed = |error| OsError::new("readdir", &directory.to_string_lossy(), 0, error, String::new());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        found.extend(entry.map_err(failed)?.file_name().to_str().and_then(&choose));
    }
    Ok(found)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    Control,
    Segment,
}

/// Whose object is this, and which kind? The inverse of `control_name` and `segment_name`; `None`
/// for any other name.
fn parse(prefix: &str, file: &str) -> Option<(ProviderId, Leftover)> {
    let (provider, object) = file.strip_prefix(prefix)?.strip_prefix('.')?.split_once('.')?;
    let provider = Some(ProviderId(hexadecimal(provider)?)).filter(|id| id.to_string() == provider)?;
    if object == "ctl" {
        return Some((provider, Leftover::Control));
    }
    hexadecimal(object).filter(|serial| format!("{serial:x}") == object)?;
    Some((provider, Leftover::Segment))
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::protocol::control::segment_name;

    #[test]
    fn names_are_recognised_and_others_are_not() {
        let id = ProviderId(0x0123_4567_89ab_cdef);
        let file = |name: Name| name.path().rsplit('/').next().unwrap().to_owned();
        let a = Namespace::in_shm("a");
        assert_eq!(parse("a", &file(control_name(&a, id))), Some((id, Leftover::Control)));
        assert_eq!(parse("a", &file(segment_name(&a, id, 0x2f))), Some((id, Leftover::Segment)));
        let others = ["a.ctl", "a.0123456789abcdef", "a.0123456789abcdef.CTL", "a.0123456789ABCDEF.ctl", "a.123.ctl"];
        let more =
            ["b.0123456789abcdef.ctl", "a.0123456789abcdef.+1", "a.0123456789abcdef.01", "a.0123456789abcdef.1.2"];
        for other in others.iter().chain(&more) {
            assert_eq!(parse("a", other), None, "{other}");
        }
        assert_eq!(parse("a", "aa.0123456789abcdef.ctl"), None, "another prefix");
    }
}
