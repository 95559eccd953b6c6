//! Counting what the pool holds: the snapshot behind `Provider::stats`.

#![forbid(unsafe_code)]

use super::Pool;
use crate::owner::chunk::{Chunk, Whereabouts};
use crate::owner::stats::{ClassStats, Stats};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

impl Pool {
    /// What the pool holds and has done. Takes the registry's lock.
    pub(crate) fn stats(&self) -> Stats {
        // In a forked child the registry's lock may be held by a thread that does not exist there.
        if !self.is_ours() {
            return Stats::default();
        }
        self.collect_loans();
        let lent = self.lent_chunks();
        let is_lent = |chunk: &Chunk| lent.binary_search_by_key(&NonNull::from(chunk), |(lent, _)| *lent).is_ok();
        let mut classes = Vec::new();
        if classes.try_reserve_exact(self.classes.len()).is_ok() {
            classes.extend(self.classes.iter().zip(self.shelves.iter()).map(|(class, shelf)| ClassStats {
                size: class.shape.size(),
                align: class.shape.align,
                idle: shelf.idle_count(),
                hits: class.past_uses.load(Ordering::Relaxed),
                misses: class.misses.load(Ordering::Relaxed),
                ..ClassStats::default()
            }));
        }
        // `hits` counts all uses at first.
        for chunk in self.registry.lock().chunks() {
            let Some(class) = classes.get_mut(chunk.class()) else { break };
            class.chunks += 1;
            class.hits += chunk.uses();
            // The shelf has already counted every chunk in its idle queue as idle.
            match (chunk.whereabouts(), chunk.is_leased()) {
                (Whereabouts::Lent, false) => class.idle += 1,
                (Whereabouts::Lent, true) => class.leased += 1,
                (Whereabouts::Idle, true) => {
                    class.leased += 1;
                    class.idle = class.idle.saturating_sub(1);
                }
                (Whereabouts::Elsewhere, _) if is_lent(chunk) => class.leased += 1,
                (Whereabouts::Idle | Whereabouts::Elsewhere, _) => {}
            }
        }
        for class in &mut classes {
            class.hits = class.hits.saturating_sub(class.misses);
            class.in_use = class.chunks.saturating_sub(class.idle + class.leased);
        }
        classes.retain(|class| class.misses > 0);
        classes.sort_by_key(|class| (class.size, class.align));
        let (bytes_in_use, bytes_leased) = self.in_use_and_leased();
        let (segments, bytes_mapped) = self.arenas.count_and_len();
        Stats {
            max_bytes: self.limits.max_bytes,
            bytes_held: self.account.held(),
            peak_bytes_held: self.account.peak(),
            bytes_in_use,
            bytes_leased,
            bytes_mapped,
            segments,
            segments_created: self.account.created(),
            classes,
        }
    }

    /// Bytes of the chunks that this process has handles of, and of those that only peers lease.
    pub(super) fn in_use_and_leased(&self) -> (usize, usize) {
        if self.control().is_none() {
            // Without peers there are no leases, so the counters suffice. A caller that polls at the cap
            // is refused a thousand times a second, with any number of chunks in use.
            return (self.collection.made().saturating_sub(self.idle_bytes()), 0);
        }
        let (mut in_use, mut leased) = (0, 0);
        for chunk in self.registry.lock().chunks() {
            let place = chunk.whereabouts();
            // The idle bytes subtracted below include those of chunks on a shelf.
            if place != Whereabouts::Lent {
                in_use += chunk.capacity();
            }
            // The lanes are in shared memory, so look at them only where it matters.
            if place != Whereabouts::Elsewhere && chunk.is_leased() {
                leased += chunk.capacity();
            }
        }
        let lent: usize = self.lent_chunks().iter().map(|(_, capacity)| capacity).sum();
        (in_use.saturating_sub(self.idle_bytes() + lent), leased + lent)
    }
}
