//! The rows, the settings in which they are compared, and how both processes begin with each. The
//! receiver is the parent, because it prints what it has seen.

#![forbid(unsafe_code)]

use crate::messages::{receive_all, send_all, Read, Round, MIN_LEN};
use crate::slot::{Slot, MAX_LEN, PATIENCE};
use nix::unistd::alarm;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::{Client, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{end_with_parent, inherited_input, say_ready, this_program, Child};
use shm_pool_support::{clock, Fallible};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Stdio};
use std::time::Duration;

const LENS: &[usize] = &[64, 100, 512, 1024, 4096, LARGEST];
pub(crate) const LARGEST: usize = 8192;

/// What the figures in SHM-direct's own report are for.
pub(crate) const REFERENCE: usize = 116;

const _: () = assert!(LENS[0] >= MIN_LEN && REFERENCE >= MIN_LEN && LARGEST <= MAX_LEN);

/// From one message to the next, by the clock.
pub(crate) const BACK_TO_BACK: Duration = Duration::ZERO;
pub(crate) const PACED: Duration = Duration::from_millis(1);
pub(crate) const SLOW: Duration = Duration::from_millis(10);

/// Settings that belong together: a pace, and the lengths of messages.
pub(crate) const SETTINGS: [(Duration, &[usize]); 3] = [(BACK_TO_BACK, LENS), (PACED, LENS), (SLOW, &[REFERENCE])];

/// Under what conditions the ways are compared.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) pace: Duration,
    pub(crate) len: usize,
    /// Messages before those that count.
    pub(crate) warm_up: u64,
    /// Messages of a round.
    pub(crate) count: u64,
}

impl Setting {
    /// All messages of a round.
    pub(crate) fn messages(&self) -> u64 {
        self.warm_up + self.count
    }

    /// How long a round takes by the clock.
    pub(crate) fn duration(&self) -> Duration {
        self.pace.mul_f64(self.messages() as f64)
    }
}

/// A way to the other process.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Way {
    Slot,
    /// Looks for so long before it sleeps; so many messages may be under way.
    Channel {
        spin: Duration,
        slots: usize,
    },
}

/// As many messages may be under way as with one slot, when the receiver has copied a message out
/// of that and goes on to read it: the one that is read, and the next one.
const TWO_SLOTS: usize = 2;

/// The library's defaults.
const SPIN: Duration = Duration::from_micros(20);
const RING: usize = 256;

pub(crate) const SLOT: &str = "slot: pthread mutex, condvars";

/// Waits as the slot's sides do, who sleep at once.
pub(crate) const FUTEX_ONLY: &str = "channel, futex only";

pub(crate) const DEFAULT_WAITING: &str = "channel, default waiting";

pub(crate) const ROWS: [(&str, Way); 4] = [
    (SLOT, Way::Slot),
    (FUTEX_ONLY, Way::Channel { spin: Duration::ZERO, slots: TWO_SLOTS }),
    (DEFAULT_WAITING, Way::Channel { spin: SPIN, slots: TWO_SLOTS }),
    // For the throughput.
    ("channel, default waiting, 256 slots", Way::Channel { spin: SPIN, slots: RING }),
];

/// All runs have the same, so that each removes what one that was killed has left.
const PREFIX: &str = "shm-direct";

/// Longest wait for the other process to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// What the sender is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    way: Way,
    setting: Setting,
    /// Of the channel.
    name: String,
    core: Option<usize>,
}

impl Way {
    /// Does the time that a message takes mean something? Through a long ring, back to back, it is
    /// the time that the ring takes.
    pub(crate) fn has_latencies(self) -> bool {
        !matches!(self, Self::Channel { slots: RING, .. })
    }

    /// Is it measured? The length of the ring matters only when it fills.
    pub(crate) fn is_for(self, pace: Duration) -> bool {
        pace == BACK_TO_BACK || self.has_latencies()
    }

