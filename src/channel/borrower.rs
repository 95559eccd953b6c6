//! The borrower: the receiver's side of its loans. Messages hold it, so it outlives the receiver.

use super::counted::{Counted, Owned};
use super::layout::Shared;
use super::returns;
use crate::os::barrier;
use crate::os::foreign::{Foreign, ObjectError};
use crate::os::fork;
use crate::os::locks::LockFile;
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{Name, Namespace};
use crate::peer::error::AttachError;
use crate::protocol::control::{control_name, segment_name, View};
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The place of a buffer that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentBuffer {
    /// The number of its loan.
    pub(super) number: u32,
    /// The segment's serial number, part of its name.
    pub(super) segment: u64,
    /// Bytes from the segment's start.
    pub(super) offset: u64,
    /// Length of the message in bytes.
    pub(super) len: u64,
}

/// The receiver's side of all its loans: gives them back.
pub(super) struct Borrower {
    shared: Arc<Shared>,
    /// Holds the receiver's lock for as long as anything is read.
    _locks: Arc<LockFile>,
    fork_epoch: u64,
    /// The provider's control object, for its memory bell. `None` if the provider was gone.
    memory: Option<View>,
    /// The ticket of the next return.
    returned: AtomicU64,
}

impl Borrower {
    /// `locks` holds the receiver's lock.
    pub(super) fn new(shared: Arc<Shared>, locks: Arc<LockFile>, memory: Option<View>) -> Self {
        Self { shared, _locks: locks, fork_epoch: fork::epoch(), memory, returned: AtomicU64::new(0) }
    }

    /// Gives a loan back. In a forked child the loan belongs to the parent.
    #[inline]
    pub(super) fn give_back(&self, number: u32) {
        if self.fork_epoch == fork::epoch() {
            // Relaxed: it only has to make tickets different.
            let ticket = self.returned.fetch_add(1, Ordering::Relaxed);
            returns::give_back(self.shared.returns(), ticket, number);
            if let Some(memory) = &self.memory {
                memory.header().memory.ring();
            }
        }
    }
}

