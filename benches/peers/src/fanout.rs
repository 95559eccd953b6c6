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
    let options = Publisher::builder()
        .max_subscribers(subscribers)
        .capacity(CAPACITY);
    let mut publisher = options.create(&provider, &name).map_err(text)?;
    let receivers: Result<_, _> = (0..subscribers)
        .map(|_| Subscriber::builder().on_end(OnEnd::Return).open(&name))
        .collect();
    publisher
        .wait_for_receivers(subscribers, Duration::ZERO)
        .map_err(text)?;
    Ok(Ours {
        publisher,
        provider,
        receivers: receivers.map_err(text)?,
    })
}

impl Fanout for Ours {
    #[inline]
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Made<()> {
        let mut buffer = self.provider.alloc(len).map_err(text)?;
        fill(&mut buffer);
        self.publisher.send(buffer.freeze()).map(drop).map_err(text)
    }

    #[inline]
    fn receive(&mut self, mut check: impl FnMut(&[u8]) -> bool) -> Made<usize> {
        let received = self
            .receivers
            .iter_mut()
            .map(|receiver| receiver.try_recv().map_err(text));
        received
            .map(|message| message.map(|message| usize::from(check(&message))))
            .sum()
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
            fanout.send(len, |bytes| match is_thorough {
                true => bytes.fill(byte),
                false => (bytes[0], bytes[len - 1]) = (byte, byte),
            })?;
            let is_whole = |bytes: &[u8]| match is_thorough {
                true => bytes.len() == len && bytes.iter().all(|&each| each == byte),
                false => bytes.len() == len && has_ends(bytes, byte),
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

/// Times both, and prints their rows and ratios. A message that a peer cannot send is no error; a mistake of
/// this library is one.
pub(crate) fn measure(effort: Effort) -> Fallible {
    let batches = ROWS
        .into_iter()
        .enumerate()
        .flat_map(|(number, (len, subscribers, ..))| {
            let theirs = iceoryx::fanout(len, subscribers);
            [
                batch(ours(number, subscribers), len, subscribers, effort.is_quick),
                batch(theirs, len, subscribers, effort.is_quick),
            ]
        });
    let spreads = interleave(batches, effort.rounds, effort.is_quick.then_some(100));
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
        let time = |spread: &Made<Spread>| {
            spread
                .as_ref()
                .map_or("cannot".to_owned(), Spread::to_string)
        };
        let ratio = match both {
            [Ok(ours), Ok(theirs)] if !effort.is_quick => theirs.median / ours.median,
            _ => f64::NAN,
        };
        let goal = if effort.is_quick {
            Goal::None
        } else {
            *goal
        };
        shown.add_row([
            (*name).to_owned(),
            time(&both[0]),
            time(&both[1]),
            if ratio.is_nan() {
                "not measured".to_owned()
            } else {
                format!("{ratio:.2}")
            },
            goal.to_string(),
            goal.verdict(ratio).to_owned(),
        ]);
    }
    show("peers fanout", &shown);
    for ((_, _, name, _), both) in ROWS.iter().zip(spreads.chunks(2)) {
        if let Err(reason) = &both[1] {
            println!("iceoryx2 cannot send {name}: {reason}\n");
        }
        both[0]
            .as_ref()
            .map_err(|reason| format!("{name}: {reason}"))?;
    }
    Ok(())
}
