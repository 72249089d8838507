//! Statistics of attention's scores against those of the reference: of every storage type, over block borders, for prompts
//! and generated tokens.

use crate::fixture::{How, Sequences, no_rope};
use taper_kernels::{Backend, HeadLayout, Histogram, KvDtype, Reference, ScoreStatistics};
use taper_testkit::rng::SplitMix;

pub(crate) fn suite<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(31);
    for dtype in [KvDtype::F16, KvDtype::BF16, KvDtype::F32, KvDtype::Q8_0, KvDtype::F8E4M3] {
        for (group, num_kv_heads, head_dim) in [(3, 2, 64), (1, 1, 32)] {
            if dtype == KvDtype::F8E4M3 && head_dim == 32 {
                continue;
            }
            let heads = HeadLayout { num_heads: group * num_kv_heads, num_kv_heads, head_dim };
            let mut sequences = Sequences::new(&mut rng, heads, &[1, 64, 150]);
            sequences.dtype = dtype;
            sequences.round_to_storage();
            let what = format!("{dtype:?}, group of {group}, heads of {head_dim}");
            let (actual, expected) = (observed(backend, &sequences), observed(&Reference::new(), &sequences));
            for (actual, expected) in actual.iter().zip(&expected) {
                close(&actual.all, &expected.all, &what);
                close(&actual.largest, &expected.largest, &what);
            }
            let rows = 1 + 1 + 150 + 2;
            let seen = 1 + 64 + 150 * 151 / 2 + 1 + 2;
            assert!(actual.iter().all(|one| one.largest.total() == (group * rows) as u64), "{what}");
            assert!(actual.iter().all(|one| one.all.total() == (group * seen) as u64), "{what}");
        }
    }
}

/// Statistics per KV head of a step with two last tokens and a whole prompt, and of a second step with two first tokens.
fn observed<B: Backend>(backend: &B, sequences: &Sequences) -> Vec<ScoreStatistics> {
    let mut cache = sequences.cache(backend);
    let mut statistics = vec![ScoreStatistics::default(); sequences.heads.num_kv_heads];
    let all: Vec<_> = (0..3).map(|sequence| (sequence, 0..sequences.len(sequence))).collect();
    sequences.store(backend, &mut cache, &no_rope(), &all);
    for parts in [vec![(0, 0..1), (1, 63..64), (2, 0..150)], vec![(1, 0..2)]] {
        let turned = sequences.store(backend, &mut cache, &no_rope(), &parts);
        let (step, _) = sequences.step(&parts);
        backend.observe_scores(&step, sequences.params(How::ONLINE), &turned, &cache, &mut statistics);
    }
    statistics
}

/// Equal but for scores that rounding moves over a whole number.
fn close(actual: &Histogram, expected: &Histogram, what: &str) {
    assert_eq!(actual.total(), expected.total(), "{what}");
    let moved = |one: &Histogram, other: &Histogram| -> u64 {
        let other: std::collections::HashMap<i32, u64> = other.floors().collect();
        one.floors().map(|(floor, count)| count.saturating_sub(other.get(&floor).copied().unwrap_or(0))).sum()
    };
    assert!(moved(actual, expected) <= expected.total() / 1000, "{what}: {} moved", moved(actual, expected));
}
