//! Loom models of a publisher and its receivers.

use super::doorbell::{Doorbell, LivenessCheck, WakeReason};
use super::interrupt::Interrupts;
use super::layout::RendezvousHeader;
use super::ring::{self, Slot, Ticket, WORDS};
use crate::sync::{explore, fence, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

fn ring(slots: u64) -> Vec<Slot> {
    (0..slots).map(Slot::free_for).collect()
}

struct Latest {
    slots: Vec<Slot>,
    buffers: Vec<UnsafeCell<u64>>,
}

// SAFETY: by the protocol under test; loom checks it.
unsafe impl Sync for Latest {}
// SAFETY: likewise.
unsafe impl Send for Latest {}

impl Latest {
    fn write(&self, buffer: u64, value: u64) {
        // SAFETY: loom checks the access.
        self.buffers[buffer as usize].with_mut(|bytes| unsafe { *bytes = value });
    }

    fn send_all(&self) -> u64 {
        let count = self.buffers.len() as u64;
        let (mut ticket, mut free, mut withdrawn) =
            (Ticket::default(), (0..count).rev().collect::<Vec<_>>(), 0);
        for number in 0..count {
            let buffer = free.pop().expect("one for each message");
            self.write(buffer, number);
            ring::put(&self.slots, &mut ticket, &[buffer; WORDS]);
            if let Some(words) = ring::claim(&self.slots, &mut ring::oldest(&self.slots, ticket)) {
                withdrawn += 1;
                free.push(words[0]);
            }
        }
        withdrawn
    }

    fn receive(&self, ticket: &mut Ticket) -> Option<u64> {
        let (words, _) = ring::claim_next(&self.slots, ticket)?;
        assert_eq!(words, [words[0]; WORDS], "it is torn");
        // SAFETY: loom checks the access.
        Some(self.buffers[words[0] as usize].with(|bytes| unsafe { *bytes }))
    }
}

/// The receiver also knows how many messages it missed.
fn what_is_withdrawn_while_it_is_received(
    preemptions: usize,
    slots: u64,
    sent: u64,
    received: usize,
) {
    explore(preemptions, move || {
        let buffers = (0..sent).map(|_| UnsafeCell::new(u64::MAX)).collect();
        let channel = Arc::new(Latest {
            slots: ring(slots),
            buffers,
        });
        let receiver = {
            let channel = channel.clone();
            thread::spawn(move || {
                let mut ticket = Ticket::default();
                let receive = |_| Some((channel.receive(&mut ticket)?, ticket.number()));
                let received: Vec<_> = (0..received).filter_map(receive).collect();
                (received, ticket)
            })
        };
        let withdrawn = channel.send_all();
        let (mut received, mut ticket) = receiver.join().unwrap();
        received.extend(std::iter::from_fn(|| {
            Some((channel.receive(&mut ticket)?, ticket.number()))
        }));
        let mut missed = 0;
        let mut expected = 0;
        for &(number, after) in &received {
            assert_eq!(number + 1, after, "the bytes of another message");
            missed += number
                .checked_sub(expected)
                .expect("in order, and none twice");
            expected = after;
        }
        assert_eq!(expected, sent, "the last one is there");
        assert_eq!(
            (missed, received.len() as u64),
            (withdrawn, sent - withdrawn)
        );
    });
}

#[test]
fn withdraw_only_message_during_receive() {
    what_is_withdrawn_while_it_is_received(3, 2, 2, 2);
}

#[test]
fn reader_one_round_behind() {
    what_is_withdrawn_while_it_is_received(1, 2, 3, 1);
}

#[test]
fn withdraw_oldest_during_receive() {
    what_is_withdrawn_while_it_is_received(2, 3, 3, 2);
}

struct Coming {
    rendezvous: RendezvousHeader,
    to_receiver: Doorbell,
    slots: Vec<Slot>,
}

impl Coming {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            rendezvous: RendezvousHeader::open(),
            to_receiver: Doorbell::new(0),
            slots: ring(2),
        })
    }

    /// P1 to P5.
    fn meet(&self, history: Option<&mut Ticket>) -> bool {
        if self.rendezvous.arrivals() == 0 {
            return false;
        }
        assert_eq!(
            self.rendezvous.connection(0),
            CONNECTION,
            "the count without the id"
        );
        assert!(self.to_receiver.hold(1));
        assert!(!self.to_receiver.hold(1), "it is met once");
        if let Some(ticket) = history {
            self.send_another(ticket);
        }
        true
    }

    fn send(&self) -> bool {
        let is_connected = self.meet(None);
        if is_connected {
            self.send_another(&mut Ticket::default());
        }
        is_connected
    }

    fn send_another(&self, ticket: &mut Ticket) {
        ring::put(&self.slots, ticket, &[1; WORDS]);
        self.to_receiver.notify();
    }

    /// C1 to C3: it finds the connection, connected or not.
    fn close(&self) {
        self.rendezvous.close();
        if self.rendezvous.connection(0) == CONNECTION {
            self.to_receiver.leave();
        }
    }

    /// The doorbell has no notifier at first.
    fn receive(&self, ticket: &mut Ticket) -> WakeReason {
        let woken = self.to_receiver.wait(
            None,
            &mut LivenessCheck::new(),
            &Interrupts::new(),
            || ring::has_passed(&self.slots, *ticket),
            || true,
        );
        if woken == WakeReason::Ready {
            let received = ring::receive(&self.slots, ticket, false, |_, _| Ok::<_, ()>(()));
            assert_eq!(
                received.map(|received| received.unwrap().0),
                Some([1; WORDS])
            );
        }
        woken
    }
}

