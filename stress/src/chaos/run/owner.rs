//! The owner process: builds a provider, accepts peers, publishes to them, obeys the conductor. A
//! publisher runs beside it.
//!
//! One thread decides, and receives everything that happens as an [`Event`]. Each frame to a peer
//! is confirmed by its number, in order. A thread for each connection receives the confirmations,
//! and drops the messages kept until then, in the middle of whatever the first thread does.

use super::peer::{Sent, Way};
use super::publisher::Publishing;
use super::worker::{Command, Control, Counts, Exit, Footprint, Remains, Role, Word, DEADLINE};
use shm_pool::{
    Namespace, PeerId, Provider, ProviderId, ShareError, ShmBytes, ShmBytesMut, Tuning,
};
use shm_pool_support::payload::{check_pattern, fill_pattern, seed};
use shm_pool_support::wire;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Few, so that a run covers the reuse of records.
const MAX_SHARED: usize = 1024;

/// Small, so that arenas are created and destroyed, and messages of a few pages get their own
/// segments.
const ARENA_SIZE: usize = 256 << 10;

/// Most frames that a peer has not confirmed. They fit a socket's buffer, so sending never blocks.
const WINDOW: usize = 32;

/// The number of messages after which the conductor is notified.
const MESSAGES_PER_WORD: u64 = 16;

/// The first number of connections and of frames that are not messages.
const OWN_NUMBERS: u64 = 1 << 63;

enum Event {
    Told(Command),
    Connected(UnixStream, PeerId),
    /// A connection has confirmed a frame.
    Confirmed(u64, u64),
    Ended(u64),
}

struct Owner {
    control: Arc<Control>,
    provider: Provider,
    publishing: Publishing,
    role: Role,
    random: fastrand::Rng,
    connections: Vec<Connection>,
    events: Receiver<Event>,
    to_events: Sender<Event>,
    commands: VecDeque<Command>,
    is_paused: bool,
    messages: u64,
    /// The last number given to a connection, or to a frame that is no message.
    numbers: u64,
    counts: Counts,
}

struct Connection {
    number: u64,
    peer: PeerId,
    socket: UnixStream,
    /// The numbers of the unconfirmed frames.
    pending: VecDeque<u64>,
    /// To the thread that receives confirmations: the message kept until each one.
    kept: Sender<Option<ShmBytes>>,
    hearing: JoinHandle<()>,
    stage: Stage,
    /// A grant was refused because the peer is dead: the connection must end, too.
    is_doomed: bool,
}

/// How close a connection is to being quiet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    LettingGo,
    /// With all memory released, a grant and a kept message were sent, and must arrive.
    Probed,
}

pub(crate) fn run(role: &Role, control: &Arc<Control>) {
    let builder = Provider::builder()
        .namespace(&Namespace::new(&role.prefix).unwrap())
        .max_bytes(role.plan.max_bytes());
    let built = builder
        .max_shared(MAX_SHARED)
        .tuning(Tuning::new().arena_size(ARENA_SIZE))
        .build();
    let provider = built.unwrap_or_else(|error| control.fail(&format!("cannot build: {error}")));
    let publishing = Publishing::start(role, control);
    control.say(Word::Ready);

    let (to_events, events) = mpsc::channel();
    let (listener, id, connected) = (
        listener(role.listener.expect("an owner's")),
        provider.id(),
        to_events.clone(),
    );
    thread::spawn(move || let_in(&listener, id, &connected));
    let (to_obey, told) = (control.clone(), to_events.clone());
    thread::spawn(move || while told.send(Event::Told(to_obey.next())).is_ok() {});
    let mut owner = Owner {
        control: control.clone(),
        provider,
        publishing,
        role: role.clone(),
        random: fastrand::Rng::with_seed(role.seed),
        connections: Vec::new(),
        events,
        to_events,
        commands: VecDeque::new(),
        is_paused: false,
        messages: 0,
        numbers: OWN_NUMBERS,
        counts: Counts::default(),
    };
    owner.work();
    control.say(Word::Counted(owner.counts));
    let Owner {
        provider,
        publishing,
        connections,
        mut random,
        ..
    } = owner;
    publishing.end();
    // Peers may notice either end first: if this is `None`, the provider is dropped here.
    let dropped_later = random.bool().then_some(provider);
    for Connection {
        socket, hearing, ..
    } in connections
    {
        // Fails only if the peer has exited.
        let _ = socket.shutdown(Shutdown::Both);
        hearing
            .join()
            .expect("a panic would have ended the process");
    }
    drop(dropped_later);
}

