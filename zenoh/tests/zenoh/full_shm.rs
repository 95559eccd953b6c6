//! Publishing when /dev/shm is full.

use crate::child::{Child, Link};
use crate::log::Log;
use crate::support::{alloc, builder, is_out_of_memory, Collecting, Provider};
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::{Event, Level};

/// Fits into what zenoh's metadata leaves of 4 MiB; `TOO_LARGE` does not.
const FITS: usize = 64 << 10;
const TOO_LARGE: usize = 4 << 20;

/// What the pool has logged as an error.
static ERRORS: AtomicUsize = AtomicUsize::new(0);

/// Guards against a publisher that waits for memory and logs a thousand lines a second.
#[test]
fn enospc_is_logged_once() {
    if let Some(mut child) = Child::start_with_shm("full-shm", &[], b"size=4m,mode=1777\0") {
        child.link.expect("as it should be");
        child.end();
    }
}

pub(crate) fn role(link: &mut Link) {
    let count = Log {
        wants: |metadata| {
            *metadata.level() == Level::ERROR && metadata.target().starts_with("shm_pool")
        },
        event: |_: &Event<'_>| {
            ERRORS.fetch_add(1, Ordering::Relaxed);
        },
    };
    tracing::subscriber::set_global_default(count).unwrap();
    let provider = builder().max_bytes(64 << 20).build().unwrap().provider();
    let refused = |provider: &Provider| {
        for _ in 0..100 {
            let error =
                alloc::<Collecting>(provider, TOO_LARGE, 1).expect_err("/dev/shm is too small");
            assert!(
                is_out_of_memory(&error),
                "a policy waits for memory, and for nothing else: {error:?}"
            );
        }
    };
    refused(&provider);
    assert_eq!(
        ERRORS.load(Ordering::Relaxed),
        1,
        "of 100 that were refused"
    );
    drop(alloc::<Collecting>(&provider, FITS, 1).unwrap());
    refused(&provider);
    assert_eq!(
        ERRORS.load(Ordering::Relaxed),
        2,
        "there was memory meanwhile"
    );
    link.send("as it should be");
    link.expect("end");
}
