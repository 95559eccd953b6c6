//! Any words in the object of a channel, written at any time by somebody else: both ends give typed errors or go on, and the
//! provider is as good as before.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::channel::{Receiver, RecvError, SendFailure, Sender};
use shm_pool::Provider;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

const CHANNEL: &str = "c";

/// How often both ends begin anew.
const CHANNELS: usize = 300;

/// What is done to each pair of them.
const STEPS: usize = 200;

const SLOTS: usize = 4;

/// Otherwise a process of the same user, gone mad, takes publishers and subscribers with it.
#[test]
fn garbage_in_a_channel_harms_nobody() {
    let names = Names::new("chan-hostile");
    let child = Child::start("channel-hostile", &[names.prefix()]);
    child.expect_done();
    child.finish();
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// The role: so that a crash or a stop fails the test.
pub(crate) fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).max_bytes(4 << 20).arena_size(64 << 10).build().unwrap();
    let client = Arc::new(shm::client(prefix));
    let (mut sent, mut received) = (0, 0);
    for seed in 0..CHANNELS {
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let mut sender = Sender::builder().slots(SLOTS).create(&provider, CHANNEL).unwrap();
        let mut receiver = Receiver::builder().open(client.clone(), CHANNEL).unwrap();
        let path = shm::path(&format!("{prefix}.{CHANNEL}.channel"));
        let object = File::options().read(true).write(true).open(path).unwrap();
        let mut held = Vec::new();
        for _ in 0..STEPS {
            match random.u8(..8) {
                0 => disturb(&object, &mut random),
                1..=3 => sent += usize::from(send(&mut sender, &provider, &mut random)),
                _ => received += receive(&mut receiver, &mut held, &mut random),
            }
        }
    }
    assert!(sent > CHANNELS * 10 && received > CHANNELS * 10, "{sent} sent, {received} received: mostly errors");
    provider.trim();
    // Grants of messages that never came; they are the client's as long as it lives.
    drop(client);
    provider.reclaim();
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
    drop(provider);
    link.send(&Message::Done);
}

/// Writes a word somewhere: garbage, or what stands elsewhere, or nearly what stood there.
fn disturb(object: &File, random: &mut fastrand::Rng) {
    // The header's four lines, or the slots.
    let place = |random: &mut fastrand::Rng| match random.bool() {
        true => random.u64(..256 / 8) * 8,
        false => 4096 + random.u64(..SLOTS as u64 * 8) * 8,
    };
    let mut word = [0; 8];
    object.read_exact_at(&mut word, place(random)).unwrap();
    let at = place(random);
    let value = match random.u8(..4) {
        0 => random.u64(..),
        1 => u64::from_ne_bytes(word),
        2 => 1 << random.u8(..64),
        _ => {
            object.read_exact_at(&mut word, at).unwrap();
            u64::from_ne_bytes(word).wrapping_add(random.u64(..3)).wrapping_sub(1)
        }
    };
    object.write_all_at(&value.to_ne_bytes(), at).unwrap();
}

fn send(sender: &mut Sender, provider: &Provider, random: &mut fastrand::Rng) -> bool {
    let failure = if random.bool() {
        sender.try_send_bytes(b"bytes").err()
    } else {
        let Ok(buffer) = provider.alloc_zeroed(random.usize(..10_000)) else { return false };
        let error = sender.send_timeout(buffer.freeze(), Duration::from_micros(10)).err();
        error.map(|error| error.failure())
    };
    match failure {
        None => true,
        Some(
            SendFailure::Full { .. }
            | SendFailure::TimedOut
            | SendFailure::PeerGone
            | SendFailure::NoReceiver
            | SendFailure::Share(_),
        ) => false,
        Some(other) => panic!("{other}"),
    }
}

fn receive(receiver: &mut Receiver, held: &mut Vec<shm_pool::channel::Message>, random: &mut fastrand::Rng) -> usize {
    if random.u8(..4) == 0 {
        held.clear();
    }
    match receiver.recv_timeout(Duration::from_micros(10)) {
        Ok(message) => {
            black_box(message.iter().fold(0u8, |sum, byte| sum ^ byte));
            held.push(message);
            1
        }
        Err(RecvError::Forked) => panic!("nobody forked"),
        Err(_) => 0,
    }
}
