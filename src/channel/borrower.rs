//! The borrower: the receiver's side of its loans. Messages hold it, so that it outlives the receiver.

use super::counted::{Counted, Owned};
use super::object::Shared;
use super::returns;
use crate::os::fork;
use crate::os::locks::LockFile;
use crate::os::name::Name;
use crate::os::segment::{Access, Foreign, Mapping};
use crate::peer::error::AttachError;
use crate::protocol::control::segment_name;
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Where the bytes of a buffer are that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentBuffer {
    /// Which loan it is.
    pub(super) number: u32,
    /// The segment's serial number, part of its name.
    pub(super) segment: u64,
    /// Bytes from the segment's start.
    pub(super) offset: u64,
    /// Length of the message in bytes.
    pub(super) len: u64,
}

/// See the module's text.
pub(super) struct Borrower {
    shared: Arc<Shared>,
    /// Holds the receiver's lock for as long as anything is read.
    _locks: Arc<LockFile>,
    fork_epoch: u64,
    /// The next ticket of a return.
    returned: AtomicU64,
}

impl Borrower {
    /// `locks` has the receiver's lock.
    pub(super) fn new(shared: Arc<Shared>, locks: Arc<LockFile>) -> Self {
        Self { shared, _locks: locks, fork_epoch: fork::epoch(), returned: AtomicU64::new(0) }
    }

    /// Gives a loan back. In a forked child it is the parent's.
    #[inline]
    pub(super) fn give_back(&self, number: u32) {
        if self.fork_epoch == fork::epoch() {
            // Relaxed: it makes tickets different, and nothing else.
            let ticket = self.returned.fetch_add(1, Ordering::Relaxed);
            returns::give_back(self.shared.returns(), ticket, number);
        }
    }
}

/// A segment of the sender's provider that the receiver has mapped.
struct Mapped {
    mapping: Mapping,
    serial: u64,
    borrower: Arc<Borrower>,
}

/// What a receiver has mapped. It belongs to the receiver alone: no lock.
pub(super) struct MappedSegments {
    prefix: String,
    uid: u32,
    provider: ProviderId,
    borrower: Arc<Borrower>,
    /// The one that was used last first. There are few.
    known: Vec<Owned<Mapped>>,
}

impl MappedSegments {
    pub(super) fn new(prefix: &str, uid: u32, provider: ProviderId, borrower: Arc<Borrower>) -> Self {
        Self { prefix: prefix.to_owned(), uid, provider, borrower, known: Vec::new() }
    }

    pub(super) fn borrower(&self) -> &Borrower {
        &self.borrower
    }

    /// How many are mapped.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Opens a message. `is_sender_there`: whether who made the segments lives; asked before one is let go of.
    #[inline]
    pub(super) fn open(&mut self, place: &SentBuffer, is_sender_there: impl Fn() -> bool) -> Result<Loan, AttachError> {
        let is_first = self.known.first().is_some_and(|mapped| mapped.serial == place.segment);
        if !is_first {
            self.find(place.segment, is_sender_there)?;
        }
        // Not empty by now.
        let mapped = &mut self.known[0];
        match mapped.mapping.range(place.offset, place.len) {
            Some(data) => Ok(Loan { data, len: place.len as usize, number: place.number, mapped: mapped.lend() }),
            None => {
                let what = "a message lies outside its segment";
                Err(AttachError::Damaged { provider: self.provider, what })
            }
        }
    }

    /// Puts a segment first.
    #[inline(never)]
    fn find(&mut self, serial: u64, is_sender_there: impl Fn() -> bool) -> Result<(), AttachError> {
        match self.known.iter().position(|mapped| mapped.serial == serial) {
            Some(at) => self.known.swap(0, at),
            None => {
                let mapping = self.map(serial)?;
                self.let_go(is_sender_there);
                let mapped = Owned::new(Mapped { mapping, serial, borrower: self.borrower.clone() });
                self.known.insert(0, mapped);
            }
        }
        Ok(())
    }

    fn name(&self, serial: u64) -> Name {
        segment_name(&self.prefix, self.provider, serial)
    }

    fn map(&self, serial: u64) -> Result<Mapping, AttachError> {
        let foreign = Foreign::open(self.name(serial), Access::Read, self.uid).map_err(|error| match error {
            missing if missing.is_missing() => AttachError::Closed { provider: self.provider },
            other => other.into(),
        })?;
        Ok(foreign.map(Access::Read)?)
    }

    /// Lets go of segments that their owner has destroyed: those without a name, while it lives. (The names of a dead one's are swept, and
    /// messages in them may not have been received yet.) Nothing that was sent is in one.
    fn let_go(&mut self, is_sender_there: impl Fn() -> bool) {
        let gone: Vec<u64> =
            self.known.iter().map(|mapped| mapped.serial).filter(|&serial| !self.name(serial).exists()).collect();
        // In this order: it may die after this.
        if !gone.is_empty() && is_sender_there() {
            self.known.retain(|mapped| !gone.contains(&mapped.serial));
        }
    }
}

/// A buffer of the sender's, read in place. The sender's process does not use the memory again before this is dropped, in any thread,
/// at any time: also when the receiver, the sender and the provider are gone.
///
/// There is no way to write through it. The bytes begin where the sender's buffer does: aligned to 64 bytes at least, and to what was asked
/// for when it was allocated.
pub struct Loan {
    data: NonNull<u8>,
    len: usize,
    number: u32,
    mapped: Counted<Mapped>,
}

// SAFETY: the bytes are only read, and returns are made by atomics.
unsafe impl Send for Loan {}
// SAFETY: as for `Send`.
unsafe impl Sync for Loan {}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked against the mapping (I2), which `mapped` keeps, and the owner does not write before the loan has
        // come back (I5).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Loan {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Loan {
    #[inline]
    fn drop(&mut self) {
        self.mapped.borrower.give_back(self.number);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("len", &self.len).finish()
    }
}
