//! How large attention's scores are: what calibration chooses the references of a softmax from.
//!
//! Scores are `x = q.k scale log2(e)`. A histogram counts them by `floor(x)`, the whole number that a reference is compared
//! with.

/// Whole numbers counted apart are `-LIMIT ..= LIMIT`; what lies beyond counts as the nearer end.
const LIMIT: i32 = 1024;

/// Numbers counted by their floor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; Self::FLOORS] }
    }
}

impl Histogram {
    /// Whole numbers that are counted apart.
    pub(crate) const FLOORS: usize = 2 * LIMIT as usize + 1;

    /// Counts a number. NaN, which no reference fits, counts as the upper end.
    #[inline]
    pub fn add(&mut self, x: f32) {
        let x = if x.is_nan() { LIMIT as f32 } else { x.floor().clamp(-LIMIT as f32, LIMIT as f32) };
        self.counts[(x as i32 + LIMIT) as usize] += 1;
    }

    /// Adds counts of the floors from `-LIMIT` on.
    pub(crate) fn add_counts(&mut self, counts: &[u32]) {
        assert_eq!(counts.len(), Self::FLOORS, "a count for each floor");
        self.counts.iter_mut().zip(counts).for_each(|(sum, &count)| *sum += u64::from(count));
    }

    /// How many numbers were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The floors that were seen, in rising order, each with how many numbers have it.
    pub fn floors(&self) -> impl Iterator<Item = (i32, u64)> {
        self.counts.iter().zip(-LIMIT..).filter(|&(&count, _)| count > 0).map(|(&count, floor)| (floor, count))
    }

    /// The smallest floor that at most the share `1 - share` of the numbers is above; `None` where nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<i32> {
        let wanted = share * self.total() as f64;
        let mut below = 0;
        let reaches = |&(_, count): &(i32, u64)| {
            below += count;
            below as f64 >= wanted
        };
        self.floors().find(reaches).or_else(|| self.floors().last()).map(|(floor, _)| floor)
    }
}

/// Scores of the query heads that share a KV head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScoreStatistics {
    /// Every score that a row sees.
    pub all: Histogram,
    /// The largest score of each row and query head.
    pub largest: Histogram,
}

impl ScoreStatistics {
    /// Counts the scores of one row and query head.
    #[inline]
    pub(crate) fn add_row(&mut self, scores: impl IntoIterator<Item = f32>) {
        let mut largest = f32::NEG_INFINITY;
        for x in scores {
            self.all.add(x);
            largest = largest.max(x);
        }
        self.largest.add(largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(numbers: &[f32]) -> Histogram {
        let mut histogram = Histogram::default();
        numbers.iter().for_each(|&x| histogram.add(x));
        histogram
    }

    #[test]
    fn numbers_are_counted_by_their_floor_and_the_ends_collect_what_is_beyond() {
        let counted = histogram(&[-0.5, 0.0, 0.9, 7.0, 1e30, f32::INFINITY, f32::NAN, -2000.0]);
        assert_eq!(counted.floors().collect::<Vec<_>>(), [(-1024, 1), (-1, 1), (0, 2), (7, 1), (1024, 3)]);
        assert_eq!(counted.total(), 8);
    }

    #[test]
    fn a_quantile_leaves_its_share_below() {
        let counted = histogram(&(0..1000).map(|i| i as f32 / 10.0).collect::<Vec<_>>());
        assert_eq!([0.0, 0.005, 0.5, 0.989, 1.0].map(|share| counted.quantile(share)), [0, 0, 49, 98, 99].map(Some));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn a_row_adds_all_its_scores_and_one_largest() {
        let mut statistics = ScoreStatistics::default();
        statistics.add_row([1.5, -3.5, 2.25]);
        assert_eq!(statistics.all.total(), 3);
        assert_eq!(statistics.largest.floors().collect::<Vec<_>>(), [(2, 1)]);
    }
}
