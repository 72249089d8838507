//! The tables of a step on the device (`kernels/cuda/step.cuh`), uploaded together when a step is first met.

use super::buffer::{Heap, grow, zeros};
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::Memory;
use crate::{StepInputs, StepTables};

/// Tables begin at multiples of so many integers.
const ALIGNMENT: usize = 64;
/// Integers that the tables of a step take without taking more memory.
const INTEGERS: usize = 1 << 16;
const NUM_TABLES: usize = 7;

/// What the device has of a step. Where a table begins depends on the number of rows and of rows of logits alone.
pub(super) struct DeviceTables<D: Device> {
    tokens: Vec<u32>,
    step: StepTables,
    logit_rows: Vec<u32>,
    memory: Memory<D, i32>,
    packed: Vec<i32>,
    /// First integer of each table.
    starts: [usize; NUM_TABLES],
}

/// Addresses of a step's tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) positions: Argument,
    pub(super) slots: Argument,
    pub(super) table_starts: Argument,
    pub(super) spans: Argument,
    pub(super) block_tables: Argument,
}

impl<D: Device> DeviceTables<D> {
    pub(super) fn new(heap: &Heap<D>) -> Result<Self, DeviceError> {
        Ok(DeviceTables {
            tokens: Vec::new(),
            step: StepTables::default(),
            logit_rows: Vec::new(),
            memory: zeros(heap, "tables of a step", INTEGERS)?,
            packed: Vec::new(),
            starts: [0; NUM_TABLES],
        })
    }

    /// Makes room for the tables of steps of so many rows and blocks.
    pub(super) fn reserve(&mut self, heap: &Heap<D>, rows: usize, blocks: usize) -> Result<(), DeviceError> {
        grow(&mut self.memory, heap, "tables of a step", Self::integers_of(rows, blocks))
    }

    /// Integers that they take, at most: a span is two, and a row may have logits.
    pub(super) fn integers_of(rows: usize, blocks: usize) -> usize {
        let len = (NUM_TABLES * rows + blocks + NUM_TABLES * ALIGNMENT).max(INTEGERS);
        len.next_power_of_two()
    }

    /// The tables of this step, uploaded if the last ones were others.
    pub(super) fn of(&mut self, heap: &Heap<D>, step: &StepTables) -> Result<Addresses, DeviceError> {
        if !same(&self.step, step) {
            self.set(heap, StepInputs { tokens: &[], tables: step, logit_rows: &[] })?;
        }
        let [_, positions, slots, table_starts, _, spans, block_tables] =
            std::array::from_fn(|table| self.table(table));
        Ok(Addresses { positions, slots, table_starts, spans, block_tables })
    }

    /// Uploads all that a step is told, unless it was the last one.
    pub(super) fn set(&mut self, heap: &Heap<D>, inputs: StepInputs<'_>) -> Result<(), DeviceError> {
        let StepInputs { tokens, tables: step, logit_rows } = inputs;
        if same(&self.step, step) && self.tokens == tokens && self.logit_rows == logit_rows {
            return Ok(());
        }
        let rows_of_spans = || step.spans.iter().flat_map(|span| span.rows.clone().map(move |_| span));
        let starts: Vec<u32> = rows_of_spans().map(|span| span.blocks.start as u32).collect();
        let spans: Vec<u32> =
            rows_of_spans().flat_map(|span| [span.rows.start, span.rows.len()].map(|x| x as u32)).collect();
        let tables = [tokens, &step.positions, &step.slots, &starts, logit_rows, &spans, &step.block_tables];
        self.packed.clear();
        for (start, table) in self.starts.iter_mut().zip(tables) {
            self.packed.resize(self.packed.len().next_multiple_of(ALIGNMENT), 0);
            *start = self.packed.len();
            self.packed.extend(table.iter().map(|&entry| entry as i32));
        }
        grow(&mut self.memory, heap, "tables of a step", self.packed.len())?;
        self.memory.write(0, &self.packed)?;
        self.step.clone_from(step);
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.logit_rows.clear();
        self.logit_rows.extend_from_slice(logit_rows);
        Ok(())
    }

    /// The tokens on the device, if they are these.
    pub(super) fn tokens(&self, tokens: &[u32]) -> Option<Argument> {
        (self.tokens == tokens).then(|| self.table(0))
    }

    /// The positions on the device, if they are these.
    pub(super) fn positions(&self, positions: &[u32]) -> Option<Argument> {
        (self.step.positions == positions).then(|| self.table(1))
    }

    /// The rows that need logits on the device, if they are these.
    pub(super) fn logit_rows(&self, rows: &[u32]) -> Option<Argument> {
        (self.logit_rows == rows).then(|| self.table(4))
    }

    /// Where all of them are.
    pub(super) fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    fn table(&self, table: usize) -> Argument {
        Argument::Pointer(self.memory.address().at(self.starts[table] * size_of::<i32>()))
    }
}

fn same(a: &StepTables, b: &StepTables) -> bool {
    a.positions == b.positions && a.slots == b.slots && a.spans == b.spans && a.block_tables == b.block_tables
}
