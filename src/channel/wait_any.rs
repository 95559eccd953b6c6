//! Blocking on several receivers at once.

#![forbid(unsafe_code)]

use super::doorbell::{WakeReason, LOOKS};
use super::error::RecvError;
use super::interrupt::ThreadWaker;
use super::receiving_end::ReceivingEnd;
use super::spin::is_over;
use crate::error::OsError;
use crate::os::futex::{can_sleep_on_many, monotonic_nanos, Deadline, Words, MOST_WORDS};
use std::task::Waker;
use std::time::Duration;

/// What [`wait_any`] waits for: a [`Receiver`](super::Receiver) or a
/// [`Subscriber`](super::Subscriber), typed or not. No other type can implement it.
pub trait Source: HasEnd {}

/// Not nameable outside of the crate, and its methods cannot be called there:
///
/// ```compile_fail,E0061
/// fn end(source: &dyn shm_pool::channel::Source) {
///     source.end();
/// }
/// ```
pub trait HasEnd {
    fn end(&self, _: Seal) -> &ReceivingEnd;
    fn end_mut(&mut self, _: Seal) -> &mut ReceivingEnd;
}

/// No other crate has one, so that it cannot call the methods of a [`Source`].
#[derive(Clone, Copy)]
pub struct Seal(());

const OURS: Seal = Seal(());

/// Blocks until one of several receivers and subscribers is ready, for at most `timeout`;
/// [`Duration::MAX`] means no timeout. Returns its index.
///
/// A receiver is ready when one of these holds:
///
/// * It has a message. A following [`try_recv`](super::Receiver::try_recv) normally succeeds, but may
///   return `Empty`, because the sender can withdraw a message: call `wait_any` again.
/// * It has an error to report, such as [`TooManyBorrowed`](super::RecvError::TooManyBorrowed).
/// * Its sender has closed, and it has [`OnEnd::Return`](super::OnEnd::Return). Leave it out of later
///   calls.
///
/// A receiver with [`OnEnd::Wait`](super::OnEnd::Wait) need not have a sender yet, and waits for the
/// next one.
///
/// If several receivers are ready, `wait_any` returns the one that it returned least recently, or
/// among those that it never returned, the first.
///
/// The call spins before it sleeps: for the shortest [`spin`](super::ReceiverBuilder::spin) that is
/// set for one of the receivers, or by default as [one of them](super#spinning) would. The helper
/// threads of the [module](super#awaiting) wake it in these cases: a receiver has no sender yet; there
/// are more than 128 receivers, where each one that has an [`Interrupter`] counts as two; the kernel is
/// older than Linux 5.16.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{wait_any, Receiver, Sender};
/// use shm_pool::Provider;
/// use std::time::Duration;
///
/// # let name = |of| format!("doc-any-{of}-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut frames_out = Sender::create(&provider, &name("frames"))?;
/// let samples_out = Sender::create(&provider, &name("samples"))?;
/// let mut frames = Receiver::open(&name("frames"))?;
/// let mut samples = Receiver::open(&name("samples"))?;
/// frames_out.send_copy(b"a frame")?;
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
pub fn wait_any(sources: &mut [&mut dyn Source], timeout: Duration) -> Result<usize, RecvError> {
    let deadline = Deadline::after(timeout);
    if sources.is_empty() {
        return Err(RecvError::NoReceivers);
    }
    for source in sources.iter_mut() {
        // The only error that it returns.
        if source.end_mut(OURS).begin_wait().is_err() {
            return Err(RecvError::Forked);
        }
    }
    let budget = budget(sources);
    let mut began = None;
    let found = match spin(sources, budget, &mut began, deadline) {
        Some(found) if !matches!(found, Found::Ended) => {
            if !budget.is_zero() {
                note_spin(sources, &found);
            }
            found
        }
        _ => {
            let began = match began {
                Some(began) => began,
                None => monotonic_nanos(),
            };
            let found = wait(sources, deadline)?;
            note_sleep(sources, &found, began);
            found
        }
    };
    match found {
        Found::Ready(index) => {
            let mut last = 0;
            for source in sources.iter() {
                last = last.max(source.end(OURS).turn);
            }
            sources[index].end_mut(OURS).turn = last + 1;
            Ok(index)
        }
        Found::Interrupted(index) => {
            sources[index].end(OURS).interrupts.take();
            Err(RecvError::Interrupted)
        }
        Found::TimedOut | Found::Ended => Err(RecvError::TimedOut),
    }
}

