//! The softmax schemes of attention against float64 and against each other: scores that are as hard as can be on a fixed
//! reference, how often rows are computed again, and equal bits wherever nothing is too small to count.

use crate::fixture::{How, Sequences, halves, no_rope, to_bits};
use taper_kernels::{Backend, HeadLayout, KvDtype, Softmax, UnifiedRange};
use taper_testkit::rng::SplitMix;
use taper_testkit::thin::thinned;

const HEADS: HeadLayout = HeadLayout { num_heads: 6, num_kv_heads: 2, head_dim: 64 };
/// (row, head) pairs of a step of [`ROWS`] rows.
const ROWS: usize = 21;
const PAIRS: u64 = (ROWS * HEADS.num_heads) as u64;
/// The largest number of float16.
const F16_MAX: f32 = 65504.0;

pub(crate) fn suite<B: Backend>(backend: &B) {
    // Of each of a device's kernels one; on tensor cores references are fixed where weights are of bfloat16 alone.
    let caches: &[KvDtype] =
        if backend.info().name == "cuda" { &[KvDtype::BF16, KvDtype::F32] } else { &[KvDtype::F16] };
    for &dtype in caches {
        hard_scores(backend, dtype);
        rows_that_do_not_fit_are_computed_again_alone(backend, dtype);
        bits_are_equal_up_to_a_spread_of_102(backend, dtype);
    }
    fixed_references_have_the_bits_of_running_ones(backend);
    late_references_have_the_bits_of_running_ones(backend);
}

const fn ranges(phi: i32, a: f32, b: f32) -> [UnifiedRange; 2] {
    [UnifiedRange { phi, a, b }; 2]
}

/// A sequence in which every query scores `score(i)` (log2 units, about) with key i, which holds `value(i)` or its negative.
fn with_scores(dtype: KvDtype, len: usize, score: impl Fn(usize) -> f32, value: impl Fn(usize) -> f32) -> Sequences {
    let mut sequences = Sequences::new(&mut SplitMix::new(30), HEADS, &[len]);
    sequences.dtype = dtype;
    for (position, row) in sequences.qkv[0].chunks_exact_mut(HEADS.qkv_width()).enumerate() {
        // Queries are ones and keys equal numbers: the score is 64 key / sqrt(64), and the bound of the scores is reached.
        let (q, kv) = row.split_at_mut(HEADS.q_width());
        let (k, v) = kv.split_at_mut(HEADS.kv_width());
        q.fill(1.0);
        k.fill(score(position) * std::f32::consts::LN_2 / 8.0);
        v.iter_mut().enumerate().for_each(|(d, v)| *v = if d % 3 == 0 { -value(position) } else { value(position) });
    }
    sequences.round_to_storage();
    sequences
}

/// Answers of the last rows as a piece of a prompt and of the very last as a generated token, with how many (row, head)
/// of the piece were computed again.
fn run<B: Backend>(backend: &B, sequences: &Sequences, how: How<'_>) -> (Vec<f32>, u64) {
    let len = sequences.len(0);
    let mut cache = sequences.cache(backend);
    sequences.store(backend, &mut cache, &no_rope(), &[(0, 0..len)]);
    let mut run = |positions| sequences.run_counted(backend, &mut cache, &no_rope(), how, &[(0, positions)]);
    let (mut rows, num_recomputed) = run(len.saturating_sub(ROWS)..len);
    let (last, last_recomputed) = run(len - 1..len);
    assert!(last_recomputed <= num_recomputed, "the last row is one of the piece");
    assert_eq!(to_bits(&last), to_bits(&rows[rows.len() - last.len()..]), "{how:?}: a prompt row and a generated one");
    rows.extend(last);
    (rows, num_recomputed)
}

