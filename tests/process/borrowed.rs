//! Messages between owner and reader: borrowed to channels, held for long and dropped in any order
//! and on any thread; or in transit as descriptors.

use crate::child::Child;
use crate::peer::Peer;
use crate::shm::{self, Names};
use crate::sys::with_address_space;
use crate::threads::beside;
use crate::wire::{Link, Message, FOR_EVER};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use shm_pool::channel::{self, ChannelError, Receiver, SendErrorKind, Sender};
use shm_pool::{Descriptor, Namespace, Provider, ShmBytes, Tuning};
use std::thread;
use std::time::{Duration, Instant};

const CHANNELS: usize = 3;
const HELD: usize = 1000;
const LENGTHS: [usize; 4] = [100, 5000, 20_000, 1 << 20];

fn provider(prefix: &str) -> Provider {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(1 << 30)
        .build()
        .unwrap()
}

fn name(number: usize) -> String {
    format!("c{number}")
}

fn len(number: usize) -> usize {
    LENGTHS[number % LENGTHS.len()]
}

fn send(sender: &mut Sender, provider: &Provider, number: usize) {
    sender
        .send(shm::message(provider, len(number), number as u64))
        .unwrap();
}

fn receivers(prefix: &str) -> Vec<Receiver> {
    let client = shm::client(prefix);
    let mut receivers = Vec::new();
    for number in 0..CHANNELS {
        let receiver = Receiver::builder()
            .namespace(client.namespace())
            .open(&name(number))
            .unwrap();
        receivers.push(receiver);
    }
    receivers
}

