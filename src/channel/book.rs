//! The book: which buffers are out, by number. A handle is a pointer in a cell, so lending one is a
//! plain store.
//!
//! | a cell holds | whose it is | becomes |
//! |---|---|---|
//! | null | the sender's, which alone fills cells | full by [`Cells::put`] |
//! | a handle | the holder of the lock's | null by [`Cells::take`] |
//!
//! What is in the book is also told to who looks from outside: see `lent`.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | [`Cells::put`]: Release | [`Cells::take`]: Acquire | the chunk that the handle is of |
//! | [`Cells::take`]: Release | [`Cells::free`]: Acquire | what was done before the cell was empty |
//!
//! A number that comes back was put in before: the message went to the receiver and its return came
//! back, each with a Release and an Acquire. The first pair is for a number that a hostile
//! receiver made up: it may name a handle that was only just put in, and `take` takes that.

use super::layout::Shared;
use super::lent;
use crate::owner::buf::ShmBuf;
use crate::owner::chunk::Chunk;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use parking_lot::{Mutex, MutexGuard};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Pointers by number.
pub(super) struct Cells<T>(Box<[AtomicPtr<T>]>);

impl<T> Cells<T> {
    /// Cells for the numbers below `count`. `None` if there is no memory for them.
    pub(super) fn new(count: usize) -> Option<Self> {
        let mut cells = Vec::new();
        cells.try_reserve_exact(count).ok()?;
        cells.resize_with(count, || AtomicPtr::new(ptr::null_mut()));
        Some(Self(cells.into_boxed_slice()))
    }

    /// A free number; the search starts at `first` and wraps around.
    #[inline]
    pub(super) fn free(&self, first: usize) -> Option<usize> {
        let (before, after) = self.0.split_at(first.min(self.0.len()));
        // Acquire: partner of the Release in `take`. A cell that this thread saw empty stays empty
        // until this thread fills it.
        let is_free = |cell: &AtomicPtr<T>| {
            #[cfg(all(test, not(loom)))]
            tests::LOOKS.set(tests::LOOKS.get() + 1);
            cell.load(Ordering::Acquire).is_null()
        };
        after.iter().position(is_free).map(|at| before.len() + at).or_else(|| before.iter().position(is_free))
    }

    /// Fills a free cell.
    #[inline]
    pub(super) fn put(&self, number: usize, value: NonNull<T>) {
        if let Some(cell) = self.0.get(number) {
            // Release: partner of the Acquire in `take` and `all`.
            cell.store(value.as_ptr(), Ordering::Release);
        }
    }

    /// Empties a cell that is full, after `note`. Only one thread does so at a time: then a cell
    /// that is full stays as it is until it is emptied here, and no read-modify-write is needed.
    #[inline]
    pub(super) fn take(&self, number: usize, note: impl FnOnce()) -> Option<NonNull<T>> {
        let cell = self.0.get(number)?;
        let found = NonNull::new(cell.load(Ordering::Acquire))?;
        note();
        // Release: partner of the Acquire in `free`.
        cell.store(ptr::null_mut(), Ordering::Release);
        Some(found)
    }

    fn all(&self) -> impl Iterator<Item = NonNull<T>> + '_ {
        self.0.iter().filter_map(|cell| NonNull::new(cell.load(Ordering::Acquire)))
    }
}

/// The buffers that are out, by number. A buffer that is still in the book when it is dropped is
/// never given back.
pub(super) struct Book {
    cells: Cells<Chunk>,
    /// Where what is lent is told to others.
    shared: Arc<Shared>,
    /// How many returns were read. Buffers are taken out under this lock.
    returned: Mutex<u64>,
    /// How many buffers were put in, and taken out. Each has one writer at a time: the sender, and
    /// the holder of the lock. So that a full book is known without a search.
    put_in: AtomicU64,
    taken_out: AtomicU64,
}

/// The right to take buffers out of the book.
pub(super) struct Taking<'a> {
    book: &'a Book,
    pub(super) returned: MutexGuard<'a, u64>,
}

impl Book {
    /// The book of what is lent by this object, which has as many loans as there are cells.
    pub(super) fn new(cells: Cells<Chunk>, shared: Arc<Shared>) -> Self {
        let (put_in, taken_out) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { cells, shared, returned: Mutex::new(0), put_in, taken_out }
    }

