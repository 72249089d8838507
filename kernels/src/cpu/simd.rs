//! Sixteen float32 lanes, the unit in which kernels outside the matrix product are written. A kernel is written once over
//! [`Simd`] and compiled per instruction set by [`run`]; every operation here is one IEEE operation per lane, in all
//! implementations, so a kernel gives the same bits everywhere.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use super::isa::Isa;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen-lane arithmetic of one instruction set. A value of such a type exists only where the processor has the set:
/// [`run`] makes it after [`Isa`] has been asked, which is what the implementations' unsafe calls rely on.
pub(crate) trait Simd: Copy {
    /// Sixteen float32.
    type F: Copy;

    /// Whether a vector is one register and there are 32 of them; kernels choose their register blocks by it.
    const WIDE: bool;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    /// Sixteen float16 bit patterns, widened.
    fn load_f16(self, from: &[u16; LANES]) -> Self::F;
    /// Rounded to nearest even float16 bit patterns.
    fn store_f16(self, x: Self::F, to: &mut [u16; LANES]);
    /// Sixteen bfloat16 bit patterns, widened.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F;
    /// Rounded to nearest even bfloat16 bit patterns; what is not a number stays so.
    fn store_bf16(self, x: Self::F, to: &mut [u16; LANES]);
    /// Sixteen signed bytes in two's complement, widened.
    fn load_i8(self, from: &[u8; LANES]) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: b where either is not a number.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn floor(self, x: Self::F) -> Self::F;
    /// `2^n` of whole numbers n, clamped above to `2^127` and zero from `2^-127` down.
    fn power_of_two(self, n: Self::F) -> Self::F;
    /// Lanes below `count` of `a`, the others of `b`.
    fn first_lanes(self, count: usize, a: Self::F, b: Self::F) -> Self::F;
    /// Whether `a >= b` in any lane.
    fn any_at_least(self, a: Self::F, b: Self::F) -> bool;
    /// Sum of the lanes as a tree: i and i + 8, then i + 4, i + 2, i + 1.
    fn sum(self, x: Self::F) -> f32;
    /// Largest lane, by the same tree of `max`.
    fn largest(self, x: Self::F) -> f32;
    /// Asks for the cache line that lies this many bytes behind the start of the slice; a hint, for any address.
    fn prefetch<T>(self, slice: &[T], byte: usize);
}

/// A computation to be compiled for each instruction set. `run` must be `#[inline(always)]` all the way down to the
/// vector operations, or they become calls.
pub(crate) trait Kernel {
    fn run<S: Simd>(self, simd: S);
}

