//! The rows, the settings in which they are compared, and how both processes begin with each. The
//! receiver is the parent, because it prints what it has seen.

#![forbid(unsafe_code)]

use crate::payload::MIN_LEN;
use crate::slot::{Slot, MAX_LEN};
use crate::ways::{receive_all, send_all, ChannelInbox, ChannelOutbox, Inbox, Round, SlotInbox};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{end_with_parent, inherited_input, this_program, Child};
use shm_pool_support::Fallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Settings that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    BackToBack,
    Paced,
    /// What the figures in SHM-direct's own report are for.
    Reference,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::BackToBack, Kind::Paced, Kind::Reference];

const LENS: &[usize] = &[64, 100, 512, 1024, 4096, LARGEST];

pub(crate) const LARGEST: usize = 8192;

pub(crate) const REFERENCE: usize = 116;

const _: () = assert!(LENS[0] >= MIN_LEN && REFERENCE >= MIN_LEN && LARGEST <= MAX_LEN);

impl Kind {
    pub(crate) fn lens(self) -> &'static [usize] {
        match self {
            Self::BackToBack | Self::Paced => LENS,
            Self::Reference => &[REFERENCE],
        }
    }

    /// From one message to the next, by the clock.
    pub(crate) fn pace(self) -> Option<Duration> {
        match self {
            Self::BackToBack => None,
            Self::Paced => Some(Duration::from_millis(1)),
            Self::Reference => Some(Duration::from_millis(10)),
        }
    }
}

/// Under what conditions the ways are compared: how long the messages are, and how often they come.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    /// Messages before those that count.
    pub(crate) warm_up: u64,
    /// Messages of a round.
    pub(crate) count: u64,
}

impl Setting {
    pub(crate) fn new(kind: Kind, len: usize, count: u64) -> Self {
        Self { kind, len, warm_up: count.div_ceil(10), count }
    }

    /// All messages of a round.
    pub(crate) fn messages(&self) -> u64 {
        self.warm_up + self.count
    }

    /// How long a round takes by the clock.
    pub(crate) fn duration(&self) -> Duration {
        self.kind.pace().unwrap_or_default().mul_f64(self.messages() as f64)
    }
}

/// A way to the other process.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    way: Way,
}

enum Way {
    Slot,
    /// `None` is the library's default.
    Channel {
        spin: Option<Duration>,
        slots: Option<usize>,
    },
}

/// As many messages may be under way as with one slot, when the receiver has copied a message out
/// of that and goes on to read it: the one that is read, and the next one.
const TWO_SLOTS: Option<usize> = Some(2);

pub(crate) const SLOT: Row = Row { name: "slot: pthread mutex, condvars", way: Way::Slot };

/// Waits as the slot's sides do, who sleep at once.
pub(crate) const FUTEX_ONLY: Row =
    Row { name: "channel, futex only", way: Way::Channel { spin: Some(Duration::ZERO), slots: TWO_SLOTS } };

pub(crate) const DEFAULT_WAITING: Row =
    Row { name: "channel, default waiting", way: Way::Channel { spin: None, slots: TWO_SLOTS } };

/// For the throughput.
const DEFAULT_RING: Row =
    Row { name: "channel, default waiting, 256 slots", way: Way::Channel { spin: None, slots: None } };

pub(crate) const ROWS: &[Row] = &[SLOT, FUTEX_ONLY, DEFAULT_WAITING, DEFAULT_RING];

/// All runs have the same, so that each removes what one that was killed has left.
const PREFIX: &str = "shm-direct";

/// Longest wait for the other process to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// How long a process may live that sends or receives so many messages at such a pace: far longer
/// than it ever takes.
fn limit(setting: &Setting) -> Duration {
    let pace = setting.kind.pace().unwrap_or_default();
    2 * BEGIN + (pace + Duration::from_millis(1)).mul_f64(setting.messages() as f64)
}

/// What the sender is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    row: usize,
    setting: Setting,
    /// Of the channel.
    name: String,
    core: Option<usize>,
}

impl Row {
    /// Does the time that a message takes mean something? Through a long ring, back to back, it is
    /// the time that the ring takes.
    pub(crate) fn has_latencies(&self) -> bool {
        !matches!(self.way, Way::Channel { slots: None, .. })
    }

    /// Is it measured? The length of the ring matters only when it fills.
    pub(crate) fn is_for(&self, kind: Kind) -> bool {
        kind == Kind::BackToBack || self.has_latencies()
    }

