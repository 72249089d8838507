//! How text is cut into words before BPE: one pattern per family, by the name in `tokenizer.ggml.pre`.
//!
//! BPE never merges across a word's border, so a wrong pattern gives wrong tokens that still decode correctly: the
//! model just gets worse. Hence a name that is not in the table is refused.

use taper_checkpoint::Metadata;
use tokenizers::utils::SysRegex;

use crate::Error;
use crate::error::quoted;
use crate::vocabulary::bad;

const PRE: &str = "tokenizer.ggml.pre";

/// English contractions, words and numbers with one space before them, then the rest; as GPT-2 had it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// GPT-2's pattern over text whose digits were cut out one by one before. In one pattern: numbers are single digits
/// without a space, and spaces before a digit stay together as they would at the end of a text.
const SINGLE_DIGITS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+";

/// Numbers in groups of up to three, contractions in any case, words with any one character before them.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As Llama 3, but digits one by one. The authors also apply NFC; llama.cpp does not, and neither do we: text comes
/// back as it was given.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// One family of vocabularies.
struct Row {
    name: &'static str,
    pattern: &'static str,
    /// A word that is a token as a whole is that token, whatever the merges say.
    whole_words_first: bool,
    /// BOS is prepended unless the file says otherwise.
    adds_bos: bool,
}

const fn row(name: &'static str, pattern: &'static str) -> Row {
    Row { name, pattern, whole_words_first: false, adds_bos: false }
}

const fn llama3(name: &'static str) -> Row {
    Row { name, pattern: LLAMA3, whole_words_first: true, adds_bos: true }
}

const ROWS: &[Row] = &[
    row("gpt-2", GPT2),
    row("smollm", SINGLE_DIGITS),
    row("starcoder", SINGLE_DIGITS),
    row("refact", SINGLE_DIGITS),
    row("command-r", SINGLE_DIGITS),
    llama3("llama-bpe"),
    llama3("llama3"),
    llama3("llama-v3"),
    row("qwen2", QWEN2),
    row("deepseek-r1-qwen", QWEN2),
];

/// The names in `tokenizer.ggml.pre` that a byte-level vocabulary may have.
pub fn supported_names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name)
}

/// Cuts text into words.
pub(crate) struct PreTokenizer {
    row: &'static Row,
    pattern: SysRegex,
}

impl PreTokenizer {
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<PreTokenizer, Error> {
        let name = metadata.string(PRE)?;
        let row = ROWS.iter().find(|row| Some(row.name) == name).ok_or_else(|| Error::UnsupportedPreTokenizer {
            found: name.map_or_else(|| "missing".to_owned(), quoted),
            supported: supported_names().collect::<Vec<_>>().join(", "),
        })?;
        let pattern = SysRegex::new(row.pattern).map_err(|error| bad(PRE, error.to_string()))?;
        Ok(PreTokenizer { row, pattern })
    }

    pub(crate) fn whole_words_first(&self) -> bool {
        self.row.whole_words_first
    }

    pub(crate) fn adds_bos(&self) -> bool {
        self.row.adds_bos
    }

    /// The words of `text`, which joined give `text` again.
    pub(crate) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut borders = vec![0];
        // The patterns match every character. Where the engine gives up (a million blanks in a row), the rest is a word.
        borders.extend(self.pattern.find_iter(text).flat_map(|(start, end)| [start, end]));
        borders.push(text.len());
        (1..borders.len()).map(move |i| &text[borders[i - 1]..borders[i]]).filter(|word| !word.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expected: &[&str]) {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let splitter = PreTokenizer { row, pattern: SysRegex::new(row.pattern).unwrap() };
        assert_eq!(splitter.words(text).collect::<Vec<_>>(), expected, "{name}: {text:?}");
    }

    #[test]
    fn words_take_the_space_before_them() {
        for name in ["gpt-2", "smollm", "llama-bpe", "qwen2"] {
            check(name, "Hello,  world it's", &["Hello", ",", " ", " world", " it", "'s"]);
            check(name, "", &[]);
        }
    }

    #[test]
    fn numbers_are_cut_as_the_family_cuts_them() {
        check("gpt-2", "a 12345", &["a", " 12345"]);
        check("smollm", "a 123", &["a", " ", "1", "2", "3"]);
        check("llama-bpe", "a 12345", &["a", " ", "123", "45"]);
        check("qwen2", "a 123", &["a", " ", "1", "2", "3"]);
    }

    #[test]
    fn spaces_before_a_digit_stay_together() {
        check("smollm", "a   1", &["a", "   ", "1"]);
        check("smollm", "a   b", &["a", "  ", " b"]);
        check("smollm", "a \n 1 \n", &["a", " \n ", "1", " \n"]);
    }

    #[test]
    fn a_megabyte_of_blanks_is_still_cut_without_loss() {
        let text = format!("{}x", " ".repeat(3 << 20));
        for row in ROWS {
            let splitter = PreTokenizer { row, pattern: SysRegex::new(row.pattern).unwrap() };
            assert_eq!(splitter.words(&text).map(str::len).sum::<usize>(), text.len(), "{}", row.name);
        }
    }
}
