//! The owner's handles: [`ShmBufMut`] to fill a message, [`ShmBuf`] to share it. Dropping the last
//! handle of a chunk gives it back.
//!
//! Both are two words: the chunk and the message's length. A reference to the bytes exists only
//! while a handle is held (I5): `&mut [u8]` through the one `ShmBufMut` of a chunk that no peer can
//! attach to, `&[u8]` otherwise.

use crate::os::prefetch;
use crate::owner::chunk::{Chunk, OwnedChunk};
use crate::owner::error::{CapacityError, ShareError};
use crate::owner::pool::Pool;
use crate::owner::shelf::Owner;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::ids::{PeerId, ProviderId};
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A buffer in shared memory that only this handle can read or write.
///
/// The bytes are initialised but unspecified: a buffer from the pool still holds an earlier
/// message. Use [`Provider::alloc_zeroed`](crate::Provider::alloc_zeroed) where that matters.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = shm_pool::Provider::builder().build()?;
/// let mut buffer = provider.alloc(1024)?;
/// buffer[..5].copy_from_slice(b"hello");
/// buffer.truncate(5);
/// assert_eq!(&buffer.freeze()[..], b"hello");
/// # Ok(())
/// # }
/// ```
///
/// After [`freeze`](Self::freeze) the bytes cannot be written:
///
/// ```compile_fail,E0382
/// # let provider = shm_pool::Provider::builder().build().unwrap();
/// let mut buffer = provider.alloc(4).unwrap();
/// let message = buffer.freeze();
/// buffer[0] = 1; // use of moved value
/// # drop(message);
/// ```
///
/// ```
/// # let provider = shm_pool::Provider::builder().build().unwrap();
/// let mut buffer = provider.alloc(4).unwrap();
/// buffer[0] = 1; // the twin that compiles: written before
/// let message = buffer.freeze();
/// # assert_eq!(message[0], 1);
/// ```
pub struct ShmBufMut {
    /// Taken out when the handle ends.
    chunk: ManuallyDrop<OwnedChunk>,
    len: usize,
}

impl ShmBufMut {
    /// A handle to the first `len` bytes of a chunk that the caller has just taken.
    ///
    /// # Safety
    ///
    /// No peer can attach to the chunk, and `len` is at most its capacity.
    #[inline]
    pub(crate) unsafe fn new(chunk: OwnedChunk, len: usize) -> Self {
        Self { chunk: ManuallyDrop::new(chunk), len }
    }

    #[inline]
    fn chunk(&self) -> &Chunk {
        &self.chunk
    }

    /// How many bytes the buffer can hold: at least as many as were asked for, usually its class's
    /// size.
    pub fn capacity(&self) -> usize {
        self.chunk().capacity()
    }

    /// Makes the message shorter. Does nothing if it is already that short.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the message `len` bytes long, up to the [capacity](Self::capacity). Added bytes have
    /// unspecified content.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] if `len` is above the capacity; the length does not change.
    pub fn try_set_len(&mut self, len: usize) -> Result<(), CapacityError> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(CapacityError { len, capacity });
        }
        self.len = len;
        Ok(())
    }

    /// Ends writing. The result can be cloned and shared with peers. Nothing is copied.
    #[inline]
    pub fn freeze(self) -> ShmBuf {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so the chunk is taken out once.
        let chunk = unsafe { ManuallyDrop::take(&mut this.chunk) };
        ShmBuf { chunk: chunk.into_raw(), len: this.len }
    }
}

impl Deref for ShmBufMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let data = self.chunk().data().as_ptr();
        // SAFETY: `len` is at most the chunk's capacity (`new`, `set_len`), the bytes are
        // initialised (zero at first), and nobody else writes them (I5).
        unsafe { std::slice::from_raw_parts(data, self.len) }
    }
}

impl DerefMut for ShmBufMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self.chunk().data().as_ptr();
        // SAFETY: `len` is at most the chunk's capacity (`new`, `set_len`), the bytes are
        // initialised, and nobody else reads or writes them: the chunk is closed to peers, and this
        // is its only handle (I5).
        unsafe { std::slice::from_raw_parts_mut(data, self.len) }
    }
}

