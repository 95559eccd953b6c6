//! Typed channels (feature `zerocopy`): a value is written and read in place, as a `&mut T` and a
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
//! let mut publisher = Publisher::<Scan>::create_typed(&provider, &name)?;
//! let mut subscriber = Subscriber::<Scan>::open_typed(&name)?;
//!
//! let mut scan = publisher.alloc_value_zeroed()?; // in shared memory
//! scan.stamp_ns = 7;
//! scan.ranges.fill(0.5);
//! publisher.send(scan)?;
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
//! `T`, because of its length or because a field is no `bool` or no variant of its enum, is an error
//! ([`RecvError::WrongType`]) and never undefined behaviour. A typed [`Subscriber`] reports a later
//! publisher of another type as [`RecvError::Open`], and waits for the next one.
//!
//! A typed end has the methods of an untyped one, with [`Value`]s in the place of buffers and
//! messages, and no method that takes bytes:
//!
//! ```compile_fail,E0277
//! # use shm_pool::{channel::Publisher, Provider};
//! # fn send(provider: &Provider) -> Result<(), Box<dyn std::error::Error>> {
//! let mut publisher = Publisher::<u64>::create_typed(provider, "count")?;
//! publisher.send(provider.alloc(8)?)?;
//! # Ok(())
//! # }
//! ```
//!
//! Options are set before or after the type:
//!
//! ```
//! # use shm_pool::channel::{Receiver, ReceiverBuilder};
//! # use std::time::Duration;
//! let builder: ReceiverBuilder<u64> = Receiver::builder().typed::<u64>().spin(Duration::ZERO);
//! ```
//!
//! # Slices
//!
//! `[E]` is the type of messages of any number of `E`, and [`WithHeader<H, [E]>`](WithHeader) of
//! those with a header:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use shm_pool::channel::typed::{Value, WithHeader};
//! # use shm_pool::channel::{Publisher, Subscriber};
//! # use shm_pool::Provider;
//! # let name = format!("doc-cloud-{}", std::process::id());
//! # let provider = Provider::builder().build()?;
//! type Cloud = WithHeader<u64, [[f32; 3]]>; // a stamp and points
//!
//! let mut publisher = Publisher::<Cloud>::create_typed(&provider, &name)?;
//! let mut subscriber = Subscriber::<Cloud>::open_typed(&name)?;
//!
//! let mut cloud = publisher.alloc_slice_zeroed(100)?;
//! *cloud = 7; // the header
//! Value::items_mut(&mut cloud)[99] = [1.0, 2.0, 3.0];
//! publisher.send(cloud)?;
//!
//! let cloud = subscriber.recv()?;
//! assert_eq!((*cloud, Value::items(&cloud)[99]), (7, [1.0, 2.0, 3.0]));
//! # Ok(())
//! # }
//! ```
//!
//! `u8` is no [`Schema`], because a channel of `[u8]` is one of plain bytes; `[u8; N]` is, and so is
//! a struct with such a field. After a header, bytes are items like any other: an image is a
//! `WithHeader<ImageHeader, [u8]>`.
//!
//! # Nothing is left of earlier messages
//!
//! Memory from the pool contains an earlier message, perhaps of another channel.
//! [`alloc_value`](Provider::alloc_value) fills it with a value, and
//! [`alloc_value_zeroed`](Provider::alloc_value_zeroed) and
//! [`alloc_slice_zeroed`](Provider::alloc_slice_zeroed) with zeros, so a field that is forgotten
//! publishes nothing. For a large value of which every byte is written, [`Value::try_new`] takes a
//! buffer as it is.

use self::sealed::{Buffer, InPlace, Item, Items};
use super::error::{RecvError, SendError};
use super::layout::MessageType;
use super::payload::{Converted, Payload};
use super::publisher::Publisher;
use super::receiver::Message;
use super::sender::Sender;
use crate::owner::buf::{ShmBytes, ShmBytesMut};
use crate::owner::limits::AllocError;
use crate::owner::provider::Provider;
use crate::peer::view::ShmView;
use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::{Deref, DerefMut};
use std::slice;
use zerocopy::{FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes};

