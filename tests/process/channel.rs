//! A channel between two processes. Messages arrive complete and in order, with two slots or with
//! many; each side learns that the other was killed, even while it is parked; each name has one
//! living sender and one receiver.

use crate::child::{in_child, Child};
use crate::ends::SendingEnd;
use crate::shm::{self, Names};
use crate::sys;
use crate::threads::beside;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{
    wait_any, ChannelError, Receiver, RecvError, SendErrorKind, SendOptions, Sender, Subscriber,
    MAX_INLINE,
};
use shm_pool::{Client, Namespace, Provider, Tuning};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const CHANNEL: &str = "c";

pub(crate) fn provider(prefix: &str) -> Provider {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(8 << 20)
        .tuning(Tuning::new().arena_size(256 << 10))
        .build()
        .unwrap()
}

pub(crate) fn sender(provider: &Provider, slots: usize) -> Sender {
    Sender::builder()
        .capacity(slots)
        .create(provider, CHANNEL)
        .unwrap()
}

fn client(prefix: &str) -> Arc<Client> {
    Arc::new(shm::client(prefix))
}

pub(crate) fn receiver(prefix: &str) -> Receiver {
    Receiver::builder()
        .namespace(&shm::namespace(prefix))
        .open(CHANNEL)
        .unwrap()
}

/// The lengths of messages, in turn: two that fit a slot, a small buffer and a large one.
const LENGTHS: [usize; 4] = [0, MAX_INLINE, 100, 20_000];

/// A message that does not fit a slot.
const A_BUFFER: u64 = 3;

fn send(sender: &mut Sender, provider: &Provider, number: u64) {
    send_filled(
        sender,
        provider,
        LENGTHS[number as usize % LENGTHS.len()],
        |bytes| shm::fill(bytes, number),
    );
}

