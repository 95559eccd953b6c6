//! The owner's handles. References to the bytes exist only while one is held (I5).

use crate::os::mapping::prefetch_for_writing;
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk};
use crate::owner::free_list::Owner;
use crate::owner::limits::{CapacityError, ShareError};
use crate::owner::pool::Pool;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::ids::{PeerId, ProviderId};
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A buffer in shared memory that only this handle can read or write.
///
/// The bytes are initialised but unspecified: usually an earlier message. See
/// [`Provider::alloc_zeroed`](crate::Provider::alloc_zeroed).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let provider = shm_pool::Provider::builder().build()?;
/// let mut buffer = provider.alloc(1_000)?;
/// buffer[..5].copy_from_slice(b"frame"); // a plain &mut [u8]
/// buffer.truncate(5); // if the message is shorter than expected
///
/// let message = buffer.freeze();
/// assert_eq!(message, b"frame");
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
pub struct ShmBytesMut(ManuallyDrop<ShmBytes>);

impl ShmBytesMut {
    #[inline]
    pub(crate) fn new(chunk: ClosedChunk, len: usize) -> Self {
        let len = len.min(chunk.capacity());
        Self(ManuallyDrop::new(ShmBytes {
            chunk: chunk.into_raw(),
            len,
        }))
    }

    /// Returns how many bytes the buffer can hold, at least the requested length.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Shortens the message to `len` bytes, if it is longer.
    pub fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len);
    }

    /// Sets the message's length to 0. Bytes can then be [written](std::io::Write) to it one after
    /// another, up to the [capacity](Self::capacity).
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Sets the message's length, up to the [capacity](Self::capacity). Added bytes have
    /// unspecified content.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] if `len` exceeds the capacity; the length does not change.
    pub fn resize(&mut self, len: usize) -> Result<(), CapacityError> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(CapacityError { len, capacity });
        }
        self.0.len = len;
        Ok(())
    }

    /// Returns the bytes between the message's end and the capacity.
    #[cfg(feature = "bytes")]
    fn spare(&mut self) -> &mut [u8] {
        let len = self.0.len;
        let room = self.capacity() - len;
        // SAFETY: `len` is at most the chunk's capacity, so the result lies in the chunk.
        let end = unsafe { self.0.chunk().data().as_ptr().add(len) };
        // SAFETY: up to the capacity the bytes are initialised (zero at first), and this is the
        // only handle of a chunk that is closed to peers (I5).
        unsafe { std::slice::from_raw_parts_mut(end, room) }
    }

    /// Ends writing, without a copy. The result can be cloned and shared with peers.
    #[inline]
    pub fn freeze(self) -> ShmBytes {
        let this = ManuallyDrop::new(self);
        ShmBytes {
            chunk: this.0.chunk,
            len: this.0.len,
        }
    }
}

impl Deref for ShmBytesMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for ShmBytesMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self.0.chunk().data().as_ptr();
        // SAFETY: `len` is at most the chunk's capacity, the bytes are initialised (zero at first),
        // and this is the only handle of a chunk that is closed to peers (I5).
        unsafe { std::slice::from_raw_parts_mut(data, self.0.len) }
    }
}

impl AsRef<[u8]> for ShmBytesMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for ShmBytesMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Appends to the message, up to the buffer's [capacity](ShmBytesMut::capacity); `put_slice` and its
/// like panic if they would exceed it. [`clear`](ShmBytesMut::clear) a new buffer first. (Feature
/// `bytes`.)
#[cfg(feature = "bytes")]
// SAFETY: `chunk_mut` returns the bytes behind the message, as many as `remaining_mut` says, and
// `advance_mut` appends those that were written.
unsafe impl bytes::BufMut for ShmBytesMut {
    fn remaining_mut(&self) -> usize {
        self.capacity() - self.len()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(
            count <= self.remaining_mut(),
            "advanced by {count} bytes, but only {} remain",
            self.remaining_mut()
        );
        self.0.len += count;
    }

    fn chunk_mut(&mut self) -> &mut bytes::buf::UninitSlice {
        self.spare().into()
    }
}

impl Drop for ShmBytesMut {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this was the only handle (I3) of a chunk that is closed (I5).
        Pool::release(unsafe { ClosedChunk::from_raw(self.0.chunk) });
    }
}

