//! The rows, the settings in which they are compared, and how both processes start with each. The
//! receiver is the parent, because it prints the results.

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

/// The length of the messages in SHM-direct's own report.
pub(crate) const REFERENCE: usize = 116;

const _: () = assert!(LENS[0] >= MIN_LEN && REFERENCE >= MIN_LEN && LARGEST <= MAX_LEN);

/// The interval between messages.
pub(crate) const BACK_TO_BACK: Duration = Duration::ZERO;
pub(crate) const PACED: Duration = Duration::from_millis(1);
pub(crate) const SLOW: Duration = Duration::from_millis(10);

/// Settings that belong together: a pace, and the lengths of messages.
pub(crate) const SETTINGS: [(Duration, &[usize]); 3] = [(BACK_TO_BACK, LENS), (PACED, LENS), (SLOW, &[REFERENCE])];

/// The conditions of a comparison.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) pace: Duration,
    pub(crate) len: usize,
    /// Uncounted messages at the start.
    pub(crate) warm_up: u64,
    /// Messages of a round.
    pub(crate) count: u64,
}

impl Setting {
    /// All messages of a round.
    pub(crate) fn messages(&self) -> u64 {
        self.warm_up + self.count
    }

    /// How long a round takes at its pace.
    pub(crate) fn duration(&self) -> Duration {
        self.pace.mul_f64(self.messages() as f64)
    }
}

/// A way to the other process.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Way {
    Slot,
    /// Spins for that long before it parks; `slots` messages may be in transit.
    Channel {
        spin: Duration,
        slots: usize,
    },
}

/// As many messages may be in transit as with one slot, when the receiver has copied a message out
/// of that and goes on to read it: the one being read, and the next one.
const TWO_SLOTS: usize = 2;

/// The library's defaults.
const SPIN: Duration = Duration::from_micros(20);
const RING: usize = 256;

pub(crate) const SLOT: &str = "slot: pthread mutex, condvars";

/// Waits like the slot's sides, which park at once.
pub(crate) const FUTEX_ONLY: &str = "channel, futex only";

pub(crate) const DEFAULT_WAITING: &str = "channel, default waiting";

pub(crate) const ROWS: [(&str, Way); 4] = [
    (SLOT, Way::Slot),
    (FUTEX_ONLY, Way::Channel { spin: Duration::ZERO, slots: TWO_SLOTS }),
    (DEFAULT_WAITING, Way::Channel { spin: SPIN, slots: TWO_SLOTS }),
    // For the throughput.
    ("channel, default waiting, 256 slots", Way::Channel { spin: SPIN, slots: RING }),
];

/// The same in each run, so that each run removes what a killed one left.
const PREFIX: &str = "shm-direct";

/// Longest wait for the other process to start.
const BEGIN: Duration = Duration::from_secs(30);

/// The sender's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    way: Way,
    setting: Setting,
    /// Of the channel.
    name: String,
    core: Option<usize>,
}

impl Way {
    /// Returns `true` if the latency of a message is meaningful. Through a long ring, back to back,
    /// it is the latency of the ring.
    pub(crate) fn has_latencies(self) -> bool {
        !matches!(self, Self::Channel { slots: RING, .. })
    }

    /// Returns `true` if it is measured at this pace. The length of the ring matters only when it
    /// fills.
    pub(crate) fn is_for(self, pace: Duration) -> bool {
        pace == BACK_TO_BACK || self.has_latencies()
    }

    /// Starts the sender on a core, and receives a round.
    pub(crate) fn receive(self, setting: &Setting, core: Option<usize>) -> Fallible<Round> {
        limit(setting);
        let job = Job { way: self, setting: *setting, name: process::id().to_string(), core };
        // In a separate process group: an interrupt from the terminal reaches only this process.
        // The other one detects its exit, and removes its own objects.
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
                        // As with the slot, the clock is read for a deadline only if no message is
                        // available.
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
                    // A killed sender leaves its objects behind.
                    Provider::sweep(PREFIX)?;
                }
                round
            }
        };
        alarm::cancel();
        round
    }
}

/// Opens the channel when the sender has created it.
fn open(sender: &mut Child, name: &str, spin: Duration) -> Fallible<Receiver> {
    sender.wait_until_ready()?;
    Ok(Receiver::builder().spin(spin).open(&Client::builder().name_prefix(PREFIX).build()?, name)?)
}

/// Receives all, and waits for the sender's exit.
fn receive_from(mut sender: Child, setting: &Setting, receive: impl FnMut(Read) -> Fallible) -> Fallible<Round> {
    let round = receive_all(setting, receive);
    if round.is_err() {
        // Reports more, if that is the cause.
        sender.check_alive()?;
    } else {
        sender.finish()?;
    }
    round
}

impl Job {
    /// Runs the other process.
    pub(crate) fn send(&self) -> Fallible {
        let Self { setting, .. } = self;
        limit(setting);
        pin(self.core)?;
        match self.way {
            Way::Slot => {
                // It would detect the parent's exit only after a wait, and has nothing to remove.
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
                // A message that was not attached yet is lost with its owner, so wait until the
                // receiver has all of them.
                io::copy(&mut io::stdin(), &mut io::sink())?;
                Ok(())
            }
        }
    }
}

/// Lets the kernel kill this process when a round takes far too long: the last resort, when the
/// other process does not exit, or has left a lock held.
fn limit(setting: &Setting) {
    let most = 2 * BEGIN + (setting.pace + Duration::from_millis(1)).mul_f64(setting.messages() as f64);
    alarm::set(most.as_secs().try_into().unwrap_or(u32::MAX));
}