/// Sends a message of this length, in the slot itself if it fits.
pub(crate) fn send_filled<E: SendingEnd>(
    end: &mut E,
    provider: &Provider,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> E::Sent {
    if len <= MAX_INLINE {
        let mut bytes = [0; MAX_INLINE];
        fill(&mut bytes[..len]);
        return end.send_copy(&bytes[..len]).unwrap();
    }
    let mut buffer = loop {
        match provider.alloc(len) {
            Ok(buffer) => break buffer,
            // Receivers have not taken enough yet.
            Err(error) if error.is_exhausted() => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    fill(&mut buffer);
    end.send(buffer.freeze()).unwrap()
}

role!("channel-receiver", role);

/// The role of a receiver. With "count", it receives until the sender disconnects and answers the
/// number of messages; otherwise it only waits for the test to end.
pub(crate) fn role(link: &Link, arguments: &[&str]) {
    let [prefix, way] = arguments else {
        panic!("a prefix and a way")
    };
    let mut receiver = receiver(prefix);
    link.send(&Message::Done);
    match *way {
        "count" => {
            let mut count = 0;
            loop {
                match receiver.recv() {
                    Ok(message) => {
                        assert_eq!(
                            message.len(),
                            LENGTHS[count as usize % LENGTHS.len()],
                            "message {count}"
                        );
                        shm::check(&message, count).unwrap();
                        count += 1;
                    }
                    Err(RecvError::Disconnected) => break,
                    Err(error) => panic!("message {count}: {error}"),
                }
            }
            link.send(&Message::Number(count));
        }
        _ => assert_eq!(link.receive().unwrap(), None),
    }
}

role!("channel-sender", sending_role);

/// The role of a sender: waits for a receiver, sends the given number of messages, and waits.
pub(crate) fn sending_role(link: &Link, arguments: &[&str]) {
    let [prefix, count] = arguments else {
        panic!("a prefix and a number")
    };
    let provider = provider(prefix);
    let mut sender = sender(&provider, 64);
    link.send(&Message::Done);
    sender.wait_for_receiver(FOR_EVER).unwrap();
    for number in 0..count.parse().unwrap() {
        send(&mut sender, &provider, number);
    }
    link.done_until_end();
}

role!("channel-echo", echo_role);

/// The role of a receiver that sends everything back. Neither end spins before it parks.
fn echo_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = provider(prefix);
    let mut receiver = sleeping_receiver(prefix, THERE);
    let mut sender = sleeping_sender(&provider, BACK);
    link.send(&Message::Done);
    while let Ok(message) = receiver.recv() {
        sender.send_copy(&message).unwrap();
    }
    assert_eq!(link.receive().unwrap(), None);
}

const THERE: &str = "there";
const BACK: &str = "back";

fn sleeping_sender(provider: &Provider, name: &str) -> Sender {
    Sender::builder()
        .capacity(2)
        .spin(Duration::ZERO)
        .create(provider, name)
        .unwrap()
}

fn sleeping_receiver(prefix: &str, name: &str) -> Receiver {
    Receiver::builder()
        .spin(Duration::ZERO)
        .namespace(&shm::namespace(prefix))
        .open(name)
        .unwrap()
}

fn start_receiver(names: &Names, way: &str) -> Child {
    let child = Child::start_ready("channel-receiver", &[names.prefix(), way]);
    child
}

/// The offset in a pair, in bytes, of the doorbell that its receiver notifies.
const TO_SENDER: u64 = 128;

/// The sender and the pool find that the receiver is dead.
#[test]
fn damaged_bell_hides_no_death() {
    for garbage in [0_u32, 77, u32::MAX] {
        let names = Names::new("chan-doorbell");
        let provider = provider(names.prefix());
        let mut sender = sender(&provider, 2);
        let child = start_receiver(&names, "");
        while sender
            .try_send(provider.alloc(100).unwrap().freeze())
            .is_ok()
        {}
        shm::channel_object(names.prefix(), CHANNEL)
            .write_all_at(&garbage.to_ne_bytes(), TO_SENDER)
            .unwrap();
        child.kill();
        assert!(provider.stats().bytes_leased > 0);
        provider.trim();
        assert_eq!(provider.stats().bytes_leased, 0, "{garbage:#x}");
        let sent = sender.send_timeout(
            provider.alloc(100).unwrap().freeze(),
            Duration::from_secs(20),
        );
        assert_eq!(
            sent.unwrap_err().kind(),
            SendErrorKind::Disconnected,
            "{garbage:#x}"
        );
        // The sender reclaims nothing that another receiver could still get.
        let opened = Receiver::builder()
            .namespace(&shm::namespace(names.prefix()))
            .open(CHANNEL)
            .unwrap_err();
        assert!(
            matches!(opened, ChannelError::HasReceiver { .. }),
            "{opened}"
        );
    }
}

fn many_through(test: &str, slots: usize, count: u64) {
    let names = Names::new(test);
    let provider = provider(names.prefix());
    let mut sender = sender(&provider, slots);
    assert_eq!(sender.capacity(), slots);
    let child = start_receiver(&names, "count");
    for number in 0..count {
        send(&mut sender, &provider, number);
    }
    drop(sender);
    assert_eq!(child.receive(), Message::Number(count));
    child.shut_down();
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0, "nothing is leased any more");
}

/// With two slots, the two sides constantly wait for each other.
#[test]
fn in_order_with_two_slots() {
    many_through("chan-two", 2, 10_000);
}

/// The same, with the largest number of slots.
#[test]
fn in_order_with_many_slots() {
    many_through("chan-many", 65_536, 66_000);
}

/// Both sides park at almost every message, and are woken by one that is about to park itself.
#[test]
fn no_lost_wake_up() {
    const ROUNDS: u64 = 20_000;
    let names = Names::new("chan-wake");
    let provider = provider(names.prefix());
    let mut there = sleeping_sender(&provider, THERE);
    let child = Child::start_ready("channel-echo", &[names.prefix()]);
    let mut back = sleeping_receiver(names.prefix(), BACK);
    let mut number: u64 = 0;
    for round in 0..ROUNDS {
        // As many as fit: two on the way there, one in the child's hands, and one or two on the way
        // back.
        let burst = number..number + 1 + round % 3;
        for number in burst.clone() {
            there
                .send_copy_with(&number.to_ne_bytes(), SendOptions::new().timeout(FOR_EVER))
                .unwrap();
        }
        for number in burst.clone() {
            assert_eq!(
                &back.recv_timeout(FOR_EVER).unwrap()[..],
                number.to_ne_bytes()
            );
        }
        number = burst.end;
    }
    drop(there);
    assert!(matches!(
        back.recv_timeout(Duration::from_micros(1)),
        Err(RecvError::TimedOut)
    ));
    child.shut_down();
    assert!(matches!(back.recv(), Err(RecvError::Disconnected)));
}

/// A subscriber whose publisher crashed wakes, and receives the messages sent before the crash.
#[test]
fn killed_sender_wakes_receiver() {
    let names = Names::new("chan-sender-dies");
    let owner = Child::start_ready("channel-sender", &[names.prefix(), "5"]);
    let mut receiver = receiver(names.prefix());
    owner.expect_done();
    for number in 0..3 {
        shm::check(&receiver.recv().unwrap(), number).unwrap();
    }
    let (asleep, killed) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut lengths = Vec::new();
            for _ in 3..5 {
                lengths.push(receiver.recv().unwrap().len());
            }
            (lengths, receiver.recv())
        });
        owner.kill();
        waiting.join().unwrap()
    });
    assert_eq!(asleep, [LENGTHS[3], LENGTHS[0]]);
    assert!(matches!(killed, Err(RecvError::Disconnected)), "{killed:?}");
    assert!(matches!(receiver.try_recv(), Err(RecvError::Disconnected)));
    drop(receiver);
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "control object, segments and the channel"
    );
}

