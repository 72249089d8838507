//! Sixteen lanes in plain Rust: what the vector instructions are held to, and what runs where there are none.

use super::{LANES, Simd};
use half::f16;

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
        let mut out = [0.0; LANES];
        for lane in 0..LANES {
            out[lane] = f(self.0[lane], other.0[lane]);
        }
        Self(out)
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
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Lanes {
        Lanes(from.map(|bits| f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    fn store_f16(self, x: Lanes, to: &mut [u16; LANES]) {
        *to = x.0.map(|x| f16::from_f32(x).to_bits());
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
        let mut out = [0.0; LANES];
        for lane in 0..LANES {
            out[lane] = a.0[lane].mul_add(b.0[lane], c.0[lane]);
        }
        Lanes(out)
    }
    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        a.map2(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
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
    fn sum(self, x: Lanes) -> f32 {
        x.tree(|a, b| a + b)
    }
    #[inline(always)]
    fn largest(self, x: Lanes) -> f32 {
        x.tree(|a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn prefetch<T>(self, _element: &T) {}
}
