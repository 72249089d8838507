//! Softmax of rows on a device: the launches of `kernels/cuda/softmax.cu`, whose head says what each form reads and writes.

use super::device::{Argument, Device, DeviceProperties, Launch};
use super::error::DeviceError;
use super::kernels::Kernel;
use super::memory::{Arena, Memory};

/// A way to compute it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SoftmaxForm {
    /// The baseline: the largest, the sum, the division; 1024 threads per row.
    ThreePass,
    /// A warp per row.
    Warp,
    /// A block of 128 threads per row.
    Block,
    /// Several blocks per row, and a second launch that divides.
    Chunks,
    /// Several blocks per row that wait for each other: every element is read once.
    Cooperative,
}

/// Elements of a chunk in the forms that cut rows: what 256 threads hold in registers, and the most that they can.
const MAX_CHUNK: usize = 256 * 32;
/// The fewest elements that are worth a block of their own: eight loads for each of 256 threads.
const MIN_CHUNK: usize = 256 * 8;
/// Blocks of `softmax_cooperative` that a multiprocessor holds: 256 threads with at most 128 registers each.
const RESIDENT_BLOCKS: usize = 2;
/// Elements that a row may have.
const MAX_COLS: usize = 1 << 30;

impl SoftmaxForm {
    /// All forms.
    pub const ALL: [SoftmaxForm; 5] =
        [SoftmaxForm::ThreePass, SoftmaxForm::Warp, SoftmaxForm::Block, SoftmaxForm::Chunks, SoftmaxForm::Cooperative];

    /// Its name in benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            SoftmaxForm::ThreePass => "three-pass",
            SoftmaxForm::Warp => "warp",
            SoftmaxForm::Block => "block",
            SoftmaxForm::Chunks => "chunks",
            SoftmaxForm::Cooperative => "cooperative",
        }
    }

    /// Whether the device can run it on so many rows of so many elements.
    pub fn can_run(self, properties: &DeviceProperties, rows: usize, cols: usize) -> bool {
        let resident = RESIDENT_BLOCKS * properties.multiprocessors as usize;
        self != SoftmaxForm::Cooperative || rows * cols.div_ceil(MAX_CHUNK) <= resident
    }
}

/// How the rows of one shape are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunks {
    len: usize,
    count: usize,
}

impl Chunks {
    /// As many as fill the machine, of whole loads; bits depend on the shape of all rows, not on which of them is where.
    fn new(properties: &DeviceProperties, rows: usize, cols: usize) -> Chunks {
        let wanted = (RESIDENT_BLOCKS * properties.multiprocessors as usize / rows).max(1);
        let len = cols.div_ceil(wanted).next_multiple_of(256).clamp(MIN_CHUNK, MAX_CHUNK);
        Chunks { len, count: cols.div_ceil(len) }
    }
}

/// Rows on a device, their softmax, and room for what blocks tell each other.
pub struct SoftmaxRows<D: Device> {
    rows: usize,
    cols: usize,
    chunks: Chunks,
    x: Memory<D, f32>,
    out: Memory<D, f32>,
    states: Memory<D, f32>,
    row_states: Memory<D, f32>,
    counters: Memory<D, u32>,
}

impl<D: Device> SoftmaxRows<D> {
    /// Takes memory for rows of 1 to 2^30 elements, at most 65,535 of them.
    ///
    /// # Errors
    /// When the device has not so much.
    pub fn new(device: &std::sync::Arc<D>, rows: usize, cols: usize) -> Result<SoftmaxRows<D>, DeviceError> {
        assert!((1..=MAX_COLS).contains(&cols) && (1..=65_535).contains(&rows), "{rows} rows of {cols}");
        let chunks = Chunks::new(device.properties(), rows, cols);
        let states = 2 * rows * chunks.count;
        let bytes = 2 * Arena::<D>::bytes_of::<f32>(rows * cols)
            + Arena::<D>::bytes_of::<f32>(states)
            + 2 * Arena::<D>::bytes_of::<f32>(2 * rows);
        let mut arena = Arena::new(device, "rows of a softmax", bytes)?;
        Ok(SoftmaxRows {
            rows,
            cols,
            chunks,
            x: arena.part("scores", rows * cols)?,
            out: arena.part("weights", rows * cols)?,
            states: arena.part("states of chunks", states)?,
            row_states: arena.part("states of rows", 2 * rows)?,
            counters: arena.part("counters", 2 * rows)?,
        })
    }

    /// The scores, `[rows, cols]`.
    pub fn scores(&mut self) -> &mut Memory<D, f32> {
        &mut self.x
    }

    /// The weights that [`SoftmaxRows::run`] has written, `[rows, cols]`.
    pub fn weights(&self) -> &Memory<D, f32> {
        &self.out
    }

