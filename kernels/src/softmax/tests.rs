//! All schemes on the same rows: against float64, against each other's bits, and on what is hard for a softmax.

use super::*;
use proptest::prelude::*;

/// Lengths around vectors, blocks, chunks and their halves.
const LENGTHS: [usize; 20] =
    [1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 511, 513, 4097, 3 * 4096 + 17];

pub(super) fn softmax_f64(x: &[f32]) -> Vec<f64> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let p: Vec<f64> =
        x.iter().map(|&x| if x < LOWEST { 0.0 } else { (f64::from(x) - f64::from(max)).exp2() }).collect();
    let sum: f64 = p.iter().sum();
    p.iter().map(|p| if sum == 0.0 { 0.0 } else { p / sum }).collect()
}

/// Compares probabilities; those below `2^-100` may be anything that small.
pub(super) fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64, name: &str) {
    assert_eq!(actual.len(), expected.len());
    for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(actual) - expected).abs();
        let allowed = tolerance * expected + 2.0_f64.powi(-100);
        assert!(error <= allowed, "{name}, element {i}: {actual:e} {expected:e}");
    }
}

/// Rows of a length that are hard for a softmax, by name.
pub(super) fn adversarial_rows(len: usize) -> Vec<(&'static str, Vec<f32>)> {
    let wave = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0;
    let row = |f: &dyn Fn(usize) -> f32| (0..len).map(f).collect::<Vec<f32>>();
    vec![
        ("small scores", row(&|i| 4.0 * wave(i))),
        ("scores of +-151", row(&|i| 151.0 * wave(i))),
        ("alternating +-151", row(&|i| if i % 2 == 0 { 151.0 } else { -151.0 })),
        ("ascending", row(&|i| i as f32 * 302.0 / len as f32 - 151.0)),
        ("descending", row(&|i| 151.0 - i as f32 * 302.0 / len as f32)),
        ("one huge element, first", row(&|i| if i == 0 { 1e30 } else { wave(i) })),
        ("one huge element, last", row(&|i| if i + 1 == len { 1e30 } else { wave(i) })),
        ("all equal", row(&|_| 0.7)),
        ("all equal and far down", row(&|_| -1e20)),
        ("one-hot", row(&|i| if i == len / 2 { 0.0 } else { f32::NEG_INFINITY })),
        ("every other masked", row(&|i| if i % 2 == 1 { f32::NEG_INFINITY } else { 10.0 * wave(i) })),
        ("masked head", row(&|i| if i < len / 2 { f32::NEG_INFINITY } else { -140.0 + wave(i) })),
        ("masked tail", row(&|i| if i > len / 2 { f32::NEG_INFINITY } else { 140.0 + wave(i) })),
        ("masked by a large number", row(&|i| if i % 3 == 1 { f32::MIN } else { wave(i) })),
        ("all masked", row(&|_| f32::NEG_INFINITY)),
    ]
}

/// A fixed calibration, of which some rows are outside.
fn settings() -> Settings {
    Settings {
        calibration: Calibration { phi: 0.0, a: -60.0, b: 60.0 },
        bound: 151.0,
        tile: Tile { rows: 2, cols: 100 },
    }
}

fn run_scheme(scheme: Scheme, isa: Isa, threads: usize, x: &[f32], cols: usize) -> (Vec<f32>, usize) {
    let mut out = vec![f32::NAN; x.len()];
    let recomputed = scheme.run(Context::new(isa, &Pool::new(threads)), &settings(), x, cols, &mut out);
    (out, recomputed)
}

/// What a scheme may differ from float64 by: twice a rounding per column block for the tiled one, and for the unified ones
/// weights under their reference may be lost, `2^-26` of the sum.
fn check(scheme: Scheme, name: &str, x: &[f32], out: &[f32]) {
    let expected = softmax_f64(x);
    let unified = matches!(scheme, Scheme::Calibrated | Scheme::CalibratedTwoSided | Scheme::Bounded);
    let relative = if scheme == Scheme::Tiled { 5e-7 * (x.len() / 100) as f64 + 3e-6 } else { 3e-6 };
    let absolute = if unified { 2.0_f64.powi(-26) } else { 2.0_f64.powi(-100) };
    for (i, (&actual, &expected)) in out.iter().zip(&expected).enumerate() {
        let error = (f64::from(actual) - expected).abs();
        let place = format!("{}, {name}, element {i} of {}", scheme.name(), x.len());
        assert!(error <= relative * expected + absolute, "{place}: {actual:e} {expected:e}");
    }
}

