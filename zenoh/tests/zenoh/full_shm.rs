//! Publishing when /dev/shm is full.

use crate::child::{Child, Link};
use crate::own_shm::{give_small_shm, skip};
use crate::support::{alloc, builder, is_out_of_memory, Collecting, Provider};
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Fits into what zenoh's metadata leaves of 4 MiB; `TOO_LARGE` does not.
const FITS: usize = 64 << 10;
const TOO_LARGE: usize = 4 << 20;

static ERRORS: AtomicUsize = AtomicUsize::new(0);

/// Counts what the pool logs as an error.
struct Counter;

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR && metadata.target().starts_with("shm_pool")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        ERRORS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Guards against a publisher that waits for memory and logs a thousand lines a second.
#[test]
fn enospc_is_logged_once() {
    match Child::start_with("full-shm", &[], give_small_shm) {
        Ok(mut child) => {
            child.link.expect("as it should be");
            child.end();
        }
        Err(error) => skip(&format!("no mount namespace of our own: {error}")),
    }
}

pub(crate) fn role(link: &mut Link) {
    tracing::subscriber::set_global_default(Counter).unwrap();
    let provider = builder().max_bytes(64 << 20).build().unwrap().provider();
    let refused = |provider: &Provider| {
        for _ in 0..100 {
            let error = alloc::<Collecting>(provider, TOO_LARGE, 1).expect_err("/dev/shm is too small");
            assert!(is_out_of_memory(&error), "a policy waits for memory, and for nothing else: {error:?}");
        }
    };
    refused(&provider);
    assert_eq!(ERRORS.load(Ordering::Relaxed), 1, "of 100 that were refused");
    drop(alloc::<Collecting>(&provider, FITS, 1).unwrap());
    refused(&provider);
    assert_eq!(ERRORS.load(Ordering::Relaxed), 2, "there was memory meanwhile");
    link.say("as it should be");
    link.expect("end");
}
