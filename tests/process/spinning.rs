//! Whether a wait spins before it sleeps, seen in the CPU time that it takes: by default not where
//! both ends share a CPU, and for as long as the program has set.

use crate::child::Child;
use crate::ends::AnyReceiver;
use crate::shm::{self, Names};
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{wait_any, OnFull, Publisher, Sender};
use shm_pool::{Namespace, Provider};
use shm_pool_support::clock::thread_cpu;
use shm_pool_support::machine::{pin, usable};
use std::time::Duration;

const THERE: &str = "there";
const BACK: &str = "back";

type Spin = Option<Duration>;

const DEFAULT: Spin = None;
const NONE: Spin = Some(Duration::ZERO);

/// Stands out among system calls.
const LONG: Duration = Duration::from_micros(200);

/// Half of the longest spin by default, in nanoseconds.
const HALF: u64 = 10_000;

/// As an argument of a role.
fn argument(spin: Spin) -> String {
    match spin {
        Some(spin) => spin.as_nanos().to_string(),
        None => "default".to_owned(),
    }
}

fn spin_of(argument: &str) -> Spin {
    argument.parse().ok().map(Duration::from_nanos)
}

fn sender(provider: &Provider, name: &str, spin: Spin) -> Sender {
    let mut builder = Sender::builder().capacity(2);
    if let Some(spin) = spin {
        builder = builder.spin(spin);
    }
    builder.create(provider, name).unwrap()
}

fn publisher(provider: &Provider, spin: Spin) -> Publisher {
    let mut builder = Publisher::builder().capacity(2).on_full(OnFull::Block);
    if let Some(spin) = spin {
        builder = builder.spin(spin);
    }
    builder.create(provider, THERE).unwrap()
}

fn receiver(prefix: &str, name: &str, spin: Spin) -> AnyReceiver {
    AnyReceiver::open_spinning(&shm::namespace(prefix), name, spin).unwrap()
}

role!("spin-echo", echo_role);

/// The role of a receiver that sends everything back. Both its ends spin as the argument says.
fn echo_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let spin = spin_of(arguments[1]);
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let mut receiver = receiver(prefix, THERE, spin);
    let mut sender = sender(&provider, BACK, spin);
    link.send(&Message::Done);
    while let Ok(message) = receiver.recv() {
        sender.send_copy(&message).unwrap();
    }
}

role!("spin-receiver", receiver_role);

/// The role of a receiver that only receives, and spins as the argument says.
fn receiver_role(link: &Link, arguments: &[&str]) {
    let mut receiver = receiver(arguments[0], THERE, spin_of(arguments[1]));
    link.send(&Message::Done);
    while receiver.recv().is_ok() {}
}

/// Returns the median CPU time that a step takes in this thread, in nanoseconds.
fn cost(mut step: impl FnMut()) -> u64 {
    const STEPS: usize = 301;
    let mut costs = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let before = thread_cpu();
        step();
        costs.push(thread_cpu() - before);
    }
    costs.sort_unstable();
    costs[STEPS / 2]
}

/// Confines this thread, and the processes that it starts, to one CPU.
fn share_a_cpu() {
    pin(usable().unwrap().first().copied()).unwrap();
}

/// Returns the cost of a round trip. `wait` returns when there is a message.
fn round_trip(test: &str, spin: Spin, wait: fn(&mut AnyReceiver)) -> u64 {
    let names = Names::new(test);
    let provider = names.provider().build().unwrap();
    let mut sender = sender(&provider, THERE, spin);
    let child = Child::start_ready("spin-echo", &[names.prefix(), &argument(spin)]);
    let mut receiver = receiver(names.prefix(), BACK, spin);
    let cost = cost(|| {
        sender.send_copy(b"there").unwrap();
        wait(&mut receiver);
    });
    drop(sender);
    child.finish();
    cost
}

/// Returns the cost of so many messages that the sender has to wait for room.
fn burst(test: &str, spin: Spin, is_publisher: bool) -> u64 {
    const MESSAGES: usize = 8;
    let names = Names::new(test);
    let provider = names.provider().build().unwrap();
    let start = || Child::start_ready("spin-receiver", &[names.prefix(), &argument(spin)]);
    let (cost, child) = if is_publisher {
        let mut publisher = publisher(&provider, spin);
        let child = start();
        let cost = cost(|| {
            for _ in 0..MESSAGES {
                publisher.send_copy(b"burst").unwrap();
            }
        });
        (cost, child)
    } else {
        let mut sender = sender(&provider, THERE, spin);
        let child = start();
        let cost = cost(|| {
            for _ in 0..MESSAGES {
                sender.send_copy(b"burst").unwrap();
            }
        });
        (cost, child)
    };
    child.finish();
    cost
}

fn by_recv(receiver: &mut AnyReceiver) {
    receiver.recv().unwrap();
}

fn by_wait_any(receiver: &mut AnyReceiver) {
    wait_any(&mut [receiver.source()], FOR_EVER).unwrap();
    receiver.try_recv().unwrap();
}

const TRIES: usize = 20;

/// By default nothing is spun on the CPU of the other end, and the time that a program has set is.
fn assert_spins_as_set(wait: impl Fn(Spin) -> u64) {
    share_a_cpu();
    // Other processes of the machine may disturb a try, in both directions.
    let mut costs = Vec::new();
    let is_ever = |costs: &mut Vec<u64>, try_once: &dyn Fn() -> (u64, bool)| {
        for _ in 0..TRIES {
            let (cost, is_as_expected) = try_once();
            costs.push(cost);
            if is_as_expected {
                return true;
            }
        }
        false
    };
    let spins_not = is_ever(&mut costs, &|| {
        let without = wait(NONE);
        let default = wait(DEFAULT);
        (default, default < without + HALF)
    });
    assert!(spins_not, "{costs:?} ns by default");
    costs.clear();
    let spins = is_ever(&mut costs, &|| {
        let long = wait(Some(LONG));
        (long, u128::from(long) > LONG.as_nanos() / 2)
    });
    assert!(spins, "{costs:?} ns with a spin of {LONG:?}");
}

#[test]
fn recv_on_one_cpu() {
    assert_spins_as_set(|spin| round_trip("spin-recv", spin, by_recv));
}

#[test]
fn wait_any_on_one_cpu() {
    assert_spins_as_set(|spin| round_trip("spin-wait-any", spin, by_wait_any));
}

#[test]
fn send_on_one_cpu() {
    assert_spins_as_set(|spin| burst("spin-send", spin, false));
}

#[test]
fn publish_on_one_cpu() {
    assert_spins_as_set(|spin| burst("spin-publish", spin, true));
}
