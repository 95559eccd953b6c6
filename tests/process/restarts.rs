//! Senders and publishers restart, killed or not. Subscribers, receivers that open a channel before
//! it exists, and successors wait for them.

use crate::channel::provider;
use crate::child::{in_child, in_child_for, Child};
use crate::ends::SendingEnd;
use crate::rlimits::with_only;
use crate::shm::{self, Names};
use crate::sys;
use crate::threads::{assert_prompt, wake_waiter};
use crate::users::STRANGER;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{
    wait_any, ChannelChange, ChannelError, ChannelEvent, ChannelInfo, OnEnd, OnFull, Publisher,
    Receiver, RecvError, Sender, Subscriber, Watcher,
};
use shm_pool::{Namespace, ProviderId};
use shm_pool_support::procfs;
use shm_pool_support::tasks::block_on;
use std::fs;
use std::mem::discriminant;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const CHANNEL: &str = "c";

const NOW: Duration = Duration::ZERO;

/// Long enough to be a buffer.
const LEN: usize = 5000;

role!("restarting", role);

/// The role of a process that sends: "sender" or "publisher", with a capacity. Creates the channel
/// as the successor of the process before it. Sends as many messages as requested, each time:
/// filled from the number of the process and its own.
fn role(link: &Link, arguments: &[&str]) {
    let [prefix, kind, capacity, process] = arguments else {
        panic!("{arguments:?}")
    };
    let capacity: usize = capacity.parse().unwrap();
    let process: u64 = process.parse().unwrap();
    let provider = provider(prefix);
    if *kind == "sender" {
        let builder = Sender::builder().capacity(capacity).max_borrowed(64);
        serve(
            link,
            process,
            &provider,
            builder
                .create_timeout(&provider, CHANNEL, FOR_EVER)
                .unwrap(),
        );
    } else {
        let builder = Publisher::builder()
            .capacity(capacity)
            .max_borrowed(64)
            .on_full(OnFull::Block);
        serve(
            link,
            process,
            &provider,
            builder
                .create_timeout(&provider, CHANNEL, FOR_EVER)
                .unwrap(),
        );
    }
}

fn serve<E: SendingEnd>(link: &Link, process: u64, provider: &shm_pool::Provider, mut end: E) {
    link.send(&Message::Done);
    let mut next = process << 32;
    while let Some(Message::Number(count)) = link.receive().unwrap() {
        for number in next..next + count {
            crate::channel::send_filled(&mut end, provider, LEN, |bytes| shm::fill(bytes, number));
        }
        next += count;
        link.send(&Message::Done);
    }
}

fn start(names: &Names, kind: &str, process: u64) -> Child {
    Child::start_ready(
        "restarting",
        &[names.prefix(), kind, "8", &process.to_string()],
    )
}

fn subscribe(prefix: &str) -> Subscriber {
    Subscriber::builder()
        .spin(NOW)
        .namespace(&shm::namespace(prefix))
        .open(CHANNEL)
        .unwrap()
}

/// A receiver that follows the senders of the name.
fn follow(prefix: &str) -> Receiver {
    Receiver::builder()
        .on_end(OnEnd::Wait)
        .spin(NOW)
        .namespace(&shm::namespace(prefix))
        .open(CHANNEL)
        .unwrap()
}

/// A receiver or a subscriber.
trait Follower {
    fn event(&mut self, timeout: Duration) -> Result<ChannelEvent, RecvError>;
    fn is_empty(&mut self) -> bool;
}

impl Follower for Receiver {
    fn event(&mut self, timeout: Duration) -> Result<ChannelEvent, RecvError> {
        self.recv_event_timeout(timeout)
    }

    fn is_empty(&mut self) -> bool {
        matches!(self.try_recv(), Err(RecvError::Empty))
    }
}

impl Follower for Subscriber {
    fn event(&mut self, timeout: Duration) -> Result<ChannelEvent, RecvError> {
        self.recv_event_timeout(timeout)
    }

    fn is_empty(&mut self) -> bool {
        matches!(self.try_recv(), Err(RecvError::Empty))
    }
}

fn connected(follower: &mut dyn Follower) -> ProviderId {
    match follower.event(FOR_EVER).unwrap() {
        ChannelEvent::Connected(provider) => provider,
        other => panic!("{other:?}"),
    }
}

