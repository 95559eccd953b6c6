//! Ids and rules are their texts in every format (feature `serde`).

#![forbid(unsafe_code)]

use crate::channel::{MessageType, OnEnd, OnFull, OnStall};
use crate::protocol::ids::{PeerId, ProviderId, ReceiverId};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! written {
    ($($type:ty),+) => { $(
        /// As the text of its `Display`.
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+ };
}

macro_rules! parsed {
    ($($type:ty),+) => { $(
        /// From the text of its `Display`.
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )+ };
}

written!(
    ProviderId,
    PeerId,
    ReceiverId,
    OnEnd,
    OnFull,
    OnStall,
    MessageType
);
parsed!(ProviderId, PeerId, ReceiverId, OnEnd, OnFull, OnStall);
