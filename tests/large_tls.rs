//! Channels in a program whose thread-local variables take more than the stack of the thread that
//! holds the process's doorbells.

use shm_pool::channel::{Publisher, Receiver, Sender, Subscriber};
use shm_pool::{Client, Namespace, Provider};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static LARGE: Cell<[u8; 256 << 10]> = const { Cell::new([0; 256 << 10]) };
}

#[test]
fn channels() {
    LARGE.with(|large| assert_eq!(large.get()[1], 0));
    let prefix = format!("shm-pool-large-tls-{}", std::process::id());
    let provider = Provider::builder()
        .namespace(&Namespace::new(&prefix).unwrap())
        .max_bytes(1 << 20)
        .build()
        .unwrap();
    let client = Client::in_namespace(&Namespace::new(&prefix).unwrap());
    let mut sender = Sender::create(&provider, "pair").unwrap();
    let mut pair = Receiver::builder()
        .namespace(client.namespace())
        .open("pair")
        .unwrap();
    sender.send_copy(b"one").unwrap();
    assert_eq!(&pair.recv().unwrap()[..], b"one");
    let mut publisher = Publisher::create(&provider, "many").unwrap();
    let mut one = Subscriber::builder()
        .namespace(client.namespace())
        .open("many")
        .unwrap();
    publisher
        .wait_for_receivers(1, Duration::from_secs(60))
        .unwrap();
    assert_eq!(
        publisher.send_copy(b"all").map(|sent| sent.receivers),
        Ok(1)
    );
    assert_eq!(&one.recv().unwrap()[..], b"all");
}
