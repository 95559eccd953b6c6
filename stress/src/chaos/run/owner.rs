//! The owner process: builds a provider, lets peers in, obeys the conductor.

#![forbid(unsafe_code)]

use super::hub::Hub;
use super::publisher::Publisher;
use super::sys;
use super::wire::{Command, Exit, Footprint, Quiet, Sent, Word, DEADLINE};
use super::worker::{Control, Role};
use shm_pool::{PeerId, Provider, ProviderId};
use shm_pool_support::wire;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

/// Few, so that a run covers the reuse of records.
const MAX_SHARED: usize = 1024;

/// Small, so that arenas come and go, and that messages of a few pages have segments of their own.
const ARENA_SIZE: usize = 256 << 10;

pub(crate) fn run(role: &Role, control: &Arc<Control>) {
    let listener = sys::copy_inherited(role.listener).unwrap_or_else(|error| control.fail(&error.to_string()));
    let builder = Provider::builder().name_prefix(&role.prefix).max_bytes(role.max_bytes);
    let built = builder.max_shared(MAX_SHARED).arena_size(ARENA_SIZE).build();
    let provider = Arc::new(built.unwrap_or_else(|error| control.fail(&format!("cannot build: {error}"))));
    control.say(Word::Ready);

    let hub = Arc::new(Hub::new(control.clone()));
    let (listener, to_hub, id) = (UnixListener::from(listener), hub.clone(), provider.id());
    thread::spawn(move || let_in(&listener, &to_hub, id));
    let publisher = Publisher::new(role, control.clone(), hub.clone(), provider.clone());
    let publishing = thread::spawn(move || publisher.run());

    let mut random = fastrand::Rng::with_seed(role.seed);
    loop {
        match control.next() {
            Command::Quiesce(peers) => {
                hub.quiesce(&provider, peers as usize);
                control.say(Word::Quiet(what_is_left(&provider, &role.prefix)));
            }
            Command::Resume => hub.resume(),
            Command::Exit(Exit::Orderly) => break,
            other => control.fail(&format!("an owner is not to be told {other:?}")),
        }
    }
    hub.end();
    publishing.join().expect("a panic would have ended the process");
    // Peers may notice the one first or the other.
    if random.bool() {
        hub.hang_up();
        drop(provider);
    } else {
        drop(provider);
        hub.hang_up();
    }
}

/// One after the other: who is in has nobody waiting before it.
fn let_in(listener: &UnixListener, hub: &Arc<Hub>, provider: ProviderId) {
    loop {
        let (socket, _) = listener.accept().expect("a listener");
        socket.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
        if wire::send(&socket, &Sent::Hello(provider.to_u64())).is_err() {
            continue;
        }
        match wire::receive(&socket) {
            Ok(Some(peer)) => hub.admit(socket, PeerId::from_bytes(peer)),
            Ok(None) => {}
            Err(error) => panic!("a peer that does not introduce itself: {error}"),
        }
    }
}

fn what_is_left(provider: &Provider, prefix: &str) -> Quiet {
    provider.reclaim();
    let (leased, in_use) = (provider.stats().bytes_leased as u64, provider.stats().bytes_in_use as u64);
    provider.trim();
    let stats = provider.stats();
    let (held, peak) = (stats.bytes_held as u64, stats.peak_bytes_held as u64);
    Quiet { leased, in_use, held, peak, footprint: Footprint::take(prefix) }
}
