//! The placement of a provider's memory: NUMA nodes, huge pages.

use crate::fixtures::{
    alloc_many, attach_all, builder, files, holds, mappings, message, messages, pair, segment,
    unique_prefix, write, NONE,
};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{
    AttachError, BuildError, Client, Namespace, Provider, ProviderId, ShmBytesMut, Tuning,
};
use shm_pool_support::procfs::mapped_memory;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn numa_node() {
    let prefix = unique_prefix("node");
    let provider = match builder()
        .namespace(&Namespace::new(prefix.as_str()).unwrap())
        .tuning(Tuning::new().numa_node(0))
        .build()
    {
        // A container may forbid the call, and a kernel may lack it.
        Err(BuildError::NumaNode { node: 0, source }) => {
            assert!(
                matches!(source.errno(), Some(libc::EPERM | libc::ENOSYS)),
                "{source}"
            );
            return println!("SKIPPED: {source}");
        }
        built => built.unwrap(),
    };
    let _buffers = [
        provider.alloc(100).unwrap(),
        provider.alloc(1 << 20).unwrap(),
    ];
    let policies = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let segments: Vec<&str> = policies
        .lines()
        .filter(|line| line.contains(&prefix) && !line.contains(".ctl"))
        .collect();
    assert_eq!(segments.len(), provider.stats().segments);
    for line in &segments {
        let policy = line.split(' ').nth(1).unwrap();
        assert!(policy.starts_with("prefer"), "{segments:?}");
    }
}

#[test]
fn unknown_numa_node() {
    let prefix = unique_prefix("no-node");
    // Linux has 1024 at most.
    for node in [1023, 1024, 1025, 4096, u32::MAX] {
        let error = builder()
            .namespace(&Namespace::new(prefix.as_str()).unwrap())
            .tuning(Tuning::new().numa_node(node))
            .build()
            .unwrap_err();
        let BuildError::NumaNode {
            node: named,
            source,
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(*named, node);
        assert!(
            source.errno().is_some() && error.to_string().contains("Mems_allowed_list"),
            "{error}"
        );
    }
    assert_eq!(files(&prefix), NONE);
}

const HUGE: usize = 2 << 20;

/// Memory of the objects with a prefix, in bytes.
fn taken(prefix: &str) -> usize {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for name in files(prefix) {
        let blocks = fs::metadata(format!("/dev/shm/{name}")).unwrap().blocks();
        bytes += blocks as usize * 512;
    }
    bytes
}

/// The option takes no additional memory, and moving pages does not corrupt messages.
#[test]
fn huge_pages() {
    let prefix = unique_prefix("huge-anywhere");
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix.as_str()).unwrap())
        .max_shared(64)
        .max_bytes(12 * HUGE);
    let provider = provider
        .tuning(Tuning::new().arena_size(12 * HUGE).huge_pages(true))
        .build()
        .unwrap();
    let control = taken(&prefix);
    let mut kept: Vec<(usize, ShmBytesMut)> = Vec::new();
    // Whole huge pages and parts of some, at any offset.
    for (stamp, len) in [
        HUGE / 2,
        3 * HUGE,
        70_000,
        100,
        HUGE / 2,
        HUGE - 4096,
        2 * HUGE,
    ]
    .into_iter()
    .enumerate()
    {
        let mut buffer = provider.alloc(len).unwrap();
        write(&mut buffer, stamp as u64);
        kept.push((stamp, buffer));
        // Some tmpfs mounts always take whole huge pages.
        if !mounted_with("huge=") {
            assert_eq!(
                taken(&prefix) - control,
                provider.stats().bytes_held,
                "after {len} bytes"
            );
        }
    }
    for way in 0..3 {
        // Their memory is released in parts of huge pages, and taken again.
        kept.retain(|(stamp, _)| stamp % 3 != way);
        provider.trim();
        assert!(
            kept.iter()
                .all(|(stamp, buffer)| holds(buffer, *stamp as u64)),
            "a message was damaged"
        );
        let mut buffer = provider.alloc(3 * HUGE).unwrap();
        write(&mut buffer, 100 + way as u64);
        kept.push((100 + way, buffer));
    }
    assert!(
        kept.iter()
            .all(|(stamp, buffer)| holds(buffer, *stamp as u64)),
        "a message was damaged"
    );
    assert!(taken(&prefix) - control <= 12 * HUGE, "the cap");
    if !has_huge_pages() {
        return println!(
            "SKIPPED: whether there are any, because this kernel makes none for shared memory"
        );
    }
    let mapped = mapped_memory(&prefix, "ShmemPmdMapped").unwrap();
    println!(
        "{mapped} of {} bytes are in huge pages",
        provider.stats().bytes_held
    );
    assert!(
        mapped > 0,
        "not a single huge page: is the machine short of memory?"
    );
}

