//! How the processes find each other and what they say: zenoh's configuration, the keys, the stamp of a message.
//!
//! All is stock zenoh. Nothing here knows whose memory the messages are in.

use crate::{clock, Result};
use zenoh::bytes::ZBytes;
use zenoh::{Config, Session, Wait};

/// Messages.
pub(crate) const DATA: &str = "shm_pool/example/data";

/// Liveliness tokens of subscribers that are ready: under it is the subscriber's number.
pub(crate) const READY: &str = "shm_pool/example/ready";

/// What subscribers are done with: under it is the subscriber's number, the value is a count of messages.
pub(crate) const DONE: &str = "shm_pool/example/done";

/// A key of one subscriber.
pub(crate) fn key_of(prefix: &str, index: u8) -> String {
    format!("{prefix}/{index}")
}

/// Which subscriber's key this is.
pub(crate) fn index_of(key: &str) -> Option<u8> {
    key.rsplit('/').next()?.parse().ok()
}

/// A peer that others can connect to, at a port that the system chooses.
pub(crate) fn listen() -> Result<(Session, String)> {
    let mut config = config()?;
    config.insert_json5("listen/endpoints", r#"["tcp/127.0.0.1:0"]"#)?;
    let session = zenoh::open(config).wait()?;
    let locators = session.info().locators().wait();
    let endpoint = locators.first().ok_or("zenoh listens nowhere")?.to_string();
    Ok((session, endpoint))
}

/// A peer that has one connection, to `endpoint`.
pub(crate) fn connect(endpoint: &str) -> Result<Session> {
    let mut config = config()?;
    config.insert_json5("listen/endpoints", "[]")?;
    config.insert_json5("connect/endpoints", &serde_json::json!([endpoint]).to_string())?;
    // Without these a peer goes on trying in the background, and its program waits for messages that cannot come.
    config.insert_json5("connect/timeout_ms", "5000")?;
    config.insert_json5("connect/exit_on_failure", "true")?;
    zenoh::open(config).wait()
}

fn config() -> Result<Config> {
    let mut config = Config::default();
    config.insert_json5("mode", r#""peer""#)?;
    // Only who is told the address takes part: no other zenoh program on this network has to do with it.
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("scouting/gossip/enabled", "false")?;
    config.insert_json5("transport/shared_memory/enabled", "true")?;
    // This would copy large messages that are not in shared memory into a segment of zenoh's own, and its threshold is for
    // these alone. Ours are in shared memory whatever their size; what is left are counts of a few bytes.
    config.insert_json5("transport/shared_memory/transport_optimization/enabled", "false")?;
    Ok(config)
}

/// What goes along with a message, as its attachment: two little-endian numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// How many messages were sent before it.
    pub(crate) number: u64,
    /// When it was sent, by the clock that processes share.
    pub(crate) sent: u64,
}

impl Stamp {
    pub(crate) fn now(number: u64) -> Self {
        Self { number, sent: clock::now() }
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sent.to_le_bytes());
        bytes
    }

    pub(crate) fn from_attachment(attachment: Option<&ZBytes>) -> Result<Self> {
        let bytes = attachment.ok_or("a message came without a stamp")?.to_bytes();
        let bytes: [u8; 16] = bytes.as_ref().try_into().map_err(|_| "a message's stamp has not 16 bytes")?;
        let (number, sent) = bytes.split_at(8);
        Ok(Self { number: u64::from_le_bytes(number.try_into()?), sent: u64::from_le_bytes(sent.try_into()?) })
    }
}
