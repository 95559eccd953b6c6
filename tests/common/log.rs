//! The events of a thread. All threads share one subscriber: with concurrent ones, each may
//! miss events of the others' threads.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::mem;
use std::rc::Rc;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Hook = Rc<dyn Fn(String)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Calls `hook` with each event of this thread, as its level, message and fields, until the result
/// is dropped.
pub(crate) fn hook(hook: impl Fn(String) + 'static) -> Hooked {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing::subscriber::set_global_default(Hooks).unwrap());
    HOOK.set(Some(Rc::new(hook)));
    Hooked
}

/// Ends a [`hook`] on drop.
pub(crate) struct Hooked;

impl Drop for Hooked {
    fn drop(&mut self) {
        HOOK.set(None);
    }
}

/// Keeps the events of this thread.
pub(crate) struct Log(
    Rc<RefCell<Vec<String>>>,
    #[allow(dead_code)] // kept for its drop
    Hooked,
);

impl Log {
    pub(crate) fn start() -> Self {
        let events = Rc::<RefCell<Vec<_>>>::default();
        let hooked = hook({
            let events = events.clone();
            move |event| events.borrow_mut().push(event)
        });
        Self(events, hooked)
    }

    /// Returns the events since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        mem::take(&mut *self.0.borrow_mut())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

struct Hooks;

impl Subscriber for Hooks {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "shm_pool"
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(hook) = HOOK.with_borrow(Clone::clone) {
            let mut text = Text(event.metadata().level().to_string());
            event.record(&mut text);
            hook(text.0);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