/// Takes the sender's lock, which a sweep holds while it inspects a dead sender's channel.
fn lock_as_a_sweep(names: &Names) -> File {
    let file = shm::channel_object(names.prefix(), CHANNEL);
    lock_sender_byte(&file, libc::F_WRLCK);
    file
}

fn lock_sender_byte(file: &File, kind: libc::c_int) {
    // SAFETY: zero is a valid value of every field.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_len = 1;
    // SAFETY: the structure is valid. It names the first byte, whose lock is the sender's.
    sys::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
        .expect("no other process has it");
}

#[test]
fn sent_outlives_killed_sender() {
    let names = Names::new("chan-swept");
    let owner = Child::start_ready("channel-sender", &[names.prefix(), "5"]);
    let mut receiver = receiver(names.prefix());
    owner.expect_done();
    owner.kill();
    let other_sweep = lock_as_a_sweep(&names);
    assert_eq!(
        (names.sweep(), receiver.mapped_segments()),
        (0, 0),
        "it has a reader, whoever looks at it meanwhile"
    );
    // Explicitly: another test may just start a process, which has a copy of the descriptor until
    // it calls `exec`.
    lock_sender_byte(&other_sweep, libc::F_UNLCK);
    drop(other_sweep);
    assert_eq!(
        (names.sweep(), receiver.mapped_segments()),
        (0, 0),
        "it has a reader"
    );
    drop(provider(names.prefix()));
    let mut received = Vec::new();
    for number in 0..5 {
        let message = receiver.recv().unwrap();
        shm::check(&message, number).unwrap();
        received.push((message, number));
    }
    assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
    drop(receiver);
    assert_eq!(names.sweep(), 0, "its messages are still read");
    for (message, number) in &received {
        shm::check(message, *number).unwrap();
    }
    drop(received);
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "control object, segments and the channel"
    );
}

/// A receiver that briefly runs out of descriptors does not lose a message for good.
#[test]
fn recv_retries_mapping() {
    let names = Names::new("chan-not-now");
    let provider = provider(names.prefix());
    let mut sender = sender(&provider, 4);
    let child = Child::start_ready("channel-poor", &[names.prefix()]);
    send(&mut sender, &provider, A_BUFFER);
    child.send(&Message::Go);
    child.expect_done();
    child.shut_down();
    drop(sender);
    assert_eq!(provider.stats().bytes_leased, 0);
}

role!("channel-poor", poor_role);

