//! Buffers on loan to channels: held for long, dropped in any order and on any thread, and held by
//! receivers that outlive their senders.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::spaces::with_address_space;
use crate::wire::{Link, Message};
use shm_pool::channel::{self, ChannelError, Receiver, Sender};
use shm_pool::Provider;
use std::thread;
use std::time::Duration;

const CHANNELS: usize = 3;
const HELD: usize = 1000;
const LENGTHS: [usize; 4] = [100, 5000, 20_000, 1 << 20];

/// Longer than anything here may take.
const FOR_EVER: Duration = Duration::from_secs(240);

fn provider(prefix: &str) -> Provider {
    Provider::builder().name_prefix(prefix).max_bytes(1 << 30).build().unwrap()
}

fn name(number: usize) -> String {
    format!("c{number}")
}

fn len(number: usize) -> usize {
    LENGTHS[number % LENGTHS.len()]
}

fn send(sender: &mut Sender, provider: &Provider, number: usize) {
    let mut buffer = provider.alloc(len(number)).unwrap();
    shm::fill(&mut buffer, number as u64);
    sender.send(buffer.freeze()).unwrap();
}

fn receivers(prefix: &str) -> Vec<Receiver> {
    let client = shm::client(prefix);
    (0..CHANNELS).map(|number| Receiver::open(&client, &name(number)).unwrap()).collect()
}

/// A message is not reused while it is held and others are sent, and buffers dropped out of order
/// are returned.
#[test]
fn thousand_loans_out_of_order() {
    let names = Names::new("loans-thousand");
    let provider = provider(names.prefix());
    let create = |number| Sender::builder().capacity(16).create(&provider, &name(number)).unwrap();
    let mut senders: Vec<Sender> = (0..CHANNELS).map(create).collect();
    let child = Child::start("loans-holder", &[names.prefix()]);
    (0..HELD).for_each(|number| send(&mut senders[number % CHANNELS], &provider, number));
    child.expect_done();
    let held: usize = (0..HELD).map(len).sum();
    assert!(provider.stats().bytes_leased >= held, "a message that is read counts as leased");
    // While the receiver drops these, it is sent others, which it drops at once.
    child.tell(&Message::Go);
    (HELD..2 * HELD).for_each(|number| send(&mut senders[number % CHANNELS], &provider, number));
    child.expect_done();
    child.shut_down();
    let stats = provider.stats();
    assert_eq!((stats.bytes_leased, stats.bytes_in_use), (0, 0));
    drop(senders);
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

role!("loans-holder", holder_role);

/// The role: holds a thousand messages, then drops them in random order on two threads while it
/// receives a thousand more.
fn holder_role(link: &Link, arguments: &[&str]) {
    let mut receivers = receivers(arguments[0]);
    let mut receive = |number: usize| {
        let message = receivers[number % CHANNELS].recv().unwrap();
        assert_eq!(message.len(), len(number));
        message
    };
    let held: Vec<(usize, channel::Message)> = (0..HELD).map(|number| (number, receive(number))).collect();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    let (mut odd, mut even): (Vec<_>, Vec<_>) = held.into_iter().partition(|(number, _)| number % 2 == 1);
    let mut random = fastrand::Rng::with_seed(1);
    random.shuffle(&mut odd);
    random.shuffle(&mut even);
    let check = |(number, message): (usize, channel::Message)| shm::check(&message, number as u64).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| odd.into_iter().for_each(check));
        scope.spawn(|| even.into_iter().for_each(check));
        (HELD..2 * HELD).for_each(|number| check((number, receive(number))));
    });
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
}

/// A message that is still read is not overwritten when its sender's process goes on with another
/// provider.
#[test]
fn message_outlives_sender_and_provider() {
    let names = Names::new("loans-outlive");
    let first = provider(names.prefix());
    let mut sender = Sender::create(&first, &name(0)).unwrap();
    let others: Vec<Sender> = (1..CHANNELS).map(|number| Sender::create(&first, &name(number)).unwrap()).collect();
    let child = Child::start("loans-heir", &[names.prefix()]);
    (0..LENGTHS.len()).for_each(|number| send(&mut sender, &first, number));
    sender.wait_until_received(FOR_EVER).unwrap();
    drop((sender, others, first));
    // The same lengths from another provider: they could land in the memory that is still read.
    let second = provider(names.prefix());
    let mut sender = Sender::create(&second, &name(0)).unwrap();
    (0..100).for_each(|number| send(&mut sender, &second, number + 1));
    child.tell(&Message::Go);
    child.expect_done();
    child.shut_down();
    drop((sender, second));
    assert_eq!(names.sweep(), 0, "a provider that has closed leaves nothing");
}

role!("loans-heir", heir_role);

/// The role: holds messages after their sender and provider are dropped.
fn heir_role(link: &Link, arguments: &[&str]) {
    let mut receivers = receivers(arguments[0]);
    let held: Vec<channel::Message> = LENGTHS.iter().map(|_| receivers[0].recv().unwrap()).collect();
    // The request for the next message confirms that these have arrived.
    assert!(receivers[0].recv().is_err());
    drop(receivers);
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    held.iter().zip(0..).for_each(|(message, number)| shm::check(message, number).unwrap());
    drop(held);
    assert_eq!(shm::mappings(arguments[0]), 0, "what nobody reads is let go of");
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
}

/// Address space to leave, in KiB: from none to more than a first channel takes.
const SPACES: std::ops::Range<u64> = 0..640;
const SPACE_STEP: usize = 32;

#[test]
fn first_channel_without_address_space() {
    let names = Names::new("loans-keeper");
    let (mut made, mut refused) = (0, 0);
    for space in SPACES.step_by(SPACE_STEP) {
        let child = Child::start("loans-keeper", &[names.prefix(), &space.to_string()]);
        match child.hear() {
            Message::Done => made += 1,
            Message::Refused(_) => refused += 1,
            other => panic!("{other:?}"),
        }
        child.finish();
    }
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused: the range has not met the limit");
}

role!("loans-keeper", keeper_role);

/// The role: creates a channel in the given address space, and then another with enough.
fn keeper_role(link: &Link, arguments: &[&str]) {
    let [prefix, space] = arguments else { panic!("a prefix and a number") };
    let prefix = format!("{prefix}-{space}");
    let provider = Provider::builder().name_prefix(&prefix).build().unwrap();
    let before = (shm::open_descriptors(), shm::mappings(&prefix), shm::objects(&prefix));
    let made = with_address_space(space.parse::<u64>().unwrap() << 10, || Sender::create(&provider, "c"));
    let answer = match made {
        Ok(sender) => {
            drop(sender);
            Message::Done
        }
        Err(ChannelError::Os(error)) => {
            assert!(matches!(error.errno(), Some(libc::ENOMEM | libc::EAGAIN)), "{error}");
            let after = (shm::open_descriptors(), shm::mappings(&prefix), shm::objects(&prefix));
            assert_eq!(after, before, "{error}, and not undone");
            Message::Refused(error.to_string())
        }
        Err(error) => panic!("{error:?}"),
    };
    drop(Sender::create(&provider, "c").unwrap());
    link.send(&answer);
}
