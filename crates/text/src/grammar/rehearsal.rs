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

/// A copy of a grammar with the states that some walks through it made, at its beginning; nothing if it has too many to keep
/// them, or fails on the way.
///
/// # Errors
/// What the grammar says to its first step; it cannot be used then.
pub(super) fn rehearse(grammar: &Grammar) -> Result<Option<Grammar>, GrammarError> {
    let mut grammar = grammar.clone();
    let mut mask = grammar.empty_mask();
    let is_light = next_mask(&mut grammar, &mut mask)?;
    Ok(if is_light { walk(grammar, mask).unwrap_or(None) } else { None })
}

fn walk(mut grammar: Grammar, mut mask: BitMask) -> Result<Option<Grammar>, GrammarError> {
    let deadline = Instant::now() + MAX_TIME;
    let dice = RandomState::with_seeds(0, 1, 2, 3);
    for roll in 0..MAX_CHOICES {
        if Instant::now() > deadline {
            break;
        }
        let token = choose(&mask, grammar.closing(), dice.hash_one(roll));
        grammar.accept(token)?;
        if !next_mask(&mut grammar, &mut mask)? {
            return Ok(None);
        }
    }
    begin_again(&mut grammar)?;
    Ok(Some(grammar))
}

/// The mask of the next choice, or of the first one where the grammar ends; whether it took no longer than it may.
fn next_mask(grammar: &mut Grammar, mask: &mut BitMask) -> Result<bool, GrammarError> {
    let begin = Instant::now();
    for token in grammar.forced()? {
        grammar.accept(token)?;
    }
    if grammar.is_finished() {
        begin_again(grammar)?;
    }
    grammar.mask(mask)?;
    Ok(begin.elapsed() <= MAX_MASK_TIME)
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
