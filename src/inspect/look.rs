//! One look: turns objects, locks and processes into a report.

#![forbid(unsafe_code)]

use super::report::{
    ChannelReport, ClassReport, DamagedReceiver, ObjectState, PeerReport, ProviderReport,
    ReceiverReport, SegmentReport,
};
use super::sources::{Facts, Object, Objects, OfProvider, Stat};
use crate::channel::outside::{self, Borrowed, Outside, Role};
use crate::channel::ChannelError;
use crate::error::Chain;
use crate::os::mapping::Mapping;
use crate::os::name::Inode;
use crate::os::posix::PAGE;
use crate::os::process::{Process, Seen};
use crate::owner::limits::{class_of, size_of_class};
use crate::protocol::control::{
    control_size, peer_byte, View, MAGIC, MAX_RECORDS, OWNER_BYTE, RECEIVER_BYTE, VERSION,
};
use crate::protocol::descriptor::MAX_LEN;
use crate::protocol::ids::{Object as Named, PeerId, ProviderId, ReceiverId};

use crate::protocol::record::PEERS;
use crate::protocol::sweep::Swept;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(super) struct Look {
    pub(super) objects: Objects,
    pub(super) seen: Seen,
    pub(super) leases: Ages<Lease>,
    pub(super) borrows: Ages<Borrow>,
    read: BTreeSet<(String, ProviderId)>,
    borrowed: BTreeMap<(String, ProviderId), Counted>,
}

#[derive(Default)]
struct Leases {
    all: Counted,
    peers: BTreeMap<usize, OfPeer>,
}

#[derive(Default)]
struct OfPeer {
    messages: usize,
    bytes: u64,
    views: u64,
    grants: u64,
    oldest: Option<Duration>,
}

impl Look {
    pub(super) fn new(
        seen: Seen,
        objects: Objects,
        leases: Since<Lease>,
        borrows: Since<Borrow>,
    ) -> Self {
        let leases = Ages::new(leases);
        let borrows = Ages::new(borrows);
        Self {
            objects,
            seen,
            leases,
            borrows,
            read: BTreeSet::new(),
            borrowed: BTreeMap::new(),
        }
    }

    /// If the lock is held and the process is visible.
    fn holder(&self, object: &Object, byte: usize, is_held: bool) -> Option<Process> {
        self.seen
            .holder(object.stat.inode, byte)
            .filter(|_| is_held)
            .cloned()
    }

    /// Call after [`channels`](Self::channels), which finds their readers and borrowed buffers.
    pub(super) fn providers(&mut self) -> Vec<ProviderReport> {
        let all = std::mem::take(&mut self.objects.providers);
        all.iter()
            .filter_map(|((prefix, id), found)| self.provider(prefix, *id, found))
            .collect()
    }

    fn provider(
        &mut self,
        prefix: &str,
        id: ProviderId,
        found: &OfProvider,
    ) -> Option<ProviderReport> {
        let control = self.objects.open(prefix, Named::Control(id));
        if found.has_control && matches!(control, Ok(None)) {
            return None;
        }
        // A living owner removes its control object last.
        let (mut is_dead, mut state, mut owner, mut max_shared) =
            (matches!(control, Ok(None)), ObjectState::Dead, None, 0);
        let mut own = Swept::default();
        let mut leases = Leases::default();
        let mut peers = Vec::new();
        match &control {
            Ok(None) => {}
            Err(reason) => state = ObjectState::Unusable(reason.clone()),
            Ok(Some(object)) => {
                own = swept([object.stat.bytes_held]);
                let were_alive: Vec<_> = (0..PEERS)
                    .map(|slot| object.is_locked(peer_byte(slot)))
                    .collect();
                let view = view(object, id);
                let is_locked = object.is_locked(OWNER_BYTE);
                owner = self.holder(object, OWNER_BYTE, is_locked);
                is_dead = !is_locked && object.is_ours(MAGIC);
                match view {
                    Ok(Some((view, records))) => {
                        state = if is_locked {
                            ObjectState::Alive
                        } else {
                            ObjectState::Dead
                        };
                        max_shared = records;
                        leases = Leases::of(&view, id, self.leases.of_one());
                        peers = self.peers(object, &view, id, &leases, &were_alive);
                    }
                    Ok(None) => {
                        state = if is_locked {
                            ObjectState::Starting
                        } else {
                            ObjectState::Dead
                        }
                    }
                    Err(reason) => state = ObjectState::Unusable(reason),
                }
            }
        }
        // After the locks: an owner removes its segments before its control object.
        let segments = found
            .segments
            .iter()
            .filter_map(|serial| self.segment(prefix, id, *serial));
        let (segments, its): (Vec<_>, Vec<_>) = segments.unzip();
        if matches!(&control, Ok(Some(object)) if !object.is_there()) {
            return None;
        }
        if segments.is_empty() && matches!(control, Ok(None)) {
            return None;
        }
        // As a sweep decides.
        let is_granted = peers.iter().any(|peer| peer.is_alive && peer.grants > 0);
        let is_read = is_granted || self.read.contains(&(prefix.to_owned(), id));
        let is_orphan = is_dead && !is_read;
        let orphans = if is_orphan {
            its.into_iter().fold(own, Add::add)
        } else {
            Swept::default()
        };
        let borrowed = self
            .borrowed
            .remove(&(prefix.to_owned(), id))
            .unwrap_or_default();
        Some(ProviderReport {
            bytes_held: segments.iter().map(|segment| segment.bytes_held).sum(),
            bytes_mapped: segments
                .iter()
                .fold(0, |sum, segment| sum.saturating_add(segment.len)),
            prefix: prefix.to_owned(),
            id,
            state,
            owner,
            segments,
            max_shared,
            bytes_leased: leases.all.bytes,
            leased: leases.all.into_classes(),
            bytes_borrowed: borrowed.bytes,
            borrowed: borrowed.into_classes(),
            peers,
            orphans,
        })
    }

