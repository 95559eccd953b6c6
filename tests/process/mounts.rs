//! Directories with their own file system, in a process with its own mounts.

use crate::child;
use crate::shm::{self, Names};
use crate::sys::mount;
use crate::wire::{Link, Message};
use shm_pool::{AllocErrorKind, BuildError, Client, Provider, ProviderBuilder};
use std::fs;

/// A full tmpfs of the pool itself is not blamed on /dev/shm, and does not kill the process.
#[test]
fn full_directory() {
    run("full");
}

/// On hugetlbfs every object would take whole huge pages, beyond the cap, and the first one that
/// the kernel cannot supply would kill the process.
#[test]
fn hugetlbfs_is_refused() {
    run("hugetlbfs");
}

/// On every kind of tmpfs, messages are complete and the pool stays within its file system.
#[test]
fn huge_pages_by_mount() {
    run("huge");
}

fn run(what: &str) {
    let names = Names::new(&format!("mounts-{what}"));
    child::run_in_small_shm("mounts", &[names.prefix(), what]);
}

role!("mounts", role);

/// The role, in a process whose /dev/shm has 4 MiB.
fn role(link: &Link, arguments: &[&str]) {
    let (prefix, what) = (arguments[0], arguments[1]);
    match what {
        "full" => full(prefix),
        "hugetlbfs" => hugetlbfs(prefix),
        _ => huge(prefix),
    }
    link.send(&Message::Done);
}

/// Mounts a file system at a directory below /dev/shm. Returns `false` where that is not permitted,
/// or the kernel does not support it.
fn has_mounted(kind: &str, directory: &str, options: &str) -> bool {
    fs::create_dir_all(directory).unwrap();
    let [kind, directory, options] = [kind, directory, options].map(|text| format!("{text}\0").into_bytes());
    mount(&kind, &directory, 0, &options).is_ok()
}

fn builder(prefix: &str, directory: &str) -> ProviderBuilder {
    Provider::builder().name_prefix(prefix).directory(directory).max_shared(64)
}

fn full(prefix: &str) {
    let directory = "/dev/shm/full";
    if !has_mounted("tmpfs", directory, "size=1m") {
        return child::skip("a tmpfs cannot be mounted");
    }
    let provider = builder(prefix, directory).build().unwrap();
    let buffers: Vec<_> = std::iter::from_fn(|| provider.alloc(64 << 10).ok()).collect();
    assert!((8..16).contains(&buffers.len()), "{} of them fit 1 MiB", buffers.len());
    let error = provider.alloc(64 << 10).unwrap_err();
    let AllocErrorKind::Os(os) = error.kind() else { panic!("{error}") };
    assert!(os.object().starts_with(directory), "{error}");
    assert!(
        os.to_string().contains("; /dev/shm/full has ") && os.to_string().contains(" of 1048576 bytes free"),
        "{os}"
    );
    drop((buffers, provider));
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

fn hugetlbfs(prefix: &str) {
    let directory = "/dev/shm/hugetlbfs";
    if !has_mounted("hugetlbfs", directory, "") {
        return child::skip("hugetlbfs cannot be mounted");
    }
    let error = builder(prefix, directory).build().unwrap_err();
    assert!(matches!(error, BuildError::Directory { .. }) && error.to_string().contains("hugetlbfs"), "{error}");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

fn huge(prefix: &str) {
    const HUGE: usize = 2 << 20;
    const CAP: usize = 8 * HUGE;
    for option in ["never", "advise", "within_size", "always"] {
        let directory = format!("/dev/shm/{option}");
        // With room for less than the cap.
        if !has_mounted("tmpfs", &directory, &format!("size=15m,huge={option}")) {
            return child::skip("a tmpfs with huge pages cannot be mounted");
        }
        let provider = builder(prefix, &directory).max_bytes(CAP).arena_size(CAP).huge_pages(true).build().unwrap();
        let client = Client::builder().name_prefix(prefix).directory(&directory).build().unwrap();
        let mut messages = Vec::new();
        for round in 0..3 {
            let lens = [3 * HUGE, HUGE / 2, 100, HUGE, 80_000, HUGE + 4096];
            for (seed, len) in lens.into_iter().enumerate() {
                let Ok(mut buffer) = provider.alloc(len) else { break };
                // Guards against a kernel that, asked for huge pages too early, shows peers what
                // other processes had in that memory.
                assert!(round > 0 || buffer.iter().all(|&byte| byte == 0), "huge={option}: memory of others");
                shm::fill(&mut buffer, seed as u64);
                messages.push((seed as u64, buffer.freeze()));
            }
            assert!(messages.len() >= 4, "huge={option}, round {round}: {}", messages.len());
            for (seed, message) in &messages {
                let view = client.attach(&message.descriptor().unwrap()).unwrap();
                shm::check(&view, *seed).unwrap();
            }
            // Every other one is kept, in part of a huge page or of several.
            let mut number = 0;
            messages.retain(|_| {
                number += 1;
                number % 2 == 0 && round < 2
            });
            provider.trim();
        }
        // Until the directory is full.
        let all: Vec<_> = std::iter::from_fn(|| provider.alloc(HUGE).ok()).collect();
        assert!(all.len() >= 5, "huge={option}: {}", all.len());
        drop((all, provider, client));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }
}