#[test]
fn every_scheme_agrees_with_float64_on_hard_rows_of_all_lengths() {
    for len in LENGTHS {
        for (name, x) in adversarial_rows(len) {
            for scheme in Scheme::ALL {
                check(scheme, name, &x, &run_scheme(scheme, Isa::best(), 1, &x, len).0);
            }
        }
    }
}

#[test]
fn bits_depend_neither_on_the_instruction_set_nor_on_threads_nor_on_other_rows() {
    for len in [1, 17, 255, 1000, 4097, 20_000] {
        let rows: Vec<f32> = adversarial_rows(len).into_iter().flat_map(|(_, x)| x).collect();
        for scheme in Scheme::ALL {
            let (expected, _) = run_scheme(scheme, Isa::Portable, 1, &rows, len);
            for isa in Isa::available() {
                for threads in [1, 3] {
                    assert_eq!(run_scheme(scheme, isa, threads, &rows, len).0, expected, "{}", scheme.name());
                }
            }
            for (x, expected) in rows.chunks_exact(len).zip(expected.chunks_exact(len)) {
                assert_eq!(run_scheme(scheme, Isa::best(), 1, x, len).0, expected, "{} alone", scheme.name());
            }
        }
    }
}

#[test]
fn rows_that_are_all_masked_are_zeros_in_every_scheme() {
    for scheme in Scheme::ALL {
        for len in [1, 16, 300] {
            assert!(run_scheme(scheme, Isa::best(), 1, &vec![f32::NEG_INFINITY; len], len).0.iter().all(|&y| y == 0.0));
        }
    }
}

#[test]
fn not_a_number_and_plus_infinity_spoil_their_own_row_alone() {
    for scheme in Scheme::ALL {
        for isa in Isa::available() {
            for bad in [f32::NAN, f32::INFINITY] {
                for len in [1, 40, 600] {
                    for place in [0, len / 2, len - 1] {
                        let mut x: Vec<f32> = (0..3 * len).map(|i| (i % 7) as f32).collect();
                        x[len + place] = bad;
                        let (out, _) = run_scheme(scheme, isa, 1, &x, len);
                        let name = scheme.name();
                        assert!(out[len..2 * len].iter().all(|y| y.is_nan()), "{name}: {bad} at {place} of {len}");
                        check(scheme, "the row before", &x[..len], &out[..len]);
                        check(scheme, "the row after", &x[2 * len..], &out[2 * len..]);
                    }
                }
            }
        }
    }
}

#[test]
fn unified_rows_are_recomputed_exactly_where_the_tests_say() {
    let row = |x: f32| vec![x; 300];
    let with = |place: usize, score: f32| {
        let mut x = row(0.0);
        x[place] = score;
        x
    };
    // (scores, calibrated, two-sided, bounded by 151 and so with phi = 51)
    let cases: [(&str, Vec<f32>, [usize; 3]); 11] = [
        ("inside", row(3.0), [0, 0, 0]),
        ("one just under b", with(299, 59.5), [0, 0, 0]),
        ("one at b", with(299, 60.0), [1, 1, 0]),
        ("one at a", with(0, -60.0), [0, 1, 0]),
        ("one masked", with(7, f32::NEG_INFINITY), [0, 0, 0]),
        ("all at the lower end of the bound", row(-48.5), [0, 0, 0]),
        ("all below the lower end of the bound", row(-50.0), [0, 0, 1]),
        ("all just valid under the calibration", row(-99.5), [0, 1, 1]),
        ("all lost under the calibration", row(-101.0), [1, 1, 1]),
        ("over the bound", row(180.0), [1, 1, 1]),
        ("one weight clamped, and a sum that is finite", with(9, 191.0), [1, 1, 1]),
    ];
    for (name, x, expected) in cases {
        for isa in Isa::available() {
            let schemes = [Scheme::Calibrated, Scheme::CalibratedTwoSided, Scheme::Bounded];
            assert_eq!(schemes.map(|scheme| run_scheme(scheme, isa, 1, &x, 300).1), expected, "{name}");
            for scheme in schemes {
                check(scheme, name, &x, &run_scheme(scheme, isa, 1, &x, 300).0);
            }
        }
    }
}

#[test]
fn masked_scores_do_not_make_a_bounded_row_invalid() {
    // One score in a thousand, far below the bound.
    let mut x = vec![f32::NEG_INFINITY; 1000];
    x[500] = -99.5;
    let mut out = vec![f32::NAN; 1000];
    let recomputed = bounded(Context::new(Isa::best(), &Pool::new(1)), 99.9, &x, 1000, &mut out);
    assert_eq!((recomputed, out[500]), (0, 1.0));
}

