//! Counts the messages that zenoh drops on reception because their buffer is invalidated. zenoh does
//! that when a process gets no CPU for a tenth of a second, and reports it only as an event at debug
//! level.

use crate::log::Log;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of messages that this process has lost that way since [`watch`]. A lost message counts
/// before a later one of the same publisher is received.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// Starts to count. Call it before the first session opens.
pub(crate) fn watch() {
    let watch = Log {
        wants: |metadata| {
            *metadata.level() == Level::DEBUG && metadata.target().starts_with("zenoh_transport")
        },
        event: |event: &Event<'_>| event.record(&mut Watch),
    };
    tracing::subscriber::set_global_default(watch).unwrap();
}

struct Watch;

impl Visit for Watch {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" && format!("{value:?}").contains("Buffer is invalidated") {
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
    }
}
