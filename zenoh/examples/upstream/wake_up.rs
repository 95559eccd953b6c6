//! How long `BlockOn` takes to notice that a buffer was released, and what the wait costs; and the
//! same with a futex that the last reader wakes.
//!
//! The reader is a thread that drops the buffer. The futex is in this program: in zenoh it would be in
//! the metadata segment, and the drop of a buffer would wake it. Run it with
//! `cargo run --release -p shm-pool-zenoh --example upstream_wake_up`.

use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use zenoh::shm::{
    BlockOn, GarbageCollect, PosixShmProviderBackend, ShmProvider, ShmProviderBuilder, ZShmMut,
};
use zenoh::{Result, Wait};

type Provider = ShmProvider<PosixShmProviderBackend>;

const LEN: usize = 1024;
const WAITS: usize = 300;
/// A reader holds the buffer for so long, and up to a millisecond more, so that the other side sleeps.
const HELD: Duration = Duration::from_millis(4);

/// 1 while an allocation waits.
static WAITING: AtomicU32 = AtomicU32::new(0);

fn main() -> Result<()> {
    println!("median and 99th percentile of {WAITS} waits, and the time of a CPU that one second of waiting takes:");
    for in_flight in [10, 1_000, 10_000] {
        let provider = ShmProviderBuilder::default_backend(in_flight * (LEN + 8) + 4096).wait()?;
        let mut held = Vec::new();
        while let Ok(buffer) = provider.alloc(LEN).wait() {
            held.push(buffer);
        }
        let messages = held.len();
        report(
            &format!("{messages} in flight, BlockOn"),
            &provider,
            &mut held,
            alloc_polling,
        );
        report(
            &format!("{messages} in flight, futex"),
            &provider,
            &mut held,
            alloc_woken,
        );
    }
    Ok(())
}

fn report(
    name: &str,
    provider: &Provider,
    held: &mut Vec<ZShmMut>,
    alloc: fn(&Provider) -> ZShmMut,
) {
    let (to_reader, received) = mpsc::channel::<ZShmMut>();
    let (to_waiter, dropped) = mpsc::channel::<Instant>();
    let reader = thread::spawn(move || {
        for (number, buffer) in received.iter().enumerate() {
            // It works rather than sleeps: timers would wake both sides together.
            let more = Duration::from_micros(number as u64 * 37 % 1000);
            let start = Instant::now();
            while start.elapsed() < HELD + more {
                hint::spin_loop();
            }
            let time = Instant::now();
            release(buffer);
            to_waiter.send(time).unwrap();
        }
    });

    let mut latencies = Vec::new();
    let mut waited = Duration::ZERO;
    let cpu = cpu_time();
    for _ in 0..WAITS {
        to_reader.send(held.pop().unwrap()).unwrap();
        let start = Instant::now();
        held.push(alloc(provider));
        let end = Instant::now();
        waited += end - start;
        latencies.push(end - dropped.recv().unwrap());
    }
    let cpu = cpu_time() - cpu;
    drop(to_reader);
    reader.join().unwrap();

    latencies.sort();
    let median = latencies[WAITS / 2];
    let late = latencies[WAITS * 99 / 100];
    let share = cpu.as_secs_f64() / waited.as_secs_f64();
    println!("  {name}: {median:.1?}, {late:.1?}, {:.2} ms", share * 1e3);
}

/// What the reader of a message does at its end.
fn release(buffer: ZShmMut) {
    drop(buffer);
    // SeqCst: partner of the store in `alloc_woken`. Either this sees that it waits, or its next
    // attempt sees the buffer released.
    if WAITING.load(Ordering::SeqCst) != 0 && WAITING.swap(0, Ordering::SeqCst) != 0 {
        // SAFETY: the address is a static's.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                WAITING.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
            )
        };
    }
}

fn alloc_polling(provider: &Provider) -> ZShmMut {
    let request = provider.alloc(LEN);
    request
        .with_policy::<BlockOn<GarbageCollect>>()
        .wait()
        .unwrap()
}

fn alloc_woken(provider: &Provider) -> ZShmMut {
    loop {
        WAITING.store(1, Ordering::SeqCst);
        let request = provider.alloc(LEN);
        if let Ok(buffer) = request.with_policy::<GarbageCollect>().wait() {
            WAITING.store(0, Ordering::SeqCst);
            return buffer;
        }
        let no_limit: *const libc::timespec = ptr::null();
        // SAFETY: the address is a static's. It sleeps only while no reader has cleared the mark.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                WAITING.as_ptr(),
                libc::FUTEX_WAIT,
                1,
                no_limit,
            )
        };
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
