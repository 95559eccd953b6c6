//! The device: a stand-in that delivers a sample at each absolute deadline, and the end that the
//! driver reads.
//!
//! Between them is a socket of packets, one per sample. As with a device file, a read takes one
//! sample, and waits for it, or reports that there is none yet. Samples that the driver does not
//! read in time wait in the socket; none is lost.

#![forbid(unsafe_code)]

use crate::round::Task;
use crate::sample::{self, Sample, MAX_LEN};
use nix::sys::socket::{socketpair, AddressFamily, SockFlag, SockType};
use shm_pool_support::process::inherited_input;
use shm_pool_support::Fallible;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
// Reading, writing and waiting are the same for a socket of packets as for a stream.
use std::os::unix::net::UnixStream;

/// The stand-in.
pub(crate) struct Simulator {
    socket: UnixStream,
    sample: Vec<u8>,
}

impl Simulator {
    /// With the end for the driver.
    pub(crate) fn new() -> Fallible<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self { socket: ours.into(), sample: Vec::with_capacity(MAX_LEN) }, theirs))
    }

    /// Measures and delivers a sample that is due.
    pub(crate) fn deliver(&mut self, task: &Task, number: u64) -> Fallible {
        sample::measure(task.seed, number, task.time_of(number), &mut self.sample);
        Ok(self.socket.write_all(&self.sample).map_err(|error| format!("nobody reads the device any more: {error}"))?)
    }
}

/// The driver's end.
pub(crate) struct Device {
    socket: UnixStream,
    /// The buffer that samples are read into.
    sample: [u8; MAX_LEN],
}

impl Device {
    /// The device is this process's standard input.
    pub(crate) fn open() -> Fallible<Self> {
        Ok(Self { socket: inherited_input()?.into(), sample: [0; MAX_LEN] })
    }

    /// Makes [`read`](Self::read) non-blocking.
    pub(crate) fn set_nonblocking(&self) -> Fallible {
        Ok(self.socket.set_nonblocking(true)?)
    }

    /// Returns the next sample. Waits for it, or returns `None` if it must not wait and there is
    /// none yet.
    pub(crate) fn read(&mut self) -> Fallible<Option<&Sample>> {
        match self.socket.read(&mut self.sample) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Ok(0) => Err("the device is gone".into()),
            len => Sample::read(&self.sample[..len?]).map(Some),
        }
    }

    /// Waits until the device is closed. Returns an error if it delivers another sample.
    pub(crate) fn wait_until_gone(&mut self) -> Fallible {
        self.socket.set_nonblocking(false)?;
        match self.socket.read(&mut self.sample)? {
            0 => Ok(()),
            _ => Err("the device delivered more samples than were published".into()),
        }
    }
}
