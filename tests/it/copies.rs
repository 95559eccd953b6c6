//! Copies of any length, and messages with a tag.

use crate::ends::SendingEnd;
use crate::fixtures::{builder, fill, holds, provider, unique_prefix, write, FOR_EVER, NOW};
use crate::served::Served;
use shm_pool::channel::{
    OnEnd, OnFull, Publisher, Receiver, SendError, SendErrorKind, SendOptions, Sender, Subscriber,
    MAX_INLINE,
};
use shm_pool::{AllocError, Provider, ShmBytes};
use shm_pool_support::tasks::{block_on, noop_waker};
use std::error::Error;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

/// Around the length that a slot holds.
const LENGTHS: [usize; 8] = [0, 1, 32, 33, MAX_INLINE, MAX_INLINE + 1, 4096, 1 << 20];

fn bytes(len: usize, stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    write(&mut bytes, stamp);
    bytes
}

fn pair(provider: &Provider, test: &str, capacity: usize) -> (Sender, Receiver) {
    let name = unique_prefix(test);
    let sender = Sender::builder().capacity(capacity);
    let sender = sender.create(provider, &name).unwrap();
    (sender, Receiver::open(&name).unwrap())
}

/// The bytes of buffers that someone holds.
fn used(provider: &Provider) -> usize {
    let stats = provider.stats();
    stats.bytes_in_use + stats.bytes_leased
}

fn subscriber(name: &str, on_full: OnFull, capacity: usize) -> Subscriber {
    Subscriber::builder()
        .on_end(OnEnd::Return)
        .on_full(on_full)
        .capacity(capacity)
        .open(name)
        .unwrap()
}

/// Sends copies in every way.
fn send_all<E: SendingEnd>(end: &mut E, mut received: impl FnMut(&[u8])) {
    for (nth, len) in LENGTHS.into_iter().enumerate() {
        let bytes = bytes(len, nth as u64 + 1);
        end.send_copy(&bytes).unwrap();
        received(&bytes);
        end.try_send_copy(&bytes).unwrap();
        received(&bytes);
        end.send_copy_with(&bytes, SendOptions::new().timeout(FOR_EVER))
            .unwrap();
        received(&bytes);
        block_on(end.send_copy_async(&bytes)).unwrap();
        received(&bytes);
    }
}

#[test]
fn any_length_to_one() {
    let provider = provider();
    let (mut sender, mut receiver) = pair(&provider, "copy-pair", 8);
    send_all(&mut sender, |bytes| {
        let message = receiver.recv().unwrap();
        assert_eq!(message[..], *bytes);
        assert_eq!(message.is_inline(), bytes.len() <= MAX_INLINE);
    });
    assert_eq!(used(&provider), 0, "all came back");
}

#[test]
fn any_length_to_several() {
    let provider = provider();
    let name = unique_prefix("copy-several");
    let mut publisher = Publisher::builder()
        .history(2)
        .create(&provider, &name)
        .unwrap();
    let mut receivers = [
        subscriber(&name, OnFull::Block, 2),
        subscriber(&name, OnFull::Block, 2),
    ];
    send_all(&mut publisher, |bytes| {
        for receiver in &mut receivers {
            let message = receiver.recv().unwrap();
            assert_eq!(message[..], *bytes);
            assert_eq!(message.is_inline(), bytes.len() <= MAX_INLINE);
        }
    });
    assert_eq!(
        used(&provider),
        2 * Provider::chunk_size(1 << 20),
        "one copy for both receivers, as long as the history keeps it"
    );
    let mut late = subscriber(&name, OnFull::Block, 2);
    publisher.send_copy(b"now").unwrap();
    assert_eq!(late.recv().unwrap()[..], bytes(1 << 20, 8));
}