fn listener(inherited: RawFd) -> UnixListener {
    // SAFETY: the conductor has opened it for this process, which never closes it.
    let listener = unsafe { BorrowedFd::borrow_raw(inherited) };
    listener
        .try_clone_to_owned()
        .expect("a descriptor that was inherited")
        .into()
}

/// Accepts one peer after another, so none waits behind an accepted one.
fn let_in(listener: &UnixListener, provider: ProviderId, events: &Sender<Event>) {
    loop {
        let (socket, _) = listener.accept().expect("a listener");
        socket
            .set_read_timeout(Some(DEADLINE))
            .expect("a deadline that is not zero");
        if wire::send(&socket, &Sent::Hello(provider.to_u64())).is_err() {
            continue;
        }
        let peer = wire::receive(&socket).expect("a peer that introduces itself, or is gone");
        socket
            .set_read_timeout(None)
            .expect("no deadline is allowed");
        if let Some(peer) = peer {
            // Fails when this process is about to exit.
            let _ = events.send(Event::Connected(socket, PeerId::from_bytes(peer)));
        }
    }
}

impl Owner {
    /// Publishes and obeys, until the command to end.
    fn work(&mut self) {
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.note(event);
            }
            match self.commands.pop_front() {
                Some(Command::Exit(Exit::Orderly)) => return,
                Some(Command::Quiesce(peers)) => {
                    self.is_paused = true;
                    self.quiesce(peers);
                    self.control.say(Word::AtRest(self.what_is_left()));
                }
                Some(Command::Resume) => self.resume(),
                Some(other) => self
                    .control
                    .fail(&format!("an owner is not to be told {other:?}")),
                None if self.is_paused || self.connections.is_empty() => {
                    self.hear(Duration::MAX, "anything")
                }
                None if self.connections.iter().any(Connection::has_room) => {
                    self.publish();
                    self.do_something_else();
                    if self.counts.published >= MESSAGES_PER_WORD {
                        self.control
                            .say(Word::Counted(std::mem::take(&mut self.counts)));
                    }
                }
                None => self.hear(DEADLINE, "room in any connection"),
            }
        }
    }

    // ---- events ------------------------------------------------------------------------------

    /// Waits for an event, and fails this process if none arrives.
    fn hear(&mut self, timeout: Duration, what: &str) {
        match self.events.recv_timeout(timeout) {
            Ok(event) => self.note(event),
            Err(_) => {
                let pending = self
                    .connections
                    .iter()
                    .map(|one| (one.peer, one.pending.len(), one.is_doomed));
                let pending: Vec<_> = pending.collect();
                self.control.fail(&format!(
                    "waited in vain for {what}; connections, frames, is gone: {pending:?}"
                ));
            }
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Told(command) => self.commands.push_back(command),
            Event::Connected(socket, peer) => self.admit(socket, peer),
            Event::Confirmed(number, sequence) => {
                let connection = self
                    .connections
                    .iter_mut()
                    .find(|connection| connection.number == number);
                let connection = connection.expect("it ends later");
                if connection.pending.pop_front() != Some(sequence) {
                    self.control.fail(&format!(
                        "{} confirms {sequence}, which is not its next",
                        connection.peer
                    ));
                }
            }
            Event::Ended(number) => self
                .connections
                .retain(|connection| connection.number != number),
        }
    }

    fn admit(&mut self, socket: UnixStream, peer: PeerId) {
        let (number, (kept, to_drop)) = (self.next_number(), mpsc::channel::<Option<ShmBytes>>());
        let (events, mut to_drop) = (self.to_events.clone(), Some(to_drop));
        let hearing = wire::listen(
            socket.try_clone().expect("a descriptor"),
            move |confirmed| {
                let event = match confirmed {
                    Some(sequence) => {
                        drop(to_drop.as_ref().map(Receiver::try_recv));
                        Event::Confirmed(number, sequence)
                    }
                    // The thread that receives the end finds nothing kept.
                    None => {
                        to_drop = None;
                        Event::Ended(number)
                    }
                };
                events.send(event).is_ok()
            },
        );
        let (pending, stage) = (VecDeque::new(), Stage::Running);
        self.connections.push(Connection {
            number,
            peer,
            socket,
            pending,
            kept,
            hearing,
            stage,
            is_doomed: false,
        });
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ---- publishing --------------------------------------------------------------------------

    /// Allocates, fills, freezes, shares and drops a message.
    fn publish(&mut self) {
        let len = any_length(&mut self.random, self.role.plan.largest());
        let Some(mut buffer) = self.alloc(len) else {
            return;
        };
        self.messages += 1;
        let seed = seed(self.provider.id().to_u64(), self.messages);
        let check = |message: &ShmBytes| {
            check_pattern(message, seed).unwrap_or_else(|text| self.control.fail(&text))
        };
        fill_pattern(&mut buffer, seed);
        let mut message = buffer.freeze();
        if self.random.u8(..16) == 0 {
            // Never shared: exclusive again, and read by this process itself.
            let buffer = message
                .try_into_mut()
                .unwrap_or_else(|_| self.control.fail("nobody else has this message"));
            message = buffer.freeze();
            check(&message);
        }
        self.counts.published += 1;
        self.counts.bytes_published += message.len() as u64;
        let way = [Way::Granted, Way::Kept, Way::Fleeting][self.random.usize(..3)];
        for connection in self
            .connections
            .iter_mut()
            .filter(|connection| connection.has_room())
        {
            if self.random.u8(..4) > 0
                && connection.share(&self.control, &message, self.messages, way, true)
            {
                match way {
                    Way::Granted => self.counts.granted += 1,
                    Way::Kept => self.counts.kept += 1,
                    Way::Fleeting => self.counts.fleeting += 1,
                }
            }
        }
        // Still the owner's, whichever peer reads it or dies.
        if self.random.u8(..16) == 0 {
            check(&message);
        }
    }

    /// While memory is exhausted, asks all peers to release theirs, and waits until one has, or has
    /// left. Returns `None` if another action is due.
    fn alloc(&mut self, len: usize) -> Option<ShmBytesMut> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.provider.alloc(len) {
                Ok(buffer) => return Some(buffer),
                Err(error) if error.is_exhausted() => self.counts.exhausted += 1,
                Err(error) => self
                    .control
                    .fail(&format!("cannot allocate {len} bytes: {error}")),
            }
            let number = self.next_number();
            for connection in self
                .connections
                .iter_mut()
                .filter(|connection| connection.has_room())
            {
                // One of this process's own numbers: the peer was already asked to release.
                if !connection
                    .pending
                    .iter()
                    .any(|&pending| pending > OWN_NUMBERS)
                {
                    connection.send(number, None, Sent::LetGo(number));
                }
            }
            self.hear(
                left(deadline),
                "memory, although peers were asked to let go",
            );
            if !self.commands.is_empty() {
                return None;
            }
        }
    }

    /// Occasionally performs another operation of an owner.
    fn do_something_else(&mut self) {
        match self.random.u16(..1000) {
            0..=4 => drop(self.provider.trim()),
            5..=19 => drop(self.provider.reclaim()),
            20..=21 => {
                let swept = Namespace::new(&self.role.prefix).unwrap().sweep();
                swept
                    .map(drop)
                    .unwrap_or_else(|error| self.control.fail(&format!("cannot sweep: {error}")));
            }
            _ => {}
        }
        let stats = self.provider.stats();
        if stats.peak_bytes_held > stats.max_bytes {
            self.control.fail(&format!(
                "{} bytes held, above the cap of {}",
                stats.peak_bytes_held, stats.max_bytes
            ));
        }
    }

    // ---- quiet periods -----------------------------------------------------------------------

    /// Returns when exactly `peers` peers are connected, each has released everything, its receiver
    /// rests, and it has read messages that were sent after that.
    fn quiesce(&mut self, peers: usize) {
        let deadline = Instant::now() + DEADLINE;
        self.publishing.rest();
        self.connections
            .iter_mut()
            .for_each(|connection| connection.stage = Stage::Running);
        loop {
            let number = self.next_number();
            for connection in self
                .connections
                .iter_mut()
                .filter(|one| one.stage == Stage::Running)
            {
                connection.stage = Stage::LettingGo;
                connection.send(number, None, Sent::Rest(number));
            }
            let is_quiet =
                |connection: &Connection| connection.pending.is_empty() && !connection.is_doomed;
            if self.connections.len() == peers && self.connections.iter().all(is_quiet) {
                if self
                    .connections
                    .iter()
                    .all(|connection| connection.stage == Stage::Probed)
                {
                    return;
                }
                self.probe();
            }
            self.hear(left(deadline), &format!("{peers} quiet peers"));
        }
    }

    /// Checks that memory is available, since no peer holds any, and that a connected peer can be
    /// granted a message.
    fn probe(&mut self) {
        let sequence = self.next_number();
        let buffer = self.provider.alloc(4096);
        let mut buffer =
            buffer.unwrap_or_else(|error| self.control.fail(&format!("at rest: {error}")));
        fill_pattern(&mut buffer, seed(self.provider.id().to_u64(), sequence));
        let message = buffer.freeze();
        for connection in self
            .connections
            .iter_mut()
            .filter(|connection| connection.stage == Stage::LettingGo)
        {
            connection.stage = Stage::Probed;
            for way in [Way::Granted, Way::Kept] {
                connection.share(&self.control, &message, sequence, way, false);
            }
        }
    }

    fn what_is_left(&self) -> Remains {
        let (own, publishers) = (Remains::of(&self.provider), self.publishing.what_is_left());
        Remains {
            leased: own.leased + publishers.leased,
            in_use: own.in_use + publishers.in_use,
            held: own.held + publishers.held,
            footprint: Footprint::take(&self.role.prefix),
            ..own
        }
    }

    fn resume(&mut self) {
        self.is_paused = false;
        self.publishing.resume();
        let number = self.next_number();
        self.connections
            .iter_mut()
            .for_each(|connection| connection.send(number, None, Sent::Resume(number)));
    }
}

