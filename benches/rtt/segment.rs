//! A segment of shared memory for each message, as programs without a pool do it: created, mapped
//! and written by the sender, mapped and removed by the receiver. A socket says that there is a
//! message.

use crate::ways::{check, mark, Ends};
use memmap2::{Mmap, MmapOptions};
use shm_pool_support::procfs::OBJECTS;
use shm_pool_support::Fallible;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Starts the names of all segments.
pub(crate) fn prefix(names: &str) -> String {
    format!("rtt-{names}-")
}

/// One side's end. Only the ends of a message are written, so that a long one takes less time than
/// a real one, all of whose pages are faulted in.
pub(crate) struct Segments {
    socket: UnixStream,
    /// Starts of the paths of messages to the other side, and from it.
    paths: [String; 2],
    len: usize,
    received: Option<Mmap>,
}

impl Segments {
    /// `ways` are the directions, to the other side and back.
    pub(crate) fn new(socket: UnixStream, names: &str, ways: [&str; 2], len: usize) -> Self {
        let paths = ways.map(|way| format!("{OBJECTS}/{}{way}-", prefix(names)));
        Self {
            socket,
            paths,
            len,
            received: None,
        }
    }
}

impl Ends for Segments {
    fn send(&mut self, number: u64) -> Fallible {
        let path = format!("{}{number}", self.paths[0]);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        file.set_len(self.len as u64)?;
        // SAFETY: created above, of this length, and the other process does not open it yet.
        let mut map = unsafe { MmapOptions::new().len(self.len).map_mut(&file) }?;
        mark(&mut map, number);
        drop(map);
        Ok(self.socket.write_all(b".")?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        self.socket.read_exact(&mut [0])?;
        let path = format!("{}{number}", self.paths[1]);
        // SAFETY: its creator unmapped it before it sent the byte, and no process writes to it or
        // truncates it.
        let map = unsafe { Mmap::map(&File::open(&path)?) }?;
        fs::remove_file(path)?;
        check(&map, self.len, number)?;
        self.received = Some(map);
        Ok(())
    }

    fn settle(&mut self) {
        self.received = None;
    }
}
