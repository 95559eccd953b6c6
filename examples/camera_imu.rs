//! A robot's camera and IMU, published to three processes of three kinds.
//!
//! | receiver | subscribes to | when it lags behind |
//! |---|---|---|
//! | the logger | the IMU, 48 bytes at 1 kHz | the publisher waits: it gets every sample |
//! | the display | the camera, 6 MB at 60 Hz | keeps the latest two frames; needs 30 ms for each |
//! | the monitor | the camera | joins late, leaves, rejoins, is killed holding a frame, rejoins |
//!
//! Each sensor has its own channel. All receivers check every byte and every gap, and the exit code
//! reports the result. Run it with `cargo run --release --example camera_imu`.

#![forbid(unsafe_code)]

use shm_pool::channel::{Message, OnFull, Publisher, Receiver, ReceiverBuilder, RecvError};
use shm_pool::{Client, Provider};
use std::error::Error;
use std::io::Read;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, thread};

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const FRAME: usize = 6_000_000; // bytes
const PATIENCE: Duration = Duration::from_secs(60); // for a busy machine to start a process

fn main() -> Fallible {
    // The program starts itself again for each receiver, with its role.
    let arguments: Vec<String> = env::args().skip(1).collect();
    let missed = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => return publish(),
        ["logger", imu] => receive(imu, Receiver::builder().on_full(OnFull::Block), u64::MAX, drop)?,
        ["display", camera] => {
            let show = |_| thread::sleep(Duration::from_millis(30));
            receive(camera, Receiver::builder().capacity(2), u64::MAX, show)?
        }
        ["monitor", camera, most] => {
            let mut in_hand = None; // one frame, until the next arrives
            receive(camera, Receiver::builder(), most.parse()?, |frame| in_hand = Some(frame))?
        }
        _ => return Err("run it without arguments".into()),
    };
    assert!(missed == 0 || arguments[0] != "logger", "the publisher waits for the logger");
    Ok(())
}

fn publish() -> Fallible {
    // A receiver has two frames waiting, and a monitor two in hand as it replaces one by the next.
    let camera = Publisher::builder().capacity(2).allow_blocking(false).max_bytes_per_receiver(5 * FRAME);
    // The display, a monitor, and one that may just have been killed.
    let viewer = Receiver::builder();
    let frames = camera.buffers([(&viewer, 1), (&viewer, 2), (&viewer, 2)]);
    let provider = Provider::builder().max_bytes((frames + 1) * FRAME).build()?; // and the IMU's samples
    let [eye, ear] = ["camera", "imu"].map(|sensor| format!("{sensor}-{}", process::id()));
    let mut camera = camera.create(&provider, &eye)?;
    let mut imu = Publisher::create(&provider, &ear)?;
    let (display, logger) = (start(&["display", &eye], Stdio::inherit())?, start(&["logger", &ear], Stdio::inherit())?);
    camera.wait_for_receivers(1, PATIENCE)?;
    imu.wait_for_receivers(1, PATIENCE)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let camera = scope.spawn(|| {
            at_a_rate(Duration::from_nanos(16_666_667), &stop, |number| {
                let mut frame = provider.alloc(FRAME)?;
                fill(&mut frame, number);
                Ok(camera.send(frame.freeze()).map(drop)?) // never waits
            })
        });
        let imu = scope.spawn(|| {
            at_a_rate(Duration::from_millis(1), &stop, |number| {
                let mut sample = [0; 48];
                fill(&mut sample, number);
                Ok(imu.send_bytes(&sample).map(drop)?) // waits if the logger is far behind
            })
        });
        let watched = (0..3).try_for_each(|_| watch(&eye));
        stop.store(true, Ordering::Relaxed);
        [camera, imu].into_iter().try_for_each(|sensor| sensor.join().expect("no panic"))?;
        watched
    })?;

    // Messages that were not received would be lost with the publishers and the provider.
    camera.wait_until_received(PATIENCE)?;
    imu.wait_until_received(PATIENCE)?;
    drop((camera, imu));
    [display, logger].into_iter().try_for_each(succeed)?;
    provider.reclaim(); // at once, rather than when the pool needs it
    Provider::sweep("shm_pool")?; // removes the objects of dead monitors, as the next provider would
    assert_eq!(provider.stats().bytes_in_use, 0, "what dead monitors had in hand came back");
    Ok(())
}

/// Has a monitor join, leave, rejoin and be killed.
fn watch(camera: &str) -> Fallible {
    succeed(start(&["monitor", camera, "20"], Stdio::inherit())?)?;
    let mut monitor = start(&["monitor", camera, "1000000"], Stdio::piped())?;
    monitor.stdout.take().expect("a pipe").read_exact(&mut [0])?; // it holds a frame now
    monitor.kill()?; // by SIGKILL
    Ok(monitor.wait().map(drop)?)
}

fn start(arguments: &[&str], output: Stdio) -> io::Result<Child> {
    Command::new(env::current_exe()?).args(arguments).stdout(output).spawn()
}

fn succeed(mut receiver: Child) -> Fallible {
    receiver.wait()?.success().then_some(()).ok_or_else(|| "a receiver failed".into())
}

/// Calls `each` with the numbers from 0, one in each period, until `stop` is set.
fn at_a_rate(period: Duration, stop: &AtomicBool, mut each: impl FnMut(u64) -> Fallible) -> Fallible {
    let start = Instant::now();
    for number in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        thread::sleep((start + period * number).saturating_duration_since(Instant::now()));
        each(number.into())?;
    }
    Ok(())
}

/// Receives up to `most` messages, until the publisher leaves. Returns how many were missed in
/// between.
fn receive(name: &str, how: ReceiverBuilder, most: u64, mut handle: impl FnMut(Message)) -> Fallible<u64> {
    let mut receiver = how.open(&Client::new(), name)?;
    let (mut next, mut count, mut missed) = (None, 0, 0);
    while count < most {
        let message = match receiver.recv() {
            Err(RecvError::Disconnected) => break,
            message => message?,
        };
        let (number, gap) = (check(&message), u64::from(message.missed()));
        assert_eq!(number, next.map_or(number, |next: u64| next + gap), "a receiver knows of every gap");
        (next, count, missed) = (Some(number + 1), count + 1, missed + gap);
        handle(message);
        if count == 1 {
            println!("{name}: the first message is {number}");
        }
    }
    println!("{name}: {count} messages, {missed} missed");
    Ok(missed)
}

/// Writes the message's number and the position into every eight bytes.
fn fill(bytes: &mut [u8], number: u64) {
    let words = (0..).map(|at: u64| (number << 32 | at).to_le_bytes());
    bytes.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word));
}

/// Checks every byte. Returns the message's number.
fn check(bytes: &[u8]) -> u64 {
    let number = u64::from(u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")));
    let words = (0..).map(|at: u64| (number << 32 | at).to_le_bytes());
    assert!(bytes.chunks_exact(8).zip(words).all(|(bytes, word)| bytes == word), "not what was sent");
    number
}