impl Connection {
    fn has_room(&self) -> bool {
        self.pending.len() < WINDOW && !self.is_doomed
    }

    /// Sends a message. Returns `false` if the peer is dead.
    fn share(
        &mut self,
        control: &Control,
        message: &ShmBytes,
        sequence: u64,
        way: Way,
        may_hold: bool,
    ) -> bool {
        let descriptor = match way {
            Way::Granted => message.grant(self.peer),
            Way::Kept | Way::Fleeting => message.descriptor(),
        };
        match descriptor {
            Ok(descriptor) => {
                let kept = (way == Way::Kept).then(|| message.clone());
                self.send(
                    sequence,
                    kept,
                    Sent::Message {
                        sequence,
                        way,
                        may_hold,
                        descriptor: descriptor.to_bytes(),
                    },
                );
            }
            Err(ShareError::PeerDisconnected(_)) => self.is_doomed = true,
            Err(error) => control.fail(&format!("cannot share message {sequence}: {error}")),
        }
        !self.is_doomed
    }

    fn send(&mut self, number: u64, kept: Option<ShmBytes>, what: Sent) {
        self.pending.push_back(number);
        // The receiving thread detects that a peer has exited.
        let _ = self.kept.send(kept);
        let _ = wire::send(&self.socket, &what);
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Lengths of all kinds: mostly small, some of a few pages, few of up to `largest` bytes.
fn any_length(random: &mut fastrand::Rng, largest: usize) -> usize {
    let up_to = match random.u8(..100) {
        0..=49 => 1 << 10,
        50..=79 => 16 << 10,
        80..=95 => 256 << 10,
        _ => largest,
    };
    random.usize(1..=up_to.min(largest))
}
