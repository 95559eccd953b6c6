//! What is in a frame or a sample: its number, and a pattern made from that.

#![forbid(unsafe_code)]

use shm_pool_support::payload::{check_pattern, fill_pattern, seed};
use shm_pool_support::Fallible;
use std::mem::size_of;

pub(crate) fn fill(bytes: &mut [u8], sensor: u64, number: u64) {
    let (head, rest) = bytes.split_at_mut(size_of::<u64>());
    head.copy_from_slice(&number.to_le_bytes());
    fill_pattern(rest, seed(sensor, number));
}

/// The number that it says it has.
pub(crate) fn number(bytes: &[u8]) -> Fallible<u64> {
    let head = bytes.get(..size_of::<u64>()).ok_or("a message without a number")?;
    Ok(u64::from_le_bytes(head.try_into()?))
}

/// Looks at every byte.
pub(crate) fn check(bytes: &[u8], len: usize, sensor: u64, number: u64) -> Fallible {
    if bytes.len() != len || self::number(bytes)? != number {
        return Err(format!("message {number} of sensor {sensor}, of {len} bytes, is another one: {bytes:.16?}").into());
    }
    Ok(check_pattern(&bytes[size_of::<u64>()..], seed(sensor, number))?)
}