    /// Computes the weights of all rows.
    ///
    /// # Errors
    /// The device's.
    pub fn run(&mut self, device: &D, form: SoftmaxForm) -> Result<(), DeviceError> {
        assert!(self.x.is_of(device), "the rows are this device's");
        assert!(form.can_run(device.properties(), self.rows, self.cols), "{form:?} of {} x {}", self.rows, self.cols);
        let rows = self.rows as u32;
        let [x, out] = [self.x.address(), self.out.address()].map(Argument::Pointer);
        let [cols, chunk_len] = [self.cols, self.chunks.len].map(|len| Argument::I32(len as i32));
        let [states, row_states] = [self.states.address(), self.row_states.address()].map(Argument::Pointer);
        let counters = Argument::Pointer(self.counters.address());
        let chunks = [self.chunks.count as u32, rows, 1];
        let element = self.rows * self.cols * size_of::<f32>();
        let launch = |kernel, grid, threads, arguments: &[Argument], bytes| {
            let cooperative = kernel == Kernel::SoftmaxCooperative;
            let launch = Launch { kernel, grid, threads, shared_bytes: 0, cooperative, arguments, bytes };
            // SAFETY: what the kernels ask for: x and out are [rows, cols]; states is a pair of floats for each chunk of each row,
            // row_states one for each row; two counters for each row are zero before the first launch and after each; the grids
            // and threads are those of the table in softmax.cu; `can_run` has made sure that cooperating blocks are resident,
            // and Chunks that a chunk fits into their registers.
            unsafe { device.launch(&launch) }
        };
        match form {
            SoftmaxForm::ThreePass => {
                launch(Kernel::SoftmaxThreePass, [rows, 1, 1], 1024, &[x, out, cols], 2 * element)
            }
            SoftmaxForm::Warp => {
                let arguments = [x, out, Argument::I32(rows as i32), cols];
                launch(Kernel::SoftmaxOnline, [rows.div_ceil(4), 1, 1], 128, &arguments, 2 * element)
            }
            SoftmaxForm::Block => launch(Kernel::SoftmaxBlock, [rows, 1, 1], 128, &[x, out, cols], 2 * element),
            SoftmaxForm::Chunks => {
                let arguments = [x, cols, chunk_len, states, counters, row_states];
                launch(Kernel::SoftmaxReduce, chunks, 256, &arguments, element)?;
                launch(Kernel::SoftmaxNormalise, chunks, 256, &[x, out, cols, chunk_len, row_states], 2 * element)
            }
            SoftmaxForm::Cooperative => {
                let arguments = [x, out, cols, chunk_len, states, counters];
                launch(Kernel::SoftmaxCooperative, chunks, 256, &arguments, 2 * element)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Recorder;
    use super::*;
    use std::sync::Arc;

    fn h200() -> Arc<Recorder> {
        Arc::new(Recorder::new(DeviceProperties {
            name: "as an H200".to_owned(),
            multiprocessors: 132,
            shared_bytes_per_block: 227 << 10,
            l2_bytes: 50 << 20,
        }))
    }

    #[test]
    fn chunks_cover_the_row_and_fit_into_registers() {
        let device = h200();
        for rows in [1, 3, 64, 300] {
            for cols in [1, 255, 2049, 100_000, 1 << 20] {
                let chunks = Chunks::new(device.properties(), rows, cols);
                assert!(chunks.len <= MAX_CHUNK && (chunks.count - 1) * chunks.len < cols, "{chunks:?}");
                assert!(chunks.count * chunks.len >= cols, "{chunks:?}");
            }
        }
    }

    #[test]
    fn a_long_row_takes_all_of_the_machine_in_one_launch() {
        let device = h200();
        let mut rows = SoftmaxRows::new(&device, 1, 1 << 20).unwrap();
        rows.run(&device, SoftmaxForm::Cooperative).unwrap();
        let launches = device.take();
        assert_eq!(launches.len(), 1);
        assert_eq!((launches[0].kernel, launches[0].bytes), (Kernel::SoftmaxCooperative, 8 << 20));
        assert!((128..=264).contains(&launches[0].grid[0]), "{launches:?}");
    }

    #[test]
    fn blocks_that_wait_for_each_other_are_never_more_than_the_machine_holds() {
        let properties = h200().properties().clone();
        for rows in [1, 7, 132, 264, 265] {
            for cols in [1, 1 << 13, 1 << 20, 1 << 21] {
                let blocks = rows * Chunks::new(&properties, rows, cols).count;
                assert!(!SoftmaxForm::Cooperative.can_run(&properties, rows, cols) || blocks <= 264, "{rows} x {cols}");
            }
        }
        assert!(!SoftmaxForm::Cooperative.can_run(&properties, 265, 1));
        assert!(SoftmaxForm::Chunks.can_run(&properties, 265, 1 << 20));
    }
}
