//! The kernels for AMX with int8: a tile product multiplies sixteen rows of digits with a block of sixteen outputs. What
//! leaves the tiles are the same exact integers that AVX-512 adds up in vectors, and AVX-512 code scales and adds them. See
//! [`super`] for the arithmetic and [`super::format`] for panels, whose `[k / 4][16 rows][4]` is what a tile product takes.
//!
//! A tile product adds along k, and blocks have scales of their own, so it spans a block of 32 (a half of 16 where halves
//! have scales) and not the 64 that would fit: its time is that of its sixteen rows. Up to eight rows of activations fill
//! these with both digits, lying as they do `[row][high 32 | low 32]`, 32 bytes apart; more take one product for the high
//! digits and one for the low, 64 bytes apart. (Two blocks in one product, each between zeros, would halve the rows.)

use super::activations::{DIGITS, LOW_BITS};
use super::avx512::{Scaling, store, unpack};
use super::format::{self, BLOCK, Low, PANEL_ROWS, Quantized, SUPERBLOCK};
use super::kernels::{Kernels, Product, Task};
use crate::WeightType;
use layout::{Arrangement, DIGIT_TILES, SUM_BYTES, SUM_TILES, Sums, WEIGHT_TILES};
use std::arch::x86_64::*;
use tiles::Tiles;

mod emulated;
mod hardware;
mod layout;
#[cfg(test)]
mod tests;
mod tiles;

/// Rows of activations that share one unpacking of a block: as many as a tile has.
const TILE_ROWS: usize = tiles::TILE_ROWS;
/// Panels walked side by side: they share the loading of activations, and so many pages stream at once.
const PANELS: usize = 4;

macro_rules! kernels {
    ($tiles:ty) => {
        Kernels {
            quantize: Kernels::AVX512.quantize,
            of_words: None,
            products: [
                floats::<{ WeightType::F32 as usize }> as Product,
                floats::<{ WeightType::F16 as usize }>,
                floats::<{ WeightType::BF16 as usize }>,
                quantized::<format::Q4_0, $tiles>,
                quantized::<format::Q4_1, $tiles>,
                quantized::<format::Q5_0, $tiles>,
                quantized::<format::Q5_1, $tiles>,
                quantized::<format::Q8_0, $tiles>,
                quantized::<format::Q2_K, $tiles>,
                quantized::<format::Q3_K, $tiles>,
                quantized::<format::Q4_K, $tiles>,
                quantized::<format::Q5_K, $tiles>,
                quantized::<format::Q6_K, $tiles>,
            ],
            tile_rows: TILE_ROWS,
            tile_panels: PANELS,
        }
    };
}

impl Kernels {
    /// AMX with int8, and all of [`Kernels::AVX512`].
    pub(crate) const AMX: Kernels = kernels!(hardware::Amx);
    /// The same with tiles in memory, for tests.
    pub(crate) const AMX_EMULATED: Kernels = kernels!(emulated::Emulated);
}

/// Float weights by the kernels of AVX-512, in tiles of as many rows as they take.
///
/// # Safety
/// See [`super::kernels::Product`].
unsafe fn floats<const TYPE: usize>(task: &Task) {
    let Kernels { products, tile_rows, .. } = &Kernels::AVX512;
    let at_once = task.rows.div_ceil(task.rows.div_ceil(*tile_rows));
    for first in (0..task.rows).step_by(at_once) {
        let part = Task {
            rows: at_once.min(task.rows - first),
            x: task.x.wrapping_add(first * task.cols),
            pairs: task.pairs.wrapping_add(first),
            out: task.out.wrapping_add(first * task.out_stride),
            ..*task
        };
        // SAFETY: the caller's obligation: AVX-512 is part of this set, and these are rows of the task.
        unsafe { products[TYPE](&part) };
    }
}

/// # Safety
/// See [`super::kernels::Product`]; and the machine has what `T` needs.
unsafe fn quantized<F: Quantized, T: Tiles>(task: &Task) {
    debug_assert!((1..=TILE_ROWS).contains(&task.rows));
    let arrangement = Arrangement::of(task.rows);
    // SAFETY: the caller's obligation, passed on.
    unsafe {
        let mut tiles = T::configured(&arrangement.configuration(halves::<F>()));
        for first in (0..task.num_panels).step_by(PANELS) {
            let count = PANELS.min(task.num_panels - first);
            quantized_panels::<F, T>(task, &mut tiles, arrangement, first..first + count);
        }
    }
}

