//! The rows: the ways of a message to the receiver, and how both ends of each start.

#![forbid(unsafe_code)]

use crate::awaiting::bridge;
use crate::publisher::{publish, Message};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{self, Receiver, RecvError, Sender};
use shm_pool::{Client, Namespace, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{
    inherited_input, inherited_output, say_ready, this_program, Child,
};
use shm_pool_support::tasks::block_on;
use shm_pool_support::Fallible;
use std::hint::spin_loop;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::mpsc::{self, SyncSender, TryRecvError, TrySendError};
use std::thread;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The prefix of names in /dev/shm. The same in each run, so that a run removes the objects of a
/// killed one.
pub(crate) const PREFIX: &str = "receiver-latency";

/// How many messages may be in transit in our channel and in the threads' queue: the library's
/// default.
pub(crate) const SLOTS: usize = 256;

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Way {
    /// Our channel, whose ends spin for that long before they park, or as they do by default.
    Channel {
        spin: Option<Duration>,
        taken: TakenBy,
    },
    /// A stream between two processes.
    Socket { is_busy: bool },
    /// A queue between two threads of one process.
    Threads { is_busy: bool },
}

/// How messages are taken out of a channel.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum TakenBy {
    /// A thread that blocks.
    Thread,
    /// The same, and another thread may interrupt it.
    Interruptible,
    /// A task that awaits them.
    Task,
    /// A task that gets them from a thread that blocks.
    Bridge,
}

const fn channel(spin: Option<Duration>) -> Way {
    Way::Channel {
        spin,
        taken: TakenBy::Thread,
    }
}

/// Our channel with default options: the row of the self-test.
pub(crate) const DEFAULT: Row = ("channel, default", channel(None));

pub(crate) type Row = (&'static str, Way);

pub(crate) const ROWS: [Row; 7] = [
    ("channel, busy poll", channel(Some(Duration::MAX))),
    DEFAULT,
    (
        "channel, 20 µs spin, then futex",
        channel(Some(Duration::from_micros(20))),
    ),
    ("Unix socketpair, busy poll", Way::Socket { is_busy: true }),
    ("Unix socketpair, blocking", Way::Socket { is_busy: false }),
    (
        "std mpsc, two threads, busy poll",
        Way::Threads { is_busy: true },
    ),
    (
        "std mpsc, two threads, blocking",
        Way::Threads { is_busy: false },
    ),
];

/// The publisher's task. It receives its orders on the standard input.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    way: Way,
    slots: usize,
    /// Of the channel.
    name: String,
    core: Option<usize>,
}

impl Task {
    /// Publishes until there are no more orders, or the receiver exits.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let orders = UnixStream::from(inherited_input()?);
        match self.way {
            Way::Channel { spin, .. } => {
                let provider = Provider::builder()
                    .namespace(&Namespace::new(PREFIX).unwrap())
                    .build()?;
                let mut builder = Sender::builder().capacity(self.slots);
                if let Some(spin) = spin {
                    builder = builder.spin(spin);
                }
                let mut sender = builder.create(&provider, &self.name)?;
                say_ready()?;
                publish(orders, |message| Ok(sender.send_copy(message.as_bytes())?))
            }
            Way::Socket { is_busy } => {
                let mut socket = Socket::new(inherited_output()?.into(), is_busy)?;
                publish(orders, |message| Ok(socket.write_all(message.as_bytes())?))
            }
            Way::Threads { .. } => Err("its publisher is a thread".into()),
        }
    }
}

type Receive = Box<dyn FnMut() -> Fallible<Option<Message>>>;
type Finish = Box<dyn FnOnce() -> Fallible>;

/// The receiver's handle of a publisher.
pub(crate) struct Publisher {
    pub(crate) orders: UnixStream,
    /// Waits for the next message. `None` when the publisher has closed its end, and all its
    /// messages were received.
    pub(crate) receive: Receive,
    /// Waits until the publisher exits, after the last order, and checks that it succeeded.
    pub(crate) finish: Finish,
}