fn message(follower: &mut dyn Follower) -> shm_pool::channel::Message {
    match follower.event(FOR_EVER).unwrap() {
        ChannelEvent::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

fn disconnected(follower: &mut dyn Follower) {
    let event = follower.event(FOR_EVER).unwrap();
    assert!(matches!(event, ChannelEvent::Disconnected), "{event:?}");
}

fn open_error(follower: &mut dyn Follower) -> ChannelError {
    match follower.event(FOR_EVER) {
        Err(RecvError::Open(error)) => *error,
        other => panic!("{other:?}"),
    }
}

fn is_taken(error: &ChannelError) -> bool {
    matches!(error, ChannelError::NameTaken { .. })
}

/// Killed or not, a sender and a publisher are followed by the next: messages precede the boundary,
/// and stay valid.
#[test]
fn boundary_of_restart() {
    for kind in ["sender", "publisher"] {
        for is_killed in [true, false] {
            let names = Names::new(&format!("restart-{kind}-{is_killed}"));
            let mut follower: Box<dyn Follower> = match kind {
                "sender" => Box::new(follow(names.prefix())),
                _ => Box::new(subscribe(names.prefix())),
            };
            let follower = &mut *follower;
            assert!(follower.is_empty());
            let first = start(&names, kind, 1);
            let before = connected(follower);
            assert_eq!(first.request(&Message::Number(3)), Message::Done);
            let kept = message(follower);
            if is_killed {
                first.kill();
            } else {
                first.shut_down();
            }
            let second = start(&names, kind, 2);
            for number in 1..3 {
                shm::check(&message(follower), (1 << 32) + number).unwrap();
            }
            disconnected(follower);
            assert_ne!(connected(follower), before);
            assert_eq!(second.request(&Message::Number(1)), Message::Done);
            shm::check(&message(follower), 2 << 32).unwrap();
            shm::check(&kept, 1 << 32).unwrap();
            second.kill();
            drop(kept);
            names.sweep();
        }
    }
}

/// The kernel tells receivers of a death before it releases the locks of the process. A subscriber does
/// not join the channel of a process that is dying, where it would miss the start of the successor.
#[test]
fn dying_publisher_is_not_joined() {
    let names = Names::new("restart-dying");
    let first = start(&names, "publisher", 1);
    let mut subscriber = subscribe(names.prefix());
    let before = connected(&mut subscriber);
    assert_eq!(first.request(&Message::Number(1)), Message::Done);
    drop(message(&mut subscriber));

    // While these are open, the locks are held, as by a process whose memory is being released.
    let locks = duplicates_of(&first, &format!("{}.{CHANNEL}.channel", names.prefix()));
    if locks.is_empty() {
        eprintln!("skipped: the system does not let this process have another one's descriptors");
        first.kill();
        drop(subscriber);
        names.sweep();
        return;
    }
    first.kill();
    disconnected(&mut subscriber);
    assert!(subscriber.is_empty());
    let objects = shm::objects(names.prefix());
    let is_connection = |object: &String| object.contains("connection");
    assert!(!objects.iter().any(is_connection), "{objects:?}");
    assert_eq!(subscriber.provider(), None);

    drop(locks);
    let second = start(&names, "publisher", 2);
    assert_ne!(connected(&mut subscriber), before);
    assert_eq!(second.request(&Message::Number(1)), Message::Done);
    shm::check(&message(&mut subscriber), 2 << 32).unwrap();
    second.kill();
    drop(subscriber);
    names.sweep();
}

/// One that is opened at that time joins it, and notices soon, however it waits.
#[test]
fn new_subscriber_leaves_a_dying_publisher() {
    let ways: [fn(&mut Subscriber) -> RecvError; 2] = [
        |subscriber| subscriber.recv().unwrap_err(),
        |subscriber| block_on(subscriber.recv_async()).unwrap_err(),
    ];
    let names = Names::new("restart-new");
    for way in ways {
        assert_prompt(|| leaves_a_dying_publisher(&names, way));
    }
    names.sweep();
}

/// Returns how long a subscriber goes on waiting after a dying publisher's locks are released.
fn leaves_a_dying_publisher(names: &Names, wait: fn(&mut Subscriber) -> RecvError) -> Duration {
    let child = start(names, "publisher", 1);
    let locks = duplicates_of(&child, &format!("{}.{CHANNEL}.channel", names.prefix()));
    child.kill();
    if locks.is_empty() {
        eprintln!("skipped: the system does not let this process have another one's descriptors");
        return Duration::ZERO;
    }
    let mut subscriber = Subscriber::builder()
        .on_end(OnEnd::Return)
        .spin(NOW)
        .namespace(&names.namespace())
        .open(CHANNEL)
        .unwrap();
    let (ended, took) = wake_waiter(|| wait(&mut subscriber), || drop(locks));
    assert!(ended.is_disconnected(), "{ended}");
    took
}

/// Returns duplicates of the descriptors that a child has of an object.
fn duplicates_of(child: &Child, object: &str) -> Vec<OwnedFd> {
    let mut duplicates = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap() {
        let entry = entry.unwrap();
        let Ok(file) = fs::read_link(entry.path()) else {
            continue;
        };
        if file.ends_with(object) {
            let descriptor = entry.file_name().to_str().unwrap().parse().unwrap();
            duplicates.extend(sys::descriptor_of(child.id(), descriptor));
        }
    }
    duplicates
}

/// `recv` passes over the boundaries, and with [`OnEnd::Return`] ends with the first publisher.
#[test]
fn messages_across_restarts() {
    let names = Names::new("restart-messages");
    let mut subscriber = subscribe(names.prefix());
    let mut ends = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&names.namespace())
        .open(CHANNEL)
        .unwrap();
    for process in 1..3 {
        let child = start(&names, "publisher", process);
        // Both join before it sends.
        assert!(matches!(subscriber.try_recv(), Err(RecvError::Empty)));
        let ended = ends.try_recv().unwrap_err();
        assert_eq!(ended.is_disconnected(), process == 2, "{ended}");
        assert_eq!(child.request(&Message::Number(2)), Message::Done);
        for number in 0..2 {
            shm::check(&subscriber.recv().unwrap(), (process << 32) + number).unwrap();
        }
        if process == 1 {
            for number in 0..2 {
                shm::check(&ends.recv().unwrap(), (process << 32) + number).unwrap();
            }
        }
        child.kill();
        assert!(matches!(subscriber.try_recv(), Err(RecvError::Empty)));
        assert!(matches!(ends.recv(), Err(RecvError::Disconnected)));
    }
    assert!(ends.iter().next().is_none());
    drop((subscriber, ends));
    names.sweep();
}

/// A receiver opens no publisher's channel, and a subscriber no sender's. One that follows a name
/// says so once, and opens the next channel.
#[test]
fn channel_of_other_kind() {
    let names = Names::new("restart-kind");
    let provider = provider(names.prefix());
    let mut receiver = follow(names.prefix());
    let mut subscriber = subscribe(names.prefix());

    let publisher = Publisher::create(&provider, CHANNEL).unwrap();
    assert!(matches!(
        open_error(&mut receiver),
        ChannelError::NotASender { .. }
    ));
    assert!(receiver.is_empty(), "said once");
    connected(&mut subscriber);
    let opened = Receiver::builder()
        .namespace(&names.namespace())
        .open(CHANNEL);
    assert!(matches!(opened, Err(ChannelError::NotASender { .. })));
    drop(publisher);
    disconnected(&mut subscriber);

    let sender = Sender::create(&provider, CHANNEL).unwrap();
    assert!(matches!(
        open_error(&mut subscriber),
        ChannelError::NotAPublisher { .. }
    ));
    assert!(subscriber.is_empty(), "said once");
    connected(&mut receiver);
    let opened = Subscriber::builder()
        .namespace(&names.namespace())
        .open(CHANNEL);
    assert!(matches!(opened, Err(ChannelError::NotAPublisher { .. })));
    drop(sender);
    disconnected(&mut receiver);
}

/// One wait for a receiver, and for subscribers whose publishers come and go.
#[test]
fn wait_for_any_end() {
    let names = Names::new("restart-any");
    let provider = provider(names.prefix());
    let mut sender = Sender::create(&provider, "pair").unwrap();
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open("pair")
        .unwrap();
    let mut subscriber = subscribe(names.prefix());
    let any = |receiver: &mut Receiver, subscriber: &mut Subscriber| {
        wait_any(&mut [receiver, subscriber], FOR_EVER).unwrap()
    };
    for process in 1..3 {
        // There is no publisher.
        sender.send_copy(b"pair").unwrap();
        assert_eq!(any(&mut receiver, &mut subscriber), 0);
        receiver.try_recv().unwrap();

        let prefix = names.prefix().to_owned();
        let publishing = thread::spawn(move || {
            let process = process.to_string();
            let child = Child::start_ready("restarting", &[&prefix, "publisher", "8", &process]);
            child.send(&Message::Number(1));
            child
        });
        // The message that a publisher sends before it is joined is lost.
        let child = loop {
            if publishing.is_finished() {
                break publishing.join().unwrap();
            }
            thread::yield_now();
        };
        child.expect_done();
        assert!(matches!(subscriber.try_recv(), Err(RecvError::Empty)));
        child.send(&Message::Number(1));
        assert_eq!(any(&mut receiver, &mut subscriber), 1);
        shm::check(&subscriber.try_recv().unwrap(), (process << 32) + 1).unwrap();
        child.expect_done();
        child.kill();
    }
    // A publisher that starts during the wait, and one of another type.
    let prefix = names.prefix().to_owned();
    let waiting = thread::spawn(move || {
        let mut subscriber = subscribe(&prefix);
        let found = wait_any(&mut [&mut subscriber], FOR_EVER).unwrap();
        (found, subscriber.try_recv().unwrap().to_vec())
    });
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    publisher.send_copy(b"late").unwrap();
    let (found, received) = waiting.join().unwrap();
    assert_eq!((found, &received[..]), (0, &b"late"[..]));
    drop(publisher);
    let _other = Sender::create(&provider, CHANNEL).unwrap();
    assert_eq!(any(&mut receiver, &mut subscriber), 1);
    assert!(matches!(subscriber.try_recv(), Err(RecvError::Open(_))));
    drop((receiver, subscriber));
    names.sweep();
}

/// A publisher is killed while it sends, and restarts at once, many times. Its successor starts
/// before it is dead.
#[test]
fn killed_again_and_again() {
    const RESTARTS: u64 = 12;
    let names = Names::new("restart-again");
    let (prefix, (to_kill, killed)) = (names.prefix().to_owned(), std::sync::mpsc::channel());
    let receiving = thread::spawn(move || {
        let mut receiver = follow(&prefix);
        for process in 0..RESTARTS {
            connected(&mut receiver);
            let mut next = process << 32;
            loop {
                match receiver.recv_event_timeout(FOR_EVER).unwrap() {
                    ChannelEvent::Message(message) => {
                        shm::check(&message, next).unwrap();
                        next += 1;
                        // Once: a process that is not killed in time sends more than 256.
                        if next & 0xffff_ffff == 20 {
                            to_kill.send(process).unwrap();
                        }
                    }
                    ChannelEvent::Disconnected => break,
                    other => panic!("{other:?}"),
                }
            }
            assert!(next & 0xffff_ffff >= 20, "{next:#x}");
        }
    });
    let mut sending = start(&names, "sender", 0);
    for process in 0..RESTARTS {
        sending.send(&Message::Number(1000));
        let arguments = [names.prefix(), "sender", "8", &(process + 1).to_string()];
        let successor = Child::start("restarting", &arguments);
        assert_eq!(killed.recv().unwrap(), process);
        sending.kill();
        successor.expect_done();
        sending = successor;
    }
    receiving.join().unwrap();
    sending.kill();
    names.sweep();
}

/// A receiver whose options the successor does not allow says so once, and opens the next one.
#[test]
fn successor_with_other_options() {
    let names = Names::new("restart-options");
    let builder = Subscriber::builder()
        .capacity(8)
        .on_full(OnFull::Block)
        .spin(NOW)
        .namespace(&names.namespace());
    let mut subscriber = builder.open(CHANNEL).unwrap();
    let first = start(&names, "publisher", 1);
    connected(&mut subscriber);
    first.kill();
    disconnected(&mut subscriber);
    let provider = provider(names.prefix());
    let publisher = || Publisher::builder().capacity(8);
    let publisher_of_few = publisher().capacity(7).create(&provider, CHANNEL).unwrap();
    let error = open_error(&mut subscriber);
    assert!(
        matches!(
            &error,
            ChannelError::OutOfRange(of) if of.option() == "capacity" && *of.allowed().end() == 7
        ),
        "{error}"
    );
    assert!(
        matches!(subscriber.recv_timeout(NOW), Err(RecvError::TimedOut)),
        "said once"
    );
    drop(publisher_of_few);
    let impatient = publisher()
        .allow_blocking(false)
        .create(&provider, CHANNEL)
        .unwrap();
    assert!(matches!(
        open_error(&mut subscriber),
        ChannelError::BlockingNotAllowed { .. }
    ));
    drop(impatient);
    let sender = Sender::create(&provider, CHANNEL).unwrap();
    assert!(matches!(
        open_error(&mut subscriber),
        ChannelError::NotAPublisher { .. }
    ));
    drop(sender);
    let _publisher = publisher().capacity(9).create(&provider, CHANNEL).unwrap();
    connected(&mut subscriber);
    assert_eq!(subscriber.capacity(), 8);
}

/// A file that is no channel is an error, again whenever the file changes; the name is then usable.
#[test]
fn garbage_under_the_name() {
    let names = Names::new("restart-garbage");
    let mut subscriber = follow(names.prefix());
    let file = shm::path(&format!("{}.{CHANNEL}.channel", names.prefix()));
    assert!(matches!(subscriber.try_recv(), Err(RecvError::Empty)));
    assert!(subscriber.last_error().unwrap().is_retryable());
    for garbage in ["garbage", "more garbage"] {
        fs::write(&file, garbage).unwrap();
        let error = open_error(&mut subscriber);
        assert!(matches!(error, ChannelError::NotAChannel { .. }), "{error}");
        assert!(subscriber.last_error().is_none(), "that error was returned");
        assert!(
            matches!(subscriber.try_recv(), Err(RecvError::Empty)),
            "the same error"
        );
    }
    fs::remove_file(&file).unwrap();
    let _sender = Sender::create(&provider(names.prefix()), CHANNEL).unwrap();
    connected(&mut subscriber);
}

/// The new process of a killed receiver waits until the sender has noticed and makes a new channel.
#[test]
fn receiver_restarts_too() {
    let names = Names::new("restart-receiver");
    let provider = provider(names.prefix());
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    let killed = Child::start_ready("following", &[names.prefix()]);
    assert_eq!(killed.request(&Message::Go), Message::Done);
    killed.kill();
    let mut subscriber = follow(names.prefix());
    assert!(matches!(
        subscriber.recv_timeout(Duration::from_millis(1)),
        Err(RecvError::TimedOut)
    ));
    assert!(matches!(
        subscriber.last_error(),
        Some(ChannelError::HasReceiver { .. })
    ));
    assert!(sender.send_copy(b"a").is_err());
    drop(sender);
    sender = Sender::create(&provider, CHANNEL).unwrap();
    sender.send_copy(b"b").unwrap();
    connected(&mut subscriber);
    assert!(subscriber.last_error().is_none());
    assert_eq!(message(&mut subscriber)[..], *b"b");
}

role!("following", following_role);

fn following_role(link: &Link, arguments: &[&str]) {
    report_connections(link, &mut follow(arguments[0]));
}

role!("subscribing", subscribing_role);

fn subscribing_role(link: &Link, arguments: &[&str]) {
    report_connections(link, &mut subscribe(arguments[0]));
}

/// Tells when it is connected, each time that it is asked.
fn report_connections(link: &Link, follower: &mut dyn Follower) {
    link.send(&Message::Done);
    while link.receive().unwrap().is_some() {
        connected(follower);
        link.send(&Message::Done);
    }
}

/// A receiver that waits for a registration is woken when the process that holds it is killed.
#[test]
fn registration_of_killed_receiver() {
    let names = Names::new("restart-registration");
    let provider = provider(names.prefix());
    let publisher = Publisher::builder()
        .max_subscribers(1)
        .create(&provider, CHANNEL)
        .unwrap();
    let mut victim = Child::start_ready("subscribing", &[names.prefix()]);
    assert_prompt(|| {
        assert_eq!(victim.request(&Message::Go), Message::Done);
        let next = Child::start_ready("subscribing", &[names.prefix()]);
        let mut subscriber = subscribe(names.prefix());
        let client = names.client();
        assert!(matches!(subscriber.try_recv(), Err(RecvError::Empty)));
        assert!(matches!(
            subscriber.last_error(),
            Some(ChannelError::TooManyReceivers { max: 1, .. })
        ));
        let open = || {
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .namespace(client.namespace())
                .open_timeout(CHANNEL, FOR_EVER)
                .unwrap()
        };
        let victim = std::mem::replace(&mut victim, next);
        let (receiver, took) = wake_waiter(open, || victim.kill());
        drop(receiver);
        took
    });
    // The kernel may have released the victim's registration before its connection.
    drop((victim, publisher));
    names.sweep();
}

/// The error names a predecessor that does not end; when it ends, its successor has the name at
/// once.
#[test]
fn stopped_predecessor() {
    let names = Names::new("restart-stopped");
    let provider = provider(names.prefix());
    assert_prompt(|| {
        let predecessor = start(&names, "publisher", 1);
        let create = |timeout| Publisher::builder().create_timeout(&provider, CHANNEL, timeout);
        for (timeout, is_stopped) in [(NOW, false), (Duration::from_millis(1), true)] {
            if is_stopped {
                predecessor.stop();
            }
            let error = create(timeout).unwrap_err();
            let ChannelError::NameTaken {
                process: Some(process),
                ..
            } = &error
            else {
                panic!("{error}")
            };
            assert_eq!(
                (process.id, process.is_stopped),
                (predecessor.id(), is_stopped)
            );
            let text = error.to_string();
            assert!(text.contains(&format!("process {}", process.id)), "{text}");
            assert_eq!(text.contains("which is stopped"), is_stopped, "{text}");
        }
        let (_publisher, took) = wake_waiter(|| create(FOR_EVER).unwrap(), || predecessor.kill());
        took
    });
    names.sweep();
}

/// A predecessor in this process: the error names this one.
#[test]
fn predecessor_in_one_process() {
    let names = Names::new("restart-own");
    let provider = provider(names.prefix());
    let sender = Sender::create(&provider, CHANNEL).unwrap();
    let error = Sender::create(&provider, CHANNEL).unwrap_err();
    let ChannelError::NameTaken {
        process: Some(process),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(process.id, std::process::id());
    assert_prompt(|| {
        let predecessor = Publisher::builder().create(&provider, "d").unwrap();
        let create = || {
            Sender::builder()
                .create_timeout(&provider, "d", FOR_EVER)
                .unwrap()
        };
        wake_waiter(create, || drop(predecessor)).1
    });
    assert!(is_taken(
        &Sender::builder()
            .create_timeout(&provider, CHANNEL, NOW)
            .unwrap_err()
    ));
    drop(sender);
}

/// A wait for a name ends as other waits do.
#[test]
fn wait_ends() {
    let names = Names::new("restart-ends");
    let mut subscriber = follow(names.prefix());
    for timeout in [NOW, Duration::from_millis(1)] {
        assert!(matches!(
            subscriber.recv_timeout(timeout),
            Err(RecvError::TimedOut)
        ));
        let opened = Receiver::builder()
            .namespace(&names.namespace())
            .open_timeout(CHANNEL, timeout);
        assert!(matches!(opened, Err(ChannelError::NotFound { .. })));
    }
    let interrupter = subscriber.interrupter();
    interrupter.interrupt();
    assert!(
        matches!(subscriber.recv(), Err(RecvError::Interrupted)),
        "before the wait"
    );
    assert_prompt(|| {
        let (woken, took) = wake_waiter(|| subscriber.recv(), || interrupter.interrupt());
        assert!(matches!(woken, Err(RecvError::Interrupted)));
        took
    });
    // The same handle interrupts a wait for a message.
    let provider = provider(names.prefix());
    let _sender = Sender::create(&provider, CHANNEL).unwrap();
    connected(&mut subscriber);
    assert_prompt(|| {
        let (woken, took) = wake_waiter(|| subscriber.recv(), || interrupter.interrupt());
        assert!(matches!(woken, Err(RecvError::Interrupted)));
        took
    });
}

fn name_watcher() -> usize {
    procfs::threads("shm-pool-names").unwrap()
}

/// Returns the number of this process's descriptors of a kind that has no path.
fn descriptors_of(kind: &str) -> usize {
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(entry) = entry else { continue };
        // Another thread may have closed it.
        let Ok(link) = fs::read_link(entry.path()) else {
            continue;
        };
        if link.to_string_lossy() == format!("anon_inode:{kind}") {
            count += 1;
        }
    }
    count
}

/// A wait that starts without descriptors gets its own as soon as there are some.
#[test]
fn descriptors_for_name_watcher() {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }
    in_child(|prefix| {
        let mut subscriber = follow(prefix);
        assert!(matches!(subscriber.try_recv(), Err(RecvError::Empty)));
        with_only(0, || {
            let flag = Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(flag.clone());
            assert!(subscriber
                .poll_recv(&mut Context::from_waker(&waker))
                .is_pending());
            // The name watcher looks after it has tried to open its descriptors.
            while !flag.0.load(Ordering::Acquire) {
                thread::yield_now();
            }
        });
        let has_ended = Instant::now() + FOR_EVER;
        while descriptors_of("inotify") == 0 || descriptors_of("[eventfd]") == 0 {
            assert!(Instant::now() < has_ended, "it still polls");
            thread::yield_now();
        }
        let _sender = Sender::create(&provider(prefix), CHANNEL).unwrap();
        connected(&mut subscriber);
    });
}

