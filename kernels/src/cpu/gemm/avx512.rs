//! The kernels for AVX-512 with VNNI: one vector is four k of sixteen rows, `vpdpbusd` multiplies it with four activation
//! bytes broadcast from memory. See [`super`] for the arithmetic and [`super::format`] for the layout.

use super::activations::{DIGITS, LOW_BITS};
use super::avx512;
use super::format::{BLOCK, High, Low, PANEL_ROWS, Quantized, SUPERBLOCK, Scales};
use super::kernels::{Kernels, Task, products};
use crate::WeightType;
use std::arch::x86_64::*;

mod bf16;
mod floats;
mod quantize;
use quantize::quantize_row;

/// Rows of a tile. Two integer sums and a float one per row, and what they are made of: a seventh row spills.
const TILE_ROWS: usize = 6;

impl Kernels {
    /// AVX-512 F, BW, VL, DQ and VNNI.
    pub(crate) const AVX512: Kernels = Kernels {
        quantize: quantize_row,
        of_words: None,
        products: products!(avx512),
        tile_rows: TILE_ROWS,
        tile_panels: 4,
    };

    /// The same with dot products of bfloat16.
    pub(crate) const AVX512_BF16: Kernels = {
        let mut kernels = Kernels::AVX512;
        kernels.products[WeightType::BF16 as usize] = bf16::bf16_dot;
        kernels
    };
}

/// Stores sixteen outputs of one row, or as many as exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn store(task: &Task, panel: usize, row: usize, sums: __m512) {
    let first = panel * PANEL_ROWS;
    let lanes = PANEL_ROWS.min(task.outputs - first);
    let mask = (0xFFFF_u32 >> (PANEL_ROWS - lanes)) as __mmask16;
    // SAFETY: lanes below `outputs`, the width that out (for `rows` rows) and bias (if any) are valid for.
    unsafe {
        let mut sums = sums;
        if !task.bias.is_null() {
            sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, task.bias.add(first)));
        }
        _mm512_mask_storeu_ps(task.out.add(row * task.out_stride + first), mask, sums);
    }
}

/// Bytes by which weights are asked for before they are used. On a Zen 5 core one panel after the other with this distance
/// reads as fast as plain loads do; half or twice the distance loses a tenth, several panels side by side a tenth to a fifth.
const PREFETCH_BYTES: usize = 6 * 1024;

pub(super) use bf16::bf16;
pub(super) use floats::{F16, F32, floats};

