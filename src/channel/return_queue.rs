//! The receiver's side of its borrowed buffers.

use super::handle::Handle;
use super::home::Home;
use super::layout::Shared;
use super::message::SentBuffer;
use super::object::{Object, Registration};
use super::ring;
use crate::os::advice::invisible;
use crate::os::futex::barrier;
use crate::os::locks::LockFile;
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{Name, Namespace};
use crate::os::posix::PAGE;
use crate::os::segment::{Foreign, ObjectError};
use crate::peer::error::AttachError;
use crate::protocol::control::{View, MAX_SEGMENTS, OWNER_BYTE, RECEIVER_BYTE};
use crate::protocol::ids::{control_name, segment_name, ProviderId};
use crate::protocol::readers::{self, Reader};
use crate::protocol::sweep::{end_reading, has_ended, sweep_after_reading, Teardown};
use counted::Owned;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Returns the receiver's borrowed buffers; dropped last, it removes the objects of a dead provider
/// (see
/// `sweep`).
pub(super) struct ReturnQueue {
    shared: Arc<Shared>,
    /// The receiver's lock, held while any message is read.
    locks: Arc<LockFile>,
    /// Of a connection: held equally long.
    registration: Option<Registration>,
    names: Namespace,
    provider: ProviderId,
    /// The first page of the provider's control object, for its memory doorbell; `None` if it had
    /// closed.
    memory: Option<View>,
    home: Home,
    /// How many buffers other threads than the home thread have given back.
    returned_elsewhere: AtomicU64,
    /// The receiving end goes on to the sender's successor.
    is_left: AtomicBool,
}

impl ReturnQueue {
    pub(super) fn new(object: &Object, names: &Namespace, memory: Option<View>) -> Arc<Self> {
        let this = Arc::new(Self {
            shared: object.shared().clone(),
            locks: object.locks().clone(),
            registration: object.registration().cloned(),
            names: names.clone(),
            provider: object.provider(),
            memory,
            home: Home::new(),
            returned_elsewhere: AtomicU64::new(0),
            is_left: AtomicBool::new(false),
        });
        let reader: Weak<Self> = Arc::downgrade(&this);
        readers::add(reader);
        this
    }

    #[inline]
    pub(super) fn give_back(&self, number: u32) {
        let returns = self.shared.returns();
        if !self.home.give_back(returns.at_home, number) {
            if !self.shared.is_ours() {
                return;
            }
            // Relaxed: only makes tickets distinct.
            let ticket = self.returned_elsewhere.fetch_add(1, Ordering::Relaxed);
            ring::give_back(returns.elsewhere, ticket, number);
        }
        // For a sender that waits for a return. Partner: the heavy barrier in
        // `connection::see_returns`.
        barrier::light();
        self.shared.to_sender().notify_after_fence();
        if let Some(memory) = &self.memory {
            memory.header().memory.notify();
        }
    }

    /// Returns how many borrowed buffers were given back.
    pub(super) fn returned(&self) -> u64 {
        // Relaxed: of a borrowed buffer that another thread gives back meanwhile, either answer is
        // right.
        let elsewhere = self.returned_elsewhere.load(Ordering::Relaxed);
        elsewhere.wrapping_add(self.home.returned())
    }
}

impl ReturnQueue {
    /// Also `true` for a sender that was dropped before its provider.
    fn has_sender_ended(&self) -> bool {
        !self.shared.to_receiver().is_held()
    }

