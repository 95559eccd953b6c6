//! Guides, and documentation beyond the API.
//!
//! | you want to | read |
//! |---|---|
//! | write your first two programs | [`first_steps`] |
//! | choose a way to send | [`choosing`] |
//! | find the counterpart of a call that you know | [`coming_from`] |
//! | publish without page faults and surprises | [`embedded`] |
//! | put programs into production: containers, systemd, several users, sandboxes | [`deploying`] |
//! | publish to ROS 2 nodes, with zenoh or beside it | [`ros2`] |
//! | put your own middleware on the pool | [`middleware`] |
//! | find out who holds the memory | [`debugging`] |
//! | know what survives which crash | [`guarantees`] |
//! | know every limit | [`limits`] |
//!
//! The words that all of them use are in the crate's [vocabulary](crate#vocabulary).
//!
//! The guide for Python is `python/README.md` in the repository, and the one for C and C++ is
//! `c/README.md`.
#![forbid(unsafe_code)]

pub mod choosing;
pub mod coming_from;
pub mod debugging;
pub mod deploying;
pub mod embedded;
pub mod first_steps;
pub mod guarantees;
pub mod limits;
pub mod middleware;
pub mod ros2;
