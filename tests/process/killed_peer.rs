//! A peer is killed with views and grants, or exits in another way without releasing them: the
//! owner reclaims its memory, and no other peer loses any (D4, D5).

use crate::peer::{Peer, View};
use crate::shm::{self, Names};
use crate::spaces::Ending;
use shm_pool::{AllocErrorKind, PeerId, Provider, ShareError, ShmBuf};
use std::os::unix::process::ExitStatusExt;

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
    survivors: [(Peer, View); KEPT],
    held: Vec<ShmBuf>,
}

impl Scene {
    fn new(names: &Names, len: usize, max_bytes: usize) -> Self {
        let provider = names.provider().max_bytes(max_bytes).arena_size(64 << 10).build().unwrap();
        let victim = Peer::start(names.prefix());
        let victim_id = victim.connect(provider.id()).unwrap();
        // As many views and grants as possible: the victim's counters are full.
        let (viewed, granted) = (message(&provider, len, 0), message(&provider, len, 1));
        for _ in 0..VIEWS {
            victim.attach(viewed.descriptor().unwrap(), 0).unwrap();
        }
        for _ in 0..GRANTS {
            viewed.grant(victim_id).unwrap();
            granted.grant(victim_id).unwrap();
        }
        let one_more = granted.grant(victim_id).unwrap_err();
        assert_eq!(one_more, ShareError::TooManyGrants { peer: victim_id, max: GRANTS });
        // The victim leases the survivors' messages, too.
        let survivors = [2, 3].map(|seed| {
            let survivor = Peer::start(names.prefix());
            let message = message(&provider, len, seed);
            victim.attach(message.descriptor().unwrap(), seed).unwrap();
            message.grant(victim_id).unwrap();
            let view = survivor.attach(message.descriptor().unwrap(), seed).unwrap();
            (survivor, view)
        });
        drop((viewed, granted));
        let held: Vec<_> = std::iter::from_fn(|| provider.alloc(len).ok().map(ShmBuf::from)).collect();
        let scene = Self { provider, len, victim: Some(victim), victim_id, survivors, held };
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
        let error = self.provider.alloc(self.len).expect_err("the cap is reached");
        let AllocErrorKind::Exhausted { leased, .. } = *error.kind() else { panic!("{error}") };
        assert_eq!(leased, leased_messages * self.len);
    }

    /// Checks that what only the victim held can be reused, and what the survivors hold only after
    /// they release it.
    fn assert_only_the_victims_memory_is_free(mut self) {
        for _ in 0..LOST {
            let mut buffer = self.provider.alloc(self.len).unwrap();
            buffer.fill(0xee);
            self.held.push(buffer.freeze());
        }
        self.assert_exhausted(KEPT);
        self.survivors.iter().for_each(|(survivor, view)| survivor.check(*view));
        let refused = self.held[0].grant(self.victim_id).unwrap_err();
        assert_eq!(refused, ShareError::PeerGone(self.victim_id), "a grant to the dead would be lost");
        self.survivors.iter().for_each(|(survivor, view)| survivor.release(*view));
        let last = [(); KEPT].map(|()| self.provider.alloc(self.len).unwrap());
        self.assert_exhausted(0);
        drop(last);
    }
}

fn message(provider: &Provider, len: usize, seed: u64) -> ShmBuf {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, seed);
    buffer.freeze()
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
    assert_eq!(scene.provider.trim(), 0, "nothing is free while the victim lives");
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
    let (viewed, granted) = (message(&provider, 100_000, 1), message(&provider, 100_000, 2));
    let view = peer.attach(viewed.descriptor().unwrap(), 1).unwrap();
    let descriptor = granted.grant(id).unwrap();
    drop((viewed, granted));
    provider.trim();
    let mut all: Vec<_> = std::iter::from_fn(|| provider.alloc(100_000).ok()).collect();
    all.iter_mut().for_each(|buffer| buffer.fill(0));
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
        assert_eq!(scene.provider.stats().bytes_leased, (LOST + KEPT) * scene.len);
        scene.end_the_victim(how);
        assert_eq!(scene.provider.stats().bytes_leased, (LOST + KEPT) * scene.len, "nobody has looked yet");
        assert_eq!(scene.provider.reclaim(), LOST + KEPT, "{how:?}: each message once, however often it was leased");
        assert_eq!(scene.provider.reclaim(), 0, "all was found at once");
        assert_eq!(scene.provider.stats().bytes_leased, KEPT * scene.len, "{how:?}: what the survivors hold");
        scene.survivors.iter().for_each(|(survivor, view)| survivor.check(*view));
        scene.assert_only_the_victims_memory_is_free();
    }
}
