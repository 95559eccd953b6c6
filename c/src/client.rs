//! The peer's side: clients and views.

use crate::buf::Descriptor;
use crate::finalize::destroy;
use crate::provider::PeerId;
use crate::status::{guard, guard_value, Status};
use crate::value::{
    check_reserved, content, create_listed, namespace, take, u32_option, value, Required, Value,
};
use shm_pool::{Client as Peer, Namespace, ProviderId, ShmView};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr;

/// Reads messages of other processes in place. Create one per process: it takes one of the 64 peer
/// slots of each provider that it attaches to.
///
/// Thread safety: any number of threads may use one client at a time, except to destroy it.
pub struct Client(pub(crate) Peer);

impl Client {
    /// Returns where a client looks; without one, the default.
    pub(crate) fn namespace(client: Option<&Self>) -> Namespace {
        match client {
            Some(client) => client.0.namespace().clone(),
            None => Namespace::default(),
        }
    }
}

/// Options of a client. Initialise it with zeros: 0 and NULL mean the default, and `SHM_POOL_ZERO` the
/// number 0.
#[repr(C)]
pub struct ClientOptions {
    /// The providers' directory; default "/dev/shm".
    pub directory: *const c_char,
    /// The providers' prefix; default "shm_pool".
    pub name_prefix: *const c_char,
    /// The user whose providers are trusted, and no others'; default: this process's effective user.
    pub owner_uid: u64,
    /// Must be 0.
    pub reserved: [u64; 4],
}

/// A message of another process, mapped read-only. The owner does not reuse the memory while the view
/// exists. A value, as `shm_pool_buf_mut` is.
///
/// Thread safety: any number of threads may read it at a time; one at a time may drop it.
#[repr(C)]
pub struct View {
    opaque: [MaybeUninit<u64>; 5],
}
value!(View: ShmView);

/// Creates a client. Creates no system object yet.
///
/// `options`: NULL for the defaults. Not kept.
/// `client`: set to the new client, which the caller owns and destroys with
/// `shm_pool_client_destroy`; NULL after an error.
///
/// Errors: `INVALID_ARGUMENT`.
///
/// # Safety
///
/// The strings of the options are NULL, or end with a NUL.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_client_create(
    options: Option<&ClientOptions>,
    client: Option<&mut MaybeUninit<Option<Box<Client>>>>,
) -> Status {
    guard(|| {
        create_listed(client, "client", || {
            let Some(options) = options else {
                return Ok(Client(Peer::new()));
            };
            check_reserved(&options.reserved)?;
            // SAFETY: by this function's contract.
            let mut namespace = unsafe { namespace(options.directory, options.name_prefix)? };
            if let Some(uid) = u32_option(options.owner_uid, "owner_uid")? {
                namespace = namespace.of_user(uid);
            }
            Ok(Client(Peer::in_namespace(&namespace)))
        })
    })
}

/// Destroys a client. Its views and receivers stay valid.
///
/// `client`: consumed. NULL is allowed.
#[no_mangle]
pub extern "C" fn shm_pool_client_destroy(client: Option<Box<Client>>) {
    guard_value((), || destroy(client));
}

/// Connects to a provider before its first message arrives, so that it can grant messages to this
/// client.
///
/// `provider`: the id that `shm_pool_provider_id` returned there.
/// `peer`: overwritten with this client's id at that provider, the same each time; not after an error.
///
/// Errors: `NO_PROVIDER`, `CLOSED`, `PROVIDER_DIED`, `NOT_USABLE`, `WRONG_UID`, `TOO_MANY_PEERS`,
/// `FORKED`, `OS`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_client_connect(
    client: Option<&Client>,
    provider: u64,
    peer: Option<&mut MaybeUninit<PeerId>>,
) -> Status {
    guard(|| {
        let peer = peer.required("peer")?;
        let client = &client.required("client")?.0;
        let id = client.connect(ProviderId::from(provider))?;
        peer.write(PeerId {
            bytes: id.to_bytes(),
        });
        Ok(())
    })
}

/// Maps and faults in all memory that a provider has now, so that the first read costs no system call
/// and no page fault.
///
/// `bytes`: set to the number of payload bytes present. May be NULL.
///
/// Errors: those of `shm_pool_client_connect`.
#[no_mangle]
pub extern "C" fn shm_pool_client_warm(
    client: Option<&Client>,
    provider: u64,
    bytes: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let client = &client.required("client")?.0;
        let present = client.warm(ProviderId::from(provider))?;
        if let Some(bytes) = bytes {
            bytes.write(present);
        }
        Ok(())
    })
}

/// Takes a lease on the message that a descriptor names, and maps its segment if it is not mapped yet.
///
/// `view`: overwritten. The caller owns it, and drops it. Empty after an error.
///
/// Errors: `STALE` if the memory has been reused since; `DAMAGED`, `OTHER_PEER`, `NOT_GRANTED` if the
/// owner did not send this descriptor, or not to this client; `TOO_MANY_LEASES` above 31 views of the
/// message; `OVER_QUOTA`; `DISCONNECTED` if the provider refuses this client; `SLOT_LOST`; and those of
/// `shm_pool_client_connect`.
#[no_mangle]
pub extern "C" fn shm_pool_client_attach(
    client: Option<&Client>,
    descriptor: Option<&Descriptor>,
    view: Option<&mut MaybeUninit<View>>,
) -> Status {
    guard(|| {
        View::fill(view, "view", || {
            let descriptor = descriptor.required("descriptor")?.get()?;
            let client = &client.required("client")?.0;
            Ok(client.attach(&descriptor)?)
        })
    })
}

/// Unmaps segments that their owner has destroyed, and disconnects from providers that have closed or
/// died. Returns how many mappings that were; 0 if `client` is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_client_unmap_unused(client: Option<&Client>) -> usize {
    guard_value(0, || match client {
        Some(client) => client.0.unmap_unused(),
        None => 0,
    })
}

/// Returns the first byte of a view, for reading; NULL if it is empty. Aligned to at least 64.
///
/// Owner: the view. Valid until it is dropped.
#[no_mangle]
pub extern "C" fn shm_pool_view_data(view: Option<&View>) -> *const u8 {
    match content(view) {
        Some(content) => content.as_ptr(),
        None => ptr::null(),
    }
}

/// Returns the length of a view in bytes; 0 if it is empty.
#[no_mangle]
pub extern "C" fn shm_pool_view_len(view: Option<&View>) -> usize {
    match content(view) {
        Some(content) => content.len(),
        None => 0,
    }
}

/// Clones a view: another lease of the same message.
///
/// `clone`: overwritten. The caller owns it, and drops it. Empty after an error.
///
/// Errors: `TOO_MANY_LEASES`, `OVER_QUOTA`, `SLOT_LOST`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_view_clone(
    view: Option<&View>,
    clone: Option<&mut MaybeUninit<View>>,
) -> Status {
    guard(|| {
        View::fill(clone, "clone", || {
            let content = content(view).required("view")?;
            Ok(content.try_clone()?)
        })
    })
}

/// Drops a view, and releases its lease. Allowed in any thread, and after the client is destroyed.
///
/// `view`: emptied. NULL and an empty view are allowed.
#[no_mangle]
pub extern "C" fn shm_pool_view_drop(view: Option<&mut View>) {
    guard_value((), || drop(take(view)));
}
