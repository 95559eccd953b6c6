//! Files under a control object's name that are not control objects: each is refused with a
//! specific error, and none hangs or crashes the peer.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{AttachError, Provider, ProviderId};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// A file that any process can put into /dev/shm neither crashes nor hangs nor misleads a peer that
/// connects. The cases run in a child, so that a hang fails the test.
#[test]
fn garbage_control_objects() {
    let names = Names::new("rejects");
    let child = Child::start("rejects", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

/// Returns an id that no provider of the test has, and the path of its control object.
fn vacant(prefix: &str) -> (ProviderId, PathBuf) {
    let id = 0x00c0_ffee;
    (ProviderId::from_u64(id), shm::path(&format!("{prefix}.{id:016x}.ctl")))
}

role!("rejects", role);

fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).max_shared(8).build().unwrap();
    let genuine_path = shm::path(&format!("{prefix}.{}.ctl", provider.id()));
    let genuine = fs::read(&genuine_path).expect("the control object has its documented name");
    contents(prefix, &genuine);
    damaged_headers(prefix, &genuine);
    not_regular_files(prefix, &genuine_path);
    shm::client(prefix).connect(provider.id()).expect("the genuine one is as good as before");
    drop(provider);
    link.send(&Message::Done);
}

/// Returns the error of connecting to a file with this content.
fn error_of(prefix: &str, content: &[u8]) -> AttachError {
    let (id, path) = vacant(prefix);
    fs::write(&path, content).unwrap();
    let error = shm::client(prefix).connect(id).expect_err("not a provider");
    assert_eq!(shm::mappings(prefix), 1, "only the genuine one's owner has it mapped: {error}");
    fs::remove_file(path).unwrap();
    error
}

fn assert_reason(error: &AttachError, words: &str) {
    let reason = match error {
        AttachError::NotAProvider { reason, .. } => reason,
        AttachError::Closed { .. } => "closed",
        AttachError::OwnerDied { .. } => "dead", // everything else is valid
        _ => panic!("{error:?}"),
    };
    assert!(reason.contains(words), "{words:?} was expected: {error}");
}

fn contents(prefix: &str, genuine: &[u8]) {
    for len in [0, 1, 100] {
        assert_reason(&error_of(prefix, &vec![1; len]), "too small");
    }
    for len in [4096, 8192] {
        assert_reason(&error_of(prefix, &genuine[..len]), "");
    }
    assert_reason(&error_of(prefix, &vec![0; genuine.len()]), "not finished");
    assert_reason(&error_of(prefix, &vec![0; genuine.len() * 100]), "not finished");
    for seed in 1..100 {
        let mut random = vec![0; genuine.len()];
        shm::fill(&mut random, seed);
        assert_reason(&error_of(prefix, &random), "");
    }
    assert_reason(&error_of(prefix, genuine), "another provider's id");
}

/// Damages the fields of the header one by one, and checks the error for each.
fn damaged_headers(prefix: &str, genuine: &[u8]) {
    let (id, _) = vacant(prefix);
    let with = |changes: &[(usize, &[u8])]| {
        let mut copy = genuine.to_vec();
        copy[16..24].copy_from_slice(&id.to_u64().to_le_bytes());
        changes.iter().for_each(|(at, bytes)| copy[*at..][..bytes.len()].copy_from_slice(bytes));
        error_of(prefix, &copy)
    };
    assert_reason(&with(&[]), "dead"); // nothing else is wrong with it
    assert_reason(&with(&[(0, b"SHMPOOF\0")]), "magic");
    assert_reason(&with(&[(8, &3u32.to_le_bytes())]), "version");
    assert_reason(&with(&[(8, &5u32.to_le_bytes())]), "version");
    assert_reason(&with(&[(8, &u32::MAX.to_le_bytes())]), "version");
    assert_reason(&with(&[(12, &0u32.to_le_bytes())]), "not finished");
    assert_reason(&with(&[(12, &2u32.to_le_bytes())]), "closed");
    assert_reason(&with(&[(12, &3u32.to_le_bytes())]), "");
    for records in [0, 9, 1000, 1 << 20, (1 << 20) + 1, u32::MAX] {
        // Nine records are too many, but they still fit in the last page.
        let words = if records == 9 { "" } else { "size does not match" };
        assert_reason(&with(&[(24, &records.to_le_bytes())]), words);
    }
    for (at, byte) in genuine.iter().enumerate().take(1024) {
        assert_reason(&with(&[(at, &[byte ^ 0x55])]), "");
    }
}

fn not_regular_files(prefix: &str, genuine: &std::path::Path) {
    let (id, path) = vacant(prefix);
    let connect = || shm::client(prefix).connect(id).expect_err("not a provider");
    let assert_errno = |error: AttachError, number: i32| match error {
        AttachError::Os(error) => assert_eq!(error.errno(), Some(number), "{error}"),
        error => panic!("{error:?}"),
    };
    assert!(matches!(connect(), AttachError::NoProvider { .. }), "nothing is there");

    symlink(genuine, &path).unwrap();
    assert_errno(connect(), libc::ELOOP);
    fs::remove_file(&path).unwrap();
    symlink("/nowhere", &path).unwrap();
    assert_errno(connect(), libc::ELOOP);
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert_errno(connect(), libc::EISDIR);
    fs::remove_dir(&path).unwrap();

    sys::make_pipe(&path);
    assert_reason(&connect(), "regular file");
    fs::remove_file(&path).unwrap();

    let socket = UnixListener::bind(&path).unwrap();
    assert_errno(connect(), libc::ENXIO);
    drop(socket);
    fs::remove_file(&path).unwrap();
}
