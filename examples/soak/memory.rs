//! The resident memory of this process.

use crate::Result;

/// In bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) resident: u64,
    /// The part that is shared memory.
    pub(crate) shared: u64,
}

impl Memory {
    pub(crate) fn now() -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
            let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
            Ok(kilobytes * 1024)
        };
        Ok(Self { resident: field("VmRSS:")?, shared: field("RssShmem:")? })
    }
}
