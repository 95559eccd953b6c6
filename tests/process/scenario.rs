//! A robot's application, driven through crashes: every process may open 14 descriptors, all share a
//! /dev/shm of 200 MB, and processes are killed, stopped and restarted without a pause.
//!
//! | process | | from | when it lags behind |
//! |---|---|---|---|
//! | camera | publishes frames of 2 MiB | | |
//! | imu | publishes samples of 48 bytes | | |
//! | recorder | gets everything | both | `Block` |
//! | archive | | camera | `Block` |
//! | detector | | camera | `DropNewest` |
//! | viewer | awaits | camera | `DropOldest` |
//! | gateway | grants copies of frames to a client, over a Unix socket | camera | `DropOldest` |
//! | client | | gateway | confirms each frame |
//!
//! Each word of a message is its number, which contains the number of the process that sent it. A
//! receiver checks all of them, and each gap: it is as long as [`Received::missed`] says.
//!
//! The driver waits for answers only. A receiver answers once it has received a message.

use crate::child::{skip_without_mounts, try_in_child, Child};
use crate::own_shm::give_shm;
use crate::shm;
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use nix::sys::socket::{shutdown, Shutdown};
use shm_pool::channel::{
    ChannelEvent, Message as Received, OnFull, Publisher, RecvError, Subscriber,
};
use shm_pool::inspect::{Inspector, ObjectState, Process};
use shm_pool::{Descriptor, Namespace, PeerId, Provider, ProviderId, ShmView, Tuning};
use shm_pool_support::tasks::block_on;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// `ulimit -n` of each process: the standard streams, and 11 more.
const DESCRIPTORS: usize = 14;
const FRAME: usize = 2 << 20;
const SAMPLE: usize = 48;

// ---- the driver ---------------------------------------------------------------------------------

#[test]
fn robot() {
    let own_shm = |command: &mut _| give_shm(command, b"size=200m,mode=1777\0");
    let started = try_in_child("", own_shm, |prefix| {
        drive(prefix);
        assert_eq!(shm::objects(prefix), [""; 0]);
    });
    skip_without_mounts(started);
}

fn drive(prefix: &str) {
    let start =
        |role: &str, arguments: &[&str]| Child::start_ready(role, &[&[prefix], arguments].concat());
    let recorder = || start("robot-receiver", &["everything", "camera", "imu"]);
    let watch = |rule: &str| start("robot-receiver", &[rule, "camera"]);
    let gateway = || start("robot-gateway", &[]);
    let client = || start("robot-client", &[]);
    // It is ready once it has the name and so many receivers.
    let sensor = |name: &str, process: u64, receivers: usize| {
        Child::start(
            "robot-sensor",
            &[prefix, name, &process.to_string(), &receivers.to_string()],
        )
    };

    // Receivers start before the sensors.
    let mut recording = recorder();
    let archive = watch("block");
    let detector = watch("newest");
    let viewer = watch("oldest");
    let mut granting = gateway();
    let mut reading = client();
    let mut camera = sensor("camera", 1, 5);
    let imu = sensor("imu", 0, 1);
    camera.expect_done();
    imu.expect_done();
    imu.send(&Message::Number(2000));
    let last = send(&camera, 30);
    for receiver in [&recording, &archive, &viewer, &reading] {
        receives(receiver, last);
    }
    receives(&recording, imu.number());
    catches_up(&detector, &camera);

    // One receiver of each kind is stopped. The others get everything: more than fits the pool.
    for receiver in [&archive, &detector, &viewer] {
        receiver.stop();
    }
    let last = send(&camera, 60);
    receives(&recording, last);
    receives(&reading, last);
    receives(&recording, send(&imu, 2000));
    assert_misses_are_known(prefix);

    // The camera is killed while it sends, and its successor waits for the name.
    camera.send(&Message::Number(1 << 30));
    let successor = sensor("camera", 2, 2);
    receives(&recording, last + 10);
    camera.kill();
    successor.expect_done();
    camera = successor;
    let last = send(&camera, 30);
    receives(&recording, last);
    receives(&reading, last);

    // Of those that are stopped, one is killed, one is killed as it goes on, and one goes on: with what
    // it was sent by the dead camera, and then by the successor.
    viewer.kill();
    detector.signal(libc::SIGCONT);
    detector.kill();
    archive.signal(libc::SIGCONT);
    let detector = watch("newest");
    let viewer = watch("oldest");
    for receiver in [&archive, &detector, &viewer] {
        catches_up(receiver, &camera);
    }

    // Killed while frames and grants flow: the recorder, the client and the gateway.
    camera.send(&Message::Number(20));
    recording.kill();
    recording = recorder();
    camera.number();
    catches_up(&recording, &camera);
    catches_up(&recording, &imu);
    receives(&recording, send(&imu, 2000));
    camera.send(&Message::Number(20));
    reading.kill();
    reading = client();
    camera.number();
    catches_up(&reading, &camera);
    camera.send(&Message::Number(20));
    granting.kill();
    camera.number();
    reading.shut_down();
    granting = gateway();
    reading = client();
    for receiver in [&recording, &archive, &detector, &viewer, &reading] {
        catches_up(receiver, &camera);
    }
    assert_only_the_living_own(prefix);

    for process in [
        recording, archive, detector, viewer, reading, granting, camera, imu,
    ] {
        process.shut_down();
    }
}

