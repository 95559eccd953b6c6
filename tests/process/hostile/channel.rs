//! The two ends of a channel in any order of steps, and a hostile writer to its object. Until the
//! writer starts, a queue of the sent messages predicts what is received and when there is room.
//! From then on both ends return typed errors or continue, all received messages can be read, and
//! nothing is left behind.

use super::layout::{OpenObject, Storm, Value, Word, Write};
use super::{outside, read_all, Many};
use arbitrary::Arbitrary;
use shm_pool::channel::{
    ChannelError, Message, MessageType, Receiver, RecvError, SendErrorKind, SendOptions, Sender,
    MAX_INLINE,
};
use shm_pool::{Client, Namespace, Provider, Tuning};
use std::alloc::Layout;
use std::collections::{HashSet, VecDeque};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const CHANNEL: &str = "c";

/// The declared type: a `u64`, and any number of `[u16; 3]`.
fn points(version: u64) -> MessageType {
    MessageType::new("Points", version, Layout::new::<u64>()).with_elements(6)
}

fn is_points(len: usize) -> bool {
    len >= 8 && (len - 8) % 6 == 0
}

/// Without the feature, types are only compared.
#[cfg(not(feature = "zerocopy"))]
fn as_points(message: Message, _: bool) -> Result<Message, RecvError> {
    Ok(message)
}

/// Reads the message as the value that it is. Returns the error of a typed receiver.
#[cfg(feature = "zerocopy")]
fn as_points(message: Message, is_damaged: bool) -> Result<Message, RecvError> {
    use shm_pool::channel::typed::{Value, WithHeader};

    let len = message.len();
    match Value::<_, WithHeader<u64, [[u16; 3]]>>::try_new(message) {
        Ok(points) => {
            assert!(is_points(len), "{len} bytes");
            let items = Value::items(&points);
            assert_eq!(items.len(), (len - 8) / 6);
            let mut sum = *points;
            for word in items.iter().flatten() {
                sum ^= u64::from(*word);
            }
            black_box(sum);
            Ok(Value::into_inner(points))
        }
        Err(_) => {
            // A forged place may not be aligned.
            assert!(!is_points(len) || is_damaged, "{len} bytes");
            Err(RecvError::WrongType {
                name: "Points",
                len,
            })
        }
    }
}

/// The capacity of each channel.
const SLOTS: usize = 3;

/// How many of the last received messages are kept.
const KEPT: usize = 8;

/// Long enough to park after spinning.
const SHORT: Duration = Duration::from_micros(30);

/// Steps of the two ends and of the writer, on one channel after another.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Program {
    sender_goes_first: bool,
    /// Leaves out the writer's steps, and the storm.
    is_peaceful: bool,
    /// Into the first channel.
    storm: Storm,
    steps: Many<Step, 300>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    SendBytes {
        len: u8,
        tagged: bool,
        wait: bool,
    },
    Send {
        len: u16,
        tagged: bool,
        wait: bool,
    },
    Receive {
        wait: bool,
        keep: bool,
        /// As a value of the declared type.
        typed: bool,
    },
    /// Sends until there is no room.
    Fill,
    /// Receives until nothing is left.
    Empty,
    DropKept(u8),
    Warm,
    WaitForReceiver,
    WaitUntilReceived,
    /// A second receiver tries to open the channel, for messages of this version.
    OpenAgain {
        version: u8,
    },
    /// A second sender tries to create a channel with this name.
    CreateAgain,
    Go {
        is_sender: bool,
    },
    /// Drops both ends and creates two new ones.
    Begin,
    /// Makes the same change to the place or the tag of all buffers in the ring, with the right
    /// check.
    Forge {
        word: u8,
        step: i16,
    },
    Write(Place, Value),
    Copy {
        from: Place,
        to: Place,
    },
}

/// A word of a channel's object, laid out as in `src/channel/layout.rs`.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    Header(u8),
    Slot(u8),
    Type(u8),
    Any(u16),
}

impl Place {
    fn word(self) -> Word {
        Word::Any(match self {
            Self::Header(word) => u16::from(word) % 32,
            // The ring has one slot more than the capacity.
            Self::Slot(word) => 512 + u16::from(word) % ((SLOTS as u16 + 1) * 8),
            Self::Type(word) => 496 + u16::from(word) % 16,
            Self::Any(word) => word,
        })
    }
}

