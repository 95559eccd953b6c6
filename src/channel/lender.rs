//! The lender: the sender's side of the buffers on loan to one receiver.
//!
//! A *loan* is a buffer that was sent. The lender keeps its handle, so the chunk stays in use,
//! under a number that travels with the message, until the receiver returns the number (see
//! `ring`). Each receiver of a buffer has its own handle, number and lender.
//!
//! | loan | its cell in [`Loans`] | its number | until |
//! |---|---|---|---|
//! | free | null | in the sender's list, or in the lender's | the sender's [`Loans::put`] |
//! | out | a handle | in its slot, or at the receiver | [`Taking::take`], under the lock: the receiver has returned it or died, or it was not sent |
//!
//! So each number is in at most one list, even if a receiver returns garbage. The sender reuses the
//! number returned last, and takes the lock before a message only if its own list is empty.
//!
//! Until a message is in its slot, the sender makes no read-modify-write, which would wait for the
//! lines of the buffer just written.
//!
//! # When returns are collected
//!
//! * By the sender, after a message is sent and its receiver woken, if the lock is free: a few, in
//!   time for the next buffer to be one that is still in the cache.
//! * By the sender, when no number is free.
//! * By the pool, when a class has no idle chunk, and has three chunks already or the arenas cannot
//!   grow; when it trims, reclaims or gets another lender; and when it is asked whether a buffer is
//!   on loan.
//!
//! # When an end closes or dies
//!
//! A closing receiver returns what it has not received, and later each received message as that is
//! dropped. A dead receiver's loans are reclaimed, by the sender or the pool, once its lock is
//! free: no thread of it can read any more. When the sender is dropped, the pool goes on asking
//! this lender. When both are dropped, the chunks are given up, but their bytes remain until the
//! receiver drops the messages.

use super::layout::Shared;
use super::object::Object;
use super::outside;
use super::ring::{self, note_look};
use crate::os::fork;
use crate::os::locks::LockFile;
use crate::os::name::Link;
use crate::owner::buf::ShmBuf;
use crate::owner::chunk::Chunk;
use crate::owner::pool::Lends;
use crate::protocol::control::RECEIVER_BYTE;
use crate::sync::{AtomicPtr, AtomicU64, Mutex, MutexGuard, Ordering};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// How many returns the sender reads after each message.
const PER_MESSAGE: usize = 4;

pub(super) struct Loans<T> {
    cells: Box<[AtomicPtr<T>]>,
    /// Only the sender writes it.
    put_in: AtomicU64,
    /// How many returns were read. Written under the lock.
    read: AtomicU64,
    back: Mutex<Back>,
}

struct Back {
    taken_out: u64,
    /// The numbers freed since the sender last asked; never reallocated.
    free: Vec<u32>,
    /// The bytes of their chunks.
    freed: usize,
}

/// The lock, whose holder may take pointers out.
pub(super) struct Taking<'a, T> {
    loans: &'a Loans<T>,
    back: MutexGuard<'a, Back>,
}

