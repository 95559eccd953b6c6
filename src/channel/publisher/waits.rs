//! The waits of a task for a publisher's receivers.

#![forbid(unsafe_code)]

use super::{Publisher, PublishingEnd};
use crate::channel::doorbell::LivenessCheck;
use crate::channel::error::{SendError, SendErrorKind};
use crate::channel::parker::{Awaited, AwaitedWord};
use crate::channel::Payload;
use crate::error::OutOfRange;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// A publisher whose task waits for receivers.
struct Awaiting<'a>(&'a mut PublishingEnd);

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.disarm_joins();
    }
}

impl<T: Payload + ?Sized> Publisher<T> {
    /// Like [`wait_for_receivers`](Self::wait_for_receivers), without a timeout and without
    /// blocking the thread, with any executor.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooManyReceivers`], at once, if `count` exceeds the number of
    /// registrations; [`SendErrorKind::NoHelper`], [`SendErrorKind::Forked`].
    pub async fn wait_for_receivers_async(&mut self, count: usize) -> Result<(), SendError> {
        self.end.check_count(count)?;
        let awaiting = Awaiting(&mut self.end);
        let publisher = &mut *awaiting.0;
        Ok(poll_fn(|context| publisher.poll_connected(context, count)).await?)
    }

    /// Like [`wait_until_received`](Self::wait_until_received), without a timeout and without
    /// blocking the thread, with any executor.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], [`SendErrorKind::Forked`].
    pub async fn wait_until_received_async(&mut self) -> Result<(), SendError> {
        self.end.check_fork()?;
        self.end.fan_out.wake.renew(); // F4 of `fan_out`
        self.end.update_connections();
        for recipient in &mut self.end.fan_out.recipients {
            match recipient.connection.wait_until_received_async().await {
                Err(SendErrorKind::Disconnected) => {}
                done => done?,
            }
        }
        Ok(())
    }
}

impl PublishingEnd {
    /// Checks whether so many receivers can be waited for.
    pub(super) fn check_count(&self, count: usize) -> Result<(), SendErrorKind> {
        OutOfRange::check("max_subscribers", count, 0, self.rules.max_subscribers)
            .map_err(SendErrorKind::TooManyReceivers)?;
        self.check_fork()
    }

    fn poll_connected(
        &mut self,
        context: &mut Context<'_>,
        count: usize,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.check_fork()?;
        // Twice, so that receivers that join and leave all the time do not block the thread.
        for _ in 0..2 {
            let known = self.rendezvous.header().arrivals();
            self.update_connections();
            if self.fan_out.recipients.len() >= count {
                self.disarm_joins();
                return Poll::Ready(Ok(()));
            }
            if self.poll_arrivals(context, known)?.is_pending() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Returns ready if more than the first `known` receivers have joined, and otherwise registers
    /// the task. It is also woken once a second, to connect one that could not be.
    fn poll_arrivals(
        &mut self,
        context: &mut Context<'_>,
        known: u32,
    ) -> Poll<Result<(), SendErrorKind>> {
        let joins = match self.joins.take() {
            Some(joins) => joins,
            None => self.await_joins()?,
        };
        let joins = self.joins.insert(joins);
        joins.register_for_arrivals(context.waker(), known);
        if self.rendezvous.header().arrivals() == known {
            return Poll::Pending;
        }
        joins.deregister();
        Poll::Ready(Ok(()))
    }

    fn await_joins(&self) -> Result<Awaited, SendErrorKind> {
        let Some(arrivals) = self
            .rendezvous
            .map_arrivals()
            .map_err(SendErrorKind::NoHelper)?
        else {
            // Never: the publisher has created the object.
            return Err(SendErrorKind::Disconnected);
        };
        Awaited::new(AwaitedWord::of_arrivals(arrivals), LivenessCheck::new())
            .map_err(SendErrorKind::NoHelper)
    }

    fn disarm_joins(&mut self) {
        if let Some(joins) = &mut self.joins {
            joins.deregister();
        }
    }
}