/// One thread serves all waits of a process, and exits after the last one. Without inotify, and
/// without any descriptor, it checks by itself.
#[test]
fn ways_to_wait() {
    for way in ["inotify", "no-inotify", "no-descriptors"] {
        in_child_for(way, |prefix| {
            if way != "inotify" {
                sys::forbid_call(libc::SYS_inotify_init1, libc::EMFILE).unwrap();
            }
            if way == "no-descriptors" {
                sys::forbid_call(libc::SYS_eventfd2, libc::EMFILE).unwrap();
            }
            let provider = provider(prefix);
            let client = shm::client(prefix);
            let names = ["0", "1", "2", "3", "4"];
            thread::scope(|scope| {
                let mut opening = Vec::new();
                for (number, name) in names.into_iter().enumerate() {
                    let receiver = Receiver::builder().namespace(client.namespace());
                    opening.push(scope.spawn(move || match number % 2 {
                        0 => receiver.open_timeout(name, FOR_EVER).unwrap(),
                        _ => block_on(receiver.open_async(name)).unwrap(),
                    }));
                }
                while name_watcher() == 0 {
                    thread::yield_now();
                }
                let mut senders = Vec::new();
                for name in names {
                    senders.push(Sender::create(&provider, name).unwrap());
                }
                assert!(name_watcher() <= 1);
                for opening in opening {
                    drop(opening.join().unwrap());
                }
            });
            while name_watcher() > 0 {
                thread::yield_now();
            }
        });
    }
}

