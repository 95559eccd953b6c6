//! The rule for a receiver that falls behind.

#![forbid(unsafe_code)]

/// What a publisher does with a message for a receiver whose ring is full.
///
/// The other receivers get the message at once, except with [`Wait`](Self::Wait).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// The publisher waits until this receiver has room, at most for the timeout of the call.
    /// Nothing is lost, but one slow receiver delays all others.
    Wait = 0,
    /// The message is dropped for this receiver, which keeps the older ones.
    DropNew = 1,
    /// The oldest unreceived message of this receiver is withdrawn, and its memory returned at
    /// once, so the receiver is never further behind than its capacity, or by one message more if the
    /// publisher is stopped or killed as it sends. With capacity 1 it always gets the newest message;
    /// each further slot lets the message be one older. This is the default.
    #[default]
    KeepLatest = 2,
}

impl OnFull {
    /// The inverse of `as u32`.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Wait, Self::DropNew, Self::KeepLatest].into_iter().find(|&rule| rule as u32 == number)
    }
}