    /// From now on the drop does not wait for a teardown: it may run in a receive.
    pub(super) fn leave(&self) {
        // Relaxed: the drop of the last handle comes after it.
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// What to do while the kernel tears down the sender's process.
    fn teardown(&self) -> Teardown {
        // The provider of a dropped sender may live on.
        let is_closed = self.shared.header().what.0.is_closed();
        if is_closed || !self.shared.to_receiver().is_disconnected() {
            Teardown::None
        } else if self.is_left.load(Ordering::Relaxed) {
            Teardown::Later
        } else {
            Teardown::Wait
        }
    }
}

impl Reader for ReturnQueue {
    fn finish(&self) {
        if !self.shared.is_ours() || !self.has_sender_ended() {
            return;
        }
        // The process ends: no thread could do it later.
        let teardown = match self.teardown() {
            Teardown::Later => Teardown::Wait,
            teardown => teardown,
        };
        // Not while the owner lives: without the lock, it would reuse what is still read.
        if has_ended(&self.names, self.provider, teardown) {
            let _ = self.locks.unlock(RECEIVER_BYTE);
            if self.registration.is_some() {
                // The receiver has created the object, and may not have been dropped.
                let _ = self.locks.unlock(OWNER_BYTE);
            }
            sweep_after_reading(&self.names, self.provider, Teardown::None);
        }
    }
}

impl Drop for ReturnQueue {
    fn drop(&mut self) {
        readers::remove(ptr::addr_of!(*self).cast());
        if !self.shared.is_ours() {
            return;
        }
        end_reading(
            &self.locks,
            RECEIVER_BYTE,
            &self.names,
            self.provider,
            || {
                if self.has_sender_ended() {
                    Some(self.teardown())
                } else {
                    None
                }
            },
        );
    }
}

/// Maps the first page of a provider's control object. Returns `None` if the provider has closed,
/// or does not admit this user.
pub(super) fn memory_doorbell(
    names: &Namespace,
    provider: ProviderId,
    uid: u32,
) -> Result<Option<View>, ObjectError> {
    barrier::enlist();
    match Foreign::open(control_name(names, provider), Access::ReadWrite, uid) {
        Ok(foreign) => Ok(View::of_header(
            foreign.map_first(PAGE, Access::ReadWrite)?,
            provider,
        )),
        Err(missing) if missing.is_missing() => Ok(None),
        // The channel may admit more users than the provider. Then the owner checks by itself.
        Err(ObjectError::Os(error)) if error.errno() == Some(libc::EACCES) => Ok(None),
        Err(error) => Err(error),
    }
}

struct Mapped {
    mapping: Mapping,
    serial: u64,
    return_queue: Arc<ReturnQueue>,
}

/// How many segments a receiver keeps mapped besides those of messages being read: those of a
/// provider, and as many that it has replaced. Mappings are limited (`vm.max_map_count`), and a
/// hostile sender may name any number of segments.
const MAX_MAPPED: usize = 2 * MAX_SEGMENTS;

pub(super) struct MappedSegments {
    names: Namespace,
    uid: u32,
    provider: ProviderId,
    return_queue: Arc<ReturnQueue>,
    /// Most recently used first; at most [`MAX_MAPPED`].
    known: Vec<Owned<Mapped>>,
    /// A buffer was received: the receiver has its home thread.
    is_settled: bool,
}

impl MappedSegments {
    pub(super) fn new(
        names: &Namespace,
        uid: u32,
        provider: ProviderId,
        return_queue: Arc<ReturnQueue>,
    ) -> Self {
        Self {
            names: names.clone(),
            uid,
            provider,
            return_queue,
            known: Vec::new(),
            is_settled: false,
        }
    }

    #[cold]
    fn settle(&mut self) {
        self.return_queue.home.settle();
        self.is_settled = true;
    }

    pub(super) fn return_queue(&self) -> &ReturnQueue {
        &self.return_queue
    }

    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Opens a message, before which the receiver missed this many. `is_sender_there` returns
    /// `true` while the sender is alive.
    #[inline]
    pub(super) fn open(
        &mut self,
        place: &SentBuffer,
        missed: u32,
        is_sender_there: impl Fn() -> bool,
    ) -> Result<BorrowedBuffer, AttachError> {
        self.prepare(place, is_sender_there)?;
        if !self.is_settled {
            self.settle();
        }
        // `prepare` has put the segment first.
        let mapped = &mut self.known[0];
        match mapped.mapping.range(place.offset, place.len) {
            Some(data) => {
                let tag = u64::from(missed) << 32 | u64::from(place.number);
                Ok(BorrowedBuffer {
                    data,
                    len: place.len as usize,
                    tag,
                    mapped: Handle::new(mapped.lend()),
                })
            }
            None => {
                let reason = "a message lies outside its segment";
                Err(AttachError::Damaged {
                    provider: self.provider,
                    reason,
                })
            }
        }
    }

