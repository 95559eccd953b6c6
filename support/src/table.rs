//! Tables in Markdown, so that a program's output can be shown anywhere; and goals for ratios.

pub use comfy_table::Table;
use comfy_table::{presets, CellAlignment, Row};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::Write;
use std::{env, fmt};

/// A table whose first column is text and whose others are numbers.
pub fn table<H: AsRef<str>>(heads: &[H]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(heads.iter().map(AsRef::as_ref));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Names the file to which every table that is shown is appended, as a line of JSON.
pub const FIGURES: &str = "SHM_POOL_FIGURES";

/// A table as such a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Unique among all benches.
    pub name: String,
    /// The heads of the columns.
    pub columns: Vec<String>,
    /// The cells of each row, at most as many as columns.
    pub rows: Vec<Vec<String>>,
}

/// Prints a table, and appends it to the file that [`FIGURES`] names, if there is one.
pub fn show(name: &str, table: &Table) {
    println!("{table}\n");
    let Some(file) = env::var_os(FIGURES) else {
        return;
    };
    let columns = match table.header() {
        Some(row) => cells(row),
        None => Vec::new(),
    };
    let figures = Figures {
        name: name.to_owned(),
        columns,
        rows: table.row_iter().map(cells).collect(),
    };
    let line = serde_json::to_string(&figures).expect("a table of texts") + "\n";
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .expect("a file for figures");
    file.write_all(line.as_bytes()).expect("space for figures");
}

fn cells(row: &Row) -> Vec<String> {
    row.cell_iter().map(|cell| cell.content()).collect()
}

/// The goal for a ratio. Missing it is a result, and no error.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// This or less.
    AtMost(f64),
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
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
            Self::None => f.write_str("none"),
        }
    }
}
