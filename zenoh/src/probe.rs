//! Does zenoh's client read what the pool writes? zenoh's segments have no version, and a receiver
//! that cannot read one says nothing: it loses the messages.

use crate::segments::{create, remove};
use crate::system::may_lock;
use crate::BuildError;
use shm_pool::backend::SegmentFile;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use zenoh::shm::{PosixShmClient, ShmClient};

/// Bytes of the segment that is tried: a page, on any machine.
const LEN: usize = 64 << 10;

/// Where the bytes are that are compared. Chunks begin at any multiple of 64.
const OFFSET: u32 = 192;

/// How many names are tried.
const NAME_TRIES: usize = 16;

/// Writes bytes into a segment and has zenoh's client read them. Where the system has no memory for
/// that, the first message will show.
pub(crate) fn check() -> Result<(), BuildError> {
    if matches!(may_lock(LEN), Ok(false)) {
        return Ok(());
    }
    for _ in 0..NAME_TRIES {
        let id = getrandom::u32().map_err(|error| BuildError::Random(error.into()))? | 1 << 16;
        match create(id, LEN) {
            Ok(Some(SegmentFile { file, .. })) => {
                let written = id.to_ne_bytes().map(|byte| byte ^ 0x5a);
                let result = match write(&file, &written) {
                    Ok(()) => compare(id, &written),
                    Err(_no_memory) => Ok(()),
                };
                // It fails if a sweep of zenoh's was faster.
                let _gone = remove(id, file);
                return result.map_err(|reason| BuildError::Format { reason });
            }
            Ok(None) => {}
            Err(_no_memory) => return Ok(()),
        }
    }
    Ok(())
}

fn write(file: &File, bytes: &[u8]) -> io::Result<()> {
    // All of the memory that the client will lock.
    file.write_all_at(&[0; LEN], 0)?;
    file.write_all_at(bytes, OFFSET.into())
}

/// Compares what zenoh's client finds in a segment with what was written.
fn compare(id: u32, written: &[u8; 4]) -> Result<(), String> {
    let segment = PosixShmClient.attach(id).map_err(|error| format!("it cannot attach a segment: {error}"))?;
    let found = segment.map(OFFSET).map_err(|error| format!("it cannot map a chunk: {error}"))?;
    // SAFETY: zenoh says that the chunk is mapped there, and `segment` keeps it so. The file has
    // memory for all of its length, and no other process knows of it.
    let read = unsafe { found.cast::<[u8; 4]>().read_unaligned() };
    if read == *written {
        Ok(())
    } else {
        Err(format!("{written:?} was written, and it reads {read:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_that_differs_is_an_error() {
        let id = getrandom::u32().unwrap() | 1 << 16;
        let SegmentFile { file, .. } = create(id, LEN).unwrap().unwrap();
        write(&file, &[1, 2, 3, 4]).unwrap();
        assert_eq!(compare(id, &[1, 2, 3, 4]), Ok(()));
        assert!(compare(id, &[1, 2, 3, 5]).is_err_and(|reason| reason.contains("reads [1, 2, 3, 4]")));
        remove(id, file).unwrap();
        assert!(compare(id, &[1, 2, 3, 4]).is_err_and(|reason| reason.contains("cannot attach")));
    }
}
