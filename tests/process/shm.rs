//! What is in /dev/shm, what is in this process, and what is in a message.

use shm_pool::{Client, Provider, ProviderBuilder};
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
    let entries = fs::read_dir("/dev/shm").expect("a directory /dev/shm");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let start = format!("{prefix}.");
    let mut found: Vec<String> = names.filter(|name| name.starts_with(&start)).collect();
    found.sort();
    found
}

/// How many mappings of this process are of objects that start with `prefix`, removed ones included.
pub(crate) fn mappings(prefix: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.contains(&format!("/dev/shm/{prefix}."))).count()
}

/// How many descriptors this process has open.
pub(crate) fn open_descriptors() -> usize {
    // One of the entries is the directory that is being read, every time.
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Fills a message so that [`check`] can tell it from every other one, and each of its words from the others.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        word.copy_from_slice(&expected(at, seed)[..word.len()]);
    }
}

/// Compares every byte of a message; the error says where it differs.
pub(crate) fn check(bytes: &[u8], seed: u64) -> Result<(), String> {
    let is_wrong = |(at, word): &(usize, &[u8])| *word != &expected(*at, seed)[..word.len()];
    match bytes.chunks(8).enumerate().find(is_wrong) {
        None => Ok(()),
        Some((at, word)) => Err(format!("message {seed} has {word:?} at byte {} of {}", at * 8, bytes.len())),
    }
}

fn expected(at: usize, seed: u64) -> [u8; 8] {
    // An odd multiplier: different seeds and different places give different words.
    (seed << 32 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}
