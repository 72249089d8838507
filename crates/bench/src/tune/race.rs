//! A race of candidates. They take turns, so that a busy moment of the machine meets all of them; a cost is the median of turns.
//! Those that fall behind are out early, and the time goes to the few that are close.

use std::time::Instant;

/// After so many turns, candidates slower than the best by this factor are out; the last one holds from there on.
const OUT: [f64; 3] = [1.5, 1.25, 1.12];
/// Seconds of a turn that one busy moment does not double; nobody is out after a single turn that was shorter.
const SURE: f64 = 0.01;
/// A race that took so many seconds is over, once every candidate that keeps up has had [`FEWEST`] turns.
const ENOUGH: f64 = 2.0;
/// See [`ENOUGH`].
const FEWEST: usize = 3;
/// Seconds of each arm, turn by turn; arms compete with those of their own class. The arm `kept` is never out.
///
/// # Errors
/// The first that a turn gives.
pub(super) fn race<K: Copy + PartialEq, E>(
    classes: &[K],
    most_turns: usize,
    kept: Option<usize>,
    mut turn: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<Vec<f64>>, E> {
    let mut turns: Vec<Vec<f64>> = vec![Vec::new(); classes.len()];
    let start = Instant::now();
    for number in 0..most_turns.max(1) {
        if number >= FEWEST && start.elapsed().as_secs_f64() > ENOUGH {
            break;
        }
        let is_in = survivors(classes, &turns, kept);
        for index in (0..classes.len()).map(|index| (index + number) % classes.len()).filter(|&index| is_in[index]) {
            turns[index].push(turn(index)?);
        }
    }
    Ok(turns)
}

/// Which arms have another turn: those whose fastest turn so far is near the fastest of their class.
fn survivors<K: Copy + PartialEq>(classes: &[K], turns: &[Vec<f64>], kept: Option<usize>) -> Vec<bool> {
    let fastest: Vec<f64> = turns.iter().map(|turns| turns.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    let best_of = |class: K| {
        let of_class = classes.iter().zip(&fastest).filter(|(other, _)| **other == class);
        of_class.map(|(_, &seconds)| seconds).fold(f64::INFINITY, f64::min)
    };
    let most_turns = turns.iter().map(Vec::len).max().unwrap_or(0);
    let is_in = |index: usize| {
        let done = turns[index].len();
        // One that missed a turn is out for good.
        let limit = |done: usize| OUT[(done - 1).min(OUT.len() - 1)];
        let is_unsure = done == 0 || done == 1 && fastest[index] < SURE;
        done == most_turns && (is_unsure || fastest[index] <= best_of(classes[index]) * limit(done))
    };
    (0..classes.len()).map(|index| kept == Some(index) || is_in(index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_falls_behind_its_own_class_is_out_unless_it_is_kept() {
        let after = |turns: [&[f64]; 4], kept| survivors(&[0, 0, 0, 1], &turns.map(<[f64]>::to_vec), kept);
        assert_eq!(after([&[]; 4], None), [true; 4]);
        assert_eq!(after([&[10.0], &[14.0], &[16.0], &[1.0]], None), [true, true, false, true]);
        assert_eq!(after([&[10.0], &[14.0], &[16.0], &[1.0]], Some(2)), [true; 4]);
        assert_eq!(
            after([&[1e-4], &[3e-4], &[2e-2], &[1e-4]], None),
            [true, true, false, true],
            "short turns are unsure"
        );
        // Later the limit is tighter, a lucky turn counts, and nobody comes back.
        assert_eq!(after([&[10.0, 11.0], &[14.0, 14.0], &[10.1], &[1.0, 9.0]], None), [true, false, false, true]);
    }
}
