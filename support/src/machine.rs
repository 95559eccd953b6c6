//! The machine that figures are taken on, and which cores the two sides run on.

use crate::Fallible;
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::{sysconf, Pid, SysconfVar};
use std::{env, fs, thread};

/// Returns the size of a page in bytes: 4096, or 16 or 64 KiB on some aarch64 systems.
pub fn page_size() -> usize {
    match sysconf(SysconfVar::PAGE_SIZE) {
        Ok(Some(size)) => size as usize,
        other => panic!("no size of a page: {other:?}"),
    }
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
        let mut kernel = first_line("/proc/sys/kernel/osrelease");
        // The rest is the name that a distribution or a host gives to its build.
        if let Some(end) = kernel.find('-') {
            kernel.truncate(end);
        }
        let cores = match thread::available_parallelism() {
            Ok(cores) => cores.get(),
            Err(_) => 0,
        };
        Self {
            cpu: cpu_model(),
            cores,
            kernel,
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
        let flags = match env::var("RUSTFLAGS") {
            Ok(flags) => flags,
            Err(_) => "none".to_owned(),
        };
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

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for line in info.lines() {
        if let Some((name, value)) = line.split_once(": ") {
            if name.starts_with("model name") {
                return value.to_owned();
            }
        }
    }
    "unknown".to_owned()
}

fn first_line(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    match text.lines().next() {
        Some(line) => line.to_owned(),
        None => "unknown".to_owned(),
    }
}

const THIS_THREAD: Pid = Pid::from_raw(0);

/// Two different cores, or none: on a single one the sides run in turn, and latencies are the
/// scheduler's.
#[derive(Clone, Copy, Debug)]
pub struct Cores(Option<[usize; 2]>);

impl Cores {
    /// The first two cores that this process may use.
    pub fn choose() -> Fallible<Self> {
        Ok(match usable()?[..] {
            [first, second, ..] => Self(Some([first, second])),
            _ => Self(None),
        })
    }

    /// The core of this process.
    pub fn first(self) -> Option<usize> {
        let [first, _] = self.0?;
        Some(first)
    }

    /// The core of the other process.
    pub fn second(self) -> Option<usize> {
        let [_, second] = self.0?;
        Some(second)
    }

    /// Returns an error if there are none, for programs that print figures.
    pub fn require_two(self) -> Fallible {
        if self.0.is_none() {
            return Err(
                "this process may use one core only; latencies between two sides cannot be \
                 measured fairly on it, so no figures are printed (--quick checks correctness)"
                    .into(),
            );
        }
        Ok(())
    }
}

/// Returns all cores that this thread may use.
pub fn usable() -> Fallible<Vec<usize>> {
    let allowed = sched_getaffinity(THIS_THREAD)?;
    let mut cores = Vec::new();
    for core in 0..CpuSet::count() {
        if allowed.is_set(core)? {
            cores.push(core);
        }
    }
    Ok(cores)
}

/// Pins the calling thread, and those that it starts, to these cores, if there are any.
pub fn pin(cores: impl IntoIterator<Item = usize>) -> Fallible {
    let mut set = CpuSet::new();
    let mut is_empty = true;
    for core in cores {
        set.set(core)?;
        is_empty = false;
    }
    if !is_empty {
        sched_setaffinity(THIS_THREAD, &set)?;
    }
    Ok(())
}
