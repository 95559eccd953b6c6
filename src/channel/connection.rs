//! The sender's side of one receiver: the ring that it fills, and its borrowed buffers.

#![forbid(unsafe_code)]

use super::account_holder::AccountHolder;
use super::backlog::Backlog;
use super::borrowed::{open_account, Account, Known};
use super::doorbell::{LivenessCheck, WakeReason};
use super::error::{SendError, SendErrorKind};
use super::interrupt::Interrupts;
use super::layout::{Facts, Shared};
use super::ledger::Ledger;
use super::message::{self, Located, Missed};
use super::object::Object;
use super::parker::Parker;
use super::ring::{self, OnFull, Ticket, Words};
use crate::error::OsError;
use crate::os::futex::{barrier, Deadline};
use crate::os::name::Name;
use crate::owner::buf::ShmBytes;
use crate::owner::chunk::Chunk;
use std::future::{poll_fn, Future};
use std::io;
use std::mem::size_of;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) struct Connection {
    pub(super) object: Object,
    pub(super) parker: Box<Parker>,
    pub(super) account: AccountHolder,
    ticket: Ticket,
    has_room: bool,
    /// The number of the buffer lent last.
    last_lent: Option<u32>,
    backlog: Backlog,
    pub(super) on_full: OnFull,
}

/// The sender's private memory for a receiver. It is allocated before the object is, which may be
/// opened at once.
pub(super) struct Tables {
    account: (Account<Chunk>, Known),
    backlog: Backlog,
}

impl Tables {
    /// `name` and `facts` are of the object.
    pub(super) fn new(name: &Name, facts: &Facts) -> Result<Self, OsError> {
        let of_borrowed = facts.max_borrowed * (size_of::<usize>() + 2 * size_of::<u32>());
        let bytes = of_borrowed + facts.slots * size_of::<usize>();
        Self::allocate(facts)
            .ok_or_else(|| name.error("malloc", bytes, io::Error::from_raw_os_error(libc::ENOMEM)))
    }

    fn allocate(facts: &Facts) -> Option<Self> {
        let account = open_account(facts.max_borrowed)?;
        let backlog = if facts.on_full == OnFull::DropOldest {
            Backlog::new(facts.slots)?
        } else {
            Backlog::none()
        };
        Some(Self { account, backlog })
    }
}

/// How long a send may wait.
#[derive(Clone, Copy)]
pub(super) enum Timeout {
    None,
    /// Begins when the send has to wait.
    After(Duration),
    Until(Option<Deadline>),
}

impl Timeout {
    pub(super) const UNLIMITED: Self = Self::Until(None);

    pub(super) fn allows_waiting(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The time begins now, if it has not begun before.
    pub(super) fn begin(&mut self) {
        if let Self::After(time) = *self {
            *self = Self::Until(Deadline::after(time));
        }
    }
}

/// What must be free before a message can be sent.
#[derive(Clone, Copy)]
struct Need {
    ticket: Ticket,
    /// Of the buffer's chunk; 0 for a message in the slot itself.
    bytes: usize,
}

impl Need {
    /// Looks for a free slot and, for a buffer, collects what the receiver has returned until it
    /// may borrow another: that takes the ledger's lock and releases chunks.
    fn look(&self, object: &Object, account: &AccountHolder) -> bool {
        if !ring::has_room(object.shared().slots(), self.ticket) {
            return false;
        }
        if account.has_at_hand(self.bytes) {
            return true;
        }
        see_returns(object);
        account.allows(self.bytes)
    }
}

/// S2 of `doorbell`, for a sender that sleeps until the receiver returns a buffer. Partner: the
/// light barrier in `ReturnQueue::give_back`.
fn see_returns(object: &Object) {
    if object.shared().to_sender().is_slept_on() {
        barrier::heavy();
    }
}

impl Connection {
    /// Opens an account in the channel's ledger. The receiver may hold `max_bytes`.
    pub(super) fn new(
        object: Object,
        tables: Tables,
        on_full: OnFull,
        max_bytes: usize,
        interrupts: Arc<Interrupts>,
        ledger: &Arc<Ledger>,
    ) -> Self {
        let parker = Box::new(Parker::new(
            object.shared(),
            Shared::to_sender,
            interrupts,
            LivenessCheck::new(),
        ));
        let account = ledger.open(&object, tables.account, max_bytes);
        Self {
            object,
            parker,
            account,
            ticket: Ticket::default(),
            has_room: true,
            last_lent: None,
            backlog: tables.backlog,
            on_full,
        }
    }

