//! The peer's side of the control object: opens it, checks it and holds a slot in it.

#![forbid(unsafe_code)]

use crate::os::fork;
use crate::os::futex::barrier;
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::Access;
use crate::os::name::Namespace;
use crate::os::segment::{Foreign, ObjectError};
use crate::peer::error::AttachError;
use crate::protocol::control::{peer_byte, ControlHeader, View, CLOSED, MAGIC, OPEN, OWNER_BYTE, VERSION};
use crate::protocol::ids::{control_name, PeerId, ProviderId};
use crate::protocol::record::{Record, PEERS};
use crate::protocol::sweep::sweep_after_reading;
use std::io;
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for a slot that the owner is clearing. Clearing a million records takes 0.7 s
/// the first time and 0.1 s later; the default 4096 take a thousandth of that.
const CLEARING_LIMIT: Duration = Duration::from_secs(1);

/// A connection to a provider's control object, and this peer's slot in it. On drop, releases the
/// slot, and removes a dead owner's objects if no other reader is left (see `sweep`).
pub(crate) struct PeerControl {
    view: View,
    names: Namespace,
    locks: LockFile,
    id: PeerId,
    fork_epoch: u64,
    /// The maximum number of bytes that this peer may read at a time, if there is a limit.
    quota: Option<u64>,
    /// The bytes that it currently reads, if there is a limit.
    held: AtomicU64,
}

impl PeerControl {
    /// Opens the control object of `provider`, which must belong to user `uid`, and takes a slot.
    pub(crate) fn connect(names: &Namespace, provider: ProviderId, uid: u32) -> Result<Self, AttachError> {
        barrier::enlist();
        let name = control_name(names, provider);
        let object = name.path();
        let gone = |error: ObjectError| match error {
            missing if missing.is_missing() => AttachError::NoProvider { provider, object: object.clone() },
            other => other.into(),
        };
        let foreign = Foreign::open(name, Access::ReadWrite, uid).map_err(gone)?;
        let bad = |reason| AttachError::NotAProvider { object: object.clone(), reason };
        if foreign.len < size_of::<ControlHeader>() {
            return Err(bad("it is too small for a header; its owner died while it made it, or has not finished"));
        }
        let mapping = foreign.map(Access::ReadWrite)?;
        let view = View::new(mapping, 1).ok_or_else(|| bad("it is too small for one record"))?;
        let header = view.header();
        match header.state.load(Ordering::Acquire) {
            OPEN => {}
            CLOSED => return Err(AttachError::Closed { provider }),
            _ => return Err(bad("its owner has not finished making it")),
        }
        if header.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(bad("it has another magic number"));
        }
        if header.version.load(Ordering::Relaxed) != VERSION {
            return Err(bad("it was made by another version of shm-pool; build both sides with one"));
        }
        if header.provider.load(Ordering::Relaxed) != provider.0 {
            return Err(bad("it carries another provider's id"));
        }
        let records = header.records.load(Ordering::Relaxed) as usize;
        let view = view.with_records(records).ok_or_else(|| bad("its size does not match its header"))?;
        // The object may have been removed since it was first opened.
        let locks = foreign.open_for_locks().map_err(gone)?;
        if !locks.is_locked(OWNER_BYTE) {
            return Err(AttachError::OwnerDied { provider });
        }
        let Some(slot) = free_slot(&locks).map_err(|error| control_name(names, provider).error(LOCK, 0, error))? else {
            return Err(AttachError::TooManyPeers { provider, max: PEERS });
        };
        // The slot's last peer may have died: clear its leases, then take over.
        view.vacate(slot, || used(&view));
        let epoch = view.header().epochs[slot].occupy();
        let id = PeerId { provider, slot: slot as u8, epoch };
        let quota = Some(view.header().quota.load(Ordering::Relaxed)).filter(|&quota| quota > 0);
        Ok(Self { view, names: names.clone(), locks, id, fork_epoch: fork::epoch(), quota, held: AtomicU64::new(0) })
    }

    /// Simulates a killed process: leaves everything except the lock, which the kernel releases.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn die(mut self) {
        self.locks.unlock(peer_byte(self.slot())).expect("a lock that is held");
        // Disables this value's drop, as in a forked child. The lock file records its own epoch and
        // is dropped as usual.
        self.fork_epoch = self.fork_epoch.wrapping_add(1);
    }

    /// Returns the peer's id, as the owner knows it.
    pub(crate) fn id(&self) -> PeerId {
        self.id
    }

    #[inline]
    pub(crate) fn slot(&self) -> usize {
        usize::from(self.id.slot)
    }

    /// Returns `true` if this peer still holds its slot. If the process has closed the descriptor
    /// that holds the lock, another peer may have taken the slot, and this peer must neither take
    /// nor release leases in it.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        self.view.header().epochs[self.slot()].is_of(self.id.epoch)
    }

    /// Checks that this peer may attach. Fails if it has lost its slot, or the owner refuses it.
    #[inline]
    pub(crate) fn check_slot(&self) -> Result<(), AttachError> {
        if self.view.header().epochs[self.slot()].is(self.id.epoch) {
            return Ok(());
        }
        let provider = self.id.provider;
        Err(if self.has_slot() { AttachError::Disconnected { provider } } else { AttachError::SlotLost { provider } })
    }

    /// Releases the lock, as `closefrom` would.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn lose_lock(&self) {
        self.locks.unlock(peer_byte(self.slot())).expect("a lock that is held");
    }

    /// Returns `true` unless this process is a forked child of the one that connected.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    pub(crate) fn records(&self) -> u32 {
        self.view.record_count()
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&Record> {
        self.view.record(index)
    }

    /// Charges a message of `len` bytes against the quota. Fails if the quota would be exceeded.
    #[inline]
    pub(crate) fn hold(&self, len: u64) -> Result<(), AttachError> {
        self.quota.map_or(Ok(()), |max| self.hold_within(max, len))
    }

    fn hold_within(&self, max: u64, len: u64) -> Result<(), AttachError> {
        let sum = |held: u64| held.checked_add(len).filter(|&sum| sum <= max);
        // Relaxed: a counter, which orders no other memory.
        let counted = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        counted.map(drop).map_err(|held| AttachError::OverQuota { provider: self.id.provider, len, held, max })
    }

    /// Releases a message of `len` bytes from the quota.
    #[inline]
    pub(crate) fn let_go(&self, len: u64) {
        if self.quota.is_some() {
            self.held.fetch_sub(len, Ordering::Relaxed);
        }
    }

    /// Releases one lease of this peer, of a message of `len` bytes.
    #[inline]
    pub(crate) fn release(&self, record: u32, len: u64) {
        self.let_go(len);
        if let Some(record) = self.record(record).filter(|_| self.has_slot()) {
            record.release(self.slot());
            self.ring();
        }
    }

    /// Rings the provider's memory bell: memory may have become available.
    pub(crate) fn ring(&self) {
        self.view.header().memory.ring();
    }

    /// Turns one lease of this peer back into a grant.
    pub(crate) fn put_back(&self, record: u32, len: u64) {
        self.let_go(len);
        if let Some(record) = self.record(record).filter(|_| self.has_slot()) {
            record.put_back(self.slot());
            self.take_back_if_refused(record);
            self.ring();
        }
    }

    /// Revokes a grant that this peer has just put back, if the owner refuses the peer.
    pub(crate) fn take_back_if_refused(&self, record: &Record) {
        self.view.header().epochs[self.slot()].take_back_if_refused(self.id.epoch, record, self.slot());
    }

    /// Returns `true` if the owner has destroyed the segment. A hint: mappings depend on it, access
    /// does not.
    pub(crate) fn is_retired(&self, index: u64, serial: u64) -> bool {
        self.view.segment_entry(index).map_or(true, |entry| entry.load(Ordering::Relaxed) != serial)
    }

    /// Populates the control object, so that no lease faults. Returns the index and serial number
    /// of each current segment: a hint, which other processes can write.
    pub(crate) fn warm(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.view.prefault();
        self.view.segments()
    }

    /// Returns `true` if the owner has closed its side, or died.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.check_owner().is_err()
    }

    /// Fails if the owner has closed its side, or died.
    pub(crate) fn check_owner(&self) -> Result<(), AttachError> {
        let provider = self.id.provider;
        if self.view.header().state.load(Ordering::Relaxed) != OPEN {
            return Err(AttachError::Closed { provider });
        }
        if !self.locks.is_locked(OWNER_BYTE) {
            return Err(AttachError::OwnerDied { provider });
        }
        Ok(())
    }
}

