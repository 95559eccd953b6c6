//! Statistics: what a provider holds and has done, as a snapshot.

#![forbid(unsafe_code)]

use crate::pool::Pool;
use std::sync::atomic::Ordering;

/// A snapshot of a provider. Exact while nothing else goes on; while other threads allocate and drop, numbers taken at
/// slightly different moments may not add up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The cap in bytes.
    pub max_bytes: usize,
    /// Bytes of payload segments held now. Arenas count in full.
    pub bytes_held: usize,
    /// The most that `bytes_held` ever was.
    pub peak_bytes_held: usize,
    /// Bytes of chunks that this process has handles of.
    pub bytes_in_use: usize,
    /// Bytes of chunks that this process has dropped and that peers still lease.
    pub bytes_leased: usize,
    /// Payload segments held now, arenas included.
    pub segments: usize,
    /// Payload segments ever created. In steady state this does not grow.
    pub segments_created: u64,
    /// Arenas held now.
    pub arenas: usize,
    /// The classes that have ever had a chunk, smallest first.
    pub classes: Vec<ClassStats>,
}

/// A snapshot of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Size of the class's chunks in bytes.
    pub size: usize,
    /// Their alignment in bytes.
    pub align: usize,
    /// Chunks that exist.
    pub chunks: usize,
    /// Chunks that this process has handles of.
    pub in_use: usize,
    /// Chunks that are free to be used again.
    pub idle: usize,
    /// Chunks that this process has dropped and that peers still lease.
    pub leased: usize,
    /// Allocations served by a chunk that existed.
    pub hits: u64,
    /// Allocations, and reservations, that made a chunk.
    pub misses: u64,
}

impl Stats {
    pub(crate) fn of(pool: &Pool) -> Self {
        let mut classes: Vec<ClassStats> = (0..pool.kinds().len()).map(|class| class_base(pool, class)).collect();
        // `hits` counts uses at first.
        pool.for_each_chunk(|chunk| {
            let class = &mut classes[chunk.class()];
            class.chunks += 1;
            class.hits += chunk.uses();
            class.leased += usize::from(chunk.is_lent() && chunk.is_leased());
            class.idle += usize::from(chunk.is_lent() && !chunk.is_leased());
        });
        for class in &mut classes {
            class.hits = class.hits.saturating_sub(class.misses);
            class.in_use = class.chunks.saturating_sub(class.idle + class.leased);
        }
        classes.retain(|class| class.misses > 0);
        classes.sort_by_key(|class| (class.size, class.align));
        let bytes = |count: fn(&ClassStats) -> usize| classes.iter().map(|class| count(class) * class.size).sum();
        let budget = pool.budget();
        Self {
            max_bytes: budget.max(),
            bytes_held: budget.held(),
            peak_bytes_held: budget.peak(),
            bytes_in_use: bytes(|class| class.in_use),
            bytes_leased: bytes(|class| class.leased),
            segments: budget.segments(),
            segments_created: budget.created(),
            arenas: pool.arenas().count(),
            classes,
        }
    }

    /// Allocations served by a chunk that existed, over all classes.
    pub fn hits(&self) -> u64 {
        self.classes.iter().map(|class| class.hits).sum()
    }

    /// Allocations and reservations that made a chunk, over all classes.
    pub fn misses(&self) -> u64 {
        self.classes.iter().map(|class| class.misses).sum()
    }
}

fn class_base(pool: &Pool, class: usize) -> ClassStats {
    let (layout, tally) = (pool.kinds()[class].layout, &pool.tallies()[class]);
    ClassStats {
        size: layout.size(),
        align: layout.align(),
        idle: pool.shelf(class).idle_count(),
        hits: tally.past_uses.load(Ordering::Relaxed),
        misses: tally.misses.load(Ordering::Relaxed),
        ..ClassStats::default()
    }
}