    #[inline]
    pub(super) fn is_disconnected(&self) -> bool {
        let shared = self.object.shared();
        // For its side effect, in case the doorbell is damaged later.
        shared.has_had_receiver();
        shared.to_sender().is_disconnected()
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.has_room
    }

    /// Returns `true` if the last look found room, and there are borrowed numbers for a chunk of
    /// `bytes`. Reads private memory alone.
    #[inline]
    pub(super) fn has_room_at_hand(&self, bytes: usize) -> bool {
        self.has_room && self.account.has_at_hand(bytes)
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        ring::has_room(self.object.shared().slots(), self.ticket)
    }

    /// Withdraws the message in the next slot. Returns `false` if the receiver has taken it.
    #[cold]
    fn withdraw(&self) -> bool {
        let mut oldest = ring::oldest(self.object.shared().slots(), self.ticket);
        self.drop_withdrawn(ring::claim(self.object.shared().slots(), &mut oldest))
    }

    /// Returns `true` if there would be room for a chunk of `bytes` without the buffers that wait:
    /// if the bytes are the limit, withdrawing all of them may not be enough.
    #[cold]
    pub(super) fn can_make_room(&mut self, bytes: usize) -> bool {
        let limit = self.account.limit();
        let (free, out) = self.account.known();
        if out.saturating_add(bytes) <= limit.bytes {
            return true;
        }
        let slots = self.object.shared().slots();
        let (buffers, total) = self.backlog.count(slots, self.ticket);
        let free = limit.max_borrowed.min(free + buffers);
        limit.allows(bytes, free, out.saturating_sub(total))
    }

    /// Returns how many messages of these sizes in bytes fit, from the first one on.
    #[cold]
    pub(super) fn fitting(&self, sizes: impl Iterator<Item = usize>) -> usize {
        let limit = self.account.limit();
        let (mut free, mut out) = self.account.known();
        let mut count = 0;
        for bytes in sizes {
            if !limit.allows(bytes, free, out) {
                break;
            }
            if bytes > 0 {
                free = free.saturating_sub(1);
                out = out.saturating_add(bytes);
            }
            count += 1;
        }
        count
    }

    /// Withdraws the oldest unreceived buffer, so that the receiver may borrow another.
    #[cold]
    pub(super) fn withdraw_buffer(&mut self) -> bool {
        let slots = self.object.shared().slots();
        let withdrawn = self.backlog.withdraw(slots, self.ticket);
        self.drop_withdrawn(withdrawn)
    }

    fn drop_withdrawn(&self, words: Option<Words>) -> bool {
        // `take_back` checks the number, which may have been damaged in its slot.
        let Some(words) = words else {
            return false;
        };
        if let Some(number) = message::borrowed_number(&words) {
            drop(self.account.take_back(number));
        }
        true
    }

    pub(super) fn waiting(&self) -> usize {
        ring::waiting(self.object.shared().slots())
    }

    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.ticket.number()
    }

    pub(super) fn wait(
        &mut self,
        budget: Option<Duration>,
        deadline: Option<Deadline>,
        is_ready: impl Fn(&Object, &AccountHolder) -> bool,
    ) -> Result<(), SendErrorKind> {
        let Self {
            object,
            parker,
            account,
            ..
        } = self;
        match parker.wait(
            budget,
            deadline,
            || is_ready(object, account),
            || object.may_have_receiver(),
        ) {
            WakeReason::Ready => Ok(()),
            WakeReason::Interrupted => Err(SendErrorKind::Interrupted),
            WakeReason::TimedOut => Err(SendErrorKind::TimedOut),
            WakeReason::Disconnected => Err(SendErrorKind::Disconnected),
        }
    }

