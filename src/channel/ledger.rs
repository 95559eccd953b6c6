//! The ledger: the accounts of all receivers of a channel, under one lock.
//!
//! Each receiver of a buffer has its own handle and number, in its own account (see `borrowed`). The
//! pool asks the ledger for returned buffers; the sender has the other side of each account (see
//! `account_holder`).
//!
//! # When returns are collected
//!
//! * By the sender, after a message is sent and its receivers woken, if the lock is free: a few of
//!   each receiver, in time for the next buffer to be one that is still in the cache.
//! * By the sender, when no number is free.
//! * By the pool, when a class has no idle chunk, and has three chunks already or the arenas cannot
//!   grow; when it trims, reclaims or gets another ledger; and when it is asked whether a buffer is
//!   borrowed.
//!
//! Receivers mostly return the same few messages, so handles of one chunk are released together:
//! one read-modify-write for all of them ([`Ended`]). That happens once the lock is free again,
//! because it may wake threads that wait for memory.
//!
//! # When an end closes or dies
//!
//! A closing receiver returns what it has not received, and later each received message as that is
//! dropped. A dead receiver's borrowed buffers are reclaimed, by the sender or the pool, once its
//! lock is free: no thread of it can read any more. When the sender is dropped, the pool goes on
//! asking this ledger. When both are dropped, the chunks are given up, but their bytes remain until
//! the receivers drop the messages.

use super::account_holder::AccountHolder;
use super::borrowed::{Account, Borrowed, Known, Limit};
use super::layout::Shared;
use super::object::Object;
use super::outside;
use crate::os::fork::ForkGuard;
use crate::os::locks::LockFile;
use crate::os::name::Link;
use crate::owner::buf::ShmBytes;
use crate::owner::chunk::Chunk;
use crate::owner::pool::Lends;
use crate::protocol::control::RECEIVER_BYTE;
use crate::sync::{Mutex, MutexGuard};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// How many returns of a receiver the sender reads after each message.
pub(super) const PER_MESSAGE: usize = 4;

/// The borrowed buffers that are still out when this is dropped never return to the pool.
pub(super) struct Ledger {
    book: Mutex<Book>,
    fork: ForkGuard,
}

struct Book {
    /// An account stays at its index until it is over.
    accounts: Vec<Option<Entry>>,
    is_closed: bool,
}

/// An account, until it is over.
#[derive(Clone)]
pub(super) struct AccountId {
    at: usize,
    pub(super) borrowed: Arc<Borrowed<Chunk>>,
}

struct Entry {
    /// Of a pair whose sender has been dropped. Dropped before its lock is released. If borrowed
    /// buffers are out then, the object stays for the receiver.
    link: Option<Link>,
    account: Account<Chunk>,
    shared: Arc<Shared>,
    locks: Arc<LockFile>,
    /// No receiver can join any more.
    is_closed: bool,
}

/// Handles whose borrowed buffers have ended. Dropped once no lock is held.
struct Ended {
    /// The first `len` are initialised. The others never are, which would cost each message some
    /// nanoseconds.
    groups: [MaybeUninit<Group>; Ended::MOST],
    len: usize,
    count: usize,
}

/// Handles of one chunk.
#[derive(Clone, Copy)]
struct Group {
    chunk: NonNull<Chunk>,
    count: usize,
}

impl Ended {
    const MOST: usize = 8;

    #[inline]
    fn new() -> Self {
        Self {
            groups: [MaybeUninit::uninit(); Self::MOST],
            len: 0,
            count: 0,
        }
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.len < Self::MOST
    }

    /// Takes over a handle, if there [is room](Self::has_room).
    #[inline]
    fn push(&mut self, chunk: NonNull<Chunk>) {
        self.count += 1;
        for group in self.groups.iter_mut().take(self.len) {
            // SAFETY: the first `len` are initialised (below).
            let group = unsafe { group.assume_init_mut() };
            if group.chunk == chunk {
                group.count += 1;
                return;
            }
        }
        if let Some(group) = self.groups.get_mut(self.len) {
            group.write(Group { chunk, count: 1 });
            self.len += 1;
        }
    }
}

impl Drop for Ended {
    #[inline]
    fn drop(&mut self) {
        for group in self.groups.iter().take(self.len) {
            // SAFETY: the first `len` are initialised (`push`).
            let group = unsafe { group.assume_init_ref() };
            // SAFETY: the sender put each of these handles into a cell, and `Account::end`, under
            // the lock, took it out once.
            unsafe { ShmBytes::drop_handles(group.chunk, group.count) };
        }
    }
}

