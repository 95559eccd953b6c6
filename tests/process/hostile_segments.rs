//! A sender that names a different file in each message: its receiver maps some of them, not all.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::Provider;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

const FILES: u64 = 200;

/// The most segments that a receiver has mapped, besides those of messages that are read.
const KEPT: usize = 32;

const CHANNEL: &str = "c";

/// Otherwise a sender makes its receiver reach the limit of mappings (`vm.max_map_count`), after
/// which the receiver's process cannot allocate.
#[test]
fn mapped_segments_are_bounded() {
    let names = Names::new("hostile-files");
    let sender = Child::start("hostile-segments", &[names.prefix()]);
    sender.expect_done();
    let mut receiver = Receiver::open(&names.client(), CHANNEL).unwrap();
    let mapped = || shm::mappings(names.prefix());
    let first = receiver.recv().unwrap();
    let before = mapped();
    for number in 1..FILES {
        assert_eq!(receiver.recv().unwrap()[..], number.to_ne_bytes());
        assert!(receiver.mapped_segments() <= KEPT, "{} are mapped", receiver.mapped_segments());
        assert!(mapped() <= before + KEPT, "{} are mapped", mapped());
    }
    assert_eq!(first[..], 0_u64.to_ne_bytes(), "what is read stays mapped");
    assert_eq!(mapped(), before + KEPT);
    drop(first);
    assert_eq!(mapped(), before + KEPT - 1, "that of a message is unmapped with it");
    sender.shut_down();
    assert!(receiver.recv().is_err());
    drop(receiver);
}

role!("hostile-segments", role);

/// The role: sends buffers, and writes other places into the slots, each in a file of its own.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).build().unwrap();
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    let path = shm::path(&format!("{prefix}.{CHANNEL}.channel"));
    let channel = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let files: Vec<_> = (0..FILES).map(|number| file(prefix, &provider, number)).collect();
    for number in 0..FILES {
        sender.send(provider.alloc(8).unwrap().freeze()).unwrap();
        redirect(&channel, number, SERIAL + number);
    }
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
    files.into_iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// The serial number of the first file.
const SERIAL: u64 = 1000;

fn file(prefix: &str, provider: &Provider, number: u64) -> std::path::PathBuf {
    let path = shm::path(&format!("{prefix}.{}.{:x}", provider.id(), SERIAL + number));
    let file = File::options().write(true).create_new(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    file.write_all_at(&number.to_ne_bytes(), 0).unwrap();
    path
}

/// Changes the segment of the message with this ticket, and its offset to 0. As `src/channel/ring.rs`
/// and `message.rs` lay it out.
fn redirect(channel: &File, ticket: u64, segment: u64) {
    let slot = 4096 + ticket * 64;
    let mut head = [0; 8];
    channel.read_exact_at(&mut head, slot + 8).unwrap();
    let words = [u64::from_ne_bytes(head), segment, 0, 8];
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let check = words.into_iter().fold(!ticket, mix);
    for (at, word) in (slot + 8..).step_by(8).zip(words.into_iter().chain([check])) {
        channel.write_all_at(&word.to_ne_bytes(), at).unwrap();
    }
}
