//! Peers that are slow, or are killed with views and grants, or exit without releasing them: the
//! owner reclaims its memory and the slot, and no other peer loses any (D4, D5).

use crate::child::{in_child, Child};
use crate::peer::{Peer, View};
use crate::shm::{self, Names};
use crate::sys::{self, Ending};
use crate::threads::SetOnDrop;
use crate::wire::{Link, Message};
use shm_pool::{
    AllocError, AttachError, Client, Namespace, PeerId, Provider, ProviderId, ShareError, ShmBytes,
    ShmView, Tuning,
};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::{hint, thread};

/// The most views of one message in one client, and the most grants of one to a peer.
const VIEWS: usize = 31;
const GRANTS: usize = 7;

/// The number of messages that only the victim leases, and of those that the survivors lease too.
const LOST: usize = 2;
const KEPT: usize = 2;

/// A provider at its cap: each message is leased by peers or held by the owner.
struct Scene {
    provider: Provider,
    len: usize,
    victim: Option<Peer>,
    victim_id: PeerId,
    survivors: Vec<(Peer, View)>,
    held: Vec<ShmBytes>,
}

impl Scene {
    fn new(names: &Names, len: usize, max_bytes: usize) -> Self {
        let provider = names
            .provider()
            .max_bytes(max_bytes)
            .tuning(Tuning::new().arena_size(64 << 10))
            .build()
            .unwrap();
        let victim = Peer::start(names.prefix());
        let victim_id = victim.connect(provider.id()).unwrap();
        // As many views and grants as possible: the victim's counters are full.
        let viewed = shm::message(&provider, len, 0);
        let granted = shm::message(&provider, len, 1);
        for _ in 0..VIEWS {
            victim.attach(viewed.descriptor().unwrap(), 0).unwrap();
        }
        for _ in 0..GRANTS {
            viewed.grant(victim_id).unwrap();
            granted.grant(victim_id).unwrap();
        }
        let one_more = granted.grant(victim_id).unwrap_err();
        assert_eq!(one_more, ShareError::TooManyGrants(victim_id));
        // The victim leases the survivors' messages, too.
        let mut survivors = Vec::new();
        for seed in [2, 3] {
            let survivor = Peer::start(names.prefix());
            let message = shm::message(&provider, len, seed);
            victim.attach(message.descriptor().unwrap(), seed).unwrap();
            message.grant(victim_id).unwrap();
            let view = survivor
                .attach(message.descriptor().unwrap(), seed)
                .unwrap();
            survivors.push((survivor, view));
        }
        drop((viewed, granted));
        let mut held = Vec::new();
        while let Ok(buffer) = provider.alloc(len) {
            held.push(buffer.freeze());
        }
        let scene = Self {
            provider,
            len,
            victim: Some(victim),
            victim_id,
            survivors,
            held,
        };
        scene.assert_exhausted(LOST + KEPT);
        scene
    }

    fn kill_the_victim(&mut self) {
        self.victim.take().expect("a victim that lives").kill();
    }

    /// Has the victim end itself without releasing anything.
    fn end_the_victim(&mut self, how: Ending) {
        let status = self.victim.take().expect("a victim that lives").end(how);
        let expected = match how {
            Ending::Kill => (None, Some(libc::SIGKILL)),
            Ending::Abort => (None, Some(libc::SIGABRT)),
            Ending::Exit => (Some(0), None),
            Ending::Fault => (None, Some(libc::SIGSEGV)),
        };
        assert_eq!((status.code(), status.signal()), expected, "{how:?}");
    }

