//! The bytes of each message: pieces of the file, which repeats when it ends.
//!
//! Publisher and subscribers derive them by the same rule, so that an announcement is only a
//! descriptor.

use crate::Fallible;
use std::path::Path;

/// A file in private memory.
pub struct Source {
    /// The file, and then its start again, so that a message that wraps around is also one slice.
    bytes: Vec<u8>,
    file_len: usize,
}

impl Source {
    /// Reads the file, for messages of up to `largest` bytes.
    pub fn read(path: &Path, largest: usize) -> Fallible<Self> {
        let named = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        // A device or a pipe may never end, or differ when the next process reads it.
        if !std::fs::metadata(path).map_err(named)?.is_file() {
            return Err(format!("cannot send {}: it is not a regular file", path.display()).into());
        }
        let mut bytes = std::fs::read(path).map_err(named)?;
        let file_len = bytes.len();
        if file_len == 0 {
            return Err(format!("cannot send {}: it is empty", path.display()).into());
        }
        bytes.reserve_exact(largest);
        while bytes.len() < file_len + largest {
            let missing = file_len + largest - bytes.len();
            bytes.extend_from_within(..missing.min(file_len));
        }
        Ok(Self { bytes, file_len })
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> usize {
        self.file_len
    }

    /// Returns the messages, without end: their sizes cycle through `sizes`, and each starts in the
    /// file where the last one ended.
    pub fn messages<'a>(&'a self, sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
        sizes.iter().cycle().scan(0, |start, &len| {
            let message = &self.bytes[*start..*start + len];
            *start = (*start + len) % self.file_len;
            Some(message)
        })
    }
}
