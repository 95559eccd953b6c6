//! Models of the ring, its bells and the loans, checked by loom: no message or buffer is lost or
//! doubled, and no wake-up is lost.

use super::bell::{Bell, Woken};
use super::book::Cells;
use super::counted::Owned;
use super::returns;
use super::ring::{self, Slot, Ticket, Words, WORDS};
use crate::sync::{fence, AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize;
use loom::sync::Arc;
use loom::thread;
use std::ptr::NonNull;

struct Channel {
    slots: Vec<Slot>,
    to_receiver: Bell,
    to_sender: Bell,
}

fn channel(slots: u64) -> Arc<Channel> {
    let slots = (0..slots).map(Slot::free_for).collect();
    Arc::new(Channel { slots, to_receiver: Bell::new(1), to_sender: Bell::new(2) })
}

fn message(number: u64) -> Words {
    [number; WORDS]
}

/// What a `Sender` does.
struct Sending<'a> {
    channel: &'a Channel,
    ticket: Ticket,
    has_room: bool,
}

impl Sending<'_> {
    fn send(&mut self, number: u64) -> Woken {
        let (slots, now) = (&self.channel.slots, self.ticket);
        if !self.has_room {
            match self.channel.to_sender.wait(None, || ring::has_room(slots, now), || true) {
                Woken::Ready => {}
                other => return other,
            }
        }
        ring::put(slots, &mut self.ticket, &message(number));
        self.channel.to_receiver.ring();
        self.has_room = ring::has_room(slots, self.ticket);
        Woken::Ready
    }
}

/// What a `Receiver` does.
struct Receiving<'a> {
    channel: &'a Channel,
    ticket: Ticket,
    read: Option<Ticket>,
}

impl Receiving<'_> {
    fn receive(&mut self) -> Result<Words, Woken> {
        let slots = &self.channel.slots;
        if let Some(read) = self.read.take() {
            ring::free(slots, read);
            self.channel.to_sender.ring();
        }
        loop {
            if let Some((words, read)) = ring::read(slots, &mut self.ticket) {
                self.read = Some(read);
                return Ok(words);
            }
            match self.channel.to_receiver.wait(None, || ring::is_there(slots, self.ticket), || true) {
                Woken::Ready => {}
                other => return Err(other),
            }
        }
    }
}

