//! The publisher: one allocation per message, granted to each subscriber, then dropped.
//!
//! # Flow control
//!
//! The publisher is at most `--window` messages ahead of the slowest subscriber; each reports the
//! messages that it has released. When the shared memory is exhausted before that, the publisher
//! waits for the same reports: a subscriber that has nothing left to read releases all that it
//! holds. So either memory is released, or no subscriber holds any and the error is real. Neither
//! side polls.

use crate::{Announced, Hello, Options, Task};
use shm_pool::{PeerId, Provider, ShmBytes, ShmBytesMut};
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::source::Source;
use shm_pool_support::units::Bytes;
use shm_pool_support::{procfs, wire, Fallible};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Publishes the whole stream, prints the report, and fails if a check failed.
pub(crate) fn run(options: &Options) -> Fallible {
    // The pool keeps as many free chunks of a size as can be in flight, so that none is created
    // repeatedly.
    let window = options.window.into();
    let provider = Provider::builder()
        .max_bytes(options.max_bytes)
        .max_idle_per_class(window)
        .build()?;
    let id = provider.id();
    let source = options.source()?;
    let (bytes, elapsed) = publish(options, &provider, &source)?;
    let stats = provider.stats();
    drop(provider);

    let messages = options.messages;
    let seconds = elapsed.as_secs_f64();
    let total = Bytes(bytes);
    let rate = Bytes((bytes as f64 / seconds) as u64);
    let file = Bytes(source.file_len() as u64);
    println!("{messages} messages, {total}, from a file of {file} in {seconds:.2} s: {rate}/s");
    println!(
        "{} allocations from the pool, {} made anew",
        stats.hits(),
        stats.misses()
    );
    let most = Bytes(stats.peak_bytes_held as u64);
    let cap = Bytes(stats.max_bytes as u64);
    println!(
        "{} segments created, at most {most} of {cap} held",
        stats.segments_created
    );
    if stats.bytes_in_use + stats.bytes_leased > 0 {
        return Err(format!(
            "leaked: {} bytes in use, {} leased",
            stats.bytes_in_use, stats.bytes_leased
        )
        .into());
    }
    // The names of the provider's objects contain its id.
    let mut left = procfs::objects("");
    left.retain(|name| name.contains(&id.to_string()));
    if !left.is_empty() {
        return Err(format!("leaked in /dev/shm: {}", left.join(", ")).into());
    }
    Ok(())
}

/// Returns the number of bytes, and how long it took until every subscriber had released the last.
fn publish(options: &Options, provider: &Provider, source: &Source) -> Fallible<(u64, Duration)> {
    let mut subscribers = Vec::new();
    for index in 0..options.subscribers {
        subscribers.push(Subscriber::start(&Task {
            options: options.clone(),
            provider: u64::from(provider.id()),
            is_slow: index == 0,
        })?);
    }

    let start = Instant::now();
    let messages = source
        .messages(&options.sizes)
        .take(options.messages as usize);
    let published = stream(messages, provider, options.window, &mut subscribers);
    let elapsed = start.elapsed();
    if published.is_err() {
        // A subscriber that has detected an error must report it before it exits.
        for subscriber in &mut subscribers {
            subscriber.abandon();
        }
    }
    let bytes = published?;
    for subscriber in subscribers {
        subscriber.finish()?;
    }
    Ok((bytes, elapsed))
}

/// Returns the number of bytes.
fn stream<'a>(
    messages: impl Iterator<Item = &'a [u8]>,
    provider: &Provider,
    window: u16,
    subscribers: &mut [Subscriber],
) -> Fallible<u64> {
    let mut bytes = 0;
    for content in messages {
        for subscriber in &mut *subscribers {
            subscriber.wait_until_pending(window - 1)?;
        }
        let mut buffer = alloc(provider, content.len(), subscribers)?;
        buffer.copy_from_slice(content);
        let message = buffer.freeze();
        for subscriber in &mut *subscribers {
            subscriber.send(&message)?;
        }
        bytes += content.len() as u64;
        // The message is dropped here. The grants keep it until the last subscriber is done.
    }
    for subscriber in subscribers {
        subscriber.wait_until_pending(0)?;
    }
    Ok(bytes)
}

/// Allocates, and waits for memory as long as subscribers have some to release.
fn alloc(provider: &Provider, len: usize, subscribers: &mut [Subscriber]) -> Fallible<ShmBytesMut> {
    loop {
        let error = match provider.alloc(len) {
            Ok(buffer) => return Ok(buffer),
            Err(error) => error,
        };
        let slowest = subscribers.iter_mut().max_by_key(|one| one.pending);
        match slowest {
            Some(slowest) if error.is_exhausted() && slowest.pending > 0 => {
                slowest.wait_until_pending(slowest.pending - 1)?;
            }
            _ => return Err(error.into()),
        }
    }
}

/// The publisher's end of one subscriber process.
struct Subscriber {
    process: Child,
    socket: UnixStream,
    peer: PeerId,
    /// How many messages were sent to it that it has not released.
    pending: u16,
}

impl Subscriber {
    /// Starts this program again and waits until it has connected, so that it misses no message.
    fn start(task: &Task) -> Fallible<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let mut command = this_program(task)?;
        let process = Child::start("subscriber", command.stdin(OwnedFd::from(theirs)))?;
        let peer = PeerId::from_bytes(wire::expect::<Hello>(&socket)?);
        Ok(Self {
            process,
            socket,
            peer,
            pending: 0,
        })
    }

    /// Grants it the message and announces it. The publisher need not keep the message.
    fn send(&mut self, message: &ShmBytes) -> Fallible {
        let descriptor = message.grant(self.peer)?;
        self.pending += 1;
        let announced = Announced::Some(descriptor.to_bytes());
        Ok(wire::send(&self.socket, &announced)?)
    }

    /// Waits until it has released all but `most` messages.
    fn wait_until_pending(&mut self, most: u16) -> Fallible {
        while self.pending > most {
            wire::expect::<()>(&self.socket)?;
            self.pending -= 1;
        }
        Ok(())
    }

    /// Waits for the process to detect that the stream was cut off.
    fn abandon(&mut self) {
        // Both fail only if it has exited.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.process.wait();
    }

    /// Ends the stream, and waits for the process to exit normally.
    fn finish(self) -> Fallible {
        wire::send(&self.socket, &Announced::None)?;
        self.process.finish()
    }
}
