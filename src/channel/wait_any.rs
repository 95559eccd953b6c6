//! Waiting in a thread for any of several receivers.

#![forbid(unsafe_code)]

use super::bell::{Woken, LOOK_AGAIN};
use super::error::WaitAnyError;
use super::receiver::Receiver;
use super::LOOKS;
use crate::os::deadline::Deadline;
use crate::os::futex::{can_sleep_on_many, Words, MOST_WORDS};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// Waits until one of several receivers has a message, for `timeout` at most; [`Duration::MAX`]
/// means for ever. Returns its index: its next [`try_recv`](Receiver::try_recv) does not find it
/// empty, unless its rule is to keep the latest and its message is withdrawn just then. A receiver
/// whose sender is gone counts too, until you leave it out.
///
/// If several have messages, it is the turn of the one that this function has named longest ago,
/// and among those that it has not named yet, of the first. So each that has messages is named at
/// least once in as many calls as there are receivers.
///
/// Like [`recv`](Receiver::recv), it spins before it sleeps, as long as the receiver with the
/// shortest [`spin`](super::ReceiverBuilder::spin). Up to 128 receivers are slept on by this
/// thread itself; for more of them, and before Linux 5.16, the helper threads of the
/// [module](super#awaiting) wake it.
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
/// [`WaitAnyError::TimedOut`]; [`WaitAnyError::Interrupted`] by the [`Interrupter`] of one of them;
/// [`WaitAnyError::NoReceivers`]; [`WaitAnyError::NoHelper`]; [`WaitAnyError::Forked`].
///
/// [`Interrupter`]: super::Interrupter
pub fn wait_any(receivers: &mut [&mut Receiver], timeout: Duration) -> Result<usize, WaitAnyError> {
    let deadline = Deadline::after(timeout);
    let Some(budget) = receivers.iter().map(|receiver| receiver.spin).min() else {
        return Err(WaitAnyError::NoReceivers);
    };
    for (index, receiver) in receivers.iter_mut().enumerate() {
        // The only error that it has.
        receiver.ask().map_err(|_| WaitAnyError::Forked { index })?;
    }
    let found = match spin(receivers, budget, deadline) {
        Some(found) => found,
        None if receivers.len() <= MOST_WORDS && can_sleep_on_many() => sleep(receivers, deadline),
        None => sleep_by_helpers(receivers, deadline)?,
    };
    match found {
        Found::Ready(index) => {
            let last = receivers.iter().map(|receiver| receiver.turn).max();
            receivers[index].turn = last.map_or(0, |turn| turn + 1);
            Ok(index)
        }
        Found::Interrupted(index) => {
            receivers[index].sleeper.interrupts().take();
            Err(WaitAnyError::Interrupted { index })
        }
        Found::TimedOut => Err(WaitAnyError::TimedOut { receivers: receivers.len() }),
    }
}

/// What ends a wait. Indices are within the slice.
enum Found {
    Ready(usize),
    Interrupted(usize),
    TimedOut,
}

/// Which receiver's turn it is, of those that are ready; or who was interrupted.
fn find(receivers: &[&mut Receiver]) -> Option<Found> {
    let is_ready = |receiver: &Receiver| receiver.has_next() || receiver.object().is_sender_gone();
    let all = || receivers.iter().enumerate();
    let ready = all().filter(|(_, receiver)| is_ready(receiver)).min_by_key(|(_, receiver)| receiver.turn);
    if let Some((index, _)) = ready {
        return Some(Found::Ready(index));
    }
    let interrupted = all().find(|(_, receiver)| receiver.sleeper.interrupts().is_set());
    interrupted.map(|(index, _)| Found::Interrupted(index))
}

/// Looks again and again, for `budget` at most.
fn spin(receivers: &[&mut Receiver], budget: Duration, deadline: Option<Deadline>) -> Option<Found> {
    let start = Instant::now();
    loop {
        let found = (0..LOOKS / receivers.len() + 1).find_map(|_| {
            std::hint::spin_loop();
            find(receivers)
        });
        if found.is_some() {
            return found;
        }
        if deadline.is_some_and(Deadline::has_passed) {
            return Some(Found::TimedOut);
        }
        if start.elapsed() >= budget {
            return None;
        }
    }
}

/// Sleeps in this thread, on all bells at once. The steps are those of `bell`.
fn sleep(receivers: &mut [&mut Receiver], deadline: Option<Deadline>) -> Found {
    receivers.iter_mut().for_each(|receiver| receiver.sleeper.leave_helper());
    let found = loop {
        receivers.iter_mut().for_each(|receiver| receiver.follow());
        let mut words = Words::new();
        for receiver in receivers.iter() {
            let bell = receiver.sleeper.bell();
            // One whose sender is gone is found below.
            let word = bell.lie_down(); // S1, S2
            word.into_iter().for_each(|word| words.push(bell.word(), word));
        }
        if let Some(found) = find(receivers) {
            break found; // S3
        }
        if receivers.iter().any(|receiver| receiver.is_to_move()) {
            continue; // S3 as well
        }
        let look_again = Deadline::after(LOOK_AGAIN);
        words.sleep(Deadline::first(deadline, look_again)); // S4

        // Look before S1 runs again and clears the signs of who has rung.
        if let Some(found) = find(receivers) {
            break found;
        }
        if deadline.is_some_and(Deadline::has_passed) {
            break Found::TimedOut;
        }
        if look_again.is_some_and(Deadline::has_passed) {
            for receiver in receivers.iter().filter(|receiver| !receiver.object().has_sender()) {
                receiver.sleeper.bell().leave(); // in the sender's place
            }
        }
    };
    receivers.iter().for_each(|receiver| receiver.sleeper.bell().get_up());
    found
}

/// A thread that waits until a helper wakes it.
#[derive(Default)]
struct Waiting {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.woken.notify_one();
    }
}

/// Sleeps while the helper threads sleep on the bells.
fn sleep_by_helpers(receivers: &mut [&mut Receiver], deadline: Option<Deadline>) -> Result<Found, WaitAnyError> {
    let waiting = Arc::new(Waiting::default());
    let waker = Waker::from(waiting.clone());
    let count = receivers.len();
    receivers.iter().for_each(|receiver| receiver.sleeper.aim());
    let found = loop {
        // One that is ready already, or whose sender is gone, is found below.
        let armed = receivers.iter_mut().try_for_each(|receiver| receiver.arm(&waker).map(|_: Option<Woken>| ()));
        if let Err(source) = armed {
            break Err(WaitAnyError::NoHelper { receivers: count, source });
        }
        if let Some(found) = find(receivers) {
            break Ok(found);
        }
        let mut is_woken = waiting.is_woken.lock();
        while !*is_woken && !deadline.is_some_and(Deadline::has_passed) {
            match deadline.map(Deadline::left) {
                Some(left) => drop(waiting.woken.wait_for(&mut is_woken, left)),
                None => waiting.woken.wait(&mut is_woken),
            }
        }
        if !std::mem::take(&mut *is_woken) {
            break Ok(find(receivers).unwrap_or(Found::TimedOut));
        }
    };
    receivers.iter_mut().for_each(|receiver| receiver.sleeper.disarm());
    found
}
