//! Typed messages (feature `zerocopy`): a value is written and read in place, as a `&mut T` and a
//! `&T`, and a channel carries values of one type only.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::channel::{Publisher, Subscriber};
//! use shm_pool::Provider;
//! use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
//!
//! shm_pool::message_type! {
//!     #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
//!     #[repr(C)]
//!     struct Scan {
//!         stamp_ns: u64,
//!         ranges: [f32; 1024],
//!     }
//! }
//!
//! # let name = format!("doc-typed-{}", std::process::id());
//! let provider = Provider::builder().build()?;
//! let mut publisher = Publisher::builder().typed::<Scan>().create(&provider, &name)?;
//! let mut subscriber = Subscriber::builder().typed::<Scan>().open(&name)?;
//!
//! let mut scan = provider.alloc_value::<Scan>()?; // an earlier message: fill in every field
//! scan.stamp_ns = 7;
//! scan.ranges.fill(0.5);
//! publisher.send(scan.freeze())?;
//!
//! let scan = subscriber.recv()?;
//! assert_eq!((scan.stamp_ns, scan.ranges[1023]), (7, 0.5));
//! # Ok(())
//! # }
//! ```
//!
//! The sender declares the [`MessageType`] in the channel's object. A receiver that expects another
//! type, or one where none was declared, is refused when it opens the channel
//! ([`ChannelError::TypeMismatch`]). Each message is checked when it is received: one that is no
//! `T`, because of its length, is an error ([`RecvError::WrongType`]) and never undefined
//! behaviour. A typed [`Subscriber`] reports a later publisher of another type as
//! [`RecvError::Open`], and waits for the next one.
//!
//! # A header and a slice
//!
//! A [`Slice`] is a header and any number of items, for example `Slice<Cloud, [f32; 4]>`:
//! [`Provider::alloc_slice`] allocates one, [`Value::items_mut`] writes the items, and
//! [`Value::items`] reads them.

#![forbid(unsafe_code)]

use super::error::{ChannelError, RecvError, SendError};
use super::layout::MessageType;
use super::message::{Sent, INLINE_ALIGN};
use super::publisher::{Publisher, PublisherBuilder};
use super::receiver::{Message, Receiver, ReceiverBuilder};
use super::receiving_end::{ChannelEvent, ReceivingEnd};
use super::send_options::SendOptions;
use super::sender::{Sender, SenderBuilder};
use super::subscriber::{Subscriber, SubscriberBuilder};
use super::wait_any::{HasEnd, Seal, Source};
use crate::owner::buf::{ShmBytes, ShmBytesMut};
use crate::owner::limits::AllocError;
use crate::owner::provider::Provider;
use crate::peer::view::ShmView;
use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A type of messages. Implemented by [`message_type!`](crate::message_type), or by hand.
pub trait Schema: FromBytes + IntoBytes + KnownLayout + Immutable {
    /// The name, from 1 to 96 bytes, the same in all programs.
    const NAME: &'static str;

    /// Any number that changes whenever the fields or their meaning do.
    const VERSION: u64;
}

/// Defines a struct and implements [`Schema`](crate::channel::typed::Schema) for it. The name is
/// the struct's, and the version a hash of the names and types of its fields, in their order. A
/// change inside another struct, which this one contains, is noticed only if it changes the size or
/// the alignment.
#[macro_export]
macro_rules! message_type {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$field_attribute])* $field_visibility $field: $type),*
        }

        impl $crate::channel::typed::Schema for $name {
            const NAME: &'static str = stringify!($name);
            const VERSION: u64 =
                $crate::channel::typed::hash(concat!($(stringify!($field), ":", stringify!($type), ";"),*));
        }
    };
}

/// Returns the FNV-1a hash of a text without its white space.
#[doc(hidden)]
pub const fn hash(text: &str) -> u64 {
    let (text, mut hash, mut at) = (text.as_bytes(), 0xcbf2_9ce4_8422_2325_u64, 0);
    while at < text.len() {
        if !text[at].is_ascii_whitespace() {
            hash = (hash ^ text[at] as u64).wrapping_mul(0x0100_0000_01b3);
        }
        at += 1;
    }
    hash
}

