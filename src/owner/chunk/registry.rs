//! The list of a pool's chunks, under one lock.

use super::{Chunk, ClosedChunk, Home};
use crate::owner::arena::Carved;
use crate::owner::pool::Pool;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// Homes of destroyed chunks that are kept for reuse. None under AddressSanitizer, so that it
/// catches stray accesses.
const SPARE_HOMES: usize = if cfg!(shm_pool_asan) { 0 } else { 32 };

pub(crate) struct Registry {
    listed: Vec<Registered>,
    /// The number of chunks of each class, except one-off and retired ones.
    kept: Box<[usize]>,
    /// glibc is slow to allocate memory of this alignment.
    homes: Vec<Home>,
}

impl Registry {
    pub(crate) fn new(classes: usize) -> Self {
        let homes = Vec::with_capacity(SPARE_HOMES);
        Self { listed: Vec::new(), kept: vec![0; classes].into(), homes }
    }

    pub(crate) fn count(&self, class: usize) -> usize {
        self.kept[class]
    }

    pub(crate) fn enter(&mut self, pool: Arc<Pool>, class: usize, memory: Carved, is_one_off: bool) -> ClosedChunk {
        let home = self.homes.pop().unwrap_or_else(|| Box::new(MaybeUninit::uninit()));
        let chunk = Chunk::make(home, pool, class, memory, is_one_off);
        chunk.set_registered(self.listed.len());
        self.listed.push(Registered(NonNull::from(&*chunk)));
        if !is_one_off {
            self.kept[class] += 1;
        }
        chunk
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

    pub(crate) fn keep(&mut self, home: Home) {
        if self.homes.len() < SPARE_HOMES {
            self.homes.push(home);
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

struct Registered(NonNull<Chunk>);

// SAFETY: it only hands out shared references, under the registry's lock, and `Chunk` is `Sync`.
unsafe impl Send for Registered {}

impl Registered {
    fn chunk(&self) -> &Chunk {
        // SAFETY: a chunk is removed from the registry, under its lock, before it is destroyed.
        unsafe { self.0.as_ref() }
    }
}