/// # Safety
/// See [`super::kernels::Product`].
pub(super) unsafe fn quantized<F: Quantized>(task: &Task) {
    debug_assert!((1..=TILE_ROWS).contains(&task.rows));
    let kernel = match task.rows {
        1 => quantized_panel::<F, 1>,
        2 => quantized_panel::<F, 2>,
        3 => quantized_panel::<F, 3>,
        4 => quantized_panel::<F, 4>,
        5 => quantized_panel::<F, 5>,
        _ => quantized_panel::<F, TILE_ROWS>,
    };
    for panel in 0..task.num_panels {
        // SAFETY: the caller's obligation, passed on.
        unsafe { kernel(task, panel) };
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quantized_panel<F: Quantized, const ROWS: usize>(task: &Task, panel: usize) {
    let format = F::FORMAT;
    let (blocks, words) = (task.cols / BLOCK, format.terms().words());
    // SAFETY: `place` keeps every load inside its panel (tested), the task's activations have `blocks * ROWS` entries, and
    // `panel < num_panels`. Prefetches may go anywhere.
    unsafe {
        let base = task.panels.add(panel * task.panel_bytes);
        let mut sums = [_mm512_setzero_ps(); ROWS];
        let mut start = 0;
        let mut block = 0;
        while block < blocks {
            let in_superblock = SUPERBLOCK.min(blocks - block);
            let head = start + in_superblock * format.quant_bytes();
            for index in 0..in_superblock {
                let quants = start + index * format.quant_bytes();
                let scales = head + format.head_bytes() + index * format.scale_bytes();
                prefetch(base.wrapping_add(quants), format.quant_bytes());
                prefetch(base.wrapping_add(scales), format.scale_bytes());
                let scaling = Scaling::load::<F>(base.add(head), base.add(scales));
                let at = (block + index) * ROWS;
                let (digits, terms) = (task.digits.add(at * DIGITS), task.terms.add(at * words));
                let planes = base.add(quants);
                let integers = if *task.fine.add(block + index) == 0 {
                    integers::<F, ROWS, false>(planes, &scaling, digits, terms)
                } else {
                    integers::<F, ROWS, true>(planes, &scaling, digits, terms)
                };
                for (row, sum) in sums.iter_mut().enumerate() {
                    let da = _mm512_set1_ps(*task.scales.add(at + row));
                    *sum = scaling.add::<F>(integers[row], da, terms.add(row * words), *sum);
                }
            }
            start += format.superblock_bytes(in_superblock);
            block += in_superblock;
        }
        for (row, &sums) in sums.iter().enumerate() {
            store(task, panel, row, sums);
        }
    }
}

/// Asks for the cache lines that come [`PREFETCH_BYTES`] after the `bytes` bytes from `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn prefetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES + 64 * line).cast());
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn shift_right(x: __m512i, bits: usize) -> __m512i {
    _mm512_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

/// Bits `from..` of every byte moved to `to..`; neighbours come along and are masked off by the caller.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn move_bits(x: __m512i, from: usize, to: usize) -> __m512i {
    if from >= to { shift_right(x, from - to) } else { _mm512_sll_epi16(x, _mm_cvtsi32_si128((to - from) as i32)) }
}

/// Group `g` of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn unpack<F: Quantized>(planes: *const u8, g: usize) -> __m512i {
    let format = F::FORMAT;
    let low_bits = format.low_bits() as usize;
    let (vector, shift) = match format.low {
        Low::Pairs => (g / 4, 2 * (g % 4)),
        Low::Nibbles => (g % 4, 4 * (g / 4)),
        Low::Bytes => (g, 0),
    };
    // SAFETY: a block has `low_vectors` vectors here, 64-byte aligned.
    let mut value = unsafe { _mm512_load_si512(planes.add(64 * vector).cast()) };
    if format.low != Low::Bytes {
        value = _mm512_and_si512(shift_right(value, shift), _mm512_set1_epi8((1 << low_bits) - 1));
    }
    if format.high != High::None {
        let (vector, from, mask) = match format.high {
            High::OneBit => (0, g, 1),
            _ => (g / 4, 2 * (g % 4), 3),
        };
        // SAFETY: and its high vectors after them.
        let high = unsafe { _mm512_load_si512(planes.add(64 * (format.low_vectors() + vector)).cast()) };
        // value | (high & mask)
        let mask = _mm512_set1_epi8(((mask as u32) << low_bits) as i8);
        value = _mm512_ternarylogic_epi32::<0xF8>(value, move_bits(high, from, low_bits), mask);
    }
    value
}

/// The exact integers of one block and each row; without FINE they are those of the high digits. A group is unpacked once and
/// meets all rows before the next, so that the sums of as many rows as possible fit into registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn integers<F: Quantized, const ROWS: usize, const FINE: bool>(
    planes: *const u8,
    scaling: &Scaling,
    digits: *const i8,
    terms: *const i32,
) -> [__m512i; ROWS] {
    let (format, none) = (F::FORMAT, _mm512_setzero_si512());
    let runs = if format.has_halves() { 2 } else { 1 };
    let mut integers = [none; ROWS];
    for run in 0..runs {
        // Sums of the last digit begin with the terms.
        let (mut high, mut low) = ([none; ROWS], [none; ROWS]);
        if !format.has_min() {
            for (row, last) in if FINE { &mut low } else { &mut high }.iter_mut().enumerate() {
                // SAFETY: a row has the words of its type's terms, one per run.
                *last = _mm512_set1_epi32(unsafe { *terms.add(row * format.terms().words() + run) });
            }
        }
        for g in 8 / runs * run..8 / runs * (run + 1) {
            // SAFETY: the caller's obligation.
            let w = unsafe { unpack::<F>(planes, g) };
            for row in 0..ROWS {
                // SAFETY: a block of a row has eight groups of four high digits and then of low ones.
                let (x, y) = unsafe {
                    let digits = digits.add(row * DIGITS).cast::<i32>();
                    (digits.add(g).read_unaligned(), digits.add(8 + g).read_unaligned())
                };
                high[row] = _mm512_dpbusd_epi32(high[row], w, _mm512_set1_epi32(x));
                if FINE {
                    low[row] = _mm512_dpbusd_epi32(low[row], w, _mm512_set1_epi32(y));
                }
            }
        }
        for row in 0..ROWS {
            let mut integer = high[row];
            if FINE {
                integer = _mm512_add_epi32(_mm512_slli_epi32::<LOW_BITS>(integer), low[row]);
            }
            if format.has_halves() {
                integer = _mm512_mullo_epi32(integer, scaling.halves[run]);
            }
            integers[row] = if run == 0 { integer } else { _mm512_add_epi32(integers[row], integer) };
        }
    }
    integers
}

