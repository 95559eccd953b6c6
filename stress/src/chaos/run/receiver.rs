//! The receiver beside each connection of a peer: it joins the owner's publisher by some rule,
//! receives in a thread or as a task, checks every byte, holds, checks again, leaves, and rejoins.
//! It never misses a message that is not counted, and with [`OnFull::Block`] none at all.
//!
//! When the publisher sends [`What::Rest`], it drops all messages, leaves, and rests until the
//! connection allows it to rejoin.

#![forbid(unsafe_code)]

use super::worker::{Control, Counts, Report, Role, DEADLINE};
use nix::errno::Errno;
use shm_pool::channel::{
    ChannelError, Interrupter, Message, OnEnd, OnFull, RecvError, Subscriber, MAX_INLINE,
};
use shm_pool::Client;
use shm_pool_support::numbered;
use shm_pool_support::tasks::block_on;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::hint::black_box;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The most messages that a receiver may lag behind. Few, so that all rules apply all the time.
pub(crate) const CAPACITY: usize = 8;

/// The most messages that a receiver holds.
const HELD: usize = 6;

/// The longest message of a publisher.
const LARGEST: usize = 64 << 10;

/// How long a receiver waits for a publisher to open before it checks whether it is to end.
const TIMEOUT: Duration = Duration::from_millis(10);

/// The number of messages after which the conductor is notified.
const MESSAGES_PER_REPORT: u64 = 256;

/// The purpose of a publisher's message. It is in the last two bits of the message's number; the
/// rest counts the messages, from a start that differs between publishers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Bytes = 0,
    /// Drop all messages.
    Release = 1,
    /// Drop all messages, leave, and rest.
    Rest = 2,
}

/// The name of the channel of an owner, and of its successors.
pub(crate) fn channel(owner: usize) -> String {
    format!("channel-{owner}")
}

pub(crate) fn number(count: u64, what: What) -> u64 {
    count << 2 | what as u64
}

/// The length of a message, from its number: half of them fit a slot.
pub(crate) fn len(number: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(number);
    let largest = if number & 3 == What::Bytes as u64 {
        [MAX_INLINE, MAX_INLINE, 4 << 10, LARGEST][random.usize(..4)]
    } else {
        MAX_INLINE
    };
    random.usize(mem::size_of::<u64>()..=largest)
}

/// A receiver's thread, as its connection sees it.
pub(crate) struct Receiving {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_at_rest: bool,
    is_over: bool,
    /// Of the current receiver, if it waits in a thread.
    interrupter: Option<Interrupter>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics")
    }
}

impl Receiving {
    /// A receiver for the publisher of an owner.
    pub(crate) fn start(
        owner: usize,
        role: &Role,
        control: &Arc<Control>,
        client: &Arc<Client>,
        seed: u64,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let receives = Receives {
            owner,
            client: client.clone(),
            control: control.clone(),
            shared: shared.clone(),
            random: fastrand::Rng::with_seed(seed),
            most_held: role.post.index % HELD,
            held: VecDeque::new(),
            counts: Counts::default(),
        };
        Self {
            shared,
            thread: thread::spawn(move || receives.run()),
        }
    }

    /// Waits until it has left and dropped all messages. Returns `false` if that takes too long.
    pub(crate) fn wait_until_it_rests(&self) -> bool {
        let is_busy = |state: &mut State| !state.is_at_rest;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), DEADLINE, is_busy);
        let (state, _) = waited.expect("no panics");
        state.is_at_rest
    }

    /// Allows it to rejoin.
    pub(crate) fn resume(&self) {
        self.shared.lock().is_at_rest = false;
        self.shared.changed.notify_all();
    }

    /// Ends it, and interrupts any wait.
    pub(crate) fn end(self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        if let Some(interrupter) = &state.interrupter {
            interrupter.interrupt();
        }
        drop(state);
        self.shared.changed.notify_all();
        self.thread.thread().unpark();
        self.thread
            .join()
            .expect("a panic would have ended the process");
    }
}

/// The state of the thread.
struct Receives {
    owner: usize,
    client: Arc<Client>,
    control: Arc<Control>,
    shared: Arc<Shared>,
    random: fastrand::Rng,
    most_held: usize,
    held: VecDeque<(Message, u64)>,
    counts: Counts,
}

/// How far a receiver has received its publisher's messages.
struct Progress {
    on_full: OnFull,
    /// The count of the last message.
    last: Option<u64>,
}

impl Receives {
    fn run(mut self) {
        while let Some((receiver, on_full)) = self.join() {
            if self.receive_some(receiver, on_full) == What::Rest {
                self.rest();
            }
        }
        self.release_all();
        self.report_counts();
    }

    fn is_over(&self) -> bool {
        self.shared.lock().is_over
    }

