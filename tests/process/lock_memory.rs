//! A provider locked into RAM, in a process that may lock 4 MiB: what counts, what is refused, and
//! that a refused provider leaves nothing behind.

use crate::child::{self, Child};
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{AllocErrorKind, BuildError, Provider, ProviderBuilder};
use shm_pool_support::procfs::{mapped_memory, memory};

const LIMIT: usize = 4 << 20;
const RECORDS: usize = 64;
/// A page, and 128 bytes for each record.
const CONTROL: usize = 4096 + 128 * RECORDS;

/// An embedded publisher that asks for locked memory learns at once if it cannot have it, and is
/// not refused memory that it was promised.
#[test]
fn memlock_limit() {
    let names = Names::new("locked");
    let child = Child::start("lock-memory", &[names.prefix()]);
    match child.hear() {
        Message::Refused(reason) => child::skip(&reason),
        answer => assert_eq!(answer, Message::Done),
    }
    child.finish();
}

role!("lock-memory", role);

/// The role.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    if let Err(error) = sys::give_up_locking_without_limit() {
        return link.send(&Message::Refused(format!("the right to lock memory cannot be given up: {error}")));
    }
    sys::set_limit(libc::RLIMIT_MEMLOCK, LIMIT as u64);
    cap_above_memlock(prefix);
    what_has_memory_is_locked(prefix);
    segment_above_memlock(prefix);
    sys::set_limit(libc::RLIMIT_MEMLOCK, 0);
    let error = locked(prefix).max_bytes(1).build().unwrap_err();
    assert!(matches!(error, BuildError::LockMemory { limit: 0, .. }), "{error}");
    assert!(locked(prefix).lock_memory(false).build().is_ok(), "the default locks nothing");
    link.send(&Message::Done);
}

fn locked(prefix: &str) -> ProviderBuilder {
    Provider::builder().name_prefix(prefix).max_shared(RECORDS).lock_memory(true)
}

/// Returns how many bytes of a prefix's objects are locked in RAM.
fn bytes_locked(prefix: &str) -> usize {
    mapped_memory(prefix, "Locked").unwrap() as usize
}

fn cap_above_memlock(prefix: &str) {
    let error = locked(prefix).max_bytes(LIMIT - CONTROL + 1).build().unwrap_err();
    let BuildError::LockMemory { needed, limit } = error else { panic!("{error}") };
    assert_eq!((needed, limit), (LIMIT + 4096, LIMIT as u64), "the cap is whole pages");
    let text = error.to_string();
    assert!([&needed.to_string(), &limit.to_string(), "ulimit -l"].iter().all(|part| text.contains(*part)), "{text}");
    assert_eq!(shm::objects(prefix), [""; 0]);
    assert!(locked(prefix).max_bytes(LIMIT - CONTROL).build().is_ok(), "all that the limit allows");
}

fn what_has_memory_is_locked(prefix: &str) {
    let provider = locked(prefix).max_bytes(2 << 20).arena_size(2 << 20).build().unwrap();
    assert_eq!(bytes_locked(prefix), CONTROL, "no payload memory yet");
    let assert_all = |what: &str| {
        let held = provider.stats().bytes_held;
        assert_eq!(bytes_locked(prefix), CONTROL + held, "{what}");
        held
    };
    let kept = provider.alloc(1000).unwrap();
    let large = provider.alloc(1 << 20).unwrap();
    let all = assert_all("after the first messages");
    assert!((1 << 20..2 << 20).contains(&all), "memory is taken page by page all the same: {all}");
    drop(large);
    provider.trim();
    assert!(assert_all("after the pages of the large message went back") < all);
    let again = provider.alloc(1 << 20).unwrap();
    assert_eq!(assert_all("after they were taken again"), all);
    let reservation = provider.reserve(100_000, 4).unwrap();
    assert_all("what is reserved");
    drop((reservation, again, kept, provider));
    assert_eq!((bytes_locked(prefix), memory(std::process::id(), "VmLck").unwrap()), (0, 0));
}

fn segment_above_memlock(prefix: &str) {
    let build = || locked(prefix).max_bytes(3 << 20).arena_size(3 << 20).build().unwrap();
    // Each may lock its cap; both together may not.
    let (first, second) = (build(), build());
    let taken = first.alloc(3 << 20).unwrap();
    let objects = shm::objects(prefix);
    for error in [second.alloc(2 << 20).map(drop).unwrap_err(), second.reserve(2 << 20, 1).map(drop).unwrap_err()] {
        let AllocErrorKind::Os(os) = error.kind() else { panic!("{error}") };
        assert_eq!((os.call(), os.errno(), os.bytes()), ("mlock2", Some(libc::ENOMEM), 2 << 20), "{error}");
        let text = error.to_string();
        assert!([&LIMIT.to_string(), "ulimit -l"].iter().all(|part| text.contains(*part)), "{text}");
        assert!(error.is_exhausted(), "it may work later");
        assert_eq!((shm::objects(prefix), second.stats().bytes_held), (objects.clone(), 0), "nothing is left of it");
    }
    let small = second.alloc(200_000).expect("a shorter segment is within the limit");
    drop((taken, small));
    first.trim();
    second.trim();
    assert!(second.alloc(2 << 20).is_ok(), "the first has unlocked its memory");
}