    fn segment(&self, prefix: &str, id: ProviderId, serial: u64) -> Option<(SegmentReport, Swept)> {
        let Stat {
            len,
            bytes_held,
            inode,
            is_segment,
        } = self.objects.stat(prefix, Named::Segment(id, serial))?;
        let mapped_by = self.seen.mappers(inode).cloned().collect();
        let report = SegmentReport {
            serial,
            len: len as u64,
            bytes_held,
            mapped_by,
        };
        Some((report, swept(is_segment.then_some(bytes_held))))
    }

    /// `were_alive`: locks held before the leases were read, so that a peer that then disconnects
    /// does not seem dead.
    fn peers(
        &self,
        control: &Object,
        view: &View,
        provider: ProviderId,
        leases: &Leases,
        were_alive: &[bool],
    ) -> Vec<PeerReport> {
        let none = OfPeer::default();
        let peer = |slot| {
            let is_alive = were_alive[slot] || control.is_locked(peer_byte(slot));
            let held = leases.peers.get(&slot);
            let OfPeer {
                messages,
                bytes,
                views,
                grants,
                oldest,
            } = held.unwrap_or(&none);
            let epoch = &view.header().epochs[slot];
            let id = epoch.peer().map(|epoch| PeerId {
                provider,
                slot: slot as u8,
                epoch,
            });
            let report = || PeerReport {
                slot: slot as u8,
                id,
                is_refused: id.is_some_and(|id| !epoch.is(id.epoch)),
                is_alive,
                process: self.holder(control, peer_byte(slot), is_alive),
                messages: *messages,
                bytes: *bytes,
                views: *views,
                grants: *grants,
                oldest_lease: *oldest,
            };
            (is_alive || held.is_some()).then(report)
        };
        (0..PEERS).filter_map(peer).collect()
    }

    pub(super) fn channels(&mut self) -> Vec<ChannelReport> {
        let all = std::mem::take(&mut self.objects.channels);
        all.iter()
            .filter_map(|((prefix, name), connections)| self.channel(prefix, name, connections))
            .collect()
    }

    fn channel(
        &mut self,
        prefix: &str,
        name: &str,
        connections: &BTreeSet<u64>,
    ) -> Option<ChannelReport> {
        let mut report = ChannelReport {
            prefix: prefix.to_owned(),
            name: name.to_owned(),
            provider: None,
            state: ObjectState::Dead,
            sender: None,
            is_publisher: true,
            message_type: None,
            receivers: Vec::new(),
            damaged: Vec::new(),
            is_orphan: false,
            orphans: Swept::default(),
        };
        let mut is_there = match self.visit(prefix, Named::channel(name)) {
            // The publisher was dropped, but some receivers remain.
            Ok(None) => false,
            Ok(Some(visit)) => {
                self.note_own(&visit, &mut report);
                true
            }
            Err(reason) => {
                report.state = ObjectState::Unusable(reason);
                true
            }
        };
        for id in connections {
            let visit = self.visit(prefix, Named::connection(name, *id));
            is_there |= !matches!(visit, Ok(None));
            let damaged = |reason, is_orphan| DamagedReceiver {
                id: ReceiverId::from(*id),
                reason,
                is_orphan,
            };
            match visit {
                Ok(None) => {}
                Err(reason) => report.damaged.push(damaged(reason, false)),
                Ok(Some(visit)) => {
                    report.orphans = report.orphans + visit.orphans();
                    match &visit.content {
                        Ok(seen) => {
                            report.provider = report.provider.or(Some(seen.provider));
                            report
                                .receivers
                                .push(self.receiver(prefix, Some(*id), &visit, seen));
                        }
                        // Under construction, or left half-made by a killed receiver.
                        Err(_) if visit.facts.magic == 0 => {}
                        Err(error) => report
                            .damaged
                            .push(damaged(Chain(error).to_string(), visit.is_orphan())),
                    }
                }
            }
        }
        is_there.then_some(report)
    }

