//! Arenas: segments out of which talc carves the chunks of the small classes. The only file that names talc.
//!
//! Each arena has a talc of its own, so that an arena whose chunks have all come back can be given to the system.
//! Talc keeps its free lists inside the arena; a provider's peers map payload read-only, so they cannot damage them. (zenoh's
//! receivers can, see `zenoh`.)
//!
//! All of this is off the warm path, behind one mutex: a chunk is carved once and then lives in its pool.

use crate::payload::Payload;
use parking_lot::Mutex;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use talc::base::Talc;
use talc::source::Manual;
use talc::DefaultBinning;

/// Bytes at the start of an arena that talc needs for itself, rounded up generously.
const OVERHEAD: usize = talc::min_first_heap_size::<DefaultBinning>() + 64;

/// One arena.
struct Arena {
    payload: Arc<Payload>,
    talc: Talc<Manual, DefaultBinning>,
    /// Chunks that were carved and not yet freed.
    live: usize,
}

/// All arenas of a pool.
pub(crate) struct Arenas {
    arenas: Mutex<Vec<Arena>>,
}

/// A chunk's memory in an arena. Freed by [`Arenas::free`] and by nothing else.
pub(crate) struct Carved {
    pub(crate) payload: Arc<Payload>,
    pub(crate) start: NonNull<u8>,
    pub(crate) layout: Layout,
}

impl Arenas {
    pub(crate) fn new() -> Self {
        Self { arenas: Mutex::new(Vec::new()) }
    }

    /// The largest chunk that surely fits an empty arena of `arena_size` bytes at `align`.
    pub(crate) const fn capacity(arena_size: usize, align: usize) -> usize {
        arena_size.saturating_sub(OVERHEAD + align)
    }

    /// Carves a chunk, from the youngest arena that has room. `None`: no arena has.
    pub(crate) fn carve(&self, layout: Layout) -> Option<Carved> {
        debug_assert!(layout.size() > 0);
        self.arenas.lock().iter_mut().rev().find_map(|arena| arena.carve(layout))
    }

    /// Adds an arena and carves the first chunk from it, so that no other thread can take its room.
    ///
    /// `None` if the chunk does not fit an empty arena; the arena is kept.
    pub(crate) fn add_and_carve(&self, payload: Arc<Payload>, layout: Layout) -> Option<Carved> {
        let mut arena = Arena { payload, talc: Talc::new(Manual), live: 0 };
        let mapping = arena.payload.segment().mapping();
        // SAFETY: the segment is new and nobody else has a pointer into it; it stays mapped as long as the arena
        // holds `payload`, and peers can only read it.
        unsafe { arena.talc.claim(mapping.base().as_ptr(), mapping.len()) };
        let carved = arena.carve(layout);
        self.arenas.lock().push(arena);
        carved
    }

    /// Gives a chunk's memory back to its arena.
    pub(crate) fn free(&self, carved: Carved) {
        let mut arenas = self.arenas.lock();
        if let Some(arena) = arenas.iter_mut().find(|arena| Arc::ptr_eq(&arena.payload, &carved.payload)) {
            // SAFETY: `carved` came from this arena's talc with this layout, and consuming it frees it once.
            unsafe { arena.talc.deallocate(carved.start.as_ptr(), carved.layout) };
            arena.live -= 1;
        }
    }

    /// Takes the arenas out that have no live chunk; dropping them unmaps and unlinks.
    pub(crate) fn take_empty(&self) -> Vec<Arc<Payload>> {
        let mut arenas = self.arenas.lock();
        let mut empty = Vec::new();
        arenas.retain(|arena| {
            if arena.live == 0 {
                empty.push(arena.payload.clone());
            }
            arena.live > 0
        });
        empty
    }

    /// How many arenas there are.
    pub(crate) fn count(&self) -> usize {
        self.arenas.lock().len()
    }
}

impl Arena {
    fn carve(&mut self, layout: Layout) -> Option<Carved> {
        // SAFETY: the size is not zero (checked by the caller, and classes start at 64 bytes).
        let start = unsafe { self.talc.try_allocate(layout) }?;
        self.live += 1;
        Some(Carved { payload: self.payload.clone(), start, layout })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::posix::Name;
    use crate::segment::Segment;

    const SIZE: usize = 1 << 16;

    fn payload(what: &str) -> Arc<Payload> {
        let name = Name::new(&format!("shm_pool-unit.{}.arena-{what}", std::process::id()));
        Arc::new(Payload::new(Segment::create(name, SIZE, 0o600).unwrap(), 1))
    }

    #[test]
    fn the_stated_capacity_fits_and_an_emptied_arena_is_given_back() {
        for align in [64, 4096] {
            let arenas = Arenas::new();
            let layout = Layout::from_size_align(Arenas::capacity(SIZE, align), align).unwrap();
            assert!(arenas.carve(layout).is_none(), "there is no arena yet");
            let carved = arenas.add_and_carve(payload(&format!("fit{align}")), layout).unwrap();
            assert_eq!(carved.start.as_ptr() as usize % align, 0);
            assert!(arenas.carve(layout).is_none(), "the arena is full");
            assert!(arenas.take_empty().is_empty());
            arenas.free(carved);
            assert_eq!((arenas.take_empty().len(), arenas.count()), (1, 0));
        }
    }

    #[test]
    fn chunks_of_one_arena_do_not_overlap() {
        let arenas = Arenas::new();
        let layout = Layout::from_size_align(1024, 64).unwrap();
        let mut carved = vec![arenas.add_and_carve(payload("overlap"), layout).unwrap()];
        carved.extend(std::iter::from_fn(|| arenas.carve(layout)));
        let mut starts: Vec<_> = carved.iter().map(|chunk| chunk.start.as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.len() > 40, "an arena of 64 chunks' bytes holds {}", starts.len());
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 1024));
        carved.into_iter().for_each(|chunk| arenas.free(chunk));
        assert_eq!(arenas.take_empty().len(), 1);
    }
}
