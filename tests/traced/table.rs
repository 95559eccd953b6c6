//! Printed tables of operations and durations.

/// Rows of text under headings, all aligned to the left.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        Self {
            rows: vec![headings],
        }
    }

    pub(crate) fn row(&mut self, cells: &[&dyn std::fmt::Display]) {
        self.rows
            .push(cells.iter().map(|cell| cell.to_string()).collect());
    }

    /// Prints the whole table at once, because other tests print too.
    pub(crate) fn print(&self) {
        let mut widths = vec![0; self.rows[0].len()];
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                widths[column] = widths[column].max(cell.chars().count());
            }
        }

        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            text.push('|');
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                text.push_str(&format!(" {cell:width$} |"));
            }
            text.push('\n');
            if number == 0 {
                text.push_str(&rule(&widths));
            }
        }
        print!("\n{text}\n");
    }
}

/// The line under the headings.
fn rule(widths: &[usize]) -> String {
    let mut rule = String::from("|");
    for width in widths {
        rule.push_str(&"-".repeat(width + 2));
        rule.push('|');
    }
    rule.push('\n');
    rule
}