#[cfg(doc)]
use super::{ChannelError, Subscriber};

#[cfg(feature = "derive")]
pub use shm_pool_derive::Schema;

/// A type of messages. Implemented by `#[derive(Schema)]` (feature `derive`), by
/// [`message_type!`](crate::message_type), or by hand.
///
/// The traits of zerocopy are derived. They refuse what must not be shared between processes:
/// references, and padding, which would publish whatever is there.
pub trait Schema: TryFromBytes + IntoBytes + KnownLayout + Immutable + 'static {
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
    let text = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
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

// Without `u8`: the payload `[u8]` is that of untyped channels.
primitives!(bool char u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

impl<T: Schema, const N: usize> Schema for [T; N] {
    const NAME: &'static str = T::NAME;
    const VERSION: u64 = array_version(T::IDENTITY, N);
}

impl<const N: usize> Schema for [u8; N] {
    const NAME: &'static str = "u8";
    const VERSION: u64 = array_version(hash("u8"), N);
}

const fn array_version(element: u64, len: usize) -> u64 {
    element.wrapping_mul(31).wrapping_add(len as u64)
}

impl<E: Schema> Item for E {
    const IDENTITY: u64 = hash(E::NAME) ^ E::VERSION;
}

// Only here: after a header they are no untyped channel.
impl Item for u8 {
    const IDENTITY: u64 = hash("u8");
}

/// The type of messages that consist of a header and any number of items: an `H` and an `[E]`, where
/// `E` is a [`Schema`] or `u8`.
/// There is no value of it outside of a message: a [`Value`] dereferences to the header, and
/// [`Value::items`] returns the items.
pub struct WithHeader<H, S: ?Sized> {
    header: PhantomData<H>,
    items: PhantomData<S>,
}

impl<H, S: ?Sized> fmt::Debug for WithHeader<H, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, items } = self;
        f.debug_tuple("WithHeader")
            .field(header)
            .field(items)
            .finish()
    }
}

impl<H, E> WithHeader<H, [E]> {
    const ALIGN: usize = if align_of::<H>() > align_of::<E>() {
        align_of::<H>()
    } else {
        align_of::<E>()
    };

    /// The offset of the first item: the size of the header, aligned for an item.
    const ITEMS: usize = size_of::<H>().next_multiple_of(align_of::<E>());
}

/// A [`Payload`] of values: a [`Schema`], a slice `[E]` of one, or a [`WithHeader`]. No other type
/// can implement it. A [`Value`] dereferences to its `Target`: the value, the slice, or the header.
pub trait TypedPayload:
    InPlace + Payload<Frozen = Value<ShmBytes, Self>, Message = Value<Message, Self>>
{
}

/// A [`TypedPayload`] of any number of items: `[E]`, or a [`WithHeader`]. No other type can implement
/// it.
pub trait SlicePayload: TypedPayload + Items {}

impl<T: TypedPayload + ?Sized> Payload for T {
    type Frozen = Value<ShmBytes, T>;
    type Message = Value<Message, T>;

    fn message_type() -> Option<MessageType> {
        Some(<T as InPlace>::message_type())
    }
}

impl<T: TypedPayload + ?Sized> Converted for T {
    const COPY_ALIGN: usize = T::ALIGN;

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.in_place()
    }

    #[inline]
    fn into_bytes(frozen: Value<ShmBytes, T>) -> ShmBytes {
        frozen.bytes
    }

    #[inline]
    fn frozen_bytes(frozen: &Value<ShmBytes, T>) -> &ShmBytes {
        &frozen.bytes
    }

    #[inline]
    fn sent<R>(sent: Result<R, SendError<ShmBytes>>) -> Result<R, SendError<Value<ShmBytes, T>>> {
        sent.map_err(unsent)
    }

    #[inline]
    fn received(received: Result<Message, RecvError>) -> Result<Value<Message, T>, RecvError> {
        Value::try_new(received?).map_err(|message| RecvError::WrongType {
            name: T::NAME,
            len: message.len(),
        })
    }
}

