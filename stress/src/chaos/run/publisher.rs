//! The publisher beside an owner: its own provider, a thread that publishes from it to the
//! receivers of all peers, and its commands.
//!
//! In a quiet period it makes all receivers leave, including any that still join; then it has none,
//! and all its memory can be allocated in one piece.

#![forbid(unsafe_code)]

use super::receiver::{channel, len, number, What, CAPACITY};
use super::worker::{Control, Counts, Remains, Role, Word, DEADLINE};
use super::PEERS;
use shm_pool::channel::{Interrupter, Publisher, SendErrorKind, Sent, MAX_INLINE};
use shm_pool::{Namespace, Provider, ShmBytes, Tuning};
use shm_pool_support::numbered;
use shm_pool_support::tasks::block_on;
use std::mem;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Its cap: less than all receivers together may hold.
const MAX_BYTES: usize = 1 << 20;

/// How long it waits for memory before it asks all receivers to release theirs.
const TIMEOUT: Duration = Duration::from_millis(2);

/// The longest pause between bursts of messages, which leaves the processors to the others.
const PAUSE: Duration = Duration::from_millis(4);

/// The number of messages after which the conductor is notified.
const MESSAGES_PER_WORD: u64 = 256;

enum Order {
    /// Make all receivers leave, until asked what is left.
    Rest,
    Tell(Sender<Remains>),
    Resume,
}

/// The publisher, as its owner sees it.
pub(crate) struct Publishing {
    orders: Sender<Order>,
    interrupter: Interrupter,
    thread: JoinHandle<()>,
}

impl Publishing {
    pub(crate) fn start(role: &Role, control: &Arc<Control>) -> Self {
        let provider = Provider::builder()
            .namespace(&Namespace::new(&role.prefix).unwrap())
            .max_bytes(MAX_BYTES)
            .tuning(Tuning::new().arena_size(MAX_BYTES / 4));
        let provider = provider
            .build()
            .unwrap_or_else(|error| control.fail(&format!("cannot build: {error}")));
        let options = Publisher::builder()
            .max_subscribers(PEERS)
            .capacity(CAPACITY)
            .history(1);
        let publisher = options.create(&provider, &channel(role.post.index));
        let publisher =
            publisher.unwrap_or_else(|error| control.fail(&format!("cannot publish: {error}")));
        let (interrupter, (orders, told)) = (publisher.interrupter(), mpsc::channel());
        let mut random = fastrand::Rng::with_seed(role.seed);
        let publishes = Publishes {
            owner: role.post.index as u64,
            // Distinguishes its messages from those of its predecessor and its successor.
            count: random.u64(..1 << 48),
            provider,
            publisher,
            told,
            control: control.clone(),
            random,
            counts: Counts::default(),
        };
        Self {
            orders,
            interrupter,
            thread: thread::spawn(move || publishes.run()),
        }
    }

    /// Makes all receivers leave, from now on.
    pub(crate) fn rest(&self) {
        self.order(Order::Rest);
    }

    /// Returns what is left, with no receiver connected.
    pub(crate) fn what_is_left(&self) -> Remains {
        let (tell, told) = mpsc::channel();
        self.order(Order::Tell(tell));
        told.recv().expect("a panic would have ended the process")
    }

    pub(crate) fn resume(&self) {
        self.order(Order::Resume);
    }

    fn order(&self, order: Order) {
        self.orders
            .send(order)
            .expect("a panic would have ended the process");
        self.interrupter.interrupt();
    }

    /// Ends it, and interrupts any wait.
    pub(crate) fn end(self) {
        drop(self.orders);
        self.interrupter.interrupt();
        self.thread
            .join()
            .expect("a panic would have ended the process");
    }
}

/// The state of the thread.
struct Publishes {
    owner: u64,
    provider: Provider,
    publisher: Publisher,
    /// Of the last message.
    count: u64,
    told: Receiver<Order>,
    control: Arc<Control>,
    random: fastrand::Rng,
    counts: Counts,
}

impl Publishes {
    fn run(mut self) {
        let mut rests = false;
        loop {
            let pause = PAUSE.mul_f64(self.random.f64());
            match self.told.recv_timeout(pause) {
                Ok(Order::Rest) => rests = true,
                Ok(Order::Tell(tell)) => drop(tell.send(self.what_is_left())),
                Ok(Order::Resume) => rests = false,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if !self.has_receivers() => {}
                Err(RecvTimeoutError::Timeout) if rests => self.have_all_leave(),
                Err(RecvTimeoutError::Timeout) => self.publish_some(),
            }
        }
        self.tell();
        let Self {
            provider,
            publisher,
            mut random,
            ..
        } = self;
        // Receivers may notice either end first: if this is `None`, the provider is dropped here.
        let dropped_later = random.bool().then_some(provider);
        drop(publisher);
        drop(dropped_later);
    }

