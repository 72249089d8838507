//! How keys and values are stored: as float16, bfloat16 or float32, which kernels read in place, or as bytes with a scale
//! per 32 elements, which are widened to float32 a block at a time.

use super::super::simd::{LANES, Simd, load_part};
use crate::memory::Plain;
use crate::{BLOCK_SIZE, KvLayout};

/// An element that kernels read in place.
pub(crate) trait Element: Send + Sync + 'static {
    /// Its bits in memory.
    type Bits: Plain;
    fn load<S: Simd>(s: S, from: &[Self::Bits; LANES]) -> S::F;
    fn store<S: Simd>(s: S, x: S::F, to: &mut [Self::Bits; LANES]);
}

#[derive(Debug)]
pub(crate) struct F16;
#[derive(Debug)]
pub(crate) struct BF16;
#[derive(Debug)]
pub(crate) struct F32;
/// 32 signed bytes of `head_dim`, times a float16.
#[derive(Debug)]
pub(crate) struct Q8_0;

impl Element for F16 {
    type Bits = u16;
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[u16; LANES]) -> S::F {
        s.load_f16(from)
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, to: &mut [u16; LANES]) {
        s.store_f16(x, to);
    }
}

impl Element for BF16 {
    type Bits = u16;
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[u16; LANES]) -> S::F {
        s.load_bf16(from)
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, to: &mut [u16; LANES]) {
        s.store_bf16(x, to);
    }
}

impl Element for F32 {
    type Bits = f32;
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f32; LANES]) -> S::F {
        s.load(from)
    }
    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, to: &mut [f32; LANES]) {
        s.store(x, to);
    }
}

/// The keys (or values) of one (layer, block, KV head) in memory. In elements, keys are `[4 groups of 16 keys][head_dim]
/// [16 keys]` and values `[64 keys][head_dim]`, rows padded to sixteen elements.
pub(crate) trait Format: Send + Sync + 'static {
    /// What its memory is made of.
    type Unit: Plain;
    /// What kernels find in the memory, where they can read it in place.
    type Element: Element;

    /// Units of that many elements.
    fn units(elements: usize) -> usize;
    /// The elements, if kernels can read them in place.
    fn in_place(units: &[Self::Unit]) -> Option<&[<Self::Element as Element>::Bits]>;
    /// All keys as float32, in the same order.
    fn widen_keys<S: Simd>(s: S, keys: &[Self::Unit], to: &mut [f32]);
    /// All values as float32, in the same order.
    fn widen_values<S: Simd>(s: S, values: &[Self::Unit], to: &mut [f32]);
    /// Stores the key of a place in the block; the squared length of what it was rounded to.
    fn store_key<S: Simd>(s: S, key: &[f32], place: usize, keys: &mut [Self::Unit]) -> f32;
    /// Stores the value of a place in the block; padding stays zero.
    fn store_value<S: Simd>(s: S, value: &[f32], place: usize, values: &mut [Self::Unit]);
}

impl<E: Element> Format for E {
    type Unit = E::Bits;
    type Element = E;

    #[inline(always)]
    fn units(elements: usize) -> usize {
        elements
    }
    #[inline(always)]
    fn in_place(units: &[E::Bits]) -> Option<&[E::Bits]> {
        Some(units)
    }
    #[inline(always)]
    fn widen_keys<S: Simd>(s: S, keys: &[E::Bits], to: &mut [f32]) {
        for (from, to) in keys.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
            s.store(E::load(s, from), to);
        }
    }
    #[inline(always)]
    fn widen_values<S: Simd>(s: S, values: &[E::Bits], to: &mut [f32]) {
        Self::widen_keys(s, values, to);
    }
    #[inline(always)]
    fn store_key<S: Simd>(s: S, key: &[f32], place: usize, keys: &mut [E::Bits]) -> f32 {
        let group_len = key.len() * LANES;
        let group = keys[place / LANES * group_len..][..group_len].as_chunks_mut::<LANES>().0;
        let mut squares = s.splat(0.0);
        for (key, columns) in key.chunks(LANES).zip(group.chunks_mut(LANES)) {
            let mut elements = [E::Bits::default(); LANES];
            E::store(s, load_part(s, key), &mut elements);
            let rounded = E::load(s, &elements);
            squares = s.fma(rounded, rounded, squares);
            for (element, column) in elements.iter().zip(columns) {
                column[place % LANES] = *element;
            }
        }
        s.sum(squares)
    }
    #[inline(always)]
    fn store_value<S: Simd>(s: S, value: &[f32], place: usize, values: &mut [E::Bits]) {
        let stride = value.len().next_multiple_of(LANES);
        let row = values[place * stride..][..stride].as_chunks_mut::<LANES>().0;
        for (value, row) in value.chunks(LANES).zip(row) {
            E::store(s, load_part(s, value), row);
        }
    }
}

const SCALE_GROUP: usize = KvLayout::SCALE_GROUP;
const SCALE_BYTES: usize = 2;

