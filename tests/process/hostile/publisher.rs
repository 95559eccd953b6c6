//! A publisher, receivers that follow the protocol, and one that writes garbage into everything it
//! has mapped: its connection and the publisher's object. Connected receivers get the right bytes,
//! in order and with every gap counted, up to the last message sent. New receivers may be refused
//! or overlooked. Nothing is left behind.

use super::layout::{OpenObject, Storm, Value, Word, Write};
use super::{outside, read_all, Many};
use crate::served::Served;
use arbitrary::Arbitrary;
use shm_pool::channel::{
    Message, OnEnd, OnFull, Publisher, RecvError, SendErrorKind, SendOptions, Sent, Subscriber,
};
use shm_pool::{Client, Namespace, Provider, Tuning};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CHANNEL: &str = "c";

/// How many messages a receiver may lag behind.
const CAPACITY: usize = 3;

/// How many receivers the publisher has room for.
const MAX_SUBSCRIBERS: u16 = 4;

/// Long enough to park after spinning.
const SHORT: Duration = Duration::from_micros(30);

/// Steps of the publisher, its receivers and the writer.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Program {
    history: u8,
    /// The rule that the hostile receiver requests.
    rule: u8,
    hostile_comes_first: bool,
    /// Into the publisher's object, or into the connection.
    storm: Storm,
    is_storm_in_the_connection: bool,
    steps: Many<Step, 300>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    SendBytes {
        wait: bool,
    },
    Send {
        len: u16,
        wait: bool,
    },
    /// A connected receiver receives.
    Receive {
        wait: bool,
        keep: bool,
    },
    /// The hostile receiver receives, and keeps the message or not.
    Misread {
        keep: bool,
    },
    /// Another receiver joins, or the last one that joined leaves.
    Come {
        rule: u8,
    },
    Go,
    Receivers,
    /// The publisher disconnects the hostile receiver.
    Evict,
    Connection(Place, Value),
    Rendezvous(Place, Value),
    /// Copies a word of the publisher's object to another position: an id to another registration.
    Copy {
        from: Place,
        to: Place,
    },
}

/// A word of an object, laid out as in `src/channel/layout.rs`.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    Header(u8),
    Slot(u8),
    Return(u8),
    Registration { at: u8, is_refusal: bool },
    Any(u16),
}

impl Place {
    fn word(self) -> Word {
        // The connection has one slot more than the capacity.
        let slots = (CAPACITY as u16 + 1) * 8;
        Word::Any(match self {
            Self::Header(word) => u16::from(word) % 48,
            Self::Slot(word) => 512 + u16::from(word) % slots,
            Self::Return(word) => 512 + slots + u16::from(word) % 16,
            Self::Registration { at, is_refusal } => {
                16 + u16::from(at) % MAX_SUBSCRIBERS * 2 + u16::from(!is_refusal)
            }
            Self::Any(word) => word,
        })
    }
}

fn rule(number: u8) -> OnFull {
    [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest][usize::from(number) % 3]
}

impl Program {
    /// Runs the program with a provider and a client of this prefix, which is used only here.
    pub(crate) fn run(&self, prefix: &str) {
        let mut world = World::new(prefix, self);
        let path = if self.is_storm_in_the_connection {
            &world.connection_path
        } else {
            &world.rendezvous_path
        };
        let stormed = OpenObject::open(path, 1);
        self.storm.during(&stormed, || {
            for step in &self.steps.0 {
                world.run(step);
            }
            world.end();
        });
        drop(stormed);
        outside::assert_swept(prefix);
    }
}

/// A receiver that follows the protocol.
struct Good {
    receiver: Subscriber,
    /// Whether it was connected before any damage. If so, it never gets `NotConnected`.
    is_met: bool,
    /// The number of the message received last.
    last: Option<u64>,
    kept: Vec<(Message, u64)>,
}