/// Scales of a block for sixteen rows.
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    factor: __m512,
    /// What is subtracted: `fnmadd` takes it.
    min: __m512,
    pub(super) halves: [__m512i; 2],
    half_mins: [__m512i; 2],
}

impl Scaling {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn load<F: Quantized>(head: *const u8, scales: *const u8) -> Scaling {
        // SAFETY: a place of sixteen float16 in a panel.
        let halfs = |at: *const u8| unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) };
        // SAFETY: the same for bytes.
        let bytes = |at: usize| unsafe { _mm_loadu_si128(scales.add(at).cast()) };
        let (zero, none) = (_mm512_setzero_ps(), _mm512_setzero_si512());
        let mut this = Scaling { factor: zero, min: zero, halves: [none; 2], half_mins: [none; 2] };
        // SAFETY: the places are those that `Format` describes.
        unsafe {
            match F::FORMAT.scales {
                Scales::D => this.factor = halfs(scales),
                Scales::DM => {
                    this.factor = halfs(scales);
                    this.min = halfs(scales.add(32));
                }
                Scales::Block => {
                    let float = |at: usize| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(at)));
                    this.factor = _mm512_mul_ps(halfs(head), float(0));
                    this.min = _mm512_mul_ps(halfs(head.add(32)), float(16));
                }
                Scales::Half => {
                    this.factor = halfs(head);
                    this.halves = [_mm512_cvtepi8_epi32(bytes(0)), _mm512_cvtepi8_epi32(bytes(16))];
                }
                Scales::HalfMin => {
                    this.factor = halfs(head);
                    this.min = halfs(head.add(32));
                    let both = [_mm512_cvtepu8_epi32(bytes(0)), _mm512_cvtepu8_epi32(bytes(16))];
                    this.halves = both.map(|both| _mm512_and_si512(both, _mm512_set1_epi32(15)));
                    this.half_mins = both.map(|both| _mm512_srli_epi32::<4>(both));
                }
            }
        }
        this
    }

    /// Adds the scaled integer and the minimum to a sum.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) unsafe fn add<F: Quantized>(
        self,
        integer: __m512i,
        da: __m512,
        terms: *const i32,
        sum: __m512,
    ) -> __m512 {
        let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integer), _mm512_mul_ps(self.factor, da), sum);
        // SAFETY: the words that the type's terms have.
        unsafe {
            match F::FORMAT.scales {
                Scales::D | Scales::Half => sum,
                Scales::DM => _mm512_fmadd_ps(self.min, _mm512_set1_ps(*terms.cast::<f32>()), sum),
                Scales::Block => _mm512_fnmadd_ps(self.min, _mm512_set1_ps(*terms.cast::<f32>()), sum),
                Scales::HalfMin => {
                    let first = _mm512_mullo_epi32(self.half_mins[0], _mm512_set1_epi32(*terms));
                    let second = _mm512_mullo_epi32(self.half_mins[1], _mm512_set1_epi32(*terms.add(1)));
                    let integer = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
                    _mm512_fnmadd_ps(self.min, _mm512_mul_ps(integer, da), sum)
                }
            }
        }
    }
}
