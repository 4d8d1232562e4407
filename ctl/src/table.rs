//! Layout of all tables: a title, columns without rules, numbers to the right. Plain text, suited
//! to grep and awk.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use roced_output::escaped;

/// A column's heading and the alignment of its cells.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// Words, to the left.
    Text(&'static str),
    /// Numbers, to the right.
    Number(&'static str),
}

use Column::{Number, Text};

/// A table under a title.
pub(crate) struct TableSection {
    title: String,
    table: Table,
    rows: usize,
}

impl TableSection {
    /// A section without rows.
    pub(crate) fn new(title: impl Into<String>, columns: &[Column]) -> Self {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|column| match column {
            Text(name) => Cell::new(name),
            Number(name) => Cell::new(name).set_alignment(CellAlignment::Right),
        }));
        for (column, kind) in table.column_iter_mut().zip(columns) {
            column.set_padding((0, 2));
            if let Number(_) = kind {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { title: title.into(), table, rows: 0 }
    }

    /// Adds a row; an empty cell is shown as a dash. Text has no effect on a terminal.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { escaped(&cell) });
        self.table.add_row(cells);
        self.rows += 1;
    }

    /// Appends the section to `text`, with `none` in place of an empty table.
    pub(crate) fn append(&self, text: &mut String, none: &str) {
        if !text.is_empty() {
            text.push('\n');
        }
        writeln!(text, "{}", self.title).expect("a string takes everything");
        if self.rows == 0 {
            writeln!(text, "  {none}").expect("a string takes everything");
        }
        for line in self.table.lines().filter(|_| self.rows > 0) {
            writeln!(text, "  {}", line.trim_end()).expect("a string takes everything");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_nothing_is_a_dash() {
        let mut section = TableSection::new("things", &[Text("name"), Number("count"), Text("peer")]);
        section.row(["a".into(), "7".into(), String::new()]);
        section.row(["longer".into(), "12345".into(), "b".into()]);
        let mut text = String::new();
        section.append(&mut text, "none");
        assert_eq!(text, "things\n  name    count  peer\n  a           7  -\n  longer  12345  b\n");
    }

    #[test]
    fn cells_move_no_cursor() {
        let mut section = TableSection::new("things", &[Text("name")]);
        section.row(["\u{1b}[2J\nroot".into()]);
        let mut text = String::new();
        section.append(&mut text, "none");
        assert_eq!(text, "things\n  name\n  \\u{1b}[2J\\nroot\n");
    }

    #[test]
    fn an_empty_table_says_so() {
        let mut text = "before\n".to_owned();
        TableSection::new("things", &[Text("name")]).append(&mut text, "none here");
        assert_eq!(text, "before\n\nthings\n  none here\n");
    }
}