impl fmt::Debug for ShmBytesMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBytesMut")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// A message in shared memory, cheap to clone. The pool reuses its chunk once the last clone is
/// dropped and the peers' leases have ended.
///
/// To send it by a transport of your own, [`grant`](Self::grant) it to a known peer and drop it at once.
/// Or send its [`descriptor`](Self::descriptor) to any peers, and keep a clone until they have
/// confirmed. To send it through a [channel](crate::channel), pass it to `send`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::{Client, Provider};
///
/// # let provider = Provider::builder().build()?;
/// // The receiving process. It sends its id to the owner.
/// let client = Client::new();
/// let peer = client.connect(provider.id())?;
///
/// // The owner.
/// let message = provider.alloc_zeroed(1_000)?.freeze();
/// let descriptor = message.grant(peer)?;
/// drop(message); // the grant keeps it
///
/// // The receiving process again.
/// assert_eq!(client.attach(&descriptor)?.len(), 1_000);
/// # Ok(())
/// # }
/// ```
pub struct ShmBytes {
    chunk: NonNull<Chunk>,
    len: usize,
}

// SAFETY: handles are counted atomically, and the bytes are only read.
unsafe impl Send for ShmBytes {}
// SAFETY: a shared handle allows only reading the bytes, and `Chunk` is `Sync`.
unsafe impl Sync for ShmBytes {}

impl ShmBytes {
    #[inline]
    fn chunk(&self) -> &Chunk {
        // SAFETY: a counted handle keeps the chunk alive (I3).
        unsafe { self.chunk.as_ref() }
    }

    /// Returns how many bytes the chunk can hold.
    pub fn capacity(&self) -> usize {
        self.chunk().capacity()
    }

    /// Returns the message's descriptor, for any peer. It adds no lease: keep this handle or a
    /// clone until the receivers have attached. The first call for a chunk takes a lock, unless the
    /// chunk is [reserved](crate::Provider::reserve).
    ///
    /// # Errors
    ///
    /// [`ShareError::TooManyShared`], [`ShareError::OutOfMemory`], [`ShareError::Forked`].
    #[inline]
    pub fn descriptor(&self) -> Result<Descriptor, ShareError> {
        let chunk = self.chunk();
        if !chunk.is_ours() {
            return Err(ShareError::Forked);
        }
        let (record, generation) = chunk.share(self.len)?;
        let provider = chunk.pool().id();
        Ok(Descriptor {
            provider,
            record,
            generation,
            len: self.len as u64,
            granted: None,
        })
    }

    /// Adds a lease for `peer`, and returns a descriptor that only this peer can attach to, once.
    /// The lease ends when the peer drops its view, disconnects or dies. It outlives the provider
    /// and this process: the peer can still attach.
    ///
    /// # Errors
    ///
    /// [`ShareError::PeerDisconnected`] if the peer is no longer connected,
    /// [`ShareError::OtherProvider`], [`ShareError::TooManyGrants`] if it has 7 unclaimed grants of
    /// this message, [`ShareError::OverQuota`] if it would exceed
    /// [`max_bytes_per_peer`](crate::ProviderBuilder::max_bytes_per_peer), and those of
    /// [`descriptor`](Self::descriptor). On an error, nothing is leased.
    pub fn grant(&self, peer: PeerId) -> Result<Descriptor, ShareError> {
        let descriptor = self.descriptor()?;
        let chunk = self.chunk();
        if let (Some(record), Some(control)) = (chunk.record(), chunk.pool().control()) {
            control.grant(record, peer, self.len as u64)?;
        }
        Ok(Descriptor {
            granted: Some(peer.slot),
            ..descriptor
        })
    }

    /// Revokes a grant whose descriptor could not be delivered. Returns `false` if none is left:
    /// the peer has attached, or is no longer connected.
    pub fn revoke(&self, peer: PeerId) -> bool {
        let chunk = self.chunk();
        match (chunk.record(), chunk.pool().control()) {
            (Some(record), Some(control)) if chunk.is_ours() => {
                control.revoke(record, peer, self.len as u64)
            }
            _ => false,
        }
    }

