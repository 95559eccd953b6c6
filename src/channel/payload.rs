//! What a channel carries: bytes, or values of one type.
//!
//! Both ends and their builders have the payload as their parameter, and one implementation of
//! every method. It converts at its border: what is sent into a [`ShmBytes`], and what is received
//! from a [`Message`]. For bytes both conversions do nothing.

#![forbid(unsafe_code)]

use super::error::{RecvError, SendError};
use super::layout::MessageType;
use super::receiver::Message;
use super::receiving_end::ChannelEvent;
use crate::owner::buf::ShmBytes;
#[cfg(doc)]
use crate::owner::buf::ShmBytesMut;
use std::marker::PhantomData;

/// What the messages of a channel are: bytes, `[u8]`, or with the feature `zerocopy` the values of
/// one type. The parameter of [`Publisher`](super::Publisher), [`Subscriber`](super::Subscriber),
/// [`Sender`](super::Sender), [`Receiver`](super::Receiver) and their builders, which is `[u8]` if
/// it is not written.
///
/// | | `[u8]` | a type `T` of the module `typed` |
/// |---|---|---|
/// | is allocated as | [`ShmBytesMut`] | `Value<ShmBytesMut, T>` |
/// | [`Frozen`](Self::Frozen), into which `send` converts | [`ShmBytes`] | `Value<ShmBytes, T>` |
/// | [`Message`](Self::Message), which `recv` returns | [`Message`] | `Value<Message, T>` |
///
/// No other type can implement it.
pub trait Payload: Converted + 'static {
    /// A message that can be sent, and is not written any more.
    type Frozen;

    /// A message that was received.
    type Message;

    /// Returns what a channel of this payload declares: nothing for bytes.
    fn message_type() -> Option<MessageType>;
}

impl Payload for [u8] {
    type Frozen = ShmBytes;
    type Message = Message;

    fn message_type() -> Option<MessageType> {
        None
    }
}

/// The conversions, for one implementation of every method. Not nameable outside of the crate.
pub trait Converted {
    /// The alignment that a copy needs.
    const COPY_ALIGN: usize;

    /// Returns what `send_copy` copies.
    fn bytes(&self) -> &[u8];

    fn into_bytes(frozen: <Self as Payload>::Frozen) -> ShmBytes
    where
        Self: Payload;

    fn frozen_bytes(frozen: &<Self as Payload>::Frozen) -> &ShmBytes
    where
        Self: Payload;

    /// Converts the result of a send of what was made [into bytes](Self::into_bytes). Takes the
    /// whole result, as does `received`, so that nothing is moved for bytes.
    fn sent<R>(
        sent: Result<R, SendError<ShmBytes>>,
    ) -> Result<R, SendError<<Self as Payload>::Frozen>>
    where
        Self: Payload;

    /// Converts what was received. Fails if the message is not of this payload.
    fn received(
        received: Result<Message, RecvError>,
    ) -> Result<<Self as Payload>::Message, RecvError>
    where
        Self: Payload;
}

impl Converted for [u8] {
    const COPY_ALIGN: usize = 1;

    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn into_bytes(frozen: ShmBytes) -> ShmBytes {
        frozen
    }

    #[inline]
    fn frozen_bytes(frozen: &ShmBytes) -> &ShmBytes {
        frozen
    }

    #[inline(always)]
    fn sent<R>(sent: Result<R, SendError<ShmBytes>>) -> Result<R, SendError<ShmBytes>> {
        sent
    }

    #[inline(always)]
    fn received(received: Result<Message, RecvError>) -> Result<Message, RecvError> {
        received
    }
}

/// Marks an end, or its builder, as one of a payload. It owns none.
pub(super) type Of<T> = PhantomData<fn(&T)>;

/// Converts the message of an event.
#[inline]
pub(super) fn event<T: Payload + ?Sized>(
    event: ChannelEvent,
) -> Result<ChannelEvent<T::Message>, RecvError> {
    Ok(match event {
        ChannelEvent::Connected(provider) => ChannelEvent::Connected(provider),
        ChannelEvent::Message(message) => ChannelEvent::Message(T::received(Ok(message))?),
        ChannelEvent::Disconnected => ChannelEvent::Disconnected,
    })
}

/// A builder is a clone of its options, whatever its payload.
macro_rules! builder_traits {
    ($builder:ident) => {
        impl<T: ?Sized> Clone for $builder<T> {
            fn clone(&self) -> Self {
                Self {
                    options: self.options.clone(),
                    of: self.of,
                }
            }
        }

        impl<T: ?Sized> std::fmt::Debug for $builder<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($builder))
                    .field(&self.options)
                    .finish()
            }
        }
    };
}
pub(super) use builder_traits;