/// A process that cannot start a thread waits in the calling thread; a task cannot wait.
#[test]
fn without_name_watcher() {
    in_child(|prefix| {
        let provider = provider(prefix);
        let client = shm::client(prefix);
        let sending = thread::scope(|scope| {
            let sending = scope.spawn(|| Sender::create(&provider, CHANNEL).unwrap());
            // Only this thread is refused others.
            for call in [libc::SYS_clone, libc::SYS_clone3] {
                sys::forbid_call(call, libc::EAGAIN).unwrap();
            }
            let future = Receiver::builder()
                .namespace(client.namespace())
                .open_async("d");
            assert!(
                matches!(block_on(future), Err(ChannelError::Os(error)) if error.call() == "pthread_create")
            );
            Receiver::builder()
                .namespace(client.namespace())
                .open_timeout(CHANNEL, FOR_EVER)
                .unwrap();
            sending.join().unwrap()
        });
        let mut subscriber = Subscriber::builder()
            .namespace(client.namespace())
            .open("d")
            .unwrap();
        assert!(matches!(
            block_on(subscriber.recv_async()),
            Err(RecvError::NoHelper(_))
        ));
        drop(sending);
    });
}

/// A task gets the same events as a thread.
#[test]
fn awaited_restart() {
    let names = Names::new("restart-await");
    let mut subscriber = subscribe(names.prefix());
    let next = |subscriber: &mut Subscriber| block_on(subscriber.recv_event_async()).unwrap();
    for process in 0..2 {
        let prefix = names.prefix().to_owned();
        let starting = thread::spawn(move || {
            let process = process.to_string();
            Child::start_ready("restarting", &[&prefix, "publisher", "8", &process])
        });
        let event = next(&mut subscriber);
        assert!(matches!(event, ChannelEvent::Connected(_)), "{event:?}");
        let child = starting.join().unwrap();
        child.send(&Message::Number(1));
        let event = next(&mut subscriber);
        let ChannelEvent::Message(message) = event else {
            panic!("{event:?}")
        };
        shm::check(&message, process << 32).unwrap();
        child.expect_done();
        child.kill();
        let event = next(&mut subscriber);
        assert_eq!(
            discriminant(&event),
            discriminant(&ChannelEvent::Disconnected),
            "{event:?}"
        );
    }
    drop(subscriber);
    names.sweep();
}