    /// Turns this handle into `count` handles. Leaking one leaks the chunk.
    #[inline]
    pub(crate) fn copies(self, count: usize) -> Copies {
        if count > 1 {
            self.chunk().add_handles(count - 1);
        }
        let copies = Copies {
            chunk: self.chunk,
            len: self.len,
            left: count,
        };
        if count > 0 {
            mem::forget(self);
        }
        copies
    }

    /// Prefetches both ends for the next writer.
    #[inline]
    pub(crate) fn fetch_ends(&self) {
        let first = self.chunk().data().as_ptr();
        prefetch_for_writing(first);
        prefetch_for_writing(first.wrapping_add(self.capacity().saturating_sub(1)));
    }

    pub(crate) fn provider(&self) -> ProviderId {
        self.chunk().pool().id()
    }

    /// Segment, offset and length.
    #[inline]
    pub(crate) fn place(&self) -> (u64, u64, u64) {
        let chunk = self.chunk();
        (chunk.serial(), chunk.offset() as u64, self.len as u64)
    }

    #[inline]
    pub(crate) fn into_chunk(self) -> NonNull<Chunk> {
        ManuallyDrop::new(self).chunk
    }

    /// Recreates the handle that [`into_chunk`](Self::into_chunk) left counted, with length 0.
    ///
    /// # Safety
    ///
    /// `chunk` comes from [`into_chunk`](Self::into_chunk), and this is the only call for it since.
    #[inline]
    pub(crate) unsafe fn from_chunk(chunk: NonNull<Chunk>) -> Self {
        Self { chunk, len: 0 }
    }

    /// Drops `count` handles of one chunk, for which [`into_chunk`](Self::into_chunk) was called.
    ///
    /// # Safety
    ///
    /// As for as many calls of [`from_chunk`](Self::from_chunk).
    #[inline]
    pub(crate) unsafe fn drop_handles(chunk: NonNull<Chunk>, count: usize) {
        let last = {
            // SAFETY: the caller's handles keep the chunk (I3).
            let chunk = unsafe { chunk.as_ref() };
            if count > 1 && !chunk.merge_handles(count) {
                return;
            }
            chunk.is_only_handle()
        };
        // SAFETY: the caller's promise; of several handles, `merge_handles` has left this one.
        let buffer = unsafe { Self::from_chunk(chunk) };
        if last {
            buffer.fetch_ends();
        }
    }

    /// Sets the length, limited to the capacity.
    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len.min(self.capacity());
        self
    }

    /// Drops the handle, but keeps the bytes for a receiver that may read them for an unknown time.
    pub(crate) fn leak_to_reader(self) {
        self.chunk().keep_bytes();
        self.chunk().pool().note_unread();
    }

    /// Returns `true` if a peer has a view or a grant of the message, or a channel's receiver holds
    /// it. Once the provider is dropped, borrowed buffers are not counted.
    pub fn is_leased(&self) -> bool {
        self.chunk().is_leased() || self.is_borrowed()
    }

    fn is_borrowed(&self) -> bool {
        let chunk = self.chunk();
        chunk.is_leaked()
            || chunk.is_ours() && !chunk.is_only_handle() && chunk.pool().has_borrowed(self.chunk)
    }

    /// Turns the message back into an exclusive buffer. Descriptors that no peer has attached to
    /// may become stale, even on an error.
    ///
    /// # Errors
    ///
    /// The buffer itself, if this is not the only handle, a peer has a lease or a grant, or in a
    /// forked child.
    pub fn try_into_mut(self) -> Result<ShmBytesMut, Self> {
        let chunk = self.chunk();
        // First, because this drops the handles of returned buffers.
        let is_borrowed = self.is_borrowed();
        // In this order: the account holder that gave it up had a handle, so the Acquire load of
        // the count makes that mark visible.
        let is_exclusive =
            chunk.is_ours() && !is_borrowed && chunk.is_only_handle() && !chunk.is_leaked();
        if !is_exclusive {
            return Err(self);
        }
        let len = self.len;
        // SAFETY: this was the only handle (I3).
        let chunk = unsafe { OwnedChunk::from_raw(self.into_chunk()) };
        match chunk.close() {
            Ok(chunk) => Ok(ShmBytesMut::new(chunk, len)),
            Err(leased) => Err(Self {
                chunk: leased.into_raw(),
                len,
            }),
        }
    }
}

