//! Blocking on several receivers at once.

#![forbid(unsafe_code)]

use super::doorbell::{WakeReason, LOOKS};
use super::error::RecvError;
use super::interrupt::ThreadWaker;
use super::receiver::Receiver;
use super::spin::is_over;
use crate::error::OsError;
use crate::os::futex::{can_sleep_on_many, monotonic_nanos, Deadline, Words, MOST_WORDS};
use std::task::Waker;
use std::time::Duration;

/// Blocks until one of several receivers has a message, for at most `timeout`; [`Duration::MAX`]
/// means no timeout. Returns that receiver's index: its next [`try_recv`](Receiver::try_recv) does
/// not return `Empty`, unless the message is withdrawn, or the last message that it holds is
/// dropped, in the meantime. A receiver that is to report
/// [`TooManyBorrowed`](super::RecvError::TooManyBorrowed), or whose sender has closed, counts as
/// ready too; leave the latter out of later calls.
///
/// If several receivers have messages, returns the one returned least recently; of those never
/// returned, the first.
///
/// Spins before it sleeps, for the shortest [`spin`](super::ReceiverBuilder::spin) that is set for
/// one of the receivers, or by default as [one of them](super#spinning) would. With more than 128
/// receivers, where each one that has an [`Interrupter`] counts as two, or before Linux 5.16, the
/// helper threads of the [module](super#awaiting) wake it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{wait_any, Receiver, Sender};
/// use shm_pool::{Client, Provider};
/// use std::time::Duration;
///
/// # let name = |of| format!("doc-any-{of}-{}", std::process::id());
/// let (provider, client) = (Provider::builder().build()?, Client::new());
/// let mut frames_out = Sender::create(&provider, &name("frames"))?;
/// let samples_out = Sender::create(&provider, &name("samples"))?;
/// let mut frames = Receiver::open(&client, &name("frames"))?;
/// let mut samples = Receiver::open(&client, &name("samples"))?;
/// frames_out.send_bytes(b"a frame")?;
/// match wait_any(&mut [&mut samples, &mut frames], Duration::from_secs(10))? {
///     0 => println!("sample: {:?}", samples.try_recv()?),
///     _ => println!("frame: {:?}", frames.try_recv()?),
/// }
/// # drop(samples_out);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`RecvError::TimedOut`]; [`RecvError::Interrupted`] by a receiver's [`Interrupter`];
/// [`RecvError::NoReceivers`]; [`RecvError::NoHelper`]; [`RecvError::Forked`].
///
/// [`Interrupter`]: super::Interrupter
pub fn wait_any(receivers: &mut [&mut Receiver], timeout: Duration) -> Result<usize, RecvError> {
    let deadline = Deadline::after(timeout);
    if receivers.is_empty() {
        return Err(RecvError::NoReceivers);
    }
    for receiver in receivers.iter_mut() {
        // The only error that `ask` returns.
        if receiver.ask().is_err() {
            return Err(RecvError::Forked);
        }
    }
    let budget = budget(receivers);
    let mut began = None;
    let found = match spin(receivers, budget, &mut began, deadline) {
        Some(found) => {
            if !budget.is_zero() {
                note_spin(receivers, &found);
            }
            found
        }
        None => {
            let began = match began {
                Some(began) => began,
                None => monotonic_nanos(),
            };
            let found = wait(receivers, deadline)?;
            note_sleep(receivers, &found, began);
            found
        }
    };
    match found {
        Found::Ready(index) => {
            let mut last = 0;
            for receiver in receivers.iter() {
                last = last.max(receiver.turn);
            }
            receivers[index].turn = last + 1;
            Ok(index)
        }
        Found::Interrupted(index) => {
            receivers[index].parker.interrupts().take();
            Err(RecvError::Interrupted)
        }
        Found::TimedOut => Err(RecvError::TimedOut),
    }
}

/// What ends a wait. Indices are within the slice.
enum Found {
    Ready(usize),
    Interrupted(usize),
    TimedOut,
}

/// Returns the ready receiver whose turn it is, or else one that was interrupted.
fn find(receivers: &[&mut Receiver]) -> Option<Found> {
    let mut ready: Option<usize> = None;
    for (index, receiver) in receivers.iter().enumerate() {
        if !receiver.has_next() && !receiver.object().is_sender_disconnected() {
            continue;
        }
        match ready {
            Some(other) if receivers[other].turn <= receiver.turn => {}
            _ => ready = Some(index),
        }
    }
    if let Some(index) = ready {
        return Some(Found::Ready(index));
    }
    for (index, receiver) in receivers.iter().enumerate() {
        if receiver.parker.interrupts().is_set() {
            return Some(Found::Interrupted(index));
        }
    }
    None
}

/// Closes the channel on behalf of each dead sender for which a check is due.
fn look_for_senders(receivers: &mut [&mut Receiver]) {
    for receiver in receivers {
        receiver.look_for_sender();
    }
}

