//! The C interface of `shm-pool`. `include/shm_pool.h` is generated from the comments and signatures
//! here, and `include/shm_pool.hpp` wraps it for C++.
//!
//! Pointers to single objects are references that may be null, so that the code behind them is safe:
//! C guarantees what a reference needs (see the head of the header), and `status` refuses null.
//! Handles of the warm path are values of fixed size (`value`); all others are boxes.

mod buf;
mod channel;
mod client;
mod provider;
mod receiver;
mod status;
mod value;
