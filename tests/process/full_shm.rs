//! A full /dev/shm: a clear error on allocation, and never a signal on access (D9).

use crate::child::{self, Child};
use crate::own_shm::give_shm;
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::{AllocError, AllocErrorKind, BuildError, OsError, Provider};
use std::fs::{self, File};

const LEN: usize = 256 << 10;

/// In a container with the usual small /dev/shm, the first access to a page does not kill the
/// process, and a failed allocation does not take up what is left.
#[test]
fn enospc() {
    let names = Names::new("full");
    child::run_in_small_shm("full-shm", &[names.prefix()]);
}

/// Otherwise an operator makes room where there is plenty.
#[test]
fn no_free_inodes() {
    let names = Names::new("full-inodes");
    let few = |command: &mut _| give_shm(command, b"size=4m,nr_inodes=8,mode=1777\0");
    match Child::start_with("full-shm-inodes", &[names.prefix()], few) {
        Ok(child) => {
            child.expect_done();
            child.finish();
        }
        Err(error) => child::skip(&format!("no mount namespace of our own: {error}")),
    }
}

role!("full-shm-inodes", inodes_role);

/// The role, in a process whose /dev/shm has 4 MiB and 8 inodes.
fn inodes_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let file = |number| shm::path(&format!("{prefix}.file{number}"));
    let provider = Provider::builder().name_prefix(prefix).build().unwrap();
    let made = (0..8).take_while(|&number| File::create(file(number)).is_ok()).count();
    assert!(made < 8);
    let BuildError::Os(built) = Provider::builder().name_prefix(prefix).build().unwrap_err() else { panic!() };
    for error in [os(&provider.alloc(100).unwrap_err()), &built] {
        let text = error.to_string();
        assert!(error.errno() == Some(libc::ENOSPC) && text.contains("inodes"), "{text}");
        assert!(!text.contains("make room") && !text.contains("bytes free"), "{text}");
    }
    (0..made).for_each(|number| fs::remove_file(file(number)).unwrap());
    provider.alloc(100).expect("an inode is free again");
    drop(provider);
    link.send(&Message::Done);
}

fn assert_is_full(error: &OsError, bytes: usize) {
    assert_eq!((error.errno(), error.bytes()), (Some(libc::ENOSPC), bytes), "{error}");
    assert!(error.object().starts_with("/dev/shm/"), "{error}");
    let text = error.to_string();
    assert!(["/dev/shm has ", " bytes free", "enlarge it"].iter().all(|words| text.contains(words)), "{text}");
}

fn os(error: &AllocError) -> &OsError {
    match error.kind() {
        AllocErrorKind::Os(error) => error,
        _ => panic!("{error}"),
    }
}

role!("full-shm", role);

/// The role, in a process whose /dev/shm has 4 MiB.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let builder = || Provider::builder().name_prefix(prefix).max_bytes(1 << 30).arena_size(64 << 10);
    let provider = builder().max_shared(64).build().unwrap();
    let mut large = Vec::new();
    let error = loop {
        match provider.alloc(LEN) {
            Ok(buffer) => large.push(buffer),
            Err(error) => break error,
        }
    };
    assert_is_full(os(&error), LEN);
    assert!((10..16).contains(&large.len()), "{} of them fit 4 MiB", large.len());
    assert_eq!(shm::objects(prefix).len(), 1 + provider.stats().segments, "nothing is left half-made");
    assert_eq!(provider.stats().bytes_held, large.len() * LEN, "nor accounted for");

    // Small buffers take the rest.
    let mut small: Vec<_> = std::iter::from_fn(|| provider.alloc(4 << 10).ok()).collect();
    assert_is_full(os(&provider.alloc(4 << 10).unwrap_err()), 4 << 10);
    assert_is_full(os(&provider.reserve(2 * LEN, 1).unwrap_err()), 2 * LEN);
    let objects = shm::objects(prefix);
    let BuildError::Os(error) = builder().max_shared(4096).build().unwrap_err() else { panic!("another error") };
    assert_is_full(&error, error.bytes());
    assert_eq!(shm::objects(prefix), objects, "a provider that could not be built leaves nothing");

    for (seed, buffer) in large.iter_mut().chain(&mut small).enumerate() {
        shm::fill(buffer, seed as u64);
    }
    for (seed, buffer) in large.iter().chain(&small).enumerate() {
        shm::check(buffer, seed as u64).unwrap();
    }

    drop(large.pop());
    large.push(provider.alloc(LEN).expect("the same class: the chunk that was dropped"));
    drop(large.pop());
    small.push(provider.alloc(4 << 10).expect("another class: its memory goes to that one"));
    drop((large, small));
    provider.alloc(3 << 20).expect("all that is idle makes room for one large buffer").fill(1);
    drop(provider);
    assert_eq!(shm::objects(prefix), [""; 0]);
    link.send(&Message::Done);
}
