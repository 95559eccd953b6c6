//! What a stock receiver relies on: names, locks, lengths, offsets, and that it may keep a segment
//! for as long as it likes.

use crate::support::{backend, layout, open, path, LARGE, SMALL};
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
    assert_eq!(backend.id(), 0, "stock receivers need no client of ours");
    for size in [SMALL, LARGE] {
        let chunk = alloc(&backend, size, 1);
        let segment = chunk.descriptor.segment;
        let metadata = open(segment).metadata().unwrap();
        assert!(segment >= 65536, "small ids are left to others");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(metadata.len() % 4096, 0, "whole pages");
        assert!(
            metadata.blocks() * 512 >= size as u64,
            "reserved, so that no write is a SIGBUS"
        );
        assert!(!is_orphan(segment), "a sweep would remove it");
        backend.free(&chunk.descriptor);
    }
}

#[test]
fn stock_receiver() {
    let backend = backend();
    let chunks: Vec<AllocatedChunk> = [64, SMALL, 100, LARGE, SMALL, LARGE]
        .into_iter()
        .map(|size| alloc(&backend, size, 1))
        .collect();
    for (mut chunk, byte) in chunks.into_iter().zip(1u8..) {
        let len = chunk.descriptor.len.get();
        // SAFETY: the chunk is allocated, and only this test uses it.
        let ours = unsafe { chunk.data.ptr_mut() };
        // SAFETY: only this test has the chunk, which has `len` bytes.
        unsafe { ours.write_bytes(byte, len) };
        let mapped = PosixShmClient.attach(chunk.descriptor.segment).unwrap();
        let start = mapped.map(chunk.descriptor.chunk).unwrap();
        // SAFETY: the chunk lies within the segment that `mapped` keeps mapped.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        assert!(bytes.iter().all(|&found| found == byte));
        assert_ne!(start, ours, "the receiver has a mapping of its own");
        backend.free(&chunk.descriptor);
    }
}

#[test]
fn alignments() {
    let backend = backend();
    for align in (0..=12).map(|log2| 1 << log2) {
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
    let backend = crate::support::builder().max_alloc(LARGE).build().unwrap();
    backend.layout_for(layout(LARGE, 1)).unwrap();
    // If not, a policy that waits for memory would wait forever.
    backend.layout_for(layout(LARGE + 4096, 1)).unwrap_err();
    backend.alloc(&layout(usize::MAX, 1)).unwrap_err();
}

#[test]
fn ids_are_unique() {
    let mut seen = std::collections::HashSet::new();
    for _ in 0..50 {
        let backend = backend();
        // Each is longer than every existing segment.
        for size in [SMALL, 4 * LARGE, 15 * LARGE] {
            let chunk = alloc(&backend, size, 1);
            seen.insert(chunk.descriptor.segment);
            backend.free(&chunk.descriptor);
        }
        let made = backend.stats().segments_created as usize;
        assert!(made > 1, "{made} segments");
        assert_eq!(
            seen.len() % made,
            0,
            "a receiver has one of these ids cached, with another size"
        );
    }
    assert!(seen.iter().all(|&segment| !path(segment).exists()));
}

/// Receivers never unmap a segment, so it stays and serves other messages, without memory that no
/// message needs.
#[test]
fn segments_stay() {
    let backend = backend();
    let chunk = alloc(&backend, LARGE, 1);
    let segment = chunk.descriptor.segment;
    let blocks = || open(segment).metadata().unwrap().blocks() as usize * 512;
    backend.free(&chunk.descriptor);
    drop(chunk);
    assert_eq!((backend.trim(), blocks()), (LARGE, 0));
    // A receiver that maps the segment now locks all of it. That allocates its memory again, until
    // the next trim.
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
            bytes.iter().all(|&found| found == round),
            "a receiver does not see what is written after a trim"
        );
        backend.free(&chunk.descriptor);
        drop(chunk);
        assert_eq!(backend.trim(), LARGE);
    }
    drop(backend);
    assert!(
        path(segment).exists(),
        "a receiver has it, so that nobody may take its name"
    );
    drop(receiver);
    assert!(!path(segment).exists(), "the last one removes it");
}

#[test]
fn sweep_spares_living() {
    let backend = backend();
    let chunks = [alloc(&backend, SMALL, 1), alloc(&backend, LARGE, 1)];
    cleanup_orphaned_shm_segments();
    for chunk in chunks {
        assert!(path(chunk.descriptor.segment).exists());
        backend.free(&chunk.descriptor);
    }
}

#[test]
fn nothing_is_left() {
    let backend = backend();
    let mut chunks = vec![
        alloc(&backend, SMALL, 1),
        alloc(&backend, LARGE, 1),
        alloc(&backend, 2 * LARGE, 1),
    ];
    let segments: Vec<u32> = chunks
        .iter()
        .map(|chunk| chunk.descriptor.segment)
        .collect();
    backend.free(&chunks.remove(1).descriptor);
    drop(backend);
    assert!(
        path(segments[0]).exists() && path(segments[2]).exists(),
        "what is held stays"
    );
    drop(chunks);
    assert!(segments.iter().all(|&segment| !path(segment).exists()));
}
