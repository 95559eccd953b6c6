//! Two threads of an owner look for dead peers at the same time, and one is stopped halfway. A
//! living peer that has meanwhile taken a dead one's slot must not be mistaken for the dead one.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{Client, Provider, ShmBuf, ShmView};
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// Enough that the thread is stopped at the critical point in at least one of them.
const ROUNDS: usize = 4;

/// How many peers die in a round, each in its own slot, and how many join after them.
const DEAD: usize = 16;
const LIVING: usize = 32;

/// Shared messages, all of which are searched for leases of each dead peer. There are so many that
/// a reclaim spends most of its time on that.
const MESSAGES: usize = 8_000;

/// A new peer keeps its leases, so its messages are not overwritten while it reads them.
#[test]
fn slot_reuse_during_reclaims() {
    let names = Names::new("reclaim");
    let child = Child::start("reclaims", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

role!("reclaimed", peers);

/// The role of the peers that die: clients that each have a view of a different message. The
/// argument is the prefix.
fn peers(link: &Link, arguments: &[&str]) {
    let clients = [(); DEAD].map(|()| shm::client(arguments[0]));
    let attach = |client: &Client| match link.receive().unwrap() {
        Some(Message::Sent(descriptor)) => client.attach(&descriptor).unwrap(),
        other => panic!("not a message: {other:?}"),
    };
    let views: Vec<_> = clients.iter().map(attach).collect();
    link.send(&Message::Done);
    while link.receive().unwrap().is_some() {}
    drop(views);
}

role!("reclaims", role);

/// The role of the owner, in whose process a thread is stopped.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).max_shared(MESSAGES).build().unwrap();
    let messages: Vec<ShmBuf> = (0..MESSAGES).map(|_| provider.alloc(64).unwrap().freeze()).collect();
    let descriptors: Vec<_> = messages.iter().map(|message| message.descriptor().unwrap()).collect();
    for _ in 0..ROUNDS {
        let peers = Child::start("reclaimed", &[prefix]);
        descriptors[..DEAD].iter().for_each(|descriptor| peers.tell(&Message::Sent(*descriptor)));
        peers.expect_done();
        peers.kill();
        round(prefix, &provider, &messages);
    }
    link.send(&Message::Done);
}

/// Living peers take the slots of the dead. They keep their leases, and can be granted more.
fn round(prefix: &str, provider: &Provider, messages: &[ShmBuf]) {
    let clients: Vec<Client> = (0..LIVING).map(|_| shm::client(prefix)).collect();
    // The last messages: a search through all of them gets to these late.
    let leased = &messages[messages.len() - LIVING..];
    let views = attach_while_reclaiming(provider, messages, &clients, leased);
    for (client, message) in clients.iter().zip(leased) {
        let id = client.connect(provider.id()).unwrap();
        assert!(message.is_leased(), "the lease of living peer {id} was taken back");
        let granted = message.grant(id).unwrap_or_else(|error| panic!("a living peer: {error}"));
        client.attach(&granted).unwrap_or_else(|error| panic!("the grant of living peer {id} is lost: {error}"));
    }
    drop((views, clients));
    provider.reclaim();
    assert!(messages.iter().all(|message| !message.is_leased()), "a lease is left");
}

/// Ends the thread that reclaims, also when the peers fail.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stops a thread while it reclaims what a dead peer held, and lets another thread do the same
/// while new peers join.
fn attach_while_reclaiming(
    provider: &Provider,
    messages: &[ShmBuf],
    clients: &[Client],
    leased: &[ShmBuf],
) -> Vec<ShmView> {
    let (is_over, (to_tell, told)) = (AtomicBool::new(false), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| {
            to_tell.send(sys::this_thread()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                provider.reclaim();
            }
        });
        let _over = SetOnDrop(&is_over);
        let thread = told.recv().unwrap();
        // When this ends, the thread is clearing the second dead peer's slot, or has just done so.
        while messages[1].is_leased() {
            hint::spin_loop();
        }
        let stopped = sys::stop(thread);
        scope.spawn(|| provider.reclaim());
        let pairs = clients.iter().zip(leased);
        let views = pairs.map(|(client, message)| client.attach(&message.descriptor().unwrap()).unwrap()).collect();
        drop(stopped);
        views
    })
}
