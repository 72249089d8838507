//! The kernels for AVX2 with FMA. A panel is walked as two half panels of eight rows, so that a tile of four activation rows
//! leaves the eight unpacked groups of a block in registers. See [`super`] for the arithmetic.
//!
//! Sums stay exact: `vpmaddubsw` adds pairs in int16, which values up to 63 cannot overflow (2 * 63 * 127 = 16002); as many
//! groups are added up in int16 as their range allows. Bytes (Q8_0) move their sign to the activation: 2 * 128 * 127 = 32512.

use super::activations::{DIGITS, LOW_BITS};
use super::avx2;
use super::format::{BLOCK, High, Low, PANEL_ROWS, Quantized, SUPERBLOCK, Scales};
use super::kernels::{Kernels, Task, products};
use std::arch::x86_64::*;

mod bf16;
mod quantize;
use quantize::quantize_row;

impl Kernels {
    /// AVX2, FMA and F16C.
    pub(crate) const AVX2: Kernels =
        Kernels { quantize: quantize_row, products: products!(avx2), tile_rows: 4, tile_panels: 2 };
}

/// Rows of a half panel: the lanes of a vector.
const HALF: usize = PANEL_ROWS / 2;

/// Stores the eight outputs of half panel `unit` of one row, or as many as exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(task: &Task, unit: usize, row: usize, sums: __m256) {
    let first = unit * HALF;
    if first >= task.outputs {
        return;
    }
    let lanes = HALF.min(task.outputs - first);
    // SAFETY: lanes below `outputs`, the width that out (for `rows` rows) and bias (if any) are valid for.
    unsafe {
        let out = task.out.add(row * task.out_stride + first);
        let order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), order);
        let mut sums = sums;
        if !task.bias.is_null() {
            sums = _mm256_add_ps(sums, _mm256_maskload_ps(task.bias.add(first), mask));
        }
        _mm256_maskstore_ps(out, mask, sums);
    }
}

/// Runs a kernel over all half panels of a task, the largest number at a time first.
macro_rules! sweep {
    ($task:ident, $kernel:ident, $type:ident, $one:tt, $two:tt, $more:tt) => {{
        match $task.rows {
            1 => sweep!(@units $task, $kernel, $type, 1, $one),
            2 => sweep!(@units $task, $kernel, $type, 2, $two),
            3 => sweep!(@units $task, $kernel, $type, 3, $more),
            _ => sweep!(@units $task, $kernel, $type, 4, $more),
        }
    }};
    (@units $task:ident, $kernel:ident, $type:ident, $rows:literal, ($($units:literal),*)) => {{
        let mut unit = 0;
        $(
            while 2 * $task.num_panels - unit >= $units {
                $kernel::<$type, $units, $rows>($task, unit);
                unit += $units;
            }
        )*
    }};
}

mod floats; // after the macro, which it uses
pub(super) use bf16::bf16;
pub(super) use floats::{F16, F32, floats};

