//! One publisher, several subscribers: the cost of a message from its allocation until the last
//! subscriber has received and released it, with this library's channel and with iceoryx2's publish
//! and subscribe, in turn.
//!
//! All of them are in one thread, so this is the total cost of both sides, without any waking.

use crate::contenders::Effort;
use crate::iceoryx;
use crate::source::{pool, text, Made};
use shm_pool::channel::{OnEnd, Publisher, Subscriber};
use shm_pool_support::latency::Spread;
use shm_pool_support::payload::has_ends;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::turns::{interleave, Batch};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;
use std::process;
use std::time::{Duration, Instant};

/// Lengths of messages, numbers of subscribers, and goals.
const ROWS: [(usize, usize, &str, Goal); 6] = [
    (4 << 10, 1, "4 KiB to 1 subscriber", Goal::AtLeast(2.1)),
    (4 << 10, 2, "4 KiB to 2", Goal::AtLeast(2.0)),
    (4 << 10, 4, "4 KiB to 4", Goal::AtLeast(2.0)),
    (1 << 20, 1, "1 MiB to 1 subscriber", Goal::AtLeast(2.1)),
    (1 << 20, 2, "1 MiB to 2", Goal::AtLeast(2.0)),
    (1 << 20, 4, "1 MiB to 4", Goal::AtLeast(2.0)),
];

/// How many of the rows are of one length: for 1, 2 and 4 subscribers.
const OF_A_LENGTH: usize = 3;

/// 42 ns where iceoryx2 takes 85.
const ADDITIONAL: Goal = Goal::AtLeast(2.0);

/// How many messages a subscriber may lag behind, before it misses the oldest.
pub(crate) const CAPACITY: usize = 2;

/// Publishes a message and has every subscriber receive it.
pub(crate) trait Fanout: 'static {
    /// Sends a message of bytes that `fill` writes, to all subscribers.
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Made<()>;

    /// Passes each subscriber's message to `check`, and drops it. Returns how many got one.
    fn receive(&mut self, check: impl FnMut(&[u8]) -> bool) -> Made<usize>;
}

struct Ours {
    publisher: Publisher,
    provider: shm_pool::Provider,
    receivers: Vec<Subscriber>,
}

fn ours(number: usize, subscribers: usize) -> Made<Ours> {
    let provider = pool()?;
    let name = format!("peers-{}-{number}", process::id());
    let mut publisher = Publisher::builder()
        .max_subscribers(subscribers)
        .capacity(CAPACITY)
        .create(&provider, &name)
        .map_err(text)?;
    let mut receivers = Vec::new();
    for _ in 0..subscribers {
        let options = Subscriber::builder().on_end(OnEnd::Return);
        receivers.push(options.open(&name).map_err(text)?);
    }
    publisher
        .wait_for_receivers(subscribers, Duration::ZERO)
        .map_err(text)?;
    Ok(Ours {
        publisher,
        provider,
        receivers,
    })
}

impl Fanout for Ours {
    #[inline]
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Made<()> {
        let mut buffer = self.provider.alloc(len).map_err(text)?;
        fill(&mut buffer);
        self.publisher.send(buffer.freeze()).map_err(text)?;
        Ok(())
    }

    #[inline]
    fn receive(&mut self, mut check: impl FnMut(&[u8]) -> bool) -> Made<usize> {
        let mut received = 0;
        for receiver in &mut self.receivers {
            let message = receiver.try_recv().map_err(text)?;
            received += usize::from(check(&message));
        }
        Ok(received)
    }
}

/// Messages whose ends are written and checked; with `is_thorough`, every byte.
fn batch(
    fanout: Made<impl Fanout>,
    len: usize,
    subscribers: usize,
    is_thorough: bool,
) -> Made<Batch> {
    let mut fanout = fanout?;
    Ok(Box::new(move |count| {
        let start = Instant::now();
        for number in 0..count {
            let byte = number as u8;
            fanout.send(len, |bytes| {
                if is_thorough {
                    bytes.fill(byte);
                } else {
                    bytes[0] = byte;
                    bytes[len - 1] = byte;
                }
            })?;
            let is_whole = |bytes: &[u8]| {
                let has_content = if is_thorough {
                    bytes.iter().all(|&each| each == byte)
                } else {
                    has_ends(bytes, byte)
                };
                bytes.len() == len && has_content
            };
            let received = fanout.receive(is_whole)?;
            if received != subscribers {
                return Err(format!(
                    "{received} of {subscribers} subscribers got a message as it was sent"
                ));
            }
        }
        Ok(Some(start.elapsed()))
    }))
}

/// Times both, and prints their rows and ratios. A message that a peer cannot send is no error; a
/// mistake of this library is one.
pub(crate) fn measure(effort: Effort) -> Fallible {
    let mut batches = Vec::new();
    for (number, (len, subscribers, ..)) in ROWS.into_iter().enumerate() {
        let ours = ours(number, subscribers);
        let theirs = iceoryx::fanout(len, subscribers);
        batches.push(batch(ours, len, subscribers, effort.is_quick));
        batches.push(batch(theirs, len, subscribers, effort.is_quick));
    }
    let spreads = interleave(batches, effort.rounds, effort.batch());
    let heads = [
        "sent, received by all, released",
        "shm-pool",
        "iceoryx2",
        "iceoryx2 / shm-pool",
        "goal",
        "",
    ];
    let mut shown = table(&heads);
    for ((_, _, name, goal), both) in ROWS.iter().zip(spreads.chunks(2)) {
        let time = |spread: &Made<Spread>| match spread {
            Ok(spread) => spread.to_string(),
            Err(_) => "cannot".to_owned(),
        };
        let ratio = match both {
            [Ok(ours), Ok(theirs)] if !effort.is_quick => theirs.median / ours.median,
            _ => f64::NAN,
        };
        let goal = if effort.is_quick { Goal::None } else { *goal };
        let shown_ratio = if ratio.is_nan() {
            "not measured".to_owned()
        } else {
            format!("{ratio:.2}")
        };
        shown.add_row([
            (*name).to_owned(),
            time(&both[0]),
            time(&both[1]),
            shown_ratio,
            goal.to_string(),
            goal.verdict(ratio).to_owned(),
        ]);
    }
    for (rows, spreads) in ROWS
        .chunks(OF_A_LENGTH)
        .zip(spreads.chunks(2 * OF_A_LENGTH))
    {
        if effort.is_quick {
            break;
        }
        let first = &rows[0];
        let last = &rows[OF_A_LENGTH - 1];
        let more = (last.1 - first.1) as f64;
        let additional = |one: &Made<Spread>, several: &Made<Spread>| match (one, several) {
            (Ok(one), Ok(several)) => (several.median - one.median) / more,
            _ => f64::NAN,
        };
        let ours = additional(&spreads[0], &spreads[2 * OF_A_LENGTH - 2]);
        let theirs = additional(&spreads[1], &spreads[2 * OF_A_LENGTH - 1]);
        shown.add_row([
            format!("each additional one after {}", first.2),
            Nanoseconds(ours).to_string(),
            Nanoseconds(theirs).to_string(),
            format!("{:.2}", theirs / ours),
            ADDITIONAL.to_string(),
            ADDITIONAL.verdict(theirs / ours).to_owned(),
        ]);
    }
    show("peers fanout", &shown);
    for ((_, _, name, _), both) in ROWS.iter().zip(spreads.chunks(2)) {
        if let Err(reason) = &both[1] {
            println!("iceoryx2 cannot send {name}: {reason}\n");
        }
        if let Err(reason) = &both[0] {
            return Err(format!("{name}: {reason}").into());
        }
    }
    Ok(())
}