    /// Is no number free? Only the sender asks. If one has come free just now, it may say so still.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        // Relaxed: `free` looks at the cells themselves.
        let out = self.put_in.load(Ordering::Relaxed).wrapping_sub(self.taken_out.load(Ordering::Relaxed));
        out >= self.cells.0.len() as u64
    }

    /// A free number; the search starts at `first` and wraps around.
    #[inline]
    pub(super) fn free(&self, first: usize) -> Option<usize> {
        self.cells.free(first)
    }

    /// Keeps a buffer under a free number. Only one thread does so at a time: the sender's.
    /// `ticket` is the message's.
    #[inline]
    pub(super) fn put(&self, number: usize, ticket: u64, buffer: ShmBuf) {
        lent::note(self.shared.lent(), number, ticket, buffer.len());
        self.cells.put(number, buffer.into_chunk());
        add_one(&self.put_in);
    }

    pub(super) fn lock(&self) -> Taking<'_> {
        Taking { book: self, returned: self.returned.lock() }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Taking<'_>> {
        self.returned.try_lock().map(|returned| Taking { book: self, returned })
    }
}

/// For the only writer: no read-modify-write.
#[inline]
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl Taking<'_> {
    /// Takes out the buffer with this number, if there is one. Its length is lost.
    #[inline]
    pub(super) fn take(&self, number: usize) -> Option<ShmBuf> {
        self.take_after(number, || lent::strike(self.book.shared.lent(), number))
    }

    #[inline]
    fn take_after(&self, number: usize, note: impl FnOnce()) -> Option<ShmBuf> {
        let chunk = self.book.cells.take(number, note)?;
        add_one(&self.book.taken_out);
        // SAFETY: `Book::put` put the handle in, and `Cells::take`, under the lock, takes it out
        // once.
        Some(unsafe { ShmBuf::from_chunk(chunk) })
    }

    /// Notes that another return was read, once what it names was taken out.
    #[inline]
    pub(super) fn note_read(&mut self) {
        *self.returned = self.returned.wrapping_add(1);
        self.book.shared.returns_read().store(*self.returned, Ordering::Relaxed);
    }

    /// Takes everything out that the receiver keeps: to who looks from outside it stays lent.
    pub(super) fn take_all_kept(&self) -> impl Iterator<Item = ShmBuf> + '_ {
        (0..self.book.cells.0.len()).filter_map(|number| self.take_after(number, || ()))
    }

    /// Takes everything out.
    pub(super) fn take_all(&self) -> impl Iterator<Item = ShmBuf> + '_ {
        (0..self.book.cells.0.len()).filter_map(|number| self.take(number))
    }

    /// The chunks of the buffers that are out.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        // SAFETY: the handle in the cell keeps the chunk (I3), and handles are taken out only under
        // the lock, which `self` holds while the chunk is borrowed.
        self.book.cells.all().map(|chunk| unsafe { chunk.as_ref() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.book.cells.all().next().is_none()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::channel::{OnFull, Publisher, Receiver};
    use crate::{Client, Provider};
    use std::cell::Cell;

    thread_local! {
        /// How many cells this thread has looked at in search of a free one.
        pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    /// Otherwise each message costs a look at every loan of a receiver that has all that it may.
    #[test]
    fn a_full_book_is_not_searched() {
        const LOANS: usize = 1024;
        let name = format!("book-{}", std::process::id());
        let provider = Provider::builder().name_prefix(&name).build().unwrap();
        let mut publisher = Publisher::builder().capacity(2 * LOANS).loans(LOANS).create(&provider, &name).unwrap();
        let client = Client::builder().name_prefix(&name).build().unwrap();
        let mut receiver = Receiver::builder().on_full(OnFull::DropNew).open(&client, &name).unwrap();
        let buffer = provider.alloc(1).unwrap().freeze();
        let mut looks_of = |messages: usize, takers: usize| {
            LOOKS.set(0);
            (0..messages).for_each(|_| assert_eq!(publisher.send(buffer.clone()).unwrap(), takers));
            LOOKS.get()
        };
        assert_eq!(looks_of(LOANS, 1), LOANS, "one for each message");
        assert_eq!(looks_of(100, 0), 0);
        drop(receiver.recv().unwrap());
        assert!((1..=LOANS).contains(&looks_of(1, 1)), "the one that came back");
        assert_eq!(looks_of(100, 0), 0);
    }
}
