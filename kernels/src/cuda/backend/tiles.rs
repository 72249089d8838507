//! Weights as tiles (`kernels/cuda/tiles.cuh`), which products on tensor cores read: how they are made of a file's rows, once, by
//! the device, and how a product with them is launched (`kernels/cuda/gemm_mma.cu`).

use super::buffer::{alone, zeros};
use super::choice::{ROWS_OF_BLOCK, TileChoice};
use super::{Cuda, int};
use crate::WeightType;
use crate::cuda::device::{Argument, Device, DeviceProperties};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::Memory;

/// Outputs of a panel.
pub(super) const PANEL: usize = 16;
/// Columns of a step.
const STEP: usize = 32;
/// A file's rows that are on the device beside their tiles, at most, or one panel of them.
const STAGING_BYTES: usize = 4 << 20;

/// A type that has tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TiledType {
    shuffle: Kernel,
    pub(super) embed: Kernel,
    /// By [`ROWS_OF_BLOCK`]: the kernel and its rows of a block, those of the next where there is none with these.
    gemm: [(Kernel, usize); 4],
    /// Whether sums of x lie beside it in shared memory.
    has_minimum: bool,
    /// Whether it has two scales a step.
    has_runs_of_16: bool,
    /// Whether `gemm_wgmma.cu` has products with it.
    pub(super) has_warpgroups: bool,
    /// What makes rows of bf16 of its tiles, where a library's products may have them.
    pub(super) expand: Option<Kernel>,
}

/// `tiled!(name)`: the kernels of a type.
macro_rules! tiled {
    ($shuffle:ident, $embed:ident, $r8:ident, $r16:ident, $r32:ident, $r64:ident) => {
        TiledType {
            shuffle: Kernel::$shuffle,
            embed: Kernel::$embed,
            gemm: [(Kernel::$r8, 8), (Kernel::$r16, 16), (Kernel::$r32, 32), (Kernel::$r64, 64)],
            has_minimum: false,
            has_runs_of_16: false,
            has_warpgroups: false,
            expand: None,
        }
    };
}

impl TiledType {
    /// Whether a kernel of its own has that many rows a block.
    pub(super) fn has_kernel_of(self, rows_of_block: usize) -> bool {
        let mut kernels = ROWS_OF_BLOCK.into_iter().zip(self.gemm);
        kernels.any(|(of_block, (_, rows))| of_block == rows_of_block && rows == rows_of_block)
    }

