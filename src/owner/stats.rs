//! Statistics: what a provider holds and has done, as plain data.

#![forbid(unsafe_code)]

/// A snapshot of a provider. Exact while nothing else goes on. While other threads allocate and
/// drop, numbers taken at slightly different moments may not add up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The cap in bytes.
    pub max_bytes: usize,
    /// Bytes of /dev/shm that the payload segments have taken from the system now, whether or not a
    /// message is in them. A segment's pages are taken when they are first needed.
    pub bytes_held: usize,
    /// The most that `bytes_held` ever was.
    pub peak_bytes_held: usize,
    /// Bytes of chunks that this process has handles of, without those that are lent to channels.
    pub bytes_in_use: usize,
    /// Bytes of chunks that this process has dropped and peers still lease, or leased when they
    /// died (see [`Provider::reclaim`](crate::Provider::reclaim)), and of chunks that are lent to
    /// channels, once for each channel.
    pub bytes_leased: usize,
    /// Total length of the payload segments in bytes: the address space they take here, and in
    /// peers that have mapped them all. At most `max_bytes`.
    pub bytes_mapped: usize,
    /// How many payload segments there are now. Few: messages of all lengths share them.
    pub segments: usize,
    /// How many payload segments were ever created: at most 16 for a provider that keeps idle
    /// chunks and is not trimmed, whatever it allocates.
    pub segments_created: u64,
    /// The size classes that have ever had a chunk, smallest first.
    pub classes: Vec<ClassStats>,
}

/// A snapshot of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Size of the class's chunks in bytes. At the cap some may be shorter: as long as their
    /// message.
    pub size: usize,
    /// Their alignment in bytes.
    pub align: usize,
    /// Chunks that exist.
    pub chunks: usize,
    /// Chunks that this process has handles of, without those that are lent to channels.
    pub in_use: usize,
    /// Chunks that are free to be used again.
    pub idle: usize,
    /// Chunks that this process has dropped and peers still lease, and chunks that are lent to
    /// channels.
    pub leased: usize,
    /// Allocations served by an existing chunk.
    pub hits: u64,
    /// Allocations and reservations that made a chunk.
    pub misses: u64,
}

impl Stats {
    /// Allocations served by an existing chunk, over all classes.
    pub fn hits(&self) -> u64 {
        self.classes.iter().map(|class| class.hits).sum()
    }

    /// Allocations and reservations that made a chunk, over all classes.
    pub fn misses(&self) -> u64 {
        self.classes.iter().map(|class| class.misses).sum()
    }
}
