//! The properties of segments on which a stock receiver relies: names, locks, lengths, offsets, and
//! that they stay valid until the receiver unmaps them.

use crate::support::{backend, builder, is_filled, layout, open, path, LARGE, SMALL};
use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use zenoh::shm::{
    cleanup_orphaned_shm_segments, AllocatedChunk, PosixShmClient, ShmClient, ShmProviderBackend,
    WithProtocolID,
};

fn alloc(backend: &impl ShmProviderBackend, size: usize, align: usize) -> AllocatedChunk {
    backend.alloc(&layout(size, align)).unwrap()
}

/// Returns `true` if another process would consider the segment an orphan.
fn is_orphan(segment: u32) -> bool {
    let file = open(segment);
    // SAFETY: `file` keeps the descriptor open during the call.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[test]
fn segment_file() {
    let backend = backend();
    assert_eq!(
        backend.id(),
        0,
        "stock receivers need no client of this crate"
    );
    for size in [SMALL, LARGE] {
        let chunk = alloc(&backend, size, 1);
        let segment = chunk.descriptor.segment;
        let metadata = open(segment).metadata().unwrap();
        assert!(segment >= 65536, "small ids are for other programs");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(metadata.len() % 4096, 0, "whole pages");
        assert!(
            metadata.blocks() * 512 >= size as u64,
            "reserved, so that no write raises SIGBUS"
        );
        assert!(!is_orphan(segment), "a sweep would remove it");
        backend.free(&chunk.descriptor);
    }
}

#[test]
fn stock_receiver() {
    let backend = backend();
    let sizes = [64, SMALL, 100, LARGE, SMALL, LARGE];
    let chunks = sizes.map(|size| alloc(&backend, size, 1));
    for (number, mut chunk) in chunks.into_iter().enumerate() {
        let byte = number as u8 + 1;
        let len = chunk.descriptor.len.get();
        // SAFETY: the chunk is allocated, and only this test uses it.
        let ours = unsafe { chunk.data.ptr_mut() };
        // SAFETY: only this test has the chunk, which has `len` bytes.
        unsafe { ours.write_bytes(byte, len) };
        let mapped = PosixShmClient.attach(chunk.descriptor.segment).unwrap();
        let start = mapped.map(chunk.descriptor.chunk).unwrap();
        // SAFETY: the chunk lies within the segment that `mapped` keeps mapped.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        assert!(is_filled(bytes, byte));
        assert_ne!(start, ours, "the receiver has a mapping of its own");
        backend.free(&chunk.descriptor);
    }
}

#[test]
fn alignments() {
    let backend = backend();
    for log2 in 0..=12 {
        let align = 1 << log2;
        for size in [align, 4096, SMALL * 4, LARGE] {
            let size = size.next_multiple_of(align);
            let asked = layout(size, align);
            assert_eq!(backend.layout_for(asked).unwrap(), asked);
            let chunk = backend.alloc(&asked).unwrap();
            assert_eq!(chunk.data.ptr() as usize % align, 0, "{size} at {align}");
            assert_eq!(
                chunk.descriptor.chunk as usize % align,
                0,
                "in every process"
            );
            assert!(chunk.descriptor.len.get() >= size);
            backend.free(&chunk.descriptor);
        }
    }
    backend.layout_for(layout(8192, 8192)).unwrap_err();
    backend.alloc(&layout(8192, 8192)).unwrap_err();
}

#[test]
fn impossible_layout() {
    let backend = builder().max_alloc(LARGE).build().unwrap();
    backend.layout_for(layout(LARGE, 1)).unwrap();
    // If this succeeded, a policy that waits for memory would wait forever.
    backend.layout_for(layout(LARGE + 4096, 1)).unwrap_err();
    backend.alloc(&layout(usize::MAX, 1)).unwrap_err();
}

#[test]
fn ids_are_unique() {
    let mut seen = HashSet::new();
    for _ in 0..50 {
        let backend = backend();
        // Each is longer than every existing segment.
        for size in [SMALL, 4 * LARGE, 15 * LARGE] {
            let chunk = alloc(&backend, size, 1);
            seen.insert(chunk.descriptor.segment);
            backend.free(&chunk.descriptor);
        }
        let created = backend.stats().segments_created as usize;
        assert!(created > 1, "{created} segments");
        assert_eq!(
            seen.len() % created,
            0,
            "a receiver has one of these ids cached, with another size"
        );
    }
    for segment in seen {
        assert!(!path(segment).exists());
    }
}

/// Receivers never unmap a segment. So it stays and serves other messages, but without the memory
/// that no message needs.
#[test]
fn segments_stay() {
    let backend = backend();
    let chunk = alloc(&backend, LARGE, 1);
    let segment = chunk.descriptor.segment;
    let allocated = || open(segment).metadata().unwrap().blocks() as usize * 512;
    backend.free(&chunk.descriptor);
    drop(chunk);
    assert_eq!(backend.trim(), LARGE);
    assert_eq!(allocated(), 0);
    // A receiver that maps the segment now locks all of it. That allocates the segment's memory
    // again, until the next trim.
    let receiver = PosixShmClient.attach(segment).unwrap();
    for round in 0..3 {
        let mut chunk = alloc(&backend, LARGE, 1);
        assert_eq!(
            chunk.descriptor.segment, segment,
            "a new segment in place of the empty one"
        );
        // SAFETY: the chunk is allocated, and only this test uses it.
        let ours = unsafe { chunk.data.ptr_mut() };
        // SAFETY: only this test has the chunk, which has `LARGE` bytes.
        unsafe { ours.write_bytes(round, LARGE) };
        let theirs = receiver.map(chunk.descriptor.chunk).unwrap();
        // SAFETY: the chunk lies within the segment that `receiver` keeps mapped.
        let bytes = unsafe { std::slice::from_raw_parts(theirs, LARGE) };
        assert!(
            is_filled(bytes, round),
            "a receiver does not see what is written after a trim"
        );
        backend.free(&chunk.descriptor);
        drop(chunk);
        assert_eq!(backend.trim(), LARGE);
    }
    drop(backend);
    assert!(
        path(segment).exists(),
        "a receiver has the segment, so no other one may take its name"
    );
    drop(receiver);
    assert!(
        !path(segment).exists(),
        "the last process that has it removes it"
    );
}

#[test]
fn sweep_spares_living() {
    let backend = backend();
    let chunks = [SMALL, LARGE].map(|size| alloc(&backend, size, 1));
    cleanup_orphaned_shm_segments();
    for chunk in chunks {
        assert!(path(chunk.descriptor.segment).exists());
        backend.free(&chunk.descriptor);
    }
}

#[test]
fn nothing_is_left() {
    let backend = backend();
    let chunks = [SMALL, LARGE, 2 * LARGE].map(|size| alloc(&backend, size, 1));
    let paths = chunks
        .each_ref()
        .map(|chunk| path(chunk.descriptor.segment));
    let [first, freed, last] = chunks;
    backend.free(&freed.descriptor);
    drop(freed);
    drop(backend);
    assert!(paths[0].exists(), "a chunk of it is in use");
    assert!(paths[2].exists(), "a chunk of it is in use");
    drop((first, last));
    for path in paths {
        assert!(!path.exists());
    }
}