/// A forked child has no subscription, and its parent's goes on.
#[test]
fn forked_while_waiting() {
    in_child(|prefix| {
        let mut subscriber = follow(prefix);
        assert!(matches!(
            subscriber.recv_timeout(Duration::from_millis(1)),
            Err(RecvError::TimedOut)
        ));
        while name_watcher() == 0 || descriptors_of("inotify") == 0 {
            thread::yield_now();
        }
        let Some(forked) = sys::fork() else {
            sys::end_with(|| {
                assert_eq!(
                    (descriptors_of("inotify"), descriptors_of("[eventfd]")),
                    (0, 0)
                );
                assert!(matches!(subscriber.recv(), Err(RecvError::Forked)));
                assert!(matches!(subscriber.try_recv(), Err(RecvError::Forked)));
                assert!(matches!(
                    block_on(subscriber.recv_async()),
                    Err(RecvError::Forked)
                ));
                drop(subscriber);
                // It can wait on its own.
                let mut own = follow(prefix);
                assert!(matches!(
                    own.recv_timeout(Duration::from_millis(1)),
                    Err(RecvError::TimedOut)
                ));
            });
        };
        forked.finish();
        let _sender = Sender::create(&provider(prefix), CHANNEL).unwrap();
        connected(&mut subscriber);
    });
}

