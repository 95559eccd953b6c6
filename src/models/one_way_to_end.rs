//! Loom models of the one way to end: whichever process ends last removes the objects, and nothing is
//! removed that is still read. The objects are files, their locks the kernel's, and each system call
//! is a step. A process that is killed releases its locks.

use super::*;
use crate::os::name::Link;
use crate::protocol::ids::{channel_name, connection_name, segment_name};
use crate::sync::{explore, interleave_system_calls};
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::Arc;

const PROVIDER: ProviderId = ProviderId(7);

const CHANNEL: &str = "c";

/// An owner with one segment, and its sender or publisher.
struct Scene {
    names: Namespace,
    /// The sender holds its receiver's doorbell. The kernel changes this when it tears down the
    /// sender's process, before it releases locks.
    is_held: AtomicU32,
}

/// The objects of the owner's process.
struct Owner {
    scene: Arc<Scene>,
    control: LockFile,
    channel: LockFile,
    link: Link,
}

/// A process that reads what the owner sent.
struct Reader {
    scene: Arc<Scene>,
    locks: LockFile,
    byte: usize,
    /// A subscriber has created its connection.
    link: Option<Link>,
}

/// Runs a model, which must leave no object.
fn check(model: fn(&Arc<Scene>)) {
    static MODELS: AtomicUsize = AtomicUsize::new(0);
    let at = MODELS.fetch_add(1, Ordering::Relaxed);
    let names = Namespace::new(&format!("model-{}-{at}", std::process::id())).unwrap();
    explore(2, move || {
        let scene = Arc::new(Scene {
            names: names.clone(),
            is_held: AtomicU32::new(1),
        });
        model(&scene);
        interleave_system_calls(false);
        assert_eq!(scene.left(), [""; 0], "these objects are left");
    });
}

fn both(one: impl FnOnce() + 'static, other: impl FnOnce() + 'static) {
    interleave_system_calls(true);
    let one = thread::spawn(one);
    other();
    one.join().unwrap();
}

impl Scene {
    fn left(&self) -> Vec<String> {
        let mut files = self.names.files().unwrap();
        files.retain(|file| object(&self.names, file).is_some());
        files
    }

    /// Creates an object with locks on some bytes.
    fn create(&self, name: &Name, magic: u64, bytes: &[usize]) -> LockFile {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let locks = LockFile::open(|| name.open(flags, 0o600)).unwrap();
        locks.file().set_len(PAGE as u64).unwrap();
        locks.file().write_at(&magic.to_ne_bytes(), 0).unwrap();
        for &byte in bytes {
            assert!(locks.try_lock(byte).unwrap());
        }
        locks
    }

    fn create_channel_object(&self, name: &Name, bytes: &[usize]) -> LockFile {
        let locks = self.create(name, CHANNEL_MAGIC, bytes);
        let provider = PROVIDER.0.to_ne_bytes();
        locks.file().write_at(&provider, PROVIDER_OFFSET).unwrap();
        locks
    }

    fn channel(&self) -> Name {
        channel_name(&self.names, CHANNEL)
    }

    fn segment(&self) -> Name {
        segment_name(&self.names, PROVIDER, 1)
    }

    fn start_owner(self: &Arc<Self>) -> Owner {
        let control = control_name(&self.names, PROVIDER);
        let control = self.create(&control, MAGIC, &[OWNER_BYTE]);
        self.create(&self.segment(), 0, &[]);
        let channel = self.create_channel_object(&self.channel(), &[OWNER_BYTE]);
        let link = Link::new(self.channel(), channel.file());
        Owner {
            scene: self.clone(),
            control,
            channel,
            link,
        }
    }

    /// The receiver of the sender's channel.
    fn start_receiver(self: &Arc<Self>) -> Reader {
        let name = self.channel();
        let locks = LockFile::open(|| name.open(libc::O_RDWR, 0)).unwrap();
        assert!(locks.try_lock(RECEIVER_BYTE).unwrap());
        Reader {
            scene: self.clone(),
            locks,
            byte: RECEIVER_BYTE,
            link: None,
        }
    }

    /// A receiver of the publisher, with a connection of its own.
    fn start_subscriber(self: &Arc<Self>, id: u64) -> Reader {
        let name = connection_name(&self.names, CHANNEL, id);
        let locks = self.create_channel_object(&name, &[OWNER_BYTE, RECEIVER_BYTE]);
        let link = Link::new(name, locks.file());
        Reader {
            scene: self.clone(),
            locks,
            byte: RECEIVER_BYTE,
            link: Some(link),
        }
    }

    /// A peer with a grant that it has not taken up.
    fn start_peer(self: &Arc<Self>, slot: usize) -> Reader {
        let name = control_name(&self.names, PROVIDER);
        let locks = LockFile::open(|| name.open(libc::O_RDWR, 0)).unwrap();
        assert!(locks.try_lock(peer_byte(slot)).unwrap());
        let grant = [0xff];
        let lane = PAGE + std::mem::size_of::<u64>() + slot;
        locks.file().write_at(&grant, lane as u64).unwrap();
        let used = 1_u32.to_ne_bytes();
        locks.file().write_at(&used, HIGH_WATER_OFFSET).unwrap();
        Reader {
            scene: self.clone(),
            locks,
            byte: peer_byte(slot),
            link: None,
        }
    }