impl<T> Loans<T> {
    /// Creates `count` loans, with their numbers; `None` if memory is short.
    pub(super) fn new(count: usize) -> Option<(Self, Vec<u32>)> {
        let (mut cells, mut free, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        cells.try_reserve_exact(count).ok()?;
        cells.resize_with(count, || AtomicPtr::new(ptr::null_mut()));
        free.try_reserve_exact(count).ok()?;
        // So that its first use causes no page fault.
        free.resize(count, 0);
        free.clear();
        numbers.try_reserve_exact(count).ok()?;
        numbers.extend((0..count as u32).rev());
        let back = Mutex::new(Back {
            taken_out: 0,
            free,
            freed: 0,
        });
        let (put_in, read) = (AtomicU64::new(0), AtomicU64::new(0));
        Some((
            Self {
                cells: cells.into_boxed_slice(),
                put_in,
                read,
                back,
            },
            numbers,
        ))
    }

    #[inline]
    pub(super) fn put(&self, number: u32, value: NonNull<T>) {
        let Some(cell) = self.cells.get(number as usize) else {
            return;
        };
        // Release: the chunk; partner of the Acquire in `take` and `all`.
        cell.store(value.as_ptr(), Ordering::Release);
        // Relaxed: only the sender writes it, and `is_over` first checks that the sender is closed.
        self.put_in.store(
            self.put_in.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    #[inline]
    fn read(&self) -> u64 {
        // Relaxed: without the lock, a stale value only postpones the next look.
        self.read.load(Ordering::Relaxed)
    }

    /// Returns `true` if there is a return to [take](Taking::take_returned).
    #[inline]
    pub(super) fn has_returned(&self, returns: &[AtomicU64]) -> bool {
        ring::returned(returns, self.read()).is_some()
    }

    pub(super) fn lock(&self) -> Taking<'_, T> {
        Taking {
            loans: self,
            back: self.back.lock(),
        }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> Option<Taking<'_, T>> {
        self.back
            .try_lock()
            .map(|back| Taking { loans: self, back })
    }
}

impl<T> Taking<'_, T> {
    /// Calls `note` and takes out the pointer with this number, if there is one.
    #[inline]
    pub(super) fn take(&mut self, number: u32, note: impl FnOnce(usize)) -> Option<NonNull<T>> {
        note_look();
        let cell = self.loans.cells.get(number as usize)?;
        // Acquire: partner of the Release in `put`, for numbers that a hostile receiver invents. A
        // genuine one has travelled to the receiver and back.
        let found = NonNull::new(cell.load(Ordering::Acquire))?;
        note(number as usize);
        // Relaxed: only the holder of the lock empties cells, and the sender gets the number under
        // the lock before it fills the cell.
        cell.store(ptr::null_mut(), Ordering::Relaxed);
        self.back.taken_out = self.back.taken_out.wrapping_add(1);
        self.back.free.push(number);
        Some(found)
    }

    /// Takes out the pointer that the next return names; `Some(None)` if none has that number.
    #[inline]
    pub(super) fn take_returned(
        &mut self,
        returns: &[AtomicU64],
        note: impl FnOnce(usize),
    ) -> Option<Option<NonNull<T>>> {
        let read = self.loans.read();
        let number = ring::returned(returns, read)?;
        let found = self.take(number, note);
        // Relaxed: the next reader under the lock; without it, see `read`.
        self.loans
            .read
            .store(read.wrapping_add(1), Ordering::Relaxed);
        Some(found)
    }

    pub(super) fn take_all(
        &mut self,
        note: impl Fn(usize),
        mut drop: impl FnMut(NonNull<T>),
    ) -> usize {
        let numbers = 0..self.loans.cells.len() as u32;
        numbers
            .filter_map(|number| self.take(number, &note))
            .map(&mut drop)
            .count()
    }

    pub(super) fn out(&self) -> u64 {
        // A pointer taken out for a hostile receiver may not be counted as put in yet.
        (self
            .loans
            .put_in
            .load(Ordering::Relaxed)
            .wrapping_sub(self.back.taken_out) as i64)
            .max(0) as u64
    }

    fn all(&self) -> impl Iterator<Item = NonNull<T>> + '_ {
        // Acquire: partner of the Release in `put`.
        self.loans
            .cells
            .iter()
            .filter_map(|cell| NonNull::new(cell.load(Ordering::Acquire)))
    }

    /// Moves the freed numbers to the sender's list.
    #[inline]
    pub(super) fn hand_over(&mut self, known: &mut Known) {
        self.back
            .free
            .drain(..)
            .for_each(|number| known.numbers.push(number));
        known.out = known.out.wrapping_sub(std::mem::take(&mut self.back.freed));
    }
}

pub(super) struct Known {
    pub(super) numbers: Vec<u32>,
    /// The bytes of the chunks whose numbers are not free.
    pub(super) out: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) loans: usize,
    pub(super) bytes: usize,
}

/// How many buffers a receiver may hold, whatever their length.
pub(super) const ALWAYS: usize = 2;

impl Limit {
    /// Returns `true` if the receiver may get a chunk of `bytes` (0: the message is no buffer) with
    /// `free` loans free and `out` bytes out.
    #[inline]
    pub(super) fn allows(&self, bytes: usize, free: usize, out: usize) -> bool {
        let has_bytes = out.saturating_add(bytes) <= self.bytes || self.loans - free < ALWAYS;
        bytes == 0 || free > 0 && has_bytes
    }
}

