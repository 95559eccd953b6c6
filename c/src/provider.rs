//! The owner's front door.

use crate::buf::BufMut;
use crate::finalize::destroy;
use crate::status::{guard, guard_value, Failure, Status};
use crate::value::{
    self, array, check_reserved, copy_out, create_listed, namespace, option, size_option, timeout,
    u32_option, Required, Value,
};
use shm_pool::{PeerId as Peer, Provider as Pool, ProviderBuilder, Reservation as Chunks, Tuning};
use std::alloc::Layout;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Allocates messages in shared memory.
///
/// Thread safety: any number of threads may use one provider at a time, except to destroy it.
pub struct Provider(pub(crate) Pool);

/// Chunks that are made before they are needed, and stay.
pub struct Reservation {
    _chunks: Chunks,
}

/// Options of a provider. Initialise it with zeros: 0, `false` and NULL mean the default, and
/// `SHM_POOL_ZERO` the number 0.
#[repr(C)]
pub struct ProviderOptions {
    /// The cap on payload memory in bytes; default 1 GiB. Nothing is reserved in advance.
    pub max_bytes: u64,
    /// What messages are to fit at a time: an array of `room_count` entries. It is added to
    /// `max_bytes`; without that, the cap is the sum, and 64 KiB for a few small messages besides.
    /// Default: NULL.
    pub room: *const Room,
    /// How many entries `room` has.
    pub room_count: usize,
    /// The largest allocation in bytes; default: the largest possible.
    pub max_alloc: u64,
    /// How many free chunks are kept per size class; default 8.
    pub max_idle_per_class: u64,
    /// How many chunks peers can know at a time; default 4096. Each takes 128 bytes of /dev/shm.
    pub max_shared: u64,
    /// The most bytes of messages that one peer may read at a time; default: no limit.
    pub max_bytes_per_peer: u64,
    /// The permission bits of the objects under /dev/shm; default 0600. With 0660, peers of the
    /// same group may attach too.
    pub mode: u64,
    /// Rarely needed, as are the next two and `huge_pages`. The length of the first segment in
    /// bytes; default: a 32nd of `max_bytes`.
    pub arena_size: u64,
    /// The number of allocations after which memory that was idle throughout is returned to the
    /// system; default 32,768. `SHM_POOL_ZERO`: never.
    pub idle_window: u64,
    /// The NUMA node to prefer for payload memory; default: that of the thread that allocates
    /// first.
    pub numa_node: u64,
    /// Locks the pool and the control object into RAM; see `RLIMIT_MEMLOCK`.
    pub lock_memory: bool,
    /// Advises the kernel to put reserved memory into huge pages.
    pub huge_pages: bool,
    /// The directory of the objects, an absolute path; default "/dev/shm". Clients need the same.
    pub directory: *const c_char,
    /// The prefix of the objects' names: 1 to 60 of `A-Z a-z 0-9 _ -` and, between others, single
    /// dots; default "shm_pool". Clients
    /// need the same.
    pub name_prefix: *const c_char,
    /// Must be 0.
    pub reserved: [u64; 8],
}

/// Messages of one length.
#[repr(C)]
pub struct Room {
    /// The length of a message in bytes.
    pub len: u64,
    /// How many there are at a time: see `shm_pool_publisher_buffers`.
    pub count: u64,
}

/// A provider's memory, in bytes unless stated otherwise.
#[repr(C)]
#[derive(Default)]
pub struct Stats {
    /// The cap.
    pub max_bytes: u64,
    /// All chunks: in use, leased by peers, and idle.
    pub bytes_held: u64,
    /// The highest `bytes_held` so far.
    pub peak_bytes_held: u64,
    /// Chunks that this process holds buffers of.
    pub bytes_in_use: u64,
    /// Chunks that peers lease, or that are borrowed through channels.
    pub bytes_leased: u64,
    /// The segments' length: address space, of which only `bytes_held` takes memory.
    pub bytes_mapped: u64,
    /// The number of segments.
    pub segments: u64,
    /// The number of segments created so far.
    pub segments_created: u64,
    /// How many allocations found an idle chunk.
    pub hits: u64,
    /// How many allocations made a chunk.
    pub misses: u64,
    /// Always 0.
    pub reserved: [u64; 6],
}

/// The figures of a provider that a real-time thread may read, in bytes unless stated otherwise.
#[repr(C)]
#[derive(Default)]
pub struct Counters {
    /// The cap.
    pub max_bytes: u64,
    /// All chunks: in use, leased by peers, and idle.
    pub bytes_held: u64,
    /// The highest `bytes_held` so far.
    pub peak_bytes_held: u64,
    /// Chunks that are not idle: in use, leased, borrowed, or returned by a peer or a receiver and
    /// not found since.
    pub bytes_out: u64,
    /// How many allocations and reservations made a chunk.
    pub misses: u64,
    /// The number of segments created so far.
    pub segments_created: u64,
}

