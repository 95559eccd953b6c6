//! The protocol between a test and its child: typed messages over a stream socket.

use crate::sys::Ending;
use shm_pool::{Descriptor, PeerId, ProviderId};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a test waits for one answer. Only a hang takes nearly that long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Longer than any step of a test takes, and shorter than a child's lifetime.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(240);

/// One message, in either direction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Connect to a provider. Answered by `Peer`.
    Connect(ProviderId),
    /// Attach to a message that was filled from this seed. Answered by the view's `Number`.
    Attach(Descriptor, u64),
    /// Compare all bytes of a view. Answered by `Done`.
    Check(u64),
    /// Drop a view. Answered by `Done`.
    Release(u64),
    /// Call `Client::unmap_unused`. Answered by a `Number`.
    Trim,
    /// Call `Client::mapped_segments`. Answered by a `Number`.
    Segments,
    /// Tell the last message received of a process. Answered by its `Number`.
    Last(u64),
    /// Count the mappings of objects with the test's prefix. Answered by a `Number`.
    Mappings,
    /// Continue with the next step of the role.
    Go,
    /// Success.
    Done,
    /// A count, or the number of a view.
    Number(u64),
    /// The id of a provider.
    Provider(ProviderId),
    /// The id of a peer.
    Peer(PeerId),
    /// The descriptor of a message.
    Sent(Descriptor),
    /// Run the program that these bytes encode. Answered by `Done`.
    Program(Vec<u8>),
    /// Failure, with the reason.
    Refused(String),
    /// The child panicked: the location and the reason.
    Panicked(String),
    /// End in this way. Not answered.
    End(Ending),
}

impl Message {
    /// Returns the bytes of a message on the socket: the length of the rest, a tag, the content.
    pub(crate) fn to_frame(&self) -> Vec<u8> {
        let number = |tag, value: u64| (tag, value.to_le_bytes().to_vec());
        let (tag, body) = match self {
            Self::Connect(provider) => number(0, u64::from(*provider)),
            Self::Attach(descriptor, seed) => (
                1,
                [&descriptor.to_bytes()[..], &seed.to_le_bytes()].concat(),
            ),
            Self::Check(view) => number(2, *view),
            Self::Release(view) => number(3, *view),
            Self::Trim => (4, Vec::new()),
            Self::Segments => (5, Vec::new()),
            Self::Mappings => (6, Vec::new()),
            Self::Go => (7, Vec::new()),
            Self::Done => (8, Vec::new()),
            Self::Number(value) => number(9, *value),
            Self::Provider(provider) => number(10, u64::from(*provider)),
            Self::Peer(peer) => (11, peer.to_bytes().to_vec()),
            Self::Sent(descriptor) => (12, descriptor.to_bytes().to_vec()),
            Self::Refused(text) => (13, text.as_bytes().to_vec()),
            Self::Panicked(text) => (14, text.as_bytes().to_vec()),
            Self::End(how) => (15, vec![*how as u8]),
            Self::Program(bytes) => (16, bytes.clone()),
            Self::Last(process) => number(17, *process),
        };
        let len = u32::try_from(1 + body.len()).expect("messages are short");
        [&len.to_le_bytes()[..], &[tag], &body].concat()
    }

    fn from_parts(tag: u8, body: &[u8]) -> Self {
        let number = || u64::from_le_bytes(fixed(body));
        let text = || String::from_utf8_lossy(body).into_owned();
        let descriptor =
            |bytes| Descriptor::from_bytes(fixed(bytes)).expect("the socket does no damage");
        match tag {
            0 => Self::Connect(ProviderId::from(number())),
            1 => Self::Attach(
                descriptor(&body[..32]),
                u64::from_le_bytes(fixed(&body[32..])),
            ),
            2 => Self::Check(number()),
            3 => Self::Release(number()),
            4 => Self::Trim,
            5 => Self::Segments,
            6 => Self::Mappings,
            7 => Self::Go,
            8 => Self::Done,
            9 => Self::Number(number()),
            10 => Self::Provider(ProviderId::from(number())),
            11 => Self::Peer(PeerId::from_bytes(fixed(body))),
            12 => Self::Sent(descriptor(body)),
            13 => Self::Refused(text()),
            14 => Self::Panicked(text()),
            15 => Self::End(Ending::ALL[usize::from(body[0])]),
            16 => Self::Program(body.to_vec()),
            17 => Self::Last(number()),
            _ => panic!("no message has tag {tag}"),
        }
    }
}

fn fixed<const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    bytes
        .try_into()
        .expect("the body has the length that its tag says")
}

/// One end of the socket.
pub(crate) struct Link(UnixStream);

impl Link {
    /// Returns the test's end, which gives up at the deadline, and the child's end.
    pub(crate) fn pair() -> (Self, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(DEADLINE))
            .expect("a deadline that is not zero");
        (Self(ours), theirs.into())
    }

    /// Returns the child's end, which waits as long as the test runs.
    pub(crate) fn of_child(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    /// Sends a message. Only the wait for the answer detects that the other end is closed.
    pub(crate) fn send(&self, message: &Message) {
        let _ = (&self.0).write_all(&message.to_frame());
    }

    /// Tells the other end that no more messages follow.
    pub(crate) fn end(&self) {
        // This fails only if the other end is closed.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Waits for the descriptor of a message.
    pub(crate) fn sent(&self) -> Descriptor {
        match self.receive().unwrap() {
            Some(Message::Sent(descriptor)) => descriptor,
            other => panic!("not a descriptor: {other:?}"),
        }
    }

    /// Waits for the signal to continue.
    pub(crate) fn expect_go(&self) {
        assert_eq!(self.receive().unwrap(), Some(Message::Go));
    }

    /// Reports success, and waits until the other end is closed.
    pub(crate) fn done_until_end(&self) {
        self.send(&Message::Done);
        assert_eq!(self.receive().unwrap(), None);
    }

    /// Returns the next message, or `None` when the other end is closed. Fails if the deadline
    /// passes.
    pub(crate) fn receive(&self) -> io::Result<Option<Message>> {
        let mut len = [0; 4];
        if !self.read(&mut len)? {
            return Ok(None);
        }
        let mut frame = vec![0; u32::from_le_bytes(len) as usize];
        if !self.read(&mut frame)? {
            return Ok(None);
        }
        Ok(Some(Message::from_parts(frame[0], &frame[1..])))
    }

    /// Fills the buffer. Returns `false` if the other end is closed.
    fn read(&self, buffer: &mut [u8]) -> io::Result<bool> {
        match (&self.0).read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