impl Good {
    fn receive(&mut self, wait: bool, keep: bool) -> bool {
        let received = if wait {
            self.receiver.recv_timeout(SHORT)
        } else {
            self.receiver.try_recv()
        };
        let message = match received {
            Ok(message) => message,
            Err(RecvError::Empty | RecvError::TimedOut) => return false,
            // The words of its registration may say that the publisher cannot connect it.
            Err(RecvError::NotConnected { .. }) if !self.is_met => return false,
            Err(error) => panic!("{error}"),
        };
        let number = number_of(&message);
        assert_eq!(message.tag(), tag_of(number));
        if let Some(last) = self.last {
            assert_eq!(
                number,
                last + 1 + u64::from(message.missed()),
                "not in order, or a gap that is not counted"
            );
        }
        self.last = Some(number);
        if keep && self.kept.len() < CAPACITY {
            self.kept.push((message, number));
        }
        for (message, number) in &self.kept {
            assert_eq!(number_of(message), *number, "it changes");
        }
        true
    }
}

/// Returns the paths of the connections that exist.
fn connections(prefix: &str) -> Vec<PathBuf> {
    let mut files = outside::files(prefix);
    files.retain(|path| path.to_string_lossy().ends_with(".connection"));
    files
}

/// Returns the number of a message, which each of its words contains.
fn number_of(message: &Message) -> u64 {
    let number = message[..8].try_into().expect("8 bytes");
    let mut words = message.chunks_exact(8);
    assert!(words.all(|word| word == number), "it is torn");
    u64::from_le_bytes(number)
}

/// Every other message has a tag.
fn tag_of(number: u64) -> Option<[u8; 16]> {
    if number % 2 == 0 {
        return None;
    }
    let tag = u128::from(number) << 64 | u128::from(number);
    Some(tag.to_le_bytes())
}

fn options(number: u64, wait: bool) -> SendOptions {
    let options = SendOptions::new().timeout(if wait { SHORT } else { Duration::ZERO });
    match tag_of(number) {
        Some(tag) => options.tag(tag),
        None => options,
    }
}

struct World {
    /// Two that were connected before any damage, followed by the guests.
    goods: Vec<Good>,
    guests: Vec<Good>,
    hostile: Subscriber,
    held: Vec<Message>,
    publisher: Publisher,
    hostile_id: u64,
    rendezvous: OpenObject,
    connection: OpenObject,
    rendezvous_path: PathBuf,
    connection_path: PathBuf,
    provider: Provider,
    client: Client,
    /// The number of messages sent.
    sent: u64,
}