impl AsRef<[u8]> for ShmBufMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for ShmBufMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for ShmBufMut {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this handle is being dropped, so nobody uses the chunk through it again.
        Pool::give(unsafe { ManuallyDrop::take(&mut self.chunk) });
    }
}

impl fmt::Debug for ShmBufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBufMut").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

/// A message in shared memory: cheap to clone, and not written while a clone or a peer's view of it
/// exists.
///
/// The chunk goes back to the pool when the last clone is dropped. If a peer still leases it, it is
/// not used again until that lease ends.
///
/// There are two ways to send it:
///
/// * [`grant`](Self::grant) it to a known peer and send the descriptor. The buffer can be dropped
///   at once. This is exact.
/// * Send its [`descriptor`](Self::descriptor) to any peer, and keep a clone until the receivers
///   have confirmed, or for as long as the message is worth waiting for. A receiver that comes
///   later gets [`AttachError::Stale`](crate::AttachError::Stale), never wrong bytes.
pub struct ShmBuf {
    chunk: NonNull<Chunk>,
    len: usize,
}

// SAFETY: handles are counted atomically, and the bytes are only read.
unsafe impl Send for ShmBuf {}
// SAFETY: a shared handle gives read access to the bytes only, and `Chunk` is `Sync`.
unsafe impl Sync for ShmBuf {}

impl ShmBuf {
    #[inline]
    fn chunk(&self) -> &Chunk {
        // SAFETY: a counted handle keeps the chunk alive (I3).
        unsafe { self.chunk.as_ref() }
    }

    /// How many bytes the chunk can hold.
    pub fn capacity(&self) -> usize {
        self.chunk().capacity()
    }

    /// The descriptor that names this message, for any peer. It adds no lease: keep this handle, or
    /// a clone, until the receivers have attached.
    ///
    /// The first call for a chunk takes a lock, unless the chunk was
    /// [reserved](crate::Provider::reserve). Later calls, and later messages in the same chunk,
    /// take none.
    ///
    /// # Errors
    ///
    /// [`ShareError::TooManyShared`] if the provider has no record left,
    /// [`ShareError::OutOfMemory`] if there is no private memory for the first shared buffer,
    /// [`ShareError::Forked`] in a forked child.
    #[inline]
    pub fn descriptor(&self) -> Result<Descriptor, ShareError> {
        let chunk = self.chunk();
        if !chunk.is_ours() {
            return Err(ShareError::Forked);
        }
        let (record, generation) = chunk.share(self.len)?;
        let provider = chunk.pool().id();
        Ok(Descriptor { provider, record, generation, len: self.len as u64, granted: None })
    }

    /// Adds a lease for `peer`, and returns a descriptor that this peer alone can attach to, once.
    /// The message stays until the peer has attached and dropped its view, until the peer is gone,
    /// or until the provider and its last buffer are gone.
    ///
    /// # Errors
    ///
    /// [`ShareError::PeerGone`] if the peer is no longer connected, [`ShareError::OtherProvider`]
    /// if it is connected to another provider, [`ShareError::TooManyGrants`] if it has 7 grants of
    /// this message that it has not taken up, and the errors of [`descriptor`](Self::descriptor).
    /// On an error nothing is leased.
    pub fn grant(&self, peer: PeerId) -> Result<Descriptor, ShareError> {
        let descriptor = self.descriptor()?;
        let chunk = self.chunk();
        if let (Some(record), Some(control)) = (chunk.record(), chunk.pool().control()) {
            control.grant(record, peer)?;
        }
        Ok(Descriptor { granted: Some(peer.slot), ..descriptor })
    }

    /// Takes back a grant whose descriptor could not be delivered, say because the transport
    /// failed. `false` if there is none left: the peer has taken it up, and may have dropped its
    /// view, or the peer is gone.
    ///
    /// Grants of one message to one peer are interchangeable: of two descriptors, either may be the
    /// one that is taken back.
    pub fn revoke(&self, peer: PeerId) -> bool {
        let chunk = self.chunk();
        match (chunk.record(), chunk.pool().control()) {
            (Some(record), Some(control)) if chunk.is_ours() => control.revoke(record, peer),
            _ => false,
        }
    }

    /// Is this the only handle? A snapshot.
    #[inline]
    pub(crate) fn is_last(&self) -> bool {
        self.chunk().is_only_handle()
    }

