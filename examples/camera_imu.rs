//! A robot's camera and IMU, published to three processes of three kinds.
//!
//! | receiver | subscribes to | when it lags behind |
//! |---|---|---|
//! | the logger | the IMU, 48 bytes at 1 kHz | the publisher waits: it gets every sample |
//! | the display | the camera, 6 MB at 60 Hz | keeps the latest two frames; needs 30 ms for each |
//! | the monitor | the camera | joins late, leaves, rejoins, is killed holding a frame, rejoins |
//!
//! Each sensor has a channel of its own type. All receivers check every byte and every gap. Run it
//! with `cargo run --release --features zerocopy --example camera_imu`.

#![forbid(unsafe_code)]

use shm_pool::channel::typed::Value;
use shm_pool::channel::{OnEnd, OnFull, Publisher, RecvError, Subscriber, SubscriberBuilder};
use shm_pool::{Namespace, Provider};
use std::env;
use std::error::Error;
use std::io::{self, Read};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// 6 MB; for structs, see the example `typed`.
type Frame = [u64; 750_000];
/// 48 bytes, in the slot itself.
type Sample = [u64; 6];

type Fallible = Result<(), Box<dyn Error + Send + Sync>>;

const FRAME_PERIOD: Duration = Duration::from_nanos(16_666_667);
const SAMPLE_PERIOD: Duration = Duration::from_millis(1);
/// Long enough for a busy machine to start a process.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Fallible {
    // The program starts itself again for each receiver, with its role.
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut words: Vec<&str> = Vec::new();
    for argument in &arguments {
        words.push(argument);
    }
    match words[..] {
        [] => publish(),
        ["logger", imu] => log(imu),
        ["display", camera] => display(camera),
        ["monitor", camera, frames] => monitor(camera, frames.parse()?),
        _ => Err("run it without arguments".into()),
    }
}

fn publish() -> Fallible {
    let camera_name = format!("camera-{}", process::id());
    let imu_name = format!("imu-{}", process::id());

    // The display holds one frame. A monitor holds two while it replaces one by the next, and there
    // may be one more that has just been killed.
    let receiver = receiver();
    let receivers = [(&receiver, 1), (&receiver, 2), (&receiver, 2)];
    // Two frames wait for a receiver.
    let camera = Publisher::builder().capacity(2).share_among(receivers);
    let provider = Provider::builder()
        .room_for(size_of::<Frame>(), camera.buffers(receivers))
        .room_for(size_of::<Sample>(), 1)
        .build()?;
    let mut camera = camera.typed::<Frame>().create(&provider, &camera_name)?;
    let mut imu = Publisher::builder()
        .typed::<Sample>()
        .create(&provider, &imu_name)?;

    let mut display = start(&["display", &camera_name])?;
    let mut logger = start(&["logger", &imu_name])?;
    camera.wait_for_receivers(1, TIMEOUT)?;
    imu.wait_for_receivers(1, TIMEOUT)?;

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let filming = scope.spawn(|| film(&provider, &mut camera, &stop));
        let measuring = scope.spawn(|| measure(&mut imu, &stop));
        let monitored = run_monitors(&camera_name);
        stop.store(true, Ordering::Relaxed);
        filming.join().expect("no panic")?;
        measuring.join().expect("no panic")?;
        monitored
    })?;

    camera.wait_until_received(TIMEOUT)?;
    imu.wait_until_received(TIMEOUT)?;
    drop(camera);
    drop(imu);
    assert!(display.wait()?.success());
    assert!(logger.wait()?.success());

    provider.reclaim(); // now, as later when memory is needed
    Namespace::default().sweep()?; // as the next provider would
    assert_eq!(
        provider.stats().bytes_in_use,
        0,
        "the frames of dead monitors have returned"
    );
    Ok(())
}

/// A receiver that ends with its publisher.
fn receiver() -> SubscriberBuilder {
    Subscriber::builder().on_end(OnEnd::Return)
}

