//! Products by the vendor's library ([`Device::multiply`]). It takes rows of bfloat16, so weights are made such of their tiles
//! (`kernels/cuda/expand.cu`), some panels at a time that the second-level cache holds, and multiplied at once. It sums in an order
//! of its own, so it is used only where that is allowed ([`Cuda::with_library`]) and was measured to be worth it: for prompts.

use super::buffer::{Heap, grow};
use super::fused::Target;
use super::tiles::{PANEL, TiledType};
use super::weights::{PartView, Stored};
use super::{Cuda, FLOAT, int};
use crate::cuda::device::{Argument, Device, DevicePtr, LibraryProduct};
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;
use crate::cuda::memory::{Arena, Memory};

/// What the library may use for itself: what NVIDIA advises for compute capability 9.0.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Weights that are there in rows at a time, at most, or those of one panel: two of these fit into an H200's second-level cache (60 MB).
const EXPANDED_BYTES: usize = 24 << 20;
/// Panels of one launch: what a grid has along its second axis.
const MAX_PANELS: usize = 65_535;
/// Elements that addresses and rows are multiples of.
const UNIT: usize = 8;
const BF16: usize = size_of::<u16>();

/// Memory of the products; what one stream asks for uses it one after the other.
pub(super) struct LibraryWork<D: Device> {
    /// Taken when the first product comes, or with a network.
    memory: Option<Taken<D>>,
}

struct Taken<D: Device> {
    /// Weights in rows.
    weights: Memory<D, u16>,
    x: Memory<D, u16>,
    workspace: Memory<D, u8>,
}

impl<D: Device> Default for LibraryWork<D> {
    fn default() -> Self {
        LibraryWork { memory: None }
    }
}

impl<D: Device> LibraryWork<D> {
    /// Bytes that are missing for rows of x of so many elements in all.
    pub(super) fn missing(&self, elements_of_x: usize) -> usize {
        let of_x = Arena::<D>::bytes_of::<u16>(elements_of_x.next_power_of_two());
        match &self.memory {
            Some(memory) if memory.x.len() >= elements_of_x => 0,
            Some(_) => of_x,
            None => {
                let others = Arena::<D>::bytes_of::<u8>(EXPANDED_BYTES) + Arena::<D>::bytes_of::<u8>(WORKSPACE_BYTES);
                others.saturating_add(of_x)
            }
        }
    }

    /// Where what grows is.
    pub(super) fn address(&self) -> DevicePtr {
        self.memory.as_ref().map_or(DevicePtr(0), |memory| memory.x.address())
    }

    pub(super) fn reserve(&mut self, heap: &Heap<D>, elements_of_x: usize) -> Result<(), DeviceError> {
        self.taken(heap, elements_of_x).map(|_| ())
    }

    fn taken(&mut self, heap: &Heap<D>, elements_of_x: usize) -> Result<&Taken<D>, DeviceError> {
        if let Some(memory) = &mut self.memory {
            grow(&mut memory.x, heap, "rows of x", elements_of_x)?;
        }
        if self.memory.is_none() {
            self.memory = Some(Taken {
                weights: super::buffer::zeros(heap, "weights in rows", EXPANDED_BYTES / BF16)?,
                x: super::buffer::zeros(heap, "rows of x", elements_of_x.next_power_of_two())?,
                workspace: super::buffer::zeros(heap, "the library of products", WORKSPACE_BYTES)?,
            });
        }
        Ok(self.memory.as_ref().expect("taken above"))
    }
}

/// Whether it may have products with so many columns of this type.
pub(super) fn has(tiled: TiledType, cols: usize) -> bool {
    tiled.expand.is_some() && cols.is_multiple_of(UNIT) && PANEL * cols * BF16 <= EXPANDED_BYTES
}

