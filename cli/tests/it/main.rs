//! The command as an operator runs it, on what real processes have: stopped, killed, or in another
//! PID namespace; on damaged objects, and where /dev/shm is full.
//!
//! Owners and subscribers are this test binary again, with a task (see [`child`]). A test has a name
//! prefix of its own, and leaves /dev/shm as it found it; what is about all prefixes runs in a
//! /dev/shm of its own.

mod child;
mod command;
#[path = "../../../tests/support/own_shm.rs"]
#[allow(dead_code)] // The other tests need more of it.
mod own_shm;

mod damaged;
mod documented;
mod elsewhere;
mod looks;
mod session;
mod sweep;
mod top;
