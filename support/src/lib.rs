//! What the tests, benches and stress programs share. Nothing here knows the library that they are
//! about.
//!
//! | module | for |
//! |---|---|
//! | [`tasks`] | futures: an executor for one |
//! | [`process`], [`wire`] | other processes: starting and ending them, and talking to them |
//! | [`payload`], [`numbered`], [`source`] | bytes of messages, and whether they came as they were sent |
//! | [`machine`], [`clock`], [`procfs`] | what figures were taken on, the time, and what a process has |
//! | [`units`], [`line`](mod@line) | times, sizes and numbers as people read them; a straight line through points |
//! | [`turns`], [`latency`], [`table`], [`chart`], [`options`] | figures: how they are taken, and how they are shown |

#![forbid(unsafe_code)]

#[cfg(feature = "charts")]
pub mod chart;
pub mod clock;
#[cfg(feature = "figures")]
pub mod latency;
pub mod line;
pub mod machine;
pub mod numbered;
#[cfg(feature = "figures")]
pub mod options;
pub mod payload;
pub mod process;
pub mod procfs;
pub mod source;
#[cfg(feature = "figures")]
pub mod table;
pub mod tasks;
#[cfg(feature = "figures")]
pub mod turns;
pub mod units;
pub mod wire;

/// What goes wrong ends the program with a message and exit code 1.
pub type Fallible<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
