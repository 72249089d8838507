//! What a benchmark says of its rows beside the rows: columns of its own, plots, and sentences.

use crate::Record;
use crate::plot::Plot;

/// What is to be seen in the rows of a run.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Columns behind those that every benchmark has.
    pub columns: Vec<Column>,
    /// Pictures.
    pub plots: Vec<Plot>,
    /// Sentences that stand under the table.
    pub notes: Vec<String>,
}

/// A column of the table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its head.
    pub title: &'static str,
    /// What a row has there.
    pub cell: fn(&Record) -> Option<String>,
}

impl From<Vec<Plot>> for Findings {
    fn from(plots: Vec<Plot>) -> Findings {
        Findings { plots, ..Findings::default() }
    }
}

impl Findings {
    /// Those of `columns` in which any row has something.
    pub fn used(columns: &[Column], records: &[Record]) -> Vec<Column> {
        columns.iter().copied().filter(|column| records.iter().any(|row| (column.cell)(row).is_some())).collect()
    }

    /// Heads of all columns.
    pub fn titles(&self) -> Vec<&'static str> {
        Record::COLUMNS.into_iter().chain(self.columns.iter().map(|column| column.title)).collect()
    }

    /// A row for a reader, a cell per title.
    pub fn cells(&self, record: &Record) -> Vec<String> {
        let own = self.columns.iter().map(|column| (column.cell)(record).unwrap_or_default());
        record.cells().into_iter().chain(own).collect()
    }
}
