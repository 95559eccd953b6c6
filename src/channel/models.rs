//! Models of the ring and its bells, checked by loom: no message is lost or doubled, and no wake-up is lost.

use super::bell::{Bell, Woken};
use super::ring::{self, Slot, Ticket, Words, WORDS};
use crate::sync::{fence, Ordering};
use loom::sync::Arc;
use loom::thread;

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

impl Channel {
    fn send(&self, ticket: &mut Ticket, number: u64) -> Woken {
        let (slots, now) = (&self.slots, *ticket);
        if !ring::has_room(slots, now) {
            match self.to_sender.wait(None, || ring::has_room(slots, now)) {
                Woken::Ready => {}
                other => return other,
            }
        }
        ring::put(slots, ticket, &message(number));
        self.to_receiver.ring();
        Woken::Ready
    }

    fn receive(&self, ticket: &mut Ticket) -> Result<Words, Woken> {
        loop {
            if let Some((words, read)) = ring::read(&self.slots, ticket) {
                ring::free(&self.slots, read);
                self.to_sender.ring();
                return Ok(words);
            }
            let now = *ticket;
            match self.to_receiver.wait(None, || ring::is_there(&self.slots, now)) {
                Woken::Ready => {}
                other => return Err(other),
            }
        }
    }
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// Otherwise a message is torn, or comes twice, or in another order, or never; or one side sleeps for ever.
#[test]
fn messages_come_whole_and_in_order_and_nobody_oversleeps() {
    model(2, || {
        let channel = channel(2);
        let sender = {
            let channel = channel.clone();
            thread::spawn(move || {
                let mut ticket = Ticket::default();
                for number in 0..3 {
                    assert_eq!(channel.send(&mut ticket, number), Woken::Ready);
                }
            })
        };
        let mut ticket = Ticket::default();
        for number in 0..3 {
            assert_eq!(channel.receive(&mut ticket), Ok(message(number)));
        }
        sender.join().unwrap();
    });
}

/// Otherwise what was sent last is lost, or the receiver waits for more.
#[test]
fn a_sender_that_leaves_has_sent_what_it_sent() {
    model(3, || {
        let channel = channel(2);
        let sender = {
            let channel = channel.clone();
            thread::spawn(move || {
                channel.send(&mut Ticket::default(), 7);
                channel.to_receiver.leave();
            })
        };
        let mut ticket = Ticket::default();
        assert_eq!(channel.receive(&mut ticket), Ok(message(7)));
        assert_eq!(channel.receive(&mut ticket), Err(Woken::Gone));
        sender.join().unwrap();
    });
}

/// Otherwise a message that is sent while the receiver leaves is nobody's, and its lease stays; or it is given back twice.
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
        let mut ticket = Ticket::default();
        ring::put(&channel.slots, &mut ticket, &message(1));
        channel.to_receiver.ring();
        let mut last = ring::last(ticket);
        let sender_took = channel.to_sender.is_gone() && ring::claim(&channel.slots, &mut last).is_some();
        let receiver_took = receiver.join().unwrap();
        assert!(sender_took != receiver_took, "sender {sender_took}, receiver {receiver_took}");
    });
}
