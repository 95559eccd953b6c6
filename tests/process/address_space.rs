//! Too little address space (`ulimit -v`), as in a process that maps too much: the error says so,
//! and everything done before it is undone (D9).

use crate::child::Child;
use crate::shm::{self, Names};
use crate::spaces::{with_address_space, with_private_memory};
use crate::wire::{Link, Message};
use shm_pool::{AllocErrorKind, AttachError, BuildError, OsError, Provider, ProviderBuilder, ShareError};

/// How much more may be mapped: enough for the heap, too little for any object.
const LITTLE: u64 = 512 << 10;

const LEN: usize = 4 << 20;
const ROUNDS: usize = 20;

/// Otherwise an owner at its limit loses memory or descriptors at each attempt, or dies of a
/// signal.
#[test]
fn an_owner_that_can_map_no_more_is_told_so_and_loses_nothing() {
    run("address-space-of-an-owner", "space-owner");
}

/// Otherwise a peer at its limit keeps slots or leases that it cannot use, and loses what was
/// granted to it.
#[test]
fn a_peer_that_can_map_no_more_is_told_so_and_keeps_neither_slot_nor_lease() {
    run("address-space-of-a-peer", "space-peer");
}

fn run(role: &str, test: &str) {
    let names = Names::new(test);
    let child = Child::start(role, &[names.prefix()]);
    child.expect_done();
    child.finish();
}

/// The control object takes 2 MiB, and the first arena 4 MiB.
fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder().name_prefix(prefix).max_bytes(32 << 20).arena_size(LEN).max_shared(16 << 10)
}

fn state(prefix: &str) -> (usize, usize, Vec<String>) {
    (shm::open_descriptors(), shm::mappings(prefix), shm::objects(prefix))
}

fn assert_no_space(error: &OsError) {
    assert_eq!((error.call(), error.errno()), ("mmap", Some(libc::ENOMEM)), "{error}");
    assert!(error.to_string().contains("ulimit -v"), "{error}");
}

pub(crate) fn owner(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let before = state(prefix);
    for _ in 0..ROUNDS {
        let refused = with_address_space(LITTLE, || builder(prefix).build());
        let Err(BuildError::Os(error)) = refused else { panic!("{refused:?}") };
        assert_no_space(&error);
        assert_eq!(state(prefix), before);
    }
    let provider = builder(prefix).build().unwrap();
    let built = state(prefix);
    for len in [LEN, LEN / 2].repeat(ROUNDS) {
        let error = with_address_space(LITTLE, || provider.alloc(len)).unwrap_err();
        let AllocErrorKind::Os(error) = error.kind() else { panic!("{error}") };
        assert_no_space(error);
        assert_eq!((state(prefix), provider.stats().bytes_held), (built.clone(), 0));
    }
    drop(provider.alloc(2 * LEN).unwrap());
    for len in [2 * LEN, LEN, 64] {
        // Idle memory, of this class or another, makes room.
        with_address_space(LITTLE, || provider.alloc(len)).unwrap().fill(1);
    }
    drop(provider);
    assert_eq!(state(prefix), before);
    link.send(&Message::Done);
}

/// Otherwise a process at its limit dies when it first shares a message.
#[test]
fn a_first_descriptor_for_which_there_is_no_memory_is_told_so() {
    run("address-space-of-a-first-descriptor", "space-first");
}

pub(crate) fn first_descriptor(link: &Link, arguments: &[&str]) {
    // The queue takes 16 bytes for each: 4 MiB.
    let provider = Provider::builder().name_prefix(arguments[0]).max_shared(256 << 10).build().unwrap();
    let message = provider.alloc(1).unwrap().freeze();
    for _ in 0..ROUNDS {
        let error = with_private_memory(LITTLE, || message.descriptor()).unwrap_err();
        assert_eq!(error, ShareError::OutOfMemory { bytes: 4 << 20 });
    }
    let descriptor = message.descriptor().unwrap();
    drop(shm::client(arguments[0]).attach(&descriptor).unwrap());
    link.send(&Message::Done);
}

pub(crate) fn peer(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = builder(prefix).build().unwrap();
    let mut buffer = provider.alloc(LEN).unwrap();
    shm::fill(&mut buffer, 1);
    let message = buffer.freeze();
    let descriptor = message.descriptor().unwrap();
    let before = state(prefix);
    let client = shm::client(prefix);
    let assert_refused = |refused: Result<(), AttachError>, state_before: &_| {
        let Err(AttachError::Os(error)) = refused else { panic!("{refused:?}") };
        assert_no_space(&error);
        assert_eq!(&state(prefix), state_before);
    };
    for _ in 0..ROUNDS {
        assert_refused(with_address_space(LITTLE, || client.connect(provider.id()).map(drop)), &before);
        assert_refused(with_address_space(LITTLE, || client.attach(&descriptor).map(drop)), &before);
    }
    let id = client.connect(provider.id()).unwrap();
    assert_eq!(id.slot(), 0, "a connection that was given up has kept its slot");
    let connected = state(prefix);
    for _ in 0..ROUNDS {
        assert_refused(with_address_space(LITTLE, || client.attach(&descriptor).map(drop)), &connected);
        assert!(!message.is_leased(), "an attach that failed has kept a lease");
    }
    let granted = message.grant(id).unwrap();
    for _ in 0..ROUNDS {
        assert_refused(with_address_space(LITTLE, || client.attach(&granted).map(drop)), &connected);
        assert!(message.is_leased(), "the grant waits until there is room");
    }
    let view = client.attach(&granted).unwrap();
    let again = with_address_space(LITTLE, || client.attach(&descriptor));
    drop(again.expect("what is mapped needs no more"));
    shm::check(&view, 1).unwrap();
    drop(view);
    assert!(!message.is_leased());
    drop((message, provider, client));
    assert_eq!((shm::objects(prefix), shm::mappings(prefix)), (vec![], 0));
    link.send(&Message::Done);
}