    /// Waits for a receiver. Returns `false` if another command is due.
    fn has_receivers(&mut self) -> bool {
        match self
            .publisher
            .wait_for_receivers(1, DEADLINE)
            .map_err(|error| error.kind())
        {
            Ok(()) => true,
            Err(SendErrorKind::Interrupted) => false,
            Err(error) => self.fail(&format!("no receiver came: {error}")),
        }
    }

    /// Publishes more or fewer messages than the receivers have room for; then waits for them.
    fn publish_some(&mut self) {
        (0..self.random.usize(1..=2 * CAPACITY)).for_each(|_| self.publish());
        self.wait_until_received();
    }

    fn wait_until_received(&mut self) {
        match self
            .publisher
            .wait_until_received(DEADLINE)
            .map_err(|error| error.kind())
        {
            Ok(()) | Err(SendErrorKind::Interrupted) => {}
            Err(error) => self.fail(&format!("a receiver does not receive: {error}")),
        }
    }

    /// Sends one message to all connected receivers.
    fn publish(&mut self) {
        let number = number(self.count + 1, What::Bytes);
        let len = len(number);
        if len <= MAX_INLINE {
            return self.send_inline(What::Bytes);
        }
        match self.provider.alloc_timeout(len, TIMEOUT) {
            Ok(mut buffer) => {
                numbered::fill(&mut buffer, self.owner, number);
                self.send(buffer.freeze());
            }
            Err(error) if error.is_exhausted() => {
                self.counts.exhausted += 1;
                self.send_inline(What::LetGo);
            }
            Err(error) => self.fail(&format!("cannot allocate {len} bytes: {error}")),
        }
    }

    fn send(&mut self, mut buffer: ShmBytes) {
        let sent = loop {
            let sent = if self.random.bool() {
                block_on(self.publisher.send_async(buffer))
            } else {
                self.publisher.send(buffer)
            };
            match sent {
                Ok(sent) => break sent,
                Err(error) if error.kind() == SendErrorKind::Interrupted => {
                    buffer = error.into_message()
                }
                Err(error) => self.fail(&format!("cannot send: {error}")),
            }
        };
        self.note_sent(sent);
    }

    fn send_inline(&mut self, what: What) {
        let (number, mut bytes) = (number(self.count + 1, what), [0; MAX_INLINE]);
        let bytes = &mut bytes[..len(number)];
        numbered::fill(bytes, self.owner, number);
        let sent = loop {
            let sent = if self.random.bool() {
                block_on(self.publisher.send_copy_async(bytes))
            } else {
                self.publisher.send_copy(bytes)
            };
            match sent.map_err(|error| error.kind()) {
                Ok(sent) => break sent,
                Err(SendErrorKind::Interrupted) => {}
                Err(error) => self.fail(&format!("cannot send bytes: {error}")),
            }
        };
        self.note_sent(sent);
    }

    fn note_sent(&mut self, sent: Sent) {
        self.count += 1;
        self.counts.sent += 1;
        self.counts.takers += sent.receivers as u64;
        if self.counts.sent >= MESSAGES_PER_WORD {
            self.tell();
        }
    }

    // ---- quiet periods -----------------------------------------------------------------------

    fn have_all_leave(&mut self) {
        self.send_inline(What::Rest);
        // Then there is room, even at a receiver that did not get it.
        self.wait_until_received();
    }

    /// No receiver is connected, so all memory is available.
    fn what_is_left(&mut self) -> Remains {
        let receivers: Vec<_> = self.publisher.receivers().collect();
        if !receivers.is_empty() {
            self.fail(&format!(
                "these have left, and count as there: {receivers:?}"
            ));
        }
        // A receiver that joins later gets this as the history, and is not to rest.
        self.send_inline(What::LetGo);
        let all = self.provider.alloc_timeout(MAX_BYTES, DEADLINE);
        drop(all.unwrap_or_else(|error| self.fail(&format!("not all memory is back: {error}"))));
        self.tell();
        let remains = Remains::of(&self.provider);
        if remains.peak > MAX_BYTES {
            self.fail(&format!(
                "{} bytes held, above the cap of {MAX_BYTES}",
                remains.peak
            ));
        }
        remains
    }

    fn tell(&mut self) {
        self.control.say(Word::Counted(mem::take(&mut self.counts)));
    }

    fn fail(&self, text: &str) -> ! {
        self.control.fail(&format!("publisher: {text}"))
    }
}
