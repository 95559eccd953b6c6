//! The borrower: the receiver's side of its loans. Messages hold it, so it outlives the receiver.

use super::counted::{Counted, Owned};
use super::layout::Shared;
use super::meeting::Seat;
use super::object::Object;
use super::returns;
use crate::os::fork;
use crate::os::futex::barrier;
use crate::os::locks::LockFile;
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{Name, Namespace};
use crate::os::posix::PAGE;
use crate::os::segment::{Foreign, ObjectError};
use crate::peer::error::AttachError;
use crate::protocol::control::{View, MAX_SEGMENTS, RECEIVER_BYTE};
use crate::protocol::ids::{control_name, segment_name, ProviderId};
use crate::protocol::sweep::{sweep_after_reading, TEARDOWN};
use crate::sync::light_barrier;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// The descriptor of a sent buffer.
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

/// The receiver's side of all its loans: returns them. When the receiver and the last message that
/// it received are dropped, it removes the objects of a dead provider (see `sweep`).
pub(super) struct Borrower {
    shared: Arc<Shared>,
    /// Holds the receiver's lock while any message is read.
    locks: Arc<LockFile>,
    /// Of a branch: keeps the receiver's seat equally long (see `meeting`).
    _seat: Option<Seat>,
    fork_epoch: u64,
    names: Namespace,
    provider: ProviderId,
    /// The first page of the provider's control object, for its memory bell. `None` if the provider
    /// had closed.
    memory: Option<View>,
    /// The ticket of the next return.
    returned: AtomicU64,
}

impl Borrower {
    /// `memory` is the provider's. The object holds the receiver's lock.
    pub(super) fn new(object: &Object, names: &Namespace, memory: Option<View>) -> Self {
        let (shared, locks, provider) = (object.shared().clone(), object.locks().clone(), object.provider());
        let (names, seat, returned) = (names.clone(), object.seat().cloned(), AtomicU64::new(0));
        Self { shared, locks, _seat: seat, fork_epoch: fork::epoch(), names, provider, memory, returned }
    }

    /// Returns a loan. Does nothing in a forked child, where the loan belongs to the parent.
    #[inline]
    pub(super) fn give_back(&self, number: u32) {
        if self.fork_epoch == fork::epoch() {
            // Relaxed: only has to make tickets distinct.
            let ticket = self.returned.fetch_add(1, Ordering::Relaxed);
            returns::give_back(self.shared.returns(), ticket, number);
            // For a sender that waits for a loan. Partner: the heavy barrier in `branch::is_ready`.
            light_barrier();
            self.shared.to_sender().ring_after_fence();
            if let Some(memory) = &self.memory {
                memory.header().memory.ring();
            }
        }
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        let bell = self.shared.to_receiver();
        // A live sender's bell is held: then the drop costs no more than this load.
        if bell.is_held() || self.fork_epoch != fork::epoch() {
            return;
        }
        // Release this receiver's own lock before looking for the locks of others.
        let _ = self.locks.unlock(RECEIVER_BYTE);
        // The provider of a dropped sender may live on.
        let is_dead = bell.is_gone() && !self.shared.header().what.0.is_closed();
        let patience = if is_dead { TEARDOWN } else { Duration::ZERO };
        sweep_after_reading(&self.names, self.provider, patience);
    }
}

