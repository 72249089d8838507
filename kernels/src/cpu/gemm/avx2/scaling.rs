//! Scales of a block, and what they do to its integers; see [`crate::cpu::gemm`].

use crate::cpu::gemm::format::{Quantized, Scales};
use std::arch::x86_64::*;

/// Scales of a block for eight rows.
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    factor: __m256,
    /// What is subtracted (`fnmadd`) or, for `m`, added.
    min: __m256,
    pub(super) halves: [__m256i; 2],
    half_mins: [__m256i; 2],
}

impl Scaling {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn load<F: Quantized>(head: *const u8, scales: *const u8, half: usize) -> Scaling {
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

    /// Adds the scaled integer and the minimum to a sum.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn add<F: Quantized>(
        &self,
        integer: __m256i,
        da: __m256,
        terms: *const i32,
        sum: __m256,
    ) -> __m256 {
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