fn created(change: ChannelChange) -> ChannelInfo {
    match change {
        ChannelChange::Created(channel) => channel,
        other => panic!("{other:?}"),
    }
}

fn closed(change: ChannelChange) -> ChannelInfo {
    match change {
        ChannelChange::Closed(channel) => channel,
        other => panic!("{other:?}"),
    }
}

/// Each channel is reported once when it is created, and once when its process ends in any way.
#[test]
fn discovery() {
    let names = Names::new("restart-discovery");
    let mut watcher = Watcher::new(&names.namespace());
    let mut kept = start(&names, "sender", 0);
    for process in 1..4 {
        let channel = created(watcher.recv_timeout(FOR_EVER).unwrap());
        assert_eq!(
            (channel.name.as_str(), channel.is_publisher),
            (CHANNEL, process % 2 == 0)
        );
        assert_eq!(channel.process().unwrap().id, kept.id());
        assert_eq!(
            names.namespace().channels().unwrap(),
            std::slice::from_ref(&channel)
        );
        assert!(matches!(watcher.try_recv(), Err(RecvError::Empty)));
        assert!(matches!(
            watcher.recv_timeout(NOW),
            Err(RecvError::TimedOut)
        ));
        let kind = ["sender", "publisher"][process as usize % 2];
        if process == 3 {
            // Within one look: before the watcher sees the end.
            kept.kill();
            kept = start(&names, kind, process);
            assert_eq!(closed(watcher.iter().next().unwrap().unwrap()), channel);
        } else {
            let end = || {
                if process == 1 {
                    kept.kill()
                } else {
                    kept.shut_down()
                }
            };
            assert_eq!(
                closed(wake_waiter(|| watcher.recv(), end).0.unwrap()),
                channel
            );
            assert!(channel.process().is_none());
            kept = start(&names, kind, process);
        }
    }
    let last = created(block_on(watcher.recv_async()).unwrap());
    assert!(last.is_publisher);
    let killing = thread::spawn(move || kept.kill());
    assert_eq!(closed(block_on(watcher.recv_async()).unwrap()), last);
    killing.join().unwrap();
    names.sweep();
}

