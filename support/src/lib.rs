//! Code shared by the tests, benches and stress programs. None of it depends on the library that
//! they test.
//!
//! | module | purpose |
//! |---|---|
//! | [`tasks`] | futures: an executor for one, and wakers for tests |
//! | [`process`], [`wire`] | other processes: starting and ending them, and values over sockets |
//! | [`payload`], [`numbered`], [`source`] | bytes of messages, and whether they arrived intact |
//! | [`machine`], [`clock`], [`procfs`] | the machine, the time, and the resources of a process |
//! | [`units`], [`line`](mod@line) | readable times, sizes and numbers; a line through points |
//! | [`turns`], [`latency`], [`compare`], [`table`], [`chart`], [`options`] | measuring, and showing figures |

#![forbid(unsafe_code)]

#[cfg(feature = "charts")]
pub mod chart;
pub mod clock;
#[cfg(feature = "figures")]
pub mod compare;
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

/// The result of a program. An error ends it with a message and exit code 1.
pub type Fallible<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
