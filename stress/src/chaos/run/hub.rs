//! An owner's connections: who is there, what was sent to whom, what is not confirmed yet.
//!
//! Each frame to a peer is confirmed by its number, in order. A message that is kept until then is
//! kept here. Everything is under one lock, and whoever waits for a change waits with a deadline.

#![forbid(unsafe_code)]

use super::wire::{Published, Sent, Way, DEADLINE};
use super::worker::Control;
use shm_pool::{PeerId, Provider, ShareError, ShmBuf};
use shm_pool_support::payload::{self, Identity};
use shm_pool_support::wire;
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

/// Most frames that a peer has not confirmed. They fit a socket's buffer, so that sending never
/// blocks.
const WINDOW: usize = 32;

/// Numbers of frames that are not the publisher's.
const OWN_NUMBERS: u64 = 1 << 63;

pub(crate) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
    control: Arc<Control>,
}

struct State {
    connections: Vec<Connection>,
    wish: Wish,
    is_publishing: bool,
    /// Numbers given out, to connections and to frames that are not the publisher's.
    numbers: u64,
}

/// What the publisher is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Publish,
    Pause,
    End,
}

/// How far a connection is on the way to be quiet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    LettingGo,
    /// With all memory let go, a grant and a kept message were sent, and must arrive.
    Probed,
}

struct Connection {
    number: u64,
    peer: PeerId,
    socket: Arc<UnixStream>,
    pending: VecDeque<Pending>,
    stage: Stage,
    /// A grant was refused because the peer is gone: the connection must end, too.
    is_doomed: bool,
}

struct Pending {
    sequence: u64,
    is_let_go: bool,
    _kept: Option<ShmBuf>,
}