/// Only channels that a receiver could open are listed: no garbage, no unfinished or removed
/// object, none of another prefix or user, and no part of a channel.
#[test]
fn only_channels_are_listed() {
    let names = Names::new("restart-listed");
    let provider = provider(names.prefix());
    let publisher = Publisher::create(&provider, "b").unwrap();
    let _subscriber = Subscriber::builder()
        .namespace(&names.namespace())
        .open("b")
        .unwrap();
    let sender = Sender::create(&provider, "a").unwrap();
    let file = |name: &str| shm::path(&format!("{}.{name}.channel", names.prefix()));
    let files = [file("g"), file("e"), file("z")];
    fs::write(&files[0], [b'x'; 5000]).unwrap();
    fs::write(&files[1], []).unwrap();
    fs::write(&files[2], [0; 4096]).unwrap();
    let listed = || {
        let mut listed = Vec::new();
        for channel in names.namespace().channels().unwrap() {
            listed.push(channel.name);
        }
        listed
    };
    assert_eq!(listed(), ["a", "b"]);
    for namespace in [
        names.namespace().of_user(STRANGER),
        Namespace::new("restart").unwrap(),
    ] {
        assert!(namespace.channels().unwrap().is_empty());
    }
    let nowhere = Namespace::default().in_directory("/dev/shm/none").unwrap();
    assert_eq!(nowhere.channels().unwrap_err().call(), "readdir");
    assert!(matches!(
        Watcher::new(&nowhere).recv(),
        Err(RecvError::Os(_))
    ));
    drop(sender);
    assert_eq!(listed(), ["b"]);
    drop(publisher);
    assert!(listed().is_empty());
    for file in &files {
        fs::remove_file(file).unwrap();
    }
}

