//! What is in a message, and whether it is whole.
//!
//! ```text
//!   0        8          16                    len - 8     len
//!   sequence provider   noise made from both  checksum
//! ```
//!
//! The checksum is over all bytes before it. A message of which any part was overwritten fails it;
//! one that was replaced as a whole has another number. Below are simpler contents for who has no
//! identity to tell.

/// The shortest message in bytes.
pub const SHORTEST: usize = 24;

/// Odd, near 2^64 divided by the golden ratio: multiplying by it mixes, and loses nothing.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who has sent it.
    pub provider: u64,
    /// Which of the sender's.
    pub sequence: u64,
}

/// Writes the whole message. At least [`SHORTEST`] bytes.
pub fn fill(bytes: &mut [u8], identity: Identity) {
    let end = bytes.len() - 8;
    let (body, tail) = bytes.split_at_mut(end);
    let (head, noise) = body.split_at_mut(16);
    head[..8].copy_from_slice(&identity.sequence.to_le_bytes());
    head[8..].copy_from_slice(&identity.provider.to_le_bytes());
    let mut state = identity.provider ^ identity.sequence.wrapping_mul(FACTOR);
    for word in noise.chunks_mut(8) {
        state = (state ^ state >> 29).wrapping_mul(FACTOR);
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    tail.copy_from_slice(&checksum(body).to_le_bytes());
}

/// Looks at every byte. The error says what is wrong.
pub fn check(bytes: &[u8], identity: Identity) -> Result<(), String> {
    if bytes.len() < SHORTEST {
        return Err(format!("{identity:?} has only {} bytes", bytes.len()));
    }
    let (body, tail) = bytes.split_at(bytes.len() - 8);
    let (noted, computed) = (word(tail), checksum(body));
    if noted != computed {
        let len = bytes.len();
        return Err(format!("{identity:?} of {len} bytes has checksum {noted:#018x}, and its bytes {computed:#018x}"));
    }
    let found = Identity { provider: word(&body[8..16]), sequence: word(&body[..8]) };
    if found != identity {
        return Err(format!("{identity:?} was expected, and {found:?} is there"));
    }
    Ok(())
}

/// Each step is a bijection of the running value, so that bytes that differ in one word always
/// differ in the result.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let words = bytes.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    let sum = words.map(word).fold(bytes.len() as u64, step);
    step(sum, u64::from_le_bytes(last))
}

/// The little-endian number in eight bytes.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Fills any length so that [`check_pattern`] can tell it from every other one, and each of its
/// words from the others.
pub fn fill_pattern(bytes: &mut [u8], seed: u64) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        word.copy_from_slice(&pattern(at, seed)[..word.len()]);
    }
}

/// Compares every byte; the error says where it differs.
pub fn check_pattern(bytes: &[u8], seed: u64) -> Result<(), String> {
    let is_wrong = |(at, word): &(usize, &[u8])| *word != &pattern(*at, seed)[..word.len()];
    match bytes.chunks(8).enumerate().find(is_wrong) {
        None => Ok(()),
        Some((at, word)) => Err(format!("message {seed} has {word:?} at byte {} of {}", at * 8, bytes.len())),
    }
}

fn pattern(at: usize, seed: u64) -> [u8; 8] {
    // Different seeds and different places give different words.
    (seed << 32 ^ at as u64).wrapping_mul(FACTOR).to_le_bytes()
}

/// Are both ends this byte? A look that costs nothing, where every byte was filled with it.
pub fn has_ends(bytes: &[u8], byte: u8) -> bool {
    bytes.first().is_none_or(|&first| first == byte) && bytes.last().is_none_or(|&last| last == byte)
}
