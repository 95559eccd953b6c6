//! The machine that figures are taken on, and which cores the two sides run on.

use crate::Fallible;
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::{sysconf, Pid, SysconfVar};
use std::{env, fs, thread};

/// Returns the size of a page in bytes: 4096, or 16 or 64 KiB on some aarch64 systems.
pub fn page_size() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok())
        .expect("every system has pages")
}

/// What the header and the charts report about the machine.
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    load: String,
}

impl Machine {
    /// Returns the current state.
    pub fn now() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            // Without the name that a distribution or a host gives to its build.
            kernel: first_line("/proc/sys/kernel/osrelease")
                .split('-')
                .next()
                .unwrap_or_default()
                .to_owned(),
            load: first_line("/proc/loadavg"),
        }
    }

    /// Describes the machine in one line.
    pub fn caption(&self) -> String {
        format!("{}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)
    }

    /// Prints all of it; `clock` names the clock that the program uses, and `pinning` says what
    /// runs where.
    pub fn print(&self, clock: &str, pinning: &str) {
        let source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let assertions = if cfg!(debug_assertions) { "on" } else { "off" };
        let flags = env::var("RUSTFLAGS").unwrap_or_else(|_| "none".to_owned());
        println!(
            "CPU      {}, {} cores available, {pinning}",
            self.cpu, self.cores
        );
        println!(
            "kernel   {}, load average at the start {}",
            self.kernel, self.load
        );
        println!("build    debug assertions {assertions}, RUSTFLAGS {flags}");
        println!("clock    {clock} (kernel's source: {source})");
    }
}

fn first_line(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}

const THIS_THREAD: Pid = Pid::from_raw(0);

/// Two different cores, or none: on a single one the sides run in turn, and latencies are the
/// scheduler's.
#[derive(Clone, Copy, Debug)]
pub struct Cores(Option<[usize; 2]>);

impl Cores {
    /// The first two cores that this process may use.
    pub fn choose() -> Fallible<Self> {
        let usable = usable()?;
        Ok(Self(usable.get(..2).map(|cores| [cores[0], cores[1]])))
    }

    /// The core of this process.
    pub fn first(self) -> Option<usize> {
        self.0.map(|[first, _]| first)
    }

    /// The core of the other process.
    pub fn second(self) -> Option<usize> {
        self.0.map(|[_, second]| second)
    }

    /// Returns an error if there are none, for programs that print figures.
    pub fn require_two(self) -> Fallible {
        self.0.map(drop).ok_or_else(|| {
            "this process may use one core only; latencies between two sides cannot be measured fairly on it, so no \
             figures are printed (--quick checks correctness)"
                .into()
        })
    }
}

/// Returns all cores that this thread may use.
pub fn usable() -> Fallible<Vec<usize>> {
    let allowed = sched_getaffinity(THIS_THREAD)?;
    Ok((0..CpuSet::count())
        .filter(|&core| allowed.is_set(core).unwrap_or(false))
        .collect())
}

/// Pins the calling thread, and those that it starts, to these cores, if there are any.
pub fn pin(cores: impl IntoIterator<Item = usize>) -> Fallible {
    let mut cores = cores.into_iter().peekable();
    if cores.peek().is_none() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cores.try_for_each(|core| set.set(core))?;
    Ok(sched_setaffinity(THIS_THREAD, &set)?)
}
