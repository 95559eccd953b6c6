//! Operations that a child runs while one of their system calls fails: their errors, the resources
//! they leave behind, and the next attempt, which must work.

#![forbid(unsafe_code)]

use crate::calls::FUTEX_WAITV;
use crate::channels;
use crate::child::Child;
use crate::kill_points::introduce;
use crate::owner_operations::{all, builder, published, LARGE, SMALL};
use crate::served::Served;
use crate::shm;
use crate::sys;
use crate::trace::{marked, this_thread};
use crate::waits::{self, Giver};
use crate::wire::{Link, Message};
use shm_pool::channel::{
    wait_any, ChannelError, OnEnd, Publisher, Receiver, RecvError, Sender, Subscriber,
};
use shm_pool::{AllocError, AttachError, BuildError, OsError, Provider, ProviderBuilder, Tuning};
use std::cell::{Cell, RefCell};
use std::fs;
use std::ops::RangeFrom;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long an operation waits in vain: long enough to sleep, and short enough to sleep once. (A
/// waiting thread rechecks every 50 ms.)
const WAIT: Duration = Duration::from_millis(40);

/// The resources that a process holds of the objects with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) objects: usize,
    pub(crate) mappings: usize,
    pub(crate) descriptors: usize,
}

impl Footprint {
    fn now(prefix: &str) -> Self {
        let mut descriptors = 0;
        for entry in fs::read_dir("/proc/self/fd").unwrap() {
            let Ok(entry) = entry else { continue };
            // The directory itself counts too: a sweep reads it.
            match fs::read_link(entry.path()) {
                Ok(path) if path.starts_with("/dev/shm") => descriptors += 1,
                _ => {}
            }
        }
        Self {
            objects: shm::objects(prefix).len(),
            mappings: shm::mappings(prefix),
            descriptors,
        }
    }

    /// Receives the footprint that a child has sent.
    pub(crate) fn receive(child: &Child) -> Self {
        let count = || match child.receive() {
            Message::Number(count) => count as usize,
            other => panic!("not a count: {other:?}"),
        };
        Self {
            objects: count(),
            mappings: count(),
            descriptors: count(),
        }
    }

    fn send(self, link: &Link) {
        let counts = [self.objects, self.mappings, self.descriptors];
        for &count in &counts {
            link.send(&Message::Number(count as u64));
        }
    }
}

role!("fallible", role);