    fn join(&mut self) -> Option<(Subscriber, OnFull)> {
        let on_full =
            [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest][self.random.usize(..3)];
        let spin = Duration::from_micros(self.random.u64(..2) * 20);
        let mut options = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(on_full)
            .capacity(self.random.usize(1..=CAPACITY))
            .spin(spin);
        if on_full != OnFull::Block && self.random.bool() {
            // So few that it runs short of borrowed buffers.
            options = options.max_borrowed(self.random.usize(1..=CAPACITY));
        }
        while !self.is_over() {
            match options
                .clone()
                .namespace(self.client.namespace())
                .open_timeout(&channel(self.owner), TIMEOUT)
            {
                Ok(receiver) => {
                    self.counts.joined += 1;
                    return Some((receiver, on_full));
                }
                // The messages it holds of its former receivers keep their registrations taken. If
                // a registration were lost, this would never come to rest.
                Err(ChannelError::TooManyReceivers { .. }) => self.release_oldest(),
                // The publisher has closed, and has no successor yet; or the successor is creating
                // the channel, or died doing so.
                Err(
                    ChannelError::NotFound { .. }
                    | ChannelError::Closed { .. }
                    | ChannelError::NotReady { .. }
                    | ChannelError::NotAChannel { .. },
                ) => {}
                // A sweep has taken the connection before it was locked.
                Err(ChannelError::Os(error)) if error.errno() == Some(Errno::ENOENT as i32) => {}
                Err(error) => self.fail(&format!("cannot join the publisher: {error}")),
            }
        }
        None
    }

    /// Receives until the publisher closes or makes it rest, this is to end, or it has received
    /// enough.
    fn receive_some(&mut self, mut receiver: Subscriber, on_full: OnFull) -> What {
        let mut progress = Progress {
            on_full,
            last: None,
        };
        let mut what = What::Bytes;
        let mut is_task = self.random.bool();
        self.shared.lock().interrupter = Some(receiver.interrupter());
        while !self.is_over() && what != What::Rest && self.random.u8(..) > 0 {
            // Seldom, because switching between the two costs much.
            is_task ^= self.random.u8(..64) == 0;
            match self.receive(&mut receiver, is_task) {
                Ok(message) => what = self.take(message, &mut progress),
                Err(RecvError::Interrupted) => {}
                // It still has as many messages as it may.
                Err(RecvError::TooManyBorrowed { .. }) => {}
                Err(RecvError::Disconnected) => break,
                Err(error) => self.fail(&format!("cannot receive, {on_full:?}: {error}")),
            }
        }
        self.shared.lock().interrupter = None;
        // If not, the held messages outlive it.
        if self.random.bool() {
            self.release_all();
        }
        what
    }

    fn receive(&self, receiver: &mut Subscriber, is_task: bool) -> Result<Message, RecvError> {
        if !is_task {
            return receiver.recv();
        }
        // The thread that ends this one unparks it.
        block_on(poll_fn(|context| match self.is_over() {
            true => Poll::Ready(Err(RecvError::Interrupted)),
            false => receiver.poll_recv(context),
        }))
    }

    /// Carries out a message, and checks its order and its bytes.
    fn take(&mut self, message: Message, progress: &mut Progress) -> What {
        let number = match numbered::number(&message) {
            Ok(number) => number,
            Err(error) => self.fail(&error.to_string()),
        };
        let count = number >> 2;
        let missed = u64::from(message.missed());
        let is_next = match progress.last {
            Some(last) => count == last + 1 + missed,
            None => true,
        };
        if !is_next || progress.on_full == OnFull::Block && missed != 0 {
            self.fail(&format!(
                "{:?}: message {count} follows {:?}, with {missed} missed",
                progress.on_full, progress.last
            ));
        }
        self.counts.received += 1;
        self.counts.missed += missed;
        progress.last = Some(count);
        self.held.push_back((message, number));
        self.check(self.held.len() - 1, false);
        let what = match number & 3 {
            0 => What::Bytes,
            1 => What::Release,
            2 => What::Rest,
            _ => self.fail(&format!("a message with the number {number:#x}")),
        };
        if what != What::Bytes {
            self.release_all();
        }
        while self.held.len() > self.most_held {
            self.release_oldest();
        }
        if self.counts.received >= MESSAGES_PER_REPORT {
            self.report_counts();
        }
        what
    }

    /// Checks every byte of a held message.
    fn check(&mut self, at: usize, again: bool) {
        let (message, number) = &self.held[at];
        self.counts.bytes_checked += message.len() as u64;
        self.counts.again += u64::from(again);
        // The black box makes each check read the memory again.
        if let Err(error) =
            numbered::check(black_box(message), len(*number), self.owner as u64, *number)
        {
            self.counts.torn += 1;
            let when = if again { "while held" } else { "on arrival" };
            self.control
                .print_problem(&format!("torn, {when}: {error}"));
        }
    }

    fn release_oldest(&mut self) {
        if !self.held.is_empty() {
            self.check(0, true);
            self.held.pop_front();
        }
    }

    fn release_all(&mut self) {
        while !self.held.is_empty() {
            self.release_oldest();
        }
    }

    /// Rests without any part of the channel until it may rejoin.
    fn rest(&mut self) {
        self.report_counts();
        let mut state = self.shared.lock();
        state.is_at_rest = true;
        self.shared.changed.notify_all();
        let waited = self
            .shared
            .changed
            .wait_while(state, |state| state.is_at_rest && !state.is_over);
        drop(waited.expect("no panics"));
    }

    fn report_counts(&mut self) {
        self.control
            .report(Report::Counted(mem::take(&mut self.counts)));
    }

    fn fail(&self, text: &str) -> ! {
        self.control
            .fail(&format!("publisher {}: {text}", self.owner))
    }
}
