//! Memory that was reserved and warmed up costs no system call from the first message on, and
//! memory that another process has warmed up, no fault there. (`no_heap.rs` counts heap calls and
//! faults of both sides in one process.)

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use nix::sys::resource::{getrusage, UsageWho};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Descriptor, PeerId, Provider, ShmBuf, ShmView};
use std::hint::black_box;
use std::os::fd::AsRawFd;

const SIZES: [usize; 5] = [64, 4 << 10, 100_000, 1 << 20, 3 << 20];
const RESERVED: usize = 3;
const FIRST_MESSAGES: usize = 1000;

/// How often faults are counted. The kernel may reclaim a page from any process at any time, but
/// hardly in each try.
const TRIES: usize = 3;

/// A control loop's first messages do not wait for the kernel: for memory, a mapping or a lock.
#[test]
fn first_messages_without_syscalls() {
    let names = Names::new("reserved");
    let child = Child::start("reserved", &[names.prefix()]);
    child.expect_done();
    child.kill();
    // A process without system calls cannot remove its objects either.
    assert!(names.sweep() > 0);
}

role!("reserved", role);

fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).build().unwrap();
    let client = shm::client(prefix);
    let mut sender = Sender::create(&provider, "reserved").unwrap();
    let mut receiver = Receiver::open(&client, "reserved").unwrap();
    SIZES.iter().for_each(|&len| provider.reserve(len, RESERVED).unwrap().keep());
    client.warm(provider.id()).unwrap();
    receiver.warm().unwrap();
    let peer = client.connect(provider.id()).unwrap();
    let (socket, good, bad) = (link.as_raw_fd(), Message::Done.to_frame(), Message::Trim.to_frame());
    let mut messages = SIZES.iter().cycle().take(FIRST_MESSAGES / (RESERVED + 1));
    sys::forbid_all_calls_but(&sys::STRICT).unwrap();
    let all = messages.all(|&len| {
        shared(&provider, &client, peer, len).is_some() && sent(&provider, &mut sender, &mut receiver, len).is_some()
    });
    sys::write(socket, if all { &good } else { &bad });
    sys::exit_thread();
}

/// Shares all chunks of a size at the same time: by descriptor, and the last one by a grant.
fn shared(provider: &Provider, client: &Client, peer: PeerId, len: usize) -> Option<()> {
    let messages = [(); RESERVED].map(|()| provider.alloc(len).ok().map(ShmBuf::from));
    let attach = |message: &ShmBuf| client.attach(&message.descriptor().ok()?).ok();
    // An array: a list would need the heap.
    let views: [Option<ShmView>; RESERVED] = std::array::from_fn(|at| attach(messages[at].as_ref()?));
    let granted = messages.last()?.as_ref()?.grant(peer).ok()?;
    drop(messages);
    let taken_up = client.attach(&granted).ok()?;
    (views.iter().all(|view| view.as_ref().is_some_and(|view| view.len() == len)) && taken_up.len() == len)
        .then_some(())
}

fn sent(provider: &Provider, sender: &mut Sender, receiver: &mut Receiver, len: usize) -> Option<()> {
    sender.send(provider.alloc(len).ok()?.freeze()).ok()?;
    sender.send_bytes(b"bytes").ok()?;
    let received = [receiver.recv().ok()?.len(), receiver.recv().ok()?.len()];
    (received == [len, b"bytes".len()]).then_some(())
}

/// A subscriber's first messages are not delayed by a mapping and a fault for each page.
#[test]
fn warm_peer_without_faults() {
    let faults = [(); TRIES].map(|()| {
        let names = Names::new("warmed");
        let provider = names.provider().arena_size(64 << 10).build().unwrap();
        SIZES.iter().for_each(|&len| provider.reserve(len, RESERVED).unwrap().keep());
        assert!(provider.stats().segments > 1);
        let mut sender = Sender::create(&provider, "warmed").unwrap();
        let child = Child::start("warmed", &[names.prefix(), &provider.id().to_u64().to_string()]);
        let Message::Peer(peer) = child.hear() else { panic!("not a peer") };
        let messages = SIZES.map(|len| {
            let mut buffer = provider.alloc(len).unwrap();
            shm::fill(&mut buffer, len as u64);
            buffer.freeze()
        });
        for message in &messages {
            // First, because the child may not wait for a message once it has all descriptors.
            sender.send(message.clone()).unwrap();
            child.tell(&Message::Sent(message.descriptor().unwrap()));
            child.tell(&Message::Sent(message.grant(peer).unwrap()));
        }
        let Message::Number(faults) = child.hear() else { panic!("not a number") };
        child.kill();
        faults
    });
    assert!(faults.contains(&0), "faults in {} messages: {faults:?}", 3 * SIZES.len());
}

role!("warmed", warmed_role);

fn warmed_role(link: &Link, arguments: &[&str]) {
    let (prefix, id) = (arguments[0], shm_pool::ProviderId::from_u64(arguments[1].parse().unwrap()));
    let client = shm::client(prefix);
    let mut receiver = Receiver::open(&client, "warmed").unwrap();
    link.send(&Message::Peer(client.connect(id).unwrap()));
    let descriptors = [(); 2 * SIZES.len()].map(|()| match link.receive().unwrap() {
        Some(Message::Sent(descriptor)) => descriptor,
        other => panic!("not a descriptor: {other:?}"),
    });
    rehearse(prefix);
    assert_eq!((client.mapped_segments(), receiver.mapped_segments()), (0, 0));
    let present = [client.warm(id).unwrap(), receiver.warm().unwrap()];
    assert!(present.iter().all(|&bytes| bytes >= RESERVED * SIZES.iter().sum::<usize>()), "{present:?}");
    let answers: Vec<Vec<u8>> = (0..100).map(|number| Message::Number(number).to_frame()).collect();
    let socket = link.as_raw_fd();
    sys::forbid_all_calls_but(&[&sys::STRICT[..], &[libc::SYS_getrusage]].concat()).unwrap();
    let faults = faults_of(|| read(&client, &mut receiver, &descriptors));
    sys::write(socket, &answers[faults.min(answers.len() - 1)]);
    sys::exit_thread();
}

/// Reads other messages in the same way, so that the code is present, too.
fn rehearse(prefix: &str) {
    let provider = Provider::builder().name_prefix(prefix).build().unwrap();
    let client = shm::client(prefix);
    let mut sender = Sender::create(&provider, "rehearsal").unwrap();
    let mut receiver = Receiver::open(&client, "rehearsal").unwrap();
    let message = provider.alloc_zeroed(1).unwrap().freeze();
    let granted = message.grant(client.connect(provider.id()).unwrap()).unwrap();
    let descriptors = [message.descriptor().unwrap(), granted];
    sender.send(message).unwrap();
    faults_of(|| read(&client, &mut receiver, &descriptors));
}

fn read(client: &Client, receiver: &mut Receiver, descriptors: &[Descriptor]) {
    let look = |bytes: &[u8]| bytes.iter().step_by(4096).for_each(|&byte| assert!(black_box(Some(byte)).is_some()));
    descriptors.iter().for_each(|descriptor| look(&client.attach(descriptor).unwrap()));
    (0..descriptors.len() / 2).for_each(|_| look(&receiver.recv().unwrap()));
}

/// Returns how many pages fault in this thread while `what` runs.
fn faults_of(what: impl FnOnce()) -> usize {
    let faults = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().minor_page_faults();
    let before = faults();
    what();
    (faults() - before) as usize
}
