//! A peer in a separate process that follows the test's commands: it attaches, compares, releases.

use crate::child::Child;
use crate::shm;
use crate::sys::Ending;
use crate::wire::{Link, Message};
use shm_pool::{AttachError, Client, Descriptor, PeerId, ProviderId, ShmView};
use std::process::ExitStatus;

/// The test's handle of such a peer.
pub(crate) struct Peer {
    child: Child,
}

/// The number of a view in a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View(u64);

impl Peer {
    /// Starts a peer of providers with this prefix.
    pub(crate) fn start(prefix: &str) -> Self {
        Self {
            child: Child::start("peer", &[prefix]),
        }
    }

    /// Wraps a child whose role ends in [`serve`].
    pub(crate) fn of(child: Child) -> Self {
        Self { child }
    }

    /// Calls `Client::connect`. The error is the debug text of the library's.
    pub(crate) fn connect(&self, provider: ProviderId) -> Result<PeerId, String> {
        match self.child.request(&Message::Connect(provider)) {
            Message::Peer(peer) => Ok(peer),
            other => refused(other),
        }
    }

    /// Calls `Client::attach`, and compares all bytes.
    pub(crate) fn attach(&self, descriptor: Descriptor, seed: u64) -> Result<View, String> {
        match self.child.request(&Message::Attach(descriptor, seed)) {
            Message::Number(view) => Ok(View(view)),
            other => refused(other),
        }
    }

    /// Attaches to two messages, each of which has its length as its seed.
    pub(crate) fn attach_both(&self, descriptors: [Descriptor; 2]) -> [View; 2] {
        descriptors.map(|descriptor| self.attach(descriptor, descriptor.payload_len()).unwrap())
    }

    /// Has the peer compare every byte of a view again.
    pub(crate) fn check(&self, view: View) {
        assert_eq!(
            self.child.request(&Message::Check(view.0)),
            Message::Done,
            "a view changed while it was held"
        );
    }

    /// Drops a view.
    pub(crate) fn release(&self, view: View) {
        assert_eq!(self.child.request(&Message::Release(view.0)), Message::Done);
    }

    /// Calls `Client::unmap_unused`.
    pub(crate) fn unmap_unused(&self) -> u64 {
        self.number(&Message::Trim)
    }

    /// Calls `Client::mapped_segments`.
    pub(crate) fn segments(&self) -> u64 {
        self.number(&Message::Segments)
    }

    /// Returns how many objects of the test's providers the process has mapped, by its
    /// /proc/self/maps.
    pub(crate) fn mappings(&self) -> u64 {
        self.number(&Message::Mappings)
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub(crate) fn kill(self) {
        self.child.kill();
    }

    /// Has the peer end itself, and waits until it has exited.
    pub(crate) fn end(self, how: Ending) -> ExitStatus {
        self.child.send(&Message::End(how));
        self.child.ended()
    }

    /// Ends the peer normally: it drops its views and its client.
    pub(crate) fn leave(self) {
        self.child.shut_down();
    }

    /// Returns the process.
    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// Converts into the process.
    pub(crate) fn into_child(self) -> Child {
        self.child
    }

    /// Starts the next step of a role that extends a peer's.
    pub(crate) fn go(&self) -> u64 {
        self.number(&Message::Go)
    }

    fn number(&self, question: &Message) -> u64 {
        match self.child.request(question) {
            Message::Number(number) => number,
            other => panic!("{question:?} was answered by {other:?}"),
        }
    }
}

fn refused<T>(message: Message) -> Result<T, String> {
    match message {
        Message::Refused(text) => Err(text),
        other => panic!("neither an answer nor an error: {other:?}"),
    }
}

role!("peer", role);

/// The role: arguments are the prefix.
fn role(link: &Link, arguments: &[&str]) {
    serve(link, &shm::client(arguments[0]), arguments[0]);
}

/// Answers the test's questions until the last one.
pub(crate) fn serve(link: &Link, client: &Client, prefix: &str) {
    let mut views = Views::new();
    while let Some(question) = link.receive().expect("the child waits without a deadline") {
        link.send(&answer(&question, client, prefix, &mut views));
    }
}

/// A peer's views, each with its message's seed, by number; `None` once dropped.
pub(crate) type Views = Vec<Option<(ShmView, u64)>>;

/// Carries out one request.
pub(crate) fn answer(
    question: &Message,
    client: &Client,
    prefix: &str,
    views: &mut Views,
) -> Message {
    let refused = |error: AttachError| Message::Refused(format!("{error:?}"));
    match *question {
        Message::Connect(provider) => match client.connect(provider) {
            Ok(peer) => Message::Peer(peer),
            Err(error) => refused(error),
        },
        Message::Attach(ref descriptor, seed) => match client.attach(descriptor) {
            Ok(view) => {
                shm::check(&view, seed).expect("a message is whole from the first look on");
                views.push(Some((view, seed)));
                Message::Number(views.len() as u64 - 1)
            }
            Err(error) => refused(error),
        },
        Message::Check(view) => {
            let (view, seed) = views[view as usize]
                .as_ref()
                .expect("a view that is still held");
            match shm::check(view, *seed) {
                Ok(()) => Message::Done,
                Err(text) => Message::Refused(text),
            }
        }
        Message::Release(view) => {
            views[view as usize]
                .take()
                .expect("a view that is still held");
            Message::Done
        }
        Message::Trim => Message::Number(client.unmap_unused() as u64),
        Message::Segments => Message::Number(client.mapped_segments() as u64),
        Message::Mappings => Message::Number(shm::mappings(prefix) as u64),
        Message::End(how) => how.end(),
        ref other => panic!("not a question: {other:?}"),
    }
}
