//! The bytes of each message: pieces of the file, which repeats when it ends.
//!
//! Publisher and subscribers derive them by the same rule, so that an announcement is only a
//! descriptor.

use crate::Fallible;
use std::path::Path;
use std::{fs, io};

/// A file in private memory.
pub struct Source {
    /// The file, and then its start again, so that a message that wraps around is also one slice.
    bytes: Vec<u8>,
    file_len: usize,
}

impl Source {
    /// Reads the file, for messages of up to `largest` bytes.
    pub fn read(path: &Path, largest: usize) -> Fallible<Self> {
        let mut bytes = match read_regular(path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                return Err(
                    format!("cannot send {}: it is not a regular file", path.display()).into(),
                );
            }
            Err(error) => return Err(format!("cannot read {}: {error}", path.display()).into()),
        };
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
        let mut start = 0;
        sizes.iter().cycle().map(move |len| {
            let message = &self.bytes[start..start + len];
            start = (start + len) % self.file_len;
            message
        })
    }
}

/// Reads a regular file. Returns `None` for any other: a device or a pipe may never end, or differ
/// when the next process reads it.
fn read_regular(path: &Path) -> io::Result<Option<Vec<u8>>> {
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    Ok(Some(fs::read(path)?))
}
