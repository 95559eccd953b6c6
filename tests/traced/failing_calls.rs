//! Every system call of an operation fails once, with every possible error. The operation reports
//! the error and undoes its earlier steps, or does without the call. The next attempt works.

#![forbid(unsafe_code)]

use crate::calls::{
    error_name, is_complaint, is_done_anyway, is_retried_for_ever, may_last, takes_back, Call,
};
use crate::channels;
use crate::fallible::{channel, Footprint, AWAITS, CONNECT, LOCKED_ALLOC, LOCKED_BUILD, PUBLISHED};
use crate::kill_points::{is_possible, Place, Victim};
use crate::own_shm;
use crate::owner_operations::{builder, published, LARGE, SMALL};
use crate::shm::{self, Names};
use crate::table::Table;
use crate::trace::{stay_on_one_processor, Pace, Stop, Tracee};
use crate::waits::Wait;
use crate::wire::Message;
use nix::sched::{unshare, CloneFlags};
use shm_pool::channel::{Publisher, Sender};
use shm_pool::{Descriptor, Provider, ShmBytes};
use std::fs;
use std::sync::Arc;

const OPERATIONS: &[&str] = &[
    "build",
    LOCKED_BUILD,
    LOCKED_ALLOC,
    "sweep",
    "alloc, a run",
    "alloc, a heap",
    "reserve",
    "wait, in vain",
    "wait, given",
    "trim",
    "close",
    "connect",
    "warm",
    "disconnect",
    "attach",
    "accept",
    WAITED_FOR[0],
    WAITED_FOR[1],
    "create a channel",
    "create a publisher",
    OPEN,
    JOIN,
    "list channels",
    "look for a name",
    CONNECT,
    WARM,
    AWAITS[0],
    AWAITS[1],
    AWAITS[2],
    AWAITS[3],
];

/// The operations of a peer.
const IN_PEERS: &[&str] = &[
    "connect",
    "warm",
    "disconnect",
    "attach",
    "accept",
    WAITED_FOR[0],
    WAITED_FOR[1],
    OPEN,
    JOIN,
    WARM,
];

/// The provider waits for the memory that the operation releases.
const WAITED_FOR: [&str; 2] = ["drop a view, waited for", "drop a message, waited for"];

const OPEN: &str = "open a channel";
const JOIN: &str = "join a publisher";
const WARM: &str = "warm a receiver";

/// How many channels are opened, each only once: one by the attempt, two by the attempts after it,
/// which must work.
const CHANNELS: usize = 3;

/// How often a call is interrupted "for ever": more often than any bounded loop retries.
const FOR_EVER: usize = 1000;

/// How an operation is disturbed.
#[derive(Clone, Copy)]
struct Fault {
    /// The position of the call among those that can fail.
    at: usize,
    errno: i32,
    /// Whether later calls of the same kind fail too, up to [`FOR_EVER`] in all.
    again: bool,
}

/// The outcome of an operation.
struct Outcome {
    error: Option<String>,
    before: Footprint,
    after: Footprint,
    calls: Vec<Call>,
    /// The number of calls that failed.
    failed: usize,
}

/// Nothing incomplete is left, the process goes on, and the operation works again.
#[test]
fn every_syscall_fails_once() {
    if !is_possible() {
        return;
    }
    stay_on_one_processor();
    leave_shared_shm();
    let mut table = Table::new(&["operation", "call", "on", "nth", "error", "result"]);
    let mut count = 0;
    for operation in OPERATIONS {
        let usual = run(operation, None);
        assert_eq!(usual.error, None);
        for (at, call) in usual.calls.iter().enumerate() {
            let mut nth = 1;
            for earlier in &usual.calls[..at] {
                if earlier.number == call.number {
                    nth += 1;
                }
            }
            for fault in faults_of(at, call) {
                let error = error_name(fault.errno) + if fault.again { " for ever" } else { "" };
                let result = judge(operation, call, fault, &usual);
                table.row(&[operation, &call.name, &call.about, &nth, &error, &result]);
                count += 1;
            }
        }
    }
    table.print();
    println!("{count} failures of system calls");
}

/// Gives this thread, and the children that it starts, their own /dev/shm, where that is permitted:
/// how many names it has decides how often it is read, and how much heap that takes.
fn leave_shared_shm() {
    if unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        own_shm::keep_mounts().expect("mounts of its own");
        own_shm::mount_shm(b"mode=1777\0").expect("a tmpfs of its own");
    }
}

