//! An owner in its own process, with each operation marked for the tracer.

#![forbid(unsafe_code)]

use crate::shm;
use crate::trace::marked;
use crate::wire::{Link, Message};
use shm_pool::{
    AllocError, Descriptor, Namespace, PeerId, Provider, ProviderBuilder, ShmBytes, ShmBytesMut,
    Tuning,
};
use std::future::Future;
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// A message of whole pages, and one carved in cache lines.
pub(crate) const LARGE: usize = 128 << 10;
pub(crate) const SMALL: usize = 4 << 10;

/// The first arena has room for a large message and a few small ones.
const ARENA: usize = 2 * LARGE;
const CAP: usize = 5 * ARENA;

/// Longer than any test may take.
const FOR_EVER: Duration = Duration::from_secs(600);

/// Fits only in an arena of all the unused memory under the cap.
const LONGEST: usize = 700 << 10;

pub(crate) fn builder(prefix: &str) -> ProviderBuilder {
    // As few size classes as possible: operations that look at all of them are shorter.
    Provider::builder()
        .max_bytes_per_peer(1 << 30)
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(CAP)
        .max_alloc(LONGEST)
        .tuning(Tuning::new().arena_size(ARENA))
        .max_shared(16)
}

/// Publishes a message whose contents depend on its length.
pub(crate) fn published(provider: &Provider, len: usize) -> (ShmBytes, Descriptor) {
    let message = shm::message(provider, len, len as u64);
    let descriptor = message.descriptor().unwrap();
    (message, descriptor)
}

/// Prepares one operation, then runs it between two marks.
pub(crate) fn operate(link: &Link, operation: &str, prefix: &str) {
    match operation {
        "build" | "build over remains" => {
            marked(|| builder(prefix).build()).unwrap();
            return;
        }
        "sweep" => {
            marked(|| Namespace::new(prefix).unwrap().sweep()).unwrap();
            return;
        }
        _ => {}
    }
    let provider = builder(prefix).build().unwrap();
    let publish = |len| {
        let (message, descriptor) = published(&provider, len);
        link.send(&Message::Sent(descriptor));
        message
    };
    let kept = [publish(LARGE), publish(SMALL)];
    let Some(Message::Peer(reader)) = link.receive().unwrap() else {
        panic!("the reader tells who it is")
    };
    if operation == WAIT_SERVED {
        return wait_for_the_reader(link, &provider);
    }
    operate_on(operation, provider, kept, reader);
}

/// An owner waits for a message that it has sent.
pub(crate) const WAIT_SERVED: &str = "wait, served";

fn wait_for_the_reader(link: &Link, provider: &Provider) {
    let (message, descriptor) = published(provider, LARGE);
    link.send(&Message::Sent(descriptor));
    assert_eq!(link.receive().unwrap(), Some(Message::Go), "it is read");
    drop(message);
    let _full = all(provider);
    drop(marked(|| provider.alloc_timeout(LARGE, FOR_EVER)).unwrap());
}

/// Allocates until no further message fits.
pub(crate) fn all(provider: &Provider) -> Vec<ShmBytesMut> {
    std::iter::from_fn(|| provider.alloc(LARGE).ok()).collect()
}

