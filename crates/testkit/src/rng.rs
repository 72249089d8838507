//! SplitMix64: a seeded generator of eight lines, the same on every platform.

/// The generator. Two with the same seed give the same numbers.
#[derive(Debug, Clone)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// A generator for this seed.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix { state: seed }
    }

    /// A generator for this seed and name: what it gives does not depend on what was drawn for other names.
    pub fn named(seed: u64, name: &str) -> SplitMix {
        // FNV-1a
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        SplitMix::new(seed ^ hash)
    }

    /// Sixty-four random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Thirty-two random bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Uniform in `0.0..1.0`.
    pub fn next_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in `low..high`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.next_f32()
    }

    /// Uniform in `0..end`. The bias of the remainder does not matter for tests.
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "no number is below 0");
        (self.next_u64() % end as u64) as usize
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f32) -> bool {
        self.next_f32() < probability
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Normal with mean 0 and standard deviation 1 (a sum of twelve uniforms: no tails beyond 6, nothing that depends on libm).
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.next_f32()).sum::<f32>() - 6.0
    }

    /// `num` normals with this standard deviation.
    pub fn normals(&mut self, num: usize, deviation: f32) -> Vec<f32> {
        (0..num).map(|_| deviation * self.normal()).collect()
    }

    /// `num` random bytes.
    pub fn bytes(&mut self, num: usize) -> Vec<u8> {
        (0..num).map(|_| self.next_u64() as u8).collect()
    }

    /// Puts the items into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The reference implementation's first outputs for seed 1234567.
        let mut rng = SplitMix::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normals_have_mean_zero_and_the_deviation_asked_for() {
        let values = SplitMix::new(1).normals(20_000, 0.5);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.02, "{variance}");
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        SplitMix::new(3).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