    /// Starts the sender on a core, and receives a round.
    pub(crate) fn receive(self, setting: &Setting, core: Option<usize>) -> Fallible<Round> {
        limit(setting);
        let job = Job { way: self, setting: *setting, name: process::id().to_string(), core };
        // In a group of its own: an interrupt from the terminal is this process's. The other one
        // finds this one gone, and removes what it has made.
        let start = |input: Stdio, output: Stdio| {
            Child::start("sender", this_program(&job)?.stdin(input).stdout(output).process_group(0))
        };
        let round = match self {
            Self::Slot => {
                let (slot, fd) = Slot::create()?;
                let sender = start(fd.into(), Stdio::null())?;
                let mut buffer = vec![0; MAX_LEN];
                let receive = |read: Read| {
                    let (len, wake) = slot.take(&mut buffer)?;
                    read(wake, &buffer[..len])
                };
                receive_from(sender, setting, receive).and_then(|round| match slot.is_empty()? {
                    true => Ok(round),
                    false => Err("after the last message came another one".into()),
                })
            }
            Self::Channel { spin, .. } => {
                let mut sender = start(Stdio::piped(), Stdio::piped())?;
                let round = open(&mut sender, &job.name, spin).and_then(|mut receiver| {
                    let round = receive_from(sender, setting, |read| {
                        // As with the slot, the clock is asked for a deadline only if there is
                        // nothing yet.
                        let message = match receiver.try_recv() {
                            Err(RecvError::Empty) => receiver.recv_timeout(PATIENCE)?,
                            message => message?,
                        };
                        read(clock::now(), &message)
                    })?;
                    match receiver.try_recv() {
                        Err(RecvError::Disconnected) => Ok(round),
                        other => Err(format!("after the last message came {other:?}").into()),
                    }
                });
                if round.is_err() {
                    // The sender may have been killed, and then has left what it had made.
                    Provider::sweep(PREFIX)?;
                }
                round
            }
        };
        alarm::cancel();
        round
    }
}

/// Opens the channel when the sender has made it.
fn open(sender: &mut Child, name: &str, spin: Duration) -> Fallible<Receiver> {
    sender.wait_until_ready()?;
    Ok(Receiver::builder().spin(spin).open(&Client::builder().name_prefix(PREFIX).build()?, name)?)
}

/// Receives all, and sees the sender end.
fn receive_from(mut sender: Child, setting: &Setting, receive: impl FnMut(Read) -> Fallible) -> Fallible<Round> {
    let round = receive_all(setting, receive);
    if round.is_err() {
        // Says more, if it is why.
        sender.check_alive()?;
    } else {
        sender.finish()?;
    }
    round
}

impl Job {
    /// What the other process does.
    pub(crate) fn send(&self) -> Fallible {
        let Self { setting, .. } = self;
        limit(setting);
        pin(self.core)?;
        match self.way {
            Way::Slot => {
                // It would notice when it has waited in vain; and it has nothing to remove.
                end_with_parent()?;
                let slot = Slot::map(&File::from(inherited_input()?))?;
                send_all(setting, |payload| slot.put(payload))
            }
            Way::Channel { spin, slots } => {
                let provider = Provider::builder().name_prefix(PREFIX).build()?;
                let mut sender = Sender::builder().spin(spin).capacity(slots).create(&provider, &self.name)?;
                say_ready()?;
                sender.wait_for_receiver(BEGIN)?;
                send_all(setting, |payload| {
                    let mut buffer = provider.alloc(payload.len())?;
                    buffer.copy_from_slice(payload);
                    Ok(sender.send(buffer.freeze())?)
                })?;
                // A message that was not attached to yet goes with its owner, so that waits until
                // the receiver has them all.
                io::copy(&mut io::stdin(), &mut io::sink())?;
                Ok(())
            }
        }
    }
}

/// The kernel ends this process when a round takes far longer than it ever does: the last resort,
/// when the other process does not end, or has left a lock that nobody releases.
fn limit(setting: &Setting) {
    let most = 2 * BEGIN + (setting.pace + Duration::from_millis(1)).mul_f64(setting.messages() as f64);
    alarm::set(most.as_secs().try_into().unwrap_or(u32::MAX));
}