/// First the bytes of a block in the order of elements, then its scales: of keys `[4 groups of 16 keys][head_dim / 32]
/// [16 keys]`, of values `[64 keys][head_dim / 32]`.
impl Format for Q8_0 {
    type Unit = u8;
    type Element = F32;

    #[inline(always)]
    fn units(elements: usize) -> usize {
        elements + elements / SCALE_GROUP * SCALE_BYTES
    }
    #[inline(always)]
    fn in_place(_: &[u8]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn widen_keys<S: Simd>(s: S, keys: &[u8], to: &mut [f32]) {
        let (bytes, scales) = keys.split_at(to.len());
        let scales = scales.as_chunks::<SCALE_BYTES>().0.as_chunks::<LANES>().0;
        let groups = to.chunks_exact_mut(SCALE_GROUP * LANES).zip(bytes.chunks_exact(SCALE_GROUP * LANES));
        for ((to, bytes), scales) in groups.zip(scales) {
            let scales = s.load_f16(&scales.map(u16::from_le_bytes));
            for (to, bytes) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(bytes.as_chunks::<LANES>().0) {
                s.store(s.mul(s.load_i8(bytes), scales), to);
            }
        }
    }
    #[inline(always)]
    fn widen_values<S: Simd>(s: S, values: &[u8], to: &mut [f32]) {
        let (bytes, scales) = values.split_at(to.len());
        // Sixteen scales are widened together.
        let scales = scales.as_chunks::<SCALE_BYTES>().0.as_chunks::<LANES>().0;
        let many = to.chunks_exact_mut(SCALE_GROUP * LANES).zip(bytes.chunks_exact(SCALE_GROUP * LANES));
        for ((to, bytes), scales) in many.zip(scales) {
            let mut wide = [0.0; LANES];
            s.store(s.load_f16(&scales.map(u16::from_le_bytes)), &mut wide);
            let groups = to.chunks_exact_mut(SCALE_GROUP).zip(bytes.chunks_exact(SCALE_GROUP));
            for ((to, bytes), scale) in groups.zip(wide) {
                let scale = s.splat(scale);
                for (to, bytes) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(bytes.as_chunks::<LANES>().0) {
                    s.store(s.mul(s.load_i8(bytes), scale), to);
                }
            }
        }
    }
    #[inline(always)]
    fn store_key<S: Simd>(s: S, key: &[f32], place: usize, keys: &mut [u8]) -> f32 {
        let (bytes, scales) = keys.split_at_mut(BLOCK_SIZE * key.len());
        let (group, lane) = (place / LANES, place % LANES);
        let bytes = bytes[group * key.len() * LANES..][..key.len() * LANES].as_chunks_mut::<LANES>().0;
        let num_scales = key.len() / SCALE_GROUP;
        let scales = scales.as_chunks_mut::<SCALE_BYTES>().0.as_chunks_mut::<LANES>().0;
        let scales = &mut scales[group * num_scales..][..num_scales];
        let mut squares = 0.0;
        for ((key, column), scales) in
            key.chunks_exact(SCALE_GROUP).zip(bytes.chunks_exact_mut(SCALE_GROUP)).zip(scales)
        {
            let (quantized, scale, squared) = quantize(s, key);
            for (column, byte) in column.iter_mut().zip(quantized) {
                column[lane] = byte;
            }
            scales[lane] = scale;
            squares += squared;
        }
        squares
    }
    #[inline(always)]
    fn store_value<S: Simd>(s: S, value: &[f32], place: usize, values: &mut [u8]) {
        let (bytes, scales) = values.split_at_mut(BLOCK_SIZE * value.len());
        let bytes = bytes[place * value.len()..][..value.len()].chunks_exact_mut(SCALE_GROUP);
        let num_scales = value.len() / SCALE_GROUP;
        let scales = &mut scales.as_chunks_mut::<SCALE_BYTES>().0[place * num_scales..][..num_scales];
        for ((value, bytes), to) in value.chunks_exact(SCALE_GROUP).zip(bytes).zip(scales) {
            let (quantized, scale, _) = quantize(s, value);
            bytes.copy_from_slice(&quantized);
            *to = scale;
        }
    }
}

/// Largest magnitude a scale can serve: 127 times the largest float16.
const LARGEST: f32 = 127.0 * 65504.0;

/// Bytes, the bits of the scale `max|x| / 127`, and the squared length of their product. What is not a number makes the scale
/// not a number, so that it is not lost.
#[inline(always)]
fn quantize<S: Simd>(s: S, x: &[f32]) -> ([u8; SCALE_GROUP], [u8; SCALE_BYTES], f32) {
    let parts = [s.load(&lanes(x, 0)), s.load(&lanes(x, 1))];
    let sign_free = |x| s.max(x, s.sub(s.splat(0.0), x));
    let largest = s.largest(s.max(sign_free(parts[0]), sign_free(parts[1])));
    let poison = s.sum(s.add(s.sub(parts[0], parts[0]), s.sub(parts[1], parts[1])));
    let scale = if poison == 0.0 { largest.min(LARGEST) / 127.0 } else { f32::NAN };
    let mut bits = [0; LANES];
    s.store_f16(s.splat(scale), &mut bits);
    let mut stored = [0.0; LANES];
    s.store(s.load_f16(&bits), &mut stored);
    // By the scale as it is stored, so that its rounding does not add to the error.
    let inverse = if stored[0] > 0.0 { 1.0 / stored[0] } else { 0.0 };
    let mut bytes = [0; SCALE_GROUP];
    let mut squares = s.splat(0.0);
    for (part, bytes) in parts.into_iter().zip(bytes.as_chunks_mut::<LANES>().0) {
        let nearest = s.floor(s.fma(part, s.splat(inverse), s.splat(0.5)));
        let mut rounded = [0.0; LANES];
        s.store(nearest, &mut rounded);
        *bytes = rounded.map(|x| x.clamp(-127.0, 127.0) as i8 as u8);
        let wide = s.mul(s.load_i8(bytes), s.load(&stored));
        squares = s.fma(wide, wide, squares);
    }
    (bytes, bits[0].to_le_bytes(), s.sum(squares))
}

/// Sixteen of 32 elements.
#[inline(always)]
fn lanes(x: &[f32], part: usize) -> [f32; LANES] {
    std::array::from_fn(|lane| x[part * LANES + lane])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::simd::{Kernel, run};

    /// Stores one key and value at a place of a block and reads the block back, widened.
    struct RoundTrip<'a> {
        x: &'a [f32],
        place: usize,
        keys: &'a mut [f32],
        values: &'a mut [f32],
        squared_length: &'a mut f32,
    }