/// The role. The arguments are the operation and the prefix.
fn role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let prefix = arguments[1];
    let attempt = Attempt { link, prefix };
    let provider = || builder(prefix).build().unwrap();
    match operation {
        "build" => attempt.twice(|| builder(prefix).build().map_err(build_error)),
        LOCKED_BUILD => {
            let builder = with_options(prefix);
            attempt.twice(|| builder.clone().build().map_err(build_error));
        }
        LOCKED_ALLOC => {
            let provider = with_options(prefix).build().unwrap();
            attempt.twice(|| provider.alloc(HUGE).map_err(alloc_error));
        }
        "sweep" => attempt.twice(|| {
            shm::namespace(prefix)
                .sweep()
                .map_err(|error| os_error(&error))
        }),
        "alloc, a run" | "alloc, a heap" => {
            let provider = provider();
            let len = if operation == "alloc, a run" {
                LARGE
            } else {
                SMALL
            };
            attempt.twice(|| provider.alloc(len).map_err(alloc_error));
        }
        "reserve" => {
            let provider = provider();
            attempt.twice(|| provider.reserve(LARGE, 1).map_err(alloc_error));
        }
        "wait, in vain" => {
            let provider = provider();
            let _full = all(&provider);
            attempt.twice(
                || match provider.alloc_timeout(LARGE, WAIT).map_err(alloc_error) {
                    Err(error) if error == "TimedOut" => Ok(()),
                    other => other.map(drop),
                },
            );
        }
        "wait, given" => {
            let provider = provider();
            let full = RefCell::new(Vec::new());
            let fill = || full.borrow_mut().extend(all(&provider));
            attempt.twice_after(fill, || {
                let future = provider.request(LARGE).wait_async();
                waits::block_on(future, || drop(full.borrow_mut().pop())).map_err(alloc_error)
            });
        }
        "trim" => {
            let provider = provider();
            let fill = || {
                drop([
                    provider.alloc(LARGE).unwrap(),
                    provider.alloc(SMALL).unwrap(),
                ])
            };
            attempt.twice_after(fill, || Ok(provider.trim()));
        }
        "close" => {
            let built = RefCell::new(None);
            let prepare = || {
                let provider = provider();
                drop([published(&provider, LARGE), published(&provider, SMALL)]);
                built.replace(Some(provider));
            };
            attempt.twice_after(prepare, || drop_of(&built));
        }
        "connect" => {
            let client = shm::client(prefix);
            let descriptor = link.sent();
            attempt.twice(|| client.connect(descriptor.provider()).map_err(attach_error));
        }
        "warm" => {
            let client = shm::client(prefix);
            let descriptor = link.sent();
            client.connect(descriptor.provider()).unwrap();
            attempt.twice(|| client.warm(descriptor.provider()).map_err(attach_error));
        }
        "disconnect" => {
            let connected = RefCell::new(None);
            let descriptor = link.sent();
            let prepare = || {
                let client = shm::client(prefix);
                client.attach(&descriptor).unwrap();
                connected.replace(Some(client));
            };
            attempt.twice_after(prepare, || drop_of(&connected));
        }
        "attach" | "accept" => {
            let client = shm::client(prefix);
            let sent = link.sent();
            link.send(&Message::Peer(client.connect(sent.provider()).unwrap()));
            let granted = link.sent();
            let descriptor = if operation == "attach" { sent } else { granted };
            attempt.twice(|| client.attach(&descriptor).map_err(attach_error));
        }
        "drop a view, waited for" => {
            let client = shm::client(prefix);
            let sent = link.sent();
            let view = RefCell::new(Some(client.attach(&sent).unwrap()));
            link.send(&Message::Done);
            link.expect_go();
            attempt.twice(|| drop_of(&view));
        }
        "drop a message, waited for" => {
            let mut receiver =
                channels::receiver(&Arc::new(shm::client(prefix)), channels::OTHER).unwrap();
            let message = RefCell::new(Some(receiver.recv().unwrap()));
            link.send(&Message::Done);
            link.expect_go();
            attempt.twice(|| drop_of(&message));
        }
        "create a channel" => {
            let provider = provider();
            let numbers = (0..).into();
            let _other = channels::sender(&provider, channels::OTHER).unwrap();
            attempt.twice(|| channels::sender(&provider, &next(&numbers)).map_err(channel_error));
        }
        "open a channel" => {
            let client = Arc::new(shm::client(prefix));
            let descriptor = link.sent();
            let numbers = (0..).into();
            client.connect(descriptor.provider()).unwrap();
            let _other = channels::receiver(&client, channels::OTHER).unwrap();
            attempt.twice(|| channels::receiver(&client, &next(&numbers)).map_err(channel_error));
        }
        "create a publisher" => {
            let provider = provider();
            let numbers = (0..).into();
            let _other = channels::sender(&provider, channels::OTHER).unwrap();
            let publisher = |name: String| {
                Publisher::builder()
                    .max_subscribers(2)
                    .create(&provider, &name)
            };
            attempt.twice(|| publisher(next(&numbers)).map_err(channel_error));
        }
        "join a publisher" => {
            let client = Arc::new(shm::client(prefix));
            let descriptor = link.sent();
            client.connect(descriptor.provider()).unwrap();
            let _other = channels::receiver(&client, channels::OTHER).unwrap();
            attempt.twice(|| channels::subscriber(&client, PUBLISHED).map_err(channel_error));
        }
        "list channels" => {
            let provider = provider();
            let _other = channels::sender(&provider, channels::OTHER).unwrap();
            let namespace = shm::namespace(prefix);
            attempt.twice(|| {
                namespace
                    .channels()
                    .map(drop)
                    .map_err(|error| os_error(&error))
            });
        }
        "look for a name" => {
            let client = shm::client(prefix);
            attempt.twice(|| {
                match Subscriber::builder()
                    .on_end(OnEnd::Return)
                    .namespace(client.namespace())
                    .open_timeout(channels::CHANNEL, Duration::ZERO)
                {
                    Err(ChannelError::NotFound { .. }) => Ok(()),
                    other => other.map(drop).map_err(channel_error),
                }
            });
        }
        CONNECT => {
            let provider = provider();
            let _other = channels::sender(&provider, channels::OTHER).unwrap();
            let publisher = RefCell::new(
                Publisher::builder()
                    .max_subscribers(3)
                    .create(&provider, PUBLISHED)
                    .unwrap(),
            );
            let client = Arc::new(shm::client(prefix));
            let open = || channels::subscriber(&client, PUBLISHED).unwrap();
            let receivers = RefCell::new(vec![open()]);
            let has_tried = Cell::new(false);
            attempt.twice(|| {
                if has_tried.replace(true) {
                    // After most errors, the publisher connects only a new receiver.
                    receivers.borrow_mut().push(open());
                    let waited = publisher
                        .borrow_mut()
                        .wait_for_receivers(1, channels::FOR_EVER);
                    return waited.map_err(|error| error.to_string());
                }
                match publisher.borrow_mut().served().receivers().count() {
                    1 => Ok(()),
                    _ => Err("NotConnected".to_owned()),
                }
            });
        }
        "warm a receiver" => {
            let client = Arc::new(shm::client(prefix));
            let descriptor = link.sent();
            client.connect(descriptor.provider()).unwrap();
            let receiver = RefCell::new(channels::receiver(&client, channels::OTHER).unwrap());
            attempt.twice(|| receiver.borrow_mut().warm().map_err(recv_error));
        }
        "await a message" => {
            let provider = provider();
            let (sender, mut receiver) = pair(&provider, prefix, 0);
            let sender = RefCell::new(sender);
            attempt.twice(|| {
                let send = || sender.borrow_mut().try_send_copy(channels::BYTES).unwrap();
                let message = waits::block_on(receiver.recv_async(), send).map_err(recv_error)?;
                assert_eq!(&message[..], channels::BYTES);
                Ok(())
            });
        }
        "await room" => {
            let provider = provider();
            let (sender, receiver) = pair(&provider, prefix, 0);
            let sender = RefCell::new(sender);
            let receiver = RefCell::new(receiver);
            let fill = || while sender.borrow_mut().try_send_copy(channels::BYTES).is_ok() {};
            attempt.twice_after(fill, || {
                // The slot of the first is free when the second is requested.
                let take = || {
                    for _ in 0..2 {
                        drop(receiver.borrow_mut().try_recv().unwrap());
                    }
                };
                let mut sender = sender.borrow_mut();
                waits::block_on(sender.send_copy_async(channels::BYTES), take)
                    .map_err(|error| variant(&error.kind()))
            });
        }
        "wait for any" => {
            let provider = provider();
            let (sender, mut receiver) = pair(&provider, prefix, 0);
            let (_idle, mut other) = pair(&provider, prefix, 1);
            // By now the process has found that the thread itself can sleep on both.
            assert!(wait_any(&mut [&mut other, &mut receiver], WAIT).is_err());
            let sender = Arc::new(Mutex::new(sender));
            let giver = RefCell::new(None);
            let prepare = || {
                let sender = sender.clone();
                let send = move || {
                    sender
                        .lock()
                        .unwrap()
                        .try_send_copy(channels::BYTES)
                        .unwrap()
                };
                giver.replace(Some(Giver::start(this_thread() as u64, send)));
            };
            attempt.twice_after(prepare, || {
                let found = wait_any(&mut [&mut other, &mut receiver], channels::FOR_EVER);
                assert_eq!(found.map_err(|error| variant(&error))?, 1);
                receiver.try_recv().map(drop).map_err(recv_error)
            });
        }
        "wait for any, by helpers" => {
            sys::forbid_call(FUTEX_WAITV, libc::ENOSYS).unwrap();
            let provider = provider();
            let (_idle, mut receiver) = pair(&provider, prefix, 0);
            let (_too, mut other) = pair(&provider, prefix, 1);
            attempt.twice(|| match wait_any(&mut [&mut other, &mut receiver], WAIT) {
                Err(RecvError::TimedOut) => Ok(()),
                other => other.map(drop).map_err(|error| variant(&error)),
            });
        }
        other => panic!("no operation {other:?}"),
    }
    link.send(&Message::Done);
}