    #[inline]
    pub(super) fn is_prepared(&self, segment: u64) -> bool {
        match self.known.first() {
            Some(mapped) => mapped.serial == segment,
            None => false,
        }
    }

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
                let mapping = self.map(serial, &is_sender_there)?;
                self.unmap_destroyed(is_sender_there);
                // Messages being read keep their segment mapped.
                self.known.truncate(MAX_MAPPED - 1);
                let mapped = Owned::new(Mapped {
                    mapping,
                    serial,
                    return_queue: self.return_queue.clone(),
                });
                self.known.insert(0, mapped);
            }
        }
        Ok(())
    }

    fn name(&self, serial: u64) -> Name {
        segment_name(&self.names, self.provider, serial)
    }

    fn map(&self, serial: u64, is_sender_there: impl Fn() -> bool) -> Result<Mapping, AttachError> {
        let Some(foreign) = self.foreign(serial)? else {
            if is_sender_there() {
                return Err(invisible(&self.name(serial)).into());
            }
            return Err(AttachError::Closed(self.provider));
        };
        Ok(foreign.map(Access::Read)?)
    }

    fn foreign(&self, serial: u64) -> Result<Option<Foreign>, AttachError> {
        match Foreign::open(self.name(serial), Access::Read, self.uid) {
            Ok(foreign) => Ok(Some(foreign)),
            Err(missing) if missing.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps and faults in all segments of the provider. Returns the bytes present.
    pub(super) fn warm(
        &mut self,
        is_sender_there: impl Fn() -> bool,
    ) -> Result<usize, AttachError> {
        let mut present = 0;
        let mut new = Vec::new();
        let serials: Vec<u64> = match &self.return_queue.memory {
            Some(control) => control.segments().map(|(_, serial)| serial).collect(),
            None => Vec::new(),
        };
        for serial in serials {
            // No known message lies in it, so it may vanish at any time.
            let Some(foreign) = self.foreign(serial)? else {
                continue;
            };
            present += match self.known.iter().find(|mapped| mapped.serial == serial) {
                Some(mapped) => foreign.fault_in(&mapped.mapping),
                None => {
                    let mapping = foreign.map(Access::Read)?;
                    let present = foreign.fault_in(&mapping);
                    new.push(Owned::new(Mapped {
                        mapping,
                        serial,
                        return_queue: self.return_queue.clone(),
                    }));
                    present
                }
            };
        }
        self.known.append(&mut new);
        self.unmap_destroyed(is_sender_there);
        self.known.truncate(MAX_MAPPED);
        Ok(present)
    }

    /// Unmaps segments that a living owner has destroyed, in which no sent message lies. (A sweep
    /// unlists an ended owner's segments, perhaps before its last messages are received.)
    ///
    /// The control page lists the segments that exist. A name may be missing for other reasons, for
    /// example a cleaner that has removed it, and then a segment could not be mapped again. Names
    /// are checked only if the provider does not admit this user to the page.
    fn unmap_destroyed(&mut self, is_sender_there: impl Fn() -> bool) {
        let exists = |serial| match &self.return_queue.memory {
            Some(control) => control.segments().any(|(_, listed)| listed == serial),
            None => self.name(serial).exists(),
        };
        let mut destroyed = Vec::new();
        for mapped in &self.known {
            if !exists(mapped.serial) {
                destroyed.push(mapped.serial);
            }
        }
        // Last: an owner alive now was alive when it listed its segments.
        if !destroyed.is_empty() && is_sender_there() {
            self.known
                .retain(|mapped| !destroyed.contains(&mapped.serial));
        }
    }
}

/// The buffer of a [`Message`](super::Message), which describes it.
pub(super) struct BorrowedBuffer {
    data: NonNull<u8>,
    len: usize,
    /// The borrowed buffer's number, and above it the count of missed messages: one word, which the
    /// processor forwards whole to the move that follows.
    tag: u64,
    mapped: Handle<Mapped>,
}

// SAFETY: the bytes are only read (I5), and returns are made with atomics.
unsafe impl Send for BorrowedBuffer {}
// SAFETY: shared access only reads the bytes (I5).
unsafe impl Sync for BorrowedBuffer {}

impl BorrowedBuffer {
    #[inline]
    pub(super) fn missed(&self) -> u32 {
        (self.tag >> 32) as u32
    }
}

impl Clone for BorrowedBuffer {
    fn clone(&self) -> Self {
        Self {
            data: self.data,
            len: self.len,
            tag: self.tag,
            mapped: self.mapped.another(),
        }
    }
}

impl Deref for BorrowedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `open` checked the range against the mapping (I2), which `mapped` keeps, and the
        // owner does not write before the borrowed buffer has come back (I5).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl Drop for BorrowedBuffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the drop.
        if let Some(mapped) = unsafe { self.mapped.release() } {
            mapped.return_queue.give_back(self.tag as u32);
        }
    }
}

