//! A whole middleware on `shm_pool::backend`: it names its segments itself, counts the readers of
//! its messages in a table in shared memory, and sends the place of each message over a socket.
//!
//! The publisher starts its subscriber as another process. Run it with
//! `cargo run --example toy_middleware`.

use memmap2::{Mmap, MmapRaw};
use shm_pool::backend::{Backend, Chunk, Collect, SegmentFile, SegmentSource};
use shm_pool::OsError;
use std::alloc::Layout;
use std::collections::hash_map::{Entry, HashMap};
use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{self, Command};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MESSAGES: u64 = 1000;
const LEN: usize = 100_000;
/// Ten messages fit.
const CAP: usize = 1 << 20;
/// How many messages may be in flight at a time: more than fit.
const SLOTS: usize = 16;
/// The number in the name of the table of readers; segments have higher ones.
const TABLE: u64 = 0;
/// Long enough for a busy machine to start a process.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again as the subscriber, with the publisher's process id as its
    // argument.
    match env::args().nth(1) {
        Some(publisher) => subscribe(publisher.parse()?),
        None => publish(),
    }
}

/// Returns the path of a segment, or of the table.
fn path(publisher: u32, number: u64) -> String {
    format!("/dev/shm/toy-{publisher}-{number}")
}

fn open(path: &str) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn create(path: &str) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Creates and removes segments, with names that the subscriber can find.
struct Segments {
    next: AtomicU64,
}

impl SegmentSource for Segments {
    fn create(&self, _len: usize) -> Result<SegmentFile, OsError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let path = path(process::id(), id);
        match create(&path) {
            Ok(file) => Ok(SegmentFile {
                id,
                file,
                path: path.into(),
            }),
            Err(error) => Err(OsError::new("open", &path, error)),
        }
    }

    fn remove(&self, segment: u64, _file: File) {
        // Fails if another process has removed it.
        let _ = fs::remove_file(path(process::id(), segment));
    }
}

/// The messages in flight.
struct InFlight {
    /// In shared memory: how many readers each message has.
    table: MmapRaw,
    /// The chunk of each message.
    chunks: Mutex<[Option<Chunk>; SLOTS]>,
}

fn readers(table: &MmapRaw) -> &[AtomicU32] {
    // SAFETY: the table has `SLOTS` numbers, which all processes access as atomics.
    unsafe { slice::from_raw_parts(table.as_ptr().cast(), SLOTS) }
}

impl Collect for InFlight {
    /// Frees the messages that have no reader any more. Returns `true` if there were some.
    fn collect(&self) -> bool {
        let mut has_freed = false;
        let mut chunks = self.chunks.lock().unwrap();
        for (chunk, readers) in chunks.iter_mut().zip(readers(&self.table)) {
            // Acquire: partner of the reader's Release.
            if chunk.is_some() && readers.load(Ordering::Acquire) == 0 {
                *chunk = None; // a chunk that is dropped is used again
                has_freed = true;
            }
        }
        has_freed
    }
}

fn publish() -> Result<(), Box<dyn Error>> {
    let table_path = path(process::id(), TABLE);
    let table = create(&table_path)?;
    table.set_len(4096)?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut subscriber = Command::new(env::current_exe()?)
        .arg(process::id().to_string())
        .stdin(OwnedFd::from(theirs))
        .spawn()?;

    let sent = send_messages(ours, &table); // and closes the socket, which ends the subscriber
    let status = subscriber.wait()?;
    fs::remove_file(table_path)?;
    sent?;
    if !status.success() {
        return Err("the subscriber failed".into());
    }
    Ok(())
}

fn send_messages(mut socket: UnixStream, table: &File) -> Result<(), Box<dyn Error>> {
    let in_flight = Arc::new(InFlight {
        table: MmapRaw::map_raw(table)?,
        chunks: Mutex::default(),
    });
    let segments = Segments {
        next: AtomicU64::new(TABLE + 1),
    };
    let backend = Backend::builder()
        .max_bytes(CAP)
        .build(segments)?
        .with_collector(in_flight.clone());

    for number in 0..MESSAGES {
        // Waits until the subscriber has read enough.
        let mut chunk = backend.alloc_timeout(Layout::new::<[u8; LEN]>(), TIMEOUT)?;
        // SAFETY: no reader knows its place yet.
        let bytes = unsafe { chunk.bytes_mut() };
        bytes.fill(number as u8);

        let place = {
            let mut chunks = in_flight.chunks.lock().unwrap();
            let Some(slot) = chunks.iter().position(Option::is_none) else {
                return Err("more messages than slots".into());
            };
            // Before it is sent.
            readers(&in_flight.table)[slot].store(1, Ordering::Relaxed);
            let place = Place {
                slot: slot as u64,
                segment: chunk.segment(),
                offset: chunk.offset() as u64,
                number,
            };
            chunks[slot] = Some(chunk);
            place
        };
        socket.write_all(&place.to_bytes())?;
    }

    let chunks = backend.stats().misses();
    println!("{MESSAGES} messages of {LEN} bytes in {chunks} chunks");
    // The whole cap is free again when all messages are read.
    drop(backend.alloc_timeout(Layout::new::<[u8; CAP]>(), TIMEOUT)?);
    Ok(())
}

fn subscribe(publisher: u32) -> Result<(), Box<dyn Error>> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let table = MmapRaw::map_raw(&open(&path(publisher, TABLE))?)?;
    let mut segments: HashMap<u64, Mmap> = HashMap::new();
    let mut bytes = [0; Place::LEN];
    // Until the publisher closes the socket.
    while socket.read_exact(&mut bytes).is_ok() {
        let place = Place::from_bytes(&bytes);
        let segment = match segments.entry(place.segment) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = open(&path(publisher, place.segment))?;
                // SAFETY: the publisher writes no byte of a message that has a reader.
                let segment = unsafe { Mmap::map(&file)? };
                new.insert(segment)
            }
        };

        let start = place.offset as usize;
        let message = &segment[start..start + LEN];
        for byte in message {
            assert_eq!(*byte, place.number as u8, "not message {}", place.number);
        }

        // Release: partner of the collector's Acquire.
        readers(&table)[place.slot as usize].fetch_sub(1, Ordering::Release);
    }
    Ok(())
}

/// Where a message is, as it is sent over the socket.
struct Place {
    /// Its place in the table.
    slot: u64,
    segment: u64,
    offset: u64,
    number: u64,
}

impl Place {
    const LEN: usize = 32;

    fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.slot.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.segment.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        Self {
            slot: word(0),
            segment: word(8),
            offset: word(16),
            number: word(24),
        }
    }
}