impl Publisher {
    /// Starts one on a core. A channel, or the threads' queue, has this number of slots.
    pub(crate) fn start(way: Way, slots: usize, core: Option<usize>) -> Fallible<Self> {
        let (orders, given) = UnixStream::pair()?;
        let process = |given: UnixStream, name: &str, output: Stdio| {
            let task = Task {
                way,
                slots,
                name: name.to_owned(),
                core,
            };
            let mut command = this_program(&task)?;
            command.stdin(OwnedFd::from(given)).stdout(output);
            // In a separate process group: Ctrl-C at the terminal kills the receiver; this process
            // detects that, and removes its objects.
            command.process_group(0);
            Child::start("publisher", &mut command)
        };
        let (receive, finish): (Receive, Finish) = match way {
            Way::Channel { spin, taken } => {
                let ends = match spin {
                    Some(spin) => spin.as_nanos().to_string(),
                    None => "default".to_owned(),
                };
                let name = format!("{}-{slots}-{ends}", std::process::id());
                let mut publisher = process(given, &name, Stdio::piped())?;
                publisher.wait_until_ready()?;
                let client = Client::in_namespace(&Namespace::new(PREFIX).unwrap());
                let mut builder = Receiver::builder();
                if let Some(spin) = spin {
                    builder = builder.spin(spin);
                }
                let mut receiver = builder.namespace(client.namespace()).open(&name)?;
                let receive: Receive = match taken {
                    TakenBy::Thread => Box::new(move || from_channel(receiver.recv())),
                    TakenBy::Interruptible => {
                        let _interrupter = receiver.interrupter();
                        Box::new(move || from_channel(receiver.recv()))
                    }
                    TakenBy::Task => {
                        Box::new(move || from_channel(block_on(receiver.recv_async())))
                    }
                    TakenBy::Bridge => Box::new(bridge(receiver)),
                };
                (receive, Box::new(|| publisher.finish()))
            }
            Way::Socket { is_busy } => {
                let (ours, theirs) = UnixStream::pair()?;
                let mut socket = BufReader::with_capacity(64 << 10, Socket::new(ours, is_busy)?);
                let publisher = process(given, "", OwnedFd::from(theirs).into())?;
                (
                    Box::new(move || from_socket(&mut socket)),
                    Box::new(|| publisher.finish()),
                )
            }
            Way::Threads { is_busy } => {
                let (sender, receiver) = mpsc::sync_channel(slots);
                let thread = thread::spawn(move || {
                    pin(core)?;
                    publish(given, |message| to_thread(&sender, is_busy, *message))
                });
                let finish = || match thread.join() {
                    Ok(outcome) => outcome,
                    Err(_) => Err("the publisher panicked".into()),
                };
                (
                    Box::new(move || Ok(from_thread(&receiver, is_busy))),
                    Box::new(finish),
                )
            }
        };
        Ok(Self {
            orders,
            receive,
            finish,
        })
    }
}

pub(crate) fn from_channel(
    received: Result<channel::Message, RecvError>,
) -> Fallible<Option<Message>> {
    match received {
        Ok(bytes) => match Message::read_from_bytes(&bytes) {
            Ok(message) => Ok(Some(message)),
            Err(_) => Err("a message of another length".into()),
        },
        Err(RecvError::Disconnected) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Available data is read at once, in one call, and then returned message by message.
fn from_socket(socket: &mut BufReader<Socket>) -> Fallible<Option<Message>> {
    if socket.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut message = Message::new_zeroed();
    socket.read_exact(message.as_mut_bytes())?;
    Ok(Some(message))
}

fn to_thread(sender: &SyncSender<Message>, is_busy: bool, message: Message) -> Fallible {
    const ENDED: &str = "the receiver has ended";
    if !is_busy {
        return match sender.send(message) {
            Ok(()) => Ok(()),
            Err(_) => Err(ENDED.into()),
        };
    }
    loop {
        match sender.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(_)) => spin_loop(),
            Err(TrySendError::Disconnected(_)) => return Err(ENDED.into()),
        }
    }
}

/// Returns `None` if the publisher has closed, and all was received.
fn from_thread(receiver: &mpsc::Receiver<Message>, is_busy: bool) -> Option<Message> {
    if !is_busy {
        return receiver.recv().ok();
    }
    loop {
        match receiver.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Empty) => spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// A socket; a busy one polls where the other one blocks.
struct Socket(UnixStream);

impl Socket {
    fn new(socket: UnixStream, is_busy: bool) -> io::Result<Self> {
        socket.set_nonblocking(is_busy)?;
        Ok(Self(socket))
    }
}

/// Repeats a call as long as it would block.
#[inline]
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            outcome => return outcome,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        again(|| self.0.read(bytes))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
