//! Where a pool's segments come from: how they are named and created.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::name::Namespace;
use crate::os::segment::{Memory, Segment};
use crate::owner::payload::Payload;
use crate::protocol::ids::{segment_name, ProviderId};
use crate::protocol::sweep;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many more names are tried for a segment if the first is taken.
const NAME_TRIES: usize = 16;

/// Makes a pool's segments.
pub(crate) trait SegmentFactory: Send + Sync {
    /// Creates a segment of `len` bytes.
    fn create(&self, len: usize) -> Result<Payload, OsError>;

    /// Removes what dead owners left. Returns its bytes.
    fn sweep(&self) -> u64 {
        0
    }

    /// Returns `true` if segments stay even when nothing is in them.
    fn keeps_segments(&self) -> bool {
        false
    }
}

/// Segments that a provider numbers, for peers that know them through its control object.
pub(crate) struct Numbered {
    names: Namespace,
    provider: ProviderId,
    mode: u32,
    memory: Memory,
    /// The next segment's serial number. 0 is skipped.
    next: AtomicU64,
}

impl Numbered {
    pub(crate) fn new(names: Namespace, provider: ProviderId, mode: u32, memory: Memory) -> Self {
        Self { names, provider, mode, memory, next: AtomicU64::new(1) }
    }
}

impl SegmentFactory for Numbered {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        let mut tries = 0;
        loop {
            let serial = self.next.fetch_add(1, Ordering::Relaxed);
            // Numbers start over after the last one. In the list of segments, 0 stands for none.
            if serial == 0 {
                continue;
            }
            let name = segment_name(&self.names, self.provider, serial);
            match Segment::create(name, len, self.mode, self.memory) {
                // Another file has that name. The next number is as good.
                Err(error) if error.errno() == Some(libc::EEXIST) && tries < NAME_TRIES => tries += 1,
                result => return result.map(|segment| Payload::new(segment, serial)),
            }
        }
    }

    fn sweep(&self) -> u64 {
        sweep::sweep(&self.names).map_or(0, |swept| swept.bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::posix::PAGE;

    /// Otherwise a segment gets the number that stands for none, and its peers keep it mapped for
    /// ever.
    #[test]
    fn serial_numbers_wrap_past_zero() {
        let names = Namespace::in_shm(&format!("shm_pool-unit-{}-serial", std::process::id()));
        let source = Numbered::new(names, ProviderId(8), 0o600, Memory::default());
        source.next.store(u64::MAX - 1, Ordering::Relaxed);
        let segments = [(); 4].map(|()| source.create(PAGE).unwrap());
        assert_eq!(segments.each_ref().map(Payload::serial), [u64::MAX - 1, u64::MAX, 1, 2]);
        drop(segments);
        source.next.store(u64::MAX, Ordering::Relaxed);
        let kept = [(); 2].map(|()| source.create(PAGE).unwrap());
        source.next.store(u64::MAX, Ordering::Relaxed);
        let others = [(); 2].map(|()| source.create(PAGE).map(|segment| segment.serial()));
        assert!(matches!(others, [Ok(2), Ok(3)]), "numbers that are in use are passed by: {others:?}");
        assert_eq!(kept.map(|segment| segment.serial()), [u64::MAX, 1]);
    }
}
