//! The messages that a receiver gets by its rule, and those it misses: with "wait" none, with the
//! others exactly the number reported to it.

use crate::tally::Tally;
use crate::{channel_name, open, Part, FOR_EVER};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{OnFull, Publisher, Receiver, ReceiverState, RecvError};
use shm_pool_support::machine::{pin, Cores};
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::table::table;
use shm_pool_support::{clock, numbered, wire, Fallible};
use std::io;
use std::process::Stdio;

/// Every fourth message is in the slots, the others in buffers.
const INLINE: usize = 48;
const BUFFER: usize = 4 << 10;

fn len(number: u64) -> usize {
    if number % 4 == 0 {
        INLINE
    } else {
        BUFFER
    }
}

/// How many messages a receiver may lag behind.
const CAPACITY: usize = 4;

/// How long a receiver holds each message, in nanoseconds, unless the publisher waits for it. So it
/// misses most.
const SLOW: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Rule {
    Wait,
    DropNew,
    KeepLatest,
}

const RULES: [(Rule, &str); 3] = [(Rule::Wait, "wait"), (Rule::DropNew, "drop new"), (Rule::KeepLatest, "keep latest")];

impl Rule {
    fn on_full(self) -> OnFull {
        match self {
            Self::Wait => OnFull::Wait,
            Self::DropNew => OnFull::DropNew,
            Self::KeepLatest => OnFull::KeepLatest,
        }
    }
}

/// A receiver's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    channel: String,
    rule: Rule,
    core: Option<usize>,
}

impl Task {
    /// Receives until the publisher leaves, and then reports its [`Tally`].
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let options = Receiver::builder().capacity(CAPACITY).on_full(self.rule.on_full());
        let mut receiver = open(options, &self.channel)?;
        let mut tally = Tally::default();
        loop {
            let message = match receiver.recv() {
                Err(RecvError::Disconnected) => break,
                message => message?,
            };
            let (received, number) = (clock::now(), numbered::number(&message)?);
            tally.count(number, message.missed())?;
            numbered::check(&message, len(number), 0, number)?;
            if self.rule != Rule::Wait {
                clock::sleep_until(received + SLOW);
            }
        }
        Ok(wire::send(io::stdout(), &tally)?)
    }
}

pub(crate) fn check(messages: u64, cores: Cores) -> Fallible {
    for ((_, name), tally) in RULES.iter().zip(run(messages, cores)?) {
        println!(
            "{name}: {} of {messages} messages received, all as sent, {} missed, as told",
            tally.received, tally.missed
        );
    }
    Ok(())
}

pub(crate) fn measure(messages: u64, cores: Cores) -> Fallible {
    println!("\nThree receivers at once, two of them slow: {messages} messages, every byte checked\n");
    let mut shown = table(&["rule", "received", "missed, as told", "lost, doubled, reordered, damaged"]);
    for ((_, name), tally) in RULES.iter().zip(run(messages, cores)?) {
        // Any of these ends the program with an error.
        shown.add_row([name, &*tally.received.to_string(), &tally.missed.to_string(), "0"]);
    }
    println!("{shown}");
    Ok(())
}

/// Returns the reports of all [`RULES`], which must match the messages sent.
fn run(messages: u64, cores: Cores) -> Fallible<Vec<Tally>> {
    let provider = crate::provider(16 << 20)?;
    let channel = channel_name("rules");
    let mut publisher = Publisher::create(&provider, &channel)?;
    let start = |(rule, name): (Rule, &str)| {
        let task = Task { channel: channel.clone(), rule, core: cores.second() };
        Child::start(name, this_program(&Part::Rules(task))?.stdout(Stdio::piped()))
    };
    let children = RULES.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
    publisher.wait_for_receivers(RULES.len(), FOR_EVER)?;
    for number in 0..messages {
        if number + 1 == messages {
            // All receivers get the last one, and with it the number of those missed before.
            publisher.wait_until_received(FOR_EVER)?;
        }
        let receivers = match len(number) {
            INLINE => {
                let mut bytes = [0; INLINE];
                numbered::fill(&mut bytes, 0, number);
                publisher.send_bytes(&bytes)?
            }
            len => {
                let mut buffer = provider.alloc(len)?;
                numbered::fill(&mut buffer, 0, number);
                publisher.send(buffer.freeze()).map_err(|error| error.kind())?
            }
        };
        if receivers == 0 {
            return Err(format!("nobody got message {number}, not even who is waited for").into());
        }
    }
    publisher.wait_until_received(FOR_EVER)?;
    let states: Vec<ReceiverState> = publisher.receivers().collect();
    drop(publisher);
    let hear = |((rule, _), mut child): ((Rule, &str), Child)| {
        let tally: Tally = wire::expect(child.output()?).map_err(|error| format!("{}: {error}", child.name()))?;
        let state = states.iter().find(|state| state.on_full == rule.on_full());
        let dropped = state.map(|state| state.dropped);
        if tally.sent() != messages || dropped != Some(tally.missed) {
            return Err(format!("{}: {tally:?} of {messages} messages, {dropped:?} dropped", child.name()).into());
        }
        if (tally.missed == 0) != (rule == Rule::Wait) {
            return Err(
                format!("{}: {tally:?}; one that is waited for misses none, a slow one some", child.name()).into()
            );
        }
        child.finish()?;
        Ok(tally)
    };
    RULES.into_iter().zip(children).map(hear).collect()
}
