//! Loom models of the ring, its doorbells and the borrowed buffers.

use super::borrowed::{open_account, Account, Borrowed, Known};
use super::doorbell::{Doorbell, LivenessCheck, WakeReason};
use super::interrupt::Interrupts;
use super::return_queue::counted::Owned;
use super::ring::{self, Returns, Slot, Ticket, Words, WORDS};
use crate::sync::{explore, fence, AtomicU64, Mutex, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
use loom::sync::Arc;
use loom::thread;
use std::ptr::NonNull;

struct Channel {
    slots: Vec<Slot>,
    to_receiver: Doorbell,
    to_sender: Doorbell,
}

fn channel(slots: u64) -> Arc<Channel> {
    let slots = (0..slots).map(Slot::free_for).collect();
    Arc::new(Channel {
        slots,
        to_receiver: Doorbell::new(1),
        to_sender: Doorbell::new(2),
    })
}

fn message(number: u64) -> Words {
    [number; WORDS]
}

fn receive(slots: &[Slot], ticket: &mut Ticket) -> Option<(Words, Ticket)> {
    ring::receive(slots, ticket, false, |_, _| Ok::<_, ()>(())).map(|received| received.unwrap())
}

struct Sending<'a> {
    channel: &'a Channel,
    ticket: Ticket,
    has_room: bool,
}

impl Sending<'_> {
    fn send(&mut self, number: u64) -> WakeReason {
        let (slots, now) = (&self.channel.slots, self.ticket);
        if !self.has_room {
            match self.channel.to_sender.wait(
                None,
                &mut LivenessCheck::new(),
                &Interrupts::new(),
                || ring::has_room(slots, now),
                || true,
            ) {
                WakeReason::Ready => {}
                other => return other,
            }
        }
        ring::put(slots, &mut self.ticket, &message(number));
        self.channel.to_receiver.notify();
        self.has_room = ring::has_room(slots, self.ticket);
        WakeReason::Ready
    }
}

struct Receiving<'a> {
    channel: &'a Channel,
    ticket: Ticket,
    read: Option<Ticket>,
}

impl Receiving<'_> {
    fn receive(&mut self) -> Result<Words, WakeReason> {
        let slots = &self.channel.slots;
        if let Some(read) = self.read.take() {
            ring::free(slots, read);
            self.channel.to_sender.notify();
        }
        loop {
            if let Some((words, read)) = receive(slots, &mut self.ticket) {
                self.read = Some(read);
                return Ok(words);
            }
            let is_there = || ring::has_passed(slots, self.ticket);
            match self.channel.to_receiver.wait(
                None,
                &mut LivenessCheck::new(),
                &Interrupts::new(),
                is_there,
                || true,
            ) {
                WakeReason::Ready => {}
                other => return Err(other),
            }
        }
    }
}

impl Channel {
    fn sending(&self) -> Sending<'_> {
        Sending {
            channel: self,
            ticket: Ticket::default(),
            has_room: true,
        }
    }

    fn receiving(&self) -> Receiving<'_> {
        Receiving {
            channel: self,
            ticket: Ticket::default(),
            read: None,
        }
    }
}

#[test]
fn send_receive() {
    explore(2, || {
        let channel = channel(2);
        let sender = {
            let channel = channel.clone();
            thread::spawn(move || {
                let mut sending = channel.sending();
                for number in 0..3 {
                    assert_eq!(sending.send(number), WakeReason::Ready);
                }
            })
        };
        let mut receiving = channel.receiving();
        for number in 0..3 {
            assert_eq!(receiving.receive(), Ok(message(number)));
        }
        sender.join().unwrap();
    });
}

#[test]
fn sender_close() {
    explore(3, || {
        let channel = channel(2);
        let sender = {
            let channel = channel.clone();
            thread::spawn(move || {
                channel.sending().send(7);
                channel.to_receiver.leave();
            })
        };
        let mut receiving = channel.receiving();
        assert_eq!(receiving.receive(), Ok(message(7)));
        assert_eq!(receiving.receive(), Err(WakeReason::Disconnected));
        sender.join().unwrap();
    });
}

#[test]
fn receiver_close_during_send() {
    explore(3, || {
        let channel = channel(2);
        let receiver = {
            let channel = channel.clone();
            thread::spawn(move || {
                channel.to_sender.leave();
                fence(Ordering::SeqCst);
                ring::claim(&channel.slots, &mut Ticket::default()).is_some()
            })
        };
        let mut sent = Ticket::default();
        ring::put(&channel.slots, &mut sent.clone(), &message(1));
        channel.to_receiver.notify();
        let sender_took =
            channel.to_sender.is_disconnected() && ring::claim(&channel.slots, &mut sent).is_some();
        let receiver_took = receiver.join().unwrap();
        assert!(
            sender_took != receiver_took,
            "sender {sender_took}, receiver {receiver_took}"
        );
    });
}

