//! Foreign files occupy the names that a provider would use next. It skips them without changing
//! them.

use crate::support::{builder, files, holds, message, segment, unique_prefix, NONE};
use shm_pool::{Client, Provider};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// How many consecutive names are taken.
const TAKEN: u64 = 6;
const CONTENT: &str = "nobody's message";

/// Files of all kinds under the names of the provider's first segments. Removed on drop.
struct Foreign(Vec<PathBuf>);

impl Foreign {
    fn new(prefix: &str, provider: &Provider) -> Self {
        let path = |serial| PathBuf::from(format!("/dev/shm/{prefix}{}", segment(provider, serial)));
        let foreign = Self((1..=TAKEN).map(path).collect());
        for (nth, path) in foreign.0.iter().enumerate() {
            match nth % 3 {
                0 => fs::write(path, CONTENT).unwrap(),
                1 => fs::create_dir(path).unwrap(),
                _ => symlink("/nowhere", path).unwrap(),
            }
        }
        foreign
    }

    fn assert_untouched(&self) {
        for (nth, path) in self.0.iter().enumerate() {
            let is_as_it_was = match nth % 3 {
                0 => fs::read_to_string(path).unwrap() == CONTENT,
                1 => path.is_dir(),
                _ => fs::read_link(path).unwrap().as_os_str() == "/nowhere",
            };
            assert!(is_as_it_was, "{path:?} was changed");
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for path in &self.0 {
            // After a failure, any subset may be left.
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
        }
    }
}

/// An allocation does not fail because the name of its segment is taken, for small and large
/// messages.
#[test]
fn name_in_use() {
    for len in [100, 1 << 20] {
        let prefix = unique_prefix(&format!("taken-{len}"));
        let provider = builder().name_prefix(&prefix).build().unwrap();
        let foreign = Foreign::new(&prefix, &provider);
        let sent = message(&provider, len, 1);
        let client = Client::builder().name_prefix(&prefix).build().unwrap();
        let view = client.attach(&sent.descriptor().unwrap()).unwrap();
        assert!(holds(&view, 1));
        let stats = provider.stats();
        assert_eq!((stats.segments, stats.bytes_held), (1, stats.peak_bytes_held), "a name that was passed by is held");
        drop((sent, view));
        drop(provider);
        foreign.assert_untouched();
        assert_eq!(files(&prefix).len(), foreign.0.len(), "only somebody else's files are left");
        drop(foreign);
        assert_eq!(files(&prefix), NONE);
    }
}
