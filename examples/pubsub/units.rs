//! Sizes, numbers and tables as people read and write them.

use std::fmt::{self, Write};

const UNITS: [(&str, usize); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A size from the command line: bytes, or with a unit.
pub(crate) fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let known = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name));
    let factor = match known {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(format!("unit {unit:?} is none of B, KiB, MiB, GiB")),
    };
    let number: usize = digits.parse().map_err(|_| format!("{digits:?} is not a whole number of bytes"))?;
    number.checked_mul(factor).ok_or_else(|| "more bytes than this machine can address".to_owned())
}

/// A number of bytes, with the largest unit that it has at least one of.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, factor) = UNITS.into_iter().find(|&(_, factor)| self.0 >= factor as u64).unwrap_or(("B", 1));
        let number = format!("{:.2}", self.0 as f64 / factor as f64);
        let number = number.trim_end_matches('0').trim_end_matches('.');
        f.pad(&format!("{number} {name}"))
    }
}

/// The number with a comma at every three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Rows as lines: the first column to the left, the others to the right.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if column == 0 { write!(line, "{cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
