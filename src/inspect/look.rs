//! One look: from objects, locks and processes to a report.

#![forbid(unsafe_code)]

use super::object::{Facts, Found, Object, Objects};
use super::report::{ChannelReport, LeasedClass, PeerReport, ProviderReport, ReceiverReport, SegmentReport, State};
use super::{Lease, MAX_LEASES};
use crate::channel::outside::{self, Outside, Role};
use crate::channel::ChannelError;
use crate::os::locks::LockFile;
use crate::os::mapping::Mapping;
use crate::os::posix::PAGE;
use crate::os::processes::{Process, Seen};
use crate::owner::class::{class_of, size_of_class};
use crate::owner::sweep::Swept;
use crate::protocol::control::{
    control_size, peer_byte, View, CHANNEL_MAGIC, MAGIC, MAX_RECORDS, OWNER_BYTE, RECEIVER_BYTE, VERSION,
};
use crate::protocol::descriptor::MAX_LEN;
use crate::protocol::ids::{PeerId, ProviderId};
use crate::protocol::names::Object as Named;
use crate::protocol::record::PEERS;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// What one look has found so far.
pub(super) struct Look {
    pub(super) now: Instant,
    pub(super) objects: Objects,
    pub(super) seen: Seen,
    /// When the leases of the look before were first seen, and those of this one.
    pub(super) before: BTreeMap<Lease, Instant>,
    pub(super) leases: BTreeMap<Lease, Instant>,
}

/// The leases of one provider.
#[derive(Default)]
struct Leases {
    bytes: u64,
    classes: BTreeMap<usize, LeasedClass>,
    peers: BTreeMap<usize, OfPeer>,
}

/// The leases of one peer.
#[derive(Default)]
struct OfPeer {
    messages: usize,
    bytes: u64,
    views: u64,
    grants: u64,
    since: Option<Instant>,
}

impl Look {
    fn holder(&self, object: &Object, byte: usize) -> Option<Process> {
        self.seen.holder(object.inode, byte).cloned()
    }

    pub(super) fn providers(&mut self) -> Vec<ProviderReport> {
        let key = |(prefix, named, _): (&str, Named<'_>, &Found)| match named {
            Named::Control(id) | Named::Segment(id, _) => Some((prefix.to_owned(), id)),
            Named::Channel(_) | Named::Branch(..) => None,
        };
        let all: BTreeSet<_> = self.objects.iter().filter_map(key).collect();
        all.into_iter().map(|(prefix, id)| self.provider(prefix, id)).collect()
    }

