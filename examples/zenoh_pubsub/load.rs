//! The loads: which messages are sent, when there is more to it than a list of sizes. What else makes a load (how fast,
//! to whom, under which cap) is in the defaults of the options.

use clap::ValueEnum;

/// The most segments that the pool may make in a load. Receivers keep each segment that they have ever seen open,
/// mapped and locked for as long as they run.
pub(crate) const MAX_SEGMENTS: usize = 16;

/// Traffic that one kind of memory or the other may find hard.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// 6.2 MB, 1 MB and 2 KB in random order, cap 64 MiB; three subscribers, of which one is slow and keeps 4 messages
    Mixed,
    /// 1 B to 4 MiB, 300 messages a second, cap 64 MiB; one subscriber, which keeps 8 messages
    Random,
    /// 300 KB as fast as they go, cap 1 GiB; one subscriber, which works on each message for 200 µs
    Fixed,
    /// 1 B to 4 MiB as fast as they go, cap 64 MiB; a slow subscriber and a fast one; prints four ratios
    Saturated,
}

impl Load {
    /// The sizes of `count` messages. All processes draw the same.
    pub(crate) fn draw(self, sizes: &[usize], count: u64, seed: u64) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(seed);
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let turns = (0..count).zip(sizes.iter().cycle());
        let one = |(_, &in_turn): (u64, &usize)| match self {
            Self::Mixed => sizes[random.usize(..sizes.len())],
            Self::Random | Self::Saturated => random.usize(1..=largest),
            Self::Fixed => in_turn,
        };
        turns.map(one).collect()
    }
}

/// The most bytes that so many messages in a row have.
pub(crate) fn most_in_a_row(sizes: &[usize], messages: usize) -> usize {
    let (mut sum, mut most) = (0, 0);
    for (at, size) in sizes.iter().enumerate() {
        sum += size;
        sum -= at.checked_sub(messages).map_or(0, |gone| sizes[gone]);
        most = sum.max(most);
    }
    most
}