/// No message is reused while it is held, and buffers dropped out of order are returned.
#[test]
fn thousand_loans_out_of_order() {
    let names = Names::new("max_borrowed-thousand");
    let provider = provider(names.prefix());
    let create = |number| {
        Sender::builder()
            .capacity(16)
            .create(&provider, &name(number))
            .unwrap()
    };
    let mut senders: Vec<Sender> = (0..CHANNELS).map(create).collect();
    let child = Child::start("max_borrowed-holder", &[names.prefix()]);
    for number in 0..HELD {
        send(&mut senders[number % CHANNELS], &provider, number);
    }
    child.expect_done();
    let held: usize = (0..HELD).map(len).sum();
    assert!(
        provider.stats().bytes_leased >= held,
        "a message that is read counts as leased"
    );
    // While the receiver drops these, it is sent others, which it drops at once.
    child.send(&Message::Go);
    for number in HELD..2 * HELD {
        send(&mut senders[number % CHANNELS], &provider, number);
    }
    child.expect_done();
    child.shut_down();
    let stats = provider.stats();
    assert_eq!((stats.bytes_leased, stats.bytes_in_use), (0, 0));
    drop(senders);
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

role!("max_borrowed-holder", holder_role);

/// The role: holds messages, then drops them in random order on two threads while it receives more.
fn holder_role(link: &Link, arguments: &[&str]) {
    let mut receivers = receivers(arguments[0]);
    let mut receive = |number: usize| {
        let message = receivers[number % CHANNELS].recv().unwrap();
        assert_eq!(message.len(), len(number));
        message
    };
    let mut odd = Vec::new();
    let mut even = Vec::new();
    for number in 0..HELD {
        let held = if number % 2 == 1 { &mut odd } else { &mut even };
        held.push((number, receive(number)));
    }
    link.send(&Message::Done);
    link.expect_go();
    let mut random = fastrand::Rng::with_seed(1);
    random.shuffle(&mut odd);
    random.shuffle(&mut even);
    let check =
        |(number, message): (usize, channel::Message)| shm::check(&message, number as u64).unwrap();
    thread::scope(|scope| {
        for part in [odd, even] {
            scope.spawn(|| {
                for message in part {
                    check(message);
                }
            });
        }
        for number in HELD..2 * HELD {
            check((number, receive(number)));
        }
    });
    link.done_until_end();
}

/// It is not overwritten when its sender's process goes on with another provider.
#[test]
fn message_outlives_sender_and_provider() {
    let names = Names::new("max_borrowed-outlive");
    let first = provider(names.prefix());
    let mut sender = Sender::create(&first, &name(0)).unwrap();
    let mut others = Vec::new();
    for number in 1..CHANNELS {
        others.push(Sender::create(&first, &name(number)).unwrap());
    }
    let child = Child::start("max_borrowed-heir", &[names.prefix()]);
    for number in 0..LENGTHS.len() {
        send(&mut sender, &first, number);
    }
    sender.wait_until_received(FOR_EVER).unwrap();
    drop((sender, others, first));
    // The same lengths from another provider: they could land in the memory that is still read.
    let second = provider(names.prefix());
    let mut sender = Sender::create(&second, &name(0)).unwrap();
    for number in 0..100 {
        send(&mut sender, &second, number + 1);
    }
    child.send(&Message::Go);
    child.expect_done();
    child.shut_down();
    drop((sender, second));
    assert_eq!(
        names.sweep(),
        0,
        "a provider that has closed leaves nothing"
    );
}

role!("max_borrowed-heir", heir_role);

/// The role: holds messages after their sender and provider are dropped.
fn heir_role(link: &Link, arguments: &[&str]) {
    let mut receivers = receivers(arguments[0]);
    let mut held = Vec::new();
    for _ in LENGTHS {
        held.push(receivers[0].recv().unwrap());
    }
    // The request for the next message confirms that these have arrived.
    assert!(receivers[0].recv().is_err());
    drop(receivers);
    link.expect_go();
    for (number, message) in held.iter().enumerate() {
        shm::check(message, number as u64).unwrap();
    }
    drop(held);
    assert_eq!(
        shm::mappings(arguments[0]),
        0,
        "what nobody reads is let go of"
    );
    link.done_until_end();
}

/// Address space to leave, in KiB: from none to more than a first channel takes.
const SPACES: std::ops::Range<u64> = 0..640;
const SPACE_STEP: usize = 32;

#[test]
fn first_channel_without_address_space() {
    let names = Names::new("max_borrowed-keeper");
    let mut made = 0;
    let mut refused = 0;
    for space in SPACES.step_by(SPACE_STEP) {
        let child = Child::start("max_borrowed-keeper", &[names.prefix(), &space.to_string()]);
        match child.receive() {
            Message::Done => made += 1,
            Message::Refused(_) => refused += 1,
            other => panic!("{other:?}"),
        }
        child.finish();
    }
    assert!(
        made > 0 && refused > 0,
        "{made} made, {refused} refused: the range has not met the limit"
    );
}

role!("max_borrowed-keeper", keeper_role);

/// The role: creates a channel in the given address space, and then another with enough.
fn keeper_role(link: &Link, arguments: &[&str]) {
    let [prefix, space] = arguments else {
        panic!("a prefix and a number")
    };
    let prefix = format!("{prefix}-{space}");
    let provider = Provider::builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .build()
        .unwrap();
    let before = shm::state(&prefix);
    let made = with_address_space(space.parse::<u64>().unwrap() << 10, || {
        Sender::create(&provider, "c")
    });
    let answer = match made {
        Ok(sender) => {
            drop(sender);
            Message::Done
        }
        Err(ChannelError::Os(error)) => {
            assert!(
                matches!(error.errno(), Some(libc::ENOMEM | libc::EAGAIN)),
                "{error}"
            );
            let after = shm::state(&prefix);
            assert_eq!(after, before, "{error}, and not undone");
            Message::Refused(error.to_string())
        }
        Err(error) => panic!("{error:?}"),
    };
    drop(Sender::create(&provider, "c").unwrap());
    link.send(&answer);
}

// ---- descriptors in transit (D7) ----------------------------------------------------------------

const LEN: usize = 256 << 10;
const POOL: usize = 1 << 20;

fn small_pool(names: &Names) -> Provider {
    names
        .provider()
        .max_bytes(POOL)
        .tuning(Tuning::new().arena_size(64 << 10))
        .build()
        .unwrap()
}

/// Uses all free memory, many times over.
fn overwrite_all_that_is_free(provider: &Provider) {
    for pattern in 0..20 {
        let mut all: Vec<_> = std::iter::from_fn(|| provider.alloc(LEN).ok()).collect();
        for buffer in &mut all {
            buffer.fill(pattern);
        }
        for buffer in all {
            buffer.freeze().descriptor().unwrap();
        }
    }
}

/// A message is neither lost nor overwritten between its sender's drop and its receiver's attach.
#[test]
fn granted_message() {
    let names = Names::new("grant");
    let provider = small_pool(&names);
    let receiver = Peer::start(names.prefix());
    let stranger = Peer::start(names.prefix());
    let id = receiver.connect(provider.id()).unwrap();
    assert_eq!(
        receiver.connect(provider.id()),
        Ok(id),
        "a second connection is the same peer"
    );
    stranger.connect(provider.id()).unwrap();

    let granted = shm::message(&provider, LEN, 1);
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
    assert_eq!(
        provider.stats().bytes_leased,
        0,
        "the grant and the lease are one"
    );
    overwrite_all_that_is_free(&provider);
    let late = receiver.attach(descriptor, 1).unwrap_err();
    assert!(
        late == "Stale",
        "the descriptor names nothing any more, but gives {late}"
    );
}

#[test]
fn kept_until_confirmed() {
    let names = Names::new("confirm");
    let provider = small_pool(&names);
    let kept = shm::message(&provider, LEN, 2);
    let descriptor = kept.descriptor().unwrap();
    let mut receivers = Vec::new();
    for _ in 0..3 {
        let receiver = Peer::start(names.prefix());
        overwrite_all_that_is_free(&provider);
        let view = receiver.attach(descriptor, 2).unwrap(); // the reply is the confirmation
        receivers.push((receiver, view));
    }
    drop(kept);
    overwrite_all_that_is_free(&provider);
    for (receiver, view) in receivers {
        receiver.check(view);
        assert_eq!(
            provider.stats().bytes_leased,
            LEN,
            "held until the last of them lets go"
        );
        receiver.release(view);
    }
    assert_eq!(provider.stats().bytes_leased, 0);
}

#[test]
fn unkept_is_stale() {
    let names = Names::new("late");
    let provider = small_pool(&names);
    let receiver = Peer::start(names.prefix());
    let lost = shm::message(&provider, LEN, 3);
    let descriptor = lost.descriptor().unwrap();
    drop(lost);
    overwrite_all_that_is_free(&provider);
    assert_eq!(receiver.attach(descriptor, 3).unwrap_err(), "Stale");
    assert_eq!(
        provider.stats().bytes_leased,
        0,
        "a refused attach leaves no lease"
    );
}

/// A receiver never reads the memory of a provider with another prefix.
#[test]
fn other_prefix() {
    let names = Names::new("prefix");
    let provider = small_pool(&names);
    let message = shm::message(&provider, LEN, 4);
    let elsewhere = Peer::start("proc-elsewhere");
    let refused = elsewhere
        .attach(message.descriptor().unwrap(), 4)
        .unwrap_err();
    assert!(refused.starts_with("NoProvider"), "{refused}");
}

// ---- a successor at the same provider -----------------------------------------------------------
// A receiver leaves while its sender sends, and its successor attaches to the same messages by
// their descriptors. The sender must not reclaim from the first what belongs to the second.
//
// The sender shares a processor with a thread that only spins, and the receiver runs on another. So
// the sender pauses for some milliseconds again and again, at any instruction, and sometimes the
// receiver leaves and its successor joins within one such pause.

/// Indices into the processors that this process may use: the first and the second.
const SENDERS: usize = 0;
const RECEIVERS: usize = 1;

/// Pins this thread to one processor, if there are several.
fn stay_on(at: usize) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let Some(processor) = (0..CpuSet::count())
        .filter(|&one| allowed.is_set(one).unwrap())
        .nth(at)
    else {
        return;
    };
    let mut only = CpuSet::new();
    only.set(processor).unwrap();
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
}