/// Waits for channels of this process: tasks that a helper thread wakes, a thread that sleeps on
/// several doorbells itself, and one whose helpers sleep for it.
pub(crate) const AWAITS: [&str; 4] = [
    "await a message",
    "await room",
    "wait for any",
    "wait for any, by helpers",
];

/// Both ends of a channel.
fn pair(provider: &Provider, prefix: &str, number: usize) -> (Sender, Receiver) {
    let name = channel(number);
    let sender = channels::sender(provider, &name).unwrap();
    // So that a wait sleeps, however long the tracer takes for its calls.
    (
        sender,
        Receiver::builder()
            .spin(Duration::ZERO)
            .namespace(&shm::namespace(prefix))
            .open(&name)
            .unwrap(),
    )
}

/// Building and allocating with [options](with_options).
pub(crate) const LOCKED_BUILD: &str = "build, locked";
pub(crate) const LOCKED_ALLOC: &str = "alloc, locked";

/// A huge page, as most machines have them.
const HUGE: usize = 2 << 20;

/// A provider with as many of the memory options as this machine allows, and room for two huge
/// pages.
fn with_options(prefix: &str) -> ProviderBuilder {
    let tuning = || Tuning::new().arena_size(HUGE).huge_pages(true);
    let usual = builder(prefix)
        .max_bytes(2 * HUGE)
        .max_alloc(HUGE)
        .tuning(tuning());
    let options: [&dyn Fn(ProviderBuilder) -> ProviderBuilder; 2] =
        [&|it| it.lock_memory(true), &|it| {
            it.tuning(tuning().numa_node(0))
        }];
    // The limit may be low, and a container may forbid the call.
    let mut builder = usual;
    for with in options {
        let particular = with(builder.clone());
        if particular.clone().build().is_ok() {
            builder = particular;
        }
    }
    builder
}