fn operate_on(operation: &str, provider: Provider, kept: [ShmBytes; 2], reader: PeerId) {
    let buffer = |len| provider.alloc(len).unwrap();
    match operation {
        "alloc, an arena" => {
            drop(marked(|| provider.alloc(LARGE)).unwrap());
            assert_eq!(provider.stats().segments, 2);
        }
        "alloc, a run" => {
            let _arena = buffer(LARGE);
            drop(marked(|| provider.alloc(LARGE)).unwrap());
            assert_eq!(provider.stats().segments, 2);
        }
        "alloc, carved" => drop(marked(|| provider.alloc(2 * SMALL)).unwrap()),
        "alloc, a trade" => {
            let _full = [buffer(3 * LARGE), buffer(3 * LARGE), buffer(LARGE)];
            // Idle chunks, some of which obstruct the request.
            let mut idle = Vec::new();
            for _ in 0..14 {
                idle.push(buffer(16 << 10));
            }
            drop(idle);
            let made = provider.stats().segments_created;
            drop(marked(|| provider.alloc(LARGE)).unwrap());
            assert_eq!(provider.stats().segments_created, made);
        }
        "one-offs" => {
            let mut full = vec![buffer(3 * LARGE), buffer(3 * LARGE), buffer(LARGE)];
            full.truncate(2);
            let made = provider.stats().segments_created;
            marked(|| {
                // The first one-off stays open until the second is made.
                drop(published(&provider, 3 * SMALL));
                drop(provider.alloc(5 * SMALL).unwrap());
            });
            let stats = provider.stats();
            assert!(
                stats.segments_created == made && stats.classes.iter().all(|class| class.idle == 0),
                "{stats:?}"
            );
        }
        "alloc, arenas give way" => {
            drop([published(&provider, ARENA), published(&provider, ARENA)]);
            let made = provider.stats().segments_created;
            drop(marked(|| provider.alloc(LONGEST)).unwrap());
            assert_eq!(provider.stats().segments_created, made + 1);
        }
        "alloc, warm" => {
            drop(buffer(LARGE));
            drop(marked(|| provider.alloc(LARGE)).unwrap());
        }
        "reserve" => drop(marked(|| provider.reserve(LARGE, 2)).unwrap()),
        "freeze, descriptor" => {
            let buffer = buffer(LARGE);
            marked(|| buffer.freeze().descriptor()).unwrap();
        }
        "descriptor, again" => {
            drop(published(&provider, SMALL));
            let message = buffer(SMALL).freeze();
            marked(|| message.descriptor()).unwrap();
        }
        "grant" => {
            marked(|| kept[0].grant(reader)).unwrap();
        }
        "drop, never shared" => {
            let buffer = buffer(LARGE);
            marked(|| drop(buffer));
        }
        "drop, shared" => {
            let (message, _) = published(&provider, LARGE);
            marked(|| drop(message));
        }
        "drop, leased" => marked(|| drop(kept)),
        "trim" => {
            drop([published(&provider, LARGE), published(&provider, LARGE)]);
            drop([buffer(2 * SMALL), buffer(LARGE)]);
            drop(kept);
            assert!(marked(|| provider.trim()) > 0);
        }
        "wait, in vain" => {
            let _full = all(&provider);
            let error = marked(|| provider.alloc_timeout(LARGE, Duration::ZERO)).unwrap_err();
            assert!(matches!(error, AllocError::TimedOut { .. }), "{error}");
        }
        "drop, waited for" => {
            let mut full = all(&provider);
            let (sender, reached) = mpsc::channel();
            let halt = Arc::new(Halt {
                reached: sender,
                gate: Mutex::new(()),
            });
            let waker = Waker::from(halt.clone());
            let mut futures = [
                Box::pin(provider.request(LARGE).wait_async()),
                Box::pin(provider.request(LARGE).wait_async()),
            ];
            for future in &mut futures {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending(), "all memory is taken");
            }
            // The thread that serves both stops after it has served the first: otherwise it would
            // hit the tracer's breakpoints.
            let closed = halt.gate.lock().unwrap();
            full.pop();
            reached.recv().unwrap();
            let last = full.pop();
            marked(|| drop(last));
            drop(closed);
        }
        "reclaim" => assert!(marked(|| provider.reclaim()) > 0),
        "close" => {
            drop([published(&provider, LARGE), published(&provider, 2 * SMALL)]);
            drop(kept);
            marked(|| drop(provider));
        }
        "drop the last buffer" => {
            drop(provider);
            marked(|| drop(kept));
        }
        other => panic!("no operation {other:?}"),
    }
}

/// Blocks the thread that wakes it until the gate is open.
struct Halt {
    reached: mpsc::Sender<()>,
    gate: Mutex<()>,
}

impl Wake for Halt {
    fn wake(self: Arc<Self>) {
        self.reached.send(()).expect("the test waits for this");
        drop(self.gate.lock());
    }
}
