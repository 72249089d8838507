//! The random numbers of a sequence: a pure function of the seed, the choice and the index of the generated token.
//!
//! Nothing is drawn from anywhere, so it makes no difference how often or in which order a token is chosen: a guess that is
//! verified, a step that is computed again and a token that a grammar forced leave all other draws where they were.
//!
//! Each choice reads its own stretch of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014): number `i` is `mix(start + (i + 1) * GAMMA)`, and the starts are themselves numbers of such a
//! generator. XTC's coins are another stretch, so that they say nothing about the draws beside them.

/// The odd number nearest to 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number has the 53 bits that a float64 holds.
const UNUSED_BITS: u32 = 11;

/// The random numbers of one choice of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    start: u64,
}

impl Stream {
    /// What tokens are drawn with. Choice 0 is what a request for one choice gets.
    pub(super) fn new(seed: u64, choice: usize) -> Stream {
        Stream { start: number(number(seed, 0), choice as u64) }
    }

    /// What coins are tossed with.
    pub(super) fn coins(seed: u64, choice: usize) -> Stream {
        Stream { start: number(number(seed, 1), choice as u64) }
    }

    /// The number in [0, 1) that belongs to generated token `index`.
    pub(super) fn unit(self, index: usize) -> f64 {
        (self.share(index) >> UNUSED_BITS) as f64 * (1.0 / (1u64 << (64 - UNUSED_BITS)) as f64)
    }

    /// The same number in units of 2^-64.
    pub(super) fn share(self, index: usize) -> u64 {
        number(self.start, index as u64) >> UNUSED_BITS << UNUSED_BITS
    }
}

/// Number `index` of the generator that starts at `start`.
fn number(start: u64, index: u64) -> u64 {
    mix(start.wrapping_add(index.wrapping_add(1).wrapping_mul(GAMMA)))
}

/// Variant 13 of Stafford's mixers, a bijection.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        // The first numbers of the authors' C code, started at 1234567.
        let first: Vec<u64> = (0..3).map(|index| number(1_234_567, index)).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn units_fill_the_interval_evenly() {
        // Along the tokens of one choice, and along neighbouring choices and seeds at one token.
        let by_index = |i| Stream::new(7, 0).unit(i);
        let by_choice = |i| Stream::new(7, i).unit(0);
        let by_seed = |i| Stream::new(i as u64, 0).unit(0);
        // A coin and the draw beside it.
        let by_difference = |i| (Stream::coins(7, 0).unit(i) - Stream::new(7, 0).unit(i)).rem_euclid(1.0);
        for unit in [&by_index as &dyn Fn(usize) -> f64, &by_choice, &by_seed, &by_difference] {
            let mut counts = [0.0f64; 100];
            for i in 0..100_000 {
                counts[(unit(i) * 100.0) as usize] += 1.0;
            }
            let chi_square: f64 = counts.iter().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
            // 99 degrees of freedom: 45 and 180 are beyond one in a hundred thousand.
            assert!((45.0..180.0).contains(&chi_square), "{chi_square}");
        }
    }
}
