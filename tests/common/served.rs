//! A publisher whose receivers are up to date.

use shm_pool::channel::{Payload, Publisher};

pub(crate) trait Served {
    /// Connects all receivers that have joined, and drops those that have closed or died.
    fn served(&mut self) -> &Self;
}

impl<T: Payload + ?Sized> Served for Publisher<T> {
    fn served(&mut self) -> &Self {
        while self.serve_joins() {}
        self
    }
}