    /// Adds handles, so that there are `count` for this one. Nobody may forget one.
    #[inline]
    pub(crate) fn copies(self, count: usize) -> Copies {
        if count > 1 {
            self.chunk().add_handles(count - 1);
        }
        let copies = Copies { chunk: self.chunk, len: self.len, left: count };
        if count > 0 {
            mem::forget(self);
        }
        copies
    }

    /// Prefetches both ends of the memory for the next writer. A small message is no more than
    /// that; in a large one the processor itself prefetches what lies between.
    #[inline]
    pub(crate) fn fetch_ends(&self) {
        let first = self.chunk().data().as_ptr();
        prefetch::for_writing(first);
        prefetch::for_writing(first.wrapping_add(self.capacity().saturating_sub(1)));
    }

    /// The provider it was allocated from.
    pub(crate) fn provider(&self) -> ProviderId {
        self.chunk().pool().id()
    }

    /// Where the bytes are: the segment's serial number, then offset and length in bytes.
    #[inline]
    pub(crate) fn place(&self) -> (u64, u64, u64) {
        let chunk = self.chunk();
        (chunk.serial(), chunk.offset() as u64, self.len as u64)
    }

    /// The chunk, without its handle. It stays counted as if the handle still existed.
    #[inline]
    pub(crate) fn into_chunk(self) -> NonNull<Chunk> {
        ManuallyDrop::new(self).chunk
    }

    /// The handle that [`into_chunk`](Self::into_chunk) left counted, with length zero.
    ///
    /// # Safety
    ///
    /// `chunk` comes from [`into_chunk`](Self::into_chunk), and this is the only call for it since.
    #[inline]
    pub(crate) unsafe fn from_chunk(chunk: NonNull<Chunk>) -> Self {
        Self { chunk, len: 0 }
    }

    /// The same message with another length, limited to the capacity.
    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len.min(self.capacity());
        self
    }

    /// Drops the handle, but never lets the bytes be used again: somebody may read them for an
    /// unknown time. The provider is gone.
    pub(crate) fn give_up_to_reader(self) {
        self.chunk().keep_bytes();
    }

    /// Does a peer have a view or a grant of the message now, or does a channel's receiver have the
    /// message? A snapshot. (After the provider is dropped and before the sender is, what the
    /// sender has lent is not seen here.)
    pub fn is_leased(&self) -> bool {
        self.chunk().is_leased() || self.is_lent()
    }

    /// Has a channel lent it and not got it back?
    fn is_lent(&self) -> bool {
        let chunk = self.chunk();
        // Each loan counts as a handle.
        chunk.is_given_up() || chunk.is_ours() && !chunk.is_only_handle() && chunk.pool().has_lent(self.chunk)
    }

    /// Turns the message back into an exclusive buffer, if this is the only handle and no peer has
    /// a lease or a grant.
    ///
    /// Whatever the result, descriptors that were sent but not attached to may become stale.
    ///
    /// # Errors
    ///
    /// The buffer itself, if a clone, a view, a grant or a loan exists, or in a forked child.
    pub fn try_into_mut(self) -> Result<ShmBufMut, Self> {
        let chunk = self.chunk();
        // Asked first: it drops the handles of loans that have come back.
        let is_lent = self.is_lent();
        // In this order: the lender that gave it up had a handle, so the Acquire of the count shows
        // the mark.
        let is_exclusive = chunk.is_ours() && !is_lent && chunk.is_only_handle() && !chunk.is_given_up();
        if is_exclusive && chunk.recycle() {
            let this = ManuallyDrop::new(self);
            // SAFETY: this was the only handle (I3), and `this` is never dropped.
            let chunk = unsafe { OwnedChunk::from_raw(this.chunk) };
            // SAFETY: `recycle` has closed the chunk to peers, and a message is no longer than its
            // chunk.
            return Ok(unsafe { ShmBufMut::new(chunk, this.len) });
        }
        Err(self)
    }
}

/// Handles of one message, counted but not made yet.
pub(crate) struct Copies {
    chunk: NonNull<Chunk>,
    len: usize,
    left: usize,
}

impl Iterator for Copies {
    type Item = ShmBuf;