impl World {
    fn new(prefix: &str, program: &Program) -> Self {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(1 << 20)
            .tuning(Tuning::new().arena_size(64 << 10));
        let provider = provider.build().expect("a provider");
        let client = Client::in_namespace(&Namespace::new(prefix).unwrap());
        let options = Publisher::builder()
            .max_subscribers(MAX_SUBSCRIBERS.into())
            .capacity(CAPACITY)
            .max_borrowed(16);
        let mut publisher = options
            .history(usize::from(program.history) % 5)
            .create(&provider, CHANNEL)
            .expect("a free name");
        let open = |on_full: OnFull| {
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(on_full)
                .namespace(client.namespace())
                .open(CHANNEL)
                .expect("a registration")
        };
        // Opens a receiver, and returns it with the path of its connection.
        let open_hostile = || {
            let before = connections(prefix);
            let receiver = open(rule(program.rule));
            let mut after = connections(prefix);
            after.retain(|path| !before.contains(path));
            (receiver, after.pop().expect("a connection"))
        };
        let mut hostile = None;
        if program.hostile_comes_first {
            hostile = Some(open_hostile());
        }
        let mut goods = Vec::new();
        for on_full in [OnFull::DropNewest, OnFull::DropOldest] {
            goods.push(Good {
                receiver: open(on_full),
                is_met: true,
                last: None,
                kept: Vec::new(),
            });
        }
        let (hostile, connection_path) = match hostile {
            Some(hostile) => hostile,
            None => open_hostile(),
        };
        assert_eq!(publisher.served().receivers().count(), 3);
        let rendezvous_path = PathBuf::from(format!("/dev/shm/{prefix}.{CHANNEL}.channel"));
        let object = |path: &Path| OpenObject::open(path, 1);
        let rendezvous = object(&rendezvous_path);
        let connection = object(&connection_path);
        let path = connection_path.to_string_lossy();
        let id = path.rsplit('.').nth(1).expect("the id in its name");
        let hostile_id = u64::from_str_radix(id, 16).expect("a number");
        let guests = Vec::new();
        let held = Vec::new();
        let sent = 0;
        Self {
            goods,
            guests,
            hostile,
            held,
            publisher,
            hostile_id,
            rendezvous,
            connection,
            rendezvous_path,
            connection_path,
            provider,
            client,
            sent,
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::SendBytes { wait } => {
                let bytes = self.sent.to_le_bytes();
                let options = options(self.sent, wait);
                let sent = self.publisher.send_copy_with(&bytes, options);
                self.note(sent.map_err(|error| error.kind()));
            }
            Step::Send { len, wait } => {
                // The hostile receiver may hold all memory.
                let Ok(mut buffer) = self.provider.alloc((1 + usize::from(len) % 500) * 8) else {
                    return;
                };
                for word in buffer.chunks_exact_mut(8) {
                    word.copy_from_slice(&self.sent.to_le_bytes());
                }
                let options = options(self.sent, wait);
                let sent = self.publisher.send_with(buffer, options);
                self.note(sent.map_err(|error| error.kind()));
            }
            Step::Receive { wait, keep } => {
                for good in self.goods.iter_mut().chain(&mut self.guests) {
                    good.receive(wait, keep);
                    if !keep {
                        good.kept.pop();
                    }
                }
            }
            Step::Misread { keep } => match self.hostile.try_recv() {
                Ok(message) => {
                    read_all(&message);
                    if keep {
                        self.held.push(message);
                    }
                }
                Err(error) => drop(black_box(error.to_string())),
            },
            Step::Come { rule: number } => {
                // It is refused if there is no free registration, or if the object is damaged.
                let options = Subscriber::builder()
                    .on_end(OnEnd::Return)
                    .capacity(1 + usize::from(number) % CAPACITY)
                    .max_borrowed(16);
                match options
                    .on_full(rule(number / 3))
                    .namespace(self.client.namespace())
                    .open_timeout(CHANNEL, Duration::ZERO)
                {
                    Ok(receiver) => self.guests.push(Good {
                        receiver,
                        is_met: false,
                        last: None,
                        kept: Vec::new(),
                    }),
                    Err(error) => drop(black_box(error.to_string())),
                }
            }
            Step::Go => drop(self.guests.pop()),
            Step::Receivers => {
                let count = self.publisher.served().receivers().count();
                assert!(
                    (2..=MAX_SUBSCRIBERS.into()).contains(&count),
                    "{count} receivers"
                );
            }
            Step::Evict => drop(black_box(
                self.publisher
                    .disconnect(shm_pool::channel::ReceiverId::from(self.hostile_id)),
            )),
            Step::Connection(place, value) => {
                self.connection.apply(&Write::Word(place.word(), value))
            }
            Step::Rendezvous(place, value) => {
                self.rendezvous.apply(&Write::Word(place.word(), value))
            }
            Step::Copy { from, to } => {
                self.rendezvous
                    .apply(&Write::Word(to.word(), Value::CopyOf(from.word())));
                // Makes the publisher look at it.
                self.rendezvous
                    .apply(&Write::Word(Place::Header(8).word(), Value::Plus(1)));
            }
        }
    }

    fn note(&mut self, sent: Result<Sent, SendErrorKind>) {
        match sent {
            Ok(sent) => {
                assert!(sent.receivers + sent.skipped() <= MAX_SUBSCRIBERS.into());
                self.sent += 1;
            }
            // Blocked by a receiver that the publisher waits for: the hostile one, or a guest.
            Err(
                SendErrorKind::Full { .. }
                | SendErrorKind::TimedOut
                | SendErrorKind::TooManyBorrowed { .. },
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn end(mut self) {
        // The latest message is always available.
        let latest = &mut self.goods[1];
        latest.kept.clear();
        while latest.receive(false, false) {}
        assert_eq!(
            latest.last,
            self.sent.checked_sub(1),
            "the last message that was sent"
        );
        drop((
            self.goods,
            self.guests,
            self.held,
            self.hostile,
            self.publisher,
        ));
        self.provider.trim();
        assert_eq!(
            self.provider.stats().bytes_held,
            0,
            "memory that nobody can use"
        );
    }
}