    impl Kernel for RoundTrip<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let units = Q8_0::units(BLOCK_SIZE * self.x.len());
            let (mut keys, mut values) = (vec![0; units], vec![0; units]);
            *self.squared_length = Q8_0::store_key(s, self.x, self.place, &mut keys);
            Q8_0::store_value(s, self.x, self.place, &mut values);
            Q8_0::widen_keys(s, &keys, self.keys);
            Q8_0::widen_values(s, &values, self.values);
        }
    }

    /// The key and the value that come back, and the squared length.
    fn round_trip(isa: Isa, x: &[f32], place: usize) -> (Vec<f32>, Vec<f32>, f32) {
        let (mut keys, mut values) = (vec![0.0; BLOCK_SIZE * x.len()], vec![0.0; BLOCK_SIZE * x.len()]);
        let mut squared_length = 0.0;
        let kernel = RoundTrip { x, place, keys: &mut keys, values: &mut values, squared_length: &mut squared_length };
        run(isa, kernel);
        let key = (0..x.len()).map(|d| keys[(place / LANES * x.len() + d) * LANES + place % LANES]).collect();
        let others =
            keys.iter().enumerate().filter(|(i, _)| (i / LANES / x.len(), i % LANES) != (place / LANES, place % LANES));
        assert!(others.into_iter().all(|(_, &x)| x == 0.0), "nothing else is touched");
        (key, values[place * x.len()..][..x.len()].to_vec(), squared_length)
    }

    #[test]
    fn quantized_keys_and_values_are_within_half_a_step() {
        for isa in Isa::available() {
            for (head_dim, place) in [(32, 0), (64, 37), (96, 63)] {
                let x: Vec<f32> = (0..head_dim).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
                let (key, value, squared_length) = round_trip(isa, &x, place);
                assert_eq!(key, value, "keys and values are rounded alike");
                for (group, rounded) in x.chunks(SCALE_GROUP).zip(key.chunks(SCALE_GROUP)) {
                    let largest = group.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                    // Half a step, and what rounding the scale to float16 takes from the ends of the range.
                    let allowed = largest * (0.5 / 127.0 + 1.0 / 2048.0);
                    assert!(group.iter().zip(rounded).all(|(x, y)| (x - y).abs() <= allowed), "{}", isa.name());
                }
                let expected: f32 = key.iter().map(|x| x * x).sum();
                assert!((squared_length - expected).abs() <= 1e-5 * expected);
            }
        }
    }

    #[test]
    fn what_no_scale_can_hold_is_cut_or_stays_not_a_number() {
        for isa in Isa::available() {
            let mut x = [1.0; 64];
            x[40] = 1e30;
            let (key, _, _) = round_trip(isa, &x, 5);
            assert_eq!((key[40], key[41]), (LARGEST, 0.0));
            assert!(key[..32].iter().all(|x| (x - 1.0).abs() < 0.005));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                x[40] = bad;
                let (key, value, squared_length) = round_trip(isa, &x, 5);
                assert!(key[40].is_nan() && value[40].is_nan() && squared_length.is_nan());
                assert!(key[..32].iter().all(|x| x.is_finite()), "the other scale is its own");
            }
            assert_eq!(round_trip(isa, &[0.0; 32], 1).0, [0.0; 32]);
        }
    }
}
