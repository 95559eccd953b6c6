//! The owner process: builds a provider, accepts peers, publishes to them, obeys the conductor. A
//! publisher runs beside it.
//!
//! One thread decides, and receives everything that happens as an [`Event`]. Each frame to a peer
//! is confirmed by its number, in order. A thread for each connection receives the confirmations,
//! and drops the messages kept until then, at any moment of the first thread.

use super::peer::{Sent, Way};
use super::publisher::Publishing;
use super::worker::{Command, Control, Counts, Exit, Footprint, Remains, Report, Role, DEADLINE};
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
const MESSAGES_PER_REPORT: u64 = 16;

/// The first number of connections and of frames that are not messages.
const OWN_NUMBERS: u64 = 1 << 63;

enum Event {
    Commanded(Command),
    Connected(UnixStream, PeerId),
    /// A connection has confirmed a frame.
    Confirmed {
        connection: u64,
        frame: u64,
    },
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
    thread: JoinHandle<()>,
    stage: Stage,
    /// A grant was refused because the peer is dead: the connection must end, too.
    is_peer_dead: bool,
}

/// How close a connection is to being quiet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Releasing,
    /// With all memory released, a grant and a kept message were sent, and must arrive.
    Probed,
}

pub(crate) fn run(role: &Role, control: &Arc<Control>) {
    let built = Provider::builder()
        .namespace(&Namespace::new(&role.prefix).unwrap())
        .max_bytes(role.plan.max_bytes())
        .max_shared(MAX_SHARED)
        .tuning(Tuning::new().arena_size(ARENA_SIZE))
        .build();
    let provider = match built {
        Ok(provider) => provider,
        Err(error) => control.fail(&format!("cannot build: {error}")),
    };
    let publishing = Publishing::start(role, control);
    control.report(Report::Ready);

    let (to_events, events) = mpsc::channel();
    let listener = listener(role.listener.expect("an owner's"));
    let id = provider.id();
    let connections = to_events.clone();
    thread::spawn(move || accept(&listener, id, &connections));

    let from_conductor = control.clone();
    let commands = to_events.clone();
    thread::spawn(move || loop {
        let command = from_conductor.next();
        if commands.send(Event::Commanded(command)).is_err() {
            return;
        }
    });

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
    control.report(Report::Counted(owner.counts));
    owner.publishing.end();
    // Peers may notice either end first.
    if owner.random.bool() {
        end_connections(owner.connections);
        drop(owner.provider);
    } else {
        drop(owner.provider);
        end_connections(owner.connections);
    }
}