impl Entry {
    /// Takes the handles that the next returns name, of at most `most` returns.
    #[inline(always)]
    fn collect(&mut self, most: usize, ended: &mut Ended) -> usize {
        let Self {
            account, shared, ..
        } = self;
        let returns = shared.returns();
        let words = shared.borrowed_words();
        let mut read = 0;
        while read < most && ended.has_room() {
            let Some(found) =
                account.take_returned(returns, |number| outside::strike(words, number))
            else {
                break;
            };
            read += 1;
            if let Some(chunk) = found {
                account.freed += capacity(chunk);
                ended.push(chunk);
            }
        }
        if read > 0 {
            self.note_read();
        }
        read
    }

    /// [`collect`](Self::collect), past returns that are missing.
    #[cold]
    fn collect_late(&mut self, most: usize, ended: &mut Ended) -> usize {
        let mut read = 0;
        while read < most && ended.has_room() {
            let in_order = self.collect(most - read, ended);
            read += in_order;
            if in_order > 0 {
                continue;
            }
            let Self {
                account, shared, ..
            } = self;
            let words = shared.borrowed_words();
            let strike = |number| outside::strike(words, number);
            let Some(found) = account.take_late(shared.returns(), strike) else {
                break;
            };
            read += 1;
            if let Some(chunk) = found {
                account.freed += capacity(chunk);
                ended.push(chunk);
            }
        }
        read
    }

    /// For observers; after the handles were taken out.
    #[inline]
    fn note_read(&self) {
        let read = self.shared.returns_read();
        read.at_home
            .store(self.account.read_at_home(), Ordering::Relaxed);
        read.elsewhere
            .store(self.account.read_in_order(), Ordering::Relaxed);
    }

    /// Returns `true` if nothing is borrowed, and never will be.
    fn is_over(&self) -> bool {
        self.is_closed && self.account.out() == 0
    }
}

/// The bytes of a chunk that a handle in a cell, or just taken out, keeps.
#[inline]
fn capacity(chunk: NonNull<Chunk>) -> usize {
    // SAFETY: the handle, which is dropped later, keeps the chunk (I3).
    unsafe { chunk.as_ref() }.capacity()
}

/// Returns `true` if no receiver can read: it died, it closed and dropped its messages, or none has
/// joined or can.
fn is_read_by_none(shared: &Shared, locks: &LockFile, is_closed: bool) -> bool {
    let doorbell = shared.to_sender();
    let had_receiver = shared.has_had_receiver();
    if had_receiver && !locks.is_locked(RECEIVER_BYTE) {
        // Garbage may have made the dead receiver's doorbell free.
        doorbell.close();
    }
    // In this order: a receiver that joins now already holds the lock, or is refused.
    (had_receiver || is_closed || doorbell.is_disconnected()) && !locks.is_locked(RECEIVER_BYTE)
}

/// The ledger's lock, for the returns of several receivers.
pub(super) struct Collection<'a> {
    /// Released before the handles are dropped.
    book: MutexGuard<'a, Book>,
    ended: Ended,
}

impl Collection<'_> {
    /// Collects a few returns, and moves the freed numbers to the sender's list. Returns `false` if
    /// the handles have to be dropped first.
    #[inline]
    pub(super) fn collect(&mut self, id: &AccountId, known: &mut Known) -> bool {
        if let Some(Some(entry)) = self.book.accounts.get_mut(id.at) {
            entry.collect(PER_MESSAGE, &mut self.ended);
            entry.account.hand_over(known);
        }
        self.ended.has_room()
    }
}

impl Ledger {
    /// For `receivers` at a time; more if some that have left still hold borrowed buffers.
    pub(super) fn new(receivers: usize) -> Arc<Self> {
        let book = Book {
            accounts: Vec::with_capacity(receivers),
            is_closed: false,
        };
        Arc::new(Self {
            book: Mutex::new(book),
            fork: ForkGuard::new(),
        })
    }

