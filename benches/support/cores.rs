//! Which cores the two sides run on.

use super::Fallible;
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;

const THIS_THREAD: Pid = Pid::from_raw(0);

/// Two different cores, or none: with a single one the sides run on it in turn, and latencies are the scheduler's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores(Option<[usize; 2]>);

impl Cores {
    /// The first two cores that this process may use.
    pub(crate) fn choose() -> Fallible<Self> {
        let allowed = sched_getaffinity(THIS_THREAD)?;
        let mut usable = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false));
        Ok(Self(usable.next().zip(usable.next()).map(|(first, second)| [first, second])))
    }

    /// That of this process.
    pub(crate) fn first(self) -> Option<usize> {
        self.0.map(|[first, _]| first)
    }

    /// That of the other process.
    pub(crate) fn second(self) -> Option<usize> {
        self.0.map(|[_, second]| second)
    }

    /// An error for programs that are about to print figures.
    pub(crate) fn require_two(self) -> Fallible {
        match self.0 {
            Some(_) => Ok(()),
            None => Err("this process may use one core only; latencies between two sides cannot be measured fairly on it, so no \
                         figures are printed (--quick checks correctness)"
                .into()),
        }
    }
}

/// Keeps the calling thread on a core, if there is one for it.
pub(crate) fn pin(core: Option<usize>) -> Fallible {
    let Some(core) = core else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(THIS_THREAD, &set)?)
}
