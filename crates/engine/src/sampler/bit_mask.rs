//! Sets of tokens as bits: token `t` is bit `t % 32`, low bit first, of word `t / 32`.

/// The set of these tokens.
pub(super) fn of(tokens: &[u32]) -> Vec<u32> {
    let num_words = tokens.iter().max().map_or(0, |&last| last as usize / 32 + 1);
    let mut words = vec![0; num_words];
    for &token in tokens {
        words[token as usize / 32] |= 1 << (token % 32);
    }
    words
}

/// Rules out every token that is not in `words`; those beyond its end are not.
pub(super) fn keep(row: &mut [f32], words: &[u32]) {
    let missing = std::iter::repeat(&0);
    for (logits, &word) in row.chunks_mut(32).zip(words.iter().chain(missing)) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_the_set(tokens in prop::collection::vec(0u32..200, 0..150), num_tokens in 1usize..200) {
            let mut row = vec![1.0; num_tokens];
            keep(&mut row, &of(&tokens));
            for (token, &logit) in row.iter().enumerate() {
                let expected = if tokens.contains(&(token as u32)) { 1.0 } else { f32::NEG_INFINITY };
                prop_assert_eq!(logit, expected);
            }
        }
    }
}
