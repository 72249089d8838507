//! Comparison of float slices that cannot be fooled by NaN.

/// Panics unless every element is within `abs + rel * |expected|`. NaN and infinities must stand at the same positions;
/// that is checked first, because every comparison with NaN is false and would otherwise pass or hide it.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], abs: f32, rel: f32) {
    if let Err(difference) = compare(actual, expected, abs, rel) {
        panic!("{difference}");
    }
}

/// What [`assert_close`] would say.
pub fn compare(actual: &[f32], expected: &[f32], abs: f32, rel: f32) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!("lengths differ: {} actual, {} expected", actual.len(), expected.len()));
    }
    for (at, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let same_special = a.is_nan() == e.is_nan() && (a.is_infinite() || e.is_infinite()) <= (a == e);
        if !same_special {
            return Err(format!("at {at}: {a} actual, {e} expected"));
        }
    }
    let excess =
        |a: f32, e: f32| (f64::from(a) - f64::from(e)).abs() / (f64::from(abs) + f64::from(rel) * f64::from(e.abs()));
    let finite = || actual.iter().zip(expected).enumerate().filter(|(_, (a, _))| a.is_finite());
    // 0 / 0 is NaN and thus not over 1: an exact match passes with zero tolerances.
    let over: Vec<usize> = finite().filter(|&(_, (&a, &e))| excess(a, e) > 1.0).map(|(at, _)| at).collect();
    let Some(&worst) =
        over.iter().max_by(|&&i, &&j| excess(actual[i], expected[i]).total_cmp(&excess(actual[j], expected[j])))
    else {
        return Ok(());
    };
    Err(format!(
        "{} of {} elements differ by more than {abs} + {rel} |expected|; first at {}: {} actual, {} expected; worst at {worst}: {} actual, {} expected",
        over.len(),
        actual.len(),
        over[0],
        actual[over[0]],
        expected[over[0]],
        actual[worst],
        expected[worst],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_within_either_tolerance_passes() {
        assert_close(&[1.0, 100.5, 0.001], &[1.0, 100.0, 0.0], 0.002, 0.01);
        assert_close(&[1.0, -0.0], &[1.0, 0.0], 0.0, 0.0);
    }

    #[test]
    fn a_difference_beyond_both_is_reported_with_its_place() {
        let text = compare(&[1.0, 2.0, 9.0], &[1.0, 2.2, 3.0], 0.1, 0.0).unwrap_err();
        assert!(text.starts_with("2 of 3") && text.contains("first at 1") && text.contains("worst at 2"), "{text}");
    }

    #[test]
    fn special_values_must_match_in_place_and_sign() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_close(&[nan, inf, -inf], &[nan, inf, -inf], 0.0, 0.0);
        for (actual, expected) in [(nan, 1.0), (1.0, nan), (inf, -inf), (inf, 1e38), (1e38, inf), (nan, inf)] {
            assert!(compare(&[actual], &[expected], 1e30, 1e30).is_err(), "{actual} {expected}");
        }
        assert!(compare(&[1.0], &[1.0, 2.0], 1.0, 1.0).is_err());
    }
}
