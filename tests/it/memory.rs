//! The placement of a provider's memory: NUMA nodes, huge pages.

use crate::support::{builder, files, holds, unique_prefix, write, NONE};
use shm_pool::{BuildError, Provider, ShmBufMut};
use shm_pool_support::procfs::mapped_memory;
use std::fs;

#[test]
fn numa_node() {
    let prefix = unique_prefix("node");
    let provider = match builder().name_prefix(prefix.as_str()).numa_node(0).build() {
        // A container may forbid the call, and a kernel may lack it.
        Err(BuildError::NumaNode { node: 0, source }) => {
            assert!(matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{source}");
            return println!("SKIPPED: {source}");
        }
        built => built.unwrap(),
    };
    let _buffers = [100, 1 << 20].map(|len| provider.alloc(len).unwrap());
    let policies = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let segments: Vec<&str> =
        policies.lines().filter(|line| line.contains(&prefix) && !line.contains(".ctl")).collect();
    assert_eq!(segments.len(), provider.stats().segments);
    let is_preferred = |line: &&str| line.split(' ').nth(1).is_some_and(|policy| policy.starts_with("prefer"));
    assert!(segments.iter().all(is_preferred), "{segments:?}");
}

#[test]
fn unknown_numa_node() {
    let prefix = unique_prefix("no-node");
    // Linux has 1024 at most.
    for node in [1023, 1024, 1025, 4096, u32::MAX] {
        let error = builder().name_prefix(prefix.as_str()).numa_node(node).build().unwrap_err();
        let BuildError::NumaNode { node: named, source } = &error else { panic!("{error}") };
        assert_eq!(*named, node);
        assert!(source.raw_os_error().is_some() && error.to_string().contains("Mems_allowed_list"), "{error}");
    }
    assert_eq!(files(&prefix), NONE);
}

const HUGE: usize = 2 << 20;

/// Memory of the objects with a prefix, in bytes.
fn taken(prefix: &str) -> usize {
    use std::os::unix::fs::MetadataExt;
    let blocks = |name: String| fs::metadata(format!("/dev/shm/{name}")).unwrap().blocks() as usize * 512;
    files(prefix).into_iter().map(blocks).sum()
}

/// The option takes no additional memory, and moving pages does not corrupt messages.
#[test]
fn huge_pages() {
    let prefix = unique_prefix("huge-anywhere");
    let provider = Provider::builder().name_prefix(prefix.as_str()).max_shared(64).max_bytes(12 * HUGE);
    let provider = provider.arena_size(12 * HUGE).huge_pages(true).build().unwrap();
    let control = taken(&prefix);
    let mut kept: Vec<(usize, ShmBufMut)> = Vec::new();
    // Whole huge pages and parts of some, at any offset.
    for (stamp, len) in [HUGE / 2, 3 * HUGE, 70_000, 100, HUGE / 2, HUGE - 4096, 2 * HUGE].into_iter().enumerate() {
        let mut buffer = provider.alloc(len).unwrap();
        write(&mut buffer, stamp as u64);
        kept.push((stamp, buffer));
        // Some tmpfs mounts always take whole huge pages.
        if !mounted_with("huge=") {
            assert_eq!(taken(&prefix) - control, provider.stats().bytes_held, "after {len} bytes");
        }
    }
    for way in 0..3 {
        // Their memory is released in parts of huge pages, and taken again.
        kept.retain(|(stamp, _)| stamp % 3 != way);
        provider.trim();
        assert!(kept.iter().all(|(stamp, buffer)| holds(buffer, *stamp as u64)), "a message was damaged");
        let mut buffer = provider.alloc(3 * HUGE).unwrap();
        write(&mut buffer, 100 + way as u64);
        kept.push((100 + way, buffer));
    }
    assert!(kept.iter().all(|(stamp, buffer)| holds(buffer, *stamp as u64)), "a message was damaged");
    assert!(taken(&prefix) - control <= 12 * HUGE, "the cap");
    if !has_huge_pages() {
        return println!("SKIPPED: whether there are any, because this kernel makes none for shared memory");
    }
    let mapped = mapped_memory(&prefix, "ShmemPmdMapped").unwrap();
    println!("{mapped} of {} bytes are in huge pages", provider.stats().bytes_held);
    assert!(mapped > 0, "not a single huge page: is the machine short of memory?");
}

/// Messages shorter than a huge page get one if they were reserved together.
#[test]
fn huge_pages_of_reservation() {
    let prefix = unique_prefix("huge-shared");
    let provider = Provider::builder().name_prefix(prefix.as_str()).max_shared(64).max_bytes(8 * HUGE);
    let provider = provider.arena_size(8 * HUGE).huge_pages(true).build().unwrap();
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
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let options = mounts.lines().filter(|line| line.contains(" /dev/shm ")).filter_map(|line| line.split(' ').nth(3));
    options.flat_map(|options| options.split(',')).any(|found| found.starts_with(option))
}

/// Returns `true` if this kernel can make huge pages of 2 MiB for a tmpfs mounted without them
/// (since Linux 6.1).
fn has_huge_pages() -> bool {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = text("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let settings = "/sys/kernel/mm/transparent_hugepage";
    (numbers.next(), numbers.next()) >= (Some(6), Some(1))
        && text(&format!("{settings}/hpage_pmd_size")).trim() == HUGE.to_string()
        && !text(&format!("{settings}/shmem_enabled")).contains("[deny]")
}

/// The first segment is not a whole number of huge pages.
#[test]
fn huge_page_at_segment_end() {
    let provider = builder().max_bytes(64 << 20).huge_pages(true).build().unwrap();
    let short: Vec<_> = (0..30).map(|_| provider.alloc(96_000).unwrap()).collect();
    let long: Vec<_> = (0..30).map(|_| provider.alloc(200_000).unwrap()).collect();
    drop((short, long));
}
