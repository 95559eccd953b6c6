//! The options that senders and publishers have in common, and how both create their channel.

#![forbid(unsafe_code)]

use super::error::ChannelError;
use super::layout::{
    self, MessageType, DEFAULT_MAX_BORROWED, DEFAULT_SLOTS, MAX_BORROWED, MAX_SLOTS,
};
use super::object::name_process;
use super::watch::Attempts;
use crate::os::name::Name;
use crate::os::posix::is_object_mode;
use crate::owner::provider::Provider;
use std::future::poll_fn;
use std::task::{ready, Poll};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) capacity: usize,
    pub(super) max_borrowed: usize,
    pub(super) mode: u32,
    pub(super) spin: Option<Duration>,
    pub(super) message_type: Option<MessageType>,
}

impl Options {
    pub(super) fn new() -> Self {
        Self {
            capacity: DEFAULT_SLOTS,
            max_borrowed: DEFAULT_MAX_BORROWED,
            mode: 0o600,
            spin: None,
            message_type: None,
        }
    }

    /// Checks the options, before anything is made.
    pub(super) fn check(
        &self,
        min_capacity: usize,
        provider: &Provider,
    ) -> Result<(), ChannelError> {
        ChannelError::check("capacity", self.capacity, min_capacity, MAX_SLOTS)?;
        ChannelError::check("max_borrowed", self.max_borrowed, 1, MAX_BORROWED)?;
        MessageType::check(&self.message_type)?;
        if !is_object_mode(self.mode) {
            return Err(ChannelError::Mode(self.mode));
        }
        // In a forked child, a thread that does not exist there may hold a lock.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        Ok(())
    }
}

/// Makes an attempt. If it lacks descriptors or memory, makes another one without the channels of
/// the provider that are over, which may have held some.
fn attempt_twice<E>(
    provider: &Provider,
    object: &Name,
    attempt: &impl Fn(&Name) -> Result<E, ChannelError>,
) -> Result<E, ChannelError> {
    match attempt(object) {
        Err(error) if is_short(&error) && provider.pool().reclaim_any() => attempt(object),
        made => made,
    }
}

fn is_short(error: &ChannelError) -> bool {
    match error {
        ChannelError::Os(error) => error.is_out_of_descriptors() || error.is_out_of_memory(),
        _ => false,
    }
}

/// Creates the channel `name`.
pub(super) fn create<E>(
    provider: &Provider,
    name: &str,
    attempt: impl Fn(&Name) -> Result<E, ChannelError>,
) -> Result<E, ChannelError> {
    let object = layout::name(provider.names(), name)?;
    attempt_twice(provider, &object, &attempt).map_err(|error| name_process(error, &object))
}

fn is_taken(error: &ChannelError) -> bool {
    matches!(error, ChannelError::NameTaken { .. })
}

/// Makes attempts as long as another process has the name, for at most `timeout`.
pub(super) fn create_timeout<E>(
    provider: &Provider,
    name: &str,
    timeout: Duration,
    attempt: impl Fn(&Name) -> Result<E, ChannelError>,
) -> Result<E, ChannelError> {
    let object = layout::name(provider.names(), name)?;
    let made = Attempts::run(object.clone(), timeout, is_taken, || {
        attempt_twice(provider, &object, &attempt)
    });
    made.map_err(|error| name_process(error, &object))
}

/// As [`create_timeout`], in a task and without a timeout.
pub(super) async fn create_async<E>(
    provider: &Provider,
    name: &str,
    attempt: impl Fn(&Name) -> Result<E, ChannelError>,
) -> Result<E, ChannelError> {
    let object = layout::name(provider.names(), name)?;
    let mut attempts = Attempts::new(object.clone());
    let made = poll_fn(|context| {
        let wait = |attempts: &mut Attempts| attempts.poll(context);
        let attempt = || attempt_twice(provider, &object, &attempt);
        match ready!(attempts.repeat(is_taken, &mut None, attempt, wait)) {
            Ok(made) => Poll::Ready(made),
            Err(error) => Poll::Ready(Err(ChannelError::Os(error))),
        }
    });
    made.await.map_err(|error| name_process(error, &object))
}
