//! Tables in Markdown, so that a program's output can be shown anywhere; and goals for ratios.

pub use comfy_table::Table;
use comfy_table::{presets, CellAlignment};
use std::fmt;

/// A table whose first column is text and whose others are numbers.
pub fn table<H: AsRef<str>>(heads: &[H]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(heads.iter().map(AsRef::as_ref));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The goal for a ratio. Missing it is a result, and no error.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
    /// This or more.
    AtLeast(f64),
    /// Only reported.
    None,
}

impl Goal {
    /// Compares the ratio to the goal. NaN misses every goal.
    pub fn verdict(self, ratio: f64) -> &'static str {
        match self {
            Self::AtMost(bound) if ratio <= bound => "pass",
            Self::Below(bound) if ratio < bound => "pass",
            Self::AtLeast(bound) if ratio >= bound => "pass",
            Self::None => "",
            _ => "MISSED",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::Below(bound) => write!(f, "below {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
            Self::None => f.write_str("none"),
        }
    }
}