    /// Reserves the next slot and, for a buffer of `bytes` (else 0), the right to lend one.
    /// Spins for `budget` before it sleeps.
    pub(super) fn reserve(
        &mut self,
        bytes: usize,
        budget: Option<Duration>,
        timeout: Timeout,
    ) -> Result<(), SendErrorKind> {
        if self.has_room && self.may_borrow(bytes) {
            return Ok(());
        }
        self.wait_for_room(bytes, budget, timeout)
    }

    #[inline(never)]
    fn wait_for_room(
        &mut self,
        bytes: usize,
        budget: Option<Duration>,
        mut timeout: Timeout,
    ) -> Result<(), SendErrorKind> {
        timeout.begin();
        if let Timeout::Until(deadline) = timeout {
            let need = self.need(bytes);
            self.wait(budget, deadline, |object, account| {
                need.look(object, account)
            })?;
        } else if !self.has_room() {
            return Err(SendErrorKind::Full {
                capacity: self.object.shared().capacity(),
            });
        }
        // Only the sender fills slots and takes borrowed buffers: both remain available.
        if !self.may_borrow(bytes) {
            let limit = self.account.limit();
            return Err(SendErrorKind::TooManyBorrowed {
                max: limit.max_borrowed,
                max_bytes: Some(limit.bytes).filter(|&bytes| bytes < usize::MAX),
            });
        }
        Ok(())
    }

    fn need(&self, bytes: usize) -> Need {
        Need {
            ticket: self.ticket,
            bytes,
        }
    }

    /// Looks for room without waiting, as a wait does: see [`Need::look`].
    pub(super) fn look_for(&self, bytes: usize) -> bool {
        self.need(bytes).look(&self.object, &self.account)
    }

    pub(super) fn arm(
        &mut self,
        waker: &Waker,
        bytes: usize,
    ) -> Result<Option<WakeReason>, SendErrorKind> {
        let need = self.need(bytes);
        self.arm_until(waker, |object, account| need.look(object, account))
    }

    /// Registers `waker` for when `is_ready`; see [`Parker::arm`].
    fn arm_until(
        &mut self,
        waker: &Waker,
        is_ready: impl Fn(&Object, &AccountHolder) -> bool,
    ) -> Result<Option<WakeReason>, SendErrorKind> {
        let Self {
            object,
            parker,
            account,
            ..
        } = self;
        let armed = parker.arm(
            waker,
            || is_ready(object, account),
            || object.may_have_receiver(),
        );
        armed.map_err(SendErrorKind::NoHelper)
    }

    /// As [`wait`](Self::wait), in a task.
    pub(super) async fn wait_async(
        &mut self,
        is_ready: impl Fn(&Object, &AccountHolder) -> bool,
    ) -> Result<(), SendErrorKind> {
        let armed = Armed(self);
        let connection = &mut *armed.0;
        poll_fn(|context| {
            // In a forked child, the doorbell's waiter is the parent's.
            if !connection.object.is_ours() {
                return Poll::Ready(Err(SendErrorKind::Forked));
            }
            match connection.arm_until(context.waker(), &is_ready)? {
                None => Poll::Pending,
                Some(WakeReason::Disconnected) => Poll::Ready(Err(SendErrorKind::Disconnected)),
                Some(_) => Poll::Ready(Ok(())),
            }
        })
        .await
    }

    pub(super) async fn wait_until_received_async(&mut self) -> Result<(), SendErrorKind> {
        let Some(sent) = self.sent() else {
            return Ok(());
        };
        self.wait_async(|object, _| ring::is_done(object.shared().slots(), sent))
            .await
    }

    pub(super) fn wait_until_received(
        &mut self,
        deadline: Option<Deadline>,
    ) -> Result<(), SendErrorKind> {
        let Some(sent) = self.sent() else {
            return Ok(());
        };
        self.wait(Some(Duration::ZERO), deadline, |object, _| {
            ring::is_done(object.shared().slots(), sent)
        })
    }