/// # Safety
/// See [`super::kernels::Product`].
pub(super) unsafe fn quantized<F: Quantized>(task: &Task) {
    debug_assert!((1..=4).contains(&task.rows));
    // SAFETY: the caller's obligation, passed on.
    unsafe { sweep!(task, quantized_units, F, (4, 2), (2), (1)) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantized_units<F: Quantized, const UNITS: usize, const ROWS: usize>(task: &Task, first_unit: usize) {
    let format = F::FORMAT;
    let (blocks, words) = (task.cols / BLOCK, format.terms().words());
    // SAFETY: `place` keeps every load inside its panel (tested), the task's activations have `blocks * ROWS` entries, and
    // `first_unit + UNITS <= 2 * num_panels`. Prefetches may go anywhere.
    unsafe {
        // Ahead in the same panel or, past its end, as far into the panel of the next group.
        let ahead = |at: usize| {
            let at = at + format.superblock_bytes(SUPERBLOCK);
            if at < task.panel_bytes { at } else { at + (UNITS.div_ceil(2) - 1) * task.panel_bytes }
        };
        let mut sums = [[_mm256_setzero_ps(); ROWS]; UNITS];
        let mut start = 0;
        let mut block = 0;
        while block < blocks {
            let in_superblock = SUPERBLOCK.min(blocks - block);
            let head = start + in_superblock * format.quant_bytes();
            for index in 0..in_superblock {
                let quants = start + index * format.quant_bytes();
                let scales = head + format.head_bytes() + index * format.scale_bytes();
                let at = (block + index) * ROWS;
                let fine = *task.fine.add(block + index) != 0;
                let x = (task.digits.add(at * DIGITS), task.scales.add(at), task.terms.add(at * words));
                let (next_quants, next_scales) = (ahead(quants), ahead(scales));
                for (unit, sums) in sums.iter_mut().enumerate() {
                    let (panel, half) = ((first_unit + unit) / 2, (first_unit + unit) % 2);
                    let base = task.panels.add(panel * task.panel_bytes);
                    // A cache line holds both halves, and the second finds what the first asked for.
                    if half == 0 {
                        prefetch(base.wrapping_add(next_quants), format.quant_bytes());
                        prefetch(base.wrapping_add(next_scales), format.scale_bytes());
                    }
                    let weights = unpack::<F>(base.add(quants + 32 * half));
                    let scaling = Scaling::load::<F>(base.add(head), base.add(scales), half);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let (digits, terms) = (x.0.add(row * DIGITS).cast::<i32>(), x.2.add(row * words));
                        let integer = scaling.integer::<F>(&weights, (digits, fine), terms);
                        *sum = scaling.add::<F>(integer, _mm256_set1_ps(*x.1.add(row)), terms, *sum);
                    }
                }
            }
            start += format.superblock_bytes(in_superblock);
            block += in_superblock;
        }
        for (unit, sums) in sums.iter().enumerate() {
            for (row, &sums) in sums.iter().enumerate() {
                store(task, first_unit + unit, row, sums);
            }
        }
    }
}

/// Asks for the cache lines that hold `bytes` bytes from `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast());
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_right(x: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
}

/// Bits `from..` of every byte moved to `to..`; neighbours come along and are masked off by the caller.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn move_bits(x: __m256i, from: usize, to: usize) -> __m256i {
    if from >= to { shift_right(x, from - to) } else { _mm256_sll_epi16(x, _mm_cvtsi32_si128((to - from) as i32)) }
}

/// The eight groups of a block, of eight rows; bytes are made signed again.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<F: Quantized>(planes: *const u8) -> [__m256i; 8] {
    let format = F::FORMAT;
    let low_bits = format.low_bits() as usize;
    let mut groups = [_mm256_setzero_si256(); 8];
    for (g, group) in groups.iter_mut().enumerate() {
        let (vector, shift) = match format.low {
            Low::Pairs => (g / 4, 2 * (g % 4)),
            Low::Nibbles => (g % 4, 4 * (g / 4)),
            Low::Bytes => (g, 0),
        };
        // SAFETY: a block has `low_vectors` vectors of 64 bytes here, of which this is a half.
        let mut value = unsafe { _mm256_load_si256(planes.add(64 * vector).cast()) };
        if format.low == Low::Bytes {
            value = _mm256_xor_si256(value, _mm256_set1_epi8(-128));
        } else {
            value = _mm256_and_si256(shift_right(value, shift), _mm256_set1_epi8((1 << low_bits) - 1));
        }
        if format.high != High::None {
            let (vector, from, mask) = match format.high {
                High::OneBit => (0, g, 1),
                _ => (g / 4, 2 * (g % 4), 3),
            };
            // SAFETY: and its high vectors after them.
            let high = unsafe { _mm256_load_si256(planes.add(64 * (format.low_vectors() + vector)).cast()) };
            let mask = _mm256_set1_epi8(((mask as u32) << low_bits) as i8);
            value = _mm256_or_si256(value, _mm256_and_si256(move_bits(high, from, low_bits), mask));
        }
        *group = value;
    }
    groups
}

/// Groups that can be added up in int16: each adds at most twice the largest value times 127.
const fn groups_in_int16(largest: i32) -> usize {
    let groups = 32767 / (2 * 127 * largest) as usize;
    if groups == 0 { 1 } else { groups }
}

/// Exact dot products of groups `from..to`, for eight rows; unless the block is fine, with its high digits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot<F: Quantized>(w: &[__m256i; 8], (x, fine): (*const i32, bool), from: usize, to: usize) -> __m256i {
    // SAFETY: the eight groups of high digits ...
    let high = unsafe { dot_digits::<F>(w, x, from, to) };
    if !fine {
        return high;
    }
    // SAFETY: ... are followed by those of low ones.
    let low = unsafe { dot_digits::<F>(w, x.add(8), from, to) };
    _mm256_add_epi32(_mm256_slli_epi32::<{ LOW_BITS as i32 }>(high), low)
}

