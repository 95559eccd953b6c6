//! A thread of a receiver is stopped at every instruction of returning a buffer. What its other
//! threads return meanwhile can be lent again.

#![forbid(unsafe_code)]

use crate::channels::CHANNEL;
use crate::ends::AnyReceiver;
use crate::kill_points::{self, introduce, Scene, Victim};
use crate::owner_operations::{builder, SMALL};
use crate::shm::{self, Names};
use crate::trace::{marked, this_thread, Tracee};
use crate::wire::{Link, Message};
use shm_pool::channel::{OnFull, Publisher, SendErrorKind, Sender};
use shm_pool::{Provider, ShmBytes};
use std::fs;
use std::thread;
use std::time::Duration;

/// How many buffers may be lent at a time.
const MAX_BORROWED: usize = 4;

const OPERATIONS: &[&str] = &[
    "thread of a receiver: drop a view",
    "thread of a receiver: drop a view, the last one lent",
    "thread of a receiver that has received nothing: drop a view",
    "thread of a subscriber: drop a view",
    "thread of a subscriber: drop a view, the last one lent",
    "thread of a subscriber that has received nothing: drop a view",
];

/// Each buffer that another thread has dropped can be lent again while the thread stands still.
#[test]
fn thread_stopped_anywhere() {
    kill_points::sweep(
        OPERATIONS,
        &mut Lenders {
            names: Names::new("traced-stopped"),
            round: None,
        },
    );
}

role!("stopped-thread", role);

/// The role of a receiver. The arguments are the operation and the prefix.
fn role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let mut receiver = AnyReceiver::open(&shm::namespace(arguments[1]), CHANNEL).unwrap();
    link.send(&Message::Done);
    // Everything is lent.
    link.expect_go();
    let mut receive_all = || {
        let mut views = Vec::new();
        for _ in 0..MAX_BORROWED {
            views.push(receiver.recv().unwrap());
        }
        views
    };
    let mut views = if arguments[0].contains("that has received nothing") {
        thread::scope(|scope| scope.spawn(&mut receive_all).join().unwrap())
    } else {
        receive_all()
    };
    let at = if arguments[0].ends_with("the last one lent") {
        MAX_BORROWED - 1
    } else {
        0
    };
    let view = views.remove(at);
    thread::scope(|scope| {
        scope.spawn(|| {
            link.send(&Message::Number(this_thread() as u64));
            link.expect_go();
            drop(views);
            link.done_until_end();
        });
        marked(|| drop(view));
    });
}

/// An end that lends buffers.
enum Lender {
    Sender(Box<Sender>),
    Publisher(Box<Publisher>),
}

impl Lender {
    fn new(operation: &str, provider: &Provider) -> Self {
        if operation.starts_with("thread of a receiver") {
            let builder = Sender::builder().capacity(2 * MAX_BORROWED);
            let builder = builder.max_borrowed(MAX_BORROWED);
            Self::Sender(Box::new(builder.create(provider, CHANNEL).unwrap()))
        } else {
            let builder = Publisher::builder().capacity(2 * MAX_BORROWED);
            let builder = builder.max_borrowed(MAX_BORROWED);
            let builder = builder.on_full(OnFull::Block);
            Self::Publisher(Box::new(builder.create(provider, CHANNEL).unwrap()))
        }
    }

    fn try_send(&mut self, buffer: ShmBytes) -> Result<(), SendErrorKind> {
        let sent = match self {
            Self::Sender(sender) => sender.try_send(buffer),
            Self::Publisher(publisher) => publisher.try_send(buffer).map(drop),
        };
        sent.map_err(|error| error.kind())
    }

    /// Lends buffers until no more may be lent. Returns how many.
    fn lend_all(&mut self, provider: &Provider) -> usize {
        let mut lent = 0;
        loop {
            match self.try_send(shm::message(provider, SMALL, lent as u64)) {
                Ok(()) => lent += 1,
                Err(SendErrorKind::TooManyBorrowed { .. }) => return lent,
                Err(other) => panic!("after {lent}: {other:?}"),
            }
        }
    }
}

/// The other side of a receiver with two threads.
struct Lenders {
    names: Names,
    round: Option<(Provider, Lender)>,
}

impl Scene for Lenders {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let provider = builder(self.names.prefix()).build().unwrap();
        let mut lender = Lender::new(operation, &provider);
        let victim = Victim::start("stopped-thread", &[operation, self.names.prefix()]);
        victim.child.expect_done();
        if let Lender::Publisher(publisher) = &mut lender {
            publisher.wait_for_receivers(1, Duration::ZERO).unwrap();
        }
        assert_eq!(lender.lend_all(&provider), MAX_BORROWED);
        victim.child.send(&Message::Go);
        // Otherwise it could hit a breakpoint that is set for the other thread.
        wait_until_it_reads(victim.child.number());
        self.round = Some((provider, lender));
        victim
    }

    fn before_kill(&mut self, victim: &Victim, _tracee: &Tracee) {
        let (provider, lender) = self.round.as_mut().expect("a round that was started");
        victim.child.send(&Message::Go);
        victim.child.expect_done();
        let lent = lender.lend_all(provider);
        // The stopped thread may have returned its own.
        assert!(
            (MAX_BORROWED - 1..=MAX_BORROWED).contains(&lent),
            "{lent} of the {} that the other thread has returned",
            MAX_BORROWED - 1
        );
    }

    fn check(&mut self, _operation: &str, _round: usize) {
        let (provider, lender) = self.round.take().expect("a round that was started");
        drop(lender);
        provider.reclaim();
        let stats = provider.stats();
        assert_eq!((stats.bytes_leased, stats.bytes_in_use), (0, 0));
        drop(provider);
        self.names.sweep();
        assert_eq!(shm::objects(self.names.prefix()), [""; 0]);
    }
}

/// Waits until a thread sleeps in a read. The kernel sends no notification.
fn wait_until_it_reads(thread: u64) {
    let path = format!("/proc/{thread}/syscall");
    let reads = [libc::SYS_read, libc::SYS_recvfrom].map(|call| call.to_string());
    loop {
        let call = fs::read_to_string(&path).expect("a thread that lives");
        let number = call.split(' ').next().unwrap_or_default().to_owned();
        if reads.contains(&number) {
            return;
        }
        thread::yield_now();
    }
}
