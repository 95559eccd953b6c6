//! The publisher: at a fixed rate, in an open loop.
//!
//! It never skips a message. When it is late, because it was held up or because the way was full, it sends without
//! waiting until it has caught up; the intended times go on as if nothing had happened.

#![forbid(unsafe_code)]

use crate::message::Message;
use crate::pace::Pace;
use crate::support::{clock, Fallible};
use crate::ways::Outgoing;
use std::io::{ErrorKind, Read};

/// From the order to the first message, so that the receiver is there by then.
const LEAD: u64 = 1_000_000;

/// One repetition: so many messages, so many a second.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) rate: u64,
    pub(crate) count: u64,
}

impl Order {
    const LEN: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        (u128::from(self.rate) << 64 | u128::from(self.count)).to_ne_bytes()
    }

    /// The next order of another process; `None` at the end, also if that process is gone.
    pub(crate) fn read(input: &mut impl Read) -> Option<Fallible<Self>> {
        let mut bytes = [0; Self::LEN];
        match input.read_exact(&mut bytes) {
            Ok(()) => {
                let both = u128::from_ne_bytes(bytes);
                Some(Ok(Self { rate: (both >> 64) as u64, count: both as u64 }))
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => None,
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// Carries out all orders.
pub(crate) fn publish(orders: impl Iterator<Item = Fallible<Order>>, way: &mut dyn Outgoing) -> Fallible {
    let mut number = 0;
    for order in orders {
        let order = order?;
        let due = Pace::new(clock::now() + LEAD, order.rate);
        for intended in due.take(order.count as usize) {
            let actual = wait_for(intended);
            way.send(&Message { number, intended, actual }.to_bytes())?;
            number += 1;
        }
    }
    Ok(())
}

/// Waits until a time has come, and gives the clock's. A pause between the looks would only make it later.
#[inline]
fn wait_for(time: u64) -> u64 {
    loop {
        let now = clock::now();
        if now >= time {
            return now;
        }
    }
}
