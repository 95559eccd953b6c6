//! Loom models of messages that are withdrawn, or whose channel closes.

use super::backlog::Backlog;
use super::doorbell::{Doorbell, LivenessCheck, WakeReason};
use super::interrupt::Interrupts;
use super::layout::What;
use super::message::LimitWord;
use super::ring::{self, Slot, Ticket, WORDS};
use crate::sync::{explore, AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Channel {
    slots: Vec<Slot>,
    to_receiver: Doorbell,
    to_sender: Doorbell,
    buffers: Vec<UnsafeCell<u64>>,
}

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Channel {}
// SAFETY: likewise.
unsafe impl Send for Channel {}

impl Channel {
    /// `receiver` is the thread that holds the receiver's doorbell, or 0.
    fn new(slots: u64, buffers: u64, receiver: u32) -> Arc<Self> {
        let slots = (0..slots).map(Slot::free_for).collect();
        let buffers = (0..buffers).map(|_| UnsafeCell::new(u64::MAX)).collect();
        Arc::new(Self {
            slots,
            to_receiver: Doorbell::new(1),
            to_sender: Doorbell::new(receiver),
            buffers,
        })
    }

    fn write(&self, buffer: u64, value: u64) {
        // SAFETY: loom checks the access.
        self.buffers[buffer as usize].with_mut(|bytes| unsafe { *bytes = value });
    }

    fn read(&self, buffer: u64) -> u64 {
        // SAFETY: loom checks the access.
        self.buffers[buffer as usize].with(|bytes| unsafe { *bytes })
    }

    fn send(&self, ticket: &mut Ticket, buffer: u64) {
        assert!(ring::has_room(&self.slots, *ticket));
        self.write(buffer, ticket.number());
        ring::put(&self.slots, ticket, &[buffer; WORDS]);
        self.to_receiver.notify();
    }

    fn receive(&self, ticket: &mut Ticket) -> Option<u64> {
        let received = ring::receive(&self.slots, ticket, true, |_, _| Ok::<_, ()>(()))?;
        let (words, ticket) = received.unwrap();
        assert_eq!(
            self.read(words[0]),
            ticket.number(),
            "the bytes of another message"
        );
        Some(ticket.number())
    }

    fn receive_until(&self, last: u64) -> usize {
        let mut ticket = Ticket::default();
        for received in 1.. {
            let number = loop {
                if let Some(number) = self.receive(&mut ticket) {
                    self.to_sender.ring_after_rmw(); // as `Receiver::take`
                    break number;
                }
                let is_over = || ring::has_passed(&self.slots, ticket);
                assert_eq!(
                    self.to_receiver.wait(
                        None,
                        &mut LivenessCheck::new(),
                        &Interrupts::new(),
                        is_over,
                        || true
                    ),
                    WakeReason::Ready
                );
            };
            if number == last {
                return received;
            }
        }
        unreachable!()
    }
}

#[test]
fn withdraw_buffer_during_receive() {
    explore(3, || {
        let channel = Channel::new(4, 2, 2);
        let receiver = thread::spawn({
            let channel = channel.clone();
            move || {
                let mut ticket = Ticket::default();
                let received: Vec<_> = (0..2)
                    .filter_map(|_| channel.receive(&mut ticket))
                    .collect();
                (received, ticket)
            }
        });
        let mut ticket = Ticket::default();
        let mut backlog = Backlog::new(4).unwrap();
        for buffer in 0..2 {
            backlog.push(&channel.slots, ticket, 1);
            channel.send(&mut ticket, buffer);
        }
        let mut withdrawn = Vec::new();
        while let Some(words) = backlog.withdraw(&channel.slots, ticket) {
            withdrawn.push(words[0]);
        }
        assert_eq!(backlog.count(&channel.slots, ticket), (0, 0));
        if let Some(&buffer) = withdrawn.first() {
            channel.send(&mut ticket, buffer);
        }
        let (mut received, mut next) = receiver.join().unwrap();
        received.extend(std::iter::from_fn(|| channel.receive(&mut next)));
        assert!(
            received.windows(2).all(|pair| pair[0] < pair[1]),
            "in order, and none twice"
        );
        assert_eq!((received.len() + withdrawn.len()) as u64, ticket.number());
        assert_eq!(next, ticket);
    });
}

/// The sender always finds room, and wakes once the last message was received.
#[test]
fn keep_latest_with_doorbells() {
    explore(2, || {
        let channel = Channel::new(2, 2, 2);
        let receiver = thread::spawn({
            let channel = channel.clone();
            move || channel.receive_until(1)
        });
        let (mut ticket, mut last, mut withdrawn) = (Ticket::default(), Ticket::default(), 0);
        for buffer in 0..2 {
            last = ticket;
            channel.send(&mut ticket, buffer);
            // `Connection::make_room_ahead`.
            if !ring::has_room(&channel.slots, ticket) {
                let mut oldest = ring::oldest(&channel.slots, ticket);
                withdrawn += usize::from(ring::claim(&channel.slots, &mut oldest).is_some());
            }
        }
        let is_received = || ring::is_done(&channel.slots, last);
        assert_eq!(
            channel.to_sender.wait(
                None,
                &mut LivenessCheck::new(),
                &Interrupts::new(),
                is_received,
                || true
            ),
            WakeReason::Ready
        );
        assert_eq!(receiver.join().unwrap() + withdrawn, 2);
    });
}

#[test]
fn close_against_join() {
    explore(3, || {
        let (channel, what) = (Channel::new(2, 1, 0), Arc::new(What::finished()));
        let [is_locked, is_closed] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        channel.send(&mut Ticket::default(), 0);
        let receiver = thread::spawn({
            let (channel, is_locked) = (channel.clone(), is_locked.clone());
            // `Object::join`.
            move || {
                is_locked.store(1, Ordering::Release);
                if channel.to_sender.hold(2) {
                    assert_eq!(channel.receive(&mut Ticket::default()), Some(0));
                } else {
                    is_locked.store(0, Ordering::Release);
                }
            }
        });
        let pool = thread::spawn({
            let (channel, is_locked, is_closed) = (channel.clone(), is_locked, is_closed.clone());
            // `is_read_by_none`, and then `Ledger::reclaim`.
            move || {
                let is_there =
                    is_closed.load(Ordering::Acquire) == 0 && !channel.to_sender.is_disconnected();
                if !is_there && is_locked.load(Ordering::Acquire) == 0 {
                    channel.write(0, 9);
                }
            }
        });
        // `Object::close`, and then `Ledger::close_account`.
        what.close();
        channel.to_receiver.leave();
        channel.to_sender.close();
        is_closed.store(1, Ordering::Release);
        receiver.join().unwrap();
        pool.join().unwrap();
    });
}

/// Leaving on behalf of a dead sender loses none of its messages.
#[test]
fn leaving_in_the_ringers_place() {
    explore(3, || {
        let (channel, is_there) = (Channel::new(2, 1, 2), Arc::new(AtomicU64::new(1)));
        let sender = thread::spawn({
            let (channel, is_there) = (channel.clone(), is_there.clone());
            move || {
                channel.write(0, 0);
                ring::put(&channel.slots, &mut Ticket::default(), &[0; WORDS]);
                // It dies before it notifies, and the kernel releases its lock and notifies.
                is_there.store(0, Ordering::Release);
                channel.to_receiver.leave();
            }
        });
        let mut ticket = Ticket::default();
        let is_over = || ring::has_passed(&channel.slots, ticket);
        let has_sender = || is_there.load(Ordering::Acquire) == 1;
        let woken = channel.to_receiver.wait(
            None,
            &mut LivenessCheck::due(),
            &Interrupts::new(),
            is_over,
            has_sender,
        );
        assert_eq!(
            (woken, channel.receive(&mut ticket)),
            (WakeReason::Ready, Some(0))
        );
        let is_over = || ring::has_passed(&channel.slots, ticket);
        assert_eq!(
            channel.to_receiver.wait(
                None,
                &mut LivenessCheck::due(),
                &Interrupts::new(),
                is_over,
                has_sender
            ),
            WakeReason::Disconnected
        );
        sender.join().unwrap();
    });
}

/// E1 to E3, in the middle of a receive: each message is received or withdrawn, no buffer is
/// written while it is read, and the receiver learns the reason.
#[test]
fn evict_during_receive() {
    explore(2, || {
        let (channel, what) = (Channel::new(3, 2, 1), Arc::new(What::finished()));
        let mut ticket = Ticket::default();
        (0..2).for_each(|buffer| channel.send(&mut ticket, buffer));
        let receiver = {
            let (channel, what) = (channel.clone(), what.clone());
            thread::spawn(move || {
                let (mut ticket, mut received) = (Ticket::default(), 0);
                loop {
                    if channel.receive(&mut ticket).is_some() {
                        received += 1;
                        continue;
                    }
                    let is_over = || ring::has_passed(&channel.slots, ticket);
                    match channel.to_receiver.wait(
                        None,
                        &mut LivenessCheck::new(),
                        &Interrupts::new(),
                        is_over,
                        || true,
                    ) {
                        WakeReason::Disconnected => break,
                        woken => assert_eq!(woken, WakeReason::Ready),
                    }
                }
                assert!(what.is_evicted(), "the doorbell without the reason");
                received
            })
        };
        what.evict(); // E1
        channel.to_receiver.leave(); // E2
        let (mut next, mut withdrawn) = (ring::oldest(&channel.slots, ticket), 0);
        while let Some(words) = ring::withdraw(&channel.slots, &mut next, ticket) {
            channel.write(words[0], u64::MAX); // it is used again
            withdrawn += 1;
        }
        assert_eq!(receiver.join().unwrap() + withdrawn, 2);
    });
}

/// A receiver that sleeps at its limit learns of it once (B1), not after a buffer was sent (B2).
#[test]
fn limit_wakes_receiver() {
    explore(3, || {
        let (channel, limit) = (Channel::new(2, 1, 1), Arc::new(LimitWord::default()));
        let receiver = {
            let (channel, limit) = (channel.clone(), limit.clone());
            thread::spawn(move || {
                let (mut ticket, mut seen, mut told) = (Ticket::default(), 0, 0);
                while channel.receive(&mut ticket).is_none() {
                    told += usize::from(limit.take(&mut seen));
                    let is_over =
                        || ring::has_passed(&channel.slots, ticket) || limit.change(seen).is_some();
                    assert_eq!(
                        channel.to_receiver.wait(
                            None,
                            &mut LivenessCheck::new(),
                            &Interrupts::new(),
                            is_over,
                            || true
                        ),
                        WakeReason::Ready
                    );
                }
                assert!(told <= 1);
            })
        };
        limit.reach(1); // B1
        channel.to_receiver.notify();
        limit.clear(1); // B2
        channel.send(&mut Ticket::default(), 0);
        receiver.join().unwrap();
    });
}

/// The same, without a message afterwards.
#[test]
fn limit_alone_wakes_receiver() {
    explore(3, || {
        let (channel, limit) = (Channel::new(2, 1, 1), Arc::new(LimitWord::default()));
        let receiver = {
            let (channel, limit) = (channel.clone(), limit.clone());
            thread::spawn(move || {
                let mut seen = 0;
                let is_over = || limit.change(seen).is_some();
                assert_eq!(
                    channel.to_receiver.wait(
                        None,
                        &mut LivenessCheck::new(),
                        &Interrupts::new(),
                        is_over,
                        || true
                    ),
                    WakeReason::Ready
                );
                assert!(limit.take(&mut seen) && !limit.take(&mut seen));
            })
        };
        limit.reach(1); // B1
        channel.to_receiver.notify();
        receiver.join().unwrap();
    });
}
