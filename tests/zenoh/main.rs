//! The pool as a backend of zenoh's `ShmProvider`, seen from zenoh's side: its provider, its policies, its receivers' code.

mod buffers;
mod contract;
mod footprint;
mod hostile;
mod policies;
mod support;