impl Known {
    #[inline]
    pub(super) fn allows(&self, bytes: usize, limit: Limit) -> bool {
        limit.allows(bytes, self.numbers.len(), self.out)
    }
}

pub(super) struct Lender {
    shared: Arc<Shared>,
    /// Of a pair whose sender has been dropped. Dropped before its lock is released. If loans are
    /// out then, the object stays for the receiver.
    link: OnceLock<Link>,
    locks: Arc<LockFile>,
    fork_epoch: u64,
    /// One that is still out when this is dropped never returns to the pool.
    loans: Loans<Chunk>,
    is_closed: AtomicBool,
}

impl Lender {
    /// There are as many `loans` as the object says.
    pub(super) fn new(object: &Object, loans: Loans<Chunk>) -> Self {
        let (shared, locks) = (object.shared().clone(), object.locks().clone());
        Self {
            shared,
            locks,
            fork_epoch: fork::epoch(),
            loans,
            is_closed: AtomicBool::new(false),
            link: OnceLock::new(),
        }
    }

    /// Keeps the name of a pair's object, which its sender has closed, until the loans have ended.
    pub(super) fn hold_link(&self, link: Link) {
        let _ = self.link.set(link);
    }

    /// Returns `true` if a buffer of `bytes` may be sent, after a [fetch](Self::fetch) if necessary.
    pub(super) fn allows(&self, bytes: usize, (free, out): (usize, usize), limit: Limit) -> bool {
        let mut taking = self.loans.lock();
        self.collect_few(&mut taking, self.all());
        limit.allows(
            bytes,
            free + taking.back.free.len(),
            out.wrapping_sub(taking.back.freed),
        )
    }

    /// Collects all returns. Only the sender calls this.
    #[cold]
    pub(super) fn fetch(&self, known: &mut Known) {
        let mut taking = self.loans.lock();
        self.collect_few(&mut taking, self.all());
        taking.hand_over(known);
    }

