//! In steady state nothing touches the heap: no allocation and no free, as counted by the global
//! allocator. After a reservation the first message already does not, and faults no page either.
//! (`process/reserved.rs` shows that it makes no system call.)

use heap::Cost;
use shm_pool::channel::{OnFull, Publisher, Receiver, Sender};
use shm_pool::{Client, PeerId, Provider, ShmBuf, ShmBufMut, ShmView};

#[path = "support/heap.rs"]
mod heap;

/// Sizes of each kind: the smallest chunk, others carved in cache lines, and whole pages.
const SIZES: [usize; 6] = [0, 64, 1000, 4096, 1 << 20, 3 << 20];

/// How many rounds run before counting: enough for all work that is done only now and then, and for
/// the first windows of uses, which give back what was needed to begin with.
const WARM_UP: usize = 4 << 15;

fn provider() -> Provider {
    Provider::builder().max_shared(64).build().unwrap()
}

/// Runs `round` `rounds` times after a warm-up, and fails if that touched the heap.
fn assert_no_heap(what: &str, rounds: usize, mut round: impl FnMut()) {
    (0..WARM_UP).for_each(|_| round());
    let cost = Cost::of(|| (0..rounds).for_each(|_| round()));
    assert_eq!((cost.allocations, cost.frees), (0, 0), "heap (allocations, frees) in {rounds} rounds of: {what}");
}

#[test]
fn the_counter_sees_an_allocation_and_a_free() {
    let cost = Cost::of(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!((cost.allocations, cost.frees), (1, 1), "every zero of this suite would be hollow");
}

#[test]
fn a_million_buffers_are_allocated_and_dropped_without_the_heap() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("alloc, drop", 1_000_000 / SIZES.len(), || drop(provider.alloc(len).unwrap()));
    }
}

#[test]
fn messages_are_frozen_cloned_and_dropped_without_the_heap() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("alloc, freeze, clone, drop", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            drop(message.clone());
        });
        assert_no_heap("alloc, freeze, back to writing, drop", 20_000, || {
            drop(provider.alloc(len).unwrap().freeze().try_into_mut().unwrap());
        });
    }
}

#[test]
fn bursts_of_live_buffers_go_through_the_queue_without_the_heap() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("four buffers at a time", 20_000, || {
            let _burst: [ShmBufMut; 4] = std::array::from_fn(|_| provider.alloc(len).unwrap());
        });
    }
}

#[test]
fn messages_are_shared_read_and_recycled_without_the_heap() {
    let (provider, client) = (provider(), Client::new());
    for len in SIZES {
        assert_no_heap("descriptor, attach, buffer dropped first", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            drop(message);
            drop(view);
        });
        assert_no_heap("descriptor, attach, view dropped first", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            drop(view.try_clone().unwrap());
            drop(view);
            drop(message);
        });
    }
}

#[test]
fn bursts_of_shared_messages_are_recycled_without_the_heap() {
    let (provider, client) = (provider(), Client::new());
    for len in SIZES {
        // An odd number, so that work done every so many allocations falls on every place in the
        // burst.
        assert_no_heap("five shared messages at a time", 20_000, || {
            let burst: [ShmBuf; 5] = std::array::from_fn(|_| provider.alloc(len).unwrap().freeze());
            let _views: [ShmView; 5] =
                std::array::from_fn(|at| client.attach(&burst[at].descriptor().unwrap()).unwrap());
            drop(burst);
        });
    }
}

#[test]
fn messages_are_granted_and_taken_up_without_the_heap() {
    let (provider, client) = (provider(), Client::new());
    let peer = client.connect(provider.id()).unwrap();
    for len in SIZES {
        assert_no_heap("grant, drop the buffer, attach, drop the view", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            let granted = message.grant(peer).unwrap();
            drop(message);
            drop(client.attach(&granted).unwrap());
        });
    }
}

#[test]
fn messages_go_through_a_channel_without_the_heap() {
    let (provider, name) = (provider(), format!("no-heap-{}", std::process::id()));
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&Client::new(), &name).unwrap();
    for len in SIZES {
        assert_no_heap("send a buffer, receive it", 20_000, || {
            sender.send(provider.alloc(len).unwrap().freeze()).unwrap();
            assert_eq!(receiver.recv().unwrap().len(), len);
        });
    }
    assert_no_heap("send bytes, receive them; and find nothing", 20_000, || {
        sender.send_bytes(b"bytes").unwrap();
        assert_eq!(&receiver.recv().unwrap()[..], b"bytes");
        assert!(receiver.try_recv().is_err());
    });
}

