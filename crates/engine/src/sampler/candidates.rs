//! The tokens that can still be chosen, with unnormalised probabilities.

/// One token and its weight `exp((logit - max) / temperature)`; the most probable token weighs 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) weight: f32,
}

impl Candidate {
    /// Heaviest first, the lower id among equals.
    pub(super) fn rank(&self, other: &Candidate) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

/// A set of candidates. Filters shrink and reorder it; it is never empty.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) items: Vec<Candidate>,
}

impl Candidates {
    /// Takes every token whose scaled logit lies at most `-threshold` below the largest; `threshold` is negative or 0.
    pub(super) fn fill(&mut self, logits: &[f32], max: f32, temperature: f32, threshold: f32) {
        self.items.clear();
        for (id, &logit) in logits.iter().enumerate() {
            // Subtracted first: with a tiny temperature the quotient may be -inf, which drops out, but never NaN.
            let scaled = (logit - max) / temperature;
            if scaled >= threshold {
                self.items.push(Candidate { id: id as u32, weight: scaled.exp() });
            }
        }
    }

    /// Sum of the weights, in float64 and in order, so that it is the same in every run.
    pub(super) fn mass(&self) -> f64 {
        self.items.iter().map(|candidate| f64::from(candidate.weight)).sum()
    }

    /// The candidate at the share `unit` of the mass; `unit` lies in [0, 1).
    pub(super) fn draw(&self, unit: f64) -> u32 {
        let target = unit * self.mass();
        let mut sum = 0.0;
        for candidate in &self.items {
            sum += f64::from(candidate.weight);
            if target < sum {
                return candidate.id;
            }
        }
        // Rounding can put the target on the total itself: then the last one that has any weight.
        self.items.iter().rev().find(|candidate| candidate.weight > 0.0).map_or(0, |candidate| candidate.id)
    }
}
