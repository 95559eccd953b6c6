#![doc = include_str!("../../docs/guarantees.md")]
#![forbid(unsafe_code)]