/// The chunks of one size class.
#[repr(C)]
pub struct ClassStats {
    /// The size of a chunk in bytes.
    pub size: u64,
    /// The alignment of a chunk in bytes.
    pub align: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// How many of them are idle.
    pub idle: u64,
    /// How many of them this process holds buffers of.
    pub in_use: u64,
    /// How many of them peers lease, or are borrowed.
    pub leased: u64,
    /// How many allocations found an idle chunk.
    pub hits: u64,
    /// How many allocations made a chunk.
    pub misses: u64,
}

/// Identifies one connection of a client to a provider: 24 plain bytes, for any transport.
#[repr(C)]
pub struct PeerId {
    /// The id. It has no invalid values: a provider checks it.
    pub bytes: [u8; 24],
}

impl PeerId {
    pub(crate) fn get(&self) -> Peer {
        Peer::from_bytes(self.bytes)
    }
}

/// What a sweep has removed.
#[repr(C)]
pub struct Swept {
    /// The number of objects.
    pub objects: u64,
    /// Their length in bytes.
    pub bytes: u64,
}

/// # Safety
///
/// The strings are null, or end with a NUL. `room` is null, or has `room_count` entries.
unsafe fn builder(options: &ProviderOptions) -> Result<ProviderBuilder, Failure> {
    check_reserved(&options.reserved)?;
    // SAFETY: by this function's contract.
    let namespace = unsafe { namespace(options.directory, options.name_prefix)? };
    let mut builder = Pool::builder()
        .namespace(&namespace)
        .lock_memory(options.lock_memory);
    let mut tuning = Tuning::new().huge_pages(options.huge_pages);
    macro_rules! set {
        ($builder:ident: $($option:ident = $value:expr;)*) => {
            $(if let Some(value) = $value { $builder = $builder.$option(value); })*
        };
    }
    set! { builder:
        max_bytes = size_option(options.max_bytes);
        max_alloc = size_option(options.max_alloc);
        max_idle_per_class = size_option(options.max_idle_per_class);
        max_shared = size_option(options.max_shared);
        max_bytes_per_peer = size_option(options.max_bytes_per_peer);
        mode = u32_option(options.mode, "mode")?;
    }
    // SAFETY: by this function's contract.
    for room in unsafe { array(options.room, options.room_count, "room")? } {
        let len = value::size(room.len);
        let count = value::size(room.count);
        builder = builder.room_for(len, count);
    }
    set! { tuning:
        arena_size = size_option(options.arena_size);
        idle_window = option(options.idle_window);
        numa_node = u32_option(options.numa_node, "numa_node")?;
    }
    Ok(builder.tuning(tuning))
}

/// Creates a provider and its control object, but no payload memory yet. First removes what dead
/// providers of this directory and prefix have left.
///
/// `options`: NULL for the defaults. Not kept.
/// `provider`: set to the new provider, which the caller owns and destroys with
/// `shm_pool_provider_destroy`; NULL after an error.
///
/// Errors: `INVALID_ARGUMENT` for an option that is out of range, `OS`, `OUT_OF_MEMORY`.
///
/// # Safety
///
/// The strings of the options are NULL, or end with a NUL. `room` is NULL, or has `room_count` entries.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_provider_create(
    options: Option<&ProviderOptions>,
    provider: Option<&mut MaybeUninit<Option<Box<Provider>>>>,
) -> Status {
    guard(|| {
        create_listed(provider, "provider", || {
            let builder = match options {
                // SAFETY: by this function's contract.
                Some(options) => unsafe { builder(options)? },
                None => Pool::builder(),
            };
            Ok(Provider(builder.build()?))
        })
    })
}

/// Destroys a provider. Its idle memory returns to the system when its senders and publishers are
/// destroyed, too. Buffers stay valid: the memory of each returns to the system when its last handle or
/// reader is gone. Peers keep what they have mapped.
///
/// `provider`: consumed. NULL is allowed.
#[no_mangle]
pub extern "C" fn shm_pool_provider_destroy(provider: Option<Box<Provider>>) {
    guard_value((), || destroy(provider));
}

/// Returns the provider's id, for `shm_pool_client_connect`; 0 if `provider` is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_provider_id(provider: Option<&Provider>) -> u64 {
    guard_value(0, || match provider {
        Some(provider) => u64::from(provider.0.id()),
        None => 0,
    })
}

/// Returns what a message of `len` bytes takes of a provider's `max_bytes`.
#[no_mangle]
pub extern "C" fn shm_pool_chunk_size(len: usize) -> usize {
    guard_value(0, || Pool::chunk_size(len))
}

