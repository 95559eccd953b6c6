//! Messages of 8 bytes or more that identify themselves: a number, and a pattern derived from it.

use crate::payload::{check_pattern, fill_pattern, seed};
use crate::Fallible;
use std::mem::size_of;

/// Fills every byte of a sender's message.
pub fn fill(bytes: &mut [u8], sender: u64, number: u64) {
    let (head, rest) = bytes.split_at_mut(size_of::<u64>());
    head.copy_from_slice(&number.to_le_bytes());
    fill_pattern(rest, seed(sender, number));
}

/// Returns the number that the message contains.
pub fn number(bytes: &[u8]) -> Fallible<u64> {
    match bytes.first_chunk() {
        Some(head) => Ok(u64::from_le_bytes(*head)),
        None => Err("a message without a number".into()),
    }
}

/// Checks every byte.
pub fn check(bytes: &[u8], len: usize, sender: u64, number: u64) -> Fallible {
    if bytes.len() != len || self::number(bytes)? != number {
        let found = format!(
            "message {number} of sender {sender}, of {len} bytes, is another one: {bytes:.16?}"
        );
        return Err(found.into());
    }
    check_pattern(&bytes[size_of::<u64>()..], seed(sender, number))?;
    Ok(())
}
