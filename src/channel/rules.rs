//! What happens to a message when a receiver is behind.

#![forbid(unsafe_code)]

/// What happens when a message is published and a receiver has as many unreceived messages as its
/// channel has room for.
///
/// Whatever it is, the message goes to the other receivers at once, except with
/// [`Wait`](Self::Wait).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// The publisher waits until this receiver has room, for as long as its call says. Nothing is
    /// lost; one slow receiver delays all others.
    Wait = 0,
    /// This receiver does not get the message. It keeps the older ones.
    DropNew = 1,
    /// The oldest message that this receiver has not received is withdrawn, and its memory comes
    /// back at once. The default: a receiver is never further behind than its capacity. With
    /// capacity 1 it always gets the newest; each one more lets what it gets be a message older.
    #[default]
    KeepLatest = 2,
}

impl OnFull {
    /// The inverse of `as u32`.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Wait, Self::DropNew, Self::KeepLatest].into_iter().find(|&rule| rule as u32 == number)
    }
}
