//! A subscribing process: receives frames as grants through a socket, and samples through a
//! channel. It checks every byte when a message arrives, and hoards.

#![forbid(unsafe_code)]

use crate::hoard::{Hoard, Memory};
use crate::schedule::{frame_of, Schedule, FRAME, SAMPLE};
use crate::PREFIX;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Receiver, RecvError};
use shm_pool::{Client, Descriptor, ProviderId};
use shm_pool_support::machine::pin;
use shm_pool_support::process::inherited_input;
use shm_pool_support::{numbered, wire, Fallible};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// The sender's number in a camera's message.
pub(crate) const CAMERA: u64 = 0;
pub(crate) const IMU: u64 = 1;

/// The data sent through the socket for each frame.
pub(crate) struct Announcement {
    pub(crate) frame: u64,
    pub(crate) descriptor: Descriptor,
}

impl Announcement {
    const SIZE: usize = 8 + Descriptor::SIZE;

    pub(crate) fn send(&self, mut socket: &UnixStream) -> io::Result<()> {
        let mut bytes = [0; Self::SIZE];
        let (frame, descriptor) = bytes.split_at_mut(8);
        frame.copy_from_slice(&self.frame.to_le_bytes());
        descriptor.copy_from_slice(&self.descriptor.to_bytes());
        socket.write_all(&bytes)
    }

    /// Returns `None` after the last one.
    fn receive(mut socket: &UnixStream) -> Fallible<Option<Self>> {
        let (mut frame, mut descriptor) = ([0; 8], [0; Descriptor::SIZE]);
        match socket.read_exact(&mut frame) {
            Err(error) if wire::is_end(&error) => return Ok(None),
            outcome => outcome?,
        }
        socket.read_exact(&mut descriptor)?;
        Ok(Some(Self { frame: u64::from_le_bytes(frame), descriptor: Descriptor::from_bytes(descriptor)? }))
    }
}

/// Its task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) subscriber: u64,
    /// A provider's id.
    pub(crate) provider: u64,
    pub(crate) channel: String,
    pub(crate) core: Option<usize>,
}

/// How many messages arrived, all of them intact; and when the hoards had ended (see
/// [`Hoard::let_go`]).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) frames: u64,
    pub(crate) samples: u64,
    pub(crate) ended: Vec<(u64, u64)>,
}

impl Task {
    /// Runs the process: sends its peer id, receives the schedule, and at the end sends
    /// [`Received`].
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let socket = UnixStream::from(inherited_input()?);
        let client = Client::builder().name_prefix(PREFIX).build()?;
        let mut channel = Receiver::builder().spin(Duration::ZERO).open(&client, &self.channel)?;
        let peer = client.connect(ProviderId::from_u64(self.provider))?;
        (&socket).write_all(&peer.to_bytes())?;
        let schedule: Schedule = wire::expect(&socket)?;
        let hoard = Hoard::default();
        let received = thread::scope(|scope| -> Fallible<Received> {
            let letting_go = scope.spawn(|| hoard.let_go(&schedule, self.subscriber));
            let samples = scope.spawn(|| receive_samples(&mut channel, &hoard));
            let frames = receive_frames(&client, &socket, &hoard)?;
            let ended = letting_go.join().map_err(|_| "the hoard panicked")??;
            let samples = samples.join().map_err(|_| "the IMU's thread panicked")??;
            Ok(Received { frames, samples, ended })
        })?;
        Ok(wire::send(io::stdout(), &received)?)
    }
}

fn receive_frames(client: &Client, socket: &UnixStream, hoard: &Hoard) -> Fallible<u64> {
    let mut count = 0;
    while let Some(Announcement { frame, descriptor }) = Announcement::receive(socket)? {
        let view = client.attach(&descriptor)?;
        numbered::check(&view, FRAME, CAMERA, frame)?;
        hoard.keep(frame, frame, Memory::Frame(view));
        count += 1;
    }
    Ok(count)
}

fn receive_samples(channel: &mut Receiver, hoard: &Hoard) -> Fallible<u64> {
    let (mut count, mut next) = (0, 0);
    loop {
        let loan = match channel.recv() {
            Err(RecvError::Disconnected) => return Ok(count),
            outcome => outcome?,
        };
        // Samples that found no memory are missing, and none arrives twice.
        let sample = numbered::number(&loan)?;
        if sample < next {
            return Err(format!("sample {sample} came after {next} were due").into());
        }
        numbered::check(&loan, SAMPLE, IMU, sample)?;
        hoard.keep(sample, frame_of(sample), Memory::Sample(loan));
        (count, next) = (count + 1, sample + 1);
    }
}
