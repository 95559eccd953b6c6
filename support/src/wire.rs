//! Values over sockets and pipes: four bytes of length, then JSON. Each is written by one call, so
//! that threads may share a socket.

use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::thread::{self, JoinHandle};

/// Sends a value.
pub fn send(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, value)?;
    let len = frame.len() as u32 - 4;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    to.write_all(&frame)?;
    to.flush()
}

/// Returns the next value, or `None` when the other side has closed, perhaps in the middle of one.
pub fn receive<T: DeserializeOwned>(mut from: impl Read) -> io::Result<Option<T>> {
    let bytes = match read_frame(&mut from) {
        Ok(bytes) => bytes,
        Err(error) if is_end(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

fn read_frame(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns `true` if the other side has closed.
pub fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
    )
}

/// Returns the next value, which must arrive.
pub fn expect<T: DeserializeOwned>(from: impl Read) -> crate::Fallible<T> {
    Ok(receive(from)?.ok_or("the other process ended before it had sent anything")?)
}

/// Starts a thread that passes each value to `on_value`, which returns `true` if it wants more. The
/// last is `None`, when the other side has closed.
pub fn listen<T: DeserializeOwned>(
    mut from: impl Read + Send + 'static,
    mut on_value: impl FnMut(Option<T>) -> bool + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        while let Some(value) = receive(&mut from).unwrap_or_default() {
            if !on_value(Some(value)) {
                return;
            }
        }
        // Dropped first, so that the descriptor is closed when `on_value` is called.
        drop(from);
        on_value(None);
    })
}