const MESSAGES: usize = 16;
const RACE_LEN: usize = 4096;

/// Guards against a view that shows another message: the sender has released the view's lease,
/// mistaking it for the lease that it added for a receiver that left.
#[test]
fn contended_core() {
    let spin = || {
        stay_on(SENDERS);
        for _ in 0..1_000_000 {
            std::hint::spin_loop();
        }
    };
    let (overwritten, _) = beside(spin, || trials("race-contended", 500, |_| ()));
    assert_eq!(overwritten, 0, "of {} views", 500 * MESSAGES);
}

/// The same, with a sender that is stopped for a moment at any instruction.
#[test]
fn stopped_sender() {
    let mut random = 1_u64;
    let stop = |sender: &Child| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        for _ in 0..random >> 54 {
            std::hint::spin_loop();
        }
        sender.signal(libc::SIGSTOP);
    };
    assert_eq!(
        trials("race-stopped", 1000, stop),
        0,
        "of {} views",
        1000 * MESSAGES
    );
}

/// Calls `disturb` while the sender sends and the receiver is about to leave. The sender continues
/// once the successor has its views. Returns how many views were overwritten.
fn trials(test: &str, count: usize, mut disturb: impl FnMut(&Child)) -> u64 {
    let names = Names::new(test);
    let sender = Child::start("race-sender", &[names.prefix()]);
    let reader = Child::start("race-reader", &[names.prefix()]);
    let mut overwritten = 0;
    for _ in 0..count {
        sender.send(&Message::Go);
        for _ in 0..MESSAGES {
            reader.send(&sender.receive());
        }
        reader.expect_done();
        disturb(&sender);
        reader.expect_done();
        sender.signal(libc::SIGCONT);
        sender.send(&Message::Go);
        sender.expect_done();
        match reader.request(&Message::Go) {
            Message::Number(number) => overwritten += number,
            other => panic!("{other:?}"),
        }
    }
    reader.shut_down();
    sender.shut_down();
    overwritten
}

