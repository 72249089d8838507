//! What is measured, named as llama-bench names it.

use std::fmt;
use std::str::FromStr;

/// Keys before the first token that each sequence of a [`Case::Batch`] generates, unless told otherwise.
pub const BATCH_DEPTH: usize = 32;
/// Tokens that each sequence of a [`Case::Batch`] generates.
pub const BATCH_GENERATED: usize = 48;

/// One thing to measure. The depth is the number of keys in each sequence's cache before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// `ppN` or `ppN@DEPTH`: a prompt, or a further piece of one, of N tokens.
    Prompt {
        /// Tokens of the prompt.
        tokens: usize,
        /// Keys in the cache before.
        depth: usize,
    },
    /// `tgN` or `tgN@DEPTH`: N tokens generated one by one.
    Generate {
        /// Tokens generated.
        tokens: usize,
        /// Keys in the cache before the first.
        depth: usize,
    },
    /// `bN` or `bN@DEPTH`: N sequences generate [`BATCH_GENERATED`] tokens each; the aggregate rate.
    Batch {
        /// Sequences.
        sequences: usize,
        /// Keys of each before the first token.
        depth: usize,
    },
}

/// A case name that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is no case: expected ppN (prompt), tgN (generation) or bN (batch), with N at least 1, and @DEPTH behind it for keys in the cache before, such as pp512, tg64@4096 or b8"
)]
pub struct CaseError(String);

impl Case {
    /// Positions that the longest sequence takes.
    pub fn context_len(self) -> usize {
        match self {
            Case::Prompt { tokens, depth } | Case::Generate { tokens, depth } => depth + tokens,
            Case::Batch { depth, .. } => depth + BATCH_GENERATED,
        }
    }

    /// Sequences in the batch.
    pub fn num_sequences(self) -> usize {
        match self {
            Case::Batch { sequences, .. } => sequences,
            _ => 1,
        }
    }

    /// Keys in each sequence's cache before.
    pub fn depth(self) -> usize {
        match self {
            Case::Prompt { depth, .. } | Case::Generate { depth, .. } | Case::Batch { depth, .. } => depth,
        }
    }
}

impl FromStr for Case {
    type Err = CaseError;

    fn from_str(name: &str) -> Result<Case, CaseError> {
        let bad = || CaseError(name.to_string());
        let number = |digits: &str| digits.parse::<usize>().ok().filter(|n| *n <= 1 << 24).ok_or_else(bad);
        let (what, depth) = match name.split_once('@') {
            Some((what, depth)) => (what, Some(number(depth)?)),
            None => (name, None),
        };
        let positive = |digits: &str| number(digits).and_then(|n| if n > 0 { Ok(n) } else { Err(bad()) });
        if let Some(tokens) = what.strip_prefix("pp") {
            Ok(Case::Prompt { tokens: positive(tokens)?, depth: depth.unwrap_or(0) })
        } else if let Some(tokens) = what.strip_prefix("tg") {
            Ok(Case::Generate { tokens: positive(tokens)?, depth: depth.unwrap_or(0) })
        } else if let Some(sequences) = what.strip_prefix('b') {
            Ok(Case::Batch { sequences: positive(sequences)?, depth: depth.unwrap_or(BATCH_DEPTH) })
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain_depth = match self {
            Case::Prompt { tokens, .. } => write!(f, "pp{tokens}").map(|()| 0),
            Case::Generate { tokens, .. } => write!(f, "tg{tokens}").map(|()| 0),
            Case::Batch { sequences, .. } => write!(f, "b{sequences}").map(|()| BATCH_DEPTH),
        }?;
        if self.depth() == plain_depth { Ok(()) } else { write!(f, "@{}", self.depth()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_llama_bench_writes_them() {
        assert_eq!("pp512".parse(), Ok(Case::Prompt { tokens: 512, depth: 0 }));
        assert_eq!("tg64".parse(), Ok(Case::Generate { tokens: 64, depth: 0 }));
        assert_eq!("tg64@4096".parse(), Ok(Case::Generate { tokens: 64, depth: 4096 }));
        assert_eq!("b8".parse(), Ok(Case::Batch { sequences: 8, depth: 32 }));
        assert_eq!("b8@4096".parse(), Ok(Case::Batch { sequences: 8, depth: 4096 }));
    }

    #[test]
    fn a_case_is_written_as_it_is_read() {
        for name in ["pp512", "pp512@64", "tg64", "tg64@4096", "b8", "b8@0", "b8@4096"] {
            assert_eq!(name.parse::<Case>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn other_names_are_refused_by_name() {
        for name in ["", "pp", "pp0", "tg", "tg0", "tg1@", "tg1@x", "b", "b0", "p5", "pp-1", "pp99999999999999999999"] {
            let error = name.parse::<Case>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
    }
}