    fn assert_exhausted(&self, leased_messages: usize) {
        let error = self
            .provider
            .alloc(self.len)
            .expect_err("the cap is reached");
        let AllocError::Exhausted { leased, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(leased, leased_messages * self.len);
    }

    /// Checks that the victim's own messages can be reused, and those of the survivors only after
    /// they release them.
    fn assert_only_the_victims_memory_is_free(mut self) {
        for _ in 0..LOST {
            let mut buffer = self.provider.alloc(self.len).unwrap();
            buffer.fill(0xee);
            self.held.push(buffer.freeze());
        }
        self.assert_exhausted(KEPT);
        for (survivor, view) in &self.survivors {
            survivor.check(*view);
        }
        let refused = self.held[0].grant(self.victim_id).unwrap_err();
        assert_eq!(
            refused,
            ShareError::PeerDisconnected(self.victim_id),
            "a grant to the dead would be lost"
        );
        for (survivor, view) in &self.survivors {
            survivor.release(*view);
        }
        let mut last = Vec::new();
        for _ in 0..KEPT {
            last.push(self.provider.alloc(self.len).unwrap());
        }
        self.assert_exhausted(0);
        drop(last);
    }
}

/// Guards against losing large chunks, and in the end the whole cap, to crashing peers.
#[test]
fn alloc_reclaims_segments() {
    let names = Names::new("killed-large");
    let mut scene = Scene::new(&names, 256 << 10, 2 << 20);
    scene.kill_the_victim();
    scene.assert_only_the_victims_memory_is_free();
}

#[test]
fn alloc_reclaims_chunks() {
    let names = Names::new("killed-small");
    let mut scene = Scene::new(&names, 4 << 10, 64 << 10);
    scene.kill_the_victim();
    scene.assert_only_the_victims_memory_is_free();
}

/// A killed peer's memory returns to the system even if its owner needs none.
#[test]
fn trim_reclaims() {
    let names = Names::new("killed-trim");
    let mut scene = Scene::new(&names, 256 << 10, 2 << 20);
    let before = scene.provider.stats();
    assert_eq!(
        scene.provider.trim(),
        0,
        "nothing is free while the victim lives"
    );
    scene.kill_the_victim();
    assert_eq!(scene.provider.trim(), LOST * scene.len);
    let after = scene.provider.stats();
    assert_eq!(after.bytes_held, before.bytes_held - LOST * scene.len);
    assert_eq!(after.bytes_leased, KEPT * scene.len);
    scene.assert_only_the_victims_memory_is_free();
}

#[test]
fn trim_spares_living_peer() {
    let names = Names::new("killed-not");
    let provider = names.provider().max_bytes(1 << 20).build().unwrap();
    let peer = Peer::start(names.prefix());
    let id = peer.connect(provider.id()).unwrap();
    let viewed = shm::message(&provider, 100_000, 1);
    let granted = shm::message(&provider, 100_000, 2);
    let view = peer.attach(viewed.descriptor().unwrap(), 1).unwrap();
    let descriptor = granted.grant(id).unwrap();
    drop((viewed, granted));
    provider.trim();
    let mut all: Vec<_> = std::iter::from_fn(|| provider.alloc(100_000).ok()).collect();
    for buffer in &mut all {
        buffer.fill(0);
    }
    peer.check(view);
    peer.attach(descriptor, 2).unwrap();
}

/// A peer that crashes, or leaves by `exit` as C programs do, costs no more than a killed one.
#[test]
fn alloc_after_any_end() {
    for how in Ending::ALL {
        let names = Names::new(&format!("ends-{how:?}"));
        let mut scene = Scene::new(&names, 256 << 10, 2 << 20);
        scene.end_the_victim(how);
        scene.assert_only_the_victims_memory_is_free();
    }
}

#[test]
fn reclaim_after_any_end() {
    for how in Ending::ALL {
        let names = Names::new(&format!("reclaimed-{how:?}"));
        let mut scene = Scene::new(&names, 4 << 10, 64 << 10);
        assert_eq!(scene.provider.reclaim(), 0, "everybody lives");
        assert_eq!(
            scene.provider.stats().bytes_leased,
            (LOST + KEPT) * scene.len
        );
        scene.end_the_victim(how);
        assert_eq!(
            scene.provider.stats().bytes_leased,
            (LOST + KEPT) * scene.len,
            "nobody has looked yet"
        );
        assert_eq!(
            scene.provider.reclaim(),
            LOST + KEPT,
            "{how:?}: each message once, however often it was leased"
        );
        assert_eq!(scene.provider.reclaim(), 0, "all was found at once");
        assert_eq!(
            scene.provider.stats().bytes_leased,
            KEPT * scene.len,
            "{how:?}: what the survivors hold"
        );
        for (survivor, view) in &scene.survivors {
            survivor.check(*view);
        }
        scene.assert_only_the_victims_memory_is_free();
    }
}

// ---- peers that are killed while they leave -----------------------------------------------------

/// Where a control object's header has the number of records ever used, and the slots' epochs.
const HIGH_WATER: u64 = 28;
const EPOCHS: u64 = 32;

fn control(names: &Names, provider: ProviderId) -> File {
    let path = shm::path(&format!("{}.{provider}.ctl", names.prefix()));
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("the control object has its documented name")
}

fn epoch(peer: PeerId) -> u64 {
    let bytes = peer.to_bytes();
    u64::from_le_bytes(std::array::from_fn(|at| bytes[8 + at]))
}

fn with_epoch(peer: PeerId, epoch: u64) -> PeerId {
    let mut bytes = peer.to_bytes();
    bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
    PeerId::from_bytes(bytes)
}

/// What a peer held is reclaimed without waiting for another peer to take its slot.
#[test]
fn killed_during_disconnect() {
    let names = Names::new("leaving");
    let provider = names.provider().build().unwrap();
    let control = control(&names, provider.id());
    let victim = Peer::start(names.prefix());
    let dead = victim.connect(provider.id()).unwrap();
    let read = shm::message(&provider, 5_000, 1);
    let granted = shm::message(&provider, 5_000, 2);
    victim.attach(read.descriptor().unwrap(), 1).unwrap();
    let untaken = granted.grant(dead).unwrap();
    victim.kill();
    // The first step of leaving. The victim never gets to the second.
    let at = EPOCHS + 8 * u64::from(dead.slot());
    let mut word = [0; 8];
    control.read_exact_at(&mut word, at).unwrap();
    assert_eq!(
        u64::from_le_bytes(word),
        epoch(dead),
        "the header has the slot's epoch elsewhere"
    );
    control
        .write_all_at(&(epoch(dead) + 1).to_le_bytes(), at)
        .unwrap();

    assert!(
        read.is_leased() && granted.is_leased(),
        "nobody has looked yet"
    );
    assert_eq!(
        granted.grant(dead),
        Err(ShareError::PeerDisconnected(dead)),
        "it had begun to leave"
    );
    assert_eq!(
        (provider.reclaim(), provider.reclaim()),
        (2, 0),
        "both messages, and once"
    );
    assert!(!read.is_leased() && !granted.is_leased());

    let next = Peer::start(names.prefix());
    let living = next.connect(provider.id()).unwrap();
    assert_eq!(living.slot(), dead.slot(), "the test needs the slot again");
    assert_eq!(
        next.attach(untaken, 2).unwrap_err(),
        "NotGranted",
        "a grant is not inherited"
    );
    assert_eq!(granted.grant(dead), Err(ShareError::PeerDisconnected(dead)));
    let own = granted.grant(living).unwrap();
    assert_eq!(provider.reclaim(), 0, "the slot is a living peer's now");
    let view = next
        .attach(own, 2)
        .expect("the living peer's grant is there");
    assert!(granted.is_leased());
    next.release(view);
    assert!(!granted.is_leased());
}

/// Guards against a grant to a forged or damaged id, whose message would never become free again.
#[test]
fn no_grant_to_empty_slot() {
    let names = Names::new("leaving-ids");
    let provider = names.provider().build().unwrap();
    let message = shm::message(&provider, 5_000, 3);
    let peer = Peer::start(names.prefix());
    let id = peer.connect(provider.id()).unwrap();
    peer.kill();
    provider.reclaim();
    let mut never_taken = id.to_bytes();
    never_taken[16] = 63;
    let never_taken = PeerId::from_bytes(never_taken);
    let mut epochs: Vec<u64> = (0..=epoch(id) + 8).collect();
    epochs.extend([u64::MAX, u64::MAX - 3, 1 << 48, 3 << 48]);
    for epoch in epochs {
        for id in [with_epoch(id, epoch), with_epoch(never_taken, epoch)] {
            assert_eq!(message.grant(id), Err(ShareError::PeerDisconnected(id)));
            assert!(!message.is_leased(), "a refused grant leaves nothing");
        }
    }
}

/// A rogue peer cannot shorten the owner's search for leases of the dead.
#[test]
fn forged_slot_state() {
    let names = Names::new("leaving-wild");
    let provider = names.provider().build().unwrap();
    let victim = Peer::start(names.prefix());
    let mut messages = Vec::new();
    for seed in 0..5 {
        let message = shm::message(&provider, 5_000, seed);
        victim.attach(message.descriptor().unwrap(), seed).unwrap();
        messages.push(message);
    }
    let control = control(&names, provider.id());
    let mut word = [0; 4];
    control.read_exact_at(&mut word, HIGH_WATER).unwrap();
    assert_eq!(
        u32::from_le_bytes(word),
        5,
        "the header has the number of used records elsewhere"
    );
    control.write_all_at(&[0; 4], HIGH_WATER).unwrap();
    victim.kill();
    assert_eq!(provider.reclaim(), messages.len());
    assert!(messages.iter().all(|message| !message.is_leased()));
}

// ---- the 64 slots (D5) --------------------------------------------------------------------------

const PEERS: usize = 64;

/// A new peer is not mistaken for a dead one with grants.
#[test]
fn killed_peer_frees_slot() {
    let names = Names::new("slots");
    let provider = names.provider().build().unwrap();
    let victim = Peer::start(names.prefix());
    let dead = victim.connect(provider.id()).unwrap();
    let mut clients = Vec::new();
    for _ in 1..PEERS {
        let client = names.client();
        let id = client.connect(provider.id()).unwrap();
        clients.push((client, id));
    }
    let one_more = names.client();
    let refused = one_more.connect(provider.id()).unwrap_err();
    assert!(matches!(refused, AttachError::TooManyPeers(_)), "{refused}");

    let message = shm::message(&provider, 20_000, 1);
    victim.attach(message.descriptor().unwrap(), 1).unwrap();
    let untaken = message.grant(dead).unwrap();
    victim.kill();

    let living = one_more.connect(provider.id()).unwrap();
    assert_eq!(living.slot(), dead.slot(), "there is no other");
    assert!(
        !message.is_leased(),
        "who takes a slot over clears what its last peer held"
    );
    assert_eq!(
        message.grant(dead),
        Err(ShareError::PeerDisconnected(dead)),
        "the dead one's id is not the new one's"
    );
    assert!(!message.is_leased(), "a refused grant leaves nothing");
    let refused = one_more.attach(&untaken).unwrap_err();
    assert!(
        matches!(refused, AttachError::NotGranted),
        "a grant is not inherited: {refused}"
    );

    for (client, id) in &clients {
        let view = client.attach(&message.grant(*id).unwrap()).unwrap();
        shm::check(&view, 1).unwrap();
    }
    let view = one_more.attach(&message.grant(living).unwrap()).unwrap();
    assert!(message.is_leased());
    drop(view);
    assert!(!message.is_leased());
}

#[test]
fn killed_peers_share_slot() {
    let names = Names::new("slots-again");
    let provider = names.provider().build().unwrap();
    let message = shm::message(&provider, 5_000, 9);
    let mut ids = Vec::new();
    for _ in 0..5 {
        let peer = Peer::start(names.prefix());
        peer.attach(message.descriptor().unwrap(), 9).unwrap();
        ids.push(peer.connect(provider.id()).unwrap());
        peer.kill();
    }
    assert!(ids.iter().all(|id| id.slot() == ids[0].slot()), "{ids:?}");
    assert!(
        message.is_leased(),
        "nobody has looked since the last one died"
    );
    drop(message);
    assert_eq!(
        provider.stats().bytes_leased,
        provider.stats().classes[0].size
    );
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

/// With all 64 slots taken, another process never shares a slot, and joins once a slot is free.
#[test]
fn sixty_fifth_peer() {
    let names = Names::new("slots-65");
    let provider = names.provider().build().unwrap();
    let message = shm::message(&provider, 5_000, 65);
    let descriptor = message.descriptor().unwrap();
    let mut peers = Vec::new();
    for slot in 0..PEERS as u8 {
        let peer = Peer::start(names.prefix());
        assert_eq!(
            peer.connect(provider.id()).unwrap().slot(),
            slot,
            "one slot each, the first that is free"
        );
        peers.push(Some(peer));
    }
    let mut views = Vec::new();
    for peer in &peers {
        let peer = peer.as_ref().expect("all are there");
        views.push(peer.attach(descriptor, 65).unwrap());
    }

    type Goes = fn(Peer);
    let ways: [(usize, Goes); 3] = [(40, Peer::kill), (63, Peer::leave), (0, Peer::kill)];
    let late = Peer::start(names.prefix());
    let mut latecomers = vec![late];
    for (slot, goes) in ways {
        let late = latecomers.last().expect("one was pushed");
        for refused in [
            late.connect(provider.id()).unwrap_err(),
            late.attach(descriptor, 65).unwrap_err(),
        ] {
            assert!(refused.starts_with("TooManyPeers"), "{refused}");
        }
        assert_eq!(late.mappings(), 0, "a refused peer keeps no mapping");
        goes(peers[slot].take().expect("each slot is left once"));
        assert_eq!(
            usize::from(late.connect(provider.id()).unwrap().slot()),
            slot,
            "there is no other"
        );
        late.attach(descriptor, 65).unwrap();
        latecomers.push(Peer::start(names.prefix()));
    }
    assert_eq!(provider.reclaim(), 0, "who took the slots has cleared them");
    for (slot, peer) in peers.iter().enumerate() {
        if let Some(peer) = peer {
            peer.check(views[slot]);
        }
    }
    drop((peers, latecomers));
    assert_eq!(
        provider.reclaim(),
        PEERS,
        "all were killed with a view of the message"
    );
    assert!(!message.is_leased());
}

// ---- slow peers (D3) ----------------------------------------------------------------------------

#[test]
fn held_segment() {
    let names = Names::new("slow-large");
    hold_while_publishing(&names, 1 << 20, 4 << 20);
}

#[test]
fn held_chunk() {
    let names = Names::new("slow-small");
    hold_while_publishing(&names, 4 << 10, 64 << 10);
}

fn hold_while_publishing(names: &Names, len: usize, max_bytes: usize) {
    let provider = names.provider().max_bytes(max_bytes).build().unwrap();
    let slow = Peer::start(names.prefix());
    let other = Peer::start(names.prefix());
    let held = shm::message(&provider, len, 1);
    let address = held.as_ptr() as usize;
    let view = slow.attach(held.descriptor().unwrap(), 1).unwrap();
    drop(held);
    assert_eq!(provider.stats().bytes_leased, len);

    // Each round publishes two messages.
    let rounds = 50 * max_bytes / len;
    for round in 2..2 + rounds as u64 {
        publish(&provider, &other, len, round);
        if round % 20 == 0 {
            slow.check(view);
        }
    }
    assert!(
        !all_addresses(&provider, len).contains(&address),
        "handed out while a peer holds it"
    );
    slow.check(view);

    slow.release(view);
    assert_eq!(provider.stats().bytes_leased, 0);
    assert!(
        all_addresses(&provider, len).contains(&address),
        "never used again"
    );
}

/// Publishes two messages. Over the rounds, some are never shared, some are sent to no peer, and
/// some are read by another peer.
fn publish(provider: &Provider, other: &Peer, len: usize, seed: u64) {
    let mut first = provider.alloc(len).unwrap();
    let mut second = provider.alloc(len).unwrap();
    second.fill(seed as u8);
    match seed % 16 {
        0 => {
            shm::fill(&mut first, seed);
            let first = first.freeze();
            let read = other.attach(first.descriptor().unwrap(), seed).unwrap();
            drop(first);
            other.release(read);
        }
        1..=9 => {
            first.fill(!seed as u8);
            first.freeze().descriptor().unwrap();
        }
        _ => {}
    }
}

/// Returns the addresses of all buffers of one length that can be held at the same time.
fn all_addresses(provider: &Provider, len: usize) -> HashSet<usize> {
    let buffers: Vec<_> = std::iter::from_fn(|| provider.alloc(len).ok()).collect();
    buffers
        .iter()
        .map(|buffer| buffer.as_ptr() as usize)
        .collect()
}

// ---- concurrent reclaims ------------------------------------------------------------------------
// One of two threads that look for dead peers is stopped halfway. A living peer that has meanwhile
// taken a dead one's slot must not be mistaken for the dead one.

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
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_shared(MESSAGES)
            .build()
            .unwrap();
        let mut messages = Vec::new();
        let mut descriptors = Vec::new();
        for _ in 0..MESSAGES {
            let message = provider.alloc(64).unwrap().freeze();
            descriptors.push(message.descriptor().unwrap());
            messages.push(message);
        }
        for _ in 0..ROUNDS {
            let peers = Child::start("reclaimed", &[prefix]);
            for descriptor in &descriptors[..DEAD] {
                peers.send(&Message::Sent(*descriptor));
            }
            peers.expect_done();
            peers.kill();
            round(prefix, &provider, &messages);
        }
    });
}