    fn sweep(&self) {
        self.names.sweep().unwrap();
    }

    /// As a successor of a sender does that was killed, before it creates a channel of that name.
    fn free_channel_name(&self) {
        let freed = remove_or_rename_dead(&self.channel(), effective_uid(), CHANNEL_MAGIC);
        assert!(matches!(
            freed,
            Ok(Removal::Removed { .. } | Removal::Gone | Removal::Read | Removal::Locked)
        ));
    }
}

impl Owner {
    /// Ends with messages to be read: as `Connection::close_pair`, the ledger's drop, and
    /// `OwnerControl::leave`.
    fn end(mut self) {
        self.scene.is_held.store(0, Ordering::Release);
        let renamed = name_while_read(self.link.name()).unwrap();
        self.link.rename(renamed).unwrap();
        self.link.keep();
        drop(self.channel);
        self.control.unlock(OWNER_BYTE).unwrap();
        sweep_after_end(&self.scene.names, PROVIDER);
    }

    fn kill(self) {
        self.scene.is_held.store(0, Ordering::Release);
        self.link.keep();
    }
}

impl Reader {
    /// Drops the last message, as the drop of `ReturnQueue` does.
    fn end(self) {
        // What it reads is there until then.
        assert!(self.scene.segment().exists());
        drop(self.link);
        let names = &self.scene.names;
        end_reading(&self.locks, self.byte, names, PROVIDER, || {
            if self.scene.is_held.load(Ordering::Acquire) == 0 {
                Some(Teardown::None)
            } else {
                None
            }
        });
    }

    /// Drops the last view, as the drop of `PeerControl` does.
    fn disconnect(self) {
        let names = &self.scene.names;
        end_reading(&self.locks, self.byte, names, PROVIDER, || {
            if self.locks.is_locked(OWNER_BYTE) {
                None
            } else {
                Some(Teardown::None)
            }
        });
    }
}

#[test]
fn receiver_ends_while_the_owner_does() {
    check(|scene| {
        let owner = scene.start_owner();
        let receiver = scene.start_receiver();
        both(move || owner.end(), move || receiver.end());
    });
}

#[test]
fn subscriber_ends_while_the_owner_does() {
    check(|scene| {
        let owner = scene.start_owner();
        let subscriber = scene.start_subscriber(1);
        both(move || owner.end(), move || subscriber.end());
    });
}

#[test]
fn two_subscribers_end() {
    check(|scene| {
        let owner = scene.start_owner();
        let one = scene.start_subscriber(1);
        let other = scene.start_subscriber(2);
        owner.kill();
        both(move || one.end(), move || other.end());
    });
}

#[test]
fn peer_ends_while_the_owner_does() {
    check(|scene| {
        let owner = scene.start_owner();
        let peer = scene.start_peer(0);
        both(move || owner.end(), move || peer.disconnect());
    });
}

#[test]
fn two_peers_end() {
    check(|scene| {
        let owner = scene.start_owner();
        let one = scene.start_peer(0);
        let other = scene.start_peer(1);
        owner.kill();
        both(move || one.disconnect(), move || other.disconnect());
    });
}

#[test]
fn receiver_and_peer_end() {
    check(|scene| {
        let owner = scene.start_owner();
        let receiver = scene.start_receiver();
        let peer = scene.start_peer(0);
        owner.kill();
        both(move || receiver.end(), move || peer.disconnect());
    });
}

#[test]
fn receiver_ends_while_the_name_is_freed() {
    check(|scene| {
        let owner = scene.start_owner();
        let receiver = scene.start_receiver();
        owner.kill();
        let successor = scene.clone();
        both(
            move || successor.free_channel_name(),
            move || receiver.end(),
        );
    });
}

#[test]
fn receiver_ends_during_a_sweep() {
    check(|scene| {
        let owner = scene.start_owner();
        let receiver = scene.start_receiver();
        owner.kill();
        let other = scene.clone();
        both(move || other.sweep(), move || receiver.end());
    });
}

/// The sweep must find the receiver by one name or the other.
#[test]
fn name_is_freed_during_a_sweep() {
    check(|scene| {
        let owner = scene.start_owner();
        let receiver = scene.start_receiver();
        owner.kill();
        let successor = scene.clone();
        let other = scene.clone();
        both(move || successor.free_channel_name(), move || other.sweep());
        receiver.end();
    });
}

#[test]
fn owner_ends_during_a_sweep() {
    check(|scene| {
        let owner = scene.start_owner();
        let receiver = scene.start_receiver();
        let other = scene.clone();
        both(move || owner.end(), move || other.sweep());
        receiver.end();
    });
}
