//! The command as an operator runs it, with real processes: stopped, killed, or in another PID
//! namespace; with damaged objects, and with /dev/shm full.
//!
//! Owners and subscribers are this test binary again, with a task (see [`child`]). Each test has a
//! name prefix of its own, and leaves /dev/shm as it found it. A test that covers all prefixes runs
//! in a /dev/shm of its own.

mod child;
mod command;
#[path = "../../../tests/common/own_shm.rs"]
#[allow(dead_code)] // The library's tests use more of it.
mod own_shm;

mod damaged;
mod documented;
mod elsewhere;
mod generate;
mod inspection;

mod session;
mod sweep;
mod top;
mod width;
