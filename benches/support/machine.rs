//! What the figures were taken on.

use std::env;
use std::fs;
use std::thread;

/// What the header and the charts say about the machine.
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    load: String,
}

impl Machine {
    pub(crate) fn now() -> Self {
        Self {
            cpu: cpu_model(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            load: first_line("/proc/loadavg"),
        }
    }

    /// The machine in one line.
    pub(crate) fn caption(&self) -> String {
        format!("{}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)
    }

    /// Prints all of it; `clock` says which one the program uses, and `pinning` what runs where.
    pub(crate) fn print(&self, clock: &str, pinning: &str) {
        let source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let assertions = if cfg!(debug_assertions) { "on" } else { "off" };
        let flags = env::var("RUSTFLAGS").unwrap_or_else(|_| "none".to_owned());
        println!("CPU      {}, {} cores available, {pinning}", self.cpu, self.cores);
        println!("kernel   {}, load average at the start {}", self.kernel, self.load);
        println!("build    debug assertions {assertions}, RUSTFLAGS {flags}");
        println!("clock    {clock} (kernel's source: {source})");
    }
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned())
}

fn first_line(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}