/// Has a sensor send so many messages, and returns the number of the last one.
fn send(sensor: &Child, count: u64) -> u64 {
    sensor.send(&Message::Number(count));
    sensor.number()
}

/// Waits until a receiver has received a message that it is promised.
fn receives(receiver: &Child, number: u64) {
    assert_eq!(receiver.request(&Message::Check(number)), Message::Done);
}

/// Sends until a receiver that may miss messages, or is about to join, has received one.
fn catches_up(receiver: &Child, sensor: &Child) {
    let first = send(sensor, 1);
    let last = || {
        receiver.send(&Message::Last(first >> 32));
        receiver.number()
    };
    while last() < first {
        send(sensor, 1);
    }
}

/// The publisher has counted what each stopped receiver has missed, by its rule.
fn assert_misses_are_known(prefix: &str) {
    let report = Inspector::new()
        .namespace(&Namespace::new(prefix).unwrap())
        .report()
        .unwrap();
    let camera = report
        .channels
        .iter()
        .find(|channel| channel.name == "camera")
        .unwrap();
    let mut stopped = 0;
    for receiver in &camera.receivers {
        let Some(Process {
            is_stopped: true, ..
        }) = receiver.process
        else {
            continue;
        };
        let missed = receiver.missed;
        let by_rule = match receiver.on_full {
            OnFull::Block => missed.stalled,
            OnFull::DropNewest => missed.full,
            _ => missed.withdrawn,
        };
        assert!(by_rule >= 50 && missed.total() == by_rule, "{missed:?}");
        stopped += 1;
    }
    assert_eq!(stopped, 3, "{report:?}");
}

/// Every object belongs to a living process, and a sweep finds none to remove.
fn assert_only_the_living_own(prefix: &str) {
    let report = Inspector::new()
        .namespace(&Namespace::new(prefix).unwrap())
        .report()
        .unwrap();
    let providers = &report.providers;
    let channels = &report.channels;
    assert!(
        providers.len() == 3
            && providers
                .iter()
                .all(|provider| provider.state == ObjectState::Alive),
        "{report:?}"
    );
    assert!(
        channels.len() == 2
            && channels
                .iter()
                .all(|channel| channel.state == ObjectState::Alive),
        "{report:?}"
    );
    for channel in channels {
        assert!(
            channel.receivers.iter().all(|receiver| receiver.is_alive),
            "{report:?}"
        );
    }
    assert_eq!(
        Namespace::new(prefix).unwrap().sweep().unwrap().objects,
        0,
        "{report:?}"
    );
}

// ---- sensors ------------------------------------------------------------------------------------

role!("robot-sensor", sensor_role);

/// The role of a sensor: its channel, the number of its process, and how many receivers it waits for.
/// Sends as many messages as requested, and answers the number of the last one.
fn sensor_role(link: &Link, arguments: &[&str]) {
    let [prefix, channel, process, receivers] = arguments else {
        panic!("{arguments:?}")
    };
    limit_descriptors();
    let provider = provider(prefix, 64 << 20);
    let options = Publisher::builder().capacity(4).max_subscribers(8);
    let mut publisher = options
        .create_timeout(&provider, channel, FOR_EVER)
        .unwrap();
    publisher
        .wait_for_receivers(receivers.parse().unwrap(), FOR_EVER)
        .unwrap();
    link.send(&Message::Done);
    let mut next = process.parse::<u64>().unwrap() << 32;
    while let Some(Message::Number(count)) = link.receive().unwrap() {
        for number in next..next + count {
            if *channel == "imu" {
                publisher
                    .send_copy(&number.to_le_bytes().repeat(SAMPLE / 8))
                    .unwrap();
            } else {
                let mut frame = provider.alloc(FRAME).unwrap();
                fill(&mut frame, number);
                publisher.send(frame.freeze()).unwrap();
            }
        }
        next += count;
        link.send(&Message::Number(next - 1));
    }
}

