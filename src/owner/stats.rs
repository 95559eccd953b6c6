//! Statistics of a provider, as plain data.

#![forbid(unsafe_code)]

/// A snapshot of a provider. Exact while no other thread uses it; otherwise, numbers taken at
/// slightly different moments may not add up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The cap in bytes.
    pub max_bytes: usize,
    /// Bytes of /dev/shm that the payload segments hold now, with or without messages in them. A
    /// segment's pages are taken when they are first needed.
    pub bytes_held: usize,
    /// The highest value of `bytes_held` so far.
    pub peak_bytes_held: usize,
    /// Bytes of chunks that this process has handles to, except those on loan through channels.
    pub bytes_in_use: usize,
    /// Bytes of chunks that this process has dropped and peers still lease, or leased when they
    /// died (see [`Provider::reclaim`](crate::Provider::reclaim)), and of chunks on loan through
    /// channels, once for each channel.
    pub bytes_leased: usize,
    /// Total length of the payload segments in bytes: the address space they take here, and in
    /// peers that map all of them. At most `max_bytes`.
    pub bytes_mapped: usize,
    /// Current number of payload segments. There are few: messages of all lengths share them.
    pub segments: usize,
    /// Number of payload segments ever created: at most 16 for a provider that keeps idle chunks
    /// and is not trimmed, whatever its allocations.
    pub segments_created: u64,
    /// The size classes that have ever had a chunk, smallest first. Empty if the process has no
    /// private memory for them.
    pub classes: Vec<ClassStats>,
}

/// A snapshot of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Size of the class's chunks in bytes. At the cap, some may be only as long as their message.
    pub size: usize,
    /// Their alignment in bytes.
    pub align: usize,
    /// Chunks that exist.
    pub chunks: usize,
    /// Chunks that this process has handles to, except those on loan through channels.
    pub in_use: usize,
    /// Chunks that are free to be reused.
    pub idle: usize,
    /// Chunks that this process has dropped and peers still lease, and chunks on loan through
    /// channels.
    pub leased: usize,
    /// Allocations served by an existing chunk.
    pub hits: u64,
    /// Allocations and reservations that created a chunk.
    pub misses: u64,
}

impl Stats {
    /// Returns the allocations served by an existing chunk, over all classes.
    pub fn hits(&self) -> u64 {
        self.classes.iter().map(|class| class.hits).sum()
    }

    /// Returns the allocations and reservations that created a chunk, over all classes.
    pub fn misses(&self) -> u64 {
        self.classes.iter().map(|class| class.misses).sum()
    }
}