/// Allocates a buffer as `shm_pool_provider_alloc` does, and sets all its bytes to zero.
///
/// `buf`: as there.
///
/// Errors: as there.
#[no_mangle]
pub extern "C" fn shm_pool_provider_alloc_zeroed(
    provider: Option<&Provider>,
    len: usize,
    buf: Option<&mut MaybeUninit<BufMut>>,
) -> Status {
    guard(|| {
        BufMut::fill(buf, "buf", || {
            Ok(provider.required("provider")?.0.alloc_zeroed(len)?)
        })
    })
}

/// Allocates a buffer of `len` bytes, aligned to at least 64. Never waits. The bytes are those of
/// an earlier message, or zero. Once the pool is warm, this makes no system call, takes no lock and
/// does not touch the heap.
///
/// `buf`: overwritten. The caller owns the buffer, and drops, freezes or sends it. Empty after an
/// error.
///
/// Errors: `EXHAUSTED` at the cap, `TOO_LARGE`, `OS`, `FORKED`, `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_provider_alloc(
    provider: Option<&Provider>,
    len: usize,
    buf: Option<&mut MaybeUninit<BufMut>>,
) -> Status {
    guard(|| {
        BufMut::fill(buf, "buf", || {
            Ok(provider.required("provider")?.0.alloc(len)?)
        })
    })
}

/// Allocates a buffer of `len` bytes, aligned to `align`, and waits until any process releases
/// enough memory. Requests are served in their order.
///
/// `align`: a power of two up to 4096; 0 means 64.
/// `timeout_ns`: how long to wait, in nanoseconds: 0 does not wait, `SHM_POOL_FOREVER` has no limit.
/// `buf`: as for `shm_pool_provider_alloc`.
///
/// Errors: `TIMED_OUT`, `INTERRUPTED`, and those of `shm_pool_provider_alloc`.
#[no_mangle]
pub extern "C" fn shm_pool_provider_alloc_timeout(
    provider: Option<&Provider>,
    len: usize,
    align: usize,
    timeout_ns: u64,
    buf: Option<&mut MaybeUninit<BufMut>>,
) -> Status {
    guard(|| {
        BufMut::fill(buf, "buf", || {
            let layout = Layout::from_size_align(len, align.max(1));
            let invalid = |_| {
                Failure::new(
                    Status::InvalidArgument,
                    format!("{len} bytes cannot be aligned to {align}"),
                )
            };
            let request = provider
                .required("provider")?
                .0
                .request(len)
                .layout(layout.map_err(invalid)?);
            Ok(match timeout_ns {
                0 => request.alloc()?,
                _ => request.wait_timeout(timeout(timeout_ns))?,
            })
        })
    })
}

/// Ends all current and future waits for memory of this provider with `INTERRUPTED`.
#[no_mangle]
pub extern "C" fn shm_pool_provider_close_waits(provider: Option<&Provider>) {
    guard_value((), || {
        if let Some(provider) = provider {
            provider.0.close_waits();
        }
    });
}

/// Reserves `count` chunks for messages of `len` bytes: a message of that length then costs no more
/// from the first one on, and neither other lengths nor a lack of memory take its memory.
///
/// `reservation`: set to the new reservation, which the caller owns and destroys with
/// `shm_pool_reservation_destroy`, before or after the provider; NULL after an error.
///
/// Errors: `INVALID_ARGUMENT` above `max_idle_per_class`, `TOO_MANY_SHARED`, and those of
/// `shm_pool_provider_alloc`. After an error nothing is reserved.
#[no_mangle]
pub extern "C" fn shm_pool_provider_reserve(
    provider: Option<&Provider>,
    len: usize,
    count: usize,
    reservation: Option<&mut MaybeUninit<Option<Box<Reservation>>>>,
) -> Status {
    guard(|| {
        create_listed(reservation, "reservation", || {
            Ok(Reservation {
                _chunks: provider.required("provider")?.0.reserve(len, count)?,
            })
        })
    })
}

/// Ends a reservation: its chunks become ordinary ones.
///
/// `reservation`: consumed. NULL is allowed. Any thread.
#[no_mangle]
pub extern "C" fn shm_pool_reservation_destroy(reservation: Option<Box<Reservation>>) {
    guard_value((), || destroy(reservation));
}

