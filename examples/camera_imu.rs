//! A robot's camera and IMU, published to three processes of three kinds.
//!
//! | receiver | subscribes to | when it lags behind |
//! |---|---|---|
//! | the logger | the IMU, 48 bytes at 1 kHz | the publisher waits: it gets every sample |
//! | the display | the camera, 6 MB at 60 Hz | keeps the latest two frames; needs 30 ms for each |
//! | the monitor | the camera | joins late, leaves, rejoins, is killed holding a frame, rejoins |
//!
//! Each sensor has its own channel, of its own type. All receivers check every byte and every gap, and
//! the exit code reports the result. Run it with
//! `cargo run --release --features zerocopy --example camera_imu`.

#![forbid(unsafe_code)]

use shm_pool::channel::typed::{Schema, Value};
use shm_pool::channel::{Message, OnFull, Publisher, Receiver, ReceiverBuilder, RecvError};
use shm_pool::{message_type, Client, Provider};
use std::error::Error;
use std::io::Read;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, thread};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

message_type! {
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Frame { number: u64, pixels: [u64; 749_999] }
}

message_type! {
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    struct Sample { number: u64, axes: [u64; 5] }
}

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(60); // for a busy machine to start a process

fn main() -> Fallible {
    // The program starts itself again for each receiver, with its role.
    let arguments: Vec<String> = env::args().skip(1).collect();
    let of_frame = |frame: &Frame| (frame.number, frame.pixels.iter().all(|pixels| *pixels == frame.number));
    let of_sample = |sample: &Sample| (sample.number, sample.axes == [sample.number; 5]);
    let (mut in_hand, display) = (None, Receiver::builder().capacity(2)); // one frame, until the next arrives
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => publish(),
        ["logger", imu] => match receive(imu, Receiver::builder().on_full(OnFull::Block), "", of_sample, drop)? {
            0 => Ok(()),
            missed => Err(format!("the publisher waits for the logger, which missed {missed}").into()),
        },
        ["display", it] => receive(it, display, "", of_frame, |_| thread::sleep(Duration::from_millis(30))).map(drop),
        ["monitor", it, most] => receive(it, Receiver::builder(), most, of_frame, |it| in_hand = Some(it)).map(drop),
        _ => Err("run it without arguments".into()),
    }
}

fn publish() -> Fallible {
    // One frame being written, two waiting, those that receivers hold, and some to spare.
    let provider = Provider::builder().max_bytes(60_000_000).build()?;
    let [eye, ear] = ["camera", "imu"].map(|sensor| format!("{sensor}-{}", process::id()));
    let camera = Publisher::builder().capacity(2).allow_blocking(false).typed::<Frame>();
    let (mut camera, mut imu) =
        (camera.create(&provider, &eye)?, Publisher::builder().typed::<Sample>().create(&provider, &ear)?);
    let (display, logger) = (start(&["display", &eye], Stdio::inherit())?, start(&["logger", &ear], Stdio::inherit())?);
    camera.wait_for_receivers(1, PATIENCE)?;
    imu.wait_for_receivers(1, PATIENCE)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let camera = scope.spawn(|| {
            at_a_rate(Duration::from_nanos(16_666_667), &stop, |number| {
                let mut frame = provider.alloc_value::<Frame>()?;
                frame.number = number;
                frame.pixels.fill(number);
                Ok(camera.send(frame.freeze()).map(drop)?) // never waits
            })
        });
        let imu = scope.spawn(|| {
            at_a_rate(Duration::from_millis(1), &stop, |number| {
                Ok(imu.send_copy(&Sample { number, axes: [number; 5] }).map(drop)?)
                // waits if the logger is far behind
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

/// Receives up to `most` messages, until the publisher leaves. `check` returns a message's number, and
/// whether it is what was sent. Returns how many were missed in between.
fn receive<T: Schema>(
    name: &str,
    how: ReceiverBuilder,
    most: &str,
    check: impl Fn(&T) -> (u64, bool),
    mut handle: impl FnMut(Value<Message, T>),
) -> Fallible<u64> {
    let mut receiver = how.typed::<T>().open(&Client::new(), name)?;
    let (most, mut next, mut count, mut missed) = (most.parse().unwrap_or(u64::MAX), None, 0, 0);
    while count < most {
        let message = match receiver.recv() {
            Err(RecvError::Disconnected) => break,
            message => message?,
        };
        let ((number, is_intact), gap) = (check(&message), u64::from(message.missed()));
        assert!(is_intact && number == next.map_or(number, |next: u64| next + gap), "a receiver knows of every gap");
        (next, count, missed) = (Some(number + 1), count + 1, missed + gap);
        handle(message);
        if count == 1 {
            println!("{name}: the first message is {number}");
        }
    }
    println!("{name}: {count} messages, {missed} missed");
    Ok(missed)
}
