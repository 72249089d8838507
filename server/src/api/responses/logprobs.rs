//! Which tokens a text is made of: a message has the log-probabilities of its own tokens, and the marks of thoughts and calls
//! between two texts are nobody's.

use serde_json::Value;

/// Tokens, as the chat endpoint writes them, whose text was not told yet.
#[derive(Debug, Default)]
pub(super) struct Untold(Vec<Value>);

impl Untold {
    /// Takes the next tokens.
    pub(super) fn add(&mut self, tokens: Vec<Value>) {
        self.0.extend(tokens);
    }

    /// The tokens of a text that is told now; those before it are no text's. Where the text goes on, it begins with the first of
    /// them; otherwise it is the last that reads so, since marks may read like it. Tokens that do not show how they are written
    /// are all its own.
    pub(super) fn of_text(&mut self, text: &str, goes_on: bool) -> Vec<Value> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(self.0.len()));
        for token in &self.0 {
            bytes.extend(
                token["bytes"].as_array().into_iter().flatten().filter_map(Value::as_u64).map(|byte| byte as u8),
            );
            ends.push(bytes.len());
        }
        let text = text.as_bytes();
        let place = if goes_on && bytes.starts_with(text) {
            Some(0)
        } else {
            bytes.windows(text.len().max(1)).rposition(|window| window == text)
        };
        let Some(start) = place else { return std::mem::take(&mut self.0) };
        // A token that a mark and a text share is the text's.
        let first = ends.partition_point(|&end| end <= start);
        let last = ends.partition_point(|&end| end < start + text.len());
        let rest = self.0.split_off((last + 1).min(self.0.len()));
        let tokens = std::mem::replace(&mut self.0, rest);
        tokens.into_iter().skip(first).collect()
    }

    /// Drops what came before thoughts or a call that is told now.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What is left at the end, such as the token that ends an answer.
    pub(super) fn take(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(texts: &[&str]) -> Vec<Value> {
        texts.iter().map(|text| json!({ "token": text, "bytes": text.as_bytes() })).collect()
    }

    fn check(untold: &mut Untold, text: &str, goes_on: bool, expected: &[&str]) {
        let found = untold.of_text(text, goes_on);
        assert_eq!(found.iter().map(|token| token["token"].as_str().unwrap()).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn a_text_has_the_tokens_that_it_is_made_of() {
        let mut untold = Untold::default();
        untold.add(tokens(&["So", ".", " <"]));
        check(&mut untold, "So.", false, &["So", "."]);
        untold.add(tokens(&["b", ">"]));
        check(&mut untold, " <b>", true, &[" <", "b", ">"]);
        untold.add(tokens(&["\n<tool_call>", "{}", "</tool_call>", " c", "all"]));
        check(&mut untold, " call", false, &[" c", "all"]);
        // One token for the end of a mark and a text.
        untold.add(tokens(&["</think", ">\n\nY", "es", "<end>"]));
        check(&mut untold, "Yes", false, &[">\n\nY", "es"]);
        assert_eq!(untold.take(), tokens(&["<end>"]));
        untold.add(tokens(&["?"]));
        check(&mut untold, "\u{fffd}", true, &["?"]);
    }
}
