//! Printed tables of operations and durations.

/// Rows of text under headings, all aligned to the left.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: &[&dyn std::fmt::Display]) {
        self.rows
            .push(cells.iter().map(|cell| cell.to_string()).collect());
    }

    /// Prints the whole table at once, because other tests print too.
    pub(crate) fn print(&self) {
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<_> = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:width$}"))
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!(
            "|{}|\n",
            widths
                .iter()
                .map(|width| "-".repeat(width + 2))
                .collect::<Vec<_>>()
                .join("|")
        );
        let (heading, rest) = self.rows.split_first().expect("headings");
        print!(
            "\n{}{rule}{}\n",
            line(heading),
            rest.iter().map(line).collect::<String>()
        );
    }
}
