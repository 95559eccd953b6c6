//! Messages whose descriptor is in transit and which no peer holds yet (D7): granted, kept until
//! confirmed, or visibly lost.

use crate::peer::Peer;
use crate::shm::{self, Names};
use shm_pool::{Provider, ShmBuf};

const LEN: usize = 256 << 10;
const POOL: usize = 1 << 20;

fn provider(names: &Names) -> Provider {
    names.provider().max_bytes(POOL).arena_size(64 << 10).build().unwrap()
}

fn message(provider: &Provider, seed: u64) -> ShmBuf {
    let mut buffer = provider.alloc(LEN).unwrap();
    shm::fill(&mut buffer, seed);
    buffer.freeze()
}

/// Uses all free memory, many times over.
fn overwrite_all_that_is_free(provider: &Provider) {
    for pattern in 0..20 {
        let mut all: Vec<_> = std::iter::from_fn(|| provider.alloc(LEN).ok()).collect();
        all.iter_mut().for_each(|buffer| buffer.fill(pattern));
        for buffer in all {
            buffer.freeze().descriptor().unwrap();
        }
    }
}

/// A message is neither lost nor overwritten between its sender's drop and its receiver's attach.
#[test]
fn granted_message() {
    let names = Names::new("grant");
    let provider = provider(&names);
    let (receiver, stranger) = (Peer::start(names.prefix()), Peer::start(names.prefix()));
    let id = receiver.connect(provider.id()).unwrap();
    assert_eq!(receiver.connect(provider.id()), Ok(id), "a second connection is the same peer");
    stranger.connect(provider.id()).unwrap();

    let granted = message(&provider, 1);
    let descriptor = granted.grant(id).unwrap();
    drop(granted); // from here on, only the grant holds it
    overwrite_all_that_is_free(&provider);

    let refused = stranger.attach(descriptor, 1).unwrap_err();
    assert!(refused.starts_with("OtherPeer"), "{refused}");
    let view = receiver.attach(descriptor, 1).unwrap();
    let again = receiver.attach(descriptor, 1).unwrap_err();
    assert_eq!(again, "NotGranted", "one grant is one view");
    overwrite_all_that_is_free(&provider);
    receiver.check(view);

    receiver.release(view);
    assert_eq!(provider.stats().bytes_leased, 0, "the grant and the lease are one");
    overwrite_all_that_is_free(&provider);
    let late = receiver.attach(descriptor, 1).unwrap_err();
    assert!(late == "Stale", "the descriptor names nothing any more, but gives {late}");
}

#[test]
fn kept_until_confirmed() {
    let names = Names::new("confirm");
    let provider = provider(&names);
    let receivers = [(); 3].map(|()| Peer::start(names.prefix()));
    let kept = message(&provider, 2);
    let descriptor = kept.descriptor().unwrap();
    let attach = |receiver: &Peer| {
        overwrite_all_that_is_free(&provider);
        receiver.attach(descriptor, 2).unwrap() // the reply is the confirmation
    };
    let views: Vec<_> = receivers.iter().map(attach).collect();
    drop(kept);
    overwrite_all_that_is_free(&provider);
    for (receiver, view) in receivers.iter().zip(views) {
        receiver.check(view);
        assert_eq!(provider.stats().bytes_leased, LEN, "held until the last of them lets go");
        receiver.release(view);
    }
    assert_eq!(provider.stats().bytes_leased, 0);
}

#[test]
fn unkept_is_stale() {
    let names = Names::new("late");
    let provider = provider(&names);
    let receiver = Peer::start(names.prefix());
    let lost = message(&provider, 3);
    let descriptor = lost.descriptor().unwrap();
    drop(lost);
    overwrite_all_that_is_free(&provider);
    assert_eq!(receiver.attach(descriptor, 3).unwrap_err(), "Stale");
    assert_eq!(provider.stats().bytes_leased, 0, "a refused attach leaves no lease");
}

/// A receiver never reads the memory of a provider with another prefix.
#[test]
fn other_prefix() {
    let names = Names::new("prefix");
    let provider = provider(&names);
    let message = message(&provider, 4);
    let elsewhere = Peer::start("proc-elsewhere");
    let refused = elsewhere.attach(message.descriptor().unwrap(), 4).unwrap_err();
    assert!(refused.starts_with("NoProvider"), "{refused}");
}
