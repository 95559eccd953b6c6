//! Tables in Markdown, so that what a program prints can be shown anywhere.

use comfy_table::{presets, CellAlignment, Table};

/// A table whose first column is text and whose others are numbers.
pub(crate) fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(heads);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