/// Returns a provider with a single segment, which takes one descriptor.
fn provider(prefix: &str, max_bytes: usize) -> Provider {
    let one_segment = Tuning::new().arena_size(max_bytes);
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(max_bytes)
        .tuning(one_segment)
        .build()
        .unwrap()
}

fn fill(bytes: &mut [u8], number: u64) {
    let (first, rest) = bytes.split_at_mut(SAMPLE);
    first.copy_from_slice(&number.to_le_bytes().repeat(SAMPLE / 8));
    for chunk in rest.chunks_mut(SAMPLE) {
        chunk.copy_from_slice(&first[..chunk.len()]);
    }
}

/// Returns the number of a message, all of whose words must be the same.
fn number_of(bytes: &[u8]) -> u64 {
    assert!(
        bytes.len() >= SAMPLE && bytes[8..] == bytes[..bytes.len() - 8],
        "a message is whole"
    );
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

// ---- receivers ----------------------------------------------------------------------------------

/// The last message that was received, of each process.
#[derive(Default)]
struct Progress {
    last: Mutex<[Option<u64>; 3]>,
    changed: Condvar,
}

impl Progress {
    fn note(&self, number: u64) {
        self.last.lock().unwrap()[(number >> 32) as usize] = Some(number);
        self.changed.notify_all();
    }

    /// Answers the driver's questions until the last one.
    fn answer(&self, link: &Link) {
        while let Some(question) = link.receive().unwrap() {
            let mut last = self.last.lock().unwrap();
            match question {
                Message::Last(process) => {
                    link.send(&Message::Number(last[process as usize].unwrap_or(0)))
                }
                Message::Check(number) => {
                    while last[(number >> 32) as usize] < Some(number) {
                        last = self.changed.wait(last).unwrap();
                    }
                    link.send(&Message::Done);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

role!("robot-receiver", receiver_role);

/// The role of a receiver: its rule and its channels, each of which has a thread.
fn receiver_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let rule = arguments[1];
    limit_descriptors();
    let progress = Arc::new(Progress::default());
    for channel in &arguments[2..] {
        let on_full = match rule {
            "newest" => OnFull::DropNewest,
            "oldest" => OnFull::DropOldest,
            _ => OnFull::Block,
        };
        let mut subscriber = Subscriber::builder()
            .on_full(on_full)
            .namespace(&shm::namespace(prefix))
            .open(channel)
            .unwrap();
        let gets_everything = rule == "everything";
        let awaits = rule == "oldest";
        let progress = progress.clone();
        thread::spawn(move || {
            let mut account = Account::new(gets_everything);
            loop {
                let event = if awaits {
                    block_on(subscriber.recv_event_async())
                } else {
                    subscriber.recv_event()
                };
                if let Some(message) = account.event(event) {
                    progress.note(number_of(&message));
                }
            }
        });
    }
    link.send(&Message::Done);
    progress.answer(link);
}

/// The messages and changes that a subscriber has received of one sensor.
struct Account {
    gets_everything: bool,
    connections: usize,
    /// The number after the last one received.
    next: Option<u64>,
}

impl Account {
    fn new(gets_everything: bool) -> Self {
        Self {
            gets_everything,
            connections: 0,
            next: None,
        }
    }

    /// Checks that messages are between their boundaries, and that none is missing but those missed.
    fn event(&mut self, event: Result<ChannelEvent, RecvError>) -> Option<Received> {
        // Until the camera has noticed that other receivers are dead, it may have no descriptor left.
        if matches!(
            event,
            Err(RecvError::NotConnected {
                errno: libc::EMFILE
            })
        ) {
            return None;
        }
        match event.unwrap() {
            ChannelEvent::Connected(_) => {
                self.connections += 1;
                None
            }
            ChannelEvent::Disconnected => {
                self.next = None;
                None
            }
            ChannelEvent::Message(message) => {
                let number = number_of(&message);
                let missed = u64::from(message.missed());
                match self.next {
                    Some(next) if self.gets_everything => assert_eq!((number, missed), (next, 0)),
                    Some(next) => {
                        assert_eq!(number, next + missed, "a gap that is not accounted for")
                    }
                    // A sensor waits for those that are there.
                    None if self.gets_everything && self.connections > 1 => {
                        assert_eq!(number as u32, 0)
                    }
                    None => {}
                }
                self.next = Some(number + 1);
                Some(message)
            }
            other => panic!("{other:?}"),
        }
    }
}

// ---- the gateway and its client -----------------------------------------------------------------

/// Frames that are granted and not confirmed.
const WINDOW: usize = 4;

/// Applies the limit to this process, not counting what the test and its environment have opened.
fn limit_descriptors() {
    let is_free = |number: &u64| fs::read_link(format!("/proc/self/fd/{number}")).is_err();
    sys::limit_descriptors((0..).filter(is_free).nth(DESCRIPTORS - 3).unwrap());
}

fn address(prefix: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(prefix).unwrap()
}

role!("robot-gateway", gateway_role);

/// The role of the gateway: serves one client after the other, until the driver closes the link.
fn gateway_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0].to_owned();
    limit_descriptors();
    let listener = UnixListener::bind_addr(&address(&prefix)).unwrap();
    let provider = provider(&prefix, 32 << 20);
    let mut camera = Subscriber::builder()
        .namespace(&shm::namespace(&prefix))
        .open("camera")
        .unwrap();
    let interrupter = camera.interrupter();
    let listening = listener.as_raw_fd();
    let serving = thread::spawn(move || {
        let mut account = Account::new(false);
        // Until the gateway is to end: the client may have left before, and no other joins.
        while let Ok((mut socket, _)) = listener.accept() {
            let served = serve(&provider, &mut socket, &mut camera, &mut account);
            provider.reclaim();
            assert_eq!(
                provider.stats().bytes_leased,
                0,
                "what a client had comes back: {served:?}"
            );
            if served.is_ok() {
                break;
            }
        }
    });
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
    interrupter.interrupt();
    // Ends `accept`. An error if the thread has closed the socket already.
    let _ = shutdown(listening, Shutdown::Both);
    serving.join().unwrap();
}

/// Serves a client until its socket closes, which is an error, or the gateway is interrupted.
fn serve(
    provider: &Provider,
    socket: &mut UnixStream,
    camera: &mut Subscriber,
    account: &mut Account,
) -> io::Result<()> {
    socket.write_all(&u64::from(provider.id()).to_le_bytes())?;
    let mut hello = [0; PeerId::SIZE];
    socket.read_exact(&mut hello)?;
    let peer = PeerId::from_bytes(hello);
    let mut grant_all = || {
        let mut granted = 0;
        loop {
            let event = camera.recv_event();
            if matches!(event, Err(RecvError::Interrupted)) {
                return Ok(());
            }
            let Some(frame) = account.event(event) else {
                continue;
            };
            if granted >= WINDOW {
                socket.read_exact(&mut [0])?;
            }
            let mut copy = provider.alloc(frame.len()).unwrap();
            copy.copy_from_slice(&frame);
            // An error if it has left: the socket says so.
            let Ok(descriptor) = copy.freeze().grant(peer) else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            socket.write_all(&descriptor.to_bytes())?;
            granted += 1;
        }
    };
    let served = grant_all();
    provider.disconnect(peer); // revokes what it has not taken up
    served
}

role!("robot-client", client_role);

/// The role of the gateway's client: reads each frame in place, and keeps the last one.
fn client_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0].to_owned();
    limit_descriptors();
    let mut socket = UnixStream::connect_addr(&address(&prefix)).unwrap();
    link.send(&Message::Done);
    let progress = Arc::new(Progress::default());
    let noting = progress.clone();
    let read_all = move || -> io::Result<()> {
        let client = shm::client(&prefix);
        let mut id = [0; 8];
        socket.read_exact(&mut id)?;
        let peer = client
            .connect(ProviderId::from(u64::from_le_bytes(id)))
            .unwrap();
        socket.write_all(&peer.to_bytes())?;
        let mut kept: Option<(u64, ShmView)> = None;
        loop {
            let mut bytes = [0; Descriptor::SIZE];
            socket.read_exact(&mut bytes)?;
            let frame = client
                .attach(&Descriptor::from_bytes(bytes).unwrap())
                .unwrap();
            if let Some((number, frame)) = kept {
                assert_eq!(
                    number_of(&frame),
                    number,
                    "a view that is held does not change"
                );
            }
            let number = number_of(&frame);
            kept = Some((number, frame));
            noting.note(number);
            socket.write_all(&[1])?;
        }
    };
    thread::spawn(read_all);
    progress.answer(link);
}
