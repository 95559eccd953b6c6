//! The threads of a buffer pool: which signals they take, and that they call the program's hook.

use crate::child::{Child, Link};
use crate::support::backend;
use nix::sys::signal::Signal;
use shm_pool_support::tasks::{noop_waker, poll_once};
use shm_pool_zenoh::BufferPool;
use std::fs;
use std::pin::pin;
use std::sync::mpsc::channel;

/// More buffers than a class keeps without the thread that releases idle ones.
const MANY: usize = 200;

/// The signals that the instructions of a thread raise. Blocked, they would kill the process.
const SYNCHRONOUS: [Signal; 6] = [
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGTRAP,
];

/// In a process of its own: a hook is set before the first thread starts.
#[test]
fn threads_block_signals_and_call_the_hook() {
    Child::start("threads", &[]).finish();
}

/// Role: has a pool start its threads.
pub(crate) fn role(_: &mut Link) {
    let (start, started) = channel();
    shm_pool::threads::on_start(move |name| start.send(name.to_owned()).unwrap()).unwrap();

    let pool = BufferPool::new(&backend());
    let mut held = Vec::new();
    for _ in 0..MANY {
        held.push(pool.alloc(64).unwrap());
    }
    assert_eq!(started.recv().unwrap(), "shm-pool-idle");
    assert_signals_are_blocked("shm-pool-idle");

    while let Ok(buffer) = pool.alloc(1 << 20) {
        held.push(buffer);
    }
    let mut future = pin!(pool.request(1 << 20).wait_async());
    assert!(poll_once(future.as_mut(), &noop_waker()).is_none());
    assert_eq!(started.recv().unwrap(), "shm-pool-wait");
    assert_signals_are_blocked("shm-pool-wait");
}

fn assert_signals_are_blocked(thread: &str) {
    let blocked = blocked_signals(thread);
    for signal in Signal::iterator() {
        let is_blocked = blocked >> (signal as i32 - 1) & 1 == 1;
        let cannot_be = matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
        let takes_it = cannot_be || SYNCHRONOUS.contains(&signal);
        assert_eq!(is_blocked, !takes_it, "{signal} in {thread}");
    }
}

/// Returns the mask of a thread of this process.
fn blocked_signals(thread: &str) -> u64 {
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
            continue; // It has ended.
        };
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..].trim().to_owned()
        };
        if field("Name:") == thread {
            return u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
        }
    }
    panic!("no thread {thread}");
}