/// Runs of a block that have sums of their own.
const fn halves<F: Quantized>() -> usize {
    if F::FORMAT.has_halves() { 2 } else { 1 }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quantized_panels<F: Quantized, T: Tiles>(
    task: &Task,
    tiles: &mut T,
    arrangement: Arrangement,
    panels: std::ops::Range<usize>,
) {
    let format = F::FORMAT;
    let (blocks, words) = (task.cols / BLOCK, format.terms().words());
    // As far ahead as a superblock in the same panel or, past its end, in the panel that follows those at hand.
    let ahead = |at: usize| {
        let at = at + format.superblock_bytes(SUPERBLOCK);
        if at < task.panel_bytes { at } else { at + (panels.len() - 1) * task.panel_bytes }
    };
    let mut sums = Sums::uninit();
    let mut totals = [[_mm512_setzero_ps(); TILE_ROWS]; PANELS];
    let (mut start, mut block) = (0, 0);
    while block < blocks {
        let in_superblock = SUPERBLOCK.min(blocks - block);
        let head = start + in_superblock * format.quant_bytes();
        for index in 0..in_superblock {
            let quants = start + index * format.quant_bytes();
            let scales = head + format.head_bytes() + index * format.scale_bytes();
            let at = (block + index) * task.rows;
            // SAFETY: `place` keeps every load inside its panel (tested), the task's activations have `blocks * rows`
            // entries, and the panels are the task's. Prefetches may go anywhere.
            unsafe {
                let fine = *task.fine.add(block + index) != 0;
                load_digits::<F, T>(tiles, (arrangement, fine), task.digits.add(at * DIGITS));
                for (panel, totals) in panels.clone().zip(&mut totals) {
                    let base = task.panels.add(panel * task.panel_bytes);
                    prefetch(base.wrapping_add(ahead(quants)), format.quant_bytes());
                    prefetch(base.wrapping_add(ahead(scales)), format.scale_bytes());
                    load_weights::<F, T>(tiles, base.add(quants));
                    multiply::<F, T>(tiles, (arrangement, fine), &mut sums);
                    let scaling = Scaling::load::<F>(base.add(head), base.add(scales));
                    for (row, total) in totals[..task.rows].iter_mut().enumerate() {
                        let terms = task.terms.add((at + row) * words);
                        let integer = integer::<F>((&sums, fine), row, &scaling, terms);
                        let da = _mm512_set1_ps(*task.scales.add(at + row));
                        *total = scaling.add::<F>(integer, da, terms, *total);
                    }
                }
            }
        }
        start += format.superblock_bytes(in_superblock);
        block += in_superblock;
    }
    for (panel, totals) in panels.zip(&totals) {
        for (row, &total) in totals[..task.rows].iter().enumerate() {
            // SAFETY: a panel and a row of the task.
            unsafe { store(task, panel, row, total) };
        }
    }
}

/// Asks for the cache lines that hold `bytes` bytes from `at`.
#[inline]
fn prefetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a hint, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast()) };
    }
}

/// Puts the digits of a block of all rows into their registers, in place; low ones only where some row is fine.
#[inline(always)]
unsafe fn load_digits<F: Quantized, T: Tiles>(
    tiles: &mut T,
    (arrangement, fine): (Arrangement, bool),
    digits: *const i8,
) {
    let (digits, stride) = (digits.cast::<u8>(), arrangement.digit_stride());
    // SAFETY: a block of a row has 32 high digits, then 32 low ones; of `2 * rows` runs of 32 together, each is loaded by one
    // row of a register. The registers have shapes where they are used.
    unsafe {
        tiles.load::<{ DIGIT_TILES }>(digits, stride);
        if arrangement.apart && fine {
            tiles.load::<{ DIGIT_TILES + 1 }>(digits.add(BLOCK), stride);
        }
        if halves::<F>() == 2 {
            tiles.load::<{ DIGIT_TILES + 2 }>(digits.add(BLOCK / 2), stride);
            if arrangement.apart && fine {
                tiles.load::<{ DIGIT_TILES + 3 }>(digits.add(BLOCK + BLOCK / 2), stride);
            }
        }
    }
}

