//! What a peer does with one owner and its successors: connect, attach, look at every byte, hold,
//! look again, let go.
//!
//! An error is allowed if the owner has gone, and then the connection must end too; that is waited
//! for. A message that was neither granted nor kept may be stale. Anything else ends the run.

#![forbid(unsafe_code)]

use super::peer::Shared;
use super::wire::{Seen, Sent, Way, Word, DEADLINE};
use super::worker::Role;
use shm_pool::{AttachError, Client, Descriptor, ProviderId, ShmView};
use shm_pool_support::payload::{self, Identity};
use shm_pool_support::wire;
use std::collections::VecDeque;
use std::hint::black_box;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The conductor is told at every so many messages.
const MESSAGES_PER_WORD: u64 = 16;

/// Views that a slow peer holds, and another one.
const HELD: [usize; 2] = [1, 12];

/// Most bytes of views that a peer holds.
const HELD_BYTES: usize = 4 << 20;

/// The name of an owner's listener. Abstract: there is no file to be left behind.
pub(crate) fn address(prefix: &str, owner: usize) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{prefix}.{owner}"))
}

pub(crate) struct Follower {
    owner: usize,
    prefix: String,
    most_held: usize,
    shared: Arc<Shared>,
    random: fastrand::Rng,
    held: VecDeque<Held>,
    seen: Seen,
}

struct Held {
    view: ShmView,
    identity: Identity,
    has_outlived_its_owner: bool,
}

/// Why a connection is not followed any further.
enum End {
    /// It has ended.
    Closed,
    /// The owner has gone, so that it must end.
    OwnerGone(String),
}

impl Follower {
    pub(crate) fn new(role: &Role, owner: usize, shared: Arc<Shared>) -> Self {
        let random = fastrand::Rng::with_seed(role.seed.wrapping_add(owner as u64));
        let (prefix, most_held) = (role.prefix.clone(), HELD[role.index % HELD.len()]);
        Self { owner, prefix, most_held, shared, random, held: VecDeque::new(), seen: Seen::default() }
    }

    pub(crate) fn run(mut self) {
        let address = address(&self.prefix, self.owner).expect("a short name");
        loop {
            // The conductor listens for an owner that is not there yet.
            let socket = Arc::new(UnixStream::connect_addr(&address).expect("a listener"));
            socket.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
            let Some(client) = self.shared.enter(self.owner, &socket) else { break };
            if let End::OwnerGone(why) = self.follow(&socket, &client) {
                self.wait_for_end(&socket, &why);
            }
            self.shared.leave(self.owner);
            self.held.iter_mut().for_each(|held| held.has_outlived_its_owner = true);
            if self.random.bool() {
                self.let_go_of_all();
            }
        }
        self.let_go_of_all();
        self.tell();
    }

    fn receive(&self, socket: &UnixStream, what: &str) -> Option<Sent> {
        wire::receive(socket).unwrap_or_else(|error| self.fail(&format!("waited in vain for {what}: {error}")))
    }