macro_rules! primitives {
    ($($primitive:ident)+) => { $(
        impl Schema for $primitive {
            const NAME: &'static str = stringify!($primitive);
            const VERSION: u64 = 0;
        }
    )+ };
}

primitives!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

impl<T: Schema, const N: usize> Schema for [T; N] {
    const NAME: &'static str = T::NAME;
    const VERSION: u64 = identity::<T>().wrapping_mul(31).wrapping_add(N as u64);
}

const fn identity<T: Schema>() -> u64 {
    hash(T::NAME) ^ T::VERSION
}

/// The type of messages that consist of an `H` and any number of `E`.
pub struct Slice<H, E>(PhantomData<(H, E)>);

impl<H, E> fmt::Debug for Slice<H, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slice")
    }
}

impl<H, E> Slice<H, E> {
    const ALIGN: usize = if align_of::<H>() > align_of::<E>() {
        align_of::<H>()
    } else {
        align_of::<E>()
    };

    /// The offset of the first item: the size of the header, aligned for an item.
    const ITEMS: usize = size_of::<H>().next_multiple_of(align_of::<E>());
}

/// A type that a channel can carry: a [`Schema`], or a [`Slice`].
pub trait Carried: sealed::Carried {
    /// The value itself, or the header of a slice.
    type Head: Schema;

    /// Returns what a channel of this type declares.
    fn message_type() -> MessageType;

    #[doc(hidden)]
    fn is_made_of(bytes: &[u8]) -> bool;

    #[doc(hidden)]
    const ALIGN: usize;
}

impl<T: Schema> Carried for T {
    type Head = T;
    const ALIGN: usize = align_of::<T>();

    fn message_type() -> MessageType {
        MessageType::new(T::NAME, T::VERSION, Layout::new::<T>())
    }

    fn is_made_of(bytes: &[u8]) -> bool {
        T::ref_from_bytes(bytes).is_ok()
    }
}

impl<H: Schema, E: Schema> Carried for Slice<H, E> {
    type Head = H;
    const ALIGN: usize = Self::ALIGN;

    fn message_type() -> MessageType {
        let header =
            Layout::from_size_align(Self::ITEMS, Self::ALIGN).unwrap_or(Layout::new::<H>());
        MessageType::new(H::NAME, H::VERSION ^ identity::<E>().rotate_left(1), header)
            .with_elements(size_of::<E>())
    }

    fn is_made_of(bytes: &[u8]) -> bool {
        H::ref_from_prefix(bytes).is_ok()
            && bytes
                .get(Self::ITEMS..)
                .is_some_and(|items| <[E]>::ref_from_bytes(items).is_ok())
    }
}

/// What a value can lie in: [`ShmBytesMut`], [`ShmBytes`], [`Message`] and [`ShmView`].
pub trait Buffer: Deref<Target = [u8]> + sealed::Sealed {
    /// Returns the alignment that a move of the buffer keeps.
    #[doc(hidden)]
    fn alignment(&self) -> usize {
        // The bytes do not move.
        usize::MAX
    }
}

impl Buffer for ShmBytesMut {}
impl Buffer for ShmBytes {}
impl Buffer for ShmView {}

impl Buffer for Message {
    fn alignment(&self) -> usize {
        if self.is_inline() {
            INLINE_ALIGN
        } else {
            usize::MAX
        }
    }
}

mod sealed {
    pub trait Sealed {}
    pub trait Carried {}

    impl<T: super::Schema> Carried for T {}
    impl<H: super::Schema, E: super::Schema> Carried for super::Slice<H, E> {}

    impl Sealed for super::ShmBytesMut {}
    impl Sealed for super::ShmBytes {}
    impl Sealed for super::ShmView {}
    impl Sealed for super::Message {}
}