/// Returns the error with the value whose bytes were not sent.
#[cold]
fn unsent<T: TypedPayload + ?Sized>(error: SendError<ShmBytes>) -> SendError<Value<ShmBytes, T>> {
    match Value::try_new(error.message) {
        Ok(message) => SendError {
            kind: error.kind,
            message,
        },
        Err(_) => unreachable!("it was a value when it was sent"),
    }
}

impl<T: Schema> TypedPayload for T {}

impl<T: Schema> InPlace for T {
    type Target = T;

    const ALIGN: usize = align_of::<T>();
    const NAME: &'static str = <T as Schema>::NAME;

    fn message_type() -> MessageType {
        MessageType::new(<T as Schema>::NAME, T::VERSION, Layout::new::<T>())
    }

    #[inline]
    fn in_place(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline]
    fn is_made_of(bytes: &[u8]) -> bool {
        T::try_ref_from_bytes(bytes).is_ok()
    }

    #[inline]
    unsafe fn target(bytes: &[u8]) -> &T {
        // SAFETY: length, alignment and content are those of a `T` (the caller).
        unsafe { &*bytes.as_ptr().cast() }
    }

    #[inline]
    unsafe fn target_mut(bytes: &mut [u8]) -> &mut T {
        // SAFETY: as in `target`. Whatever is written is a `T`, and all of its bytes are
        // initialised (`IntoBytes`).
        unsafe { &mut *bytes.as_mut_ptr().cast() }
    }
}

impl<E: Schema> TypedPayload for [E] {}

impl<E: Schema + FromZeros> SlicePayload for [E] {}

impl<E: Schema + FromZeros> Items for [E] {
    fn len_of(items: usize) -> usize {
        items.saturating_mul(size_of::<E>())
    }
}

impl<E: Schema> InPlace for [E] {
    type Target = [E];

    const ALIGN: usize = align_of::<E>();
    const NAME: &'static str = E::NAME;

    fn message_type() -> MessageType {
        let empty = Layout::new::<[E; 0]>();
        MessageType::new(E::NAME, E::VERSION, empty).with_elements(size_of::<E>())
    }

    #[inline]
    fn in_place(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline]
    fn is_made_of(bytes: &[u8]) -> bool {
        <[E]>::try_ref_from_bytes(bytes).is_ok()
    }

    #[inline]
    unsafe fn target(bytes: &[u8]) -> &[E] {
        // SAFETY: length, alignment and content are those of an `[E]` (the caller).
        unsafe { items(bytes) }
    }

    #[inline]
    unsafe fn target_mut(bytes: &mut [u8]) -> &mut [E] {
        // SAFETY: as in `target`.
        unsafe { items_mut(bytes) }
    }
}

impl<H: Schema, E: Item> TypedPayload for WithHeader<H, [E]> {}

impl<H: Schema + FromZeros, E: Item + FromZeros> SlicePayload for WithHeader<H, [E]> {}

impl<H: Schema + FromZeros, E: Item + FromZeros> Items for WithHeader<H, [E]> {
    fn len_of(items: usize) -> usize {
        items
            .saturating_mul(size_of::<E>())
            .saturating_add(Self::ITEMS)
    }
}

impl<H: Schema, E: Item> InPlace for WithHeader<H, [E]> {
    type Target = H;

    const ALIGN: usize = Self::ALIGN;
    const NAME: &'static str = H::NAME;

    fn message_type() -> MessageType {
        let header =
            Layout::from_size_align(Self::ITEMS, Self::ALIGN).unwrap_or(Layout::new::<H>());
        MessageType::new(H::NAME, H::VERSION ^ E::IDENTITY.rotate_left(1), header)
            .with_elements(size_of::<E>())
    }

    fn in_place(&self) -> &[u8] {
        unreachable!("there is no value of this type outside of a message")
    }

    #[inline]
    fn is_made_of(bytes: &[u8]) -> bool {
        H::try_ref_from_prefix(bytes).is_ok()
            && bytes
                .get(Self::ITEMS..)
                .is_some_and(|items| <[E]>::try_ref_from_bytes(items).is_ok())
    }