    fn provider(&mut self, prefix: String, id: ProviderId) -> ProviderReport {
        let of_it = || self.objects.iter().filter(|(of, ..)| *of == prefix);
        let control = of_it().find_map(|(_, named, found)| (named == Named::Control(id)).then_some(found));
        let control = control.and_then(|found| opened(found).transpose());
        let segments: Vec<_> = of_it().filter_map(|(_, named, found)| self.segment(id, named, found)).collect();
        // A living owner removes its control object last.
        let (mut is_dead, mut state, mut owner, mut max_shared) = (control.is_none(), State::Dead, None, 0);
        let mut own = Swept::default();
        let (mut leases, mut peers) = (Leases::default(), Vec::new());
        let mut found = BTreeMap::new();
        match control {
            None => {}
            Some(Err(reason)) => state = State::Unusable(reason),
            Some(Ok((object, opened))) => {
                own = swept([object.bytes_held]);
                owner = self.holder(object, OWNER_BYTE);
                let is_locked = object.facts.is_owned;
                is_dead = !is_locked;
                match view(object, &opened, id) {
                    Ok(Some((view, records))) => {
                        state = if is_locked { State::Alive } else { State::Dead };
                        max_shared = records;
                        leases = self.leases(&view, id, &mut found);
                        peers = self.peers(object, &opened, &view, id, &leases);
                    }
                    Ok(None) => state = if is_locked { State::Unfinished } else { State::Dead },
                    Err(reason) => state = State::Unusable(reason),
                }
            }
        }
        let is_orphan = is_dead && !self.is_read(&prefix, id);
        let its = swept(segments.iter().map(|segment| segment.bytes_held));
        let orphans = if is_orphan { its + own } else { Swept::default() };
        self.leases.append(&mut found);
        let mut leased: Vec<_> = leases.classes.into_values().collect();
        leased.sort_by_key(|class| class.size);
        ProviderReport {
            bytes_held: segments.iter().map(|segment| segment.bytes_held).sum(),
            bytes_mapped: segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.len)),
            prefix,
            id,
            state,
            owner,
            segments,
            max_shared,
            bytes_leased: leases.bytes,
            leased,
            peers,
            is_orphan,
            orphans,
        }
    }

    /// Is a receiver alive that may still have to map segments of this provider?
    fn is_read(&self, prefix: &str, id: ProviderId) -> bool {
        let is_channel = |named| matches!(named, Named::Channel(_) | Named::Branch(..));
        let channels = self.objects.iter().filter(|&(of, named, _)| of == prefix && is_channel(named));
        let mut facts = channels.filter_map(|(.., found)| Some(&found.as_ref().ok()?.facts));
        facts.any(|facts| facts.provider == id.0 && facts.is_received)
    }

    fn segment(&self, id: ProviderId, named: Named<'_>, found: &Found) -> Option<SegmentReport> {
        let (Named::Segment(of, serial), Ok(object)) = (named, found) else { return None };
        let mapped_by = || self.seen.mappers(object.inode).cloned().collect();
        let report =
            || SegmentReport { serial, len: object.len as u64, bytes_held: object.bytes_held, mapped_by: mapped_by() };
        (of == id).then(report)
    }

    /// Counts who leases what.
    fn leases(&self, view: &View, id: ProviderId, found: &mut BTreeMap<Lease, Instant>) -> Leases {
        let mut all = Leases::default();
        let epochs: Vec<_> = view.header().epochs.iter().map(|epoch| epoch.peer()).collect();
        for (index, record) in (0..).zip(view.records(view.record_count())) {
            let holders = record.holders();
            if holders == 0 {
                continue;
            }
            let (generation, place) = record.look();
            // Longer than any message: damaged, or in the middle of a change.
            let len = if place.len <= MAX_LEN as u64 { place.len } else { 0 };
            all.bytes = all.bytes.saturating_add(len);
            let class = all.classes.entry(class_of(len as usize)).or_default();
            class.size = size_of_class(class_of(len as usize)) as u64;
            class.messages += 1;
            class.bytes = class.bytes.saturating_add(len);
            for slot in (0..PEERS).filter(|slot| holders >> slot & 1 != 0) {
                let peer = all.peers.entry(slot).or_default();
                let (views, grants) = record.leases(slot);
                let lease = Lease { provider: id, record: index, generation, slot, epoch: epochs[slot] };
                let since = self.before.get(&lease).copied().unwrap_or(self.now);
                if self.leases.len() + found.len() < MAX_LEASES {
                    found.insert(lease, since);
                }
                peer.messages += 1;
                peer.bytes = peer.bytes.saturating_add(len);
                peer.views += views;
                peer.grants += grants;
                peer.since = peer.since.into_iter().chain([since]).min();
            }
        }
        all
    }

    fn peers(
        &self,
        control: &Object,
        opened: &LockFile,
        view: &View,
        provider: ProviderId,
        leases: &Leases,
    ) -> Vec<PeerReport> {
        let none = OfPeer::default();
        let peer = |slot| {
            let (held, is_alive) = (leases.peers.get(&slot), opened.is_locked(peer_byte(slot)));
            let OfPeer { messages, bytes, views, grants, since } = held.unwrap_or(&none);
            let epoch = &view.header().epochs[slot];
            let id = epoch.peer().map(|epoch| PeerId { provider, slot: slot as u8, epoch });
            let report = || PeerReport {
                slot: slot as u8,
                id,
                is_refused: id.is_some_and(|id| !epoch.is(id.epoch)),
                is_alive,
                process: self.holder(control, peer_byte(slot)),
                messages: *messages,
                bytes: *bytes,
                views: *views,
                grants: *grants,
                oldest_lease: since.map(|since| self.now - since),
            };
            (is_alive || held.is_some()).then(report)
        };
        (0..PEERS).filter_map(peer).collect()
    }

    pub(super) fn channels(&self) -> Vec<ChannelReport> {
        let name = |(prefix, named, _): (&str, Named<'_>, &Found)| match named {
            Named::Channel(name) | Named::Branch(name, _) => Some((prefix.to_owned(), name.to_owned())),
            Named::Control(_) | Named::Segment(..) => None,
        };
        let all: BTreeSet<_> = self.objects.iter().filter_map(name).collect();
        all.into_iter().map(|(prefix, name)| self.channel(prefix, name)).collect()
    }

    fn channel(&self, prefix: String, name: String) -> ChannelReport {
        let of_it = || self.objects.iter().filter(|(of, ..)| *of == prefix);
        let own = of_it().find_map(|(_, named, found)| (named == Named::Channel(&name)).then_some(found));
        let mut report = ChannelReport {
            prefix: prefix.clone(),
            name: name.clone(),
            provider: None,
            state: State::Dead,
            sender: None,
            is_publisher: true,
            receivers: Vec::new(),
            is_orphan: false,
            orphans: Swept::default(),
        };
        match own.and_then(|found| opened(found).transpose()) {
            // A publisher that is gone, and receivers that are not.
            None => {}
            Some(Err(reason)) => report.state = State::Unusable(reason),
            Some(Ok((object, opened))) => self.look_at_channel(object, &opened, &mut report),
        }
        let is_its = |named| matches!(named, Named::Channel(of) | Named::Branch(of, _) if of == name);
        let its = of_it().filter(|&(_, named, _)| is_its(named)).filter_map(|(.., found)| found.as_ref().ok());
        report.orphans = swept(its.filter(|object| is_orphan(object)).map(|object| object.bytes_held));
        for (_, named, found) in of_it() {
            let Named::Branch(of, id) = named else { continue };
            let Some((object, opened)) = (of == name).then(|| opened(found).ok().flatten()).flatten() else { continue };
            // One that is not finished, or damaged, is nobody's receiver.
            if let Ok(seen) = look_at(object, &opened) {
                report.provider = report.provider.or(Some(seen.provider));
                report.receivers.push(self.receiver(Some(id), object, &seen));
            }
        }
        report
    }

    fn look_at_channel(&self, object: &Object, opened: &LockFile, report: &mut ChannelReport) {
        let is_locked = object.facts.is_owned;
        report.sender = self.holder(object, OWNER_BYTE);
        report.state = match look_at(object, opened) {
            Ok(seen) => {
                report.provider = Some(seen.provider);
                report.is_publisher = seen.role == Role::Meeting;
                if seen.role == Role::Pair {
                    report.receivers.push(self.receiver(None, object, &seen));
                }
                if is_locked {
                    State::Alive
                } else {
                    State::Dead
                }
            }
            Err(_) if is_locked && object.facts.magic == 0 => State::Unfinished,
            Err(error) => State::Unusable(error.to_string()),
        };
        report.is_orphan = is_orphan(object);
    }

    fn receiver(&self, branch: Option<u64>, object: &Object, seen: &Outside) -> ReceiverReport {
        ReceiverReport {
            branch,
            is_alive: object.facts.is_received,
            process: self.holder(object, RECEIVER_BYTE),
            on_full: seen.on_full,
            capacity: seen.capacity,
            loans: seen.loans,
            sent: seen.traffic.sent,
            waiting: seen.traffic.waiting,
            left_out: seen.traffic.left_out,
            bytes_held: object.bytes_held,
            is_orphan: is_orphan(object),
        }
    }
}

