//! Figures by length, in words.

use crate::quantile;

/// Where online is faster than three passes; `speeds` are (length, speed over three passes), by length.
pub(super) fn crossing(speeds: &[(f64, f64)]) -> String {
    // From there on, online is faster at every length.
    let from = speeds.iter().rposition(|(_, speed)| *speed <= 1.0).map_or(0, |last| last + 1);
    let before: Vec<String> =
        speeds[..from].iter().filter(|(_, speed)| *speed > 1.0).map(|(len, _)| len.to_string()).collect();
    let at = match (speeds.get(from), before.is_empty()) {
        (Some(_), _) if from == 0 => "at every length".into(),
        (Some((len, _)), true) => format!("from {len} scores on"),
        (Some((len, _)), false) => format!("from {len} scores on, and at {}", before.join(", ")),
        (None, true) => "at no length".into(),
        (None, false) => format!("at {} only", before.join(", ")),
    };
    format!("online is faster than three passes {at}")
}

/// What keeping a running maximum costs; `times` are (length, time of online over bounded).
pub(super) fn cost(times: &[(f64, f64)]) -> String {
    let percent = |q| (quantile(&times.iter().map(|(_, ratio)| *ratio).collect::<Vec<_>>(), q) - 1.0) * 100.0;
    format!(
        "running maxima cost {:+.0} % in the middle, {:+.0} % to {:+.0} % over the lengths: time of online over bounded",
        percent(0.5),
        percent(0.0),
        percent(1.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_is_where_online_stays_faster() {
        let at = |speeds: [f64; 3]| crossing(&[(128.0, speeds[0]), (256.0, speeds[1]), (512.0, speeds[2])]);
        assert_eq!(at([0.9, 1.1, 1.2]), "online is faster than three passes from 256 scores on");
        assert_eq!(at([0.9, 1.0, 0.8]), "online is faster than three passes at no length");
        assert_eq!(at([1.1, 1.1, 1.2]), "online is faster than three passes at every length");
        assert!(at([1.1, 0.9, 1.2]).ends_with("from 512 scores on, and at 128"));
        assert!(at([1.1, 0.9, 0.8]).ends_with("at 128 only"));
    }

    #[test]
    fn a_cost_has_its_range() {
        let words = cost(&[(1.0, 0.98), (2.0, 1.2), (4.0, 1.1)]);
        assert!(words.contains("+10 % in the middle, -2 % to +20 %"), "{words}");
    }
}