/// Returns how long to spin: one channel of which messages come at once is enough for a spin to
/// pay.
fn budget(receivers: &[&mut Receiver]) -> Duration {
    let mut shortest: Option<Duration> = None;
    let mut longest_adaptive = Duration::ZERO;
    for receiver in receivers {
        match (receiver.spin, shortest) {
            (None, _) => {
                longest_adaptive = longest_adaptive.max(receiver.parker.adaptive.budget());
            }
            (Some(spin), None) => shortest = Some(spin),
            (Some(spin), Some(other)) => shortest = Some(spin.min(other)),
        }
    }
    match shortest {
        Some(spin) => spin,
        None => longest_adaptive,
    }
}

/// The wait ended during its spin.
fn note_spin(receivers: &mut [&mut Receiver], found: &Found) {
    if let Found::Ready(index) = found {
        receivers[*index].parker.adaptive.grow();
    }
}

/// The wait slept. Its spin was in vain for all receivers but the one that was ready.
fn note_sleep(receivers: &mut [&mut Receiver], found: &Found, began: u64) {
    for (index, receiver) in receivers.iter_mut().enumerate() {
        if matches!(found, Found::Ready(ready) if *ready == index) {
            receiver.parker.learn(began, WakeReason::Ready);
        } else {
            receiver.parker.adaptive.shrink();
        }
    }
}

/// Checks repeatedly, for at most `budget`, and notes in `began` when it began.
fn spin(
    receivers: &mut [&mut Receiver],
    budget: Duration,
    began: &mut Option<u64>,
    deadline: Option<Deadline>,
) -> Option<Found> {
    if budget.is_zero() {
        return find(receivers);
    }
    loop {
        for _ in 0..LOOKS / receivers.len() + 1 {
            std::hint::spin_loop();
            if let Some(found) = find(receivers) {
                return Some(found);
            }
        }
        if is_over(budget, began) || Deadline::is_past(deadline) {
            return None;
        }
        look_for_senders(receivers);
    }
}

/// Sleeps until one is ready or interrupted. The steps I are those of `interrupt`.
fn wait(receivers: &mut [&mut Receiver], deadline: Option<Deadline>) -> Result<Found, RecvError> {
    let mut words = 0;
    for receiver in receivers.iter() {
        let interrupts = receiver.parker.interrupts();
        interrupts.begin_wait(); // I1
        words += 1 + usize::from(interrupts.has_interrupter());
    }
    let found = if words <= MOST_WORDS && can_sleep_on_many() {
        Ok(sleep(receivers, deadline))
    } else {
        sleep_by_helpers(receivers, deadline)
    };
    for receiver in receivers.iter() {
        receiver.parker.interrupts().end_wait(); // I5
    }
    found
}

/// Sleeps in this thread on all doorbells at once. The steps S are those of `doorbell`.
fn sleep(receivers: &mut [&mut Receiver], deadline: Option<Deadline>) -> Found {
    for receiver in receivers.iter_mut() {
        receiver.parker.leave_helper();
    }
    let found = loop {
        look_for_senders(receivers);
        let mut words = Words::new();
        for receiver in receivers.iter() {
            let doorbell = receiver.parker.doorbell();
            // `find` below handles a receiver whose sender has left.
            let word = doorbell.announce_wait(); // S1, S2
            receiver.parker.interrupts().add_to(&mut words);
            if let Some(word) = word {
                words.push(doorbell.word(), word);
            }
        }
        if let Some(found) = find(receivers) {
            break found; // S3, I2, I3
        }
        if Deadline::is_past(deadline) {
            break Found::TimedOut;
        }
        let mut until = deadline;
        for receiver in receivers.iter() {
            until = Deadline::first(until, receiver.parker.check.time());
        }
        words.sleep(until); // S4, I4

        // Before S1 clears the bits that the ringers have set.
        if let Some(found) = find(receivers) {
            break found;
        }
    };
    for receiver in receivers.iter() {
        receiver.parker.doorbell().end_wait();
    }
    found
}

/// Sleeps until a helper thread, which sleeps on the doorbells, wakes this one.
fn sleep_by_helpers(
    receivers: &mut [&mut Receiver],
    deadline: Option<Deadline>,
) -> Result<Found, RecvError> {
    let thread = ThreadWaker::new();
    let waker = Waker::from(thread.clone());
    let found = loop {
        let count = thread.count();
        // `find` below handles one that is ready already.
        if let Err(error) = arm_all(receivers, &waker) {
            break Err(RecvError::NoHelper(error));
        }
        if let Some(found) = find(receivers) {
            break Ok(found);
        }
        if Deadline::is_past(deadline) {
            break Ok(Found::TimedOut);
        }
        let interrupts = receivers
            .iter()
            .map(|receiver| &**receiver.parker.interrupts());
        thread.park(count, interrupts, deadline);
    };
    for receiver in receivers.iter_mut() {
        receiver.parker.disarm();
    }
    found
}

fn arm_all(receivers: &mut [&mut Receiver], waker: &Waker) -> Result<(), OsError> {
    for receiver in receivers {
        let _: Option<WakeReason> = receiver.arm(waker)?;
    }
    Ok(())
}