/// Maps the control object of a provider, for its memory bell. `None` if the provider is gone, or
/// does not let this user in.
pub(super) fn memory_bell(names: &Namespace, provider: ProviderId, uid: u32) -> Result<Option<View>, ObjectError> {
    barrier::enlist();
    match Foreign::open(control_name(names, provider), Access::ReadWrite, uid) {
        Ok(foreign) => Ok(View::of_provider(foreign.map(Access::ReadWrite)?, provider)),
        Err(missing) if missing.is_missing() => Ok(None),
        // The channel's mode may let in more than the provider's. Then the owner looks by itself.
        Err(ObjectError::Os(error)) if error.errno() == Some(libc::EACCES) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A segment of the sender's provider that the receiver has mapped.
struct Mapped {
    mapping: Mapping,
    serial: u64,
    borrower: Arc<Borrower>,
}

/// The segments that a receiver has mapped. They belong to the receiver alone, so there is no lock.
pub(super) struct MappedSegments {
    names: Namespace,
    uid: u32,
    provider: ProviderId,
    borrower: Arc<Borrower>,
    /// The first one is the one used last. There are few.
    known: Vec<Owned<Mapped>>,
}

impl MappedSegments {
    pub(super) fn new(names: &Namespace, uid: u32, provider: ProviderId, borrower: Arc<Borrower>) -> Self {
        Self { names: names.clone(), uid, provider, borrower, known: Vec::new() }
    }

    pub(super) fn borrower(&self) -> &Borrower {
        &self.borrower
    }

    /// The number of mapped segments.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Opens a message. `is_sender_there` tells whether the sender is still there; it is asked
    /// before a mapping is let go of.
    #[inline]
    pub(super) fn open(&mut self, place: &SentBuffer, is_sender_there: impl Fn() -> bool) -> Result<Loan, AttachError> {
        self.prepare(place, is_sender_there)?;
        // The segment is the first now, so `known` is not empty.
        let mapped = &mut self.known[0];
        match mapped.mapping.range(place.offset, place.len) {
            Some(data) => {
                let (number, missed) = (place.number, 0);
                Ok(Loan { data, len: place.len as usize, number, missed, mapped: mapped.lend() })
            }
            None => {
                let what = "a message lies outside its segment";
                Err(AttachError::Damaged { provider: self.provider, what })
            }
        }
    }

    /// Is this segment mapped, and first?
    #[inline]
    pub(super) fn is_prepared(&self, segment: u64) -> bool {
        self.known.first().is_some_and(|mapped| mapped.serial == segment)
    }

    /// Has the segment of a message mapped, and first.
    #[inline]
    pub(super) fn prepare(
        &mut self,
        place: &SentBuffer,
        is_sender_there: impl Fn() -> bool,
    ) -> Result<(), AttachError> {
        if self.is_prepared(place.segment) {
            return Ok(());
        }
        self.find(place.segment, is_sender_there)
    }

    /// Puts a segment first, and maps it if need be.
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
        segment_name(&self.names, self.provider, serial)
    }

    fn map(&self, serial: u64) -> Result<Mapping, AttachError> {
        let closed = AttachError::Closed { provider: self.provider };
        Ok(self.foreign(serial)?.ok_or(closed)?.map(Access::Read)?)
    }

    /// Opens a segment; `None` if it is gone.
    fn foreign(&self, serial: u64) -> Result<Option<Foreign>, AttachError> {
        match Foreign::open(self.name(serial), Access::Read, self.uid) {
            Ok(foreign) => Ok(Some(foreign)),
            Err(missing) if missing.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps and faults in all segments that the provider has now. Returns how many bytes are
    /// present. `is_sender_there`: as in [`open`](Self::open).
    pub(super) fn warm(&mut self, is_sender_there: impl Fn() -> bool) -> Result<usize, AttachError> {
        let (mut present, mut new) = (0, Vec::new());
        for (_, serial) in self.borrower.memory.iter().flat_map(View::segments) {
            // No message is known to lie in it, so it may vanish at any time.
            let Some(foreign) = self.foreign(serial)? else { continue };
            present += match self.known.iter().find(|mapped| mapped.serial == serial) {
                Some(mapped) => foreign.fault_in(&mapped.mapping),
                None => {
                    let mapping = foreign.map(Access::Read)?;
                    let present = foreign.fault_in(&mapping);
                    new.push(Owned::new(Mapped { mapping, serial, borrower: self.borrower.clone() }));
                    present
                }
            };
        }
        self.known.append(&mut new);
        self.let_go(is_sender_there);
        Ok(present)
    }

    /// Lets go of segments that their owner has destroyed: those whose name is gone while the owner
    /// lives. No message that was sent lies in one. (A dead owner's names are swept, and then
    /// messages in its segments may not have been received yet.)
    fn let_go(&mut self, is_sender_there: impl Fn() -> bool) {
        let gone: Vec<u64> =
            self.known.iter().map(|mapped| mapped.serial).filter(|&serial| !self.name(serial).exists()).collect();
        // Ask this last: an owner that lives now lived when its names were looked up.
        if !gone.is_empty() && is_sender_there() {
            self.known.retain(|mapped| !gone.contains(&mapped.serial));
        }
    }
}

/// A buffer of the sender, read in place. The sender's process does not reuse the memory before
/// this is dropped, in whatever thread and at whatever time, even when the receiver, the sender and
/// the provider are gone.
///
/// A loan derefs to `&[u8]`. Its length is the message's. It begins where the sender's buffer does,
/// so it is aligned to 64 bytes at least, and to what was asked of
/// [`Provider::alloc_layout`](crate::Provider::alloc_layout).
///
/// Whatever other processes do, the range lies within the mapping. The alignment holds as long as
/// they keep to the protocol, so unsafe code must check it.
///
/// There is no way to write through it.
pub struct Loan {
    data: NonNull<u8>,
    len: usize,
    number: u32,
    missed: u32,
    mapped: Counted<Mapped>,
}

// SAFETY: the bytes are only read (I5), and returns are made with atomics.
unsafe impl Send for Loan {}
// SAFETY: shared access only reads the bytes (I5).
unsafe impl Sync for Loan {}

impl Loan {
    /// Notes how many messages are missing before this one.
    #[inline]
    pub(super) fn with_missed(mut self, missed: u32) -> Self {
        self.missed = missed;
        self
    }

    /// As [`Message::missed`](super::Message::missed).
    pub fn missed(&self) -> u32 {
        self.missed
    }
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `open` checked the range against the mapping (I2), which `mapped` keeps, and the
        // owner does not write before the loan has come back (I5).
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
