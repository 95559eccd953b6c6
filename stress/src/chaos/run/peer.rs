//! The peer process: one client, the conductor's commands, and a thread for each owner and its
//! successors: connect, attach, check every byte, hold, check again, release. A receiver runs
//! beside each connection.
//!
//! An error is allowed if the owner has exited; the thread then waits for the connection to end
//! too. A message that was neither granted nor kept may be stale. Anything else ends the run.

#![forbid(unsafe_code)]

use super::receiver::Receiving;
use super::worker::{Command, Control, Counts, Exit, Footprint, Remains, Report, Role, DEADLINE};
use super::OWNERS;
use serde::{Deserialize, Serialize};
use shm_pool::{AttachError, Client, Descriptor, Namespace, ProviderId, ShmView};
use shm_pool_support::payload::{check_pattern, seed};
use shm_pool_support::wire;
use std::collections::VecDeque;
use std::hint::black_box;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// The number of messages after which the conductor is notified.
const MESSAGES_PER_REPORT: u64 = 16;

/// The number of views that a slow peer holds, and any other.
const HELD: [usize; 2] = [1, 12];

/// Most bytes of views that a peer holds.
const HELD_BYTES: usize = 4 << 20;

/// An owner's frame to a peer. The peer sends its `PeerId`, and then the number of each finished
/// frame.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Sent {
    /// The provider's id.
    Hello(u64),
    Message {
        sequence: u64,
        way: Way,
        may_hold: bool,
        descriptor: [u8; Descriptor::SIZE],
    },
    /// Drop all views.
    Release(u64),
    /// The same, and confirm it once the receiver rests, too.
    Rest(u64),
    /// The receiver may rejoin.
    Resume(u64),
}

/// How a message is kept until it is read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a grant.
    Granted,
    /// By the owner's handle, until the peer confirms.
    Kept,
    /// Not at all: it may be stale.
    Fleeting,
}

/// The name of an owner's listener. It is abstract, so no file is left behind.
pub(crate) fn address(prefix: &str, owner: usize) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{prefix}.{owner}"))
}

/// State shared by the threads.
struct Shared {
    /// `None` when it is time to exit.
    client: Option<Arc<Client>>,
    /// The connections, to be ended from outside; by owner.
    sockets: Vec<Option<Arc<UnixStream>>>,
    /// Whether any of the threads has connected.
    is_ready: bool,
}