    #[inline]
    fn next(&mut self) -> Option<ShmBuf> {
        self.left = self.left.checked_sub(1)?;
        // One of those that `ShmBuf::copies` has counted.
        Some(ShmBuf { chunk: self.chunk, len: self.len })
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl Clone for ShmBuf {
    /// Aborts the process above `isize::MAX` clones, as [`Arc`](std::sync::Arc) does: only
    /// forgotten clones can be that many.
    #[inline]
    fn clone(&self) -> Self {
        self.chunk().add_handle();
        Self { chunk: self.chunk, len: self.len }
    }
}

impl Deref for ShmBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let data = self.chunk().data().as_ptr();
        // SAFETY: `len` is at most the chunk's capacity, the bytes are initialised, and nobody
        // writes a frozen chunk (I5).
        unsafe { std::slice::from_raw_parts(data, self.len) }
    }
}

impl AsRef<[u8]> for ShmBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<ShmBufMut> for ShmBuf {
    fn from(buffer: ShmBufMut) -> Self {
        buffer.freeze()
    }
}

impl Drop for ShmBuf {
    #[inline]
    fn drop(&mut self) {
        let chunk = self.chunk();
        if !chunk.is_ours() || !chunk.drop_handle() {
            return;
        }
        let is_shared = chunk.is_shared();
        // SAFETY: `drop_handle` says this was the last handle, so the chunk is this thread's alone
        // (I3).
        let chunk = unsafe { OwnedChunk::from_raw(self.chunk) };
        if is_shared {
            Pool::give_shared(chunk);
        } else {
            Pool::give(chunk);
        }
    }
}

impl fmt::Debug for ShmBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBuf").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::owner::chunk::MAX_HANDLES;
    use crate::{Client, Provider};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Set in the child process that makes one clone too many.
    const VARIABLE: &str = "SHM_POOL_TEST_TOO_MANY_CLONES";

    /// Otherwise a program that forgets clones in a loop one day frees a message that others read:
    /// undefined behaviour without a line of unsafe code.
    #[test]
    fn more_clones_than_can_be_counted_end_the_process() {
        if let Ok(prefix) = std::env::var(VARIABLE) {
            return clone_too_often(&prefix);
        }
        let prefix = format!("shm_pool-unit-{}-clones", std::process::id());
        let name = "owner::buf::tests::more_clones_than_can_be_counted_end_the_process";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args([name, "--exact", "--nocapture"]).env(VARIABLE, &prefix).output().unwrap();
        let swept = Provider::sweep(&prefix).unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("the last one"), "{output:?}");
        assert_eq!(swept.objects, 2, "the control object and the segment of the process that is gone");
    }

    fn clone_too_often(prefix: &str) {
        // No core file.
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a valid structure.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
        let provider = Provider::builder().name_prefix(prefix).max_shared(1).build().unwrap();
        let message = provider.alloc(1).unwrap().freeze();
        message.chunk().set_handles(MAX_HANDLES);
        let last = message.clone();
        eprintln!("the last one");
        std::mem::forget((message.clone(), last, message));
    }

    /// Otherwise the owner of a 20,000-year-old message panics, or takes a second record for the
    /// same chunk and sends descriptors that nobody can attach to.
    #[test]
    fn a_chunk_is_shared_on_after_the_last_generation() {
        let provider = Provider::builder().max_shared(1).build().unwrap();
        let client = Client::new();
        let message = provider.alloc(1).unwrap().freeze();
        let first = message.descriptor().unwrap();
        let mut buffer = message.try_into_mut().expect("nobody leases it");
        // As if it had been shared once for every generation there is.
        buffer.chunk().record().unwrap().close_at(u64::MAX - 2);
        buffer.chunk().set_record(first.record, u64::MAX - 2);
        for generation in [u64::MAX - 1, 2, 4] {
            buffer[0] = generation as u8;
            let message = buffer.freeze();
            let descriptor = message.descriptor().unwrap();
            assert_eq!((descriptor.record, descriptor.generation), (first.record, generation));
            assert_eq!(client.attach(&descriptor).unwrap()[0], generation as u8);
            assert!(client.attach(&first).is_err());
            buffer = message.try_into_mut().expect("nobody leases it");
            assert!(client.attach(&descriptor).is_err(), "a message that can be written");
        }
    }
}