/// Opens what was found. `None` if it was removed meanwhile.
fn opened(found: &Found) -> Result<Option<(&Object, LockFile)>, String> {
    let object = found.as_ref().map_err(Clone::clone)?;
    Ok(object.open()?.map(|opened| (object, opened)))
}

fn look_at(object: &Object, opened: &LockFile) -> Result<Outside, ChannelError> {
    outside::look(opened.file(), &object.name, object.len)
}

/// Would a sweep remove a channel's object, or a branch? It goes by the locks and the first word, and
/// so does this: what is half-made, or of another version, is removed as well.
fn is_orphan(object: &Object) -> bool {
    let Facts { magic, is_owned, is_received, .. } = object.facts;
    !is_owned && !is_received && [0, CHANNEL_MAGIC].contains(&magic)
}

/// What the removal of objects with so much memory each would be.
fn swept(objects: impl IntoIterator<Item = u64>) -> Swept {
    objects.into_iter().map(|bytes| Swept { objects: 1, bytes }).fold(Swept::default(), Add::add)
}

/// A copy of a control object, with the records that may have been used, and how many there are in
/// all. `None` if it is not finished; an error if it is not what it should be.
fn view(object: &Object, opened: &LockFile, id: ProviderId) -> Result<Option<(View, usize)>, String> {
    let copy = |records| {
        let copy = Mapping::copy_of(opened.file(), &object.name, control_size(records));
        let too_small = || "it is too small".to_owned();
        View::new(copy.map_err(|error| error.to_string())?, records).ok_or_else(too_small)
    };
    if object.len < PAGE {
        return Ok(None);
    }
    let view = copy(1)?;
    let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let header = view.header();
    if word(&header.state) == 0 {
        return Ok(None);
    }
    if header.magic.load(Ordering::Relaxed) != MAGIC || header.provider.load(Ordering::Relaxed) != id.0 {
        return Err("it is no control object of this provider".to_owned());
    }
    if word(&header.version) != VERSION {
        return Err(format!("its layout has version {}, and this is version {VERSION}", word(&header.version)));
    }
    let (records, used) = (word(&header.records) as usize, word(&header.high_water) as usize);
    if !(1..=MAX_RECORDS).contains(&records) || control_size(records) > object.len {
        return Err("its size does not match its header".to_owned());
    }
    Ok(Some((copy(used.clamp(1, records))?, records)))
}
