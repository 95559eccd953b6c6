//! The types of messages that senders and publishers declare.

use crate::status::{Failure, Status};
use shm_pool::channel;
use std::alloc::Layout;
use std::ffi::c_char;
use std::str;

/// A type of messages: plain bytes, without a pointer. Initialise it with zeros: an empty name means
/// no type.
///
/// A sender or publisher may declare one for its channel. A receiver that expects a type opens no
/// channel of another, or of none; other receivers open any. Neither side checks the messages.
///
/// ```c
/// shm_pool_message_type pose = {
///     .name = "robot.Pose", .version = 1, .size = sizeof(struct pose), .align = _Alignof(struct pose)};
/// shm_pool_publisher_options options = {.message_type = pose};
/// ```
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MessageType {
    /// The name, the same in all programs and languages: 1 to 96 bytes of UTF-8, and a NUL.
    pub name: [c_char; 104],
    /// Any number that changes when the meaning of the bytes does.
    pub version: u64,
    /// The size of a message in bytes, without elements.
    pub size: u64,
    /// The alignment in bytes, a power of two; 0 means 1.
    pub align: u64,
    /// The size of an element in bytes, if any number of them follow; 0 if none do.
    pub element_size: u64,
}

impl MessageType {
    pub(crate) const NONE: Self = Self {
        name: [0; 104],
        version: 0,
        size: 0,
        align: 0,
        element_size: 0,
    };

    pub(crate) fn of(message_type: &channel::MessageType) -> Self {
        let mut of = Self {
            version: message_type.version(),
            size: message_type.size(),
            align: message_type.align().into(),
            element_size: message_type.element_size(),
            ..Self::NONE
        };
        copy_text(message_type.name(), &mut of.name);
        of
    }

    /// Returns `None` for an empty name.
    pub(crate) fn get(&self) -> Result<Option<channel::MessageType>, Failure> {
        let invalid = |text: String| Failure::new(Status::InvalidArgument, text);
        let mut name = Vec::new();
        for &byte in &self.name {
            if byte == 0 {
                break;
            }
            name.push(byte as u8);
        }
        if name.is_empty() {
            return Ok(None);
        }
        let Ok(name) = String::from_utf8(name) else {
            return Err(invalid("the name of message_type is not UTF-8".to_owned()));
        };
        let layout = match (usize::try_from(self.size), usize::try_from(self.align)) {
            (Ok(size), Ok(align)) => Layout::from_size_align(size, align.max(1)).ok(),
            _ => None,
        };
        let Some(layout) = layout else {
            return Err(invalid(format!(
                "message_type has {} bytes aligned to {}, which no value has",
                self.size, self.align
            )));
        };
        let Ok(element_size) = usize::try_from(self.element_size) else {
            return Err(invalid(
                "element_size of message_type is too large".to_owned(),
            ));
        };
        let message_type = channel::MessageType::with_name(name, self.version, layout);
        Ok(Some(message_type.with_elements(element_size)))
    }
}

/// Copies a text into an array of zeros, as far as it fits with a NUL behind it.
pub(crate) fn copy_text(text: &str, array: &mut [c_char]) {
    let max_len = array.len() - 1;
    for (place, byte) in array[..max_len].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_survives_the_conversion() {
        let layout = Layout::from_size_align(24, 8).expect("a layout");
        let name = "n".repeat(96);
        let original = channel::MessageType::with_name(name, 7, layout).with_elements(12);
        let there = MessageType::of(&original);
        assert!(there
            .get()
            .is_ok_and(|back| back.as_ref() == Some(&original)));
        assert!(MessageType::NONE.get().is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn impossible_types() {
        let layout = Layout::from_size_align(24, 8).expect("a layout");
        let original = channel::MessageType::with_name("pose".to_owned(), 7, layout);
        let mut align = MessageType::of(&original);
        align.align = 3;
        assert!(align.get().is_err());
        let mut name = MessageType::of(&original);
        name.name[0] = 0xff_u8 as c_char;
        assert!(name.get().is_err());
    }
}
