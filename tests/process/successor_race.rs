//! A receiver leaves while its sender sends, and its successor at the same provider attaches to the
//! same messages by their descriptors. The sender must not reclaim from the first what belongs to
//! the second.
//!
//! The sender shares a processor with a thread that only spins, and the receiver runs on another.
//! So the sender pauses for some milliseconds again and again, at any instruction, and sometimes
//! the receiver leaves and its successor joins within one such pause.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use shm_pool::channel::{Receiver, SendErrorKind, Sender};
use shm_pool::{Descriptor, Provider, ShmBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Indices into the processors that this process may use: the first and the second.
const SENDERS: usize = 0;
const RECEIVERS: usize = 1;

/// Pins this thread to one processor, if there are several.
fn stay_on(at: usize) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let Some(processor) = (0..CpuSet::count()).filter(|&one| allowed.is_set(one).unwrap()).nth(at) else { return };
    let mut only = CpuSet::new();
    only.set(processor).unwrap();
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
}

const MESSAGES: usize = 16;
const LEN: usize = 4096;

/// Guards against a view that shows another message: the sender has released the view's lease,
/// mistaking it for the lease that it added for a receiver that left.
#[test]
fn contended_core() {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _until_the_end = SetOnDrop(&is_over);
        scope.spawn(|| {
            stay_on(SENDERS);
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let overwritten = trials("race-contended", 2000, |_| ());
        assert_eq!(overwritten, 0, "of {} views", 2000 * MESSAGES);
    });
}

/// Ends the test's other threads, also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same, with a sender that is stopped for a moment at any instruction.
#[test]
fn stopped_sender() {
    let mut random = 1_u64;
    let stop = |sender: &Child| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for _ in 0..random >> 54 {
            std::hint::spin_loop();
        }
        sender.signal(libc::SIGSTOP);
    };
    assert_eq!(trials("race-stopped", 5000, stop), 0, "of {} views", 5000 * MESSAGES);
}

/// Calls `disturb` while the sender sends and the receiver is about to leave. The sender continues
/// once the successor has its views. Returns how many views were overwritten.
fn trials(test: &str, count: usize, mut disturb: impl FnMut(&Child)) -> u64 {
    let names = Names::new(test);
    let sender = Child::start("race-sender", &[names.prefix()]);
    let reader = Child::start("race-reader", &[names.prefix()]);
    let mut overwritten = 0;
    for _ in 0..count {
        sender.tell(&Message::Go);
        for _ in 0..MESSAGES {
            reader.tell(&sender.hear());
        }
        reader.expect_done();
        disturb(&sender);
        reader.expect_done();
        sender.signal(libc::SIGCONT);
        sender.tell(&Message::Go);
        sender.expect_done();
        match reader.ask(&Message::Go) {
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
    let provider = Provider::builder().name_prefix(arguments[0]).max_bytes(2 << 20).build().unwrap();
    for number in 0_usize.. {
        match link.receive().unwrap() {
            Some(Message::Go) => {}
            None => return,
            other => panic!("{other:?}"),
        }
        let messages: Vec<ShmBuf> = (0..MESSAGES).map(|_| message(&provider, 1)).collect();
        let mut sender = Sender::builder().capacity(MESSAGES).create(&provider, &channel(number)).unwrap();
        messages.iter().for_each(|message| link.send(&Message::Sent(message.descriptor().unwrap())));
        sender.wait_for_receiver(Duration::MAX).unwrap();
        'sending: loop {
            for message in &messages {
                match sender.try_send(message.clone()).map_err(|error| error.kind()) {
                    Ok(()) | Err(SendErrorKind::Full { .. } | SendErrorKind::TooManyLent { .. }) => {}
                    Err(SendErrorKind::Disconnected) => break 'sending,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert_eq!(link.receive().unwrap(), Some(Message::Go));
        drop((messages, sender));
        drop((0..2 * MESSAGES).map(|_| message(&provider, 2)).collect::<Vec<_>>());
        link.send(&Message::Done);
    }
}

fn message(provider: &Provider, byte: u8) -> ShmBuf {
    let mut buffer = provider.alloc(LEN).unwrap();
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
        let mut receiver = Receiver::open(&first, &channel(number)).unwrap();
        drop(receiver.recv().unwrap());
        link.send(&Message::Done);
        // Lets the sender find room, so that it is at any point of sending when its receiver
        // leaves.
        let (start, time) = (Instant::now(), Duration::from_micros((number * 7919 % 6000) as u64));
        while start.elapsed() < time {
            drop(receiver.try_recv());
        }
        drop((receiver, first));
        let second = shm::client(prefix);
        let views: Vec<_> = descriptors.iter().map(|descriptor| second.attach(descriptor).unwrap()).collect();
        link.send(&Message::Done);
        assert_eq!(link.receive().unwrap(), Some(Message::Go));
        let overwritten = views.iter().filter(|view| view.iter().any(|&byte| byte != 1)).count();
        link.send(&Message::Number(overwritten as u64));
    }
}