/// A watcher's wait ends as other waits do.
#[test]
fn watch_ends() {
    in_child(|prefix| {
        let mut watcher = Watcher::new(&shm::namespace(prefix));
        // The first fork of this process, and nothing else of the crate has run: the watcher alone
        // has to notice it.
        watcher = belongs_to_the_parent(watcher);
        assert!(matches!(
            watcher.recv_timeout(Duration::from_millis(1)),
            Err(RecvError::TimedOut)
        ));
        let interrupter = watcher.interrupter();
        assert_prompt(|| {
            let (woken, took) = wake_waiter(|| watcher.recv(), || interrupter.interrupt());
            assert!(matches!(woken, Err(RecvError::Interrupted)));
            took
        });
        watcher = belongs_to_the_parent(watcher);
        let _sender = Sender::create(&provider(prefix), CHANNEL).unwrap();
        created(watcher.recv().unwrap());
    });
}

/// Checks that a forked child cannot use the watcher, and may drop it.
fn belongs_to_the_parent(mut watcher: Watcher) -> Watcher {
    let Some(forked) = sys::fork() else {
        sys::end_with(|| {
            assert!(matches!(watcher.try_recv(), Err(RecvError::Forked)));
            assert!(matches!(watcher.recv(), Err(RecvError::Forked)));
            drop(watcher);
        });
    };
    forked.finish();
    watcher
}

/// An event loop notices the death of a publisher, and its successor.
#[test]
fn descriptor_of_a_subscriber() {
    let names = Names::new("restart-descriptor");
    let mut subscriber = subscribe(names.prefix());
    let mut events = Vec::new();
    let mut process: Option<Child> = None;
    while events != ["connected", "ended", "connected"] {
        match subscriber.try_recv_event() {
            Ok(ChannelEvent::Connected(_)) => events.push("connected"),
            Ok(ChannelEvent::Disconnected) => events.push("ended"),
            Ok(_) => {}
            Err(RecvError::Empty) => {
                let mut polled = libc::pollfd {
                    fd: subscriber.wake_fd().unwrap().as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                match (events.len(), process.take()) {
                    (0 | 2, None) => process = Some(start(&names, "publisher", 7)),
                    (1, Some(publisher)) => publisher.kill(),
                    (_, running) => process = running,
                }
                // SAFETY: one valid element, which lives during the call.
                unsafe { libc::poll(&mut polled, 1, -1) };
            }
            Err(error) => panic!("{error}"),
        }
    }
    if let Some(publisher) = process {
        publisher.kill();
    }
    drop(subscriber);
    names.sweep();
}