/// Largest error of the first and the last row against float64; panics on what is not finite.
fn error<B: Backend>(backend: &B, sequences: &Sequences, how: How<'_>, what: &str) -> (f64, u64) {
    let len = sequences.len(0);
    let (rows, num_recomputed) = run(backend, sequences, how);
    assert!(rows.iter().all(|x| x.is_finite()), "{what}, {how:?}: an answer is not finite");
    let mut worst = 0.0_f64;
    for (index, position) in [(0, len.saturating_sub(ROWS)), (len.min(ROWS) - 1, len - 1)] {
        let row = &rows[index * HEADS.q_width()..][..HEADS.q_width()];
        for (&actual, expected) in row.iter().zip(sequences.oracle(0, position)) {
            worst = worst.max((f64::from(actual) - expected).abs());
        }
    }
    (worst, num_recomputed)
}

/// Number of (row, head) to be computed again; only a backend with fixed references counts.
fn check_count<B: Backend>(backend: &B, actual: u64, expected: std::ops::RangeInclusive<u64>, what: &str) {
    if backend.info().name == "reference" {
        assert_eq!(actual, 0);
    } else {
        assert!(expected.contains(&actual), "{what}: {actual} computed again, not {expected:?}");
    }
}

type Of = Box<dyn Fn(usize) -> f32>;

/// What, length, scores, values, and how many pairs each scheme computes again.
struct Hard {
    what: &'static str,
    len: usize,
    score: Of,
    value: Of,
    bounded: std::ops::RangeInclusive<u64>,
    /// With a range of 60 around zero.
    calibrated: std::ops::RangeInclusive<u64>,
    two_sided: std::ops::RangeInclusive<u64>,
}

fn cases() -> Vec<Hard> {
    const NONE: std::ops::RangeInclusive<u64> = 0..=0;
    const ALL: std::ops::RangeInclusive<u64> = PAIRS..=PAIRS;
    let case = |what, len, score: Of, bounded, calibrated, two_sided| {
        let value: Of = Box::new(|i| 1.0 + (i % 7) as f32);
        Hard { what, len, score, value, bounded, calibrated, two_sided }
    };
    let mut cases = vec![
        case("alternating", 600, Box::new(|i| if i % 2 == 0 { 151.0 } else { -151.0 }), NONE, ALL, ALL),
        case("rising", 604, Box::new(|i| i as f32 / 2.0 - 151.0), NONE, ALL, ALL),
        case("falling", 604, Box::new(|i| 151.0 - i as f32 / 2.0), NONE, ALL, ALL),
        case("all at 151", 300, Box::new(|_| 151.0), NONE, ALL, ALL),
        // The bound is as far above these scores as they are below zero.
        case("all at -151", 300, Box::new(|_| -151.0), ALL, ALL, ALL),
        case("all at -99", 300, Box::new(|_| -99.0), NONE, NONE, ALL),
        case("all at -1e5", 300, Box::new(|_| -1e5), ALL, ALL, ALL),
        // Only the last row sees the key, and its bound is then what it should be.
        case("one huge key at the end", 700, Box::new(|i| if i == 699 { 1e5 } else { 0.0 }), NONE, 6..=6, 6..=6),
        case("one huge key in the first split", 700, Box::new(|i| if i == 100 { 1e5 } else { 0.0 }), NONE, ALL, ALL),
        // A long key in the opposite direction: the bound says nothing about the others.
        case("one long opposite key", 700, Box::new(|i| if i == 100 { -1e5 } else { 0.0 }), ALL, NONE, ALL),
        case("all equal", 513, Box::new(|_| 4.0), NONE, NONE, NONE),
        case("all zero", 513, Box::new(|_| 0.0), NONE, NONE, NONE),
        case("one hot", 513, Box::new(|i| if i == 256 { 59.0 } else { -59.0 }), NONE, NONE, NONE),
    ];
    for len in [1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025] {
        let one_key = (len.min(ROWS) * HEADS.num_heads) as u64;
        let calibrated = one_key..=one_key;
        let score: Of = Box::new(|i| if i % 64 == 0 { 80.0 } else { -80.0 });
        cases.push(case("high at the start of every block", len, score, NONE, calibrated.clone(), calibrated));
    }
    let largest = |_| F16_MAX;
    for (what, score, bounded) in [("largest values", 0.0, NONE), ("largest values, high scores", 99.9, NONE)] {
        let mut hard = case(what, 1100, Box::new(move |_| score), bounded, NONE, NONE);
        hard.value = Box::new(largest);
        (hard.calibrated, hard.two_sided) = if score > 60.0 { (ALL, ALL) } else { (NONE, NONE) };
        cases.push(hard);
    }
    // Sums of weights stay below 2^128 and sums of values do not.
    let mut overflow = case("sums of values overflow", 4000, Box::new(|_| 100.5), ALL, ALL, ALL);
    overflow.value = Box::new(largest);
    cases.push(overflow);
    cases
}

