//! The tables of a step on the device (`kernels/cuda/step.cuh`), uploaded when a step is first met.

use super::buffer::zeros;
use crate::StepTables;
use crate::cuda::device::{Argument, Device, DevicePtr};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::Memory;
use std::sync::Arc;

/// Tables begin at multiples of so many integers.
const ALIGNMENT: usize = 64;

/// What the device has of a step.
pub(super) struct DeviceTables<D: Device> {
    step: StepTables,
    memory: Option<Memory<D, i32>>,
    /// First integer of each table.
    starts: [usize; 4],
}

/// Addresses of a step's tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) positions: Argument,
    pub(super) slots: Argument,
    pub(super) table_starts: Argument,
    pub(super) block_tables: Argument,
}

impl<D: Device> Default for DeviceTables<D> {
    fn default() -> Self {
        DeviceTables { step: StepTables::default(), memory: None, starts: [0; 4] }
    }
}

impl<D: Device> DeviceTables<D> {
    /// The tables of this step, uploaded if the last ones were others.
    pub(super) fn of(&mut self, device: &Arc<D>, step: &StepTables) -> Result<Addresses, DeviceError> {
        if self.memory.is_none() || !same(&self.step, step) {
            self.upload(device, step)?;
        }
        let at = |table: usize| {
            let base = self.memory.as_ref().map_or(DevicePtr(0), Memory::address);
            Argument::Pointer(base.at(self.starts[table] * size_of::<i32>()))
        };
        Ok(Addresses { positions: at(0), slots: at(1), table_starts: at(2), block_tables: at(3) })
    }

    fn upload(&mut self, device: &Arc<D>, step: &StepTables) -> Result<(), DeviceError> {
        let table_starts = step.spans.iter().flat_map(|span| span.rows.clone().map(|_| span.blocks.start as u32));
        let tables = [step.positions.clone(), step.slots.clone(), table_starts.collect(), step.block_tables.clone()];
        let mut packed: Vec<i32> = Vec::new();
        for (start, table) in self.starts.iter_mut().zip(&tables) {
            packed.resize(packed.len().next_multiple_of(ALIGNMENT), 0);
            *start = packed.len();
            packed.extend(table.iter().map(|&entry| entry as i32));
        }
        if self.memory.as_ref().is_none_or(|memory| memory.len() < packed.len()) {
            self.memory = Some(zeros(device, "tables of a step", packed.len().next_power_of_two().max(1 << 12))?);
        }
        if let Some(memory) = &mut self.memory {
            memory.write(0, &packed)?;
        }
        self.step.clone_from(step);
        Ok(())
    }
}

fn same(a: &StepTables, b: &StepTables) -> bool {
    a.positions == b.positions && a.slots == b.slots && a.spans == b.spans && a.block_tables == b.block_tables
}
