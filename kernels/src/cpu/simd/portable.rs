//! Sixteen lanes in plain Rust: what the vector instructions are held to, and what runs where there are none.
//!
//! What takes a hundred instructions here and one elsewhere is a call: a kernel that has it in a hundred places would be a tenth of a
//! megabyte otherwise.

use super::{LANES, Simd};
use half::{bf16, f16};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Sixteen lanes, aligned like a register.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Lanes([f32; LANES]);

impl Lanes {
    #[inline(always)]
    fn map2(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn tree(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut x = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                x[lane] = f(x[lane], x[lane + half]);
            }
        }
        x[0]
    }
}

/// Whether the compiler may use an instruction for `mul_add`; without, each lane is a call into libm.
const HAS_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

#[cfg_attr(not(target_arch = "aarch64"), inline(never))]
fn fma_by_lane(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
    Lanes(std::array::from_fn(|lane| a.0[lane].mul_add(b.0[lane], c.0[lane])))
}

/// The product of two float32 is exact in float64. The sum is rounded there and then again to float32, which differs from
/// one rounding only where the first ends on the middle between two float32: the low 29 bits of a normal result tell, and
/// such results, and subnormal ones, whose middles lie elsewhere, are left to `mul_add`.
#[inline(never)]
fn fma_in_f64(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
    const SMALLEST_NORMAL: u64 = (f32::MIN_POSITIVE as f64).to_bits();
    let mut out = [0.0; LANES];
    let mut doubtful = false;
    for (lane, out) in out.iter_mut().enumerate() {
        let sum = f64::from(a.0[lane]) * f64::from(b.0[lane]) + f64::from(c.0[lane]);
        let magnitude = sum.to_bits() & (u64::MAX >> 1);
        doubtful |= (magnitude & 0x1fff_ffff == 0x1000_0000) | ((magnitude != 0) & (magnitude < SMALLEST_NORMAL));
        *out = sum as f32;
    }
    if doubtful { fma_by_lane(a, b, c) } else { Lanes(out) }
}

impl Simd for Portable {
    type F = Lanes;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        Lanes([x; LANES])
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Lanes {
        Lanes(*from)
    }
    #[inline(always)]
    fn store(self, x: Lanes, to: &mut [f32; LANES]) {
        *to = x.0;
    }
    #[inline(never)]
    fn load_f16(self, from: &[u16; LANES]) -> Lanes {
        Lanes(from.map(|bits| f16::from_bits(bits).to_f32()))
    }
    #[inline(never)]
    fn store_f16(self, x: Lanes, to: &mut [u16; LANES]) {
        *to = x.0.map(|x| f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Lanes {
        Lanes(from.map(|bits| bf16::from_bits(bits).to_f32()))
    }
    #[inline(never)]
    fn store_bf16(self, x: Lanes, to: &mut [u16; LANES]) {
        *to = x.0.map(|x| bf16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Lanes {
        Lanes(from.map(|byte| f32::from(byte as i8)))
    }
    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        a.map2(b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        a.map2(b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        a.map2(b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        a.map2(b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        if HAS_FMA { fma_by_lane(a, b, c) } else { fma_in_f64(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        a.map2(b, |a, b| if a > b { a } else { b })
    }
    #[inline(never)]
    fn floor(self, x: Lanes) -> Lanes {
        Lanes(x.0.map(f32::floor))
    }
    #[inline(always)]
    fn power_of_two(self, n: Lanes) -> Lanes {
        Lanes(n.0.map(|n| {
            let above = if n > -127.0 { n } else { -127.0 };
            let clamped = if above < 127.0 { above } else { 127.0 };
            f32::from_bits(((clamped as i32 + 127) << 23) as u32)
        }))
    }
    #[inline(always)]
    fn first_lanes(self, count: usize, a: Lanes, b: Lanes) -> Lanes {
        let mut out = b.0;
        for (lane, out) in out.iter_mut().enumerate() {
            if lane < count {
                *out = a.0[lane];
            }
        }
        Lanes(out)
    }
    #[inline(always)]
    fn any_at_least(self, a: Lanes, b: Lanes) -> bool {
        a.0.iter().zip(&b.0).any(|(a, b)| a >= b)
    }
    #[inline(always)]
    fn sum(self, x: Lanes) -> f32 {
        x.tree(|a, b| a + b)
    }
    #[inline(always)]
    fn largest(self, x: Lanes) -> f32 {
        x.tree(|a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn prefetch<T>(self, _slice: &[T], _byte: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_multiply_add_through_float64_is_rounded_once() {
        let mut state = 3_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for round in 0..200_000 {
            let mut lanes = || {
                Lanes(std::array::from_fn(|_| {
                    let bits = next();
                    match round % 4 {
                        0 => f32::from_bits(bits),
                        // Few bits and near exponents, where sums end on middles.
                        1 => f32::from_bits(bits & 0x80ff_0000 | 0x3f00_0000),
                        2 => f32::from_bits(bits & 0x81ff_f001 | 0x3e00_0000),
                        // Products below the smallest normal number.
                        _ => f32::from_bits(bits & 0x83ff_ffff | 0x1e00_0000),
                    }
                }))
            };
            let (a, b, mut c) = (lanes(), lanes(), lanes());
            if round % 4 == 3 {
                c = Lanes(c.0.map(|c| f32::from_bits(c.to_bits() & 0x807f_ffff)));
            }
            let (actual, expected) = (fma_in_f64(a, b, c), fma_by_lane(a, b, c));
            for lane in 0..LANES {
                let (actual, expected) = (actual.0[lane], expected.0[lane]);
                let same = actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan();
                assert!(same, "{} * {} + {}: {actual}, not {expected}", a.0[lane], b.0[lane], c.0[lane]);
            }
        }
    }

    #[test]
    fn sums_that_end_on_the_middle_between_two_floats_are_rounded_by_what_lies_below() {
        // The product is 2^-24 - 2^-70. In float64 its last term is lost beside c, and the sum lies on the middle between c
        // and the next float32, which is the even one of the two: rounding twice would go up.
        let ulp = 2.0_f32.powi(-23);
        let (a, b, c) = ((1.0 + ulp) * 2.0_f32.powi(-24), 1.0 - ulp, 1.0 + ulp);
        assert_eq!((f64::from(a) * f64::from(b) + f64::from(c)) as f32, c + ulp, "rounded twice");
        assert_eq!(fma_in_f64(Lanes([a; LANES]), Lanes([b; LANES]), Lanes([c; LANES])).0, [c; LANES]);
    }
}