/// As [`dot`], with one of the two digits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_digits<F: Quantized>(w: &[__m256i; 8], x: *const i32, from: usize, to: usize) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let at_once = groups_in_int16(F::FORMAT.largest());
    let mut total = _mm256_setzero_si256();
    let mut group = from;
    while group < to {
        let mut pairs = _mm256_setzero_si256();
        let end = if group + at_once < to { group + at_once } else { to };
        while group < end {
            // SAFETY: a digit of a block and row has eight groups of four bytes.
            let x = unsafe { _mm256_set1_epi32(x.add(group).read_unaligned()) };
            let product = if matches!(F::FORMAT.low, Low::Bytes) {
                _mm256_maddubs_epi16(_mm256_abs_epi8(w[group]), _mm256_sign_epi8(x, w[group]))
            } else {
                _mm256_maddubs_epi16(w[group], x)
            };
            pairs = _mm256_add_epi16(pairs, product);
            group += 1;
        }
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
    }
    total
}

/// Scales of a block for eight rows.
#[derive(Clone, Copy)]
struct Scaling {
    factor: __m256,
    /// What is subtracted (`fnmadd`) or, for `m`, added.
    min: __m256,
    halves: [__m256i; 2],
    half_mins: [__m256i; 2],
}

impl Scaling {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load<F: Quantized>(head: *const u8, scales: *const u8, half: usize) -> Scaling {
        // SAFETY: half of a place of sixteen float16 in a panel.
        let halfs = |at: *const u8| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.add(16 * half).cast())) };
        // SAFETY: the same for bytes.
        let bytes = |at: usize| unsafe { _mm_loadl_epi64(scales.add(at + 8 * half).cast()) };
        let (zero, none) = (_mm256_setzero_ps(), _mm256_setzero_si256());
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
                    let float = |at: usize| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(at)));
                    this.factor = _mm256_mul_ps(halfs(head), float(0));
                    this.min = _mm256_mul_ps(halfs(head.add(32)), float(16));
                }
                Scales::Half => {
                    this.factor = halfs(head);
                    this.halves = [_mm256_cvtepi8_epi32(bytes(0)), _mm256_cvtepi8_epi32(bytes(16))];
                }
                Scales::HalfMin => {
                    this.factor = halfs(head);
                    this.min = halfs(head.add(32));
                    let both = [_mm256_cvtepu8_epi32(bytes(0)), _mm256_cvtepu8_epi32(bytes(16))];
                    this.halves = both.map(|both| _mm256_and_si256(both, _mm256_set1_epi32(15)));
                    this.half_mins = both.map(|both| _mm256_srli_epi32::<4>(both));
                }
            }
        }
        this
    }

    /// The exact integer of one block and row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn integer<F: Quantized>(self, w: &[__m256i; 8], x: (*const i32, bool), terms: *const i32) -> __m256i {
        let format = F::FORMAT;
        let has_zero = !format.has_min() && !matches!(format.low, Low::Bytes);
        // SAFETY: the words that the type's terms have.
        let zero = |word: usize| unsafe { _mm256_set1_epi32(*terms.add(word)) };
        if !format.has_halves() {
            // SAFETY: the caller's obligation.
            let sum = unsafe { dot::<F>(w, x, 0, 8) };
            return if has_zero { _mm256_add_epi32(sum, zero(0)) } else { sum };
        }
        // SAFETY: as above.
        let [mut first, mut second] = unsafe { [dot::<F>(w, x, 0, 4), dot::<F>(w, x, 4, 8)] };
        if has_zero {
            first = _mm256_add_epi32(first, zero(0));
            second = _mm256_add_epi32(second, zero(1));
        }
        _mm256_add_epi32(_mm256_mullo_epi32(first, self.halves[0]), _mm256_mullo_epi32(second, self.halves[1]))
    }

    /// Adds the scaled integer and the minimum to a sum.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add<F: Quantized>(self, integer: __m256i, da: __m256, terms: *const i32, sum: __m256) -> __m256 {
        let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integer), _mm256_mul_ps(self.factor, da), sum);
        // SAFETY: the words that the type's terms have.
        unsafe {
            match F::FORMAT.scales {
                Scales::D | Scales::Half => sum,
                Scales::DM => _mm256_fmadd_ps(self.min, _mm256_set1_ps(*terms.cast::<f32>()), sum),
                Scales::Block => _mm256_fnmadd_ps(self.min, _mm256_set1_ps(*terms.cast::<f32>()), sum),
                Scales::HalfMin => {
                    let first = _mm256_mullo_epi32(self.half_mins[0], _mm256_set1_epi32(*terms));
                    let second = _mm256_mullo_epi32(self.half_mins[1], _mm256_set1_epi32(*terms.add(1)));
                    let integer = _mm256_cvtepi32_ps(_mm256_add_epi32(first, second));
                    _mm256_fnmadd_ps(self.min, _mm256_mul_ps(integer, da), sum)
                }
            }
        }
    }
}
