//! Opening a channel: a receiver joins a sender, or takes a seat of a publisher.

#![forbid(unsafe_code)]

use super::borrower::{memory_bell, Borrower, MappedSegments};
use super::error::ChannelError;
use super::layout::{self, not_a_channel, Facts, Found, Kind, EXTRA_SLOTS, MAX_LOANS, MAX_SLOTS};
use super::meeting::Meeting;
use super::object::Object;
use super::receiver::Receiver;
use super::rules::OnFull;
use super::DEFAULT_SPIN;
use crate::os::futex::Deadline;
use crate::os::name::Name;
use crate::os::posix::effective_uid;
use crate::peer::client::Client;
use crate::protocol::control::CHANNEL_MAGIC;
use crate::protocol::sweep::remove_dead;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The time that [`ReceiverBuilder::open_timeout`] sleeps between two tries. It has to poll: before
/// the object exists, the two sides share nothing that could wake it.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Options of a [`Receiver`]. Start with [`Receiver::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct ReceiverBuilder {
    spin: Duration,
    capacity: Option<usize>,
    loans: Option<usize>,
    on_full: Option<OnFull>,
}

impl Receiver {
    /// Returns a builder with the default options.
    pub fn builder() -> ReceiverBuilder {
        ReceiverBuilder { spin: DEFAULT_SPIN, capacity: None, loans: None, on_full: None }
    }

    /// Opens a channel with the default options.
    ///
    /// # Errors
    ///
    /// See [`ReceiverBuilder::open`].
    pub fn open(client: &Client, name: &str) -> Result<Self, ChannelError> {
        Self::builder().open(client, name)
    }
}