fn hard_scores<B: Backend>(backend: &B, dtype: KvDtype) {
    let around_zero = ranges(0, -60.0, 60.0);
    for hard in thinned(cases(), 5) {
        let what = format!("{}, {} keys, {dtype:?}", hard.what, hard.len);
        let sequences = with_scores(dtype, hard.len, &hard.score, &hard.value);
        let largest = (0..hard.len).map(&hard.value).fold(0.0, f32::max);
        let (online, none) = error(backend, &sequences, How::ONLINE, &what);
        assert_eq!(none, 0);
        for (softmax, expected) in [
            (Softmax::OnlineThreshold, 0..=0),
            (Softmax::Bounded, hard.bounded),
            (Softmax::Calibrated(&around_zero), hard.calibrated),
            (Softmax::CalibratedTwoSided(&around_zero), hard.two_sided),
        ] {
            let (error, num_recomputed) = error(backend, &sequences, How::split_kv(softmax), &what);
            // A rounding of the answer beside the factor: the error of running references may be zero.
            let allowed = 1.05 * online + f64::from(largest) * 2.0_f64.powi(-24);
            assert!(error <= allowed, "{what}, {softmax:?}: error {error:e}, and {online:e} online");
            check_count(backend, num_recomputed, expected, &format!("{what}, {softmax:?}"));
        }
    }
    // The exponent ends at 127: what a wider range lets through there would be cut.
    let wide = ranges(-400, -1000.0, 1000.0);
    let sequences = with_scores(dtype, 300, |i| (i % 5) as f32, |i| i as f32);
    let (expected, _) = error(backend, &sequences, How::ONLINE, "a reference far below");
    let (error, count) = error(backend, &sequences, How::split_kv(Softmax::Calibrated(&wide)), "a reference far below");
    assert!(error <= 1.05 * expected + 1e-5);
    check_count(backend, count, PAIRS..=PAIRS, "a reference far below");
}

/// One head of one row is unfit; nothing else is computed again, and it has the bits of running references.
fn rows_that_do_not_fit_are_computed_again_alone<B: Backend>(backend: &B, dtype: KvDtype) {
    let mut sequences = Sequences::new(&mut SplitMix::new(31), HEADS, &[700]);
    sequences.dtype = dtype;
    let (row, head) = (690, 4);
    let query = row * HEADS.qkv_width() + head * HEADS.head_dim;
    sequences.qkv[0][query..][..HEADS.head_dim].iter_mut().for_each(|x| *x *= 100.0);
    let (expected, _) = run(backend, &sequences, How::ONLINE);
    let narrow = ranges(0, -100.0, 30.0);
    let (actual, count) = run(backend, &sequences, How::split_kv(Softmax::Calibrated(&narrow)));
    assert_eq!(to_bits(&actual), to_bits(&expected));
    check_count(backend, count, 1..=1, "one row and head");
}

