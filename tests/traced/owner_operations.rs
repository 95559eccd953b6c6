//! What an owner does in a process of its own, each operation marked for the tracer.

#![forbid(unsafe_code)]

use crate::shm;
use crate::trace::marked;
use crate::wire::{Link, Message};
use shm_pool::{Descriptor, PeerId, Provider, ProviderBuilder, ShmBuf};

/// A message in a segment of its own; one of an arena; and the largest of an arena, of which three fit beside a small one.
pub(crate) const LARGE: usize = 20 << 10;
pub(crate) const SMALL: usize = 4 << 10;
const CARVED: usize = 16 << 10;

pub(crate) const ARENA: usize = 64 << 10;

pub(crate) fn builder(prefix: &str) -> ProviderBuilder {
    // As few classes as there can be: an operation that looks at all of them is the shorter.
    Provider::builder().name_prefix(prefix).max_bytes(1 << 20).max_alloc(LARGE).arena_size(ARENA).max_shared(16)
}

/// A message that is filled by its length.
pub(crate) fn published(provider: &Provider, len: usize) -> (ShmBuf, Descriptor) {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, len as u64);
    let message = buffer.freeze();
    let descriptor = message.descriptor().unwrap();
    (message, descriptor)
}

/// Does one operation between two marks, and what it needs before.
pub(crate) fn operate(link: &Link, operation: &str, prefix: &str) {
    match operation {
        "build" | "build over remains" => {
            marked(|| builder(prefix).build()).unwrap();
            return;
        }
        "sweep" => {
            marked(|| builder(prefix).sweep()).unwrap();
            return;
        }
        _ => {}
    }
    let provider = builder(prefix).build().unwrap();
    let kept = [LARGE, SMALL].map(|len| {
        let (message, descriptor) = published(&provider, len);
        link.send(&Message::Sent(descriptor));
        message
    });
    let Some(Message::Peer(reader)) = link.receive().unwrap() else { panic!("the reader tells who it is") };
    operate_on(operation, provider, kept, reader);
}

fn operate_on(operation: &str, provider: Provider, kept: [ShmBuf; 2], reader: PeerId) {
    let buffer = |len| provider.alloc(len).unwrap();
    match operation {
        "alloc, a segment" => drop(marked(|| provider.alloc(LARGE)).unwrap()),
        "alloc, an arena" => {
            let _full = [(); 3].map(|()| buffer(CARVED));
            assert_eq!(provider.stats().arenas, 1);
            drop(marked(|| provider.alloc(CARVED)).unwrap());
        }
        "alloc, carved" => drop(marked(|| provider.alloc(CARVED)).unwrap()),
        "alloc, warm" => {
            drop(buffer(LARGE));
            drop(marked(|| provider.alloc(LARGE)).unwrap());
        }
        "reserve" => marked(|| provider.reserve(LARGE, 2)).unwrap(),
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
            drop([buffer(CARVED), buffer(LARGE)]);
            drop(kept);
            assert!(marked(|| provider.trim()) > 0);
        }
        "reclaim" => assert!(marked(|| provider.reclaim()) > 0),
        "close" => {
            drop([published(&provider, LARGE), published(&provider, CARVED)]);
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
