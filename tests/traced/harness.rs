//! The harness of the tests in `tests/process`: child processes, their messages, and their objects
//! in /dev/shm.

#![allow(dead_code)] // some of it is used only by those tests

#[macro_use]
#[path = "../process/child.rs"]
pub(crate) mod child;
#[path = "../process/peer.rs"]
pub(crate) mod peer;
#[path = "../process/shm.rs"]
pub(crate) mod shm;
#[path = "../process/sys.rs"]
pub(crate) mod sys;
#[path = "../process/wire.rs"]
pub(crate) mod wire;
