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
    /// Parses a time as it is shown, and ignores the text after it, such as a range.
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

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

const UNITS: [(&str, usize); 4] = [("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)];

/// Parses a size from the command line: bytes, or with a unit.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let Some(factor) = factor(unit) else {
        return Err(format!("unit {unit:?} is none of B, KiB, MiB, GiB"));
    };
    let Ok(number) = digits.parse::<usize>() else {
        return Err(format!("{digits:?} is not a whole number of bytes"));
    };
    match number.checked_mul(factor) {
        Some(bytes) => Ok(bytes),
        None => Err("more bytes than this machine can address".to_owned()),
    }
}

/// Returns how many bytes a unit has, in any case of its letters; no unit means bytes.
fn factor(unit: &str) -> Option<usize> {
    if unit.is_empty() {
        return Some(1);
    }
    for (name, factor) in UNITS {
        if unit.eq_ignore_ascii_case(name) {
            return Some(factor);
        }
    }
    None
}

/// A number of bytes, shown in the largest unit of which it has at least one.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as usize;
        let (name, factor) = match bytes {
            GIB.. => ("GiB", GIB),
            MIB.. => ("MiB", MIB),
            KIB.. => ("KiB", KIB),
            _ => ("B", 1),
        };
        let number = format!("{:.2}", bytes as f64 / factor as f64);
        let number = number.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{number} {name}")
    }
}

/// Converts bytes to MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Formats the number with a comma at every three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let is_start_of_group = (digits.len() - index).is_multiple_of(3);
        if index > 0 && is_start_of_group {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