const CONNECTION: u64 = 7;

#[test]
fn next_message_connects_receiver() {
    explore(3, || {
        let coming = Coming::new();
        let receiver = {
            let coming = coming.clone();
            thread::spawn(move || {
                assert!(coming.rendezvous.announce(0, CONNECTION), "it is open");
                assert_eq!(coming.receive(&mut Ticket::default()), WakeReason::Ready);
            })
        };
        // The receiver may not have joined yet. After the wait it has.
        if !coming.send() {
            coming
                .rendezvous
                .wait_for_another(0, &Interrupts::new(), None);
            assert!(coming.send(), "it has come");
        }
        receiver.join().unwrap();
    });
}

/// The receiver is woken, and loses nothing that was sent to it.
#[test]
fn join_during_shutdown() {
    explore(3, || {
        let coming = Coming::new();
        let receiver = {
            let coming = coming.clone();
            thread::spawn(move || {
                let mut ticket = Ticket::default();
                if !coming.rendezvous.announce(0, CONNECTION) {
                    return None;
                }
                let is_connected = coming.receive(&mut ticket) == WakeReason::Ready;
                assert!(!is_connected || coming.receive(&mut ticket) == WakeReason::Disconnected);
                Some(is_connected)
            })
        };
        let was_met = coming.send();
        coming.close();
        if let Some(is_connected) = receiver.join().unwrap() {
            assert_eq!(is_connected, was_met);
        }
    });
}

#[test]
fn history_wakes_receiver() {
    explore(3, || {
        let coming = Coming::new();
        let receiver = {
            let coming = coming.clone();
            thread::spawn(move || {
                assert!(coming.rendezvous.announce(0, CONNECTION), "it is open");
                assert_eq!(coming.receive(&mut Ticket::default()), WakeReason::Ready);
            })
        };
        coming
            .rendezvous
            .wait_for_another(0, &Interrupts::new(), None);
        assert!(coming.meet(Some(&mut Ticket::default())), "it has come");
        receiver.join().unwrap();
    });
}

#[test]
fn one_fence_for_all_doorbells() {
    explore(2, || {
        let channels = Arc::new([(); 2].map(|()| (ring(2), Doorbell::new(1))));
        let receivers = [0, 1].map(|at| {
            let channels = channels.clone();
            thread::spawn(move || {
                let (slots, doorbell) = &channels[at];
                let woken = doorbell.wait(
                    None,
                    &mut LivenessCheck::new(),
                    &Interrupts::new(),
                    || ring::has_passed(slots, Ticket::default()),
                    || true,
                );
                assert_eq!(woken, WakeReason::Ready);
            })
        });
        channels
            .iter()
            .for_each(|(slots, _)| ring::put(slots, &mut Ticket::default(), &[1; WORDS]));
        fence(Ordering::SeqCst); // as in `Publisher::ring`
        channels
            .iter()
            .for_each(|(_, doorbell)| doorbell.notify_after_fence());
        receivers
            .into_iter()
            .for_each(|receiver| receiver.join().unwrap());
    });
}