/// Runs a kernel with an instruction set of this machine.
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) {
    debug_assert!(isa.is_available());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than portable comes from `Isa::parse`, `best` or `available`, which give only what the
        // processor has; the public doors that take any (`Cpu::new`, `softmax::Context::new`, `read`) check it once more.
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx | Isa::AmxEmulated => unsafe { run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { run_avx2(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Isa::Neon | Isa::NeonDot => unsafe { run_neon(kernel) },
        _ => kernel.run(portable::Portable),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) {
    kernel.run(avx2::Avx2::new());
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
fn run_avx512<K: Kernel>(kernel: K) {
    kernel.run(avx512::Avx512::new());
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(kernel: K) {
    kernel.run(neon::Neon::new());
}

/// Up to sixteen elements as a vector, zeros behind them.
#[inline(always)]
pub(crate) fn load_part<S: Simd>(simd: S, from: &[f32]) -> S::F {
    let mut lanes = [0.0; LANES];
    lanes[..from.len()].copy_from_slice(from);
    simd.load(&lanes)
}

/// Writes as many leading lanes as `to` holds.
#[inline(always)]
pub(crate) fn store_part<S: Simd>(simd: S, x: S::F, to: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    simd.store(x, &mut lanes);
    to.copy_from_slice(&lanes[..to.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on given lanes, as bits.
    struct AllOperations<'a> {
        a: [f32; LANES],
        b: [f32; LANES],
        c: [f32; LANES],
        bits: &'a mut Vec<u32>,
    }

    impl Kernel for AllOperations<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let (a, b, c) = (s.load(&self.a), s.load(&self.b), s.load(&self.c));
            let mut halves = [0; LANES];
            s.store_f16(a, &mut halves);
            let mut brains = [0; LANES];
            s.store_bf16(a, &mut brains);
            let bytes = self.b.map(|b| b.to_bits() as u8);
            let whole = s.floor(b);
            let results = [
                s.add(a, b),
                s.sub(a, b),
                s.mul(a, b),
                s.div(a, b),
                s.fma(a, b, c),
                s.max(a, b),
                whole,
                s.power_of_two(whole),
                s.load_f16(&halves),
                s.load_bf16(&brains),
                s.load_i8(&bytes),
                s.splat(f32::from(u8::from(s.any_at_least(a, s.mul(b, s.splat(16.0)))))),
                s.first_lanes(5, a, b),
                s.first_lanes(0, a, b),
                s.first_lanes(16, a, b),
                s.splat(s.sum(c)),
                s.splat(s.largest(b)),
            ];
            for result in results {
                let mut lanes = [0.0; LANES];
                s.store(result, &mut lanes);
                self.bits.extend(lanes.map(f32::to_bits));
            }
            self.bits.extend(halves.map(u32::from));
            self.bits.extend(brains.map(u32::from));
        }
    }

    fn bits(isa: Isa, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> Vec<u32> {
        let mut bits = Vec::new();
        run(isa, AllOperations { a, b, c, bits: &mut bits });
        bits
    }

    #[test]
    fn every_operation_has_the_same_bits_on_every_instruction_set() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for round in 0..2000 {
            let range = [1.0, 100.0, 1e-6, 70_000.0, 1e-8][round % 5];
            let [a, b, c] = std::array::from_fn(|_| std::array::from_fn(|_| next() * range));
            let expected = bits(Isa::Portable, a, b, c);
            for isa in Isa::available() {
                assert_eq!(bits(isa, a, b, c), expected, "{} in round {round}", isa.name());
            }
        }
    }

    #[test]
    fn bfloat16_rounds_to_even_and_keeps_what_is_not_finite() {
        struct Round<'a>(&'a [f32; LANES], &'a mut [u16; LANES]);
        impl Kernel for Round<'_> {
            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                s.store_bf16(s.load(self.0), self.1);
            }
        }
        let mut x = [0.0; LANES];
        let nan_of_low_bits = f32::from_bits(0x7f80_0001);
        let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001].map(f32::from_bits);
        x[..8].copy_from_slice(&[
            ties[0],
            ties[1],
            ties[2],
            f32::INFINITY,
            -f32::INFINITY,
            nan_of_low_bits,
            f32::MAX,
            -0.0,
        ]);
        for isa in Isa::available() {
            let mut bits = [0; LANES];
            run(isa, Round(&x, &mut bits));
            assert_eq!(bits[..5], [0x3f80, 0x3f82, 0x3f81, 0x7f80, 0xff80], "{}", isa.name());
            assert_eq!(bits[5..8], [0x7fc0, 0x7f80, 0x8000], "{}", isa.name());
        }
    }

    #[test]
    fn powers_of_two_are_exact_inside_and_clamped_outside_the_range() {
        let mut n = [0.0; LANES];
        n[..9].copy_from_slice(&[0.0, 1.0, -1.0, 127.0, 200.0, -126.0, -127.0, -1e9, f32::NEG_INFINITY]);
        for isa in Isa::available() {
            let powers = bits(isa, n, n, n)[7 * LANES..][..9].iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
            let top = 2.0_f32.powi(127);
            assert_eq!(powers, [1.0, 2.0, 0.5, top, top, f32::MIN_POSITIVE, 0.0, 0.0, 0.0], "{}", isa.name());
        }
    }
}