impl Program {
    /// Runs the program with a provider and a client of this prefix, which is used only here.
    pub(crate) fn run(&self, prefix: &str) {
        let scene = Scene::new(prefix);
        let mut ends = Ends::begin(&scene, self.is_peaceful);
        let first = OpenObject::open(&scene.path, 1);
        let storm = if self.is_peaceful {
            &Storm::CALM
        } else {
            &self.storm
        };
        ends.is_damaged = !storm.is_calm();
        storm.during(&first, || {
            for step in &self.steps.0 {
                if matches!(step, Step::Begin) {
                    ends.end(self.sender_goes_first);
                    ends = Ends::begin(&scene, self.is_peaceful);
                } else {
                    ends.run(step);
                }
            }
            ends.end(self.sender_goes_first);
        });
        drop((first, ends));
        scene.end();
        outside::assert_swept(prefix);
    }
}

/// State shared by all channels of a program.
struct Scene<'p> {
    prefix: &'p str,
    path: PathBuf,
    provider: Provider,
    client: Arc<Client>,
}

impl<'p> Scene<'p> {
    fn new(prefix: &'p str) -> Self {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(1 << 20)
            .tuning(Tuning::new().arena_size(64 << 10));
        let client = Client::in_namespace(&Namespace::new(prefix).unwrap());
        Self {
            prefix,
            path: PathBuf::from(format!("/dev/shm/{prefix}.{CHANNEL}.channel")),
            provider: builder.build().expect("a provider"),
            client: Arc::new(client),
        }
    }

    fn end(self) {
        // The client holds the leases of messages that never arrived for as long as it lives.
        drop(self.client);
        self.provider.trim();
        assert_eq!(
            self.provider.stats().bytes_held,
            0,
            "memory that nobody can use"
        );
    }
}

/// A message's bytes and its tag.
type Sent = (Vec<u8>, Option<[u8; 16]>);

fn options(sent: &Sent, wait: bool) -> SendOptions {
    let options = SendOptions::new().timeout(if wait { SHORT } else { Duration::ZERO });
    match sent.1 {
        Some(tag) => options.tag(tag),
        None => options,
    }
}

/// One channel, and its expected state.
struct Ends<'a> {
    scene: &'a Scene<'a>,
    object: OpenObject,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    is_peaceful: bool,
    is_damaged: bool,
    /// Buffers with the right check may lie anywhere.
    is_forged: bool,
    /// The messages that were sent and not yet received, in order.
    under_way: VecDeque<Sent>,
    kept: Vec<(Message, Sent)>,
    /// The lengths of the buffers that were sent.
    lengths: HashSet<usize>,
    count: u8,
}

