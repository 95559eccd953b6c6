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

use shm_pool::channel::{
    typed, Message, OnEnd, OnFull, Publisher, RecvError, Subscriber, SubscriberBuilder,
};
use shm_pool::{Namespace, Provider};
use std::error::Error;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, io::Read, thread};

type Frame = [u64; 750_000]; // 6 MB; for structs, see the example `typed`
type Sample = [u64; 6]; // 48 bytes, in the slot itself
type Fallible = Result<(), Box<dyn Error + Send + Sync>>;

const TIMEOUT: Duration = Duration::from_secs(60); // for a busy machine to start a process

fn main() -> Fallible {
    // The program starts itself again for each receiver, with its role.
    let (arguments, how) = (
        env::args().skip(1).collect::<Vec<_>>(),
        Subscriber::builder().on_end(OnEnd::Return),
    );
    let mut in_hand = None; // one frame of the monitor's
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => publish(),
        ["logger", it] => receive::<Sample>(it, how.on_full(OnFull::Block), u64::MAX, |it| {
            assert_eq!(typed::Value::missed(&it), 0)
        }),
        ["display", it] => receive::<Frame>(it, how.capacity(2), u64::MAX, |_| {
            thread::sleep(Duration::from_millis(30))
        }),
        ["monitor", it, most] => {
            receive::<Frame>(it, how, most.parse()?, |frame| in_hand = Some(frame))
        }
        _ => Err("run it without arguments".into()),
    }
}

fn publish() -> Fallible {
    // Two frames wait for a receiver, and a monitor has two in hand as it replaces one by the next.
    let camera = Publisher::builder().capacity(2);
    // The display, a monitor, and one that may just have been killed.
    let how = Subscriber::builder().on_end(OnEnd::Return);
    let receivers = [(&how, 1), (&how, 2), (&how, 2)];
    let provider = Provider::builder()
        .room_for(size_of::<Frame>(), camera.buffers(receivers))
        .room_for(size_of::<Sample>(), 1)
        .build()?;
    let camera = camera.share_among(receivers);
    let [eye, ear] = ["camera", "imu"].map(|sensor| format!("{sensor}-{}", process::id()));
    let mut camera = camera.typed::<Frame>().create(&provider, &eye)?;
    let mut imu = Publisher::builder()
        .typed::<Sample>()
        .create(&provider, &ear)?;
    let receivers = [start(&["display", &eye])?, start(&["logger", &ear])?];
    camera.wait_for_receivers(1, TIMEOUT)?;
    imu.wait_for_receivers(1, TIMEOUT)?;
    let stop = AtomicBool::new(false);
    let film = |number| {
        let mut frame = provider.alloc_value_zeroed::<Frame>()?;
        frame.fill(number);
        Ok(camera.send(frame).map(drop)?) // never waits
    };
    let measure = |number| Ok(imu.send_copy(&[number; 6]).map(drop)?); // waits for a logger that is far behind
    thread::scope(|scope| {
        let camera = scope.spawn(|| at_a_rate(Duration::from_nanos(16_666_667), &stop, film));
        let imu = scope.spawn(|| at_a_rate(Duration::from_millis(1), &stop, measure));
        let watched: Fallible = (0..3).try_for_each(|_| {
            assert!(start(&["monitor", &eye, "20"])?.wait()?.success()); // leaves by itself
            let mut monitor = start(&["monitor", &eye, "1000000"])?;
            monitor
                .stdout
                .take()
                .expect("a pipe")
                .read_exact(&mut [0])?; // it holds a frame now
            monitor.kill()?; // by SIGKILL
            Ok(monitor.wait().map(drop)?)
        });
        stop.store(true, Ordering::Relaxed);
        [camera, imu]
            .into_iter()
            .try_for_each(|sensor| sensor.join().expect("no panic"))?;
        watched
    })?;
    camera.wait_until_received(TIMEOUT)?;
    imu.wait_until_received(TIMEOUT)?;
    drop((camera, imu));
    assert_eq!(
        receivers.map(|mut receiver| receiver.wait().is_ok_and(|status| status.success())),
        [true; 2]
    );
    provider.reclaim(); // now, as later when memory is needed
    Namespace::default().sweep()?; // removes what dead monitors left, as the next provider would
    assert_eq!(
        provider.stats().bytes_in_use,
        0,
        "what dead monitors had in hand came back"
    );
    Ok(())
}

fn start(arguments: &[&str]) -> io::Result<Child> {
    Command::new(env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
}

/// Calls `each` with the numbers from 0, one in each period, until `stop` is set.
fn at_a_rate(
    period: Duration,
    stop: &AtomicBool,
    mut each: impl FnMut(u64) -> Fallible,
) -> Fallible {
    let start = Instant::now();
    (0..)
        .take_while(|_| !stop.load(Ordering::Relaxed))
        .try_for_each(|number| {
            thread::sleep((start + period * number).saturating_duration_since(Instant::now()));
            each(number.into())
        })
}

/// Receives up to `most` messages, until the publisher leaves.
fn receive<T>(
    name: &str,
    how: SubscriberBuilder,
    most: u64,
    mut then: impl FnMut(typed::Value<Message, T>),
) -> Fallible
where
    T: typed::Schema + AsRef<[u64]>,
{
    let mut receiver = how.typed::<T>().open(name)?;
    let (mut next, mut count, mut missed) = (None, 0, 0);
    while count < most {
        let message = match receiver.recv() {
            Err(RecvError::Disconnected) => break,
            message => message?,
        };
        let (words, gap) = (
            (*message).as_ref(),
            u64::from(typed::Value::missed(&message)),
        );
        let expected = next.map_or(words[0], |next: u64| next + gap); // a receiver knows of every gap
        assert!(
            words.iter().all(|word| *word == expected),
            "{name}: {expected} is not what was sent"
        );
        (next, count, missed) = (Some(expected + 1), count + 1, missed + gap);
        then(message);
        let _ = (count == 1).then(|| println!("{expected}")); // for the publisher
    }
    eprintln!("{name}: {count} messages, {missed} missed");
    Ok(())
}
