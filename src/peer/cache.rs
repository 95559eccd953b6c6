//! A client's mappings: the control objects and the segments of its providers.

#![forbid(unsafe_code)]

use crate::os::mapping::Mapping;
use crate::peer::control::PeerControl;
use crate::protocol::ids::ProviderId;
use parking_lot::RwLock;
use std::sync::{Arc, Weak};

/// A client's connections. There are few, so lookup is a linear search.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<ProviderEntry>,
}

/// One provider and its mapped segments, indexed as in the control object's table.
pub(crate) struct ProviderEntry {
    pub(crate) remote: Arc<Remote>,
    segments: Vec<Option<Arc<Cached>>>,
}

pub(crate) struct Remote {
    pub(crate) control: PeerControl,
    table: Weak<RwLock<Table>>,
}

/// A mapped segment. Keeps the connection alive, through which views release their leases.
pub(crate) struct Cached {
    mapping: Mapping,
    serial: u64,
    index: u64,
    remote: Arc<Remote>,
}

impl Remote {
    pub(crate) fn new(control: PeerControl, table: &Arc<RwLock<Table>>) -> Self {
        Self { control, table: Arc::downgrade(table) }
    }
}

impl ProviderEntry {
    pub(crate) fn new(remote: Arc<Remote>) -> Self {
        Self { remote, segments: Vec::new() }
    }

    #[inline]
    pub(crate) fn provider(&self) -> ProviderId {
        self.remote.control.id().provider
    }

    /// Returns the mapping of the segment with this index and serial number.
    #[inline]
    pub(crate) fn segment(&self, index: u64, serial: u64) -> Option<&Arc<Cached>> {
        let known = self.segments.get(index as usize)?.as_ref();
        known.filter(|cached| cached.serial == serial)
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.segments.iter().flatten().count()
    }

    fn take_retired(&mut self) -> Vec<Arc<Cached>> {
        let is_retired =
            |segment: &&mut Option<Arc<Cached>>| segment.as_ref().is_some_and(|cached| cached.is_retired());
        self.segments.iter_mut().filter(is_retired).filter_map(Option::take).collect()
    }
}

impl Table {
    #[inline]
    pub(crate) fn find(&self, provider: ProviderId) -> Option<&ProviderEntry> {
        self.entries.iter().find(|entry| entry.provider() == provider)
    }

    fn entry_of(&mut self, remote: &Arc<Remote>) -> Option<&mut ProviderEntry> {
        self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.remote, remote))
    }

    /// Adds a segment, unless another thread has already done so. Returns the mapping to use, and
    /// the segments that their owner has destroyed since; the caller drops those after it unlocks
    /// the table, because unmapping is a system call.
    pub(crate) fn enter(&mut self, cached: Arc<Cached>) -> (Arc<Cached>, Vec<Arc<Cached>>) {
        let Some(entry) = self.entry_of(&cached.remote) else { return (cached, Vec::new()) };
        let retired = entry.take_retired();
        let at = cached.index as usize;
        if entry.segments.len() <= at {
            entry.segments.resize_with(at + 1, || None);
        }
        match &mut entry.segments[at] {
            Some(known) if known.serial == cached.serial => (known.clone(), retired),
            vacant => {
                *vacant = Some(cached.clone());
                (cached, retired)
            }
        }
    }

    pub(crate) fn take_retired(&mut self) -> Vec<Arc<Cached>> {
        self.entries.iter_mut().flat_map(ProviderEntry::take_retired).collect()
    }

    /// Removes these connections and returns their entries.
    pub(crate) fn take(&mut self, remotes: &[Arc<Remote>]) -> Vec<ProviderEntry> {
        let is_wanted = |entry: &ProviderEntry| remotes.iter().any(|remote| Arc::ptr_eq(remote, &entry.remote));
        let (taken, kept) = std::mem::take(&mut self.entries).into_iter().partition(is_wanted);
        self.entries = kept;
        taken
    }
}

impl Cached {
    /// Creates an entry for the segment that the control object's table has, or had, at this index.
    pub(crate) fn new(mapping: Mapping, index: u64, serial: u64, remote: Arc<Remote>) -> Self {
        Self { mapping, serial, index, remote }
    }

    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    pub(crate) fn control(&self) -> &PeerControl {
        &self.remote.control
    }

    #[inline]
    pub(crate) fn is_retired(&self) -> bool {
        self.remote.control.is_retired(self.index, self.serial)
    }

    /// Removes this segment from the table, if it is still there. The caller's view holds another
    /// reference.
    #[cold]
    pub(crate) fn leave_table(&self) {
        let Some(table) = self.remote.table.upgrade() else { return };
        let mut table = table.write();
        let segments = table.entry_of(&self.remote).map(|entry| &mut entry.segments);
        let known = segments.and_then(|segments| segments.get_mut(self.index as usize));
        if let Some(known) = known {
            if known.as_ref().is_some_and(|cached| cached.serial == self.serial) {
                *known = None;
            }
        }
    }
}
