//! For authors of middleware: your names, your reader counts, our allocator.
//!
//! A middleware that already has its own protocol needs only memory from this crate. The module
//! [`backend`](crate::backend) allocates [`Chunk`](crate::backend::Chunk)s of shared memory under a
//! cap, reuses them without a system call, and returns what is idle to the system. Everything else
//! is yours: names of segments, the transport, and the count of readers of each message.
//!
#![doc = include_str!("memory.svg")]
//!
//! This picture shows what a [`Provider`](crate::Provider) and its channels create. A backend
//! creates segments only, under names of your choice.
//!
//! # A complete middleware
//!
//! Besides this crate it needs the crate `memmap2`. It sends the place of each message through a
//! pipe, and counts readers in the first bytes of the message itself. The program starts itself again
//! as the reader.
//!
//! ```
//! use memmap2::MmapRaw;
//! use shm_pool::backend::{Backend, Chunk, Collect, SegmentFile, SegmentSource};
//! use shm_pool::OsError;
//! use std::alloc::Layout;
//! use std::error::Error;
//! use std::fs::{self, File};
//! use std::io::{self, BufRead, Write};
//! use std::process::{self, Command, Stdio};
//! use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! const LEN: usize = 100_000;
//! /// The first bytes of a message: how many readers it has.
//! const HEADER: usize = 64;
//!
//! fn path(publisher: u32, segment: u64) -> String {
//!     format!("/dev/shm/tiny-{publisher}-{segment}")
//! }
//!
//! /// Creates and removes segments, under names that the reader can find.
//! struct Segments(AtomicU64);
//!
//! impl SegmentSource for Segments {
//!     fn create(&self, _len: usize) -> Result<SegmentFile, OsError> {
//!         let id = self.0.fetch_add(1, Ordering::Relaxed);
//!         let path = path(process::id(), id);
//!         let file = File::options().read(true).write(true).create_new(true).open(&path);
//!         match file {
//!             Ok(file) => Ok(SegmentFile { id, file, path: path.into() }),
//!             Err(error) => Err(OsError::new("open", &path, error)),
//!         }
//!     }
//!
//!     fn remove(&self, segment: u64, _file: File) {
//!         let _ = fs::remove_file(path(process::id(), segment));
//!     }
//! }
//!
//! /// Returns the reader count of the message at `start`.
//! fn readers<'a>(start: *mut u8) -> &'a AtomicU32 {
//!     // SAFETY: the header of a message is 64 bytes, aligned to 64, that all processes access as
//!     // an atomic. It stays mapped: as long as its chunk is kept, or its segment in the reader.
//!     unsafe { AtomicU32::from_ptr(start.cast()) }
//! }
//!
//! /// The messages that may still have readers.
//! #[derive(Default)]
//! struct InFlight(Mutex<Vec<Chunk>>);
//!
//! impl Collect for InFlight {
//!     fn collect(&self) -> bool {
//!         let mut chunks = self.0.lock().unwrap();
//!         let before = chunks.len();
//!         // Acquire: partner of the reader's Release. A dropped chunk is used again.
//!         chunks.retain(|chunk| readers(chunk.as_ptr()).load(Ordering::Acquire) > 0);
//!         chunks.len() < before
//!     }
//! }
//!
//! fn publish() -> Result<(), Box<dyn Error>> {
//!     let in_flight = Arc::new(InFlight::default());
//!     let builder = Backend::builder().max_bytes(1 << 20); // room for ten messages
//!     let backend = builder.build(Segments(AtomicU64::new(0)))?.with_collector(in_flight.clone());
//!     let program = std::env::current_exe()?;
//!     let mut reader = Command::new(program)
//!         .arg(process::id().to_string())
//!         .stdin(Stdio::piped())
//!         .spawn()?;
//!     let mut pipe = reader.stdin.take().ok_or("no pipe")?;
//!
//!     for number in 0..100 {
//!         // Waits until the reader has finished with enough messages.
//!         let layout = Layout::new::<[u8; HEADER + LEN]>();
//!         let mut chunk = backend.alloc_timeout(layout, Duration::from_secs(60))?;
//!         // SAFETY: no reader has it.
//!         let bytes = unsafe { chunk.bytes_mut() };
//!         bytes[HEADER..].fill(number);
//!         readers(chunk.as_ptr()).store(1, Ordering::Relaxed); // before it is sent
//!         let place = format!("{} {} {number}", chunk.segment(), chunk.offset());
//!         in_flight.0.lock().unwrap().push(chunk);
//!         writeln!(pipe, "{place}")?;
//!     }
//!
//!     drop(pipe); // the reader ends
//!     if !reader.wait()?.success() {
//!         return Err("the reader failed".into());
//!     }
//!     assert!(in_flight.collect());
//!     Ok(())
//! }
//!
//! fn read(publisher: u32) -> Result<(), Box<dyn Error>> {
//!     let mut segments: Vec<(u64, MmapRaw)> = Vec::new();
//!     for line in io::stdin().lock().lines() {
//!         let mut numbers = Vec::new();
//!         for number in line?.split(' ') {
//!             numbers.push(number.parse::<u64>()?);
//!         }
//!         let segment = numbers[0];
//!         if !segments.iter().any(|(id, _)| *id == segment) {
//!             let file = File::options().read(true).write(true).open(path(publisher, segment))?;
//!             segments.push((segment, MmapRaw::map_raw(&file)?));
//!         }
//!         let (_, mapped) = segments.iter().find(|(id, _)| *id == segment).ok_or("no segment")?;
//!
//!         let start = mapped.as_mut_ptr().wrapping_add(numbers[1] as usize);
//!         // SAFETY: the publisher writes no byte of a message that has a reader.
//!         let message = unsafe { std::slice::from_raw_parts(start.add(HEADER), LEN) };
//!         assert!(message.iter().all(|&byte| u64::from(byte) == numbers[2]));
//!         // Release: partner of the collector's Acquire.
//!         readers(start).fetch_sub(1, Ordering::Release);
//!     }
//!     Ok(())
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     match std::env::args().nth(1) {
//!         Some(publisher) => read(publisher.parse()?),
//!         None => publish(),
//!     }
//! }
//! ```
//!
//! `examples/toy_middleware.rs` keeps its counts in a table of their own and sends places by a
//! socket. `shm-pool-zenoh` is a backend for zenoh. The program above trusts its reader: one that
//! maps segments writable can write to any message. Its publisher has only a process id as a name, which the
//! section *Names* improves.
//!
//! # Collecting
//!
//! Drop a chunk when it has no reader left. If your protocol sends a confirmation, drop the chunk
//! there, and you need no collector.
//!
//! If readers only change a count in shared memory, no one tells your publisher. Then implement
//! [`Collect`](crate::backend::Collect): look through the messages in flight, drop those without
//! readers, and return `true` if there were any. The backend calls it
//!
//! * before it takes more memory, unless few messages can have been released since the last time;
//! * when there is no room for an allocation;
//! * again and again while [`alloc_timeout`](crate::backend::Backend::alloc_timeout) waits: after
//!   20 microseconds, and at least every millisecond from then on.
//!
//! A collector must not own the backend that calls it, because neither would ever be dropped.
//!
//! # Names
//!
//! The backend never opens a name. [`create`](crate::backend::SegmentSource::create) returns a new,
//! empty file, and [`remove`](crate::backend::SegmentSource::remove) gets the id and the file back.
//! Choose names with these properties:
//!
//! * **No two owners have the same name.** A process id is not enough when PID namespaces share
//!   /dev/shm: add random digits. `create_new` refuses a file that exists.
//! * **A reader can form the name** from the segment's id and what you send to it once.
//! * **You can list what a dead owner left.** Begin all names with one prefix.
//!
//! # Death
//!
//! | dies | what to do |
//! |---|---|
//! | a reader | Its counts stay. Count per reader rather than in a sum, learn of the death from the kernel (a closed socket, a released lock), and drop what it held. |
//! | the publisher | Its files stay, because [`remove`](crate::backend::SegmentSource::remove) is not called. Hold a lock on each file, or on one of them: the kernel releases it at the death. |
//! | both | The next process removes the files whose lock is free. Do that in [`sweep`](crate::backend::SegmentSource::sweep), too, which the backend calls when memory is short. |
//!
//! Use open file description locks (`F_OFD_SETLK`) or `flock`, not process ids, which are reused.
//! Keep a [`Chunk`](crate::backend::Chunk) for ever if you cannot find out whether a reader still has
//! it: memory must never change under a reader.
//!
//! # Which thread calls what
//!
//! | call | thread | locks of the backend |
//! |---|---|---|
//! | [`alloc`](crate::backend::Backend::alloc), dropping a [`Chunk`](crate::backend::Chunk) | any | none while a chunk of that size is idle |
//! | [`SegmentSource`](crate::backend::SegmentSource)'s methods | a thread that allocates, trims, or drops the last handle | held: do not call the backend |
//! | [`Collect::collect`](crate::backend::Collect::collect) | a thread that allocates, reserves or trims; several may at a time | none held: it may drop chunks |
//!
//! The backend has no thread of its own. In a forked child, allocations fail and drops do nothing,
//! so a child may inherit the handles and ignore them.
//!
//! # Real time
//!
//! [`Backend::reserve`](crate::backend::Backend::reserve) makes chunks in advance, as in
//! [`embedded`](super::embedded). A source whose readers lock their mappings should say so, with
//! `SegmentSource::reserves_whole` of the feature `unstable-backend`.
#![forbid(unsafe_code)]
