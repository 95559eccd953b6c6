//! The contents of /dev/shm, of this process's mappings and of messages.

use shm_pool::{Client, Namespace, Provider, ProviderBuilder, ShmBytes};
pub(crate) use shm_pool_support::payload::{check_pattern as check, fill_pattern as fill};
use shm_pool_support::procfs;
use std::fs::{self, File};
use std::path::PathBuf;

/// A prefix that no other test uses. Panics on drop if an object with it is left.
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// `test` is short, and different in every test.
    pub(crate) fn new(test: &str) -> Self {
        Self {
            prefix: format!("proc-{}-{test}", std::process::id()),
        }
    }

    /// The prefix, to pass to a child.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A builder of a provider with this prefix.
    pub(crate) fn provider(&self) -> ProviderBuilder {
        Provider::builder().namespace(&self.namespace())
    }

    pub(crate) fn namespace(&self) -> Namespace {
        namespace(&self.prefix)
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.prefix)
    }

    /// Removes what killed owners left, and returns the number of objects.
    pub(crate) fn sweep(&self) -> usize {
        self.namespace()
            .sweep()
            .expect("/dev/shm can be read")
            .objects
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // Compares bytes, because a test may have created names that are not UTF-8.
        let start = format!("{}.", self.prefix);
        let mut left: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir("/dev/shm").expect("a directory /dev/shm") {
            let Ok(entry) = entry else { continue };
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(start.as_bytes()) {
                left.push(entry.path());
            }
        }
        for path in &left {
            // After a failure, any object may be left.
            if fs::remove_file(path).is_err() {
                let _ = fs::remove_dir(path);
            }
        }
        assert!(
            std::thread::panicking() || left.is_empty(),
            "left behind in /dev/shm: {left:?}"
        );
    }
}

/// The namespace with this prefix.
pub(crate) fn namespace(prefix: &str) -> Namespace {
    Namespace::new(prefix).expect("a prefix that names allow")
}

/// A client with this prefix.
pub(crate) fn client(prefix: &str) -> Client {
    Client::in_namespace(&namespace(prefix))
}

/// A message with the pattern of this seed.
pub(crate) fn message(provider: &Provider, len: usize, seed: u64) -> ShmBytes {
    let mut buffer = provider.alloc(len).unwrap();
    fill(&mut buffer, seed);
    buffer.freeze()
}

/// Returns what must be undone if a call fails: descriptors, mappings and objects.
pub(crate) fn state(prefix: &str) -> (usize, usize, Vec<String>) {
    (open_descriptors(), mappings(prefix), objects(prefix))
}

/// Opens a channel's object, as any process of the same user can.
pub(crate) fn channel_object(prefix: &str, channel: &str) -> File {
    let path = path(&format!("{prefix}.{channel}.channel"));
    File::options().read(true).write(true).open(path).unwrap()
}

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(name)
}

/// Returns the names of the objects that start with `prefix` and a dot, sorted.
pub(crate) fn objects(prefix: &str) -> Vec<String> {
    procfs::objects(&format!("{prefix}."))
}

/// Returns the number of this process's mappings of objects that start with `prefix` and a dot,
/// including removed objects.
pub(crate) fn mappings(prefix: &str) -> usize {
    let start = format!("{prefix}.");
    let mut mappings = procfs::shared_mappings().expect("/proc");
    mappings.retain(|mapping| mapping.name.starts_with(&start));
    mappings.len()
}

pub(crate) fn open_descriptors() -> usize {
    procfs::descriptors().expect("/proc")
}

/// Returns how many objects of this prefix and kind this process has open, including removed ones.
/// `kind` is part of their names.
pub(crate) fn open_objects(prefix: &str, kind: &str) -> usize {
    let start = format!("/dev/shm/{prefix}.");
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(entry) = entry else { continue };
        // Another thread may have closed it.
        let Ok(file) = fs::read_link(entry.path()) else {
            continue;
        };
        if let Some(rest) = file.to_string_lossy().strip_prefix(&start) {
            count += usize::from(rest.contains(kind));
        }
    }
    count
}
