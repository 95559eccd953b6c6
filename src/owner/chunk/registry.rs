//! The list of a pool's chunks, under one lock.

use super::{Chunk, ClosedChunk, Hand, Home};
use crate::owner::arena::Carved;
use crate::owner::pool::Pool;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// How many chunks lie side by side. One under AddressSanitizer, which then catches stray accesses.
const BLOCK: usize = if cfg!(shm_pool_asan) { 1 } else { 32 };

pub(crate) struct Registry {
    listed: Vec<Registered>,
    /// The number of chunks of each class, except one-off and retired ones.
    kept: Box<[usize]>,
    /// The memory of all chunks. Chunks in a row make a pass over thousands of them fast, and leave
    /// no holes in the heap.
    blocks: Vec<Block>,
    /// Unused, in these blocks.
    homes: Vec<Home>,
}

// SAFETY: homes are pointers into the blocks, which move with them.
unsafe impl Send for Registry {}

impl Registry {
    pub(crate) fn new(classes: usize) -> Self {
        Self { listed: Vec::new(), kept: vec![0; classes].into(), blocks: Vec::new(), homes: Vec::new() }
    }

    pub(crate) fn count(&self, class: usize) -> usize {
        self.kept[class]
    }

    pub(crate) fn enter(&mut self, pool: Arc<Pool>, class: usize, memory: Carved, is_one_off: bool) -> ClosedChunk {
        let home = self.homes.pop().unwrap_or_else(|| self.build());
        let chunk = Chunk::new(pool, class, memory, is_one_off);
        chunk.set_registered(self.listed.len());
        let place: NonNull<Chunk> = home.cast();
        // SAFETY: the home is unused, in a block that is kept as long as the pool, and so the chunk.
        unsafe { place.as_ptr().write(chunk) };
        self.listed.push(Registered(place));
        if !is_one_off {
            self.kept[class] += 1;
        }
        Hand(place)
    }

    pub(crate) fn remove(&mut self, chunk: &Chunk) {
        let at = chunk.registered();
        self.listed.swap_remove(at);
        if let Some(moved) = self.listed.get(at) {
            moved.chunk().set_registered(at);
        }
        if !chunk.is_retired() {
            self.kept[chunk.class()] -= 1;
        }
    }

    #[cold]
    fn build(&mut self) -> Home {
        let block = Block::new();
        self.homes.extend((1..BLOCK).rev().map(|at| block.home(at)));
        let first = block.home(0);
        self.blocks.push(block);
        first
    }

    /// Keeps the home of a destroyed chunk for another one. Frees all homes once no chunk is left.
    pub(super) fn keep(&mut self, home: Home) {
        if BLOCK == 1 {
            self.blocks.retain(|block| block.home(0) != home);
            return;
        }
        self.homes.push(home);
        if self.homes.len() == self.blocks.len() * BLOCK && self.blocks.len() > 1 {
            self.homes.clear();
            self.blocks.clear();
        }
    }

    /// Retires the chunks for which `least` returns a number, while their class keeps more.
    pub(crate) fn retire(&mut self, mut least: impl FnMut(&Chunk) -> Option<usize>) {
        for chunk in self.listed.iter().map(Registered::chunk) {
            let kept = &mut self.kept[chunk.class()];
            if least(chunk).is_some_and(|least| *kept > least) && !chunk.is_retired() {
                *kept -= 1;
                chunk.retire();
            }
        }
    }

    pub(crate) fn of_class(&self, class: usize) -> impl Iterator<Item = &Chunk> {
        self.chunks().filter(move |chunk| chunk.class() == class && !chunk.is_retired())
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.listed.iter().map(Registered::chunk)
    }
}

/// The memory of [`BLOCK`] chunks.
struct Block(NonNull<MaybeUninit<[Chunk; BLOCK]>>);

// SAFETY: plain memory, which only the chunks in it use.
unsafe impl Send for Block {}

impl Block {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::new(MaybeUninit::uninit()))))
    }

    fn home(&self, at: usize) -> Home {
        assert!(at < BLOCK);
        let first: Home = self.0.cast();
        // SAFETY: within the array, and so not null.
        unsafe { NonNull::new_unchecked(first.as_ptr().wrapping_add(at)) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` leaked the box. No chunk is in it: the registry drops its blocks when all
        // homes are unused, or with the pool, which each chunk keeps alive.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

struct Registered(NonNull<Chunk>);

// SAFETY: it only hands out shared references, under the registry's lock, and `Chunk` is `Sync`.
unsafe impl Send for Registered {}

impl Registered {
    fn chunk(&self) -> &Chunk {
        // SAFETY: a chunk is removed from the registry, under its lock, before it is destroyed.
        unsafe { self.0.as_ref() }
    }
}

#[cfg(all(test, not(loom), not(shm_pool_asan)))]
mod tests {
    use super::BLOCK;
    use crate::Provider;

    #[test]
    fn homes_are_reused_and_released() {
        let name = format!("shm_pool-unit-{}-homes", std::process::id());
        let provider = Provider::builder().name_prefix(name).build().unwrap();
        let blocks = || provider.pool().registry.lock().blocks.len();
        for _ in 0..3 {
            let held: Vec<_> = (0..3 * BLOCK + 1).map(|_| provider.alloc(1000).unwrap()).collect();
            assert_eq!(blocks(), 4);
            drop(held);
            provider.trim();
            assert_eq!(blocks(), 0);
            drop(provider.alloc(1000).unwrap());
            provider.trim();
            assert_eq!(blocks(), 1, "one is kept");
        }
    }
}
