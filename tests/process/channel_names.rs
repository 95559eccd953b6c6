//! Channel names, which are reused: each has one living sender and one receiver, however many try
//! to claim it at the same moment.

use crate::shm::{self, Names};
use shm_pool::channel::{ChannelError, Receiver, Sender};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const CHANNEL: &str = "c";

/// A restarted publisher gets its name, shares it with no sender, and maps only its own object.
#[test]
fn concurrent_create() {
    const ROUNDS: usize = 1500;
    let names = Names::new("chan-races");
    let provider = names.provider().build().unwrap();
    let remains = {
        let _sender = Sender::builder().capacity(4).create(&provider, CHANNEL).unwrap();
        fs::read(path(&names)).unwrap()
    };
    let (living, made, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let create = |slots: usize| {
        for round in 0..ROUNDS {
            if round % 16 == 0 && living.load(Ordering::SeqCst) == 0 {
                // A dead sender's object, unless another thread has created a channel in the
                // meantime.
                let dead = OpenOptions::new().write(true).create_new(true).open(path(&names));
                let _ = dead.and_then(|mut dead| dead.write_all(&remains));
            }
            let mut sender = match Sender::builder().capacity(slots).create(&provider, CHANNEL) {
                Ok(sender) => sender,
                Err(ChannelError::Taken { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(living.fetch_add(1, Ordering::SeqCst), 0, "another one has the name, too");
            made.fetch_add(1, Ordering::SeqCst);
            let mut receiver = Receiver::open(&names.client(), CHANNEL).expect("the name leads to the sender");
            assert_eq!(sender.capacity(), slots);
            (0..slots.min(100)).for_each(|_| sender.try_send_bytes(&slots.to_ne_bytes()).unwrap());
            assert_eq!(&receiver.try_recv().unwrap()[..], slots.to_ne_bytes());
            living.fetch_sub(1, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| {
        let create = &create;
        let creating = [2, 3, 8192].map(|slots| scope.spawn(move || create(slots)));
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                names.sweep();
            }
        });
        let results = creating.map(|thread| thread.join());
        done.store(true, Ordering::SeqCst);
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert!(made.load(Ordering::SeqCst) >= ROUNDS / 2, "too few to see anything");
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
    let clients = [(); 2].map(|()| Arc::new(names.client()));
    clients.iter().for_each(|client| assert!(client.connect(provider.id()).is_ok()));
    for _ in 0..ROUNDS {
        let mut sender = Sender::create(&provider, CHANNEL).unwrap();
        let start = Barrier::new(2);
        let open = |client: &Arc<shm_pool::Client>| {
            start.wait();
            Receiver::open(client, CHANNEL)
        };
        let opened = thread::scope(|scope| {
            let [first, second] = &clients;
            let threads = [scope.spawn(|| open(first)), scope.spawn(|| open(second))];
            threads.map(|thread| thread.join().unwrap())
        });
        let (mut receivers, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
        assert_eq!((receivers.len(), refused.len()), (1, 1));
        assert!(matches!(refused[0], Err(ChannelError::HasReceiver { .. })));
        let receiver = receivers[0].as_mut().unwrap();
        sender.wait_for_receiver(Duration::from_secs(100)).unwrap();
        sender.send(provider.alloc_zeroed(100).unwrap().freeze()).unwrap();
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
