//! The rows, and how the publisher begins with each when it is a process of its own.

#![forbid(unsafe_code)]

use crate::publisher::{publish, Order};
use crate::support::Fallible;
use crate::ways::Busy;
use clap::Args;
use shm_pool::channel::Sender;
use shm_pool::Provider;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What names in /dev/shm start with. The same in each run, so that a run removes what a killed one left.
pub(crate) const PREFIX: &str = "receiver-latency";

/// A way from the publisher to the receiver.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Our channel, whose ends look for so long before they sleep.
    Channel { spin: Duration },
    /// A stream between two processes.
    Socket { is_busy: bool },
    /// A queue between two threads of one process.
    Threads { is_busy: bool },
}

/// The default of the library.
const SPIN: Duration = Duration::from_micros(20);

/// How many messages may be under way in our channel and in the queue of the threads: the library's default.
pub(crate) const SLOTS: usize = 256;

/// Our channel as it is without options: the row of the self-test.
pub(crate) const DEFAULT: usize = 1;

pub(crate) const ROWS: &[Row] = &[
    Row { name: "channel, busy poll", kind: Kind::Channel { spin: Duration::MAX } },
    Row { name: "channel, 20 µs spin, then futex", kind: Kind::Channel { spin: SPIN } },
    Row { name: "Unix socketpair, busy poll", kind: Kind::Socket { is_busy: true } },
    Row { name: "Unix socketpair, blocking", kind: Kind::Socket { is_busy: false } },
    Row { name: "std mpsc, two threads, busy poll", kind: Kind::Threads { is_busy: true } },
    Row { name: "std mpsc, two threads, blocking", kind: Kind::Threads { is_busy: false } },
];

/// What the publisher's process is told. Its orders come by the standard input.
#[derive(Args)]
pub(crate) struct Publisher {
    pub(crate) row: usize,
    pub(crate) slots: usize,
    /// Of the channel
    pub(crate) name: String,
    pub(crate) core: Option<usize>,
}

impl Publisher {
    /// Publishes until there are no more orders, or the receiver is gone.
    pub(crate) fn run(&self) -> Fallible {
        let row = ROWS.get(self.row).ok_or("no such row")?;
        match row.kind {
            Kind::Channel { spin } => {
                let provider = Provider::builder().name_prefix(PREFIX).build()?;
                let builder = Sender::builder().spin(spin).capacity(self.slots);
                let mut sender = builder.create(&provider, &self.name)?;
                // There is something to open now.
                io::stdout().write_all(b".")?;
                io::stdout().flush()?;
                publish(orders(), &mut sender)
            }
            Kind::Socket { is_busy } => {
                let mut socket = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
                socket.set_nonblocking(is_busy)?;
                if is_busy {
                    publish(orders(), &mut Busy(socket))
                } else {
                    publish(orders(), &mut socket)
                }
            }
            Kind::Threads { .. } => Err("its publisher is a thread".into()),
        }
    }
}

fn orders() -> impl Iterator<Item = Fallible<Order>> {
    std::iter::from_fn(|| Order::read(&mut io::stdin()))
}