    /// Opens an account. Returns the sender's side of it. The receiver may hold `max_bytes`.
    pub(super) fn open(
        self: &Arc<Self>,
        object: &Object,
        (account, known): (Account<Chunk>, Known),
        max_bytes: usize,
    ) -> AccountHolder {
        let limit = Limit {
            max_borrowed: object.shared().max_borrowed(),
            bytes: max_bytes,
        };
        let borrowed = account.borrowed().clone();
        let shared = object.shared().clone();
        let entry = Entry {
            link: None,
            account,
            shared: shared.clone(),
            locks: object.locks().clone(),
            is_closed: false,
        };
        let mut book = self.book.lock();
        let at = match book.accounts.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                book.accounts.push(None);
                book.accounts.len() - 1
            }
        };
        book.accounts[at] = Some(entry);
        drop(book);
        AccountHolder::new(
            self.clone(),
            AccountId { at, borrowed },
            shared,
            known,
            limit,
        )
    }

    /// No further account will be opened.
    pub(super) fn close(&self) {
        self.book.lock().is_closed = true;
    }

    /// Calls `change` with an account, unless it is over.
    fn change<R>(&self, id: &AccountId, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let mut book = self.book.lock();
        let entry = book.accounts.get_mut(id.at)?.as_mut()?;
        // Another account may have the index by now.
        if !Arc::ptr_eq(entry.account.borrowed(), &id.borrowed) {
            return None;
        }
        Some(change(entry))
    }

    pub(super) fn close_account(&self, id: &AccountId) {
        // After `Object::close`: no receiver can join any more.
        self.change(id, |entry| entry.is_closed = true);
    }

    /// Keeps the name of a pair's object, which its sender has closed, until the borrowed buffers
    /// have ended.
    pub(super) fn hold_link(&self, id: &AccountId, link: Link) {
        self.change(id, |entry| entry.link = Some(link));
    }

    pub(super) fn borrowed(&self, id: &AccountId) -> usize {
        match self.change(id, |entry| entry.account.out()) {
            Some(out) => out as usize,
            None => 0,
        }
    }

    /// Collects all returns of one receiver, and moves the freed numbers to the sender's list.
    #[cold]
    pub(super) fn fetch(&self, id: &AccountId, known: &mut Known) {
        self.collect_account(id);
        self.change(id, |entry| entry.account.hand_over(known));
    }

    /// Returns `true` if a buffer of `bytes` may be sent, after a [fetch](Self::fetch) if
    /// necessary.
    pub(super) fn allows(&self, id: &AccountId, bytes: usize, known: &Known, limit: Limit) -> bool {
        self.collect_account(id);
        let allows = self.change(id, |entry| {
            let in_hand = known.numbers.len();
            let free = in_hand + entry.account.free(in_hand);
            let out = known.out.wrapping_sub(entry.account.freed);
            limit.allows(bytes, free, out)
        });
        allows == Some(true)
    }

    /// Takes back a buffer that was not sent, or was withdrawn, if it is still out.
    pub(super) fn take_back(&self, id: &AccountId, number: u32) -> Option<ShmBytes> {
        let chunk = self.change(id, |entry| {
            let words = entry.shared.borrowed_words();
            let strike = |number| outside::strike(words, number);
            let chunk = entry.account.take(number, strike)?;
            entry.account.freed += capacity(chunk);
            Some(chunk)
        })??;
        // SAFETY: `AccountHolder::put` put the handle into the cell, and `take`, under the lock,
        // took it out once.
        Some(unsafe { ShmBytes::from_chunk(chunk) })
    }

    /// Takes the lock, if it is free, for [`Collection::collect`].
    #[inline]
    pub(super) fn try_collect(&self) -> Option<Collection<'_>> {
        Some(Collection {
            book: self.book.try_lock()?,
            ended: Ended::new(),
        })
    }

    /// Collects the returns of one receiver. Returns how many borrowed buffers have ended.
    fn collect_account(&self, id: &AccountId) -> usize {
        let mut count = 0;
        loop {
            let mut ended = Ended::new();
            let words = self.change(id, |entry| {
                // A bound against invented returns.
                let words = entry.shared.returns().len();
                entry.collect_late(words, &mut ended);
                words
            });
            count += ended.count;
            // A full list has room once it was dropped.
            if ended.has_room() || count >= words.unwrap_or(0) {
                return count;
            }
        }
    }

    /// Reclaims the borrowed buffers of one receiver, if it cannot read any more. Returns their
    /// number.
    fn reclaim_account(&self, id: &AccountId) -> usize {
        let found = self.change(id, |entry| {
            if entry.account.out() == 0 {
                return None;
            }
            Some((entry.shared.clone(), entry.locks.clone(), entry.is_closed))
        });
        let Some(Some((shared, locks, is_closed))) = found else {
            return 0;
        };
        // A system call or two, without the lock.
        if !is_read_by_none(&shared, &locks, is_closed) {
            return 0;
        }
        let mut count = 0;
        loop {
            let mut ended = Ended::new();
            let taken = self.change(id, |entry| {
                let Entry {
                    account, shared, ..
                } = entry;
                let words = shared.borrowed_words();
                let mut freed = 0;
                for chunk in account.take_all(|number| outside::strike(words, number)) {
                    freed += capacity(chunk);
                    ended.push(chunk);
                    if !ended.has_room() {
                        break;
                    }
                }
                account.freed += freed;
            });
            count += ended.count;
            if taken.is_none() || ended.has_room() {
                return count;
            }
        }
    }

    /// Returns the first account from this index on for which `is_wanted` returns `true`.
    fn find(&self, from: usize, is_wanted: impl Fn(&Entry) -> bool) -> Option<AccountId> {
        let book = self.book.lock();
        for (at, entry) in book.accounts.iter().enumerate().skip(from) {
            match entry {
                Some(entry) if is_wanted(entry) => {
                    let borrowed = entry.account.borrowed().clone();
                    return Some(AccountId { at, borrowed });
                }
                _ => {}
            }
        }
        None
    }

    /// Calls `visit` with each such account, without the lock.
    fn for_each_account(
        &self,
        is_wanted: impl Fn(&Entry) -> bool,
        mut visit: impl FnMut(&AccountId),
    ) {
        let mut next = 0;
        while let Some(id) = self.find(next, &is_wanted) {
            visit(&id);
            next = id.at + 1;
        }
    }

    /// Ends the accounts of receivers that were disconnected, as far as their borrowed buffers have
    /// ended.
    pub(super) fn settle_closed(&self) {
        self.for_each_account(
            |entry| entry.is_closed,
            |id| {
                self.settle(id);
                self.drop_if_over(id);
            },
        );
    }

    /// Collects the returns of one receiver, and reclaims its borrowed buffers if it cannot read
    /// any more.
    pub(super) fn settle(&self, id: &AccountId) {
        self.collect_account(id);
        self.reclaim_account(id);
    }

    fn drop_if_over(&self, id: &AccountId) {
        let mut over = None;
        let mut book = self.book.lock();
        if let Some(place) = book.accounts.get_mut(id.at) {
            let is_it = |entry: &Entry| {
                Arc::ptr_eq(entry.account.borrowed(), &id.borrowed) && entry.is_over()
            };
            if place.as_ref().is_some_and(is_it) {
                over = place.take();
            }
        }
        drop(book);
        // Unmaps the object and closes a file, without the lock.
        drop(over);
    }
}

