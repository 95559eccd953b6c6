//! The receiver's hold on a publisher: starts it, gives it orders, receives and checks what it sends, and sees it end.

#![forbid(unsafe_code)]

use crate::message::{Bytes, Message};
use crate::pace::Pace;
use crate::publisher::{publish, Order};
use crate::rows::{Kind, PREFIX, ROWS};
use crate::support::cores::pin;
use crate::support::role::Role;
use crate::support::{clock, Fallible};
use crate::ways::{Busy, Incoming, Outgoing};
use shm_pool::channel::Receiver;
use shm_pool::Client;
use std::fmt::Display;
use std::io::{BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, Stdio};
use std::sync::{mpsc, Arc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes that are read from a socket at once.
const READ: usize = 64 << 10;

/// See the module's text. Between orders it takes no processor time.
pub(crate) struct Link {
    way: Box<dyn Incoming>,
    publisher: Publisher,
    received: u64,
}

enum Publisher {
    Process(Role, ChildStdin),
    Thread(JoinHandle<Fallible>, mpsc::Sender<Order>),
}

impl Link {
    /// Starts the publisher of a row on a core. In a channel, or in the threads' queue, so many messages have room.
    pub(crate) fn start(row: usize, slots: usize, core: Option<usize>) -> Fallible<Self> {
        let name = format!("{}-{row}-{slots}", std::process::id());
        let mut arguments = vec![row.to_string(), slots.to_string(), name.clone()];
        arguments.extend(core.map(|core| core.to_string()));
        let (way, publisher) = match ROWS[row].kind {
            Kind::Channel { spin } => channel(&arguments, &name, spin)?,
            Kind::Socket { is_busy } => socket(&arguments, is_busy)?,
            Kind::Threads { is_busy } => threads(slots, core, is_busy),
        };
        Ok(Self { way, publisher, received: 0 })
    }

    /// Has an order carried out, and receives and checks all of its messages: `each` gets them with the time at which
    /// they were there. Returns how long it took from when the first was due until the last was there, and the interval
    /// before the first: each message has one, so that no more than the rate is achieved.
    pub(crate) fn repeat(&mut self, order: Order, mut each: impl FnMut(u64, &Message)) -> Fallible<Duration> {
        self.publisher.order(order)?;
        let mut due: Option<Pace> = None;
        let (mut start, mut end) = (None, 0);
        for received in 0..order.count {
            let bytes = self.way.receive()?;
            let now = clock::now();
            let bytes = bytes.ok_or_else(|| {
                format!("the publisher is gone, and {} of {} messages are lost", order.count - received, order.count)
            })?;
            let message = Message::from_bytes(&bytes)?;
            let intended = due.get_or_insert_with(|| Pace::new(message.intended, order.rate)).next();
            check(&message, self.received, intended, now)?;
            each(now, &message);
            start.get_or_insert(message.intended);
            (self.received, end) = (self.received + 1, now);
        }
        let interval = Duration::from_secs(1).div_f64(order.rate as f64);
        Ok(Duration::from_nanos(end - start.unwrap_or(end)) + interval)
    }

    /// Ends the publisher, which must have sent nothing that was not asked for.
    pub(crate) fn finish(mut self) -> Fallible {
        let is_over = self.publisher.dismiss(|| Ok(self.way.receive()?.is_none()))?;
        if is_over {
            Ok(())
        } else {
            Err(format!("more came than the {} messages that were sent", self.received).into())
        }
    }
}

type Ends = (Box<dyn Incoming>, Publisher);

fn channel(arguments: &[String], name: &str, spin: Duration) -> Fallible<Ends> {
    let mut publisher = Publisher::process(arguments, Stdio::piped())?;
    publisher.wait_for_sign()?;
    let client = Arc::new(Client::builder().name_prefix(PREFIX).build()?);
    let receiver = Receiver::builder().spin(spin).open(&client, name)?;
    Ok((Box::new(receiver), publisher))
}

fn socket(arguments: &[String], is_busy: bool) -> Fallible<Ends> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(is_busy)?;
    let way: Box<dyn Incoming> = if is_busy {
        Box::new(BufReader::with_capacity(READ, Busy(ours)))
    } else {
        Box::new(BufReader::with_capacity(READ, ours))
    };
    Ok((way, Publisher::process(arguments, OwnedFd::from(theirs))?))
}

fn threads(slots: usize, core: Option<usize>, is_busy: bool) -> Ends {
    let (sender, receiver) = mpsc::sync_channel::<Bytes>(slots);
    if is_busy {
        (Box::new(Busy(receiver)), Publisher::thread(Busy(sender), core))
    } else {
        (Box::new(receiver), Publisher::thread(sender, core))
    }
}

fn check(message: &Message, number: u64, intended: Option<u64>, now: u64) -> Fallible {
    if message.number != number {
        return Err(format!("message {number} came as {}", message.number).into());
    }
    if Some(message.intended) != intended {
        return Err(format!("message {number} has another intended time than the rate gives it").into());
    }
    if message.actual < message.intended || now < message.actual {
        return Err(format!(
            "message {number} was due at {} ns, sent at {} and received at {now}: the cores' clocks differ, and \
             nothing can be measured",
            message.intended, message.actual
        )
        .into());
    }
    Ok(())
}

fn ended_early(error: impl Display) -> String {
    format!("the publisher ended early: {error}")
}

impl Publisher {
    fn process(arguments: &[String], output: impl Into<Stdio>) -> Fallible<Self> {
        let mut role = Role::start("publisher", arguments, Stdio::piped(), output)?;
        let orders = role.child().stdin.take().ok_or("no pipe")?;
        Ok(Self::Process(role, orders))
    }

    /// Waits until the process says that its channel can be opened.
    fn wait_for_sign(&mut self) -> Fallible {
        match self {
            Self::Process(role, _) => {
                let output = role.child().stdout.as_mut().ok_or("no pipe")?;
                Ok(output.read_exact(&mut [0]).map_err(ended_early)?)
            }
            Self::Thread(..) => Ok(()),
        }
    }

    fn thread(mut sender: impl Outgoing + Send + 'static, core: Option<usize>) -> Self {
        let (orders, given) = mpsc::channel();
        let thread = thread::spawn(move || {
            pin(core)?;
            publish(given.into_iter().map(Ok), &mut sender)
        });
        Self::Thread(thread, orders)
    }

    fn order(&mut self, order: Order) -> Fallible {
        match self {
            Self::Process(_, orders) => Ok(orders.write_all(&order.to_bytes()).map_err(ended_early)?),
            Self::Thread(_, orders) => Ok(orders.send(order).map_err(ended_early)?),
        }
    }

    /// Says that there are no more orders, does `last`, and waits until it has ended, as it must, with success.
    fn dismiss<T>(self, last: impl FnOnce() -> Fallible<T>) -> Fallible<T> {
        match self {
            Self::Process(role, orders) => {
                drop(orders);
                let last = last()?;
                role.finish()?;
                Ok(last)
            }
            Self::Thread(thread, orders) => {
                drop(orders);
                let last = last()?;
                thread.join().map_err(|_| "the publisher panicked")??;
                Ok(last)
            }
        }
    }
}