impl Hub {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        let state = State { connections: Vec::new(), wish: Wish::Publish, is_publishing: false, numbers: OWN_NUMBERS };
        Self { state: Mutex::new(state), changed: Condvar::new(), control }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic would have ended the process")
    }

    /// Waits until something changes; fails this process at the deadline.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Instant, what: &str) -> MutexGuard<'a, State> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.control.fail(&format!("waited in vain for {what}; {}", state.describe()));
        }
        self.changed.wait_timeout(state, left).expect("a panic would have ended the process").0
    }

    // ---- connections -----------------------------------------------------------------------------------------

    /// Enters a connection, and follows what it confirms.
    pub(crate) fn admit(self: &Arc<Self>, socket: UnixStream, peer: PeerId) {
        socket.set_read_timeout(None).expect("no deadline is allowed");
        let socket = Arc::new(socket);
        let mut state = self.lock();
        let number = state.next_number();
        let (pending, to_read) = (VecDeque::new(), socket.clone());
        state.connections.push(Connection { number, peer, socket, pending, stage: Stage::Running, is_doomed: false });
        self.changed.notify_all();
        let hub = self.clone();
        thread::spawn(move || hub.follow(to_read, number));
    }

    fn follow(&self, socket: Arc<UnixStream>, number: u64) {
        while let Some(sequence) = wire::receive::<u64>(&*socket).unwrap_or_default() {
            let mut state = self.lock();
            if let Some(connection) = state.connections.iter_mut().find(|connection| connection.number == number) {
                let next = connection.pending.pop_front();
                if next.as_ref().map(|pending| pending.sequence) != Some(sequence) {
                    self.control.fail(&format!("{} confirms {sequence}, which is not its next", connection.peer));
                }
            }
            self.changed.notify_all();
        }
        // Under the lock to the end: who sees the connection gone sees its descriptor closed.
        let mut state = self.lock();
        state.connections.retain(|connection| connection.number != number);
        drop(socket);
        self.changed.notify_all();
    }

    // ---- the publisher's side --------------------------------------------------------------------------------

    /// Waits until there is somebody to publish to. `false`: it is time to end.
    pub(crate) fn wait_for_room(&self) -> bool {
        let mut state = self.lock();
        state.is_publishing = false;
        self.changed.notify_all();
        let mut deadline = Instant::now() + DEADLINE;
        loop {
            let may_be_quiet = state.wish == Wish::Pause || state.connections.is_empty();
            if state.wish == Wish::End {
                return false;
            }
            if state.wish == Wish::Publish && state.connections.iter().any(Connection::has_room) {
                state.is_publishing = true;
                return true;
            }
            if may_be_quiet {
                deadline = Instant::now() + DEADLINE;
            }
            state = match may_be_quiet {
                true => self.changed.wait(state).expect("a panic would have ended the process"),
                false => self.wait(state, deadline, "room in any connection"),
            };
        }
    }

    /// Sends a message to some of those who have room. It is the caller's to drop.
    pub(crate) fn share(&self, message: &ShmBuf, sequence: u64, way: Way, random: &mut fastrand::Rng) -> Published {
        let mut published = Published { messages: 1, bytes: message.len() as u64, ..Published::default() };
        let mut state = self.lock();
        for connection in state.connections.iter_mut().filter(|connection| connection.has_room()) {
            if random.u8(..4) == 0 {
                continue;
            }
            if connection.share(message, sequence, way, true).unwrap_or_else(|error| self.control.fail(&error)) {
                match way {
                    Way::Granted => published.granted += 1,
                    Way::Kept => published.kept += 1,
                    Way::Fleeting => published.fleeting += 1,
                }
            }
        }
        published
    }

    /// Memory is exhausted: has everybody let go, and waits until somebody has, or has left.
    /// `false` if it is time to do something else.
    pub(crate) fn make_room(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        let number = state.next_number();
        for connection in state.connections.iter_mut().filter(|connection| connection.has_room()) {
            if !connection.pending.iter().any(|pending| pending.is_let_go) {
                connection.send(number, None, Sent::LetGo(number));
            }
        }
        if state.wish == Wish::Publish {
            state = self.wait(state, deadline, "memory, although peers were asked to let go");
        }
        state.wish == Wish::Publish
    }

    // ---- the conductor's side --------------------------------------------------------------------------------

    /// Stops publishing, and returns when exactly so many peers are connected, each has let go of
    /// everything, was granted a message after that, and has read it.
    pub(crate) fn quiesce(&self, provider: &Provider, peers: usize) {
        let deadline = Instant::now() + DEADLINE;
        let mut state = self.lock();
        state.wish = Wish::Pause;
        state.connections.iter_mut().for_each(|connection| connection.stage = Stage::Running);
        self.changed.notify_all();
        loop {
            if !state.is_publishing {
                let number = state.next_number();
                for connection in state.connections.iter_mut().filter(|one| one.stage == Stage::Running) {
                    connection.stage = Stage::LettingGo;
                    connection.send(number, None, Sent::LetGo(number));
                }
                let is_quiet = |connection: &Connection| connection.pending.is_empty() && !connection.is_doomed;
                if state.connections.len() == peers && state.connections.iter().all(is_quiet) {
                    if state.connections.iter().all(|connection| connection.stage == Stage::Probed) {
                        return;
                    }
                    self.probe(&mut state, provider);
                }
            }
            state = self.wait(state, deadline, &format!("{peers} quiet peers"));
        }
    }

    /// Nobody holds memory, so there must be some; and a peer that is there can be granted a
    /// message.
    fn probe(&self, state: &mut State, provider: &Provider) {
        let sequence = state.next_number();
        let mut buffer = provider.alloc(4096).unwrap_or_else(|error| self.control.fail(&format!("at rest: {error}")));
        payload::fill(&mut buffer, Identity { provider: provider.id().to_u64(), sequence });
        let message = buffer.freeze();
        for connection in state.connections.iter_mut().filter(|connection| connection.stage == Stage::LettingGo) {
            connection.stage = Stage::Probed;
            for way in [Way::Granted, Way::Kept] {
                connection.share(&message, sequence, way, false).unwrap_or_else(|error| self.control.fail(&error));
            }
        }
    }

    pub(crate) fn resume(&self) {
        self.lock().wish = Wish::Publish;
        self.changed.notify_all();
    }

    /// Publishes no more.
    pub(crate) fn end(&self) {
        self.lock().wish = Wish::End;
        self.changed.notify_all();
    }

    /// Ends all connections, and drops what was kept for them.
    pub(crate) fn hang_up(&self) {
        let connections = std::mem::take(&mut self.lock().connections);
        for connection in connections {
            // Fails only if the peer is gone.
            let _ = connection.socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn describe(&self) -> String {
        let one = |connection: &Connection| {
            let Connection { peer, pending, is_doomed, .. } = connection;
            format!("{peer} has {} frames to confirm{}", pending.len(), if *is_doomed { ", and is gone" } else { "" })
        };
        let all: Vec<String> = self.connections.iter().map(one).collect();
        format!("connections: {}; is publishing: {}", all.join(", "), self.is_publishing)
    }
}

impl Connection {
    fn has_room(&self) -> bool {
        self.pending.len() < WINDOW && !self.is_doomed
    }

    /// Sends a message; `false` if the peer is gone.
    fn share(&mut self, message: &ShmBuf, sequence: u64, way: Way, may_hold: bool) -> Result<bool, String> {
        let descriptor = match way {
            Way::Granted => message.grant(self.peer),
            Way::Kept | Way::Fleeting => message.descriptor(),
        };
        match descriptor {
            Ok(descriptor) => {
                let kept = (way == Way::Kept).then(|| message.clone());
                self.send(sequence, kept, Sent::Message { sequence, way, may_hold, descriptor: descriptor.to_bytes() });
                Ok(true)
            }
            Err(ShareError::PeerGone(_)) => {
                self.is_doomed = true;
                Ok(false)
            }
            Err(error) => Err(format!("cannot share message {sequence}: {error}")),
        }
    }

    fn send(&mut self, sequence: u64, kept: Option<ShmBuf>, what: Sent) {
        let is_let_go = matches!(what, Sent::LetGo(_));
        self.pending.push_back(Pending { sequence, is_let_go, _kept: kept });
        // A peer that is gone is noticed by who reads from it.
        let _ = wire::send(&*self.socket, &what);
    }
}