    /// Of matrices with so many columns, if they have tiles.
    pub(super) fn of(weight_type: WeightType, cols: usize) -> Option<TiledType> {
        let mut tiled = match weight_type {
            WeightType::F16 => {
                tiled!(ShuffleF16, EmbedTilesF16, GemmMmaF16R8, GemmMmaF16R16, GemmMmaF16R32, GemmMmaF16R64)
            }
            WeightType::BF16 => {
                tiled!(ShuffleBf16, EmbedTilesBf16, GemmMmaBf16R8, GemmMmaBf16R16, GemmMmaBf16R32, GemmMmaBf16R64)
            }
            WeightType::Q4_0 => {
                tiled!(ShuffleQ4_0, EmbedTilesQ4_0, GemmMmaQ4_0R8, GemmMmaQ4_0R16, GemmMmaQ4_0R32, GemmMmaQ4_0R64)
            }
            WeightType::Q4_1 => {
                tiled!(ShuffleQ4_1, EmbedTilesQ4_1, GemmMmaQ4_1R8, GemmMmaQ4_1R16, GemmMmaQ4_1R32, GemmMmaQ4_1R64)
            }
            WeightType::Q5_0 => {
                tiled!(ShuffleQ5_0, EmbedTilesQ5_0, GemmMmaQ5_0R8, GemmMmaQ5_0R16, GemmMmaQ5_0R32, GemmMmaQ5_0R64)
            }
            WeightType::Q5_1 => {
                tiled!(ShuffleQ5_1, EmbedTilesQ5_1, GemmMmaQ5_1R8, GemmMmaQ5_1R16, GemmMmaQ5_1R32, GemmMmaQ5_1R64)
            }
            WeightType::Q8_0 => {
                tiled!(ShuffleQ8_0, EmbedTilesQ8_0, GemmMmaQ8_0R8, GemmMmaQ8_0R16, GemmMmaQ8_0R32, GemmMmaQ8_0R64)
            }
            WeightType::Q4_K => {
                tiled!(ShuffleQ4K, EmbedTilesQ4K, GemmMmaQ4KR8, GemmMmaQ4KR16, GemmMmaQ4KR32, GemmMmaQ4KR64)
            }
            WeightType::Q5_K => {
                tiled!(ShuffleQ5K, EmbedTilesQ5K, GemmMmaQ5KR8, GemmMmaQ5KR16, GemmMmaQ5KR32, GemmMmaQ5KR64)
            }
            WeightType::Q6_K => {
                tiled!(ShuffleQ6K, EmbedTilesQ6K, GemmMmaQ6KR8, GemmMmaQ6KR16, GemmMmaQ6KR32, GemmMmaQ6KR64)
            }
            WeightType::F8E4M3 => {
                tiled!(ShuffleQ8_0, EmbedTilesF8, GemmMmaF8R8, GemmMmaF8R16, GemmMmaF8R64, GemmMmaF8R64)
            }
            WeightType::F32 | WeightType::Q2_K | WeightType::Q3_K => return None,
        };
        tiled.has_minimum =
            matches!(weight_type, WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K);
        if weight_type == WeightType::F8E4M3 {
            tiled.gemm[2] = tiled.gemm[3];
        }
        tiled.has_runs_of_16 = weight_type == WeightType::Q6_K;
        tiled.has_warpgroups = weight_type == WeightType::BF16;
        tiled.expand = match weight_type {
            WeightType::BF16 => Some(Kernel::ExpandBf16),
            WeightType::Q4_0 => Some(Kernel::ExpandQ4_0),
            WeightType::Q4_1 => Some(Kernel::ExpandQ4_1),
            WeightType::Q5_0 => Some(Kernel::ExpandQ5_0),
            WeightType::Q5_1 => Some(Kernel::ExpandQ5_1),
            WeightType::Q8_0 => Some(Kernel::ExpandQ8_0),
            WeightType::Q4_K => Some(Kernel::ExpandQ4K),
            WeightType::Q5_K => Some(Kernel::ExpandQ5K),
            WeightType::Q6_K => Some(Kernel::ExpandQ6K),
            WeightType::F8E4M3 => Some(Kernel::ExpandF8),
            // Rounded to bf16 it would lose what it is chosen for.
            WeightType::F16 => None,
            WeightType::F32 | WeightType::Q2_K | WeightType::Q3_K => None,
        };
        (cols > 0 && cols.is_multiple_of(2)).then_some(tiled)
    }
}

/// Bytes of a panel: those of its rows in the file, where columns of float types are filled up to 16.
pub(super) fn panel_bytes(weight_type: WeightType, cols: usize, row_bytes: usize) -> usize {
    let of_file = PANEL * row_bytes;
    if weight_type.block_len() == 1 { of_file / cols * cols.next_multiple_of(16) } else { of_file }
}

/// Tiles of `(rows, cols)` whose bytes in the file lie one behind the other, `row_bytes` a row. What is on the device beside them
/// meanwhile is bounded.
pub(super) fn make_tiles<D: Device>(
    cuda: &Cuda<D>,
    (tiled, panel_bytes): (TiledType, usize),
    file: &[&[u8]],
    (rows, cols, row_bytes): (usize, usize, usize),
) -> Result<Memory<D, u8>, DeviceError> {
    let device = &cuda.device;
    let tiles = zeros(&cuda.heap, "a weight matrix", rows.div_ceil(PANEL) * panel_bytes)?;
    let rows_at_once = (STAGING_BYTES / row_bytes.max(1) / PANEL * PANEL).max(PANEL).min(rows);
    let mut staging = alone(device, "rows of a weight matrix", rows_at_once * row_bytes)?;
    for first in (0..rows).step_by(rows_at_once.max(1)) {
        let count = rows_at_once.min(rows - first);
        write_range(&mut staging, file, first * row_bytes, count * row_bytes)?;
        let arguments = [
            Argument::Pointer(staging.address()),
            Argument::Pointer(tiles.address()).at(first / PANEL * panel_bytes),
            int(count),
            int(cols),
        ];
        let grid = [cols.div_ceil(STEP), count.div_ceil(PANEL), 1];
        // SAFETY: `staging` has `count` rows, whole panels of them but at the end; the tiles have all panels; both are aligned to 256
        // bytes, and panels are multiples of 16.
        unsafe { cuda.launch(tiled.shuffle, grid, 32, &arguments, 2 * count * row_bytes) };
    }
    // Products read tiles before they wait for the kernel before them.
    device.synchronize()?;
    Ok(tiles)
}

