//! Threads that allocate, share, pass on and drop each other's buffers. No chunk has two owners, no
//! message shows another's bytes, and no memory is leaked.

use crate::support::{address, builder, holds, write, Random};
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use shm_pool::{Client, PeerId, Provider, ShmBufMut};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;

const THREADS: u64 = 4;

/// The addresses of all chunks that are held.
type Hands = Arc<Mutex<HashSet<usize>>>;

/// A chunk's entry in the list of those held. Removed on drop.
struct Claim {
    hands: Hands,
    address: usize,
}

impl Claim {
    fn new(hands: &Hands, address: usize) -> Arc<Self> {
        assert!(hands.lock().insert(address), "a chunk is in two hands");
        Arc::new(Self { hands: hands.clone(), address })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.hands.lock().remove(&self.address);
    }
}

/// A handle that shows a message. The claim is the first field: it must be dropped before the chunk
/// can be reused.
struct Parcel {
    _claim: Arc<Claim>,
    stamp: u64,
    content: Box<dyn AsRef<[u8]> + Send>,
}

impl Parcel {
    /// Checks the bytes, and drops them.
    fn open(self) {
        assert!(holds((*self.content).as_ref(), self.stamp), "another message's bytes");
    }
}

/// The state shared by all threads of a test.
struct Market {
    provider: Provider,
    client: Client,
    hands: Hands,
    queue: ArrayQueue<Parcel>,
    refused: AtomicU64,
}

impl Market {
    fn new(provider: Provider) -> Self {
        let (client, hands) = (Client::new(), Hands::default());
        Self { provider, client, hands, queue: ArrayQueue::new(64), refused: AtomicU64::new(0) }
    }

    /// Puts a parcel on the queue, and opens the one that it displaces. The claim is moved along,
    /// because here it could outlive the chunk if another thread is faster.
    fn pass_on(&self, claim: Arc<Claim>, stamp: u64, content: impl AsRef<[u8]> + Send + 'static) {
        let parcel = Parcel { _claim: claim, stamp, content: Box::new(content) };
        self.queue.force_push(parcel).into_iter().for_each(Parcel::open);
    }

    /// Makes, shares and passes on `rounds` messages of up to `max` bytes.
    fn trade(&self, thread: u64, rounds: u64, max: usize) {
        let mut random = Random(thread);
        let own = Client::new();
        let peer = own.connect(self.provider.id()).unwrap();
        for stamp in (0..rounds).map(|round| thread << 32 | round) {
            let buffer = match self.provider.alloc(random.below(max + 1)) {
                Ok(buffer) => buffer,
                Err(error) => {
                    assert!(error.is_exhausted(), "{error}");
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    self.queue.pop().into_iter().for_each(Parcel::open);
                    continue;
                }
            };
            self.fill_and_send(buffer, stamp, random.below(6), &own, peer);
        }
    }

    fn fill_and_send(&self, mut buffer: ShmBufMut, stamp: u64, way: usize, own: &Client, peer: PeerId) {
        let claim = Claim::new(&self.hands, address(&buffer));
        write(&mut buffer, stamp);
        if way == 0 {
            return self.pass_on(claim, stamp, buffer);
        }
        let message = buffer.freeze();
        match way {
            1 => self.pass_on(claim.clone(), stamp, message.clone()),
            2 => {
                let view = self.client.attach(&message.descriptor().unwrap()).unwrap();
                self.pass_on(claim.clone(), stamp, view);
            }
            3 => {
                let view = own.attach(&message.grant(peer).unwrap()).unwrap();
                self.pass_on(claim.clone(), stamp, view.try_clone().unwrap());
                self.pass_on(claim.clone(), stamp, view);
            }
            4 => {
                let granted = message.grant(peer).unwrap();
                drop(message);
                let view = own.attach(&granted).expect("a granted message waits");
                return self.pass_on(claim, stamp, view);
            }
            _ => {
                message.descriptor().unwrap();
                let mut buffer = message.try_into_mut().expect("nobody else has it");
                write(&mut buffer, !stamp);
                return self.pass_on(claim, !stamp, buffer);
            }
        }
        self.pass_on(claim, stamp, message);
    }

    /// Empties the queue, and fails unless all memory is returned.
    fn clear(&self) {
        std::iter::from_fn(|| self.queue.pop()).for_each(Parcel::open);
        assert!(self.hands.lock().is_empty());
        let stats = self.provider.stats();
        assert_eq!((stats.bytes_in_use, stats.bytes_leased), (0, 0), "chunks are lost");
        self.provider.trim();
        assert_eq!(self.provider.stats().bytes_held, 0, "memory is lost");
    }
}

#[test]
fn exclusive_with_spare_memory() {
    let market = &Market::new(builder().max_shared(1024).build().unwrap());
    thread::scope(|scope| {
        for thread in 1..=THREADS {
            scope.spawn(move || market.trade(thread, 4000, 40_000));
        }
    });
    assert_eq!(market.refused.load(Ordering::Relaxed), 0, "refused though the cap is far");
    market.clear();
}

#[test]
fn exclusive_at_cap() {
    let builder = builder().max_shared(1024).max_bytes(512 << 10).arena_size(64 << 10).max_idle_per_class(2);
    let market = &Market::new(builder.build().unwrap());
    thread::scope(|scope| {
        let trades: Vec<_> =
            (1..=THREADS).map(|thread| scope.spawn(move || market.trade(thread, 4000, 40_000))).collect();
        // This thread trims, reserves and reads statistics while the others trade.
        while trades.iter().any(|trade| !trade.is_finished()) {
            market.provider.trim();
            market.client.trim();
            assert!(market.provider.stats().bytes_held <= 512 << 10, "the cap is exceeded");
            if let Err(error) = market.provider.reserve(30_000, 2) {
                assert!(error.is_exhausted(), "{error}");
            }
            thread::yield_now();
        }
    });
    assert!(market.refused.load(Ordering::Relaxed) > 0, "memory was not short");
    market.clear();
}
