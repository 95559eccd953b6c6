//! A subscriber process: attaches to each message, compares it in place with its own copy of the file, lets go.
//!
//! The slow one compares more often, and keeps its messages for as long as there are newer ones to read. It compares
//! them a last time when it lets go: they must not have changed while it held them.

use crate::options::{Options, Role};
use crate::source::Source;
use crate::wire::{Next, SubscriberEnd, Summary};
use crate::Result;
use shm_pool::{AttachError, Client, Descriptor, ShmView};
use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Follows the publisher to the end of its stream.
pub(crate) fn run(options: &Options, role: Role) -> Result<()> {
    let source = Source::read(&options.file()?, options.largest())?;
    let socket =
        io::stdin().as_fd().try_clone_to_owned().map_err(|error| format!("no socket to read from: {error}"))?;
    let mut wire = SubscriberEnd::new(UnixStream::from(socket));
    let client = Client::new();
    let peer = client.connect(role.provider)?;
    wire.introduce(peer).map_err(publisher_gone)?;
    let subscriber =
        Subscriber { role, client, wire, held: VecDeque::new(), held_bytes: 0, summary: Summary::default() };
    subscriber.follow(source.messages(&options.sizes))
}

fn publisher_gone(error: io::Error) -> String {
    format!("the publisher is gone: {error}")
}

struct Subscriber<'a> {
    role: Role,
    client: Client,
    wire: SubscriberEnd,
    /// Messages that it holds on to, the oldest first.
    held: VecDeque<Message<'a>>,
    held_bytes: usize,
    summary: Summary,
}

/// A message that is being read.
struct Message<'a> {
    number: u64,
    view: ShmView,
    expected: &'a [u8],
}

impl<'a> Subscriber<'a> {
    /// Reads message after message; what they must be comes from `expected`.
    fn follow(mut self, expected: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        for (number, expected) in (0..).zip(expected) {
            let Some(descriptor) = self.next()? else { break };
            match self.client.attach(&descriptor) {
                Ok(view) => self.read(Message { number, view, expected })?,
                // Cannot be, for the message was granted; and is what this example is here to find out.
                Err(AttachError::Stale) => {
                    self.summary.stale += 1;
                    self.wire.done_with_one().map_err(publisher_gone)?;
                }
                Err(error) => return Err(format!("cannot attach to message {number}: {error}").into()),
            }
        }
        while self.let_go_of_oldest()? {}
        self.wire.conclude(self.summary).map_err(publisher_gone)?;
        Ok(())
    }

    /// The next descriptor, or `None` at the end of the stream.
    ///
    /// Never waits with a message in hand: the publisher may need that memory to go on. This rule is what makes any
    /// `--hold` work with any `--window` and any `--max-bytes`.
    fn next(&mut self) -> Result<Option<Descriptor>> {
        loop {
            match self.wire.next(self.held.is_empty()).map_err(publisher_gone)? {
                Next::Announcement(bytes) => return Ok(Some(Descriptor::from_bytes(bytes)?)),
                Next::Nothing => self.let_go_of_oldest()?,
                Next::End => return Ok(None),
            };
        }
    }

    fn read(&mut self, message: Message<'a>) -> Result<()> {
        self.summary.messages += 1;
        self.summary.bytes += message.view.len() as u64;
        for _ in 0..self.role.checks {
            self.compare(&message);
        }
        self.held_bytes += message.view.len();
        self.held.push_back(message);
        if self.held.len() > self.role.hold {
            self.let_go_of_oldest()?;
        }
        self.summary.peak_held = self.summary.peak_held.max(self.held.len() as u64);
        self.summary.peak_held_bytes = self.summary.peak_held_bytes.max(self.held_bytes as u64);
        Ok(())
    }

    /// Lets go of the message that was held longest; `false` if there is none.
    fn let_go_of_oldest(&mut self) -> Result<bool> {
        let Some(message) = self.held.pop_front() else { return Ok(false) };
        self.held_bytes -= message.view.len();
        // Without a hold there was no time in which it could have changed.
        if self.role.hold > 0 {
            self.compare(&message);
        }
        // First the memory, then the credit for it.
        drop(message);
        self.wire.done_with_one().map_err(publisher_gone)?;
        Ok(true)
    }

    fn compare(&mut self, message: &Message) {
        self.summary.compared += message.view.len() as u64;
        // The black box makes each comparison read the memory again.
        if black_box(&message.view[..]) == message.expected {
            return;
        }
        self.summary.mismatches += 1;
        // One is enough to look into; the others are counted.
        if self.summary.mismatches == 1 {
            eprintln!("{}: {}", self.role, message.describe_mismatch());
        }
    }
}

impl Message<'_> {
    fn describe_mismatch(&self) -> String {
        let Self { number, view, expected } = self;
        if view.len() != expected.len() {
            return format!("message {number} has {} bytes, not {}", view.len(), expected.len());
        }
        let differs = view.iter().zip(*expected).position(|(seen, meant)| seen != meant);
        let at = differs.map_or("no byte any more".to_owned(), |at| format!("byte {at}"));
        format!("message {number} of {} bytes differs from the file, first in {at}", view.len())
    }
}