    /// Returns `true` if the receiver may get a chunk of `bytes`. Collects returned buffers if
    /// necessary.
    #[inline]
    pub(super) fn may_borrow(&mut self, bytes: usize) -> bool {
        if self.account.has_at_hand(bytes) {
            return true;
        }
        self.account.fetch();
        self.account.has_at_hand(bytes)
    }

    /// [Fills](Self::fill) the free slot with the buffer that lies there, in a chunk of `bytes`.
    /// Returns its number, or the buffer if the receiver may [borrow](Self::may_borrow) no more.
    #[inline(always)]
    pub(super) fn lend(
        &mut self,
        located: &Located,
        bytes: usize,
        buffer: ShmBytes,
        skipped: u32,
    ) -> Result<u32, ShmBytes> {
        let ticket = self.count();
        // No read-modify-write until the message is in its slot (see `borrowed`).
        let number = self.account.lend(ticket, bytes, buffer)?;
        self.last_lent = Some(number);
        let words = message::of_buffer(ticket, number, located, skipped);
        self.put(&words, bytes);
        Ok(number)
    }

    /// Fills the free slot with a message that is no buffer. The caller then calls
    /// [`notify`](Self::notify).
    #[inline]
    pub(super) fn fill(&mut self, words: &Words) {
        self.put(words, 0);
    }

    #[inline(always)]
    fn put(&mut self, words: &Words, bytes: usize) {
        let slots = self.object.shared().slots();
        self.backlog.push(slots, self.ticket, bytes);
        ring::put(slots, &mut self.ticket, words);
        // Before the fence, which waits for the line of this slot: that of the next one, which the
        // receiver has freed, arrives meanwhile.
        self.note_room();
    }

    #[inline]
    pub(super) fn notify(&self) {
        self.object.shared().to_receiver().notify();
    }

    #[inline]
    pub(super) fn notify_after_fence(&self) {
        self.object.shared().to_receiver().notify_after_fence();
    }

    #[inline]
    fn note_room(&mut self) {
        self.has_room = self.has_room();
    }

    /// Step 4 of a send for this receiver. Returns `true` if a message was withdrawn.
    #[inline]
    pub(super) fn make_room_ahead(&mut self) -> bool {
        if self.has_room || self.on_full != OnFull::DropOldest {
            return false;
        }
        let is_withdrawn = self.withdraw();
        self.note_room();
        is_withdrawn
    }

    /// If the receiver closed or died before it took the message just sent, claims that message.
    /// Returns `true` if it did.
    #[inline]
    pub(super) fn claim_unread(&self) -> bool {
        // The full fence before a notification pairs with the one in `Receiver::drop`: a closing
        // receiver takes this message, or is seen to be closed. A dying process's doorbell may be
        // notified before its last thread stops, so its lock must be free too.
        self.is_disconnected() && !self.object.is_receiver_locked() && self.claim_sent().is_some()
    }

    fn sent(&self) -> Option<Ticket> {
        self.ticket.previous(self.object.shared().slots())
    }

    fn claim_sent(&self) -> Option<Words> {
        ring::claim(self.object.shared().slots(), &mut self.sent()?)
    }

    /// Takes back the buffer lent last, of length `len`, whose message was
    /// [claimed](Self::claim_unread). Returns `None` if a hostile receiver returned it, or another
    /// thread reclaimed it: then it counts as sent, and the next one fails.
    ///
    /// The number is the sender's own: the one in the slot may be that of another buffer.
    pub(super) fn take_back(&self, len: usize) -> Option<ShmBytes> {
        let buffer = self.account.take_back(self.last_lent?)?;
        Some(buffer.with_len(len))
    }

    pub(super) fn reclaim(&self) {
        self.account.settle();
    }

    /// As [`What::refused_version`](super::layout::What::refused_version).
    pub(super) fn refused_version(&self) -> Option<u32> {
        self.object.shared().header().what.0.refused_version()
    }

    pub(super) fn borrowed(&self) -> usize {
        self.account.borrowed()
    }

