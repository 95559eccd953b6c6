//! All chunks that exist, for statistics, and the homes of some that are gone.

use crate::owner::arena::Carved;
use crate::owner::chunk::{Chunk, Home, OwnedChunk};
use crate::owner::pool::Pool;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// How many homes of destroyed chunks are kept. None under AddressSanitizer, so that it can catch
/// stray accesses to them.
const SPARE_HOMES: usize = if cfg!(shm_pool_asan) { 0 } else { 32 };

/// The list of a pool's chunks, with a stock of homes for new ones.
pub(crate) struct Registry {
    listed: Vec<Registered>,
    /// How many chunks of each class there are, except one-offs.
    of_class: Box<[usize]>,
    /// Homes of destroyed chunks. Getting this much aligned memory from the system's allocator
    /// takes longer than everything else in making a chunk.
    homes: Vec<Home>,
}

impl Registry {
    pub(crate) fn new(classes: usize) -> Self {
        Self { listed: Vec::new(), of_class: vec![0; classes].into(), homes: Vec::new() }
    }

    /// How many chunks of a class there are, except one-offs.
    pub(crate) fn count(&self, class: usize) -> usize {
        self.of_class[class]
    }

    /// How many chunks there are.
    pub(crate) fn len(&self) -> usize {
        self.listed.len()
    }

    /// Makes a chunk and lists it.
    pub(crate) fn enter(&mut self, pool: Arc<Pool>, class: usize, memory: Carved, is_one_off: bool) -> OwnedChunk {
        let home = self.homes.pop().unwrap_or_else(|| Box::new(MaybeUninit::uninit()));
        let chunk = Chunk::make(home, pool, class, memory, is_one_off);
        chunk.set_registered(self.listed.len());
        self.listed.push(Registered(NonNull::from(&*chunk)));
        self.of_class[class] += usize::from(!is_one_off);
        chunk
    }

    /// Takes a chunk off the list before it is destroyed. Returns the remaining
    /// [count](Self::count) of its class.
    pub(crate) fn remove(&mut self, chunk: &Chunk) -> usize {
        let at = chunk.registered();
        self.listed.swap_remove(at);
        if let Some(moved) = self.listed.get(at) {
            moved.chunk().set_registered(at);
        }
        self.of_class[chunk.class()] -= usize::from(!chunk.is_one_off());
        self.count(chunk.class())
    }

    /// Keeps the home of a destroyed chunk for another one.
    pub(crate) fn keep(&mut self, home: Home) {
        if self.homes.len() < SPARE_HOMES {
            self.homes.push(home);
        }
    }

    /// The chunks of a class, except one-offs.
    pub(crate) fn of_class(&self, class: usize) -> impl Iterator<Item = &Chunk> {
        self.chunks().filter(move |chunk| chunk.class() == class && !chunk.is_one_off())
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.listed.iter().map(Registered::chunk)
    }
}

/// A chunk in the registry.
struct Registered(NonNull<Chunk>);

// SAFETY: it only gives out shared references, under the registry's lock, and `Chunk` is `Sync`.
unsafe impl Send for Registered {}

impl Registered {
    fn chunk(&self) -> &Chunk {
        // SAFETY: a chunk is taken off the registry, under its lock, before it is destroyed.
        unsafe { self.0.as_ref() }
    }
}