/// The role of a receiver that has no descriptor left when the first message arrives.
fn poor_role(link: &Link, arguments: &[&str]) {
    let mut receiver = receiver(arguments[0]);
    link.send(&Message::Done);
    link.expect_go();
    sys::limit_descriptors(64);
    let mut others = Vec::new();
    // Until no descriptor is left.
    while let Ok(file) = File::open("/dev/null") {
        others.push(file);
    }
    for _ in 0..3 {
        let error = receiver.recv().unwrap_err();
        assert!(
            matches!(&error, RecvError::Os(error) if error.errno() == Some(libc::EMFILE)),
            "{error:?}"
        );
    }
    drop(others);
    shm::check(&receiver.recv().unwrap(), A_BUFFER).unwrap();
    drop(receiver);
    link.done_until_end();
}

/// A publisher that waits for room is woken, and gets its messages back.
#[test]
fn killed_receiver_wakes_sender() {
    let names = Names::new("chan-receiver-dies");
    let provider = provider(names.prefix());
    let mut sender = sender(&provider, 4);
    let child = start_receiver(&names, "hold");
    // The receiver has not asked for a message yet, so five fit, and the sixth waits.
    let mut buffers = Vec::new();
    for _ in 0..6 {
        buffers.push(provider.alloc(200_000).unwrap().freeze());
    }
    for buffer in buffers.drain(1..) {
        sender.send(buffer).unwrap();
    }
    let last = buffers.remove(0);
    assert_eq!(
        sender.try_send_copy(b"x"),
        Err(SendErrorKind::Full { capacity: 4 }.into())
    );
    assert_eq!(
        sender.send_copy_with(b"x", SendOptions::new().timeout(Duration::from_millis(1))),
        Err(SendErrorKind::TimedOut.into())
    );
    let error = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sender.send(last).unwrap_err());
        child.kill();
        waiting.join().unwrap()
    });
    assert_eq!(error.kind(), SendErrorKind::Disconnected);
    let last = error.into_message();
    assert_eq!(
        sender.try_send(last).unwrap_err().kind(),
        SendErrorKind::Disconnected
    );
    let stats = provider.stats();
    assert_eq!(
        (stats.bytes_leased, stats.bytes_in_use),
        (0, 0),
        "what it had not taken came back with the error"
    );
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

#[test]
fn unreceived_returns() {
    let names = Names::new("chan-leaves");
    let provider = provider(names.prefix());
    let mut sender = sender(&provider, 8);
    let client = client(names.prefix());
    let receiver = Receiver::builder()
        .namespace(client.namespace())
        .open(CHANNEL)
        .unwrap();
    for _ in 0..4 {
        sender
            .send(provider.alloc(200_000).unwrap().freeze())
            .unwrap()
    }
    drop(receiver);
    assert_eq!(provider.stats().bytes_leased, 0);
    let error = sender
        .send(provider.alloc(100).unwrap().freeze())
        .unwrap_err();
    assert_eq!(error.kind(), SendErrorKind::Disconnected);
    drop(error);
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
    drop(client);
}

/// A restarted publisher gets its channel back, and a living one keeps it.
#[test]
fn one_sender_one_receiver() {
    let names = Names::new("chan-names");
    let open = || {
        Receiver::builder()
            .namespace(&shm::namespace(names.prefix()))
            .open(CHANNEL)
    };
    assert!(matches!(open(), Err(ChannelError::NotFound { .. })));
    let owner = Child::start_ready("channel-sender", &[names.prefix(), "0"]);
    let provider = provider(names.prefix());
    let create = || Sender::builder().create(&provider, CHANNEL);
    assert!(matches!(create(), Err(ChannelError::NameTaken { .. })));
    let first = open().unwrap();
    // The sender has seen this receiver. If the receiver had left earlier, the sender would have
    // ended, because no other receiver can join.
    owner.expect_done();
    assert!(matches!(open(), Err(ChannelError::HasReceiver { .. })));
    drop(first);
    assert!(
        matches!(open(), Err(ChannelError::HasReceiver { .. })),
        "a channel is for one receiver, once"
    );
    owner.kill();
    assert!(matches!(open(), Err(ChannelError::Closed { .. })));
    let mut again = create().unwrap();
    let mut receiver = open().unwrap();
    again.send_copy(b"again").unwrap();
    assert_eq!(&receiver.recv().unwrap()[..], b"again");
    drop(again);
    assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
    assert!(matches!(open(), Err(ChannelError::NotFound { .. })));
    names.sweep();
}

