//! What is in /dev/shm, what is in this process, and what is in a message.

use shm_pool::{Client, Provider, ProviderBuilder};
pub(crate) use shm_pool_support::payload::{check_pattern as check, fill_pattern as fill};
use shm_pool_support::procfs;
use std::fs;
use std::path::PathBuf;

/// A prefix that no other test has. When it is dropped, no object with it may be left.
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// `test` is short, and different in every test.
    pub(crate) fn new(test: &str) -> Self {
        Self { prefix: format!("proc-{}-{test}", std::process::id()) }
    }

    /// The prefix, for a child.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A provider with this prefix.
    pub(crate) fn provider(&self) -> ProviderBuilder {
        Provider::builder().name_prefix(&self.prefix)
    }

    /// A client with this prefix.
    pub(crate) fn client(&self) -> Client {
        client(&self.prefix)
    }

    /// Removes what killed owners left, and tells how many objects that were.
    pub(crate) fn sweep(&self) -> usize {
        Provider::sweep(self.prefix()).expect("/dev/shm can be read").objects
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // By their bytes: a test may have made names that are no text.
        let entries = fs::read_dir("/dev/shm").expect("a directory /dev/shm").filter_map(Result::ok);
        let start = format!("{}.", self.prefix);
        let is_ours = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(start.as_bytes());
        let left: Vec<PathBuf> = entries.filter(is_ours).map(|entry| entry.path()).collect();
        for path in &left {
            // What is left after a failure may be anything.
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
        }
        assert!(std::thread::panicking() || left.is_empty(), "left behind in /dev/shm: {left:?}");
    }
}

/// A client with this prefix.
pub(crate) fn client(prefix: &str) -> Client {
    Client::builder().name_prefix(prefix).build().expect("a prefix that names allow")
}

/// The path of an object.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(name)
}

/// The names of the objects that start with `prefix` and a dot, sorted.
pub(crate) fn objects(prefix: &str) -> Vec<String> {
    procfs::objects(&format!("{prefix}."))
}

/// How many mappings of this process are of objects that start with `prefix`, removed ones included.
pub(crate) fn mappings(prefix: &str) -> usize {
    let start = format!("{prefix}.");
    let mappings = procfs::shared_mappings().expect("/proc");
    mappings.iter().filter(|mapping| mapping.name.starts_with(&start)).count()
}

/// How many descriptors this process has open.
pub(crate) fn open_descriptors() -> usize {
    procfs::descriptors().expect("/proc")
}
