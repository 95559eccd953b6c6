//! The receiver: gives orders, receives and checks the publisher's messages, and waits for its
//! exit; and the two latencies of each message.

#![forbid(unsafe_code)]

use crate::publisher::{Message, Order};
use crate::ways::{Publisher, Row};
use hdrhistogram::Histogram;
use shm_pool_support::{clock, latency, wire, Fallible};
use std::time::Duration;

/// The receiver's end. Between orders it takes no CPU time.
pub(crate) struct Link {
    name: &'static str,
    publisher: Publisher,
    received: u64,
}

impl Link {
    pub(crate) fn start((name, way): Row, slots: usize, core: Option<usize>) -> Fallible<Self> {
        let publisher = named(name, Publisher::start(way, slots, core))?;
        Ok(Self {
            name,
            publisher,
            received: 0,
        })
    }

    /// Sends an order, and receives and checks all of its messages: `each` gets them with the time
    /// of their arrival. Returns how long it took from when the first was due until the
    /// last arrived, plus the interval before the first: each message has one, so that the achieved
    /// rate never exceeds the requested one.
    pub(crate) fn repeat(
        &mut self,
        order: Order,
        each: impl FnMut(u64, &Message),
    ) -> Fallible<Duration> {
        named(self.name, self.receive_all(order, each))
    }

    fn receive_all(
        &mut self,
        order: Order,
        mut each: impl FnMut(u64, &Message),
    ) -> Fallible<Duration> {
        if let Err(error) = wire::send(&self.publisher.orders, &order) {
            return Err(format!("the publisher ended early: {error}").into());
        }
        let mut start = 0;
        let mut end = 0;
        for before in 0..order.count {
            let message = (self.publisher.receive)()?;
            let now = clock::now();
            let Some(message) = message else {
                let lost = order.count - before;
                return Err(format!(
                    "the publisher has exited, and {lost} of {} messages are lost",
                    order.count
                )
                .into());
            };
            if before == 0 {
                start = message.intended;
            }
            check(&message, self.received, start + order.due(before), now)?;
            each(now, &message);
            self.received += 1;
            end = now;
        }
        let interval = Duration::from_secs(1).div_f64(order.rate as f64);
        Ok(Duration::from_nanos(end - start) + interval)
    }

    /// Ends the publisher, which must have sent only requested messages.
    pub(crate) fn finish(mut self) -> Fallible {
        drop(self.publisher.orders);
        let outcome = match (self.publisher.receive)()? {
            None => (self.publisher.finish)(),
            Some(_) => {
                let sent = self.received;
                Err(format!("more was received than the {sent} messages that were sent").into())
            }
        };
        named(self.name, outcome)
    }
}

/// Adds the row to an error.
fn named<T>(row: &str, outcome: Fallible<T>) -> Fallible<T> {
    match outcome {
        Ok(value) => Ok(value),
        Err(error) => Err(format!("{row}: {error}").into()),
    }
}

fn check(message: &Message, number: u64, intended: u64, now: u64) -> Fallible {
    if !message.is_whole() {
        return Err(
            format!("message {number} has other bytes than were sent: {message:x?}").into(),
        );
    }
    if message.number != number {
        return Err(format!("message {} instead of {number}", message.number).into());
    }
    if message.intended != intended {
        return Err(
            format!("message {number} has another intended time than the rate gives it").into(),
        );
    }
    if message.actual < message.intended || now < message.actual {
        return Err(format!(
            "message {number} was due at {intended} ns, sent at {} and received at {now}: \
             the cores' clocks differ, and nothing can be measured",
            message.actual
        )
        .into());
    }
    Ok(())
}

/// The two latencies of each message, each in a histogram.
pub(crate) struct Columns {
    /// Since the message was due, including any delay of the publisher.
    pub(crate) intended: Histogram<u64>,
    /// Since the publisher began to send the message, excluding its delay before that.
    pub(crate) naive: Histogram<u64>,
}

impl Columns {
    pub(crate) fn new() -> Self {
        Self {
            intended: latency::histogram(),
            naive: latency::histogram(),
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, now: u64, message: &Message) {
        self.intended.saturating_record(now - message.intended);
        self.naive.saturating_record(now - message.actual);
    }
}