/// A buffer or a message whose bytes are a `T`. Dereferences to it, or to the header of a [`Slice`].
pub struct Value<B, T> {
    bytes: B,
    of: PhantomData<T>,
}

impl<B: Buffer, T: Carried> Value<B, T> {
    /// Takes the bytes for a `T`.
    ///
    /// # Errors
    ///
    /// The buffer itself, if its length or alignment is not that of a `T`.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, B> {
        if T::ALIGN <= bytes.alignment() && T::is_made_of(&bytes) {
            Ok(Self::checked(bytes))
        } else {
            Err(bytes)
        }
    }
}

impl<B, T> Value<B, T> {
    fn checked(bytes: B) -> Self {
        Self {
            bytes,
            of: PhantomData,
        }
    }

    /// Returns the buffer or the message.
    pub fn into_inner(self) -> B {
        self.bytes
    }
}

impl<B: Buffer, H: Schema, E: Schema> Value<B, Slice<H, E>> {
    /// Returns the items that follow the header.
    #[inline]
    pub fn items(&self) -> &[E] {
        match <[E]>::ref_from_bytes(&self.bytes[Slice::<H, E>::ITEMS..]) {
            Ok(items) => items,
            Err(_) => unreachable!("{CHECKED}"),
        }
    }
}

impl<H: Schema, E: Schema> Value<ShmBytesMut, Slice<H, E>> {
    /// Returns the items that follow the header.
    #[inline]
    pub fn items_mut(&mut self) -> &mut [E] {
        match <[E]>::mut_from_bytes(&mut self.bytes[Slice::<H, E>::ITEMS..]) {
            Ok(items) => items,
            Err(_) => unreachable!("{CHECKED}"),
        }
    }
}

/// By `Value::new`, or allocated so.
const CHECKED: &str = "length and alignment are those of the type, and do not change";

impl<T> Value<ShmBytesMut, T> {
    /// Ends writing; see [`ShmBytesMut::freeze`].
    #[inline]
    pub fn freeze(self) -> Value<ShmBytes, T> {
        Value::checked(self.bytes.freeze())
    }
}

impl<T> Value<ShmBytes, T> {
    /// Returns the buffer, for its [descriptor](ShmBytes::descriptor) or a grant.
    pub fn buffer(&self) -> &ShmBytes {
        &self.bytes
    }
}

impl<T> Value<Message, T> {
    /// Returns how many messages were missed before this one; see [`Message::missed`].
    #[inline]
    pub fn missed(&self) -> u32 {
        self.bytes.missed()
    }
}

impl<B: Buffer, T: Carried> Deref for Value<B, T> {
    type Target = T::Head;

    #[inline]
    fn deref(&self) -> &T::Head {
        match T::Head::ref_from_prefix(&self.bytes) {
            Ok((value, _)) => value,
            Err(_) => unreachable!("{CHECKED}"),
        }
    }
}

impl<T: Carried> DerefMut for Value<ShmBytesMut, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T::Head {
        match T::Head::mut_from_prefix(&mut self.bytes) {
            Ok((value, _)) => value,
            Err(_) => unreachable!("{CHECKED}"),
        }
    }
}

impl<T> Clone for Value<ShmBytes, T> {
    #[inline]
    fn clone(&self) -> Self {
        Self::checked(self.bytes.clone())
    }
}

