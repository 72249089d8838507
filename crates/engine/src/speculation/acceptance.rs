//! How often guesses are right, by how sure they are.

/// Matches of a lookup at least so long are counted together, and so are drafted tokens at least so probable.
const MATCHES: [usize; 5] = [1, 2, 3, 5, 16];
const PROBABILITIES: [f64; 4] = [0.0, 0.4, 0.7, 0.9];
const NUM_CLASSES: usize = MATCHES.len() + PROBABILITIES.len();
/// What is believed of a class before anything was seen, and of how many guesses' weight that belief is. Of matches it is what
/// `bench/guesses.py` counted over quoting, edited code and free text, 3,100 guesses of a model of 135M; the three agree on it.
const PRIOR: [f64; NUM_CLASSES] = [0.28, 0.58, 0.78, 0.88, 0.97, 0.3, 0.5, 0.7, 0.9];
const PRIOR_WEIGHT: f64 = 8.0;
/// What is believed of drafted tokens as a whole.
const DRAFTED_PRIOR: f64 = 0.7;
/// What is left of old evidence after each guess, so that the last 50 or so count.
const DECAY: f64 = 0.98;

/// How sure a guess is: guesses of one class are taken to be right equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(usize);

impl Class {
    /// What followed a match of so many tokens.
    pub(crate) fn matched(len: usize) -> Class {
        Class(MATCHES.iter().rposition(|&least| len >= least).unwrap_or(0))
    }

    /// What a draft model chose, finding it so probable.
    pub(crate) fn drafted(probability: f64) -> Class {
        let class = PROBABILITIES.iter().rposition(|&least| probability >= least).unwrap_or(0);
        Class(MATCHES.len() + class)
    }

    fn is_drafted(self) -> bool {
        self.0 >= MATCHES.len()
    }
}

/// Tokens that may follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Guess {
    /// The tokens, each guessed on condition that those before it are right.
    pub(crate) tokens: Vec<u32>,
    /// How sure each of them is.
    pub(crate) classes: Vec<Class>,
}

/// A share of guesses that were right.
#[derive(Debug, Clone, Copy)]
struct Share {
    right: f64,
    tried: f64,
}

impl Share {
    fn believed(share: f64) -> Share {
        Share { right: share * PRIOR_WEIGHT, tried: PRIOR_WEIGHT }
    }

    fn learn(&mut self, is_right: bool) {
        self.right = DECAY * self.right + f64::from(u8::from(is_right));
        self.tried = DECAY * self.tried + 1.0;
    }

    fn share(self) -> f64 {
        self.right / self.tried
    }
}

/// Counts of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acceptance {
    classes: [Share; NUM_CLASSES],
    drafted: Share,
}

impl Default for Acceptance {
    fn default() -> Self {
        Acceptance { classes: PRIOR.map(Share::believed), drafted: Share::believed(DRAFTED_PRIOR) }
    }
}

impl Acceptance {
    /// Counts of a new sequence, which believes of drafted tokens what other sequences have seen.
    pub(crate) fn after(others: &Acceptance) -> Acceptance {
        let mut new = Acceptance { drafted: Share::believed(others.drafted.share()), ..Acceptance::default() };
        for class in MATCHES.len()..NUM_CLASSES {
            new.classes[class] = Share::believed(others.classes[class].share());
        }
        new
    }

    /// Compares a guess with the tokens that came.
    pub(crate) fn learn(&mut self, guess: &Guess, tokens: &[u32]) {
        for ((guessed, &class), token) in guess.tokens.iter().zip(&guess.classes).zip(tokens) {
            let is_right = guessed == token;
            self.classes[class.0].learn(is_right);
            if class.is_drafted() {
                self.drafted.learn(is_right);
            }
            if !is_right {
                return;
            }
        }
    }

    /// For each guessed token the probability that it and all before it are right.
    pub(crate) fn chances(&self, guess: &Guess) -> Vec<f64> {
        let mut chance = 1.0;
        let shares = guess.classes.iter().map(|&class| self.of(class));
        shares
            .map(|share| {
                chance *= share;
                chance
            })
            .collect()
    }

    /// The probability that a guess of this class is right.
    pub(crate) fn of(&self, class: Class) -> f64 {
        self.classes[class.0].share()
    }

    /// The probability that the next token is what a draft model would choose.
    pub(crate) fn drafted(&self) -> f64 {
        self.drafted.share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(match_len: usize, tokens: &[u32]) -> Guess {
        let classes = (match_len..match_len + tokens.len()).map(Class::matched).collect();
        Guess { tokens: tokens.to_vec(), classes }
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
        assert!(acceptance.chances(&guess(12, &[1]))[0] < 0.05);
        assert_eq!(acceptance.chances(&guess(1, &[1])), [PRIOR[0]], "nothing was seen of that length");
    }

    #[test]
    fn nothing_is_learnt_behind_a_wrong_guess() {
        let mut acceptance = Acceptance::default();
        acceptance.learn(&guess(2, &[1, 2]), &[9, 2]);
        assert_eq!(acceptance.classes[2].tried, PRIOR_WEIGHT);
    }

    #[test]
    fn what_one_sequence_sees_of_a_draft_model_the_next_one_believes() {
        let drafted = Guess { tokens: vec![1], classes: vec![Class::drafted(0.95)] };
        let mut experience = Acceptance::default();
        (0..100).for_each(|_| experience.learn(&drafted, &[2]));
        let new = Acceptance::after(&experience);
        assert!(new.drafted() < 0.1 && new.chances(&drafted)[0] < 0.1);
        assert_eq!(new.chances(&guess(16, &[1])), [PRIOR[4]], "matches are a matter of each text");
        let mut new = new;
        (0..20).for_each(|_| new.learn(&drafted, &[1]));
        assert!(new.drafted() > 0.7, "and it finds out for itself");
    }
}
