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
            match self.channel.to_sender.wait(None, || ring::has_room(slots, now)) {
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
            match self.channel.to_receiver.wait(None, || ring::is_there(slots, self.ticket)) {
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

/// Otherwise a message is torn, or comes twice, or in another order, or never; or one side sleeps for ever.
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

/// Otherwise what was sent last is lost, or the receiver waits for more.
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
        let mut sent = Ticket::default();
        ring::put(&channel.slots, &mut sent.clone(), &message(1));
        channel.to_receiver.ring();
        let sender_took = channel.to_sender.is_gone() && ring::claim(&channel.slots, &mut sent).is_some();
        let receiver_took = receiver.join().unwrap();
        assert!(sender_took != receiver_took, "sender {sender_took}, receiver {receiver_took}");
    });
}
