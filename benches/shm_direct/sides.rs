//! What the sender and the receiver do, by whatever way: the stamps, and the checks.

#![forbid(unsafe_code)]

use crate::payload::{touch, Payload};
use crate::settings::Setting;
use crate::support::{clock, latency, Fallible};
use crate::ways::{Inbox, Outbox};
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::time::Duration;

/// What the receiver has seen of one round.
pub(crate) struct Round {
    pub(crate) wake: Histogram<u64>,
    pub(crate) usable: Histogram<u64>,
    pub(crate) took: Duration,
}

/// Sends `count` messages of `len` bytes, each when its time has come, or back to back. The stamp is the last thing
/// before.
pub(crate) fn send_all(outbox: &mut impl Outbox, len: usize, pace: Option<Duration>, count: u64) -> Fallible {
    let pace = pace.map(|pace| pace.as_nanos() as u64);
    let mut payload = Payload::new(len);
    let start = clock::now();
    for number in 0..count {
        if let Some(pace) = pace {
            clock::sleep_until(start + number * pace);
        }
        payload.set_number(number);
        payload.set_sent(clock::now());
        outbox.send(payload.bytes())?;
    }
    Ok(())
}

/// Receives all messages in order, reads every byte of each, and then compares it with what was sent. Those of the
/// warm-up are not recorded.
pub(crate) fn receive_all(inbox: &mut impl Inbox, setting: &Setting) -> Fallible<Round> {
    let mut round = Round { wake: latency::histogram(), usable: latency::histogram(), took: Duration::ZERO };
    let mut expected = Payload::new(setting.len);
    let mut start = clock::now();
    for number in 0..setting.messages() {
        if number == setting.warm_up {
            start = clock::now();
        }
        inbox.receive(|wake, bytes| {
            black_box(touch(bytes));
            let usable = clock::now();
            let sent = expected.check(number, bytes)?;
            if number < setting.warm_up {
                return Ok(());
            }
            round.wake.saturating_record(since(sent, wake)?);
            round.usable.saturating_record(since(sent, usable)?);
            Ok(())
        })?;
    }
    round.took = Duration::from_nanos(clock::now() - start);
    Ok(round)
}

fn since(sent: u64, received: u64) -> Fallible<u64> {
    received.checked_sub(sent).ok_or_else(|| "received before it was sent: the cores' clocks differ".into())
}
