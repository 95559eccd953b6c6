//! What the figures were taken on, and with which versions.

use std::env;
use std::fs;
use std::thread;

const LOCK: &str = include_str!("../Cargo.lock");

/// What the header and the chart say about the machine.
pub(crate) struct Machine {
    cpu: String,
    cores: String,
    kernel: String,
    load: String,
}

impl Machine {
    pub(crate) fn now() -> Self {
        let cores = thread::available_parallelism().map_or_else(|_| "?".to_owned(), |cores| cores.to_string());
        Self {
            cpu: cpu_model(),
            cores,
            kernel: first_line("/proc/sys/kernel/osrelease"),
            load: first_line("/proc/loadavg"),
        }
    }

    /// The machine in one line.
    pub(crate) fn caption(&self) -> String {
        format!("{}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)
    }

    pub(crate) fn print(&self) {
        let clock = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let assertions = if cfg!(debug_assertions) { "on" } else { "off" };
        let flags = env::var("RUSTFLAGS").unwrap_or_else(|_| "none".to_owned());
        println!("CPU      {}, {} cores available, nothing pinned", self.cpu, self.cores);
        println!("kernel   {}, load average at the start {}", self.kernel, self.load);
        println!("limits   locked memory {}", locked_memory());
        println!("build    debug assertions {assertions}, RUSTFLAGS {flags}");
        println!("clock    std::time::Instant (source: {clock})");
        println!("peers    {}", versions());
    }
}

/// The peers' versions, as this program was built with them.
pub(crate) fn versions() -> String {
    ["zenoh-shm", "iceoryx2", "shm-pool"].map(|name| format!("{name} {}", version(name))).join(", ")
}

fn version(name: &str) -> &'static str {
    let mut lines = LOCK.lines().skip_while(|line| line.strip_prefix("name = ").map(unquoted) != Some(name));
    lines.find_map(|line| line.strip_prefix("version = ")).map_or("?", unquoted)
}

fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}

/// zenoh locks its segments, so this says whether it can.
fn locked_memory() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown");
    format!("{soft} bytes, unless the process is privileged")
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
