//! The contents of a message, and whether it is intact.

/// Odd, near 2^64 divided by the golden ratio: multiplying by it mixes the bits without loss.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the seed of a sender's message, unique for that sender.
pub fn seed(sender: u64, sequence: u64) -> u64 {
    sender ^ sequence.wrapping_mul(FACTOR)
}

/// Fills any length so that [`check_pattern`] can distinguish it from every other seed and length,
/// and each of its words from the others.
pub fn fill_pattern(bytes: &mut [u8], seed: u64) {
    let seed = with_len(seed, bytes.len());
    let whole = bytes.len() / 8;
    let mut words = bytes.chunks_exact_mut(8);
    for (at, word) in words.by_ref().enumerate() {
        word.copy_from_slice(&pattern(at, seed));
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&pattern(whole, seed)[..rest.len()]);
}

/// Compares every byte. The error says where it differs.
pub fn check_pattern(bytes: &[u8], seed: u64) -> Result<(), String> {
    let expected = with_len(seed, bytes.len());
    let difference = |at: usize, word: &[u8]| {
        let byte = at * 8;
        let len = bytes.len();
        format!("message {seed:#x} has {word:x?} at byte {byte} of {len}")
    };
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    for (at, word) in words.enumerate() {
        if word != pattern(at, expected) {
            return Err(difference(at, word));
        }
    }
    let last = bytes.len() / 8;
    if *rest != pattern(last, expected)[..rest.len()] {
        return Err(difference(last, rest));
    }
    Ok(())
}

fn with_len(seed: u64, len: usize) -> u64 {
    seed.rotate_left(32) ^ (len as u64).wrapping_mul(FACTOR)
}

/// Different seeds and different positions give different words. The byte that depends on most of
/// them is first, for a message whose last word is cut off.
fn pattern(at: usize, seed: u64) -> [u8; 8] {
    (seed ^ at as u64).wrapping_mul(FACTOR).to_be_bytes()
}

/// Returns `true` if both ends are this byte: a free check where every byte was filled with it.
pub fn has_ends(bytes: &[u8], byte: u8) -> bool {
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => *first == byte && *last == byte,
        _ => true,
    }
}