impl<B: Buffer, T: Carried> fmt::Debug for Value<B, T>
where
    T::Head: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Provider {
    /// Allocates a `T` (feature `zerocopy`). Its content is unspecified, usually an earlier
    /// message: fill in every field. Never waits for memory; for that, see [`Value::new`].
    ///
    /// # Errors
    ///
    /// As [`alloc_layout`](Self::alloc_layout).
    #[inline]
    pub fn alloc_value<T: Schema>(&self) -> Result<Value<ShmBytesMut, T>, AllocError> {
        let buffer = self.alloc_layout(Layout::new::<T>())?;
        Ok(Value::checked(buffer))
    }

    /// Allocates an `H` and this many `E`, as [`alloc_value`](Self::alloc_value) does.
    ///
    /// # Errors
    ///
    /// As [`alloc_layout`](Self::alloc_layout).
    #[inline]
    pub fn alloc_slice<H: Schema, E: Schema>(
        &self,
        items: usize,
    ) -> Result<Value<ShmBytesMut, Slice<H, E>>, AllocError> {
        // Saturated, it is refused as too large.
        let len = items
            .saturating_mul(size_of::<E>())
            .saturating_add(Slice::<H, E>::ITEMS);
        let buffer = self.alloc_aligned(len, Slice::<H, E>::ALIGN)?;
        Ok(Value::checked(buffer))
    }
}

/// An end of a channel, or its builder, for messages of one type. Made by `typed` of a builder.
///
/// It dereferences to the untyped end, for everything that has no typed form, for example
/// [`wait_any`](super::wait_any). Bytes sent that way are checked only when they are received.
pub struct Typed<E, T> {
    end: E,
    of: PhantomData<T>,
}

impl<E, T> Typed<E, T> {
    fn of(end: E) -> Self {
        Self {
            end,
            of: PhantomData,
        }
    }

    /// Returns the untyped end.
    pub fn into_inner(self) -> E {
        self.end
    }
}

impl<E, T> Deref for Typed<E, T> {
    type Target = E;

    #[inline]
    fn deref(&self) -> &E {
        &self.end
    }
}

impl<E, T> DerefMut for Typed<E, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut E {
        &mut self.end
    }
}

impl<E: fmt::Debug, T> fmt::Debug for Typed<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Typed").field(&self.end).finish()
    }
}

macro_rules! builders {
    ($($builder:ident)+) => { $(
        impl $builder {
            /// Sets the type of the messages (feature `zerocopy`); see [`typed`](super::typed).
            pub fn typed<T: Carried>(self) -> Typed<Self, T> {
                Typed::of(self.message_type(T::message_type()))
            }
        }
    )+ };
}

builders!(SenderBuilder PublisherBuilder ReceiverBuilder SubscriberBuilder);

macro_rules! sends {
    ($builder:ident $end:ident $sent:ty) => {
        impl<T> Typed<$builder, T> {
            #[doc = concat!("Creates the channel; see [`", stringify!($builder), "::create`].")]
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($builder), "::create`].")]
            pub fn create(
                self,
                provider: &Provider,
                name: &str,
            ) -> Result<Typed<$end, T>, ChannelError> {
                let end = self.end.create(provider, name)?;
                Ok(Typed::of(end))
            }

            #[doc = concat!(
                        "Like [`create`](Self::create), but waits for a predecessor; see [`",
                        stringify!($builder),
                        "::create_timeout`]."
                    )]
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($builder), "::create_timeout`].")]
            pub fn create_timeout(
                self,
                provider: &Provider,
                name: &str,
                timeout: Duration,
            ) -> Result<Typed<$end, T>, ChannelError> {
                let end = self.end.create_timeout(provider, name, timeout)?;
                Ok(Typed::of(end))
            }
        }

        impl<T: Carried> Typed<$end, T> {
            #[doc = concat!("Sends a value; see [`", stringify!($end), "::send`].")]
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($end), "::send`].")]
            #[inline]
            pub fn send(
                &mut self,
                value: Value<ShmBytes, T>,
            ) -> Result<$sent, SendError<Value<ShmBytes, T>>> {
                self.end.send(value.bytes).map_err(SendError::typed)
            }

            /// Like [`send`](Self::send), but does not wait for room.
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($end), "::try_send`].")]
            #[inline]
            pub fn try_send(
                &mut self,
                value: Value<ShmBytes, T>,
            ) -> Result<$sent, SendError<Value<ShmBytes, T>>> {
                self.end.try_send(value.bytes).map_err(SendError::typed)
            }

            /// Like [`send`](Self::send), but blocks for at most `timeout`.
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($end), "::send_timeout`].")]
            #[inline]
            pub fn send_timeout(
                &mut self,
                value: Value<ShmBytes, T>,
                timeout: Duration,
            ) -> Result<$sent, SendError<Value<ShmBytes, T>>> {
                self.end
                    .send_timeout(value.bytes, timeout)
                    .map_err(SendError::typed)
            }

            #[doc = concat!(
                        "Sends a value without blocking the thread; see [`",
                        stringify!($end),
                        "::send_async`]."
                    )]
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($end), "::send_async`].")]
            pub async fn send_async(
                &mut self,
                value: Value<ShmBytes, T>,
            ) -> Result<$sent, SendError<Value<ShmBytes, T>>> {
                self.end
                    .send_async(value.bytes)
                    .await
                    .map_err(SendError::typed)
            }
        }

        impl<T: Schema> Typed<$end, T> {
            #[doc = concat!(
                        "Sends a copy of a value, in the slot itself or in a buffer; see [`",
                        stringify!($end),
                        "::send_copy`]."
                    )]
            /// A value with an alignment above 8 is always copied into a buffer.
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($end), "::send_copy`].")]
            #[inline]
            pub fn send_copy(&mut self, value: &T) -> Result<$sent, SendError> {
                self.end
                    .copy_aligned(value.as_bytes(), T::ALIGN, SendOptions::new())
            }

            /// Like [`send_copy`](Self::send_copy), but does not wait for room.
            ///
            /// # Errors
            ///
            #[doc = concat!("Those of [`", stringify!($end), "::try_send_copy`].")]
            #[inline]
            pub fn try_send_copy(&mut self, value: &T) -> Result<$sent, SendError> {
                let options = SendOptions::new().timeout(Duration::ZERO);
                self.end.copy_aligned(value.as_bytes(), T::ALIGN, options)
            }
        }
    };
}

