//! Messages from one process to another: published, granted, attached to, read, let go.
//!
//! | direction | what | bytes |
//! |---|---|---|
//! | to the owner, once | who the reader is to the provider: [`PeerId::to_bytes`] | 24 |
//! | to the reader | how many descriptors come, at most [`BATCH`]; is its memory asked for? | 1 + 1 |
//! | | the descriptors | 32 each |
//! | to the owner, after each batch | the reader's resident memory when it was last asked for, and the shared part | 8 + 8 |
//!
//! The messages of a batch are all published before the first of them is read, so that both
//! processes have something to do.

use crate::{report_rate, Memory, LENGTHS, SAMPLES};
use shm_pool::{Client, Descriptor, PeerId, Provider, ProviderId};
use shm_pool_support::process::{inherited_input, this_program, Child};
use shm_pool_support::Fallible;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Messages that are on the way at a time.
const BATCH: u64 = 32;

/// What one process had, after so many cycles.
type Samples = Vec<(u64, Memory)>;

/// The owner's side: publishes so many messages. Gives the owner's samples and the reader's.
pub(crate) fn publish(provider: &Provider, cycles: u64) -> Fallible<(Samples, Samples)> {
    let (mut socket, theirs) = UnixStream::pair()?;
    // The command, and with it this process's copy of the reader's end, goes at once: so its death
    // is noticed.
    let reader = Child::start("reader", this_program(&provider.id().to_u64())?.stdin(OwnedFd::from(theirs)))?;
    let peer = PeerId::from_bytes(receive(&mut socket)?);

    let mut samples = (Vec::with_capacity(SAMPLES as usize), Vec::with_capacity(SAMPLES as usize));
    let start = Instant::now();
    for part in 1..=SAMPLES {
        let (mut cycle, end) = (cycles * (part - 1) / SAMPLES, cycles * part / SAMPLES);
        let mut memory = None;
        while cycle < end {
            let count = BATCH.min(end - cycle);
            let is_last = cycle + count == end;
            let mut frame = vec![count as u8, u8::from(is_last)];
            for _ in 0..count {
                let mut buffer = provider.alloc(LENGTHS[cycle as usize % LENGTHS.len()])?;
                mark(&mut buffer, cycle);
                frame.extend(buffer.freeze().grant(peer)?.to_bytes());
                cycle += 1;
            }
            socket.write_all(&frame)?;
            let [resident, shared] = [receive(&mut socket)?, receive(&mut socket)?].map(u64::from_le_bytes);
            memory = Some(Memory { resident, shared });
        }
        samples.0.push((end, Memory::now()?));
        samples.1.extend(memory.map(|memory| (end, memory)));
    }
    report_rate("publish, attach, release", cycles, start);
    drop(socket);
    reader.finish()?;
    let stats = provider.stats();
    match stats.bytes_leased + stats.bytes_in_use {
        0 => Ok(samples),
        left => Err(format!("{left} bytes are still leased or in use").into()),
    }
}

/// The reader's program: reads until the owner closes the socket, which is the standard input.
pub(crate) fn read(provider: u64) -> Fallible {
    let mut socket = UnixStream::from(inherited_input()?);
    let client = Client::new();
    let peer = client.connect(ProviderId::from_u64(provider))?;
    socket.write_all(&peer.to_bytes())?;
    let mut memory = Memory::now()?;
    let mut cycle = 0;
    loop {
        let [count, is_asked] = match receive(&mut socket) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            frame => frame?,
        };
        for _ in 0..count {
            let view = client.attach(&Descriptor::from_bytes(receive(&mut socket)?)?)?;
            if !is_marked(&view, cycle) {
                return Err(format!("message {cycle} has other bytes than were written").into());
            }
            cycle += 1;
        }
        if is_asked == 1 {
            memory = Memory::now()?;
        }
        socket.write_all(&[memory.resident.to_le_bytes(), memory.shared.to_le_bytes()].concat())?;
    }
}

fn receive<const BYTES: usize>(socket: &mut UnixStream) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    socket.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Writes the cycle's number to both ends of a message. Its pages in between are of no interest
/// here.
fn mark(bytes: &mut [u8], cycle: u64) {
    let number = cycle.to_le_bytes();
    let tail = bytes.len() - number.len();
    bytes[..number.len()].copy_from_slice(&number);
    bytes[tail..].copy_from_slice(&number);
}

fn is_marked(bytes: &[u8], cycle: u64) -> bool {
    let number = cycle.to_le_bytes();
    bytes.starts_with(&number) && bytes.ends_with(&number)
}
