//! The C interface of `shm-pool`. `include/shm_pool.h` is generated from the comments and signatures
//! here, and `include/shm_pool.hpp` wraps it for C++.
//!
//! Pointers to single objects are references that may be null, so that the code behind them is safe:
//! C guarantees what a reference needs (see the head of the header), and `value` refuses null.
//! Handles of the warm path are values of fixed size; all others are boxes.

// In the order of the header.
pub mod status;

pub mod value;

pub mod provider;

pub mod buf;

pub mod client;

pub mod message_type;

pub mod channel;

pub mod receiver;

pub mod watcher;

pub mod threads;

pub mod finalize;