    fn visit(&mut self, prefix: &str, named: Named<'_>) -> Result<Option<Visit>, String> {
        let Some(object) = self.objects.open(prefix, named)? else {
            return Ok(None);
        };
        let is_finished = object.state() != 0;
        let content = outside::look(object.opened.file(), &object.name, object.len());
        let facts = object.facts();
        if !object.is_there() {
            return Ok(None);
        }
        if facts.is_received {
            self.read
                .insert((prefix.to_owned(), ProviderId(facts.provider)));
        }
        Ok(Some(Visit {
            object,
            is_finished,
            content,
            facts,
        }))
    }

    fn note_own(&mut self, visit: &Visit, report: &mut ChannelReport) {
        let is_locked = visit.facts.is_owned;
        report.sender = self.holder(&visit.object, OWNER_BYTE, is_locked);
        report.state = match &visit.content {
            Ok(_) if is_locked && !visit.is_finished => ObjectState::Starting,
            Ok(seen) => {
                report.provider = Some(seen.provider);
                report.is_publisher = seen.role == Role::Rendezvous;
                report.message_type = seen.message_type.clone();
                if seen.role == Role::Pair {
                    let receiver = self.receiver(&report.prefix, None, visit, seen);
                    report.receivers.push(receiver);
                }
                if is_locked {
                    ObjectState::Alive
                } else {
                    ObjectState::Dead
                }
            }
            Err(_) if is_locked && !visit.is_finished => ObjectState::Starting,
            Err(_) if visit.facts.magic == 0 => ObjectState::Dead,
            Err(error) => ObjectState::Unusable(Chain(error).to_string()),
        };
        report.is_orphan = visit.is_orphan();
        report.orphans = visit.orphans();
    }

    fn receiver(
        &mut self,
        prefix: &str,
        connection: Option<u64>,
        visit: &Visit,
        seen: &Outside,
    ) -> ReceiverReport {
        let is_alive = visit.facts.is_received;
        let provider = seen.provider;
        let object = visit.object.stat.inode;
        let borrowed = self
            .borrowed
            .entry((prefix.to_owned(), provider))
            .or_default();
        let mut ages = self.borrows.of_one();
        let mut bytes_borrowed = 0_u64;
        let mut oldest_borrowed = None;
        for &Borrowed { number, word, len } in &seen.traffic.borrowed {
            borrowed.add(len);
            bytes_borrowed = bytes_borrowed.saturating_add(len);
            oldest_borrowed = oldest_borrowed.max(ages.of(Borrow {
                provider,
                object,
                connection,
                number,
                word,
            }));
        }
        ReceiverReport {
            id: connection.map(ReceiverId::from),
            is_alive,
            process: self.holder(&visit.object, RECEIVER_BYTE, is_alive),
            on_full: seen.on_full,
            capacity: seen.capacity,
            max_borrowed: seen.max_borrowed,
            borrowed: seen.traffic.borrowed.len(),
            bytes_borrowed,
            oldest_borrowed,
            sent: seen.traffic.sent,
            waiting: seen.traffic.waiting,
            missed: seen.traffic.missed,
            is_connected: seen.traffic.is_connected,
            is_evicted: seen.traffic.is_evicted,
            bytes_held: visit.object.stat.bytes_held,
            is_orphan: visit.is_orphan(),
        }
    }
}

impl Leases {
    fn of(view: &View, provider: ProviderId, mut ages: AgesOfOne<'_, Lease>) -> Self {
        let mut this = Self::default();
        let epochs: Vec<_> = view
            .header()
            .epochs
            .iter()
            .map(|epoch| epoch.peer())
            .collect();
        for (index, record) in (0..).zip(view.records(view.record_count())) {
            let holders = record.holders();
            if holders == 0 {
                continue;
            }
            let (generation, place) = record.snapshot();
            // Longer than any message: damaged, or being changed.
            let len = if place.len <= MAX_LEN as u64 {
                place.len
            } else {
                0
            };
            this.all.add(len);
            for slot in (0..PEERS).filter(|slot| holders >> slot & 1 != 0) {
                let peer = this.peers.entry(slot).or_default();
                let (views, grants) = record.leases(slot);
                let lease = Lease {
                    provider,
                    record: index,
                    generation,
                    slot,
                    epoch: epochs[slot],
                };
                peer.oldest = peer.oldest.max(ages.of(lease));
                peer.messages += 1;
                peer.bytes = peer.bytes.saturating_add(len);
                peer.views += views;
                peer.grants += grants;
            }
        }
        this
    }
}