sends!(SenderBuilder Sender ());
sends!(PublisherBuilder Publisher Sent);

impl SendError<ShmBytes> {
    fn typed<T>(self) -> SendError<Value<ShmBytes, T>> {
        SendError {
            kind: self.kind,
            message: Value::checked(self.message),
        }
    }
}

macro_rules! opens {
    ($builder:ident $end:ident) => {
        impl<T: Carried> Typed<$builder, T> {
            #[doc = concat!("Opens the channel; see [`", stringify!($builder), "::open`].")]
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "[`ChannelError::TypeMismatch`], and those of [`", stringify!($builder), "::open`]."
            )]
            pub fn open(self, name: &str) -> Result<Typed<$end, T>, ChannelError> {
                let end = self.end.open(name)?;
                Ok(Typed::of(end))
            }

            #[doc = concat!(
                "Like [`open`](Self::open), but waits for the other side; see [`",
                stringify!($builder), "::open_timeout`]."
            )]
            ///
            /// # Errors
            ///
            /// See [`open`](Self::open).
            pub fn open_timeout(
                self,
                name: &str,
                timeout: Duration,
            ) -> Result<Typed<$end, T>, ChannelError> {
                let end = self.end.open_timeout(name, timeout)?;
                Ok(Typed::of(end))
            }

            #[doc = concat!(
                "Like [`open_timeout`](Self::open_timeout), without blocking the thread; see [`",
                stringify!($builder), "::open_async`]."
            )]
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "Those of [`open`](Self::open) and of [`", stringify!($builder), "::open_async`]."
            )]
            pub async fn open_async(self, name: &str) -> Result<Typed<$end, T>, ChannelError> {
                let end = self.end.open_async(name).await?;
                Ok(Typed::of(end))
            }
        }
    };
}

opens!(ReceiverBuilder Receiver);
opens!(SubscriberBuilder Subscriber);

impl<E: Source, T> Source for Typed<E, T> {}

impl<E: Source, T> HasEnd for Typed<E, T> {
    fn end(&self, seal: Seal) -> &ReceivingEnd {
        self.end.end(seal)
    }