fn start(arguments: &[&str]) -> io::Result<Child> {
    Command::new(env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
}

/// Sends numbered frames, and never waits for a receiver.
fn film(provider: &Provider, camera: &mut Publisher<Frame>, stop: &AtomicBool) -> Fallible {
    let mut clock = Clock::new(FRAME_PERIOD);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        clock.wait();
        let mut frame = provider.alloc_value_zeroed::<Frame>()?;
        frame.fill(number);
        camera.send(frame)?;
        number += 1;
    }
    Ok(())
}

/// Sends numbered samples, and waits for a logger that is far behind.
fn measure(imu: &mut Publisher<Sample>, stop: &AtomicBool) -> Fallible {
    let mut clock = Clock::new(SAMPLE_PERIOD);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        clock.wait();
        imu.send_copy(&[number; 6])?;
        number += 1;
    }
    Ok(())
}

/// Runs monitors one after the other: one that leaves by itself, and one that is killed while it
/// holds a frame, three times.
fn run_monitors(camera: &str) -> Fallible {
    for _ in 0..3 {
        let mut leaving = start(&["monitor", camera, "20"])?;
        assert!(leaving.wait()?.success());

        let mut killed = start(&["monitor", camera, "1000000"])?;
        let mut output = killed.stdout.take().expect("a pipe");
        output.read_exact(&mut [0])?; // it holds a frame now
        killed.kill()?; // by SIGKILL
        killed.wait()?;
    }
    Ok(())
}

/// A clock that ticks once in each period.
struct Clock {
    next: Instant,
    period: Duration,
}

impl Clock {
    fn new(period: Duration) -> Self {
        Self {
            next: Instant::now(),
            period,
        }
    }

    fn wait(&mut self) {
        thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next += self.period;
    }
}

/// Receives every sample.
fn log(name: &str) -> Fallible {
    let mut imu = receiver()
        .on_full(OnFull::Block)
        .typed::<Sample>()
        .open(name)?;
    let mut check = Check::new(name);
    loop {
        match imu.recv() {
            Ok(sample) => check.message(&sample[..], Value::missed(&sample)),
            Err(RecvError::Disconnected) => break,
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(check.missed, 0, "{name}: a logger misses nothing");
    check.report();
    Ok(())
}

/// Shows the newest frames, which takes time.
fn display(name: &str) -> Fallible {
    let mut camera = receiver().capacity(2).typed::<Frame>().open(name)?;
    let mut check = Check::new(name);
    loop {
        match camera.recv() {
            Ok(frame) => check.message(&frame[..], Value::missed(&frame)),
            Err(RecvError::Disconnected) => break,
            Err(error) => return Err(error.into()),
        }
        thread::sleep(Duration::from_millis(30));
    }
    check.report();
    Ok(())
}

/// Receives a number of frames, and always holds the last one.
fn monitor(name: &str, frames: u64) -> Fallible {
    let mut camera = receiver().typed::<Frame>().open(name)?;
    let mut check = Check::new(name);
    let mut held = None;
    for number in 0..frames {
        let frame = match camera.recv() {
            Ok(frame) => frame,
            Err(RecvError::Disconnected) => break,
            Err(error) => return Err(error.into()),
        };
        check.message(&frame[..], Value::missed(&frame));
        held = Some(frame);
        if number == 0 {
            println!("holding"); // for the publisher
        }
    }
    drop(held);
    check.report();
    Ok(())
}

/// Checks that each message is the next one, or that the receiver reported how many it has missed.
struct Check<'a> {
    name: &'a str,
    /// The number of the last message.
    last: Option<u64>,
    received: u64,
    missed: u64,
}

impl<'a> Check<'a> {
    fn new(name: &'a str) -> Self {
        Self {
            name,
            last: None,
            received: 0,
            missed: 0,
        }
    }

    fn message(&mut self, words: &[u64], missed: u32) {
        let number = words[0];
        for word in words {
            assert_eq!(*word, number, "{}: not what was sent", self.name);
        }
        if let Some(last) = self.last {
            let missed = u64::from(missed);
            assert_eq!(
                number,
                last + missed + 1,
                "{}: a gap that was not reported",
                self.name
            );
            self.missed += missed;
        }
        self.last = Some(number);
        self.received += 1;
    }

    fn report(&self) {
        eprintln!(
            "{}: {} messages, {} missed",
            self.name, self.received, self.missed
        );
    }
}
