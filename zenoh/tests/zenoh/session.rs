//! zenoh sessions between two processes on this machine, over loopback only.

use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::query::Querier;
use zenoh::{Config, Session, Wait};

pub(crate) const KEY: &str = "shm-pool/test";

/// Publishers wait rather than drop a message.
pub(crate) const BLOCK: CongestionControl = CongestionControl::Block;

/// Any port of the loopback interface.
pub(crate) const ANY_PORT: &str = "tcp/127.0.0.1:0";

/// A peer that listens or connects at `endpoint`, with shared memory.
pub(crate) fn open(role: &str, endpoint: &str) -> Session {
    open_with("peer", role, endpoint, true)
}

/// A peer, client or router that listens or connects at `endpoint`, with or without shared memory.
pub(crate) fn open_with(
    mode: &str,
    role: &str,
    endpoint: &str,
    has_shared_memory: bool,
) -> Session {
    open_configured(mode, role, endpoint, has_shared_memory, &[])
}

/// A peer on zenoh's transport for low latency.
pub(crate) fn open_low_latency(role: &str, endpoint: &str, has_shared_memory: bool) -> Session {
    let transport = [
        ("transport/unicast/lowlatency", "true"),
        ("transport/unicast/qos/enabled", "false"),
    ];
    open_configured("peer", role, endpoint, has_shared_memory, &transport)
}

fn open_configured(
    mode: &str,
    role: &str,
    endpoint: &str,
    has_shared_memory: bool,
    others: &[(&str, &str)],
) -> Session {
    let mut config = Config::default();
    let usual = [
        ("mode", &*format!("{mode:?}")),
        ("scouting/multicast/enabled", "false"),
        ("listen/endpoints", "[]"),
        (
            "transport/shared_memory/enabled",
            &has_shared_memory.to_string(),
        ),
        (&format!("{role}/endpoints"), &format!("[{endpoint:?}]")),
    ];
    for (key, value) in usual.iter().chain(others) {
        config.insert_json5(key, value).unwrap();
    }
    zenoh::open(config).wait().unwrap()
}

/// Returns the address of a listening session.
pub(crate) fn endpoint(session: &Session) -> String {
    let locators = session.info().locators().wait();
    locators.first().expect("it listens").to_string()
}

/// A publisher that blocks rather than drops a message. Returns once there is a subscriber.
pub(crate) fn publisher(session: &Session) -> Publisher<'static> {
    publisher_of(session, KEY)
}

/// The same for a key of the test's choice.
pub(crate) fn publisher_of(session: &Session, key: &str) -> Publisher<'static> {
    let publisher = session
        .declare_publisher(key.to_owned())
        .congestion_control(BLOCK)
        .wait()
        .unwrap();
    let listener = publisher.matching_listener().wait().unwrap();
    while !publisher.matching_status().wait().unwrap().matching() {
        listener.recv().unwrap();
    }
    publisher
}

/// A querier. Returns once there is a queryable.
pub(crate) fn querier(session: &Session) -> Querier<'static> {
    let querier = session.declare_querier(KEY).wait().unwrap();
    let listener = querier.matching_listener().wait().unwrap();
    while !querier.matching_status().wait().unwrap().matching() {
        listener.recv().unwrap();
    }
    querier
}
