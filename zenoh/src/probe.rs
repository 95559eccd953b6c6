//! A check that zenoh's client reads what the pool writes. zenoh's segments have no version, and a
//! receiver that cannot read one loses the messages silently.

use crate::segments::{create, remove};
use crate::system::may_lock;
use crate::BuildError;
use shm_pool::backend::SegmentFile;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use zenoh::shm::{PosixShmClient, ShmClient};

/// The length of the segment in bytes: at least a page, on any machine.
const LEN: usize = 64 << 10;

/// The offset of the compared bytes. Chunks begin at any multiple of 64.
const OFFSET: u32 = 192;

/// How many names are tried.
const NAME_TRIES: usize = 16;

/// Writes bytes to a segment and has zenoh's client read them. If the system has no memory for that,
/// nothing is checked.
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
                // It fails if one of zenoh's sweeps was faster.
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

/// Compares the bytes that zenoh's client finds in a segment with those that were written.
fn compare(id: u32, written: &[u8; 4]) -> Result<(), String> {
    let segment = PosixShmClient
        .attach(id)
        .map_err(|error| format!("it cannot attach a segment: {error}"))?;
    let found = segment
        .map(OFFSET)
        .map_err(|error| format!("it cannot map a chunk: {error}"))?;
    // SAFETY: zenoh has mapped the chunk there, and `segment` keeps the mapping. The file has memory for
    // all of its length, and no other process knows it.
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
    fn changed_format() {
        let id = getrandom::u32().unwrap() | 1 << 16;
        let SegmentFile { file, .. } = create(id, LEN).unwrap().unwrap();
        write(&file, &[1, 2, 3, 4]).unwrap();
        assert_eq!(compare(id, &[1, 2, 3, 4]), Ok(()));
        assert!(
            compare(id, &[1, 2, 3, 5]).is_err_and(|reason| reason.contains("reads [1, 2, 3, 4]"))
        );
        remove(id, file).unwrap();
        assert!(compare(id, &[1, 2, 3, 4]).is_err_and(|reason| reason.contains("cannot attach")));
    }
}
