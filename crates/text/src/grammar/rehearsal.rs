//! A rehearsal: walks through a grammar before anybody uses it, so that the states of its lexer exist.
//!
//! The library makes a state of the lexer, and proves which slices of the vocabulary it takes whole, when a mask first needs
//! it; that is two thirds of what the masks of a new grammar take. States stay with a grammar and its copies, so they are
//! made while it is compiled, where nobody's token waits. A mask is the same with them and without.

use std::time::{Duration, Instant};

use ahash::RandomState;

use super::{BitMask, Grammar, GrammarError};

/// How long the walks go on: a request with a new grammar begins so much later, a tenth of a short prompt's time.
const MAX_TIME: Duration = Duration::from_millis(3);
/// A mask that takes longer is of a grammar with too many states: what the walks make would fill memory with its copies, and
/// use up what the limits leave to an answer.
const MAX_MASK_TIME: Duration = Duration::from_millis(1);
/// Tokens chosen in all walks together. A grammar whose masks take nothing needs no more.
const MAX_CHOICES: u64 = 128;

/// What a rehearsal came to.
#[derive(Debug)]
pub(super) enum Rehearsed {
    /// The grammar with what the walks made, at its beginning again.
    Warm(Grammar),
    /// It has too many states to keep them.
    TooHeavy,
}

/// Walks through a grammar.
///
/// # Errors
/// What the grammar says on a walk; it cannot be used after that.
pub(super) fn rehearse(mut grammar: Grammar) -> Result<Rehearsed, GrammarError> {
    let deadline = Instant::now() + MAX_TIME;
    let dice = RandomState::with_seeds(0, 1, 2, 3);
    let mut mask = grammar.empty_mask();
    for roll in 0..MAX_CHOICES {
        let begin = Instant::now();
        if begin > deadline {
            break;
        }
        for token in grammar.forced()? {
            grammar.accept(token)?;
        }
        if grammar.is_finished() {
            begin_again(&mut grammar)?;
        }
        grammar.mask(&mut mask)?;
        if begin.elapsed() > MAX_MASK_TIME {
            return Ok(Rehearsed::TooHeavy);
        }
        let token = choose(&mask, grammar.closing(), dice.hash_one(roll));
        grammar.accept(token)?;
    }
    begin_again(&mut grammar)?;
    Ok(Rehearsed::Warm(grammar))
}

fn begin_again(grammar: &mut Grammar) -> Result<(), GrammarError> {
    grammar.rollback(grammar.num_accepted())
}

/// One of the mask's tokens: at each third roll one that closes a string or a bracket, so that walks leave them.
fn choose(mask: &BitMask, closing: &BitMask, roll: u64) -> u32 {
    let (is_closing, roll) = (roll.is_multiple_of(3), roll / 3);
    let num_closing = if is_closing { mask.shared(closing).count() } else { 0 };
    let token = match num_closing {
        0 => mask.tokens().nth((roll % mask.num_set() as u64) as usize),
        _ => mask.shared(closing).nth((roll % num_closing as u64) as usize),
    };
    token.expect("a mask has a token")
}