impl<'a> Ends<'a> {
    fn begin(scene: &'a Scene<'a>, is_peaceful: bool) -> Self {
        let sender = Sender::builder().capacity(SLOTS).message_type(points(1));
        let sender = sender
            .create(&scene.provider, CHANNEL)
            .expect("a name that nobody has");
        let receiver = Receiver::builder().message_type(points(1));
        let receiver = receiver
            .namespace(scene.client.namespace())
            .open(CHANNEL)
            .expect("a sender that lives");
        Self {
            scene,
            object: OpenObject::open(&scene.path, 1),
            sender: Some(sender),
            receiver: Some(receiver),
            is_peaceful,
            is_damaged: false,
            is_forged: false,
            under_way: VecDeque::new(),
            kept: Vec::new(),
            lengths: HashSet::new(),
            count: 0,
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::SendBytes { len, tagged, wait } => {
                self.send_copy(usize::from(len) % (MAX_INLINE + 2), tagged, wait)
            }
            Step::Send { len, tagged, wait } => self.send(usize::from(len), tagged, wait),
            Step::Receive { wait, keep, typed } => self.receive(wait, keep, typed),
            Step::Fill => {
                for _ in 0..SLOTS + 2 {
                    self.send_copy(1, false, false);
                }
            }
            Step::Empty => {
                for _ in 0..SLOTS + 2 {
                    self.receive(false, false, false);
                }
            }
            Step::DropKept(pick) if !self.kept.is_empty() => {
                self.kept.swap_remove(usize::from(pick) % self.kept.len());
            }
            Step::Warm => {
                if let Some(receiver) = &mut self.receiver {
                    receiver.warm().expect("segments that are there");
                }
            }
            Step::WaitForReceiver => self.wait_for_receiver(),
            Step::WaitUntilReceived => self.wait_until_received(),
            Step::OpenAgain { version } => {
                let receiver = Receiver::builder().message_type(points(version.into()));
                match receiver
                    .namespace(self.scene.client.namespace())
                    .open(CHANNEL)
                {
                    Err(ChannelError::TypeMismatch { found, .. }) => {
                        black_box(found.as_ref().map(ToString::to_string));
                        assert!(version != 1 || self.is_damaged, "{found:?}");
                    }
                    Err(_) => assert!(
                        version == 1 || self.sender.is_none() || self.is_damaged,
                        "not compared"
                    ),
                    Ok(_) => assert!(self.is_damaged, "two receivers of one channel"),
                }
            }
            Step::CreateAgain if self.sender.is_some() => {
                Sender::create(&self.scene.provider, CHANNEL).expect_err("two senders by one name");
            }
            Step::Go { is_sender: true } => self.sender = None,
            Step::Go { is_sender: false } => self.receiver = None,
            Step::Forge { .. } | Step::Write(..) | Step::Copy { .. } if self.is_peaceful => {}
            Step::Forge { word, step } => {
                for slot in 0..=SLOTS {
                    self.forge(slot, word, step);
                }
            }
            Step::Write(place, value) => self.write(place, value),
            Step::Copy { from, to } => self.write(to, Value::CopyOf(from.word())),
            Step::DropKept(_) | Step::CreateAgain | Step::Begin => {}
        }
        for (message, sent) in &self.kept {
            // The writer may have cleared its lease.
            assert!(
                (message[..] == sent.0[..] && message.tag() == sent.1) || self.is_damaged,
                "a message that changes while it is read"
            );
        }
    }

    fn write(&mut self, place: Place, value: Value) {
        self.is_damaged = true;
        self.object.apply(&Write::Word(place.word(), value));
    }