/// An operation that drops a value and cannot fail.
fn drop_of<T>(value: &RefCell<Option<T>>) -> Result<(), String> {
    value.take();
    Ok(())
}

struct Attempt<'a> {
    link: &'a Link,
    prefix: &'a str,
}

impl Attempt<'_> {
    /// Runs the operation between the marks and reports the outcome. Then runs it again, which must
    /// work: once, or if the first attempt failed, twice with both results kept. So as many
    /// attempts succeed as if none had failed.
    fn twice<T>(&self, operation: impl FnMut() -> Result<T, String>) {
        self.twice_after(|| (), operation);
    }

    /// Like [`twice`](Self::twice), but calls `prepare` before the first attempt and before the
    /// next.
    fn twice_after<T>(
        &self,
        mut prepare: impl FnMut(),
        mut operation: impl FnMut() -> Result<T, String>,
    ) {
        prepare();
        let before = Footprint::now(self.prefix);
        let first = marked(&mut operation);
        let after = Footprint::now(self.prefix);
        let outcome = match &first {
            Ok(_) => Message::Done,
            Err(error) => Message::Refused(error.clone()),
        };
        self.link.send(&outcome);
        before.send(self.link);
        after.send(self.link);
        let again = 1 + usize::from(first.is_err());
        drop(first);
        prepare();
        let mut all = Vec::new();
        for _ in 0..again {
            all.push(operation().expect("the next attempt"));
        }
    }
}

fn os_error(error: &OsError) -> String {
    format!(
        "{} of {}",
        crate::calls::error_name(error.errno().unwrap_or(0)),
        error.call()
    )
}

fn build_error(error: BuildError) -> String {
    match error {
        BuildError::Os(error) => os_error(&error),
        other => variant(&other),
    }
}

fn alloc_error(error: AllocError) -> String {
    match &error {
        AllocError::Os(error) => os_error(error),
        other => variant(other),
    }
}

fn attach_error(error: AttachError) -> String {
    match error {
        AttachError::Os(error) => os_error(&error),
        other => variant(&other),
    }
}

fn channel_error(error: ChannelError) -> String {
    match error {
        ChannelError::Os(error) => os_error(&error),
        other => variant(&other),
    }
}

fn recv_error(error: RecvError) -> String {
    match error {
        RecvError::Os(error) | RecvError::Attach(AttachError::Os(error)) => os_error(&error),
        other => variant(&other),
    }
}

/// Returns the name of the next channel. Each attempt needs its own: a channel can be opened only
/// once.
fn next(numbers: &RefCell<RangeFrom<usize>>) -> String {
    channel(numbers.borrow_mut().next().unwrap_or_default())
}

/// A publisher connects a receiver that has joined.
pub(crate) const CONNECT: &str = "connect a receiver";

/// The name of a publisher's channel.
pub(crate) const PUBLISHED: &str = "published";

/// Returns the name of the channel with this number.
pub(crate) fn channel(number: usize) -> String {
    format!("{}{number}", channels::CHANNEL)
}

/// Returns the name of an error's variant.
fn variant(error: &dyn std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    // What is wrong with a message is in the error of sending it.
    let kind = text.strip_prefix("SendError(").unwrap_or(&text);
    kind.split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}
