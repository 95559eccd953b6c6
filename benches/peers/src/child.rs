//! Runs the measurements in a child process, so that the objects that the peers leave in /dev/shm
//! can be removed when it has exited.
//!
//! zenoh leaves the segment of its metadata for the next zenoh process to remove, and iceoryx2
//! leaves the object by which nodes find each other.

use shm_pool_support::process::this_program;
use shm_pool_support::{procfs, Fallible};
use std::path::Path;
use std::process;
use std::{env, fs};
use zenoh::shm::cleanup_orphaned_shm_segments;

/// Runs this program again, with the same arguments and a working directory, and cleans up.
pub(crate) fn run() -> Fallible {
    let scratch = env::temp_dir().join(format!("shm_pool_peers_{}", process::id()));
    fs::create_dir(&scratch)?;
    let status = this_program(&scratch)?
        .args(env::args_os().skip(1))
        .status();
    cleanup_orphaned_shm_segments();
    procfs::remove_objects(&prefix(&scratch));
    let removed = fs::remove_dir_all(&scratch);
    let status = status?;
    removed?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the measuring process ended with {status}").into())
}

/// The prefix of the names of the child's objects, where it can be chosen.
pub(crate) fn prefix(scratch: &Path) -> String {
    format!(
        "{}_",
        scratch.file_name().unwrap_or_default().to_string_lossy()
    )
}
