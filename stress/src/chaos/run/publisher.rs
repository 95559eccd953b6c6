//! The publisher beside an owner: its own provider, a thread that publishes from it to the
//! receivers of all peers, and its commands.
//!
//! In a quiet period it makes all receivers leave, including any that still join; then it has none,
//! and all its memory can be allocated in one piece.

#![forbid(unsafe_code)]

use super::receiver::{channel, len, number, What, CAPACITY};
use super::worker::{Control, Counts, Remains, Report, Role, DEADLINE};
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

/// How long it waits for memory before it requests that all receivers release theirs.
const TIMEOUT: Duration = Duration::from_millis(2);

/// The longest pause between bursts of messages, which leaves the processors to the others.
const PAUSE: Duration = Duration::from_millis(4);

/// The number of messages after which the conductor is notified.
const MESSAGES_PER_REPORT: u64 = 256;

enum Order {
    /// Make all receivers leave, until [`Report`](Self::Report).
    Rest,
    Report(Sender<Remains>),
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
        let built = Provider::builder()
            .namespace(&Namespace::new(&role.prefix).unwrap())
            .max_bytes(MAX_BYTES)
            .tuning(Tuning::new().arena_size(MAX_BYTES / 4))
            .build();
        let provider = match built {
            Ok(provider) => provider,
            Err(error) => control.fail(&format!("cannot build: {error}")),
        };
        let created = Publisher::builder()
            .max_subscribers(PEERS)
            .capacity(CAPACITY)
            .history(1)
            .create(&provider, &channel(role.post.index));
        let publisher = match created {
            Ok(publisher) => publisher,
            Err(error) => control.fail(&format!("cannot publish: {error}")),
        };
        let interrupter = publisher.interrupter();
        let (to_thread, orders) = mpsc::channel();
        let mut random = fastrand::Rng::with_seed(role.seed);
        let publishes = Publishes {
            owner: role.post.index as u64,
            // Distinguishes its messages from those of its predecessor and its successor.
            count: random.u64(..1 << 48),
            provider,
            publisher,
            orders,
            control: control.clone(),
            random,
            counts: Counts::default(),
        };
        Self {
            orders: to_thread,
            interrupter,
            thread: thread::spawn(move || publishes.run()),
        }
    }

    /// Makes all receivers leave, from now on.
    pub(crate) fn rest(&self) {
        self.order(Order::Rest);
    }

    /// Returns what is left, with no receiver connected.
    pub(crate) fn remains(&self) -> Remains {
        let (to_here, remains) = mpsc::channel();
        self.order(Order::Report(to_here));
        remains
            .recv()
            .expect("a panic would have ended the process")
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
    orders: Receiver<Order>,
    control: Arc<Control>,
    random: fastrand::Rng,
    counts: Counts,
}

impl Publishes {
    fn run(mut self) {
        let mut is_at_rest = false;
        loop {
            let pause = PAUSE.mul_f64(self.random.f64());
            match self.orders.recv_timeout(pause) {
                Ok(Order::Rest) => is_at_rest = true,
                Ok(Order::Report(to_owner)) => {
                    to_owner
                        .send(self.remains())
                        .expect("the owner waits for it");
                }
                Ok(Order::Resume) => is_at_rest = false,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if !self.has_receivers() => {}
                Err(RecvTimeoutError::Timeout) if is_at_rest => self.make_all_leave(),
                Err(RecvTimeoutError::Timeout) => self.publish_some(),
            }
        }
        self.report_counts();
        // Receivers may notice either end first.
        if self.random.bool() {
            drop(self.publisher);
            drop(self.provider);
        } else {
            drop(self.provider);
            drop(self.publisher);
        }
    }

    /// Waits for a receiver. Returns `false` if another command is due.
    fn has_receivers(&mut self) -> bool {
        match self.publisher.wait_for_receivers(1, DEADLINE) {
            Ok(()) => true,
            Err(error) if error.kind() == SendErrorKind::Interrupted => false,
            Err(error) => self.fail(&format!("no receiver joined: {error}")),
        }
    }

    /// Publishes more or fewer messages than fit the receivers' queues; then waits for them.
    fn publish_some(&mut self) {
        for _ in 0..self.random.usize(1..=2 * CAPACITY) {
            self.publish();
        }
        self.wait_until_received();
    }

    fn wait_until_received(&mut self) {
        match self.publisher.wait_until_received(DEADLINE) {
            Ok(()) => {}
            Err(error) if error.kind() == SendErrorKind::Interrupted => {}
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
                self.send_inline(What::Release);
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
        let number = number(self.count + 1, what);
        let mut bytes = [0; MAX_INLINE];
        let bytes = &mut bytes[..len(number)];
        numbered::fill(bytes, self.owner, number);
        let sent = loop {
            let sent = if self.random.bool() {
                block_on(self.publisher.send_copy_async(bytes))
            } else {
                self.publisher.send_copy(bytes)
            };
            match sent {
                Ok(sent) => break sent,
                Err(error) if error.kind() == SendErrorKind::Interrupted => {}
                Err(error) => self.fail(&format!("cannot send bytes: {error}")),
            }
        };
        self.note_sent(sent);
    }

    fn note_sent(&mut self, sent: Sent) {
        self.count += 1;
        self.counts.sent += 1;
        self.counts.takers += sent.receivers as u64;
        if self.counts.sent >= MESSAGES_PER_REPORT {
            self.report_counts();
        }
    }

    // ---- quiet periods -----------------------------------------------------------------------

    fn make_all_leave(&mut self) {
        self.send_inline(What::Rest);
        // Then no queue is full, not even that of a receiver that did not get it.
        self.wait_until_received();
    }

    /// No receiver is connected, so all memory is available.
    fn remains(&mut self) -> Remains {
        let receivers: Vec<_> = self.publisher.receivers().collect();
        if !receivers.is_empty() {
            self.fail(&format!(
                "these have left, and count as connected: {receivers:?}"
            ));
        }
        // A receiver that joins later gets this as the history, and is not to rest.
        self.send_inline(What::Release);
        if let Err(error) = self.provider.alloc_timeout(MAX_BYTES, DEADLINE) {
            self.fail(&format!("not all memory was returned: {error}"));
        }
        self.report_counts();
        let remains = Remains::of(&self.provider);
        if remains.peak > MAX_BYTES {
            self.fail(&format!(
                "{} bytes held, above the cap of {MAX_BYTES}",
                remains.peak
            ));
        }
        remains
    }

    fn report_counts(&mut self) {
        self.control
            .report(Report::Counted(mem::take(&mut self.counts)));
    }

    fn fail(&self, text: &str) -> ! {
        self.control.fail(&format!("publisher: {text}"))
    }
}
