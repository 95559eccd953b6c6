//! Builder options: invalid values are typed errors that leave no object behind, boundary values
//! work, and modes and names are exact.

use crate::support::{files, unique_prefix, NONE};
use shm_pool::{AttachError, BuildError, Client, Provider, ProviderBuilder};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

const MAX_LEN: usize = (1 << 48) - 1;

fn small() -> ProviderBuilder {
    Provider::builder().max_shared(1)
}

/// A miscalculated quota of 0 must not let each peer read one byte.
#[test]
fn quota_of_zero() {
    let error = small().max_bytes_per_peer(0).build().unwrap_err();
    assert!(matches!(error, BuildError::OutOfRange { option: "max_bytes_per_peer", value: 0, min: 1, .. }), "{error}");
    assert!(small().max_bytes_per_peer(1).build().is_ok());
}

#[test]
fn numbers_out_of_range() {
    let prefix = unique_prefix("out-of-range");
    let builder = || small().name_prefix(prefix.as_str());
    let bad = [
        ("max_bytes", builder().max_bytes(0)),
        ("max_bytes", builder().max_bytes(MAX_LEN + 1)),
        ("max_bytes", builder().max_bytes(usize::MAX)),
        ("max_alloc", builder().max_alloc(0)),
        ("max_alloc", builder().max_alloc((1 << 30) + 1)),
        ("max_alloc", builder().max_bytes(1 << 20).max_alloc((1 << 20) + 1)),
        ("max_alloc", builder().max_bytes((1 << 20) + 100).max_alloc((1 << 20) + 4097)),
        ("max_alloc", builder().max_bytes(MAX_LEN).max_alloc((64 << 30) + 1)),
        ("max_alloc", builder().max_alloc(usize::MAX)),
        ("arena_size", builder().arena_size(0)),
        ("arena_size", builder().arena_size((1 << 30) + 1)),
        ("arena_size", builder().max_bytes(1 << 20).arena_size((1 << 20) + 1)),
        ("arena_size", builder().arena_size(usize::MAX)),
        ("max_idle_per_class", builder().max_idle_per_class((1 << 20) + 1)),
        ("max_idle_per_class", builder().max_idle_per_class(usize::MAX)),
        ("max_shared", builder().max_shared(0)),
        ("max_shared", builder().max_shared((1 << 20) + 1)),
        ("max_shared", builder().max_shared(usize::MAX)),
    ];
    for (expected, builder) in bad {
        let described = format!("{builder:?}");
        let Err(error) = builder.build() else { panic!("{described} was built") };
        let BuildError::OutOfRange { option, value, min, max, .. } = error else { panic!("{described}: {error}") };
        assert_eq!(option, expected, "{described}");
        assert!(!(min..=max).contains(&value), "{option} {value} is said to be out of {min}..={max}");
    }
    assert_eq!(files(&prefix), NONE, "a failed build leaves files");
}

#[test]
fn boundary_values_work() {
    let good = [
        small().max_bytes(1),
        small().max_bytes(42),
        small().max_bytes(10_240),
        small().max_bytes(1_000_000),
        small().max_bytes(64 << 10),
        small().max_bytes((64 << 10) + 1),
        small().max_bytes(MAX_LEN),
        small().max_alloc(1),
        small().max_alloc(1 << 30),
        small().max_bytes(1 << 20).max_alloc(1 << 20),
        small().arena_size(1),
        small().arena_size(64 << 10),
        small().arena_size((64 << 10) + 1),
        small().max_bytes(MAX_LEN).max_alloc(64 << 30),
        small().max_bytes(1 << 20).arena_size(1 << 20),
        small().max_bytes(64 << 10).arena_size(64 << 10).max_alloc(1),
        small().max_idle_per_class(0),
        small().max_idle_per_class(1 << 20),
    ];
    for builder in good {
        let described = format!("{builder:?}");
        let provider = builder.build().unwrap_or_else(|error| panic!("{described}: {error}"));
        assert_eq!(provider.alloc(1).unwrap().len(), 1, "{described}");
    }
}

