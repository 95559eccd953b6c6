//! Times, sizes and numbers as people read and write them.

use std::fmt;

/// A time in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Nanoseconds(pub f64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 99.95 => write!(f, "{ns:.1} ns"),
            ns if ns < 9_999.5 => write!(f, "{ns:.0} ns"),
            ns if ns < 999_500.0 => write!(f, "{:.1} µs", ns / 1e3),
            ns if ns < 9_999_500_000.0 => write!(f, "{:.1} ms", ns / 1e6),
            ns => write!(f, "{:.1} s", ns / 1e9),
        }
    }
}

impl Nanoseconds {
    /// Reads a time as it is shown. What follows it, such as a range, is ignored.
    pub fn parse(text: &str) -> Option<f64> {
        let mut words = text.split(' ');
        let number: f64 = words.next()?.parse().ok()?;
        let factor = match words.next()? {
            "ns" => 1.0,
            "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return None,
        };
        Some(number * factor)
    }
}

const UNITS: [(&str, usize); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Parses a size from the command line: bytes, or with a unit.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let factor = match UNITS
        .iter()
        .find(|(name, _)| unit.eq_ignore_ascii_case(name))
    {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(format!("unit {unit:?} is none of B, KiB, MiB, GiB")),
    };
    let number: usize = digits
        .parse()
        .map_err(|_| format!("{digits:?} is not a whole number of bytes"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| "more bytes than this machine can address".to_owned())
}

/// A number of bytes, shown in the largest unit of which it has at least one.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, factor) = UNITS
            .into_iter()
            .find(|&(_, factor)| self.0 >= factor as u64)
            .unwrap_or(("B", 1));
        let number = format!("{:.2}", self.0 as f64 / factor as f64);
        write!(
            f,
            "{} {name}",
            number.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

/// Converts bytes to MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Formats the number with a comma at every three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}