#[test]
fn messages_go_to_many_receivers_without_the_heap() {
    let (provider, name) = (provider(), format!("no-heap-many-{}", std::process::id()));
    let mut publisher = Publisher::builder().history(2).create(&provider, &name).unwrap();
    let (client, open) = (Client::new(), Receiver::builder);
    let mut waited_for = open().on_full(OnFull::Wait).open(&client, &name).unwrap();
    let mut latest = open().capacity(1).open(&client, &name).unwrap();
    let mut oldest = open().on_full(OnFull::DropNew).capacity(1).open(&client, &name).unwrap();
    for len in SIZES {
        assert_no_heap("two messages to three receivers, of which one is withdrawn and one left out", 10_000, || {
            publisher.send(provider.alloc(len).unwrap().freeze()).unwrap();
            publisher.send_bytes(b"bytes").unwrap();
            assert_eq!(waited_for.recv().unwrap().len(), len);
            assert_eq!(&waited_for.recv().unwrap()[..], b"bytes");
            assert_eq!(&latest.recv().unwrap()[..], b"bytes");
            assert!(oldest.recv().is_ok());
            assert!(latest.try_recv().is_err());
        });
    }
}

/// How many chunks of each size are reserved.
const RESERVED: usize = 3;

/// A size of which a single chunk is reserved.
const SINGLE: usize = 2000;

/// So many chunks of another size are reserved first, and the channel is so large, that what the
/// messages use is not near what is used to prepare them: the kernel maps pages that it finds near
/// one that faults.
const OTHERS: usize = 600;
const OTHER: usize = 100;
const CAPACITY: usize = 2048;

/// How many messages a reservation has to hold for.
const FIRST_MESSAGES: usize = 1000;

/// Both ends of everything, prepared as a program with a reservation prepares them.
struct Prepared {
    provider: Provider,
    client: Client,
    peer: PeerId,
    sender: Sender,
    receiver: Receiver,
}

impl Prepared {
    fn new(name: &str) -> Self {
        let provider = Provider::builder().max_idle_per_class(OTHERS).build().unwrap();
        let (client, name) = (Client::new(), format!("reserved-{}-{name}", std::process::id()));
        let sender = Sender::builder().capacity(CAPACITY).create(&provider, &name).unwrap();
        let mut receiver = Receiver::open(&client, &name).unwrap();
        let peer = client.connect(provider.id()).unwrap();
        provider.reserve(OTHER, OTHERS).unwrap().keep();
        provider.reserve(SINGLE, 1).unwrap().keep();
        for len in SIZES {
            // One of them is in use while it is reserved.
            let _in_use = provider.alloc(len).unwrap();
            provider.reserve(len, RESERVED).unwrap().keep();
        }
        let present = [client.warm(provider.id()).unwrap(), receiver.warm().unwrap()];
        assert!(present.iter().all(|&bytes| bytes >= RESERVED * SIZES.iter().sum::<usize>()), "{present:?}");
        Self { provider, client, peer, sender, receiver }
    }

    /// Writes one buffer of this length: every page of it.
    fn message(&self, len: usize) -> ShmBufMut {
        let mut buffer = self.provider.alloc(len).unwrap();
        buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        buffer
    }

    /// All ways of a message, beginning with each chunk's first use. Returns how many messages that
    /// was.
    fn round(&mut self) -> usize {
        let read = |bytes: &[u8]| assert!(bytes.iter().step_by(4096).all(|&byte| byte == 1));
        for len in SIZES {
            let burst: [ShmBufMut; RESERVED] = std::array::from_fn(|_| self.message(len));
            let burst = burst.map(ShmBufMut::freeze);
            let views: [ShmView; RESERVED] =
                std::array::from_fn(|at| self.client.attach(&burst[at].descriptor().unwrap()).unwrap());
            views.iter().for_each(|view| read(view));
            drop(burst);
            drop(views);
            let granted = self.message(len).freeze();
            let descriptor = granted.grant(self.peer).unwrap();
            drop(granted);
            read(&self.client.attach(&descriptor).unwrap());
            drop(self.message(len));
        }
        for len in SIZES.into_iter().chain([SINGLE; 3]) {
            self.sender.send(self.message(len).freeze()).unwrap();
            read(&self.receiver.recv().unwrap());
            self.sender.send_bytes(b"bytes").unwrap();
            assert_eq!(&self.receiver.recv().unwrap()[..], b"bytes");
        }
        // The receiver is far behind.
        for _ in 0..OTHERS {
            self.sender.send(self.message(OTHER).freeze()).unwrap();
        }
        for _ in 0..OTHERS {
            read(&self.receiver.recv().unwrap());
        }
        SIZES.len() * (RESERVED + 2) + 2 * (SIZES.len() + 3) + OTHERS
    }
}

/// Otherwise the first messages of a control loop are late, each by what its predecessors paid.
#[test]
fn the_first_messages_after_a_reservation_touch_no_heap_and_fault_no_page() {
    // Pages in the code.
    Prepared::new("rehearsal").round();
    let costs = [0, 1, 2].map(|at| {
        let mut prepared = Prepared::new(&at.to_string());
        Cost::of(|| {
            let mut messages = 0;
            while messages < FIRST_MESSAGES {
                messages += prepared.round();
            }
        })
    });
    // The kernel may take a page from any process at any time, but hardly in each try.
    assert!(costs.contains(&Cost::NOTHING), "{FIRST_MESSAGES} messages, in three tries: {costs:?}");
}
