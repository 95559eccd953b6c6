//! The pool as a backend of zenoh's `ShmProvider`, seen from zenoh's side: its provider, its policies, its receivers' code.

mod buffers;
mod child;
mod contract;
mod footprint;
mod hostile;
mod killed;
mod policies;
mod session;
mod support;
