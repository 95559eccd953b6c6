//! What goes over the socket between the publisher and one subscriber: `serde` types, as `postcard`
//! encodes them.

use crate::Result;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use shm_pool::{Descriptor, PeerId};
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;

/// What the publisher says.
#[derive(Serialize, Deserialize)]
pub(crate) enum ToSubscriber {
    /// There is a message: [`Descriptor::to_bytes`].
    Message([u8; Descriptor::SIZE]),
    /// No message follows. (A socket that closes without it means that the publisher has died.)
    End,
}

/// What a subscriber says.
#[derive(Serialize, Deserialize)]
pub(crate) enum ToPublisher {
    /// Who it is to the provider: [`PeerId::to_bytes`]. The first thing it says.
    Connected([u8; PeerId::SIZE]),
    /// It has read one more message, found it unchanged and let go of it.
    Done,
}

/// Sends one of the above.
pub(crate) fn send(mut socket: &UnixStream, message: &impl Serialize) -> Result<()> {
    let bytes = postcard::to_stdvec(message)?;
    Ok(socket.write_all(&bytes).map_err(|error| format!("the other process is gone: {error}"))?)
}

/// Waits for one of the above.
pub(crate) fn receive<T: DeserializeOwned>(socket: &mut BufReader<UnixStream>) -> Result<T> {
    // The empty buffer is where borrowed strings and slices would go. There are none.
    let received = postcard::from_io((socket, &mut []));
    Ok(received.map_err(|error| format!("the other process is gone: {error}"))?.0)
}
