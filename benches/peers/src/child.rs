//! Runs the measurements in a child process, so that what the peers leave behind in /dev/shm can be removed when it has
//! ended.
//!
//! zenoh leaves the segment of its metadata for the next zenoh process to remove, and iceoryx2 leaves the object by
//! which nodes find each other.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{self, Command, ExitCode};
use zenoh::shm::cleanup_orphaned_shm_segments;

const SHM: &str = "/dev/shm";

/// Runs this program once more, with the same arguments and a directory to work in, and cleans up.
pub(crate) fn run() -> Result<ExitCode, Box<dyn Error>> {
    let scratch = env::temp_dir().join(format!("shm_pool_peers_{}", process::id()));
    fs::create_dir(&scratch)?;
    let status = Command::new(env::current_exe()?).args(env::args_os().skip(1)).arg("--scratch").arg(&scratch).status();
    cleanup_orphaned_shm_segments();
    remove_shared(&prefix(&scratch));
    let removed = fs::remove_dir_all(&scratch);
    let status = status?;
    removed?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(format!("the measuring process ended with {status}").into())
}

/// What the names of the child's objects begin with, where it has the choice.
pub(crate) fn prefix(scratch: &Path) -> String {
    format!("{}_", scratch.file_name().unwrap_or_default().to_string_lossy())
}

fn remove_shared(prefix: &str) {
    for entry in fs::read_dir(SHM).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            // One that is gone already needs nothing more.
            let _ = fs::remove_file(entry.path());
        }
    }
}