pub(crate) struct Copies {
    chunk: NonNull<Chunk>,
    len: usize,
    left: usize,
}

impl Iterator for Copies {
    type Item = ShmBytes;

    #[inline]
    fn next(&mut self) -> Option<ShmBytes> {
        self.left = self.left.checked_sub(1)?;
        Some(ShmBytes {
            chunk: self.chunk,
            len: self.len,
        })
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for copy in self {
            drop(copy);
        }
    }
}

impl Clone for ShmBytes {
    /// Aborts above `isize::MAX` clones, as [`Arc`](std::sync::Arc) does.
    #[inline]
    fn clone(&self) -> Self {
        self.chunk().add_handles(1);
        Self {
            chunk: self.chunk,
            len: self.len,
        }
    }
}

impl Deref for ShmBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let data = self.chunk().data().as_ptr();
        // SAFETY: `len` is at most the chunk's capacity (`ShmBytesMut::new`, `resize`,
        // `with_len`), the bytes are initialised (zero at first), and they are written only through
        // a `&mut ShmBytesMut` that is the only handle (I5).
        unsafe { std::slice::from_raw_parts(data, self.len) }
    }
}

impl AsRef<[u8]> for ShmBytes {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<ShmBytesMut> for ShmBytes {
    fn from(buffer: ShmBytesMut) -> Self {
        buffer.freeze()
    }
}

impl Drop for ShmBytes {
    #[inline]
    fn drop(&mut self) {
        let chunk = self.chunk();
        if chunk.is_only_handle() && !chunk.is_shared() {
            // SAFETY: this was the only handle (I3), and no peer knows of the chunk (I5).
            Pool::release(unsafe { ClosedChunk::from_raw(self.chunk) });
        } else if chunk.drop_handle() {
            // SAFETY: `drop_handle` returned `true`, so this was the last handle (I3).
            Pool::release_queued(unsafe { OwnedChunk::from_raw(self.chunk) });
        }
    }
}

impl fmt::Debug for ShmBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmBytes")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::owner::chunk::MAX_HANDLES;
    use crate::{Client, Namespace, Provider};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const VARIABLE: &str = "SHM_POOL_TEST_TOO_MANY_CLONES";

    #[test]
    fn clone_overflow_aborts() {
        if let Ok(prefix) = std::env::var(VARIABLE) {
            return clone_too_often(&prefix);
        }
        let prefix = format!("shm_pool-unit-{}-clones", std::process::id());
        let name = "owner::buf::tests::clone_overflow_aborts";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command
            .args([name, "--exact", "--nocapture"])
            .env(VARIABLE, &prefix)
            .output()
            .unwrap();
        let swept = Namespace::new(&prefix).unwrap().sweep().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("the last one"),
            "{output:?}"
        );
        assert_eq!(
            swept.objects, 2,
            "the control object and the segment of the process that is gone"
        );
    }

    fn clone_too_often(prefix: &str) {
        let limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the pointer is to a valid structure.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_shared(1)
            .build()
            .unwrap();
        let message = provider.alloc(1).unwrap().freeze();
        message.chunk().set_handles(MAX_HANDLES);
        let last = message.clone();
        eprintln!("the last one");
        std::mem::forget((message.clone(), last, message));
    }

    #[test]
    fn share_after_last_generation() {
        let provider = Provider::builder().max_shared(1).build().unwrap();
        let client = Client::new();
        let message = provider.alloc(1).unwrap().freeze();
        let first = message.descriptor().unwrap();
        let mut buffer = message.try_into_mut().expect("no peer leases it");
        buffer.0.chunk().record().unwrap().close_at(u64::MAX - 2);
        buffer.0.chunk().set_record(first.record, u64::MAX - 2);
        for generation in [u64::MAX - 1, 2, 4] {
            buffer[0] = generation as u8;
            let message = buffer.freeze();
            let descriptor = message.descriptor().unwrap();
            assert_eq!(
                (descriptor.record, descriptor.generation),
                (first.record, generation)
            );
            assert_eq!(client.attach(&descriptor).unwrap()[0], generation as u8);
            assert!(client.attach(&first).is_err());
            buffer = message.try_into_mut().expect("no peer leases it");
            assert!(
                client.attach(&descriptor).is_err(),
                "a message that can be written"
            );
        }
    }
}
