//! In steady state no operation touches the heap: no allocation and no free, as counted by the
//! global allocator. After a reservation, this holds from the first message on, which also causes
//! no page fault. (`process/warm_path.rs` shows that it makes no system call.) Releasing memory
//! never allocates. (`process/address_space.rs` shows this in a process without heap.) And the
//! pool's own lists grow with use, not with the limits.

use heap::{bytes_of, Cost};
use shm_pool::channel::{ChannelEvent, OnEnd, OnFull, Publisher, Receiver, Sender, Subscriber};
use shm_pool::{Client, PeerId, Provider, ShmBytes, ShmBytesMut, ShmView};
use shm_pool_support::tasks::noop_waker;
use std::future::Future;
use std::task::Context;
use std::time::Duration;

#[path = "common/heap.rs"]
mod heap;

/// Sizes of each kind: the smallest chunk, others carved in cache lines, and whole pages.
const SIZES: [usize; 6] = [0, 64, 1000, 4096, 1 << 20, 3 << 20];

/// How many rounds run before counting: enough for all periodic work, and for the first windows of
/// allocations, which release memory that only the start needed.
const WARM_UP: usize = 4 << 15;

fn provider() -> Provider {
    Provider::builder().max_shared(64).build().unwrap()
}

/// Runs `round` `rounds` times after a warm-up, and fails if that touched the heap.
fn assert_no_heap(what: &str, rounds: usize, round: impl FnMut()) {
    assert_no_heap_after(WARM_UP, what, rounds, round);
}

fn assert_no_heap_after(warm_up: usize, what: &str, rounds: usize, mut round: impl FnMut()) {
    for _ in 0..warm_up {
        round();
    }
    let cost = Cost::of(|| {
        for _ in 0..rounds {
            round();
        }
    });
    assert_eq!(
        (cost.allocations, cost.frees),
        (0, 0),
        "heap (allocations, frees) in {rounds} rounds of: {what}"
    );
}

#[test]
fn counter_works() {
    let cost = Cost::of(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(
        (cost.allocations, cost.frees),
        (1, 1),
        "every zero of this suite would be hollow"
    );
}

#[test]
fn alloc_and_drop() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("alloc, drop", 1_000_000 / SIZES.len(), || {
            drop(provider.alloc(len).unwrap())
        });
    }
}

#[test]
fn freeze_and_clone() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("alloc, freeze, clone, drop", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            drop(message.clone());
        });
        assert_no_heap("alloc, freeze, back to writing, drop", 20_000, || {
            drop(
                provider
                    .alloc(len)
                    .unwrap()
                    .freeze()
                    .try_into_mut()
                    .unwrap(),
            );
        });
    }
}

#[test]
fn bursts() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("four buffers at a time", 20_000, || {
            let _burst: [ShmBytesMut; 4] = std::array::from_fn(|_| provider.alloc(len).unwrap());
        });
    }
}