role!("race-sender", sender_role);

/// The owner: sends the same messages until the receiver disconnects, then writes other messages
/// into the free memory.
fn sender_role(link: &Link, arguments: &[&str]) {
    stay_on(SENDERS);
    let provider = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .max_bytes(2 << 20)
        .build()
        .unwrap();
    for number in 0_usize.. {
        match link.receive().unwrap() {
            Some(Message::Go) => {}
            None => return,
            other => panic!("{other:?}"),
        }
        let messages = filled_messages(&provider, 1, MESSAGES);
        let mut sender = Sender::builder()
            .capacity(MESSAGES)
            .create(&provider, &channel(number))
            .unwrap();
        for message in &messages {
            link.send(&Message::Sent(message.descriptor().unwrap()));
        }
        sender.wait_for_receiver(Duration::MAX).unwrap();
        'sending: loop {
            for message in &messages {
                match sender
                    .try_send(message.clone())
                    .map_err(|error| error.kind())
                {
                    Ok(())
                    | Err(SendErrorKind::Full { .. } | SendErrorKind::TooManyBorrowed { .. }) => {}
                    Err(SendErrorKind::Disconnected) => break 'sending,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        link.expect_go();
        drop((messages, sender));
        drop(filled_messages(&provider, 2, 2 * MESSAGES));
        link.send(&Message::Done);
    }
}

fn filled_messages(provider: &Provider, byte: u8, count: usize) -> Vec<ShmBytes> {
    let mut messages = Vec::new();
    for _ in 0..count {
        messages.push(filled(provider, byte));
    }
    messages
}

fn filled(provider: &Provider, byte: u8) -> ShmBytes {
    let mut buffer = provider.alloc(RACE_LEN).unwrap();
    buffer.fill(byte);
    buffer.freeze()
}

fn channel(number: usize) -> String {
    format!("c{number}")
}

role!("race-reader", reader_role);

/// The receiver, and then its successor.
fn reader_role(link: &Link, arguments: &[&str]) {
    stay_on(RECEIVERS);
    let prefix = arguments[0];
    for number in 0_usize.. {
        let mut descriptors: Vec<Descriptor> = Vec::new();
        while descriptors.len() < MESSAGES {
            match link.receive().unwrap() {
                Some(Message::Sent(descriptor)) => descriptors.push(descriptor),
                None => return,
                other => panic!("{other:?}"),
            }
        }
        let first = shm::client(prefix);
        first.connect(descriptors[0].provider()).unwrap();
        let mut receiver = Receiver::builder()
            .namespace(first.namespace())
            .open(&channel(number))
            .unwrap();
        drop(receiver.recv().unwrap());
        link.send(&Message::Done);
        // Lets the sender find room, so that it is at any point of sending when its receiver
        // leaves.
        let start = Instant::now();
        let time = Duration::from_micros((number * 7919 % 6000) as u64);
        while start.elapsed() < time {
            drop(receiver.try_recv());
        }
        drop((receiver, first));
        let second = shm::client(prefix);
        let mut views = Vec::new();
        for descriptor in &descriptors {
            views.push(second.attach(descriptor).unwrap());
        }
        link.send(&Message::Done);
        link.expect_go();
        let mut overwritten = 0;
        for view in &views {
            if view.iter().any(|&byte| byte != 1) {
                overwritten += 1;
            }
        }
        link.send(&Message::Number(overwritten));
    }
}