    fn follow(&mut self, socket: &UnixStream, client: &Client) -> End {
        let id = match self.receive(socket, "a greeting") {
            Some(Sent::Hello(id)) => id,
            None => return End::Closed,
            Some(_) => self.fail("an owner that does not greet"),
        };
        match client.connect(ProviderId::from_u64(id)) {
            // Not sent if the owner has gone: noticed by the next read.
            Ok(peer) => drop(wire::send(socket, &peer.to_bytes())),
            Err(error) => return self.owner_gone(&error, "connect"),
        }
        if !self.shared.is_ready.swap(true, Ordering::Relaxed) {
            self.shared.control.say(Word::Ready);
        }
        while let Some(sent) = self.receive(socket, "a message") {
            match sent {
                Sent::Hello(_) => self.fail("an owner that greets again"),
                Sent::LetGo(sequence) => {
                    self.let_go_of_all();
                    self.tell();
                    let _ = wire::send(socket, &sequence);
                }
                Sent::Message { sequence, way, may_hold, descriptor } => {
                    let descriptor = Descriptor::from_bytes(descriptor).expect("the socket does no damage");
                    let view = match client.attach(&descriptor) {
                        Ok(view) => Some(view),
                        Err(AttachError::Stale) if way == Way::Fleeting => None,
                        Err(error) => {
                            self.seen.lost += 1;
                            return self.owner_gone(&error, &format!("attach to message {sequence} ({way:?})"));
                        }
                    };
                    // From here on the view alone keeps the message.
                    let confirm = || drop(wire::send(socket, &sequence));
                    if may_hold {
                        confirm();
                    }
                    match view {
                        Some(view) => self.read(view, Identity { provider: id, sequence }, may_hold),
                        None => self.seen.stale += 1,
                    }
                    self.do_something_else(client);
                    // After that, this thread does nothing more that could be seen from outside.
                    if !may_hold {
                        confirm();
                    }
                }
            }
        }
        End::Closed
    }

    /// Fails this process unless the error can be that of an owner that has gone.
    fn owner_gone(&self, error: &AttachError, what: &str) -> End {
        let text = format!("cannot {what}: {error}");
        match error {
            AttachError::Stale
            | AttachError::Closed { .. }
            | AttachError::OwnerDied { .. }
            | AttachError::NoProvider { .. }
            | AttachError::NotAProvider { .. } => End::OwnerGone(text),
            _ => self.fail(&text),
        }
    }

    fn wait_for_end(&self, socket: &UnixStream, why: &str) {
        while self.receive(socket, &format!("the end of a connection, after: {why}")).is_some() {}
    }

    fn read(&mut self, view: ShmView, identity: Identity, may_hold: bool) {
        self.seen.messages += 1;
        let held = Held { view, identity, has_outlived_its_owner: false };
        self.look(&held, false);
        if may_hold {
            // Another lease on the same message.
            let clone = (self.random.u8(..16) == 0).then(|| held.view.try_clone().expect("few views of it"));
            let more = clone.map(|view| Held { view, identity, has_outlived_its_owner: false });
            self.held.extend([Some(held), more].into_iter().flatten());
        }
        while self.held.len() > self.most_held || self.held_bytes() > HELD_BYTES {
            self.let_go_of_oldest();
        }
        if self.seen.messages >= MESSAGES_PER_WORD {
            self.tell();
        }
    }

    /// Looks at every byte of a view.
    fn look(&mut self, held: &Held, again: bool) {
        self.seen.bytes += held.view.len() as u64;
        self.seen.again += u64::from(again);
        self.seen.outlived += u64::from(held.has_outlived_its_owner);
        // The black box makes each look read the memory again.
        if let Err(text) = payload::check(black_box(&held.view[..]), held.identity) {
            self.seen.torn += 1;
            self.shared.control.complain(&format!("torn, {}: {text}", if again { "while held" } else { "on arrival" }));
        }
    }

    fn do_something_else(&mut self, client: &Client) {
        if self.random.u8(..8) == 0 && !self.held.is_empty() {
            let at = self.random.usize(..self.held.len());
            let held = self.held.remove(at).expect("one of those held");
            self.look(&held, true);
            self.held.insert(at, held);
        }
        if self.random.u8(..64) == 0 {
            client.trim();
        }
    }

    fn held_bytes(&self) -> usize {
        self.held.iter().map(|held| held.view.len()).sum()
    }

    fn let_go_of_oldest(&mut self) {
        if let Some(held) = self.held.pop_front() {
            self.look(&held, true);
        }
    }

    fn let_go_of_all(&mut self) {
        while !self.held.is_empty() {
            self.let_go_of_oldest();
        }
    }

    fn tell(&mut self) {
        self.shared.control.say(Word::Seen(std::mem::take(&mut self.seen)));
    }

    fn fail(&self, text: &str) -> ! {
        self.shared.control.fail(&format!("owner {}: {text}", self.owner))
    }
}
