//! Counts the messages that zenoh drops on reception because their buffer is invalidated. zenoh does
//! that when a process gets no CPU for a tenth of a second, and reports it only as an event at debug
//! level.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of messages that this process has lost that way since [`watch`]. A lost message counts
/// before a later one of the same publisher is received.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// Starts to count. Call it before the first session opens.
pub(crate) fn watch() {
    tracing::subscriber::set_global_default(Watch).unwrap();
}

struct Watch;

impl Visit for Watch {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" && format!("{value:?}").contains("Buffer is invalidated") {
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Subscriber for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::DEBUG && metadata.target().starts_with("zenoh_transport")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Watch);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