/// Reads the provider's statistics; all zero in a forked child. Takes a lock that creating and
/// destroying chunks also take.
///
/// `stats`: overwritten.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_provider_stats(
    provider: Option<&Provider>,
    stats: Option<&mut MaybeUninit<Stats>>,
) -> Status {
    guard(|| {
        let out = stats.required("stats")?.write(Stats::default());
        let stats = provider.required("provider")?.0.stats();
        *out = Stats {
            max_bytes: stats.max_bytes as u64,
            bytes_held: stats.bytes_held as u64,
            peak_bytes_held: stats.peak_bytes_held as u64,
            bytes_in_use: stats.bytes_in_use as u64,
            bytes_leased: stats.bytes_leased as u64,
            bytes_mapped: stats.bytes_mapped as u64,
            segments: stats.segments as u64,
            segments_created: stats.segments_created,
            hits: stats.hits(),
            misses: stats.misses(),
            reserved: [0; 6],
        };
        Ok(())
    })
}

/// Reads the figures that a real-time thread may read; all zero in a forked child. Takes no lock,
/// makes no system call and uses no heap. Costs about a microsecond.
///
/// `counters`: overwritten.
///
/// Errors: `INVALID_ARGUMENT`.
#[no_mangle]
pub extern "C" fn shm_pool_provider_counters(
    provider: Option<&Provider>,
    counters: Option<&mut MaybeUninit<Counters>>,
) -> Status {
    guard(|| {
        let out = counters.required("counters")?.write(Counters::default());
        let counters = provider.required("provider")?.0.counters();
        *out = Counters {
            max_bytes: counters.max_bytes as u64,
            bytes_held: counters.bytes_held as u64,
            peak_bytes_held: counters.peak_bytes_held as u64,
            bytes_out: counters.bytes_out as u64,
            misses: counters.misses,
            segments_created: counters.segments_created,
        };
        Ok(())
    })
}

/// Reads the statistics of each size class in use.
///
/// `classes`: an array with room for `capacity` entries, overwritten as far as there are classes. May
/// be NULL, to ask for their number.
/// `count`: set to the number of classes, which may exceed `capacity`.
///
/// Errors: `INVALID_ARGUMENT`.
///
/// # Safety
///
/// `classes` is NULL, or has room for `capacity` entries.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_provider_class_stats(
    provider: Option<&Provider>,
    classes: *mut ClassStats,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let count = count.required("count")?.write(0);
        let stats = provider.required("provider")?.0.stats().classes;
        let stats = stats.into_iter().map(|class| ClassStats {
            size: class.size as u64,
            align: class.align as u64,
            chunks: class.chunks as u64,
            idle: class.idle as u64,
            in_use: class.in_use as u64,
            leased: class.leased as u64,
            hits: class.hits,
            misses: class.misses,
        });
        // SAFETY: by this function's contract.
        *count = unsafe { copy_out(stats, classes, capacity) };
        Ok(())
    })
}

/// Returns idle memory to the system until the provider holds at most `bytes`, as far as possible.
/// Returns the number of bytes returned; 0 if `provider` is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_provider_trim_to(provider: Option<&Provider>, bytes: usize) -> usize {
    guard_value(0, || match provider {
        Some(provider) => provider.0.trim_to(bytes),
        None => 0,
    })
}

/// Reclaims the leases of dead peers now, rather than when memory runs out. Returns how many
/// messages they still held; 0 if `provider` is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_provider_reclaim(provider: Option<&Provider>) -> usize {
    guard_value(0, || match provider {
        Some(provider) => provider.0.reclaim(),
        None => 0,
    })
}

/// Disconnects a peer that keeps too much: it attaches to no further messages, and its grants are
/// revoked. Its views stay valid.
///
/// Returns `false` if it is not connected to this provider; always in a forked child, or if an argument
/// is NULL.
#[no_mangle]
pub extern "C" fn shm_pool_provider_disconnect(
    provider: Option<&Provider>,
    peer: Option<&PeerId>,
) -> bool {
    guard_value(false, || match (provider, peer) {
        (Some(provider), Some(peer)) => provider.0.disconnect(peer.get()),
        _ => false,
    })
}

/// Removes the objects that killed providers of a directory and prefix have left. Creating a
/// provider does this too.
///
/// `directory`, `name_prefix`: NULL for "/dev/shm" and "shm_pool".
/// `swept`: overwritten. May be NULL.
///
/// Any thread. Errors: `INVALID_ARGUMENT`, `OS`.
///
/// # Safety
///
/// The strings are NULL, or end with a NUL.
#[no_mangle]
pub unsafe extern "C" fn shm_pool_sweep(
    directory: *const c_char,
    name_prefix: *const c_char,
    swept: Option<&mut MaybeUninit<Swept>>,
) -> Status {
    guard(|| {
        let out = swept.map(|swept| {
            swept.write(Swept {
                objects: 0,
                bytes: 0,
            })
        });
        // SAFETY: by this function's contract.
        let namespace = unsafe { namespace(directory, name_prefix)? };
        let swept = namespace.sweep()?;
        if let Some(out) = out {
            *out = Swept {
                objects: swept.objects as u64,
                bytes: swept.bytes,
            };
        }
        Ok(())
    })
}