/// Runs an operation with a fault, and summarises the result.
fn judge(operation: &str, call: &Call, fault: Fault, usual: &Outcome) -> String {
    let error = error_name(fault.errno);
    let ever = if fault.again { " for ever" } else { "" };
    let what = format!(
        "{operation}: {error}{ever} from {} {} (call {})",
        call.name, call.about, fault.at
    );
    let _place = Place(what.clone());
    let outcome = run(operation, Some(fault));
    assert!(outcome.failed > 0, "{what}: was not called");
    assert!(
        outcome.failed < FOR_EVER || is_retried_for_ever(call.number, fault.errno),
        "{what}: is tried for ever"
    );
    if let Some(error) = outcome.error {
        assert_eq!(
            outcome.after, outcome.before,
            "{what}: {error}, and not undone"
        );
        assert!(
            is_expected(&error, fault.errno, operation),
            "{what}: {error}"
        );
        return error;
    }
    if outcome.after == usual.after {
        return "done".to_owned();
    }
    // Without a provider no thread waits for memory, and there is no doorbell to map. A provider
    // that does not admit this user rechecks by itself.
    let is_missing = matches!(fault.errno, libc::ENOENT | libc::EACCES);
    if [OPEN, JOIN].contains(&operation) && (call.about, is_missing) == ("control", true) {
        return "done, without a doorbell".to_owned();
    }
    // A segment may disappear during the search.
    if operation.starts_with("warm")
        && ["segment", "path"].contains(&call.about)
        && fault.errno == libc::ENOENT
    {
        return "done, without the segment".to_owned();
    }
    // A sweep leaves objects that it cannot open or lock to the next sweep. An object that cannot
    // be removed stays.
    let may_leave = takes_back(call.number) || operation == "sweep";
    assert!(
        may_leave,
        "{what}: {:?} instead of {:?}",
        outcome.after, usual.after
    );
    format!(
        "done, but leaves {:?}",
        difference(outcome.after, usual.after)
    )
}

/// Returns `true` if `error` is the error of the call, or its meaning to the user.
fn is_expected(error: &str, errno: i32, operation: &str) -> bool {
    match (errno, operation) {
        // The object does not exist: its owner has closed it meanwhile.
        (libc::ENOENT, "connect") => error == "NoProvider",
        // The name was removed, but its owner is alive.
        (libc::ENOENT, "attach" | "accept") => error == "ENOENT of open",
        (libc::ENOENT, OPEN) => error == "NotFound",
        // Or a sweep has removed the connection while it was being created.
        (libc::ENOENT, JOIN) => error == "NotFound" || error == "ENOENT of open",
        // The limit and the node are checked before any object is created.
        (_, LOCKED_BUILD) if error == "LockMemory" || error == "NumaNode" => true,
        // Another process has the lock.
        (libc::EAGAIN | libc::EACCES, OPEN | JOIN) if error == "HasReceiver" => true,
        (_, CONNECT) => error == "NotConnected",
        // No thread can be started.
        (libc::EAGAIN, operation) if AWAITS.contains(&operation) => error == "NoHelper",
        _ => error == "Random" || error.split(' ').next() == Some(&error_name(errno)),
    }
}

fn difference(more: Footprint, less: Footprint) -> (usize, usize, usize) {
    (
        more.objects - less.objects,
        more.mappings - less.mappings,
        more.descriptors - less.descriptors,
    )
}

/// Runs an operation in a child.
fn run(operation: &str, fault: Option<Fault>) -> Outcome {
    let names = Names::new(&format!(
        "traced-call-{}",
        operation.replace([',', ' '], "")
    ));
    let mut others = Others::new(&names, operation);
    let victim = Victim::start("fallible", &[operation, names.prefix()]);
    others.send_inputs(&victim, operation);
    let tracee = victim.at_first_mark();
    let Some((calls, failed)) = disturb(&tracee, fault) else {
        // The child's message contains the reason.
        panic!("{operation} was lost: {:?}", victim.child.receive());
    };
    tracee.continue_running();
    let error = match victim.child.receive() {
        Message::Done => None,
        Message::Refused(error) => Some(error),
        other => panic!("not an outcome: {other:?}"),
    };
    let before = Footprint::receive(&victim.child);
    let after = Footprint::receive(&victim.child);
    if let Some(wait) = others.wait.take() {
        wait.end();
    }
    victim.child.expect_done();
    drop(victim);
    if let Some(fault) = fault {
        match calls.get(fault.at) {
            Some(call) if takes_back(call.number) => drop(names.sweep()),
            _ => {}
        }
    }
    let objects = shm::objects(names.prefix()).len();
    let channels = others.senders.len() + usize::from(others.publisher.is_some());
    assert_eq!(
        objects,
        if others.living.is_some() {
            2 + channels
        } else {
            0
        }
    );
    Outcome {
        error,
        before,
        after,
        calls,
        failed,
    }
}

/// Leads a child from its first mark to its second one, and makes calls fail on the way. Returns
/// the calls that could have failed and the number that did, or `None` if the child is lost.
fn disturb(tracee: &Tracee, fault: Option<Fault>) -> Option<(Vec<Call>, usize)> {
    let mut calls = Vec::new();
    let mut failed = 0;
    loop {
        match tracee.go(Pace::Call) {
            Stop::Call => {}
            Stop::Mark => return Some((calls, failed)),
            Stop::Trap | Stop::Lost(_) => return None,
        }
        let registers = tracee.registers();
        if is_complaint(registers.call()) {
            tracee.continue_running();
            return None;
        }
        let call = Call::at(tracee, &registers);
        match fault {
            Some(fault) if fails(fault, &calls, call.as_ref(), failed) => {
                failed += 1;
                fail(tracee, call.as_ref(), fault.errno)?;
            }
            _ => {
                if tracee.go(Pace::Call) != Stop::Call {
                    return None;
                }
            }
        }
        if let Some(call) = call {
            if !call.errors.is_empty() {
                calls.push(call);
            }
        }
    }
}