/// Multiplies; false where the library does not, and then what it was to write may have any contents.
///
/// # Safety
/// x has `rows` rows of `cols` elements, and so has the part columns; the target has `rows` rows of its stride, of which the part
/// has `num_outputs` from `out` on; the bias is null or one element for each output, aligned as `out` is; the device has a library.
pub(super) unsafe fn multiply<D: Device>(
    cuda: &Cuda<D>,
    (rows, cols): (usize, usize),
    x: Argument,
    part: &PartView<'_>,
    to: &Target,
    way: u8,
) -> bool {
    // SAFETY: the caller's obligation.
    unsafe { try_multiply(cuda, (rows, cols), x, part, to, way) }.unwrap_or_else(|error| panic!("{error}"))
}

/// # Safety
/// As [`multiply`].
unsafe fn try_multiply<D: Device>(
    cuda: &Cuda<D>,
    (rows, cols): (usize, usize),
    x: Argument,
    part: &PartView<'_>,
    to: &Target,
    way: u8,
) -> Result<bool, DeviceError> {
    let Stored::Tiles(TiledType { expand: Some(expand), .. }, panel_bytes) = part.stored else { return Ok(false) };
    let (Argument::Pointer(out), Argument::Pointer(bias)) = (to.out, to.bias) else { return Ok(false) };
    let is_aligned =
        (out.0 as usize).is_multiple_of(UNIT * BF16) && (to.out_stride * FLOAT).is_multiple_of(UNIT * BF16);
    if rows == 0 || !is_aligned {
        return Ok(false);
    }
    let mut work = cuda.work();
    let memory = work.library.taken(&cuda.heap, rows * cols)?;
    let [rounded, weights, workspace] = [memory.x.address(), memory.weights.address(), memory.workspace.address()];
    drop(work);
    let arguments = [x, Argument::Pointer(rounded), int(rows * cols)];
    // SAFETY: x has as many elements, and there is memory for them; columns are multiples of 8.
    unsafe {
        let blocks = (rows * cols).div_ceil(256 * UNIT);
        cuda.launch(Kernel::RoundBf16, [blocks, 1, 1], 256, &arguments, rows * cols * (FLOAT + BF16));
    }
    let panels_at_once = (EXPANDED_BYTES / (PANEL * cols * BF16)).clamp(1, MAX_PANELS);
    for first in (0..part.rows).step_by(panels_at_once * PANEL) {
        let count = (panels_at_once * PANEL).min(part.rows - first);
        let panels = count.div_ceil(PANEL);
        let tiles = part.bytes.at(first / PANEL * panel_bytes);
        let arguments = [tiles, Argument::Pointer(weights), int(count), int(cols)];
        // SAFETY: the part has these panels, and there is memory for that many rows.
        unsafe {
            let bytes = panels * panel_bytes + count * cols * BF16;
            cuda.launch(expand, [cols.div_ceil(256), panels, 1], 256, &arguments, bytes);
        }
        let product = LibraryProduct {
            rows,
            num_outputs: count,
            cols,
            x: rounded,
            weights,
            bias: (bias.0 != 0).then(|| bias.at(first * FLOAT)),
            out: out.at(first * FLOAT),
            out_stride: to.out_stride,
            workspace,
            workspace_bytes: WORKSPACE_BYTES,
            candidate: way.into(),
        };
        // SAFETY: there is a library, as the caller's `has_library` says; both operands were just written, in the order of the stream; the
        // rest is the caller's obligation.
        if !unsafe { cuda.device.multiply(&product)? } {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightType;

    #[test]
    fn it_has_whole_units_of_types_that_bf16_does_not_spoil() {
        let has = |weight_type, cols| TiledType::of(weight_type, cols).is_some_and(|tiled| has(tiled, cols));
        assert!(has(WeightType::BF16, 4096) && has(WeightType::Q4_K, 14336) && has(WeightType::BF16, 8));
        assert!(!has(WeightType::F16, 4096) && !has(WeightType::F32, 4096) && !has(WeightType::Q2_K, 4096));
        assert!(!has(WeightType::BF16, 12), "rows of a library begin at multiples of 16 bytes");
        assert!(!has(WeightType::BF16, 1 << 20), "not even a panel fits");
    }
}