    fn end_mut(&mut self, seal: Seal) -> &mut ReceivingEnd {
        self.end.end_mut(seal)
    }
}

macro_rules! receives {
    ($end:ident) => {
        impl<T: Carried> Typed<$end, T> {
            #[doc = concat!(
                                "Receives, blocking until there is something; see [`",
                                stringify!($end),
                                "::recv`]."
                            )]
            ///
            /// # Errors
            ///
            /// [`RecvError::WrongType`] if a message is no `T`: it is lost, and the next one may be
            #[doc = concat!("good; and those of [`", stringify!($end), "::recv`].")]
            #[inline]
            pub fn recv(&mut self) -> Result<Value<Message, T>, RecvError> {
                value(self.end.recv()?)
            }

            /// Like [`recv`](Self::recv), but blocks for at most `timeout`.
            ///
            /// # Errors
            ///
            /// [`RecvError::TimedOut`], and those of [`recv`](Self::recv).
            #[inline]
            pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Value<Message, T>, RecvError> {
                value(self.end.recv_timeout(timeout)?)
            }

            /// Like [`recv`](Self::recv), but never blocks.
            ///
            /// # Errors
            ///
            /// [`RecvError::Empty`], and those of [`recv`](Self::recv).
            #[inline]
            pub fn try_recv(&mut self) -> Result<Value<Message, T>, RecvError> {
                value(self.end.try_recv()?)
            }

            #[doc = concat!(
                                "Like [`recv`](Self::recv), without blocking the thread; see [`",
                                stringify!($end),
                                "::recv_async`]."
                            )]
            ///
            /// # Errors
            ///
            #[doc = concat!(
                                "[`RecvError::WrongType`], and those of [`",
                                stringify!($end),
                                "::recv_async`]."
                            )]
            pub async fn recv_async(&mut self) -> Result<Value<Message, T>, RecvError> {
                value(self.end.recv_async().await?)
            }

            #[doc = concat!(
                                "Receives if there is something; see [`",
                                stringify!($end),
                                "::poll_recv`]."
                            )]
            ///
            /// # Errors
            ///
            /// As [`recv_async`](Self::recv_async).
            pub fn poll_recv(
                &mut self,
                context: &mut Context<'_>,
            ) -> Poll<Result<Value<Message, T>, RecvError>> {
                self.end
                    .poll_recv(context)
                    .map(|received| value(received?))
            }

            #[doc = concat!(
                "Receives the next event; see [`", stringify!($end), "::recv_event`]."
            )]
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "[`RecvError::WrongType`], and those of [`", stringify!($end), "::recv_event`]."
            )]
            pub fn recv_event(&mut self) -> Result<ChannelEvent<Value<Message, T>>, RecvError> {
                event(self.end.recv_event()?)
            }

            #[doc = concat!(
                "Receives the next event if there is one; see [`", stringify!($end),
                "::poll_recv_event`]."
            )]
            ///
            /// # Errors
            ///
            /// As [`recv_async`](Self::recv_async).
            pub fn poll_recv_event(
                &mut self,
                context: &mut Context<'_>,
            ) -> Poll<Result<ChannelEvent<Value<Message, T>>, RecvError>> {
                self.end
                    .poll_recv_event(context)
                    .map(|received| event(received?))
            }
        }
    };
}

receives!(Receiver);
receives!(Subscriber);

#[inline]
fn value<T: Carried>(message: Message) -> Result<Value<Message, T>, RecvError> {
    Value::new(message).map_err(|message| RecvError::WrongType {
        name: T::Head::NAME,
        len: message.len(),
    })
}

#[inline]
fn event<T: Carried>(event: ChannelEvent) -> Result<ChannelEvent<Value<Message, T>>, RecvError> {
    Ok(match event {
        ChannelEvent::Connected { provider } => ChannelEvent::Connected { provider },
        ChannelEvent::Message(message) => ChannelEvent::Message(value(message)?),
        ChannelEvent::Disconnected => ChannelEvent::Disconnected,
    })
}
