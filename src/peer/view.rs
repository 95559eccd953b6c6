//! [`ShmView`]: a message being read, with its lease and mapping.

use crate::peer::control::{Cached, Lease};
use crate::peer::error::AttachError;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::record::Place;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A message of another process, read in place. The owner does not reuse the memory while the view
/// exists.
///
/// A view dereferences to `&[u8]`, aligned as a [`Message`](crate::channel::Message) is.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let provider = shm_pool::Provider::builder().build()?;
/// # let mut buffer = provider.alloc(4)?;
/// # buffer.fill(7);
/// # let message = buffer.freeze();
/// # let client = shm_pool::Client::new();
/// let view = client.attach(&message.descriptor()?)?;
/// drop(message); // the view keeps the memory
/// assert_eq!(view, [7, 7, 7, 7]);
/// # Ok(())
/// # }
/// ```
///
/// A view cannot be written through:
///
/// ```compile_fail,E0594
/// # let provider = shm_pool::Provider::builder().build().unwrap();
/// # let message = provider.alloc(4).unwrap().freeze();
/// # let client = shm_pool::Client::new();
/// let mut view = client.attach(&message.descriptor().unwrap()).unwrap();
/// view[0] = 1; // cannot assign
/// ```
pub struct ShmView {
    data: NonNull<u8>,
    len: usize,
    record: u32,
    cached: Arc<Cached>,
}

// SAFETY: the bytes are only read (I5), and leases are counted atomically.
unsafe impl Send for ShmView {}
// SAFETY: shared access only reads the bytes (I5) and counts leases atomically.
unsafe impl Sync for ShmView {}

impl ShmView {
    #[inline]
    pub(crate) fn new(
        cached: Arc<Cached>,
        lease: Lease<'_>,
        descriptor: &Descriptor,
        place: Place,
    ) -> Result<Self, AttachError> {
        let Some(data) = cached.mapping().range(place.offset, descriptor.len) else {
            return Err(AttachError::Damaged {
                provider: descriptor.provider,
                reason: "a message lies outside its segment",
            });
        };
        std::mem::forget(lease);
        Ok(Self {
            data,
            len: descriptor.len as usize,
            record: descriptor.record,
            cached,
        })
    }

    /// Creates another view of the same message, with its own lease.
    ///
    /// # Errors
    ///
    /// [`AttachError::TooManyLeases`] with 31 views of the same message in this client (share one
    /// in an `Arc` instead); [`AttachError::OverQuota`], because each view counts;
    /// [`AttachError::Forked`]; [`AttachError::SlotLost`].
    pub fn try_clone(&self) -> Result<Self, AttachError> {
        let control = self.cached.control();
        if !control.is_ours() {
            return Err(AttachError::Forked);
        }
        if !control.has_slot() {
            return Err(AttachError::SlotLost(control.id().provider));
        }
        control.charge(self.len as u64)?;
        let is_renewed = match control.record(self.record) {
            Some(record) => record.renew(control.slot()).is_ok(),
            None => false,
        };
        if !is_renewed {
            control.refund(self.len as u64);
            return Err(AttachError::TooManyLeases);
        }
        Ok(Self {
            data: self.data,
            len: self.len,
            record: self.record,
            cached: self.cached.clone(),
        })
    }
}

impl Deref for ShmView {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `new` checked the range against the mapping (I2), which `cached` keeps alive. The
        // owner does not write while the lease is held (I5).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for ShmView {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ShmView {
    #[inline]
    fn drop(&mut self) {
        let control = self.cached.control();
        // In a forked child, the lease belongs to the parent.
        if !control.is_ours() {
            return;
        }
        control.release(self.record, self.len as u64);
        if self.cached.is_destroyed() {
            self.cached.leave_table();
        }
    }
}

impl fmt::Debug for ShmView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmView").field("len", &self.len).finish()
    }
}