struct Lending {
    channel: Arc<Channel>,
    /// Either ring of returns: both are used alike.
    returns: Vec<AtomicU64>,
    bytes: UnsafeCell<u64>,
}

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Lending {}
// SAFETY: likewise.
unsafe impl Send for Lending {}

impl Lending {
    fn new() -> Arc<Self> {
        let returns = (0..2).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            channel: channel(2),
            returns,
            bytes: UnsafeCell::new(0),
        })
    }

    fn write(&self, value: u64) {
        // SAFETY: loom checks the access.
        self.bytes.with_mut(|bytes| unsafe { *bytes = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks the access.
        self.bytes.with(|bytes| unsafe { *bytes })
    }
}

#[test]
fn reuse_after_return() {
    explore(3, || {
        let lending = Lending::new();
        lending.write(7);
        let receiver = {
            let lending = lending.clone();
            thread::spawn(move || {
                let mut ticket = Ticket::default();
                if let Some((words, _)) = receive(&lending.channel.slots, &mut ticket) {
                    assert_eq!((words, lending.read()), (message(1), 7));
                    ring::give_back(&lending.returns, 0, 1);
                }
            })
        };
        ring::put(&lending.channel.slots, &mut Ticket::default(), &message(1));
        if let Some(number) = ring::returned(&lending.returns, 0) {
            assert_eq!(number, 1);
            lending.write(8);
        }
        receiver.join().unwrap();
    });
}

#[test]
fn concurrent_returns() {
    explore(3, || {
        let (lending, tickets) = (Lending::new(), Arc::new(AtomicU64::new(0)));
        let threads = [3, 5].map(|number| {
            let (lending, tickets) = (lending.clone(), tickets.clone());
            thread::spawn(move || {
                ring::give_back(
                    &lending.returns,
                    tickets.fetch_add(1, Ordering::Relaxed),
                    number,
                )
            })
        });
        let mut found = Vec::new();
        for _ in 0..2 {
            found.extend(ring::returned(&lending.returns, found.len() as u64));
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        while let Some(number) = ring::returned(&lending.returns, found.len() as u64) {
            found.push(number);
        }
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
    });
}

#[test]
fn buffer_sent_to_closing_receiver() {
    explore(3, || {
        let lending = Lending::new();
        lending.write(7);
        let receiver = {
            let lending = lending.clone();
            thread::spawn(move || {
                lending.channel.to_sender.leave();
                fence(Ordering::SeqCst);
                if ring::claim(&lending.channel.slots, &mut Ticket::default()).is_some() {
                    assert_eq!(lending.read(), 7);
                    ring::give_back(&lending.returns, 0, 1);
                }
            })
        };
        let (channel, mut sent) = (&lending.channel, Ticket::default());
        ring::put(&channel.slots, &mut sent.clone(), &message(1));
        channel.to_receiver.notify();
        if channel.to_sender.is_disconnected() && ring::claim(&channel.slots, &mut sent).is_some() {
            lending.write(8);
            assert_eq!(ring::returned(&lending.returns, 0), None);
            receiver.join().unwrap();
        } else {
            receiver.join().unwrap();
            assert_eq!(
                ring::returned(&lending.returns, 0),
                Some(1),
                "nobody gave it back"
            );
            lending.write(9);
        }
    });
}

struct Value(UnsafeCell<u64>, Arc<AtomicUsize>);

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Value {}
// SAFETY: likewise.
unsafe impl Send for Value {}

impl Value {
    fn new(dropped: &Arc<AtomicUsize>) -> Self {
        Self(UnsafeCell::new(7), dropped.clone())
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks the access.
        self.0.with(|value| unsafe { *value })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the drop has the value to itself; loom checks it.
        self.0.with_mut(|value| unsafe { *value = 0 });
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn borrowed_outlives_sender() {
    explore(3, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut owned = Owned::new(Value::new(&dropped));
        let threads = [owned.lend(), owned.lend()]
            .map(|lent| thread::spawn(move || assert_eq!(lent.read(), 7)));
        assert_eq!(owned.read(), 7);
        drop(owned);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

/// An account of a ledger. A value that is taken out is dropped, which writes to it as the owner
/// does.
struct Scene {
    borrowed: std::sync::Arc<Borrowed<Value>>,
    account: Mutex<Account<Value>>,
    elsewhere: Vec<AtomicU64>,
    at_home: Vec<AtomicU64>,
    /// The note of each borrowed buffer for other processes: 1 while it is out.
    notes: Vec<UnsafeCell<u64>>,
    slots: Vec<Slot>,
}

/// Which thread of the receiver returns a buffer.
#[derive(Clone, Copy)]
enum Where {
    AtHome,
    Elsewhere,
}

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Scene {}
// SAFETY: likewise.
unsafe impl Send for Scene {}

impl Scene {
    fn new(count: usize) -> (Arc<Self>, Known) {
        let (account, known) = open_account(count).unwrap();
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let notes = (0..count).map(|_| UnsafeCell::new(0)).collect();
        let slots = (0..3).map(Slot::free_for).collect();
        let scene = Self {
            borrowed: account.borrowed().clone(),
            account: Mutex::new(account),
            elsewhere: words(2 * count),
            at_home: words(count),
            notes,
            slots,
        };
        (Arc::new(scene), known)
    }

    fn returns(&self) -> Returns<'_> {
        Returns {
            at_home: &self.at_home,
            elsewhere: &self.elsewhere,
        }
    }

    /// `AccountHolder::lend`.
    fn put(&self, number: u32) {
        let value = Box::new(Value::new(&Arc::default()));
        // SAFETY: loom checks the access.
        self.notes[number as usize].with_mut(|note| unsafe { *note = 1 });
        // SAFETY: as above.
        value.0.with_mut(|value| unsafe { *value = 8 });
        self.borrowed.put(number, NonNull::from(Box::leak(value)));
    }

    fn send(&self, ticket: &mut Ticket, number: u32) {
        self.put(number);
        ring::put(&self.slots, ticket, &message(number.into()));
    }

    fn strike(&self, number: usize) {
        // SAFETY: loom checks the access.
        self.notes[number].with_mut(|note| unsafe { *note = 0 });
    }

    fn drop(value: NonNull<Value>) {
        // SAFETY: leaked in `put`; loom would find it dropped twice.
        let value = unsafe { Box::from_raw(value.as_ptr()) };
        assert_eq!(value.read(), 8);
    }

    /// `Ledger::collect`, in any thread of the owner. Drops the values after the lock.
    fn collect(&self) {
        let mut ended = Vec::new();
        let mut account = self.account.lock();
        loop {
            let mut found = account.take_returned(self.returns(), |number| self.strike(number));
            if found.is_none() {
                found = account.take_late(self.returns(), |number| self.strike(number));
            }
            match found {
                Some(value) => ended.push(value.expect("it was lent before it was sent")),
                None => break,
            }
        }
        drop(account);
        ended.into_iter().for_each(Self::drop);
    }

    /// `AccountHolder::collect_with`, in the sender after a message.
    fn collect_some(&self, known: &mut Known) {
        if !self.borrowed.has_returned(self.returns()) {
            return;
        }
        let Some(mut account) = self.account.try_lock() else {
            return;
        };
        let found = account.take_returned(self.returns(), |number| self.strike(number));
        account.hand_over(known);
        drop(account);
        if let Some(found) = found {
            Self::drop(found.expect("it was lent before it was sent"));
        }
    }

    /// `Ledger::fetch`.
    fn fetch(&self, known: &mut Known) {
        self.collect();
        self.account.lock().hand_over(known);
    }

    /// `Ledger::reclaim`.
    fn reclaim(&self) -> usize {
        let mut account = self.account.lock();
        let ended: Vec<_> = account.take_all(|number| self.strike(number)).collect();
        drop(account);
        let count = ended.len();
        ended.into_iter().for_each(Self::drop);
        count
    }

    fn receive(&self, ticket: &mut Ticket, thread: Where) {
        let number = ticket.number();
        if let Some((words, _)) = receive(&self.slots, ticket) {
            ring::give_back(self.words(thread), number, words[0] as u32);
        }
    }

    fn words(&self, thread: Where) -> &[AtomicU64] {
        match thread {
            Where::AtHome => &self.at_home,
            Where::Elsewhere => &self.elsewhere,
        }
    }

    /// Each number is free exactly once.
    fn settle(&self, mut known: Known) {
        self.reclaim();
        let mut account = self.account.lock();
        assert_eq!(account.out(), 0);
        account.hand_over(&mut known);
        drop(account);
        let mut numbers = known.numbers;
        numbers.sort_unstable();
        assert_eq!(numbers, (0..self.notes.len() as u32).collect::<Vec<_>>());
        (0..self.notes.len()).for_each(|number| self.strike(number));
    }
}

/// Nor does the sender overwrite a handle, or write a note before the last one was cleared.
fn borrowed_number_is_reused(by: Where) {
    explore(3, move || {
        let (scene, mut known) = Scene::new(1);
        let receiver = thread::spawn({
            let scene = scene.clone();
            move || scene.receive(&mut Ticket::default(), by)
        });
        let collector = thread::spawn({
            let scene = scene.clone();
            move || scene.collect()
        });
        let mut ticket = Ticket::default();
        scene.send(&mut ticket, known.numbers.pop().unwrap());
        scene.collect_some(&mut known);
        if let Some(number) = known.numbers.pop() {
            scene.send(&mut ticket, number);
        }
        receiver.join().unwrap();
        collector.join().unwrap();
        scene.settle(known);
    });
}

#[test]
fn borrowed_number_is_reused_elsewhere() {
    borrowed_number_is_reused(Where::Elsewhere);
}

#[test]
fn borrowed_number_is_reused_at_home() {
    borrowed_number_is_reused(Where::AtHome);
}

/// The home thread returns a buffer while another thread has drawn a ticket or stored its return.
#[test]
fn return_at_home_beside_another_thread() {
    explore(3, || {
        let (scene, mut known) = Scene::new(2);
        let numbers = [known.numbers.pop().unwrap(), known.numbers.pop().unwrap()];
        for number in numbers {
            scene.put(number);
        }
        let threads = [(Where::AtHome, numbers[0]), (Where::Elsewhere, numbers[1])].map(
            |(thread, number)| {
                let scene = scene.clone();
                thread::spawn(move || ring::give_back(scene.words(thread), 0, number))
            },
        );
        scene.fetch(&mut known);
        for number in std::mem::take(&mut known.numbers) {
            scene.put(number);
            if number == numbers[0] {
                ring::give_back(&scene.at_home, 1, number);
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        scene.fetch(&mut known);
        scene.settle(known);
    });
}

/// Two threads of a receiver return their buffers, each after it has drawn a ticket; one of them
/// may be the later one with the earlier ticket.
#[test]
fn return_behind_a_gap() {
    explore(3, || {
        let (scene, mut known) = Scene::new(2);
        let tickets = Arc::new(AtomicU64::new(0));
        let numbers = [known.numbers.pop().unwrap(), known.numbers.pop().unwrap()];
        for number in numbers {
            scene.put(number);
        }
        let threads = numbers.map(|number| {
            let (scene, tickets) = (scene.clone(), tickets.clone());
            thread::spawn(move || {
                let ticket = tickets.fetch_add(1, Ordering::Relaxed);
                ring::give_back(&scene.elsewhere, ticket, number);
            })
        });
        scene.fetch(&mut known);
        let [one, other] = threads;
        one.join().unwrap();
        // Whichever ticket it has drawn.
        scene.fetch(&mut known);
        assert!(!known.numbers.is_empty());
        while let Some(number) = known.numbers.pop() {
            scene.put(number);
            let ticket = tickets.fetch_add(1, Ordering::Relaxed);
            ring::give_back(&scene.elsewhere, ticket, number);
        }
        other.join().unwrap();
        scene.fetch(&mut known);
        assert_eq!(known.numbers.len(), 2, "every return was read");
        scene.settle(known);
    });
}

/// The buffer is not lost, and its number is freed only once.
#[test]
fn reclaim_during_send() {
    explore(3, || {
        let (scene, mut known) = Scene::new(2);
        scene.put(known.numbers.pop().unwrap());
        let pool = thread::spawn({
            let scene = scene.clone();
            move || scene.reclaim()
        });
        scene.put(known.numbers.pop().unwrap());
        scene.collect_some(&mut known);
        let again = known
            .numbers
            .pop()
            .map(|number| scene.put(number))
            .is_some();
        let reclaimed = pool.join().unwrap();
        assert!(reclaimed >= 1);
        assert_eq!(
            scene.account.lock().out() as usize,
            2 + usize::from(again) - reclaimed
        );
        scene.settle(known);
    });
}

/// The thread sees the whole chunk that an invented number names.
#[test]
fn forged_borrowed_number() {
    explore(3, || {
        let (scene, mut known) = Scene::new(1);
        let collector = thread::spawn({
            let scene = scene.clone();
            move || scene.account.lock().take(0, |_| ()).map(Scene::drop)
        });
        scene.put(known.numbers.pop().unwrap());
        collector.join().unwrap();
        scene.settle(known);
    });
}

/// `Ledger::close_account`, and then `Entry::is_over` in another thread.
#[test]
fn close_counts_borrowed() {
    explore(3, || {
        let (scene, mut known) = Scene::new(1);
        let is_closed = Arc::new(Mutex::new(false));
        let pool = thread::spawn({
            let (scene, is_closed) = (scene.clone(), is_closed.clone());
            move || {
                let is_closed = is_closed.lock();
                *is_closed && scene.account.lock().out() == 0
            }
        });
        scene.put(known.numbers.pop().unwrap());
        *is_closed.lock() = true;
        assert!(!pool.join().unwrap());
        scene.settle(known);
    });
}