    /// Lends a buffer under a free number, for the message with this ticket. Only the sender calls
    /// this.
    #[inline]
    pub(super) fn put(&self, number: u32, ticket: u64, buffer: ShmBuf) {
        outside::note(
            self.shared.loan_words(),
            number as usize,
            ticket,
            buffer.len(),
        );
        self.loans.put(number, buffer.into_chunk());
    }

    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        self.loans.has_returned(self.shared.returns())
    }

    /// If there are returns and the lock is free, collects some and moves the freed numbers to the
    /// sender's list.
    #[inline(always)]
    pub(super) fn collect_some(&self, known: &mut Known) {
        if !self.has_returned() {
            return;
        }
        if let Some(mut taking) = self.loans.try_lock() {
            self.collect_few(&mut taking, 0..PER_MESSAGE);
            taking.hand_over(known);
        }
    }

    /// Takes back a buffer that was not sent, or was withdrawn, if it is still out.
    pub(super) fn take_back(&self, number: u32) -> Option<ShmBuf> {
        let mut taking = self.loans.lock();
        let found = taking
            .take(number, |number| self.strike(number))
            .map(Self::handle);
        taking.back.freed += found.as_ref().map_or(0, ShmBuf::capacity);
        found
    }

    pub(super) fn loaned(&self) -> usize {
        self.loans.lock().out() as usize
    }

    /// Drops the buffers that the next returns name, at most one per step. Returns their number.
    #[inline]
    fn collect_few(
        &self,
        taking: &mut Taking<'_, Chunk>,
        steps: impl Iterator<Item = usize>,
    ) -> usize {
        let next = |_| {
            let found =
                taking.take_returned(self.shared.returns(), |number| self.strike(number))?;
            // For observers; after the handle was taken out.
            self.shared
                .returns_read()
                .store(self.loans.read(), Ordering::Relaxed);
            Some(found.map(Self::handle).map(|buffer| {
                taking.back.freed += buffer.capacity();
                // Another receiver may still read it.
                if buffer.is_last() {
                    buffer.fetch_ends();
                }
            }))
        };
        steps.map_while(next).flatten().count()
    }

    /// A bound against invented returns.
    fn all(&self) -> std::ops::Range<usize> {
        0..self.shared.returns().len()
    }

    fn handle(chunk: NonNull<Chunk>) -> ShmBuf {
        // SAFETY: `put` put the handle in, and `Taking::take`, under the lock, took it out once.
        unsafe { ShmBuf::from_chunk(chunk) }
    }

    #[inline]
    fn strike(&self, number: usize) {
        outside::strike(self.shared.loan_words(), number);
    }

    pub(super) fn close(&self) {
        // After `Object::close`. Release: partner of the Acquire in `is_closed`, whose reader then
        // finds that no receiver can join any more.
        self.is_closed.store(true, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        // Acquire: partner of the Release in `close`.
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns `true` if no receiver can read: it died, it closed and dropped its messages, or none
    /// has joined or can.
    fn is_nobody_reading(&self) -> bool {
        let (bell, had_receiver) = (self.shared.to_sender(), self.shared.has_had_receiver());
        let is_unlocked = || !self.locks.is_locked(RECEIVER_BYTE);
        if had_receiver && is_unlocked() {
            // Garbage may have made the dead receiver's bell free.
            bell.close();
        }
        // In this order: a receiver that joins now already holds the lock, or is refused.
        (had_receiver || self.is_closed() || bell.is_gone()) && is_unlocked()
    }
}

impl Lends for Lender {
    fn collect(&self) -> usize {
        self.collect_few(&mut self.loans.lock(), self.all())
    }

    fn each_loaned(&self, tell: &mut dyn FnMut(&Chunk)) {
        let taking = self.loans.lock();
        // SAFETY: the handle in the cell keeps the chunk (I3), and handles are taken out only under
        // the lock, which `taking` holds while the chunk is borrowed.
        taking
            .all()
            .for_each(|chunk| tell(unsafe { chunk.as_ref() }));
    }

    fn reclaim(&self) -> usize {
        if self.loaned() == 0 || !self.is_nobody_reading() {
            return 0;
        }
        self.loans.lock().take_all(
            |number| self.strike(number),
            |chunk| drop(Self::handle(chunk)),
        )
    }

    fn is_over(&self) -> bool {
        self.is_closed() && self.loaned() == 0
    }
}

impl Drop for Lender {
    /// Runs once sender and pool have dropped it. The receiver keeps the remaining buffers.
    fn drop(&mut self) {
        // In a forked child the handles do nothing, and a thread that is not there may hold the
        // lock.
        if self.fork_epoch != fork::epoch() {
            return;
        }
        self.collect();
        self.reclaim();
        // The notes stay: observers still see these loans.
        let left = self
            .loans
            .lock()
            .take_all(|_| (), |chunk| Self::handle(chunk).give_up_to_reader());
        if left > 0 {
            if let Some(link) = self.link.get() {
                link.keep();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::layout::{self, Facts, MAX_SLOTS};
    use super::super::ring::tests::LOOKS;
    use super::*;
    use crate::channel::{OnFull, Publisher, PublisherBuilder, Receiver};
    use crate::{Client, Provider};
    use std::cell::RefCell;

    const LOANS: usize = 16;

    struct Scene {
        channels: [(Lender, RefCell<Known>); 2],
        provider: Provider,
    }

    impl Scene {
        fn new(test: &str) -> Self {
            let prefix = format!("shm_pool-unit-{}-{test}", std::process::id());
            let provider = Provider::builder().name_prefix(&prefix).build().unwrap();
            let channel = |name| {
                let name = layout::name(provider.names(), name).unwrap();
                let object =
                    Object::create(&name, &Facts::of_pair(provider.id(), 3, LOANS), 0o600, None)
                        .unwrap();
                let (loans, numbers) = Loans::new(LOANS).unwrap();
                (
                    Lender::new(&object, loans),
                    RefCell::new(Known { numbers, out: 0 }),
                )
            };
            Self {
                channels: ["one", "other"].map(channel),
                provider,
            }
        }

        fn buffer(&self) -> ShmBuf {
            self.provider.alloc(64).unwrap().freeze()
        }

        fn lend(&self, (lender, known): &(Lender, RefCell<Known>)) {
            let mut known = known.borrow_mut();
            if known.numbers.is_empty() {
                lender.fetch(&mut known);
            }
            let buffer = self.buffer();
            known.out += buffer.capacity();
            lender.put(known.numbers.pop().unwrap(), 0, buffer);
            lender.collect_some(&mut known);
        }
    }

    #[test]
    fn forged_returns_block_nothing() {
        let scene = Scene::new("made-up");
        let channel @ (lender, _) = &scene.channels[0];
        let words = lender.shared.returns();
        // Each step lends and returns the buffer once more.
        let again = |&step: &usize| {
            assert!(step < LOANS, "there is no end");
            lender.put(0, 0, scene.buffer());
            ring::give_back(words, step as u64, 0);
        };
        assert_eq!(
            lender.collect_few(&mut lender.loans.lock(), lender.all().inspect(again)),
            LOANS
        );
        assert_eq!(lender.loans.read(), LOANS as u64);

        // The only number out is that of the message just sent.
        (LOANS..2 * LOANS)
            .for_each(|ticket| ring::give_back(words, ticket as u64, LOANS as u32 + 1));
        scene.lend(channel);
        assert_eq!(
            lender.loans.read(),
            (LOANS + PER_MESSAGE) as u64,
            "a few returns for each message"
        );
    }

    #[test]
    fn forged_returns_free_only_loans() {
        let scene = Scene::new("not-its-own");
        let [channel @ (lender, known), elsewhere @ (other, _)] = &scene.channels;
        (0..4).for_each(|_| scene.lend(channel));
        (0..LOANS).for_each(|_| scene.lend(elsewhere));
        let words = lender.shared.returns();
        // Out, repeated, not out, and the largest possible one.
        let made_up = [0, 0, 2, 2, 2, 4, 15, 16, 17, 1000, 0xff_ffff, 2];
        made_up
            .iter()
            .zip(0..)
            .for_each(|(&number, ticket)| ring::give_back(words, ticket, number));
        assert_eq!(lender.collect(), 2);
        known.borrow_mut().numbers.clear();
        lender.fetch(&mut known.borrow_mut());
        assert_eq!(known.borrow().numbers, [0, 2]);
        assert_eq!(known.borrow().out, 2 * 64, "their bytes");
        assert_eq!((lender.loaned(), other.loaned()), (2, LOANS));
        assert_eq!(scene.provider.stats().bytes_in_use, (2 + LOANS) * 64);
    }

    #[test]
    fn loan_collected_elsewhere_is_free() {
        let scene = Scene::new("elsewhere");
        let channel @ (lender, _) = &scene.channels[0];
        (0..LOANS).for_each(|_| scene.lend(channel));
        let mut taking = lender.loans.lock();
        std::thread::scope(|scope| {
            let (tell, asks) = std::sync::mpsc::channel();
            let asking = scope.spawn(move || {
                tell.send(nix::unistd::gettid().as_raw()).unwrap();
                lender.allows(
                    1,
                    (0, 0),
                    Limit {
                        loans: LOANS,
                        bytes: usize::MAX,
                    },
                )
            });
            let call = format!("/proc/self/task/{}/syscall", asks.recv().unwrap());
            let futex = libc::SYS_futex.to_string();
            while std::fs::read_to_string(&call)
                .unwrap_or_default()
                .split(' ')
                .next()
                != Some(&futex)
            {
                std::thread::yield_now();
            }
            drop(taking.take(3, |_| ()).map(Lender::handle));
            drop(taking);
            assert!(asking.join().unwrap());
        });
    }

    /// Creates a channel with `MAX_SLOTS` slots and one receiver.
    fn large(
        test: &str,
        on_full: OnFull,
        options: PublisherBuilder,
    ) -> (Provider, Publisher, Receiver) {
        let name = format!("shm_pool-unit-{}-{test}", std::process::id());
        let provider = Provider::builder().name_prefix(&name).build().unwrap();
        let mut publisher = options
            .capacity(MAX_SLOTS)
            .create(&provider, &name)
            .unwrap();
        let client = Client::builder().name_prefix(&name).build().unwrap();
        let receiver = Receiver::builder()
            .on_full(on_full)
            .open(&client, &name)
            .unwrap();
        assert!(publisher.has_receivers());
        (provider, publisher, receiver)
    }

    #[test]
    fn send_searches_no_loans() {
        const LOANS: usize = 131_072;
        let (provider, mut publisher, mut receiver) = large(
            "loans",
            OnFull::DropNewest,
            Publisher::builder().loans(LOANS),
        );
        let buffer = provider.alloc(1).unwrap().freeze();
        let mut looks_of = |messages: usize, takers: usize| {
            LOOKS.set(0);
            (0..messages).for_each(|_| {
                assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, takers)
            });
            LOOKS.get()
        };
        let mut held = Vec::new();
        for _ in 0..2 {
            assert_eq!(looks_of(LOANS / 2, 1), 0);
            held.extend((0..LOANS / 2).map(|_| receiver.recv().unwrap()));
        }
        assert_eq!(looks_of(100, 0), 0, "all are out");
        held.swap_remove(LOANS / 3);
        assert_eq!(looks_of(1, 1), 1, "one came back");
        assert_eq!(looks_of(100, 0), 0);
        drop(receiver.recv().unwrap());
        drop(held);
        LOOKS.set(0);
        provider.pool().reclaim_loans();
        assert_eq!(LOOKS.replace(0), LOANS, "each came back");
        provider.pool().reclaim_loans();
        assert_eq!(LOOKS.get(), 0, "none is out");
    }

    #[test]
    fn send_searches_each_slot_once() {
        search_at_the_limit("slots", Publisher::builder().loans(2));
    }

    /// The limit by bytes costs no more than the one by number.
    #[test]
    fn send_searches_each_slot_once_for_bytes() {
        search_at_the_limit("bytes", Publisher::builder().max_bytes_per_receiver(128));
    }

    /// At most two buffers of 64 bytes fit.
    fn search_at_the_limit(test: &str, options: PublisherBuilder) {
        let (provider, mut publisher, mut receiver) = large(test, OnFull::DropOldest, options);
        let buffer = provider.alloc(1).unwrap().freeze();
        let mut send = |messages: usize, receivers: usize| {
            LOOKS.set(0);
            for _ in 0..messages {
                let sent = publisher.send(buffer.clone()).unwrap();
                assert_eq!(sent.receivers, receivers);
            }
            LOOKS.get()
        };

        send(2, 1);
        let held = [receiver.recv().unwrap(), receiver.recv().unwrap()];
        let looks = send(100, 0);
        assert!(looks <= 200, "{looks} looks");
        drop(held);

        // Each of these withdraws the one before the last.
        send(2, 1);
        let looks = send(100, 1);
        assert!(looks <= 300, "{looks} looks");
    }

    /// Nor do the messages that wait, with a buffer among them or none.
    #[test]
    fn send_searches_waiting_messages_once() {
        let limits = [
            ("waiting-loans", Publisher::builder().loans(2)),
            (
                "waiting-bytes",
                Publisher::builder().max_bytes_per_receiver(128),
            ),
        ];
        for (test, options) in limits {
            let (provider, mut publisher, mut receiver) = large(test, OnFull::DropOldest, options);
            let buffer = provider.alloc(1).unwrap().freeze();
            for _ in 0..2 {
                assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, 1);
            }
            let held = [receiver.recv().unwrap(), receiver.recv().unwrap()];
            for _ in 0..MAX_SLOTS {
                assert_eq!(publisher.send_bytes(&[1]).unwrap().receivers, 1);
            }

            LOOKS.set(0);
            for _ in 0..100 {
                assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, 0);
                assert_eq!(publisher.send_bytes(&[1]).unwrap().receivers, 1);
            }
            assert!(LOOKS.get() <= MAX_SLOTS + 200, "{} looks", LOOKS.get());

            // One held, one waiting behind all the bytes: there is no third for a while.
            let [one, other] = held;
            drop(one);
            assert_eq!(publisher.send(buffer.clone()).unwrap().receivers, 1);
            LOOKS.set(0);
            for _ in 0..100 {
                assert_eq!(publisher.send(buffer.clone()).unwrap().withdrawn, 1);
                assert_eq!(publisher.send_bytes(&[1]).unwrap().receivers, 1);
            }
            assert!(LOOKS.get() <= MAX_SLOTS + 600, "{} looks", LOOKS.get());
            drop(other);
        }
    }
}
