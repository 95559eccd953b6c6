//! Numbers that look random enough, and are the same for everybody.

/// xorshift64: the order has to be the same in every run, and no better than that.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Odd, because xorshift never leaves zero.
        Self(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed.wrapping_mul(2).wrapping_add(1)))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    /// From 0 to less than 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 32) as f64 / (1_u64 << 32) as f64
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
