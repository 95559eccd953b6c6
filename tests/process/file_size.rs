//! A limit of file sizes (`ulimit -f`): the kernel answers a call beyond it with SIGXFSZ, which ends
//! the process. This crate makes no such call.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{ChannelError, Sender};
use shm_pool::{AllocErrorKind, BuildError, OsError, Provider};

/// Otherwise a provider, its first large message, a channel or a sweep kills the process.
#[test]
fn file_size_limit_is_an_error() {
    let names = Names::new("file-size");
    let child = Child::start("file-size", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

fn assert_names_limit(error: &OsError, limit: u64) {
    let text = error.to_string();
    assert!(error.errno() == Some(libc::EFBIG) && text.contains("ulimit -f"), "{text}");
    assert!(text.contains(&limit.to_string()), "{text}");
}

role!("file-size", role);

fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let builder = || Provider::builder().name_prefix(prefix).max_shared(64).arena_size(64 << 10);
    let limit = |bytes| sys::set_limit(libc::RLIMIT_FSIZE, bytes);
    limit(4096);
    let BuildError::Os(error) = builder().build().unwrap_err() else { panic!() };
    assert_names_limit(&error, 4096);
    assert_eq!(shm::objects(prefix), [""; 0], "a provider that could not be built leaves nothing");

    limit(1 << 20);
    let provider = builder().build().unwrap();
    let kept = provider.alloc(1000).unwrap();
    let error = provider.alloc(2 << 20).unwrap_err();
    let AllocErrorKind::Os(error) = error.kind() else { panic!("{error}") };
    assert_names_limit(error, 1 << 20);
    let large = Sender::builder().capacity(1 << 16).create(&provider, "c").unwrap_err();
    let ChannelError::Os(error) = large else { panic!("{large}") };
    assert_names_limit(&error, 1 << 20);

    // What is within the length of a segment needs no longer file.
    limit(0);
    provider.alloc(2000).expect("a segment that has its length already");
    limit(1 << 20);
    let dead = Child::start("owner-swept", &[prefix]);
    dead.hear();
    dead.kill();
    limit(0);
    assert_eq!(Provider::sweep(prefix).unwrap().objects, 3);
    drop((kept, provider));
    link.send(&Message::Done);
}