/// Messages shorter than a huge page get one if they were reserved together.
#[test]
fn huge_pages_of_reservation() {
    let prefix = unique_prefix("huge-shared");
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix.as_str()).unwrap())
        .max_shared(64)
        .max_bytes(8 * HUGE);
    let provider = provider
        .tuning(Tuning::new().arena_size(8 * HUGE).huge_pages(true))
        .build()
        .unwrap();
    let reservation = provider.reserve(HUGE / 4, 8).unwrap();
    if !has_huge_pages() {
        return println!("SKIPPED: this kernel makes no huge pages for shared memory");
    }
    let held = provider.stats().bytes_held;
    let mapped = mapped_memory(&prefix, "ShmemPmdMapped").unwrap() as usize;
    assert!(mapped >= held / HUGE * HUGE, "{mapped} of {held} bytes");
    drop(reservation);
}

/// Returns `true` if /dev/shm has a mount option that begins with `option`.
fn mounted_with(option: &str) -> bool {
    for line in fs::read_to_string("/proc/mounts").unwrap().lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_device, "/dev/shm", _type, options, ..] = fields[..] else {
            continue;
        };
        if options.split(',').any(|found| found.starts_with(option)) {
            return true;
        }
    }
    false
}

/// Returns `true` if this kernel can make huge pages of 2 MiB for a tmpfs mounted without them
/// (since Linux 6.1).
fn has_huge_pages() -> bool {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = text("/proc/sys/kernel/osrelease");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let settings = "/sys/kernel/mm/transparent_hugepage";
    (numbers.next(), numbers.next()) >= (Some(6), Some(1))
        && text(&format!("{settings}/hpage_pmd_size")).trim() == HUGE.to_string()
        && !text(&format!("{settings}/shmem_enabled")).contains("[deny]")
}

/// The first segment is not a whole number of huge pages.
#[test]
fn huge_page_at_segment_end() {
    let provider = builder()
        .max_bytes(64 << 20)
        .tuning(Tuning::new().huge_pages(true))
        .build()
        .unwrap();
    let short = alloc_many(&provider, 96_000, 30);
    let long = alloc_many(&provider, 200_000, 30);
    drop((short, long));
}

// ---- warming up ---------------------------------------------------------------------------------
// `process/warm_path.rs` and `no_heap.rs` show the cost of the first message afterwards.

const LENGTHS: [usize; 3] = [1000, 100_000, 3 << 20];

/// A provider with several segments, most of which have no memory yet.
fn spread() -> Provider {
    let provider = builder()
        .tuning(Tuning::new().arena_size(64 << 10))
        .build()
        .unwrap();
    for &len in &LENGTHS {
        provider.reserve(len, 2).unwrap().keep();
    }
    let stats = provider.stats();
    assert!(
        stats.segments > 1 && stats.bytes_held < stats.bytes_mapped,
        "{stats:?}"
    );
    provider
}

/// The memory of the provider's segments, in bytes.
fn memory(provider: &Provider) -> u64 {
    let prefix = format!("{}.", provider.id());
    let mut bytes = 0;
    for name in files(&prefix) {
        if !name.ends_with(".ctl") {
            bytes += fs::metadata(format!("/dev/shm/{name}")).unwrap().blocks() * 512;
        }
    }
    bytes
}