struct Visit {
    object: Object,
    is_finished: bool,
    content: Result<Outside, ChannelError>,
    facts: Facts,
}

impl Visit {
    /// Even if the object is half-made or of another version.
    fn is_orphan(&self) -> bool {
        let Facts {
            is_ours,
            is_owned,
            is_received,
            ..
        } = self.facts;
        !is_owned && !is_received && is_ours
    }

    fn orphans(&self) -> Swept {
        swept(self.is_orphan().then_some(self.object.stat.bytes_held))
    }
}

fn swept(objects: impl IntoIterator<Item = u64>) -> Swept {
    objects
        .into_iter()
        .map(|bytes| Swept { objects: 1, bytes })
        .fold(Swept::default(), Add::add)
}

/// Also returns the total number of records. `None` if the object is not finished.
fn view(object: &Object, id: ProviderId) -> Result<Option<(View, usize)>, String> {
    let copy = |records| {
        let copy = Mapping::copy_of(object.opened.file(), &object.name, control_size(records));
        let too_small = || "it is too small".to_owned();
        View::new(copy.map_err(|error| Chain(&error).to_string())?, records).ok_or_else(too_small)
    };
    if object.len() < PAGE {
        return Ok(None);
    }
    let view = copy(1)?;
    let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let header = view.header();
    if word(&header.state) == 0 {
        return Ok(None);
    }
    if header.magic.load(Ordering::Relaxed) != MAGIC
        || header.provider.load(Ordering::Relaxed) != id.0
    {
        return Err("it is no control object of this provider".to_owned());
    }
    if word(&header.version) != VERSION {
        return Err(format!(
            "its layout has version {}, and this is version {VERSION}",
            word(&header.version)
        ));
    }
    let records = word(&header.records) as usize;
    let used = word(&header.high_water) as usize;
    if !(1..=MAX_RECORDS).contains(&records) || control_size(records) > object.len() {
        return Err("its size does not match its header".to_owned());
    }
    Ok(Some((copy(used.clamp(1, records))?, records)))
}

/// Remembered from one look to the next, in all and per object: objects may be damaged.
const MAX: usize = 1 << 20;
const MAX_OF_ONE: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Counted {
    pub(super) bytes: u64,
    classes: BTreeMap<usize, ClassReport>,
}

impl Counted {
    pub(super) fn add(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_add(len);
        let class = class_of(len as usize);
        let report = self.classes.entry(class).or_default();
        report.size = size_of_class(class) as u64;
        report.messages += 1;
        report.bytes = report.bytes.saturating_add(len);
    }

    pub(super) fn into_classes(self) -> Vec<ClassReport> {
        self.classes.into_values().collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lease {
    pub(super) provider: ProviderId,
    pub(super) record: u32,
    pub(super) generation: u64,
    pub(super) slot: usize,
    pub(super) epoch: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Borrow {
    pub(super) provider: ProviderId,
    /// The object shared by receiver and sender and, for a publisher, the connection's random id.
    pub(super) object: Inode,
    pub(super) connection: Option<u64>,
    pub(super) number: u32,
    /// The message that the number refers to.
    pub(super) word: u64,
}

pub(super) type Since<T> = BTreeMap<T, Instant>;

pub(super) struct Ages<T> {
    now: Instant,
    before: Since<T>,
    seen: Since<T>,
}

pub(super) struct AgesOfOne<'a, T> {
    ages: &'a mut Ages<T>,
    left: usize,
}

impl<T: Copy + Ord> Ages<T> {
    pub(super) fn new(before: Since<T>) -> Self {
        Self {
            now: Instant::now(),
            before,
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn into_since(self) -> Since<T> {
        self.seen
    }

    pub(super) fn of_one(&mut self) -> AgesOfOne<'_, T> {
        AgesOfOne {
            left: MAX_OF_ONE.min(MAX.saturating_sub(self.seen.len())),
            ages: self,
        }
    }
}

impl<T: Copy + Ord> AgesOfOne<'_, T> {
    /// `None` if there are too many to remember.
    pub(super) fn of(&mut self, held: T) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let Ages { now, before, seen } = &mut *self.ages;
        let since = before.get(&held).copied().unwrap_or(*now);
        seen.insert(held, since);
        Some(*now - since)
    }
}
