//! A whole middleware on `shm_pool::backend`: it names its segments, counts its readers in a table in shared
//! memory, and sends places over a socket. Run it: `cargo run --example toy_middleware`.

use memmap2::{Mmap, MmapRaw};
use shm_pool::backend::{Backend, Chunk, Collect, SegmentFile, SegmentSource};
use shm_pool::OsError;
use std::io::{stdin, Read, Write};
use std::os::{fd::AsFd, fd::OwnedFd, unix::net::UnixStream};
use std::sync::{atomic::AtomicU32, atomic::AtomicU64, atomic::Ordering, Arc, Mutex};
use std::{
    collections::HashMap, fs::remove_file, fs::File, process::id, process::Command, slice,
    time::Duration,
};
type Fallible = Result<(), Box<dyn std::error::Error>>;
const MESSAGES: usize = 1000;
const CAP: usize = 1 << 20;
const LEN: usize = 100_000; // ten under the cap
const SLOTS: usize = 16; // more than that

/// The name of a segment, or with 0 that of the table of readers.
fn path(publisher: u32, segment: u64) -> String {
    format!("/dev/shm/toy-{publisher}-{segment}")
}
fn open(path: &str, is_new: bool) -> std::io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(is_new)
        .open(path)
}

/// Creates and removes the segments, by the middleware's own rules.
struct Segments(AtomicU64);
impl SegmentSource for Segments {
    fn create(&self, len: usize) -> Result<SegmentFile, OsError> {
        let id = self.0.fetch_add(1, Ordering::Relaxed);
        let path = path(std::process::id(), id);
        let file = open(&path, true)
            .map_err(|error| OsError::new("open", &path, error).with_bytes(len))?;
        Ok(SegmentFile {
            id,
            file,
            path: path.into(),
        })
    }
    fn remove(&self, segment: u64, _file: File) {
        remove_file(path(id(), segment)).unwrap_or_default();
    }
}

/// Messages in flight: in shared memory how many readers each has, and here its chunk.
struct InFlight(MmapRaw, Mutex<[Option<Chunk>; SLOTS]>);
fn readers(table: &MmapRaw) -> &[AtomicU32] {
    // SAFETY: the table has `SLOTS` numbers, which all processes access as atomics.
    unsafe { slice::from_raw_parts(table.as_ptr().cast(), SLOTS) }
}
impl Collect for InFlight {
    fn collect(&self) -> bool {
        let (mut chunks, readers) = (self.1.lock().unwrap(), readers(&self.0));
        let is_read = |slot: usize| readers[slot].load(Ordering::Acquire) == 0; // pairs with the reader's Release
        let read = chunks
            .iter_mut()
            .enumerate()
            .filter(|(slot, chunk)| chunk.is_some() && is_read(*slot));
        read.map(|(_, chunk)| *chunk = None).count() > 0 // a chunk that is dropped is used again
    }
}

fn publish(mut socket: UnixStream, table: &File) -> Fallible {
    let in_flight = Arc::new(InFlight(MmapRaw::map_raw(table)?, Mutex::default()));
    let (cap, segments) = (
        Backend::builder().max_bytes(CAP),
        Segments(AtomicU64::new(1)),
    );
    let backend = cap.build(segments)?.with_collector(in_flight.clone());
    for number in 0..MESSAGES {
        let mut chunk = backend.alloc_timeout(LEN, 64, Duration::from_secs(10))?;
        // SAFETY: no reader has it.
        unsafe { chunk.bytes_mut() }.fill(number as u8);
        let mut chunks = in_flight.1.lock().unwrap();
        let slot = chunks
            .iter()
            .position(Option::is_none)
            .ok_or("more chunks than slots")?;
        readers(&in_flight.0)[slot].store(1, Ordering::Relaxed); // before it is sent
        let place = [slot, chunk.segment() as usize, chunk.offset(), number];
        chunks[slot] = Some(chunk);
        socket.write_all(&place.map(usize::to_ne_bytes).concat())?;
    }
    println!(
        "{MESSAGES} messages of {LEN} bytes in {} chunks",
        backend.stats().misses()
    );
    backend
        .alloc_timeout(CAP, 64, Duration::from_secs(10))
        .map(drop)
        .map_err(Into::into)
    // all are read
}

fn subscribe(mut socket: UnixStream, publisher: u32) -> Fallible {
    let table = MmapRaw::map_raw(&open(&path(publisher, 0), false)?)?;
    let (mut segments, mut place) = (HashMap::new(), [0; 32]);
    while socket.read_exact(&mut place).is_ok() {
        let word =
            |at: usize| usize::from_ne_bytes(std::array::from_fn(|byte| place[8 * at + byte]));
        let (slot, id, start, number) = (word(0), word(1) as u64, word(2), word(3));
        // SAFETY: the publisher writes no byte of a message that has a reader.
        let map = |segment| unsafe { Mmap::map(&open(&path(publisher, segment), false)?) };
        let segment: Mmap = segments.remove(&id).map_or_else(|| map(id), Ok)?;
        assert!(
            segment[start..start + LEN]
                .iter()
                .all(|&byte| byte == number as u8),
            "not message {number}"
        );
        readers(&table)[slot].fetch_sub(1, Ordering::Release); // partner of the collector's Acquire
        segments.insert(id, segment);
    }
    Ok(())
}

fn main() -> Fallible {
    if let Some(publisher) = std::env::args().nth(1) {
        return subscribe(
            stdin().as_fd().try_clone_to_owned()?.into(),
            publisher.parse()?,
        );
    }
    let ((ours, theirs), table) = (UnixStream::pair()?, open(&path(id(), 0), true)?);
    table.set_len(4096)?;
    let mut child = Command::new("/proc/self/exe")
        .arg(id().to_string())
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let published = publish(ours, &table).and_then(|()| Ok(child.wait()?)); // and closed the socket
    remove_file(path(id(), 0))?;
    published?
        .success()
        .then_some(())
        .ok_or("the subscriber failed".into())
}
