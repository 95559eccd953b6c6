//! The positions of the words of a control object, and the values that a hostile process writes
//! into them.
//!
//! The offsets follow `src/protocol/control.rs`. If they were wrong, the programs would still be
//! hostile, but would hit less often.

use arbitrary::{Arbitrary, Unstructured};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The number of records of the providers in these programs.
pub(crate) const RECORDS: u64 = 8;

const PAGE: u64 = 4096;
const RECORD: u64 = 128;
const EPOCHS_OFFSET: u64 = 32;
const SEGMENTS_OFFSET: u64 = EPOCHS_OFFSET + 64 * 8;
const HELD_OFFSET: u64 = 896;

/// One 64-bit word of a control object.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Word {
    /// Magic; version and state; provider; records and high water.
    Head(u8),
    Epoch(u8),
    /// An entry of the table of segments.
    Entry(u8),
    /// The bytes that a peer holds.
    Held(u8),
    Lanes {
        record: u8,
        word: u8,
    },
    Generation(u8),
    /// One of the four words that say where a record's bytes are.
    Place {
        record: u8,
        word: u8,
    },
    Any(u16),
}

/// A value to write into a word.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Value {
    Zero,
    Ones,
    Small(u8),
    Bit(u8),
    Any(u64),
    /// Two small numbers, one in each 32-bit half.
    Halves(u16, u16),
    /// The word's current value, plus or minus a little.
    Plus(i8),
    /// The value of another word: garbage that looks genuine.
    CopyOf(Word),
}

/// One hostile write.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Write {
    Word(Word, Value),
    /// One byte, for example a lane.
    Byte(u16, u8),
    Bytes(u16, Vec<u8>),
    Fill {
        from: u16,
        len: u16,
        byte: u8,
    },
}

/// A control object or a channel's object, opened as any process of the same user can open it. Its
/// length never changes.
pub(crate) struct OpenObject {
    file: File,
    len: u64,
    records: u64,
}

impl OpenObject {
    pub(crate) fn open(path: &Path, records: u64) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("a control object");
        let len = file.metadata().expect("an open file").len();
        Self { file, len, records }
    }

    fn offset(&self, word: Word) -> u64 {
        let record = |index: u8| PAGE + u64::from(index) % self.records * RECORD;
        let at = match word {
            Word::Head(word) => u64::from(word) % 4 * 8,
            Word::Epoch(slot) => EPOCHS_OFFSET + u64::from(slot) % 64 * 8,
            Word::Entry(index) => SEGMENTS_OFFSET + u64::from(index) % 16 * 8,
            Word::Held(slot) => HELD_OFFSET + u64::from(slot) % 64 * 8,
            Word::Lanes { record: of, word } => record(of) + 8 + u64::from(word) % 8 * 8,
            Word::Generation(of) => record(of),
            Word::Place { record: of, word } => record(of) + 72 + u64::from(word) % 4 * 8,
            Word::Any(at) => u64::from(at) * 8,
        };
        at % (self.len - 7)
    }

    pub(crate) fn apply(&self, write: &Write) {
        match write {
            Write::Word(word, value) => self.set(*word, self.value(*word, *value)),
            Write::Byte(at, byte) => self.write(u64::from(*at), &[*byte]),
            Write::Bytes(at, bytes) => self.write(u64::from(*at), bytes),
            Write::Fill { from, len, byte } => {
                self.write(u64::from(*from), &vec![*byte; usize::from(*len)])
            }
        }
    }

    pub(crate) fn set(&self, word: Word, value: u64) {
        self.write(self.offset(word), &value.to_le_bytes());
    }

    /// Writes `len` equal bytes, starting at a word, in one call.
    #[cfg(test)]
    pub(crate) fn fill(&self, from: Word, len: usize, byte: u8) {
        self.write(self.offset(from), &vec![byte; len]);
    }

    pub(crate) fn get(&self, word: Word) -> u64 {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, self.offset(word))
            .expect("a word within the file");
        u64::from_le_bytes(bytes)
    }

    fn value(&self, word: Word, value: Value) -> u64 {
        match value {
            Value::Zero => 0,
            Value::Ones => u64::MAX,
            Value::Small(small) => small.into(),
            Value::Bit(bit) => 1 << (bit % 64),
            Value::Any(any) => any,
            Value::Halves(low, high) => u64::from(high) << 32 | u64::from(low),
            Value::Plus(step) => self.get(word).wrapping_add_signed(step.into()),
            Value::CopyOf(other) => self.get(other),
        }
    }

    /// Writes as much as fits.
    fn write(&self, at: u64, bytes: &[u8]) {
        let at = at % self.len;
        let fits = bytes.len().min((self.len - at) as usize);
        self.file
            .write_all_at(&bytes[..fits], at)
            .expect("a write within the file");
    }
}

/// Writes that another thread repeats while others work: none, most of the time.
#[derive(Clone, Debug)]
pub(super) struct Storm(Vec<Write>);

impl<'a> Arbitrary<'a> for Storm {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let count = u8::arbitrary(bytes)?.saturating_sub(250);
        Ok(Self(
            (0..count)
                .map(|_| bytes.arbitrary())
                .collect::<Result<_, _>>()?,
        ))
    }
}

impl Storm {
    pub(super) const CALM: Self = Self(Vec::new());

    pub(super) fn is_calm(&self) -> bool {
        self.0.is_empty()
    }

    /// Repeats the writes into `object` from before `work` begins until it ends.
    pub(super) fn during(&self, object: &OpenObject, work: impl FnOnce()) {
        /// Ends the storm on drop, also if a check fails, so that the scope can end.
        struct Calm<'a>(&'a AtomicBool);

        impl Drop for Calm<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }

        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _calm = Calm(&is_over);
            if !self.is_calm() {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        for write in &self.0 {
                            object.apply(write);
                        }
                    }
                });
            }
            work();
        });
    }
}