#[test]
fn measured_settings_recompute_nothing_of_what_they_were_measured_on() {
    let mut x: Vec<f32> = (0..2000).map(|i| ((i * 7919 + 13) % 1009) as f32 / 20.0 - 10.0).collect();
    x[77] = f32::NEG_INFINITY;
    let settings = Settings::measured(&x, 500);
    for scheme in Scheme::ALL {
        let mut out = vec![f32::NAN; x.len()];
        let recomputed = scheme.run(Context::new(Isa::best(), &Pool::new(1)), &settings, &x, 500, &mut out);
        assert_eq!(recomputed, 0, "{}", scheme.name());
        check(scheme, "measured", &x[..500], &out[..500]);
    }
}

#[test]
fn long_sums_stay_accurate() {
    let len = 1 << 20;
    for (name, x) in adversarial_rows(len) {
        let expected = softmax_f64(&x);
        for scheme in [Scheme::ThreePass, Scheme::Online, Scheme::Parallel, Scheme::Bounded] {
            let (out, _) = run_scheme(scheme, Isa::best(), 2, &x, len);
            let error = out.iter().zip(&expected).map(|(&y, e)| (f64::from(y) - e).abs()).fold(0.0, f64::max);
            let largest = expected.iter().copied().fold(0.0, f64::max);
            assert!(error <= 1e-5 * largest + 2.0_f64.powi(-100), "{}, {name}: {error:e}", scheme.name());
        }
    }
}

#[test]
fn no_rows_are_no_work() {
    for scheme in Scheme::ALL {
        assert_eq!(run_scheme(scheme, Isa::best(), 2, &[], 7), (vec![], 0));
    }
}

#[test]
fn names_are_distinct() {
    let names: std::collections::HashSet<_> = Scheme::ALL.map(Scheme::name).into();
    assert_eq!(names.len(), Scheme::ALL.len());
}

#[test]
#[should_panic(expected = "rows of 3")]
fn elements_that_are_no_whole_rows_are_refused() {
    run_scheme(Scheme::Online, Isa::best(), 1, &[0.0; 4], 3);
}

/// Scores with masks among them.
fn scores(range: f32) -> impl Strategy<Value = Vec<f32>> {
    let score = prop_oneof![9 => -range..range, 1 => Just(f32::NEG_INFINITY)];
    prop::collection::vec(score, 1..900)
}

proptest! {
    #[test]
    fn every_scheme_agrees_with_float64(x in scores(151.0)) {
        for scheme in Scheme::ALL {
            check(scheme, "random", &x, &run_scheme(scheme, Isa::best(), 1, &x, x.len()).0);
        }
    }

    #[test]
    fn references_change_no_bit_where_nothing_is_flushed(x in scores(40.0)) {
        let isa = Isa::best();
        let (expected, _) = run_scheme(Scheme::ThreePass, isa, 1, &x, x.len());
        for scheme in [Scheme::Online, Scheme::Calibrated, Scheme::CalibratedTwoSided, Scheme::Bounded] {
            prop_assert_eq!(&run_scheme(scheme, isa, 1, &x, x.len()).0, &expected, "{}", scheme.name());
        }
    }

    #[test]
    fn a_whole_shift_of_all_scores_changes_no_bit(x in prop::collection::vec(-64_i32..64, 1..400), shift in -50_i32..50) {
        // Scores in eighths, so that the shift itself is exact.
        let plain: Vec<f32> = x.iter().map(|&x| x as f32 / 8.0).collect();
        let shifted: Vec<f32> = plain.iter().map(|x| x + shift as f32).collect();
        for scheme in [Scheme::ThreePass, Scheme::Online, Scheme::Extension, Scheme::Parallel, Scheme::Tiled] {
            let run = |x| run_scheme(scheme, Isa::best(), 1, x, x.len()).0;
            prop_assert_eq!(run(&plain), run(&shifted), "{}", scheme.name());
        }
    }

    #[test]
    fn scores_within_a_bound_under_100_are_never_recomputed(x in scores(99.9)) {
        let mut out = vec![f32::NAN; x.len()];
        let recomputed = bounded(Context::new(Isa::best(), &Pool::new(1)), 99.9, &x, x.len(), &mut out);
        prop_assert_eq!(recomputed, 0);
    }
}