/// Maps the first page of a provider's control object, for the memory bell and the list of
/// segments. The records stay unmapped. Returns `None` if the provider has closed, or does not
/// admit this user.
pub(super) fn memory_bell(names: &Namespace, provider: ProviderId, uid: u32) -> Result<Option<View>, ObjectError> {
    barrier::enlist();
    match Foreign::open(control_name(names, provider), Access::ReadWrite, uid) {
        Ok(foreign) => Ok(View::of_header(foreign.map_first(PAGE, Access::ReadWrite)?, provider)),
        Err(missing) if missing.is_missing() => Ok(None),
        // The channel's mode may admit users whom the provider's does not. Then no bell tells the
        // owner, which checks by itself.
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

/// The maximum number of segments that a receiver keeps mapped, besides those of messages being
/// read: those that a provider has at a time, and as many that it has replaced. A hostile sender
/// may name any number of files, and a process has a limited number of mappings
/// (`vm.max_map_count`).
const MAX_MAPPED: usize = 2 * MAX_SEGMENTS;

/// The segments that a receiver has mapped. They belong to the receiver alone, so there is no lock.
pub(super) struct MappedSegments {
    names: Namespace,
    uid: u32,
    provider: ProviderId,
    borrower: Arc<Borrower>,
    /// Most recently used first. At most [`MAX_MAPPED`], so a linear search is fast.
    known: Vec<Owned<Mapped>>,
}

impl MappedSegments {
    pub(super) fn new(names: &Namespace, uid: u32, provider: ProviderId, borrower: Arc<Borrower>) -> Self {
        Self { names: names.clone(), uid, provider, borrower, known: Vec::new() }
    }

    pub(super) fn borrower(&self) -> &Borrower {
        &self.borrower
    }

    /// Returns the number of mapped segments.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Opens a message, before which the receiver missed this many. `is_sender_there` returns `true`
    /// while the sender is alive; it is called before a mapping is released.
    #[inline]
    pub(super) fn open(
        &mut self,
        place: &SentBuffer,
        missed: u32,
        is_sender_there: impl Fn() -> bool,
    ) -> Result<Loan, AttachError> {
        self.prepare(place, is_sender_there)?;
        // The segment is now first, so `known` is not empty.
        let mapped = &mut self.known[0];
        match mapped.mapping.range(place.offset, place.len) {
            Some(data) => {
                let tag = u64::from(missed) << 32 | u64::from(place.number);
                Ok(Loan { data, len: place.len as usize, tag, mapped: mapped.lend() })
            }
            None => {
                let what = "a message lies outside its segment";
                Err(AttachError::Damaged { provider: self.provider, what })
            }
        }
    }

    /// Returns `true` if this segment is mapped, and first.
    #[inline]
    pub(super) fn is_prepared(&self, segment: u64) -> bool {
        self.known.first().is_some_and(|mapped| mapped.serial == segment)
    }

    /// Maps the segment of a message, and moves it to the front.
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

    /// Moves a segment to the front, mapping it if necessary.
    #[inline(never)]
    fn find(&mut self, serial: u64, is_sender_there: impl Fn() -> bool) -> Result<(), AttachError> {
        match self.known.iter().position(|mapped| mapped.serial == serial) {
            Some(at) => self.known[..=at].rotate_right(1),
            None => {
                let mapping = self.map(serial)?;
                self.let_go(is_sender_there);
                // A segment from which a message is being read stays mapped until that message is
                // dropped.
                self.known.truncate(MAX_MAPPED - 1);
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

    /// Opens a segment. Returns `None` if it no longer exists.
    fn foreign(&self, serial: u64) -> Result<Option<Foreign>, AttachError> {
        match Foreign::open(self.name(serial), Access::Read, self.uid) {
            Ok(foreign) => Ok(Some(foreign)),
            Err(missing) if missing.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps and faults in all segments that the provider has now. Returns the number of bytes
    /// present. `is_sender_there` is as in [`open`](Self::open).
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
        self.known.truncate(MAX_MAPPED);
        Ok(present)
    }

    /// Releases segments that their owner has destroyed: those whose name no longer exists although
    /// the owner lives. No sent message lies in one. (A dead owner's names are swept, and then
    /// messages in its segments may not have been received yet.)
    fn let_go(&mut self, is_sender_there: impl Fn() -> bool) {
        let gone: Vec<u64> =
            self.known.iter().map(|mapped| mapped.serial).filter(|&serial| !self.name(serial).exists()).collect();
        // Check this last: an owner alive now was alive when its names were looked up.
        if !gone.is_empty() && is_sender_there() {
            self.known.retain(|mapped| !gone.contains(&mapped.serial));
        }
    }
}

/// A buffer of the sender, read in place. The sender's process does not reuse the memory before
/// this is dropped, in whatever thread and at whatever time, even after the receiver, the sender
/// and the provider have been dropped.
///
/// A loan dereferences to `&[u8]`, with the length of the message. It begins where the sender's
/// buffer does, so it has the alignment requested from
/// [`Provider::alloc_layout`](crate::Provider::alloc_layout), and at least 64 bytes.
///
/// Whatever other processes do, the range lies within the mapping. The alignment holds only as long
/// as they keep to the protocol, so unsafe code must check it.
///
/// A loan cannot be written through.
pub struct Loan {
    data: NonNull<u8>,
    len: usize,
    /// The loan's number, and above it how many messages were missed before this one. One word,
    /// because a message is moved right after it was written: the processor forwards whole words.
    tag: u64,
    mapped: Counted<Mapped>,
}

// SAFETY: the bytes are only read (I5), and returns are made with atomics.
unsafe impl Send for Loan {}
// SAFETY: shared access only reads the bytes (I5).
unsafe impl Sync for Loan {}

impl Loan {
    /// See [`Message::missed`](super::Message::missed).
    pub fn missed(&self) -> u32 {
        (self.tag >> 32) as u32
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
        self.mapped.borrower.give_back(self.tag as u32);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("len", &self.len).finish()
    }
}
