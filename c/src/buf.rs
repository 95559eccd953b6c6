//! Buffers of the owner, and descriptors.

use crate::provider::PeerId;
use crate::status::{guard, guard_value, Failure, Status};
use crate::value::{content, content_mut, take, value, Required, Value};
use shm_pool::{Descriptor as Message, ShmBytes, ShmBytesMut};
use std::mem::MaybeUninit;
use std::ptr;

/// A buffer in shared memory that only its owner can read or write.
///
/// A value: the caller provides the struct, initialised with zeros or by a call. It may be moved with
/// `memcpy`, but only one copy may be used from then on. It holds nothing when it is empty.
///
/// Thread safety: any thread may use it, one at a time.
#[repr(C)]
pub struct BufMut {
    opaque: [MaybeUninit<u64>; 3],
}
value!(BufMut: ShmBytesMut);

/// A message in shared memory: a buffer that cannot be written any more. A value, as
/// `shm_pool_buf_mut` is.
///
/// The memory is reused when the last clone is dropped and all readers have released theirs.
///
/// Thread safety: any number of threads may read it at a time; one at a time may send or drop it.
#[repr(C)]
pub struct Buf {
    opaque: [MaybeUninit<u64>; 3],
}
value!(Buf: ShmBytes);

impl Buf {
    pub(crate) fn of(content: ShmBytes) -> Self {
        // As C initialises one.
        let mut buf = Self {
            opaque: [MaybeUninit::new(0); 3],
        };
        buf.put(content);
        buf
    }
}

/// Names one message: 32 plain bytes, for any transport. A descriptor holds no memory.
#[repr(C)]
pub struct Descriptor {
    /// The encoded descriptor. Bytes from elsewhere may be copied here: each use checks them.
    pub bytes: [u8; 32],
}

/// The content of a descriptor.
#[repr(C)]
pub struct DescriptorFields {
    /// The id of the provider that owns the message.
    pub provider: u64,
    /// The message's length in bytes.
    pub payload_len: u64,
    /// The slot of the peer that the message was granted to; -1 if any peer may attach.
    pub granted_to: i32,
}

impl Descriptor {
    pub(crate) fn get(&self) -> Result<Message, Failure> {
        Ok(Message::from_bytes(self.bytes)?)
    }
}

/// Returns the first byte of a buffer, for reading and writing; NULL if it is empty.
///
/// Owner: the buffer. Valid until it is dropped, frozen or sent.
#[no_mangle]
pub extern "C" fn shm_pool_buf_mut_data(buf: Option<&mut BufMut>) -> *mut u8 {
    match content_mut(buf) {
        Some(content) => content.as_mut_ptr(),
        None => ptr::null_mut(),
    }
}

/// Returns the length of a buffer in bytes; 0 if it is empty.
#[no_mangle]
pub extern "C" fn shm_pool_buf_mut_len(buf: Option<&BufMut>) -> usize {
    match content(buf) {
        Some(content) => content.len(),
        None => 0,
    }
}

/// Returns how many bytes a buffer can hold, at least the requested length; 0 if it is empty.
#[no_mangle]
pub extern "C" fn shm_pool_buf_mut_capacity(buf: Option<&BufMut>) -> usize {
    match content(buf) {
        Some(content) => content.capacity(),
        None => 0,
    }
}

/// Sets the length of a buffer in bytes, up to its capacity. Added bytes have unspecified content.
///
/// Errors: `TOO_LARGE` above the capacity, and the length does not change; `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_buf_mut_resize(buf: Option<&mut BufMut>, len: usize) -> Status {
    guard(|| {
        let content = content_mut(buf).required("buf")?;
        content.resize(len)?;
        Ok(())
    })
}

/// Ends writing. Copies nothing.
///
/// `buf`: emptied.
/// `frozen`: overwritten. The caller owns it, and drops or sends it.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_buf_mut_freeze(
    buf: Option<&mut BufMut>,
    frozen: Option<&mut MaybeUninit<Buf>>,
) -> Status {
    guard(|| {
        Buf::fill(frozen, "frozen", || {
            let content = take(buf).required("buf")?;
            Ok(content.freeze())
        })
    })
}

/// Drops a buffer: its memory is free again.
///
/// `buf`: emptied. NULL and an empty buffer are allowed.
#[no_mangle]
pub extern "C" fn shm_pool_buf_mut_drop(buf: Option<&mut BufMut>) {
    guard_value((), || drop(take(buf)));
}

/// Returns the first byte of a message; NULL if it is empty.
///
/// Owner: the message. Valid until it is dropped or sent; then as long as a clone exists.
#[no_mangle]
pub extern "C" fn shm_pool_buf_data(buf: Option<&Buf>) -> *const u8 {
    match content(buf) {
        Some(content) => content.as_ptr(),
        None => ptr::null(),
    }
}

/// Returns the length of a message in bytes; 0 if it is empty.
#[no_mangle]
pub extern "C" fn shm_pool_buf_len(buf: Option<&Buf>) -> usize {
    match content(buf) {
        Some(content) => content.len(),
        None => 0,
    }
}

