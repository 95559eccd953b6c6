//! Segments that the caller names and creates: [`SegmentSource`].

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::fork;
use crate::os::name::Name;
use crate::os::segment::Segment;
use crate::owner::control::{Payload, SegmentFactory};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// Names, creates and removes the segments of a [`Backend`](super::Backend).
///
/// The source decides how readers find a segment: its name, owner, mode, locks and limits. The
/// backend does the rest: it sets the file's length once, maps it, reserves memory for the ranges
/// that it carves chunks from, returns memory to the system, and unmaps it.
///
/// The methods are called with locks of the backend held, so they must not call the same backend.
///
/// The memory of a [`Chunk`](super::Chunk) is exclusive only if each segment has a file of its own, and
/// no process shrinks it: see [`Chunk::bytes_mut`](super::Chunk::bytes_mut).
pub trait SegmentSource: Send + Sync {
    /// Creates the file of a segment of `len` bytes, empty, open for reading and writing. One
    /// thread calls this at a time.
    ///
    /// # Errors
    ///
    /// If the error's number is `ENOSPC` or `ENOMEM`, the backend makes room and tries again, also
    /// with a shorter segment. If that does not help, or for any other error, the allocation fails
    /// with [`AllocErrorKind::Os`](crate::AllocErrorKind::Os).
    fn create(&self, len: usize) -> Result<SegmentFile, OsError>;

    /// Removes a segment that this process no longer maps: unlinks its name, if it has one. Also
    /// called if the backend could not use the file; not called in a forked child.
    ///
    /// Called by any thread: the one that drops the last chunk or pointer, trims or allocates.
    fn remove(&self, id: u64, file: File);

    /// Returns `true` if empty segments are kept, because readers never unmap them. Their memory is
    /// returned to the system all the same. By default an empty segment is removed.
    fn keeps_segments(&self) -> bool {
        false
    }

    /// Removes segments of dead processes, when the system has no memory left. Returns the number of
    /// bytes.
    fn sweep(&self) -> u64 {
        0
    }
}

/// The file of a segment, as its source created it.
#[derive(Debug)]
pub struct SegmentFile {
    /// Identifies the segment to readers. Unique among the backend's existing segments; one that is not
    /// is refused, with `EEXIST`.
    pub id: u64,
    /// Empty, open for reading and writing. The descriptor, and with it a lock on the file, is held
    /// as long as the segment is mapped.
    pub file: File,
    /// Used in errors, and to ask how much memory the file system has left.
    pub path: PathBuf,
}

/// A source, as the pool's segment factory.
pub(super) struct Sourced<S>(pub(super) Arc<S>);

impl<S: SegmentSource + 'static> SegmentFactory for Sourced<S> {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        let SegmentFile { id, file, path } = self.0.create(len)?;
        let file = Arc::new(file);
        let removal = Removal { source: self.0.clone(), id, file: Some(file.clone()), fork_epoch: fork::epoch() };
        let segment = Segment::of_file(file, Name::of_path(&path), len)?;
        Ok(Payload::removed_by(segment, id, removal))
    }

    fn sweep(&self) -> u64 {
        self.0.sweep()
    }

    fn keeps_segments(&self) -> bool {
        self.0.keeps_segments()
    }
}

/// Removes a segment on drop.
struct Removal<S: SegmentSource> {
    source: Arc<S>,
    id: u64,
    /// Shared with the segment, which is dropped first.
    file: Option<Arc<File>>,
    fork_epoch: u64,
}

impl<S: SegmentSource> Drop for Removal<S> {
    fn drop(&mut self) {
        let file = self.file.take().filter(|_| self.fork_epoch == fork::epoch());
        if let Some(file) = file.and_then(Arc::into_inner) {
            self.source.remove(self.id, file);
        }
    }
}
