//! The rows, and how both processes begin with each. The receiver is the parent, because it prints what it has seen.

#![forbid(unsafe_code)]

use crate::limit::Limit;
use crate::settings::{Kind, Setting};
use crate::sides::{receive_all, send_all, Round};
use crate::slot::{Slot, MAX_LEN};
use crate::support::cores::pin;
use crate::support::role::{end_with_parent, Role};
use crate::support::Fallible;
use crate::ways::{ChannelInbox, ChannelOutbox, Inbox, SlotInbox};
use nix::unistd::{setpgid, Pid};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Provider};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{self, Stdio};
use std::time::Duration;

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

/// As many messages may be under way as with one slot, when the receiver has copied a message out of that and goes on
/// to read it: the one that is read, and the next one.
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

/// How long a process may live that sends or receives so many messages at such a pace: far longer than it ever takes.
fn limit(messages: u64, pace: Option<Duration>) -> Duration {
    2 * BEGIN + (pace.unwrap_or_default() + Duration::from_millis(1)).mul_f64(messages as f64)
}

/// What the sender is told.
#[derive(clap::Args)]
pub(crate) struct Job {
    row: usize,
    len: usize,
    /// Nanoseconds from one message to the next; 0 is back to back.
    pace: u64,
    count: u64,
    /// Of the channel
    name: String,
    core: Option<usize>,
}

impl Row {
    /// Does the time that a message takes mean something? Through a long ring, back to back, it is the time that the
    /// ring takes.
    pub(crate) fn has_latencies(&self) -> bool {
        !matches!(self.way, Way::Channel { slots: None, .. })
    }

    /// Is it measured? The length of the ring matters only when it fills.
    pub(crate) fn is_for(&self, kind: Kind) -> bool {
        kind == Kind::BackToBack || self.has_latencies()
    }

    /// Starts the sender on a core, and receives a round.
    pub(crate) fn receive(&self, setting: &Setting, core: Option<usize>) -> Fallible<Round> {
        let _limit = Limit::start("receiver", limit(setting.messages(), setting.kind.pace()));
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

    fn start(&self, setting: &Setting, name: &str, core: Option<usize>, input: Stdio, output: Stdio) -> Fallible<Role> {
        let row = ROWS.iter().position(|row| row.name == self.name).ok_or("no such row")?;
        let pace = setting.kind.pace().unwrap_or_default().as_nanos();
        let mut arguments = vec![row.to_string(), setting.len.to_string(), pace.to_string()];
        arguments.extend([setting.messages().to_string(), name.to_owned()]);
        arguments.extend(core.map(|core| core.to_string()));
        Role::start("sender", arguments, input, output)
    }
}

impl Job {
    /// What the other process does.
    pub(crate) fn send(&self) -> Fallible {
        let row = ROWS.get(self.row).ok_or("no such row")?;
        let pace = (self.pace > 0).then(|| Duration::from_nanos(self.pace));
        let _limit = Limit::start("sender", limit(self.count, pace));
        // An interrupt from the terminal is the parent's. This process finds that gone, and removes what it has made.
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        pin(self.core)?;
        match row.way {
            Way::Slot => {
                // It would notice when it has waited in vain; and it has nothing to remove.
                end_with_parent()?;
                let mut slot = Slot::open(&File::from(io::stdin().as_fd().try_clone_to_owned()?))?;
                send_all(&mut slot, self.len, pace, self.count)
            }
            Way::Channel { spin, slots } => {
                let mut outbox = create(&self.name, spin, slots)?;
                io::stdout().write_all(b".")?;
                io::stdout().flush()?;
                outbox.sender.wait_for_receiver(BEGIN)?;
                send_all(&mut outbox, self.len, pace, self.count)?;
                // A message that was not attached to yet goes with its owner, so that waits until the receiver has them
                // all.
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
fn open(sender: &mut Role, name: &str, spin: Option<Duration>) -> Fallible<ChannelInbox> {
    let output = sender.child().stdout.as_mut().ok_or("no pipe")?;
    output.read_exact(&mut [0]).map_err(|error| format!("the sender has not made its channel: {error}"))?;
    let mut builder = Receiver::builder();
    if let Some(spin) = spin {
        builder = builder.spin(spin);
    }
    let client = Client::builder().name_prefix(PREFIX).build()?;
    Ok(ChannelInbox(builder.open(&client, name)?))
}

/// Receives all, and sees that there was no more.
fn run(inbox: &mut impl Inbox, setting: &Setting, mut sender: Role) -> Fallible<Round> {
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