/// Writes `len` bytes, which begin at `begin` of all that lies one behind the other, to the beginning of memory.
fn write_range<D: Device>(to: &mut Memory<D, u8>, file: &[&[u8]], begin: usize, len: usize) -> Result<(), DeviceError> {
    let mut at = 0;
    for part in file {
        let (from, until) = (begin.max(at), (begin + len).min(at + part.len()));
        if from < until {
            to.write(from - begin, &part[from - at..until - at])?;
        }
        at += part.len();
    }
    Ok(())
}

/// How a product is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kernel: Kernel,
    pub(super) grid: [usize; 3],
    pub(super) shared_bytes: usize,
    /// Steps of x that are staged together.
    pub(super) piece: usize,
}

/// Panels that a block of so many rows computes together: `PANELS` of `kernels/cuda/gemm_mma.cu`.
fn panels_together(tiled: TiledType, rows_of_block: usize) -> usize {
    if rows_of_block <= 16 || (rows_of_block == 64 && tiled.has_runs_of_16) { 1 } else { 2 }
}

/// Static shared memory of a block: the sums of eight warps, twice, 160 places for each panel, and 11 numbers for each row. As
/// dynamic shared memory begins at a multiple of 1024 behind it, ptxas counts up to there.
fn static_bytes(tiled: TiledType, rows_of_block: usize) -> usize {
    let floats = 2 * 8 * 160 * panels_together(tiled, rows_of_block) + 11 * rows_of_block;
    (floats * size_of::<f32>()).next_multiple_of(1 << 10)
}

/// What a multiprocessor keeps for itself of each block.
const RESERVED_BYTES: usize = 1 << 10;

