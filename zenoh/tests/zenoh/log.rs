//! A subscriber to the log that tests write as closures.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub(crate) struct Log<E> {
    /// Returns `true` for what `event` is to be called with.
    pub(crate) wants: fn(&Metadata<'_>) -> bool,
    pub(crate) event: E,
}

impl<E: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for Log<E> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && (self.wants)(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        (self.event)(event);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
