//! What is measured, named as llama-bench names it.

use std::fmt;
use std::str::FromStr;

/// Prompt tokens of each sequence of a [`Case::Batch`].
pub const BATCH_PROMPT: usize = 32;
/// Tokens that each sequence of a [`Case::Batch`] generates.
pub const BATCH_GENERATED: usize = 48;

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// `ppN`: a prompt of N tokens, from an empty cache.
    Prompt(usize),
    /// `tgN` or `tgN@DEPTH`: N tokens generated one by one, with DEPTH keys in the cache before.
    Generate {
        /// Tokens generated.
        tokens: usize,
        /// Keys in the cache before the first.
        depth: usize,
    },
    /// `bN`: N sequences of [`BATCH_PROMPT`] prompt tokens generate [`BATCH_GENERATED`] each; the aggregate decode rate.
    Batch(usize),
}

/// A case name that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is no case: expected ppN (prompt), tgN or tgN@DEPTH (generation), or bN (batch), with N at least 1, such as pp512, tg64@4096 or b8"
)]
pub struct CaseError(String);

impl Case {
    /// Positions that the longest sequence takes.
    pub fn context_len(self) -> usize {
        match self {
            Case::Prompt(tokens) => tokens,
            Case::Generate { tokens, depth } => depth + tokens,
            Case::Batch(_) => BATCH_PROMPT + BATCH_GENERATED,
        }
    }

    /// Sequences in the batch.
    pub fn num_sequences(self) -> usize {
        match self {
            Case::Batch(sequences) => sequences,
            _ => 1,
        }
    }
}

impl FromStr for Case {
    type Err = CaseError;

    fn from_str(name: &str) -> Result<Case, CaseError> {
        let bad = || CaseError(name.to_string());
        let number = |digits: &str| digits.parse::<usize>().ok().filter(|n| *n <= 1 << 24).ok_or_else(bad);
        let positive = |digits: &str| number(digits).and_then(|n| if n > 0 { Ok(n) } else { Err(bad()) });
        if let Some(rest) = name.strip_prefix("pp") {
            Ok(Case::Prompt(positive(rest)?))
        } else if let Some(rest) = name.strip_prefix("tg") {
            let (tokens, depth) = rest.split_once('@').unwrap_or((rest, "0"));
            Ok(Case::Generate { tokens: positive(tokens)?, depth: number(depth)? })
        } else if let Some(rest) = name.strip_prefix('b') {
            Ok(Case::Batch(positive(rest)?))
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::Prompt(tokens) => write!(f, "pp{tokens}"),
            Case::Generate { tokens, depth: 0 } => write!(f, "tg{tokens}"),
            Case::Generate { tokens, depth } => write!(f, "tg{tokens}@{depth}"),
            Case::Batch(sequences) => write!(f, "b{sequences}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_llama_bench_writes_them() {
        assert_eq!("pp512".parse(), Ok(Case::Prompt(512)));
        assert_eq!("tg64".parse(), Ok(Case::Generate { tokens: 64, depth: 0 }));
        assert_eq!("tg64@4096".parse(), Ok(Case::Generate { tokens: 64, depth: 4096 }));
        assert_eq!("b8".parse(), Ok(Case::Batch(8)));
    }

    #[test]
    fn other_names_are_refused_by_name() {
        for name in ["", "pp", "pp0", "tg", "tg0", "tg1@", "tg1@x", "b", "b0", "p5", "pp-1", "pp99999999999999999999"] {
            let error = name.parse::<Case>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
    }
}
