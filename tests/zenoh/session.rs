//! zenoh sessions between two processes on this machine, over loopback only.

use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

pub(crate) const KEY: &str = "shm-pool/test";

/// A session that listens or connects at `endpoint`.
pub(crate) fn open(role: &str, endpoint: &str) -> Session {
    let mut config = Config::default();
    for (key, value) in [
        ("mode", r#""peer""#),
        ("scouting/multicast/enabled", "false"),
        ("listen/endpoints", "[]"),
        ("transport/shared_memory/enabled", "true"),
        (&format!("{role}/endpoints"), &format!("[{endpoint:?}]")),
    ] {
        config.insert_json5(key, value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

/// Where a listening session can be reached.
pub(crate) fn endpoint(session: &Session) -> String {
    let locators = session.info().locators().wait();
    locators.first().expect("it listens").to_string()
}

/// A publisher that blocks rather than drops a message. Returns once there is a subscriber.
pub(crate) fn publisher(session: &Session) -> Publisher<'static> {
    publisher_of(session, KEY)
}

/// The same for another key.
pub(crate) fn publisher_of(session: &Session, key: &'static str) -> Publisher<'static> {
    let publisher = session.declare_publisher(key).congestion_control(CongestionControl::Block).wait().unwrap();
    let listener = publisher.matching_listener().wait().unwrap();
    while !publisher.matching_status().wait().unwrap().matching() {
        listener.recv().unwrap();
    }
    publisher
}
