//! The marks between which a model thinks before it answers.

use crate::{ChatTemplate, Tokenizer};

/// Such marks: they stand at the beginning of an answer, if at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReasoningMarks {
    /// What begins the thoughts.
    pub start: &'static str,
    /// What ends them.
    pub end: &'static str,
}

const KNOWN: &[ReasoningMarks] =
    &[ReasoningMarks { start: "<think>", end: "</think>" }, ReasoningMarks { start: "[THINK]", end: "[/THINK]" }];

impl ReasoningMarks {
    /// Those of a model, by what its template or its vocabulary has; `None` if it does not think.
    pub fn find(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<ReasoningMarks> {
        let is_used = |marks: &&ReasoningMarks| {
            template.source().contains(marks.end) || tokenizer.special_token(marks.end).is_some()
        };
        KNOWN.iter().find(is_used).copied()
    }

    /// Whether a prompt ends with the beginning of thoughts, or with their end: then the answer does not begin them.
    pub fn at_end_of(self, prompt: &str) -> ReasoningStart {
        let prompt = prompt.trim_end();
        if prompt.ends_with(self.start) {
            ReasoningStart::Open
        } else if prompt.ends_with(self.end) {
            ReasoningStart::Over
        } else {
            ReasoningStart::Possible
        }
    }

    /// Whether a prompt ends within thoughts.
    pub(crate) fn are_open_in(self, prompt: &str) -> bool {
        let (start, end) = (prompt.rfind(self.start), prompt.rfind(self.end));
        start.is_some() && start > end
    }

    /// The thoughts of a text that begins with them and does not end them.
    pub(crate) fn begun_in(self, text: &str) -> Option<&str> {
        let thoughts = text.trim_start().strip_prefix(self.start)?;
        (!thoughts.contains(self.end)).then(|| thoughts.trim_start())
    }
}

/// Where an answer stands at its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningStart {
    /// The model may begin to think.
    Possible,
    /// The prompt began the thoughts.
    Open,
    /// The prompt ended them.
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_vocabulary::{byte_level, tokenizer, with_string};

    fn find(source: &str, tokens: &[&str]) -> Option<&'static str> {
        let template = ChatTemplate::from_source("test", source).expect("it compiles");
        let file = (0..).zip(tokens).fold(byte_level(), |file, (at, token)| {
            with_string(file, "tokenizer.ggml.tokens", taper_testkit::vocab::MIN_TOKENS - 3 + at, token)
        });
        ReasoningMarks::find(&template, &tokenizer(&file).expect("it is sound")).map(|marks| marks.start)
    }

    #[test]
    fn marks_are_found_in_the_template_or_among_the_special_tokens() {
        assert_eq!(find("{{ messages }}", &[]), None);
        assert_eq!(find("{{ messages }}<think>\n</think>", &[]), Some("<think>"));
        assert_eq!(find("{{ messages }}", &["</think>"]), Some("<think>"));
        assert_eq!(find("{{ messages }}", &["[/THINK]"]), Some("[THINK]"));
    }

    #[test]
    fn the_end_of_the_prompt_says_whether_thoughts_are_open() {
        let marks = KNOWN[0];
        assert_eq!(marks.at_end_of("<|im_start|>assistant\n<think>\n"), ReasoningStart::Open);
        assert_eq!(marks.at_end_of("assistant\n<think>\n\n</think>\n\n"), ReasoningStart::Over);
        assert_eq!(marks.at_end_of("user <think>?\nassistant\n"), ReasoningStart::Possible);
    }
}