/// Puts the weights of a block into their registers: bytes in place, packed ones by way of memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn load_weights<F: Quantized, T: Tiles>(tiles: &mut T, quants: *const u8) {
    let mut groups = [_mm512_setzero_si512(); BLOCK / 4];
    let weights = if F::FORMAT.low == Low::Bytes {
        quants
    } else {
        for (g, group) in groups.iter_mut().enumerate() {
            // SAFETY: a block of the panel, the caller's obligation.
            *group = unsafe { unpack::<F>(quants, g) };
        }
        groups.as_ptr().cast()
    };
    // SAFETY: eight groups of 64 bytes, in one register or in two of four.
    unsafe {
        tiles.load::<{ WEIGHT_TILES }>(weights, 4 * PANEL_ROWS);
        if halves::<F>() == 2 {
            tiles.load::<{ WEIGHT_TILES + 1 }>(weights.add(BLOCK / 2 * PANEL_ROWS), 4 * PANEL_ROWS);
        }
    }
}

/// Multiplies what the registers hold. The second product of each pair is for the low digits: a tile of rows none of which is
/// fine in this block has no need of it.
#[inline(always)]
unsafe fn multiply<F: Quantized, T: Tiles>(tiles: &mut T, (arrangement, fine): (Arrangement, bool), sums: &mut Sums) {
    let stride = arrangement.sum_stride();
    // SAFETY: `configuration` gives each register the shape of its part in a product; the rows of a half's sums take
    // `2 * rows * SUM_BYTES` bytes of HALF_BYTES, whichever way they are laid.
    unsafe {
        product::<T, { SUM_TILES }, { DIGIT_TILES }, { WEIGHT_TILES }>(tiles, sums.at(0, 0), stride);
        if arrangement.apart && fine {
            product::<T, { SUM_TILES + 1 }, { DIGIT_TILES + 1 }, { WEIGHT_TILES }>(tiles, sums.at(0, 1), stride);
        }
        if halves::<F>() == 2 {
            product::<T, { SUM_TILES }, { DIGIT_TILES + 2 }, { WEIGHT_TILES + 1 }>(tiles, sums.at(1, 0), stride);
            if arrangement.apart && fine {
                product::<T, { SUM_TILES + 1 }, { DIGIT_TILES + 3 }, { WEIGHT_TILES + 1 }>(
                    tiles,
                    sums.at(1, 1),
                    stride,
                );
            }
        }
    }
}

#[inline(always)]
unsafe fn product<T: Tiles, const SUMS: usize, const LEFT: usize, const RIGHT: usize>(
    tiles: &mut T,
    to: *mut u8,
    stride: usize,
) {
    // SAFETY: the caller's obligation.
    unsafe {
        tiles.zero::<SUMS>();
        tiles.multiply::<SUMS, LEFT, RIGHT>();
        tiles.store::<SUMS>(to, stride);
    }
}

/// The exact integers of one row: digits joined, zeros taken off, halves times their scales.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn integer<F: Quantized>(
    (sums, fine): (&Sums, bool),
    row: usize,
    scaling: &Scaling,
    terms: *const i32,
) -> __m512i {
    let mut total = _mm512_setzero_si512();
    for half in 0..halves::<F>() {
        // SAFETY: the sums of a row of the tile, which `multiply` wrote, and the words of its type's terms, one per half.
        let mut integer = unsafe {
            let high = _mm512_load_si512(sums.row(half, row).cast());
            let zero = _mm512_set1_epi32(if F::FORMAT.has_min() { 0 } else { *terms.add(half) });
            if fine {
                let low = _mm512_load_si512(sums.row(half, row).add(SUM_BYTES).cast());
                _mm512_add_epi32(_mm512_slli_epi32::<LOW_BITS>(high), _mm512_add_epi32(low, zero))
            } else {
                _mm512_add_epi32(high, zero)
            }
        };
        if F::FORMAT.has_halves() {
            integer = _mm512_mullo_epi32(integer, scaling.halves[half]);
        }
        total = _mm512_add_epi32(total, integer);
    }
    total
}