    /// As `src/channel/message.rs` lays out a slot: the sequence, a head, the place of the buffer, a
    /// check and a tag.
    fn forge(&mut self, slot: usize, word: u8, step: i16) {
        let word_of = |at: usize| Place::Slot((slot * 8 + at) as u8).word();
        let mut words: [_; 8] = std::array::from_fn(|at| self.object.get(word_of(at)));
        let head = words[1];
        if head & 0x7f != 2 {
            return;
        }
        let at = [2, 3, 4, 6, 7][usize::from(word) % 5];
        words[at] = words[at].wrapping_add_signed(step.into());
        let ticket = words[0].wrapping_sub(1);
        let tag = if head & 0x80 == 0 { &[] } else { &words[6..] };
        let mut covered = words[2..5].to_vec();
        covered.extend(tag);
        covered.push(head);
        covered.push(!ticket);
        let mut check: u64 = 0;
        for word in covered {
            check = (check ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        self.is_damaged = true;
        self.is_forged = true;
        self.object.set(word_of(at), words[at]);
        self.object.set(word_of(5), check);
    }

    /// Bytes unlike those of the messages around it.
    fn payload(&mut self, len: usize, tagged: bool) -> Sent {
        self.count = self.count.wrapping_add(1);
        let tag = if tagged { Some([self.count; 16]) } else { None };
        (vec![self.count; len], tag)
    }

    fn send_copy(&mut self, len: usize, tagged: bool, wait: bool) {
        let payload = self.payload(len, tagged);
        let Some(sender) = &mut self.sender else {
            return;
        };
        let sent = sender.send_copy_with(&payload.0, options(&payload, wait));
        if len > MAX_INLINE - if tagged { 16 } else { 0 } {
            self.lengths.insert(len);
        }
        match sent.map_err(|error| error.kind()) {
            // The kept messages and those that the writer made unreachable may hold all memory.
            Err(SendErrorKind::Alloc(_)) => {
                assert!(len + if tagged { 16 } else { 0 } > MAX_INLINE)
            }
            sent => self.note_sent(sent, payload, wait),
        }
    }

    fn send(&mut self, len: usize, tagged: bool, wait: bool) {
        let payload = self.payload(len, tagged);
        let Some(sender) = &mut self.sender else {
            return;
        };
        // The kept messages and those that the writer made unreachable may hold all memory.
        let Ok(mut buffer) = self.scene.provider.alloc(len) else {
            return;
        };
        buffer.copy_from_slice(&payload.0);
        self.lengths.insert(len);
        let sent = sender.send_with(buffer, options(&payload, wait));
        self.note_sent(sent.map_err(|error| error.kind()), payload, wait);
    }

    fn note_sent(&mut self, sent: Result<(), SendErrorKind>, payload: Sent, wait: bool) {
        if self.is_damaged {
            return drop(black_box(sent.map_err(|error| error.to_string())));
        }
        let full = self.under_way.len() >= SLOTS;
        let under_way = self.under_way.len();
        match sent {
            Ok(()) => {
                assert!(
                    self.receiver.is_some() && under_way <= SLOTS,
                    "{under_way} under way, and one more"
                );
                self.under_way.push_back(payload);
            }
            Err(SendErrorKind::Disconnected) => {
                assert!(self.receiver.is_none(), "the receiver lives")
            }
            Err(SendErrorKind::Full { capacity: SLOTS }) => {
                assert!(full && !wait, "{under_way} are under way")
            }
            Err(SendErrorKind::TimedOut) => assert!(full && wait, "{under_way} are under way"),
            Err(error) => panic!("{error}"),
        }
    }

    fn receive(&mut self, wait: bool, keep: bool, typed: bool) {
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        let received = if wait {
            receiver.recv_timeout(SHORT)
        } else {
            receiver.try_recv()
        };
        let received = match received {
            Ok(message) if typed => as_points(message, self.is_damaged),
            received => received,
        };
        if self.is_damaged {
            return self.note_damaged(received, keep);
        }
        match (received, self.under_way.pop_front()) {
            (Ok(message), Some(sent)) => {
                assert_eq!((&message[..], message.tag()), (&sent.0[..], sent.1));
                self.keep(message, sent, keep);
            }
            (Err(RecvError::WrongType { len, .. }), Some(sent)) => {
                assert!(
                    typed && len == sent.0.len() && !is_points(len),
                    "{len} bytes"
                );
            }
            (Err(RecvError::Disconnected), None) => {
                assert!(self.sender.is_none(), "the sender lives")
            }
            (Err(RecvError::Empty), None) => assert!(!wait && self.sender.is_some()),
            (Err(RecvError::TimedOut), None) => assert!(wait && self.sender.is_some()),
            (received, sent) => panic!("{received:?}, and sent was {sent:?}"),
        }
    }

    fn note_damaged(&mut self, received: Result<Message, RecvError>, keep: bool) {
        match received {
            Ok(message) => {
                if !message.is_inline() {
                    assert!(
                        self.is_forged || self.lengths.contains(&message.len()),
                        "a view of what was never sent"
                    );
                    assert!(
                        outside::is_mapped(&message, self.scene.prefix, false),
                        "a view of what is not mapped"
                    );
                }
                read_all(&message);
                let tag = message.tag();
                self.keep(message, (Vec::new(), tag), keep);
            }
            Err(RecvError::Forked) => panic!("nobody forked"),
            Err(error) => drop(black_box(error.to_string())),
        }
    }

    fn keep(&mut self, message: Message, sent: Sent, keep: bool) {
        if keep {
            self.kept.push((message, sent));
            self.kept.drain(..self.kept.len().saturating_sub(KEPT));
        }
    }

    fn wait_for_receiver(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let came = sender.wait_for_receiver(SHORT);
        assert!(
            came.is_ok() == self.receiver.is_some() || self.is_damaged,
            "{came:?}"
        );
    }

    fn wait_until_received(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let done = sender.wait_until_received(SHORT);
        assert!(
            done.is_err() || self.under_way.is_empty() || self.is_damaged,
            "some are under way"
        );
    }

    fn end(&mut self, sender_first: bool) {
        if sender_first {
            self.sender = None;
        }
        self.receiver = None;
        self.sender = None;
        self.kept.clear();
        if self.is_peaceful {
            self.scene.provider.trim();
            assert_eq!(
                self.scene.provider.stats().bytes_held,
                0,
                "what was not received is not given back"
            );
        }
    }
}
