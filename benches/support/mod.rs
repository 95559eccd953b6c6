//! What the latency programs share: on what machine and cores they run, how they start their other process, what they do with
//! a million latencies, and how they print them.

#![forbid(unsafe_code)]
#![allow(dead_code)] // Each program uses its part.

pub(crate) mod chart;
pub(crate) mod clock;
pub(crate) mod cores;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod options;
pub(crate) mod role;
pub(crate) mod table;

/// What goes wrong ends the program with a message and exit code 1.
pub(crate) type Fallible<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