    /// Disconnects a receiver, which may be stopped (E1 to E3 of `publisher`). Returns how many
    /// messages were withdrawn.
    pub(super) fn evict(&self) -> u64 {
        self.object.evict();
        self.account.close();
        let slots = self.object.shared().slots();
        let mut next = ring::oldest(slots, self.ticket);
        let mut withdrawn = 0;
        while self.drop_withdrawn(ring::withdraw(slots, &mut next, self.ticket)) {
            withdrawn += 1;
        }
        withdrawn
    }

    pub(super) fn note_missed(&self, missed: &Missed) {
        self.object.shared().missed().store(missed);
    }

    /// Closes the connection: the receiver gets `Disconnected` after the last message.
    pub(super) fn close(&self) {
        self.object.close();
        self.account.close();
    }

    /// [`close`](Self::close) for a sender, which created the object. While a buffer is borrowed,
    /// the object stays, by another name, so that sweeps can see that the receiver is still
    /// reading.
    pub(super) fn close_pair(&mut self) {
        self.close();
        self.reclaim();
        if self.borrowed() == 0 {
            return;
        }
        if let Some(link) = self.object.leave_to_receiver() {
            self.account.hold_link(link);
        }
    }
}

/// A connection that a task waits for.
struct Armed<'a>(&'a mut Connection);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.0.parker.disarm();
    }
}

pub(super) type WaitedFor<'a> = (&'a mut Connection, Option<Deadline>);

/// Sends `message` with `try_send`, awaiting `waited_for` between two tries.
pub(super) async fn send<S, M, T>(
    sends: &mut S,
    mut message: M,
    bytes: usize,
    try_send: impl Fn(&mut S, M) -> Result<T, SendError<M>>,
    waited_for: fn(&mut S, usize) -> Option<WaitedFor<'_>>,
) -> Result<T, SendError<M>> {
    use SendErrorKind::{Full, TooManyBorrowed};
    loop {
        message = match try_send(sends, message) {
            Err(SendError {
                kind: Full { .. } | TooManyBorrowed { .. },
                message,
            }) => message,
            done => return done,
        };
        let Some((connection, end)) = waited_for(sends, bytes) else {
            // There is room now. A receiver that pretends so time and again must not keep the
            // thread.
            yield_now().await;
            continue;
        };
        if let Err(kind) = (RoomFuture {
            connection,
            bytes,
            end,
            has_yielded: false,
        })
        .await
        {
            return Err(SendError { kind, message });
        }
    }
}

/// Returns to the executor once, which polls the task again.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits until a connection may have room, its receiver closes or dies, or up to a second after the
/// deadline.
struct RoomFuture<'a> {
    connection: &'a mut Connection,
    bytes: usize,
    end: Option<Deadline>,
    /// It yields once, so that a receiver that pretends to have room does not block the thread.
    has_yielded: bool,
}

impl Future for RoomFuture<'_> {
    type Output = Result<(), SendErrorKind>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            connection,
            bytes,
            end,
            has_yielded,
        } = &mut *self;
        let is_first = !std::mem::replace(has_yielded, true);
        match connection.arm(context.waker(), *bytes) {
            Ok(Some(_)) if is_first => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Ok(None) if Deadline::is_past(*end) => Poll::Ready(Ok(())),
            Ok(None) => Poll::Pending,
            // The next try discovers a closed receiver.
            Ok(Some(_)) => Poll::Ready(Ok(())),
            Err(kind) => Poll::Ready(Err(kind)),
        }
    }
}

impl Drop for RoomFuture<'_> {
    fn drop(&mut self) {
        self.connection.parker.disarm();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::interrupt::ThreadWaker;
    use std::pin::pin;

    /// As of a receiver that fills the ring and empties it by turns: never is there room when a
    /// message is sent, and never when it is waited for.
    #[test]
    fn a_receiver_that_pretends_to_have_room_keeps_no_thread() {
        let try_send = |_: &mut (), ()| {
            let kind = SendErrorKind::Full { capacity: 2 };
            Err::<(), _>(SendError { kind, message: () })
        };
        let mut sends = ();
        let mut send = pin!(send(&mut sends, (), 0, try_send, |(), _| None));
        let waker = Waker::from(ThreadWaker::new());
        let mut context = Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(send.as_mut().poll(&mut context).is_pending());
        }
    }
}