/// What ends a wait, or a part of it. Indices are within the slice.
enum Found {
    Ready(usize),
    Interrupted(usize),
    TimedOut,
    /// A sender has ended, and its receiver waits for the next one.
    Ended,
}

/// Returns the ready end whose turn it is, or else one that was interrupted.
fn find(sources: &[&mut dyn Source]) -> Option<Found> {
    let mut ready: Option<(usize, u64)> = None;
    for (index, source) in sources.iter().enumerate() {
        let end = source.end(OURS);
        if !end.is_ready() {
            continue;
        }
        match ready {
            Some((_, turn)) if turn <= end.turn => {}
            _ => ready = Some((index, end.turn)),
        }
    }
    if let Some((index, _)) = ready {
        return Some(Found::Ready(index));
    }
    for (index, source) in sources.iter().enumerate() {
        if source.end(OURS).interrupts.is_set() {
            return Some(Found::Interrupted(index));
        }
    }
    for source in sources {
        if source.end(OURS).must_follow() {
            return Some(Found::Ended);
        }
    }
    None
}

/// Closes the channel on behalf of each dead sender for which a check is due.
fn look_for_senders(sources: &mut [&mut dyn Source]) {
    for source in sources {
        if let Some(open) = &mut source.end_mut(OURS).open {
            open.look_for_sender();
        }
    }
}

/// Returns `true` if each end has a sender.
fn are_open(sources: &[&mut dyn Source]) -> bool {
    sources.iter().all(|source| source.end(OURS).open.is_some())
}