/// A peer must not allocate memory outside the cap by reading pages that have none.
#[test]
fn warm_populates() {
    let provider = spread();
    let client = Client::new();
    let mut sender = Sender::create(&provider, &unique_prefix("warm-memory")).unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open(&unique_prefix("warm-memory"))
        .unwrap();
    let held = provider.stats().bytes_held;
    assert_eq!(memory(&provider), held as u64);
    for _ in 0..2 {
        assert_eq!(
            (
                client.warm(provider.id()).unwrap(),
                receiver.warm().unwrap()
            ),
            (held, held)
        );
        assert_eq!(memory(&provider), held as u64, "holes were filled");
        let segments = provider.stats().segments;
        assert_eq!(
            (client.mapped_segments(), receiver.mapped_segments()),
            (segments, segments),
            "each once"
        );
    }
    // Messages lie in the segments that they have mapped.
    for len in LENGTHS {
        let sent = message(&provider, len, 1);
        assert_eq!(
            client.attach(&sent.descriptor().unwrap()).unwrap().len(),
            len
        );
        sender.send(sent).unwrap();
        assert_eq!(receiver.recv().unwrap().len(), len);
    }
    assert_eq!(
        (client.mapped_segments(), receiver.mapped_segments()),
        (provider.stats().segments, provider.stats().segments)
    );
}

/// A subscriber that starts first can prepare before the first message.
#[test]
fn warm_again() {
    let (provider, client) = pair();
    assert_eq!(
        client.warm(provider.id()).unwrap(),
        0,
        "there is no segment yet"
    );
    let first = provider.alloc(1000).unwrap();
    let held = provider.stats().bytes_held;
    assert_eq!(
        (
            client.warm(provider.id()).unwrap(),
            client.mapped_segments()
        ),
        (held, 1)
    );
    let _more = (
        first,
        provider.alloc(provider.stats().bytes_mapped).unwrap(),
    );
    let held = provider.stats().bytes_held;
    assert_eq!(
        (
            client.warm(provider.id()).unwrap(),
            client.mapped_segments()
        ),
        (held, 2)
    );
}

/// A warm peer does not keep the memory of destroyed segments.
#[test]
fn warm_unmaps_destroyed() {
    let provider = builder().max_idle_per_class(0).build().unwrap();
    let client = Client::new();
    let name = unique_prefix("warm-gone");
    let _sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::builder()
        .namespace(client.namespace())
        .open(&name)
        .unwrap();
    for serial in 1..5 {
        let buffer = provider.alloc(1000).unwrap();
        assert!(client.warm(provider.id()).unwrap() > 0);
        receiver.warm().unwrap();
        assert_eq!(
            (client.mapped_segments(), receiver.mapped_segments()),
            (1, 1)
        );
        drop(buffer);
        assert_eq!(
            (
                client.warm(provider.id()).unwrap(),
                receiver.warm().unwrap()
            ),
            (0, 0)
        );
        assert_eq!(mappings(&segment(&provider, serial)), 0);
    }
}

#[test]
fn warm_without_provider() {
    let (provider, client) = pair();
    let id = provider.id();
    let unknown = ProviderId::from(u64::from(id) ^ 1);
    assert!(matches!(
        client.warm(unknown),
        Err(AttachError::NoProvider { .. })
    ));
    client.warm(id).unwrap();
    drop(provider);
    assert!(matches!(client.warm(id), Err(AttachError::Closed(provider)) if provider == id));
    client.unmap_unused();
    assert_eq!(mappings(&id.to_string()), 0);
    assert_eq!(files(&id.to_string()), NONE);
}

/// A publisher whose readers hold many messages makes no more memory if it had reserved enough.
#[test]
fn reserved_behind_leased() {
    const COUNT: usize = 60;
    for in_channel in [false, true] {
        let provider = builder().max_idle_per_class(COUNT).build().unwrap();
        let client = Client::new();
        provider.reserve(64, COUNT).unwrap().keep();
        let all = messages(&provider, 64, 0..COUNT as u64);
        let misses = provider.stats().misses();
        if in_channel {
            let name = unique_prefix("warm-leased");
            let mut sender = Sender::create(&provider, &name).unwrap();
            let mut receiver = Receiver::builder()
                .namespace(client.namespace())
                .open(&name)
                .unwrap();
            for message in all {
                sender.send(message).unwrap();
            }
            let mut received: Vec<_> = (0..COUNT).map(|_| receiver.recv().unwrap()).collect();
            received.truncate(COUNT - 1);
            drop(provider.alloc(64).unwrap());
        } else {
            let mut views = attach_all(&client, &all);
            drop(all);
            views.truncate(COUNT - 1);
            drop(provider.alloc(64).unwrap());
        }
        assert_eq!(
            provider.stats().misses(),
            misses,
            "in a channel: {in_channel}"
        );
    }
}
