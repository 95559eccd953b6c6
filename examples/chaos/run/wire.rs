//! What goes over the sockets: frames of eight words, each written by one call, so that threads may share a socket.
//!
//! | between | direction | what |
//! |---|---|---|
//! | conductor and worker | to the worker | a [`Command`] |
//! | | to the conductor | a [`Word`] |
//! | owner and peer | to the peer | [`Sent::Hello`], then a [`Sent::Message`] or a [`Sent::LetGo`] each |
//! | | to the owner | an introduction ([`PeerId`]), then the sequence number of each frame that is done with |

#![forbid(unsafe_code)]

use super::footprint::Footprint;
use shm_pool::{Descriptor, PeerId};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a process waits for what must come. Only a hang comes near it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

const WORDS: usize = 8;

/// A tag, and what belongs to it.
pub(crate) type Frame = [u64; WORDS];

/// Sends one frame.
pub(crate) fn send(mut socket: &UnixStream, frame: Frame) -> io::Result<()> {
    let mut bytes = [0; WORDS * 8];
    bytes.chunks_mut(8).zip(frame).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    socket.write_all(&bytes)
}

/// The next frame, or `None` when the other side is gone, perhaps in the middle of one.
pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Option<Frame>> {
    let mut bytes = [0; WORDS * 8];
    match socket.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(Some(std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte])))))
}

fn frame(tag: u64, words: &[u64]) -> Frame {
    let mut frame = [0; WORDS];
    frame[0] = tag;
    frame[1..=words.len()].copy_from_slice(words);
    frame
}

/// How a process ends, other than by being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything is dropped.
    Orderly,
    /// Nothing is dropped.
    Sudden,
    /// By a signal of its own making.
    Abort,
}

/// What the conductor tells a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Exit(Exit),
    /// To an owner: publish nothing, have everything let go by this many peers, and tell what is left.
    Quiesce(u64),
    /// To an owner: go on.
    Resume,
    /// To a peer: unmap what nobody needs, and tell what is left.
    Measure,
    /// To a peer: drop the client, make another.
    Recreate,
}

impl Command {
    pub(crate) fn to_frame(self) -> Frame {
        match self {
            Self::Exit(Exit::Orderly) => frame(0, &[]),
            Self::Exit(Exit::Sudden) => frame(1, &[]),
            Self::Exit(Exit::Abort) => frame(2, &[]),
            Self::Quiesce(peers) => frame(3, &[peers]),
            Self::Resume => frame(4, &[]),
            Self::Measure => frame(5, &[]),
            Self::Recreate => frame(6, &[]),
        }
    }

    pub(crate) fn from_frame(frame: Frame) -> Self {
        match frame[0] {
            0 => Self::Exit(Exit::Orderly),
            1 => Self::Exit(Exit::Sudden),
            2 => Self::Exit(Exit::Abort),
            3 => Self::Quiesce(frame[1]),
            4 => Self::Resume,
            5 => Self::Measure,
            6 => Self::Recreate,
            tag => panic!("no command has tag {tag}"),
        }
    }
}

/// What an owner has done since it told last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Descriptors that were sent: granted, kept until confirmed, neither.
    pub(crate) granted: u64,
    pub(crate) kept: u64,
    pub(crate) fleeting: u64,
    /// Allocations that had to wait until peers let go.
    pub(crate) exhausted: u64,
}

/// What a peer has done since it told last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) messages: u64,
    /// Fleeting messages that came too late.
    pub(crate) stale: u64,
    /// Bytes looked at, each as often as it was.
    pub(crate) bytes: u64,
    /// Views looked at again while they were held, or before they were dropped.
    pub(crate) again: u64,
    /// Those of them whose owner had gone.
    pub(crate) outlived: u64,
    /// Messages that were not to be had, because their owner had gone.
    pub(crate) lost: u64,
    pub(crate) torn: u64,
}

/// What a quiet owner has left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quiet {
    /// Bytes leased after reclaiming.
    pub(crate) leased: u64,
    /// Bytes in use.
    pub(crate) in_use: u64,
    /// Bytes held after trimming.
    pub(crate) held: u64,
    /// The most that was ever held.
    pub(crate) peak: u64,
    pub(crate) footprint: Footprint,
}

/// What a worker tells the conductor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    /// Built; or connected for the first time.
    Ready,
    Published(Published),
    Seen(Seen),
    Quiet(Quiet),
    Measured(Footprint),
    Recreated,
    /// It cannot go on, and has said why on its standard error.
    Failed,
}

