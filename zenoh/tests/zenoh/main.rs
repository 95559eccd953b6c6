//! The pool as a backend of zenoh's `ShmProvider`, and whole buffers on top of it, seen from zenoh's
//! side: its provider, its policies, and its receivers' code.

mod buffer_pool;
mod buffers;
mod cap;
mod child;
mod contract;
mod differences;
mod footprint;
mod full_shm;
#[path = "../../../tests/common/heap.rs"]
mod heap;
mod hostile;
mod invalidated;
mod killed;
mod lingering;
mod log;
#[path = "../../../tests/common/own_shm.rs"]
#[allow(dead_code)] // The other tests need more of it.
mod own_shm;
mod policies;
mod remote;
mod requests;
mod reserved;
mod session;
mod small_shm;
mod stream;
mod support;
mod threads;
mod users;
mod zenohs_own;