/// Returns how many records may have been used. Clamped, because other processes can write the
/// owner's number.
fn used(view: &View) -> u32 {
    // Acquire: partner of the Release in `OwnerControl`.
    view.header().high_water.load(Ordering::Acquire).min(view.record_count())
}

/// Takes the lock of the first free slot. Waits for a slot that the owner is clearing, but not
/// indefinitely: the owner may be stopped.
fn free_slot(locks: &LockFile) -> io::Result<Option<usize>> {
    let begin = Instant::now();
    loop {
        for slot in 0..PEERS {
            if locks.try_lock(peer_byte(slot))? {
                return Ok(Some(slot));
            }
        }
        let is_full = (0..PEERS).all(|slot| locks.is_locked(peer_byte(slot)));
        if is_full || begin.elapsed() > CLEARING_LIMIT {
            return Ok(None);
        }
        thread::yield_now();
    }
}

impl Drop for PeerControl {
    fn drop(&mut self) {
        // In a forked child, the slot belongs to the parent.
        if self.is_ours() && self.has_slot() {
            // The last view is dropped; any remaining grants will not be taken up.
            self.view.vacate(self.slot(), || used(&self.view));
            self.ring();
            // Unlock explicitly instead of relying on close: a child made by a raw `clone` may
            // still have a copy of the descriptor. If this fails, the slot stays taken until that
            // child exits.
            let _ = self.locks.unlock(peer_byte(self.slot()));
            // After that, so that of two peers that disconnect concurrently, at least one finds
            // itself the last.
            if matches!(self.check_owner(), Err(AttachError::OwnerDied { .. })) {
                sweep_after_reading(&self.names, self.id.provider, Duration::ZERO);
            }
        }
    }
}