fn end_connections(connections: Vec<Connection>) {
    for connection in connections {
        // Fails only if the peer has exited.
        let _ = connection.socket.shutdown(Shutdown::Both);
        connection
            .thread
            .join()
            .expect("a panic would have ended the process");
    }
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
fn accept(listener: &UnixListener, provider: ProviderId, events: &Sender<Event>) {
    loop {
        let (socket, _) = listener.accept().expect("a listener");
        socket
            .set_read_timeout(Some(DEADLINE))
            .expect("a deadline that is not zero");
        if wire::send(&socket, &Sent::Hello(u64::from(provider))).is_err() {
            continue;
        }
        let peer = wire::receive(&socket).expect("a peer that sends its id, or has exited");
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
                self.handle(event);
            }
            match self.commands.pop_front() {
                Some(Command::Exit(Exit::Orderly)) => return,
                Some(Command::Quiesce(peers)) => {
                    self.is_paused = true;
                    self.quiesce(peers);
                    self.control.report(Report::AtRest(self.remains()));
                }
                Some(Command::Resume) => self.resume(),
                Some(other) => self
                    .control
                    .fail(&format!("no command for an owner: {other:?}")),
                None if self.is_paused || self.connections.is_empty() => {
                    self.wait_for_event(Duration::MAX, "anything")
                }
                None if self.connections.iter().any(Connection::accepts_frames) => {
                    self.publish();
                    self.do_something_else();
                    if self.counts.published >= MESSAGES_PER_REPORT {
                        self.control
                            .report(Report::Counted(std::mem::take(&mut self.counts)));
                    }
                }
                None => self.wait_for_event(DEADLINE, "a connection that accepts a frame"),
            }
        }
    }

    // ---- events ------------------------------------------------------------------------------

    /// Waits for an event, and fails this process if none arrives.
    fn wait_for_event(&mut self, timeout: Duration, what: &str) {
        match self.events.recv_timeout(timeout) {
            Ok(event) => self.handle(event),
            Err(_) => {
                let mut connections = String::new();
                for connection in &self.connections {
                    connections += &format!(
                        " {}: {} unconfirmed frames, is dead: {};",
                        connection.peer,
                        connection.pending.len(),
                        connection.is_peer_dead
                    );
                }
                self.control
                    .fail(&format!("waited in vain for {what}:{connections}"));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Commanded(command) => self.commands.push_back(command),
            Event::Connected(socket, peer) => self.add_connection(socket, peer),
            Event::Confirmed { connection, frame } => {
                let connection = self
                    .connections
                    .iter_mut()
                    .find(|other| other.number == connection)
                    .expect("it ends later");
                if connection.pending.pop_front() != Some(frame) {
                    self.control.fail(&format!(
                        "{} confirms {frame}, which is not its next",
                        connection.peer
                    ));
                }
            }
            Event::Ended(number) => self
                .connections
                .retain(|connection| connection.number != number),
        }
    }

    fn add_connection(&mut self, socket: UnixStream, peer: PeerId) {
        let number = self.next_number();
        let (kept, until_confirmed) = mpsc::channel::<Option<ShmBytes>>();
        let mut until_confirmed = Some(until_confirmed);
        let events = self.to_events.clone();
        let from_peer = socket.try_clone().expect("a descriptor");
        let thread = wire::listen(from_peer, move |confirmed| {
            let event = match confirmed {
                Some(frame) => {
                    if let Some(until_confirmed) = &until_confirmed {
                        drop(until_confirmed.try_recv());
                    }
                    Event::Confirmed {
                        connection: number,
                        frame,
                    }
                }
                None => {
                    // First, so that nothing is kept any more when the event is handled.
                    until_confirmed = None;
                    Event::Ended(number)
                }
            };
            events.send(event).is_ok()
        });
        self.connections.push(Connection {
            number,
            peer,
            socket,
            pending: VecDeque::new(),
            kept,
            thread,
            stage: Stage::Running,
            is_peer_dead: false,
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
        let seed = seed(u64::from(self.provider.id()), self.messages);
        let check = |message: &ShmBytes| {
            if let Err(text) = check_pattern(message, seed) {
                self.control.fail(&text);
            }
        };
        fill_pattern(&mut buffer, seed);
        let mut message = buffer.freeze();
        if self.random.u8(..16) == 0 {
            // Never shared: exclusive again, and read by this process itself.
            let Ok(buffer) = message.try_into_mut() else {
                self.control.fail("a message is shared that has one handle");
            };
            message = buffer.freeze();
            check(&message);
        }
        self.counts.published += 1;
        self.counts.bytes_published += message.len() as u64;
        let way = [Way::Granted, Way::Kept, Way::Fleeting][self.random.usize(..3)];
        for connection in &mut self.connections {
            if !connection.accepts_frames() || self.random.u8(..4) == 0 {
                continue;
            }
            if !connection.share(&self.control, &message, self.messages, way, true) {
                continue;
            }
            match way {
                Way::Granted => self.counts.granted += 1,
                Way::Kept => self.counts.kept += 1,
                Way::Fleeting => self.counts.fleeting += 1,
            }
        }
        // Still the owner's, whichever peer reads it or dies.
        if self.random.u8(..16) == 0 {
            check(&message);
        }
    }

    /// While memory is exhausted, requests that all peers release theirs, and waits until one has, or
    /// has left. Returns `None` if another action is due.
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
            for connection in &mut self.connections {
                if !connection.accepts_frames() {
                    continue;
                }
                // One of this process's own numbers: the peer has such a request already.
                let has_request = connection.pending.iter().any(|&frame| frame > OWN_NUMBERS);
                if !has_request {
                    connection.send(number, None, Sent::Release(number));
                }
            }
            self.wait_for_event(
                left(deadline),
                "memory, although peers are to release theirs",
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
                let namespace = Namespace::new(&self.role.prefix).unwrap();
                if let Err(error) = namespace.sweep() {
                    self.control.fail(&format!("cannot sweep: {error}"));
                }
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
        for connection in &mut self.connections {
            connection.stage = Stage::Running;
        }
        loop {
            let number = self.next_number();
            for connection in &mut self.connections {
                if connection.stage == Stage::Running {
                    connection.stage = Stage::Releasing;
                    connection.send(number, None, Sent::Rest(number));
                }
            }

            let connections = &self.connections;
            if connections.len() == peers && connections.iter().all(Connection::is_quiet) {
                if connections.iter().all(|one| one.stage == Stage::Probed) {
                    return;
                }
                self.probe();
            }
            self.wait_for_event(left(deadline), &format!("{peers} quiet peers"));
        }
    }

    /// Checks that memory is available, since no peer holds any, and that a connected peer can be
    /// granted a message.
    fn probe(&mut self) {
        let sequence = self.next_number();
        let mut buffer = match self.provider.alloc(4096) {
            Ok(buffer) => buffer,
            Err(error) => self.control.fail(&format!("at rest: {error}")),
        };
        fill_pattern(&mut buffer, seed(u64::from(self.provider.id()), sequence));
        let message = buffer.freeze();
        for connection in &mut self.connections {
            if connection.stage != Stage::Releasing {
                continue;
            }
            connection.stage = Stage::Probed;
            for way in [Way::Granted, Way::Kept] {
                connection.share(&self.control, &message, sequence, way, false);
            }
        }
    }

    fn remains(&self) -> Remains {
        let own = Remains::of(&self.provider);
        let publishers = self.publishing.remains();
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
        for connection in &mut self.connections {
            connection.send(number, None, Sent::Resume(number));
        }
    }
}

impl Connection {
    fn accepts_frames(&self) -> bool {
        self.pending.len() < WINDOW && !self.is_peer_dead
    }

    fn is_quiet(&self) -> bool {
        self.pending.is_empty() && !self.is_peer_dead
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
                let kept = match way {
                    Way::Kept => Some(message.clone()),
                    Way::Granted | Way::Fleeting => None,
                };
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
            Err(ShareError::PeerDisconnected(_)) => self.is_peer_dead = true,
            Err(error) => control.fail(&format!("cannot share message {sequence}: {error}")),
        }
        !self.is_peer_dead
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