    #[inline]
    unsafe fn target(bytes: &[u8]) -> &H {
        // SAFETY: the bytes begin with an `H`, aligned (the caller).
        unsafe { &*bytes.as_ptr().cast() }
    }

    #[inline]
    unsafe fn target_mut(bytes: &mut [u8]) -> &mut H {
        // SAFETY: as in `target`. Whatever is written is an `H`.
        unsafe { &mut *bytes.as_mut_ptr().cast() }
    }
}

/// # Safety
///
/// Length, alignment and content are those of an `[E]`.
#[inline]
unsafe fn items<E: Item>(bytes: &[u8]) -> &[E] {
    let len = bytes.len() / size_of::<E>();
    // SAFETY: passed on to the caller; the borrow is that of the bytes.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), len) }
}

/// # Safety
///
/// Length, alignment and content are those of an `[E]`.
#[inline]
unsafe fn items_mut<E: Item>(bytes: &mut [u8]) -> &mut [E] {
    let len = bytes.len() / size_of::<E>();
    // SAFETY: passed on to the caller; the borrow is that of the bytes. Whatever is written is an
    // `E`, and all of its bytes are initialised (`IntoBytes`).
    unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) }
}

/// Not nameable outside of the crate.
mod sealed {
    use super::{Message, ShmBytes, ShmBytesMut, ShmView};
    use crate::channel::layout::MessageType;
    use crate::channel::message::INLINE_ALIGN;
    use std::ops::Deref;
    use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

    /// What a value can lie in.
    pub trait Buffer: Deref<Target = [u8]> {
        /// Returns the alignment that a move of the buffer keeps.
        fn alignment(&self) -> usize {
            // The bytes do not move.
            usize::MAX
        }
    }

    impl Buffer for ShmBytesMut {}
    impl Buffer for ShmBytes {}
    impl Buffer for ShmView {}

    impl Buffer for Message {
        #[inline]
        fn alignment(&self) -> usize {
            if self.is_inline() {
                INLINE_ALIGN
            } else {
                usize::MAX
            }
        }
    }

    /// How a payload lies in its bytes.
    pub trait InPlace {
        /// What a `Value` dereferences to: the value, the slice, or the header.
        type Target: ?Sized;

        const ALIGN: usize;
        const NAME: &'static str;

        fn message_type() -> MessageType;

        /// Returns the bytes of a value.
        fn in_place(&self) -> &[u8];

        /// Checks length, alignment and content.
        fn is_made_of(bytes: &[u8]) -> bool;

        /// # Safety
        ///
        /// The bytes [are one](Self::is_made_of).
        unsafe fn target(bytes: &[u8]) -> &Self::Target;

        /// # Safety
        ///
        /// The bytes [are one](Self::is_made_of).
        unsafe fn target_mut(bytes: &mut [u8]) -> &mut Self::Target;
    }

    /// What follows a header: a `Schema`, or `u8`.
    pub trait Item: TryFromBytes + IntoBytes + KnownLayout + Immutable + 'static {
        /// Differs for types that differ.
        const IDENTITY: u64;
    }

    pub trait Items {
        /// Returns the length of a message of this many items, saturated.
        fn len_of(items: usize) -> usize;
    }
}

/// A buffer or a message whose bytes are a `T`. Dereferences to it, or to the header of a
/// [`WithHeader`]. What it has of its own are associated functions, for example
/// `Value::missed(&scan)`, so that they hide no method of `T`.
///
/// `B` is what the bytes lie in: [`ShmBytesMut`], [`ShmBytes`], [`Message`] or [`ShmView`].
pub struct Value<B, T: ?Sized> {
    /// [Made of](InPlace::is_made_of) a `T`, at the same place or one of the same alignment. Their
    /// length does not change, and the holder writes them only as a `T`.
    bytes: B,
    of: PhantomData<T>,
}