impl Lends for Ledger {
    fn collect(&self) -> usize {
        let mut count = 0;
        loop {
            let mut ended = Ended::new();
            let mut book = self.book.lock();
            // A bound against invented returns.
            let mut most = 0;
            for entry in book.accounts.iter_mut().flatten() {
                let words = entry.shared.returns().len();
                most += words;
                entry.collect_late(words, &mut ended);
            }
            drop(book);
            count += ended.count;
            // A full list has room once it was dropped.
            if ended.has_room() || count >= most {
                return count;
            }
        }
    }

    fn each_borrowed(&self, tell: &mut dyn FnMut(&Chunk)) {
        let book = self.book.lock();
        for entry in book.accounts.iter().flatten() {
            for chunk in entry.account.all() {
                // SAFETY: the handle in the cell keeps the chunk (I3), and handles are taken out
                // only under the lock, which is held while the chunk is borrowed.
                tell(unsafe { chunk.as_ref() });
            }
        }
    }

    fn has_borrowed(&self, chunk: NonNull<Chunk>) -> bool {
        let book = self.book.lock();
        let mut accounts = book.accounts.iter().flatten();
        accounts.any(|entry| entry.account.all().any(|borrowed| borrowed == chunk))
    }

    fn reclaim(&self) -> usize {
        let mut count = 0;
        self.for_each_account(
            |entry| entry.account.out() > 0,
            |id| count += self.reclaim_account(id),
        );
        self.for_each_account(Entry::is_over, |id| self.drop_if_over(id));
        count
    }

    fn is_over(&self) -> bool {
        let book = self.book.lock();
        book.is_closed && book.accounts.iter().flatten().all(Entry::is_over)
    }
}

impl Drop for Ledger {
    /// Runs once sender and pool have dropped it. The receivers keep the remaining buffers.
    fn drop(&mut self) {
        // In a forked child the handles do nothing, and a thread that is not there may hold the
        // lock.
        if !self.fork.is_ours() {
            return;
        }
        self.collect();
        self.reclaim();
        let accounts = std::mem::take(&mut self.book.lock().accounts);
        for mut entry in accounts.into_iter().flatten() {
            let mut left = 0;
            // The notes stay: observers still see these borrowed buffers.
            for chunk in entry.account.take_all(|_| ()) {
                // SAFETY: as in `take_back`.
                unsafe { ShmBytes::from_chunk(chunk) }.leak_to_reader();
                left += 1;
            }
            if left > 0 {
                if let Some(link) = &entry.link {
                    link.keep();
                }
            }
        }
    }
}
