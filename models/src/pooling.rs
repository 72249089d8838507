//! One vector for a whole prompt, of the hidden states of its tokens: after the last layer and the final norm, before the head.
//!
//! The mean is `sum / n`, the sum of each column in float64, in the order of the positions: so it does not depend on the pieces in
//! which a prompt was computed, nor on anything that does not change a bit of the states themselves.

use crate::LogitRows;

/// How the hidden states of a prompt become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The state of the last token, which has seen all others.
    Last,
    /// The mean of the states of all tokens.
    Mean,
}

impl Pooling {
    /// Which rows it needs of a piece of the prompt.
    pub fn rows(self, is_last_piece: bool) -> LogitRows {
        match self {
            Pooling::Mean => LogitRows::AllHidden,
            Pooling::Last if is_last_piece => LogitRows::LastHidden,
            Pooling::Last => LogitRows::None,
        }
    }
}

/// Gathers the hidden states of one prompt, piece by piece.
#[derive(Debug, Clone)]
pub struct Pooler {
    pooling: Pooling,
    hidden_size: usize,
    /// The sum of the rows so far; of [`Pooling::Last`], the latest row.
    sums: Vec<f64>,
    /// Rows that are in the sum.
    num_rows: usize,
}

impl Pooler {
    /// Nothing gathered yet, of states `hidden_size` wide.
    pub fn new(pooling: Pooling, hidden_size: usize) -> Pooler {
        Pooler { pooling, hidden_size, sums: Vec::new(), num_rows: 0 }
    }

    /// What it does.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Width of a state, and of the vector.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Takes in the states of the tokens from position `start` on, `[rows, hidden_size]`, row-major. Those that it has already, of a
    /// prompt that is computed a second time, change nothing.
    ///
    /// # Panics
    /// When a mean would miss a position, or the rows are not whole.
    pub fn push(&mut self, start: usize, rows: &[f32]) {
        assert!(rows.len().is_multiple_of(self.hidden_size), "rows of {} elements", self.hidden_size);
        self.sums.resize(self.hidden_size, 0.0);
        for (position, row) in (start..).zip(rows.chunks_exact(self.hidden_size)) {
            match self.pooling {
                Pooling::Last => self.sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum = f64::from(x)),
                Pooling::Mean if position < self.num_rows => continue,
                Pooling::Mean => {
                    assert_eq!(position, self.num_rows, "a mean needs the state of every position");
                    self.sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
                    self.num_rows += 1;
                }
            }
        }
    }

    /// The vector, `[hidden_size]`.
    ///
    /// # Panics
    /// When there was no row.
    pub fn finish(&self) -> Vec<f32> {
        assert_eq!(self.sums.len(), self.hidden_size, "a prompt has at least one token");
        let num_rows = match self.pooling {
            Pooling::Last => 1.0,
            Pooling::Mean => self.num_rows as f64,
        };
        self.sums.iter().map(|sum| (sum / num_rows) as f32).collect()
    }
}

/// Makes the Euclidean length of a vector 1. The zero vector stays what it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, pieces: &[(usize, &[f32])]) -> Vec<f32> {
        let mut pooler = Pooler::new(pooling, 2);
        pieces.iter().for_each(|&(start, rows)| pooler.push(start, rows));
        pooler.finish()
    }

    #[test]
    fn a_mean_is_of_all_rows_and_the_last_is_the_last() {
        let rows = [1.0, 10.0, 2.0, 20.0, 6.0, -60.0];
        assert_eq!(pooled(Pooling::Mean, &[(0, &rows)]), [3.0, -10.0]);
        assert_eq!(pooled(Pooling::Last, &[(0, &rows)]), [6.0, -60.0]);
    }

    #[test]
    fn rows_that_come_a_second_time_count_once() {
        let rows = [1.0, 10.0, 2.0, 20.0, 6.0, -60.0];
        let again = pooled(Pooling::Mean, &[(0, &rows[..4]), (0, &rows[..2]), (1, &rows[2..])]);
        assert_eq!(again, pooled(Pooling::Mean, &[(0, &rows)]));
    }

    #[test]
    #[should_panic(expected = "every position")]
    fn a_mean_misses_no_row() {
        pooled(Pooling::Mean, &[(0, &[1.0, 2.0]), (2, &[3.0, 4.0])]);
    }

    #[test]
    fn a_normalised_vector_has_length_one_and_nothing_stays_nothing() {
        let mut vector = [3.0, -4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, -0.8]);
        // Squares that float32 does not hold.
        let huge = 2.0_f32.powi(100);
        let mut large = [3.0 * huge, 4.0 * huge];
        normalize(&mut large);
        assert_eq!(large, [0.6, 0.8]);
        let mut zero = [0.0, 0.0];
        normalize(&mut zero);
        assert_eq!(zero, [0.0, 0.0]);
    }
}