impl<B: Buffer, T: TypedPayload + ?Sized> Value<B, T> {
    /// Takes the bytes for a `T`. What was written into a buffer before stays there; for one that
    /// is to be written, see also [`try_zeroed`](Self::try_zeroed).
    ///
    /// # Errors
    ///
    /// The buffer itself, if its length or alignment is not that of a `T`, or its content is none.
    #[inline]
    pub fn try_new(bytes: B) -> Result<Self, B> {
        if T::ALIGN <= bytes.alignment() && T::is_made_of(&bytes) {
            Ok(Self::checked(bytes))
        } else {
            Err(bytes)
        }
    }
}

impl<B, T: ?Sized> Value<B, T> {
    fn checked(bytes: B) -> Self {
        Self {
            bytes,
            of: PhantomData,
        }
    }

    /// Returns the buffer or the message.
    pub fn into_inner(this: Self) -> B {
        this.bytes
    }

    /// Returns the buffer or the message: for example for a
    /// [descriptor](ShmBytes::descriptor) or a [grant](ShmBytes::grant).
    pub fn get_ref(this: &Self) -> &B {
        &this.bytes
    }
}

impl<T: TypedPayload + ?Sized> Value<ShmBytesMut, T> {
    /// Fills a buffer with zeros and takes them for a `T`: for one that was
    /// [waited for](Provider::request).
    ///
    /// # Errors
    ///
    /// The buffer, if its length or alignment is not that of a `T`, or zeros are none.
    pub fn try_zeroed(mut bytes: ShmBytesMut) -> Result<Self, ShmBytesMut> {
        bytes.fill(0);
        Self::try_new(bytes)
    }
}

impl<T: ?Sized> Value<ShmBytesMut, T> {
    /// Ends writing; see [`ShmBytesMut::freeze`]. A `send` does it by itself.
    #[inline]
    pub fn freeze(this: Self) -> Value<ShmBytes, T> {
        Value::checked(this.bytes.freeze())
    }
}

impl<T: ?Sized> From<Value<ShmBytesMut, T>> for Value<ShmBytes, T> {
    #[inline]
    fn from(value: Value<ShmBytesMut, T>) -> Self {
        Value::freeze(value)
    }
}

impl<T: ?Sized> Value<Message, T> {
    /// Returns how many messages were missed before this one; see [`Message::missed`].
    #[inline]
    pub fn missed(this: &Self) -> u32 {
        this.bytes.missed()
    }

    /// Returns the tag, if the message was sent with one; see [`Message::tag`].
    #[inline]
    pub fn tag(this: &Self) -> Option<[u8; 16]> {
        this.bytes.tag()
    }
}

impl<B: Buffer, H: Schema, E: Item> Value<B, WithHeader<H, [E]>> {
    /// Returns the items that follow the header.
    #[inline]
    pub fn items(this: &Self) -> &[E] {
        let bytes = &this.bytes[WithHeader::<H, [E]>::ITEMS..];
        // SAFETY: the invariant of `bytes`.
        unsafe { items(bytes) }
    }
}

impl<H: Schema, E: Item> Value<ShmBytesMut, WithHeader<H, [E]>> {
    /// Returns the items that follow the header.
    #[inline]
    pub fn items_mut(this: &mut Self) -> &mut [E] {
        Self::split_mut(this).1
    }

    /// Returns the header and the items.
    #[inline]
    pub fn split_mut(this: &mut Self) -> (&mut H, &mut [E]) {
        let (header, items) = this.bytes.split_at_mut(WithHeader::<H, [E]>::ITEMS);
        // SAFETY: the invariant of `bytes`.
        let header = unsafe { WithHeader::<H, [E]>::target_mut(header) };
        // SAFETY: the invariant of `bytes`.
        (header, unsafe { items_mut(items) })
    }
}

impl<B: Buffer, T: TypedPayload + ?Sized> Deref for Value<B, T> {
    type Target = T::Target;

    #[inline]
    fn deref(&self) -> &T::Target {
        // SAFETY: the invariant of `bytes`.
        unsafe { T::target(&self.bytes) }
    }
}

impl<T: TypedPayload + ?Sized> DerefMut for Value<ShmBytesMut, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T::Target {
        // SAFETY: the invariant of `bytes`.
        unsafe { T::target_mut(&mut self.bytes) }
    }
}