/// A receiver neither accepts bytes written by another process as a message nor crashes on them.
#[test]
fn garbage_is_refused() {
    let names = Names::new("chan-garbage");
    let path = shm::path(&format!("{}.{CHANNEL}.channel", names.prefix()));
    let open = || {
        Receiver::builder()
            .namespace(&shm::namespace(names.prefix()))
            .open(CHANNEL)
    };
    // Whole pages of any system.
    const LEN: usize = 64 << 10;
    for content in [vec![], vec![0; 100], vec![0; LEN], vec![1; LEN]] {
        fs::write(&path, &content).unwrap();
        // An empty object may be one that is being created, and one of zeros is left by a creator
        // that was killed.
        assert!(match open() {
            Err(ChannelError::NotReady { .. }) => content.is_empty(),
            Err(ChannelError::Closed { .. }) => content == [0; LEN],
            Err(ChannelError::NotAChannel { .. }) => !content.is_empty(),
            _ => false,
        });
        fs::remove_file(&path).unwrap();
    }
    let provider = provider(names.prefix());
    let mut sender = sender(&provider, 4);
    let genuine = fs::read(&path).unwrap();
    let file = shm::channel_object(names.prefix(), CHANNEL);
    for at in (0..8).chain(24..28) {
        file.write_all_at(&[genuine[at] ^ 0x55], at as u64).unwrap();
        assert!(
            matches!(open(), Err(ChannelError::NotAChannel { .. })),
            "byte {at} of the header"
        );
        file.write_all_at(&genuine[at..=at], at as u64).unwrap();
    }
    for at in 8..12 {
        file.write_all_at(&[genuine[at] ^ 0x55], at as u64).unwrap();
        let error = open().unwrap_err();
        let ChannelError::OtherVersion { found, .. } = error else {
            panic!("byte {at} of the header: {error}");
        };
        let expected = u32::from_ne_bytes(genuine[8..12].try_into().unwrap());
        assert_ne!(found, expected);
        let message = error.to_string();
        assert!(message.contains(&found.to_string()), "{message}");
        assert!(message.contains(&expected.to_string()), "{message}");
        file.write_all_at(&genuine[at..=at], at as u64).unwrap();
    }
    let mut receiver = open().unwrap();
    for (number, head) in [0, 3, u64::MAX, 1 | 49 << 8, 2].into_iter().enumerate() {
        sender.send_copy(b"message").unwrap();
        let slot = 4096 + 64 * (number as u64 % 5);
        file.write_all_at(&u64::to_ne_bytes(head), slot + 8)
            .unwrap();
        assert!(
            matches!(receiver.try_recv(), Err(RecvError::Damaged { .. })),
            "head {head:#x}"
        );
    }
    sender.send_copy(b"message").unwrap();
    assert_eq!(
        &receiver.try_recv().unwrap()[..],
        b"message",
        "the next one is good"
    );
    sender.send_copy(b"message").unwrap();
    file.write_all_at(&[0xff; 8], 4096 + 64).unwrap();
    assert!(
        matches!(receiver.try_recv(), Err(RecvError::Empty)),
        "a sequence that cannot be"
    );
}

/// Despite a damaged doorbell, in waits on one channel and on several at once.
#[test]
fn short_waits_find_dead_sender() {
    let names = Names::new("chan-short-waits");
    for is_any in [false, true] {
        let owner = Child::start_ready("channel-sender", &[names.prefix(), "0"]);
        let mut receiver = sleeping_receiver(names.prefix(), CHANNEL);
        owner.expect_done();
        let channel = shm::channel_object(names.prefix(), CHANNEL);
        channel.write_all_at(&1_u32.to_ne_bytes(), 64).unwrap(); // a thread that is not the sender's
        owner.kill();
        let mut is_disconnected = || {
            if is_any {
                return wait_any(&mut [&mut receiver], Duration::from_millis(10)).is_ok();
            }
            let received = receiver.recv_timeout(Duration::from_millis(10));
            matches!(received.err().unwrap(), RecvError::Disconnected)
        };
        assert!(
            (0..500).any(|_| is_disconnected()),
            "waits of five seconds in all, any {is_any}"
        );
        drop(receiver);
        names.sweep();
    }
}

