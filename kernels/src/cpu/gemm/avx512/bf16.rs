//! Products with BF16 weights for AVX-512: a vector is one pair of sixteen rows, which `vdpbf16ps` or two multiply-adds
//! multiply with a pair of activations broadcast from memory. See [`crate::cpu::gemm::bf16`] for arithmetic and layout.

use super::{PREFETCH_BYTES, TILE_ROWS, store};
use crate::cpu::gemm::bf16::{BLOCK_QUADS, LINE_BYTES, num_quads};
use crate::cpu::gemm::kernels::Task;
use std::arch::x86_64::*;

/// `sum` plus the products of the upper halves, then those of the lower ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn multiply_add(sum: __m512, w: __m512i, x: __m512i) -> __m512 {
    let upper = |pairs| _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed())));
    let lower = |pairs| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
    _mm512_fmadd_ps(lower(w), lower(x), _mm512_fmadd_ps(upper(w), upper(x), sum))
}

/// The same in one instruction.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
fn dot(sum: __m512, w: __m512i, x: __m512i) -> __m512 {
    // SAFETY: vectors of the same size, of any bits.
    let pairs = |bits: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
    _mm512_dpbf16_ps(sum, pairs(w), pairs(x))
}

/// A product, compiled with the features that its way to multiply pairs needs.
macro_rules! product {
    ($name:ident, $panels:ident, $add_pairs:ident, $features:tt) => {
        /// # Safety
        /// See [`crate::cpu::gemm::kernels::Product`].
        pub(crate) unsafe fn $name(task: &Task) {
            debug_assert!((1..=TILE_ROWS).contains(&task.rows));
            // Two panels share what is loaded of the activations. Few rows wait for memory, which is read fastest in order.
            let (one, two): (unsafe fn(&Task, usize), Option<unsafe fn(&Task, usize)>) = match task.rows {
                1 => ($panels::<1, 1>, None),
                2 => ($panels::<1, 2>, None),
                3 => ($panels::<1, 3>, Some($panels::<2, 3>)),
                4 => ($panels::<1, 4>, Some($panels::<2, 4>)),
                5 => ($panels::<1, 5>, Some($panels::<2, 5>)),
                _ => ($panels::<1, TILE_ROWS>, Some($panels::<2, TILE_ROWS>)),
            };
            let mut panel = 0;
            while panel < task.num_panels {
                let (kernel, num_panels) = match two {
                    Some(two) if task.num_panels - panel >= 2 => (two, 2),
                    _ => (one, 1),
                };
                // SAFETY: the caller's obligation, passed on.
                unsafe { kernel(task, panel) };
                panel += num_panels;
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn $panels<const PANELS: usize, const ROWS: usize>(task: &Task, first_panel: usize) {
            let quads = num_quads(task.cols);
            // SAFETY: a panel has two lines for each quad, the tile two pairs for each quad and row, and
            // `first_panel + PANELS <= num_panels`. Prefetches may go anywhere.
            unsafe {
                let base = task.panels.add(first_panel * task.panel_bytes);
                let mut sums = [[_mm512_setzero_ps(); ROWS]; PANELS];
                for first in (0..quads).step_by(BLOCK_QUADS) {
                    let mut chains = [[[_mm512_setzero_ps(); 2]; ROWS]; PANELS];
                    for quad in first..quads.min(first + BLOCK_QUADS) {
                        for parity in 0..2 {
                            let at = (2 * quad + parity) * LINE_BYTES;
                            let mut ahead = at + PREFETCH_BYTES / PANELS;
                            if ahead >= task.panel_bytes {
                                ahead += (PANELS - 1) * task.panel_bytes;
                            }
                            let mut weights = [_mm512_setzero_si512(); PANELS];
                            for (panel, weights) in weights.iter_mut().enumerate() {
                                let panel = base.add(panel * task.panel_bytes);
                                _mm_prefetch::<_MM_HINT_T0>(panel.wrapping_add(ahead).cast());
                                *weights = _mm512_load_si512(panel.add(at).cast());
                            }
                            for row in 0..ROWS {
                                let x = (*task.pairs.add(quad * task.pair_rows + row))[parity];
                                let x = _mm512_set1_epi32(x.cast_signed());
                                for (chains, &weights) in chains.iter_mut().zip(&weights) {
                                    chains[row][parity] = $add_pairs(chains[row][parity], weights, x);
                                }
                            }
                        }
                    }
                    for (sums, chains) in sums.iter_mut().zip(&chains) {
                        for (sum, [even, odd]) in sums.iter_mut().zip(chains) {
                            *sum = _mm512_add_ps(*sum, _mm512_add_ps(*even, *odd));
                        }
                    }
                }
                for (panel, sums) in sums.iter().enumerate() {
                    for (row, &sums) in sums.iter().enumerate() {
                        store(task, first_panel + panel, row, sums);
                    }
                }
            }
        }
    };
}

product!(bf16, panels, multiply_add, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
product!(bf16_dot, dot_panels, dot, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    /// What `vdpbf16ps` and what multiply-adds make of sixteen sums and pairs.
    fn both(sums: &[f32; 16], w: &[u32; 16], x: &[u32; 16]) -> [[f32; 16]; 2] {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
        unsafe fn run(sums: &[f32; 16], w: &[u32; 16], x: &[u32; 16], out: &mut [[f32; 16]; 2]) {
            // SAFETY: arrays of sixteen.
            unsafe {
                let sums = _mm512_loadu_ps(sums.as_ptr());
                let (w, x) = (_mm512_loadu_si512(w.as_ptr().cast()), _mm512_loadu_si512(x.as_ptr().cast()));
                _mm512_storeu_ps(out[0].as_mut_ptr(), dot(sums, w, x));
                _mm512_storeu_ps(out[1].as_mut_ptr(), multiply_add(sums, w, x));
            }
        }
        let mut out = [[0.0; 16]; 2];
        // SAFETY: called where the instruction set is available.
        unsafe { run(sums, w, x, &mut out) };
        out
    }

    /// Documentation gives the order (upper halves first, each a fused multiply-add) and the flushing of denormals; this holds
    /// the processor to it where the numerics class goes: operands from 2^-56, sums that are multiples of 2^-126.
    #[test]
    fn the_dot_product_of_bfloat16_is_two_fused_multiply_adds_upper_halves_first() {
        if !Isa::Avx512Bf16.is_available() {
            return;
        }
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as u32
        };
        let mut order_matters = 0;
        for round in 0..400_000 {
            // Of one size, down to the smallest, up to overflow, of all sizes.
            let (smallest, exponents) = [(-3, 7), (-56, 5), (58, 8), (-56, 184)][round % 4];
            let mut half = || random() & 0x807F | ((smallest + 127) as u32 + random() % exponents) << 7;
            let (mut sums, mut w, mut x) = ([0.0_f32; 16], [0; 16], [0; 16]);
            for ((sum, w), x) in sums.iter_mut().zip(&mut w).zip(&mut x) {
                (*w, *x) = (half() << 16 | half(), half() << 16 | half());
                let [upper, lower] = [0xFFFF_0000, 0xFFFF].map(|mask| {
                    let number = |pair: u32| f32::from_bits((pair & mask) << if mask == 0xFFFF { 16 } else { 0 });
                    number(*w) * number(*x)
                });
                // Sums that cancel the first product, the second, both, nearly all, or nothing of them.
                *sum = match half() % 8 {
                    0 => -upper,
                    1 => -lower,
                    2 => -(upper + lower),
                    3 => (-upper).next_up(),
                    4 => 0.0,
                    _ => f32::from_bits(half() << 16) * f32::from_bits(half() << 16) * 1.37,
                };
                // As sums of the class are.
                *sum = if sum.is_finite() { (f64::from(*sum) * 2_f64.powi(126)).trunc() as f32 } else { 0.0 };
                *sum = (f64::from(*sum) * 2_f64.powi(-126)) as f32;
            }
            let [dots, sums_of_two] = both(&sums, &w, &x);
            let swapped = both(&sums, &w.map(|pair| pair.rotate_left(16)), &x.map(|pair| pair.rotate_left(16)))[1];
            for lane in 0..16 {
                let (dot, expected) = (dots[lane], sums_of_two[lane]);
                let same = dot.to_bits() == expected.to_bits() || dot.is_nan() && expected.is_nan();
                assert!(same, "{:e} + {:x} * {:x}: {dot:e}, not {expected:e}", sums[lane], w[lane], x[lane]);
                order_matters += u32::from(expected != swapped[lane]);
            }
        }
        assert!(order_matters > 100_000, "the operands tell the orders apart: {order_matters}");
    }
}