impl Channel {
    fn sending(&self) -> Sending<'_> {
        Sending { channel: self, ticket: Ticket::default(), has_room: true }
    }

    fn receiving(&self) -> Receiving<'_> {
        Receiving { channel: self, ticket: Ticket::default(), read: None }
    }
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// Otherwise a message is torn, doubled, reordered or lost, or one side sleeps for ever.
#[test]
fn messages_come_whole_and_in_order_and_nobody_oversleeps() {
    model(2, || {
        let channel = channel(2);
        let sender = {
            let channel = channel.clone();
            thread::spawn(move || {
                let mut sending = channel.sending();
                for number in 0..3 {
                    assert_eq!(sending.send(number), Woken::Ready);
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

/// Otherwise the last message sent is lost, or the receiver waits for more.
#[test]
fn a_sender_that_leaves_has_sent_what_it_sent() {
    model(3, || {
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
        assert_eq!(receiving.receive(), Err(Woken::Gone));
        sender.join().unwrap();
    });
}

/// Otherwise a message sent while the receiver leaves belongs to nobody, and its lease stays; or it
/// is given back twice.
#[test]
fn a_message_to_a_receiver_that_leaves_has_one_taker() {
    model(3, || {
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
        channel.to_receiver.ring();
        let sender_took = channel.to_sender.is_gone() && ring::claim(&channel.slots, &mut sent).is_some();
        let receiver_took = receiver.join().unwrap();
        assert!(sender_took != receiver_took, "sender {sender_took}, receiver {receiver_took}");
    });
}

/// A channel, its returns, and the bytes of its one buffer. Loom reports any unsynchronised access
/// to the bytes.
struct Lending {
    channel: Arc<Channel>,
    returns: Vec<AtomicU64>,
    bytes: UnsafeCell<u64>,
}

// SAFETY: the protocol under test makes this true; loom checks it.
unsafe impl Sync for Lending {}
// SAFETY: nothing in it is bound to a thread; loom checks the accesses.
unsafe impl Send for Lending {}

impl Lending {
    fn new() -> Arc<Self> {
        let returns = (0..2).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { channel: channel(2), returns, bytes: UnsafeCell::new(0) })
    }

    fn write(&self, value: u64) {
        // SAFETY: loom checks that nobody else accesses the bytes now.
        self.bytes.with_mut(|bytes| unsafe { *bytes = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that nobody writes now.
        self.bytes.with(|bytes| unsafe { *bytes })
    }
}

/// Otherwise the sender's process writes a buffer that its receiver is still reading.
#[test]
fn a_buffer_is_used_again_when_it_was_given_back_and_not_before() {
    model(3, || {
        let lending = Lending::new();
        lending.write(7);
        let receiver = {
            let lending = lending.clone();
            thread::spawn(move || {
                let mut ticket = Ticket::default();
                if let Some((words, _)) = ring::read(&lending.channel.slots, &mut ticket) {
                    assert_eq!((words, lending.read()), (message(1), 7));
                    returns::give_back(&lending.returns, 0, 1);
                }
            })
        };
        ring::put(&lending.channel.slots, &mut Ticket::default(), &message(1));
        if let Some(number) = returns::read(&lending.returns, 0) {
            assert_eq!(number, 1);
            lending.write(8);
        }
        receiver.join().unwrap();
    });
}

/// Otherwise, of two messages dropped in two threads, one never comes back, or comes back twice.
#[test]
fn what_two_threads_give_back_comes_back_once_each() {
    model(3, || {
        let (lending, tickets) = (Lending::new(), Arc::new(AtomicU64::new(0)));
        let threads = [3, 5].map(|number| {
            let (lending, tickets) = (lending.clone(), tickets.clone());
            thread::spawn(move || returns::give_back(&lending.returns, tickets.fetch_add(1, Ordering::Relaxed), number))
        });
        let mut found = Vec::new();
        for _ in 0..2 {
            found.extend(returns::read(&lending.returns, found.len() as u64));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        while let Some(number) = returns::read(&lending.returns, found.len() as u64) {
            found.push(number);
        }
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
    });
}

/// Otherwise a buffer sent while its receiver leaves is given back by both sides or by neither, or
/// one side uses it too early.
#[test]
fn a_buffer_that_is_sent_to_a_receiver_that_leaves_comes_back_once() {
    model(3, || {
        let lending = Lending::new();
        lending.write(7);
        let receiver = {
            let lending = lending.clone();
            thread::spawn(move || {
                lending.channel.to_sender.leave();
                fence(Ordering::SeqCst);
                if ring::claim(&lending.channel.slots, &mut Ticket::default()).is_some() {
                    assert_eq!(lending.read(), 7);
                    returns::give_back(&lending.returns, 0, 1);
                }
            })
        };
        let (channel, mut sent) = (&lending.channel, Ticket::default());
        ring::put(&channel.slots, &mut sent.clone(), &message(1));
        channel.to_receiver.ring();
        if channel.to_sender.is_gone() && ring::claim(&channel.slots, &mut sent).is_some() {
            lending.write(8);
            assert_eq!(returns::read(&lending.returns, 0), None);
            receiver.join().unwrap();
        } else {
            receiver.join().unwrap();
            assert_eq!(returns::read(&lending.returns, 0), Some(1), "nobody gave it back");
            lending.write(9);
        }
    });
}

/// A value that is used without synchronisation, and counts its drops.
struct Value(UnsafeCell<u64>, Arc<AtomicUsize>);

// SAFETY: the protocol under test makes this true; loom checks it.
unsafe impl Sync for Value {}
// SAFETY: nothing in it is bound to a thread; loom checks the accesses.
unsafe impl Send for Value {}

impl Value {
    fn new(dropped: &Arc<AtomicUsize>) -> Self {
        Self(UnsafeCell::new(7), dropped.clone())
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that nobody writes now.
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

/// Otherwise a segment is unmapped under a message, or twice, or never.
#[test]
fn what_is_lent_goes_with_the_last_one_who_has_it() {
    model(3, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut owned = Owned::new(Value::new(&dropped));
        let threads = [owned.lend(), owned.lend()].map(|lent| thread::spawn(move || assert_eq!(lent.read(), 7)));
        assert_eq!(owned.read(), 7);
        drop(owned);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

/// Otherwise the thread that collects a return finds no handle under its number, or one whose chunk
/// it does not see; or the sender puts the next one over it.
#[test]
fn a_handle_that_was_put_in_is_taken_out_once() {
    model(3, || {
        let (lending, cells) = (Lending::new(), Arc::new(Cells::<Lending>::new(1).unwrap()));
        lending.write(7);
        cells.put(0, NonNull::from(&*lending));
        let receiver = {
            let lending = lending.clone();
            thread::spawn(move || {
                if ring::read(&lending.channel.slots, &mut Ticket::default()).is_some() {
                    returns::give_back(&lending.returns, 0, 0);
                }
            })
        };
        let collector = {
            let (lending, cells) = (lending.clone(), cells.clone());
            thread::spawn(move || {
                let Some(number) = returns::read(&lending.returns, 0) else { return };
                let found = cells.take(number as usize, || ()).expect("it was put in before it was sent");
                // SAFETY: this thread's `lending` keeps it alive.
                assert_eq!(unsafe { found.as_ref() }.read(), 7);
            })
        };
        ring::put(&lending.channel.slots, &mut Ticket::default(), &message(1));
        let is_free = cells.free(0).is_some();
        receiver.join().unwrap();
        collector.join().unwrap();
        let is_out = cells.take(0, || ()).is_some();
        assert!(!(is_free && is_out), "the next one would have been put over it");
    });
}

/// Otherwise a receiver that makes numbers up has the collecting thread use a chunk that it does
/// not see yet.
#[test]
fn a_handle_that_is_taken_out_by_a_number_that_was_made_up_is_whole() {
    model(3, || {
        let (item, cells) = (Arc::new(Value::new(&Arc::default())), Arc::new(Cells::<Value>::new(1).unwrap()));
        let collector = {
            let (item, cells) = (item.clone(), cells.clone());
            thread::spawn(move || {
                if let Some(found) = cells.take(0, || ()) {
                    // SAFETY: this thread's `item` keeps it alive.
                    assert_eq!(unsafe { found.as_ref() }.read(), 8);
                }
                drop(item);
            })
        };
        // SAFETY: loom checks that nobody else accesses the value now.
        item.0.with_mut(|value| unsafe { *value = 8 });
        cells.put(0, NonNull::from(&*item));
        collector.join().unwrap();
    });
}

/// Otherwise the note that a loan is free comes after the note of the next one with its number, and
/// what is lent is not seen from outside.
#[test]
fn what_is_noted_of_a_handle_that_is_taken_out_comes_before_the_next_one() {
    model(3, || {
        let (item, note) = (Arc::new(Value::new(&Arc::default())), Arc::new(UnsafeCell::new(1)));
        let cells = Arc::new(Cells::<Value>::new(1).unwrap());
        cells.put(0, NonNull::from(&*item));
        let collector = {
            let (cells, note) = (cells.clone(), note.clone());
            // SAFETY: loom checks that nobody else accesses the note now.
            thread::spawn(move || cells.take(0, || note.with_mut(|note| unsafe { *note = 0 })).is_some())
        };
        while cells.free(0).is_none() {
            thread::yield_now();
        }
        // SAFETY: as above.
        note.with_mut(|note| unsafe { *note = 2 });
        collector.join().unwrap();
    });
}