/// The launch of a product of `rows` rows of `cols` with `num_outputs` outputs, or as many pairs of gate and up.
///
/// No bit depends on the choice, for each kernel computes a row as if it were alone, and every block a panel.
pub(super) fn shape(
    properties: &DeviceProperties,
    tiled: TiledType,
    rows: usize,
    (num_outputs, cols): (usize, usize),
    is_gated: bool,
    TileChoice { rows_of_block, blocks_each }: TileChoice,
) -> Shape {
    let index = ROWS_OF_BLOCK.iter().position(|&of_block| of_block == rows_of_block).expect("choices are of kernels");
    let (kernel, rows_of_block) = tiled.gemm[index];
    let panels = num_outputs.div_ceil(PANEL);
    let together = if is_gated { 1 } else { panels_together(tiled, rows_of_block) };
    let units = panels.div_ceil(together);
    let turns = units.div_ceil(blocks_each * properties.multiprocessors as usize).max(1);

    let bytes_of_step = rows_of_block * if tiled.has_minimum { 68 } else { 64 };
    let (steps, most) = (cols.div_ceil(STEP), properties.shared_bytes_per_block as usize);
    let of_itself = static_bytes(tiled, rows_of_block);
    let piece = if steps * bytes_of_step + of_itself <= most {
        steps
    } else {
        // Staged anew for each panel, in pieces of any size at the same cost: two blocks shall find room on a multiprocessor where
        // their registers do.
        let room = if rows_of_block <= 16 { (most - RESERVED_BYTES) / 2 } else { most } - of_itself;
        let unit = (512 / rows_of_block).max(16);
        (room / bytes_of_step / unit * unit).max(unit)
    };
    Shape {
        kernel,
        grid: [units.div_ceil(turns), rows.div_ceil(rows_of_block), 1],
        shared_bytes: piece.min(steps) * bytes_of_step,
        piece,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::fatbin;

    fn shape_of(weight_type: WeightType, rows: usize, matrix: (usize, usize), is_gated: bool, kib: u32) -> Shape {
        let properties = DeviceProperties {
            name: String::new(),
            multiprocessors: 100,
            shared_bytes_per_block: kib << 10,
            l2_bytes: 0,
        };
        let tiled = TiledType::of(weight_type, matrix.1).unwrap();
        shape(&properties, tiled, rows, matrix, is_gated, TileChoice::builtin(rows))
    }

    #[test]
    fn rows_choose_the_kernel_and_panels_the_grid() {
        let grid = |rows, outputs| {
            let shape = shape_of(WeightType::Q8_0, rows, (outputs, 64), false, 227);
            (shape.kernel, shape.grid)
        };
        assert_eq!(grid(1, 33), (Kernel::GemmMmaQ8_0R8, [3, 1, 1]));
        // 500 panels: 400 blocks of 1 or 2 would leave half of them idle in the second turn.
        assert_eq!(grid(2, 8000), (Kernel::GemmMmaQ8_0R8, [250, 1, 1]));
        assert_eq!(grid(4, 8000), (Kernel::GemmMmaQ8_0R8, [167, 1, 1]));
        assert_eq!(grid(8, 8000), (Kernel::GemmMmaQ8_0R8, [100, 1, 1]));
        assert_eq!(grid(9, 8000), (Kernel::GemmMmaQ8_0R16, [100, 1, 1]));
        assert_eq!(grid(32, 8000), (Kernel::GemmMmaQ8_0R32, [84, 1, 1]));
        assert_eq!(grid(33, 8000), (Kernel::GemmMmaQ8_0R64, [84, 1, 1]));
        assert_eq!(grid(130, 8000), (Kernel::GemmMmaQ8_0R64, [84, 3, 1]));
        let gated = shape_of(WeightType::Q8_0, 64, (160, 64), true, 227);
        assert_eq!(gated.grid, [10, 1, 1], "a panel of gate and one of up go together");
        let of_bytes = shape_of(WeightType::F8E4M3, 20, (160, 64), false, 227);
        assert_eq!((of_bytes.kernel, of_bytes.grid), (Kernel::GemmMmaF8R64, [5, 1, 1]), "none has 32 rows a block");
        assert_eq!(of_bytes.shared_bytes, 2 * 64 * 64);
        let two_scales = shape_of(WeightType::Q6_K, 64, (160, 256), false, 227);
        assert_eq!(two_scales.grid, [10, 1, 1], "q6_k has no registers for a second panel");
    }

    #[test]
    fn x_is_staged_whole_where_it_fits_and_else_in_whole_pieces() {
        let staged = |weight_type, rows, cols, kib| {
            let shape = shape_of(weight_type, rows, (16, cols), false, kib);
            (shape.piece, shape.shared_bytes)
        };
        assert_eq!(staged(WeightType::BF16, 1, 50, 227), (2, 2 * 8 * 64));
        assert_eq!(staged(WeightType::Q4_K, 8, 4096, 227), (128, 128 * 8 * 68));
        assert_eq!(staged(WeightType::Q4_0, 8, 13824, 227), (432, 432 * 8 * 64));
        assert_eq!(staged(WeightType::Q4_0, 8, 14336, 227), (192, 192 * 8 * 64));
        assert_eq!(staged(WeightType::Q4_0, 16, 8192, 227), (96, 96 * 16 * 64));
        assert_eq!(staged(WeightType::Q4_0, 64, 4096, 227), (48, 48 * 64 * 64));
        // The smallest devices: compute capability 8.6, 8.9 and 12.0.
        for (rows, piece) in [(8, 64), (16, 32), (32, 32), (64, 16)] {
            for weight_type in [WeightType::Q4_0, WeightType::Q4_K, WeightType::F16] {
                let (found, bytes) = staged(weight_type, rows, 14336, 99);
                let of_itself = static_bytes(TiledType::of(weight_type, 256).unwrap(), rows);
                assert!(
                    found == piece && bytes + of_itself <= 99 << 10,
                    "{weight_type:?}, {rows} rows: {found}, {bytes}"
                );
            }
        }
    }

    /// What ptxas says, where there are compiled kernels: a line of the report has kernel, target, registers, shared memory.
    #[test]
    fn static_memory_is_what_the_kernels_have() {
        for weight_type in WeightType::ALL {
            let Some(tiled) = TiledType::of(weight_type, 256) else { continue };
            for (kernel, rows) in tiled.gemm {
                let name = kernel.name().to_str().unwrap();
                for line in fatbin::report().lines() {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    if words.first() == Some(&name) {
                        assert_eq!(words[3], static_bytes(tiled, rows).to_string(), "{line}");
                    }
                }
            }
        }
        let of = |weight_type, rows| static_bytes(TiledType::of(weight_type, 256).unwrap(), rows);
        assert_eq!([8, 16, 32, 64].map(|rows| of(WeightType::Q4_0, rows)), [11264, 11264, 22528, 23552]);
        assert_eq!(of(WeightType::Q6_K, 64), 13312);
    }

    #[test]
    fn what_has_no_tiles_is_left_in_rows() {
        for weight_type in WeightType::ALL {
            let has_tiles = !matches!(weight_type, WeightType::F32 | WeightType::Q2_K | WeightType::Q3_K);
            assert_eq!(TiledType::of(weight_type, 256).is_some(), has_tiles, "{weight_type:?}");
        }
        assert_eq!(TiledType::of(WeightType::BF16, 51), None);
        assert_eq!(panel_bytes(WeightType::F16, 50, 100), 4 * 512);
        assert_eq!(panel_bytes(WeightType::Q4_0, 64, 36), 2 * (256 + 32));
        assert_eq!(panel_bytes(WeightType::F8E4M3, 64, 68), 2 * (512 + 32));
    }
}
