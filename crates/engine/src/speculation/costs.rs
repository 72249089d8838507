//! What a step of so many rows costs, from the steps that were run.

/// Share of the newest duration in an average.
const NEWEST: f64 = 0.2;
/// What a row beyond the first is taken to cost, as a share of a step of one, until two sizes were measured.
const FIRST_SLOPE: f64 = 0.1;

/// Moving averages of the seconds of steps without prompts, by their number of rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCosts {
    /// `seconds[rows - 1]`; 0 where nothing was measured.
    seconds: Vec<f64>,
}

impl StepCosts {
    /// Takes in a step of `rows` rows.
    pub(crate) fn observe(&mut self, rows: usize, seconds: f64) {
        if self.seconds.len() < rows {
            self.seconds.resize(rows, 0.0);
        }
        let mean = &mut self.seconds[rows - 1];
        *mean = if *mean == 0.0 { seconds } else { *mean + NEWEST * (seconds - *mean) };
    }

    /// Whether any step was measured.
    pub(crate) fn is_known(&self) -> bool {
        !self.seconds.is_empty()
    }

    /// Seconds of a step of `rows` rows: measured, or on the line through the nearest sizes that were.
    pub(crate) fn seconds(&self, rows: usize) -> f64 {
        let measured = |rows: usize| self.seconds.get(rows - 1).copied().filter(|&seconds| seconds > 0.0);
        if let Some(seconds) = measured(rows) {
            return seconds;
        }
        let below = (1..rows).rev().find_map(|rows| Some((rows, measured(rows)?)));
        let above = (rows + 1..=self.seconds.len()).find_map(|rows| Some((rows, measured(rows)?)));
        match (below, above) {
            (Some(a), Some(b)) => between(a, b, rows),
            (Some(a), None) => match (1..a.0).rev().find_map(|rows| Some((rows, measured(rows)?))) {
                // A noisy pair must not promise that rows are free, or less than free.
                Some(before) => a.1 + (slope(before, a)).max(FIRST_SLOPE * 0.2 * a.1) * (rows - a.0) as f64,
                None => a.1 * first_guess(rows) / first_guess(a.0),
            },
            (None, Some(b)) => b.1 * first_guess(rows) / first_guess(b.0),
            (None, None) => first_guess(rows),
        }
    }
}

/// What a step of so many rows is taken to cost, in steps of one.
fn first_guess(rows: usize) -> f64 {
    1.0 + FIRST_SLOPE * (rows - 1) as f64
}

fn slope(a: (usize, f64), b: (usize, f64)) -> f64 {
    (b.1 - a.1) / (b.0 - a.0) as f64
}

fn between(a: (usize, f64), b: (usize, f64), rows: usize) -> f64 {
    a.1 + slope(a, b) * (rows - a.0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_were_not_measured_lie_on_a_line() {
        let mut costs = StepCosts::default();
        assert!(costs.seconds(8) > costs.seconds(1));
        costs.observe(1, 1.0);
        assert_eq!(costs.seconds(3), 1.2);
        costs.observe(5, 2.0);
        assert_eq!((costs.seconds(3), costs.seconds(7)), (1.5, 2.5));
        costs.observe(5, 3.0);
        assert!((costs.seconds(5) - 2.2).abs() < 1e-12, "a fifth of the way");
    }

    #[test]
    fn noise_never_makes_rows_free() {
        let mut costs = StepCosts::default();
        costs.observe(1, 1.0);
        costs.observe(2, 0.9);
        assert!(costs.seconds(10) > 0.9);
    }
}