#[test]
fn share_and_attach() {
    let provider = provider();
    let client = Client::new();
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
fn bursts_of_shared() {
    let provider = provider();
    let client = Client::new();
    for len in SIZES {
        // An odd number, so that periodic work falls on every position in the burst.
        assert_no_heap("five shared messages at a time", 20_000, || {
            let burst: [ShmBytes; 5] =
                std::array::from_fn(|_| provider.alloc(len).unwrap().freeze());
            let _views: [ShmView; 5] =
                std::array::from_fn(|at| client.attach(&burst[at].descriptor().unwrap()).unwrap());
            drop(burst);
        });
    }
}

#[test]
fn grant_and_accept() {
    let provider = provider();
    let client = Client::new();
    let peer = client.connect(provider.id()).unwrap();
    for len in SIZES {
        assert_no_heap(
            "grant, drop the buffer, attach, drop the view",
            20_000,
            || {
                let message = provider.alloc(len).unwrap().freeze();
                let granted = message.grant(peer).unwrap();
                drop(message);
                drop(client.attach(&granted).unwrap());
            },
        );
    }
}

#[test]
fn channel_messages() {
    let provider = provider();
    let name = format!("no-heap-{}", std::process::id());
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    for len in SIZES {
        assert_no_heap("send a buffer, receive it", 20_000, || {
            sender.send(provider.alloc(len).unwrap().freeze()).unwrap();
            assert_eq!(receiver.recv().unwrap().len(), len);
        });
        let bytes = vec![1; len];
        // The class is warm, and 130,000 long copies take most of a minute.
        assert_no_heap_after(1000, "send a copy, receive it", 200, || {
            sender.send_copy(&bytes).unwrap();
            assert_eq!(receiver.recv().unwrap().len(), len);
        });
    }
    assert_no_heap("send bytes, receive them; and find nothing", 20_000, || {
        sender.send_copy(b"bytes").unwrap();
        assert_eq!(&receiver.recv().unwrap()[..], b"bytes");
        assert!(receiver.try_recv().is_err());
    });
}

#[test]
fn receiver_that_follows_messages() {
    let provider = provider();
    let name = format!("no-heap-subscribe-{}", std::process::id());
    let mut receiver = Receiver::builder().on_end(OnEnd::Wait).open(&name).unwrap();
    let mut sender = Sender::create(&provider, &name).unwrap();
    assert!(matches!(
        receiver.recv_event(),
        Ok(ChannelEvent::Connected(_))
    ));
    for len in SIZES {
        assert_no_heap(
            "send a buffer, receive it; and find nothing",
            20_000,
            || {
                sender.send(provider.alloc(len).unwrap().freeze()).unwrap();
                assert!(
                    matches!(receiver.recv_event(), Ok(ChannelEvent::Message(message)) if message.len() == len)
                );
                assert!(receiver.try_recv().is_err());
            },
        );
    }
}

#[test]
fn publisher_messages() {
    let provider = provider();
    let name = format!("no-heap-many-{}", std::process::id());
    let mut publisher = Publisher::builder()
        .history(2)
        .create(&provider, &name)
        .unwrap();
    let open = || Subscriber::builder().on_end(OnEnd::Return);
    let mut waited_for = open().on_full(OnFull::Block).open(&name).unwrap();
    let mut latest = open().capacity(1).open(&name).unwrap();
    let mut oldest = open()
        .on_full(OnFull::DropNewest)
        .capacity(1)
        .open(&name)
        .unwrap();
    for len in SIZES {
        assert_no_heap(
            "two messages to three receivers, of which one is withdrawn and one left out",
            10_000,
            || {
                publisher
                    .send(provider.alloc(len).unwrap().freeze())
                    .unwrap();
                publisher.send_copy(b"bytes").unwrap();
                assert_eq!(waited_for.recv().unwrap().len(), len);
                assert_eq!(&waited_for.recv().unwrap()[..], b"bytes");
                assert_eq!(&latest.recv().unwrap()[..], b"bytes");
                assert!(oldest.recv().is_ok());
                assert!(latest.try_recv().is_err());
            },
        );
    }
}

/// How many chunks of each size are reserved.
const RESERVED: usize = 3;

/// A size of which a single chunk is reserved.
const SINGLE: usize = 2000;

/// So many chunks of another size are reserved first, and the channel is so large, that the memory
/// of the messages is not near the memory that prepares them: the kernel maps pages near one that
/// faults.
const OTHERS: usize = 600;
const OTHER: usize = 100;
const CAPACITY: usize = 2048;

/// How many messages a reservation must serve.
const FIRST_MESSAGES: usize = 1000;

/// Both ends of everything, prepared as in a program with a reservation.
struct Prepared {
    provider: Provider,
    client: Client,
    peer: PeerId,
    sender: Sender,
    receiver: Receiver,
}

impl Prepared {
    fn new(name: &str) -> Self {
        let provider = Provider::builder()
            .max_idle_per_class(OTHERS)
            .build()
            .unwrap();
        let client = Client::new();
        let name = format!("reserved-{}-{name}", std::process::id());
        let sender = Sender::builder()
            .capacity(CAPACITY)
            .create(&provider, &name)
            .unwrap();
        let mut receiver = Receiver::open(&name).unwrap();
        let peer = client.connect(provider.id()).unwrap();
        provider.reserve(OTHER, OTHERS).unwrap().keep();
        provider.reserve(SINGLE, 1).unwrap().keep();
        for len in SIZES {
            // One of them is in use while it is reserved.
            let _in_use = provider.alloc(len).unwrap();
            provider.reserve(len, RESERVED).unwrap().keep();
        }
        let present = [
            client.warm(provider.id()).unwrap(),
            receiver.warm().unwrap(),
        ];
        assert!(
            present
                .iter()
                .all(|&bytes| bytes >= RESERVED * SIZES.iter().sum::<usize>()),
            "{present:?}"
        );
        Self {
            provider,
            client,
            peer,
            sender,
            receiver,
        }
    }

    /// Writes one buffer of this length: every page of it.
    fn message(&self, len: usize) -> ShmBytesMut {
        let mut buffer = self.provider.alloc(len).unwrap();
        for byte in buffer.iter_mut().step_by(4096) {
            *byte = 1;
        }
        buffer
    }

    /// Sends messages in all ways, beginning with each chunk's first use. Returns their number.
    fn round(&mut self) -> usize {
        let read = |bytes: &[u8]| assert!(bytes.iter().step_by(4096).all(|&byte| byte == 1));
        for len in SIZES {
            let burst: [ShmBytesMut; RESERVED] = std::array::from_fn(|_| self.message(len));
            let burst = burst.map(ShmBytesMut::freeze);
            let views: [ShmView; RESERVED] = std::array::from_fn(|at| {
                self.client
                    .attach(&burst[at].descriptor().unwrap())
                    .unwrap()
            });
            for view in &views {
                read(view);
            }
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
            self.sender.send_copy(b"bytes").unwrap();
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

#[test]
fn first_reserved_messages() {
    // Faults in the code.
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
    // The kernel may reclaim a page of any process at any time, but hardly in each attempt.
    assert!(
        costs.contains(&Cost::NOTHING),
        "{FIRST_MESSAGES} messages, in three tries: {costs:?}"
    );
}

/// Lengths of chunks from a heap and of whole pages.
const MIXED: [usize; 4] = [64, 1000, 5000, 200_000];

/// More messages than the initial capacity of any list of the pool.
const MANY: usize = 100;

fn many(provider: &Provider) -> Vec<ShmBytes> {
    (0..MANY)
        .map(|at| provider.alloc(MIXED[at % MIXED.len()]).unwrap().freeze())
        .collect()
}

/// Returns views of every other message.
fn views(client: &Client, messages: &[ShmBytes]) -> Vec<ShmView> {
    messages
        .iter()
        .step_by(2)
        .map(|message| client.attach(&message.descriptor().unwrap()).unwrap())
        .collect()
}

/// Fails if this drop allocates.
fn assert_drops_free<T>(what: &str, dropped: T) {
    // parking_lot allocates when a thread first waits for a lock.
    let lock = parking_lot::Mutex::new(());
    parking_lot::Condvar::new().wait_for(&mut lock.lock(), Duration::from_nanos(1));
    let cost = Cost::of(|| drop(dropped));
    assert_eq!(cost.allocations, 0, "{what}");
}

/// The ways in which a pool keeps dropped chunks: in its queues, not at all, or as one-offs.
fn keepers() -> [Provider; 3] {
    let builder = || Provider::builder().max_bytes(16 << 20).max_shared(2 * MANY);
    let at_the_cap = builder().build().unwrap();
    // From now on the pool cannot grow.
    drop(at_the_cap.alloc(16 << 20).unwrap());
    [
        builder().build().unwrap(),
        builder().max_idle_per_class(0).build().unwrap(),
        at_the_cap,
    ]
}

/// A process that is short of memory must not abort when it releases some.
#[test]
fn buffers_drop_without_heap() {
    for (way, provider) in keepers().iter().enumerate() {
        let client = Client::new();
        let writable: Vec<_> = (0..MANY)
            .map(|at| provider.alloc(64 + 300 * at).unwrap())
            .collect();
        assert_drops_free(&format!("writable ones, pool {way}"), writable);
        assert_drops_free(&format!("frozen ones, pool {way}"), many(provider));
        let messages = many(provider);
        drop(views(&client, &messages));
        assert_drops_free(&format!("shared ones, pool {way}"), messages);
        let messages = many(provider);
        let views = views(&client, &messages);
        assert_drops_free(&format!("ones that are read, pool {way}"), messages);
        assert_drops_free(&format!("views, pool {way}"), views);
    }
}

/// The same in another thread, which uses the queues.
#[test]
fn buffers_drop_elsewhere_without_heap() {
    for (way, provider) in keepers().iter().enumerate() {
        let messages = many(provider);
        let drops = move || assert_drops_free(&format!("in another thread, pool {way}"), messages);
        std::thread::spawn(drops).join().unwrap();
    }
}

#[test]
fn last_buffer_drops_without_heap() {
    for (way, provider) in keepers().into_iter().enumerate() {
        let client = Client::new();
        let messages = many(&provider);
        let views = views(&client, &messages);
        drop(provider);
        assert_drops_free(&format!("after the provider, pool {way}"), messages);
        drop(views);
    }
}

/// A publisher that serves joins when it has time touches neither the heap nor a new page in a
/// send, although receivers join and leave.
#[test]
fn sends_beside_joins() {
    let provider = provider();
    let name = format!("no-heap-joins-{}", std::process::id());
    let mut publisher = Publisher::builder()
        .joins_in_send(false)
        .create(&provider, &name)
        .unwrap();
    // All are borrowed at the same time, and two of them are of one class.
    for &len in &SIZES {
        provider.reserve(len, 2).unwrap().keep();
    }
    let mut faults = Vec::new();
    let rules = [OnFull::Block, OnFull::DropNewest, OnFull::DropOldest];
    for on_full in rules.into_iter().cycle().take(12) {
        let mut cost = |publisher: &mut Publisher, receivers: usize| {
            let cost = Cost::of(|| {
                for len in SIZES {
                    assert_eq!(
                        publisher
                            .send(provider.alloc(len).unwrap().freeze())
                            .unwrap()
                            .receivers,
                        receivers
                    );
                    assert!(provider.counters().bytes_out >= len * receivers);
                }
                assert_eq!(publisher.send_copy(b"bytes").unwrap().receivers, receivers);
            });
            assert_eq!((cost.allocations, cost.frees), (0, 0));
            faults.push(cost.faults);
        };
        let mut receiver = Subscriber::builder()
            .on_end(OnEnd::Return)
            .on_full(on_full)
            .open(&name)
            .unwrap();
        cost(&mut publisher, 0);
        assert!(publisher.serve_joins());
        cost(&mut publisher, 1);
        for size in SIZES {
            assert_eq!(receiver.recv().unwrap().len(), size);
        }
        drop(receiver);
        cost(&mut publisher, 0);
        assert!(publisher.serve_joins());
    }
    assert_eq!(faults[faults.len() - 6..], [0; 6], "{faults:?}");
}

#[test]
fn provider_drops_without_heap() {
    for (way, provider) in keepers().into_iter().enumerate() {
        let client = Client::new();
        drop(many(&provider)); // some are idle,
        let mut messages = many(&provider);
        let views = views(&client, &messages);
        messages.truncate(MANY / 2); // some are read, and some are held
        assert_drops_free(&format!("with all kinds of chunks, pool {way}"), provider);
        drop((messages, views));
    }
    assert_drops_free("unused", provider());
    let provider = provider();
    let name = format!("no-heap-drop-{}", std::process::id());
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    sender.send(provider.alloc(1000).unwrap().freeze()).unwrap();
    let received = receiver.recv().unwrap();
    assert_drops_free("with a borrowed buffer", provider);
    drop((sender, receiver, received));
}

#[test]
fn reservation_drops_without_heap() {
    let provider = Provider::builder()
        .max_idle_per_class(MANY)
        .build()
        .unwrap();
    let reservation = provider.reserve(1000, MANY).unwrap();
    let in_use: Vec<_> = (0..MANY / 2)
        .map(|_| provider.alloc(1000).unwrap())
        .collect();
    assert_drops_free("some of it in use", reservation);
    drop(in_use);
    let reservation = provider.reserve(1000, MANY).unwrap();
    drop(provider);
    assert_drops_free("after its provider", reservation);
}

/// A task that is cancelled when memory is short must not abort the process.
#[test]
fn waiting_future_drops_without_heap() {
    let provider = Provider::builder().max_bytes(1 << 20).build().unwrap();
    let _held = provider.alloc(1 << 20).unwrap();
    let mut futures = [0; 3].map(|_| Box::pin(provider.request(1).wait_async()));
    let waker = noop_waker();
    for future in &mut futures {
        assert!(future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending());
    }
    for future in futures {
        assert_drops_free("a future that waits", future);
    }
}

/// A high limit costs no more heap than its use.
#[test]
fn idle_limit_takes_no_heap() {
    let provider = Provider::builder()
        .max_idle_per_class(1 << 20)
        .build()
        .unwrap();
    let bytes = bytes_of(|| {
        for class in 0..20 {
            drop(provider.alloc(64 << class).unwrap());
        }
    });
    assert!(bytes < 1 << 20, "{bytes} bytes of heap for 20 messages");
}

#[test]
fn cap_takes_no_heap() {
    let bytes = bytes_of(|| {
        let provider = Provider::builder().max_bytes(1 << 40).build().unwrap();
        drop(provider.alloc(64).unwrap());
    });
    assert!(bytes < 4 << 20, "{bytes} bytes of heap for a small message");
}

/// A message that cannot be allocated costs no heap.
#[test]
fn refusal_takes_no_heap() {
    const HUGE: usize = 64 << 30;
    let shm = nix::sys::statvfs::statvfs("/dev/shm").unwrap();
    if shm.blocks() as usize * shm.fragment_size() as usize >= HUGE {
        return println!("SKIPPED: /dev/shm could hold it");
    }
    let provider = Provider::builder().max_bytes(1 << 47).build().unwrap();
    let bytes = bytes_of(|| assert!(provider.alloc(HUGE).is_err()));
    assert!(
        bytes < 4 << 20,
        "{bytes} bytes of heap for a message that was refused"
    );
}