// ---- names --------------------------------------------------------------------------------------

/// A restarted publisher gets its name, shares it with no sender, and maps only its own object.
#[test]
fn concurrent_create() {
    const ROUNDS: usize = 1500;
    let names = Names::new("chan-races");
    let provider = names.provider().build().unwrap();
    let remains = {
        let _sender = Sender::builder()
            .capacity(4)
            .create(&provider, CHANNEL)
            .unwrap();
        fs::read(path(&names)).unwrap()
    };
    let living = AtomicUsize::new(0);
    let made = AtomicUsize::new(0);
    let create = |slots: usize| {
        for round in 0..ROUNDS {
            if round % 16 == 0 && living.load(Ordering::SeqCst) == 0 {
                // A dead sender's object, unless another thread has created a channel in the
                // meantime.
                let dead = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(path(&names));
                if let Ok(mut dead) = dead {
                    let _ = dead.write_all(&remains);
                }
            }
            let mut sender = match Sender::builder().capacity(slots).create(&provider, CHANNEL) {
                Ok(sender) => sender,
                Err(ChannelError::NameTaken { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(
                living.fetch_add(1, Ordering::SeqCst),
                0,
                "another one has the name, too"
            );
            made.fetch_add(1, Ordering::SeqCst);
            let mut receiver = Receiver::builder()
                .namespace(&names.namespace())
                .open(CHANNEL)
                .expect("the name leads to the sender");
            assert_eq!(sender.capacity(), slots);
            for _ in 0..slots.min(100) {
                sender.try_send_copy(&slots.to_ne_bytes()).unwrap();
            }
            assert_eq!(&receiver.try_recv().unwrap()[..], slots.to_ne_bytes());
            living.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let create_all = || {
        thread::scope(|scope| {
            let create = &create;
            for slots in [2, 3, 8192] {
                scope.spawn(move || create(slots));
            }
        })
    };
    beside(|| names.sweep(), create_all);
    assert!(
        made.load(Ordering::SeqCst) >= ROUNDS / 2,
        "too few to see anything"
    );
    names.sweep();
    assert!(!path(&names).exists());
}

fn path(names: &Names) -> std::path::PathBuf {
    shm::path(&format!("{}.{CHANNEL}.channel", names.prefix()))
}

/// Guards against two receivers, of which one gets the messages and the other their leases.
#[test]
fn concurrent_open() {
    const ROUNDS: usize = 1000;
    let names = Names::new("chan-openers");
    let provider = names.provider().build().unwrap();
    let first = names.client();
    let second = names.client();
    for client in [&first, &second] {
        assert!(client.connect(provider.id()).is_ok());
    }
    for _ in 0..ROUNDS {
        let mut sender = Sender::create(&provider, CHANNEL).unwrap();
        let start = Barrier::new(2);
        let open = |client: &shm_pool::Client| {
            start.wait();
            Receiver::builder()
                .namespace(client.namespace())
                .open(CHANNEL)
        };
        let opened = thread::scope(|scope| {
            let one = scope.spawn(|| open(&first));
            let other = scope.spawn(|| open(&second));
            (one.join().unwrap(), other.join().unwrap())
        });
        let (mut receiver, refused) = match opened {
            (Ok(receiver), Err(refused)) | (Err(refused), Ok(receiver)) => (receiver, refused),
            other => panic!("not one of two: {other:?}"),
        };
        assert!(matches!(refused, ChannelError::HasReceiver { .. }));
        sender.wait_for_receiver(Duration::from_secs(100)).unwrap();
        sender
            .send(provider.alloc_zeroed(100).unwrap().freeze())
            .unwrap();
        assert_eq!(receiver.recv().expect("it is for this receiver").len(), 100);
    }
    assert_eq!(provider.stats().bytes_leased, 0);
}

/// A foreign file under such a name survives.
#[test]
fn garbage_is_not_replaced() {
    let names = Names::new("chan-file");
    let provider = names.provider().build().unwrap();
    fs::write(path(&names), b"a text of somebody").unwrap();
    let error = Sender::create(&provider, CHANNEL).unwrap_err();
    assert!(matches!(error, ChannelError::NotAChannel { .. }), "{error}");
    assert_eq!(names.sweep(), 0);
    assert_eq!(fs::read(path(&names)).unwrap(), b"a text of somebody");
    fs::remove_file(path(&names)).unwrap();
}

// ---- the keeper's robust list, as the kernel reports it (see `os/robust_list.rs`) ---------------

const CHANNELS: usize = 3;

/// Guards against a list that the kernel unmaps before walking it when it kills a process for lack
/// of memory, or that a peer can write: the other ends would stay parked.
#[test]
fn robust_list_is_private() {
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .build()
            .unwrap();
        let client = shm::client(prefix);
        let mut ends = Vec::new();
        for number in 0..CHANNELS {
            let name = format!("c{number}");
            let sender = Sender::create(&provider, &name).unwrap();
            let receiver = Receiver::builder()
                .namespace(client.namespace())
                .open(&name)
                .unwrap();
            ends.push((sender, receiver));
        }
        let list = list();
        assert_eq!(
            list.len(),
            1 + 2 * CHANNELS,
            "the head, and an entry for each end"
        );
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        for address in list {
            let mapping = maps
                .lines()
                .find(|line| range(line).contains(&address))
                .expect("a mapped address");
            assert!(
                mapping
                    .split(' ')
                    .nth(1)
                    .expect("permissions")
                    .ends_with('s'),
                "private: {mapping}"
            );
            assert!(
                !mapping.contains("/dev/shm/"),
                "peers have it too: {mapping}"
            );
        }
        drop(ends);
        assert_eq!(self::list().len(), 1, "the head alone");
    });
}

/// The addresses of the list's head and of its entries.
fn list() -> Vec<u64> {
    let memory = File::open("/proc/self/mem").unwrap();
    let next = |at: u64| {
        let mut address = [0; 8];
        memory
            .read_exact_at(&mut address, at)
            .expect("an entry that is mapped");
        u64::from_ne_bytes(address)
    };
    let head = sys::robust_list(keeper());
    let mut entries = vec![head];
    while entries.len() < 100 {
        let next = next(entries[entries.len() - 1]);
        if next == head {
            break;
        }
        entries.push(next);
    }
    entries
}

fn keeper() -> libc::pid_t {
    let mut keepers = Vec::new();
    for thread in fs::read_dir("/proc/self/task").unwrap() {
        let path = thread.unwrap().path();
        if fs::read_to_string(path.join("comm")).unwrap() == "shm-pool-keeper\n" {
            keepers.push(path);
        }
    }
    let [keeper] = &keepers[..] else {
        panic!("the first channel starts one for each process: {keepers:?}");
    };
    let id = keeper.file_name().unwrap();
    id.to_str().unwrap().parse().unwrap()
}

fn range(line: &str) -> Range<u64> {
    let (start, end) = line
        .split(' ')
        .next()
        .unwrap()
        .split_once('-')
        .expect("two addresses");
    let address = |text| u64::from_str_radix(text, 16).unwrap();
    address(start)..address(end)
}

/// While the process has one thread, it takes the kernel no time; later, the first message would
/// wait for it.
#[test]
fn waiting_end_is_registered_at_once() {
    in_child(|prefix| {
        let Some(before) = sys::membarrier_registrations() else {
            return println!("SKIPPED: the kernel does not tell registrations");
        };
        let is_registered =
            |found: i64| found & i64::from(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) != 0;
        assert!(!is_registered(before));
        let namespace = Namespace::new(prefix).unwrap();
        let subscriber = Subscriber::builder()
            .namespace(&namespace)
            .open(CHANNEL)
            .unwrap();
        assert!(is_registered(sys::membarrier_registrations().unwrap()));
        drop(subscriber);
    });
}