role!("reclaimed", peers);

/// The role of the peers that die: clients that each have a view of a different message.
fn peers(link: &Link, arguments: &[&str]) {
    let mut views = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..DEAD {
        let client = shm::client(arguments[0]);
        views.push(client.attach(&link.sent()).unwrap());
        clients.push(client);
    }
    link.send(&Message::Done);
    while link.receive().unwrap().is_some() {}
    drop(views);
}

/// Living peers take the slots of the dead. They keep their leases, and can be granted more.
fn round(prefix: &str, provider: &Provider, messages: &[ShmBytes]) {
    let clients: Vec<Client> = (0..LIVING).map(|_| shm::client(prefix)).collect();
    // The last messages: a search through all of them gets to these late.
    let leased = &messages[messages.len() - LIVING..];
    let views = attach_while_reclaiming(provider, messages, &clients, leased);
    for (client, message) in clients.iter().zip(leased) {
        let id = client.connect(provider.id()).unwrap();
        assert!(
            message.is_leased(),
            "the lease of living peer {id} was taken back"
        );
        let granted = message.grant(id).expect("a living peer");
        client
            .attach(&granted)
            .unwrap_or_else(|error| panic!("the grant of living peer {id} is lost: {error}"));
    }
    drop((views, clients));
    provider.reclaim();
    assert!(
        messages.iter().all(|message| !message.is_leased()),
        "a lease is left"
    );
}

/// Stops a thread while it reclaims what a dead peer held, and lets another thread do the same
/// while new peers join.
fn attach_while_reclaiming(
    provider: &Provider,
    messages: &[ShmBytes],
    clients: &[Client],
    leased: &[ShmBytes],
) -> Vec<ShmView> {
    let is_over = AtomicBool::new(false);
    let (sender, threads) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.send(sys::this_thread()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                provider.reclaim();
            }
        });
        let _over = SetOnDrop(&is_over);
        let thread = threads.recv().unwrap();
        // When this ends, the thread is clearing the second dead peer's slot, or has just done so.
        while messages[1].is_leased() {
            hint::spin_loop();
        }
        let stopped = sys::stop(thread);
        scope.spawn(|| provider.reclaim());
        let mut views = Vec::new();
        for (client, message) in clients.iter().zip(leased) {
            views.push(client.attach(&message.descriptor().unwrap()).unwrap());
        }
        drop(stopped);
        views
    })
}