pub(super) mod counted {
    //! A reference count that costs nothing to increment: only its owner does, in private memory.
    //!
    //! The shared word starts far above the possible number of borrowed buffers, and each
    //! [`Counted`] subtracts one on drop; the owner's drop subtracts the start value less the
    //! number of its borrowed buffers. So the last drop makes it zero, and frees the value. (An
    //! `Arc` would make each receive contend for a cache line with threads that drop messages.)

    use crate::sync::{AtomicU64, Ordering};
    use std::mem::ManuallyDrop;
    use std::ops::Deref;
    use std::ptr::NonNull;

    const BIAS: u64 = 1 << 63;

    struct Inner<T> {
        left: AtomicU64,
        value: T,
    }

    pub(in crate::channel) struct Owned<T> {
        inner: NonNull<Inner<T>>,
        max_borrowed: u64,
    }

    pub(in crate::channel) struct Counted<T>(NonNull<Inner<T>>);

    // SAFETY: the value is shared and may be dropped in another thread, as with `Arc<T>`, hence the
    // same bounds; `left` is atomic, and `borrowed` changes only through `&mut`.
    unsafe impl<T: Send + Sync> Send for Owned<T> {}
    // SAFETY: a shared reference only gives out `&T`, which `T: Sync` allows.
    unsafe impl<T: Send + Sync> Sync for Owned<T> {}
    // SAFETY: as for `Owned`.
    unsafe impl<T: Send + Sync> Send for Counted<T> {}
    // SAFETY: as for `Owned`.
    unsafe impl<T: Send + Sync> Sync for Counted<T> {}

    impl<T> Owned<T> {
        pub(in crate::channel) fn new(value: T) -> Self {
            let inner = Box::new(Inner {
                left: AtomicU64::new(BIAS),
                value,
            });
            Self {
                inner: NonNull::from(Box::leak(inner)),
                max_borrowed: 0,
            }
        }

        #[inline]
        pub(in crate::channel) fn lend(&mut self) -> Counted<T> {
            self.max_borrowed += 1;
            Counted(self.inner)
        }
    }

    impl<T> Counted<T> {
        #[inline]
        pub(in crate::channel) fn into_raw(self) -> NonNull<u8> {
            ManuallyDrop::new(self).0.cast()
        }

        /// # Safety
        ///
        /// `inner` is from [`into_raw`](Self::into_raw) of the same type, and this is the only call
        /// for it.
        #[inline]
        pub(in crate::channel) unsafe fn from_raw(inner: NonNull<u8>) -> Self {
            Self(inner.cast())
        }
    }

    /// Subtracts `count` from `left`, and frees the value if that leaves zero.
    ///
    /// # Safety
    ///
    /// The caller owns `count` of `left`, and gives it up: it does not touch `inner` again.
    #[inline]
    unsafe fn give_up<T>(inner: NonNull<Inner<T>>, count: u64) {
        // SAFETY: the caller still owns `count` of `left`, so the value has not been freed.
        let left = unsafe { &inner.as_ref().left };
        if left.fetch_sub(count, Ordering::Release) == count {
            // Acquire: partner of the Release of every other `give_up`; no thread uses the value any
            // more. (A load, because ThreadSanitizer does not know fences.)
            let _ = left.load(Ordering::Acquire);
            // SAFETY: `left` is zero, so no other thread uses the value; `Owned::new` made it as a
            // box.
            drop(unsafe { Box::from_raw(inner.as_ptr()) });
        }
    }

    impl<T> Deref for Owned<T> {
        type Target = T;

        #[inline]
        fn deref(&self) -> &T {
            // SAFETY: the value lives until `drop` gives up this owner's share.
            unsafe { &self.inner.as_ref().value }
        }
    }

    impl<T> Deref for Counted<T> {
        type Target = T;

        #[inline]
        fn deref(&self) -> &T {
            // SAFETY: the value lives until `drop` gives up this borrowed buffer.
            unsafe { &self.0.as_ref().value }
        }
    }

    impl<T> Drop for Owned<T> {
        fn drop(&mut self) {
            // SAFETY: the owner owns all but one for each borrowed buffer, and is not used again.
            unsafe { give_up(self.inner, BIAS - self.max_borrowed) };
        }
    }

    impl<T> Drop for Counted<T> {
        #[inline]
        fn drop(&mut self) {
            // SAFETY: each borrowed buffer owns one, and this one is not used again.
            unsafe { give_up(self.0, 1) };
        }
    }
}
