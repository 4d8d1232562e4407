//! Operation by fault: how often each met each.

use std::fmt;

use comfy_table::{CellAlignment, Table as Grid, presets};

use crate::{fault::Fault, operation};

/// Hits of each fault (column) on frames of each operation (row); for restarts, on its work
/// requests under way.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) cells: Vec<[u64; Fault::ALL.len()]>,
}

impl Default for Table {
    fn default() -> Self {
        Self { cells: vec![[0; Fault::ALL.len()]; operation::rows().count()] }
    }
}

impl Table {
    /// Adds all that `other` counted.
    pub fn add(&mut self, other: &Self) {
        for (row, more) in self.cells.iter_mut().zip(&other.cells) {
            row.iter_mut().zip(more).for_each(|(cell, more)| *cell += more);
        }
    }

    /// Names of row and column of every cell that is zero.
    pub fn zeros(&self) -> Vec<(&'static str, &'static str)> {
        let row = |(name, row): (&'static str, &[u64; Fault::ALL.len()])| {
            let zero = Fault::ALL.iter().zip(row).filter(|(_, cell)| **cell == 0);
            zero.map(|((_, fault), _)| (name, *fault)).collect::<Vec<_>>()
        };
        operation::rows().zip(&self.cells).flat_map(row).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut grid = Grid::new();
        grid.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        grid.set_header(["operation"].into_iter().chain(Fault::ALL.iter().map(|(_, name)| *name)));
        for (name, row) in operation::rows().zip(&self.cells) {
            grid.add_row(std::iter::once(name.to_owned()).chain(row.iter().map(u64::to_string)));
        }
        grid.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        write!(f, "{grid}")
    }
}