impl Word {
    pub(crate) fn to_frame(self) -> Frame {
        match self {
            Self::Ready => frame(0, &[]),
            Self::Published(Published { messages, bytes, granted, kept, fleeting, exhausted }) => {
                frame(1, &[messages, bytes, granted, kept, fleeting, exhausted])
            }
            Self::Seen(Seen { messages, stale, bytes, again, outlived, lost, torn }) => {
                frame(2, &[messages, stale, bytes, again, outlived, lost, torn])
            }
            Self::Quiet(Quiet { leased, in_use, held, peak, footprint }) => {
                let Footprint { descriptors, shared, mappings } = footprint;
                frame(3, &[leased, in_use, held, peak, descriptors, shared, mappings])
            }
            Self::Measured(Footprint { descriptors, shared, mappings }) => frame(4, &[descriptors, shared, mappings]),
            Self::Recreated => frame(5, &[]),
            Self::Failed => frame(6, &[]),
        }
    }

    pub(crate) fn from_frame([tag, a, b, c, d, e, f, g]: Frame) -> Self {
        match tag {
            0 => Self::Ready,
            1 => {
                let (messages, bytes, granted, kept, fleeting, exhausted) = (a, b, c, d, e, f);
                Self::Published(Published { messages, bytes, granted, kept, fleeting, exhausted })
            }
            2 => {
                let (messages, stale, bytes, again, outlived, lost, torn) = (a, b, c, d, e, f, g);
                Self::Seen(Seen { messages, stale, bytes, again, outlived, lost, torn })
            }
            3 => {
                let footprint = Footprint { descriptors: e, shared: f, mappings: g };
                Self::Quiet(Quiet { leased: a, in_use: b, held: c, peak: d, footprint })
            }
            4 => Self::Measured(Footprint { descriptors: a, shared: b, mappings: c }),
            5 => Self::Recreated,
            6 => Self::Failed,
            tag => panic!("no word has tag {tag}"),
        }
    }
}

/// How a message is kept until it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a grant.
    Granted,
    /// By the owner's handle, until the peer confirms.
    Kept,
    /// Not at all: it may be stale.
    Fleeting,
}

/// What an owner sends to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// The provider's id.
    Hello(u64),
    Message {
        sequence: u64,
        way: Way,
        may_hold: bool,
        descriptor: Descriptor,
    },
    /// Drop all views. This too is confirmed by its number.
    LetGo(u64),
}

impl Sent {
    pub(crate) fn to_frame(self) -> Frame {
        match self {
            Self::Hello(provider) => frame(0, &[provider]),
            Self::Message { sequence, way, may_hold, descriptor } => {
                let [a, b, c, d] = words(descriptor.to_bytes());
                frame(1, &[sequence, way as u64 * 2 + u64::from(may_hold), a, b, c, d])
            }
            Self::LetGo(sequence) => frame(2, &[sequence]),
        }
    }

    pub(crate) fn from_frame([tag, sequence, how, a, b, c, d, _]: Frame) -> Self {
        match tag {
            0 => Self::Hello(sequence),
            1 => {
                let way = [Way::Granted, Way::Kept, Way::Fleeting][how as usize / 2];
                let descriptor = Descriptor::from_bytes(bytes([a, b, c, d])).expect("the socket does no damage");
                Self::Message { sequence, way, may_hold: how % 2 == 1, descriptor }
            }
            2 => Self::LetGo(sequence),
            tag => panic!("an owner sends no frame with tag {tag}"),
        }
    }
}

/// A peer's first frame to an owner.
pub(crate) fn introduction(peer: PeerId) -> Frame {
    frame(0, &words::<24, 3>(peer.to_bytes()))
}

/// Who has introduced itself.
pub(crate) fn introduced([_, a, b, c, ..]: Frame) -> PeerId {
    PeerId::from_bytes(bytes([a, b, c]))
}

/// A peer's later frames to an owner.
pub(crate) fn confirmation(sequence: u64) -> Frame {
    frame(0, &[sequence])
}

/// The number that is confirmed.
pub(crate) fn confirmed([_, sequence, ..]: Frame) -> u64 {
    sequence
}

fn words<const BYTES: usize, const COUNT: usize>(bytes: [u8; BYTES]) -> [u64; COUNT] {
    std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte])))
}

fn bytes<const COUNT: usize, const BYTES: usize>(words: [u64; COUNT]) -> [u8; BYTES] {
    std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
}
