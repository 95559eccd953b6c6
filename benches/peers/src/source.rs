//! What every peer can do: hand out messages. One trait, so that each workload is written once.

use std::fmt::Display;
use std::ops::Deref;

/// Something that messages are allocated from.
pub(crate) trait Source {
    /// A message that nobody has written yet.
    type Message;
    /// A written one.
    type Filled: Deref<Target = [u8]>;
    type Error: Display;

    fn take(&self, len: usize) -> Result<Self::Message, Self::Error>;

    /// Writes every byte.
    fn fill(message: Self::Message, byte: u8) -> Self::Filled;

    /// Gives back what dropped messages still hold, where dropping them does not.
    fn settle(&self) {}

    /// The most memory that it ever held, by its own account.
    fn account(&self) -> String {
        "keeps none".to_owned()
    }
}