/// A copy never waits for memory. One for which there is none was not sent at all.
#[test]
fn copy_without_memory() {
    let provider = builder().max_bytes(64 << 10).build().unwrap();
    let (mut sender, mut receiver) = pair(&provider, "copy-cap", 2);
    let name = unique_prefix("copy-cap-several");
    let mut publisher = Publisher::create(&provider, &name).unwrap();
    let mut latest = subscriber(&name, OnFull::DropOldest, 1);
    publisher.send_copy(b"first").unwrap();
    let held = fill(&provider, 64);

    let long = bytes(MAX_INLINE + 1, 7);
    let check = |error: SendError| {
        let kind = error.kind();
        let SendErrorKind::Alloc(source) = &kind else {
            panic!("{kind:?}");
        };
        assert!(source.is_exhausted());
        assert!(error.is_retryable() && !error.is_timeout() && !error.is_disconnected());
        let source = error.source().unwrap().to_string();
        assert!(source.contains("max_bytes"), "{source}");
        assert!(!error.to_string().contains(&source), "said once: {error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::OutOfMemory);
    };
    check(sender.send_copy(&long).unwrap_err());
    check(sender.try_send_copy(&long).unwrap_err());
    check(block_on(sender.send_copy_async(&long)).unwrap_err());
    check(publisher.send_copy(&long).unwrap_err());
    let timeout = SendOptions::new().timeout(FOR_EVER);
    check(publisher.send_copy_with(&long, timeout).unwrap_err());
    check(block_on(publisher.send_copy_async(&long)).unwrap_err());
    sender.send_copy(&long[..MAX_INLINE]).unwrap();
    assert_eq!(receiver.recv().unwrap()[..], long[..MAX_INLINE]);
    // The older message was not withdrawn for one that was not sent.
    let first = latest.recv().unwrap();
    assert_eq!((&first[..], first.missed()), (&b"first"[..], 0));

    drop(held);
    sender.send_copy(&long).unwrap();
    publisher.send_copy(&long).unwrap();
    assert_eq!(receiver.recv().unwrap()[..], long);
    let message = latest.recv().unwrap();
    assert_eq!((&message[..], message.missed()), (&long[..], 0));
    let too_long = sender.send_copy(&bytes(65 << 10, 1)).unwrap_err();
    assert!(matches!(
        too_long.kind(),
        SendErrorKind::Alloc(error) if matches!(*error, AllocError::TooLarge { .. })
    ));
    assert!(!too_long.is_retryable());
}

/// A copy in a buffer follows the receiver's rule, and one that is not sent leaves no buffer.
#[test]
fn copies_by_the_rules() {
    let provider = provider();
    let name = unique_prefix("copy-rules");
    let mut publisher = Publisher::create(&provider, &name).unwrap();
    let chunk = Provider::chunk_size(100);
    let long = |stamp| bytes(100, stamp);

    let mut latest = subscriber(&name, OnFull::DropOldest, 1);
    publisher.send_copy(&long(1)).unwrap();
    assert_eq!(publisher.send_copy(&long(2)).unwrap().missed.withdrawn, 1);
    assert_eq!(used(&provider), chunk, "one was withdrawn");
    let message = latest.recv().unwrap();
    assert!(holds(&message, 2) && message.missed() == 1);
    drop((message, latest));

    let mut oldest = subscriber(&name, OnFull::DropNewest, 1);
    publisher.send_copy(&long(3)).unwrap();
    publisher.send_copy(&long(4)).unwrap();
    let sent = publisher.send_copy(&long(5)).unwrap();
    assert_eq!((sent.receivers, sent.missed.full), (0, 1));
    assert!(holds(&oldest.recv().unwrap(), 3));
    drop(oldest);

    let mut blocking = subscriber(&name, OnFull::Block, 1);
    publisher.send_copy(&long(6)).unwrap();
    publisher.send_copy(&long(7)).unwrap();
    let in_use = used(&provider);
    let full = SendErrorKind::Full { capacity: 1 };
    assert_eq!(publisher.try_send_copy(&long(8)).unwrap_err().kind(), full);
    let no_wait = SendOptions::new().timeout(NOW);
    let refused = publisher.send_copy_with(&long(8), no_wait).unwrap_err();
    assert_eq!(refused.kind(), full, "as try_send");
    let short = SendOptions::new().timeout(Duration::from_millis(1));
    let refused = publisher.send_copy_with(&long(8), short).unwrap_err();
    assert_eq!(refused.kind(), SendErrorKind::TimedOut);
    assert_eq!(used(&provider), in_use);
    for stamp in [6, 7] {
        assert!(holds(&blocking.recv().unwrap(), stamp));
    }
}

/// It knows that a longer copy needs a buffer, which the receiver may have to return first.
#[test]
fn readiness_of_copies() {
    let provider = provider();
    let name = unique_prefix("copy-ready");
    let mut publisher = Publisher::builder()
        .max_borrowed(1)
        .create(&provider, &name)
        .unwrap();
    let mut receiver = subscriber(&name, OnFull::Block, 8);
    let waker = noop_waker();
    let mut context = Context::from_waker(&waker);
    publisher.send_copy(&[1; 100]).unwrap();
    let message = receiver.recv().unwrap();
    let ready = publisher.poll_ready_copy(&mut context, MAX_INLINE);
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    assert!(publisher.poll_ready_copy(&mut context, 49).is_pending());
    assert!(matches!(
        publisher.try_send_copy(&[1; 49]).unwrap_err().kind(),
        SendErrorKind::TooManyBorrowed { .. }
    ));
    drop(message);
    let ready = publisher.poll_ready_copy(&mut context, 49);
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    publisher.try_send_copy(&[1; 49]).unwrap();
}

const TAG: [u8; 16] = *b"a stamp, a count";
const OTHER: [u8; 16] = [0xff; 16];

/// Sends a buffer and a copy in every way that takes a tag, and one without in between.
fn send_tagged<E: SendingEnd>(
    end: &mut E,
    provider: &Provider,
    mut received: impl FnMut(usize, Option<[u8; 16]>),
) {
    for len in LENGTHS {
        let buffer = ShmBytes::from(provider.alloc(len).unwrap());
        let copied = vec![1; len];
        let timeout = SendOptions::new().timeout(FOR_EVER).tag(OTHER);
        end.send_with(buffer.clone(), TAG.into()).unwrap();
        received(len, Some(TAG));
        end.send(buffer.clone()).unwrap();
        received(len, None);
        end.send_with(buffer.clone(), timeout).unwrap();
        received(len, Some(OTHER));
        block_on(end.send_with_async(buffer, TAG.into())).unwrap();
        received(len, Some(TAG));
        end.send_copy_with(&copied, TAG.into()).unwrap();
        received(len, Some(TAG));
        end.send_copy(&copied).unwrap();
        received(len, None);
        block_on(end.send_copy_async(&copied)).unwrap();
        received(len, None);
        end.send_copy_with(&copied, timeout).unwrap();
        received(len, Some(OTHER));
    }
}

#[test]
fn tags_to_one() {
    let provider = provider();
    let (mut sender, mut receiver) = pair(&provider, "tag-pair", 8);
    send_tagged(&mut sender, &provider, |len, tag| {
        let message = receiver.recv().unwrap();
        assert_eq!((message.len(), message.tag()), (len, tag));
        let clone = message.clone();
        let slice = message.slice(len / 2..);
        drop(message);
        assert_eq!((clone.tag(), slice.handle().tag()), (tag, tag));
    });
    assert_eq!(used(&provider), 0);
    // A tag takes 16 of the bytes of a slot.
    for (len, is_inline) in [(32, true), (33, false)] {
        sender.send_copy_with(&vec![3; len], TAG).unwrap();
        let message = receiver.recv().unwrap();
        assert_eq!((message[..].len(), message.is_inline()), (len, is_inline));
        assert_eq!(message[..], vec![3; len]);
    }
    sender.send_with(provider.alloc(10).unwrap(), TAG).unwrap();
    assert_eq!(receiver.recv().unwrap().tag(), Some(TAG));
}

#[test]
fn tags_to_several() {
    let provider = provider();
    let name = unique_prefix("tag-several");
    let mut publisher = Publisher::builder()
        .history(2)
        .create(&provider, &name)
        .unwrap();
    let mut receivers = [
        subscriber(&name, OnFull::Block, 2),
        subscriber(&name, OnFull::Block, 2),
    ];
    send_tagged(&mut publisher, &provider, |len, tag| {
        for receiver in &mut receivers {
            let message = receiver.recv().unwrap();
            assert_eq!((message.len(), message.tag()), (len, tag));
        }
    });
    publisher
        .send_with(provider.alloc(100).unwrap(), TAG)
        .unwrap();
    publisher.send_copy_with(b"in the slot", OTHER).unwrap();
    let mut late = subscriber(&name, OnFull::Block, 2);
    assert!(publisher.served().receivers().next().is_some());
    let first = late.recv().unwrap();
    assert_eq!((first.is_inline(), first.tag()), (false, Some(TAG)));
    let second = late.recv().unwrap();
    assert_eq!((second.is_inline(), second.tag()), (true, Some(OTHER)));
}

/// A buffer that was not sent with its tag comes back, and may be sent with another.
#[test]
fn refused_with_a_tag() {
    let provider = provider();
    let (mut sender, mut receiver) = pair(&provider, "tag-full", 2);
    while sender.try_send_copy(b"full").is_ok() {}
    let buffer = provider.alloc(100).unwrap();
    let options = SendOptions::new().tag(TAG).timeout(NOW);
    let refused = sender.send_with(buffer, options).unwrap_err();
    assert_eq!(refused.kind(), SendErrorKind::Full { capacity: 2 });
    while receiver.try_recv().is_ok() {}
    sender.send_with(refused.into_message(), OTHER).unwrap();
    assert_eq!(receiver.recv().unwrap().tag(), Some(OTHER));
}