/// The ways in which a call can fail: with each error once, and with those that may last for ever.
fn faults_of(at: usize, call: &Call) -> Vec<Fault> {
    let mut faults = Vec::new();
    for again in [false, true] {
        for errno in call.errors {
            if !again || may_last(call.number, *errno) {
                faults.push(Fault {
                    at,
                    errno: *errno,
                    again,
                });
            }
        }
    }
    faults
}

fn fails(fault: Fault, calls: &[Call], call: Option<&Call>, failed: usize) -> bool {
    let Some(call) = call else {
        return false;
    };
    if call.errors.is_empty() {
        return false;
    }
    match calls.get(fault.at) {
        None => calls.len() == fault.at,
        Some(first) => fault.again && first.number == call.number && failed < FOR_EVER,
    }
}

/// Makes a call return an error. The kernel skips the call, unless it takes effect despite an
/// error.
fn fail(tracee: &Tracee, call: Option<&Call>, errno: i32) -> Option<()> {
    match call {
        Some(call) if is_done_anyway(call.number) => {}
        _ => tracee.skip_call(),
    }
    if tracee.go(Pace::Call) != Stop::Call {
        return None;
    }
    tracee.set_registers(tracee.registers().returning(-i64::from(errno)));
    Some(())
}

/// The processes that an operation interacts with.
struct Others {
    /// A provider, and one of its messages.
    living: Option<(Arc<Provider>, Option<ShmBytes>, Descriptor)>,
    /// The provider's channels.
    senders: Vec<Sender>,
    publisher: Option<Publisher>,
    /// Waits for the victim's message.
    wait: Option<Wait>,
}

impl Others {
    fn new(names: &Names, operation: &str) -> Self {
        let build = || builder(names.prefix()).build().unwrap();
        if operation == "sweep" {
            // The objects of a dead owner: the same bytes, without locks.
            let owner = build();
            let messages = [published(&owner, LARGE), published(&owner, SMALL)];
            let mut remains = Vec::new();
            for name in shm::objects(names.prefix()) {
                let path = shm::path(&name);
                let bytes = fs::read(&path).unwrap();
                remains.push((path, bytes));
            }
            drop((messages, owner));
            for (path, bytes) in &remains {
                fs::write(path, bytes).unwrap();
            }
        }
        // Short of memory when the first arena is full.
        let build_short = || {
            builder(names.prefix())
                .max_bytes(2 * LARGE)
                .max_alloc(LARGE)
                .build()
                .unwrap()
        };
        let publish = || {
            let provider = if WAITED_FOR.contains(&operation) {
                build_short()
            } else {
                build()
            };
            let (message, descriptor) = published(&provider, SMALL);
            (Arc::new(provider), Some(message), descriptor)
        };
        let mut living = None;
        if IN_PEERS.contains(&operation) {
            living = Some(publish());
        }
        let channels = match operation {
            OPEN | WARM => CHANNELS,
            JOIN | "drop a message, waited for" => 0,
            _ => {
                return Self {
                    living,
                    senders: Vec::new(),
                    publisher: None,
                    wait: None,
                }
            }
        };
        let mut senders = Vec::new();
        let mut publisher = None;
        if let Some((provider, ..)) = &living {
            for number in 0..channels {
                senders.push(channels::sender(provider, &channel(number)).unwrap());
            }
            senders.push(channels::sender(provider, channels::OTHER).unwrap());
            if operation == JOIN {
                publisher = Some(Publisher::create(provider, PUBLISHED).unwrap());
            }
        }
        Self {
            living,
            senders,
            publisher,
            wait: None,
        }
    }

    fn send_inputs(&mut self, victim: &Victim, operation: &str) {
        let Some((provider, message, descriptor)) = &mut self.living else {
            return;
        };
        if let ([sender], None) = (&mut self.senders[..], &self.publisher) {
            sender
                .try_send(message.clone().expect("not sent yet"))
                .unwrap();
        } else {
            victim.child.send(&Message::Sent(*descriptor));
        }
        if WAITED_FOR.contains(&operation) {
            victim.child.expect_done();
            *message = None;
            self.wait = Some(Wait::begin(provider, SMALL));
            victim.child.send(&Message::Go);
        }
        if matches!(operation, "attach" | "accept") {
            let Message::Peer(peer) = victim.child.receive() else {
                panic!("the victim tells who it is")
            };
            // One grant for each successful attempt. A failed attempt must not use one up.
            let message = message.as_ref().expect("not dropped yet");
            let granted = message.grant(peer).unwrap();
            message.grant(peer).unwrap();
            victim.child.send(&Message::Sent(granted));
        }
    }
}