impl ReceiverBuilder {
    /// Sets the number of messages of a [`Publisher`](super::Publisher) that this receiver may be
    /// behind, from 1 to the publisher's maximum; default: that maximum. Each takes 64 bytes of
    /// /dev/shm.
    ///
    /// With [`OnFull::KeepLatest`] the number is exact: an older message is withdrawn. With the
    /// other rules one more fits, as [`SenderBuilder::capacity`](super::SenderBuilder::capacity)
    /// explains.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.capacity = Some(messages);
        self
    }

    /// Sets the number of buffers of a [`Publisher`](super::Publisher) that this receiver may hold
    /// at a time, including those not yet received: from 1 to the publisher's maximum, rounded up
    /// to a power of two; default: that maximum. Each takes 16 bytes of /dev/shm. Beyond that,
    /// messages are dropped; with [`OnFull::Wait`] the publisher waits.
    pub fn loans(mut self, loans: usize) -> Self {
        self.loans = Some(loans);
        self
    }

    /// Sets what happens when a [`Publisher`](super::Publisher) sends a message while this receiver
    /// is behind by its [`capacity`](Self::capacity); default: the publisher's rule.
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = Some(on_full);
        self
    }

    /// Sets how long [`recv`](Receiver::recv) spins for a message before it sleeps; default 20 µs.
    /// With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Opens the channel `name` of a [`Sender`](super::Sender) or a [`Publisher`](super::Publisher)
    /// whose provider has the client's directory, name prefix and user (see
    /// [`ClientBuilder`](crate::ClientBuilder)). A publisher must belong to this process's user.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::NoChannel`], [`ChannelError::Unfinished`],
    /// [`ChannelError::SenderGone`], [`ChannelError::HasReceiver`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::WrongUid`], [`ChannelError::TooMany`], [`ChannelError::Os`]; of a sender:
    /// [`ChannelError::NoPublisher`]; of a publisher: [`ChannelError::TooManyReceivers`],
    /// [`ChannelError::Capacity`], [`ChannelError::Loans`], [`ChannelError::MayNotWait`].
    pub fn open(self, client: &Client, name: &str) -> Result<Receiver, ChannelError> {
        let (names, uid) = client.trusted();
        let object = layout::name(names, name)?;
        let found = layout::open(&object, uid)?;
        let provider = found.facts.provider;
        // Done before joining, because a later failure could not be undone.
        let memory = memory_bell(names, provider, uid).map_err(not_a_channel)?;
        let (object, on_full) = match found.facts.kind {
            Kind::Pair => (self.join(found, &object)?, OnFull::Wait),
            // The publisher could not open the branch that this process creates.
            Kind::Meeting if uid != effective_uid() => {
                let (object, expected) = (object.path(), effective_uid());
                return Err(ChannelError::WrongUid { object, found: uid, expected });
            }
            Kind::Meeting => self.take_a_seat(found, &object, |branch| layout::branch_name(names, name, branch))?,
            Kind::Branch => {
                let reason = "it is one receiver's part of a channel";
                return Err(ChannelError::NotAChannel { object: object.path(), reason });
            }
        };
        let borrower = Arc::new(Borrower::new(&object, names, memory));
        let segments = MappedSegments::new(names, uid, provider, borrower);
        Ok(Receiver::new(object, segments, on_full, self.spin))
    }

    /// Joins a channel of one receiver.
    fn join(&self, found: Found, name: &Name) -> Result<Object, ChannelError> {
        if self.capacity.is_some() || self.loans.is_some() || self.on_full.is_some() {
            return Err(ChannelError::NoPublisher { object: name.path() });
        }
        Object::found(found, None).join(name)
    }

    /// Takes a seat of a publisher (see `meeting`).
    fn take_a_seat(
        &self,
        found: Found,
        name: &Name,
        branch_name: impl Fn(u64) -> Name,
    ) -> Result<(Object, OnFull), ChannelError> {
        let rules = found.facts;
        let object = || name.path();
        let (most, most_loans) = (rules.slots - EXTRA_SLOTS, rules.loans);
        let (capacity, loans) = (self.capacity.unwrap_or(most), self.loans.unwrap_or(most_loans));
        if !(1..=most.min(MAX_SLOTS)).contains(&capacity) {
            return Err(ChannelError::Capacity { capacity, min: 1, max: most });
        }
        if !(1..=most_loans.min(MAX_LOANS)).contains(&loans) {
            return Err(ChannelError::Loans { loans, min: 1, max: most_loans });
        }
        let on_full = self.on_full.unwrap_or(rules.on_full);
        if on_full == OnFull::Wait && !rules.may_wait {
            return Err(ChannelError::MayNotWait { object: object() });
        }
        let random = |error: getrandom::Error| name.error("getrandom", 0, error.into());
        let id = getrandom::u64().map_err(random)?;
        let meeting = Meeting::of_receiver(found);
        let gone = || ChannelError::SenderGone { object: object() };
        if !meeting.has_publisher() {
            return Err(gone());
        }
        let seat = meeting.take_seat(name)?;
        let seat = seat.ok_or_else(|| ChannelError::TooManyReceivers { object: object(), max: rules.seats })?;
        if let Some(former) = seat.branch() {
            // Without this, a receiver that is killed and restarted leaves a branch behind each
            // time. If the removal fails now, a sweep does it.
            let _ = remove_dead(&branch_name(former), effective_uid(), CHANNEL_MAGIC, true);
        }
        let (slots, loans) = (capacity + EXTRA_SLOTS, loans.next_power_of_two());
        let facts = Facts { kind: Kind::Branch, slots, loans, seats: 1, on_full, ..rules };
        let branch = Object::create_branch(&branch_name(id), &facts, seat.clone())?;
        // R5. A dead publisher rings for no new receiver.
        if seat.announce(id) && seat.has_publisher() {
            return Ok((branch, on_full));
        }
        // The publisher may have opened the branch already.
        branch.shared().to_sender().leave();
        Err(gone())
    }

    /// Like [`open`](Self::open), but retries every millisecond, for at most `timeout`, while there
    /// is no sender: none was started, it is still creating the channel, or it has died and has no
    /// successor yet. Also retries while all of a publisher's seats are taken.
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open).
    pub fn open_timeout(self, client: &Client, name: &str, timeout: Duration) -> Result<Receiver, ChannelError> {
        let deadline = Deadline::after(timeout);
        loop {
            match self.clone().open(client, name) {
                Err(
                    ChannelError::NoChannel { .. }
                    | ChannelError::Unfinished { .. }
                    | ChannelError::SenderGone { .. }
                    | ChannelError::TooManyReceivers { .. },
                ) if !deadline.is_some_and(Deadline::has_passed) => thread::sleep(BETWEEN_TRIES),
                result => return result,
            }
        }
    }
}
