//! How often guesses are right, by the length of the match they follow.

use super::lookup::Guess;

/// Matches at least so long are counted together.
const CLASSES: [usize; 4] = [2, 3, 5, 9];
/// What is believed of a class before anything was seen, and of how many guesses' weight that belief is.
const PRIOR: [f64; 4] = [0.3, 0.5, 0.7, 0.9];
const PRIOR_WEIGHT: f64 = 4.0;
/// What is left of old evidence after each guess, so that the last 50 or so count.
const DECAY: f64 = 0.98;

/// Counts of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acceptance {
    right: [f64; CLASSES.len()],
    tried: [f64; CLASSES.len()],
}

impl Default for Acceptance {
    fn default() -> Self {
        Acceptance { right: PRIOR.map(|share| share * PRIOR_WEIGHT), tried: [PRIOR_WEIGHT; CLASSES.len()] }
    }
}

impl Acceptance {
    /// Compares a guess with the tokens that came. Each token that was right makes the match longer by one.
    pub(crate) fn learn(&mut self, guess: &Guess, tokens: &[u32]) {
        for (place, (guessed, token)) in guess.tokens.iter().zip(tokens).enumerate() {
            let class = class(guess.match_len + place);
            let is_right = guessed == token;
            self.right[class] = DECAY * self.right[class] + f64::from(u8::from(is_right));
            self.tried[class] = DECAY * self.tried[class] + 1.0;
            if !is_right {
                return;
            }
        }
    }

    /// For each guessed token the probability that it and all before it are right.
    pub(crate) fn chances(&self, guess: &Guess) -> Vec<f64> {
        let mut chance = 1.0;
        let lens = guess.match_len..guess.match_len + guess.tokens.len();
        lens.map(|match_len| {
            let class = class(match_len);
            chance *= self.right[class] / self.tried[class];
            chance
        })
        .collect()
    }
}

fn class(match_len: usize) -> usize {
    CLASSES.iter().rposition(|&least| match_len >= least).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(match_len: usize, tokens: &[u32]) -> Guess {
        Guess { match_len, tokens: tokens.to_vec() }
    }

    #[test]
    fn chances_fall_along_a_guess_and_rise_with_the_match() {
        let acceptance = Acceptance::default();
        let chances = acceptance.chances(&guess(2, &[1, 2, 3]));
        assert!(chances.windows(2).all(|pair| pair[1] < pair[0]), "{chances:?}");
        assert!(acceptance.chances(&guess(12, &[1]))[0] > chances[0]);
    }

    #[test]
    fn what_was_seen_outweighs_what_was_believed() {
        let mut acceptance = Acceptance::default();
        for _ in 0..100 {
            acceptance.learn(&guess(3, &[1]), &[1]);
            acceptance.learn(&guess(9, &[1]), &[2]);
        }
        assert!(acceptance.chances(&guess(4, &[1]))[0] > 0.95);
        assert!(acceptance.chances(&guess(32, &[1]))[0] < 0.05);
        assert_eq!(acceptance.chances(&guess(2, &[1])), [0.3], "nothing was seen of that length");
    }

    #[test]
    fn nothing_is_learnt_behind_a_wrong_guess() {
        let mut acceptance = Acceptance::default();
        acceptance.learn(&guess(2, &[1, 2]), &[9, 2]);
        assert_eq!(acceptance.tried[1], PRIOR_WEIGHT);
    }
}