impl<T: ?Sized> Clone for Value<ShmBytes, T> {
    #[inline]
    fn clone(&self) -> Self {
        Self::checked(self.bytes.clone())
    }
}

impl<T: ?Sized> Clone for Value<Message, T> {
    #[inline]
    fn clone(&self) -> Self {
        Self::checked(self.bytes.clone())
    }
}

impl<B: Buffer, T: TypedPayload + ?Sized> fmt::Debug for Value<B, T>
where
    T::Target: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Provider {
    /// Allocates a buffer and moves a value into it (feature `zerocopy`). A large one is better
    /// written in place: [`alloc_value_zeroed`](Self::alloc_value_zeroed).
    ///
    /// # Errors
    ///
    /// As [`alloc_layout`](Self::alloc_layout).
    #[inline]
    pub fn alloc_value<T: Schema>(&self, value: T) -> Result<Value<ShmBytesMut, T>, AllocError> {
        let mut buffer = self.alloc_layout(Layout::new::<T>())?;
        buffer.copy_from_slice(value.as_bytes());
        Ok(Value::checked(buffer))
    }

    /// Allocates a `T` that is all zeros, to be written in place (feature `zerocopy`). Never waits
    /// for memory; for that, see [`Value::try_zeroed`].
    ///
    /// # Errors
    ///
    /// As [`alloc_layout`](Self::alloc_layout).
    #[inline]
    pub fn alloc_value_zeroed<T: Schema + FromZeros>(
        &self,
    ) -> Result<Value<ShmBytesMut, T>, AllocError> {
        let mut buffer = self.alloc_layout(Layout::new::<T>())?;
        buffer.fill(0);
        Ok(Value::checked(buffer))
    }

    /// Allocates an `[E]` or a [`WithHeader`] of this many items, all zeros (feature `zerocopy`).
    ///
    /// # Errors
    ///
    /// As [`alloc_layout`](Self::alloc_layout).
    #[inline]
    pub fn alloc_slice_zeroed<T: SlicePayload + ?Sized>(
        &self,
        items: usize,
    ) -> Result<Value<ShmBytesMut, T>, AllocError> {
        // Saturated, it is refused as too large.
        let mut buffer = self.alloc_aligned(T::len_of(items), T::ALIGN)?;
        buffer.fill(0);
        Ok(Value::checked(buffer))
    }
}

macro_rules! allocs {
    ($end:ident) => {
        impl<T: Schema> $end<T> {
            /// Allocates a buffer for [`send`](Self::send), and moves a value into it:
            /// [`Provider::alloc_value`] (feature `zerocopy`).
            ///
            /// # Errors
            ///
            /// Those of [`Provider::alloc_value`].
            #[inline]
            pub fn alloc_value(&self, value: T) -> Result<Value<ShmBytesMut, T>, AllocError> {
                self.provider().alloc_value(value)
            }

            /// Allocates a value for [`send`](Self::send) that is all zeros, to be written in
            /// place: [`Provider::alloc_value_zeroed`] (feature `zerocopy`).
            ///
            /// # Errors
            ///
            /// Those of [`Provider::alloc_value_zeroed`].
            #[inline]
            pub fn alloc_value_zeroed(&self) -> Result<Value<ShmBytesMut, T>, AllocError>
            where
                T: FromZeros,
            {
                self.provider().alloc_value_zeroed()
            }
        }

        impl<T: SlicePayload + ?Sized> $end<T> {
            /// Allocates a message of this many items for [`send`](Self::send), all zeros:
            /// [`Provider::alloc_slice_zeroed`] (feature `zerocopy`).
            ///
            /// # Errors
            ///
            /// Those of [`Provider::alloc_slice_zeroed`].
            #[inline]
            pub fn alloc_slice_zeroed(
                &self,
                items: usize,
            ) -> Result<Value<ShmBytesMut, T>, AllocError> {
                self.provider().alloc_slice_zeroed(items)
            }
        }
    };
}

allocs!(Sender);
allocs!(Publisher);