/// Clones a message: another handle of the same bytes. Copies nothing.
///
/// `clone`: overwritten. The caller owns it, and drops or sends it.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_buf_clone(
    buf: Option<&Buf>,
    clone: Option<&mut MaybeUninit<Buf>>,
) -> Status {
    guard(|| {
        Buf::fill(clone, "clone", || {
            let content = content(buf).required("buf")?;
            Ok(content.clone())
        })
    })
}

/// Turns a message back into a buffer that can be written, if this is its only handle and no peer
/// reads it.
///
/// `buf`: emptied. On an error it stays as it is.
/// `thawed`: overwritten. The caller owns it. Empty after an error.
///
/// Errors: `NOT_EXCLUSIVE`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_buf_try_into_mut(
    buf: Option<&mut Buf>,
    thawed: Option<&mut MaybeUninit<BufMut>>,
) -> Status {
    guard(|| {
        BufMut::fill(thawed, "thawed", || {
            let buf = buf.required("buf")?;
            let content = buf.take().required("buf")?;
            match content.try_into_mut() {
                Ok(thawed) => Ok(thawed),
                Err(content) => {
                    buf.put(content);
                    Err(Failure::new(
                        Status::NotExclusive,
                        "the message has other handles or readers".to_owned(),
                    ))
                }
            }
        })
    })
}

/// Returns `true` if a peer has a view or a grant of the message, or a channel's receiver holds it.
#[no_mangle]
pub extern "C" fn shm_pool_buf_is_leased(buf: Option<&Buf>) -> bool {
    guard_value(false, || match content(buf) {
        Some(content) => content.is_leased(),
        None => false,
    })
}

/// Drops a handle of a message. Allowed in any thread, and after the provider is destroyed.
///
/// `buf`: emptied. NULL and an empty handle are allowed.
#[no_mangle]
pub extern "C" fn shm_pool_buf_drop(buf: Option<&mut Buf>) {
    guard_value((), || drop(take(buf)));
}

/// Describes a message for any peer. The descriptor holds no memory: keep the message until the
/// receivers have attached.
///
/// `descriptor`: overwritten.
///
/// Errors: `TOO_MANY_SHARED`, `OUT_OF_MEMORY`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_buf_descriptor(
    buf: Option<&Buf>,
    descriptor: Option<&mut MaybeUninit<Descriptor>>,
) -> Status {
    guard(|| {
        let out = descriptor.required("descriptor")?;
        let out = out.write(Descriptor { bytes: [0; 32] });
        let content = content(buf).required("buf")?;
        let described = content.descriptor()?;
        out.bytes = described.to_bytes();
        Ok(())
    })
}

/// Grants a message to one peer, and describes it: only this peer can attach, once. The message may
/// be dropped at once.
///
/// `peer`: the id that the peer got from `shm_pool_client_connect`.
/// `descriptor`: overwritten.
///
/// Errors: `PEER_DISCONNECTED`, `OTHER_PROVIDER`, `TOO_MANY_GRANTS`, `OVER_QUOTA`, and those of
/// `shm_pool_buf_descriptor`. After an error nothing is granted.
#[no_mangle]
pub extern "C" fn shm_pool_buf_grant(
    buf: Option<&Buf>,
    peer: Option<&PeerId>,
    descriptor: Option<&mut MaybeUninit<Descriptor>>,
) -> Status {
    guard(|| {
        let out = descriptor.required("descriptor")?;
        let out = out.write(Descriptor { bytes: [0; 32] });
        let content = content(buf).required("buf")?;
        let peer = peer.required("peer")?.get();
        let granted = content.grant(peer)?;
        out.bytes = granted.to_bytes();
        Ok(())
    })
}

/// Revokes a grant whose descriptor could not be delivered. Returns `false` if there is none: the peer
/// has attached, or is no longer connected.
#[no_mangle]
pub extern "C" fn shm_pool_buf_revoke(buf: Option<&Buf>, peer: Option<&PeerId>) -> bool {
    guard_value(false, || {
        let Some(content) = content(buf) else {
            return false;
        };
        let Some(peer) = peer else {
            return false;
        };
        content.revoke(peer.get())
    })
}

/// Reads the fields of a descriptor, which stay untrusted: only attaching checks them.
///
/// `fields`: overwritten; not after an error.
///
/// Errors: `DAMAGED` if the bytes are no descriptor of this version; `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_descriptor_read(
    descriptor: Option<&Descriptor>,
    fields: Option<&mut MaybeUninit<DescriptorFields>>,
) -> Status {
    guard(|| {
        let descriptor = descriptor.required("descriptor")?.get()?;
        let fields = fields.required("fields")?;
        let granted_to = match descriptor.granted_to() {
            Some(slot) => i32::from(slot),
            None => -1,
        };
        fields.write(DescriptorFields {
            provider: u64::from(descriptor.provider()),
            payload_len: descriptor.payload_len(),
            granted_to,
        });
        Ok(())
    })
}