/// Scores from -51 to 51, in rising, falling and mixed order, values down to the smallest of float16, and references at both
/// ends of what the condition for equal bits allows.
fn bits_are_equal_up_to_a_spread_of_102<B: Backend>(backend: &B, dtype: KvDtype) {
    let orders: [Of; 3] = [
        Box::new(|i| (i % 600) as f32 * 0.17 - 51.0),
        Box::new(|i| 51.0 - (i % 600) as f32 * 0.17),
        Box::new(|i| (i * 7919 % 1021) as f32 * 0.0999 - 51.0),
    ];
    for score in thinned(orders, 3) {
        for value in [1.0, 2.0_f32.powi(-24)] {
            let sequences = with_scores(dtype, 700, &score, |i| value * (1 + i % 3) as f32);
            let (expected, _) = run(backend, &sequences, How::ONLINE);
            let (low, high) = (ranges(-60, -200.0, 127.0), ranges(51, -200.0, 127.0));
            for softmax in
                [Softmax::OnlineThreshold, Softmax::Bounded, Softmax::Calibrated(&low), Softmax::Calibrated(&high)]
            {
                let (actual, count) = run(backend, &sequences, How::split_kv(softmax));
                assert!(to_bits(&actual) == to_bits(&expected), "{softmax:?}, values around {value:e}");
                assert_eq!(count, 0, "{softmax:?}");
            }
        }
    }
}

/// Many splits, group sizes and storage types. Random scores are far less than 2^100 apart, so no weight is lost, and
/// answers are equal to the bit.
fn fixed_references_have_the_bits_of_running_ones<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(32);
    for dtype in [KvDtype::F16, KvDtype::BF16, KvDtype::F32, KvDtype::Q8_0] {
        for (num_heads, num_kv_heads, head_dim, len) in
            thinned([(8, 1, 32, 600), (9, 3, 64, 1500), (40, 2, 32, 300)], 3)
        {
            let heads = HeadLayout { num_heads, num_kv_heads, head_dim };
            let mut sequences = Sequences::new(&mut rng, heads, &[len]);
            sequences.dtype = dtype;
            // Larger queries: scores up to about 30 in log2 units.
            sequences.qkv[0].chunks_exact_mut(heads.qkv_width()).for_each(|row| {
                row[..heads.q_width()].copy_from_slice(&halves(&mut rng, heads.q_width(), 4.0));
            });
            let (expected, _) = run(backend, &sequences, How::ONLINE);
            for how in [How::BOUNDED, How::CALIBRATED] {
                let (actual, count) = run(backend, &sequences, how);
                assert!(to_bits(&actual) == to_bits(&expected), "{heads:?}, {dtype:?}, {how:?}");
                assert_eq!(count, 0, "{heads:?}, {dtype:?}, {how:?}");
            }
        }
    }
}

/// Splits of several blocks of keys, whose largest scores rise by less than the threshold of 8 and by more. Weights of float16, which
/// GPUs have with keys of float16, lose bits where they are small: fewer under a reference that is raised late.
fn late_references_have_the_bits_of_running_ones<B: Backend>(backend: &B) {
    let orders: [(&str, Of); 3] = [
        ("rising by 3 a block", Box::new(|i| (i / 64 % 8 * 3) as f32 + (i % 5) as f32)),
        ("rising by 20 a block", Box::new(|i| (i / 64 % 4 * 20) as f32 - 30.0)),
        ("a little a key", Box::new(|i| (i % 128) as f32 / 8.0)),
    ];
    for dtype in [KvDtype::F16, KvDtype::BF16, KvDtype::F32, KvDtype::F8E4M3] {
        for (what, score) in thinned(&orders, 3) {
            let sequences = with_scores(dtype, 2150, score, |i| (1 + i % 7) as f32);
            let (expected, _) = run(backend, &sequences, How::ONLINE);
            let (actual, count) = run(backend, &sequences, How::split_kv(Softmax::OnlineThreshold));
            assert_eq!(count, 0);
            assert!(to_bits(&actual) == to_bits(&expected), "{what}, {dtype:?}");
        }
    }
}