#[test]
fn max_shared_limit() {
    match Provider::builder().max_shared(1 << 20).build() {
        Ok(provider) => assert!(provider.alloc(1).unwrap().freeze().descriptor().is_ok()),
        // It needs 128 MiB, which not every machine has.
        Err(error) => assert!(matches!(error, BuildError::Os(_)), "{error}"),
    }
}

#[test]
fn invalid_prefixes_of_both_sides() {
    let long = "x".repeat(65);
    for prefix in ["", long.as_str(), "a/b", "../a", "a.b", "a b", "a\0b", "ä", "a\n"] {
        let errors = [small().name_prefix(prefix).build().err(), Client::builder().name_prefix(prefix).build().err()];
        for error in errors {
            let Some(BuildError::Prefix { prefix: named, max: 64 }) = error else { panic!("{prefix:?}: {error:?}") };
            assert_eq!(named, prefix);
        }
    }
}

#[test]
fn prefix() {
    for fill in ["x".repeat(64), "Z".to_owned(), "a-b_C-9".to_owned()] {
        let unique = unique_prefix("prefix");
        // Limited to 64 characters, so that the longest prefix is tested too.
        let prefix: String = unique.chars().chain(fill.chars()).take(64.min(unique.len() + fill.len())).collect();
        let provider = small().name_prefix(prefix.as_str()).build().unwrap();
        let messages = [100, 1 << 20].map(|len| provider.alloc(len).unwrap().freeze());
        let names = files(&provider.id().to_string());
        assert_eq!(names.len(), 2);
        assert!(names.iter().all(|name| name.starts_with(&format!("{prefix}."))), "{names:?}");
        let descriptor = messages[0].descriptor().unwrap();
        let client = Client::builder().name_prefix(prefix).build().unwrap();
        assert!(client.attach(&descriptor).is_ok());
        assert!(matches!(Client::new().attach(&descriptor), Err(AttachError::NoProvider { .. })));
    }
}

#[test]
fn invalid_modes() {
    let prefix = unique_prefix("bad-mode");
    for mode in [0, 0o400, 0o200, 0o060, 0o066, 0o700, 0o610, 0o601, 0o1600, 0o4600, 0o100600, u32::MAX] {
        let error = small().name_prefix(prefix.as_str()).mode(mode).build().err();
        let Some(BuildError::Mode { mode: named }) = error else { panic!("mode {mode:o}: {error:?}") };
        assert_eq!(named, mode);
    }
    assert_eq!(files(&prefix), NONE, "a failed build leaves files");
}

/// Builds a provider with `mode`, and returns the modes of its control object and its segment.
fn modes_on_disk(mode: u32) -> Vec<u32> {
    let provider = small().mode(mode).build().unwrap();
    let _live = [100, 1 << 20].map(|len| provider.alloc(len).unwrap());
    let names = files(&provider.id().to_string());
    let mode = |name: String| fs::metadata(format!("/dev/shm/{name}")).unwrap().permissions().mode() & 0o7777;
    // Sorted, "1" precedes "ctl".
    names.into_iter().map(mode).rev().collect()
}

#[test]
fn mode_ignores_umask() {
    // All threads of a process share the umask. This thread takes a private copy, so that no other
    // test sees the change.
    let masked = thread::spawn(|| {
        // SAFETY: `unshare(CLONE_FS)` gives this thread its own working directory and umask. It
        // touches no memory.
        let is_private = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
        for mask in [0o000, 0o022, 0o077, 0o777] {
            if is_private {
                // SAFETY: `umask` has no preconditions.
                unsafe { libc::umask(mask) };
            }
            for (mode, payload) in [(0o600, 0o600), (0o660, 0o640), (0o640, 0o640), (0o666, 0o644), (0o606, 0o604)] {
                assert_eq!(modes_on_disk(mode), [mode, payload], "mode {mode:o} under umask {mask:o}");
            }
        }
    });
    assert!(masked.join().is_ok(), "see above");
}

#[test]
fn provider_ids_are_unique() {
    let mut ids: Vec<_> = (0..100).map(|_| small().build().unwrap().id()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100);
}
