//! A writer that repeats the same writes while others work.

use super::layout::{OpenObject, Write};
use arbitrary::{Arbitrary, Unstructured};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Returns the writes to repeat: none, most of the time.
pub(super) fn writes(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Vec<Write>> {
    let count = u8::arbitrary(bytes)?.saturating_sub(250);
    (0..count).map(|_| bytes.arbitrary()).collect()
}

/// Repeats `writes` into `object` from before `work` begins until it ends.
pub(super) fn during(object: &OpenObject, writes: &[Write], work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let rage = || {
        while !is_over.load(Ordering::Relaxed) {
            writes.iter().for_each(|write| object.apply(write));
        }
    };
    thread::scope(|scope| {
        // Also ends the storm if a check fails, so that the scope can end.
        let _calm = Calm(&is_over);
        if !writes.is_empty() {
            scope.spawn(rage);
        }
        work();
    });
}

/// Ends the storm on drop.
struct Calm<'a>(&'a AtomicBool);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
