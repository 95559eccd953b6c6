//! The type of a channel's messages, as its sender has declared it in the object, and its check.
//!
//! The words are the last of the object's first page. The sender writes them before it opens the
//! object, and they never change. Each message is checked by itself.

use super::error::ChannelError;
use crate::os::mapping::Mapping;
use crate::os::posix::PAGE;
use std::alloc::Layout;
use std::borrow::Cow;
use std::fmt;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The longest name of a type, in bytes.
pub(super) const MAX_NAME: usize = 96;

/// A type of messages: a name, a version, and the layout of a value.
///
/// A [`Sender`](super::Sender) or [`Publisher`](super::Publisher) may declare one for its channel.
/// A receiver that [expects a type](super::ReceiverBuilder::message_type) then opens no channel of
/// another, or of none; other receivers open any. With the feature `zerocopy`, the module `typed`
/// declares Rust types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageType {
    name: Cow<'static, str>,
    version: u64,
    size: u64,
    element: u64,
    align: u32,
}

impl MessageType {
    /// Creates a type of values of one layout. The name has from 1 to 96 bytes. `version` is any
    /// number that changes when the meaning of the bytes does.
    pub fn new(name: &'static str, version: u64, layout: Layout) -> Self {
        // A `Layout` is at most half of the address space; no alignment above 2^31 can be allocated.
        let align = u32::try_from(layout.align()).unwrap_or(u32::MAX);
        Self { name: Cow::Borrowed(name), version, size: layout.size() as u64, element: 0, align }
    }

    /// The same, followed by any number of elements of `bytes` each.
    pub fn with_elements(self, bytes: usize) -> Self {
        Self { element: bytes as u64, ..self }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the size of a value in bytes, without elements.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of an element in bytes, or 0 if there are none.
    pub fn element_size(&self) -> u64 {
        self.element
    }

    /// Returns the alignment in bytes.
    pub fn align(&self) -> u32 {
        self.align
    }

    pub(super) fn check(this: &Option<Self>) -> Result<(), ChannelError> {
        this.as_ref().map_or(Ok(()), |this| ChannelError::check("message_type", this.name.len(), 1, MAX_NAME))
    }

    /// Returns what was found. Fails if a type is expected and this is not that one.
    pub(super) fn expect(
        expected: &Option<Self>,
        found: Option<Self>,
        object: impl Fn() -> String,
    ) -> Result<Option<Self>, ChannelError> {
        if expected.is_none() || *expected == found {
            return Ok(found);
        }
        Err(ChannelError::TypeMismatch { object: object(), types: Box::new((expected.clone(), found)) })
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, size, element, align } = self;
        write!(f, "{name:?}, version {version:#x}: {size} bytes")?;
        if *element > 0 {
            write!(f, " and elements of {element}")?;
        }
        write!(f, " aligned to {align}")
    }
}

/// The words of a type in an object. Atomics only.
#[derive(Default)]
#[repr(C)]
pub(super) struct TypeWords {
    /// 0 if no type is declared.
    type_align: AtomicU32,
    type_name_len: AtomicU32,
    type_version: AtomicU64,
    type_size: AtomicU64,
    type_element: AtomicU64,
    type_name: [AtomicU64; MAX_NAME / size_of::<u64>()],
}

/// The offset of the words in an object.
pub(super) const OFFSET: usize = PAGE - size_of::<TypeWords>();

/// The fields, with their offsets in the object, as `docs::format` documents them.
#[cfg(all(test, not(loom)))]
pub(super) fn offsets() -> Vec<(&'static str, usize)> {
    let fields: &[_] = offsets!(TypeWords: type_align type_name_len type_version type_size type_element type_name);
    fields.iter().map(|(field, offset)| (*field, OFFSET + offset)).collect()
}

impl TypeWords {
    /// Returns the words of an object, at least a page long.
    pub(super) fn of(mapping: &Mapping) -> &Self {
        assert!(mapping.len() >= PAGE);
        // SAFETY: within the mapping (asserted).
        let words = unsafe { mapping.base().as_ptr().add(OFFSET) };
        // SAFETY: a mapping is page-aligned and the offset a multiple of 8; the words are atomics.
        unsafe { &*words.cast() }
    }

    /// Declares the type of a new object, which is not open yet, and so full of zeros.
    pub(super) fn declare(&self, message_type: &MessageType) {
        // Relaxed, here and below: published with the object's state.
        let MessageType { name, version, size, element, align } = message_type;
        self.type_name_len.store(name.len() as u32, Ordering::Relaxed);
        self.type_version.store(*version, Ordering::Relaxed);
        self.type_size.store(*size, Ordering::Relaxed);
        self.type_element.store(*element, Ordering::Relaxed);
        for (word, bytes) in self.type_name.iter().zip(name.as_bytes().chunks(size_of::<u64>())) {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.type_align.store(*align, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Option<MessageType> {
        let align = self.type_align.load(Ordering::Relaxed);
        if align == 0 {
            return None;
        }
        let len = (self.type_name_len.load(Ordering::Relaxed) as usize).min(MAX_NAME);
        let name: Vec<u8> = self.type_name.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        Some(MessageType {
            name: String::from_utf8_lossy(&name[..len]).into_owned().into(),
            version: self.type_version.load(Ordering::Relaxed),
            size: self.type_size.load(Ordering::Relaxed),
            element: self.type_element.load(Ordering::Relaxed),
            align,
        })
    }
}
