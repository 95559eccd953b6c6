//! The publisher's end of one subscriber process: start it, send to it, count its credits, see it end.

use crate::options::{subscriber_name, Options};
use crate::wire::{PublisherEnd, Report, Summary};
use crate::Result;
use shm_pool::{PeerId, ProviderId, ShareError, ShmBuf};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A subscriber that was started and has not told who it is yet.
pub(crate) struct Starting {
    index: u8,
    running: Running,
    wire: PublisherEnd,
}

/// A connected subscriber. Dropping it kills the process, unless it has ended by itself.
pub(crate) struct Subscriber {
    index: u8,
    peer: PeerId,
    sent: u64,
    done: u64,
    // Dropped first: the process is to be killed before it can wonder where its publisher is.
    running: Running,
    wire: PublisherEnd,
}

/// A child process that does not outlive its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors mean that it has ended already, and then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Starting {
    /// Starts this program once more, as a subscriber. Its standard input is its end of a socket.
    pub(crate) fn spawn(options: &Options, file: &Path, provider: ProviderId, index: u8) -> Result<Self> {
        let named = |error: io::Error| format!("cannot start {}: {error}", subscriber_name(index));
        let program = std::env::current_exe().map_err(named)?;
        let (ours, theirs) = UnixStream::pair().map_err(named)?;
        let child = Command::new(program)
            .args(options.subscriber_args(provider, index))
            .arg("--file")
            .arg(file)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(named)?;
        Ok(Self { index, running: Running(child), wire: PublisherEnd::new(ours) })
    }

    /// Waits until it has connected to the provider.
    pub(crate) fn connected(mut self) -> Result<Subscriber> {
        match self.wire.peer() {
            Ok(peer) => {
                let Self { index, running, wire } = self;
                Ok(Subscriber { index, peer, sent: 0, done: 0, running, wire })
            }
            Err(error) => Err(self.running.ended_early(self.index, error)),
        }
    }
}

impl Running {
    /// The error for a subscriber whose socket failed. It only does when the process has ended or is about to: nothing
    /// else closes its end.
    fn ended_early(&mut self, index: u8, error: io::Error) -> Box<dyn std::error::Error> {
        let name = subscriber_name(index);
        match self.0.wait() {
            Ok(status) => format!("{name} ended early, with {status}").into(),
            Err(_) => format!("{name} is gone: {error}").into(),
        }
    }
}

impl Subscriber {
    pub(crate) fn name(&self) -> String {
        subscriber_name(self.index)
    }

    /// How many messages it was sent and is not done with.
    pub(crate) fn pending(&self) -> u64 {
        self.sent - self.done
    }

    /// Grants it the message and announces it. The message is the subscriber's from here on; the publisher need not
    /// keep it.
    pub(crate) fn send(&mut self, message: &ShmBuf) -> Result<()> {
        let descriptor = match message.grant(self.peer) {
            Ok(descriptor) => descriptor,
            Err(ShareError::PeerGone(_)) => return Err(self.ended_early(io::ErrorKind::BrokenPipe.into())),
            Err(error) => return Err(format!("cannot grant a message to {}: {error}", self.name()).into()),
        };
        self.wire.announce(&descriptor).map_err(|error| self.running.ended_early(self.index, error))?;
        self.sent += 1;
        Ok(())
    }

    /// Waits for its next credit.
    pub(crate) fn wait_for_credit(&mut self) -> Result<()> {
        match self.report()? {
            Report::Done(done) => self.credit(done),
            Report::Summary(_) => Err(format!("{} stopped before the stream ended", self.name()).into()),
        }
    }

    /// Tells it that no message follows.
    pub(crate) fn end_stream(&mut self) -> Result<()> {
        self.wire.end_stream().map_err(|error| self.running.ended_early(self.index, error))
    }

    /// Waits for what it has seen.
    pub(crate) fn summary(&mut self) -> Result<Summary> {
        loop {
            match self.report()? {
                Report::Done(done) => self.credit(done)?,
                Report::Summary(summary) => return Ok(summary),
            }
        }
    }

    /// Waits for the process to end, which must be in peace.
    pub(crate) fn join(mut self) -> Result<()> {
        let status = self.running.0.wait().map_err(|error| format!("cannot wait for {}: {error}", self.name()))?;
        if !status.success() {
            return Err(format!("{} ended with {status}", self.name()).into());
        }
        Ok(())
    }

    fn credit(&mut self, done: u64) -> Result<()> {
        if done < self.done || done > self.sent {
            return Err(format!("{} says it is done with {done} of {} messages", self.name(), self.sent).into());
        }
        self.done = done;
        Ok(())
    }

    fn report(&mut self) -> Result<Report> {
        self.wire.report().map_err(|error| self.running.ended_early(self.index, error))
    }

    fn ended_early(&mut self, error: io::Error) -> Box<dyn std::error::Error> {
        self.running.ended_early(self.index, error)
    }
}