/// Returns how long to spin: one channel of which messages come at once is enough for a spin to
/// pay. None if one has no sender: waiting for a name takes system calls.
fn budget(sources: &[&mut dyn Source]) -> Duration {
    let mut shortest: Option<Duration> = None;
    let mut longest_adaptive = Duration::ZERO;
    for source in sources {
        let Some(open) = &source.end(OURS).open else {
            return Duration::ZERO;
        };
        match (open.spin, shortest) {
            (None, _) => {
                longest_adaptive = longest_adaptive.max(open.parker.adaptive.budget());
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
fn note_spin(sources: &mut [&mut dyn Source], found: &Found) {
    if let Found::Ready(index) = found {
        if let Some(open) = &mut sources[*index].end_mut(OURS).open {
            open.parker.adaptive.grow();
        }
    }
}

/// The wait slept. Its spin was in vain for all ends but the one that was ready.
fn note_sleep(sources: &mut [&mut dyn Source], found: &Found, began: u64) {
    for (index, source) in sources.iter_mut().enumerate() {
        let Some(open) = &mut source.end_mut(OURS).open else {
            continue;
        };
        if matches!(found, Found::Ready(ready) if *ready == index) {
            open.parker.learn(began, WakeReason::Ready);
        } else {
            open.parker.adaptive.shrink();
        }
    }
}

/// Checks repeatedly, for at most `budget`, and notes in `began` when it began.
fn spin(
    sources: &mut [&mut dyn Source],
    budget: Duration,
    began: &mut Option<u64>,
    deadline: Option<Deadline>,
) -> Option<Found> {
    if budget.is_zero() {
        return find(sources);
    }
    loop {
        for _ in 0..LOOKS / sources.len() + 1 {
            std::hint::spin_loop();
            if let Some(found) = find(sources) {
                return Some(found);
            }
        }
        if is_over(budget, began) || Deadline::is_past(deadline) {
            return None;
        }
        look_for_senders(sources);
    }
}

/// Sleeps until one is ready or interrupted. The steps J are those of `interrupt`.
fn wait(sources: &mut [&mut dyn Source], deadline: Option<Deadline>) -> Result<Found, RecvError> {
    let mut words = 0;
    for source in sources.iter() {
        let interrupts = &source.end(OURS).interrupts;
        interrupts.begin_wait(); // J1
        words += 1 + usize::from(interrupts.has_interrupter());
    }
    let found = loop {
        let is_fit = words <= MOST_WORDS && can_sleep_on_many();
        let found = if is_fit && are_open(sources) {
            Ok(sleep(sources, deadline))
        } else {
            sleep_by_helpers(sources, deadline)
        };
        if !matches!(found, Ok(Found::Ended)) {
            break found;
        }
        for source in sources.iter_mut() {
            source.end_mut(OURS).follow();
        }
    };
    for source in sources.iter() {
        source.end(OURS).interrupts.end_wait(); // J5
    }
    found
}

/// Sleeps in this thread on all doorbells at once. The steps S are those of `doorbell`.
fn sleep(sources: &mut [&mut dyn Source], deadline: Option<Deadline>) -> Found {
    for source in sources.iter_mut() {
        if let Some(open) = &mut source.end_mut(OURS).open {
            open.parker.leave_helper();
        }
    }
    let found = loop {
        look_for_senders(sources);
        let mut words = Words::new();
        for source in sources.iter() {
            let end = source.end(OURS);
            end.interrupts.add_to(&mut words);
            let Some(open) = &end.open else {
                continue;
            };
            let doorbell = open.parker.doorbell();
            // `find` below handles one whose sender has left.
            if let Some(word) = doorbell.announce_wait() {
                words.push(doorbell.word(), word); // S1, S2
            }
        }
        if let Some(found) = find(sources) {
            break found; // S3, J2, J3
        }
        if Deadline::is_past(deadline) {
            break Found::TimedOut;
        }
        let mut until = deadline;
        for source in sources.iter() {
            if let Some(open) = &source.end(OURS).open {
                until = Deadline::first(until, open.parker.check.time());
            }
        }
        words.sleep(until); // S4, J4

        // Before S1 clears the bits that the notifiers have set.
        if let Some(found) = find(sources) {
            break found;
        }
    };
    for source in sources.iter() {
        if let Some(open) = &source.end(OURS).open {
            open.parker.doorbell().end_wait();
        }
    }
    found
}

/// Sleeps until a helper thread, which sleeps on the doorbells, or the name watcher wakes this one.
fn sleep_by_helpers(
    sources: &mut [&mut dyn Source],
    deadline: Option<Deadline>,
) -> Result<Found, RecvError> {
    let thread = ThreadWaker::new();
    let waker = Waker::from(thread.clone());
    let found = loop {
        let count = thread.count();
        // `find` below handles one that is ready already.
        if let Err(source) = arm_all(sources, &waker) {
            break Err(RecvError::NoHelper(source));
        }
        match find(sources) {
            // It is followed when it is armed.
            Some(Found::Ended) => continue,
            Some(found) => break Ok(found),
            None => {}
        }
        if Deadline::is_past(deadline) {
            break Ok(Found::TimedOut);
        }
        let interrupts = sources.iter().map(|source| &*source.end(OURS).interrupts);
        thread.park(count, interrupts, deadline);
    };
    for source in sources.iter_mut() {
        source.end_mut(OURS).disarm();
    }
    found
}

fn arm_all(sources: &mut [&mut dyn Source], waker: &Waker) -> Result<(), OsError> {
    for source in sources {
        source.end_mut(OURS).arm(waker)?;
    }
    Ok(())
}