impl Shared {
    /// Replaces the client, and ends all connections. The last thread to notice drops the old
    /// client, whose views stay valid.
    fn replace(&mut self, client: Option<Arc<Client>>) {
        self.client = client;
        for socket in self.sockets.iter().flatten() {
            // Fails only if the owner has exited.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

pub(crate) fn run(role: &Role, control: &Arc<Control>) {
    let new_client = || {
        let client = Client::in_namespace(&Namespace::new(&role.prefix).unwrap());
        Some(Arc::new(client))
    };
    let shared = Arc::new(Mutex::new(Shared {
        client: new_client(),
        sockets: vec![None; OWNERS],
        is_ready: false,
    }));
    let mut threads = Vec::new();
    for owner in 0..OWNERS {
        let follower = Follower {
            owner,
            role: role.clone(),
            control: control.clone(),
            shared: shared.clone(),
            random: fastrand::Rng::with_seed(role.seed.wrapping_add(owner as u64)),
            held: VecDeque::new(),
            counts: Counts::default(),
        };
        threads.push(thread::spawn(move || follower.run()));
    }
    let lock = || shared.lock().expect("no panics");
    loop {
        match control.next() {
            command @ (Command::Measure | Command::Recreate) => {
                if command == Command::Recreate {
                    lock().replace(new_client());
                }
                if let Some(client) = &lock().client {
                    client.unmap_unused();
                }
                control.report(Report::AtRest(Remains {
                    footprint: Footprint::take(&role.prefix),
                    ..Remains::default()
                }));
            }
            Command::Exit(Exit::Orderly) => break,
            other => control.fail(&format!("no command for a peer: {other:?}")),
        }
    }
    lock().replace(None);
    for thread in threads {
        thread.join().expect("a panic would have ended the process");
    }
}

struct Follower {
    owner: usize,
    role: Role,
    control: Arc<Control>,
    shared: Arc<Mutex<Shared>>,
    random: fastrand::Rng,
    held: VecDeque<Held>,
    counts: Counts,
}

struct Held {
    view: ShmView,
    seed: u64,
    has_outlived_its_owner: bool,
}

impl Follower {
    fn run(mut self) {
        let address = address(&self.role.prefix, self.owner).expect("a short name");
        loop {
            // The conductor listens for an owner that has not started yet.
            let socket = Arc::new(UnixStream::connect_addr(&address).expect("a listener"));
            socket
                .set_read_timeout(Some(DEADLINE))
                .expect("a deadline that is not zero");
            // Under one lock: either the connection is found and ended, or the new client is seen
            // here.
            let client = {
                let mut shared = self.lock();
                shared.sockets[self.owner] = Some(socket.clone());
                shared.client.clone()
            };
            let Some(client) = client else { break };
            let seed = self.random.u64(..);
            let receiving = Receiving::start(self.owner, &self.role, &self.control, &client, seed);
            if let Some(why) = self.follow(&socket, &client, &receiving) {
                let end = format!("the end of a connection, after: {why}");
                while self.receive(&socket, &end).is_some() {}
            }
            receiving.end();
            self.lock().sockets[self.owner] = None;
            for held in &mut self.held {
                held.has_outlived_its_owner = true;
            }
            if self.random.bool() {
                self.release_all();
            }
        }
        self.release_all();
        self.report_counts();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no panics")
    }

    fn receive(&self, socket: &UnixStream, what: &str) -> Option<Sent> {
        match wire::receive(socket) {
            Ok(sent) => sent,
            Err(error) => self.fail(&format!("waited in vain for {what}: {error}")),
        }
    }

    /// Follows a connection to its end. Returns why it must end, if it has not yet.
    fn follow(
        &mut self,
        socket: &UnixStream,
        client: &Client,
        receiving: &Receiving,
    ) -> Option<String> {
        let Sent::Hello(provider) = self.receive(socket, "the provider's id")? else {
            self.fail("the first frame is not the provider's id");
        };
        match client.connect(ProviderId::from(provider)) {
            // Not sent if the owner has exited, which the next read detects.
            Ok(peer) => drop(wire::send(socket, &peer.to_bytes())),
            Err(error) => return self.owner_has_exited(&error, "connect"),
        }
        if !std::mem::replace(&mut self.lock().is_ready, true) {
            self.control.report(Report::Ready);
        }
        while let Some(sent) = self.receive(socket, "a message") {
            match sent {
                Sent::Hello(_) => self.fail("a second frame with the provider's id"),
                Sent::Release(number) | Sent::Rest(number) => {
                    self.release_all();
                    self.report_counts();
                    if matches!(sent, Sent::Rest(_)) && !receiving.wait_until_it_rests() {
                        self.fail("the receiver does not come to rest");
                    }
                    let _ = wire::send(socket, &number);
                }
                Sent::Resume(number) => {
                    receiving.resume();
                    let _ = wire::send(socket, &number);
                }
                Sent::Message {
                    sequence,
                    way,
                    may_hold,
                    descriptor,
                } => {
                    let descriptor =
                        Descriptor::from_bytes(descriptor).expect("the socket does no damage");
                    let view = match client.attach(&descriptor) {
                        Ok(view) => Some(view),
                        Err(AttachError::Stale) if way == Way::Fleeting => None,
                        Err(error) => {
                            self.counts.lost += 1;
                            return self.owner_has_exited(
                                &error,
                                &format!("attach to message {sequence} ({way:?})"),
                            );
                        }
                    };
                    // From here on the view alone keeps the message.
                    let confirm = || drop(wire::send(socket, &sequence));
                    if may_hold {
                        confirm();
                    }
                    match view {
                        Some(view) => self.read(view, seed(provider, sequence), may_hold),
                        None => self.counts.stale += 1,
                    }
                    self.do_something_else(client);
                    // After that, this thread does nothing more that is visible from outside.
                    if !may_hold {
                        confirm();
                    }
                }
            }
        }
        None
    }

    /// Fails this process unless the error can be due to an owner that has exited.
    fn owner_has_exited(&self, error: &AttachError, what: &str) -> Option<String> {
        let text = format!("cannot {what}: {error}");
        match error {
            AttachError::Stale
            | AttachError::Closed { .. }
            | AttachError::ProviderDied { .. }
            | AttachError::NoProvider { .. }
            | AttachError::NotAProvider { .. } => Some(text),
            _ => self.fail(&text),
        }
    }

    fn read(&mut self, view: ShmView, seed: u64, may_hold: bool) {
        self.counts.read += 1;
        let held = Held {
            view,
            seed,
            has_outlived_its_owner: false,
        };
        self.check(&held, false);
        if may_hold {
            if self.random.u8(..16) == 0 {
                // Another lease on the same message.
                let view = held.view.try_clone().expect("few views of it");
                self.held.push_back(Held {
                    view,
                    seed,
                    has_outlived_its_owner: false,
                });
            }
            self.held.push_back(held);
        }
        let most = HELD[self.role.post.index % HELD.len()];
        while self.held.len() > most || self.bytes_held() > HELD_BYTES {
            self.release_oldest();
        }
        if self.counts.read >= MESSAGES_PER_REPORT {
            self.report_counts();
        }
    }

    fn bytes_held(&self) -> usize {
        let mut bytes = 0;
        for held in &self.held {
            bytes += held.view.len();
        }
        bytes
    }

    /// Checks every byte of a view.
    fn check(&mut self, held: &Held, again: bool) {
        self.counts.bytes_checked += held.view.len() as u64;
        self.counts.again += u64::from(again);
        self.counts.outlived += u64::from(held.has_outlived_its_owner);
        // The black box makes each check read the memory again.
        if let Err(text) = check_pattern(black_box(&held.view[..]), held.seed) {
            self.counts.torn += 1;
            let when = if again { "while held" } else { "on arrival" };
            self.control.print_problem(&format!("torn, {when}: {text}"));
        }
    }

    fn do_something_else(&mut self, client: &Client) {
        if self.random.u8(..8) == 0 && !self.held.is_empty() {
            let at = self.random.usize(..self.held.len());
            let held = self.held.remove(at).expect("one of those held");
            self.check(&held, true);
            self.held.insert(at, held);
        }
        if self.random.u8(..64) == 0 {
            client.unmap_unused();
        }
    }

    fn release_oldest(&mut self) {
        if let Some(held) = self.held.pop_front() {
            self.check(&held, true);
        }
    }

    fn release_all(&mut self) {
        while !self.held.is_empty() {
            self.release_oldest();
        }
    }

    fn report_counts(&mut self) {
        self.control
            .report(Report::Counted(std::mem::take(&mut self.counts)));
    }

    fn fail(&self, text: &str) -> ! {
        self.control.fail(&format!("owner {}: {text}", self.owner))
    }
}
