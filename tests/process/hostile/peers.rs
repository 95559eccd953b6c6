//! Peers under attack: clients that follow the protocol while another process writes to the control
//! object. A view has the length that its descriptor states, and lies within the mapping.

use super::outside;
use shm_pool::{AttachError, Client, Descriptor, PeerId, ProviderId, ShmView};
use std::hint::black_box;

const MAX_CLIENTS: usize = 6;
const MAX_VIEWS: usize = 48;

/// Entries in the control object's table of segments.
const ENTRIES: usize = 32;

/// A view of up to this many bytes is read whole; of a longer one, only the first and last byte.
const READ: usize = 128 << 10;

pub(crate) struct Peers {
    prefix: String,
    clients: Vec<Client>,
    views: Vec<ShmView>,
}

impl Peers {
    pub(crate) fn new(prefix: &str) -> Self {
        let mut this = Self { prefix: prefix.to_owned(), clients: Vec::new(), views: Vec::new() };
        this.come();
        this
    }

    /// Adds a client.
    pub(crate) fn come(&mut self) {
        if self.clients.len() < MAX_CLIENTS {
            self.clients.push(Client::builder().name_prefix(&self.prefix).build().expect("a client"));
        }
    }

    /// Drops a client but keeps its views.
    pub(crate) fn go(&mut self, pick: u8) {
        if self.clients.len() > 1 {
            self.clients.swap_remove(usize::from(pick) % self.clients.len());
        }
    }

    /// Connects the client that was added last.
    pub(crate) fn connect_last(&self, provider: ProviderId) -> Option<PeerId> {
        self.connect(self.clients.len() as u8 - 1, provider)
    }

    pub(crate) fn connect(&self, pick: u8, provider: ProviderId) -> Option<PeerId> {
        self.client(pick).connect(provider).map_err(|error| check_error(&error)).ok()
    }

    pub(crate) fn attach(&mut self, pick: u8, descriptor: &Descriptor) {
        match self.client(pick).attach(descriptor) {
            Ok(view) => {
                assert_eq!(view.len() as u64, descriptor.payload_len());
                assert!(view.is_empty() || outside::is_mapped(&view, &self.prefix, false), "a view of other memory");
                self.keep(view);
            }
            Err(error) => check_error(&error),
        }
    }

    pub(crate) fn clone_view(&mut self, pick: u8) {
        let Some(view) = self.views.get(usize::from(pick) % self.views.len().max(1)) else { return };
        match view.try_clone() {
            Ok(clone) => {
                assert_eq!((clone.as_ptr(), clone.len()), (view.as_ptr(), view.len()));
                self.keep(clone);
            }
            Err(error) => check_error(&error),
        }
    }

    pub(crate) fn drop_view(&mut self, pick: u8) {
        if !self.views.is_empty() {
            read(&self.views.swap_remove(usize::from(pick) % self.views.len()));
        }
    }

    pub(crate) fn trim(&self, pick: u8) {
        self.client(pick).trim();
    }

    pub(crate) fn warm(&self, pick: u8, provider: ProviderId) {
        let client = self.client(pick);
        match client.warm(provider) {
            Ok(_) => assert!(client.mapped_segments() <= ENTRIES, "more than the table can name"),
            Err(error) => check_error(&error),
        }
    }

    pub(crate) fn read_all(&self) {
        self.views.iter().for_each(read);
    }

    fn keep(&mut self, view: ShmView) {
        read(&view);
        if self.views.len() < MAX_VIEWS {
            self.views.push(view);
        }
    }

    fn client(&self, pick: u8) -> &Client {
        &self.clients[usize::from(pick) % self.clients.len()]
    }
}

/// Reads the view. Its bytes do not matter: the memory may have been reused.
fn read(view: &ShmView) {
    let end = view.len().saturating_sub(1);
    let part = if view.len() <= READ { &view[..] } else { &view[..1] };
    black_box(part.iter().fold(0, |sum, byte| sum ^ byte) ^ view.get(end).copied().unwrap_or(0));
}

/// An OS error would mean that something from shared memory reached a system call unchecked.
fn check_error(error: &AttachError) {
    assert!(!matches!(error, AttachError::Os(_)), "{error}");
    black_box(error.to_string());
}
