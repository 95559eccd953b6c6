//! Ends a process that takes longer than it can: the last resort, when the other one does not end, or has left a lock
//! that nobody releases.

#![forbid(unsafe_code)]

use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Until it is dropped. What ends the process is a thread that sleeps.
pub(crate) struct Limit {
    _end: mpsc::Sender<()>,
}

impl Limit {
    pub(crate) fn start(who: &'static str, limit: Duration) -> Self {
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the {who} gives up: not done after {} s", limit.as_secs());
                process::exit(1);
            }
        });
        Self { _end: end }
    }
}