    /// Starts the sender on a core, and receives a round.
    pub(crate) fn receive(&self, setting: &Setting, core: Option<usize>) -> Fallible<Round> {
        let _limit = Limit::start("receiver", limit(setting));
        let name = process::id().to_string();
        match self.way {
            Way::Slot => {
                let (slot, fd) = Slot::create()?;
                let sender = self.start(setting, &name, core, fd.into(), Stdio::null())?;
                run(&mut SlotInbox { slot, buffer: vec![0; MAX_LEN] }, setting, sender)
            }
            Way::Channel { spin, .. } => {
                let mut sender = self.start(setting, &name, core, Stdio::piped(), Stdio::piped())?;
                let opened = open(&mut sender, &name, spin);
                // Either way the sender has ended then.
                let received = opened.and_then(move |mut inbox| run(&mut inbox, setting, sender));
                if received.is_err() {
                    // It may have been killed, and then has left what it had made.
                    Provider::sweep(PREFIX)?;
                }
                received
            }
        }
    }

    fn start(
        &self,
        setting: &Setting,
        name: &str,
        core: Option<usize>,
        input: Stdio,
        output: Stdio,
    ) -> Fallible<Child> {
        let row = ROWS.iter().position(|row| row.name == self.name).ok_or("no such row")?;
        let job = Job { row, setting: *setting, name: name.to_owned(), core };
        // In a group of its own: an interrupt from the terminal is this process's. The other one
        // finds this one gone, and removes what it has made.
        Ok(Child::start("sender", this_program(&job)?.stdin(input).stdout(output).process_group(0))?)
    }
}

impl Job {
    /// What the other process does.
    pub(crate) fn send(&self) -> Fallible {
        let Self { setting, .. } = self;
        let _limit = Limit::start("sender", limit(setting));
        pin(self.core)?;
        match ROWS[self.row].way {
            Way::Slot => {
                // It would notice when it has waited in vain; and it has nothing to remove.
                end_with_parent()?;
                let mut slot = Slot::open(&File::from(inherited_input()?))?;
                send_all(&mut slot, setting)
            }
            Way::Channel { spin, slots } => {
                let mut outbox = create(&self.name, spin, slots)?;
                io::stdout().write_all(b".")?;
                io::stdout().flush()?;
                outbox.sender.wait_for_receiver(BEGIN)?;
                send_all(&mut outbox, setting)?;
                // A message that was not attached to yet goes with its owner, so that waits until
                // the receiver has them all.
                io::copy(&mut io::stdin(), &mut io::sink())?;
                Ok(())
            }
        }
    }
}

fn create(name: &str, spin: Option<Duration>, slots: Option<usize>) -> Fallible<ChannelOutbox> {
    let provider = Provider::builder().name_prefix(PREFIX).build()?;
    let mut builder = Sender::builder();
    if let Some(spin) = spin {
        builder = builder.spin(spin);
    }
    if let Some(slots) = slots {
        builder = builder.capacity(slots);
    }
    let sender = builder.create(&provider, name)?;
    Ok(ChannelOutbox { provider, sender })
}

/// Opens the channel when the sender has made it.
fn open(sender: &mut Child, name: &str, spin: Option<Duration>) -> Fallible<ChannelInbox> {
    sender.output()?.read_exact(&mut [0]).map_err(|error| format!("the sender has not made its channel: {error}"))?;
    let mut builder = Receiver::builder();
    if let Some(spin) = spin {
        builder = builder.spin(spin);
    }
    let client = Client::builder().name_prefix(PREFIX).build()?;
    Ok(ChannelInbox(builder.open(&client, name)?))
}

/// Receives all, and sees that there was no more.
fn run(inbox: &mut impl Inbox, setting: &Setting, mut sender: Child) -> Fallible<Round> {
    let round = match receive_all(inbox, setting) {
        Ok(round) => round,
        Err(error) => {
            // That says more, if it is why.
            sender.check_alive()?;
            return Err(error);
        }
    };
    sender.finish()?;
    inbox.check_end()?;
    Ok(round)
}

/// Ends this process when it takes longer than it can, until this is dropped: the last resort, when
/// the other one does not end, or has left a lock that nobody releases. What ends it is a thread
/// that sleeps.
struct Limit {
    _end: mpsc::Sender<()>,
}

impl Limit {
    fn start(who: &'static str, limit: Duration) -> Self {
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the {who} gives up: not done after {} s", limit.as_secs());
                process::exit(1);
            }
        });
        Self { _end: end }
    }
}
