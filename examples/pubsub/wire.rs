//! What goes over the socket between the publisher and one subscriber.
//!
//! | direction | what | bytes |
//! |---|---|---|
//! | to the publisher, once | who the subscriber is to the provider: [`PeerId::to_bytes`] | 24 |
//! | to the subscriber, each message | an announcement: [`Descriptor::to_bytes`], nothing else | 32 |
//! | to the publisher, now and then | a credit: how many messages the subscriber is done with, since the start | 8 |
//! | to the publisher, at the end | a mark that no credit can be, then the subscriber's [`Summary`] | 8 + 56 |
//!
//! The publisher ends the stream by closing its direction.

use shm_pool::{Descriptor, PeerId};
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// In place of a credit: the summary follows.
const SUMMARY_FOLLOWS: u64 = u64::MAX;

/// A subscriber that is busy sends one credit for so many messages. Fewer would let the publisher run dry, more would cost
/// more system calls.
const MESSAGES_PER_CREDIT: u64 = 8;

/// What a subscriber has seen, told when the stream has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    /// Messages attached to.
    pub(crate) messages: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Messages that were not what the file says, when they came or when they were let go.
    pub(crate) mismatches: u64,
    /// Descriptors that were stale.
    pub(crate) stale: u64,
    /// Bytes compared, each as often as it was.
    pub(crate) compared: u64,
    /// Most messages kept at a time while it went on to the next.
    pub(crate) peak_held: u64,
    /// Most bytes of such messages.
    pub(crate) peak_held_bytes: u64,
}

impl Summary {
    fn to_words(self) -> [u64; 7] {
        let Self { messages, bytes, mismatches, stale, compared, peak_held, peak_held_bytes } = self;
        [messages, bytes, mismatches, stale, compared, peak_held, peak_held_bytes]
    }

    fn from_words(words: [u64; 7]) -> Self {
        let [messages, bytes, mismatches, stale, compared, peak_held, peak_held_bytes] = words;
        Self { messages, bytes, mismatches, stale, compared, peak_held, peak_held_bytes }
    }
}

/// What a subscriber tells.
pub(crate) enum Report {
    /// So many messages are done with, since the start.
    Done(u64),
    /// It has seen the end.
    Summary(Summary),
}

/// The publisher's end.
pub(crate) struct PublisherEnd {
    socket: BufReader<UnixStream>,
}

impl PublisherEnd {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket: BufReader::new(socket) }
    }

    /// Waits for the subscriber to tell who it is.
    pub(crate) fn peer(&mut self) -> io::Result<PeerId> {
        Ok(PeerId::from_bytes(self.read()?))
    }

    /// Sends the 32 bytes that name a message.
    pub(crate) fn announce(&mut self, descriptor: &Descriptor) -> io::Result<()> {
        self.socket.get_mut().write_all(&descriptor.to_bytes())
    }

    /// Waits for what the subscriber tells next.
    pub(crate) fn report(&mut self) -> io::Result<Report> {
        match self.word()? {
            SUMMARY_FOLLOWS => {
                let mut words = [0; 7];
                for word in &mut words {
                    *word = self.word()?;
                }
                Ok(Report::Summary(Summary::from_words(words)))
            }
            done => Ok(Report::Done(done)),
        }
    }

    /// Tells the subscriber that no message follows. Its reports can still be read.
    pub(crate) fn end_stream(&self) -> io::Result<()> {
        self.socket.get_ref().shutdown(Shutdown::Write)
    }

    fn word(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.read()?))
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// What a subscriber finds in its socket.
pub(crate) enum Next {
    /// The bytes of a descriptor.
    Announcement([u8; Descriptor::SIZE]),
    /// Nothing now. Only if it did not want to wait.
    Nothing,
    /// The publisher has ended the stream, or has died.
    End,
}

/// A subscriber's end.
pub(crate) struct SubscriberEnd {
    socket: UnixStream,
    /// Announcements that were read from the socket, as many as were there, and not taken yet: `inbox[taken..]`.
    inbox: Vec<u8>,
    taken: usize,
    done: u64,
    credited: u64,
}

impl SubscriberEnd {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, inbox: Vec::new(), taken: 0, done: 0, credited: 0 }
    }

    /// Tells the publisher who this is.
    pub(crate) fn introduce(&mut self, peer: PeerId) -> io::Result<()> {
        self.socket.write_all(&peer.to_bytes())
    }

    /// The next announcement. With `wait`, waits for it, and first tells the publisher all that is done with.
    pub(crate) fn next(&mut self, wait: bool) -> io::Result<Next> {
        loop {
            if let Some(bytes) = self.take() {
                return Ok(Next::Announcement(bytes));
            }
            if wait {
                // The publisher may be waiting for this very credit.
                self.send_credit()?;
            }
            match self.refill(wait) {
                Ok(0) if self.taken == self.inbox.len() => return Ok(Next::End),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Next::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes an announcement out of the inbox, if a whole one is there.
    fn take(&mut self) -> Option<[u8; Descriptor::SIZE]> {
        let end = self.taken + Descriptor::SIZE;
        let bytes = self.inbox.get(self.taken..end)?.try_into().ok()?;
        self.taken = end;
        Some(bytes)
    }

    /// Reads what is in the socket, after what is left of the last time.
    fn refill(&mut self, wait: bool) -> io::Result<usize> {
        let mut buffer = [0; 64 * Descriptor::SIZE];
        // Not left that way: credits are written to the same socket, and those should wait.
        self.socket.set_nonblocking(!wait)?;
        let read = self.socket.read(&mut buffer);
        self.socket.set_nonblocking(false)?;
        let read = read?;
        self.inbox.drain(..self.taken);
        self.taken = 0;
        self.inbox.extend_from_slice(&buffer[..read]);
        Ok(read)
    }

    /// Notes that one more message was let go, and tells the publisher at every few.
    pub(crate) fn done_with_one(&mut self) -> io::Result<()> {
        self.done += 1;
        if self.done - self.credited < MESSAGES_PER_CREDIT {
            return Ok(());
        }
        self.send_credit()
    }

    fn send_credit(&mut self) -> io::Result<()> {
        if self.credited == self.done {
            return Ok(());
        }
        self.credited = self.done;
        self.socket.write_all(&self.done.to_le_bytes())
    }

    /// Tells the publisher what this subscriber has seen. The last thing that it says.
    pub(crate) fn conclude(&mut self, summary: Summary) -> io::Result<()> {
        let words = summary.to_words();
        let frame: Vec<u8> =
            std::iter::once(&SUMMARY_FOLLOWS).chain(&words).flat_map(|word| word.to_le_bytes()).collect();
        self.socket.write_all(&frame)
    }
}
